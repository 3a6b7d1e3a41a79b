"""Pruning: in small transactions beside live writers, and without looking twice at what was pruned."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from windlass.errors import StoreError
from windlass.logs import Batch, Log
from windlass.messages import TextPart, user
from windlass.outcomes import Completed
from windlass.protocols import Store
from windlass.records import Injected, MessageAdded, Record, SessionOpened, TurnEnded, TurnStarted
from windlass.stores import pruning
from windlass.stores.batches import lines_of
from windlass.stores.postgres import PostgresStore
from windlass.stores.sqlite import SQLiteStore

TEXT = "It rains cats and dogs. " * 20


@pytest.fixture(params=["sqlite", "postgres"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Any]]:
    """Two stores of the same place, with connections of their own."""
    if request.param == "sqlite":
        file = tmp_path / "logs.db"
        made: list[Any] = [SQLiteStore(file), SQLiteStore(file, timeout=20)]
    else:
        url = request.getfixturevalue("database")
        made = [PostgresStore(url), PostgresStore(url, timeout=20)]
    yield made
    for store in made:
        await store.close()


def turn(number: int) -> list[Record]:
    return [
        TurnStarted(turn=number, message=user("t"), ref=f"t{number}", at=1.0),
        Injected(parts=(TextPart(TEXT),), hook="h"),
        MessageAdded(),
        TurnEnded(outcome=Completed(), at=1.0),
    ]


async def fill(store: Store, sessions: int, turns: int) -> None:
    opened: list[Record] = [SessionOpened(agent="a", at=1.0)]
    logs = [lines_of(opened), *[lines_of(turn(number)) for number in range(1, turns + 1)]]
    batches = [Batch(0, 1, b"", logs[0])]
    for lines in logs[1:]:
        batches.append(Batch(batches[-1].seq + batches[-1].count, 4, b"", lines))
    for at in range(sessions):
        await store.create([Log(f"s{at}", tuple(batches))])


async def test_live_writers_are_not_held_up(stores):
    """The writer of another process writes between the transactions. Pruning used to be one transaction."""
    store, writer = stores
    await fill(store, 40, 50)
    length, done = 0, False

    async def write() -> None:
        nonlocal length
        while not done:
            await writer.append("live", [MessageAdded()], length)
            length += 1
            await asyncio.sleep(0)

    writing = asyncio.ensure_future(write())
    try:
        assert await store.prune(before=100.0) == 2000
    finally:
        done = True
        await writing
    assert length > 10
    assert (await store.verify("s7")).pruned == 50
    await store.verify("live")


async def test_each_transaction_prunes_a_few_batches(stores, monkeypatch):
    store, _ = stores
    await fill(store, 3, 50)
    sizes: list[int] = []
    write = store._write

    async def counted(work: Any, **given: Any) -> Any:
        pruned = await write(work, **given)
        sizes.append(pruned)
        return pruned

    monkeypatch.setattr(store, "_write", counted)
    assert await store.prune(before=100.0) == 150
    assert max(sizes) <= pruning.LIMIT


async def test_a_second_prune_reads_no_log(stores, monkeypatch):
    store, _ = stores
    await fill(store, 3, 10)
    assert await store.prune(before=100.0) == 30
    rows: list[int] = []
    read = store._read

    async def counted(query: str, *values: Any) -> Any:
        found = await read(query, *values)
        rows.append(len(found))
        return found

    monkeypatch.setattr(store, "_read", counted)
    assert await store.prune(before=100.0) == 0
    assert rows == [0]


async def test_the_heads_stay_and_the_parts_are_gone(stores):
    store, other = stores
    await fill(store, 1, 3)
    before = await store.verify("s0")
    await store.prune(before=100.0)
    after = await other.verify("s0")
    assert (after.head, after.records, after.pruned) == (before.head, before.records, 3)
    parts = [record.parts for record in await other.read("s0") if isinstance(record, Injected)]
    assert parts == [(), (), ()]


async def test_a_damaged_batch_is_reported_and_the_others_are_pruned(tmp_path):
    store = SQLiteStore(tmp_path / "logs.db")
    await fill(store, 3, 2)
    with sqlite3.connect(tmp_path / "logs.db") as db:
        db.execute("UPDATE batches SET data = x'ff' WHERE session = 2 AND seq = 1")
    db.close()
    with pytest.raises(StoreError, match=r"'s1' is broken at record 1: .* so it was not pruned"):
        await store.prune(before=100.0)
    for name in ("s0", "s2"):
        assert (await store.verify(name)).pruned == 2
    await store.close()


async def test_nothing_of_what_was_pruned_is_left_in_the_tables(tmp_path, database):
    """Without the salt nobody can find out by guessing what the parts were."""
    file = tmp_path / "logs.db"
    for store in (SQLiteStore(file), PostgresStore(database)):
        await fill(store, 1, 1)
        await store.prune(before=100.0)
        await store.close()
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT count(*) FROM batches WHERE nonce IS NOT NULL").fetchone() == (0,)
    db.close()
    async with await psycopg.AsyncConnection.connect(database) as server:
        found = await server.execute("SELECT count(*) FROM windlass.batches WHERE nonce IS NOT NULL")
        assert await found.fetchone() == (0,)
