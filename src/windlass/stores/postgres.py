"""The store for many machines: PostgreSQL. An append locks its session's row and returns after its COMMIT."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from windlass.errors import ConfigError, SessionBusy, SessionConflict, StoreError
from windlass.ids import check_id
from windlass.logs import Batch, Log, SessionInfo, Verified
from windlass.ownership import Claim, Lost, Ownership, Passes, Work
from windlass.records import Asked, Record, encode

from .batches import Change, change_of, decode_batches, lines_of, pack
from .chains import Chain, chain_of, pack_seals
from .derived import (
    CURSOR,
    INBOX,
    LOG,
    PIPELINE,
    NewSession,
    cursor_checksum,
    cursor_of,
    entry_checksum,
    inbox_entries,
    pipeline_checksum,
    pipeline_of,
    prepare,
    read_stored,
    verify_stored,
)
from .owners import Owner, ServerLock, is_held_by_server, number_of, signs_of_life
from .postgres_schema import executes, format_of, mark_tombstones
from .postgres_server import ServerConnections, connect_alone, settings_of, use_server
from .postgres_values import PostgresValues
from .postgres_wakeups import SHARED, WakeUps, bucket_of, channel_of, room_of, root_of
from .pruning import LIMIT, Pruned, prune_rows, pruned_count
from .reading import asked_of, infos_of, read_batches
from .refusals import busy, busy_here, taken_over
from .session_rows import check_absent, check_claimed, claim_checksum, count_session, lost_row
from .shared import (
    Search,
    as_json,
    check_end,
    conflict,
    erased_session,
    key_of,
    used_session,
)
from .sharing import Lease, call_after_fork
from .tables import store_problems
from .tallies import begin_row, count_row, tally_checksum
from .values import value_problems
from .work import Candidate, Dialect, find_lost, find_owners, find_unserved, find_work

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
    engine: str
    claim: bytes


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
    every wait for a connection or a lock. A pooler between store and server must be in session mode. With a `key`,
    nobody who does not have it can change a log unnoticed; a schema is always opened with the key that it was made
    with.
    """

    durable = True
    shows_life = True

    def __init__(
        self,
        url: str,
        *,
        schema: str = "windlass",
        max_size: int = 8,
        timeout: float = 30.0,
        key: str | bytes | None = None,
    ) -> None:
        if re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) is None:
            raise ConfigError(f"schema={schema!r} must be a lower-case name of letters, digits and underscores")
        self.schema = schema
        self.max_size = max_size
        self.timeout = timeout
        self.chain = chain_of(key)
        settings = settings_of(url, schema, max_size, timeout)
        self._server = use_server(self, settings, format_of(self.chain))
        self._owner = _use_owner(self, settings)
        self._wake_ups = _use_wake_ups(self, settings)
        self._channel, self._room = channel_of(schema), room_of(schema)
        self.values = PostgresValues(self._server, self.chain)
        self._pipelines: set[str] = set()
        self._start_anew()
        call_after_fork(self._start_anew)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._heads: OrderedDict[str, _Head] = OrderedDict()

    async def close(self) -> None:
        """Wait for pending writes, then close the connections, unless another store of this process uses them."""
        await self._wake_ups.end()
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
        if appending.heard:
            self._notify(server, session, appending.ends)
        return waiting

    def _notify(self, server: ServerConnections, session: str, ends: bool) -> None:
        """Wake those who listen to a session. If that fails, they look themselves a little later."""
        payload = ("e" if ends else "a") + root_of(session)
        with suppress(StoreError):
            notify = "SELECT pg_notify(%s, %s)"
            server.attempt("write", lambda db: db.execute(notify, (self._channel, payload)), reads=True)

    def _append(self, db: Connection, appending: _Appending) -> bool:
        session, expected, claim = appending.session, appending.expected, appending.claim
        change = change_of(appending.records) or _NO_CHANGE
        if claim is not None:
            self._owner.get().take()
            if session != claim.root:
                _check_root(db, session, claim)
        if not expected:
            _insert(db, self.chain, session, change.at or time.time())
        row = _existing(db, session, expected)
        if appending.head is not None and _is_there(db, row.number, expected, appending.head):
            return _waiting(db, session)
        self._check(db, row, session, expected)
        owner, epoch = self._check_claim(db, row, session, claim)
        if change.ends:
            owner = ""
        elif change.status == "running" and claim is not None and session == claim.root:
            owner = self._owner.get().name
        self._apply(db, session, row.number, change)
        return self._extend(db, appending, row, change, owner, epoch)

    def _extend(self, db: Connection, appending: _Appending, row: _Row, change: Change, owner: str, epoch: int) -> bool:
        """Write a batch, link it to the chain, and update the session's row. Returns whether the inbox has entries."""
        session, expected, records = appending.session, appending.expected, appending.records
        appending.ends = change.ends or change.status == "suspended"
        lines, length = lines_of(records), expected + len(records)
        link, seals, nonce = self.chain.seal(session, expected, row.head, lines)
        made = db.execute(
            "WITH made AS (INSERT INTO batches VALUES (%s, %s, %s, %s, %s, %s, %s) "
            "RETURNING xmin::text AS transaction) "
            "UPDATE sessions SET records = %s, head = %s, checksum = %s, owner = %s, epoch = %s, claim = %s, "
            "status = coalesce(%s, status), agent = coalesce(%s, agent), "
            "title = CASE WHEN title = '' THEN coalesce(%s, '') ELSE title END, "
            "updated = coalesce(%s, updated), started = coalesce(%s, started), parent = coalesce(%s, parent) "
            "WHERE number = %s "
            "RETURNING (SELECT transaction FROM made), EXISTS (SELECT FROM inbox WHERE session = %s AND NOT taken), "
            f"NOT ({SHARED} AND {SHARED})",
            (
                row.number, expected, len(records), link, pack(lines), pack_seals(seals), nonce or None,
                length, link, self.chain.end(session, length, link), owner, epoch,
                self._claim_checksum(row, session, owner, epoch),
                change.status, change.agent, change.title, change.at or None,
                None if expected else change.at or None, change.parent, row.number, session,
                self._room, bucket_of(session, False), self._room, bucket_of(session, appending.ends),
            ),
        ).fetchone()  # fmt: skip
        assert made is not None
        appending.head, appending.heard = _Head(length, link, made[0]), made[2]
        return bool(made[1])

    def _check(self, db: Connection, row: _Row, session: str, expected: int) -> None:
        """Raise unless the log can be extended: it has the expected length, and this store wrote its end."""
        if row.records != expected:
            check_end(session, _length(db, row.number), row.records)
            raise conflict(session, row.records, expected)
        mine = self._heads.get(session)
        if mine is not None and mine.records == expected and mine.link != row.head:
            raise SessionConflict(f"session {session!r} was taken over by another process", session=session)

    def _append_nothing(self, db: Connection, appending: _Appending, *, again: bool = True) -> bool:
        """An append without records, which may begin a pass; with `again`, one that was begun already."""
        session, claim = appending.session, appending.claim
        begins = claim is not None and claim.begins
        if begins and not appending.expected:
            _insert(db, self.chain, session, time.time())
        row = _locked(db, session)
        if row is None:
            check_absent(executes(db), session)
        if (found := 0 if row is None else row.records) != appending.expected:
            raise conflict(session, found, appending.expected)
        if row is not None and begins:
            self._owner.get().take()
            owner, epoch = self._check_claim(db, row, session, claim, again)
            checksum = self._claim_checksum(row, session, owner, epoch)
            query = "UPDATE sessions SET owner = %s, epoch = %s, claim = %s WHERE number = %s"
            db.execute(query, (owner, epoch, checksum, row.number))
        return _waiting(db, session)

    # ------------------------------------------------------------ who owns a session

    async def ownership(self, session: str) -> Ownership:
        def work(db: Connection) -> Ownership:
            query: LiteralString = "SELECT owner, epoch, engine, claim FROM sessions WHERE id = %s"
            row = db.execute(query, (session,)).fetchone()
            if row is None:
                return Ownership()
            check_claimed(self.chain, session, *row)
            return Ownership(row[1], row[0], self._is_alive(db, row[0]), row[2])

        return await self._server.get().look(work)

    async def release(self, session: str, epoch: int) -> None:
        await self._write(lambda db: self._release(db, session, epoch))

    def _release(self, db: Connection, session: str, epoch: int) -> None:
        row = _locked(db, session)
        if row is not None and (row.owner, row.epoch) == (self._owner.get().name, epoch):
            query: LiteralString = "UPDATE sessions SET owner = '', claim = %s WHERE number = %s"
            db.execute(query, (claim_checksum(self.chain, session, "", epoch, row.engine), row.number))

    def _is_alive(self, db: Connection, name: str) -> bool:
        return name != "" and self._owner.get().is_alive(name, lambda number: is_held_by_server(db, number))

    def _may_be_alive(self, db: Connection, name: str) -> bool:
        """`_is_alive` for workers, who take sessions unasked. A server that has just started has lost the locks of
        processes that run: they take them again."""
        return self._is_alive(db, name) or _has_just_started(db)

    def _check_claim(
        self, db: Connection, row: _Row, session: str, claim: Claim | None, again: bool = False
    ) -> tuple[str, int]:
        """The owner and the epoch that a batch leaves in its session's row. Raises if the claim is lost.

        A claim without records may be made `again`, after a cancel or a lost connection.
        """
        if claim is None or session != claim.root:
            return row.owner, row.epoch
        if claim.begins:
            check_claimed(self.chain, session, row.owner, row.epoch, row.engine, row.claim)
        mine = self._owner.get().name
        made = again and (row.owner, row.epoch) == (mine, claim.epoch)
        if row.epoch != claim.epoch - claim.begins and not made:
            if claim.begins and self._is_alive(db, row.owner):
                raise busy(session, row.owner)
            raise taken_over(session, claim.root)
        return "" if claim.ends else mine if claim.begins else row.owner, claim.epoch

    def _claim_checksum(self, row: _Row, session: str, owner: str, epoch: int) -> bytes:
        """The checksum that a batch leaves in its session's row. Most batches change neither owner nor epoch."""
        if (owner, epoch) == (row.owner, row.epoch):
            return row.claim
        return claim_checksum(self.chain, session, owner, epoch, row.engine)

    # ------------------------------------------------------------ wake-ups for readers

    def listen(self, session: str, ring: Callable[[], None], *, ends: bool = False) -> Callable[[], None]:
        """Call `ring` after appends to a session, or with `ends` only after those that end a turn or let it wait."""
        return self._wake_ups.get().listen(session, ring, ends)

    # ------------------------------------------------------------ work for workers

    async def take_work(
        self, agent: str, limit: int, *, except_for: Collection[str] = (), due: Sequence[str] = ()
    ) -> Sequence[Work]:
        def look(db: Connection) -> list[Candidate]:
            most = limit + len(except_for) + len(self.passes.all())
            return find_work(executes(db), _DIALECT, partial(self._may_be_alive, db), agent, due, most)

        server = self._server.get()
        found = [one for one in await server.look(look) if self._is_free(one, except_for)][:limit]
        return await server.write(lambda db: self._take_work(db, found), repeatable=False) if found else ()

    def _is_free(self, candidate: Candidate, except_for: Collection[str]) -> bool:
        return candidate.session not in except_for and self.passes.get(candidate.session) is None

    def _take_work(self, db: Connection, found: Sequence[Candidate]) -> list[Work]:
        """Begin a pass for each session whose row no other worker has locked, and that nobody has begun one for."""
        for session in sorted([one.session for one in found if not one.epoch and not one.records]):
            _insert(db, self.chain, session, time.time())
        query: LiteralString = "SELECT id FROM sessions WHERE id = ANY(%s) ORDER BY id FOR UPDATE SKIP LOCKED"
        free = {session for (session,) in db.execute(query, ([one.session for one in found],)).fetchall()}
        taken: list[Work] = []
        for session, records, epoch, background in found:
            if session not in free:
                continue
            if background:
                taken.append(Work(session))
                continue
            with suppress(SessionBusy, SessionConflict):
                claim = Claim(session, epoch + 1, begins=True)
                self._append_nothing(db, _Appending(session, (), records, claim), again=False)
                taken.append(Work(session, epoch + 1))
        return taken

    async def signs_of_life(self, engine: str) -> Mapping[str, str]:
        def look(db: Connection) -> dict[str, str]:
            owners = find_owners(executes(db), _DIALECT, engine)
            signs = signs_of_life(db) if owners else {}
            numbers = {owner: number_of(owner) for owner in owners}
            return {owner: signs[number] for owner, number in numbers.items() if number in signs}

        return await self._server.get().look(look)

    async def unserved(self, engine: str, agent: str, limit: int) -> Sequence[str]:
        def look(db: Connection) -> list[str]:
            alive = partial(self._may_be_alive, db)
            return find_unserved(executes(db), _DIALECT, alive, engine, agent, limit)

        return await self._server.get().look(look)

    async def take_lost(self, engine: str, limit: int, *, silent: Collection[str] = ()) -> Sequence[Lost]:
        def look(db: Connection) -> list[Lost]:
            alive = partial(self._may_be_alive, db)
            return find_lost(executes(db), _DIALECT, alive, engine, limit, silent)

        server = self._server.get()
        found = [one for one in await server.look(look) if one.owner != self.passes.owner]
        return await server.write(lambda db: self._take_lost(db, found), repeatable=False) if found else ()

    def _take_lost(self, db: Connection, found: Sequence[Lost]) -> list[Lost]:
        """Release sessions of lost processes, unless another process has locked or taken them. With a new epoch, a
        process that was only silent writes no more."""
        taken: list[Lost] = []
        query: LiteralString = (
            "SELECT number, id, owner, epoch, engine, claim FROM sessions WHERE id = ANY(%s) ORDER BY id "
            "FOR UPDATE SKIP LOCKED"
        )
        for number, session, owner, epoch, engine, claim in db.execute(query, ([one.session for one in found],)):
            if (lost := Lost(session, owner)) not in found:
                continue
            with suppress(StoreError):  # a row that was changed: who works on the session hears of it
                check_claimed(self.chain, session, owner, epoch, engine, claim)
                released = claim_checksum(self.chain, session, "", epoch + 1, engine)
                update: LiteralString = "UPDATE sessions SET owner = '', epoch = %s, claim = %s WHERE number = %s"
                db.execute(update, (epoch + 1, released, number))
                taken.append(lost)
        return taken

    async def assign(self, session: str, engine: str, *, former: str = "") -> str:
        return await self._write(lambda db: self._assign(db, session, engine, former))

    def _assign(self, db: Connection, session: str, engine: str, former: str) -> str:
        if (row := _locked(db, session)) is None:
            check_absent(executes(db), session)
            _insert(db, self.chain, session, time.time())
        row = _existing(db, session, 0)
        check_claimed(self.chain, session, row.owner, row.epoch, row.engine, row.claim)
        if row.engine not in ("", former, engine):
            return row.engine
        if row.engine != engine and self.passes.get(session) is not None:
            raise busy_here(session)
        if row.engine != engine and self._is_alive(db, row.owner):
            raise busy(session, row.owner)
        checksum = claim_checksum(self.chain, session, row.owner, row.epoch, engine)
        query: LiteralString = "UPDATE sessions SET engine = %s, claim = %s WHERE number = %s"
        db.execute(query, (engine, checksum, row.number))
        return engine

    # ------------------------------------------------------------ the log, read

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        return await decode_batches(session, await self.batches(session, start), start)

    async def batches(self, session: str, start: int = 0) -> Sequence[Batch]:
        """The append batches that contain the records from `start` on. They and the end of the log are checked."""
        if start > 0:
            rows = await self._read(
                LOG + "AND seq >= coalesce((SELECT max(before.seq) FROM batches before WHERE "
                "before.session = number AND before.seq < (SELECT max(first.seq) FROM batches first WHERE "
                "first.session = number AND first.seq <= %s)), 0) WHERE id = %s ORDER BY seq",
                min(start, _MAX), session,
            )  # fmt: skip
        else:
            rows = await self._read(LOG + "WHERE id = %s ORDER BY seq", session)
        if not rows:
            await self._server.get().look(lambda db: check_absent(executes(db), session))
        return await read_batches(self.chain, session, rows, start)

    async def create(self, logs: Sequence[Log]) -> None:
        """Store new sessions, all or none. Raises `SessionConflict` if one of the ids was used before."""
        new = [await prepare(self.chain, log) for log in logs]
        await self._write(lambda db: _create(db, self.chain, new), repeatable=False)

    # ------------------------------------------------------------ sessions and their questions

    async def sessions(self) -> Sequence[str]:
        rows = await self._read("SELECT id FROM sessions WHERE status != 'erased' AND records > 0 ORDER BY number")
        return [row[0] for row in rows]

    async def find(
        self, *, search: str = "", status: str | None = None, limit: int | None = None
    ) -> Sequence[SessionInfo]:
        wanted = Search(search, status, limit)
        text = wanted.text or ""
        rows = [] if wanted.nothing else await self._read(
            "SELECT id, status, agent, title, started, updated, records, "
            "(SELECT count(*) FROM asks WHERE session = number), parent FROM sessions "
            "WHERE (position(%s in lower(id COLLATE \"C\")) > 0 OR position(%s in lower(title COLLATE \"C\")) > 0 "
            "OR position(%s in lower(agent COLLATE \"C\")) > 0) AND (%s::text IS NULL OR status = %s) "
            "AND (records > 0 OR status = 'erased') ORDER BY updated DESC, number DESC LIMIT %s",
            text, text, text, status, status, None if wanted.text is None else wanted.limit,
        )  # fmt: skip
        infos = infos_of(rows)
        return infos if wanted.text is not None else wanted.among(infos)

    async def approvals(self, session: str | None = None) -> Sequence[tuple[str, Asked]]:
        rows = await self._read(
            "SELECT sessions.id, data FROM asks JOIN sessions ON session = number "
            "WHERE %s::text IS NULL OR sessions.id = %s ORDER BY number, position",
            session, session,
        )  # fmt: skip
        return [(name, asked_of(name, data)) for name, data in rows]

    async def prune(self, *, before: float) -> int:
        """Delete the injected parts of turns that have ended; returns how many batches were pruned.

        Each transaction prunes a few batches, so that nobody waits long. An index names those that can be pruned.
        """
        await self.values.prune(before)
        count, after, damage = 0, (0, -1), list[StoreError]()
        while True:
            rows = await self._read(
                "SELECT number, id, seq, data, seals FROM batches JOIN sessions ON session = number WHERE nonce IS NOT "
                "NULL AND (session, seq) > (%s, %s) AND status IN ('open', 'ended') AND updated < %s "
                "ORDER BY session, seq LIMIT %s",
                *after, before, LIMIT,
            )  # fmt: skip
            if not rows:
                return pruned_count(count, damage)
            pruned = await prune_rows(rows, damage)
            count += await self._write(partial(_prune, pruned=pruned, before=before))
            after = rows[-1][0], rows[-1][2]

    async def erase(self, session: str) -> bool:
        """Erase a session and the sessions of its sub-agents. A tombstone with the chain's head remains."""
        check_id(session)
        return await self._write(lambda db: self._erase(db, session), repeatable=False)

    def _erase(self, db: Connection, session: str) -> bool:
        rows = db.execute(
            "WITH RECURSIVE tree (name) AS "
            '(SELECT %s::text COLLATE "C" UNION SELECT id FROM tree JOIN sessions ON parent = name) '
            "SELECT number, id, owner FROM sessions WHERE id IN (SELECT name FROM tree) AND status != 'erased' "
            "ORDER BY number FOR UPDATE",
            (session,),
        ).fetchall()
        for _, name, owner in rows:
            if self.passes.get(name) is not None:
                raise busy_here(name)
            if self._is_alive(db, owner):
                raise busy(name, owner)
        numbers, names = [row[0] for row in rows], [row[1] for row in rows]
        db.execute("DELETE FROM batches WHERE session = ANY(%s)", (numbers,))
        db.execute("DELETE FROM asks WHERE session = ANY(%s)", (numbers,))
        db.execute("DELETE FROM inbox WHERE session = ANY(%s)", (names,))
        db.execute("DELETE FROM cursors WHERE session = ANY(%s)", (names,))
        db.execute("DELETE FROM tallies WHERE kind IN ('inbox', 'cursors') AND session = ANY(%s)", (names,))
        db.execute(
            "UPDATE sessions SET status = 'erased', title = '', start = '', updated = %s WHERE number = ANY(%s)",
            (time.time(), numbers),
        )
        mark_tombstones(db, self.chain, numbers)
        return bool(rows)

    async def verify(self, session: str) -> Verified:
        """Verify the log of a session, and that all tables agree with it; raises `StoreError` where they do not."""
        stored = await self._server.get().snapshot(lambda db: read_stored(executes(db), session))
        return await verify_stored(self.chain, session, stored)

    async def verify_store(self) -> Sequence[str]:
        """What is wrong with the store as a whole, besides its sessions; see `verify` for those."""

        def work(db: Connection) -> list[str]:
            def select(query: str) -> list[tuple[Any, ...]]:
                return db.execute(query.encode()).fetchall()

            return [*store_problems(select, self.chain), *value_problems(select, self.chain)]

        return await self._server.get().snapshot(work)

    # ------------------------------------------------------------ inbox, cursors, pipelines

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        entry = (session, key_of(key), kind, as_json(data))
        return await self._write(lambda db: self._put(db, *entry), repeatable=False)

    def _put(self, db: Connection, session: str, key: bytes, kind: str, data: bytes) -> bool:
        execute = executes(db)
        before = begin_row(execute, self.chain, "inbox", session, _LOCKED)
        found = db.execute("SELECT nextval(pg_get_serial_sequence('inbox', 'position'))").fetchone()
        position = found[0] if found is not None else 0
        checksum = entry_checksum(self.chain, session, key, kind, position, False, data)
        query = (
            "INSERT INTO inbox (position, session, key, kind, data, checksum) OVERRIDING SYSTEM VALUE "
            "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
        )
        made = db.execute(query, (position, session, key, kind, data, checksum)).rowcount > 0
        if made:
            count_row(execute, self.chain, "inbox", before, session)
        return made

    async def unread(self, sessions: Sequence[str]) -> Sequence[str]:
        """This is asked once a second while turns run. A lock that was lost with the server is taken again here."""

        def work(db: Connection) -> list[str]:
            self._owner.get().take()
            self._owner.get().lock.show_life()
            query = "SELECT DISTINCT session FROM inbox WHERE NOT taken AND session = ANY(%s)"
            return [row[0] for row in db.execute(query, (list(sessions),)).fetchall()]

        return await self._server.get().look(work)

    async def inbox(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        query = (INBOX + " AND NOT taken ORDER BY inbox.position").replace("?", "%s")
        return inbox_entries(self.chain, session, await self._read(query, session, session, session), taken)

    async def cursor(self, session: str, reader: str) -> int:
        rows = await self._read(CURSOR.replace("?", "%s"), session, session, session, reader)
        return cursor_of(self.chain, session, reader, rows[0])

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        return await self._write(lambda db: self._advance(db, session, reader, seq, expected))

    def _advance(self, db: Connection, session: str, reader: str, seq: int, expected: int | None) -> bool:
        execute, checksum = executes(db), cursor_checksum(self.chain, session, reader, seq)
        if not expected:
            before = begin_row(execute, self.chain, "cursors", session, _LOCKED)
            query: LiteralString = "INSERT INTO cursors VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
            if db.execute(query, (session, reader, seq, checksum)).rowcount:
                count_row(execute, self.chain, "cursors", before, session)
                return True
        query = (
            "UPDATE cursors SET seq = %s, checksum = %s WHERE session = %s AND reader = %s AND "
            "(%s::bigint IS NULL OR seq = %s)"
        )
        return db.execute(query, (seq, checksum, session, reader, expected, expected)).rowcount > 0

    async def behind(self, reader: str) -> Sequence[SessionInfo]:
        rows = await self._read(
            "SELECT id, status, agent, title, started, updated, records, "
            "(SELECT count(*) FROM asks WHERE session = number), parent FROM sessions "
            "LEFT JOIN cursors ON cursors.session = id AND reader = %s "
            "WHERE status != 'erased' AND records > coalesce(seq, 0) ORDER BY number",
            reader,
        )
        return infos_of(rows)

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        if digest not in self._pipelines:
            row = (digest, data, pipeline_checksum(self.chain, digest, data))
            await self._write(lambda db: self._put_pipeline(db, row))
            self._pipelines.add(digest)

    def _put_pipeline(self, db: Connection, row: tuple[str, bytes, bytes]) -> None:
        execute = executes(db)
        before = begin_row(execute, self.chain, "pipelines", lock=_LOCKED)
        if db.execute("INSERT INTO pipelines VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", row).rowcount:
            count_row(execute, self.chain, "pipelines", before)

    async def pipeline(self, digest: str) -> bytes | None:
        rows = await self._read(PIPELINE.replace("?", "%s"), digest)
        return pipeline_of(self.chain, digest, rows[0])

    # ------------------------------------------------------------ in a transaction

    def _apply(self, db: Connection, session: str, number: int, change: Change) -> None:
        if "*" in change.answered:
            db.execute("DELETE FROM asks WHERE session = %s", (number,))
        elif change.answered:
            query = "DELETE FROM asks WHERE session = %s AND id = ANY(%s)"
            db.execute(query, (number, [key_of(key) for key in change.answered]))
        for asked in change.asked.values():
            _insert_ask(db, number, asked)
        for key in change.taken:
            self._take(db, session, key_of(key))

    def _take(self, db: Connection, session: str, key: bytes) -> None:
        """Delete the data of an inbox entry; its key stays."""
        query = "SELECT kind, position FROM inbox WHERE session = %s AND key = %s"
        for kind, position in db.execute(query, (session, key)).fetchall():
            checksum = entry_checksum(self.chain, session, key, kind, position, True, b"")
            db.execute(
                "UPDATE inbox SET taken = true, data = '', checksum = %s WHERE session = %s AND key = %s",
                (checksum, session, key),
            )


_LOCKED = "FOR UPDATE"
_UNIQUE_VIOLATION = "23505"
_DIALECT = Dialect("split_part({0}, '//', 1)", "NOT taken")
_RETURN = 5.0
"""Within so many seconds after a start of the server, the processes that run have taken their locks again."""
_MAX = 2**62
"""More records than a log can have."""


def _use_owner(store: object, settings: Settings) -> Lease[Owner[ServerLock]]:
    """This process as the owner of sessions in a schema, for as long as the store lives."""
    key = ("owner", "postgresql", settings.url, settings.schema)
    return Lease(store, f"({settings.place})", key, lambda: Owner(ServerLock(lambda: connect_alone(settings))))


def _use_wake_ups(store: object, settings: Settings) -> Lease[WakeUps]:
    """What wakes readers of logs in this process, for as long as the store lives."""
    key = ("wake-ups", "postgresql", settings)
    return Lease(store, f"({settings.place})", key, lambda: WakeUps(settings))


_NO_CHANGE = Change()


class _Appending:
    """A batch to append. The attempt that writes it sets `head`, whether or not the write is committed.

    `ends` says that it ends a turn or lets it wait, and `heard` that other processes listen to the session.
    """

    def __init__(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None) -> None:
        self.session = session
        self.records = records
        self.expected = expected
        self.claim = claim
        self.head: _Head | None = None
        self.ends = self.heard = False


def _locked(db: Connection, session: str) -> _Row | None:
    """A session's row, locked until the transaction ends."""
    query = "SELECT number, status, records, head, owner, epoch, engine, claim FROM sessions WHERE id = %s FOR UPDATE"
    row = db.execute(query, (session,)).fetchone()
    return None if row is None else _Row(*row)


def _has_just_started(db: Connection) -> bool:
    """Whether processes that held a lock may not have taken it again since the server started.

    A server whose clock was set back does not know when it started.
    """
    query = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) BETWEEN 0 AND %s"
    row = db.execute(query, (_RETURN,)).fetchone()
    return row is not None and bool(row[0])


