"""Whatever is changed behind a store's back is detected: by `verify`, and by the next use that reads it.

`WINDLASS_SIEGE=1` tries every byte; otherwise a sample, whose seed is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from windlass import Agent, Approve, Ask, ToolCalling, TurnEnded, TurnStarting, tool
from windlass.approvals import open_questions
from windlass.errors import ConfigError, SessionConflict, StoreError, WindlassError
from windlass.logs import Log
from windlass.ownership import Claim
from windlass.protocols import Store
from windlass.stores import open_store
from windlass.stores.batches import pack, unpack
from windlass.stores.chains import Chain, chain_of
from windlass.stores.postgres import PostgresStore
from windlass.stores.reading import ODD, read_batches
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FakeClock, FunctionModel, calls, says
from windlass.transfer import export_session, import_session

KEY = "a key that nobody knows"
SIEGE = bool(os.environ.get("WINDLASS_SIEGE"))
SEED = int(os.environ.get("WINDLASS_SEED", "14"))


def sample(of: Sequence[Any], count: int) -> list[Any]:
    """Some of many, or all under siege."""
    if SIEGE or len(of) <= count:
        return list(of)
    sys.stdout.write(f"WINDLASS_SEED={SEED}: {count} of {len(of)}\n")
    return random.Random(SEED).sample(list(of), count)


# ---------------------------------------------------------------- a small store with a bit of everything


def agents(store: Store, clock: Any = None) -> Agent[Any, Any]:
    """An agent with a sub-agent that asks, an injection, and a durable observer."""

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    def reply(request: Any) -> Any:
        said = repr(request.messages)
        if request.messages[-1].role == "tool":
            return says("done")
        if "delegate" in said:
            return calls([("clerk", {"task": "Pay."})])
        return says("hello") if "talk" in said else calls([("pay", {"euros": 5}), ("pay", {"euros": 7})])

    clerk = Agent(FunctionModel(reply), tools=[pay], name="clerk")
    clerk.gate(ToolCalling)(lambda event: Ask("Pay?"))
    made: Agent[Any, Any] = Agent(
        FunctionModel(reply),
        tools=[pay, clerk.as_tool()],
        name="boss",
        store=store,
        **({"clock": clock} if clock else {}),
    )
    made.gate(ToolCalling, tool="pay")(lambda event: Ask("Pay?"))
    made.inject(TurnStarting)(lambda event: "It rains.")
    made.observe(TurnEnded, durable=True, name="audit")(lambda fact, turn: None)
    return made


async def populate(store: Store) -> None:
    """Sessions of all kinds: over and pruned, over, waiting, waiting for a sub-agent, with an inbox, and erased."""
    agent = agents(store, FakeClock())
    await agent.run("talk", session="pruned")
    assert await store.prune(before=1e12) == 1
    await agent.run("talk", session="talk")
    await agent.run("talk", session="talk")
    assert len((await agent.run("pay", session="asks")).waiting_for) == 2
    assert (await agent.run("delegate", session="tree")).waiting_for
    await agent.run("talk", session="gone")
    await store.erase("gone")
    await store.put("asks", "k1", "steer", "Hurry.")
    await store.put("asks", "k2", "steer", "No, wait.")
    await agent.run("talk", session="mail")
    await store.put("mail", "m1", "message", "Hello.")
    storage = agent.storage("things")
    await storage.put("value", {"spent": 5})
    await storage.put("short", 1, ttl=60)
    await storage.add("counter", 5, once="call 1")
    await storage.add("counter", 5, once="call 2", ttl=60)
    await agent.aclose()


class Place:
    """A store of which copies are made, changed and checked."""

    key: str | None = None

    def reset(self) -> None:
        """Make a fresh copy."""
        raise NotImplementedError

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Change it behind the store's back. Parameters are written as `?`."""
        raise NotImplementedError

    def open(self) -> Store:
        raise NotImplementedError


class FilePlace(Place):
    def __init__(self, folder: Path, key: str | None) -> None:
        self.key = key
        self.whole, self.copy = folder / "whole.db", folder / "copy.db"
        asyncio.run(self._make())
        shutil.copy(self.whole, self.copy)

    async def _make(self) -> None:
        store = SQLiteStore(self.whole, key=self.key, synchronous="NORMAL")
        await populate(store)
        await store.close()

    def reset(self) -> None:
        for rest in self.copy.parent.glob("copy.db*"):
            rest.unlink()
        shutil.copy(self.whole, self.copy)

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        db = sqlite3.connect(self.copy, isolation_level=None)
        try:
            return db.execute(query, values).fetchall()
        finally:
            db.close()

    def open(self) -> Store:
        return SQLiteStore(self.copy, key=self.key, synchronous="NORMAL")


