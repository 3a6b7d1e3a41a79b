"""Globs that are compared with texts of which some parts are unknown, and with each other."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

UNKNOWN = "\ufdd0"
"""Stands in a text for a part that nobody knows yet. Only a `*` matches it."""


@lru_cache(maxsize=4096)
def glob_regex(glob: str) -> re.Pattern[str]:
    """A glob as a regular expression in which only `*` matches the unknown."""
    return re.compile(translate(re.sub(r"\[!?\]?[^\]]*\]|\?", _without_unknown, glob)))


def _without_unknown(wildcard: re.Match[str]) -> str:
    text = wildcard[0]
    if text == "?":
        return f"[!{UNKNOWN}]"
    return f"{text[:-1]}{UNKNOWN}]" if text.startswith("[!") else text


def literal_prefix(glob: str) -> str:
    """The part of a glob before its first wildcard."""
    return re.split(r"[*?\[]", glob, maxsplit=1)[0]


@lru_cache(maxsize=4096)
def needle(glob: str) -> str:
    """The longest part of a glob without wildcards: a text without it does not match."""
    return max(re.split(r"\[!?\]?[^\]]*\]|[*?\[]", glob), key=len)


def covers(wide: str, narrow: str) -> bool:
    """Whether one glob surely matches every text that another one matches."""
    if wide == narrow:
        return True
    if needle(wide) not in narrow:
        return False
    unknown = re.sub(r"\[!?\]?[^\]]*\]|[*?]", UNKNOWN, narrow)
    return glob_regex(wide).match(unknown) is not None
