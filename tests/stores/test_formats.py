"""Stores of earlier formats are upgraded with their logs, and a process with an older version open stops writing."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import PostgresServer

from windlass import Agent, Approve, Ask, ToolCalling, tool
from windlass.errors import SessionError, StoreError
from windlass.outcomes import Completed
from windlass.protocols import Store
from windlass.records import Asked, InboxTaken, MessageAdded, SessionOpened, decode
from windlass.stores import open_store, sqlite_schema
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FunctionModel, calls, says
from windlass.transfer import export_session, import_session

from .old_stores import CHILDREN, LOGS, write_postgres, write_sqlite

USERS = ["q", "done", "q/7/7", "q/1/2"]


class Old:
    """A store of an earlier format, to be opened."""

    def __init__(self, address: str, write: Callable[[int, dict[str, list[str]]], None]) -> None:
        self.address = address
        self.write = write
        self.opened: list[Store] = []

    def open(self) -> Store:
        self.opened.append(open_store(self.address))
        return self.opened[-1]


@pytest.fixture(params=["sqlite", "postgres"])
async def old(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        file = tmp_path / "logs.db"
        made = Old(f"sqlite:///{file}", lambda version, logs: write_sqlite(file, version, logs))
    else:
        database = request.getfixturevalue("database")
        made = Old(database, lambda version, logs: write_postgres(database, version, logs))
    yield made
    for store in made.opened:
        await store.close()


def boss(store: Store, paid: list[int]) -> Agent[Any, Any]:
    """The agents that wrote the logs."""

    @tool
    async def pay(euros: int) -> str:
        """Pay a bill."""
        paid.append(euros)
        return "paid"

    def once(call: Any) -> FunctionModel:
        return FunctionModel(lambda request: says("Done.") if request.messages[-1].role == "tool" else call)

    clerk = Agent(once(calls("pay", euros=5)), tools=[pay], name="clerk")
    clerk.gate(ToolCalling, name="sure")(lambda event: Ask("Pay?"))
    chief = Agent(once(calls("clerk", task="Pay the bill.")), tools=[clerk.as_tool()], name="chief")
    return Agent(once(calls("chief", task="See to the bill.")), tools=[chief.as_tool()], name="boss", store=store)


@pytest.mark.parametrize("version", [1, 2])
async def test_an_upgrade_reads_the_parents_of_sessions_from_their_logs(old: Old, version: int):
    old.write(version, LOGS)
    store = old.open()
    parents = {info.session: info.parent for info in await store.find()}
    assert parents == {**dict.fromkeys(USERS, ""), **CHILDREN}
    for name, log in LOGS.items():
        assert list(await store.read(name)) == [decode(line.encode()) for line in log]
        assert (await store.verify(name)).records == len(log)


async def test_a_tree_of_an_older_format_is_resumed_to_its_end(old: Old):
    old.write(2, LOGS)
    paid: list[int] = []
    agent = boss(old.open(), paid)
    (asked,) = (await agent.state("q")).waiting
    assert asked.id == "q/1/1/1/1/1/1"
    assert (await agent.resume("q", answers={asked.id: Approve()})).outcome == Completed()
    assert paid == [5]
    assert sorted(await agent.store.sessions()) == sorted(LOGS)
    (again,) = (await agent.run("Once more.", session="q")).waiting_for
    assert again.id == "q//3/1//1/1/1/1"
    assert (await agent.resume("q", answers={again.id: Approve()})).outcome == Completed()
    for name in await agent.store.sessions():
        await agent.store.verify(name)


async def test_a_question_below_is_answered_from_any_session_of_an_old_tree(old: Old):
    old.write(2, LOGS)
    paid: list[int] = []
    agent = boss(old.open(), paid)
    await agent.resolve("q/1/1/1/1", "q/1/1/1/1/1/1", Approve())
    for name in ("q", "q/1/1", "q/1/1/1/1"):
        async with agent.session(name) as session:
            assert await session.approvals() == ()
    assert (await agent.resume("q")).outcome == Completed()
    assert paid == [5]


async def test_a_fork_of_an_old_tree_has_names_of_its_own(old: Old):
    old.write(2, LOGS)
    paid: list[int] = []
    agent = boss(old.open(), paid)
    await agent.fork("q", to="f")
    assert set(await agent.store.sessions()) - set(LOGS) == {"f", "f//1/1", "f//1/1//1/1"}
    (asked,) = (await agent.state("f")).waiting
    assert (await agent.resume("f", answers={asked.id: Approve()})).outcome == Completed()
    assert paid == [5]
    await agent.store.erase("f")
    assert sorted(await agent.store.sessions()) == sorted(LOGS)


async def test_a_sub_agents_session_of_an_older_format_is_neither_run_nor_forked_by_itself(old: Old):
    old.write(2, LOGS)
    agent = boss(old.open(), [])
    for attempt in (agent.run("go", session="q/1/1"), agent.resume("q/1/1"), agent.fork("q/1/1")):
        with pytest.raises(SessionError, match=r"belongs to a sub-agent, .* of session 'q'"):
            await attempt


async def test_erasing_an_old_session_erases_its_own_sub_agents_only(old: Old):
    old.write(2, LOGS)
    store = old.open()
    assert await store.erase("q")
    assert sorted(await store.sessions()) == ["done", "done/1/1", "done/1/1/1/1", "q/1/2", "q/7/7"]
    assert [decode(line.encode()) for line in LOGS["q/7/7"]] == list(await store.read("q/7/7"))


async def test_the_sub_agents_of_a_fork_of_an_older_format_belong_to_the_fork(old: Old):
    """In these formats their logs still name the parent of the original."""
    logs = dict(LOGS)
    for name in ("q", "q/1/1", "q/1/1/1/1"):
        lines = [line.replace('"session":"q/', '"session":"f/') for line in LOGS[name]]
        logs[name.replace("q", "f", 1)] = [
            line.replace('"SessionOpened"', '"SessionOpened","how":"forked","origin":"q@1"') for line in lines
        ]
    old.write(2, logs)
    store = old.open()
    parents = {info.session: info.parent for info in await store.find(search="f")}
    assert {name: parents[name] for name in ("f", "f/1/1", "f/1/1/1/1")} == {
        "f": "", "f/1/1": "f", "f/1/1/1/1": "f/1/1",
    }  # fmt: skip
    await store.erase("q")
    assert (await boss(store, []).state("f")).waiting
    await store.erase("f")
    assert [name for name in await store.sessions() if name.startswith("f")] == []


async def test_an_old_session_moves_to_a_new_store(old: Old):
    old.write(2, LOGS)
    store, other = old.open(), open_store("memory:")
    for name in ("q", "q/1/1", "q/1/1/1/1"):
        await import_session(other, await export_session(store, name))
    paid: list[int] = []
    agent = boss(other, paid)
    assert (await agent.resume("q", answers={"q/1/1/1/1/1/1": Approve()})).outcome == Completed()
    assert paid == [5]


async def test_a_damaged_log_does_not_stop_the_upgrade(tmp_path):
    file = tmp_path / "logs.db"
    write_sqlite(file, 2)
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("UPDATE batches SET data = x'00ff' WHERE session = (SELECT number FROM sessions WHERE id = 'q/1/1')")
    db.close()
    store = SQLiteStore(file)
    parents = {info.session: info.parent for info in await store.find()}
    assert (parents["q/1/1"], parents["q/1/1/1/1"]) == ("", "q/1/1")
    with pytest.raises(StoreError, match="'q/1/1' is broken"):
        await store.verify("q/1/1")
    await store.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_the_inbox_of_an_older_format_keeps_its_order_and_forgets_what_was_taken(tmp_path, version):
    file = tmp_path / "logs.db"
    write_sqlite(file, version)
    db = sqlite3.connect(file, isolation_level=None)
    rows = [("q", b"z", 1, "steer", b'"one"', 0), ("q", b"a", 2, "steer", b'"two"', 0), ("q", b"m", 3, "x", b"", 1)]
    db.executemany("INSERT INTO inbox VALUES (?, ?, ?, ?, ?, ?)", [*rows, ("done", b"z", 1, "steer", b'"1"', 0)])
    db.execute("UPDATE inbox SET data = CAST('\"secret\"' AS BLOB) WHERE taken AND ? = 1", (version,))
    db.close()
    store = SQLiteStore(file)
    assert await store.put("q", "new", "steer", "three")
    assert not await store.put("q", "m", "steer", "again")
    assert [data for _, _, data in await store.inbox("q", ())] == ["one", "two", "three"]
    assert await store._read("SELECT length(data) FROM inbox WHERE taken") == [(0,)]
    await store.close()
    assert b"secret" not in file.read_bytes()


# ---------------------------------------------------------------- writers of another version

WRITER = """
import asyncio, sys
from windlass.errors import SessionError, StoreError
from windlass.records import MessageAdded, SessionOpened
from windlass.stores import open_store