class ServerPlace(Place):
    TABLES = (
        "sessions", "batches", "asks", "inbox", "cursors", "pipelines", "settings", "storage", "storage_ids", "tallies",
    )  # fmt: skip

    def __init__(self, url: str, key: str | None) -> None:
        self.key = key
        self.url = url
        self.db = psycopg.connect(url, autocommit=True)
        asyncio.run(self._make())
        self.db.execute("SET search_path = windlass")
        for table in self.TABLES:
            self.db.execute(f"CREATE TABLE whole_{table} AS TABLE {table}".encode())

    async def _make(self) -> None:
        store = PostgresStore(self.url, key=self.key)
        await populate(store)
        await store.close()

    def reset(self) -> None:
        for table in self.TABLES:
            self.db.execute(f"DELETE FROM {table}".encode())
            self.db.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE whole_{table}".encode())

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        done = self.db.execute(query.replace("?", "%s").encode(), values)
        return done.fetchall() if done.description else []

    def open(self) -> Store:
        return PostgresStore(self.url, key=self.key, max_size=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], Place]:
    places: dict[str | None, Place] = {}

    def place(key: str | None) -> Place:
        if key not in places:
            places[key] = FilePlace(tmp_path_factory.mktemp("place"), key)
        return places[key]

    return place


@pytest.fixture(params=["sqlite", "sqlite with a key", "postgres"])
def place(request: pytest.FixtureRequest, files: Callable[[str | None], Place]) -> Iterator[Place]:
    if request.param == "postgres":
        made: Place = ServerPlace(request.getfixturevalue("database"), None)
        yield made
        made.db.close()  # type: ignore[attr-defined]
    else:
        made = files(KEY if "key" in request.param else None)
        made.reset()
        yield made


# ---------------------------------------------------------------- what is detected


async def problems(store: Store) -> list[str]:
    """All that `windlass sessions verify` reports. Only StoreErrors are allowed."""
    found: list[str] = []
    for name in await store.sessions():
        try:
            await store.verify(name)
        except StoreError as error:
            found.append(str(error))
    return [*found, *await store.verify_store()]


async def uses(store: Store, session: str) -> list[tuple[str, Any]]:
    """What the next uses of a session end with: a result, or a StoreError."""
    agent = agents(store)
    works: dict[str, Callable[[], Awaitable[Any]]] = {
        "read": lambda: store.read(session),
        "export": lambda: export_session(store, session),
        "fork": lambda: agent.fork(session, to="copy"),
        "approvals": lambda: open_questions(store, session),
        "run": lambda: agent.run("talk", session=session),
        "resume": lambda: agent.resume(session),
    }
    if session.startswith("tree/"):  # a sub-agent's, which is read when its parent is resumed

        async def resume_parent() -> Any:
            answers = {asked.id: Approve() for asked in (await agent.state("tree")).waiting}
            return await agent.resume("tree", answers=answers)

        works = {name: works[name] for name in ("read", "export", "approvals")} | {"resume": resume_parent}
    ends: list[tuple[str, Any]] = []
    for name, work in works.items():
        try:
            ends.append((name, await work()))
        except (WindlassError, StoreError) as error:
            ends.append((name, error))
    await agent.aclose()
    return ends


def is_refused(end: Any) -> bool:
    """Whether a use ended with a StoreError, raised or as the outcome of a turn."""
    error = getattr(getattr(end, "outcome", None), "error", None)
    return isinstance(end, StoreError) or (error is not None and error.type == "StoreError")


def detected(place: Place, *, session: str = "", what: object = "") -> None:
    """Fail unless `verify` reports something, and every use that reads the session is refused."""

    async def check() -> None:
        store = place.open()
        try:
            assert await problems(store) != [], f"verify does not see it: {what}"
            if session:
                for name, end in await uses(store, session):
                    assert is_refused(end), (what, name, end)
        finally:
            await store.close()

    asyncio.run(check())


def sound(place: Place) -> None:
    async def check() -> None:
        store = place.open()
        assert await problems(store) == []
        await store.close()

    asyncio.run(check())


def batch_rows(place: Place) -> list[tuple[Any, ...]]:
    return place.execute(
        "SELECT number, id, seq, count, link, data, seals, nonce FROM batches JOIN sessions ON session = number "
        "WHERE status != 'erased' ORDER BY number, seq"
    )


def test_a_store_that_nobody_changed_is_sound(place):
    sound(place)


COLUMNS = ("link", "data", "seals", "nonce")


