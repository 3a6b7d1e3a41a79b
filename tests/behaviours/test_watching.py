"""`agent.watch`: a second consumer of a running or finished turn, in this process or another."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    ArgumentsDelta,
    Ask,
    Delegated,
    ModelReplied,
    ModelReplying,
    Progressed,
    Regenerate,
    Retracted,
    Suspended,
    TextDelta,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarted,
    Watch,
    fold,
    tool,
)
from windlass.errors import ConfigError, ConnectionFailed, SessionUnknown
from windlass.records import Record, Resumed, decode, encode
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, breaks, calls, crash_points, says


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def adding(*more: Any, **options: Any) -> Agent:
    script = more or (calls("add", a=1, b=2), says(chunks=["it ", "is ", "3"]))
    return Agent(ScriptedModel(*script), tools=[add], **options)


def plain(events: list[Any]) -> list[Any]:
    return [event.replace(seq=0, path="") for event in events if isinstance(event, Record)]


async def watched(watch: Watch) -> list[Any]:
    return [event async for event in watch]


async def until(condition: Any) -> None:
    for tried in range(1000):
        if condition():
            return
        await asyncio.sleep(0 if tried < 300 else 0.01)
    raise AssertionError("it did not happen")


# ---------------------------------------------------------------- records


async def test_a_finished_turn_is_told_from_its_log_and_ends():
    agent = adding()
    await agent.run("go", session="s")
    events = await watched(agent.watch("s"))
    assert plain(events) == list(await agent.store.read("s"))
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert fold("s", plain(events)) == await agent.state("s")


async def test_only_the_latest_turn_is_told_unless_a_token_says_otherwise():
    agent = adding(says("one"), says("two"), says("three"))
    await agent.run("1", session="s")
    watch = agent.watch("s")
    await watched(watch)
    await agent.run("2", session="s")
    assert [event.turn for event in await watched(agent.watch("s")) if isinstance(event, TurnStarted)] == [2]
    await agent.run("3", session="s")
    second = agent.watch("s", since=watch.token)
    events = await watched(second)
    assert [event.turn for event in events if isinstance(event, TurnStarted)] == [2]
    events = await watched(agent.watch("s", since=second.token))
    assert [event.turn for event in events if isinstance(event, TurnStarted)] == [3]


def family(*script: Any, **options: Any) -> Agent:
    child = Agent(ScriptedModel(calls("add", a=1, b=1), says("two")), tools=[add], name="child")
    other = Agent(ScriptedModel(says("other")), name="other")
    both = calls([("child", {"task": "x"}), ("other", {"task": "y"})])
    model = ScriptedModel(*(script or (both, says("done"))))
    return Agent(model, tools=[child.as_tool(), other.as_tool()], **options)


async def test_every_token_continues_exactly_where_it_was_taken_also_in_sub_agents():
    agent = family()
    await agent.run("go", session="s")
    watch = agent.watch("s")
    events, tokens = [], []
    async for event in watch:
        events.append(event)
        tokens.append(watch.token)
    paths = {event.path for event in events}
    assert len(paths) == 3
    for path in paths:
        told = [event for event in events if event.path == path]
        assert plain(told) == list(await agent.store.read(path or "s"))
        assert [event.seq for event in told] == [*range(1, len(told) + 1)]
    for place, token in enumerate(tokens):
        assert await watched(agent.watch("s", since=token)) == events[place + 1 :]
        assert agent.watch("s", since=token).token == token


async def test_a_sub_agents_records_come_after_its_start_and_before_its_result():
    agent = family()
    await agent.run("go", session="s")
    events = await watched(agent.watch("s"))
    for started in [event for event in events if isinstance(event, Delegated)]:
        places = [at for at, event in enumerate(events) if event.path == started.session]
        (returned,) = [
            at for at, event in enumerate(events) if isinstance(event, ToolReturned) and event.call == started.call
        ]
        assert events.index(started) < places[0]
        assert places[-1] < returned


async def test_a_suspended_turn_ends_the_watch_and_its_token_continues_after_the_resume():
    agent = adding()
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    asked = (await agent.run("go", session="s")).waiting_for[0]
    watch = agent.watch("s")
    before = await watched(watch)
    assert isinstance(before[-1], Suspended)
    await agent.resume("s", answers={asked.id: Approve()})
    after = await watched(agent.watch("s", since=watch.token))
    assert any(isinstance(event, Resumed) for event in after)
    assert plain([*before, *after]) == list(await agent.store.read("s"))


async def test_mistakes_are_named():
    agent = adding()
    with pytest.raises(SessionUnknown, match="there is no session 'nowhere'"):
        await watched(agent.watch("nowhere"))
    await agent.run("go", session="s")
    watch = agent.watch("s")
    with pytest.raises(ConfigError, match="no token yet"):
        watch.token  # noqa: B018
    await watched(watch)
    for wrong in ("", "nonsense", "é", watch.token[:-4]):
        with pytest.raises(ConfigError, match="is not a token"):
            agent.watch("s", since=wrong)
    with pytest.raises(ConfigError, match="the token belongs to session 's', not to 't'"):
        agent.watch("t", since=watch.token)
    other = adding(says("hi"))
    await other.run("go", session="s")
    with pytest.raises(ConfigError, match="it belongs to another store, or the session was erased"):
        await watched(other.watch("s", since=watch.token))


# ---------------------------------------------------------------- a turn that runs here


class Held:
    """A model that streams some pieces, and waits between them for the test."""

    name = "held"

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.go = asyncio.Event()
        self.told = 0

    async def reply(self, request: Any) -> str:
        return "".join(self.pieces)

    async def stream(self, request: Any):
        for piece in self.pieces:
            self.told += 1
            yield piece
            await self.go.wait()
            self.go.clear()
        from windlass import ModelReply, assistant

        yield ModelReply(assistant("".join(self.pieces)))


async def consume(agent: Agent, message: str | None = "go", **options: Any) -> list[Any]:
    async with agent.stream(message, session="s", **options) as stream:
        return [event async for event in stream]


async def test_an_attaching_watcher_first_gets_the_released_text_as_one_delta():
    model = Held("one ", "two ", "three ", "four")
    agent = Agent(model)
    turn = asyncio.create_task(consume(agent))
    for told in (1, 2, 3):
        await until(lambda told=told: model.told == told)
        model.go.set() if told < 3 else None
    watch = agent.watch("s")
    seen: list[Any] = []
    async for event in watch:
        seen.append(event)
        if isinstance(event, TextDelta):
            model.go.set()
    told = [event for event in seen if isinstance(event, TextDelta)]
    deltas = [(event.text, event.offset, event.step, event.round, event.attempt) for event in told]
    assert deltas[0] == ("one two three ", 0, 1, 1, 1)
    assert deltas[1:] == [("four", 14, 1, 1, 1)]
    kinds = [type(event) for event in seen]
    assert kinds.index(TextDelta) < kinds.index(ModelReplied) < kinds.index(TurnEnded)
    await turn
    assert plain(seen) == list(await agent.store.read("s"))


async def test_leaving_a_watch_ends_nothing_and_a_new_one_goes_on_from_its_token():
    model = Held("one ", "two")
    agent = Agent(model)
    turn = asyncio.create_task(consume(agent))
    await until(lambda: model.told == 1)
    before: list[Any] = []
    async with agent.watch("s") as watch:
        async for event in watch:
            before.append(event)
            if isinstance(event, TextDelta):
                break
    assert not turn.done()
    model.go.set()
    await until(lambda: model.told == 2)
    model.go.set()
    after = await watched(agent.watch("s", since=watch.token))
    events = await turn
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "one two"
    assert plain([*before, *after]) == list(await agent.store.read("s"))


async def test_a_watcher_does_not_slow_the_turn_down():
    agent = Agent(ScriptedModel(says(chunks=["x"] * 2000)))
    turn = asyncio.create_task(consume(agent))
    await until(lambda: agent.store.passes.get("s") is not None)
    events: list[Any] = []
    async for event in agent.watch("s"):
        events.append(event)
        if not turn.done():
            await turn
    assert len(events) < 50
    assert plain(events) == list(await agent.store.read("s"))


async def test_a_plain_run_has_records_and_no_deltas():
    began, go = asyncio.Event(), asyncio.Event()

    async def reply(request):
        began.set()
        await go.wait()
        return "done"

    agent = Agent(FunctionModel(reply))
    turn = asyncio.create_task(agent.run("go", session="s"))
    await began.wait()
    seen: list[Any] = []
    task = asyncio.create_task(_collect(agent, seen))
    await asyncio.sleep(0.05)
    assert not task.done()
    go.set()
    await turn
    await task
    assert not [event for event in seen if not isinstance(event, Record)]
    assert plain(seen) == list(await agent.store.read("s"))


async def _collect(agent: Agent, seen: list[Any]) -> None:
    await _collect_from(agent.watch("s"), seen)


async def test_an_attempt_that_is_repeated_is_retracted_for_watchers_too():
    seen: list[Any] = []
    clock = FakeClock()
    agent = Agent(ScriptedModel(breaks("half", error=ConnectionFailed("gone")), says("whole")), clock=clock)
    turn = asyncio.create_task(consume(agent))
    await clock.wait_for_sleepers()
    task = asyncio.create_task(_collect(agent, seen))
    await until(lambda: seen)
    await clock.advance(60)
    await asyncio.wait_for(turn, 5)
    await asyncio.wait_for(task, 5)
    texts = [event.text for event in seen if isinstance(event, TextDelta)]
    retracted = [event for event in seen if isinstance(event, Retracted)]
    assert len(retracted) == texts.count("half")
    (replied,) = [event for event in seen if isinstance(event, ModelReplied)]
    assert replied.reply.text == "whole"


async def test_progress_and_arguments_reach_watchers():
    go = asyncio.Event()

    @tool(effect="pure")
    async def work(turn) -> str:
        """Work."""
        turn.progress(1, 2, "half")
        await go.wait()
        return "worked"

    agent = Agent(ScriptedModel(calls("work"), says("done")), tools=[work])
    turn = asyncio.create_task(consume(agent))
    await asyncio.sleep(0.05)
    seen: list[Any] = []
    async for event in agent.watch("s"):
        seen.append(event)
        if isinstance(event, Progressed):
            go.set()
    await turn
    assert [(event.about, event.text) for event in seen if isinstance(event, Progressed)] == [("s/1/1", "half")]
    assert {event.call for event in seen if isinstance(event, ArgumentsDelta)} <= {"s/1/1"}


async def test_a_watcher_in_another_thread():
    model = Held("one ", "two")
    agent = Agent(model)
    turn = asyncio.create_task(consume(agent))
    await until(lambda: model.told == 1)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: asyncio.run(_collect(agent, seen)))
    thread.start()
    await until(lambda: any(isinstance(event, TextDelta) for event in seen))
    for told in (1, 2):
        await until(lambda told=told: model.told >= told)
        model.go.set()
        await asyncio.sleep(0.02)
    await turn
    await asyncio.to_thread(thread.join, 5)
    assert plain(seen) == list(await agent.store.read("s"))


# ---------------------------------------------------------------- what hooks hold back


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_a_rejected_reply_is_never_shown(way):
    gate = asyncio.Event()
    agent = Agent(ScriptedModel(says("Sell it all!"), says("Ask your adviser.")))

    @agent.gate(ModelReplying)
    async def no_advice(event, turn):
        await asyncio.sleep(0.03)
        return Regenerate("no advice") if "Sell" in event.reply.text else None

    turn = asyncio.create_task(consume(agent) if way == "stream" else agent.run("go", session="s"))
    await asyncio.sleep(0.01)
    seen = await watched(agent.watch("s"))
    await turn
    assert "Sell" not in repr(seen)
    assert [event.reply.text for event in seen if isinstance(event, ModelReplied)] == ["", "Ask your adviser."]
    again = await watched(agent.watch("s"))
    assert plain(again) == plain(seen)
    gate.set()


async def test_an_answer_that_a_hook_changes_at_the_end_is_not_shown():
    agent = adding(says("the code is 1234"))
    agent.rewrite(TurnEnding)(lambda event: "the code is secret")
    await consume(agent)
    seen = await watched(agent.watch("s"))
    assert "1234" not in repr(seen)
    (ended,) = [event for event in seen if isinstance(event, TurnEnded)]
    assert ended.text == "the code is secret"
    agent = adding(says("fine"))
    agent.rewrite(TurnEnding)(lambda event: None)
    await agent.run("go", session="s")
    (replied,) = [event for event in await watched(agent.watch("s")) if isinstance(event, ModelReplied)]
    assert replied.reply.text == "fine"


async def test_a_reply_that_a_person_must_judge_comes_without_its_words():
    agent = adding(says("risky"))
    agent.gate(ModelReplying)(lambda event: Ask("May it be said?"))
    asked = (await agent.run("go", session="s")).waiting_for[0]
    watch = agent.watch("s")
    seen = await watched(watch)
    assert "risky" not in repr(seen)
    assert isinstance(seen[-1], Suspended)
    await agent.resume("s", answers={asked.id: Approve()})
    after = await watched(agent.watch("s", since=watch.token))
    assert isinstance(after[-1], TurnEnded)


async def test_held_records_wait_and_the_token_stays_before_them():
    judged = asyncio.Event()
    agent = adding(says("fine"))

    @agent.gate(ModelReplying)
    async def slow(event):
        await judged.wait()

    turn = asyncio.create_task(agent.run("go", session="s"))
    await asyncio.sleep(0.05)
    seen: list[Any] = []
    watch = agent.watch("s")
    task = asyncio.create_task(_collect_from(watch, seen))
    await asyncio.sleep(0.1)
    assert "fine" not in repr(seen)
    assert not [event for event in seen if isinstance(event, ModelReplied)]
    token = watch.token
    judged.set()
    await turn
    await task
    rest = await watched(agent.watch("s", since=token))
    assert [event.reply.text for event in rest if isinstance(event, ModelReplied)] == ["fine"]


async def _collect_from(watch: Watch, seen: list[Any]) -> None:
    async for event in watch:
        seen += [event]


async def test_secrets_are_masked_for_watchers():
    agent = Agent(ScriptedModel(says(chunks=["it is hun", "ter22"])), secrets=["hunter22"])
    turn = asyncio.create_task(consume(agent))
    await asyncio.sleep(0)
    await turn
    assert "hunter22" not in repr(await watched(agent.watch("s")))


# ---------------------------------------------------------------- other processes

SCRIPT = """
import asyncio, sys
from windlass import Agent, tool
from windlass.testing import FunctionModel, calls, says

