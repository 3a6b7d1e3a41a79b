"""What happens after an error that no hook answers: retry, ignore or halt, per category, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from random import random
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from .errors import HookError, ModelError, OutputError, RateLimited, StoreError, ToolError, is_transient

Action = Literal["retry", "ignore", "halt"]
Category = Literal["tool", "model", "validation", "rate_limit", "timeout", "hook", "store", "unknown"]
CATEGORIES: tuple[Category, ...] = ("tool", "model", "validation", "rate_limit", "timeout", "hook", "store", "unknown")


def category_of(error: BaseException) -> Category:
    """The category of an error, as policies name it."""
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


_DEFAULT_ACTIONS: Mapping[str, Action] = MappingProxyType(
    {"tool": "ignore", "model": "retry", "rate_limit": "retry", "timeout": "retry"}
)
"""The actions for categories that a policy does not name."""


class ErrorPolicy(Struct, frozen=True):
    """What happens after an error: retry, ignore or halt, per category.

    By default a failed model call is retried if its error is retryable, a tool's error becomes a result that the model
    reads, and any other error ends the turn. `actions` changes that for the categories it names; `otherwise` is for
    errors that are neither a tool's nor a model's. A failed model call cannot be ignored, as there is no reply to
    continue with: `ignore` then means `halt`. Errors of hooks and stores always halt.

    `retries` bounds how often one model call is retried, counted together with the attempts of wraps; for tools it
    bounds the errors in a row. `total` bounds all retries of a turn. Before retry n the agent waits for a random time
    of up to `delay * 2 ** (n - 1)` seconds, at most `cap`, and at least as long as the vendor asks for. If the vendor
    asks for more than `cap`, the call is not retried.
    """

    actions: Mapping[str, Action] = MappingProxyType({})
    otherwise: Action = "halt"
    retries: int = 2
    total: int = 10
    delay: float = 0.5
    cap: float = 60.0

    def __post_init__(self) -> None:
        if unknown := [name for name in self.actions if name not in CATEGORIES]:
            raise ValueError(f"ErrorPolicy: unknown categories {unknown}; known: {', '.join(CATEGORIES)}")
        actions = (*self.actions.values(), self.otherwise)
        if wrong := [action for action in actions if action not in ("retry", "ignore", "halt")]:
            raise ValueError(f"ErrorPolicy: unknown actions {wrong}; known: retry, ignore, halt")
        counts: tuple[object, ...] = (self.retries, self.total)
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError(f"ErrorPolicy: retries and total must be whole numbers, 0 or more, not {counts}")
        waits: tuple[object, ...] = (self.delay, self.cap)
        if not all(isinstance(wait, int | float) and wait >= 0 for wait in waits):
            raise ValueError(f"ErrorPolicy: delay and cap must be seconds, 0 or more, not {waits}")

    def action(self, category: Category) -> Action:
        """The action for a category of errors."""
        return (
            "halt"
            if category in ("hook", "store")
            else self.actions.get(category, _DEFAULT_ACTIONS.get(category, self.otherwise))
        )

    def action_for_model(self, error: BaseException, category: Category) -> Action:
        """The action for the error of a model call, which is only retried if the error is retryable."""
        transient = is_transient(error)
        action = self.action("model" if transient and category == "unknown" else category)
        return "halt" if action == "retry" and not transient and isinstance(error, ModelError) else action

    def backoff(self, error: BaseException, made: int) -> float | None:
        """Seconds to wait after `made` failed attempts; None if the vendor asks for a longer wait than `cap`."""
        asked = getattr(error, "retry_after", None) or 0.0
        if asked > self.cap:
            return None
        return max(asked, random() * min(self.cap, self.delay * 2.0 ** min(made - 1, 60)))

    def wait_before_retry(self, error: BaseException, made: int) -> float | None:
        """Seconds to wait before a model call that failed `made` times is retried; None if it is not retried."""
        if made > self.retries or self.action_for_model(error, category_of(error)) != "retry":
            return None
        return self.backoff(error, made)

    @classmethod
    def strict(cls) -> ErrorPolicy:
        """Any error ends the turn at once, including a tool's; nothing is retried."""
        return cls(actions={"tool": "halt"}, retries=0)

    @classmethod
    def never(cls) -> ErrorPolicy:
        """Nothing is retried: a failed model call ends the turn. The model reads the errors of tools, as usual."""
        return cls(retries=0)

    @classmethod
    def retrying(cls, retries: int = 2, *, delay: float = 0.5) -> ErrorPolicy:
        """The default policy with another number of retries or another delay."""
        return cls(retries=retries, delay=delay)
