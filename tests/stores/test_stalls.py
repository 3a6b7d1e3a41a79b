"""A store that does not answer: no turn waits for it without end, a cancel takes a second, and no record is lost."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy, proxied

from windlass import Agent, Completed, Failed, tool
from windlass._kernel import shields
from windlass.errors import StoreError
from windlass.records import MessageAdded, Record, SessionOpened, SlotSet, ToolCalled, ToolReturned
from windlass.stores import sqlite_file
from windlass.stores.postgres import PostgresStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FunctionModel, calls, says

OPENED, ADDED = SessionOpened(), MessageAdded()

pytestmark = pytest.mark.usefixtures("one_second")

LONG = 500.0
"""Seconds that no test waits for."""


def number(value: int) -> SlotSet:
    return SlotSet(slot="number", value=value)


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with proxied(postgres.port) as made:
        yield made


class Stall:
    """Ways in which a server stops answering. It answers again after `end`."""

    def __init__(self, kind: str, postgres: PostgresServer, database: str, proxy: Proxy) -> None:
        self.kind = kind
        self.database = database
        self.address = database.replace(str(postgres.port), str(proxy.port))
        self._postgres = postgres
        self._proxy = proxy
        self._block = ExitStack()
        self.begun = False

    def begin(self) -> None:
        self.begun = True
        if self.kind == "network":
            self._proxy.stop()
        else:
            only = self.database if self.kind == "backends" else ""
            self._block.enter_context(self._postgres.stopped(only))

    def end(self) -> None:
        self._proxy.release()
        self._block.close()


@pytest.fixture(params=["backends", "server", "network"])
def stall(request, postgres: PostgresServer, database: str, proxy: Proxy) -> Iterator[Stall]:
    made = Stall(request.param, postgres, database, proxy)
    yield made
    made.end()


class Clerk:
    """An agent whose tool makes the server stall when it runs for the first time."""

    def __init__(self, store: Any, begin: Callable[[], None]) -> None:
        self.payments = 0
        self.stalled = asyncio.Event()

        @tool
        async def pay() -> str:
            """Pay."""
            self.payments += 1
            if not self.stalled.is_set():
                begin()
                self.stalled.set()
            return "paid"

        def reply(request: Any) -> Any:
            return says("done") if request.messages[-1].role == "tool" else calls("pay")

        self.agent = Agent(FunctionModel(reply), tools=[pay], store=store)


async def check(clerk: Clerk, store: Any) -> None:
    """The turn goes on where it was, and the log has everything once."""
    resumed = await clerk.agent.resume("s")
    assert isinstance(resumed.outcome, Completed)
    assert clerk.payments == 1
    log = await store.read("s")
    assert sum(isinstance(record, ToolCalled) for record in log) == 1
    assert sum(isinstance(record, ToolReturned) for record in log) == 1
    assert (await store.verify("s")).records == len(log)
    assert isinstance((await clerk.agent.run("again", session="s")).outcome, Completed)


# ---------------------------------------------------------------- a turn while the server stalls


async def test_a_turn_whose_server_stalls_fails_after_the_timeout_and_can_be_resumed(stall):
    store = PostgresStore(stall.address, timeout=1, max_size=1)
    clerk = Clerk(store, stall.begin)
    result = await clerk.agent.run("hello", session="s")
    assert isinstance(result.outcome, Failed)
    assert "StoreError" in result.outcome.error.type
    assert "did not answer within " in result.outcome.error.message
    assert "check that the server runs and can be reached, then resume the session" in result.outcome.error.message
    stall.end()
    await check(clerk, store)
    await store.close()


async def test_a_turn_whose_server_stalls_ends_when_its_caller_is_cancelled(stall):
    store = PostgresStore(stall.address, timeout=LONG, max_size=1)
    clerk = Clerk(store, stall.begin)
    running = asyncio.ensure_future(clerk.agent.run("hello", session="s"))
    await clerk.stalled.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await running
    stall.end()
    await check(clerk, store)
    await store.close()


async def test_a_turn_whose_server_stalls_fails_when_it_is_cancelled(stall):
    store = PostgresStore(stall.address, timeout=LONG, max_size=1)
    clerk = Clerk(store, stall.begin)
    running = asyncio.ensure_future(clerk.agent.run("hello", session="s"))
    await clerk.stalled.wait()
    assert await clerk.agent.cancel("s", "enough")
    result = await running
    assert isinstance(result.outcome, Failed)
    assert "it is not known whether" in result.outcome.error.message
    with pytest.raises(StoreError):
        result.raise_for_error()
    stall.end()
    await check(clerk, store)
    await store.close()


async def test_a_turn_that_is_cancelled_in_its_model_call_does_not_wait_for_a_stalled_server(stall):
    store = PostgresStore(stall.address, timeout=LONG, max_size=1)
    asked = asyncio.Event()

    async def reply(request: Any) -> Any:
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return says("done")

    agent = Agent(FunctionModel(reply), store=store)
    running = asyncio.ensure_future(agent.run("hello", session="s"))
    await asked.wait()
    stall.begin()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stall.end()
    assert isinstance((await agent.resume("s")).outcome, Completed)
    await store.verify("s")
    await store.close()


class Tree:
    """A boss, its clerk and the clerk's clerk. A tool of one of them makes the server stall when it runs first."""

    def __init__(self, store: Any, begin: Callable[[], None], stalls: str) -> None:
        self.stalled = asyncio.Event()

        def pay_in(name: str) -> Any:
            @tool
            async def pay() -> str:
                """Pay."""
                if name == stalls and not self.stalled.is_set():
                    begin()
                    self.stalled.set()
                return "paid"

            return pay

        def model(*calls_below: Any) -> FunctionModel:
            def reply(request: Any) -> Any:
                return says("done") if request.messages[-1].role == "tool" else calls([("pay", {}), *calls_below])

            return FunctionModel(reply)

        leaf = Agent(model(), tools=[pay_in("leaf")], name="leaf")
        clerk = Agent(model(("leaf", {"task": "x"})), tools=[pay_in("clerk"), leaf.as_tool()], name="clerk")
        self.agent = Agent(
            model(("clerk", {"task": "x"})), tools=[pay_in("boss"), clerk.as_tool()], store=store, name="boss"
        )


