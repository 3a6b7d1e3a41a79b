"""Observers that hang, block, exit or keep what they were given: nobody else notices, and nothing is silent."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from windlass import Agent, Completed, HookFailed, Slot, ToolCalling, ToolReturned, Turn, TurnEnded, TurnStarted, tool
from windlass._hooks import observers
from windlass.errors import HookError, RegistrationError
from windlass.testing import ScriptedModel, calls, says

SESSION = "s1"


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def adder(*sums: int, **options: Any) -> Agent[Any, Any]:
    replies = [calls("add", a=n, b=0) for n in sums]
    return Agent(ScriptedModel(*[*replies, says("done")] * 4), tools=[add], **options)


async def failures(agent: Agent[Any, Any], session: str = SESSION) -> list[HookFailed]:
    return [record for record in await agent.store.read(session) if isinstance(record, HookFailed)]


# ---------------------------------------------------------------- what is no Exception


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("way", ["plain", "async", "awaited", "awaited async", "awaited in a thread"])
async def test_an_observer_outlives_whatever_it_raises(way: str, error: Any):
    """It is told of every later fact, in this turn and the next, and no turn waits for it in vain."""
    if error is KeyboardInterrupt and way not in ("plain", "awaited in a thread"):
        return  # on the loop that is the user's
    agent = adder(1, 2, 3, observer_patience=20)
    told: list[str] = []

    def plain(fact: Any) -> None:
        told.append(fact.call)
        raise error("oh")

    async def later(fact: Any) -> None:
        plain(fact)

    wait, thread = way.startswith("awaited"), way.endswith("thread")
    agent.observe(ToolReturned, name="clumsy", wait=wait, thread=thread)(later if "async" in way else plain)
    started = time.monotonic()
    for _ in range(2):
        assert (await agent.run("go", session=SESSION)).outcome == Completed()
    assert time.monotonic() - started < 10
    assert told == ["s1/1/1", "s1/2/1", "s1/3/1", "s1/5/1", "s1/6/1", "s1/7/1"]
    found = await failures(agent)
    assert [failed.hook for failed in found] == ["clumsy"] * 6
    assert error.__name__ in found[0].error.message


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_cancellation_that_nobody_asked_for_is_the_observers_failure(timeout: float | None):
    """An awaited observer awaits something that somebody else has cancelled: the turn goes on."""
    agent = adder(1)

    async def lost(fact: Any) -> None:
        task = asyncio.ensure_future(asyncio.sleep(1))
        task.cancel()
        await task

    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    agent.observe(ToolReturned, wait=True, **options)(lost)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(agent.run("go", session=SESSION))
    assert running.result().outcome == Completed()
    (failed,) = await failures(agent)
    assert failed.hook == "lost"


async def test_a_turn_that_is_cancelled_while_it_waits_for_an_observer_is_cancelled():
    agent = adder(1)
    waits = asyncio.Event()

    @agent.observe(ToolReturned, wait=True)
    async def slow(fact: Any) -> None:
        waits.set()
        await asyncio.sleep(50)

    task = asyncio.ensure_future(agent.run("go", session=SESSION))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_observer_that_returns_something_to_await_is_told_to_be_async():
    agent = adder(1)

    async def save() -> None:
        """Never awaited."""

    agent.observe(ToolReturned, name="lazy")(lambda fact: save())
    await agent.run("go", session=SESSION)
    (failed,) = await failures(agent)
    assert "async def" in failed.error.message


# ---------------------------------------------------------------- threads and time-outs


async def test_an_awaited_plain_observer_runs_in_a_thread_if_it_says_so():
    agent = adder(1)
    place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")
    seen: list[Any] = []

    @agent.observe(ToolReturned, wait=True, thread=True)
    def save(fact: Any) -> None:
        seen.append((threading.get_ident() == main, place.get()))

    main = threading.get_ident()
    place.set("here")
    agent.gate(ToolCalling)(lambda event: None)
    await agent.run("go", session=SESSION)
    assert seen == [(False, "here")]


def test_a_time_out_on_an_awaited_plain_observer_needs_a_thread():
    agent = adder()
    with pytest.raises(RegistrationError, match="thread=True"):
        agent.observe(ToolReturned, wait=True, timeout=1.0)(lambda fact: None)
    agent.observe(ToolReturned, wait=True, timeout=1.0, thread=True)(lambda fact: None)
    agent.observe(ToolReturned, timeout=1.0)(lambda fact: None)
    agent.observe(ToolReturned, durable=True, timeout=1.0)(lambda fact: None)


@pytest.mark.parametrize("options", [{"wait": True, "thread": True}, {}])
async def test_the_time_out_of_a_plain_observer_is_enforced(options: Any):
    release = threading.Event()
    agent = adder(1, 2, observer_patience=20)
    told: list[str] = []

    @agent.observe(ToolReturned, timeout=0.2, **options)
    def stuck(fact: Any) -> None:
        told.append(fact.call)
        release.wait(20)

    try:
        result = await agent.run("go", session=SESSION)
    finally:
        release.set()
    assert result.outcome == Completed()
    assert told == ["s1/1/1", "s1/2/1"]
    found = await failures(agent)
    assert [(failed.hook, failed.error.type) for failed in found] == [("stuck", "HookTimeout")] * 2


async def test_an_async_observer_that_swallows_its_time_out_is_left_behind():
    agent = adder(1)
    release = asyncio.Event()

    @agent.observe(ToolReturned, wait=True, timeout=0.01)
    async def stubborn(fact: Any) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    result = await asyncio.wait_for(agent.run("go", session=SESSION), 10)
    assert result.outcome == Completed()
    release.set()
    (failed,) = await failures(agent)
    assert failed.error.type == "HookTimeout"


async def test_an_awaited_plain_observer_that_blocks_the_loop_is_named(monkeypatch):
    monkeypatch.setattr(observers, "BLOCKED_AFTER", 0.05)
    agent = adder(1)

    @agent.observe(ToolReturned, wait=True)
    def blocks(fact: Any) -> None:
        until = time.perf_counter() + 0.06
        while time.perf_counter() < until:
            pass

    await agent.run("go", session=SESSION)
    (failed,) = await failures(agent)
    assert (failed.hook, failed.effect) == ("blocks", "blocked the loop")
    assert "thread=True" in failed.error.message


async def test_observers_that_hang_do_not_starve_another_one():
    release, seen = threading.Event(), threading.Event()
    agent = adder(1, observer_patience=0.01)
    for number in range(20):
        agent.observe(TurnStarted, name=f"stuck{number}")(lambda fact, release=release: release.wait(20))
    agent.observe(TurnStarted, name="fine")(lambda fact: seen.set())
    try:
        await agent.run("go")
        assert seen.wait(20)
    finally:
        release.set()
        await agent.aclose()


async def test_one_plain_observer_holds_only_so_many_threads():
    """One that hangs for ever in every turn does not fill the process with threads."""
    release = threading.Event()
    agent = adder(*range(30))
    began: list[int] = []

    @agent.observe(ToolReturned, wait=True, thread=True, timeout=0.001)
    def stuck(fact: Any) -> None:
        began.append(1)
        release.wait(20)

    try:
        await agent.run("go", session=SESSION)
        assert len(await failures(agent)) == 30
        assert len(began) <= 8
    finally:
        release.set()


@pytest.mark.parametrize("options", ["", "durable=True", "wait=True, thread=True, timeout=0.1"])
def test_an_observer_that_hangs_for_ever_does_not_keep_the_process_from_exiting(options: str):
    program = f"""
        import threading
        from windlass import Agent, TurnEnded
        from windlass.testing import ScriptedModel, says
        agent = Agent(ScriptedModel(says("hi")), observer_patience=0.01)
        @agent.observe(TurnEnded, {options})
        def stuck(fact):
            threading.Event().wait()
        print(agent.run_sync("hello").text)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hi\n"