@tool(effect="idempotent")
async def work(n: int) -> str:
    "Work."
    await asyncio.sleep(0.05)
    if n == 3 and len(sys.argv) > 2:
        print("waiting", flush=True)
        await asyncio.sleep(60)
    return f"worked {n}"

def reply(request):
    done = sum(message.role == "tool" for message in request.messages)
    return calls("work", n=done + 1) if done < 5 else says("done")

def make(store):
    return Agent(FunctionModel(reply), tools=[work], store=store)

async def main():
    async with make(sys.argv[1]) as agent:
        await agent.run("go", session="s")

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "watched_script.py"
    path.write_text(SCRIPT)
    return path


def start(script: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(script), *arguments], stdout=subprocess.PIPE)


def load(script: Path) -> Any:
    scope: dict[str, Any] = {"__name__": "watched_script"}
    exec(script.read_text(), scope)
    return scope["make"]


async def test_a_turn_of_another_process_is_watched_to_its_end(tmp_path, script):
    store = f"sqlite:///{tmp_path}/agent.db"
    async with load(script)(store) as agent:
        with start(script, store):
            for _ in range(500):
                if await agent.store.read("s"):
                    break
                await asyncio.sleep(0.02)
            seen = await watched(agent.watch("s"))
        assert isinstance(plain(seen)[-1], TurnEnded)
        assert plain(seen) == list(await agent.store.read("s"))


