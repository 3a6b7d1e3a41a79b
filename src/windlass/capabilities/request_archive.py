"""RequestArchive: stores every request exactly as the model received it."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.errors import ConfigError, StoreError
from windlass.events import ModelCalled
from windlass.messages import Message, Messages, ModelRequest, TextPart, ToolSpec, json_with_surrogates
from windlass.stores.sqlite_file import create_private, write_ahead
from windlass.turns import Turn

from .option_types import check_types

if TYPE_CHECKING:
    from windlass import Hooks

SESSIONS = 256
"""For how many sessions the last request is remembered."""

RECENT = 64
"""How many written requests to remember: child and parent both report a child's, and it must be written once."""

WAIT = 30.0
"""How many seconds to wait for another process that holds the file."""

OFTEN = 10
"""How many times per ttl old requests are dropped."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS parts (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS uses (whole INTEGER, part INTEGER, PRIMARY KEY (whole, part)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lanes (id INTEGER PRIMARY KEY, session TEXT NOT NULL, base INTEGER, length INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS lines (lane INTEGER, place INTEGER, part INTEGER, PRIMARY KEY (lane, place)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY, session TEXT NOT NULL, step INTEGER NOT NULL, round INTEGER, attempt INTEGER, at REAL,
    lane INTEGER, length INTEGER, system INTEGER, tools INTEGER, rest INTEGER
);
CREATE TABLE IF NOT EXISTS tails (request INTEGER, place INTEGER, part INTEGER, PRIMARY KEY (request, place))
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS requests_of ON requests (session, step);
"""
# A lane is a history that only grows. It may branch off another lane after the first `length` messages.
# A request is the first messages of a lane and a tail of its own.


class _Cursor:
    """The last request of a session: the messages of its lane, and where system text, tools and the rest are stored."""

    __slots__ = ("head", "lane", "messages")

    def __init__(self, lane: int, messages: list[Message]) -> None:
        self.lane = lane
        self.messages = messages
        self.head: tuple[ModelRequest, tuple[int, int, int]] | None = None


