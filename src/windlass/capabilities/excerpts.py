"""Excerpts: a part of a long text that a model reads piece by piece."""

from __future__ import annotations

from windlass.errors import ToolError


def excerpt(text: str, offset: int, length: int, *, what: str) -> str:
    """Some characters of a text, and where the next ones are. An offset outside it raises `ToolError`."""
    if not 0 <= offset < max(len(text), 1) or length < 1:
        raise ToolError(f"{what} has characters 0 to {len(text) - 1}; there are no {length} from {offset} on")
    end = min(offset + length, len(text))
    rest = f"go on with offset={end}" if end < len(text) else "this is the end"
    return f"{text[offset:end]}\n[characters {offset} to {end - 1} of {len(text)}; {rest}]"
