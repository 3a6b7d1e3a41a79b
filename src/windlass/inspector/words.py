"""Recorded text as the page gets it: cut to a limit, and without characters that nobody can see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias, cast

import msgspec

from windlass._text import inert, inert_json
from windlass.decisions import Vote
from windlass.messages import Message, json_with_surrogates

Data: TypeAlias = dict[str, Any]

ROW = 280
"""How many characters of a text a row of the list holds."""

WHOLE = 50_000
"""How many characters of a text the details of a row hold."""

MOST_ITEMS = 500
"""How many items of a list the details of a row hold."""

FEW_ITEMS = 40
"""How many items of a list a row of the list holds."""

DEEPEST = 40
"""How many lists and objects inside each other are shown."""

LATEST = 1e11
"""The latest time that is shown, in seconds: in the year 5138."""


def cut(value: Any, limit: int, items: int = MOST_ITEMS, depth: int = DEEPEST) -> Any:
    """A value whose texts have at most `limit` characters, and show every control and bidirectional character.

    Lists and objects have at most so many `items`, and are at most so many levels deep.
    """
    if isinstance(value, str):
        return cut_text(value, limit)
    if isinstance(value, dict | list | tuple) and depth <= 0:
        return "…"
    if isinstance(value, dict):
        pairs = islice(cast(Data, value).items(), items)
        return {cut_text(str(key), limit): cut(item, limit, items, depth - 1) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [cut(item, limit, items, depth - 1) for item in islice(cast("list[Any]", value), items)]
    return value


def cut_row(row: Data, limit: int) -> Data:
    """A row whose texts are cut. Its own keys and numbers stay as they are, so that long turns take no time."""
    items = FEW_ITEMS if limit <= ROW else MOST_ITEMS
    return {key: value if type(value) in _PLAIN else cut(value, limit, items) for key, value in row.items()}


def moment(at: float) -> float:
    """A time that can be shown, whatever a log claims."""
    return min(max(at, 0.0), LATEST)


_PLAIN = frozenset({int, float, bool, type(None)})


def cut_text(text: str, limit: int) -> str:
    """A text of at most `limit` characters. It says how many are missing."""
    left = len(text) - limit
    shown = text if left <= 0 else text[:limit]
    if not (shown.isascii() and shown.isprintable()):
        shown = inert(shown)
    return shown if left <= 0 else f"{shown}…(+{left:,})"


def shown_json(value: Any) -> str | None:
    """A value as JSON text with every hidden character escaped; None if it is nested too deeply for that."""
    try:
        return inert_json(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return None


def plain(value: Any) -> Any:
    """A value as plain data."""
    return msgspec.to_builtins(value, enc_hook=str)


def json_text(value: Any) -> str:
    """A value as JSON text."""
    return json_with_surrogates(plain(value))


def nesting(value: Any) -> int:
    """How many lists and objects are inside each other."""
    depth, level = 0, [value]
    while level := [
        item
        for one in level
        if isinstance(one, dict | list | tuple)
        for item in (cast(Data, one).values() if isinstance(one, dict) else cast("list[Any]", one))
    ]:
        depth += 1
    return depth


def decided(decision: Any) -> Data:
    """A decision of a hook or a person: what it is called, and why."""
    if decision is None:
        return {"v": "None", "why": ""}
    if isinstance(decision, Vote):
        return {"v": decision.name, "why": ""}
    return {"v": type(decision).__name__, "why": _reason(plain(decision))}


def _reason(decision: Mapping[str, Any]) -> str:
    for name in ("reason", "question", "feedback", "note", "message", "text"):
        if isinstance(text := decision.get(name), str) and text:
            return text
    for name in ("value", "arguments"):
        if (value := decision.get(name)) is not None:
            return value if isinstance(value, str) else json_text(value)
    return ""


def said(message: Message) -> str:
    """The text of a message, and what else it holds."""
    others = [str(plain(part).get("type", "part")) for part in message.parts if not hasattr(part, "text")]
    text = message.text
    return text or ("" if not others else f"[{', '.join(others)}]")
