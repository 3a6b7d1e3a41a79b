"""A registered hook: its kind, its options, the values it asks for, its checks at registration."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from types import CodeType, FunctionType, MethodType
from typing import Any, Literal

from windlass._options import FLAG, TEXT, WHOLE, Domain, choice, number, optional, short_repr, whole
from windlass.decisions import Says, Vote
from windlass.errors import RegistrationError
from windlass.events import EVENTS, FACTS, Event, ModelCalling, ModelReplying
from windlass.messages import ModelCall, ToolCall
from windlass.records import Record
from windlass.slots import Slot, slot_for
from windlass.states import Step
from windlass.turns import Turn

from .conditions import Condition, Errors, Names, compile_conditions, misplaced_conditions
from .matching import Matcher

Kind = Literal["observe", "inject", "rewrite", "gate", "wrap", "hook"]
Band = Literal["early", "normal", "guard"]
BANDS: dict[str, int] = {"early": 0, "normal": 1, "guard": 2}
EFFECTS: tuple[type, ...] = (ModelCall, ToolCall, Step, Turn)


class Options(typing.TypedDict, total=False):
    """The options of a hook, whatever its kind."""

    name: str
    tool: Matcher
    when: Condition
    agent: Names
    model: Names
    error: Errors
    priority: int
    band: Band
    timeout: float
    thread: bool
    inherit: bool
    mode: Literal["shadow"]
    costly: bool
    on_resume: Literal["reuse", "rerun"]
    on_error: Literal["unreviewed"]
    live: bool
    group: str
    optional: bool
    reserve: int
    wait: bool
    durable: bool
    side_calls: bool
    read_only: bool
    tries: int
    enabled: Callable[[], Any]


_CONDITIONS = {"tool", "when", "agent", "model", "error"}
_COMMON = {"name", "priority", "band", "timeout", "thread", "inherit", "enabled", *_CONDITIONS}
_LEGAL: dict[str, set[str]] = {
    "observe": {
        "name",
        "wait",
        "durable",
        "timeout",
        "thread",
        "tries",
        "inherit",
        "tool",
        "when",
        "agent",
        "enabled",
    },
    "inject": {*_COMMON, "group", "optional", "reserve"},
    "rewrite": {*_COMMON, "live"},
    "gate": {*_COMMON, "mode", "costly", "on_resume", "on_error", "live"},
    "wrap": {
        "name",
        "priority",
        "band",
        "inherit",
        "tool",
        "when",
        "model",
        "side_calls",
        "read_only",
        "enabled",
    },
    "hook": {*_COMMON, "live"},
}


_OPTIONS: dict[str, Domain] = {
    "name": optional(TEXT),
    "priority": WHOLE,
    "band": choice(*BANDS),
    "timeout": optional(number(above=0)),
    "mode": choice("shadow"),
    "on_resume": choice("reuse", "rerun"),
    "group": optional(TEXT),
    "reserve": optional(whole(1)),
    "tries": whole(1),
    **dict.fromkeys(("thread", "inherit", "costly", "live"), FLAG),
    **dict.fromkeys(("optional", "wait", "durable", "side_calls", "read_only"), FLAG),
}
"""The legal values of options. The other options are checked together with the event."""


class Hook:
    """A registered hook. Names are labels; compiling the agent makes them unique.

    `matches` says whether it is asked about an event, fact, request or call, by all its conditions;
    `matches_call` is the condition about tools alone. `view` turns the event's payload into the
    value that the function gets instead of the event. `answer` turns the function's result into an
    answer to the event. `behind` is the method of a lifecycle that the function calls. A plain hook
    has none of the three. `direct` says that the function runs inline on every event as it is.
    `declared` are the slots that were declared together with it. `around` puts a wrap around an
    effect; it is made when it is first needed. A `read_only` wrap gets the turn of the pass, which
    cannot write, instead of one of its own.
    """

    __slots__ = (
        "_hints", "above", "agent", "answer", "around", "band", "behind", "capability", "costly", "declared",
        "direct", "durable", "error", "event", "fn", "group", "guards_models", "inherit", "inline", "is_async", "kind",
        "lane", "linked", "live",
        "matches", "matches_call", "model", "name", "on_error", "on_resume", "optional", "options", "parameters",
        "plain", "priority", "queued", "read_only", "reserve", "shadow", "side_calls", "thread", "timed", "timeout",
        "tool", "tries", "view", "wait", "wants", "wants_slots", "wants_state", "when",
    )  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        event: type,
        fn: Callable[..., Any],
        options: Options,
        capability: str | None = None,
    ) -> None:
        self.kind = kind
        self.event: Any = event
        self.fn = fn
        self.options = options
        self.capability = capability
        self.name: str = options.get("name") or _name_of(fn)
        self._check_event()
        self._check_options()
        self.tool = options.get("tool")
        self.agent = options.get("agent")
        self.model = options.get("model")
        self.error = options.get("error")
        self.when = options.get("when")
        self.matches, self.matches_call = compile_conditions(options, event, self.name)
        self.priority = options.get("priority", 0)
        self.band: Band = options.get("band", "normal")
        self.timeout = options.get("timeout")
        self.thread = options.get("thread", False)
        self.inherit = options.get("inherit", False) or self.band == "guard"
        self.above = 0
        self.shadow = options.get("mode") == "shadow"
        self.costly = options.get("costly", False)
        self.on_resume = options.get("on_resume")
        self.on_error = options.get("on_error")
        self.live = options.get("live", False)
        self.group = options.get("group")
        self.optional = options.get("optional", False)
        self.reserve = options.get("reserve")
        self.wait = options.get("wait", False)
        self.durable = options.get("durable", False)
        self.side_calls = options.get("side_calls", False)
        self.read_only = options.get("read_only", False)
        self.guards_models = False
        self.tries = options.get("tries", 3)
        self.is_async = is_async(fn)
        self.parameters = self._check_parameters()
        self._hints: dict[str, Any] | None = None
        self._check_answer()
        self.view: Callable[[Any], Any] | None = None
        self.answer: Callable[[Any, Any], Any] | None = None
        self.behind: Callable[..., Any] | None = None
        self.around: Callable[[Any, Any, Any], Any] | None = None
        self.wants: tuple[tuple[str, str], ...] = ()
        self.wants_state = self.wants_slots = False
        self.declared: Sequence[Slot[Any]] = ()
        self.linked = False
        self.plain = False
        self.inline = False
        self.direct = False
        self.queued = False
        self.timed = False
        self.lane: Any = None
        inline = not self.is_async and not self.thread and (kind != "observe" or self.wait)
        if self.timeout is not None and inline:
            text = "has a timeout, but a plain function can only be timed out in a thread"
            raise self._error(f"{text}: add thread=True")

    # ------------------------------------------------------------ checks at registration

    def _check_event(self) -> None:
        legal = {"observe": FACTS, "wrap": EFFECTS}.get(self.kind, EVENTS)
        if self.kind == "observe" and self.event is Record:
            if not self.options.get("durable"):
                raise self._error(
                    "observes every record, which only a durable observer can: add durable=True"
                )
            return
        if self.event not in legal:
            known = ", ".join(sorted(kind.__name__ for kind in legal))
            special = {"observe": "a fact to observe", "wrap": "an effect to wrap"}
            what = special.get(self.kind, "an event")
            got = getattr(self.event, "__name__", repr(self.event))
            raise self._error(f"is registered for {got}, which is not {what}. Known: {known}")
        if self.kind == "rewrite" and self.event.payload is None:
            raise self._error("cannot rewrite: this event has nothing to change")
        if self.kind == "inject" and self.event.injects is None:
            raise self._error("cannot inject: this event takes no context")

    def _check_options(self) -> None:
        options, legal = self.options, _LEGAL[self.kind]
        if illegal := set(options) - legal:
            text = f"has options {sorted(illegal)} that {self.kind} does not take"
            raise self._error(f"{text}; it takes {sorted(legal)}")
        for name, value in options.items():
            if name in _OPTIONS and not _OPTIONS[name].holds(value):
                text = _OPTIONS[name].text
                raise self._error(f"has {name}={short_repr(value)}; {name} must be {text}")
        for problem in self._option_problems():
            raise self._error(problem)

    def _option_problems(self) -> Iterator[str]:
        """Options that do not fit the event or one another."""
        options, durable = self.options, self.options.get("durable", False)
        yield from misplaced_conditions(options, self.event)
        if (problem := problem_of_when(options.get("when"))) is not None:
            yield problem
        enabled: object = options.get("enabled")
        if enabled is not None and (not callable(enabled) or is_async(enabled)):
            yield f"has enabled={short_repr(enabled)}; enabled must be a plain function without parameters"
        unreviewed = self.event is ModelReplying and str(options.get("on_error")) == "unreviewed"
        if "on_error" in options and not unreviewed:
            yield "has on_error, which must be 'unreviewed' and is only for gates on ModelReplying"
        if options.get("on_resume") == "reuse" and "name" not in options:
            yield "has on_resume='reuse', which finds its earlier answer by name: add name="
        if durable and not issubclass(self.event, Record):
            yield "is durable, but this fact is not written to the log"
        if "side_calls" in options and self.event is not ModelCall:
            yield "has side_calls, which is only for wraps of ModelCall"
        if "read_only" in options and self.event not in (ModelCall, ToolCall):
            yield "has read_only, which is only for wraps of ModelCall and ToolCall"
        if durable and options.get("wait"):
            yield "has wait, but a turn does not wait for a durable observer: drop wait or durable"
        if "tries" in options and not durable:
            yield "has tries, which is only for durable observers: add durable=True"

    def _check_parameters(self) -> tuple[str, ...]:
        """The names of the parameters that follow the fixed ones of the kind."""
        fixed = 2 if self.kind == "wrap" else 1
        names, star, required = parameters_of(self.fn)
        if len(names) < fixed and not star:
            shape = "(value, call_next, …)" if self.kind == "wrap" else "(event, …)"
            raise self._error(f"takes {len(names)} parameters; a {self.kind} is called as {shape}")
        if len(required) < fixed and star:
            return ()
        return tuple(names[fixed:])

    def _check_answer(self) -> None:
        """Refuse a hook whose result is annotated with an illegal answer."""
        if self.kind not in ("gate", "hook") or _declares_nothing(self.fn):
            return
        declared = _decision_types(self.hints.get("return"))
        if self.kind == "hook" and Says in declared:
            return
        ranks = self.event.ranks
        legal = {type(rank) if isinstance(rank, Vote) else rank for rank in ranks}
        if illegal := [kind for kind in declared if kind not in legal and kind is not Says]:
            raise self._error(
                f"is annotated to answer {', '.join(sorted(k.__name__ for k in illegal))}; "
                f"it may answer {legal_answers(self.event)}"
            )

    @property
    def in_thread(self) -> bool:
        """Whether an awaited or durable observer runs in a thread."""
        return not self.is_async and (self.thread or self.durable)

    def is_enabled(self) -> bool:
        """Whether it is part of an agent that is compiled now."""
        enabled = self.options.get("enabled")
        return enabled is None or bool(enabled())

    @property
    def inherited(self) -> bool:
        """Whether it comes from a parent agent; `above` counts the levels."""
        return self.above > 0

    def copied(self, *, above: int) -> Hook:
        """A copy for another agent, where it gets its own name and is bound again."""
        hook = copy(self)
        hook.above = above
        hook.lane = None
        return hook

    # ------------------------------------------------------------ the values it asks for

    @property
    def hints(self) -> dict[str, Any]:
        """The resolved annotations; empty if they cannot be resolved."""
        if self._hints is None:
            try:
                self._hints = typing.get_type_hints(_annotated_object(self.fn))
            except Exception:  # an annotation for type checkers only
                self._hints = {}
        return self._hints

    def bind(self, slots: Collection[Slot[Any]]) -> None:
        """Resolve the parameters to supply: `turn`, those annotated with a slot's type, and `link`."""
        wants: list[tuple[str, str]] = []
        self.linked = False
        for name in self.parameters:
            if name == "turn" or (name == "session_id" and self.kind == "observe"):
                wants.append((name, name))
            elif slots and (slot := self._slot_for(name, slots)) is not None:
                wants.append((name, slot.name))
            elif name == "link" and self.durable:
                self.linked = True
            elif name in _required(self.fn):
                raise self._error(
                    f"has a parameter {name!r} that Windlass cannot supply; "
                    "a hook gets `turn` by name and slots by type, an observer `session_id` by name, and a durable "
                    "observer `link`. "
                    f"Known slots: {', '.join(sorted([slot.name for slot in slots])) or 'none'}"
                )
        if self.read_only and (
            slots_wanted := [name for name, source in wants if source != "turn"]
        ):
            raise self._error(f"has read_only, but takes slots: {', '.join(slots_wanted)}")
        self.around = None
        self.wants = tuple(wants)
        self.wants_state = any(source != "session_id" for _, source in wants)
        self.wants_slots = any(source not in ("turn", "session_id") for _, source in wants)
        # A guard on model calls may see the side calls that it makes itself.
        self.guards_models = self.band == "guard" and self.event is ModelCalling
        is_simple = not wants and self.timeout is None and not self.thread
        self.plain = is_simple and not self.guards_models
        self.inline = self.plain and not self.is_async
        runs_beside = is_simple or (
            self.timeout is None and not self.thread and not self.wants_state
        )
        self.queued = self.kind == "observe" and runs_beside and not self.is_async and not self.wait
        if self.timed:
            self.plain = self.inline = False
        self.direct = self.inline and self.matches is None and self.view is None

    def _slot_for(self, parameter: str, slots: Collection[Slot[Any]]) -> Slot[Any] | None:
        try:
            return slot_for(self.hints.get(parameter), parameter, slots, self.declared)
        except LookupError as error:
            raise self._error(f"is ambiguous: {error}") from None

    # ------------------------------------------------------------ descriptions

    @property
    def source(self) -> str:
        """Where its code is: `file:line`."""
        return source_of(self.behind or self.fn)

    @property
    def location(self) -> tuple[str, int] | None:
        """Where its code is: the path, which differs between machines, and the line."""
        return location_of(self.behind or self.fn)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} on {self.event.__name__}>"

    def _error(self, problem: str) -> RegistrationError:
        event = getattr(self.event, "__name__", repr(self.event))
        text = f"{self.kind} {self.name!r} ({source_of(self.fn)}) on {event} {problem}"
        return RegistrationError(text, hook=self.name, event=event)