def flips(place: Place) -> list[tuple[tuple[Any, ...], str, bytes]]:
    """All batches with one flipped bit: the row, the column and its new value; under siege every bit of every byte.

    A flip in the padding of compressed data leaves the records as they are. It changes nothing, so it is left out.
    """
    found: list[tuple[tuple[Any, ...], str, bytes]] = []
    for row in batch_rows(place):
        for column, value in zip(COLUMNS, row[4:], strict=True):
            for at in range(len(value or b"")):
                for bit in range(8) if SIEGE else (at % 8,):
                    new = bytearray(value)
                    new[at] ^= 1 << bit
                    if column != "data" or not _same_lines(value, bytes(new)):
                        found.append((row, column, bytes(new)))
    return found


def test_every_flipped_bit_of_a_batch_is_detected_when_it_is_read(place):
    ends = {row[0]: row[1:] for row in place.execute("SELECT id, status, records, head, start, checksum FROM sessions")}
    rows = batch_rows(place)

    async def check() -> None:
        for changed, column, new in flips(place):
            session, at = changed[1], 4 + COLUMNS.index(column)
            log = [
                (*ends[session], *row[2:at], new, *row[at + 1 :]) if row is changed else (*ends[session], *row[2:])
                for row in [changed if row[:3] == changed[:3] else row for row in rows if row[1] == session]
            ]
            with pytest.raises(StoreError, match=repr(session)):
                await read_batches(chain_of(place.key), session, log)

    asyncio.run(check())


def test_a_flipped_byte_of_a_batch_is_detected_by_every_use(place):
    for row, column, new in random.Random(SEED).sample(flips(place), 300 if SIEGE else 30):
        number, session, seq = row[:3]
        place.execute(f"UPDATE batches SET {column} = ? WHERE session = ? AND seq = ?", new, number, seq)
        detected(place, session=session, what=(session, seq, column, new))
        place.reset()


def _same_lines(old: bytes, new: bytes) -> bool:
    try:
        return unpack(old) == unpack(new)
    except ODD:
        return False


def test_every_deleted_batch_is_detected(place):
    for number, session, seq, *_ in sample(batch_rows(place), 10):
        place.execute("DELETE FROM batches WHERE session = ? AND seq = ?", number, seq)
        detected(place, session=session, what=(session, seq))
        place.reset()


def test_every_swap_duplication_and_insertion_of_a_batch_is_detected(place):
    rows = batch_rows(place)
    pairs = [(one, two) for one in rows for two in rows if one[:3] != two[:3]]
    columns = "count = ?, link = ?, data = ?, seals = ?, nonce = ?"
    for one, two in sample(pairs, 12):
        for here, there in ((one, two), (two, one)):
            query = f"UPDATE batches SET {columns} WHERE session = ? AND seq = ?"
            place.execute(query, *there[3:], here[0], here[2])
        detected(place, session=one[1], what=("swapped", one[:3], two[:3]))
        place.reset()
    for one, two in sample(pairs, 12):
        query = f"UPDATE batches SET {columns} WHERE session = ? AND seq = ?"
        place.execute(query, *one[3:], two[0], two[2])
        detected(place, session=two[1], what=("duplicated", one[:3], two[:3]))
        place.reset()
    for one in sample(rows, 6):
        for seq in (one[2] + one[3], one[2] + one[3] + 1, 1000, -1):
            taken = [row for row in rows if (row[0], row[2]) == (one[0], seq)]
            if not taken:
                place.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", one[0], seq, *one[3:])
                detected(place, session=one[1], what=("inserted", one[:3], seq))
                place.reset()
    place.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", 99, 0, *rows[0][3:])
    detected(place, what="inserted for no session")


def _numbers(value: Any) -> Sequence[Any]:
    return (value + 1, value - 1)


def _times(value: Any) -> Sequence[Any]:
    return (5.0,) if value is None else (value + 1, None)


