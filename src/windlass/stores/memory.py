"""A store that lives and dies with the process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from windlass.errors import SessionConflict
from windlass.records import InboxTaken, Record, SessionEnded


class MemoryStore:
    """Logs in memory. Of the sessions that have ended it keeps the latest, at most `keep_ended`.

    When there are more it forgets a quarter of them: many at once cost much less than one at a time.
    """

    durable = False

    def __init__(self, *, keep_ended: int = 64) -> None:
        self._logs: dict[str, list[Record]] = {}
        self._inboxes: dict[str, dict[str, tuple[str, Any]]] = {}
        self._taken: dict[str, set[str]] = {}
        self._cursors: dict[str, dict[str, int]] = {}
        self._pipelines: dict[str, bytes] = {}
        self._ended: dict[str, None] = {}
        self._keep_ended = keep_ended

    async def append(self, session: str, records: Sequence[Record], expected: int) -> bool:
        return self.append_now(session, records, expected)

    def append_now(self, session: str, records: Sequence[Record], expected: int) -> bool:
        """`append` for those who need not wait."""
        log = self._logs.get(session) or []
        if len(log) != expected:
            raise SessionConflict(
                f"session {session!r} has {len(log)} records, not {expected}: somebody else advanced it",
                session=session,
            )
        if records:
            if not expected:
                self._logs[session] = log
            log += records
            if type(records[-1]) is SessionEnded:
                self._forget(session)
            elif session in self._ended:
                del self._ended[session]
        return session in self._inboxes and self._left(session, records)

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        return self._logs.get(session, [])[start:]

    async def sessions(self) -> Sequence[str]:
        return list(self._logs)

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        if key in self._inboxes.get(session, ()) or key in self._taken.get(session, ()):
            return False
        self._inboxes.setdefault(session, {})[key] = (kind, data)
        return True

    async def take(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        inbox = self._inboxes.get(session, {})
        return [(key, kind, data) for key, (kind, data) in inbox.items() if key not in taken]

    async def cursor(self, session: str, reader: str) -> int:
        return self._cursors.get(session, {}).get(reader, 0)

    async def advance(self, session: str, reader: str, seq: int) -> None:
        self._cursors.setdefault(session, {})[reader] = seq

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        self._pipelines.setdefault(digest, data)

    async def pipeline(self, digest: str) -> bytes | None:
        return self._pipelines.get(digest)

    async def close(self) -> None:
        """Nothing to close."""

    def _left(self, session: str, records: Sequence[Record]) -> bool:
        """Whether the inbox has more than the log says was taken. A key stays known: it cannot be put again."""
        inbox = self._inboxes[session]
        for record in records:
            if type(record) is InboxTaken and inbox.pop(record.key, None) is not None:
                self._taken.setdefault(session, set()).add(record.key)
        if not inbox:
            del self._inboxes[session]
        return bool(inbox)

    def _forget(self, session: str) -> None:
        self._ended.pop(session, None)
        self._ended[session] = None
        if len(self._ended) > self._keep_ended:
            for oldest in list(islice(self._ended, 1 + self._keep_ended // 4)):
                del self._ended[oldest], self._logs[oldest]
                self._inboxes.pop(oldest, None)
                self._taken.pop(oldest, None)
                self._cursors.pop(oldest, None)
