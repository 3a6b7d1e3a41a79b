"""Who owns a session, in one process: agents, threads and event loops that share a store, and passes that break off."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Completed, ModelRequest, Suspended, ToolCalling, TurnEnded, tool
from windlass.errors import ConfigError, SessionBusy, SessionConflict, StoreError
from windlass.ownership import Claim
from windlass.records import Record, SessionOpened, SlotSet, TakenOver, ToolCalled, ToolReturned, TurnStarted
from windlass.stores import MemoryStore, SQLiteStore, open_store
from windlass.stores.owners import FileLocks
from windlass.testing import FunctionModel, calls, says


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Any]:
    if request.param == "memory":
        made: Any = MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "store.db", synchronous="NORMAL")
    else:
        made = open_store(request.getfixturevalue("database"))
    yield made
    with suppress(StoreError):
        await made.close()


class Slow:
    """An agent whose model or tool waits until it may go on. `effects` are the calls that were made."""

    def __init__(self, store: Any, *, held: str = "", busy: Any = "refuse", name: str = "slow") -> None:
        self.effects: list[str] = []
        self.waits, self.go = asyncio.Event(), asyncio.Event()
        self.held = held

        @tool
        async def send() -> str:
            """Send."""
            self.effects.append("send")
            await self.hold("send")
            return "sent"

        async def reply(request: ModelRequest) -> Any:
            await self.hold("model")
            last = request.messages[-1]
            if last.role == "user" and last.text == "send":
                return calls("send")
            return says(" ".join(message.text for message in request.messages if message.role == "user"))

        self.agent = Agent(FunctionModel(reply), tools=[send], store=store, busy=busy, name=name)

    async def hold(self, what: str) -> None:
        if self.held == what:
            self.waits.set()
            await self.go.wait()

    async def begin(self, message: str = "send", session: str = "s") -> asyncio.Task[Any]:
        """Begin a turn that waits where it is held."""
        turn = asyncio.create_task(self.agent.run(message, session=session))
        await asyncio.wait_for(self.waits.wait(), 60)
        return turn


def kinds(log: Any, *wanted: type[Record]) -> list[str]:
    return [type(record).__name__ for record in log if isinstance(record, wanted)]


# ---------------------------------------------------------------- agents that share a store


async def test_a_session_is_busy_for_all_agents_of_a_store(store):
    slow, other = Slow(store, held="send"), Slow(store)
    turn = await slow.begin()
    with pytest.raises(SessionBusy):
        await other.agent.run("hello", session="s")
    with pytest.raises(SessionBusy):
        await other.agent.resume("s")
    with pytest.raises(SessionBusy):
        await store.erase("s")
    slow.go.set()
    assert (await turn).outcome == Completed()
    assert (await other.agent.run("hello", session="s")).text == "send hello"


async def test_messages_of_several_agents_are_queued(store):
    slow = Slow(store, held="send")
    turn = await slow.begin()
    others = [Slow(store, busy="queue").agent for _ in range(3)]
    queued = [asyncio.create_task(agent.run(f"m{n}", session="s")) for n, agent in enumerate(others)]
    await asyncio.sleep(0.05)
    slow.go.set()
    await turn
    results = await asyncio.wait_for(asyncio.gather(*queued), 60)
    assert sorted(len(result.text.split()) for result in results) == [2, 3, 4]
    started = [record.message.text for record in await store.read("s") if isinstance(record, TurnStarted)]
    assert sorted(started) == ["m0", "m1", "m2", "send"]


async def test_a_message_of_another_agent_enters_the_turn_that_runs(store):
    slow = Slow(store, held="send")
    turn = await slow.begin()
    steering = asyncio.create_task(Slow(store, busy="steer").agent.run("and this", session="s"))
    while not await store.inbox("s", ()):  # noqa: ASYNC110 - there is nothing else to wait for
        await asyncio.sleep(0.005)
    slow.go.set()
    results = await asyncio.wait_for(asyncio.gather(turn, steering), 60)
    assert [result.text for result in results] == ["send and this"] * 2
    assert kinds(await store.read("s"), TurnStarted) == ["TurnStarted"]


# ---------------------------------------------------------------- takeover in one process


async def test_a_takeover_in_one_process_is_fenced(store):
    slow, other = Slow(store, held="model"), Slow(store)
    turn = await slow.begin()
    result = await other.agent.run("send", session="s", takeover=True)
    assert (result.outcome, other.effects) == (Completed(), ["send"])
    log = list(await store.read("s"))
    assert [record.owner for record in log if isinstance(record, TakenOver)] == ["this process"]
    slow.go.set()
    with pytest.raises(SessionConflict):
        await turn
    assert slow.effects == []
    assert list(await store.read("s")) == log
    assert (await other.agent.run("hello", session="s")).outcome == Completed()


async def test_a_takeover_in_one_process_does_not_repeat_a_call_that_is_under_way(store):
    slow, other = Slow(store, held="send"), Slow(store)
    turn = await slow.begin()
    result = await other.agent.resume("s", takeover=True)
    assert (result.outcome, slow.effects, other.effects) == (Completed(), ["send"], [])
    log = list(await store.read("s"))
    assert kinds(log, ToolCalled, TakenOver) == ["ToolCalled", "TakenOver"]
    assert [record.result.status for record in log if isinstance(record, ToolReturned)] == ["interrupted"]
    slow.go.set()
    with pytest.raises(SessionConflict):
        await turn
    assert list(await store.read("s")) == log


async def test_a_new_message_that_takes_over_closes_a_call_that_is_under_way(store):
    slow, other = Slow(store, held="send"), Slow(store)
    turn = await slow.begin()
    assert (await other.agent.run("hello", session="s", takeover=True)).text == "send hello"
    log = list(await store.read("s"))
    assert kinds(log, ToolCalled) == ["ToolCalled"]
    assert [record.result.status for record in log if isinstance(record, ToolReturned)] == ["interrupted"]
    slow.go.set()
    with pytest.raises(SessionConflict):
        await turn
    assert (slow.effects, list(await store.read("s"))) == (["send"], log)


@pytest.mark.parametrize("where", ["below", "in a thread"])
async def test_a_takeover_does_not_repeat_a_call_that_is_under_way(store, where):
    """Below: in a sub-agent. In a thread: in the event loop of another thread."""
    effects, called, go = list[str](), threading.Event(), threading.Event()

    def make(who: str) -> Agent:
        @tool
        async def send() -> str:
            """Send."""
            effects.append(who)
            called.set()
            while who == "a" and not go.is_set():  # noqa: ASYNC110 - it is set in another thread
                await asyncio.sleep(0.001)
            return "sent"

        def reply(request: ModelRequest) -> Any:
            return calls("send") if request.messages[-1].role == "user" else says("done")

        clerk = Agent(FunctionModel(reply), tools=[send], name="clerk", store=store)
        if where != "below":
            return clerk

        def above(request: ModelRequest) -> Any:
            return calls("clerk", task="x") if request.messages[-1].role == "user" else says("all done")

        return Agent(FunctionModel(above), tools=[clerk.as_tool(description="Works.")], store=store, name="boss")

    async def first() -> None:
        with pytest.raises(SessionConflict):
            await make("a").run("go", session="s")

    turn = asyncio.create_task(first() if where == "below" else asyncio.to_thread(asyncio.run, first()))
    try:
        while not called.is_set():  # noqa: ASYNC110 - it may be set in another thread
            await asyncio.sleep(0.001)
        result = await make("b").resume("s", takeover=True)
        logs = {name: list(await store.read(name)) for name in await store.sessions()}
    finally:
        go.set()
    await turn
    assert result.outcome == Completed()
    assert effects == ["a"]
    assert {name: list(await store.read(name)) for name in await store.sessions()} == logs
    assert [kind for log in logs.values() for kind in kinds(log, TakenOver)] == ["TakenOver"]
    statuses = [one.result.status for log in logs.values() for one in log if isinstance(one, ToolReturned)]
    assert sorted(statuses) == (["interrupted", "ok"] if where == "below" else ["interrupted"])


@pytest.mark.parametrize("busy", ["refuse", "queue"])
async def test_an_append_of_a_pass_that_was_taken_over_fails_although_the_log_is_as_long_as_it_was(durable, busy):
    """A claim may come without records."""
    slow = Slow(durable, held="send", busy=busy)
    turn = await slow.begin()
    owned, length = await durable.ownership("s"), len(await durable.read("s"))
    await durable.append("s", (), length, Claim("s", owned.epoch + 1, begins=True))
    slow.go.set()
    with pytest.raises(SessionConflict):
        await turn
    assert len(await durable.read("s")) == length


def _tree(store: Any, held: asyncio.Event, go: asyncio.Event, effects: list[str], who: str) -> Agent:
    @tool
    async def send(number: int) -> str:
        """Send."""
        effects.append(f"{who} {number}")
        return "sent"

    async def below(request: ModelRequest) -> Any:
        results = sum(message.role == "tool" for message in request.messages)
        if results == 1:
            held.set()
            await go.wait()
        return calls("send", number=results) if results < 2 else says("done")

    def above(request: ModelRequest) -> Any:
        return calls("clerk", task="x") if request.messages[-1].role == "user" else says("all done")

    clerk = Agent(FunctionModel(below), tools=[send], name="clerk")
    return Agent(FunctionModel(above), tools=[clerk.as_tool(description="Works.")], store=store, name="boss")


async def test_a_takeover_in_one_process_fences_the_sub_agents(store):
    held, go, effects = asyncio.Event(), asyncio.Event(), list[str]()
    free = asyncio.Event()
    free.set()
    turn = asyncio.create_task(_tree(store, held, go, effects, "a").run("go", session="s"))
    await asyncio.wait_for(held.wait(), 60)
    result = await _tree(store, asyncio.Event(), free, effects, "b").resume("s", takeover=True)
    assert result.outcome == Completed()
    logs = {name: list(await store.read(name)) for name in await store.sessions()}
    go.set()
    with pytest.raises(SessionConflict):
        await turn
    assert effects == ["a 0", "b 1"]
    assert {name: list(await store.read(name)) for name in await store.sessions()} == logs
    assert "could not work" not in repr(logs)


async def test_a_claim_of_the_root_alone_fences_a_sub_agent_that_works(durable):
    """The new owner has not come to the sub-agent yet: its log is as long as it was."""
    held, go, effects = asyncio.Event(), asyncio.Event(), list[str]()
    turn = asyncio.create_task(_tree(durable, held, go, effects, "a").run("go", session="s"))
    await asyncio.wait_for(held.wait(), 60)
    owned, length = await durable.ownership("s"), len(await durable.read("s"))
    await durable.append("s", (), length, Claim("s", owned.epoch + 1, begins=True))
    logs = {name: list(await durable.read(name)) for name in await durable.sessions()}
    go.set()
    with pytest.raises(SessionConflict):
        await turn
    assert effects == ["a 0"]
    assert {name: list(await durable.read(name)) for name in await durable.sessions()} == logs


async def test_of_several_takeovers_at_once_the_last_goes_on_and_the_others_end(store):
    slow = Slow(store, held="send")
    turn = await slow.begin()
    agents = [Slow(store, busy=busy) for busy in ("refuse", "queue", "steer", "refuse")]
    takeovers = [slow.agent.run(f"m{n}", session="s", takeover=True) for n, slow in enumerate(agents)]
    results = await asyncio.wait_for(asyncio.gather(*takeovers, return_exceptions=True), 60)
    done = [result for result in results if not isinstance(result, BaseException)]
    assert done
    assert all(isinstance(result, SessionConflict) for result in results if isinstance(result, BaseException))
    slow.go.set()
    with pytest.raises(SessionConflict):
        await turn
    started = [record.message.text for record in await store.read("s") if isinstance(record, TurnStarted)]
    assert len(started) >= len(done)
    assert (await agents[0].agent.run("hello", session="s")).outcome == Completed()


async def test_a_takeover_that_was_overtaken_by_another_one_ends_although_the_store_cannot_tell_them_apart(durable):
    """Both claim the same epoch for the same process, and a claim without records may be repeated."""
    slow, other = Slow(durable, held="send"), Slow(durable)
    turn = await slow.begin()
    late = asyncio.Event()

    class Late(Faulty):
        async def append(self, session: str, records: Any, expected: int, claim: Any = None) -> bool:
            if not late.is_set():
                late.set()
                await asyncio.wait([second])
            return bool(await self._store.append(session, records, expected, claim))

    second = asyncio.create_task(_after(late, other.agent))
    with pytest.raises(SessionConflict):
        await Slow(Late(durable)).agent.run("one", session="s", takeover=True)
    assert (await second).outcome == Completed()
    slow.go.set()
    with pytest.raises(SessionConflict):
        await turn
    assert (await durable.ownership("s")).owner == ""


async def _after(event: asyncio.Event, agent: Agent) -> Any:
    await event.wait()
    return await agent.run("two", session="s", takeover=True)


async def test_a_takeover_that_fails_before_it_claims_leaves_the_session_to_its_owner(store, monkeypatch):
    slow, other = Slow(store, held="send"), Slow(store)
    turn = await slow.begin()

    async def fails(session: str) -> Any:
        raise StoreError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(store, "ownership", fails)
        with pytest.raises(StoreError):
            await other.agent.run("hello", session="s", takeover=True)
    with pytest.raises(SessionBusy):
        await other.agent.run("hello", session="s")
    slow.go.set()
    assert (await turn).outcome == Completed()
    assert (await other.agent.run("hello", session="s")).outcome == Completed()


# ---------------------------------------------------------------- passes that break off


class Faulty:
    """A store whose appends, or whatever is named in `faults`, fail after they were done."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.faults: dict[str, Any] = {}

    async def append(self, *given: Any) -> bool:
        waiting = bool(await self._store.append(*given))
        await self._fail("append")
        return waiting

    async def release(self, *given: Any) -> None:
        await self._fail("release")
        await self._store.release(*given)

    async def _fail(self, what: str) -> None:
        if (fault := self.faults.get(what)) is not None:
            await fault()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def _raise_store_error() -> None:
    raise StoreError("the connection was lost")


