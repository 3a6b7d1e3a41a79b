"""Adaptations: what an agent has observed, what may be changed, within which bounds, and by which rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from windlass.messages import Value
from windlass.protocols import Model

LIMITS = ("steps", "tokens", "usd", "seconds")
"""The limits of a turn that can be adapted."""


class Observation(Struct, frozen=True, omit_defaults=True):
    """What one step, or the end of a turn, added to the log: `steps`, `seconds` (in tenths), `tokens`, and `usd`.

    `errors` are errors of models and hooks, `failed_calls` tool calls that failed. `outcome` is set at the end of a
    turn: "completed", or the reason why it stopped. `objections` says that critics objected or could not be reached.
    """

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    usd: float = 0.0
    errors: int = 0
    failed_calls: int = 0
    outcome: str = ""
    objections: int = 0


class Adaptation(Value, frozen=True, gc=True):
    """A change: to another `model` or `mode`, by name, and to other `settings` of requests and `limits` of a turn.

    With `back=True` the agent is first as it was assembled.
    """

    model: str | None = None
    mode: str | None = None
    settings: Mapping[str, int | float] = {}
    limits: Mapping[str, int | float] = {}
    back: bool = False

    def after(self, change: Adaptation) -> Adaptation:
        """What holds after another change."""
        before = Adaptation() if change.back else self
        return Adaptation(
            before.model if change.model is None else change.model,
            before.mode if change.mode is None else change.mode,
            {**before.settings, **change.settings},
            {**before.limits, **change.limits},
        )


class Knowledge(Struct, frozen=True, omit_defaults=True):
    """What an agent knows when it may adapt: the `observations` of the window, and what holds now (`current`)."""

    observations: tuple[Observation, ...] = ()
    current: Adaptation = Adaptation()

    def total(self, field: str) -> float:
        """The sum of a field over the window."""
        return float(sum([getattr(one, field) for one in self.observations]))

    @property
    def steps(self) -> int:
        """How many steps the window has."""
        return int(self.total("steps"))

    @property
    def turns(self) -> int:
        """How many turns ended in the window."""
        return sum([one.outcome != "" for one in self.observations])

    @property
    def seconds(self) -> float:
        """How many seconds a step took on average."""
        return self.total("seconds") / max(self.steps, 1)

    @property
    def tokens(self) -> float:
        """How many tokens a step took on average."""
        return self.total("tokens") / max(self.steps, 1)

    @property
    def usd(self) -> float:
        """What the window cost; a cost that is not known counts as 0."""
        return self.total("usd")

    @property
    def error_rate(self) -> float:
        """Errors of models and hooks per step."""
        return self.total("errors") / max(self.steps, 1)

    @property
    def failed_calls(self) -> float:
        """Failed tool calls per step."""
        return self.total("failed_calls") / max(self.steps, 1)

    @property
    def failure_rate(self) -> float:
        """The share of the turns that did not complete."""
        failed = [one for one in self.observations if one.outcome not in ("", "completed")]
        return len(failed) / max(self.turns, 1)

    @property
    def objection_rate(self) -> float:
        """The share of the turns to which critics objected, or that no critic could review."""
        return sum([one.objections > 0 for one in self.observations]) / max(self.turns, 1)


class Bounds(Value, frozen=True, eq=False, gc=True):
    """What may be adapted: to which `models` and `modes`, and between which values `settings` and `limits`.

    A mode is a name for a text that is added to the system text. Settings are numbers such as `max_tokens`; limits are
    `steps`, `tokens`, `usd` and `seconds` of a turn. Each has a lowest and a highest value.
    """

    models: Sequence[Model | str] = ()
    modes: Mapping[str, str] = {}
    settings: Mapping[str, tuple[float, float]] = {}
    limits: Mapping[str, tuple[float, float]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple([model if isinstance(model, str) else model.name for model in self.models])

    def problem(self) -> str | None:
        """What is wrong with the bounds themselves."""
        if not (self.models or self.modes or self.settings or self.limits):
            return "nothing may be adapted: pass models=, modes=, settings= or limits="
        if unknown := [name for name in self.limits if name not in LIMITS]:
            return f"limits has {unknown[0]!r}; the limits are {', '.join(LIMITS)}"
        for name, bound in {**self.settings, **self.limits}.items():
            if not _is_range(bound):
                return f"{name!r} has {bound!r}: give the lowest and the highest value, (lowest, highest)"
        return None

    def refusal(self, change: object) -> str | None:
        """Why a change is not allowed, or None."""
        if isinstance(change, Exception):
            return f"the rule raised {type(change).__name__}: {change}"
        if not isinstance(change, Adaptation):
            return f"{change!r:.80} is not an Adaptation"
        if change == Adaptation():
            return "it changes nothing"
        if change.model is not None and change.model not in self.names:
            return f"model {change.model!r} is not among {list(self.names)}"
        if change.mode is not None and change.mode not in self.modes:
            return f"mode {change.mode!r} is not among {list(self.modes)}"
        for kind, bounds, values in (
            ("setting", self.settings, change.settings),
            ("limit", self.limits, change.limits),
        ):
            for name, value in values.items():
                if name not in bounds:
                    return f"{kind} {name!r} is not among {list(bounds)}"
                lowest, highest = bounds[name]
                if not _is_number(value) or not lowest <= value <= highest:
                    return f"{kind} {name!r} is {value!r}, not between {lowest} and {highest}"
        return None


class AdaptationRule(Value, frozen=True, eq=False, gc=True):
    """If `when` is true of what is known, make this `adaptation`; `reason` is for people.

    `when` must be a pure function of a `Knowledge`. `adaptation` is a change, or a pure function that computes one.
    `least` is how many observations are needed.
    """

    when: Callable[[Knowledge], Any]
    adaptation: Adaptation | Callable[[Knowledge], Adaptation | None]
    reason: str = ""
    least: int = 3

    def problem(self, bounds: Bounds, window: int) -> str | None:
        """Why the rule can never hold, or makes a change that is not allowed; None if it is fine."""
        when, given = cast(object, self.when), cast(object, self.adaptation)
        if not callable(when):
            return f"when={when!r} must be a function of a Knowledge"
        if type(self.least) is not int or not 1 <= self.least <= window:
            return f"least={self.least!r} must be a whole number from 1 to the window, {window}"
        return None if callable(given) else bounds.refusal(given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_range(bound: object) -> bool:
    two = isinstance(bound, tuple | list) and len(bound) == 2 and all(map(_is_number, bound))
    return two and bound[0] <= bound[1]  # type: ignore[index]
