"""How an event loop waits for the work of a store's thread, also if the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from windlass.errors import StoreError

PATIENCE = 1.0
"""How many seconds a cancelled caller waits for a write that has begun."""


class WorkFuture(asyncio.Future[Any]):
    """The result of work in a thread.

    If the caller is cancelled before anything can have changed, the work is withdrawn, and the caller stops at once.
    Work that has begun may finish first, so that the log does not change afterwards. When `PATIENCE` is over, or when
    the caller is cancelled again, the work is abandoned: `when_abandoned` is called, and the caller stops. The store
    then has to make sure that the work is over before anything is read.
    """

    __slots__ = ("_begun", "_timer", "_undecided", "_when_abandoned", "abandoned", "stopped")

    def __init__(self, *, loop: asyncio.AbstractEventLoop, when_abandoned: Callable[[WorkFuture], None]) -> None:
        super().__init__(loop=loop)
        self._when_abandoned = when_abandoned
        self._undecided = [True]  # taken by `begin` or by `cancel`: `pop` is atomic
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None
        self.stopped = False
        """Whether nobody waits for the work any more."""
        self.abandoned = False

    def begin(self) -> bool:
        """On the thread: from here on something may change. False if nobody waits any more."""
        if not self._begun and self._undecided:
            try:
                self._undecided.pop()
            except IndexError:
                return False
            self._begun = True
        return self._begun and not self.stopped

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        if not self._begun:
            try:
                self._undecided.pop()
            except IndexError:  # it begins right now
                pass
            else:
                self.stopped = True
                return super().cancel(msg)
        if self._timer is None:
            self._timer = self.get_loop().call_later(PATIENCE, self._abandon)
            return False
        return self._abandon()

    def _abandon(self) -> bool:
        if self.done():
            return False
        self.stopped = self.abandoned = True
        self._when_abandoned(self)
        return super().cancel()

    def deliver(self, value: Any, error: BaseException | None) -> None:
        """On the event loop: the work is over."""
        if self._timer is not None:
            self._timer.cancel()
        if self.done():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)
            self.exception()  # mark it as read: a cancelled caller never reads it, and asyncio would log that

    async def outcome(self, place: str) -> Any:
        """Wait for the result. If the work was abandoned, the cause of the `CancelledError` is a `StoreError`."""
        try:
            return await self
        except asyncio.CancelledError as cancelled:
            if not self.abandoned:
                raise
            raise asyncio.CancelledError(*cancelled.args) from StoreError(
                f"could not write {place}: it did not answer for {PATIENCE:g} s after a cancel; "
                "it is not known whether the last records were stored. Resume the session when it answers again"
            )
