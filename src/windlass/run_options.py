"""The options of one turn: what callers pass, what the log keeps, and what a resume must pass again."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from ._options import CRITERIA, MODEL, SETTINGS, TOOLS, as_list, check_options, optional
from .criteria import (
    ActiveTimeLimit,
    CostLimit,
    Deadline,
    ErrorLimit,
    FinishedBecause,
    ReplyContains,
    RetryLimit,
    StepLimit,
    TokenLimit,
    name_of,
    tools_ran,
)
from .errors import ConfigError
from .masking import Mask
from .messages import frozen, json_with_surrogates, plain, thawed
from .models.settings import did_you_mean
from .protocols import Model
from .records import MASK, TurnCriterion, TurnOptions
from .tools import Tool, toolset
from .types import Criterion


class RunOptions(TypedDict, total=False):
    """Options of one turn, for `run`, `stream` and `iterate`, and of a variant of an agent.

    None stands for an option that is not given.
    """

    model: Model | str | None
    """The name of a model of the agent, a text such as `openai:gpt-5`, or a model object."""
    settings: Mapping[str, Any] | None
    """Settings that replace the agent's settings of the same names; a value of None removes one."""
    criteria: Iterable[Criterion] | None
    """Criteria that are added to the agent's."""
    tools: Iterable[Callable[..., Any]] | None
    """Tools that are added to the agent's."""