@pytest.mark.parametrize("stalls", ["boss", "clerk", "leaf"])
@pytest.mark.parametrize("by_caller", [True, False], ids=["caller", "cancel"])
async def test_a_tree_whose_server_stalls_ends_when_it_is_cancelled(stall, stalls, by_caller):
    """The logs of the agents below are read to end them: that wait is as short as all others after a cancel."""
    store = PostgresStore(stall.address, timeout=LONG, max_size=2)
    tree = Tree(store, stall.begin, stalls)
    running = asyncio.ensure_future(tree.agent.run("hello", session="s"))
    await tree.stalled.wait()
    if by_caller:
        running.cancel()
    else:
        assert await tree.agent.cancel("s", "enough")
    done, _ = await asyncio.wait([running], timeout=60)
    stall.end()
    assert done, "it waits for the server"
    if by_caller:
        assert running.cancelled()
    else:
        assert isinstance(running.result().outcome, Failed)
    assert isinstance((await tree.agent.resume("s")).outcome, Completed)
    for session in await store.sessions():
        await store.verify(session)
    await store.close()


async def test_whoever_is_cancelled_before_anything_was_sent_stops_at_once(stall):
    store = PostgresStore(stall.address, timeout=LONG, max_size=1)
    await store.append("s", [OPENED], 0)
    stall.begin()
    work = [store.read("s"), store.append("s", [ADDED], 1), store.inbox("s", ()), store.put("s", "k", "steer", 1)]
    tasks = [asyncio.ensure_future(one) for one in work]
    await asyncio.wait(tasks, timeout=0.2)
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks)
    assert all(task.cancelled() for task in done)
    stall.end()
    assert list(await store.read("s")) == [OPENED]
    assert not await store.inbox("s", ())
    await store.close()


async def test_many_who_wait_for_a_stalled_server_do_not_wait_for_one_another(stall):
    store = PostgresStore(stall.address, timeout=1, max_size=2)
    await asyncio.gather(*[store.append(f"s{at}", [OPENED], 0) for at in range(40)])
    stall.begin()
    appending = [store.append(f"s{at}", [ADDED], 1) for at in range(40)]
    failures = await asyncio.gather(*appending, return_exceptions=True)
    assert {type(failure) for failure in failures} == {StoreError}
    assert sum("no connection was free for 1 s" in str(failure) for failure in failures) >= 36
    stall.end()
    assert {len(await store.read(f"s{at}")) for at in range(40)} <= {1, 2}
    await store.close()


