"""What happens after an error that no hook answers: retry, ignore or halt, per category, bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .errors import ConfigError, HookError, ModelError, OutputError, RateLimited, StoreError, ToolError, is_transient
from .randomness import random_fraction

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


_ALWAYS_HALT = ("hook", "store")
_DEFAULT_ACTIONS: Mapping[str, Action] = MappingProxyType(
    {"tool": "ignore", "model": "retry", "rate_limit": "retry", "timeout": "retry"}
)
"""The actions for categories that a policy does not name."""


class ErrorRule(Struct, frozen=True):
    """What happens after some errors: retry, ignore or halt.

    `on` is a class of errors, a category, or a tuple of them. With `tool`, a name or a glob, the rule is for errors of
    these tools alone. `retries` and `delay` replace those of the policy. An explicit `retry` also holds for errors that
    are not retryable by themselves; an unsafe call is never repeated.
    """

    on: type[BaseException] | str | tuple[type[BaseException] | str, ...]
    action: Action
    tool: str | None = None
    retries: int | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        known = [category for category in CATEGORIES if category not in _ALWAYS_HALT]
        for one in self._members:
            if not (isinstance(one, type) and issubclass(one, BaseException)) and one not in known:
                raise ConfigError(f"ErrorRule({one!r}, …): pass a class of errors or one of {', '.join(known)}")
        if not self._members or self.action not in ("retry", "ignore", "halt"):
            raise ConfigError(f"ErrorRule({self.on!r}, {self.action!r}): the actions are retry, ignore and halt")
        given: tuple[object, ...] = (self.retries, self.delay)
        if any(one is not None and not (isinstance(one, int | float) and one >= 0) for one in given):
            raise ConfigError(f"ErrorRule(retries={self.retries!r}, delay={self.delay!r}): must be 0 or more")

    @property
    def _members(self) -> tuple[type[BaseException] | str, ...]:
        return self.on if isinstance(self.on, tuple) else (self.on,)

    @property
    def words(self) -> str:
        """The rule in words."""
        what = " or ".join([one if isinstance(one, str) else one.__name__ for one in self._members])
        where = "" if self.tool is None else f" of tool {self.tool}"
        more = "" if self.retries is None else f", at most {self.retries} times"
        return f"{self.action} {what}{where}{more}"

    def matches(self, error: BaseException, category: str, tool: str) -> bool:
        """Whether the rule is for this error, of this tool if it is a tool's."""
        if self.tool is not None and (not tool or not fnmatchcase(tool, self.tool)):
            return False
        categories = (category, category_of(error))
        return any(one in categories if isinstance(one, str) else isinstance(error, one) for one in self._members)


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

    `rules` come before the categories: the first `ErrorRule` that matches an error decides.
    """

    actions: Mapping[str, Action] = MappingProxyType({})
    otherwise: Action = "halt"
    retries: int = 2
    total: int = 10
    delay: float = 0.5
    cap: float = 60.0
    rules: tuple[ErrorRule, ...] = ()

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

    def with_rules(self, rules: Iterable[ErrorRule]) -> ErrorPolicy:
        """This policy with more rules, after its own."""
        return replace(self, rules=(*self.rules, *rules)) if rules else self

    def rule_for(self, error: BaseException, category: str, tool: str = "") -> ErrorRule | None:
        """The first rule that matches an error. Errors of hooks and stores have none: they always halt."""
        if not self.rules or category in _ALWAYS_HALT:
            return None
        return next((rule for rule in self.rules if rule.matches(error, category, tool)), None)

    def action_for_model(self, error: BaseException, category: Category) -> Action:
        """The action for the error of a model call, which is only retried if the error is retryable, or by a rule."""
        if (rule := self.rule_for(error, category)) is not None:
            return rule.action
        transient = is_transient(error)
        action = self.action("model" if transient and category == "unknown" else category)
        return "halt" if action == "retry" and not transient and isinstance(error, ModelError) else action

    def backoff(self, error: BaseException, made: int, rule: ErrorRule | None = None) -> float | None:
        """Seconds to wait after `made` failed attempts; None if the vendor asks for a longer wait than `cap`."""
        delay = self.delay if rule is None or rule.delay is None else rule.delay
        asked = getattr(error, "retry_after", None) or 0.0
        if asked > self.cap:
            return None
        return max(asked, random_fraction() * min(self.cap, delay * 2.0 ** min(made - 1, 60)))

    def wait_before_retry(self, error: BaseException, made: int) -> float | None:
        """Seconds to wait before a model call that failed `made` times is retried; None if it is not retried."""
        category = category_of(error)
        rule = self.rule_for(error, category)
        if made > self.most_retries(rule) or self.action_for_model(error, category) != "retry":
            return None
        return self.backoff(error, made, rule)

    def most_retries(self, rule: ErrorRule | None) -> int:
        """How often one call is retried, by a rule if it says so."""
        return self.retries if rule is None or rule.retries is None else rule.retries

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
