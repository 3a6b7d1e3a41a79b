"""Who owns a session: a turn that is alive elsewhere is busy, a dead one is resumed at once, a takeover is fenced.

Where processes are the point they are real: `owners.py` is what they run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer

from windlass import Agent, Completed, StepLimit, Suspended, tool
from windlass.capabilities import AtTokens, Summarize
from windlass.errors import SessionBusy, SessionConflict
from windlass.records import InboxTaken, Record, Resumed, TakenOver, ToolCalled, TurnEnded, TurnStarted
from windlass.testing import FunctionModel, calls, unpaired

from . import owners
from .children import lines
from .owners import Office


class Town(Office):
    """The office of the test itself, which starts the other processes. None outlives the test."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, address)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, who: str, verb: str, message: str | None = None, **task: Any) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        given = json.dumps({"who": who, "verb": verb, "message": message, **task})
        command = [sys.executable, owners.__file__, str(self.folder), self.address, given]
        self.processes[who] = subprocess.Popen(command, env=environment)
        return self.processes[who]

    async def until(self, what: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait for something; no process may end with an error meanwhile."""
        until = time.monotonic() + seconds
        while not what():
            assert not any(process.poll() for process in self.processes.values()), "a process failed"
            assert time.monotonic() < until, "it did not happen"
            await asyncio.sleep(0.005)

    async def ended(self, who: str) -> dict[str, Any]:
        """Wait for the end of a process, and return how it ended."""
        await self.until(lambda: self.processes[who].poll() == 0)
        return self.end(who)

    def kill(self, who: str) -> None:
        self.processes[who].kill()
        assert self.processes.pop(who).wait() == -signal.SIGKILL

    def close(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for heir in lines(self.folder / "heir"):
            with suppress(ProcessLookupError):
                os.kill(int(heir), signal.SIGKILL)


@pytest.fixture(params=["sqlite", "postgresql"])
def town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    sqlite = request.param == "sqlite"
    town = Town(tmp_path, f"sqlite:///{tmp_path}/store.db" if sqlite else request.getfixturevalue("database"))
    yield town
    town.close()


async def logs_of(store: Any) -> dict[str, list[Record]]:
    """All logs, each with a chain that verifies."""
    for session in await store.sessions():
        await store.verify(session)
    return {session: list(await store.read(session)) for session in await store.sessions()}


def kinds(log: list[Record], *wanted: type[Record]) -> list[str]:
    return [type(record).__name__ for record in log if isinstance(record, wanted)]


# ---------------------------------------------------------------- alive or dead


async def test_a_session_that_is_alive_in_another_process_is_busy_and_nothing_happens_to_it(town):
    process = town.start("a", "run", "send", holds=["send"])
    await town.until(lambda: town.held)
    store = town.store()
    agent = town.clerk(store)
    before = await logs_of(store)
    named = rf"running in another process \(process {process.pid} on {socket.gethostname()}\)"
    await store.put("s", "k", "steer", "not consumed")
    with pytest.raises(SessionBusy, match=named):
        await agent.run("pay", session="s")
    with pytest.raises(SessionBusy, match=named):
        await agent.resume("s")
    with pytest.raises(SessionBusy, match=named):
        async with agent.stream("pay", session="s") as stream:
            [event async for event in stream]
    with pytest.raises(SessionBusy, match=named):
        [state async for state in agent.iterate(session="s")]
    assert await logs_of(store) == before
    assert [key for key, _, _ in await store.inbox("s", ())] == ["k"]
    town.let("a", "send")
    assert (await town.ended("a"))["outcome"] == "Completed"
    assert town.effects == ["a send"]
    assert (await agent.run("thanks", session="s")).outcome == Completed()
    await store.close()


@pytest.mark.parametrize("call", ["send", "pay"])
async def test_a_dead_process_is_succeeded_at_once(town, call):
    town.start("a", "run", call, holds=[call])
    await town.until(lambda: town.held)
    store = town.store()
    agent = town.clerk(store)
    with pytest.raises(SessionBusy):
        await agent.resume("s")
    town.kill("a")
    result = await _soon(lambda: agent.resume("s"))
    done = result.messages[-2].parts[0]
    if call == "send":
        assert (done.status, town.effects) == ("interrupted", ["a send"])
    else:
        assert (done.status, town.effects) == ("ok", ["a pay s/1/1", "test pay s/1/1"])
    assert result.outcome == Completed()
    assert kinds((await logs_of(store))["s"], TakenOver) == []
    await store.close()


async def _soon(resume: Callable[[], Any], tries: int = 200) -> Any:
    """A server needs some milliseconds to see that a client is gone. No clock of ours is waited for."""
    for _ in range(tries):
        with suppress(SessionBusy):
            return await resume()
        await asyncio.sleep(0.01)
    return await resume()


async def test_a_stopped_process_is_alive(town):
    process = town.start("a", "run", "send", holds=["send"])
    await town.until(lambda: town.held)
    process.send_signal(signal.SIGSTOP)
    store = town.store()
    with pytest.raises(SessionBusy):
        await town.clerk(store).resume("s")
    process.send_signal(signal.SIGCONT)
    town.let("a", "send")
    assert (await town.ended("a"))["outcome"] == "Completed"
    await store.close()


# ---------------------------------------------------------------- takeover


@pytest.mark.parametrize("verb", ["run", "resume", "stream", "iterate"])
async def test_a_takeover_is_recorded_and_the_former_owner_writes_and_starts_nothing_any_more(town, verb):
    process = town.start("a", "run", "send", holds=["model"])
    await town.until(lambda: town.held)
    store = town.store()
    agent = town.clerk(store)
    if verb == "run":
        await agent.run("hello", session="s", takeover=True)
    elif verb == "resume":
        await agent.resume("s", takeover=True)
    elif verb == "stream":
        async with agent.stream(None, session="s", takeover=True) as stream:
            [event async for event in stream]
    else:
        [state async for state in agent.iterate(session="s", takeover=True)]
    log = await logs_of(store)
    assert kinds(log["s"], TakenOver) == ["TakenOver"]
    [taken] = [record for record in log["s"] if isinstance(record, TakenOver)]
    assert taken.owner == f"process {process.pid} on {socket.gethostname()}"
    if verb != "run":  # with run, that is a turn before the one that is explained
        assert f"taken over from {taken.owner}" in str(await agent.why("s"))
    town.let("a", "model")
    end = await town.ended("a")
    assert end["error"] == "SessionConflict"
    assert "was taken over" in end["text"] or "advanced it" in end["text"]
    assert town.effects == ([] if verb == "run" else ["test send"])
    assert await logs_of(store) == log
    assert (await agent.state("s")).over
    await store.close()


async def test_a_former_owner_whose_tool_has_run_cannot_write_its_result(town):
    town.start("a", "run", "send", holds=["send"])
    await town.until(lambda: town.held)
    store = town.store()
    agent = town.clerk(store)
    result = await agent.resume("s", takeover=True)
    assert [result.messages[-2].parts[0].status, town.effects] == ["interrupted", ["a send"]]
    log = await logs_of(store)
    town.let("a", "send")
    assert (await town.ended("a"))["error"] == "SessionConflict"
    assert await logs_of(store) == log
    await store.close()


@pytest.mark.parametrize("busy", ["refuse", "queue", "steer"])
async def test_a_takeover_succeeds_while_the_former_owner_goes_on_writing(town, busy):
    """However often it writes between the look at its log and the claim."""
    store, other = town.store(), town.store()
    spins = 0

    def spin(request: Any) -> Any:
        nonlocal spins
        spins += 1
        return calls("send")

    writer = Agent(FunctionModel(spin), tools=[_quick()], store=store, criteria=[StepLimit(1_000_000)])
    writing = asyncio.create_task(writer.run("go", session="s"))
    await owners.until(lambda: spins >= 5)
    result = await asyncio.wait_for(town.clerk(other, busy=busy).run("stop", session="s", takeover=True), 60)
    assert result.outcome == Completed()
    with pytest.raises(SessionConflict):
        await asyncio.wait_for(writing, 60)
    log = (await logs_of(store))["s"]
    [at] = [number for number, record in enumerate(log) if isinstance(record, TakenOver)]
    assert kinds(log[at:], ToolCalled) == []
    await store.close()
    await other.close()


def _quick() -> Any:
    @tool(inline=True)
    def send() -> str:
        """Send."""
        return "sent"

    return send


# ---------------------------------------------------------------- trees


@pytest.mark.parametrize("held", ["pay", "file", "after-leaf"])
async def test_a_takeover_of_a_tree_ends_the_whole_pass_of_the_loser(town, held):
    store = town.store()
    boss = town.boss(store)
    waiting = await boss.run("7", session="s")
    assert isinstance(waiting.outcome, Suspended)
    town.start("a", "resume", tree=True, approve=True, holds=[held])
    await town.until(lambda: town.held)
    with pytest.raises(SessionBusy):
        await boss.resume("s")
    result = await boss.resume("s", takeover=True)
    assert result.outcome == Completed()
    log = await logs_of(store)
    town.let("a", held)
    assert (await town.ended("a"))["error"] == "SessionConflict"
    assert await logs_of(store) == log
    assert "could not work" not in repr(log)
    assert len(town.effects) == len({effect.partition(" ")[2] for effect in town.effects}), "an effect twice"
    assert "pay 7" in {effect.partition(" ")[2] for effect in town.effects}
    for session, records in log.items():
        assert unpaired((await boss.state(session)).messages if session == "s" else ()) == []
        assert kinds(records, TurnEnded) == ["TurnEnded"], session
    assert await store.approvals() == []
    await store.close()


@pytest.mark.parametrize("count", [2, 3])
async def test_of_several_resumes_of_a_tree_exactly_one_wins(town, count):
    store = town.store()
    boss = town.boss(store)
    await boss.run("7", session="s")
    names = [str(number) for number in range(count)]
    for who in names:
        town.start(who, "resume", tree=True, approve=True, meet=count)
    ends = [await town.ended(who) for who in names]
    assert sorted(end.get("outcome", "") for end in ends) == [*[""] * (count - 1), "Completed"]
    assert {end.get("error", "") for end in ends} <= {
        "",
        "SessionBusy",
        "SessionConflict",
        "NotSuspended",
        "StaleAnswer",
    }
    assert sorted(effect.partition(" ")[2] for effect in town.effects) == ["file 7", "pay 7"]
    log = await logs_of(store)
    assert "could not work" not in repr(log)
    assert all(len(kinds(records, Resumed)) == 1 for records in log.values())
    assert await store.approvals() == []
    await store.close()


# ---------------------------------------------------------------- queue and steer


async def test_messages_of_several_processes_are_queued_and_all_answered(town):
    names = ["0", "1", "2", "3"]
    for who in names:
        verb = "stream" if who == "1" else "iterate" if who == "2" else "run"
        town.start(who, verb, f"m{who}", busy="queue", meet=1, shown=True, holds=["start"])
    await town.until(lambda: len(lines(town.folder / "shown")) == len(names))
    for who in names:
        town.let(who, "start")
    ends = [await town.ended(who) for who in names]
    assert [end.get("outcome", end) for end in ends] == ["Completed"] * len(names)
    store = town.store()
    log = (await logs_of(store))["s"]
    said = [record.message.text for record in log if isinstance(record, TurnStarted)]
    assert sorted(said) == ["m0", "m1", "m2", "m3"]
    assert kinds(log, TurnStarted, TurnEnded) == ["TurnStarted", "TurnEnded"] * len(names)
    for who, end in zip(names, ends, strict=True):
        assert end["text"] == " ".join(said[: said.index(f"m{who}") + 1])
    await store.close()


async def test_a_steering_message_enters_the_turn_of_another_process_and_gets_its_result(town):
    town.start("a", "run", "send", holds=["send"])
    await town.until(lambda: town.held)
    town.start("b", "run", "and this", busy="steer")
    store = town.store()
    while not await store.inbox("s", ()):  # noqa: ASYNC110 - there is nothing else to wait for
        await asyncio.sleep(0.01)
    town.let("a", "send")
    ends = [await town.ended("a"), await town.ended("b")]
    assert ends == [{"outcome": "Completed", "text": "send and this"}] * 2
    log = (await logs_of(store))["s"]
    assert kinds(log, TurnStarted, InboxTaken) == ["TurnStarted", "InboxTaken"]
    await store.close()


async def test_a_steering_message_that_no_turn_took_becomes_the_next_turn(town):
    town.start("a", "run", "send", holds=["send"])
    await town.until(lambda: town.held)
    town.start("b", "run", "and this", busy="steer")
    store = town.store()
    while not await store.inbox("s", ()):  # noqa: ASYNC110 - there is nothing else to wait for
        await asyncio.sleep(0.01)
    town.kill("a")
    assert await town.ended("b") == {"outcome": "Completed", "text": "send and this"}
    log = (await logs_of(store))["s"]
    assert kinds(log, TurnStarted, TurnEnded) == ["TurnStarted", "TurnEnded"] * 2
    await store.close()


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize("slow", ["model", "send"])
async def test_a_cancel_from_another_process_ends_a_turn_whose_model_or_tool_is_slow(town, slow):
    town.start("a", "run", "send", holds=[slow])
    await town.until(lambda: town.held)
    store = town.store()
    assert await town.clerk(store).cancel("s", "enough")
    began = time.monotonic()
    end = await town.ended("a")
    assert time.monotonic() - began < owners.HELD / 2, "it ended only because what was slow ended"
    assert end["outcome"] == "Cancelled"
    await logs_of(store)
    await store.close()


# ---------------------------------------------------------------- other passes


async def test_what_changes_a_session_that_is_alive_elsewhere_is_refused_and_what_reads_it_works(town):
    town.start("a", "run", "send", holds=["send"])
    await town.until(lambda: town.held)
    store = town.store()
    agent = town.clerk(store)
    agent.with_capability(Summarize(trigger=AtTokens(1), keep=1))
    before = await logs_of(store)
    with pytest.raises(SessionBusy):
        await store.erase("s")
    with pytest.raises(SessionBusy):
        await agent.compact("s")
    with pytest.raises(SessionBusy):
        async with agent.session("s"):
            pass
    assert await agent.fork("s", to="copy") == "copy"
    assert (await agent.state("s")).messages
    assert (await logs_of(store))["s"] == before["s"]
    town.let("a", "send")
    assert (await town.ended("a"))["outcome"] == "Completed"
    assert await store.erase("s")
    await store.close()


# ---------------------------------------------------------------- forks


@pytest.mark.parametrize("how", ["fork", "multiprocessing", "exec"])
async def test_a_process_that_outlives_its_parent_does_not_keep_the_parents_sessions(town, how):
    town.start("a", "fork", how=how, holds=["send"])
    await town.until(lambda: lines(town.folder / "heir"))
    store = town.store()
    agent = town.clerk(store)
    if how != "exec":
        await town.until(lambda: lines(town.folder / "heirs"))
        with pytest.raises(SessionBusy, match=f"process {lines(town.folder / 'heir')[0]} on"):
            await agent.resume("held by the heir")
    with pytest.raises(SessionBusy, match=rf"process {town.processes['a'].pid} on"):
        await agent.resume("s")
    town.kill("a")
    result = await _soon(lambda: agent.resume("s"))
    assert result.outcome == Completed()
    os.kill(int(lines(town.folder / "heir")[0]), 0)  # it is there
    if how != "exec":
        with pytest.raises(SessionBusy):
            await agent.resume("held by the heir")
    await store.close()


# ---------------------------------------------------------------- a server that is restarted


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Town, PostgresServer]]:
    """A server of the test's own, which may be killed."""
    server = PostgresServer()
    town = None
    try:
        server.start()
        town = Town(tmp_path, server.database())
        yield town, server
    finally:
        if town is not None:
            town.close()
        server.remove()


async def test_a_turn_outlives_a_restart_of_its_server_and_takes_its_lock_again(served):
    town, server = served
    town.start("a", "run", "send", holds=["send"])
    await town.until(lambda: town.held)
    server.kill()
    server.start()
    store = town.store()
    async with asyncio.timeout(60):
        while not (await store.ownership("s")).alive:  # noqa: ASYNC110 - there is nothing else to wait for
            await asyncio.sleep(0.02)
    with pytest.raises(SessionBusy):
        await town.clerk(store).resume("s")
    town.let("a", "send")
    assert (await town.ended("a"))["outcome"] == "Completed"
    await store.close()


async def test_a_turn_waits_for_a_server_that_is_restarted_while_it_writes(served):
    town, server = served
    town.start("a", "run", "send", holds=["model"])
    await town.until(lambda: town.held)
    server.kill()
    town.let("a", "model")
    await asyncio.sleep(1.0)
    server.start()
    assert (await town.ended("a"))["outcome"] == "Completed"
    assert town.effects == ["a send"]


async def test_a_process_that_slept_through_a_restart_of_its_server_is_fenced(served):
    town, server = served
    process = town.start("a", "run", "send", holds=["model"])
    await town.until(lambda: town.held)
    process.send_signal(signal.SIGSTOP)
    server.kill()
    server.start()
    store = town.store()
    result = await town.clerk(store).resume("s")
    assert (result.outcome, town.effects) == (Completed(), ["test send"])
    log = await logs_of(store)
    town.let("a", "model")
    process.send_signal(signal.SIGCONT)
    assert (await town.ended("a"))["error"] == "SessionConflict"
    assert (await logs_of(store), town.effects) == (log, ["test send"])
    await store.close()


async def test_a_lock_that_was_lost_between_two_turns_is_taken_again(served):
    town, server = served
    store = town.store()
    agent = town.clerk(store)
    await agent.run("hello", session="s")
    server.kill()
    server.start()
    held = Office(town.folder, town.address, "test", ["send"])
    turn = asyncio.create_task(held.clerk(store).run("send", session="s"))
    await town.until(lambda: town.held)
    town.start("b", "resume")
    assert (await town.ended("b"))["error"] == "SessionBusy"
    town.let("test", "send")
    assert (await turn).outcome == Completed()
    await store.close()
