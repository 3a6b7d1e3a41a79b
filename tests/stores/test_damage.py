"""When a store cannot write: a typed error that says what to do, nothing lost, and a turn that goes on afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import proxied

from windlass import Agent, Approve, Ask, Cancelled, Completed, Failed, Result, Suspended, ToolCalling, tool
from windlass.errors import NotSuspended, SessionUnknown, StoreError
from windlass.messages import ModelRequest, ToolResultPart
from windlass.protocols import Store
from windlass.records import MessageAdded, Record, SessionOpened, ToolCalled
from windlass.states import State, fold
from windlass.stores import MemoryStore
from windlass.stores.postgres import PostgresStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FunctionModel, calls, says

OPENED, ADDED = SessionOpened(), MessageAdded()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs.db"


@tool
def fetch() -> str:
    """Fetch it."""
    return "fetched"


def fetch_first(request: Any) -> Any:
    return says("done") if request.messages[-1].role == "tool" else calls("fetch")


# ---------------------------------------------------------------- a turn while the store breaks


class Damage:
    """Something that can be done to a store, and undone."""

    says: str
    """What the error says."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def happen(self) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        raise NotImplementedError


class DiskFull(Damage):
    """The file may not grow by a single page."""

    says = r"disk is full; free space on the disk and resume the session"
    store: SQLiteStore

    def happen(self) -> None:
        for db in list(self.store._file.get()._connections):
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            assert db.execute(f"PRAGMA max_page_count = {pages}").fetchone()[0] == pages

    def heal(self) -> None:
        for db in list(self.store._file.get()._connections):
            db.execute("PRAGMA max_page_count = 1000000")


class Locked(Damage):
    """Another connection holds the file and does not let go."""

    says = r"database is locked; another process holds it for too long: find that process, or .* a longer `timeout`"
    store: SQLiteStore

    def happen(self) -> None:
        self.other = sqlite3.connect(self.store.path, isolation_level=None, check_same_thread=False)
        self.other.execute("BEGIN EXCLUSIVE")

    def heal(self) -> None:
        self.other.execute("ROLLBACK")
        self.other.close()


class Killed(Damage):
    """The PostgreSQL server dies, and is started again."""

    says = r"PostgreSQL at .* check that the server runs and can be reached, then resume the session"
    server: PostgresServer

    def happen(self) -> None:
        self.server.kill()

    def heal(self) -> None:
        self.server.start()


class ServerFull(Damage):
    """The PostgreSQL server says that its disk is full."""

    says = r"could not extend file; free space on the server's disk and resume the session"
    server: PostgresServer
    url: str

    def happen(self) -> None:
        self.server.execute(
            self.url,
            "CREATE FUNCTION windlass.full() RETURNS trigger AS $$ BEGIN "
            "RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$ LANGUAGE plpgsql; "
            "CREATE TRIGGER full_disk BEFORE INSERT ON windlass.batches FOR EACH ROW EXECUTE FUNCTION windlass.full()",
        )

    def heal(self) -> None:
        self.server.execute(self.url, "DROP TRIGGER full_disk ON windlass.batches")


class Standby(Damage):
    """The PostgreSQL server takes no writes any more."""

    says = r"read-only transaction; the server accepts no writes, it may be a standby"
    server: PostgresServer
    url: str

    def happen(self) -> None:
        self._set("on")

    def heal(self) -> None:
        self._set("off")

    def _set(self, value: str) -> None:
        name = self.url.rpartition("/")[2]
        self.server.execute(
            "postgres",
            f"ALTER DATABASE {name} SET default_transaction_read_only = {value}; "
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
        )


class RowLocked(Damage):
    """Another connection holds the row of the session."""

    says = r"lock timeout; another process holds the session's row for too long"
    server: PostgresServer
    url: str

    def happen(self) -> None:
        import psycopg

        self.other = psycopg.connect(self.url)
        self.other.execute("SELECT 1 FROM windlass.sessions FOR UPDATE")

    def heal(self) -> None:
        self.other.close()


