"""The store that keeps logs in memory, for as long as the process runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from windlass.ids import check_id
from windlass.logs import Batch, Log, SessionInfo, Verified, tree_of
from windlass.ownership import Claim, Ownership, Passes
from windlass.records import Asked, InboxTaken, Injected, Record, SessionEnded

from .memory_values import MemoryValues
from .refusals import busy_here, taken_over
from .shared import Search, conflict, erased_session, info_of, used_session


class MemoryStore:
    """Keeps logs in memory. Of the sessions that have ended, it keeps the latest `keep_ended`.

    When there are more, it drops a quarter of them at once, which costs much less than one at a time.
    """

    durable = False

    def __init__(self, *, keep_ended: int = 64) -> None:
        self._logs: dict[str, list[Record]] = {}
        self._inboxes: dict[str, dict[str, tuple[str, Any]]] = {}
        self._taken: dict[str, set[str]] = {}
        self._cursors: dict[str, dict[str, int]] = {}
        self._batches: dict[str, list[Batch]] = {}
        self._pipelines: dict[str, bytes] = {}
        self._ended: dict[str, None] = {}
        self._erased: dict[str, SessionInfo] = {}
        self._epochs: dict[str, int] = {}
        self.passes = Passes()
        self.values = MemoryValues()
        self._keep_ended = keep_ended
        self._lock = threading.Lock()

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None) -> bool:
        return self.append_now(session, records, expected, claim)

    def append_now(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None) -> bool:
        """`append` without waiting."""
        with self._lock:
            if claim is not None and self._epochs.get(claim.root, 0) != claim.epoch - claim.begins:
                raise taken_over(session, claim.root)
            log = self._logs.get(session)
            if log is None:
                log = self._begin(session, records, expected)
            if len(log) != expected:
                raise conflict(session, len(log), expected)
            if claim is not None and claim.begins:
                self._epochs[session] = claim.epoch
            if records:
                log += records
                if type(records[-1]) is SessionEnded:
                    self._forget(session)
                elif session in self._ended:
                    del self._ended[session]
            return session in self._inboxes and self._inbox_waits(session, records)

    async def ownership(self, session: str) -> Ownership:
        return Ownership(self._epochs.get(session, 0))

    async def release(self, session: str, epoch: int) -> None:
        """Nothing to do: what runs is in `passes`, which ends with this process, as the logs do."""

    async def unread(self, sessions: Sequence[str]) -> Sequence[str]:
        with self._lock:
            return [session for session in sessions if session in self._inboxes]

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        return self._logs.get(session, [])[start:]

    async def sessions(self) -> Sequence[str]:
        return list(self._logs)

    async def batches(self, session: str, start: int = 0) -> Sequence[Batch]:
        from . import memory_batches  # hashes, which most agents with this store never need

        with self._lock:
            known, log = self._batches.setdefault(session, []), self._logs.get(session, [])
            end = known[-1].seq + known[-1].count if known else 0
            if len(log) > end:
                known.append(memory_batches.sealed(session, end, known[-1].link if known else None, log[end:]))
            if not known:
                del self._batches[session]
            return [batch for batch in known if batch.seq + batch.count > start]

    async def create(self, logs: Sequence[Log]) -> None:
        from . import memory_batches

        new = {log.session: memory_batches.records(log) for log in logs}
        batches = {log.session: await memory_batches.linked(log) for log in logs}
        with self._lock:
            for session in new:
                if session in self._erased:
                    raise erased_session(session)
                if session in self._logs:
                    raise used_session(session)
            self._logs |= new
            self._batches |= batches
            for session, log in new.items():
                if log and type(log[-1]) is SessionEnded:
                    self._forget(session)

    async def find(
        self, *, search: str = "", status: str | None = None, limit: int | None = None
    ) -> Sequence[SessionInfo]:
        wanted = Search(search, status, limit)
        with self._lock:
            infos = [info_of(session, log)[0] for session, log in self._logs.items()]
            infos += self._erased.values()
        infos.reverse()
        infos.sort(key=lambda info: -info.updated)
        return wanted.among(infos)

    async def approvals(self, session: str | None = None) -> Sequence[tuple[str, Asked]]:
        with self._lock:
            names = self._logs if session is None else [session]
            asked = [(name, info_of(name, self._logs.get(name, []))[1]) for name in names]
        return [(name, ask) for name, asks in asked for ask in asks.values()]

    async def prune(self, *, before: float) -> int:
        count = 0
        self.values.prune(before)
        with self._lock:
            for session, log in self._logs.items():
                info, _ = info_of(session, log)
                if info.status in ("open", "ended") and info.updated < before:
                    for at, record in enumerate(log):
                        if isinstance(record, Injected) and not record.durable and record.parts:
                            log[at] = record.replace(parts=())
                            count += 1
                    if session in self._batches:
                        self._batches[session] = _pruned(self._batches[session])
        return count

    async def erase(self, session: str) -> bool:
        check_id(session)
        with self._lock:
            infos = {name: info_of(name, log)[0] for name, log in self._logs.items()}
            names = [name for name in tree_of(session, [*self._erased.values(), *infos.values()]) if name in infos]
            for name in (session, *names):
                if self.passes.get(name) is not None:
                    raise busy_here(name)
            for name in names:
                self._drop(name)
                self._erased[name] = infos[name].replace(status="erased", title="", waiting=0, updated=time.time())
        return bool(names)

    async def verify(self, session: str) -> Verified:
        batches = await self.batches(session)
        if not batches:
            return Verified(session, 0, "")
        end, pruned = batches[-1], sum([batch.pruned for batch in batches])
        return Verified(session, end.seq + end.count, end.link.hex(), pruned)

    async def verify_store(self) -> Sequence[str]:
        return []

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        with self._lock:
            if key in self._inboxes.get(session, ()) or key in self._taken.get(session, ()):
                return False
            self._inboxes.setdefault(session, {})[key] = (kind, data)
            return True

    async def inbox(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        with self._lock:
            inbox = dict(self._inboxes.get(session, {}))
        return [(key, kind, data) for key, (kind, data) in inbox.items() if key not in taken]

    async def cursor(self, session: str, reader: str) -> int:
        return self._cursors.get(session, {}).get(reader, 0)

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        with self._lock:
            cursors = self._cursors.setdefault(session, {})
            if expected is not None and cursors.get(reader, 0) != expected:
                return False
            cursors[reader] = seq
            return True

    async def behind(self, reader: str) -> Sequence[SessionInfo]:
        with self._lock:
            cursors = {session: known.get(reader, 0) for session, known in self._cursors.items()}
            return [info_of(name, log)[0] for name, log in self._logs.items() if len(log) > cursors.get(name, 0)]

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        self._pipelines.setdefault(digest, data)

    async def pipeline(self, digest: str) -> bytes | None:
        return self._pipelines.get(digest)

    async def close(self) -> None:
        """Nothing to close."""

    def _begin(self, session: str, records: Sequence[Record], expected: int) -> list[Record]:
        log: list[Record] = []
        if records and not expected:
            if session in self._erased:
                raise erased_session(session)
            self._logs[session] = log
        return log

    def _inbox_waits(self, session: str, records: Sequence[Record]) -> bool:
        """Remove the entries that the log says were taken; whether any are left. A taken key cannot be put again."""
        inbox = self._inboxes[session]
        for record in records:
            if type(record) is InboxTaken and inbox.pop(record.key, None) is not None:
                self._taken.setdefault(session, set()).add(record.key)
        if not inbox:
            del self._inboxes[session]
        return bool(inbox)

    def _forget(self, session: str) -> None:
        if session in self._ended:
            del self._ended[session]
        self._ended[session] = None
        if len(self._ended) > self._keep_ended:
            for oldest in list(islice(self._ended, 1 + self._keep_ended // 4)):
                self._drop(oldest)

    def _drop(self, session: str) -> None:
        for table in (
            self._ended, self._logs, self._inboxes, self._taken, self._cursors, self._epochs, self._batches,
        ):  # fmt: skip
            if session in table:
                del table[session]


def _pruned(batches: Sequence[Batch]) -> list[Batch]:
    from .memory_batches import pruned

    return [pruned(batch) for batch in batches]
