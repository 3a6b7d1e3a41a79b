"""Replaces exact pieces of a text, and says what is near if a piece is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

from msgspec import Struct

from windlass.errors import ToolError

_MOST_LINES = 20_000
_CLOSE = 0.5


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """One replacement: the exact text `old`, which must be there once, becomes `new`; with `replace_all`, wherever it
    is."""

    old: str
    new: str
    replace_all: bool = False


def apply_edits(text: str, edits: Iterable[Edit]) -> tuple[str, int]:
    """The text after all edits, each on the result of the one before, and the number of replacements.

    Raises `ToolError` for the first edit that does not fit; then none is applied.
    """
    total = 0
    several = list(edits)
    crlf = "\r\n" in text and not re.search(r"(?<!\r)\n", text)
    for number, edit in enumerate(several, 1):
        prefix = f"edit {number} of {len(several)}: " if len(several) > 1 else ""
        try:
            text, count = _apply(text, edit, crlf)
        except ToolError as error:
            raise ToolError(f"{prefix}{error}; nothing was changed") from None
        total += count
    return text, total


def _apply(text: str, edit: Edit, crlf: bool) -> tuple[str, int]:
    old, new = edit.old, edit.new
    if crlf:
        old, new = [re.sub(r"\r?\n", "\r\n", part) for part in (old, new)]
    if not old:
        raise ToolError("old is empty; use write to make or replace a whole file")
    if old == new:
        raise ToolError("old and new are the same")
    count = text.count(old)
    if not count:
        raise ToolError(f"old is not in the file{_nearest(text, old)}")
    if count > 1 and not edit.replace_all:
        raise ToolError(
            f"old is in the file {count} times, in lines {_lines_of(text, old)}; add lines around it until it is "
            "unique, or set replace_all"
        )
    return text.replace(old, new), count


def _lines_of(text: str, old: str) -> str:
    found: list[str] = []
    at = text.find(old)
    while at >= 0 and len(found) < 10:
        found.append(str(text.count("\n", 0, at) + 1))
        at = text.find(old, at + len(old))
    return ", ".join(found) + (", …" if at >= 0 else "")


def _nearest(text: str, old: str) -> str:
    """The lines of the text that are most like the wanted ones, in words."""
    lines, wanted = text.splitlines()[:_MOST_LINES], old.splitlines()
    first = next((at for at, line in enumerate(wanted) if line.strip()), None)
    if first is None:
        return ""
    squeezed = " ".join(wanted[first].split())
    for at, line in enumerate(lines):
        if " ".join(line.split()) == squeezed and line != wanted[first]:
            return f"; line {at + 1} differs only in white space:{_shown(lines, at - first, len(wanted))}"
    matcher = SequenceMatcher(b=wanted[first][:300])
    best, where = _CLOSE, -1
    for at, line in enumerate(lines):
        matcher.set_seq1(line[:300])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, where = ratio, at
    if where < 0:
        return "; read the file first"
    return f"; the nearest lines are:{_shown(lines, where - first, len(wanted))}"


def _shown(lines: list[str], start: int, count: int) -> str:
    start = max(start, 0)
    return "".join(
        [f"\n{start + at + 1}\t{line[:300]}" for at, line in enumerate(lines[start : start + min(count, 12)])]
    )
