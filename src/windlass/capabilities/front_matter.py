"""Reads the front matter of a Markdown file: the plain cases of YAML itself, and others with the extra `yaml`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import dedent
from typing import Any

from .yaml_text import EXTRA, parse_yaml

_KEY = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+(.*))?\Z", re.DOTALL)
_BLOCK = re.compile(r"([|>])([+-]?)[ \t]*(#.*)?\Z")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,\[\]{}"'#&*!|>%@`][^,\[\]{}#]*?)\s*(?:,|\Z)""")


class _NotPlain(Exception):
    """A value that only a YAML parser reads."""


def read_front_matter(text: str, keys: Iterable[str]) -> tuple[dict[str, Any], str]:
    """The values of some keys of a text's front matter, and the text after it. Other keys are not looked at.

    A value is a text, a list of texts or a mapping of texts. What is wrong raises `ValueError`.
    """
    front, body = _split(text)
    try:
        entries = _entries(front)
        return {key: _value(*entries[key]) for key in keys if key in entries}, body
    except _NotPlain:
        found = _parse_yaml("\n".join(front))
        return {key: _as_texts(found[key]) for key in keys if key in found}, body


def _split(text: str) -> tuple[list[str], str]:
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise ValueError("it has no front matter: its first line must be ---")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise ValueError("its front matter has no end: a line --- is missing")
    return lines[1:end], "\n".join(lines[end + 1 :]).strip()


def _entries(lines: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """The entries of a mapping: what stands beside each key, and the lines below it."""
    entries: dict[str, tuple[str, list[str]]] = {}
    below: list[str] | None = None
    for line in lines:
        if (key := _KEY.match(line)) is not None:
            if key[1] in entries:
                raise ValueError(f"its front matter has {key[1]!r} twice")
            below = []
            entries[key[1]] = ((key[2] or "").strip(), below)
        elif not line.strip() or line[0] in " \t-#]":
            if below is not None:
                below.append(line)
        else:
            raise _NotPlain
    return entries


def _value(beside: str, below: Sequence[str]) -> Any:
    """The value of an entry."""
    if (block := _BLOCK.match(beside)) is not None:
        return _block(block[1], below)
    if beside[:1] in ("'", '"'):
        return _quoted(_fold([beside, *below]))
    if beside[:1] == "[":
        return _flow_list(_fold([beside, *below]))
    if _COMMENT.sub("", beside) or not any(line.strip() for line in below):
        return _plain_text(_fold([_COMMENT.sub("", line) for line in (beside, *below)]))
    lines = [line for line in below if line.strip() and not line.lstrip().startswith("#")]
    inner = dedent("\n".join(lines)).splitlines()
    if inner[0].startswith("- "):
        return _list(inner)
    return {key: _joined(_value(*entry)) for key, entry in _entries(inner).items()}


def _list(lines: Sequence[str]) -> list[str]:
    if not all(line.startswith("- ") for line in lines):
        raise _NotPlain
    return [_text(_value(line[2:].strip(), ())) for line in lines]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _NotPlain
    return value


def _joined(value: Any) -> str:
    """A value inside a mapping: a list becomes one text."""
    return ", ".join(value) if isinstance(value, list) else _text(value)


def _block(style: str, below: Sequence[str]) -> str:
    """A text in lines of its own: `|` keeps them, `>` joins them."""
    text = dedent("\n".join(below)).strip("\n")
    if style == "|":
        return text
    if any(line[:1] in (" ", "\t") for line in text.splitlines()):
        raise _NotPlain
    return _fold(text.splitlines())


def _fold(lines: Iterable[str]) -> str:
    """Lines joined with spaces; an empty line is the end of one."""
    paragraphs = [""]
    for line in [line.strip() for line in lines]:
        if line:
            paragraphs[-1] = f"{paragraphs[-1]} {line}".lstrip()
        else:
            paragraphs.append("")
    return "\n".join(paragraphs).strip()


def _plain_text(text: str) -> str:
    if text[:1] in tuple("&*!|>%@`{}],"):
        raise _NotPlain
    return "" if text in ("~", "null") else text


def _quoted(text: str) -> str:
    found = _ITEM.match(text)
    if found is None or _COMMENT.sub("", text[found.end() :]).strip():
        raise _NotPlain
    return _scalar(found[1])


def _scalar(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text[0] != '"':
        return _plain_text(text)
    try:
        return str(json.loads(text))
    except ValueError:
        raise _NotPlain from None


def _flow_list(text: str) -> list[str]:
    inside, end, rest = text[1:].rpartition("]")
    if not end or _COMMENT.sub("", rest).strip():
        raise _NotPlain
    items: list[str] = []
    at = 0
    while inside[at:].strip():
        found = _ITEM.match(inside, at)
        if found is None:
            raise _NotPlain
        items.append(_scalar(found[1]))
        at = found.end()
    return items


def _parse_yaml(text: str) -> Mapping[str, Any]:
    try:
        found = parse_yaml(text)
    except ImportError:
        raise ValueError(f"its front matter is more than plain YAML, which needs the extra 'yaml': {EXTRA}") from None
    except ValueError as error:
        raise ValueError(f"its front matter is {error}") from None
    if not isinstance(found, dict):
        raise ValueError("its front matter is not a mapping")
    return found


def _as_texts(value: Any) -> Any:
    """What a parser has read, as texts."""
    if isinstance(value, list):
        return [_scalar_text(one) for one in value]
    if isinstance(value, dict):
        pairs = {str(key): _as_texts(one) for key, one in value.items()}
        return {key: ", ".join(one) if isinstance(one, list) else _scalar_text(one) for key, one in pairs.items()}
    return _scalar_text(value)


def _scalar_text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
