"""A store that tells readers in other processes of appends: PostgreSQL, by NOTIFY, and only while somebody listens."""

# ruff: noqa: ASYNC110 - a thread makes happen what is waited for

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import PostgresServer

from windlass.outcomes import Completed
from windlass.protocols import WakingStore
from windlass.records import CancelRequested, TurnEnded
from windlass.stores import PostgresStore, open_store
from windlass.stores.postgres_wakeups import channel_of


@pytest.fixture
async def store(database: str) -> AsyncIterator[Any]:
    store = open_store(database)
    yield store
    await store.close()


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.02)


async def heard(writer: Any, session: str, rung: list[str], at: int = 0) -> int:
    """Append until somebody has heard of it: the locks of a new listener are taken a moment later."""
    async with asyncio.timeout(30):
        while not rung:
            await writer.append(session, [CancelRequested("x")], at)
            at += 1
            await asyncio.sleep(0.05)
    return at


async def test_a_listener_hears_of_appends_to_its_session_and_below_it(store: Any, database: str):
    rung: list[str] = []
    leave = store.listen("s", lambda: rung.append("s"))
    await heard(store, "s", rung)
    rung.clear()
    await heard(store, "s//1", rung)
    await asyncio.sleep(0.3)
    rung.clear()
    await store.append("other", [CancelRequested("x")], 0)
    await asyncio.sleep(0.3)
    assert rung == []
    leave()
    await store.append("s//2", [CancelRequested("x")], 0)
    await asyncio.sleep(0.3)
    assert rung == []


async def test_a_listener_to_ends_hears_only_of_them(store: Any):
    ends: list[str] = []
    store.listen("s", lambda: ends.append("end"), ends=True)
    every: list[str] = []
    store.listen("s", lambda: every.append("any"))
    at = await heard(store, "s", every)
    assert ends == []
    async with asyncio.timeout(30):
        while not ends:
            await store.append("s", [TurnEnded(Completed())], at)
            at += 1
            await asyncio.sleep(0.05)


async def test_nothing_is_sent_while_nobody_listens(store: Any, database: str):
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(f"LISTEN {channel_of('windlass')}".encode())
        await store.append("s", [CancelRequested("x")], 0)
        assert list(db.notifies(timeout=0.3)) == []
        rung: list[str] = []
        leave = store.listen("s", lambda: rung.append("s"))
        at = await heard(store, "s", rung, 1)
        assert {note.payload for note in db.notifies(timeout=0.3)} == {"as"}
        leave()
        async with asyncio.timeout(30):
            while True:
                await store.append("s", [CancelRequested("x")], at)
                at += 1
                if not list(db.notifies(timeout=0.1)):
                    break


async def test_wake_ups_come_again_after_a_restart_of_the_server(postgres: PostgresServer, store: Any):
    rung: list[str] = []
    store.listen("s", lambda: rung.append("s"))
    at = await heard(store, "s", rung)
    postgres.kill()
    postgres.start()
    await asyncio.sleep(0.3)
    rung.clear()
    await heard(store, "s", rung, at)


async def test_two_processes_that_listen_both_hear(store: Any, database: str):
    """A store with other settings has connections of its own, as another process has."""
    second: Any = PostgresStore(database, max_size=2)
    assert isinstance(second, WakingStore)
    rungs: tuple[list[str], list[str]] = [], []
    store.listen("s", lambda: rungs[0].append("1"))
    at = await heard(store, "s", rungs[0])
    leave = second.listen("s", lambda: rungs[1].append("2"))
    at = await heard(store, "s", rungs[1], at)
    leave()
    await second.close()
    rungs[0].clear()
    await heard(store, "s", rungs[0], at)