EDITS: dict[str, tuple[str, Callable[[Any], Sequence[Any]]]] = {
    "sessions.id": ("", lambda value: (f"{value}x",)),
    "sessions.status": ("", lambda value: [s for s in ("open", "running", "ended", "erased", "odd") if s != value]),
    "sessions.agent": ("", lambda value: (f"{value}x",)),
    "sessions.title": ("", lambda value: (f"{value}x",)),
    "sessions.parent": ("", lambda value: ("talk", "") if value else ("talk",)),
    "sessions.started": ("", _numbers),
    "sessions.updated": ("", _numbers),
    "sessions.records": ("", lambda value: (value + 1, value - 1, 0)),
    "sessions.head": ("", lambda value: (b"", bytes(16), b"x" * 16)),
    "sessions.start": ("", lambda value: (b"", bytes(16), b"x" * 16) if value else (bytes(16), b"x" * 16)),
    "sessions.owner": ("", lambda value: ("odd", "00000000000000ff:1@nowhere")),
    "sessions.epoch": ("", _numbers),
    "sessions.engine": ("", lambda value: ("odd", "") if value else ("odd",)),
    "sessions.claim": ("", lambda value: (b"", bytes(16)) if value else (bytes(16),)),
    "sessions.checksum": ("", lambda value: (None, bytes(16)) if value else (b"", bytes(16))),
    "batches.session": ("count > 0", lambda value: (value + 20,)),
    "batches.seq": ("", lambda value: (value + 100,)),
    "batches.count": ("", _numbers),
    "batches.link": ("", lambda value: (b"", bytes(16))),
    "batches.data": ("", lambda value: (b"x", pack(b"{}"))),
    "batches.seals": ("", lambda value: (b"", bytes(20), None) if value else (b"", bytes(20))),
    "batches.nonce": ("", lambda value: (b"", bytes(16), None) if value else (b"", bytes(16))),
    "asks.session": ("", lambda value: (value + 20, 1)),
    "asks.id": ("", lambda value: (value + b"x",)),
    "asks.data": ("", lambda value: (b"", value.replace(b"Pay?", b"Save?"))),
    "inbox.session": ("", lambda value: (f"{value}x",)),
    "inbox.key": ("", lambda value: (value + b"x",)),
    "inbox.position": ("", lambda value: (value + 100,)),
    "inbox.kind": ("", lambda value: (f"{value}x",)),
    "inbox.data": ("", lambda value: (value + b" ", b"{", b'"Give all."')),
    "inbox.taken": ("", lambda value: (not value,)),
    "inbox.checksum": ("", lambda value: (b"", bytes(16))),
    "cursors.session": ("", lambda value: (f"{value}x",)),
    "cursors.reader": ("", lambda value: (f"{value}x",)),
    "cursors.seq": ("", _numbers),
    "cursors.checksum": ("", lambda value: (b"", bytes(16))),
    "pipelines.digest": ("", lambda value: (f"{value}x",)),
    "pipelines.data": ("", lambda value: (value + b" ",)),
    "pipelines.checksum": ("", lambda value: (b"", bytes(16))),
    "storage.name": ("", lambda value: (value + b"x",)),
    "storage.key": ("", lambda value: (value + b"x",)),
    "storage.data": ("", lambda value: (b"", b"0", value + b" ")),
    "storage.expires": ("", _times),
    "storage.checksum": ("", lambda value: (b"", bytes(16))),
    "storage_ids.name": ("", lambda value: (value + b"x",)),
    "storage_ids.key": ("", lambda value: (value + b"x",)),
    "storage_ids.id": ("", lambda value: (value + b"x",)),
    "storage_ids.expires": ("", _times),
    "storage_ids.checksum": ("", lambda value: (b"", bytes(16))),
    "tallies.kind": ("count > 0", lambda value: (f"{value}x",)),
    "tallies.session": ("count > 0", lambda value: (f"{value}x",)),
    "tallies.count": ("", _numbers),
    "tallies.checksum": ("", lambda value: (b"", bytes(16))),
}
"""For each column of each table: which of its values are changed, and to what."""

NOT_COVERED = {
    "sessions.number": "its rows in the other tables are missed: see the test of numbers",
    "asks.position": "an order: see the test of the order of questions",
    "settings.name": "see the tests of keys",
    "settings.value": "see the tests of keys",
}


def test_every_column_is_covered(files):
    columns = files(None).execute(
        "SELECT t.name || '.' || c.name FROM sqlite_master t JOIN pragma_table_info(t.name) c WHERE t.type = 'table'"
    )
    assert {name for (name,) in columns} == {*EDITS, *NOT_COVERED}


@pytest.mark.parametrize("column", EDITS)
def test_every_edit_of_a_column_is_detected(place, column):
    table, name = column.split(".")
    where, edit = EDITS[column]
    keys = {
        "sessions": ["number"], "batches": ["session", "seq"], "asks": ["session", "id"], "inbox": ["session", "key"],
        "cursors": ["session", "reader"], "pipelines": ["digest"], "tallies": ["kind", "session"],
        "storage": ["name", "key"], "storage_ids": ["name", "key", "id"],
    }[table]  # fmt: skip
    condition = f"WHERE {where}" if where else ""
    rows = place.execute(f"SELECT {name}, {', '.join(keys)} FROM {table} {condition}")
    assert rows
    for value, *key in sample(rows, 4):
        for new in edit(value):
            if isinstance(place, ServerPlace) and column == "inbox.position":
                place.execute("ALTER TABLE inbox ALTER COLUMN position SET GENERATED BY DEFAULT")
            is_key = " AND ".join([f"{one} = ?" for one in keys])
            place.execute(f"UPDATE {table} SET {name} = ? WHERE {is_key}", new, *key)
            detected(place, what=(column, key, value, new))
            place.reset()