async def go_through(damage: Damage, reopen: Callable[[], Store]) -> None:
    """A turn whose tool does the damage; what it was about to write is not acknowledged, and resume goes on."""
    store, ran = damage.store, list[str]()

    @tool(effect="idempotent")
    def fetch() -> str:
        """Fetch it."""
        ran.append("fetch")
        if len(ran) == 1:
            damage.happen()
        return os.urandom(50_000).hex()

    def agent(store: Store) -> Agent[Any, str]:
        return Agent(FunctionModel(fetch_first), tools=[fetch], store=store)

    first = agent(store)
    result = await first.run("hello", session="s")
    assert isinstance(result.outcome, Failed), result.outcome
    assert result.outcome.error.type == "StoreError"
    assert re.search(damage.says, result.outcome.error.message)

    damage.heal()
    log = await store.read("s")
    assert [record for record in log if isinstance(record, ToolCalled)], "what was acknowledged is there"
    assert not (await first.state("s")).over
    again = await first.resume("s")
    assert isinstance(again.outcome, Completed)
    assert again.text == "done"
    assert ran == ["fetch", "fetch"]
    assert list(await store.read("s"))[: len(log)] == list(log)
    await store.verify("s")

    elsewhere = reopen()
    assert (await agent(elsewhere).run("more", session="s")).text == "done"
    await elsewhere.verify("s")
    await elsewhere.close()


class Lingering(SQLiteStore):
    """Takes its time to close a connection."""

    def _disconnect(self, db: sqlite3.Connection | None) -> None:
        time.sleep(0.1)
        super()._disconnect(db)


def times_open(file: Path) -> int:
    """How many of this process's descriptors are the file's."""
    found = 0
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            found += os.path.samestat(os.fstat(int(name)), file.stat())
    return found


async def test_whoever_hears_that_a_write_failed_finds_the_file_let_go(file):
    store = Lingering(file, timeout=0.1)
    await store.append("s", [OPENED], 0)
    assert times_open(file) == 1
    damage = Locked(store)
    damage.happen()
    with pytest.raises(StoreError, match="locked"):
        await store.append("s", [ADDED], 1)
    damage.heal()
    assert times_open(file) == 0
    await store.append("s", [ADDED], 1)
    assert times_open(file) == 1
    await store.close()


@pytest.mark.parametrize("kind", [DiskFull, Locked])
async def test_a_turn_survives_what_happens_to_its_file(file, kind):
    store = SQLiteStore(file, timeout=0.2)
    await go_through(kind(store), lambda: SQLiteStore(file))
    await store.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that nobody else needs."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.parametrize(("kind", "timeout"), [(Killed, 3), (ServerFull, 30), (Standby, 30), (RowLocked, 3)])
async def test_a_turn_survives_what_happens_to_its_server(own_server, kind, timeout):
    url = own_server.database()
    store = PostgresStore(url, timeout=timeout)
    damage = kind(store)
    damage.server, damage.url = own_server, url
    await go_through(damage, lambda: PostgresStore(url))
    await store.close()


async def test_a_server_that_is_gone_for_a_moment_is_waited_for(own_server):
    store = PostgresStore(own_server.database(), timeout=30)
    await store.append("s", [OPENED], 0)
    own_server.kill()
    appending = asyncio.ensure_future(store.append("s", [ADDED], 1))
    await asyncio.to_thread(own_server.start)
    await appending
    assert list(await store.read("s")) == [OPENED, ADDED]
    await store.close()


@pytest.mark.parametrize("moment", [b"INSERT INTO batches", b"COMMIT\0"])
async def test_a_turn_does_not_notice_that_a_connection_was_lost(postgres, database, moment):
    with proxied(postgres.port) as proxy:
        store = PostgresStore(database.replace(str(postgres.port), str(proxy.port)), timeout=5)
        model = FunctionModel(lambda request: says("done"))
        agent = Agent(model, store=store)
        await agent.run("hello", session="s")
        proxy.swallow = moment
        assert isinstance((await agent.run("more", session="s")).outcome, Completed)
        assert proxy.events == ["swallowed"]
        assert len((await agent.state("s")).messages) == 4
        await store.verify("s")
        await store.close()