@pytest.fixture(params=["sqlite", "postgresql"])
async def durable(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Any]:
    sqlite = request.param == "sqlite"
    made = SQLiteStore(tmp_path / "store.db") if sqlite else open_store(request.getfixturevalue("database"))
    yield made
    await made.close()


async def test_a_session_is_free_after_a_store_error_that_left_open_whether_the_claim_was_stored(durable):
    store = Faulty(durable)
    store.faults["append"] = _raise_store_error
    result = await Slow(store).agent.run("hello", session="s")
    assert result.outcome.error.type == "StoreError"
    owned = await durable.ownership("s")
    assert (owned.epoch, owned.owner) == (1, "")


@pytest.mark.parametrize("busy", ["refuse", "queue"])
async def test_a_session_is_free_after_a_cancel_during_its_claim(durable, busy):
    store, reached = Faulty(durable), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    store.faults["append"] = hang
    turn = asyncio.create_task(Slow(store, busy=busy).agent.run("hello", session="s"))
    await asyncio.wait_for(reached.wait(), 60)
    del store.faults["append"]
    turn.cancel()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert (await durable.ownership("s")).owner == ""


class Breakdown(BaseException):
    """Neither an error nor a cancel."""


async def test_a_session_is_free_after_a_breakdown_in_a_hook(durable):
    slow = Slow(durable)

    @slow.agent.gate(ToolCalling)
    def breaks(event: ToolCalling) -> None:
        raise Breakdown

    with pytest.raises(Breakdown):
        await slow.agent.run("send", session="s")
    assert (await durable.ownership("s")).owner == ""