def test_a_changed_number_of_a_session_is_detected(place):
    if isinstance(place, ServerPlace):
        place.execute("ALTER TABLE sessions ALTER COLUMN number SET GENERATED BY DEFAULT")
    place.execute("UPDATE sessions SET number = 77 WHERE id = 'talk'")
    detected(place, session="talk")


def test_a_changed_order_of_questions_is_detected(place):
    if isinstance(place, ServerPlace):
        place.execute("ALTER TABLE asks ALTER COLUMN position SET GENERATED BY DEFAULT")
    place.execute("UPDATE asks SET position = -position")
    detected(place)


def test_a_deleted_row_of_a_session_is_detected_by_every_use(place):
    """`run` used to begin a new session under the id, as if there had been none."""
    for (session,) in place.execute("SELECT id FROM sessions"):
        place.execute("DELETE FROM sessions WHERE id = ?", session)
        detected(place, session=session, what=session)
        place.reset()


def test_a_deleted_row_of_a_session_is_detected_although_its_tally_is_deleted_too(place):
    """What is left of it tells: a cursor that has read records, or an inbox entry that was taken."""
    place.execute("DELETE FROM sessions WHERE id = 'talk'")
    place.execute("DELETE FROM tallies WHERE kind = 'sessions' AND session = 'talk'")
    detected(place, session="talk")


def test_a_renamed_session_is_detected_under_both_names(place):
    for session in ("talk", "talkx"):
        place.execute("UPDATE sessions SET id = 'talkx' WHERE id = 'talk'")
        detected(place, session=session, what=session)
        place.reset()


def test_a_deleted_row_is_detected_by_a_process_that_knows_the_log(place):
    async def check() -> None:
        store = place.open()
        records = list(await store.read("talk"))
        await store.append("talk", records[:1], len(records))
        place.execute("DELETE FROM sessions WHERE id = 'talk'")
        for length in (len(records) + 1, 0):
            with pytest.raises(StoreError, match="the row of session 'talk' was deleted"):
                await store.append("talk", records[:1], length, Claim("talk", 9, begins=True))
        with pytest.raises(StoreError, match="the row of session 'talk' was deleted"):
            await store.create([Log("talk", ())])
        await store.close()

    asyncio.run(check())


