"""Durable observers: each reads the log of a session from a cursor that the store keeps."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from windlass.errors import HookError, SessionConflict
from windlass.messages import ModelReply
from windlass.outcomes import ErrorValue, error_value
from windlass.protocols import Clock, Store
from windlass.records import HookFailed, Record
from windlass.slots import Slot
from windlass.states import Fold, State, fold_log
from windlass.turns import Asker, Turn

from .compiled import CompiledHooks
from .hooks import Hook

if TYPE_CHECKING:
    from .observers import Backlog, Observers

log = logging.getLogger("windlass")

SKIPPED = "hook_failed"
"""The kind of an inbox entry: an observer skipped a fact while no turn of the session ran here."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 60.0
"""Seconds before a failed fact is delivered again; each pause is four times the last."""

_MAX_READERS = 256
"""How many readers to keep with their state. A new reader folds the log from its beginning."""


class Source(NamedTuple):
    """Where a log comes from, and the compiled hooks of its agent."""

    store: Store
    clock: Clock
    hooks: CompiledHooks
    mask: Callable[[Record], Record] | None


class _LogHost:
    """The host of a durable observer's turn. It has the log alone: any process may read that."""

    closed = False

    def __init__(self, hook: Hook, hooks: CompiledHooks, state: State) -> None:
        self.hook = hook
        self.hooks = hooks
        self.state = state

    @property
    def scope(self) -> Any:
        raise HookError(
            f"durable observer {self.hook.name!r} has no scope: it may run in another process. "
            "Put the values it needs into a slot, or observe without durable=True",
            hook=self.hook.name,
        )

    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]:
        return self.hooks.slot(key)

    def cancel(self, reason: str = "") -> bool:
        return False

    async def ask(self, asker: Asker, model: Any, messages: Any, options: Any) -> ModelReply:
        raise NotImplementedError  # the turn of an observer refuses to ask


