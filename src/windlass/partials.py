"""Reads JSON that is not complete yet: the value as far as the text goes."""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(r"[-+.\w]*")
_OPEN_FENCE = re.compile(r"\A\s*```\w*[ \t]*\n?")
_OPEN_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?\Z")
_WORDS = {"true": True, "false": False, "null": None}


class _NoValue(Exception):
    """The text ends, or is not JSON, before a value begins."""


def partial_json(text: str) -> Any:
    """The value that a text of JSON has so far; None if there is none yet.

    An open text is given as far as it goes. A number at the very end is left out, because it may go on, and so is a key
    without a value. What follows a mistake is left out.
    """
    fence = _OPEN_FENCE.match(text)
    try:
        return _Reader(text, fence.end() if fence else 0).value()
    except (_NoValue, RecursionError):
        return None


class _Reader:
    """Reads one value from a position; `ended` says that the text ended, or went wrong, inside of it."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.ended = False

    def value(self) -> Any:
        """The next value."""
        start = self._next()
        if start == "{":
            return self._object()
        if start == "[":
            return self._array()
        return self._string() if start == '"' else self._scalar()

    def _next(self) -> str:
        """The next character that is not space; empty at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def _object(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.at += 1
        while not self.ended and self._next() == '"':
            key = self._string()
            if self._next() != ":":  # also if the key is not whole
                break
            self.at += 1
            try:
                found[key] = self.value()
            except _NoValue:
                break
            if self._closes("}"):
                return found
        self._finish("}", empty=not found)
        return found

    def _array(self) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        while not self.ended and self._next() not in ("", "]"):
            try:
                found.append(self.value())
            except _NoValue:
                break
            if self._closes("]"):
                return found
        self._finish("]", empty=not found)
        return found

    def _closes(self, close: str) -> bool:
        """Step over what follows a member. Whether it closes the object or array; anything but a comma ends it."""
        if self.ended:
            return False
        char = self._next()
        self.at += 1
        self.ended = char not in (",", close)
        return char == close

    def _finish(self, close: str, *, empty: bool) -> None:
        """Step over the end of an object or array without members; any other way out of it means that it is open."""
        if not self.ended and empty and self._next() == close:
            self.at += 1
        else:
            self.ended = True

    def _string(self) -> str:
        start = end = self.at + 1
        while True:
            end = self.text.find('"', end)
            if end < 0:
                self.ended = True
                self.at = len(self.text)
                text = _decoded(_OPEN_ESCAPE.sub("", self.text[start:]))
                return text[:-1] if "\ud800" <= text[-1:] <= "\udbff" else text  # half of a character
            slashes = len(self.text[start:end]) - len(self.text[start:end].rstrip("\\"))
            if slashes % 2 == 0:
                self.at = end + 1
                return _decoded(self.text[start:end])
            end += 1

    def _scalar(self) -> Any:
        match = _TOKEN.match(self.text, self.at)
        token = match[0] if match else ""
        self.at += len(token)
        if token in _WORDS:
            return _WORDS[token]
        if self.at == len(self.text) or not token:
            raise _NoValue
        try:
            return json.loads(token)
        except ValueError:
            raise _NoValue from None


def _decoded(raw: str) -> str:
    """A text with its escapes resolved; as it stands if they are wrong."""
    if "\\" not in raw:
        return raw
    slashes = len(raw) - len(raw.rstrip("\\"))
    try:
        text: str = json.loads(f'"{raw[: len(raw) - slashes % 2]}"', strict=False)
    except ValueError:
        return raw
    return text