async def test_a_session_is_free_after_two_cancels(durable):
    slow = Slow(durable, held="send")
    turn = await slow.begin()
    turn.cancel()
    await asyncio.sleep(0)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await _until_free(durable)


async def _until_free(store: Any, session: str = "s") -> None:
    """As long as it may take: the next look of the timer."""
    async with asyncio.timeout(60):
        while (await store.ownership(session)).owner:  # noqa: ASYNC110 - there is nothing else to wait for
            await asyncio.sleep(0.01)


async def test_a_session_that_could_not_be_released_is_released_when_the_store_answers_again(durable, monkeypatch):
    store = Faulty(durable)
    store.faults |= {"append": _raise_store_error, "release": _raise_store_error}
    agent = Slow(store).agent
    await agent.run("hello", session="s")
    assert (await durable.ownership("s")).owner != ""
    store.faults.clear()
    await _until_free(durable)
    assert durable.passes.unreleased == {}


async def test_a_cancelled_turn_waits_once_for_a_store_that_does_not_answer(durable):
    """Whoever cancels has waited for the last records: the release of the session is left to the timer."""
    store, released = Faulty(durable), list[str]()
    slow = Slow(store, held="send")
    turn = await slow.begin()

    async def hang() -> None:
        await asyncio.Event().wait()

    async def note() -> None:
        released.append("while the caller waits" if not turn.done() else "later")

    store.faults |= {"append": hang, "release": note}
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert released == []
    store.faults.pop("append")
    async with asyncio.timeout(60):
        while durable.passes.unreleased:  # noqa: ASYNC110 - there is nothing else to wait for
            await asyncio.sleep(0.01)
    assert released == ["later"]
    assert (await durable.ownership("s")).owner == ""


