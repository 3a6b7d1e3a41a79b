"""Stored values among processes: sums are right, ids count once, limits hold, and old files gain the tables."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from windlass.errors import StoreError
from windlass.protocols import Store, StoredValue
from windlass.records import SessionOpened
from windlass.stores import SQLiteStore, open_store, sqlite_schema
from windlass.testing import FakeClock, fake_storage

needs_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform has no SIGKILL")

KEY = "0123456789abcdef"


class Durable:
    """A store that outlives its processes, and a way to run SQL behind its back."""

    def __init__(self, address: str, sql: Callable[[str], Any]) -> None:
        self.address = address
        self.sql = sql
        self.opened: list[Store] = []

    def open(self) -> Store:
        self.opened.append(open_store(self.address))
        return self.opened[-1]


def _in_file(file: Path) -> Callable[[str], Any]:
    def run(sql: str) -> Any:
        with sqlite3.connect(file, isolation_level=None) as db:
            found = db.execute(sql).fetchall()
        db.close()
        return found

    return run


def _on_server(database: str) -> Callable[[str], Any]:
    def run(sql: str) -> Any:
        with psycopg.connect(database, autocommit=True, options="-c search_path=windlass") as db:
            done = db.execute(sql.encode())
            return done.fetchall() if done.description else []

    return run


@pytest.fixture(params=["sqlite", "postgresql"])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Durable]:
    if request.param == "sqlite":
        file = tmp_path / "store.db"
        made = Durable(f"sqlite:///{file}", _in_file(file))
    else:
        database = request.getfixturevalue("database")
        made = Durable(database, _on_server(database))
    yield made
    for store in made.opened:
        await store.close()


# ---------------------------------------------------------------- processes

WORKER = """
import asyncio, sys
from windlass.stores import open_store
from windlass.testing import FakeClock, fake_storage

async def work(address, number):
    store = open_store(address)
    storage = fake_storage("shared", store=store, clock=FakeClock())
    print("ready", flush=True)
    sys.stdin.readline()
    granted = held = 0
    for n in range(15):
        await storage.add("sum", 3)
        await storage.add("once", 1, once=f"call {n}")
        granted += bool(await storage.take("rate", limit=40, per=60))
        granted += bool(await storage.take("quota", 2, limit=50, once=f"{number} {n}"))
        held += bool(await storage.hold("permits", f"{number} {n}", limit=7, ttl=600))
    print(granted, held, flush=True)
    await store.close()

asyncio.run(work(sys.argv[1], sys.argv[2]))
"""


def _start(script: str, *given: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _finish(process: subprocess.Popen[str], text: str | None = None) -> str:
    out, _ = process.communicate(text)
    assert process.returncode == 0
    return out


async def test_eight_processes_add_up_and_never_take_more_than_the_limit(durable):
    await durable.open().sessions()
    processes = [_start(WORKER, durable.address, str(number)) for number in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [await asyncio.to_thread(_finish, process) for process in processes]
    counts = [[int(number) for number in answer.split()] for answer in answers]
    assert [sum(column) for column in zip(*counts, strict=True)] == [40 + 25, 7]
    storage = fake_storage("shared", store=durable.open(), clock=FakeClock())
    assert await storage.get("sum") == 8 * 15 * 3
    assert await storage.get("once") == 15
    assert (await storage.take("quota", 0, limit=50)).left == 0
    assert await durable.open().verify_store() == []


KILLED = """
import asyncio, sys
from windlass.stores import open_store
from windlass.testing import fake_storage

async def work(address, start):
    storage = fake_storage("shared", store=open_store(address))
    for n in range(int(start), 1000):
        await storage.add("sum", 1, once=str(n))
        print(n, flush=True)