def test_a_deleted_question_is_detected(place):
    place.execute("DELETE FROM asks")
    detected(place)


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ("asks", "session, id"),
        ("inbox", "session, key"),
        ("cursors", "session, reader"),
        ("pipelines", "digest, digest"),
        ("tallies", "kind, session"),
    ],
)
def test_every_deleted_row_of_a_table_is_detected(place, table, keys):
    one, two = keys.split(", ")
    rows = place.execute(f"SELECT {keys} FROM {table}")
    assert rows
    for row in rows:
        place.execute(f"DELETE FROM {table} WHERE {one} = ? AND {two} = ?", *row)
        detected(place, what=(table, row))
        place.reset()
    place.execute(f"DELETE FROM {table}")
    detected(place, what=(table, "all"))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("DELETE FROM inbox WHERE session = 'mail'",
         "session 'mail': 1 inbox entry was written, but there are none: it was deleted"),
        ("DELETE FROM inbox WHERE key = ?",
         "session 'asks': 2 inbox entries were written, but there is 1: rows were deleted"),
        ("DELETE FROM cursors",
         "session 'talk': 1 cursor of an observer was written, but there are none: it was deleted"),
        ("DELETE FROM tallies WHERE kind = 'inbox'",
         "session 'asks': there are 2 inbox entries, but 0 were written: rows were added"),
        ("UPDATE tallies SET count = 7 WHERE kind = 'inbox'",
         "session 'mail': the count of inbox entries was changed after it was written"),
        ("UPDATE tallies SET kind = 'odd' WHERE kind = 'pipelines'",
         "the store: the count of rows of 'odd' was changed after it was written"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_count_is_said_in_words(place, query, words):
    async def check() -> None:
        store = place.open()
        assert words in await problems(store)
        await store.close()

    place.execute(query, *[b"k1"] * query.count("?"))
    asyncio.run(check())


def test_a_deleted_row_is_detected_by_the_next_use_that_reads_it(place):
    async def refused(table: str, *works: Callable[[Store, Agent[Any, Any]], Awaitable[Any]]) -> None:
        store = place.open()
        agent = agents(store)
        for work in works:
            try:
                end = await work(store, agent)
            except StoreError as error:
                end = error
            assert is_refused(end), (table, end)
        await store.close()

    place.execute("DELETE FROM inbox")
    asyncio.run(
        refused(
            "inbox",
            lambda store, agent: agent.run("talk", session="asks"),
            lambda store, agent: agent.resume("asks"),
            lambda store, agent: open_questions(store, "asks"),
            lambda store, agent: agent.run("talk", session="mail"),
        )
    )
    place.reset()
    place.execute("DELETE FROM cursors")
    asyncio.run(refused("cursors", lambda store, _: store.cursor("talk", "audit"), lambda _, agent: agent.catch_up()))
    place.reset()
    place.execute("DELETE FROM pipelines")

    async def resume_with_another_agent(store: Store, _: object) -> Any:
        return await Agent(FunctionModel(lambda request: says("done")), name="other", store=store).resume("asks")

    asyncio.run(refused("pipelines", resume_with_another_agent))


@pytest.mark.parametrize(
    "edit",
    [
        "epoch = epoch + 1",
        "epoch = epoch - 1",
        "owner = 'odd'",
        "owner = '00000000000000ff:1@nowhere'",
        "engine = 'odd'",
    ],
)
def test_a_changed_owner_or_epoch_is_detected_by_the_next_pass(place, edit):
    async def check() -> None:
        store = place.open()
        agent = agents(store)
        place.execute(f"UPDATE sessions SET {edit} WHERE id = 'talk' OR id = 'asks'")
        for work in (
            agent.run("talk", session="talk"), agent.resume("asks"), agent.run("talk", session="asks"),
            agent.run("talk", session="talk", takeover=True), store.ownership("talk"), store.verify("talk"),
        ):  # fmt: skip
            with pytest.raises(StoreError, match=r"session '(talk|asks)': its owner, epoch or engine was changed"):
                await work
        length = len(await store.read("talk"))
        with pytest.raises(StoreError, match="its owner, epoch or engine was changed"):
            await store.append("talk", (), length, Claim("talk", 7, begins=True))
        await agent.aclose()

    asyncio.run(check())


@pytest.mark.parametrize("epoch", [-1, 1], ids=["lower", "higher"])
def test_a_changed_epoch_lets_nobody_write_what_another_has_written(place, epoch):
    """Whoever writes must know the length of the log and the epoch: at most one pass knows both."""

    async def check() -> None:
        one, two = place.open(), place.open()
        records = list(await one.read("talk"))
        length, owned = len(records), (await one.ownership("talk")).epoch
        await one.append("talk", (), length, Claim("talk", owned + 1, begins=True))
        await two.append("talk", records[:1], length, Claim("talk", owned + 2, begins=True))
        place.execute("UPDATE sessions SET epoch = epoch + ? WHERE id = 'talk'", epoch)
        with pytest.raises(SessionConflict):
            await one.append("talk", records[:1], length, Claim("talk", owned + 1))
        with pytest.raises(SessionConflict):
            await two.append("talk", records[:1], length + 1, Claim("talk", owned + 2))
        assert len(await one.read("talk")) == length + 1
        for store in (one, two):
            await store.close()

    asyncio.run(check())


def test_a_session_that_is_called_erased_is_not_taken_for_unknown(place):
    place.execute("UPDATE sessions SET status = 'erased' WHERE id = 'talk'")
    detected(place, session="talk")


def test_a_batch_that_is_called_pruned_cannot_be_changed(place):
    """A mark in the table used to be believed, and so any content could be replaced under the same head."""
    for session in ("talk", "pruned"):
        rows = [row for row in batch_rows(place) if row[1] == session]
        for number, _, seq, _, _, data, seals, _ in rows:
            forged = pack(unpack(data).replace(b"hello", b"Paid 99 euros to Eve").replace(b"talk", b"steal"))
            if forged == data:
                continue
            for marks in ((seals, None), (b"", None), (bytes(20), None)):
                place.execute(
                    "UPDATE batches SET data = ?, seals = ?, nonce = ? WHERE session = ? AND seq = ?",
                    forged, *marks, number, seq,
                )  # fmt: skip
                detected(place, session=session, what=(session, seq, marks))
                place.reset()


def test_what_was_pruned_cannot_be_put_back_differently(place):
    [row] = [row for row in batch_rows(place) if row[1] == "pruned" and row[6] is not None]
    assert row[7] is None
    number, _, seq, *_ = row
    back = pack(unpack(row[5]).replace(b'"parts":[]', b'"parts":[{"type":"text","text":"It snows."}]'))
    for nonce in (None, bytes(16)):
        query = "UPDATE batches SET data = ?, nonce = ? WHERE session = ? AND seq = ?"
        place.execute(query, back, nonce, number, seq)
        detected(place, session="pruned", what=nonce)
        place.reset()


def test_inbox_entries_and_cursors_are_checked_when_they_are_used(place):
    async def use() -> None:
        store = place.open()
        for work in (store.inbox("mail", ()), store.cursor("talk", "audit"), store.approvals()):
            with pytest.raises(StoreError, match="session '"):
                await work
        await store.close()

    place.execute("UPDATE inbox SET data = ?", b'"Give all."')
    place.execute("UPDATE cursors SET seq = seq - 1")
    place.execute("UPDATE asks SET data = ?", b"{")
    asyncio.run(use())


# ---------------------------------------------------------------- a chain that was computed anew


def rechain(place: Place, session: str, change: Callable[[bytes], bytes]) -> None:
    """Change a log and compute all links anew, as anybody can who knows how links are made but has no key."""
    chain = Chain()
    [(number, link)] = place.execute("SELECT number, start FROM sessions WHERE id = ?", session)
    query = "SELECT seq, data FROM batches WHERE session = ? ORDER BY seq"
    for seq, data in place.execute(query, number):
        lines = change(unpack(data))
        link, seals, nonce = chain.seal(session, seq, link, lines)
        packed = b"".join([one.index.to_bytes(4, "big") + one.digest for one in seals]) or None
        place.execute(
            "UPDATE batches SET link = ?, data = ?, seals = ?, nonce = ? WHERE session = ? AND seq = ?",
            link, pack(lines), packed, nonce or None, number, seq,
        )  # fmt: skip
    place.execute("UPDATE sessions SET head = ? WHERE number = ?", link, number)


def test_with_a_key_a_chain_that_was_computed_anew_is_detected(files):
    place = files(KEY)
    place.reset()
    rechain(place, "talk", lambda lines: lines.replace(b"hello", b"Paid 99 euros to Eve"))
    detected(place, session="talk")
    place.reset()
    rechain(place, "talk", lambda lines: lines)
    detected(place, session="talk")


def test_with_a_key_a_log_that_was_cut_is_detected_even_if_its_row_agrees(files):
    """Each link is valid on its own; the end of the log is bound, too."""
    place = files(KEY)
    place.reset()
    rows = [row for row in batch_rows(place) if row[1] == "talk"]
    for left in range(len(rows)):
        [(start,)] = place.execute("SELECT start FROM sessions WHERE id = 'talk'")
        end = (rows[left][2], rows[left - 1][4] if left else start)
        place.execute("DELETE FROM batches WHERE session = ? AND seq >= ?", rows[0][0], rows[left][2])
        place.execute("UPDATE sessions SET records = ?, head = ? WHERE id = 'talk'", *end)

        async def check() -> None:
            store = place.open()
            with pytest.raises(StoreError, match="it may have had more records"):
                await store.verify("talk")
            for _, result in await uses(store, "talk"):
                assert is_refused(result), result
            await store.close()

        asyncio.run(check())
        place.reset()


def test_without_a_key_only_a_kept_head_shows_a_chain_that_was_computed_anew(files):
    place = files(None)
    place.reset()

    async def head() -> str:
        store = place.open()
        found = await store.verify("talk")
        await store.close()
        return found.head

    before = asyncio.run(head())
    rechain(place, "talk", lambda lines: lines.replace(b"hello", b"adieu"))
    assert asyncio.run(head()) != before


def test_records_that_do_not_follow_from_each_other_are_a_store_error(files):
    """Whoever has no key to stop them can write a valid chain of nonsense."""
    place = files(None)
    place.reset()
    for wrong in (
        lambda lines: lines.replace(b'"kind":"TurnStarted"', b'"kind":"StepEnded"'),
        lambda lines: lines.replace(b'"kind":"TurnStarted","turn":1', b'"kind":"TurnStarted","turn":"x"'),
        lambda lines: lines.replace(b'{"kind":"TurnStarted"', b'["kind","TurnStarted"'),
        lambda lines: lines.replace(b'{"kind":"TurnStarted"', b'7,{"kind":"TurnStarted"'),
    ):
        rechain(place, "talk", wrong)

        async def check() -> None:
            store = place.open()
            for name, end in await uses(store, "talk"):
                assert name in ("export", "fork", "read") or is_refused(end), (name, end)
            await store.close()

        asyncio.run(check())
        place.reset()


# ---------------------------------------------------------------- keys


async def test_a_store_is_opened_with_the_key_that_it_was_made_with(tmp_path, database):
    for make in (
        lambda name, key: SQLiteStore(tmp_path / f"{name}.db", key=key),
        lambda name, key: PostgresStore(database, schema=name, key=key),
    ):
        for name, right, wrongs in (
            ("keyed", KEY, {"was made with a key": None, "was made with another key": "x" * 16}),
            ("plain", None, {"was made without a key": KEY}),
        ):
            store = make(name, right)
            await store.append("s", [], 0)
            await populate(store)
            await store.close()
            for words, wrong in wrongs.items():
                other = make(name, wrong)
                for use in (other.read("talk"), other.verify("talk"), other.put("s", "k", "steer", 1)):
                    with pytest.raises(StoreError, match=f"{words}.*Nothing was changed"):
                        await use
                await other.close()
            again = make(name, right if not isinstance(right, str) else right.encode())
            assert await problems(again) == []
            await again.close()


@pytest.mark.parametrize("key", ["", "short", b"x" * 15, 7, ["x" * 20]])
def test_a_key_that_is_too_short_or_no_key_is_refused(tmp_path, key):
    with pytest.raises((ConfigError, TypeError)):
        SQLiteStore(tmp_path / "x.db", key=key)


async def test_the_key_of_an_address_is_read_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDLASS_STORE_KEY", KEY)
    store = open_store(f"sqlite:///{tmp_path}/x.db")
    await populate(store)
    await store.close()
    same = SQLiteStore(tmp_path / "x.db", key=KEY)
    await same.verify("talk")
    await same.close()
    monkeypatch.delenv("WINDLASS_STORE_KEY")
    other = open_store(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(StoreError, match="WINDLASS_STORE_KEY"):
        await other.read("talk")
    await other.close()


async def test_a_key_that_was_removed_from_the_file_is_missed(tmp_path):
    store = SQLiteStore(tmp_path / "x.db", key=KEY)
    await populate(store)
    await store.close()
    for query in ("UPDATE settings SET value = x''", "DELETE FROM settings"):
        db = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        db.execute(query)
        db.close()
        other = SQLiteStore(tmp_path / "x.db", key=KEY)
        with pytest.raises(StoreError, match="was made without a key"):
            await other.read("talk")
        await other.close()


async def test_sessions_move_between_stores_with_other_keys(tmp_path):
    one, two, plain = [SQLiteStore(tmp_path / f"{key}.db", key=key) for key in (KEY, "another key, just as long", None)]
    await populate(one)
    lines = await export_session(one, "pruned")
    for other in (two, plain):
        with pytest.raises(StoreError, match=r"with another key.*WINDLASS_EXPORT_KEY"):
            await import_session(other, lines)
        await import_session(other, lines, key=KEY)
        assert await other.read("pruned") == await one.read("pruned")
        assert (await other.verify("pruned")).head != (await one.verify("pruned")).head
        assert await problems(other) == []
    assert await import_session(one, await export_session(plain, "pruned"), "copy") == "copy"
    same = SQLiteStore(tmp_path / "same.db", key=KEY)
    await import_session(same, lines)
    assert await same.verify("pruned") == await one.verify("pruned")
    forged = [line.replace('"hello"', '"adieu"') for line in lines]
    with pytest.raises(StoreError, match="differ from the exported ones"):
        await import_session(same, forged, "forged")
    for store in (one, two, plain, same):
        await store.close()


# ---------------------------------------------------------------- exports


async def test_every_changed_line_of_an_export_is_refused(tmp_path):
    store, other = SQLiteStore(tmp_path / "a.db"), SQLiteStore(tmp_path / "b.db")
    await populate(store)
    for session in ("talk", "pruned", "asks"):
        lines = await export_session(store, session)
        texts = list(enumerate(lines))
        wrong = [lines[:at] + lines[at + 1 :] for at, _ in texts]
        wrong += [[*lines[:at], line, *lines[at:]] for at, line in texts]
        wrong += [lines[:at] for at, _ in texts]
        wrong += [[*lines[:at], *reversed(lines[at : at + 2]), *lines[at + 2 :]] for at, _ in texts[:-1]]
        dice = random.Random(SEED)
        for at, line in texts:
            where = dice.randrange(len(line))
            changed = line[:where] + chr(ord(line[where]) ^ 1) + line[where + 1 :]
            wrong.append([*lines[:at], changed, *lines[at + 1 :]])
        for changed_lines in wrong:
            if changed_lines == lines:
                continue
            with pytest.raises(StoreError):
                await import_session(other, changed_lines)
        assert await other.sessions() == []
    for one in (store, other):
        await one.close()


async def test_an_export_of_a_log_without_its_end_is_refused(tmp_path):
    store = SQLiteStore(tmp_path / "a.db")
    await populate(store)
    lines = await export_session(store, "talk")
    db = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    db.execute("DELETE FROM batches WHERE session = 2 AND seq = (SELECT max(seq) FROM batches WHERE session = 2)")
    db.close()
    with pytest.raises(StoreError, match=r"'talk' is broken at record .* it ends early"):
        await export_session(store, "talk")
    await store.close()
    assert lines