async def test_the_watch_of_a_killed_process_ends_and_goes_on_after_the_resume(tmp_path, script):
    store = f"sqlite:///{tmp_path}/agent.db"
    async with load(script)(store) as agent:
        process = start(script, store, "hang")
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"waiting\n"
        watch = agent.watch("s")
        before: list[Any] = []
        task = asyncio.create_task(_collect_from(watch, before))
        await until(lambda: len(before) > 3)
        assert not task.done()
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
        await asyncio.wait_for(task, 10)
        result = await agent.resume("s")
        assert result.text == "done"
        after = await watched(agent.watch("s", since=watch.token))
        assert plain([*before, *after]) == list(await agent.store.read("s"))
        assert [decode(encode(record)) for record in plain(after)] == plain(after)


# ---------------------------------------------------------------- crash points


class Follower(Agent):
    """An agent that is watched whenever a process has worked on its turn, from the token of the process before."""

    world: Any = None

    async def run(self, *args: Any, **options: Any) -> Any:
        result = await super().run(*args, **options)
        await self._follow(ended=True)
        return result

    async def resume(self, *args: Any, **options: Any) -> Any:
        await self._follow(ended=False)
        result = await super().resume(*args, **options)
        await self._follow(ended=True)
        return result

    async def _follow(self, *, ended: bool) -> None:
        token, seen = self.world.folder / "token", self.world.folder / "seen"
        watch = self.watch(self.world.session, since=token.read_text() if token.exists() else None)
        with seen.open("a") as file:
            async for event in watch:
                if isinstance(event, Record):
                    file.write(f"{event.path or self.world.session} {event.seq}\n")
        token.write_text(watch.token)
        if ended:
            await self._check(seen.read_text().splitlines())

    async def _check(self, lines: list[str]) -> None:
        told: dict[str, list[int]] = {}
        for line in lines:
            session, _, seq = line.rpartition(" ")
            told.setdefault(session, []).append(int(seq))
        logs = {name: len(await self.store.read(name)) for name in await self.store.sessions()}
        mine = {name: length for name, length in logs.items() if name.startswith(self.world.session)}
        assert told == {name: [*range(1, length + 1)] for name, length in mine.items() if name in told}
        assert set(told) == set(mine)