async def test_a_session_whose_event_loop_was_closed_is_released_by_the_next_turn(tmp_path):
    store = SQLiteStore(tmp_path / "store.db")

    def break_off() -> None:
        loop = asyncio.new_event_loop()
        slow: list[Slow] = []

        async def begin() -> None:
            slow.append(Slow(store, held="send"))
            loop.kept = await slow[0].begin()  # type: ignore[attr-defined]

        loop.run_until_complete(begin())
        loop.close()
        task = loop.kept  # type: ignore[attr-defined]
        task._log_destroy_pending = False
        task.get_coro().close()

    await asyncio.to_thread(break_off)
    assert (await store.ownership("s")).owner != ""
    assert (await Slow(store).agent.run("hello", session="another")).outcome == Completed()
    assert (await store.ownership("s")).owner == ""
    assert (await Slow(store).agent.resume("s")).outcome == Completed()
    await store.close()


async def test_the_result_of_a_turn_is_not_lost_if_the_session_goes_on_before_its_last_facts_are_written(durable):
    """Facts about observers come after the end of the turn. Another process may have begun the next one by then."""
    slow = Slow(durable)
    told = asyncio.Event()

    @slow.agent.observe(TurnEnded)
    async def fails(fact: TurnEnded) -> None:
        await _until_free(durable)
        await durable.append("s", (), len(await durable.read("s")), Claim("s", 2, begins=True))
        told.set()
        raise ValueError("it cannot")

    result = await slow.agent.run("hello", session="s")
    assert told.is_set()
    assert (result.outcome, result.text) == (Completed(), "hello")


