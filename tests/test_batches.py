"""agent.map: many inputs with bounded memory, in order or as ready, resumable, with progress."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Cancelled, Completed, Failed, StepLimit, Suspended, ToolCalling, tool
from windlass.batches import BatchItem, BatchProgress
from windlass.errors import ConfigError, ModelError
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says

needs_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform has no SIGKILL")


class Echo:
    """A model that repeats the input; `seconds` says how long a reply takes, and `errors` which inputs fail."""

    def __init__(self, clock: FakeClock | None = None, seconds: Any = None, errors: tuple[str, ...] = ()) -> None:
        self.asked: list[str] = []
        self.running = self.most = 0

        async def reply(request: Any) -> Any:
            text = request.messages[-1].text
            self.asked.append(text)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                if clock is not None:
                    await clock.alarm(seconds(text))
                if text in errors:
                    raise ModelError(f"cannot do {text}")
                return says(text.upper())
            finally:
                self.running -= 1

        self.model = FunctionModel(reply)


async def finish(work: Any, clock: FakeClock) -> Any:
    """Let time pass until the work is done."""
    running = asyncio.ensure_future(work)
    while not running.done():
        await clock.advance(1)
    return await running


def backwards(text: str) -> float:
    return 10.0 - int(text)


async def test_results_come_in_the_order_of_the_inputs():
    clock = FakeClock()
    echo = Echo(clock, backwards)
    batch = Agent(echo.model, clock=clock).map(list("0123456"), concurrency=3)
    items = await finish(batch.collect(), clock)
    assert [item.text for item in items] == list("0123456")
    assert [item.index for item in items] == list(range(7))
    assert echo.most == 3


async def test_results_can_come_as_they_are_ready():
    clock = FakeClock()
    echo = Echo(clock, backwards)
    batch = Agent(echo.model, clock=clock).map(list("012"), concurrency=3, ordered=False)
    assert [item.input for item in await finish(batch.collect(), clock)] == ["2", "1", "0"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_endless_inputs_are_read_only_as_far_as_there_is_room(ordered):
    read = []

    def inputs() -> Iterator[str]:
        while True:
            read.append(len(read))
            yield str(read[-1])

    echo = Echo()
    async with Agent(echo.model).map(inputs(), concurrency=4, ordered=ordered) as batch:
        taken = 0
        async for _ in batch:
            taken += 1
            await asyncio.sleep(0)
            assert len(read) <= taken + 2 * 4
            assert echo.most <= 4
            if taken == 200:
                break
    assert len(asyncio.all_tasks()) == 1


async def test_results_that_were_taken_are_not_kept():
    batch = Agent(Echo().model).map(map(str, range(300)), concurrency=4)
    most = 0
    async for item in batch:
        if item.index % 50 == 49:  # looking at all objects takes long
            del item
            gc.collect()
            most = max(most, sum(type(one) is BatchItem for one in gc.get_objects()))
    assert most <= 2 * 4 + 2


async def test_inputs_can_be_async_and_of_all_kinds():
    async def inputs() -> AsyncIterator[Any]:
        for text in ("a", ["b"]):
            await asyncio.sleep(0)
            yield text

    items = await Agent(Echo().model).map(inputs()).collect()
    assert [item.text for item in items] == ["A", "B"]
    assert await Agent(Echo().model).map([]).collect() == []


async def test_errors_do_not_stop_the_batch():
    given: list[Any] = ["a", "bad", 7, "b"]
    a, bad, seven, b = await Agent(Echo(errors=("bad",)).model).map(given).collect()
    assert (a.text, b.text) == ("A", "B")
    assert [item.ok for item in (a, bad, seven, b)] == [True, False, False, True]
    assert isinstance(bad.outcome, Failed)
    with pytest.raises(ModelError, match="cannot do bad"):
        _ = bad.text
    assert seven.result is None
    assert isinstance(seven.outcome, Failed)
    with pytest.raises(TypeError, match="expected a str"):
        _ = seven.output


async def test_an_error_of_the_inputs_is_raised_after_the_results():
    def inputs() -> Iterator[str]:
        yield "a"
        yield "b"
        raise OSError("the file is gone")

    batch = Agent(Echo().model).map(inputs())
    assert [(await anext(batch)).text for _ in range(2)] == ["A", "B"]
    with pytest.raises(OSError, match="the file is gone"):
        await anext(batch)


async def test_leaving_a_batch_cancels_its_turns_and_leaves_no_task():
    clock, store = FakeClock(), MemoryStore()
    agent = Agent(Echo(clock, lambda text: 0 if text == "0" else 100).model, clock=clock, store=store)
    async with agent.map(list("01234"), concurrency=2, session="b") as batch:
        assert (await finish(anext(batch), clock)).text == "0"
    assert len(asyncio.all_tasks()) == 1
    outcomes = [(await agent.state(session)).outcome for session in sorted(await store.sessions())]
    assert [type(outcome) for outcome in outcomes] == [Completed, Cancelled, Cancelled]
    assert outcomes[1] == Cancelled("the batch was stopped")


async def test_a_cancelled_consumer_cancels_the_batch():
    clock = FakeClock()
    echo = Echo(clock, lambda text: 100)
    task = asyncio.ensure_future(Agent(echo.model, clock=clock).map(list("0123"), concurrency=2).collect())
    await clock.wait_for_sleepers(2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert echo.running == 0
    assert len(asyncio.all_tasks()) == 1


async def test_a_named_batch_runs_nothing_twice_and_repeats_what_was_cancelled():
    clock, store = FakeClock(), MemoryStore()
    slow = Echo(clock, lambda text: 0 if text in "0b" else 100, errors=("b",))
    inputs = ["0", "b", "2", "3", "0"]
    async with Agent(slow.model, clock=clock, store=store).map(inputs, concurrency=2, session="batch") as batch:
        first = [await finish(anext(batch), clock), await finish(anext(batch), clock)]
        await clock.wait_for_sleepers(2)
    echo = Echo()
    items = await Agent(echo.model, store=store).map(inputs, session="batch").collect()
    assert sorted(echo.asked) == ["0", "2", "3"]  # the last one, and the two that were cancelled
    assert [item.input for item in items] == inputs
    assert [type(item.outcome) for item in items] == [Completed, Failed, Completed, Completed, Completed]
    assert items[0].session == first[0].session
    assert items[0].text == "0"
    assert str(items[1].session).startswith("batch/1-")
    assert str(items[2].session).endswith(".2")
    again = Echo()
    repeated = await Agent(again.model, store=store).map(inputs, session="batch").collect()
    assert again.asked == []
    assert [item.outcome for item in repeated] == [item.outcome for item in items]
    with pytest.raises(ModelError, match="cannot do b"):
        _ = repeated[1].text


async def test_another_input_at_the_same_place_is_run():
    store = MemoryStore()
    await Agent(Echo().model, store=store).map(["a", "b"], session="batch").collect()
    echo = Echo()
    items = await Agent(echo.model, store=store).map(["a", "c"], session="batch").collect()
    assert [item.text for item in items] == ["A", "C"]
    assert echo.asked == ["c"]


async def test_turns_that_wait_for_people_are_results_and_are_resumed_with_their_answers():
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def agent(*replies: Any) -> Agent[Any]:
        made = Agent(ScriptedModel(*replies), tools=[pay], store=store)
        made.gate(ToolCalling, name="ask")(lambda event: Ask("May I?"))
        return made

    store = MemoryStore()
    (item,) = await agent(calls("pay", amount=5)).map(["go"], session="b").collect()
    assert isinstance(item.outcome, Suspended)
    (item,) = await agent().map(["go"], session="b").collect()
    assert isinstance(item.outcome, Suspended)
    assert item.result is not None
    assert item.session is not None
    later = agent(says("Paid."))
    await later.resolve(item.session, item.result.waiting_for[0].id, Approve())
    (item,) = await later.map(["go"], session="b").collect()
    assert item.text == "Paid."


async def test_scope_slots_and_options_are_passed_on():
    seen = []

    @tool
    def look(turn: Any) -> str:
        """Look."""
        seen.append(turn.scope)
        return "seen"

    @tool
    def more() -> str:
        """More."""
        return "more"

    model = FunctionModel(lambda request: says("x") if request.messages[-1].role == "tool" else calls("look"))
    batch = Agent(model, tools=[look]).map(
        ["a", "b"], scope="me", criteria=iter([StepLimit(1)]), tools=iter([more]), settings={"temperature": 0.5}
    )
    items = await batch.collect()
    assert seen == ["me", "me"]
    assert [item.result.stop_reason for item in items if item.result] == ["step_limit", "step_limit"]


async def test_progress_is_told_and_a_failing_function_does_not_matter(caplog):
    told: list[BatchProgress] = []
    await Agent(Echo(errors=("b",)).model).map(["a", "b"], concurrency=1, progress=told.append).collect()
    assert [(one.done, one.failed, one.total) for one in told] == [(0, 0, 2), (1, 0, 2), (2, 1, 2)]

    def fail(progress: BatchProgress) -> None:
        told.append(progress)
        raise RuntimeError("no")

    told.clear()
    items = await Agent(Echo().model).map(iter(["a", "b"]), progress=fail).collect()
    assert [item.text for item in items] == ["A", "B"]
    assert told == [BatchProgress()]
    assert "is not called again" in caplog.text


async def test_a_bar_shows_progress(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    await Agent(Echo(errors=("b",)).model).map(["a", "b", "c"], progress=True).collect()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err
    assert "1 failed" in shown.err


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        ("abc", {}, "not a single one"),
        (5, {}, "give an iterable"),
        (["a"], {"concurrency": 0}, "concurrency must be a whole number, 1 or more"),
        (["a"], {"concurrency": True}, "concurrency must be"),
        (["a"], {"progress": "yes"}, "progress must be"),
        (["a"], {"session": "a//b"}, "contains '//'"),
        (["a"], {"session": "x" * 500}, "the maximum is 512"),
        (["a"], {"session": ""}, "must not be empty"),
        (["a"], {"temperature": 1}, "there is no such option"),
    ],
)
def test_mistakes_are_found_before_anything_runs(inputs, options, words):
    with pytest.raises(ConfigError, match=words):
        Agent(ScriptedModel()).map(inputs, **options)


# ---------------------------------------------------------------- processes

WORKER = """
import asyncio, sys
from windlass import Agent, tool
from windlass.testing import FunctionModel, calls, says

