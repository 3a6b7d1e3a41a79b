"""Tags: a text from outside stands between tags that it can neither close nor forge."""

from __future__ import annotations

import re
from functools import cache


def tagged(tag: str, text: str, *others: str) -> str:
    """A text between tags. In it, neither these tags nor the `others` of the same prompt begin or end."""
    return f"<{tag}>\n{inert(text, tag, *others)}\n</{tag}>"


def inert(text: str, *tags: str) -> str:
    """A text in which none of these tags begins or ends, in whatever case and with whatever spaces."""
    return _beginning(tags).sub("<_", text)


@cache
def _beginning(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(tags)})\b)", re.IGNORECASE)
