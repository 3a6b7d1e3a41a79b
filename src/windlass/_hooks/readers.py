"""Durable observers: each reads the log of a session from a cursor that the store keeps."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from windlass.errors import HookError, SessionConflict, StoreClosed, StoreError
from windlass.outcomes import ErrorValue, error_value
from windlass.protocols import Clock, Store
from windlass.records import Fact, HookFailed, Record
from windlass.slots import Slot
from windlass.states import SLICE, Fold, State, fold_in_slices
from windlass.turns import Host, Turn

from .compiled import CompiledHooks
from .cursors import Cursor
from .hooks import Hook
from .runs import BATCH, SKIPPED, AnyTurn, Run, SessionOnly, Told
from .shared import Shared

if TYPE_CHECKING:
    from windlass.stores.links import Links

    from .observers import Backlog, Observers

log = logging.getLogger("windlass")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 60.0
"""Seconds before a failed fact is delivered again; each pause is four times the last."""

CATCHES_UP = (
    "the next process that uses the agent delivers the rest, or `windlass observers drain` does"
)
"""What a log line says about facts that this process does not deliver."""

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

    def __init__(self, hook: Hook, source: Source, state: State) -> None:
        self.hook = hook
        self.hooks = source.hooks
        self.now = source.clock.now
        self.state = state

    @property
    def scope(self) -> Any:
        raise HookError(
            f"durable observer {self.hook.name!r} has no scope: it may run in another process. "
            "Put the values it needs into a slot, or observe without durable=True",
            hook=self.hook.name,
        )

    @property
    def tools(self) -> Any:
        raise HookError(
            f"durable observer {self.hook.name!r} has no tools: it may run in another process. "
            "Observe without durable=True to get them",
            hook=self.hook.name,
        )

    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]:
        return self.hooks.slot(key)

    def cancel(self, reason: str = "") -> bool:
        return False


class Reader:
    """One durable observer in one session. It moves the cursor after the facts that it delivers.

    The cursor is stored in batches while there is more to deliver, and always before the reader
    stops or pauses. If another process has moved the cursor, the reader stops: the two deliver at
    most one batch twice.
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

    def is_about_to_read(self, backlog: Backlog) -> bool:
        """Whether it was woken by this backlog, and has not begun to read since."""
        return self._again and self._backlog is backlog

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
            async with self._claimed() as cursor:
                while not self._stop_if_idle():
                    if cursor.lost:
                        await cursor.load()
                    await self._read_on(cursor)
                    if not self._again:
                        await cursor.save()
        except BaseException as error:
            self._stop_if_idle(force=True)
            if not isinstance(error, Exception):
                raise
            level = logging.INFO if isinstance(error, StoreClosed) else logging.WARNING
            text = "durable observer %r stopped reading session %r: %s; %s"
            log.log(level, text, self.hook.name, self.session, error, CATCHES_UP)

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
        """Deliver all facts after the cursor and count them.

        It looks again after the cursor is stored: another process that has added records meanwhile,
        and found that it lost the cursor, leaves them to this one.
        """
        async with self._claimed() as cursor:
            await cursor.load()
            while await self._read_on(cursor) and await cursor.save():
                pass
            return cursor.facts

    @asynccontextmanager
    async def _claimed(self) -> AsyncGenerator[Cursor, None]:
        """A cursor for one reader at a time in this process. It is stored also if the reader is
        cancelled."""
        key = (id(self.source.store), self.hook.name, self.session)
        while (other := _claim(key)) is not None:
            await asyncio.wrap_future(other)
        cursor = Cursor(self.source.store, self.source.clock, self.session, self.hook.name)
        try:
            yield cursor
        except (Exception, asyncio.CancelledError):
            with suppress(StoreError):
                await cursor.save()
            raise
        finally:
            _claims().pop(key).set_result(None)

    async def _read_on(self, cursor: Cursor) -> bool:
        """Deliver the facts that the log has after the cursor. Whether the log had records there.

        Only an observer that asks for the turn needs the state of a fact: for others the log is not
        folded.
        """
        hook, event = self.hook, self.hook.event
        path = self.session if hook.inherited else ""
        fold, records, links = await self._unread(cursor)
        seq, run, everything = cursor.seq, Run(hook), event is Record
        turn: AnyTurn = SessionOnly(self.session) if hook.wants else None
        for record in records:
            seq += 1
            if not seq % SLICE:
                await asyncio.sleep(0)
            if fold is not None:
                fold.add(record)
                fold.acknowledge(1)
            if not everything and type(record) is not event:
                continue
            if len(run.seqs) >= (1 if cursor.fresh else BATCH):
                if not await self._deliver(run, cursor):
                    return True
                run = Run(hook)
            if fold is not None:
                turn = Turn(cast(Host, _LogHost(hook, self.source, fold.state)), state=fold.state)
            link = None if links is None else links.at(seq)
            run.seqs.append(seq)
            run.facts.append(Told(replace(record, seq=seq, path=path), turn, link))
        if await self._deliver(run, cursor, last=True):
            cursor.move(seq)
            self._fold = None if fold is None or fold.ended else fold
        return bool(records)

    async def _unread(self, cursor: Cursor) -> tuple[Fold | None, Sequence[Record], Links | None]:
        """The records after the cursor and, for an observer that asks for them, the fold of those
        before it, and their links."""
        session = self.session
        if not self.hook.wants_state:
            return None, *await self._records(cursor.seq)
        fold, self._fold = self._fold, None
        if fold is None or fold.stored > cursor.seq:
            fold = Fold(session)
        records, links = await self._records(fold.stored)
        known = cursor.seq - fold.stored
        if known:
            await fold.extend_in_slices(records[:known])
            records = records[known:]
        return fold, records, links

    async def _records(self, start: int) -> tuple[Sequence[Record], Links | None]:
        """The records of the log from a position on, and their links if the observer asks for them."""
        store, session = self.source.store, self.session
        if not self.hook.linked:
            return await store.read(session, start), None
        from windlass.stores.batches import decode_batches
        from windlass.stores.links import Links

        batches = await store.batches(session, start)
        return await decode_batches(session, batches, start), Links(session, batches)

    async def _deliver(self, run: Run, cursor: Cursor, *, last: bool = False) -> bool:
        """Deliver the facts of a run. False if another process has moved the cursor.

        Behind the `last` run there is nothing to deliver for now.
        """
        while run.left():
            before = run.done
            try:
                error = await self.observers.tell(run)
            finally:
                if run.done > before:
                    cursor.move(run.seqs[run.done - 1], run.done - before)
            if error is not None and not await self._try_again(run, cursor, error):
                return False
            if cursor.due and (run.left() or not last) and not await cursor.save():
                return False
        return True

    async def _try_again(self, run: Run, cursor: Cursor, error: BaseException) -> bool:
        """Deliver a fact again that the observer failed on; after the last try skip it.

        False if another process has moved the cursor.
        """
        hook, pause = self.hook, FIRST_PAUSE
        seq, (fact, turn, link) = run.seqs[run.done], run.facts[run.done]
        place = f"record {seq} of session {self.session!r}, {type(fact).__name__}"
        failure: BaseException | None = error
        for attempt in range(1, hook.tries + 1):
            if attempt > 1:
                if not await cursor.save():
                    return False
                await self.source.clock.sleep(pause)
                pause = min(4 * pause, LONGEST_PAUSE)
                failure = await self.observers.outcome(hook, fact, turn, None, link)
            if failure is None:
                break
            error, value = failure, error_value(failure)
            tries = f"attempt {attempt} of {hook.tries}"
            text = "durable observer %r failed on %s (%s): %s: %s"
            log.warning(text, hook.name, place, tries, value.type, value.message)
        else:
            await self._skip(fact, seq, error_value(error))
        run.done += 1
        cursor.move(seq, 1)
        return failure is None or await cursor.save()

    async def _skip(self, fact: Fact, seq: int, value: ErrorValue) -> None:
        """Have it recorded that a fact was skipped."""
        if isinstance(fact, HookFailed):
            return
        failed = HookFailed(self.hook.name, type(fact).__name__, value, "skipped", seq)
        if self._backlog is None or not self._backlog.report(failed):
            mask = self.source.mask
            await self._report_later(failed if mask is None else mask(failed), seq)

    async def _report_later(self, failed: Record, seq: int) -> None:
        """Put the skipped fact into the inbox, so that the session's next turn records it.

        Outside a turn, only the log of a session that has ended may be written to.
        """
        store, session = self.source.store, self.session
        log = await fold_in_slices(session, await store.read(session))
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
            reader = self._readers.get((session, hook.name))
            if reader is None or reader.hook is not hook or not reader.is_about_to_read(backlog):
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


_claims = Shared[dict[tuple[int, str, str], Future[None]]](dict, "windlass reads")
"""The reads under way in this process, of all agents, by store, observer and session."""

_CLAIMS_LOCK = threading.Lock()


def _claim(key: tuple[int, str, str]) -> Future[None] | None:
    """Claim a key for reading. If another reader has it, return the future to wait for."""
    claims = _claims()
    with _CLAIMS_LOCK:
        if (other := claims.get(key)) is None:
            claims[key] = Future()
            claims[key].set_running_or_notify_cancel()  # no cancelled waiter can cancel it
        return other
