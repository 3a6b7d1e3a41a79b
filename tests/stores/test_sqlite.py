"""What is particular to the SQLite store: its file, its writer, its format."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent
from windlass.errors import ConfigError, SessionConflict, StoreError
from windlass.records import Asked, InboxTaken, MessageAdded, Record, Resumed, SessionOpened, SlotSet
from windlass.stores import open_store, sqlite_file
from windlass.stores import sqlite_schema as module
from windlass.stores.batches import lines_of, pack
from windlass.stores.chains import Chain
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import ScriptedModel, says

from .old_formats import OldBatch, old_sqlite

OPENED, ADDED = SessionOpened(), MessageAdded()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SQLiteStore]:
    made = SQLiteStore(file)
    yield made
    await made.close()


def number(value: int) -> SlotSet:
    return SlotSet(slot="number", value=value)


# ---------------------------------------------------------------- its address


async def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative, absolute = open_store("sqlite:///a/logs.db"), open_store(f"sqlite:///{tmp_path}/b/logs.db")
    for store in (relative, absolute):
        assert isinstance(store, SQLiteStore)
        assert store.durable
        await store.append("s", [OPENED], 0)
        await store.close()
    assert (tmp_path / "a" / "logs.db").exists()
    assert (tmp_path / "b" / "logs.db").exists()


async def test_a_relative_path_stays_where_it_was_when_the_process_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///logs.db")
    await store.append("s", [OPENED], 0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert list(await store.read("s")) == [OPENED]
    assert not (tmp_path / "elsewhere" / "logs.db").exists()
    await store.close()


async def test_a_tilde_is_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for store in (open_store("sqlite:///~/a.db"), SQLiteStore("~/b.db"), SQLiteStore(Path("~/c.db"))):
        await store.append("s", [OPENED], 0)
        await store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db", "c.db"]


ADDRESSES = {
    "sqlite:///": "'sqlite:///' does not name a file; use 'memory:'",
    "sqlite://": "did you mean 'sqlite:///file.db'",
    "sqlite:": "did you mean 'sqlite:///file.db'",
    "sqlite://logs.db": "did you mean 'sqlite:///logs.db'",
    "sqlite:logs.db": "did you mean 'sqlite:///logs.db'",
    "SQLite:///logs.db": "did you mean 'sqlite:///logs.db'",
    "logs.db": "did you mean 'sqlite:///logs.db'",
    "sqlite:///:memory:": "not ':memory:'; for a store in memory use store=\"memory:\"",
    "sqlite://:memory:": "did you mean 'memory:'",
    ":memory:": "did you mean 'memory:'",
    "memory": "did you mean 'memory:'",
    "memory://": "did you mean 'memory:'",
    "sqlite:///logs/": "'sqlite:///logs/' names a folder",
    "sqlite:///.": "'.' is a folder; name a file in it",
    "sqlite:////": "names a folder",
    "sqlite:///~": "'~' is a folder",
    "sqlite:///~nobody-of-that-name/logs.db": "'~nobody-of-that-name/logs.db' cannot be resolved",
    "sqlite:///logs.db?mode=ro": "'sqlite:///logs.db?mode=ro' has options",
    "sqlit:///logs.db": "did you mean 'sqlite://…'",
    "postgre://db/x": "did you mean 'postgres",
    "postgresql+psycopg://db/x": "did you mean 'postgresql://…'",
    "mysql://db/x": "'mysql://db/x' is not the address of a store; use 'memory:'",
    "": "'' is not the address of a store",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_none_is_refused_by_name(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        open_store(address)
    assert ADDRESSES[address] in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_password_of_an_address_that_is_none_is_not_told():
    with pytest.raises(ConfigError) as caught:
        open_store("postgersql://ann:hunter2/@host/db")
    assert "hunter2" not in str(caught.value)
    assert "'postgersql://…@host/db' is not the address of a store; did you mean 'postgresql://…'?" in str(caught.value)


@pytest.mark.parametrize("path", ["", ":memory:", "."])
def test_a_path_that_is_no_file_is_refused(path):
    with pytest.raises(ConfigError):
        SQLiteStore(path)


@pytest.mark.parametrize("given", [Path("logs.db"), 7, {"path": "logs.db"}])
def test_what_is_no_store_is_refused(given):
    with pytest.raises(ConfigError, match=f"is not a store but of type {type(given).__name__}; use 'memory:'"):
        open_store(given)


def test_nothing_is_made_before_it_is_used(file):
    SQLiteStore(file)
    assert not file.exists()


@pytest.mark.parametrize(("synchronous", "pragma"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_writer_is_as_careful_as_it_is_told(file, synchronous, pragma):
    store = SQLiteStore(file, synchronous=synchronous)
    asked = await store._write(lambda db: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS])
    assert asked == [pragma, "wal", 1]
    await store.close()


PRAGMAS = ("synchronous", "journal_mode", "secure_delete")


def test_another_degree_of_care_is_refused(file):
    with pytest.raises(StoreError, match="synchronous='OFF'"):
        SQLiteStore(file, synchronous="OFF")  # type: ignore[arg-type]


async def test_who_opens_a_new_file_waits_for_the_one_that_makes_it(file, store):
    maker = sqlite3.connect(file, isolation_level=None)
    maker.execute("BEGIN IMMEDIATE")
    reading = asyncio.ensure_future(store.read("s"))
    await asyncio.wait([reading], timeout=0.2)
    maker.execute("ROLLBACK")
    assert list(await reading) == []
    maker.close()


async def test_who_waits_too_long_for_a_new_file_says_so(file):
    maker = sqlite3.connect(file, isolation_level=None)
    maker.execute("BEGIN IMMEDIATE")
    store = SQLiteStore(file, timeout=0.05)
    with pytest.raises(StoreError, match="longer `timeout`"):
        await store.read("s")
    await store.close()
    maker.close()


# ---------------------------------------------------------------- the writer


class Counting(SQLiteStore):
    """Counts transactions; the first one waits until it is let go."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.transactions: list[int] = []
        self.begun = threading.Event()
        self.go = threading.Event()
        self.opened = self._file.get()
        self._commit, self.opened._commit = self.opened._commit, self._count  # type: ignore[method-assign]

    def _count(self, db: sqlite3.Connection, jobs: list[Any]) -> Any:
        self.transactions.append(len(jobs))
        self.begun.set()
        assert self.go.wait(50)
        return self._commit(db, jobs)


