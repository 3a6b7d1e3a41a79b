"""Recorded text as the page gets it: cut to a limit, and without characters that nobody can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import msgspec

from windlass._text import inert
from windlass.decisions import Vote
from windlass.messages import Message, json_with_surrogates

Data: TypeAlias = dict[str, Any]

ROW = 280
"""How many characters of a text a row of the list holds."""

WHOLE = 50_000
"""How many characters of a text the details of a row hold."""

MOST_ITEMS = 500
"""How many items of a list the details of a row hold."""


def cut(value: Any, limit: int) -> Any:
    """A value whose texts have at most `limit` characters, and show every control and bidirectional character."""
    if isinstance(value, str):
        return cut_text(value, limit)
    if isinstance(value, dict):
        items = list(cast(Data, value).items())[:MOST_ITEMS]
        return {cut_text(str(key), limit): cut(item, limit) for key, item in items}
    if isinstance(value, list | tuple):
        return [cut(item, limit) for item in list(cast("list[Any]", value))[:MOST_ITEMS]]
    return value


def cut_row(row: Data, limit: int) -> Data:
    """A row whose texts are cut. Its own keys and numbers stay as they are, so that long turns take no time."""
    return {key: value if type(value) in _PLAIN else cut(value, limit) for key, value in row.items()}


_PLAIN = frozenset({int, float, bool, type(None)})


def cut_text(text: str, limit: int) -> str:
    """A text of at most `limit` characters. It says how many are missing."""
    left = len(text) - limit
    shown = text if left <= 0 else text[:limit]
    if not (shown.isascii() and shown.isprintable()):
        shown = inert(shown)
    return shown if left <= 0 else f"{shown}…(+{left:,})"


def plain(value: Any) -> Any:
    """A value as plain data."""
    return msgspec.to_builtins(value, enc_hook=str)


def json_text(value: Any) -> str:
    """A value as JSON text."""
    return json_with_surrogates(plain(value))


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