def itself(payload: Any) -> Any:
    """The view of a hook that gets the payload unchanged."""
    return payload


def legal_answers(event: type[Event[Any, Any, Any]]) -> str:
    """The answers that a gate on this event may give, as text."""
    ranks = event.ranks
    names = [f"Vote.{rank.name}" if isinstance(rank, Vote) else rank.__name__ for rank in ranks]
    reason = ", each also as (vote, reason)," if isinstance(ranks[0], Vote) else ""
    return f"{', '.join(names)}{reason} or None"


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def problem_of_when(when: Any) -> str | None:
    """What is wrong with the option `when`, if anything."""
    if when is not None and not callable(when):
        return (
            f"has when={short_repr(when)}; when must be a function of what the hook is asked about"
        )
    if when is not None and is_async(when):
        return (
            "has an async when=; it must be a plain function, because it is called for every event"
        )
    return None


def source_of(fn: Callable[..., Any]) -> str:
    """`file:line` of a function, or `unknown`."""
    found = location_of(fn)
    return "unknown" if found is None else f"{found[0].rsplit('/', 1)[-1]}:{found[1]}"


def location_of(fn: Callable[..., Any]) -> tuple[str, int] | None:
    """The path and the line of a function, if they are known."""
    target = inspect.unwrap(fn)
    while isinstance(target, functools.partial):
        target = target.func
    function = getattr(target, "__func__", target)
    code = getattr(function, "__code__", None) or getattr(type(target).__call__, "__code__", None)
    if type(code) is not CodeType:  # a mock, for example, has a mock as its code
        return None
    return code.co_filename, code.co_firstlineno


