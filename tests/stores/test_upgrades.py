"""Stores of format 2 are upgraded: what can be pruned is sealed, and a chain that is broken stays broken."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from windlass.errors import StoreError
from windlass.messages import TextPart, user
from windlass.outcomes import Completed
from windlass.ownership import Claim
from windlass.protocols import Store
from windlass.records import Injected, MessageAdded, Record, SessionOpened, TurnEnded, TurnStarted
from windlass.stores.postgres import PostgresStore
from windlass.stores.sqlite import SQLiteStore

from .old_formats import BEFORE_ENGINES, OldBatch, old_postgres, old_rows, old_sqlite

BEGIN: list[Record] = [
    SessionOpened(agent="checker", at=10.0),
    TurnStarted(turn=1, message=user("t"), ref="t1", at=10.0),
]
RAIN = Injected(parts=(TextPart("It rains."),), hook="weather")
END: list[Record] = [MessageAdded(), TurnEnded(outcome=Completed(), at=10.0)]
PLAIN = [OldBatch(BEGIN), OldBatch(END)]
RAINY = [OldBatch(BEGIN), OldBatch([RAIN, MessageAdded()]), OldBatch(END)]
PRUNED = [OldBatch(BEGIN), OldBatch([RAIN, MessageAdded()], pruned=True), OldBatch(END)]
SESSIONS = {"s": PLAIN, "rainy": RAINY, "pruned": PRUNED}


class Old:
    """A store of format 2."""

    def __init__(
        self, make: Callable[[dict[str, Sequence[OldBatch]]], None], execute: Any, open_: Any, version: str
    ) -> None:
        self.version = version
        self.make = make
        self.execute = execute
        self.open = open_

    def set_version(self, version: int) -> None:
        """Let the store say that it has another format."""
        self.execute(f"{self.version} = {version}")


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    if request.param == "sqlite":
        file = tmp_path / "old.db"

        def on_file(query: str) -> None:
            with sqlite3.connect(file) as db:
                db.execute(query)
            db.close()

        return Old(
            lambda sessions: old_sqlite(file, sessions), on_file, lambda **given: SQLiteStore(file, **given),
            "PRAGMA user_version",
        )  # fmt: skip
    url = request.getfixturevalue("database")

    def on_server(query: str) -> None:
        with psycopg.connect(url) as db:
            db.execute("SET search_path = windlass")
            db.execute(query.replace("x'", "'\\x").encode())

    return Old(
        lambda sessions: old_postgres(url, sessions), on_server, lambda **given: PostgresStore(url, **given),
        "UPDATE format SET version",
    )  # fmt: skip


def heads(batches: Sequence[OldBatch]) -> list[bytes]:
    return [row[2] for row in old_rows(batches)]


async def links(store: Store, session: str) -> list[bytes]:
    return [batch.link for batch in await store.batches(session)]


async def test_only_what_can_be_pruned_and_what_follows_gets_new_links(old):
    old.make(SESSIONS)
    store = old.open()
    for name, batches in SESSIONS.items():
        assert (await store.verify(name)).records == sum(len(batch.records) for batch in batches)
    assert await store.verify_store() == []
    assert await links(store, "s") == heads(PLAIN)
    for name, batches in (("rainy", RAINY), ("pruned", PRUNED)):
        now, before = await links(store, name), heads(batches)
        assert [link == was for link, was in zip(now, before, strict=True)] == [True, False, False]
    assert [batch.pruned for batch in await store.batches("pruned")] == [False, True, False]
    assert await store.read("rainy") == [*BEGIN, RAIN, *END[:1], *END]
    assert await store.inbox("s", ()) == [("k", "steer", 7)]
    assert await store.cursor("s", "audit") == 1
    assert await store.pipeline("digest") == b"data"
    await store.close()


async def test_what_was_sealed_can_be_pruned_and_the_chain_holds(old):
    old.make(SESSIONS)
    store = old.open()
    before = await store.verify("rainy")
    assert await store.prune(before=1000.0) == 1
    assert [record for record in await store.read("rainy") if record == RAIN] == []
    after = await store.verify("rainy")
    assert (after.head, after.pruned) == (before.head, 1)
    await store.append("rainy", [MessageAdded()], before.records)
    await store.verify("rainy")
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE batches SET link = x'00' WHERE session = 2 AND seq = 0",
        "UPDATE batches SET data = (SELECT data FROM batches WHERE session = 2 AND seq = 4) "
        "WHERE session = 2 AND seq = 2",
        "UPDATE batches SET pruned = '1' WHERE session = 2 AND seq = 0",
        "UPDATE batches SET data = x'00' WHERE session = 2 AND seq = 2",
        "DELETE FROM batches WHERE session = 2 AND seq = 2",
    ],
)
async def test_a_chain_that_was_broken_before_stays_broken(old, damage):
    """New links for changed records would say that they were never changed."""
    old.make(SESSIONS)
    old.execute(damage)
    store = old.open()
    for use in (store.verify, store.read):
        with pytest.raises(StoreError, match=r"'rainy' is broken at record"):
            await use("rainy")
    await store.verify("s")
    await store.close()


async def test_an_old_store_is_not_opened_with_a_key(old):
    old.make(SESSIONS)
    with_key = old.open(key="k" * 32)
    with pytest.raises(StoreError, match=r"was made without a key: open it without one.*Nothing was changed"):
        await with_key.read("s")
    await with_key.close()
    store = old.open()
    await store.verify("s")
    await store.close()


# ---------------------------------------------------------------- format 4


async def test_a_store_of_format_5_gains_engines_when_it_is_opened(old):
    store = old.open()
    await store.append("s", BEGIN, 0, Claim("s", 1, begins=True))
    await store.close()
    for statement in BEFORE_ENGINES:
        old.execute(statement)
    old.set_version(5)
    store = old.open()
    assert (await store.ownership("s")).engine == ""
    assert await store.assign("s", "e") == "e"
    assert (await store.ownership("s")).engine == "e"
    await store.verify("s")
    assert await store.verify_store() == []
    await store.close()


async def test_a_store_of_format_4_misses_deleted_sessions_and_changed_claims_when_it_was_opened(old):
    store = old.open()
    await store.append("s", BEGIN, 0, Claim("s", 1, begins=True))
    await store.append("idle", BEGIN, 0)
    await store.close()
    old.execute("DELETE FROM tallies WHERE kind = 'sessions'")
    for statement in BEFORE_ENGINES:
        old.execute(statement)
    old.execute("ALTER TABLE sessions DROP COLUMN claim")
    old.set_version(4)
    store = old.open()
    assert (await store.ownership("s")).epoch == 1
    assert await store.verify_store() == []
    for name in ("s", "idle"):
        await store.verify(name)
    old.execute("UPDATE sessions SET epoch = 7 WHERE id = 's'")
    with pytest.raises(StoreError, match="session 's': its owner, epoch or engine was changed"):
        await store.verify("s")
    old.execute("DELETE FROM sessions WHERE id = 'idle'")
    with pytest.raises(StoreError, match="the row of session 'idle' was deleted"):
        await store.read("idle")
    await store.close()