async def test_a_turn_whose_end_cannot_be_written_has_not_ended(file):
    """What nobody can read back is not told as a success."""
    store = SQLiteStore(file, timeout=0.2)
    damage = Locked(store)
    replies = 0

    def reply(request: Any) -> Any:
        nonlocal replies
        replies += 1
        if replies == 2:
            damage.happen()
        return fetch_first(request)

    agent = Agent(FunctionModel(reply), tools=[fetch], store=store)
    result = await agent.run("hello", session="s")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "StoreError"
    damage.heal()
    assert not (await agent.state("s")).over
    again = await agent.resume("s")
    assert again.text == "done"
    assert (await agent.state("s")).outcome == again.outcome
    await store.close()


async def test_a_store_that_works_again_at_once_is_not_written_by_a_turn_that_failed(file):
    """The cause is gone before the turn has ended: its log is still that of a turn that can be resumed."""

    class Moody(SQLiteStore):
        moods = 0

        def _append(self, *given: Any) -> bool:
            self.moods += 1
            if self.moods == 2:
                raise sqlite3.OperationalError("disk I/O error")
            return super()._append(*given)

    store = Moody(file)
    agent = Agent(FunctionModel(fetch_first), tools=[fetch], store=store)
    result = await agent.run("hello", session="s")
    assert isinstance(result.outcome, Failed)
    assert "check the disk" in result.outcome.error.message
    assert store.moods == 2
    assert not (await agent.state("s")).over
    assert isinstance((await agent.resume("s")).outcome, Completed)
    await store.verify("s")
    await store.close()


async def test_nothing_is_there_if_the_first_append_failed_and_a_new_run_begins_anew(file):
    store = SQLiteStore(file, timeout=0.2)
    await store.append("other", [OPENED], 0)
    agent = Agent(FunctionModel(lambda request: says("done")), store=store)
    damage = Locked(store)
    damage.happen()
    result = await agent.run("hello", session="s")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "StoreError"
    damage.heal()
    with pytest.raises(SessionUnknown):
        await agent.resume("s")
    assert isinstance((await agent.run("hello", session="s")).outcome, Completed)
    await store.close()


def cut(file: Path) -> None:
    os.truncate(file, 6000)


def overwrite(file: Path) -> None:
    file.write_bytes(b"This was a database once. " * 400)


def come_from_the_future(file: Path) -> None:
    db = sqlite3.connect(file)
    db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (cut, "restore it from a backup|restore from a backup"),
        (overwrite, "not a database.*restore it from a backup"),
        (come_from_the_future, "newer Windlass.*install the newer version"),
    ],
)
async def test_a_turn_whose_file_was_damaged_meanwhile_goes_on_once_it_is_restored(file, damage, match):
    approved = Agent(FunctionModel(fetch_first), tools=[fetch], store=SQLiteStore(file), unmatched="ask")
    waiting = await approved.run("hello", session="s")
    assert isinstance(waiting.outcome, Suspended)
    answers = {asked.id: Approve() for asked in waiting.outcome.waiting_for}
    await approved.store.close()
    copy = file.read_bytes()
    damage(file)
    damaged = file.read_bytes()
    store = SQLiteStore(file)
    agent = Agent(FunctionModel(fetch_first), tools=[fetch], store=store, unmatched="ask")
    with pytest.raises(StoreError, match=match):
        await agent.resume("s", answers=answers)
    assert file.read_bytes() == damaged
    file.write_bytes(copy)
    assert (await agent.resume("s", answers=answers)).text == "done"
    await store.verify("s")
    await store.close()


# ---------------------------------------------------------------- a cancel while a batch is written


