"""Examples of records, derived from their types: the same ones every time."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Literal, Union

from msgspec import Struct

from windlass.decisions import Answer, Approve, Ask, Stage
from windlass.messages import TextPart, ToolResult, user
from windlass.records import KINDS, Record

TEXTS = ("", "plain", "ümläut 🌍", "a\0b", "two\nlines\u2028three", "\"quoted\" 'text' \\ %s %", "x" * 300)
PLAIN: tuple[Any, ...] = (
    None, True, 0, -(2**63), 2**63 - 1, 0.1, -1e300, "", "text\0🌍", [], {}, [None, [1, {"a": []}]],
    {"": 1, "é": {"deep": [[[{}]]]}},
)  # fmt: skip
"""Values that JSON can represent."""

_LEAVES: dict[Any, Callable[[Random], Any]] = {
    Any: lambda random: random.choice(PLAIN),
    str: lambda random: random.choice(TEXTS),
    int: lambda random: random.choice((0, 1, 7, 2**31, 2**63 - 1)),
    float: lambda random: random.choice((0.0, 0.1, 1e-9, 1763251200.123456)),
    bool: lambda random: random.random() < 0.5,
    bytes: lambda random: random.randbytes(random.randrange(40)),
    type(None): lambda random: None,
    Answer: lambda random: Answer(random.choice((*PLAIN, ToolResult((TextPart("a\0b"),), "error"), user("hello")))),
    Ask: lambda random: Ask("May it?", ("approve", "reject"), ("ann",), 60.0, random.choice(("approve", "reject"))),
    Stage: lambda random: Stage(("ann", "bob"), random.choice((1, 2)), random.choice((None, (60.0, ("eve",))))),
    Approve: lambda random: Approve(random.choice((None, "ann")), random.choice((None, "bash(git *)"))),
}


def records(each: int = 5) -> Iterator[Record]:
    """Records of every kind."""
    for name, kind in KINDS.items():
        for number in range(each):
            yield example(kind, Random(f"{name} {number}"))


def example(annotation: Any, random: Random) -> Any:
    """A value of a type."""
    if annotation in _LEAVES:
        return _LEAVES[annotation](random)
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return random.choice(members)
    if origin in (Union, types.UnionType):
        return example(random.choice(members), random)
    if origin is tuple and members[-1] is Ellipsis:
        return tuple([example(members[0], random) for _ in range(random.randrange(3))])
    if origin is tuple:
        return tuple([example(member, random) for member in members])
    if origin in (dict, Mapping):
        return {f"key{number}": example(members[1], random) for number in range(random.randrange(3))}
    if issubclass(annotation, enum.Enum):
        return random.choice(list(annotation))
    if issubclass(annotation, Struct):
        hints = typing.get_type_hints(annotation)
        return annotation(**{name: example(hints[name], random) for name in annotation.__struct_fields__})
    raise TypeError(f"no example for {annotation!r}")
