"""Tools: functions that a model may call, described by their signatures and called with validated arguments."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from types import FunctionType
from typing import Annotated, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from windlass._schema import (
    Arguments,
    Completion,
    Parameter,
    SignatureReader,
    arguments_decoder,
    arguments_type,
    completion,
    object_schema,
    read_docstring,
    signature_parameters,
    type_text,
)
from windlass.errors import ToolDefinitionError, ToolError
from windlass.messages import ToolSpec, digest, frozen
from windlass.slots import Slot, slot_for

P = ParamSpec("P")
R = TypeVar("R")
_Rest = ParamSpec("_Rest")
_Receiver = TypeVar("_Receiver")

EffectClass = Literal["pure", "idempotent", "unsafe"]
Resumable = Literal["resumable"]
RetryRule = Literal["never", "safe"]
DoubtRule = Literal["tell", "ask", "rerun", "compensate"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SUPPLIED_BY_NAME = {"turn": "turn", "idempotency_key": "key"}
_UNREADABLE = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)


class ArgumentsError(ToolError):
    """The model's arguments do not fit the tool; nothing was run. `parameters` names the offending ones."""

    def __init__(self, message: str, *, tool: str = "", parameters: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tool = tool
        self.parameters = parameters


class ToolAnnotations(Struct, frozen=True):
    """Hints about a tool for people and policies, in MCP's terms; None means not stated."""

    read_only: bool
    destructive: bool | None = None
    open_world: bool | None = None


class _Options(Struct, frozen=True):
    effect: EffectClass = "unsafe"
    inline: bool = False
    name: str | None = None
    description: str | None = None
    retry: RetryRule = "never"
    sequential: bool = False
    timeout: Annotated[float, Meta(gt=0)] | None = None
    in_doubt: DoubtRule | None = None
    compensate: Any = None
    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None
    show_errors: bool = False
    native: dict[str, dict[str, Any]] = {}

    @property
    def annotations(self) -> ToolAnnotations:
        read_only = self.effect == "pure" if self.read_only is None else self.read_only
        return ToolAnnotations(read_only, self.destructive, self.open_world)


class Tool(Generic[P, R]):
    """A function that a model may call. Calling the tool calls the function.

    A tool is made by `tool`, is not changed afterwards and may be shared by agents, sessions and threads. In a class
    it is a method: `instance.name` is the tool bound to that instance; without one it `needs_instance`. `supplied`
    pairs each parameter that the runtime fills in with its source: `turn`, `key` (the idempotency key) or
    `slot:<name>`. `capability` names the capability that brought it to an agent. A tool is `direct` if a call only has
    to await `fn` with the values from `prepare`, and `quick` if it only has to call `fn` with them.
    """

    __slots__ = (
        "_completion",
        "_decode",
        "_digest",
        "_keywords",
        "_parameters",
        "_plain",
        "_positional",
        "_shown",
        "annotations",
        "capability",
        "compensate",
        "description",
        "direct",
        "effect",
        "fn",
        "in_doubt",
        "inline",
        "is_async",
        "name",
        "native",
        "needs_instance",
        "quick",
        "retry",
        "sequential",
        "show_errors",
        "spec",
        "supplied",
        "timeout",
    )

    def __init__(self, fn: Callable[P, R], given: Mapping[str, Any], names: Mapping[str, Any]) -> None:
        function = _plain_function(fn)
        options = _checked_options(function.__name__, given)
        text, descriptions = read_docstring(function.__doc__)
        self.fn = fn
        self.capability: str | None = None
        self.name: str = function.__name__ if options.name is None else options.name
        self.description: str = text if options.description is None else options.description
        self.effect: EffectClass | Resumable = options.effect
        self.retry: RetryRule = options.retry
        self.inline: bool = options.inline
        self.sequential: bool = options.sequential
        self.show_errors: bool = options.show_errors
        self.native: Mapping[str, Any] = options.native
        self.timeout: float | None = options.timeout
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        self.annotations: ToolAnnotations = options.annotations
        self.compensate: Callable[..., Any] | None = options.compensate
        self.in_doubt: DoubtRule = options.in_doubt or self._default_in_doubt()
        self._check_definition()
        self._check_in_doubt()

        raw = signature_parameters(fn)
        self.needs_instance: bool = _takes_self(function, raw)
        reader = SignatureReader(self.name, function, descriptions, names)
        self._parameters: tuple[Parameter, ...] = tuple(
            reader.read_supplied(p) if p.name in _SUPPLIED_BY_NAME else reader.read(p)
            for p in raw[self.needs_instance :]
        )
        self._shape({p.name: _SUPPLIED_BY_NAME[p.name] for p in raw if p.name in _SUPPLIED_BY_NAME})
        if self.compensate is not None:
            self._check_compensation(self.compensate)

    def _shape(self, supplied: Mapping[str, str]) -> None:
        """Set everything that depends on which parameters the runtime fills in."""
        asked = [p for p in self._parameters if p.name not in supplied]
        self._check_supplied(supplied)
        self.supplied: tuple[tuple[str, str], ...] = tuple(supplied.items())
        self.spec = ToolSpec(self.name, self.description, object_schema(asked), self.native)
        self._shown: ToolSpec | None = None
        self._digest = ""
        self._decode: Callable[[str], Arguments] = arguments_decoder(arguments_type(self.name, asked))
        self._completion: Completion = completion(asked, self._decode)
        self._positional: int = _leading_positional(self._parameters, supplied)
        self._keywords: tuple[str, ...] = tuple(p.name for p in asked[self._positional :])
        self._plain: bool = not supplied and not self._keywords
        self.direct: bool = self.is_async and self._plain and self.timeout is None
        self.quick: bool = self.inline and not self.is_async and self._plain and self.timeout is None

    def _check_definition(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise self._refusal("its name must be 1 to 64 letters, digits, `_` or `-`; give it another with `name=`")
        if inspect.isgeneratorfunction(self.fn) or inspect.isasyncgenfunction(self.fn):
            raise self._refusal("a generator has no result to show to a model; collect what it yields and return it")
        if self.timeout is not None and self.inline and not self.is_async:
            raise self._refusal("timeout cannot interrupt an inline function; drop `timeout` or `inline=True`")
        if self.annotations.read_only and self.annotations.destructive:
            raise self._refusal("it cannot be read_only and destructive (a pure tool is read_only by default)")

    @property
    def repeatable(self) -> bool:
        """Whether a call that was started may be repeated without asking a person."""
        return self.effect != "unsafe" or self.retry == "safe"

    def _default_in_doubt(self) -> DoubtRule:
        if self.compensate is not None:
            return "compensate"
        return "rerun" if self.repeatable else "tell"

    def _check_in_doubt(self) -> None:
        if self.in_doubt == "rerun" and not self.repeatable:
            how = 'declare effect="idempotent" or retry="safe", or use in_doubt="ask"'
            raise self._refusal(
                f'it is unsafe, so in_doubt="rerun" could repeat an effect that has already happened; {how}'
            )
        if self.in_doubt != "rerun" and self.effect == "pure":
            raise self._refusal(f'it is pure: nothing can be in doubt; drop in_doubt="{self.in_doubt}"')
        if self.in_doubt == "compensate" and self.compensate is None:
            raise self._refusal('in_doubt="compensate" needs a function that undoes a call: compensate=…')
        if self.in_doubt != "compensate" and self.compensate is not None:
            raise self._refusal(f'with in_doubt="{self.in_doubt}" compensate is never called; drop one of them')
        if self.compensate is not None and not callable(self.compensate):
            raise self._refusal(f"compensate={_cut(repr(self.compensate))} cannot be called")

    def _check_compensation(self, undo: Callable[..., Any]) -> None:
        known = {"idempotency_key", *[p.name for p in self._parameters]} - {"turn"}
        for parameter in inspect.signature(undo).parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY or (
                parameter.name not in known
                and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
                and parameter.default is parameter.empty
                and not (self.needs_instance and parameter.name == "self")
            ):
                what = f"its compensation has a parameter {parameter.name!r} that the call does not have"
                raise self._refusal(f"{what}; it gets the arguments of the call and idempotency_key, by name")

    def _check_supplied(self, supplied: Mapping[str, str]) -> None:
        for parameter in self._parameters:
            if parameter.positional_only and parameter.name in supplied:
                what = f"parameter {parameter.name!r} is supplied by name and cannot be positional-only"
                raise self._refusal(f"{what}; move it after the `/`")

    def _refusal(self, what: str) -> ToolDefinitionError:
        return ToolDefinitionError(f"tool {self.name!r}: {what}", tool=self.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Tool[P, R]: ...
    @overload
    def __get__(
        self: Tool[Concatenate[_Receiver, _Rest], R], instance: _Receiver, owner: type | None = None
    ) -> Tool[_Rest, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        if instance is None or not self.needs_instance:
            return self
        bound: Tool[..., R] = copy(self)
        bound.fn = self.fn.__get__(instance, owner)
        if self.compensate is not None and "self" in inspect.signature(self.compensate).parameters:
            bound.compensate = self.compensate.__get__(instance, owner)
        bound.needs_instance = False
        return bound

    def __repr__(self) -> str:
        return f"<Tool {self.name!r} {self.effect} {self.source}>"

    @property
    def shown(self) -> ToolSpec:
        """The spec as requests carry it: shared and read-only."""
        if self._shown is None:
            self._shown = self.spec.replace(schema=frozen(self.spec.schema), native=frozen(self.spec.native))
        return self._shown

    @property
    def digest(self) -> str:
        """A hash of everything that a model or a policy sees of the tool; it differs if the tool was changed."""
        if not self._digest:
            rules = (
                self.effect,
                self.retry,
                self.in_doubt,
                *map(repr, (self.sequential, self.timeout, self.annotations)),
            )
            native = [msgspec.json.encode(self.native).decode()] if self.native else []
            schema = msgspec.json.encode(self.spec.schema).decode()
            self._digest = digest(self.spec.description, schema, *rules, *native)[:16]
        return self._digest

    @property
    def source(self) -> str:
        """Where the function is defined, as `file:line`."""
        code = _plain_function(self.fn).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def brought_by(self, capability: str) -> Tool[P, R]:
        """This tool as a capability brings it to an agent: a copy that names the capability."""
        brought = copy(self)
        brought.capability = capability
        return brought

    def bound(self, slots: Collection[Slot[Any]]) -> Tool[P, R]:
        """This tool with parameters annotated with a slot's type supplied from that slot, hidden from the model."""
        supplied = dict(self.supplied)
        from_slots: dict[str, str] = {}
        for parameter in self._parameters if slots else ():
            try:
                slot = None if parameter.name in supplied else slot_for(parameter.bare_type, parameter.name, slots)
            except LookupError as error:
                raise self._refusal(str(error)) from None
            if slot is not None:
                from_slots[parameter.name] = f"slot:{slot.name}"
        if not from_slots:
            return self
        bound = copy(self)
        bound._shape({**supplied, **from_slots})
        return bound

    def decode(self, json: str) -> Arguments:
        """The arguments that a model wrote, validated; `ArgumentsError` tells the model what to correct."""
        try:
            return self._decode(json)
        except Exception as problem:
            return self._decode_empty(json, problem)

    def prepare(self, json: str) -> tuple[Any, ...]:
        """Like `decode`, but returns the values in the order of the parameters, as `invoke` takes them."""
        decode = self._decode
        try:
            return astuple(decode(json))
        except Exception as problem:
            return astuple(self._decode_empty(json, problem))

    def complete(self, json: str) -> str:
        """The validated arguments as canonical JSON: parameters in order, defaults filled in, JSON types only.

        Hooks, rules and people see these arguments, and the tool gets them. The defaults in `hidden_defaults` have no
        JSON form and are left out.
        """
        return completed_arguments(self, json)[0]

    @property
    def hidden_defaults(self) -> tuple[str, ...]:
        """The parameters whose defaults have no JSON form: hooks, rules and people do not see those defaults."""
        return tuple(self._completion.hidden)

    def invoke(self, values: tuple[Any, ...], supplied: Mapping[str, Any] | None = None) -> Any:
        """Call the function; an async one returns its awaitable. `supplied` is keyed by parameter name."""
        fn: Callable[..., Any] = self.fn
        if self._plain:
            return fn(*values)
        if not self._keywords:
            return fn(*values, **(supplied or {}))
        count = self._positional
        named = dict(zip(self._keywords, values[count:], strict=True))
        return fn(*values[:count], **named, **(supplied or {}))

    def undo(self, values: tuple[Any, ...], key: str) -> Any:
        """Call the compensation with the arguments and the key, as far as it has parameters for them."""
        assert self.compensate is not None
        supplied = {name for name, _ in self.supplied}
        asked = [p.name for p in self._parameters if p.name not in supplied]
        arguments = {**dict(zip(asked, values, strict=True)), "idempotency_key": key}
        parameters = inspect.signature(self.compensate).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            arguments = {name: value for name, value in arguments.items() if name in parameters}
        return self.compensate(**arguments)

    def _decode_empty(self, json: str, problem: Exception) -> Arguments:
        """Accept a blank text or null as no arguments; raise an error for any other text."""
        text = json.strip()
        if not text or (text == "null" and not self.spec.schema["properties"]):
            return self.decode("{}")
        raise _arguments_error(self, json, problem) from problem


def completed_arguments(tool: Tool[..., Any], json: str) -> tuple[str, tuple[Any, ...] | None]:
    """The canonical JSON of a call's arguments, and their values if that JSON decodes to the same values."""
    arguments = tool.decode(json)
    completion = tool._completion  # pyright: ignore[reportPrivateUsage]
    try:
        if completion.plain and not completion.hidden:
            return completion.encode(arguments).decode(), astuple(arguments)
        text = completion.text(arguments, json)
    except RecursionError as problem:  # writing goes deeper than reading
        raise _arguments_error(tool, json, problem) from problem
    return text, astuple(arguments) if completion.plain or text == json else None


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    effect: EffectClass = "unsafe",
    inline: bool = False,
    name: str | None = None,
    description: str | None = None,
    retry: RetryRule = "never",
    sequential: bool = False,
    timeout: float | None = None,
    in_doubt: DoubtRule | None = None,
    compensate: Callable[..., Any] | None = None,
    read_only: bool | None = None,
    destructive: bool | None = None,
    open_world: bool | None = None,
    show_errors: bool = False,
    native: Mapping[str, Mapping[str, Any]] = {},
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a tool: `@tool`, or `@tool(effect="pure", ...)`.

    `effect` says what a repeated call does: `pure` (nothing), `idempotent` (no more than the first, given the
    same `idempotency_key`) or `unsafe`. `retry="safe"` allows a second attempt at an unsafe call. `inline` runs a sync
    function on the event loop instead of a thread, `sequential` keeps other calls of the step from running beside it,
    `timeout` is in seconds.

    `in_doubt` says what happens to a call whose process died after starting it: `tell` the model that its outcome is
    unknown (the default for unsafe tools), `rerun` it with the same key (the default for others), `ask` a person, or
    `compensate`: the function of that name gets the arguments of the call, and its `idempotency_key` if it has that
    parameter, and undoes what may have happened.

    `read_only` (by default: whether it is pure), `destructive` and `open_world` are hints. The model reads the text of
    a `ToolError`; for any other exception it reads only that the tool failed, unless `show_errors=True`.

    `native` makes the function the executor of a tool that a vendor has defined: by vendor, the vendor's definition,
    such as `{"openai-responses": {"type": "shell"}, "anthropic": {"type": "memory_20250818"}}`. Other vendors get the
    function's own description and schema.
    """
    if fn is not None:
        return Tool(fn, options, _names_around(fn))
    return lambda function: Tool(function, options, _names_around(function))


def toolset(tools: Iterable[Callable[..., Any]]) -> dict[str, Tool[..., Any]]:
    """Tools by name; plain functions become tools. Two tools with the same name raise an error."""
    tools_by_name: dict[str, Tool[..., Any]] = {}
    for item in tools:
        one: Tool[..., Any] = item if isinstance(item, Tool) else Tool(item, {}, {})
        if one.needs_instance:
            raise ToolDefinitionError(
                f"tool {one.name!r} ({one.source}) is a method without an instance; pass `instance.{one.name}`",
                tool=one.name,
            )
        if (first := tools_by_name.setdefault(one.name, one)) is not one:
            raise ToolDefinitionError(
                f"tool {one.name!r} is defined twice: {first.source} and {one.source}; rename one with "
                f"`@tool(name=...)`",
                tool=one.name,
            )
    return tools_by_name


# ── definition ────────────────────────────────────────────────────────────────────────────────────────────────────


def _names_around(fn: Callable[..., Any]) -> dict[str, Any]:
    """The local names of the caller's caller, if `fn` is defined there: its annotations may refer to them."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    defined_there = _plain_function(fn).__code__ in frame.f_code.co_consts
    return dict(frame.f_locals) if defined_there else {}


def _plain_function(fn: Any) -> FunctionType:
    """The Python function behind methods and decorators."""
    if isinstance(fn, Tool):
        raise ToolDefinitionError(f"tool {fn.name!r} is already a tool; apply `tool` once", tool=fn.name)
    function = inspect.unwrap(fn) if callable(fn) else fn
    function = getattr(function, "__func__", function)
    if not (callable(fn) and inspect.isfunction(function)):
        raise ToolDefinitionError(
            f"a tool must be a function or method, not {_cut(repr(fn))} ({type(fn).__name__}); "
            f"wrap it in a `def` with annotated parameters"
        )
    return function


def _takes_self(function: FunctionType, raw: list[inspect.Parameter]) -> bool:
    owner = function.__qualname__.rpartition(".")[0]
    in_class = bool(owner) and not owner.endswith("<locals>")
    return in_class and bool(raw) and raw[0].name == "self"


def _leading_positional(parameters: Iterable[Parameter], supplied: Mapping[str, str]) -> int:
    count = 0
    for parameter in parameters:
        if parameter.keyword_only or parameter.name in supplied:
            break
        count += 1
    return count


def _checked_options(name: str, given: Mapping[str, Any]) -> _Options:
    label = str(given.get("name") or name)
    known = _Options.__struct_fields__
    for option in given:
        if option not in known:
            what = f"there is no option {option!r}; the options are {', '.join(known)}"
            raise ToolDefinitionError(f"tool {label!r}: {what}", tool=label)
    try:
        return msgspec.convert(given, _Options)
    except msgspec.ValidationError as exc:
        option = str(exc).rpartition("$.")[2].rstrip("`").partition("[")[0]
        what = f"option {option!r} is {_cut(repr(given[option]))}; it must be {_legal_values(option)}"
        raise ToolDefinitionError(f"tool {label!r}: {what}", tool=label) from exc


def _legal_values(option: str) -> str:
    (_,), definitions = msgspec.json.schema_components([_Options])
    described = definitions[_Options.__name__]["properties"][option]
    return type_text(described, {}) + (" above 0" if option == "timeout" else "")


# ── what to tell a model about arguments that do not fit ──────────────────────────────────────────────────────────

_EXCERPT = 80
_NAMES_SHOWN = 5


def _arguments_error(tool: Tool[..., Any], json: str, problem: Exception) -> ArgumentsError:
    what, parameters = _diagnosis(tool, json, problem)
    message = f"tool {tool.name!r} was not run: {what}. {_usage(tool)}"
    return ArgumentsError(message, tool=tool.name, parameters=parameters)


def _diagnosis(tool: Tool[..., Any], json: str, problem: Exception) -> tuple[str, tuple[str, ...]]:
    """What is wrong, and with which parameters."""
    try:
        given = msgspec.json.decode(json)
        if isinstance(problem, RecursionError):
            raise problem
    except _UNREADABLE as exc:
        return _syntax_problem(json, exc), ()
    if not isinstance(given, dict):
        return f"its arguments must be a JSON object, not {_as_json(given)}", ()
    properties, required = tool.spec.schema["properties"], tool.spec.schema["required"]
    unknown = [name for name in given if name not in properties]
    missing = [name for name in required if name not in given]
    if missing or unknown:
        what = [_name_list(kind, names) for kind, names in (("missing", missing), ("unknown", unknown)) if names]
        return "; ".join(what), tuple(_cut(name) for name in (missing + unknown)[:_NAMES_SHOWN])
    if not isinstance(problem, msgspec.MsgspecError):  # raised by the code of a type: its text is not for the model
        return f"its arguments could not be read ({type(problem).__name__})", ()
    return _type_problem(given, str(problem))


def _syntax_problem(json: str, problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return f"its arguments are nested too deeply: {_cut(json)}"
    if isinstance(problem, UnicodeEncodeError):
        where = len(json[: problem.start].encode("utf-8", "replace"))
        why = f"invalid Unicode at character {problem.start}"
    else:
        position = re.search(r"\(byte (\d+)\)", str(problem))
        where, why = int(position[1]) if position else len(json.encode()), str(problem)
    near = json.encode("utf-8", "replace")[max(0, where - _EXCERPT // 2) : where + _EXCERPT // 2]
    return f"its arguments are not valid JSON: {why}, near {near.decode('utf-8', 'replace')!r}"


def _type_problem(given: Mapping[str, Any], problem: str) -> tuple[str, tuple[str, ...]]:
    """A validation error in msgspec's words, with the parameter's name before it and the given value after it."""
    why, _, place = problem.rpartition(" - at ")
    path = re.search(r"\$\.(\w+)[^`]*", place)
    if path is None:
        return _cut(problem, 4 * _EXCERPT), ()
    value = f"it came as {_as_json(given[path[1]])}"
    return f"parameter {path[1]!r} (at {path[0]}): {_cut(why, 4 * _EXCERPT)}; {value}", (path[1],)


def _usage(tool: Tool[..., Any]) -> str:
    schema = tool.spec.schema
    definitions = schema.get("$defs", {})
    described_parameters = [
        f"{name} ({_cut(type_text(described, definitions))}{'' if name in schema['required'] else ', optional'})"
        for name, described in schema["properties"].items()
    ]
    return f"It takes {', '.join(described_parameters)}." if described_parameters else "It takes no parameters."


def _name_list(kind: str, names: list[str]) -> str:
    shown = ", ".join(repr(_cut(name)) for name in names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{kind} parameter{'s' if len(names) > 1 else ''} {shown}{more}"


def _as_json(value: object) -> str:
    return _cut(msgspec.json.encode(value).decode())


def _cut(text: str, limit: int = _EXCERPT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
