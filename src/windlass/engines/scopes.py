"""The scope of a session's turn in a worker: what a function of the session's id returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

ScopeFactory: TypeAlias = Callable[[str], Any]
"""Takes the id of a session and returns the scope of its turn, or an awaitable of it."""


async def scope_for(factory: ScopeFactory | None, session: str) -> Any:
    """The scope of a session's turn; None without a factory."""
    made = None if factory is None else factory(session)
    return await made if inspect.isawaitable(made) else made