async def test_a_queued_message_does_not_fail_because_the_turn_before_it_adds_a_last_fact(durable):
    """The turn has ended, so nobody owns the session, but its log still grows by a record."""
    agent = Slow(durable, busy="queue").agent
    await agent.run("one", session="s")
    read, added = durable.read, False

    class Growing(Faulty):
        async def read(self, session: str, start: int = 0) -> Any:
            nonlocal added
            records = await read(session, start)
            if not added and session == "s":
                added = True
                await durable.append("s", [SlotSet("late", 1)], start + len(records))
            return records

    result = await Slow(Growing(durable), busy="queue").agent.run("two", session="s")
    assert added
    assert result.text == "one two"


async def test_an_approver_that_is_outrun_by_a_resume_elsewhere_leaves_the_turn_suspended(durable):
    outrun = False

    async def approve(question: Any) -> Any:
        return Approve()

    class Outrun(Faulty):
        async def append(self, session: str, records: Any, expected: int, claim: Any = None) -> bool:
            nonlocal outrun
            if claim is not None and claim.begins and claim.epoch == 2 and not outrun:
                outrun = True
                await self._store.append(session, (), expected, claim)
                await self._store.append(session, [SlotSet("theirs", 1)], expected, claim.replace(begins=False))
            return bool(await self._store.append(session, records, expected, claim))

    agent = Agent(_sends(), tools=[_send()], store=Outrun(durable), approvers=[approve])
    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    result = await agent.run("send", session="s")
    assert outrun
    assert isinstance(result.outcome, Suspended)


