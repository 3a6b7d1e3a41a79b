"""Durable observers: each reads the log of a session behind a cursor that the store keeps."""

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
"""The kind of an entry in an inbox: a fact was skipped while the session was not at work here."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 60.0
"""After a failure an observer is told again after this many seconds, then after four times as many, up to a minute."""

_KEPT = 256
"""How many readers are kept with the state they have come to; without it, the log is folded from its beginning."""


class Source(NamedTuple):
    """Where a log comes from, and what its agent was compiled to."""

    store: Store
    clock: Clock
    hooks: CompiledHooks
    mask: Callable[[Record], Record] | None


class _LogHost:
    """What stands behind the turn of a durable observer: the log alone, which any process may have read."""

    closed = False

    def __init__(self, hook: Hook, hooks: CompiledHooks, state: State) -> None:
        self.hook = hook
        self.hooks = hooks
        self.state = state

    @property
    def scope(self) -> Any:
        raise HookError(
            f"durable observer {self.hook.name!r} has no scope: another process may tell it what happened in this one. "
            "Put what it needs into a slot, or observe without durable=True",
            hook=self.hook.name,
        )

    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]:
        return self.hooks.slot(key)

    def cancel(self, reason: str = "") -> bool:
        return False

    async def ask(self, asker: Asker, model: Any, messages: Any, options: dict[str, Any]) -> ModelReply:
        raise NotImplementedError  # the turn of an observer refuses it


class Reader:
    """One durable observer in one session. It is told fact by fact, and each is acknowledged before the next.

    The cursor is moved only from where this reader found it. If another process has moved it this one stops, so of the
    facts between them at most one is told twice.
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
        """The log has grown: read on, in a task. `backlog` waits for it."""
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
            while not self._rests():
                await self.read()
        except BaseException as error:
            self._rests(force=True)
            if not isinstance(error, Exception):
                raise
            log.warning("observer %r could not read on in session %r: %s", self.hook.name, self.session, error)

    def _rests(self, *, force: bool = False) -> bool:
        """Whether nobody has called since it last looked; then it is idle, and nobody waits for it."""
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
        """Tell all that is behind the cursor: how many facts. One at a time does that in this process."""
        key = (id(self.source.store), self.hook.name, self.session)
        while (other := _claim(key)) is not None:
            await asyncio.wrap_future(other)
        try:
            return await self._read()
        finally:
            _CLAIMS.pop(key).set_result(None)

    async def _read(self) -> int:
        store, session, hook = self.source.store, self.session, self.hook
        found = at = await store.cursor(session, hook.name)
        fold, self._fold = self._fold, None
        if fold is None or fold.stored > found:
            fold = Fold(session)
        count = 0
        records = await store.read(session, fold.stored)
        end = fold.stored + len(records)
        for record in records:
            fold.add(record)
            fold.acknowledge(1)
            seq = fold.stored
            if seq > found and type(record) is hook.event:
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
        """Tell one fact, again and again if the observer fails; one that fails every time is skipped."""
        hook, pause = self.hook, FIRST_PAUSE
        value: ErrorValue | None = None
        fact = record.replace(seq=state.seq, path=self.session if hook.inherited else "")
        turn: Turn[Any] = Turn(_LogHost(hook, self.source.hooks, state), state=state)
        for attempt in range(1, hook.tries + 1):
            if (error := await self.observers.outcome(hook, fact, turn, None)) is None:
                return
            value = error_value(error)
            log.warning(
                "durable observer %r failed on record %d of session %r, %s (attempt %d of %d): %s: %s",
                hook.name, state.seq, self.session, type(record).__name__, attempt, hook.tries, value.type,
                value.message,
            )  # fmt: skip
            if attempt < hook.tries:
                await self.source.clock.sleep(pause)
                pause = min(4 * pause, LONGEST_PAUSE)
        if value is not None and not isinstance(record, HookFailed):
            failed = HookFailed(hook.name, type(record).__name__, value, "skipped", state.seq)
            if self._backlog is None or not self._backlog.report(failed):
                await self._note(failed if self.source.mask is None else self.source.mask(failed), state.seq)

    async def _note(self, failed: Record, seq: int) -> None:
        """Have it recorded by the session's next turn that a fact was skipped; none is at work here.

        Only the log of a session that has ended is written to from outside of a turn.
        """
        store, session = self.source.store, self.session
        log = fold_log(session, await store.read(session))
        failed = failed.replace(at=log.tick(self.source.clock.now))
        if log.ended:
            with suppress(SessionConflict):
                await store.append(session, [failed], log.stored)
                return
        await store.put(session, f"skipped {self.hook.name} {seq}", SKIPPED, msgspec.to_builtins(failed))


class Readers:
    """The readers of an agent, by session and observer."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._readers: OrderedDict[tuple[str, str], Reader] = OrderedDict()
        self._lock = threading.Lock()

    def follow(self, session: str, source: Source, backlog: Backlog) -> None:
        """The log of a session has grown: all its durable observers read on."""
        for hook in source.hooks.durable:
            self.of(hook, session, source).wake(backlog)

    def of(self, hook: Hook, session: str, source: Source) -> Reader:
        """The reader of an observer in a session."""
        key = (session, hook.name)
        with self._lock:
            reader = self._readers.get(key)
            if reader is None or reader.hook is not hook:
                reader = self._readers[key] = Reader(self._observers, hook, session, source)
            self._readers.move_to_end(key)
            if len(self._readers) > _KEPT:
                oldest = next(iter(self._readers))
                if not self._readers[oldest].busy:
                    del self._readers[oldest]
            return reader


_CLAIMS: dict[tuple[int, str, str], Future[None]] = {}
"""Who reads now in this process, whatever agent it is of: a store, an observer and a session."""

_CLAIMING = threading.Lock()


def _claim(key: tuple[int, str, str]) -> Future[None] | None:
    """Begin to read; if somebody else does already, whom to wait for."""
    with _CLAIMING:
        if (other := _CLAIMS.get(key)) is None:
            _CLAIMS[key] = Future()
            _CLAIMS[key].set_running_or_notify_cancel()  # whoever is cancelled while waiting for it leaves it as it is
        return other