def _existing(db: Connection, session: str, expected: int) -> _Row:
    """A session's row, locked, of a log that can be extended."""
    row = _locked(db, session)
    if row is None:
        check_absent(executes(db), session)
        raise conflict(session, 0, expected)
    if row.status == "erased":
        raise erased_session(session)
    return row


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


def _insert(db: Connection, chain: Chain, session: str, now: float) -> None:
    """Make the row of a session, unless it is there. Raises if it was there before."""
    start = os.urandom(16)
    try:
        db.execute(
            "WITH made AS (INSERT INTO sessions (id, started, updated, head, start, checksum) "
            "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING id) "
            "INSERT INTO tallies SELECT 'sessions', id, 1, %s FROM made",
            (
                session, now, now, start, start, chain.end(session, 0, start),
                tally_checksum(chain, "sessions", session, 1),
            ),
        )  # fmt: skip
    except Exception as error:
        if getattr(error, "sqlstate", None) == _UNIQUE_VIOLATION:  # the session was counted when its row was made
            raise lost_row(session) from None
        raise


def _check_root(db: Connection, session: str, claim: Claim) -> None:
    """Raise unless the root of the tree is at the epoch of the claim. It stays there until the transaction ends."""
    row = db.execute("SELECT epoch FROM sessions WHERE id = %s FOR SHARE", (claim.root,)).fetchone()
    if row is None:
        check_absent(executes(db), claim.root)
    if row is None or row[0] != claim.epoch:
        raise taken_over(session, claim.root)