async def test_what_waits_is_committed_together(file):
    store = Counting(file)
    first = asyncio.ensure_future(store.append("first", [OPENED], 0))
    await asyncio.to_thread(store.begun.wait, 50)
    rest = [asyncio.ensure_future(store.append(f"s{name}", [OPENED], 0)) for name in range(99)]
    await asyncio.sleep(0)
    store.go.set()
    await asyncio.gather(first, *rest)
    assert store.transactions == [1, 99]
    assert len(await store.sessions()) == 100
    await store.close()


async def test_who_is_refused_does_not_take_the_others_along(file):
    store = Counting(file)
    first = asyncio.ensure_future(store.append("s", [OPENED], 0))
    await asyncio.to_thread(store.begun.wait, 50)
    together = [asyncio.ensure_future(store.append("s", [number(at)], 1)) for at in range(3)]
    together.append(asyncio.ensure_future(store.append("t", [OPENED], 0)))
    await asyncio.sleep(0)
    store.go.set()
    results = await asyncio.gather(first, *together, return_exceptions=True)
    assert [type(result) for result in results] == [bool, bool, SessionConflict, SessionConflict, bool]
    assert list(await store.read("s")) == [OPENED, number(0)]
    await store.close()


async def test_eight_threads_append_to_sessions_of_their_own(store):
    def work(name: str) -> None:
        async def append() -> None:
            for length in range(40):
                await store.append(name, [number(length)], length)

        asyncio.run(append())

    with ThreadPoolExecutor(8) as threads:
        await asyncio.gather(*[asyncio.to_thread(threads.submit(work, f"s{at}").result) for at in range(8)])
    for at in range(8):
        assert list(await store.read(f"s{at}")) == [number(length) for length in range(40)]
        assert (await store.verify(f"s{at}")).records == 40


