"""The store for many machines: PostgreSQL. An append locks its session's row and returns after its COMMIT."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from windlass.errors import ConfigError, SessionConflict
from windlass.logs import Batch, SessionInfo, Verified
from windlass.ownership import Claim, Ownership, Passes
from windlass.records import Asked, Record, decode, encode

from .batches import START, Change, change_of, decode_batches, lines_of, link_of, pack
from .owners import Owner, ServerLock, busy, is_held_by_server, taken_over
from .postgres_schema import migrate
from .postgres_server import ServerConnections, connect_alone, settings_of, use_server
from .shared import (
    as_json,
    belongs_to,
    check_end,
    child_id_range,
    conflict,
    erased_session,
    escape_like,
    from_json,
    from_key,
    key_of,
    prune_lines,
    unpack_batch,
    unpack_rows,
    verify_chain,
    whole_of,
)
from .sharing import Lease, call_after_fork

if TYPE_CHECKING:
    from typing import LiteralString

    from .postgres_server import Connection, Settings

T = TypeVar("T")

_KNOWN = 4096
"""For how many sessions the store remembers where its own last append ended."""


class _Row(NamedTuple):
    """A session's row, locked."""

    number: int
    status: str
    records: int
    head: bytes
    owner: str
    epoch: int


class _Head(NamedTuple):
    """Where this store's last append to a session ended, and in which transaction."""

    records: int
    link: bytes
    transaction: str


