"""How a turn ends: outcomes, stop reasons in their order of precedence, and errors as plain values."""

from __future__ import annotations

import builtins
import enum
import math
from typing import Any

from . import errors
from .errors import HookError, ModelError, raiser_of, text_of
from .messages import Value


class StopReason(enum.StrEnum):
    """Why a turn ended, strongest first: if several apply, the first one is the reason."""

    ERROR = "error"
    CANCELLED = "cancelled"
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    COST_LIMIT = "cost_limit"
    TIME_LIMIT = "time_limit"
    DEADLINE = "deadline"
    RETRY_LIMIT = "retry_limit"
    CRASH_LOOP = "crash_loop"
    FORBIDDEN = "forbidden"
    HALTED = "halted"
    WITHHELD = "withheld"
    REGENERATION = "regeneration"
    VETO_CAP = "veto_cap"
    NO_PROGRESS = "no_progress"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    UNSUPPORTED_CALL = "unsupported_call"
    SUPERSEDED = "superseded"
    SUSPENDED = "suspended"
    COMPLETED = "completed"

    @property
    def rank(self) -> int:
        """The strength of the reason; 0 is the strongest."""
        return _RANKS[self]

    @property
    def hard(self) -> bool:
        """Whether no hook may veto a stop for this reason."""
        return self in _HARD


_RANKS = {reason: rank for rank, reason in enumerate(StopReason)}
_HARD = tuple(reason for reason, rank in _RANKS.items() if rank <= _RANKS[StopReason.FORBIDDEN])


class ErrorValue(Value, frozen=True):
    """An exception as a plain value, as the log holds it."""

    type: str
    message: str
    hook: str | None = None
    retryable: bool = False
    retry_after: float | None = None
    status: int | None = None


def error_value(error: BaseException) -> ErrorValue:
    """The plain value of an exception."""
    return ErrorValue(
        type(error).__name__,
        text_of(error) or type(error).__name__,
        str(raiser_of(error)) or None,
        bool(error.retryable) if isinstance(error, ModelError) else False,
        _seconds(error.retry_after) if isinstance(error, ModelError) else None,
        error.status if isinstance(error, ModelError) and type(error.status) is int else None,
    )


def _seconds(value: object) -> float | None:
    """A number of seconds, or None if the value is not a finite number: models may raise errors with any value."""
    known = type(value) is int or (type(value) is float and math.isfinite(value))
    return float(value) if known else None  # type: ignore[arg-type]


def error_from_value(error: ErrorValue) -> Exception:
    """An exception made from an error in the log; it keeps its class if that is one of Windlass's or Python's."""
    kind = getattr(errors, error.type, None) or getattr(builtins, error.type, None)
    if isinstance(kind, type) and issubclass(kind, ModelError):
        return kind(error.message, retryable=error.retryable, retry_after=error.retry_after, status=error.status)
    if isinstance(kind, type) and issubclass(kind, HookError):
        return kind(error.message, hook=error.hook or "")
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(error.message)
        except TypeError:
            pass
    return ModelError(f"{error.type}: {error.message}", retryable=error.retryable)


class Completed(Value, frozen=True, gc=True, tag=True, tag_field="outcome"):
    """The model finished, or a hook completed the turn; `value` is set if a hook gave the result.

    `unreviewed` names hooks that failed to review a reply, `objections` hooks that rejected one and let it pass.
    """

    value: Any = None
    unreviewed: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()


class Stopped(Value, frozen=True, tag=True, tag_field="outcome"):
    """The turn was stopped before the model finished. `unreviewed` and `objections` are those of `Completed`."""

    reason: StopReason
    detail: str = ""
    unreviewed: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()


def marked(outcome: Any, unreviewed: tuple[str, ...], objections: tuple[str, ...]) -> Any:
    """An outcome with the hooks that failed to review a reply, and those that let one pass which they had rejected."""
    if (unreviewed or objections) and isinstance(outcome, Completed | Stopped):
        return outcome.replace(unreviewed=unreviewed, objections=objections)
    return outcome


class Failed(Value, frozen=True, tag=True, tag_field="outcome"):
    """The turn ended with an error that was not handled."""

    error: ErrorValue


class Cancelled(Value, frozen=True, tag=True, tag_field="outcome"):
    """The turn was cancelled."""

    reason: str = ""


__all__ = [
    "Cancelled",
    "Completed",
    "ErrorValue",
    "Failed",
    "StopReason",
    "Stopped",
]