class Slow(SQLiteStore):
    """The second batch takes as long as the test likes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun, self.go = threading.Event(), threading.Event()
        self.count = 0

    def _append(self, *given: Any) -> bool:
        self.count += 1
        if self.count == 2:
            self.begun.set()
            assert self.go.wait(50)
        return super()._append(*given)


async def test_a_turn_that_is_cancelled_while_its_records_are_written_ends_cancelled(file):
    store = Slow(file)
    agent = Agent(FunctionModel(fetch_first), tools=[fetch], store=store)
    running = asyncio.ensure_future(agent.run("hello", session="s"))
    await asyncio.to_thread(store.begun.wait, 50)
    assert await agent.cancel("s", "enough")
    store.go.set()
    result = await running
    assert isinstance(result.outcome, Cancelled)
    assert (await agent.state("s")).outcome == result.outcome
    await store.verify("s")
    assert isinstance((await agent.run("again", session="s")).outcome, Completed)
    await store.close()


# ---------------------------------------------------------------- what a store finds when it opens


async def refused(store: Store, match: str) -> None:
    for use in (store.append("s", [OPENED], 0), store.read("s")):
        with pytest.raises(StoreError, match=match):
            await use


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SQLiteStore]:
    made = SQLiteStore(file, timeout=0.2)
    yield made
    await made.close()


async def test_a_file_that_is_no_database_is_refused_and_not_touched(file, store):
    file.write_bytes(b"Dear diary, " * 1000)
    await refused(store, r"not a database; it is not an SQLite file, or it is damaged: .* use another file")
    assert file.read_bytes() == b"Dear diary, " * 1000


async def test_a_truncated_file_is_refused_and_not_cut_further(file, store):
    whole = SQLiteStore(file)
    for name in range(50):
        await whole.append(f"s{name}", [OPENED, ADDED], 0)
    await whole.close()
    os.truncate(file, 6000)
    before = file.read_bytes()
    with pytest.raises(StoreError, match=r"restore it from a backup|restore from a backup"):
        await store.append("s1", [ADDED], 2)
    assert file.read_bytes()[:6000] == before


async def test_an_empty_file_is_a_new_one(file, store):
    file.touch()
    await store.append("s", [OPENED], 0)
    assert list(await store.read("s")) == [OPENED]


async def test_a_folder_in_the_place_of_the_file_is_named(file, store):
    file.mkdir()
    await refused(store, r"unable to open database file; .* must exist and be writable")


async def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "folder").touch()
    store = SQLiteStore(tmp_path / "folder" / "logs.db")
    await refused(store, r"part of its path is a file, not a folder")
    await store.close()


def as_nobody(work: Callable[[], Coroutine[Any, Any, None]]) -> str:
    """What a piece of work raises for a user whom permissions bind: in a child, if this is root."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            asyncio.run(work())
            told = "nothing"
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(sending, told.encode())
        os._exit(0)
    os.close(sending)
    os.waitpid(child, 0)
    with os.fdopen(receiving, encoding="utf-8") as told:
        return told.read()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anybody may enter."""
    made = Path(tempfile.mkdtemp(prefix="windlass-"))
    made.chmod(0o777)
    yield made
    made.chmod(0o777)
    shutil.rmtree(made)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no users to change to")


@needs_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("what", ["file", "folder", "new folder"])
def test_a_file_or_folder_that_cannot_be_written_is_named(folder, what):
    file = folder / "logs.db"

    async def append(path: Path, name: str) -> None:
        store = SQLiteStore(path, timeout=0.2)
        try:
            await store.append(name, [OPENED], 0)
        finally:
            await store.close()

    asyncio.run(append(file, "s"))
    file.chmod(0o444)
    folder.chmod(0o777 if what == "file" else 0o555)
    path = folder / "new" / "logs.db" if what == "new folder" else file
    told = as_nobody(lambda: append(path, "t"))
    folder.chmod(0o777)
    file.chmod(0o666)
    assert told.startswith("StoreError: could not ")
    assert str(path.parent) in told
    assert "writable for this user" in told
    asyncio.run(append(file, "t"))


# ---------------------------------------------------------------- one failure, anywhere


class FailsOnce(MemoryStore):
    """A store of which one call fails, before it has done anything or after."""

    durable = True

    def __init__(self, at: int, after: bool) -> None:
        super().__init__()
        self.at = at
        self.after = after
        self.count = 0

    async def _pass(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self.count += 1
        fails = self.count == self.at
        value = None if fails and not self.after else await call()
        if fails:
            raise StoreError("the line is cut; mend it")
        return value

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        return bool(await self._pass(lambda: MemoryStore.append(self, session, records, expected, claim)))

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        found: Sequence[Record] = await self._pass(lambda: MemoryStore.read(self, session, start))
        return found

    async def inbox(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        found: Sequence[tuple[str, str, Any]] = await self._pass(lambda: MemoryStore.inbox(self, session, taken))
        return found


def bosses(store: MemoryStore, effects: list[Any]) -> Agent[Any, Any]:
    """An agent whose sub-agents, two at once, ask before they pay."""

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        effects.append(euros)
        return "paid"

    @tool(effect="idempotent")
    async def note(idempotency_key: str) -> str:
        """Note it."""
        return "noted"

    def reply(request: ModelRequest) -> Any:
        task = request.messages[0].text
        if request.messages[-1].role == "tool":
            return says("done")
        if task == "both":
            return calls([("clerk", {"task": "1"}), ("note", {}), ("clerk", {"task": "2"})])
        return calls([("pay", {"euros": int(task)}), ("note", {})])

    clerk = Agent(FunctionModel(reply), tools=[pay, note], name="clerk")
    clerk.gate(ToolCalling, tool="pay")(lambda event: Ask("Pay?"))
    return Agent(FunctionModel(reply), tools=[clerk.as_tool(), note], store=store)


async def to_its_end(store: FailsOnce, effects: list[Any], told: list[str]) -> State:
    """The turn, gone on with for as often as it fails."""
    agent = bosses(store, effects)
    result: Result[Any] | None = None
    for _ in range(20):
        try:
            if result is not None and result.waiting_for:
                result = await agent.resume("s", answers={result.waiting_for[0].id: Approve(by="eve")})
            elif "s" in await store.sessions():
                result = await agent.resume("s")
            else:
                result = await agent.run("both", session="s")
        except StoreError as error:  # it failed when there was no turn yet
            told.append(str(error))
            result = None
            continue
        except NotSuspended:  # its last record was kept
            break
        if isinstance(result.outcome, Failed):
            told.append(result.outcome.error.message)
            result = None
        elif not result.waiting_for:
            break
    return fold("s", await MemoryStore.read(store, "s"))


@pytest.mark.parametrize("after", [False, True])
async def test_a_store_that_fails_once_wherever_that_is_costs_no_answer_and_no_sub_agent(after: bool):
    """The turn ends as failed with that error, and the next resume goes on with all that was there."""
    calm = FailsOnce(0, after)
    whole = await to_its_end(calm, [], [])
    assert whole.outcome == Completed()
    for at in range(1, calm.count + 1):
        store, effects, told = FailsOnce(at, after), list[Any](), list[str]()
        state = await to_its_end(store, effects, told)
        assert told == ["the line is cut; mend it"], at
        assert state.outcome == Completed(), at
        assert len(effects) == len(set(effects)), at
        assert await store.approvals() == [], at
        for session in await store.sessions():
            assert fold(session, await MemoryStore.read(store, session)).outcome == Completed(), (at, session)
        [results] = [message.parts for message in state.messages if message.role == "tool"]
        assert [part.status for part in results if isinstance(part, ToolResultPart)] == ["ok"] * 3, at


@pytest.mark.parametrize("after", [False, True])
async def test_a_store_that_fails_once_leaves_no_sub_agent_of_a_superseded_turn_behind(after: bool):
    """A new message ends the sub-agents first; one whose log cannot say so ends the turn, and the next try ends it."""
    for at in range(1, 12):
        store = FailsOnce(0, after)
        agent = bosses(store, [])
        assert (await agent.run("both", session="s")).waiting_for
        store.at = store.count + at
        with suppress(StoreError):
            await agent.run("never mind", session="s")
        store.at = 0
        if not any(message.text == "never mind" for message in (await agent.state("s")).messages):
            await agent.run("never mind", session="s")
        assert [name for name, _ in await store.approvals() if name.startswith("s//1/")] == [], at
        for session in ("s//1/1", "s//1/3"):
            assert fold(session, await store.read(session)).over, (at, session)