class PostgresStore:
    """Keeps logs in a PostgreSQL database, in a schema of their own. Any number of processes and machines may share it.

    An append that has returned is as durable as the server's `synchronous_commit` makes it. Each append locks the row
    of its session. It is refused if the log has another length. It is also refused if the length is right but this
    store did not write the end of the log: after a restore or a failover that lost commits, another process may have
    taken the session over and appended as many records. The store uses up to `max_size` connections; `timeout` limits
    every wait for a connection or a lock. A pooler between store and server must be in session mode.
    """

    durable = True

    def __init__(self, url: str, *, schema: str = "windlass", max_size: int = 8, timeout: float = 30.0) -> None:
        if re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) is None:
            raise ConfigError(f"schema={schema!r} must be a lower-case name of letters, digits and underscores")
        self.schema = schema
        self.max_size = max_size
        self.timeout = timeout
        settings = settings_of(url, schema, max_size, timeout)
        self._server = use_server(self, settings, migrate)
        self._owner = _use_owner(self, settings)
        self._pipelines: set[str] = set()
        self._start_anew()
        call_after_fork(self._start_anew)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._heads: OrderedDict[str, _Head] = OrderedDict()

    async def close(self) -> None:
        """Wait for pending writes, then close the connections, unless another store of this process uses them."""
        await self._server.end()
        await self._owner.end()

    @property
    def passes(self) -> Passes:
        return self._owner.get().passes

    async def _read(self, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        return await self._server.get().read(query, *values)

    async def _write(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        return await self._server.get().write(work, repeatable=repeatable)

    # ------------------------------------------------------------ the log

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None) -> bool:
        server, appending = self._server.get(), _Appending(session, records, expected, claim)
        if not records:
            return await self._write(lambda db: self._append_nothing(db, appending))
        return await server.do(lambda: self._append_in_thread(server, appending))

    def _append_in_thread(self, server: ServerConnections, appending: _Appending) -> bool:
        session = appending.session
        try:
            waiting = server.attempt("write", lambda db: self._append(db, appending))
        except BaseException:
            with self._lock:
                self._heads.pop(session, None)
            raise
        with self._lock:
            assert appending.head is not None
            self._heads[session] = appending.head
            self._heads.move_to_end(session)
            if len(self._heads) > _KNOWN:
                self._heads.popitem(last=False)
        return waiting

    def _append(self, db: Connection, appending: _Appending) -> bool:
        session, expected, records = appending.session, appending.expected, appending.records
        claim, change = appending.claim, change_of(records) or _NO_CHANGE
        if claim is not None:
            self._owner.get().take()
        if claim is not None and session != claim.root:
            _check_root(db, session, claim)
        if not expected:
            _insert(db, session, change.at or time.time())
        row = _locked(db, session)
        if row is None:
            raise conflict(session, 0, expected)
        if row.status == "erased":
            raise erased_session(session)
        if appending.head is not None and _is_there(db, row.number, expected, appending.head):
            return _waiting(db, session)
        self._check(db, row, session, expected)
        owner, epoch = self._check_claim(db, row, session, claim)
        if change.ends:
            owner = ""
        elif change.status == "running" and claim is not None and session == claim.root:
            owner = self._owner.get().name
        lines, length = lines_of(records), expected + len(records)
        link = link_of(row.head, lines)
        _apply(db, session, row.number, change)
        made = db.execute(
            "WITH made AS (INSERT INTO batches (session, seq, count, link, data) VALUES (%s, %s, %s, %s, %s) "
            "RETURNING xmin::text AS transaction) "
            "UPDATE sessions SET records = %s, head = %s, owner = %s, epoch = %s, status = coalesce(%s, status), "
            "agent = coalesce(%s, agent), title = CASE WHEN title = '' THEN coalesce(%s, '') ELSE title END, "
            "updated = coalesce(%s, updated) WHERE number = %s "
            "RETURNING (SELECT transaction FROM made), EXISTS (SELECT FROM inbox WHERE session = %s AND NOT taken)",
            (
                row.number, expected, len(records), link, pack(lines),
                length, link, owner, epoch, change.status, change.agent, change.title, change.at or None, row.number,
                session,
            ),
        ).fetchone()  # fmt: skip
        assert made is not None
        appending.head = _Head(length, link, made[0])
        return bool(made[1])

    def _check(self, db: Connection, row: _Row, session: str, expected: int) -> None:
        """Raise unless the log can be extended: it has the expected length, and this store wrote its end."""
        if row.records != expected:
            check_end(session, _length(db, row.number), row.records)
            raise conflict(session, row.records, expected)
        mine = self._heads.get(session)
        if mine is not None and mine.records == expected and mine.link != row.head:
            raise SessionConflict(f"session {session!r} was taken over by another process", session=session)

    def _append_nothing(self, db: Connection, appending: _Appending) -> bool:
        """An append without records, which may begin a pass."""
        session, claim = appending.session, appending.claim
        begins = claim is not None and claim.begins
        if begins and not appending.expected:
            _insert(db, session, time.time())
        row = _locked(db, session)
        if (found := 0 if row is None else row.records) != appending.expected:
            raise conflict(session, found, appending.expected)
        if row is not None and begins:
            self._owner.get().take()
            owner, epoch = self._check_claim(db, row, session, claim, again=True)
            db.execute("UPDATE sessions SET owner = %s, epoch = %s WHERE number = %s", (owner, epoch, row.number))
        return _waiting(db, session)

    # ------------------------------------------------------------ who owns a session

    async def ownership(self, session: str) -> Ownership:
        def work(db: Connection) -> Ownership:
            row = db.execute("SELECT owner, epoch FROM sessions WHERE id = %s", (session,)).fetchone()
            return Ownership() if row is None else Ownership(row[1], row[0], self._is_alive(db, row[0]))

        return await self._server.get().look(work)

    async def release(self, session: str, epoch: int) -> None:
        query = "UPDATE sessions SET owner = '' WHERE id = %s AND epoch = %s"
        await self._write(lambda db: db.execute(query, (session, epoch)).rowcount)

    def _is_alive(self, db: Connection, name: str) -> bool:
        return name != "" and self._owner.get().is_alive(name, lambda number: is_held_by_server(db, number))

    def _check_claim(
        self, db: Connection, row: _Row, session: str, claim: Claim | None, again: bool = False
    ) -> tuple[str, int]:
        """The owner and the epoch that a batch leaves in its session's row. Raises if the claim is lost.

        A claim without records may be made `again`, after a cancel or a lost connection.
        """
        if claim is None or session != claim.root:
            return row.owner, row.epoch
        mine = self._owner.get().name
        made = again and (row.owner, row.epoch) == (mine, claim.epoch)
        if row.epoch != claim.epoch - claim.begins and not made:
            if claim.begins and self._is_alive(db, row.owner):
                raise busy(session, row.owner)
            raise taken_over(session, claim.root)
        return "" if claim.ends else mine if claim.begins else row.owner, claim.epoch

    # ------------------------------------------------------------ the log, read

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        return await decode_batches(session, await self.batches(session, start), start)

    async def batches(self, session: str, start: int = 0) -> Sequence[Batch]:
        rows = await self._read(
            "SELECT seq, count, link, data, pruned FROM batches JOIN sessions ON session = number "
            "WHERE id = %s AND seq + count > %s ORDER BY seq",
            session, start,
        )  # fmt: skip
        return await unpack_rows(session, rows)

    # ------------------------------------------------------------ sessions and their questions

    async def sessions(self) -> Sequence[str]:
        rows = await self._read("SELECT id FROM sessions WHERE status != 'erased' AND records > 0 ORDER BY number")
        return [row[0] for row in rows]

    async def find(
        self, *, search: str = "", status: str | None = None, limit: int | None = None
    ) -> Sequence[SessionInfo]:
        like = f"%{escape_like(search)}%"
        rows = await self._read(
            "SELECT id, status, agent, title, started, updated, records, "
            "(SELECT count(*) FROM asks WHERE session = number) FROM sessions "
            "WHERE (id ILIKE %s OR title ILIKE %s OR agent ILIKE %s) AND (%s::text IS NULL OR status = %s) "
            "AND (records > 0 OR status = 'erased') ORDER BY updated DESC, number DESC LIMIT %s",
            like, like, like, status, status, limit,
        )  # fmt: skip
        return [SessionInfo(*row) for row in rows]

    async def approvals(self, session: str | None = None) -> Sequence[tuple[str, Asked]]:
        rows = await self._read(
            "SELECT sessions.id, data FROM asks JOIN sessions ON session = number "
            "WHERE %s::text IS NULL OR sessions.id = %s ORDER BY number, position",
            session, session,
        )  # fmt: skip
        return [(name, ask) for name, data in rows if isinstance(ask := decode(data), Asked)]

    async def prune(self, *, before: float) -> int:
        """Delete the injected parts of turns that have ended; returns how many batches were pruned."""
        return await self._write(lambda db: _prune(db, before))

    async def erase(self, session: str) -> bool:
        """Erase a session and the sessions of its sub-agents. A tombstone with the chain's head remains."""
        return await self._write(lambda db: self._erase(db, session), repeatable=False)

    def _erase(self, db: Connection, session: str) -> bool:
        rows = db.execute(
            "SELECT number, id, owner FROM sessions WHERE (id = %s OR id > %s AND id < %s) AND status != 'erased' "
            "ORDER BY number FOR UPDATE",
            (session, *child_id_range(session)),
        ).fetchall()
        rows = [row for row in rows if belongs_to(row[1], session)]
        for _, name, owner in rows:
            if self._is_alive(db, owner) or self.passes.get(name) is not None:
                raise busy(name, owner or self._owner.get().name)
        numbers, names = [row[0] for row in rows], [row[1] for row in rows]
        db.execute("DELETE FROM batches WHERE session = ANY(%s)", (numbers,))
        db.execute("DELETE FROM asks WHERE session = ANY(%s)", (numbers,))
        db.execute("DELETE FROM inbox WHERE session = ANY(%s)", (names,))
        db.execute("DELETE FROM cursors WHERE session = ANY(%s)", (names,))
        db.execute(
            "UPDATE sessions SET status = 'erased', title = '', updated = %s WHERE number = ANY(%s)",
            (time.time(), numbers),
        )
        return bool(rows)

    async def verify(self, session: str) -> Verified:
        """Verify the chain of a session up to the end that its row states; raises `StoreError` where it is broken."""
        rows = await self._read(
            "SELECT records, head, seq, count, link, data, pruned FROM sessions LEFT JOIN batches ON session = number "
            "WHERE id = %s AND status != 'erased' ORDER BY seq",
            session,
        )
        return verify_chain(session, *whole_of(session, rows))

    # ------------------------------------------------------------ inbox, cursors, pipelines

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        row = (session, key_of(key), kind, as_json(data))
        query = "INSERT INTO inbox (session, key, kind, data) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
        return await self._write(lambda db: db.execute(query, row).rowcount > 0, repeatable=False)

    async def unread(self, sessions: Sequence[str]) -> Sequence[str]:
        rows = await self._read(
            "SELECT DISTINCT session FROM inbox WHERE NOT taken AND session = ANY(%s)", list(sessions)
        )
        return [row[0] for row in rows]

    async def take(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        rows = await self._read(
            "SELECT key, kind, data FROM inbox WHERE session = %s AND NOT taken ORDER BY position", session
        )
        entries = [(from_key(key), kind, from_json(data)) for key, kind, data in rows]
        return [entry for entry in entries if entry[0] not in taken]

    async def cursor(self, session: str, reader: str) -> int:
        rows = await self._read("SELECT seq FROM cursors WHERE session = %s AND reader = %s", session, reader)
        return int(rows[0][0]) if rows else 0

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        if expected:
            query = "UPDATE cursors SET seq = %s WHERE session = %s AND reader = %s AND seq = %s"
            values: tuple[Any, ...] = (seq, session, reader, expected)
        else:
            query = (
                "INSERT INTO cursors VALUES (%s, %s, %s) ON CONFLICT (session, reader) DO UPDATE "
                "SET seq = excluded.seq WHERE %s::bigint IS NULL OR cursors.seq = 0"
            )
            values = (session, reader, seq, expected)
        return await self._write(lambda db: db.execute(query, values).rowcount > 0)

    async def behind(self, reader: str) -> Sequence[SessionInfo]:
        rows = await self._read(
            "SELECT id, status, agent, title, started, updated, records, "
            "(SELECT count(*) FROM asks WHERE session = number) FROM sessions "
            "LEFT JOIN cursors ON cursors.session = id AND reader = %s "
            "WHERE status != 'erased' AND records > coalesce(seq, 0) ORDER BY number",
            reader,
        )
        return [SessionInfo(*row) for row in rows]

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        if digest not in self._pipelines:
            query = "INSERT INTO pipelines VALUES (%s, %s) ON CONFLICT DO NOTHING"
            await self._write(lambda db: db.execute(query, (digest, data)).rowcount)
            self._pipelines.add(digest)

    async def pipeline(self, digest: str) -> bytes | None:
        rows = await self._read("SELECT data FROM pipelines WHERE digest = %s", digest)
        return bytes(rows[0][0]) if rows else None


def _use_owner(store: object, settings: Settings) -> Lease[Owner[ServerLock]]:
    """This process as the owner of sessions in a schema, for as long as the store lives."""
    key = ("owner", "postgresql", settings.url, settings.schema)
    return Lease(store, f"({settings.place})", key, lambda: Owner(ServerLock(lambda: connect_alone(settings))))


_NO_CHANGE = Change()


class _Appending:
    """A batch to append. The attempt that writes it sets `head`, whether or not the write is committed."""

    def __init__(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None) -> None:
        self.session = session
        self.records = records
        self.expected = expected
        self.claim = claim
        self.head: _Head | None = None


def _locked(db: Connection, session: str) -> _Row | None:
    """A session's row, locked until the transaction ends."""
    query = "SELECT number, status, records, head, owner, epoch FROM sessions WHERE id = %s FOR UPDATE"
    row = db.execute(query, (session,)).fetchone()
    return None if row is None else _Row(*row)


def _is_there(db: Connection, number: int, seq: int, head: _Head) -> bool:
    """Whether this very batch, sent by an earlier attempt, is in the log: an equal one by another process is not."""
    query = "SELECT 1 FROM batches WHERE session = %s AND seq = %s AND link = %s AND xmin::text = %s"
    return db.execute(query, (number, seq, head.link, head.transaction)).fetchone() is not None


def _length(db: Connection, number: int) -> int:
    """The number of records in the batches of a session."""
    query = "SELECT coalesce(max(seq + count), 0) FROM batches WHERE session = %s"
    found = db.execute(query, (number,)).fetchone()
    return 0 if found is None else int(found[0])


def _waiting(db: Connection, session: str) -> bool:
    """Whether the inbox has unread entries."""
    return db.execute("SELECT 1 FROM inbox WHERE session = %s AND NOT taken LIMIT 1", (session,)).fetchone() is not None


def _insert(db: Connection, session: str, now: float) -> None:
    """Make the row of a session, unless it is there."""
    db.execute(
        "INSERT INTO sessions (id, started, updated, head) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
        (session, now, now, START),
    )


def _check_root(db: Connection, session: str, claim: Claim) -> None:
    """Raise unless the root of the tree is at the epoch of the claim. It stays there until the transaction ends."""
    row = db.execute("SELECT epoch FROM sessions WHERE id = %s FOR SHARE", (claim.root,)).fetchone()
    if row is None or row[0] != claim.epoch:
        raise taken_over(session, claim.root)


def _apply(db: Connection, session: str, number: int, change: Change) -> None:
    if "*" in change.answered:
        db.execute("DELETE FROM asks WHERE session = %s", (number,))
    elif change.answered:
        db.execute(
            "DELETE FROM asks WHERE session = %s AND id = ANY(%s)", (number, [key_of(key) for key in change.answered])
        )
    for asked in change.asked.values():
        db.execute(
            "INSERT INTO asks (session, id, data) VALUES (%s, %s, %s) "
            "ON CONFLICT (session, id) DO UPDATE SET data = excluded.data",
            (number, key_of(asked.id), encode(asked)),
        )
    if change.taken:
        db.execute(
            "UPDATE inbox SET taken = true, data = '' WHERE session = %s AND key = ANY(%s)",
            (session, [key_of(key) for key in change.taken]),
        )


def _prune(db: Connection, before: float) -> int:
    count = 0
    query = (
        "SELECT number, id FROM sessions WHERE status IN ('open', 'ended') AND updated < %s ORDER BY number FOR UPDATE"
    )
    for number, session in db.execute(query, (before,)).fetchall():
        query = "SELECT seq, data FROM batches WHERE session = %s AND NOT pruned"
        for seq, data in db.execute(query, (number,)).fetchall():
            if (smaller := prune_lines(unpack_batch(session, seq, data))) is not None:
                query = "UPDATE batches SET data = %s, pruned = true WHERE session = %s AND seq = %s"
                db.execute(query, (pack(smaller), number, seq))
                count += 1
    return count
