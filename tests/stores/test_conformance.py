"""The stores that come with Windlass pass the public suite, and the suite finds what is wrong with others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from windlass.errors import SessionConflict
from windlass.records import Record
from windlass.stores import MemoryStore
from windlass.stores.postgres import PostgresStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import StoreFailed, check_store


async def test_the_memory_store_passes():
    store = MemoryStore()
    report = await check_store(lambda: store, durable=False)
    assert not report.failed
    assert len(report.passed) > 20


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
async def test_the_sqlite_store_passes(tmp_path, synchronous):
    file = tmp_path / "logs.db"

    def tamper(session: str) -> None:
        with sqlite3.connect(file) as db:
            found = db.execute("SELECT number FROM sessions WHERE id = ?", (session,)).fetchone()
            assert db.execute(
                "UPDATE batches SET data = (SELECT data FROM batches WHERE session = :s AND seq = 0) "
                "WHERE session = :s AND seq = 1",
                {"s": found[0]},
            ).rowcount
        db.close()

    def cut(session: str) -> None:
        with sqlite3.connect(file) as db:
            assert db.execute(
                "DELETE FROM batches WHERE session = (SELECT number FROM sessions WHERE id = ?) AND seq = 2", (session,)
            ).rowcount
        db.close()

    report = await check_store(lambda: SQLiteStore(file, synchronous=synchronous), tamper=tamper, cut=cut)
    assert report.skipped == ()


async def test_the_postgresql_store_passes(database):
    async def tamper(session: str) -> None:
        async with await psycopg.AsyncConnection.connect(database) as db:
            changed = await db.execute(
                "UPDATE windlass.batches SET data = (SELECT data FROM windlass.batches WHERE session = number AND "
                "seq = 0) FROM windlass.sessions WHERE number = session AND id = %s AND seq = 1",
                (session,),
            )
            assert changed.rowcount == 1

    async def cut(session: str) -> None:
        async with await psycopg.AsyncConnection.connect(database) as db:
            changed = await db.execute(
                "DELETE FROM windlass.batches USING windlass.sessions WHERE number = session AND id = %s AND seq = 2",
                (session,),
            )
            assert changed.rowcount == 1

    async def make() -> PostgresStore:
        return PostgresStore(database, max_size=4)

    report = await check_store(make, tamper=tamper, cut=cut)
    assert report.skipped == ()


# ---------------------------------------------------------------- the suite itself


class Careless(MemoryStore):
    """Takes what it is given at any length, and forgets that it was asked something."""

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        return self.append_now(session, records, len(self._logs.get(session, ())))

    async def approvals(self, session: str | None = None) -> Any:
        return []


async def test_all_that_is_wrong_with_a_store_is_told_by_name():
    store = Careless()
    with pytest.raises(AssertionError) as caught:
        await check_store(lambda: store, durable=False)
    assert isinstance(caught.value, StoreFailed)
    failed = caught.value.report.failed
    assert "an append at another length is refused and writes nothing" in failed
    assert "of many appends from threads one wins" in failed
    assert "open questions are listed until they are answered or the turn ends" in failed
    assert "what is appended is read in its order" not in failed
    assert all(name in str(caught.value) for name in failed)


class Racing(MemoryStore):
    """Looks at the length, waits, and then appends."""

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        if len(self._logs.get(session, ())) != expected:
            raise SessionConflict("no", session=session)
        await asyncio.sleep(0)
        return self.append_now(session, records, len(self._logs.get(session, ())))


async def test_a_race_is_found():
    store = Racing()
    with pytest.raises(StoreFailed) as caught:
        await check_store(lambda: store, durable=False)
    assert "of many appends at once one wins" in caught.value.report.failed


async def test_tampering_that_is_not_found_is_a_failure(tmp_path):
    with pytest.raises(StoreFailed, match="verify did not detect it") as caught:
        await check_store(
            lambda: SQLiteStore(tmp_path / "logs.db"), tamper=lambda session: None, cut=lambda session: None
        )
    assert list(caught.value.report.failed) == ["tampering is detected", "a truncated log is detected"]