# ---------------------------------------------------------------- a server that never answers


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a listener that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"postgresql://me:hunter2@127.0.0.1:{listener.getsockname()[1]}/x"


async def test_a_server_that_never_answers_is_given_up_after_the_timeout_however_short_it_is(silent):
    store = PostgresStore(silent, timeout=0.3)
    for use in (store.read("s"), store.append("s", [OPENED], 0)):
        with pytest.raises(StoreError, match=r"did not answer within 0\.3 s; check that the server runs") as caught:
            await use
        assert "hunter2" not in str(caught.value)
    await store.close()


async def test_who_connects_to_a_server_that_never_answers_can_be_cancelled(silent):
    store = PostgresStore(silent, timeout=LONG)
    agent = Agent(FunctionModel(lambda _: says("done")), store=store)
    for use in (store.read("s"), store.append("s", [OPENED], 0), agent.run("hello", session="s")):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await use
    await store.close()


# ---------------------------------------------------------------- what becomes of a write that was left


async def cancelled(work: asyncio.Task[Any]) -> asyncio.CancelledError:
    work.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await work
    return caught.value


async def reads_the_same_later(store: Any) -> list[Record]:
    """What is read now, which is what will be read from now on."""
    log = list(await store.read("s"))
    for _ in range(10):
        await asyncio.sleep(0.05)
        assert list(await store.read("s")) == log
    return log


@pytest.mark.parametrize("where", [b"BEGIN", b"FOR UPDATE", b"INSERT INTO batches", b"COMMIT\0"])
@pytest.mark.parametrize("expected", [0, 1])
async def test_a_write_that_was_cancelled_does_not_happen_after_a_read_that_did_not_show_it(
    postgres, database, proxy, where, expected
):
    store = PostgresStore(database.replace(str(postgres.port), str(proxy.port)), timeout=LONG)
    if expected:
        await store.append("s", [OPENED], 0)
    else:
        await store.append("other", [OPENED], 0)
    proxy.hold = where
    writing = asyncio.ensure_future(store.append("s", [number(1)], expected))
    await asyncio.to_thread(proxy.holding.wait, 50)
    error = await cancelled(writing)
    assert isinstance(error.__cause__, StoreError)
    assert list(await store.read("s")) == [OPENED][:expected]
    proxy.release()
    assert await reads_the_same_later(store) == [OPENED][:expected]
    await store.append("s", [number(2)], expected)
    await store.verify("s")
    await store.close()


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_read_waits_until_a_stopped_process_of_the_server_has_done_with_a_write(
    postgres, database, proxy, cancels
):
    """The COMMIT has reached a process that is stopped: whether it happens is known only when that goes on."""
    store = PostgresStore(
        database.replace(str(postgres.port), str(proxy.port)), timeout=LONG if cancels else 0.5, max_size=2
    )
    await store.append("s", [OPENED], 0)
    proxy.hold = b"COMMIT\0"
    writing = asyncio.ensure_future(store.append("s", [number(1)], 1))
    await asyncio.to_thread(proxy.holding.wait, 50)
    with postgres.stopped(database) as go_on:
        proxy.release()
        if cancels:
            await cancelled(writing)
        else:
            with pytest.raises(StoreError, match="it is not known whether the last records were stored"):
                await writing
            with pytest.raises(StoreError, match=r"an earlier write has not ended, and process \d+ of the server"):
                await store.read("s")
        reading = asyncio.ensure_future(store.read("s"))
        await asyncio.wait([reading], timeout=0.2)
        assert not reading.done()
        go_on()
        first = list(await reading)
    assert await reads_the_same_later(store) == first
    await store.append("s", [number(2)], len(first))
    await store.verify("s")
    await store.close()


