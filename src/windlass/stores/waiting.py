"""The future that waits on an event loop for the write of a thread."""

from __future__ import annotations

import asyncio
from typing import Any


class WriteFuture(asyncio.Future[Any]):
    """The result of a write that cannot be cancelled. A caller that is cancelled meanwhile stops only when the write is
    done, so that the log does not change afterwards."""

    def cancel(self, msg: Any = None) -> bool:
        return False

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        super().set_exception(exception)
        self.exception()  # mark it as read: a cancelled caller never reads it, and asyncio would log that