async def test_a_loop_that_was_closed_while_it_waited_harms_nobody(file):
    store = Counting(file)

    async def impatient() -> None:
        store._write_later = asyncio.ensure_future(store.append("s", [OPENED], 0))  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    def leave() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(impatient())
        store._write_later._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    await asyncio.to_thread(leave)
    store.go.set()
    await store.append("t", [OPENED], 0)
    assert list(await store.read("s")) == [OPENED]
    await store.close()


async def test_the_write_ahead_log_does_not_grow_without_bound(store, file):
    large = SlotSet(slot="large", value=os.urandom(20_000).hex())
    for length in range(300):
        await store.append("s", [large], length)
        if length % 10 == 0:
            await store.read("s", length)
    assert file.stat().st_size > 5_000_000
    assert file.with_name("logs.db-wal").stat().st_size < 5_000_000


async def test_a_file_with_one_session_is_small(store, file):
    await store.append("s", [OPENED], 0)
    await store.close()
    assert file.stat().st_size < 60_000


async def test_closing_leaves_one_file(store, file):
    await store.append("s", [OPENED], 0)
    await store.read("s")
    await store.close()
    assert [path.name for path in file.parent.iterdir()] == ["logs.db"]


async def test_closing_waits_for_what_is_being_written(file):
    store = Counting(file)
    appending = asyncio.ensure_future(store.append("s", [OPENED], 0))
    await asyncio.to_thread(store.begun.wait, 50)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    store.go.set()
    await closing
    assert await appending is False
    again = SQLiteStore(file)
    assert list(await again.read("s")) == [OPENED]
    await again.close()


async def test_of_two_who_close_at_once_both_wait_for_what_is_being_written(file):
    store = Counting(file)
    appending = asyncio.ensure_future(store.append("s", [OPENED], 0))
    await asyncio.to_thread(store.begun.wait, 50)
    closing = [asyncio.ensure_future(store.close()) for _ in range(2)]
    await asyncio.sleep(0)
    store.go.set()
    await asyncio.gather(*closing)
    assert await appending is False


# ---------------------------------------------------------------- processes