class Reader:
    """One durable observer in one session. It moves the cursor after each fact that it delivers.

    It moves the cursor only from the place where it left it. If another process has moved the
    cursor, this reader stops, so the two deliver at most one fact twice.
    """

    def __init__(self, observers: Observers, hook: Hook, session: str, source: Source) -> None:
        self.observers = observers
        self.hook = hook
        self.session = session
        self.source = source
        self.busy = False
        self._backlog: Backlog | None = None
        self._waiting: list[Backlog] = []
        self._again = False
        self._fold: Fold | None = None
        self._lock = threading.Lock()

    def wake(self, backlog: Backlog) -> None:
        """Read the records that the log has gained, in a task. `backlog` waits for it."""
        with self._lock:
            self._backlog = backlog
            if backlog not in self._waiting:
                backlog.add()
                self._waiting.append(backlog)
            self._again = True
            if self.busy:
                return
            self.busy = True
        self.observers.start(self._work())

    async def _work(self) -> None:
        try:
            while not self._stop_if_idle():
                await self.read()
        except BaseException as error:
            self._stop_if_idle(force=True)
            if not isinstance(error, Exception):
                raise
            text = "observer %r could not continue reading session %r: %s"
            log.warning(text, self.hook.name, self.session, error)

    def _stop_if_idle(self, *, force: bool = False) -> bool:
        """Stop and release the waiting backlogs, unless `wake` was called since the last check."""
        with self._lock:
            if self._again and not force:
                self._again = False
                return False
            self.busy = self._again = False
            waiting, self._waiting = self._waiting, []
        for backlog in waiting:
            backlog.done()
        return True

    async def read(self) -> int:
        """Deliver all facts after the cursor and count them, one reader at a time in this
        process."""
        key = (id(self.source.store), self.hook.name, self.session)
        while (other := _claim(key)) is not None:
            await asyncio.wrap_future(other)
        try:
            return await self._read()
        finally:
            _CLAIMS.pop(key).set_result(None)

    async def _read(self) -> int:
        store, session, hook = self.source.store, self.session, self.hook
        start = at = await store.cursor(session, hook.name)
        fold, self._fold = self._fold, None
        if fold is None or fold.stored > start:
            fold = Fold(session)
        count = 0
        records = await store.read(session, fold.stored)
        end = fold.stored + len(records)
        for record in records:
            fold.add(record)
            fold.acknowledge(1)
            seq = fold.stored
            if seq > start and type(record) is hook.event:
                await self._deliver(record, fold.state)
                count += 1
                if not await store.advance(session, hook.name, seq, at):
                    return count
                at = seq
        if end > at and not await store.advance(session, hook.name, end, at):
            return count
        self._fold = None if fold.ended else fold
        return count

    async def _deliver(self, record: Record, state: State) -> None:
        """Deliver one fact. If the observer fails, try again; after the last try skip the fact."""
        hook, pause = self.hook, FIRST_PAUSE
        value: ErrorValue | None = None
        fact = record.replace(seq=state.seq, path=self.session if hook.inherited else "")
        turn: Turn[Any] = Turn(_LogHost(hook, self.source.hooks, state), state=state)
        for attempt in range(1, hook.tries + 1):
            if (error := await self.observers.outcome(hook, fact, turn, None)) is None:
                return
            value = error_value(error)
            place = f"record {state.seq} of session {self.session!r}, {type(record).__name__}"
            tries = f"attempt {attempt} of {hook.tries}"
            text = "durable observer %r failed on %s (%s): %s: %s"
            log.warning(text, hook.name, place, tries, value.type, value.message)
            if attempt < hook.tries:
                await self.source.clock.sleep(pause)
                pause = min(4 * pause, LONGEST_PAUSE)
        if value is not None and not isinstance(record, HookFailed):
            failed = HookFailed(hook.name, type(record).__name__, value, "skipped", state.seq)
            if self._backlog is None or not self._backlog.report(failed):
                mask = self.source.mask
                await self._report_later(failed if mask is None else mask(failed), state.seq)

    async def _report_later(self, failed: Record, seq: int) -> None:
        """Put the skipped fact into the inbox, so that the session's next turn records it.

        Outside a turn, only the log of a session that has ended may be written to.
        """
        store, session = self.source.store, self.session
        log = fold_log(session, await store.read(session))
        failed = failed.replace(at=log.tick(self.source.clock.now))
        if log.ended:
            with suppress(SessionConflict):
                await store.append(session, [failed], log.stored)
                return
        key = f"skipped {self.hook.name} {seq}"
        await store.put(session, key, SKIPPED, msgspec.to_builtins(failed))


class Readers:
    """The readers of an agent, by session and observer."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._readers: OrderedDict[tuple[str, str], Reader] = OrderedDict()
        self._lock = threading.Lock()

    def follow(self, session: str, source: Source, backlog: Backlog) -> None:
        """Let all durable observers of a session read the records that its log has gained."""
        for hook in source.hooks.durable:
            self.reader_of(hook, session, source).wake(backlog)

    def reader_of(self, hook: Hook, session: str, source: Source) -> Reader:
        """The reader of an observer in a session."""
        key = (session, hook.name)
        with self._lock:
            reader = self._readers.get(key)
            if reader is None or reader.hook is not hook:
                reader = self._readers[key] = Reader(self._observers, hook, session, source)
            self._readers.move_to_end(key)
            if len(self._readers) > _MAX_READERS:
                oldest = next(iter(self._readers))
                if not self._readers[oldest].busy:
                    del self._readers[oldest]
            return reader


_CLAIMS: dict[tuple[int, str, str], Future[None]] = {}
"""The reads under way in this process, of all agents, by store, observer and session."""

_CLAIMS_LOCK = threading.Lock()


def _claim(key: tuple[int, str, str]) -> Future[None] | None:
    """Claim a key for reading. If another reader has it, return the future to wait for."""
    with _CLAIMS_LOCK:
        if (other := _CLAIMS.get(key)) is None:
            _CLAIMS[key] = Future()
            _CLAIMS[key].set_running_or_notify_cancel()  # no cancelled waiter can cancel it
        return other
