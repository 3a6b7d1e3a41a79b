"""Hypothesis strategies: messages, replies, scripts, decisions, records and sets of hooks."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union

from msgspec import Struct
from msgspec.structs import replace

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("windlass.testing.strategies needs hypothesis: install 'windlass[testing]'") from error

from windlass.decisions import (
    ANSWER_KINDS,
    Again,
    Answer,
    AnyDecision,
    AnyResolution,
    Approve,
    Ask,
    Deny,
    Finish,
    Halt,
    Regenerate,
    Rewind,
    Stage,
    Veto,
    Vote,
)
from windlass.errors import ModelError, RateLimited
from windlass.events import EVENTS, FACTS
from windlass.messages import Message, ModelReply, Part, TextPart, ToolResult, Usage, user
from windlass.outcomes import Cancelled, Completed, Failed, Stopped
from windlass.records import KINDS, Record
from windlass.tools import Tool, toolset
from windlass.types import AnyEvent

from .hook_sets import HookSet, PlannedHook
from .models import Scriptable, Scripted, breaks, calls, says

__all__ = [
    "messages", "parts", "replies", "records", "decisions", "answers_to", "asks", "resolutions", "outcomes",
    "values_of", "scripted", "scripts", "arguments_for", "hook_sets",
    "texts", "integers", "floats", "keys", "plain_values",
]  # fmt: skip

texts: st.SearchStrategy[str] = st.text(max_size=12)
integers: st.SearchStrategy[int] = st.integers(-(2**63), 2**63 - 1)
floats: st.SearchStrategy[float] = st.floats(allow_nan=False, allow_infinity=False)
keys: st.SearchStrategy[str] = st.text("abcxyz_", min_size=1, max_size=4)
"""Keys of free data. None of them is a field name of Windlass, so that tests can tell free data from structure."""

plain_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=4,
)
"""Values that JSON can represent."""


# ---------------------------------------------------------------- anything of a type


def asks(*, lasting: bool = False) -> st.SearchStrategy[Ask]:
    """Questions. A `lasting` question never expires, has no approvers and can always be rejected."""
    allow = st.lists(st.sampled_from(ANSWER_KINDS), min_size=1, unique=True).map(tuple)
    return st.builds(
        _ask,
        question=texts,
        allow=allow.map(lambda kinds: tuple(dict.fromkeys((*kinds, "reject")))) if lasting else allow,
        approvers=st.none() if lasting else st.none() | st.lists(texts, min_size=1, max_size=2).map(tuple),
        expires=st.none() if lasting else st.none() | st.floats(0, 1e6),
        default=st.sampled_from(["approve", "reject"]),
        details=st.dictionaries(keys, plain_values, max_size=2),
        priority=st.integers(-9, 9),
        stages=st.just(()) if lasting else st.just(()) | st.lists(_stages, min_size=1, max_size=2).map(tuple),
    )


def _ask(**fields: Any) -> Ask:
    """A question whose default is an answer it allows."""
    if "approve" not in fields["allow"]:
        fields["default"] = "reject"
    if fields["stages"]:
        fields["approvers"] = None
    return Ask(**fields)


_stages: st.SearchStrategy[Stage] = st.builds(
    Stage,
    st.just(("ann", "bob")),
    st.integers(1, 2),
    st.none() | st.tuples(st.floats(0, 1e6), st.just(("eve",))),
)


_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    Any: plain_values,
    str: texts,
    int: integers,
    float: floats,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    type(None): st.none(),
    Ask: asks(),
    Stage: _stages,
    Approve: st.builds(Approve, st.none() | texts, st.none() | st.just("bash(git *)")),
    Again: st.builds(Again, st.none() | st.floats(0, 1e6)),
    Regenerate: st.builds(Regenerate, texts, st.sampled_from(["stop", "pass"]), st.none() | st.integers(0, 9)),
    Veto: st.builds(Veto, texts, st.none() | st.integers(0, 9)),
    Answer: st.builds(
        Answer, plain_values | st.builds(lambda text: ToolResult((TextPart(text),)), texts) | st.builds(user, texts)
    ),
    Usage: st.builds(
        Usage,
        input=st.integers(0, 10**6),
        output=st.integers(0, 10**6),
        cached=st.integers(0, 10**6),
        cost=st.none() | st.floats(0, 100),
    ),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of any type of Windlass, derived from the type, so that new fields and kinds are included."""
    return _derived(annotation)


