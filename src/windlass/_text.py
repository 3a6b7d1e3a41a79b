"""Plain text for people: lines that fit the page, and foreign words made short and harmless."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime

WIDTH = 100


def entry(label: str, text: str, *, indent: int, column: int) -> str:
    """A label and what is said of it, from a column on; long texts go on below in that column."""
    head = " " * indent + label
    head = head.ljust(column) if len(head) < column else f"{head}  "
    lines = textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * column, break_on_hyphens=False)
    return "\n".join(lines).replace(_STICKS, " ") or head.rstrip()


def items(words: Iterable[str]) -> str:
    """Several things in a row; a line is broken between two of them, not inside one."""
    return f"{_STICKS}· ".join([word.replace(" ", _STICKS) for word in words])


_STICKS = "\xa0"


def shown(text: str, limit: int = 60) -> str:
    """A text on one line, not longer than the limit. What could steer a terminal is spelled out."""
    flat = printable(text[: limit * 8])
    return flat if len(flat) <= limit and len(text) <= limit * 8 else flat[: limit - 1] + "…"


def printable(text: str) -> str:
    """A text on one line, with what does not print spelled out."""
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split())])


def date(at: float) -> str:
    """The day of a time, in UTC."""
    moment = _moment(at)
    return "a time that no calendar has" if moment is None else moment.date().isoformat()


def clock(at: float | None) -> str:
    """The time of day in UTC, to the millisecond; blank if it is not known, as in logs of older versions."""
    moment = _moment(at) if at else None
    return " " * 12 if moment is None else moment.strftime("%H:%M:%S.%f")[:12]


def _moment(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return None