asyncio.run(work(*sys.argv[1:]))
"""


@needs_kill
async def test_a_process_that_is_killed_and_runs_again_counts_each_thing_once(durable):
    storage = fake_storage("shared", store=durable.open())
    done = 0
    for _ in range(3):
        process = _start(KILLED, durable.address, str(max(0, done - 3)))
        assert process.stdout is not None
        for line in process.stdout:
            done = max(done, int(line) + 1)
            if int(line) >= done + 8 or done % 9 == 8:
                break
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
        done = max([done, *[int(line) + 1 for line in rest]])
        total = await storage.get("sum")
        assert total in (done, done + 1)
        assert (await asyncio.gather(*[storage.add("sum", 1, once=str(n)) for n in range(done + 1)]))[-1] == done + 1
        done += 1
    assert await storage.get("sum") == done


async def test_what_a_cancelled_change_did_is_known_at_the_next_read(durable):
    storage = fake_storage("shared", store=durable.open())
    for rounds in range(6):
        before = await storage.get("n", 0)
        adding = asyncio.ensure_future(storage.add("n"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        adding.cancel()
        done = isinstance((await asyncio.gather(adding, return_exceptions=True))[0], int)
        after = await storage.get("n", 0)
        assert after - before in ((1,) if done else (0, 1))
        await asyncio.to_thread(lambda: None)
        assert await storage.get("n", 0) == after


async def test_expired_rows_are_deleted_from_the_tables(durable):
    clock, store = FakeClock(), durable.open()
    storage = fake_storage(store=store, clock=clock)
    for number in range(1100):
        await storage.put(str(number), number, ttl=10)
    await storage.add("counter", once="1", ttl=10)
    await storage.put("stays", 1)
    clock.tick(11)
    await store.prune(before=clock.now())
    assert durable.sql("SELECT count(*) FROM storage") == [(1,)]
    assert durable.sql("SELECT count(*) FROM storage_ids") == [(0,)]


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE storage SET data = (SELECT data FROM storage WHERE expires IS NOT NULL) WHERE expires IS NULL",
        "UPDATE storage SET expires = 5",
        "UPDATE storage SET key = (SELECT id FROM storage_ids)",
    ],
)
async def test_a_changed_value_is_detected(durable, change):
    store = durable.open()
    storage = fake_storage(store=store)
    await storage.put("k", 1)
    if "SELECT data" in change:
        await storage.put("other", 2, ttl=5)
    await storage.add("n", once="k2")
    if "key =" in change:
        durable.sql("DELETE FROM storage WHERE checksum = (SELECT max(checksum) FROM storage)")
    durable.sql(change)
    problems = await store.verify_store()
    assert problems
    assert all("in storage 'test' was changed after it was written" in problem for problem in problems)
    with pytest.raises(StoreError, match="in storage 'test' was changed after it was written"):
        await storage.items()


async def test_a_changed_id_is_detected(durable):
    store = durable.open()
    await fake_storage(store=store).add("n", once="a")
    durable.sql("UPDATE storage_ids SET expires = 5")
    assert await store.verify_store() == ["the value 'n' in storage 'test' was changed after it was written"]


async def test_with_a_key_nobody_else_can_make_a_value(tmp_path):
    file = tmp_path / "keyed.db"
    store = SQLiteStore(file, key=KEY)
    await fake_storage(store=store).put("k", 1)
    plain = SQLiteStore(tmp_path / "plain.db")
    await fake_storage(store=plain).put("k", 2)
    await plain.close()
    (row,) = _in_file(tmp_path / "plain.db")("SELECT hex(data), hex(checksum) FROM storage")
    _in_file(file)(f"UPDATE storage SET data = x'{row[0]}', checksum = x'{row[1]}'")
    with pytest.raises(StoreError, match="the value 'k' in storage 'test' was changed"):
        await fake_storage(store=store).get("k")
    await store.close()


# ---------------------------------------------------------------- files of format 3


async def _make_old(durable: Durable) -> None:
    """A store as format 3 had it: without the tables for values, and without tallies."""
    store = open_store(durable.address)
    await store.append("s", [SessionOpened(agent="a", at=1.0)], 0)
    await store.put("s", "k", "steer", "go")
    await store.put("other", "k", "steer", "go")
    await store.advance("s", "audit", 1)
    await store.put_pipeline("p", b"{}")
    await store.close()
    for table in ("storage", "storage_ids", "tallies"):
        durable.sql(f"DROP TABLE {table}")
    from tests.stores.old_formats import BEFORE_ENGINES  # this file is also run as a program

    for statement in (*BEFORE_ENGINES, "ALTER TABLE sessions DROP COLUMN claim"):
        durable.sql(statement)
    durable.sql("PRAGMA user_version = 3" if durable.address.startswith("sqlite") else "UPDATE format SET version = 3")


async def test_a_store_of_format_3_gains_values_when_it_is_opened(durable):
    await _make_old(durable)
    store = durable.open()
    await store.values.write("things", "k", StoredValue(b"1"), now=0.0)
    assert await store.values.read("things", "k") == StoredValue(b"1")
    assert [record.agent for record in await store.read("s")] == ["a"]
    assert await store.verify_store() == []
    await store.verify("s")
    assert await store.inbox("s", ()) == [("k", "steer", "go")]
    assert await store.put("s", "k2", "steer", "go on")
    assert await store.verify_store() == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of POSIX")
async def test_a_read_only_file_of_either_format_is_read_without_changing_it(tmp_path, monkeypatch):
    file = tmp_path / "store.db"
    durable = Durable(f"sqlite:///{file}", _in_file(file))
    await _make_old(durable)
    monkeypatch.setattr("windlass.stores.sqlite_file.is_read_only", lambda path: True)
    old = SQLiteStore(file)
    assert await old.values.read("things", "k") is None
    assert list(await old.values.find("things")) == []
    assert len(await old.read("s")) == 1
    await old.close()
    assert durable.sql("PRAGMA user_version") == [(3,)]
    monkeypatch.undo()
    writer = SQLiteStore(file)
    await writer.values.write("things", "k", StoredValue(b"1"), now=0.0)
    await writer.close()
    monkeypatch.setattr("windlass.stores.sqlite_file.is_read_only", lambda path: True)
    reader = SQLiteStore(file)
    assert await reader.values.read("things", "k") == StoredValue(b"1")
    with pytest.raises(StoreError, match="it is read-only"):
        await reader.values.write("things", "k", None, now=0.0)
    await reader.close()
    assert durable.sql("PRAGMA user_version") == [(sqlite_schema.VERSION,)]