def _insert_ask(db: Connection, number: int, asked: Asked) -> None:
    db.execute(
        "INSERT INTO asks (session, id, data) VALUES (%s, %s, %s) "
        "ON CONFLICT (session, id) DO UPDATE SET data = excluded.data",
        (number, key_of(asked.id), encode(asked)),
    )


def _create(db: Connection, chain: Chain, new: Sequence[NewSession]) -> None:
    for one in new:
        derived, now = one.derived, time.time()
        check_absent(executes(db), one.session)
        made = db.execute(
            "INSERT INTO sessions (id, status, agent, title, parent, started, updated, records, head, start, checksum) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING number",
            (
                one.session, derived.status, derived.agent, derived.title, derived.parent, derived.started or now,
                derived.updated or now, one.records, one.head, one.start,
                chain.end(one.session, one.records, one.head),
            ),
        ).fetchone()  # fmt: skip
        if made is None:
            row = _locked(db, one.session)
            if row is not None and row.status == "erased":
                raise erased_session(one.session)
            raise used_session(one.session)
        count_session(executes(db), chain, one.session)
        with db.cursor() as cursor:
            query = "INSERT INTO batches VALUES (%s, %s, %s, %s, %s, %s, %s)"
            cursor.executemany(query, [(made[0], *row) for row in one.rows])
        for asked in derived.asks.values():
            _insert_ask(db, made[0], asked)


def _prune(db: Connection, *, pruned: Sequence[Pruned], before: float) -> int:
    """Replace batches by what is left of them, unless a turn has begun meanwhile."""
    query = (
        "UPDATE batches SET data = %s, nonce = NULL WHERE session = %s AND seq = %s AND nonce IS NOT NULL AND EXISTS "
        "(SELECT FROM sessions WHERE number = session AND status IN ('open', 'ended') AND updated < %s)"
    )
    return sum([db.execute(query, (one.data, one.number, one.seq, before)).rowcount for one in pruned])
