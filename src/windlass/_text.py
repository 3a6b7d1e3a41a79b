"""Plain text for people: wrapped lines, and untrusted text shortened and escaped.

Untrusted text reaches a terminal only through `inert`, `visible` or `inert_json`. They escape every character that a
terminal obeys or that a reader cannot see: control characters, bidirectional controls, zero-width and tag characters,
separators of lines and paragraphs, unusual spaces, lone surrogates, unassigned characters.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

WIDTH = 100


def entry(label: str, text: str, *, indent: int, column: int) -> str:
    """A label and its text, which starts at a column; long texts wrap and stay in that column."""
    head = " " * indent + label
    head = head.ljust(column) if len(head) < column else f"{head}  "
    wrapper = _Wrapper(
        max(_width.get(), column + 20),
        initial_indent=head,
        subsequent_indent=" " * column,
        break_on_hyphens=False,
    )
    return "\n".join(wrapper.wrap(text)).replace(_NO_BREAK, " ") or head.rstrip()


class _Wrapper(textwrap.TextWrapper):
    """Breaks a word of millions of characters in a time that grows with its length, not with the square of it."""

    def _handle_long_word(self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int) -> None:
        word = reversed_chunks.pop()
        first, others = max(width - cur_len, 0) if width > 0 else 1, max(self.width - len(self.subsequent_indent), 1)
        cur_line.append(word[:first])
        reversed_chunks += reversed([word[at : at + others] for at in range(first, len(word), others)])


def items(words: Iterable[str]) -> str:
    """Join items with dots. Lines break between two items, not inside one, unless it is too long for a line."""
    return f"{_NO_BREAK}· ".join([word.replace(" ", _NO_BREAK) if len(word) <= _ITEM else word for word in words])


@contextmanager
def wrapped_at(width: int) -> Generator[None, None, None]:
    """Let `entry` wrap lines at this width inside a block, at most at the usual one."""
    token = _width.set(min(width, WIDTH))
    try:
        yield
    finally:
        _width.reset(token)


_width: ContextVar[int] = ContextVar("width", default=WIDTH)
_NO_BREAK = "\xa0"
_ITEM = 80
"""The longest item that fits into one line, whatever the column."""


# ---------------------------------------------------------------- untrusted text


def inert(text: str) -> str:
    """A text that a terminal only prints: unusual characters are escaped, line breaks stay."""
    return "\n".join([visible(line) for line in text.split("\n")])


def visible(text: str) -> str:
    """A text on one line, with unusual characters and line breaks escaped. Spaces stay as they are."""
    return _replaced(text, _escape)


def inert_json(text: str) -> str:
    """JSON text with unusual characters as JSON escapes: it parses to the same value. Line breaks stay."""
    return "\n".join([_replaced(line, _json_escape) for line in text.split("\n")])


def visible_id(text: str) -> str:
    """An id as one word. An id with white space, quotes or unusual characters is written as a JSON string."""
    if text and _replaced(text, _json_escape) == text and not re.search(_QUOTED_IN_IDS, text):
        return text
    return f'"{_replaced(re.sub(_ESCAPED_IN_JSON, _short_escape, text), _json_escape)}"'


def printable(text: str) -> str:
    """A text on one line, with white space collapsed and unusual characters escaped."""
    return visible(" ".join(text.split()))


def one_line(text: str, limit: int = 60) -> str:
    """A text on one line, at most `limit` characters long. A cut text ends with the number of characters left out.

    Inside `uncut()` nothing is cut.
    """
    flat = printable(text)
    if len(flat) <= limit or _uncut.get():
        return flat
    kept = max(limit - len(f"…(+{len(flat)})"), 0)
    return f"{flat[:kept]}…(+{len(flat) - kept})"


@contextmanager
def uncut() -> Generator[None, None, None]:
    """Let `one_line` return whole texts inside a block."""
    token = _uncut.set(True)
    try:
        yield
    finally:
        _uncut.reset(token)


_uncut: ContextVar[bool] = ContextVar("uncut", default=False)

# Patterns are texts: `re` compiles them when they are first used, not when Windlass is imported.
_QUOTED_IN_IDS = r"[\s\"'\\]"
_ESCAPED_IN_JSON = r"[\"\\]"

_HIDDEN = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0000-\U000e0fff]"
    "|(?<![\u203c\u2049\u2100-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f]"
)
"""Characters that Python calls printable but that show nothing. After a symbol, the choice between its plain and its
coloured form (U+FE0E, U+FE0F) stays."""


def _replaced(text: str, escape: Callable[[str], str]) -> str:
    """A text in which every unusual character is replaced by its escape."""
    if text.isprintable() and re.search(_HIDDEN, text) is None:
        return text
    text = re.sub(_HIDDEN, lambda match: escape(match[0]), text)
    return "".join([c if c.isprintable() else escape(c) for c in text])


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _short_escape(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


def _json_escape(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


# ---------------------------------------------------------------- times


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