stuck = set(sys.argv[2].split(","))

@tool(effect="idempotent")
async def work(text: str) -> str:
    "Work."
    print("work", text, flush=True)
    if text in stuck:
        await asyncio.sleep(3600)
    return "worked"

def reply(request):
    last = request.messages[-1]
    if last.role == "tool":
        return says("Done.")
    print("ask", last.text, flush=True)
    return calls("work", text=last.text)

async def main():
    async with Agent(FunctionModel(reply), tools=[work], store=sys.argv[1]) as agent:
        async for item in agent.map(map(str, range(12)), concurrency=3, ordered=False, session="batch"):
            print("done", item.input, item.text, flush=True)

asyncio.run(main())
"""


def _start(address: str, stuck: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WORKER, address, stuck], stdout=subprocess.PIPE, text=True)


def _run_until(process: subprocess.Popen[str], enough: Any) -> list[str]:
    """The lines that a process prints until there are enough; then it is killed."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.strip())
        if enough(lines):
            os.kill(process.pid, signal.SIGKILL)
            break
    lines += process.stdout.read().splitlines()
    process.stdout.close()
    process.wait()
    return lines


@needs_kill
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_batch_whose_process_was_killed_continues_where_it_was(kind, tmp_path: Path, request: Any):
    address = f"sqlite:///{tmp_path / 'store.db'}" if kind == "sqlite" else request.getfixturevalue("database")

    def enough(lines: list[str]) -> bool:  # all but one place in the batch are stuck, and five inputs are done
        done = sum(line.startswith("done") for line in lines)
        return done >= 5 and {"work 2", "work 4"} <= set(lines)

    first = await asyncio.to_thread(_run_until, _start(address, "2,4"), enough)
    second = await asyncio.to_thread(_run_until, _start(address, "none"), lambda lines: False)
    assert sorted({line for line in second if line.startswith("done")}) == sorted(f"done {n} Done." for n in range(12))
    done = {line.split()[1] for line in first if line.startswith("done")}
    assert len(done) >= 5
    assert not {"2", "4"} & done
    again = {line.split()[1] for line in second if not line.startswith("done")}
    assert not done & again  # what was finished is read from the store
    assert {"work 2", "work 4"} <= set(second)  # what was interrupted is resumed,
    assert not {"ask 2", "ask 4"} & set(second)  # and goes on where it was
