"""What happens with an error nobody answers for: retry, ignore or halt, per category, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from .errors import HookError, ModelError, OutputError, RateLimited, StoreError, ToolError

Action = Literal["retry", "ignore", "halt"]
Category = Literal["tool", "model", "validation", "rate_limit", "timeout", "hook", "store", "unknown"]
CATEGORIES: tuple[Category, ...] = ("tool", "model", "validation", "rate_limit", "timeout", "hook", "store", "unknown")


def category_of(error: BaseException) -> Category:
    """The class of errors that a policy speaks of."""
    if isinstance(error, HookError):
        return "hook"
    if isinstance(error, StoreError):
        return "store"
    if isinstance(error, RateLimited):
        return "rate_limit"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ToolError):
        return "tool"
    if isinstance(error, OutputError):
        return "validation"
    return "model" if isinstance(error, ModelError) else "unknown"


class ErrorPolicy(Struct, frozen=True):
    """Per category retry, ignore or halt. `retries` bounds those in a row, `total` all of a turn.

    A tool's error that is ignored becomes a result the model reads: the default. A failed model call cannot be
    ignored, as there is no reply to go on with: to ignore it means to halt. Hooks and stores that fail always halt.
    """

    actions: Mapping[str, Action] = MappingProxyType({"tool": "ignore"})
    otherwise: Action = "halt"
    retries: int = 2
    total: int = 10
    delay: float = 0.0

    def __post_init__(self) -> None:
        if unknown := [name for name in self.actions if name not in CATEGORIES]:
            raise ValueError(f"ErrorPolicy: unknown categories {unknown}; known: {', '.join(CATEGORIES)}")
        actions = (*self.actions.values(), self.otherwise)
        if wrong := [action for action in actions if action not in ("retry", "ignore", "halt")]:
            raise ValueError(f"ErrorPolicy: unknown actions {wrong}; known: retry, ignore, halt")
        if self.retries < 0 or self.total < 0 or self.delay < 0:
            raise ValueError("ErrorPolicy: retries, total and delay must not be negative")

    def action(self, category: Category) -> Action:
        """What the policy says of a category."""
        return "halt" if category in ("hook", "store") else self.actions.get(category, self.otherwise)

    @classmethod
    def strict(cls) -> ErrorPolicy:
        """Any error ends the turn, a tool's too."""
        return cls(actions={"tool": "halt"})

    @classmethod
    def retrying(cls, retries: int = 2, *, delay: float = 0.0) -> ErrorPolicy:
        """Model errors are retried, tools' are told to the model."""
        again: dict[str, Action] = {"tool": "ignore", "model": "retry", "rate_limit": "retry", "timeout": "retry"}
        return cls(actions=again, retries=retries, delay=delay)
