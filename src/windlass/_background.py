"""The background tasks of an agent, imported and made when they are first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .background import BackgroundTasks
    from .protocols import Store
    from .sessions import Sessions


class LazyBackground:
    """Call it for the background tasks of an agent and its variants."""

    __slots__ = ("_sessions", "_store", "_tasks")

    def __init__(self, store: Store, sessions: Sessions[Any]) -> None:
        self._store = store
        self._sessions = sessions
        self._tasks: BackgroundTasks | None = None

    def __call__(self) -> BackgroundTasks:
        if self._tasks is None:
            from .background import BackgroundTasks

            self._tasks = BackgroundTasks(self._store, self._sessions)
        return self._tasks

    async def drain(self, patience: float | None = None) -> None:
        """Wait for the children that are driven on this event loop, if there ever were any."""
        if self._tasks is not None:
            await self._tasks.drain(patience)
