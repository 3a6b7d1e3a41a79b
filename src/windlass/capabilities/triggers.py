"""When a compaction is due: by tokens, by messages, by a fraction of the context window, and combinations of these."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from windlass.context.compaction import Window
from windlass.errors import ConfigError


class Trigger(Struct, frozen=True):
    """Says when a compaction is due. `one | other` is due when either is, `one & other` when both are."""

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        """Whether it is due: `limit` is how many tokens a request may have, None if nobody knows."""
        raise NotImplementedError

    def due(self, window: Window) -> bool:
        """Whether it is due for what the next request would show."""
        return self.reached(window.tokens, len(window.messages), window.limit)

    def leaves(self) -> tuple[Trigger, ...]:
        """The simple triggers that it is made of."""
        return (self,)

    def __or__(self, other: Trigger) -> Trigger:
        return _Any((self, _checked(other)))

    def __and__(self, other: Trigger) -> Trigger:
        return _All((self, _checked(other)))


class Tokens(Trigger, frozen=True):
    """So many tokens. As a trigger: of the whole request. For `keep`: of the last messages."""

    count: int

    def __post_init__(self) -> None:
        _check_count("Tokens", self.count)

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return tokens >= self.count

    def last(self, window: Window) -> int:
        """How many messages from the end have so many tokens together."""
        left, found, messages = self.count, 0, window.messages
        while found < len(messages) and (left := left - window.size([messages[-1 - found]])) >= 0:
            found += 1
        return found

    def __repr__(self) -> str:
        return f"Tokens({self.count})"


class Messages(Trigger, frozen=True):
    """So many messages. As a trigger: of those that models are shown. For `keep`: the last ones."""

    count: int

    def __post_init__(self) -> None:
        _check_count("Messages", self.count)

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return messages >= self.count

    def last(self, window: Window) -> int:
        """How many messages from the end these are."""
        return min(self.count, len(window.messages))

    def __repr__(self) -> str:
        return f"Messages({self.count})"


class Fraction(Trigger, frozen=True):
    """A part of what a request may have: the context window, less the answer and what hooks may inject.

    It is never due if the window is not known: `Agent(window=…)` tells it, or a `context_window` of the model.
    """

    part: float

    def __post_init__(self) -> None:
        if not (is_number(self.part) and 0 < self.part <= 1):
            raise ConfigError(f"Fraction({self.part!r}): give a part of the window, above 0 and up to 1")

    def reached(self, tokens: float, messages: float, limit: int | None) -> bool:
        return limit is not None and tokens >= self.part * limit

    def __repr__(self) -> str:
        return f"Fraction({self.part:g})"


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
        raise ConfigError(f"{trigger!r} is no trigger; use Tokens, Messages or Fraction, combined by | and &")
    return trigger


def _check_count(name: str, count: object) -> None:
    if type(count) is not int or count < 1:
        raise ConfigError(f"{name}({count!r}): give a whole number above 0")


def is_number(value: object) -> bool:
    """Whether a value is a number: True is none."""
    return type(value) in (int, float)


def as_trigger(owner: str, given: Trigger | Iterable[Trigger]) -> Trigger:
    """One trigger, or any of several; of none it is never due."""
    if isinstance(given, Trigger):
        return given
    if not isinstance(given, Iterable):
        raise ConfigError(f"{owner}: trigger={given!r} is no trigger; use Tokens, Messages or Fraction, or a list")
    try:
        triggers = tuple([_checked(trigger) for trigger in given])
    except ConfigError as error:
        raise ConfigError(f"{owner}: trigger: {error}") from None
    return triggers[0] if len(triggers) == 1 else _Any(triggers)


def notes_on(trigger: Trigger, window: int | None) -> list[str]:
    """What somebody should know who reads of the trigger."""
    if not trigger.leaves():
        return ["it is never due: there is no trigger"]
    if window is None and any(isinstance(leaf, Fraction) for leaf in trigger.leaves()):
        return ["Fraction is never due: the context window is not known; give Agent(window=…)"]
    return []
