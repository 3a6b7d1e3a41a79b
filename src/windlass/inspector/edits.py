"""What a rewrite changed in a request: texts before and after, field by field and message by message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from windlass.messages import Message, ModelRequest

from .words import Data, json_text, said

FIELDS = ("system", "model", "settings", "output")
MOST = 40
"""How many changes of one rewrite are shown."""


def edits_of(before: ModelRequest, after: ModelRequest) -> list[Data]:
    """The changes between two requests. `before` or `after` of a change is None if there was or is nothing."""
    found: list[Data] = []
    for name in FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            found.append(_edit(name, old, new))
    old_tools, new_tools = ({spec.name: spec for spec in one.tools} for one in (before, after))
    specs = [(name, old_tools.get(name), new_tools.get(name)) for name in dict.fromkeys([*old_tools, *new_tools])]
    found += [_edit(f"tool {name}", old, new) for name, old, new in specs if old != new]
    for number, old, new in _pairs(before.messages, after.messages):
        found += _edits_of_message(number, old, new)
    return found[:MOST]


def _pairs(before: Sequence[Message], after: Sequence[Message]) -> Iterator[tuple[int, Message | None, Message | None]]:
    """Messages that are not the same, each with the one in its place; unchanged ones are the same objects."""
    kept = {id(one) for one in before} & {id(one) for one in after}
    old, new = list(enumerate(before, 1)), list(enumerate(after, 1))
    at = to = 0
    while at < len(old) or to < len(new):
        gone = at < len(old) and id(old[at][1]) not in kept
        fresh = to < len(new) and id(new[to][1]) not in kept
        if gone or fresh:
            yield (new[to] if fresh else old[at])[0], old[at][1] if gone else None, new[to][1] if fresh else None
            at, to = at + gone, to + fresh
        else:
            at, to = at + 1, to + 1


def _edits_of_message(number: int, old: Message | None, new: Message | None) -> Iterator[Data]:
    role = (new or old).role  # type: ignore[union-attr]
    where = f"message {number}, {role}"
    if old is None or new is None:
        yield {"where": where, "before": old and said(old), "after": new and said(new)}
        return
    for at in range(max(len(old.parts), len(new.parts))):
        before, after = (one.parts[at] if at < len(one.parts) else None for one in (old, new))
        if before != after:
            yield _edit(where, before, after)


def _edit(where: str, old: Any, new: Any) -> Data:
    return {"where": where, "before": _text(old), "after": _text(new)}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    text = getattr(value, "text", None)
    return text if isinstance(text, str) else json_text(value)
