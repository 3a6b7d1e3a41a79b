"""Text from hooks as a terminal, a log and a model may see it: without control sequences, and not too long."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC, DCS and other strings
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff]"
)


def plain_text(text: str) -> str:
    """A text without escape sequences, control characters and invisible characters. Tabs and line breaks stay."""
    if text.isprintable():
        return text
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def first_line(text: str, limit: int = 300) -> str:
    """The first line of a text that is not empty, cut to a length."""
    line = next((line.strip() for line in plain_text(text).splitlines() if line.strip()), "")
    return line if len(line) <= limit else f"{line[:limit]}…"