def followed(world: Any) -> Agent:
    child = Agent(world.model(says("child"), name="inner"), name="child")

    @tool(effect="idempotent")
    async def work(idempotency_key: str) -> str:
        """Work."""
        world.effect("work", idempotency_key)
        return "worked"

    model = world.model(calls([("work", {}), ("child", {"task": "x"})]), says("done"))
    agent = Follower(model, tools=[work, child.as_tool()], store=world.store)
    agent.world = world
    return agent


def test_watching_across_every_crash_point_misses_and_repeats_nothing():
    report = crash_points(followed)
    assert report.text == "done"
    assert len(report.points) > 15


async def test_retracted_text_is_told_only_to_those_who_saw_it():
    agent = Agent(ScriptedModel(says("x")))
    await consume(agent)
    assert not [event for event in await watched(agent.watch("s")) if isinstance(event, Retracted)]


async def test_a_watch_that_begins_when_the_turn_has_just_ended_shows_that_turn():
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("one"), says("two")))
    seen: list[Any] = []

    @agent.wrap(Turn)
    async def late(turn: Any, call_next: Any) -> Any:
        result = await call_next(turn)
        async with agent.watch("s") as watch:
            async for event in watch:
                seen.append(event)
                if isinstance(event, TurnEnded):
                    break
        return result

    async with asyncio.timeout(20):
        await agent.run("go", session="s")
        await agent.run("again", session="s")
    assert [event.turn for event in seen if isinstance(event, TurnStarted)] == [1, 2]