def _sends() -> Any:
    return FunctionModel(lambda r: calls("send") if r.messages[-1].role == "user" else says("done"))


def _send() -> Any:
    @tool
    async def send() -> str:
        """Send."""
        return "sent"

    return send


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_eight_threads_queue_messages_to_one_session_of_one_agent(tmp_path, kind):
    store: Any = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "store.db", synchronous="NORMAL")
    agent = Agent(FunctionModel(lambda request: says("ok")), store=store, busy="queue")
    turns, failures = 6, list[BaseException]()

    async def talk() -> None:
        for _ in range(turns):
            assert (await asyncio.wait_for(agent.run("hello", session="s"), 120)).outcome == Completed()

    def work() -> None:
        try:
            asyncio.run(talk())
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
        assert not any(thread.is_alive() for thread in threads), "a waiter never woke"
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    log = asyncio.run(_read_and_close(store))
    assert len(kinds(log, TurnStarted)) == len(kinds(log, TurnEnded)) == 8 * turns


async def _read_and_close(store: Any) -> Any:
    log = await store.read("s")
    await store.verify("s")
    await store.close()
    return log


# ---------------------------------------------------------------- the lock file


def test_a_lock_file_is_found_by_every_name_of_the_store(tmp_path):
    (tmp_path / "real").mkdir()
    real, linked = tmp_path / "real" / "store.db", tmp_path / "link.db"
    asyncio.run(_one_turn(real))
    linked.symlink_to(real)
    asyncio.run(_one_turn(linked))
    assert [path.name for path in tmp_path.glob("*owners")] == []
    assert (tmp_path / "real" / "store.db-owners").exists()


async def _one_turn(path: Any) -> None:
    store = SQLiteStore(path)
    await Slow(store).agent.run("hello", session="s")
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_all_who_may_use_the_store_may_use_its_lock_file(tmp_path):
    path = tmp_path / "store.db"
    path.touch(0o600)
    path.chmod(0o660)
    asyncio.run(_one_turn(path))
    assert stat.S_IMODE((tmp_path / "store.db-owners").stat().st_mode) == 0o660


def test_a_lock_file_that_was_removed_is_made_again_and_locked(tmp_path):
    mine, theirs = FileLocks(tmp_path / "store.db"), FileLocks(tmp_path / "store.db")
    mine.take(7)
    assert theirs.is_held(7)
    mine.path.unlink()
    assert not theirs.is_held(7)
    mine.take(7)
    assert theirs.is_held(7)
    mine.close()
    assert not theirs.is_held(7)
    theirs.close()


def test_a_lock_file_that_cannot_be_used_is_a_store_error(tmp_path):
    (tmp_path / "store.db-owners").mkdir()
    with pytest.raises(StoreError, match=r"store\.db-owners: Is a directory"):
        FileLocks(tmp_path / "store.db").take(7)


def test_one_small_file_serves_any_number_of_processes(tmp_path):
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; from pathlib import Path; "
        "from windlass.stores.owners import FileLocks; FileLocks(Path(sys.argv[1])).take(int(sys.argv[2]))"
    )
    for number in range(3):
        subprocess.run([sys.executable, "-c", code, tmp_path / "store.db", str(2**61 + number)], check=True)
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("store.db-owners", 0)]


# ---------------------------------------------------------------- the lock of a server


async def test_a_process_with_thousands_of_open_files_can_own_sessions(database):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        store = open_store(database)
        agent = Slow(store).agent
        for message in ("one", "two"):
            assert (await agent.run(message, session="s")).outcome == Completed()
        await store.close()
    finally:
        for one in opened:
            os.close(one)


@pytest.mark.parametrize("session", ["", 5, None])
async def test_what_is_not_the_id_of_a_session_erases_nothing(tmp_path, session):
    for store in (MemoryStore(), SQLiteStore(tmp_path / "logs.db")):
        await store.append("s", [SessionOpened()], 0)
        with pytest.raises(ConfigError, match="session id"):
            await store.erase(session)
        assert list(await store.sessions()) == ["s"]
        await store.close()