@cache
def _derived(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in _LEAVES:
        return _LEAVES[annotation]
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return st.sampled_from(members)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(member) for member in members])
    if origin is tuple and members[-1] is Ellipsis:
        return st.lists(values_of(members[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*[values_of(member) for member in members])
    if origin in (dict, Mapping):
        return st.dictionaries(keys, values_of(members[1]), max_size=2)
    if issubclass(annotation, enum.Enum):
        return st.sampled_from(annotation)
    if issubclass(annotation, Struct):
        hints = typing.get_type_hints(annotation)
        return st.builds(annotation, **{name: values_of(hints[name]) for name in annotation.__struct_fields__})
    raise TypeError(f"no strategy for {annotation!r}")


def parts() -> st.SearchStrategy[Part]:
    """Parts of messages, of every kind."""
    return values_of(Part)


def messages() -> st.SearchStrategy[Message]:
    """Messages of any role with any parts: valid in a log, but not always sensible in a conversation."""
    return values_of(Message)


def records() -> st.SearchStrategy[Record]:
    """Records of every kind."""
    return st.sampled_from(list(KINDS.values())).flatmap(values_of)


def decisions() -> st.SearchStrategy[AnyDecision]:
    """Decisions of every kind."""
    return values_of(AnyDecision)


def resolutions() -> st.SearchStrategy[AnyResolution]:
    """Answers to questions, of every kind."""
    return values_of(AnyResolution)


def outcomes() -> st.SearchStrategy[Completed | Stopped | Failed | Cancelled]:
    """Outcomes of turns, of every kind."""
    return values_of(Completed | Stopped | Failed | Cancelled)


# ---------------------------------------------------------------- scripts


def arguments_for(tool: Tool[..., Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments for a tool that match its schema, as far as the schema uses plain types."""
    schema = tool.spec.schema
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: _values_for(of) for name, of in properties.items() if name in required},
        optional={name: _values_for(of) for name, of in properties.items() if name not in required},
    )


def _values_for(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    if "anyOf" in schema:
        return st.one_of([_values_for(member) for member in schema["anyOf"]])
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": texts,
        "integer": st.integers(schema.get("minimum", -1000), schema.get("maximum", 1000)),
        "number": st.integers(-1000, 1000).map(float),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    if schema.get("type") == "array":
        return st.lists(_values_for(schema.get("items", {})), max_size=3)
    return kinds.get(str(schema.get("type")), plain_values)


def scripted(tools: Iterable[Any] = (), *, wrong: bool = True) -> st.SearchStrategy[Scripted]:
    """Replies for a `ScriptedModel`: text in chunks, with and without thinking, and calls of the tools.

    With `wrong`, some call unknown tools, or use arguments that do not match or are not JSON.
    """
    made = list(toolset(tools).values())
    spoken = st.builds(
        lambda chunks, thinking: says(chunks=chunks, thinking=thinking),
        st.lists(st.text("abc .\n", min_size=1, max_size=6), min_size=1, max_size=4),
        st.none() | texts.filter(bool),
    )
    proper = [arguments_for(tool).map(lambda given, name=tool.name: (name, given)) for tool in made]  # type: ignore[misc]
    odd: list[Any] = [st.just(("nowhere", {}))]
    for tool in made:
        odd += [st.tuples(st.just(tool.name), st.sampled_from(['{"', "", "[]", "null", '{"odd": 1}']))]
    proposed: list[Any] = [*proper, *(odd if wrong else [])]
    if not proposed:
        return spoken
    calling = st.builds(
        lambda wanted, text: calls(wanted, _text=text),
        st.lists(st.one_of(proposed), min_size=1, max_size=3),
        st.just("") | st.just("One moment."),
    )
    return spoken | calling


def replies(tools: Iterable[Any] = (), *, wrong: bool = False) -> st.SearchStrategy[ModelReply]:
    """Replies of a model: text, thinking, and calls of the tools."""
    return scripted(tools, wrong=wrong).map(lambda said: said.reply)


def scripts(
    tools: Iterable[Any] = (), *, max_size: int = 4, wrong: bool = True, failing: bool = True
) -> st.SearchStrategy[list[Scriptable]]:
    """Scripts for a `ScriptedModel`: any replies, then one with text only, so that a turn can end with it.

    With `failing`, some are errors, or break off while they are streamed.
    """
    replies_ = scripted(tools, wrong=wrong)
    steps: st.SearchStrategy[Any] = replies_
    if failing:
        errors = st.sampled_from([ModelError, RateLimited]).map(lambda kind: kind("scripted", retryable=True))
        broken = st.builds(lambda said, pieces: breaks(said, pieces=pieces), replies_, st.integers(0, 3))
        steps = replies_ | errors | broken
    return st.builds(
        lambda before, last: [*before, last], st.lists(steps, max_size=max_size - 1), scripted(wrong=False)
    )


# ---------------------------------------------------------------- hooks


def answers_to(event: type[AnyEvent], *, lasting: bool = False) -> st.SearchStrategy[Any]:
    """Answers of a gate on an event: one of the decisions that the event accepts, or None. See `asks` for `lasting`."""
    few = st.sampled_from(["", "a", "b", "c"])
    made: dict[Any, st.SearchStrategy[Any]] = {
        Deny: st.builds(Deny, few),
        Halt: st.builds(Halt, few, st.none() | few),
        Answer: st.builds(Answer, st.sampled_from(["x", "y", 1, True, 1.5, None, ["x"]])),
        Finish: st.builds(Finish, st.sampled_from(["x", "y", 1, True, None])),
        Ask: asks(lasting=lasting),
        Regenerate: st.builds(Regenerate, few, st.sampled_from(["stop", "pass"]), st.none() | st.integers(0, 2)),
        Veto: st.builds(Veto, few, st.none() | st.integers(0, 2)),
        Rewind: st.builds(Rewind, st.integers(1, 3), few),
        Stage: _stages,
        Approve: st.builds(Approve, st.none() | texts, st.none() | st.just("bash(git *)")),
        Again: st.builds(Again, st.sampled_from([None, 0.0, 1.0, 2.0])),
    }
    legal = [st.just(rank) if isinstance(rank, Vote) else made.get(rank, st.builds(rank)) for rank in event.ranks]
    return st.one_of(*legal, st.none())


def hook_sets(
    *,
    events: Sequence[type[AnyEvent]] | None = None,
    bands: Sequence[str] = ("early", "normal", "guard"),
    tools: Iterable[Any] = (),
    max_size: int = 5,
    failing: bool = True,
) -> st.SearchStrategy[HookSet]:
    """Sets of deterministic hooks for any agent: `hook_set.install(agent)`.

    They use all verbs, any of the events (None: all events), any of the bands and any priority; some match only some of
    the tools. With `failing`, some gates and rewrites raise. Without the guard band a set is a capability.
    """
    events = EVENTS if events is None else events
    broken = st.none() | st.builds(RuntimeError, st.just("the hook broke")) if failing else st.none()
    makers = [
        *[_plans("gate", event.__name__, answer=answers_to(event, lasting=True) | broken) for event in events],
        *[_plans("rewrite", event.__name__, answer=broken) for event in events if event.payload is not None],
        *[
            _plans("inject", event.__name__, does=st.sampled_from(["transient", "durable", "unrecorded"]))
            for event in events
            if event.injects is not None
        ],
        *[_combined(event) for event in events],
        *[
            _plans("wrap", name, does=st.sampled_from(["once", "twice", "instead"]))
            for name in ("ModelCall", "ToolCall")
        ],
        *[_plans("wrap", name, does=st.just("once")) for name in ("Step", "Turn")],
        _plans("transform", "", does=st.sampled_from(["shout", "hold"])),
        st.sampled_from([fact.__name__ for fact in FACTS]).flatmap(lambda name: _plans("observe", name)),
    ]
    names = sorted(toolset(tools))
    hooks = st.one_of(makers).flatmap(lambda hook: _placed(hook, bands, names))
    return _sets(st.lists(hooks, max_size=max_size))


def _plans(verb: Any, on: str, **fields: Any) -> st.SearchStrategy[PlannedHook]:
    timeless = verb in ("wrap", "transform", "observe")
    when = st.just("always") if timeless else st.sampled_from(["always", "first", "later"])
    return st.builds(
        PlannedHook, name=st.just(verb), verb=st.just(verb), on=st.just(on), when=when, plain=st.booleans(), **fields
    )


def _combined(event: type[AnyEvent]) -> st.SearchStrategy[PlannedHook]:
    legal = ["decide"]
    legal += ["rewrite", "rewrite decide"] if event.payload is not None else []
    legal += ["inject", "decide inject"] if event.injects is not None else []
    return _plans("hook", event.__name__, does=st.sampled_from(legal), answer=answers_to(event, lasting=True))


def _placed(hook: PlannedHook, bands: Sequence[str], tools: Sequence[str]) -> st.SearchStrategy[PlannedHook]:
    """The same hook in any of the bands, with any options."""
    options: dict[str, st.SearchStrategy[Any]] = {}
    if hook.verb == "observe":
        options = {"wait": st.booleans()}
    else:
        options = {"band": st.sampled_from(list(bands)), "priority": st.integers(-2, 2)}
        if tools and hook.on in ("ToolCalling", "ToolReturning", "ToolCall"):
            options["tool"] = st.sampled_from(["*", *tools])
        if hook.verb == "gate":
            options["costly"] = st.booleans()
        if hook.verb in ("rewrite", "gate") and hook.on == "ModelReplying":
            options["live"] = st.booleans()
    made = st.fixed_dictionaries({}, optional=options)
    return made.map(lambda given: replace(hook, options=given))


@st.composite
def _sets(draw: st.DrawFn, planned: st.SearchStrategy[list[PlannedHook]]) -> HookSet:
    """Hooks with unique names. Drawn rather than mapped, so that a failing test shows the set itself."""
    return HookSet(tuple(replace(hook, name=f"{hook.verb}{at}") for at, hook in enumerate(draw(planned), 1)))
