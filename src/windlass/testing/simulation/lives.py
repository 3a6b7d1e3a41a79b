"""The processes of a simulation: each has its tasks, and all code knows the one that it runs in."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from typing import Any


class Life:
    """What lives in one simulated process. When it is `dead`, nothing of it runs any more."""

    __slots__ = ("agent", "context", "dead", "end", "passes", "shared", "tasks", "world")

    def __init__(self, world: Any) -> None:
        self.world = world
        self.dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.end: asyncio.Future[str] | None = None
        self.agent: Any = None
        self.passes: Any = None
        self.shared: dict[Any, Any] = {}
        self.context = Context()
        self.context.run(LIFE.set, self)


LIFE: ContextVar[Life | None] = ContextVar("windlass_simulated_life", default=None)
"""The simulated process that the current code runs in."""