CHILD = """
import asyncio, sys
from windlass.records import SlotSet
from windlass.stores.sqlite import SQLiteStore
from windlass.errors import SessionConflict

async def main(file, name):
    store, won, length = SQLiteStore(file), 0, 0
    while length < 40:
        try:
            await store.append("shared", [SlotSet(slot=name, value=length)], length)
            won += 1
            length += 1
        except SessionConflict:
            length = len(await store.read("shared"))
    await store.close()
    print(won)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_share_a_file_advance_a_session_one_at_a_time(store, file):
    def run(name: str) -> int:
        command = [sys.executable, "-c", CHILD, str(file), name]
        return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    won = await asyncio.gather(*[asyncio.to_thread(run, f"p{at}") for at in range(3)])
    log = await store.read("shared")
    assert [record.value for record in log] == list(range(40))  # type: ignore[attr-defined]
    assert sum(won) == 40
    await store.verify("shared")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_process_has_a_writer_and_connections_of_its_own(store):
    await store.append("s", [OPENED], 0)
    await store.read("s")
    with store._file.get()._lock:  # as if another thread had it at that moment
        child = os.fork()
        if not child:
            code = 1
            try:
                asyncio.run(_in_the_child(store))
                code = 0
            finally:
                os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with pytest.raises(SessionConflict):
        await store.append("s", [number(9)], 1)
    await store.append("s", [number(2)], 2)
    assert list(await store.read("s")) == [OPENED, number(1), number(2)]
    await store.verify("s")


async def _in_the_child(store: SQLiteStore) -> None:
    assert list(await store.read("s")) == [OPENED]
    await store.append("s", [number(1)], 1)
    await store.close()


async def test_a_stalled_process_that_wakes_up_cannot_write(store, file):
    other = SQLiteStore(file)
    await store.append("s", [OPENED], 0)
    await other.append("s", [Resumed()], 1)
    for expected in (1, 0):
        with pytest.raises(SessionConflict, match="'s' has 2 records, not"):
            await store.append("s", [number(1)], expected)
    await other.close()


# ---------------------------------------------------------------- the format


async def make(file: Path, log: Sequence[Record]) -> None:
    store = SQLiteStore(file)
    await store.append("s", log, 0)
    await store.close()


async def test_a_file_of_a_newer_version_is_refused_and_not_touched(file, store):
    await make(file, [OPENED])
    db = sqlite3.connect(file)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = file.read_bytes()
    for use in (store.append("s", [ADDED], 1), store.read("s")):
        with pytest.raises(StoreError, match=rf"newer Windlass .*reads up to {module.VERSION}\).*Nothing was changed"):
            await use
    await store.close()
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["logs.db"]


async def test_a_file_of_an_older_version_is_brought_up_step_by_step(file, store, monkeypatch):
    await make(file, [OPENED])
    now = module.VERSION
    monkeypatch.setattr(module, "VERSION", now + 2)
    migrations = {
        now: "ALTER TABLE sessions ADD COLUMN a TEXT DEFAULT 'x'; CREATE TABLE more (b TEXT)",
        now + 1: "INSERT INTO more SELECT a FROM sessions",
    }
    monkeypatch.setattr(module, "MIGRATIONS", migrations)
    await store.append("s", [ADDED], 1)
    assert list(await store.read("s")) == [OPENED, ADDED]
    await store.verify("s")
    assert await store._read("SELECT b FROM more") == [("x",)]
    assert await store._read("PRAGMA user_version") == [(now + 2,)]


async def test_a_file_of_the_first_version_learns_where_its_logs_end(file):
    old_sqlite(file, {"s": [OldBatch([OPENED, ADDED]), OldBatch([ADDED])], "t": [OldBatch([OPENED])]})
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("UPDATE sessions SET records = NULL, head = NULL, agent = '', title = '', started = 0, updated = 0")
    db.execute("INSERT INTO inbox VALUES ('s', 'k1', 2, 'answer', '\"hunter2\"', 1)")
    db.execute("PRAGMA user_version = 1")
    db.close()
    older = SQLiteStore(file)
    assert (await older.verify("t")).records == 1
    assert [(info.session, info.records) for info in await older.find()] == [("t", 1), ("s", 3)]
    assert await older._read("SELECT length(data) FROM inbox ORDER BY position") == [(1,), (0,)]
    await older.append("s", [ADDED], 3)
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("DELETE FROM batches WHERE seq = 3")
    db.close()
    with pytest.raises(StoreError, match="it ends early: the session's row says that it has"):
        await older.verify("s")
    await older.close()


async def test_a_migration_that_fails_changes_nothing(file, store, monkeypatch):
    await make(file, [OPENED])
    now = module.VERSION
    monkeypatch.setattr(module, "VERSION", now + 2)
    monkeypatch.setattr(module, "MIGRATIONS", {now: "CREATE TABLE more (b TEXT)", now + 1: "NO SQL AT ALL"})
    with pytest.raises(StoreError, match="syntax error"):
        await store.append("s", [ADDED], 1)
    monkeypatch.undo()
    await store.append("s", [ADDED], 1)
    assert await store._read("SELECT name FROM sqlite_master WHERE name = 'more'") == []


async def test_those_who_come_first_at_the_same_time_make_one_file(file):
    stores = [SQLiteStore(file) for _ in range(6)]
    await asyncio.gather(*[store.append(f"s{at}", [OPENED], 0) for at, store in enumerate(stores)])
    assert len(await stores[0].sessions()) == 6
    for store in stores:
        await store.close()


async def test_a_file_of_another_application_is_refused_and_not_touched(file, store):
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE theirs (a TEXT)")
    db.close()
    before = file.read_bytes()
    with pytest.raises(StoreError, match="of another application; use another file"):
        await store.append("s", [OPENED], 0)
    assert file.read_bytes() == before


async def test_what_was_taken_from_the_inbox_or_erased_is_no_longer_in_the_file(file, store):
    asked = Asked("c1", "ToolCalling", "May hunter2 be used?", ("approve",), "d", ("gate",))
    await store.append("s", [OPENED, asked], 0)
    await store.put("s", "k1", "answer", {"text": "hunter3"})
    await store.append("s", [InboxTaken("k1", "answer")], 2)
    assert not await store.put("s", "k1", "answer", "again")
    await store.append("other", [OPENED], 0)
    await store.close()
    assert b"hunter3" not in file.read_bytes()
    assert b"hunter2" in file.read_bytes()
    again = SQLiteStore(file)
    await again.erase("s")
    await again.close()
    assert b"hunter2" not in file.read_bytes()
    assert [path.name for path in file.parent.iterdir()] == ["logs.db"]


TAMPERING = {
    "the bytes of a batch": "UPDATE batches SET data = x'0102' WHERE seq = 1",
    "the order of batches": "UPDATE batches SET data = (SELECT data FROM batches WHERE seq = 2) WHERE seq = 1",
    "a link": "UPDATE batches SET link = x'00' WHERE seq = 1",
    "a batch that is missing": "DELETE FROM batches WHERE seq = 1",
    "a count": "UPDATE batches SET count = 2 WHERE seq = 2",
    "the last batch": "DELETE FROM batches WHERE seq = 2",
    "a last batch that is another one": "UPDATE batches SET seals = x'', link = x'00' WHERE seq = 2",
}


@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING)
async def test_tampering_is_found_at_its_record(file, store, statement):
    for length in range(3):
        await store.append("s", [number(length)], length)
    db = sqlite3.connect(file)
    db.execute(statement)
    db.commit()
    db.close()
    with pytest.raises(StoreError, match=r"the log of session 's' is broken at record [123]"):
        await store.verify("s")


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_a_log_that_was_cut_short_is_found_and_not_gone_on_with(file, store, left):
    for length in range(3):
        await store.append("s", [number(length)], length)
    await store.close()
    with sqlite3.connect(file) as db:
        db.execute("DELETE FROM batches WHERE seq >= ?", (left,))
    db.close()
    other = SQLiteStore(file)
    text = rf"broken at record {left}: it ends early: the session's row says that it has 3 records"
    with pytest.raises(StoreError, match=text):
        await other.verify("s")
    with pytest.raises(StoreError, match=text):
        await other.append("s", [ADDED], left)
    with pytest.raises(StoreError, match=text):
        await other.read("s")
    await other.close()


async def test_a_batch_that_was_added_behind_the_store_is_found(file, store):
    await store.append("s", [ADDED], 0)
    with sqlite3.connect(file) as db:
        lines = lines_of([ADDED])
        link = Chain().seal("s", 1, db.execute("SELECT link FROM batches").fetchone()[0], lines).link
        db.execute("INSERT INTO batches VALUES (1, 1, 1, ?, ?, NULL, NULL)", (link, pack(lines)))
    db.close()
    with pytest.raises(StoreError, match=r"broken at record 1: it has more records than the session's row says"):
        await store.verify("s")


async def test_the_bytes_of_a_step_do_not_depend_on_what_was_before(store, file):
    step = [SlotSet(slot="step", value="something that takes a few bytes")]
    sizes = []
    for length in range(400):
        await store.append("s", step, length)
        if length in (100, 200, 300, 399):
            sizes.append((await store._read("SELECT sum(length(data)) FROM batches"))[0][0])
    assert sizes[3] - sizes[2] <= sizes[1] - sizes[0]


# ---------------------------------------------------------------- without the writer


async def test_where_the_disk_is_quick_the_caller_commits_itself_and_else_the_writer(file, store, monkeypatch):
    monkeypatch.setattr(sqlite_file, "QUICK", 60.0)
    await store.append("s", [OPENED], 0)
    for at in range(1, 4):
        await store.append("s", [OPENED], at)
    assert store._file.get()._here is not None
    with pytest.raises(SessionConflict):
        await store.append("s", [OPENED], 9)
    await store.append("s", [OPENED], 4)
    assert (await store.verify("s")).records == 5


async def test_a_caller_who_finds_the_file_locked_does_not_block_the_loop(file, monkeypatch):
    monkeypatch.setattr(sqlite_file, "QUICK", 60.0)
    store = SQLiteStore(file)
    await store.append("s", [OPENED], 0)
    await store.append("s", [OPENED], 1)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    turns = 0
    appending = asyncio.ensure_future(store.append("s", [OPENED], 2))
    while turns < 50:
        await asyncio.sleep(0)
        turns += 1
    assert not appending.done()
    other.execute("COMMIT")
    other.close()
    await appending
    assert len(await store.read("s")) == 3
    await store.close()


async def test_an_id_that_no_file_can_hold_is_refused_by_reads_as_by_writes(tmp_path: Path):
    store = SQLiteStore(tmp_path / "x.db")
    for asked in (
        store.read("lone \ud800"),
        store.append("lone \ud800", [OPENED], 0),
    ):
        with pytest.raises(StoreError, match="surrogates"):
            await asked
    await store.close()


# ---------------------------------------------------------------- the inbox


async def test_a_put_costs_the_same_however_many_entries_there_were(store):
    """Counted in steps of SQLite's virtual machine."""
    steps = [0]

    def count() -> int:
        steps[-1] += 1
        return 0

    def watch(db: sqlite3.Connection) -> bool:
        db.set_progress_handler(count, 1)
        return True

    await store._write(watch)
    costs: list[int] = []
    for number in range(600):
        steps.append(0)
        assert await store.put("s", f"k{number:04}", "steer", number)
        costs.append(steps[-1])
        if number % 3 == 0:
            await store.append("s", [InboxTaken(f"k{number:04}", "steer")], number // 3)
    assert 0 < max(costs[500:]) <= 2 * max(costs[:100])
    entries = [key for key, _, _ in await store.inbox("s", ())]
    assert entries == [f"k{number:04}" for number in range(600) if number % 3]
    plans = ["SELECT 1 FROM inbox WHERE session = 's' AND taken = 0",
             "SELECT key, kind, data FROM inbox WHERE session = 's' AND taken = 0 ORDER BY position"]  # fmt: skip
    for plan in plans:
        ((*_, how),) = await store._read(f"EXPLAIN QUERY PLAN {plan}")
        assert how.startswith("SEARCH inbox USING")


# ---------------------------------------------------------------- what a session says it runs on


class Slow(SQLiteStore):
    """Takes a moment to store what an agent is made of."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.storing = asyncio.Event()

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        self.storing.set()
        await asyncio.sleep(0)
        await super().put_pipeline(digest, data)


async def test_the_store_has_the_pipeline_of_a_session_whose_first_turn_was_cancelled_at_once(file):
    store = Slow(file)
    agent = Agent(ScriptedModel(says("later")), store=store)
    turn = asyncio.ensure_future(agent.run("go", session="s"))
    await store.storing.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    [opened] = [record for record in await store.read("s") if isinstance(record, SessionOpened)]
    assert await store.pipeline(opened.pipeline) is not None
    assert (await agent.run("go on", session="s")).text == "later"
    await store.close()


# ---------------------------------------------------------------- thousands of sessions


async def test_inboxes_are_looked_at_for_more_sessions_than_a_query_may_have_parameters(store, file, monkeypatch):
    names = [f"s{at}" for at in range(2100)]
    waiting = [names[0], names[499], names[500], names[2099]]
    for name in waiting:
        await store.put(name, "k", "steer", {})
    connect = sqlite3.connect

    def limited(*args: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*args, **options)
        made.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        return made

    monkeypatch.setattr(sqlite_file.sqlite3, "connect", limited)  # as older builds of SQLite are
    assert sorted(await store.unread(names)) == sorted(waiting)
    assert list(await store.unread(names[1:499])) == []