async def test_a_write_that_waits_for_a_lock_can_be_cancelled_and_leaves_nothing_at_the_server(postgres, database):
    store = PostgresStore(database, timeout=LONG)
    await store.append("s", [OPENED], 0)
    with psycopg.connect(database) as other:
        other.execute("SELECT 1 FROM windlass.sessions FOR UPDATE")
        writing = asyncio.ensure_future(store.append("s", [number(1)], 1))
        await asyncio.wait([writing], timeout=0.2)
        await cancelled(writing)
        assert list(await store.read("s")) == [OPENED]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        assert postgres.execute("postgres", waiting) == [(0,)]
    assert await reads_the_same_later(store) == [OPENED]
    await store.close()


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(database):
    store = PostgresStore(database, timeout=0.2)
    with pytest.raises(StoreError, match=r"statement timeout; the server did not finish in time: .* longer `timeout`"):
        await store._read("SELECT pg_sleep(500)")
    assert list(await store.read("s")) == []
    await store.close()


# ---------------------------------------------------------------- SQLite


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SQLiteStore]:
    made = SQLiteStore(file, timeout=LONG)
    await made.append("s", [OPENED], 0)
    yield made
    await made.close()


class Lock:
    """Another process that holds the file."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)

    def begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        self._db.execute("ROLLBACK")
        self._db.close()


async def test_a_write_that_waits_for_another_process_can_be_cancelled_and_is_not_written(file, store):
    lock = Lock(file)
    lock.begin()
    work = [store.append("s", [number(1)], 1), store.put("s", "k", "steer", 1), store.append("t", [OPENED], 0)]
    tasks = [asyncio.ensure_future(one) for one in work]
    await asyncio.wait(tasks, timeout=0.2)
    assert (await cancelled(tasks[0])).__cause__ is None
    await cancelled(tasks[1])
    assert list(await store.read("s")) == [OPENED]
    lock.end()
    await tasks[2]
    assert await reads_the_same_later(store) == [OPENED]
    assert not await store.inbox("s", ())
    assert await store.sessions() == ["s", "t"]


@pytest.mark.parametrize("by", ["agent", "caller"])
async def test_a_turn_whose_file_is_locked_can_be_cancelled_and_resumed(file, by):
    store = SQLiteStore(file, timeout=LONG)
    await store.append("other", [OPENED], 0)
    lock = Lock(file)
    clerk = Clerk(store, lock.begin)
    running = asyncio.ensure_future(clerk.agent.run("hello", session="s"))
    await clerk.stalled.wait()
    if by == "agent":
        assert await clerk.agent.cancel("s")
        assert isinstance((await running).outcome, Failed)
    else:
        await cancelled(running)
    lock.end()
    await check(clerk, store)
    await store.close()


class Slow(SQLiteStore):
    """A write takes as long as the test likes, in the middle of its transaction."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, timeout=LONG)
        self.begun, self.go = threading.Event(), threading.Event()

    def _append(self, *given: Any) -> bool:
        appended = super()._append(*given)
        self.begun.set()
        assert self.go.wait(50)
        return appended


async def test_a_read_waits_for_a_write_that_had_begun_and_was_left(file):
    store = Slow(file)
    writing = asyncio.ensure_future(store.append("s", [OPENED], 0))
    await asyncio.to_thread(store.begun.wait, 50)
    error = await cancelled(writing)
    assert isinstance(error.__cause__, StoreError)
    reading = asyncio.ensure_future(store.read("s"))
    await asyncio.wait([reading], timeout=0.2)
    assert not reading.done()
    store.go.set()
    assert list(await reading) == [OPENED]
    await store.close()


class Busy(SQLiteStore):
    """Each write takes two milliseconds."""

    def _append(self, *given: Any) -> bool:
        time.sleep(0.002)
        return super()._append(*given)


async def test_hundreds_of_turns_that_are_cancelled_at_once_all_end_although_their_writes_wait_for_one_another(
    file, monkeypatch
):
    monkeypatch.setattr(shields, "STORE_PATIENCE", 0.25)
    monkeypatch.setattr(sqlite_file, "TOGETHER", 10)
    store, thinking, turns = Busy(file), asyncio.Semaphore(0), 300

    async def think(request: Any) -> Any:
        thinking.release()
        await asyncio.sleep(LONG)

    agent = Agent(FunctionModel(think), store=store)
    running = [asyncio.ensure_future(agent.run("go", session=f"s{number}")) for number in range(turns)]
    for _ in running:
        await thinking.acquire()
    for turn in running:
        turn.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    assert {found.status for found in await store.find()} == {"open"}
    assert not store.passes.unreleased
    await store.close()
