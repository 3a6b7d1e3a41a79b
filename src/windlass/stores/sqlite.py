"""The embedded store: one SQLite file and one writer thread. An append returns after its COMMIT."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from windlass.errors import SessionBusy, SessionConflict, StoreError
from windlass.ids import check_id
from windlass.logs import Batch, Log, SessionInfo, Verified
from windlass.ownership import Claim, Lost, Ownership, Passes, Work
from windlass.records import Asked, Record, encode

from .batches import Change, change_of, decode_batches, lines_of, pack
from .chains import chain_of, pack_seals
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
    tombstone_checksum,
    verify_stored,
)
from .owners import FileLocks, Owner
from .pruning import LIMIT, Pruned, prune_rows, pruned_count
from .reading import asked_of, infos_of, read_batches
from .refusals import busy, busy_here, taken_over
from .session_rows import check_absent, check_claimed, claim_checksum, count_session
from .shared import (
    Search,
    as_json,
    check_end,
    conflict,
    erased_session,
    key_of,
    used_session,
)
from .sharing import Lease
from .sqlite_file import absolute, use_file
from .sqlite_schema import executes, format_of
from .sqlite_values import SQLiteValues
from .tables import TOMBSTONE, missing_numbers, store_problems
from .tallies import begin_row, count_row
from .values import value_problems
from .work import Candidate, Dialect, find_lost, find_unserved, find_work

T = TypeVar("T")

_KNOWN = 4096
"""For how many sessions the heads of their chains are remembered."""


_UPDATE = "UPDATE sessions SET records = ?, head = ?, checksum = ? WHERE number = ?"
_UPDATE_AT_EPOCH = f"{_UPDATE} AND epoch = ?"
"""The epoch is checked on the way: a statement of its own would cost time."""

_UNREAD = "SELECT DISTINCT session FROM inbox WHERE taken = 0"
_ASKED = 500
"""How many sessions one query names: some builds of SQLite allow 999 parameters, and equal texts are parsed once."""


class _Head(NamedTuple):
    """The end of a session's log."""

    number: int
    records: int
    link: bytes


_Heads: TypeAlias = "OrderedDict[str, _Head]"
"""The end of logs as the last transactions left them; the file forgets them when one fails."""


