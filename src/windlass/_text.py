"""Plain text for people: wrapped lines, and untrusted text shortened and escaped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime

WIDTH = 100


def entry(label: str, text: str, *, indent: int, column: int) -> str:
    """A label and its text, which starts at a column; long texts wrap and stay in that column."""
    head = " " * indent + label
    head = head.ljust(column) if len(head) < column else f"{head}  "
    lines = textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * column, break_on_hyphens=False)
    return "\n".join(lines).replace(_NO_BREAK, " ") or head.rstrip()


def items(words: Iterable[str]) -> str:
    """Join items with dots. Lines break between two items, not inside one, unless it is too long for a line."""
    return f"{_NO_BREAK}· ".join([word.replace(" ", _NO_BREAK) if len(word) <= _ITEM else word for word in words])


_NO_BREAK = "\xa0"
_ITEM = 80
"""The longest item that fits into one line, whatever the column."""


def one_line(text: str, limit: int = 60) -> str:
    """A text on one line, at most `limit` characters long. Control characters are escaped."""
    flat = printable(text[: limit * 8])
    return flat if len(flat) <= limit and len(text) <= limit * 8 else flat[: limit - 1] + "…"


def printable(text: str) -> str:
    """A text on one line, with unprintable characters escaped."""
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split())])


def date(at: float) -> str:
    """The day of a time, in UTC."""
    moment = _moment(at)
    return "a date out of range" if moment is None else moment.date().isoformat()


def clock(at: float | None) -> str:
    """The time of day in UTC, to the millisecond; blank if unknown, as in logs of older versions."""
    moment = _moment(at) if at else None
    return " " * 12 if moment is None else moment.strftime("%H:%M:%S.%f")[:12]


def _moment(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return None