# ---------------------------------------------------------------- a turn that is kept


async def test_a_turn_that_was_kept_beyond_its_end_says_so():
    """It reaches no model, and nothing that is written to it vanishes in silence."""
    agent, other = adder(1), ScriptedModel(says("x"))
    slot = agent.slot(Slot("n", int))
    kept: list[Turn[Any]] = []
    agent.gate(ToolCalling)(lambda event, turn: kept.append(turn))
    await agent.run("go", session=SESSION)
    (turn,) = kept
    for use in (lambda: turn.set(slot, 1), lambda: turn.add("hello"), lambda: turn.cancel("no")):
        with pytest.raises(HookError, match="the turn is over"):
            use()
    with pytest.raises(HookError, match="the turn is over"):
        await turn.ask(other, "hello")
    assert other.requests == []
    assert turn.state.outcome == Completed()


async def test_what_a_hook_writes_after_it_has_returned_is_refused():
    agent = adder(1)
    slot = agent.slot(Slot("n", int))
    kept: list[Turn[Any]] = []
    said: list[str] = []

    @agent.gate(ToolCalling, name="keeper")
    def keep(event: Any, turn: Turn[Any]) -> None:
        kept.append(turn)

    @agent.observe(ToolReturned, wait=True)
    def late(fact: Any) -> None:
        for use in (lambda: kept[0].set(slot, 1), lambda: kept[0].add("hello")):
            with pytest.raises(HookError) as caught:
                use()
            said.append(str(caught.value))

    await agent.run("go", session=SESSION)
    assert len(said) == 2
    assert all("'keeper' has returned" in text for text in said)


async def test_an_observer_told_of_the_end_still_reads_its_turn():
    agent = adder(1, observer_patience=0.0)
    release = threading.Event()
    seen: list[Any] = []

    @agent.observe(TurnEnded)
    def slow(fact: Any, turn: Turn[Any]) -> None:
        release.wait(20)
        seen.append((turn.session_id, turn.scope, turn.state.text))

    await agent.run("go", session=SESSION, scope={"user": "ann"})
    release.set()
    await agent.aclose()
    assert seen == [(SESSION, {"user": "ann"}, "done")]
