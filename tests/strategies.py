"""Strategies for all that a log can hold, derived from the types themselves: a new record kind is covered at once."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union

from hypothesis import strategies as st
from msgspec import Struct

from windlass.decisions import ANSWER_KINDS, AnyDecision, AnyResolution, Ask
from windlass.messages import Message, Part, Usage
from windlass.outcomes import Cancelled, Completed, Failed, Stopped
from windlass.records import KINDS, Record

texts = st.text(max_size=12)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
keys = st.text("abcxyz_", min_size=1, max_size=4)
"""Keys of free data. None of them is a word of ours, so that a test may tell free data from structure."""

plain_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=4,
)
"""What JSON can hold."""


def _ask(**given: Any) -> Ask:
    """A question whose default is an answer it allows."""
    return Ask(**given | {"default": given["default"] if "approve" in given["allow"] else "reject"})


asks = st.builds(
    _ask,
    question=texts,
    allow=st.lists(st.sampled_from(ANSWER_KINDS), min_size=1, unique=True).map(tuple),
    approvers=st.none() | st.lists(texts, min_size=1, max_size=2).map(tuple),
    expires=st.none() | st.floats(0, 1e6),
    default=st.sampled_from(["approve", "reject"]),
)

_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    Any: plain_values,
    str: texts,
    int: integers,
    float: floats,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    type(None): st.none(),
    Ask: asks,
    Usage: st.builds(
        Usage,
        input=st.integers(0, 10**6),
        output=st.integers(0, 10**6),
        cached=st.integers(0, 10**6),
        cost=st.none() | st.floats(0, 100),
    ),
}


@cache
def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """A strategy for the values of a type."""
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


parts: st.SearchStrategy[Any] = values_of(Part)
messages: st.SearchStrategy[Message] = values_of(Message)
decisions: st.SearchStrategy[Any] = values_of(AnyDecision)
resolutions: st.SearchStrategy[Any] = values_of(AnyResolution)
outcomes: st.SearchStrategy[Any] = values_of(Completed | Stopped | Failed | Cancelled)
records: st.SearchStrategy[Record] = st.sampled_from(list(KINDS.values())).flatmap(values_of)
