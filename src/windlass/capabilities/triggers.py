"""When a compaction is due: by tokens, by messages, by a fraction of the context window, and combinations of these."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from windlass.context.compaction import Window
from windlass.errors import ConfigError


class Trigger(Struct, frozen=True):
    """Decides when a compaction is due. `one | other` is due when either is, `one & other` when both are."""

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        """Whether it is due: `limit` is the maximum tokens of a request, None if it is unknown."""
        raise NotImplementedError

    def due(self, window: Window) -> bool:
        """Whether it is due for the next request."""
        return self.reached(window.tokens, len(window.messages), window.limit)

    def leaves(self) -> tuple[Trigger, ...]:
        """The simple triggers in this one."""
        return (self,)

    def __or__(self, other: Trigger) -> Trigger:
        return _Any((self, _checked(other)))

    def __and__(self, other: Trigger) -> Trigger:
        return _All((self, _checked(other)))


class AtTokens(Trigger, frozen=True):
    """A number of tokens. As a trigger: of the whole request. For `keep`: of the last messages."""

    count: int

    def __post_init__(self) -> None:
        _check_count("AtTokens", self.count)

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return tokens >= self.count

    def last(self, window: Window) -> int:
        """How many of the last messages have at most this many tokens together."""
        left, found, messages = self.count, 0, window.messages
        while found < len(messages) and (left := left - window.size([messages[-1 - found]])) >= 0:
            found += 1
        return found

    def __repr__(self) -> str:
        return f"AtTokens({self.count})"


class AtMessages(Trigger, frozen=True):
    """A number of messages. As a trigger: of the messages that models see. For `keep`: of the last messages."""

    count: int

    def __post_init__(self) -> None:
        _check_count("AtMessages", self.count)

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return messages >= self.count

    def last(self, window: Window) -> int:
        """How many of the last messages to keep."""
        return min(self.count, len(window.messages))

    def __repr__(self) -> str:
        return f"AtMessages({self.count})"


class AtFraction(Trigger, frozen=True):
    """A fraction of the maximum request: the context window, less the room for the answer and for injected parts.

    It is never due if the window is unknown. Set it with `Agent(window=…)`, or with `context_window` of the model.
    """

    part: float

    def __post_init__(self) -> None:
        if not (is_number(self.part) and 0 < self.part <= 1):
            raise ConfigError(f"AtFraction({self.part!r}): it must be a fraction of the window, above 0 and at most 1")

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return limit is not None and tokens >= self.part * limit

    def __repr__(self) -> str:
        return f"AtFraction({self.part:g})"


class _Any(Trigger, frozen=True):
    triggers: tuple[Trigger, ...]

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return any(trigger.reached(tokens, messages, limit) for trigger in self.triggers)

    def leaves(self) -> tuple[Trigger, ...]:
        return tuple([leaf for trigger in self.triggers for leaf in trigger.leaves()])

    def __repr__(self) -> str:
        return " | ".join([_inner(trigger) for trigger in self.triggers]) or "never"


class _All(_Any, frozen=True):
    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return all(trigger.reached(tokens, messages, limit) for trigger in self.triggers)

    def __repr__(self) -> str:
        return " & ".join([_inner(trigger) for trigger in self.triggers])


def _inner(trigger: Trigger) -> str:
    return f"({trigger!r})" if isinstance(trigger, _Any) else repr(trigger)


def _checked(trigger: object) -> Trigger:
    if not isinstance(trigger, Trigger):
        raise ConfigError(
            f"{trigger!r} is not a trigger; use AtTokens, AtMessages or AtFraction, combined with | and &"
        )
    return trigger


def _check_count(name: str, count: object) -> None:
    if type(count) is not int or count < 1:
        raise ConfigError(f"{name}({count!r}): it must be a whole number above 0")


def is_number(value: object) -> bool:
    """Whether a value is a number; a bool is not."""
    return type(value) in (int, float)


def as_trigger(owner: str, trigger: Trigger | Iterable[Trigger]) -> Trigger:
    """A trigger, or one for a list: a list means "any of these", and an empty list is never due."""
    if isinstance(trigger, Trigger):
        return trigger
    if not isinstance(trigger, Iterable):
        raise ConfigError(
            f"{owner}: trigger={trigger!r} is not a trigger; use AtTokens, AtMessages or AtFraction, or a list"
        )
    try:
        triggers = tuple([_checked(one) for one in trigger])
    except ConfigError as error:
        raise ConfigError(f"{owner}: trigger: {error}") from None
    return triggers[0] if len(triggers) == 1 else _Any(triggers)


def notes_on(trigger: Trigger, window: int | None) -> list[str]:
    """Notes on a trigger that can never be due."""
    if not trigger.leaves():
        return ["it is never due: there is no trigger"]
    if window is None and any(isinstance(leaf, AtFraction) for leaf in trigger.leaves()):
        return ["AtFraction is never due: the context window is unknown; set Agent(window=…)"]
    return []