class SQLiteStore:
    """Keeps logs in one SQLite file. Any number of processes may share it; one at a time advances a session.

    With `synchronous="FULL"`, the default, acknowledged records survive a power cut. With "NORMAL" they survive a crash
    of the process, but a power cut may lose the last ones. With a `key`, nobody who does not have it can change a log
    unnoticed; a file is always opened with the key that it was made with.
    """

    durable = True
    shows_life = False

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        timeout: float = 30.0,
        key: str | bytes | None = None,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise StoreError(f"synchronous={synchronous!r} must be 'FULL' or 'NORMAL'")
        self.path = absolute(path)
        self.synchronous = synchronous
        self.timeout = timeout
        self.chain = chain_of(key)
        self._pipelines: set[str] = set()
        self._file = use_file(self, self.path, synchronous, timeout, format_of(self.chain))
        self._owner = _use_owner(self, self.path)
        self.values = SQLiteValues(self._file, self.chain)

    async def close(self) -> None:
        """Wait for pending writes, then close the file, unless another store of this process uses it."""
        await self._file.end()
        await self._owner.end()

    @property
    def passes(self) -> Passes:
        return self._owner.get().passes

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._file.get().write(work)

    async def _read(self, query: str, *values: Any) -> list[Any]:
        return await self._file.get().read(query, *values)

    # ------------------------------------------------------------ the log

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None) -> bool:
        file = self._file.get()

        def work(db: sqlite3.Connection) -> bool:
            return self._append(db, file.known, session, records, expected, claim)

        waiting = file.write_here(work)
        return await file.write(work) if waiting is None else waiting

    def _append(
        self,
        db: sqlite3.Connection,
        heads: _Heads,
        session: str,
        records: Sequence[Record],
        expected: int,
        claim: Claim | None,
    ) -> bool:
        if claim is not None and (claim.begins or session != claim.root):
            self._check_claim(db, session, claim, again=not records)
        head = _end_of_log(db, heads, session, expected)
        if records:
            self._append_records(db, heads, session, head, records, claim)
        elif claim is not None and claim.begins:
            self._begin_pass(db, session, head, claim)
        return db.execute("SELECT 1 FROM inbox WHERE session = ? AND taken = 0", (session,)).fetchone() is not None

    def _append_records(
        self,
        db: sqlite3.Connection,
        heads: _Heads,
        session: str,
        head: _Head | None,
        records: Sequence[Record],
        claim: Claim | None,
    ) -> None:
        """Extend a log, and update what the other tables have of its session."""
        change = change_of(records)
        if head is None:
            if claim is not None and session == claim.root and not claim.begins:
                raise taken_over(session, session)
            head = self._new(db, session, change)
        heads[session] = self._extend(db, heads, session, head, records, claim)
        heads.move_to_end(session)
        if len(heads) > _KNOWN:
            heads.popitem(last=False)
        if not head.records and change is not None and change.at:  # its row may have been made by a claim
            db.execute("UPDATE sessions SET started = ? WHERE number = ?", (change.at, head.number))
        if change is not None:
            self._apply(db, session, head.number, change)
        ends = change is not None and change.ends
        if claim is not None and session == claim.root and (claim.begins or ends or _goes_on(change)):
            self._own(db, session, head.number, claim, ends=ends or claim.ends)
        elif claim is None and ends:
            self._disown(db, session, head.number)

    def _extend(
        self,
        db: sqlite3.Connection,
        heads: _Heads,
        session: str,
        head: _Head,
        records: Sequence[Record],
        claim: Claim | None,
    ) -> _Head:
        """Write a batch and link it to the chain. Returns the new end of the log."""
        lines, length = lines_of(records), head.records + len(records)
        link, seals, nonce = self.chain.seal(session, head.records, head.link, lines)
        row = (head.number, head.records, len(records), link, pack(lines), pack_seals(seals), nonce or None)
        try:
            db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            heads.pop(session, None)
            now = _head(db, session)
            raise conflict(session, None if now is None else now.records, head.records) from None
        end = (length, link, self.chain.end(session, length, link), head.number)
        if claim is None or claim.begins or session != claim.root:
            db.execute(_UPDATE, end)
        elif not db.execute(_UPDATE_AT_EPOCH, (*end, claim.epoch)).rowcount:
            # other writes of the transaction are committed
            db.execute("DELETE FROM batches WHERE session = ? AND seq = ?", (head.number, head.records))
            raise taken_over(session, session)
        return _Head(head.number, length, link)

    def _begin_pass(self, db: sqlite3.Connection, session: str, head: _Head | None, claim: Claim) -> None:
        """Begin a pass without records."""
        if head is None:
            head = self._new(db, session, None)
            db.execute(_UPDATE, (0, head.link, self.chain.end(session, 0, head.link), head.number))
        self._own(db, session, head.number, claim, ends=claim.ends)

    def _new(self, db: sqlite3.Connection, session: str, change: Change | None) -> _Head:
        """Make the row of a session, which `_end_of_log` did not find."""
        now = time.time() if change is None else change.at
        start = os.urandom(16)
        row = (session, now, now, start)
        made = db.execute("INSERT INTO sessions (id, started, updated, start) VALUES (?, ?, ?, ?)", row)
        count_session(executes(db), self.chain, session)
        return _Head(made.lastrowid or 0, 0, start)

    def _create(self, db: sqlite3.Connection, new: Sequence[NewSession]) -> None:
        for one in new:  # before anything is written: what was written before an error is committed with other jobs
            if _head(db, one.session) is not None:
                raise used_session(one.session)
            check_absent(executes(db), one.session)
        for one in new:
            count_session(executes(db), self.chain, one.session)
            derived, now = one.derived, time.time()
            started, updated = derived.started or now, derived.updated or now
            made = db.execute(
                "INSERT INTO sessions (id, status, agent, title, parent, started, updated, records, head, start, "
                "checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    one.session, derived.status, derived.agent, derived.title, derived.parent, started, updated,
                    one.records, one.head, one.start, self.chain.end(one.session, one.records, one.head),
                ),
            )  # fmt: skip
            number = made.lastrowid or 0
            db.executemany("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", [(number, *row) for row in one.rows])
            for asked in derived.asks.values():
                _insert_ask(db, number, asked)

    # ------------------------------------------------------------ who owns a session

    async def ownership(self, session: str) -> Ownership:
        rows = await self._read("SELECT owner, epoch, engine, claim FROM sessions WHERE id = ?", session)
        if not rows:
            return Ownership()
        check_claimed(self.chain, session, *rows[0])
        name, epoch, engine, _ = rows[0]
        return Ownership(epoch, name, self._is_alive(name), engine)

    async def release(self, session: str, epoch: int) -> None:
        await self._write(lambda db: self._release(db, session, epoch))

    def _release(self, db: sqlite3.Connection, session: str, epoch: int) -> None:
        query = "SELECT number FROM sessions WHERE id = ? AND epoch = ? AND owner = ?"
        for (number,) in db.execute(query, (session, epoch, self._owner.get().name)).fetchall():
            self._set_owner(db, session, number, "", epoch)

    def _is_alive(self, name: str) -> bool:
        owner = self._owner.get()
        return name != "" and owner.is_alive(name, owner.lock.is_held)

    def _check_claim(self, db: sqlite3.Connection, session: str, claim: Claim, again: bool) -> None:
        """Raise unless the root is where the claim says: at the pass before, if it begins one, otherwise at its own.

        A claim without records may be made `again`, after a cancel. Nothing is written before all this is known: the
        other writes of the same transaction are committed.
        """
        query = "SELECT owner, epoch, engine, claim FROM sessions WHERE id = ?"
        row = db.execute(query, (claim.root,)).fetchone()
        if row is None:
            check_absent(executes(db), claim.root)
        owner, epoch, engine, checksum = row or ("", 0, "", b"")
        if claim.begins:
            check_claimed(self.chain, claim.root, owner, epoch, engine, checksum)
        mine = again and (owner, epoch) == (self._owner.get().name, claim.epoch)
        if epoch != claim.epoch - claim.begins and not mine:
            if claim.begins and self._is_alive(owner):
                raise busy(session, owner)
            raise taken_over(session, claim.root)
        if claim.begins and not claim.ends:
            self._owner.get().take()

    def _own(self, db: sqlite3.Connection, session: str, number: int, claim: Claim, *, ends: bool) -> None:
        """Write into a session's row whose pass this is, unless it ends."""
        self._set_owner(db, session, number, "" if ends else self._owner.get().name, claim.epoch)

    def _disown(self, db: sqlite3.Connection, session: str, number: int) -> None:
        """Clear the owner in a session's row: its turn has ended by an append without a claim."""
        owner, epoch = db.execute("SELECT owner, epoch FROM sessions WHERE number = ?", (number,)).fetchone()
        if owner != "":
            self._set_owner(db, session, number, "", epoch)

    def _set_owner(self, db: sqlite3.Connection, session: str, number: int, owner: str, epoch: int) -> None:
        (engine,) = db.execute("SELECT engine FROM sessions WHERE number = ?", (number,)).fetchone()
        checksum = claim_checksum(self.chain, session, owner, epoch, engine)
        query = "UPDATE sessions SET owner = ?, epoch = ?, claim = ? WHERE number = ?"
        db.execute(query, (owner, epoch, checksum, number))

    # ------------------------------------------------------------ work for workers

    async def take_work(
        self, agent: str, limit: int, *, except_for: Collection[str] = (), due: Sequence[str] = ()
    ) -> Sequence[Work]:
        def look(db: sqlite3.Connection) -> list[Candidate]:
            most = limit + len(except_for) + len(self.passes.all())
            return find_work(executes(db), _DIALECT, self._is_alive, agent, due, most)

        file = self._file.get()
        found = [one for one in await file.snapshot(look) if self._is_free(one, except_for)][:limit]
        return await file.write(lambda db: self._take_work(db, file.known, found)) if found else ()

    def _is_free(self, candidate: Candidate, except_for: Collection[str]) -> bool:
        return candidate.session not in except_for and self.passes.get(candidate.session) is None

    def _take_work(self, db: sqlite3.Connection, heads: _Heads, found: Sequence[Candidate]) -> list[Work]:
        """Begin a pass for each session that nobody has begun one for meanwhile."""
        taken: list[Work] = []
        for session, records, epoch, background in found:
            if background:
                taken.append(Work(session))
                continue
            with suppress(SessionBusy, SessionConflict):
                claim = Claim(session, epoch + 1, begins=True)
                self._check_claim(db, session, claim, again=False)
                self._begin_pass(db, session, _end_of_log(db, heads, session, records), claim)
                taken.append(Work(session, epoch + 1))
        return taken

    async def signs_of_life(self, engine: str) -> Mapping[str, str]:
        return {}

    async def unserved(self, engine: str, agent: str, limit: int) -> Sequence[str]:
        def look(db: sqlite3.Connection) -> list[str]:
            return find_unserved(executes(db), _DIALECT, self._is_alive, engine, agent, limit)

        return await self._file.get().snapshot(look)

    async def take_lost(self, engine: str, limit: int, *, silent: Collection[str] = ()) -> Sequence[Lost]:
        def look(db: sqlite3.Connection) -> list[Lost]:
            return find_lost(executes(db), _DIALECT, self._is_alive, engine, limit, silent)

        found = [one for one in await self._file.get().snapshot(look) if one.owner != self.passes.owner]
        return await self._write(lambda db: self._take_lost(db, found)) if found else ()

    def _take_lost(self, db: sqlite3.Connection, found: Sequence[Lost]) -> list[Lost]:
        """Release sessions of lost processes, unless another process has taken them. With a new epoch, a process that
        was only silent writes no more."""
        taken: list[Lost] = []
        for lost in found:
            query = "SELECT number, owner, epoch, engine, claim FROM sessions WHERE id = ? AND owner = ?"
            for number, owner, epoch, engine, claim in db.execute(query, (lost.session, lost.owner)).fetchall():
                with suppress(StoreError):  # a row that was changed: who works on the session hears of it
                    check_claimed(self.chain, lost.session, owner, epoch, engine, claim)
                    released = claim_checksum(self.chain, lost.session, "", epoch + 1, engine)
                    query = "UPDATE sessions SET owner = '', epoch = ?, claim = ? WHERE number = ?"
                    db.execute(query, (epoch + 1, released, number))
                    taken.append(lost)
        return taken

    async def assign(self, session: str, engine: str, *, former: str = "") -> str:
        return await self._write(lambda db: self._assign(db, session, engine, former))

    def _assign(self, db: sqlite3.Connection, session: str, engine: str, former: str) -> str:
        if (head := _head(db, session)) is None:
            check_absent(executes(db), session)
            head = self._new(db, session, None)
            db.execute(_UPDATE, (0, head.link, self.chain.end(session, 0, head.link), head.number))
        query = "SELECT owner, epoch, engine, claim FROM sessions WHERE number = ?"
        owner, epoch, found, claim = db.execute(query, (head.number,)).fetchone()
        check_claimed(self.chain, session, owner, epoch, found, claim)
        if found not in ("", former, engine):
            return str(found)
        if found != engine and self.passes.get(session) is not None:
            raise busy_here(session)
        if found != engine and self._is_alive(owner):
            raise busy(session, owner)
        checksum = claim_checksum(self.chain, session, owner, epoch, engine)
        db.execute("UPDATE sessions SET engine = ?, claim = ? WHERE number = ?", (engine, checksum, head.number))
        return engine

    # ------------------------------------------------------------ the log, read

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        return await decode_batches(session, await self.batches(session, start), start)

    async def batches(self, session: str, start: int = 0) -> Sequence[Batch]:
        """The append batches that contain the records from `start` on. They and the end of the log are checked."""
        rows = await self._file.get().snapshot(lambda db: _rows_of_log(db, session, start))
        return await read_batches(self.chain, session, rows, start)

    async def create(self, logs: Sequence[Log]) -> None:
        """Store new sessions, all or none. Raises `SessionConflict` if one of the ids was used before."""
        new = [await prepare(self.chain, log) for log in logs]
        await self._write(lambda db: self._create(db, new))

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
            "WHERE (instr(lower(id), ?) OR instr(lower(title), ?) OR instr(lower(agent), ?)) "
            "AND (? IS NULL OR status = ?) AND (records > 0 OR status = 'erased') "
            "ORDER BY updated DESC, number DESC LIMIT ?",
            text, text, text, status, status, -1 if wanted.text is None else wanted.limit,
        )  # fmt: skip
        infos = infos_of(rows)
        return infos if wanted.text is not None else wanted.among(infos)

    async def approvals(self, session: str | None = None) -> Sequence[tuple[str, Asked]]:
        rows = await self._read(
            "SELECT sessions.id, data FROM asks JOIN sessions ON session = number "
            "WHERE ? IS NULL OR sessions.id = ? ORDER BY number, position",
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
                "SELECT number, id, seq, data, seals FROM batches JOIN sessions ON session = number WHERE "
                f"nonce IS NOT NULL AND (session, seq) > (?, ?) AND {_OVER} ORDER BY session, seq LIMIT ?",
                *after, before, LIMIT,
            )  # fmt: skip
            if not rows:
                return pruned_count(count, damage)
            pruned = await prune_rows(rows, damage)
            count += await self._write(partial(_prune, pruned=pruned, before=before))
            after = rows[-1][0], rows[-1][2]

    async def erase(self, session: str) -> bool:
        """Erase a session and the sessions of its sub-agents. A tombstone with the chain's head remains.

        An empty batch remains at the end of the log, too: it makes a late append there fail.
        """
        check_id(session)
        file = self._file.get()
        return await file.write(lambda db: self._erase(db, file.known, session))

    def _erase(self, db: sqlite3.Connection, heads: _Heads, session: str) -> bool:
        rows = db.execute(
            "WITH RECURSIVE tree (name) AS (SELECT ? UNION SELECT id FROM tree JOIN sessions ON parent = name) "
            "SELECT number, id, owner FROM tree JOIN sessions ON id = name WHERE status != 'erased'",
            (session,),
        ).fetchall()
        for _, name, owner in rows:
            if self.passes.get(name) is not None:
                raise busy_here(name)
            if self._is_alive(owner):
                raise busy(name, owner)
        for number, name, _ in rows:
            head = _head(db, name)
            assert head is not None
            heads.pop(name, None)
            for statement in ("DELETE FROM batches WHERE session = ?", "DELETE FROM asks WHERE session = ?"):
                db.execute(statement, (number,))
            for table in ("inbox", "cursors"):
                db.execute(f"DELETE FROM {table} WHERE session = ?", (name,))
                db.execute("DELETE FROM tallies WHERE kind = ? AND session = ?", (table, name))
            db.execute("INSERT INTO batches VALUES (?, ?, 0, ?, x'', NULL, NULL)", (number, head.records, head.link))
            db.execute(
                "UPDATE sessions SET status = 'erased', title = '', records = ?, head = ?, updated = ?, start = x'' "
                "WHERE number = ?",
                (head.records, head.link, time.time(), number),
            )
            (row,) = db.execute(f"SELECT {TOMBSTONE} FROM sessions WHERE number = ?", (number,)).fetchall()
            checksum = tombstone_checksum(self.chain, row)
            db.execute("UPDATE sessions SET checksum = ? WHERE number = ?", (checksum, number))
        return bool(rows)

    async def verify(self, session: str) -> Verified:
        """Verify the log of a session, and that all tables agree with it; raises `StoreError` where they do not."""
        stored = await self._file.get().snapshot(lambda db: read_stored(executes(db), session))
        return await verify_stored(self.chain, session, stored)

    async def verify_store(self) -> Sequence[str]:
        """What is wrong with the store as a whole, besides its sessions; see `verify` for those."""

        def work(db: sqlite3.Connection) -> list[str]:
            def select(query: str) -> list[Any]:
                return db.execute(query).fetchall()

            return [*missing_numbers(select), *store_problems(select, self.chain), *value_problems(select, self.chain)]

        return await self._file.get().snapshot(work)

    # ------------------------------------------------------------ inbox, cursors, pipelines

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        entry = (session, key_of(key), kind, as_json(data))
        return await self._write(lambda db: self._put(db, *entry))

    def _put(self, db: sqlite3.Connection, session: str, key: bytes, kind: str, data: bytes) -> bool:
        execute = executes(db)
        before = begin_row(execute, self.chain, "inbox", session)
        position = db.execute("SELECT coalesce(max(position), 0) + 1 FROM inbox").fetchone()[0]
        checksum = entry_checksum(self.chain, session, key, kind, position, False, data)
        row = (position, session, key, kind, data, checksum)
        query = "INSERT OR IGNORE INTO inbox (position, session, key, kind, data, checksum) VALUES (?, ?, ?, ?, ?, ?)"
        made = db.execute(query, row).rowcount > 0
        if made:
            count_row(execute, self.chain, "inbox", before, session)
        return made

    async def unread(self, sessions: Sequence[str]) -> Sequence[str]:
        def look(db: sqlite3.Connection) -> list[str]:
            found: list[str] = []
            for start in range(0, len(sessions), _ASKED):
                some = sessions[start : start + _ASKED]
                query = f"{_UNREAD} AND session IN ({', '.join('?' * len(some))})"
                found += [row[0] for row in db.execute(query, some)]
            return found

        return await self._file.get().snapshot(look)

    async def inbox(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        rows = await self._read(f"{INBOX} AND taken = 0 ORDER BY inbox.position", session, session, session)
        return inbox_entries(self.chain, session, rows, taken)

    async def cursor(self, session: str, reader: str) -> int:
        rows = await self._read(CURSOR, session, session, session, reader)
        return cursor_of(self.chain, session, reader, rows[0])

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        return await self._write(lambda db: self._advance(db, session, reader, seq, expected))

    def _advance(self, db: sqlite3.Connection, session: str, reader: str, seq: int, expected: int | None) -> bool:
        execute, checksum = executes(db), cursor_checksum(self.chain, session, reader, seq)
        if not expected:
            before = begin_row(execute, self.chain, "cursors", session)
            row = (session, reader, seq, checksum)
            if db.execute("INSERT OR IGNORE INTO cursors VALUES (?, ?, ?, ?)", row).rowcount:
                count_row(execute, self.chain, "cursors", before, session)
                return True
        query = "UPDATE cursors SET seq = ?, checksum = ? WHERE session = ? AND reader = ? AND (? IS NULL OR seq = ?)"
        return db.execute(query, (seq, checksum, session, reader, expected, expected)).rowcount > 0

    async def behind(self, reader: str) -> Sequence[SessionInfo]:
        rows = await self._read(
            "SELECT id, status, agent, title, started, updated, records, "
            "(SELECT count(*) FROM asks WHERE session = number), parent FROM sessions "
            "LEFT JOIN cursors ON cursors.session = id AND reader = ? "
            "WHERE status != 'erased' AND records > coalesce(seq, 0) ORDER BY number",
            reader,
        )
        return infos_of(rows)

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        if digest not in self._pipelines:
            row = (digest, data, pipeline_checksum(self.chain, digest, data))
            await self._write(lambda db: self._put_pipeline(db, row))
            self._pipelines.add(digest)

    def _put_pipeline(self, db: sqlite3.Connection, row: tuple[str, bytes, bytes]) -> None:
        execute = executes(db)
        before = begin_row(execute, self.chain, "pipelines")
        if db.execute("INSERT OR IGNORE INTO pipelines VALUES (?, ?, ?)", row).rowcount:
            count_row(execute, self.chain, "pipelines", before)

    async def pipeline(self, digest: str) -> bytes | None:
        rows = await self._read(PIPELINE, digest)
        return pipeline_of(self.chain, digest, rows[0])

    def _apply(self, db: sqlite3.Connection, session: str, number: int, change: Change) -> None:
        if change.status is not None:
            db.execute(
                "UPDATE sessions SET status = ?, agent = coalesce(?, agent), title = CASE WHEN title = '' THEN "
                "coalesce(?, '') ELSE title END, updated = ?, parent = coalesce(?, parent) WHERE number = ?",
                (change.status, change.agent, change.title, change.at, change.parent, number),
            )
        if "*" in change.answered:
            db.execute("DELETE FROM asks WHERE session = ?", (number,))
        for answered in change.answered:
            db.execute("DELETE FROM asks WHERE session = ? AND id = ?", (number, key_of(answered)))
        for asked in change.asked.values():
            _insert_ask(db, number, asked)
        for key in change.taken:
            self._take(db, session, key_of(key))

    def _take(self, db: sqlite3.Connection, session: str, key: bytes) -> None:
        """Delete the data of an inbox entry; its key stays."""
        query = "SELECT kind, position FROM inbox WHERE session = ? AND key = ?"
        for kind, position in db.execute(query, (session, key)).fetchall():
            checksum = entry_checksum(self.chain, session, key, kind, position, True, b"")
            query = "UPDATE inbox SET taken = 1, data = x'', checksum = ? WHERE session = ? AND key = ?"
            db.execute(query, (checksum, session, key))


_DIALECT = Dialect("CASE instr({0}, '//') WHEN 0 THEN {0} ELSE substr({0}, 1, instr({0}, '//') - 1) END", "taken = 0")
_MAX = 2**62
"""More records than a log can have."""

_OVER = "status IN ('open', 'ended') AND updated < ?"
"""Sessions without an open turn whose last one ended before a time."""


def _use_owner(store: object, path: Path) -> Lease[Owner[FileLocks]]:
    """This process as the owner of sessions in a file, for as long as the store lives."""
    real = Path(os.path.realpath(path))  # as SQLite does: by whatever name a file is opened, it has one lock file
    return Lease(store, str(path), ("owner", "sqlite", str(real)), lambda: Owner(FileLocks(real)))


def _goes_on(change: Change | None) -> bool:
    """Whether a turn begins or goes on, perhaps in a pass that had suspended it."""
    return change is not None and change.status == "running"


def _head(db: sqlite3.Connection, session: str) -> _Head | None:
    """The end of a session's log, as its row states it; None if there is no such session."""
    row = db.execute("SELECT number, status, records, head FROM sessions WHERE id = ?", (session,)).fetchone()
    if row is None:
        return None
    number, status, records, head = row
    if status == "erased":
        raise erased_session(session)
    return _Head(number, records, head)


def _end_of_log(db: sqlite3.Connection, heads: _Heads, session: str, expected: int) -> _Head | None:
    """The end of a session's log; None if there is no such session, and never was one.

    Raises unless it has the expected length.
    """
    head = heads.get(session)
    if head is None or head.records != expected:
        head = _head(db, session)
        if head is None:
            check_absent(executes(db), session)
    found = 0 if head is None else head.records
    if found != expected:
        if head is not None:
            check_end(session, _length(db, head.number), head.records)
        raise conflict(session, found, expected)
    return head


def _rows_of_log(db: sqlite3.Connection, session: str, start: int) -> list[Any]:
    """The rows of the batches that contain the records from `start` on, and of the batch before them."""
    if start > 0:
        rows = db.execute(
            f"{LOG} AND seq >= coalesce((SELECT max(before.seq) FROM batches before WHERE before.session = number "
            "AND before.seq < (SELECT max(first.seq) FROM batches first WHERE first.session = number AND "
            "first.seq <= ?)), 0) WHERE id = ? ORDER BY seq",
            (min(start, _MAX), session),
        ).fetchall()
    else:
        rows = db.execute(f"{LOG} WHERE id = ? ORDER BY seq", (session,)).fetchall()
    if not rows:
        check_absent(executes(db), session)
    return rows


def _length(db: sqlite3.Connection, number: int) -> int:
    """The number of records in the batches of a session."""
    query = "SELECT seq + count FROM batches WHERE session = ? ORDER BY seq DESC LIMIT 1"
    last = db.execute(query, (number,)).fetchone()
    return 0 if last is None else int(last[0])


def _insert_ask(db: sqlite3.Connection, number: int, asked: Asked) -> None:
    db.execute(
        "INSERT INTO asks (session, id, data) VALUES (?, ?, ?) "
        "ON CONFLICT (session, id) DO UPDATE SET data = excluded.data",
        (number, key_of(asked.id), encode(asked)),
    )


def _prune(db: sqlite3.Connection, *, pruned: Sequence[Pruned], before: float) -> int:
    """Replace batches by what is left of them, unless a turn has begun meanwhile."""
    query = (
        "UPDATE batches SET data = ?, nonce = NULL WHERE session = ? AND seq = ? AND nonce IS NOT NULL AND "
        f"EXISTS (SELECT 1 FROM sessions WHERE number = session AND {_OVER})"
    )
    return sum([db.execute(query, (one.data, one.number, one.seq, before)).rowcount for one in pruned])