class RequestArchive:
    """Store every request exactly as it is sent to a model, after all hooks and wraps, in a separate SQLite file.

    Every attempt is stored. Only the new parts of each request are written, compressed, with the application's secrets
    masked. Requests older than `ttl` seconds are dropped. It writes on an observer thread, so no turn waits for it;
    requests still queued when the process dies are lost. One object may serve several agents, and several processes may
    use one file.
    """

    @check_types
    def __init__(self, path: str | Path, *, ttl: float | None = None) -> None:
        if ttl is not None and ttl <= 0:
            raise ConfigError(f"RequestArchive(ttl={ttl}): ttl must be above 0")
        self.name = "request_archive"
        self.path = Path(path)
        self.ttl = ttl
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._cursors: OrderedDict[str, _Cursor] = OrderedDict()
        self._recent: OrderedDict[int, ModelRequest] = OrderedDict()
        self._dropped = 0
        self._purged = 0.0

    def install(self, registrar: Hooks) -> None:
        """Register it."""
        mask = registrar.mask

        def keep(fact: ModelCalled, turn: Turn[Any]) -> None:
            session = fact.path or turn.session_id
            if fact.request is not None:
                self._keep(session, (fact.step, fact.round, fact.attempt), fact.request, mask, turn.now())

        registrar.observe(ModelCalled, name=self.name)(keep)

    # ------------------------------------------------------------ reading

    def request(self, session: str, step: int, attempt: int | None = None) -> ModelRequest:
        """The request of a step. Of several, the last one, or the one with this `attempt` number, from 1 on."""
        with self._lock, self._opened() as db:
            db.execute("BEGIN")  # another process may drop some of it meanwhile
            query = (
                "SELECT id, lane, length, system, tools, rest FROM requests WHERE session = ? AND step = ? ORDER BY id"
            )
            rows = db.execute(query, (session, step)).fetchall()
            if not rows or (attempt is not None and not 1 <= attempt <= len(rows)):
                raise LookupError(self._not_found(db, session, step, attempt, len(rows)))
            id_, lane, length, system, tools, rest = rows[-1 if attempt is None else attempt - 1]
            tail = db.execute("SELECT part FROM tails WHERE request = ? ORDER BY place", (id_,)).fetchall()
            parts = _Parts(db)
            messages = [*self._history(db, lane, length), *[part for (part,) in tail]]
            return _request(
                [parts.message(part) for part in messages], parts.get(system), parts.get(tools), parts.get(rest)
            )

    def steps(self, session: str) -> list[tuple[int, int]]:
        """The steps of a session with stored requests, and the number of requests of each."""
        with self._lock, self._opened() as db:
            query = "SELECT step, count(*) FROM requests WHERE session = ? GROUP BY step ORDER BY step"
            return [(step, count) for step, count in db.execute(query, (session,))]

    @staticmethod
    def _history(db: sqlite3.Connection, lane: int | None, length: int) -> list[int]:
        """The first messages of a lane, beginning with those of the lanes it branched off."""
        found: list[int] = []
        while lane is not None and length:
            base, start = db.execute("SELECT base, length FROM lanes WHERE id = ?", (lane,)).fetchone()
            query = "SELECT part FROM lines WHERE lane = ? AND place < ? ORDER BY place"
            found = [*[part for (part,) in db.execute(query, (lane, length))], *found]
            lane, length = base, min(start, length)
        return found

    def _not_found(self, db: sqlite3.Connection, session: str, step: int, attempt: int | None, count: int) -> str:
        if count:
            return f"step {step} of session {session!r} has {count} requests in {self.path}, but no number {attempt}"
        if db.execute("SELECT 1 FROM requests WHERE session = ? LIMIT 1", (session,)).fetchone() is None:
            return f"{self.path} has no requests of session {session!r}"
        return f"{self.path} has no request of step {step} of session {session!r}"

    # ------------------------------------------------------------ dropping

    def erase(self, session: str) -> bool:
        """Drop all requests of a session and of its sub-agents; returns whether there were any."""
        with self._lock, self._opened() as db:
            theirs = "session = ? OR substr(session, 1, ?) = ?"
            found = db.execute(f"DELETE FROM requests WHERE {theirs}", _with_children(session)).rowcount
            self._cursors = OrderedDict()
            self._sweep(db)
        with self._lock:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # otherwise the data stays in the write-ahead log
        return found > 0

    def purge(self, *, now: float | None = None) -> int:
        """Drop requests that are older than the ttl at a time, by default the current one; return how many."""
        if self.ttl is None:
            return 0
        with self._lock, self._opened() as db:
            self._purged = time.time() if now is None else now
            found = db.execute("DELETE FROM requests WHERE at < ?", (self._purged - self.ttl,)).rowcount
            if found:
                self._sweep(db)
        return found

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Drop rows that no request uses any more. Their ids may be reused, so the new version tells other writers."""
        self._look(db)
        self._dropped += 1
        db.execute(f"PRAGMA user_version = {self._dropped}")
        db.execute("DELETE FROM tails WHERE request NOT IN (SELECT id FROM requests)")
        unused = "id NOT IN (SELECT lane FROM requests) AND id NOT IN (SELECT base FROM lanes WHERE base IS NOT NULL)"
        while db.execute(f"DELETE FROM lanes WHERE {unused}").rowcount:
            pass
        db.execute("DELETE FROM lines WHERE lane NOT IN (SELECT id FROM lanes)")
        heads = " UNION ".join([f"SELECT {column} FROM requests" for column in ("system", "tools", "rest")])
        used = f"SELECT part FROM lines UNION SELECT part FROM tails UNION SELECT part FROM uses UNION {heads}"
        for _ in range(2):  # messages, then what they were made of
            db.execute(f"DELETE FROM parts WHERE id NOT IN ({used})")
            db.execute("DELETE FROM uses WHERE whole NOT IN (SELECT id FROM parts)")
        left = {lane for (lane,) in db.execute("SELECT id FROM lanes")}
        self._cursors = OrderedDict([item for item in self._cursors.items() if item[1].lane in left])
        for cursor in self._cursors.values():
            cursor.head = None

    def close(self) -> None:
        """Close the file. It is opened again when it is needed."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            self._cursors = OrderedDict()

    # ------------------------------------------------------------ writing

    def _look(self, db: sqlite3.Connection) -> None:
        """Forget the cursors if another process has dropped rows: the remembered ids may be gone."""
        (dropped,) = db.execute("PRAGMA user_version").fetchone()
        if dropped != self._dropped:
            self._dropped = dropped
            self._cursors = OrderedDict()

    def _keep(
        self, session: str, place: tuple[int, int, int], request: ModelRequest, mask: Callable[[Any], Any], now: float
    ) -> None:
        with self._lock:
            if id(request) in self._recent:
                return
            if self.ttl is not None and now >= self._purged + self.ttl / OFTEN:
                self.purge(now=now)
            try:
                with self._opened() as db:
                    db.execute("BEGIN IMMEDIATE")
                    self._look(db)
                    self._write(db, session, (*place, now), request, _Keeper(db, mask))
            except BaseException:
                self._cursors.pop(session, None)
                raise
            self._recent[id(request)] = request
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)

    def _write(
        self,
        db: sqlite3.Connection,
        session: str,
        place: tuple[int, int, int, float],
        request: ModelRequest,
        keeper: _Keeper,
    ) -> None:
        messages = list(request.messages)
        own = len(request.messages.shared[2]) + 1
        end = max(len(messages) - own, 0)  # the last message may have parts of this step only
        cursor = self._lane(db, session, messages[:end], keeper)
        head = self._head(cursor, request, keeper)
        columns = "session, step, round, attempt, at, lane, length, system, tools, rest"
        row = (session, *place, cursor.lane, end, *head)
        id_ = db.execute(f"INSERT INTO requests ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid
        tail = [(id_, at, keeper.message(message)) for at, message in enumerate(messages[end:], end)]
        db.executemany("INSERT INTO tails VALUES (?, ?, ?)", tail)

    def _lane(self, db: sqlite3.Connection, session: str, messages: list[Message], keeper: _Keeper) -> _Cursor:
        """The lane with these messages: the session's last lane if they extend it, else a new branch."""
        cursor = self._cursors.pop(session, None)
        same = 0 if cursor is None else _leading(cursor.messages, messages)
        if cursor is None or same < min(len(cursor.messages), len(messages)):
            base = cursor.lane if cursor is not None and same else None
            made = db.execute("INSERT INTO lanes (session, base, length) VALUES (?, ?, ?)", (session, base, same))
            assert made.lastrowid is not None
            cursor = _Cursor(made.lastrowid, messages[:same])
        new = messages[len(cursor.messages) :]
        lines = [(cursor.lane, at, keeper.message(message)) for at, message in enumerate(new, len(cursor.messages))]
        db.executemany("INSERT INTO lines VALUES (?, ?, ?)", lines)
        cursor.messages += new
        self._cursors[session] = cursor
        if len(self._cursors) > SESSIONS:
            self._cursors.popitem(last=False)
        return cursor

    @staticmethod
    def _head(cursor: _Cursor, request: ModelRequest, keeper: _Keeper) -> tuple[int, int, int]:
        """The ids of the system text, the tools and the rest of a request. Unchanged ones are reused."""
        last, known = cursor.head or (None, (0, 0, 0))
        system, tools, rest = known
        if last is None or last.system is not request.system or last.sections is not request.sections:
            system = keeper.plain({"system": request.system, "sections": request.sections})
        if last is None or last.tools is not request.tools:
            tools = keeper.plain(request.tools)
        if last is None or any(getattr(last, name) is not getattr(request, name) for name in _REST):
            rest = keeper.plain({name: getattr(request, name) for name in _REST})
        cursor.head = request.replace(messages=Messages()), (system, tools, rest)
        return system, tools, rest

    def _opened(self) -> sqlite3.Connection:
        """The connection, opened if necessary. As a context manager it is a transaction."""
        if self._db is None:
            try:
                self._db = _open(self.path)
            except sqlite3.Error as error:
                raise StoreError(f"the archive {self.path} cannot be opened: {error}") from error
        return self._db


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "tails" not in tables:
        raise StoreError(f"{path} is not a request archive; use a separate file for RequestArchive")


def _open(path: Path) -> sqlite3.Connection:
    create_private(path)
    db = sqlite3.connect(path, timeout=WAIT, check_same_thread=False)
    try:
        _check_tables(db, path)
        write_ahead(db, WAIT)
        for pragma in ("synchronous = NORMAL", "secure_delete = ON"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN IMMEDIATE")  # all tables at once, so that other processes never see only some of them
        _check_tables(db, path)
        for statement in SCHEMA.split(";"):
            db.execute(statement)
        db.commit()
    except BaseException:
        db.close()
        raise
    return db


_REST = ("model", "settings", "output")


class _Keeper:
    """Writes parts to the file, each once."""

    def __init__(self, db: sqlite3.Connection, mask: Callable[[Any], Any]) -> None:
        self._db = db
        self._mask = mask

    def plain(self, value: Any) -> int:
        """Store any value; returns its id."""
        return self._put(self._mask(msgspec.to_builtins(value, enc_hook=str)))

    def message(self, message: Message) -> int:
        """Store a message as a frame in which ids stand for its parts; returns the id of the frame."""
        frame = self._mask(msgspec.to_builtins(message, enc_hook=str))
        used: list[int] = []
        frame["parts"] = [self._part(part, used) for part in frame.get("parts", ())]
        whole = self._put(frame)
        self._db.executemany("INSERT OR IGNORE INTO uses VALUES (?, ?)", [(whole, part) for part in used])
        return whole

    def _part(self, part: dict[str, Any], used: list[int]) -> Any:
        if part.get("type") == "tool_result":
            return {**part, "content": [self._part(inner, used) for inner in part.get("content", ())]}
        used.append(self._put(part))
        return used[-1]

    def _put(self, plain: Any) -> int:
        data = _encoded(plain)
        digest = blake2b(data, digest_size=16).digest()
        known = self._db.execute("SELECT id FROM parts WHERE digest = ?", (digest,)).fetchone()
        if known is not None:
            return int(known[0])
        row = (digest, zlib.compress(data, 6))
        made = self._db.execute("INSERT INTO parts (digest, data) VALUES (?, ?)", row).lastrowid
        assert made is not None
        return made


class _Parts:
    """Reads parts from the file, each once."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._known: dict[int, Any] = {}

    def get(self, part: int) -> Any:
        """A part as plain data."""
        if part not in self._known:
            (data,) = self._db.execute("SELECT data FROM parts WHERE id = ?", (part,)).fetchone()
            self._known[part] = _decoded(zlib.decompress(data))
        return self._known[part]

    def message(self, part: int) -> Message:
        """A message, put together from its frame and parts."""
        frame = self.get(part)
        return msgspec.convert({**frame, "parts": [self._part(inner) for inner in frame["parts"]]}, Message)

    def _part(self, part: Any) -> Any:
        if isinstance(part, int):
            return self.get(part)
        return {**part, "content": [self._part(inner) for inner in part["content"]]}


def _request(messages: Iterable[Message], system: Any, tools: Any, rest: Any) -> ModelRequest:
    return ModelRequest(
        system["system"],
        Messages(messages),
        msgspec.convert(tools, tuple[ToolSpec, ...]),
        sections=msgspec.convert(system["sections"], tuple[TextPart, ...]),
        **rest,
    )


def _leading(old: Sequence[Message], new: Sequence[Message]) -> int:
    """The number of messages at the start that two histories have in common."""
    at = 0
    for one, other in zip(old, new, strict=False):
        if one is not other and one != other:
            break
        at += 1
    return at


def _with_children(session: str) -> tuple[str, int, str]:
    """Query parameters that match a session and the sessions of its sub-agents. Users' ids cannot contain `//`."""
    return session, len(session) + 2, f"{session}//"


def _encoded(plain: Any) -> bytes:
    try:
        return msgspec.json.encode(plain)
    except UnicodeEncodeError:  # a lone surrogate
        return json_with_surrogates(plain).encode()


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)
