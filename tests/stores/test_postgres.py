"""What is particular to the PostgreSQL store: fencing, lost connections, the schema."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy, proxied

from windlass.errors import ConfigError, SessionConflict, StoreError
from windlass.records import InboxTaken, MessageAdded, Resumed, SessionOpened, SlotSet
from windlass.stores import open_store
from windlass.stores import postgres_schema as module
from windlass.stores.postgres import PostgresStore

from .old_formats import OldBatch, old_postgres

OPENED, ADDED = SessionOpened(), MessageAdded()


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(database, timeout=5)
    yield made
    await made.close()


@pytest.fixture
async def other(database: str) -> AsyncIterator[PostgresStore]:
    """A store with connections of its own, as in another process: it has other settings."""
    made = PostgresStore(database, timeout=6)
    yield made
    await made.close()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with proxied(postgres.port) as made:
        yield made


@pytest.fixture
async def shaky(database: str, proxy: Proxy, postgres: PostgresServer) -> AsyncIterator[PostgresStore]:
    """A store on a line that can be cut."""
    made = PostgresStore(database.replace(str(postgres.port), str(proxy.port)), max_size=1, timeout=5)
    yield made
    await made.close()


def number(value: int) -> SlotSet:
    return SlotSet(slot="number", value=value)


# ---------------------------------------------------------------- its address


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
async def test_a_store_is_found_by_its_address(database, scheme):
    store = open_store(database.replace("postgresql", scheme, 1))
    assert isinstance(store, PostgresStore)
    assert store.durable
    await store.append("s", [OPENED], 0)
    await store.close()


def test_without_psycopg_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'windlass[postgres]'")):
        open_store("postgresql://somewhere/x")


def test_an_address_that_cannot_be_read_is_refused():
    with pytest.raises(ConfigError, match="is not valid"):
        open_store("postgresql://host:port/x?what=ever")


@pytest.mark.parametrize("schema", ["", "Upper", "a-b", "1a", 'a"b', "x" * 64])
def test_a_schema_that_is_no_plain_name_is_refused(schema):
    with pytest.raises(ConfigError, match="schema="):
        PostgresStore("postgresql://host/x", schema=schema)


async def test_an_error_does_not_tell_the_password():
    store = PostgresStore("postgresql://me:hunter2@127.0.0.1:1/x", timeout=1)
    with pytest.raises(StoreError, match="check that the server runs") as caught:
        await store.read("s")
    assert "127.0.0.1:1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    await store.close()


async def test_a_database_that_does_not_exist_is_named(postgres):
    store = PostgresStore(postgres.url("nowhere"))
    with pytest.raises(StoreError, match=r"nowhere.*create the database first"):
        await store.append("s", [OPENED], 0)
    await store.close()


async def test_two_schemas_are_two_stores(database):
    one, two = PostgresStore(database, schema="one"), PostgresStore(database, schema="two")
    await one.append("s", [OPENED], 0)
    assert list(await two.read("s")) == []
    await two.append("s", [ADDED], 0)
    assert list(await one.read("s")) == [OPENED]
    await one.close()
    await two.close()


# ---------------------------------------------------------------- fencing


async def epoch(store: PostgresStore, session: str) -> int:
    return int((await store._read("SELECT epoch FROM sessions WHERE id = %s", session))[0][0])


def lose_the_last_batch(postgres: PostgresServer, database: str, session: str) -> None:
    """What a failover to a standby that lags behind does."""
    postgres.execute(
        database,
        "SET search_path TO windlass; "
        f"WITH gone AS (DELETE FROM batches USING sessions WHERE session = number AND id = '{session}' "
        "AND seq + count = records RETURNING seq) "
        f"UPDATE sessions SET records = seq, head = (SELECT link FROM batches WHERE session = number ORDER BY seq DESC "
        f"OFFSET 1 LIMIT 1) FROM gone WHERE id = '{session}'",
    )


async def test_a_writer_of_an_older_epoch_is_refused_even_if_the_length_agrees(store, other, postgres, database):
    """Two logs of one length: a stalled writer must not go on from one that it has not written."""
    await store.append("s", [OPENED], 0)
    await store.append("s", [number(1)], 1)
    await store.append("s", [number(2)], 2)
    lose_the_last_batch(postgres, database, "s")
    await other.append("s", [Resumed()], 2)
    with pytest.raises(SessionConflict, match="'s' was taken over"):
        await store.append("s", [number(3)], 3)
    assert list(await store.read("s")) == [OPENED, number(1), Resumed()]
    await other.append("s", [number(4)], 3)
    await other.verify("s")
    await store.append("s", [Resumed()], 4)  # having been refused and having read, it may take over in turn
    with pytest.raises(SessionConflict):
        await other.append("s", [number(5)], 4)


async def test_a_log_of_the_same_length_and_epoch_is_told_apart_by_its_chain(store, other, postgres, database):
    await store.append("s", [number(0)], 0)
    await store.append("s", [number(1)], 1)
    lose_the_last_batch(postgres, database, "s")
    await other.append("s", [number(2)], 1)
    with pytest.raises(SessionConflict, match="taken over"):
        await store.append("s", [number(3)], 2)


async def test_a_process_that_stalls_while_it_holds_the_lock_loses_it(postgres, database):
    other = PostgresStore(database, timeout=50)
    await other.append("s", [OPENED], 0)
    patient = PostgresStore(database, timeout=0.3)
    with patient._server.get()._connect(50, bool) as stalled:
        stalled.execute("BEGIN; SELECT 1 FROM sessions WHERE id = 's' FOR UPDATE")
        await other.append("s", [Resumed()], 1)
        with pytest.raises(psycopg.Error):
            stalled.execute("SELECT 1")
    assert len(await other.read("s")) == 2
    await other.close()
    await patient.close()


# ---------------------------------------------------------------- lost connections


async def test_a_read_whose_connection_is_lost_is_done_again(shaky, proxy):
    await shaky.append("s", [OPENED], 0)
    proxy.cut = b"JOIN batches"
    assert list(await shaky.read("s")) == [OPENED]
    assert proxy.events == ["cut"]


@pytest.mark.parametrize("where", [b"BEGIN", b"FOR UPDATE", b"INSERT INTO batches", b"COMMIT\0"])
async def test_an_append_whose_connection_is_lost_is_written_once(shaky, proxy, where):
    await shaky.append("s", [OPENED], 0)
    proxy.cut = where
    await shaky.append("s", [number(1)], 1)
    await shaky.append("s", [number(2)], 2)
    assert proxy.events == ["cut"]
    assert list(await shaky.read("s")) == [OPENED, number(1), number(2)]
    await shaky.verify("s")


@pytest.mark.parametrize("expected", [0, 1])
async def test_an_append_that_was_committed_though_nobody_heard_of_it_is_acknowledged_once(shaky, proxy, expected):
    await shaky.append("s" if expected else "other", [OPENED], 0)
    proxy.swallow = b"COMMIT\0"
    await shaky.append("s", [number(1), Resumed()], expected)
    assert proxy.events == ["swallowed"]
    await shaky.append("s", [number(2)], expected + 2)
    assert list(await shaky.read("s")) == [OPENED, number(1), Resumed(), number(2)][1 - expected :]
    await shaky.verify("s")


async def test_the_equal_batch_of_somebody_else_is_not_taken_for_ones_own(shaky, proxy, other, monkeypatch):
    """The connection is lost before the COMMIT arrives, and somebody else appends the very same bytes."""
    await shaky.append("s", [OPENED], 0)
    server = shaky._server.get()
    connect = server._connect

    def connect_later(*given: Any) -> Any:
        asyncio.run(other.append("s", [number(1)], 1))
        return connect(*given)

    monkeypatch.setattr(server, "_connect", connect_later)
    proxy.cut = b"COMMIT\0"
    with pytest.raises(SessionConflict):
        await shaky.append("s", [number(1)], 1)
    assert proxy.events == ["cut"]
    assert list(await other.read("s")) == [OPENED, number(1)]


async def test_what_may_have_been_put_is_not_put_again(shaky, proxy):
    await shaky.append("s", [OPENED], 0)
    proxy.swallow = b"COMMIT\0"
    with pytest.raises(StoreError, match=r"it is not known whether .* stored"):
        await shaky.put("s", "k", "steer", "hello")
    assert await shaky.put("s", "k", "steer", "hello") is False
    proxy.cut = b"INSERT INTO inbox"
    assert await shaky.put("s", "k2", "steer", "hello") is True


async def test_connections_that_the_server_ended_are_replaced(store, postgres, database):
    await asyncio.gather(*[store.append(f"s{name}", [OPENED], 0) for name in range(8)])
    postgres.execute(
        "postgres",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'windlass' "
        f"AND datname = '{database.rpartition('/')[2]}'",
    )
    await asyncio.gather(*[store.append(f"s{name}", [ADDED], 1) for name in range(8)])
    assert len(await store.read("s7")) == 2


# ---------------------------------------------------------------- the schema


async def test_those_who_come_first_at_the_same_time_make_one_schema(database):
    stores = [PostgresStore(database) for _ in range(6)]
    await asyncio.gather(*[store.append(f"s{at}", [OPENED], 0) for at, store in enumerate(stores)])
    assert len(await stores[0].sessions()) == 6
    for store in stores:
        await store.close()


async def test_a_newer_schema_is_refused_and_not_touched(store, other, postgres, database):
    await store.append("s", [OPENED], 0)
    postgres.execute(database, "UPDATE windlass.format SET version = 99; DROP TABLE windlass.cursors")
    with pytest.raises(StoreError, match=rf"newer Windlass .*reads up to {module.VERSION}\).*Nothing was changed"):
        await other.append("s", [ADDED], 1)
    assert postgres.execute(database, "SELECT version FROM windlass.format") == [(99,)]
    assert postgres.execute(database, "SELECT to_regclass('windlass.cursors')") == [(None,)]


async def test_an_older_schema_is_brought_up_step_by_step(store, other, monkeypatch, postgres, database):
    await store.append("s", [OPENED], 0)
    now = module.VERSION
    monkeypatch.setattr(module, "VERSION", now + 2)
    steps = [b"ALTER TABLE sessions ADD COLUMN a TEXT DEFAULT 'x'", b"ALTER TABLE sessions ADD COLUMN b TEXT"]
    monkeypatch.setattr(module, "MIGRATIONS", {now: steps[0], now + 1: steps[1]})
    await other.append("s", [ADDED], 1)
    assert list(await other.read("s")) == [OPENED, ADDED]
    assert postgres.execute(database, "SELECT version FROM windlass.format") == [(now + 2,)]
    assert postgres.execute(database, "SELECT a, b FROM windlass.sessions") == [("x", None)]


async def test_a_schema_of_the_first_version_forgets_what_was_taken_from_inboxes(postgres, database):
    old_postgres(database, {"s": [OldBatch([OPENED])]})
    postgres.execute(
        database,
        "INSERT INTO windlass.inbox (session, key, kind, data, taken) VALUES ('s', 'taken', 'steer', 'text', true); "
        "UPDATE windlass.format SET version = 1",
    )
    store = PostgresStore(database)
    assert [key for key, _, _ in await store.inbox("s", ())] == ["k"]
    found = postgres.execute(database, "SELECT length(data) FROM windlass.inbox ORDER BY key")
    assert found == [(1,), (0,)]
    assert postgres.execute(database, "SELECT version FROM windlass.format") == [(module.VERSION,)]
    await store.close()


async def test_of_what_was_taken_from_an_inbox_only_the_key_is_kept(store, postgres, database):
    await store.put("s", "k1", "answer", {"text": "hunter2"})
    await store.append("s", [OPENED, InboxTaken("k1", "answer")], 0)
    assert postgres.execute(database, "SELECT key, data FROM windlass.inbox") == [(b"k1", b"")]
    assert not await store.put("s", "k1", "answer", "again")


async def test_a_migration_that_fails_changes_nothing(store, other, monkeypatch, postgres, database):
    await store.append("s", [OPENED], 0)
    now = module.VERSION
    monkeypatch.setattr(module, "VERSION", now + 2)
    steps = {now: b"ALTER TABLE sessions ADD COLUMN a TEXT", now + 1: b"NO SQL AT ALL"}
    monkeypatch.setattr(module, "MIGRATIONS", steps)
    with pytest.raises(StoreError, match="syntax error"):
        await other.append("s", [ADDED], 1)
    assert postgres.execute(database, "SELECT version FROM windlass.format") == [(now,)]
    monkeypatch.undo()
    await other.append("s", [ADDED], 1)


# ---------------------------------------------------------------- processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_process_has_connections_of_its_own(store):
    await store.append("s", [OPENED], 0)
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(store.append("s", [number(1)], 1))
            code = 0
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await store.append("s", [number(2)], 2)
    assert list(await store.read("s")) == [OPENED, number(1), number(2)]