def _name_of(fn: Callable[..., Any]) -> str:
    owner = getattr(fn, "__self__", None)
    name = getattr(fn, "__name__", None)
    if name is None:
        return _name_of(fn.func) if isinstance(fn, functools.partial) else type(fn).__name__
    if owner is None or inspect.ismodule(owner):
        return str(name)
    return f"{type(owner).__name__}.{name}"


def _annotated_object(fn: Callable[..., Any]) -> Any:
    """What holds the annotations: the function behind partials, or an object's `__call__`."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn if inspect.isroutine(fn) else type(fn).__call__


def _declares_nothing(fn: Callable[..., Any]) -> bool:
    """Whether the result is not annotated, or annotated with None: there is nothing to resolve."""
    written = (getattr(_annotated_object(fn), "__annotations__", None) or {}).get("return")
    return written is None or (isinstance(written, str) and written == "None")


def _signature(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("event", inspect.Parameter.POSITIONAL_ONLY)]


def parameters_of(fn: Callable[..., Any]) -> tuple[list[str], bool, list[str]]:
    """The names of the parameters, whether there is a `*args`, and the required names."""
    function: Any = fn
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is FunctionType and not function.__dict__:  # no __wrapped__ or __signature__
        bound = function is not fn
        if not bound or function.__code__.co_argcount:
            return _parameters_from_code(function, int(bound))
    parameters = _signature(fn)
    star = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in named], star, [p.name for p in named if p.default is p.empty]


def _parameters_from_code(function: FunctionType, skip: int) -> tuple[list[str], bool, list[str]]:
    """The same for a plain function without `skip` parameters; ten times as fast as `inspect`."""
    code, count = function.__code__, function.__code__.co_argcount
    defaults, keyword_defaults = function.__defaults__ or (), function.__kwdefaults__ or {}
    positional = code.co_varnames[skip:count]
    by_name = code.co_varnames[count : count + code.co_kwonlyargcount]
    required = [
        *code.co_varnames[skip : count - len(defaults)],
        *[name for name in by_name if name not in keyword_defaults],
    ]
    return [*positional, *by_name], bool(code.co_flags & inspect.CO_VARARGS), required


def _required(fn: Callable[..., Any]) -> list[str]:
    return parameters_of(fn)[2]


def _decision_types(annotation: Any) -> list[type]:
    """The classes in the annotation of a result, without None and surrounding awaitables."""
    if annotation is None or annotation is type(None) or annotation is Any:
        return []
    members = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:  # a vote and its reason
        members = members[:1]
    if members and typing.get_origin(annotation) is not Literal:
        return [kind for member in members for kind in _decision_types(member)]
    return [annotation] if isinstance(annotation, type) and annotation is not object else []