async def main():
    store = open_store(sys.argv[1])
    await store.append("s", [SessionOpened()], 0)
    for length in range(1, 30):
        await store.append("s", [MessageAdded()], length)
    print("ready", flush=True)
    sys.stdin.readline()
    writes = {
        "append": lambda: store.append("s", [MessageAdded()], 30),
        "new": lambda: store.append("t", [SessionOpened()], 0),
        "put": lambda: store.put("s", "k", "steer", "x"),
        "erase": lambda: store.erase("s"),
        "advance": lambda: store.advance("s", "r", 1),
        "put_pipeline": lambda: store.put_pipeline("d", b"x"),
    }
    for name, write in writes.items():
        try:
            await write()
        except StoreError as error:
            print(name, "refused:", error, flush=True)
        else:
            print(name, "WROTE", flush=True)
    await store.close()

asyncio.run(main())
"""

UPGRADER = """
import asyncio, sys
from windlass.stores import open_store, postgres_schema, sqlite_schema

to = int(sys.argv[2])
for schema, nothing in ((sqlite_schema, "SELECT 1"), (postgres_schema, b"SELECT 1")):
    schema.MIGRATIONS = {**schema.MIGRATIONS, schema.VERSION: nothing}
    schema.VERSION = to

async def main():
    store = open_store(sys.argv[1])
    print(len(await store.read("s")), flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def writer(old: Old) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, old.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def upgraded(old: Old, to: int) -> str:
    run = [sys.executable, "-c", UPGRADER, old.address, str(to)]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()


async def test_a_process_with_an_older_version_open_writes_nothing_after_an_upgrade(old: Old, writer):
    assert upgraded(old, sqlite_schema.VERSION + 1) == "30"
    told, _ = await asyncio.to_thread(writer.communicate, "go\n")
    lines = told.strip().split("\n")
    assert len(lines) == 6
    for line in lines:
        assert "refused: " in line
        assert f"was changed to format {sqlite_schema.VERSION + 1} by another version of Windlass" in line
        assert "install that version and restart this process. Nothing was written" in line
    assert upgraded(old, sqlite_schema.VERSION + 1) == "30"


async def test_a_process_whose_version_is_still_the_right_one_goes_on(old: Old, writer):
    assert upgraded(old, sqlite_schema.VERSION) == "30"
    told, _ = await asyncio.to_thread(writer.communicate, "go\n")
    assert told.count("WROTE") == 6


OLD_WRITES = [
    "INSERT INTO sessions (id, started, updated{head}) VALUES ('new', 1, 1{start}){ignored}",
    "INSERT INTO batches (session, seq, count, link, data) VALUES (1, 99, 1, {bytes}, {bytes})",
    "INSERT {or_ignore} INTO inbox (session, key, {position}kind, data) VALUES ('q', {bytes}, {nine}'steer', {bytes})",
    "INSERT INTO cursors VALUES ('q', 'reader', 1)",
    "INSERT INTO pipelines VALUES ('digest', {bytes})",
]
"""What a process of format 1 or 2 writes, which does not ask for the format before each write."""

DIALECTS = {
    "sqlite": {"head": "", "start": "", "ignored": "", "bytes": "x'41'", "or_ignore": "OR IGNORE",
               "position": "position, ", "nine": "99, "},
    "postgresql": {"head": ", head", "start": ", ''", "ignored": " ON CONFLICT DO NOTHING", "bytes": "'A'",
                   "or_ignore": "", "position": "", "nine": ""},
}  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
async def test_a_process_of_format_1_or_2_that_is_still_open_writes_nothing_after_an_upgrade(
    version, tmp_path, database
):
    """It read the format when it connected, and never again. So the tables themselves refuse what it writes."""
    write_sqlite(tmp_path / "old.db", version)
    write_postgres(database, version)
    with (
        sqlite3.connect(tmp_path / "old.db", isolation_level=None) as file,
        psycopg.connect(database, autocommit=True) as server,
    ):
        server.execute("SET search_path = windlass")
        addresses = {"sqlite": f"sqlite:///{tmp_path}/old.db", "postgresql": database}
        for kind, old in (("sqlite", file), ("postgresql", server)):
            store = open_store(addresses[kind])
            before = {session: await store.read(session) for session in await store.sessions()}
            for query in OLD_WRITES:
                with pytest.raises((sqlite3.Error, psycopg.Error)):
                    old.execute(query.format(**DIALECTS[kind]))  # type: ignore[attr-defined]
            assert {session: await store.read(session) for session in await store.sessions()} == before
            assert await store.verify_store() == []
            for session in before:
                await store.verify(session)
            await store.append("new", [SessionOpened()], 0)
            assert await store.put("new", "key", "steer", "x")
            await store.close()


async def test_a_format_that_went_back_is_noticed_too(tmp_path):
    store = SQLiteStore(tmp_path / "logs.db")
    await store.append("s", [SessionOpened()], 0)
    assert len(await store.read("s")) == 1
    db = sqlite3.connect(store.path, isolation_level=None)
    db.execute("PRAGMA user_version = 2")
    for use in (store.append("s", [MessageAdded()], 1), store.read("s")):
        with pytest.raises(StoreError, match=r"changed to format 2 .*; open the store again"):
            await use
    db.execute(f"PRAGMA user_version = {sqlite_schema.VERSION}")
    db.close()
    await store.append("s", [MessageAdded()], 1)
    assert len(await store.read("s")) == 2
    await store.close()


async def test_an_upgrade_waits_for_a_transaction_that_has_begun(postgres: PostgresServer, database: str):
    """Otherwise the transaction would commit what it wrote for the older tables."""
    import psycopg

    write_postgres(database, 2)
    store = open_store(database)
    with psycopg.connect(database) as db:
        db.execute("SELECT max(version) FROM windlass.format")
        opening = asyncio.ensure_future(store.read("q"))
        await asyncio.wait([opening], timeout=0.5)
        assert not opening.done()
        assert postgres.execute(database, "SELECT count(*) FROM windlass.sessions") == [(len(LOGS),)]
    assert len(await opening) == len(LOGS["q"])
    await store.close()


def test_the_logs_of_the_fixture_have_what_the_tests_need():
    opened = {name: decode(log[0].encode()) for name, log in LOGS.items()}
    assert {name: record.parent for name, record in opened.items() if record.parent} == CHILDREN  # type: ignore[attr-defined]
    assert any(isinstance(decode(line.encode()), Asked) for line in LOGS["q"])
    assert any(isinstance(decode(line.encode()), InboxTaken | Asked) for line in LOGS["done"])