class GivenOptions(Struct, frozen=True):
    """The options of a turn or variant, checked. `functions` are the tools as they were given, in the same order."""

    model: Model | str | None = None
    settings: Mapping[str, Any] = {}
    criteria: tuple[Criterion, ...] = ()
    tools: tuple[Tool[..., Any], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal options. It may not be hashable: criteria and tools are the caller's objects."""
        which = self.model if self.model is None or isinstance(self.model, str) else _Identity(self.model)
        return which, json_with_surrogates(thawed(self.settings)), self.criteria, self.functions

    def recorded(self) -> TurnOptions:
        """The options as a log keeps them: data as it is, code by name."""
        is_text = self.model is None or isinstance(self.model, str)
        return TurnOptions(
            _model_name(self.model),
            not is_text,
            self.settings,
            tuple([_recorded_criterion(criterion) for criterion in self.criteria]),
            tuple([tool.name for tool in self.tools]),
        )


_DOMAINS = {
    "model": optional(MODEL),
    "settings": optional(SETTINGS),
    "criteria": optional(CRITERIA),
    "tools": optional(TOOLS),
}


def read_options(owner: str, options: Mapping[str, Any]) -> GivenOptions | None:
    """Check the options of a call; None if it has none. `owner` is the method, for messages."""
    for name in options:
        if name not in _DOMAINS:
            text = f"{owner}({name}=…): there is no such option{did_you_mean(name, _DOMAINS)}"
            raise ConfigError(f"{text}; the options of a turn are {', '.join(_DOMAINS)}")
    given: dict[str, Any] = {name: options.get(name) for name in _DOMAINS}
    for name in ("criteria", "tools"):
        given[name] = None if given[name] is None else as_list(given[name])
    check_options(owner, _DOMAINS, given)
    try:
        settings = plain(given["settings"] or {})
    except TypeError as error:
        raise ConfigError(f"{owner}(settings=…): settings of a turn are kept in its log: {error}") from None
    functions: list[Callable[..., Any]] = []
    for function in given["tools"] or ():
        if not any(function is known for known in functions):
            functions.append(function)
    found = GivenOptions(
        given["model"],
        settings,
        tuple(given["criteria"] or ()),
        tuple(toolset(functions).values()),
        tuple(functions),
    )
    return None if found == _NONE else found


_NONE = GivenOptions()


class _Identity:
    """Stands for an object in a key: equal to itself only, and kept alive by the key."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


# ---------------------------------------------------------------- criteria as data

_DATA: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        StepLimit,
        TokenLimit,
        CostLimit,
        ActiveTimeLimit,
        Deadline,
        RetryLimit,
        ErrorLimit,
        ReplyContains,
        FinishedBecause,
    )
}
"""The criteria that a log can hold, by name."""


def _recorded_criterion(criterion: Criterion) -> TurnCriterion:
    name = name_of(criterion)
    shape: object = criterion
    if criterion is tools_ran:
        return TurnCriterion(name, {})
    if type(shape) is not _DATA.get(name) or getattr(shape, "now", None) is not None:
        return TurnCriterion(name)
    fields = msgspec.to_builtins(shape)
    return TurnCriterion(name, frozen({field: value for field, value in fields.items() if value is not None}))


def _restored(recorded: TurnCriterion) -> Criterion | None:
    """The criterion that a log holds; None if the log has only its name."""
    parameters = None if recorded.parameters is None else thawed(recorded.parameters)
    if parameters is None or _is_masked(parameters):
        return None
    if recorded.name == tools_ran.__name__:
        return tools_ran
    kind = _DATA.get(recorded.name)
    try:
        return None if kind is None else msgspec.convert(parameters, kind)
    except (msgspec.ValidationError, ConfigError):  # another version wrote it
        return None


# ---------------------------------------------------------------- on resume


class Resumption(Struct, frozen=True):
    """A turn with options of its own that is to be resumed: what it was started with, and what the caller passes.

    `models` and `tools` are the names of those that the agent has itself; `mask` is that of its log.
    """

    session: str
    recorded: TurnOptions
    given: GivenOptions
    models: Container[str]
    tools: Container[str]
    mask: Mask | None

    def options(self) -> GivenOptions | None:
        """The options to resume with. Raises `ConfigError` if code is missing, or if something else was passed."""
        found = {
            "model": self._model(),
            "settings": self._settings(),
            "criteria": self._criteria(),
            "tools": self._tools(),
        }
        return read_options("resume", found)

    def _model(self) -> Model | str | None:
        recorded, given = self.recorded, self.given.model
        if given is not None and _model_name(given) != recorded.model:
            raise self._differs("model", f"{recorded.model!r}" if recorded.model else "the agent's own")
        if given is not None and not isinstance(given, str):
            return given
        is_text = not recorded.model_object and ":" in recorded.model
        if recorded.model and not is_text and recorded.model not in self.models:
            raise self._lacks("model", f"the model {recorded.model!r}")
        return recorded.model or None

    def _settings(self) -> Mapping[str, Any]:
        recorded, given = thawed(self.recorded.settings), thawed(self.given.settings)
        if given and recorded not in (given, given if self.mask is None else self.mask.plain(given, foreign=True)):
            raise self._differs("settings", json_with_surrogates(recorded) if recorded else "the agent's own")
        if not given and _is_masked(recorded):
            raise self._lacks("settings", "its settings, which held a secret that the log does not keep")
        return self.given.settings or self.recorded.settings

    def _criteria(self) -> list[Criterion]:
        rest = [(_recorded_criterion(criterion), criterion) for criterion in self.given.criteria]
        found: list[Criterion] = []
        for recorded in self.recorded.criteria:
            restored = _restored(recorded)
            passed = next((one for one in rest if _is_same(recorded, one[0], restored)), None)
            if passed is not None:
                rest.remove(passed)
            elif restored is None:
                raise self._lacks("criteria", f"the criterion {recorded.name!r}")
            found.append(restored if passed is None else passed[1])  # type: ignore[arg-type]
        if rest:
            names = [criterion.name for criterion in self.recorded.criteria]
            raise self._differs("criteria", ", ".join(names) or "none but the agent's own", rest[0][0].name)
        return found

    def _tools(self) -> list[Callable[..., Any]]:
        given = self.given
        passed = {tool.name: function for tool, function in zip(given.tools, given.functions, strict=True)}
        if unknown := [name for name in passed if name not in self.recorded.tools]:
            text = ", ".join(self.recorded.tools) or "none but the agent's own"
            raise self._differs("tools", text, unknown[0])
        for name in self.recorded.tools:
            if name not in passed and name not in self.tools:
                raise self._lacks("tools", f"the tool {name!r}")
        return list(passed.values())

    def _lacks(self, option: str, what: str) -> ConfigError:
        return ConfigError(
            f"the turn of session {self.session!r} was started with {what}: resume it with {option}=… again, or start "
            "a new turn with run"
        )

    def _differs(self, option: str, recorded: str, given: str = "") -> ConfigError:
        what = f"{option} with {given!r}" if given else option
        return ConfigError(
            f"a resume cannot change the options of a turn: {what} was passed, but the turn of session "
            f"{self.session!r} was started with {option}: {recorded}"
        )


def options_on_resume(
    session: str,
    recorded: TurnOptions | None,
    given: GivenOptions | None,
    models: Container[str],
    tools: Container[str],
    mask: Mask | None,
) -> GivenOptions | None:
    """The options to resume a turn with; None if it has none. Raises `ConfigError` if the caller passes too little, or
    something else than the turn was started with."""
    if recorded is None and given is None:
        return None
    return Resumption(session, recorded or TurnOptions(), given or GivenOptions(), models, tools, mask).options()


def _model_name(model: Model | str | None) -> str:
    return "" if model is None else model if isinstance(model, str) else model.name


def _is_masked(data: Any) -> bool:
    return MASK in json.dumps(data, ensure_ascii=False)


def _is_same(recorded: TurnCriterion, passed: TurnCriterion, restored: Criterion | None) -> bool:
    """Whether a criterion that was passed is the recorded one. Of code only the name is known."""
    if restored is None:
        return recorded.name == passed.name
    return recorded.name == passed.name and dict(recorded.parameters or {}) == dict(passed.parameters or {})


__all__ = ["GivenOptions", "RunOptions", "options_on_resume", "read_options"]
