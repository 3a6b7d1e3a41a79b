"""Finds the line of every key and value in a valid TOML text: the parser of the standard library does not keep them."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where a value is: names of keys, and positions in lists."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_\-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]*")


def line_numbers(text: str) -> Mapping[KeyPath, int]:
    """The line of every key and list item of a valid TOML text, by its path. The first line is 1."""
    scanner = _Scanner(text)
    scanner.read_document()
    return scanner.lines


class _Scanner:
    """Walks through a text that the parser has accepted, so it does not check anything again."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {(): 1}
        self._starts = [0, *[match.end() for match in re.finditer("\n", text)]]
        self._tables: dict[KeyPath, int] = {}
        """How many tables each array of tables has so far."""

    def read_document(self) -> None:
        table: KeyPath = ()
        while self._next(_BLANK):
            if self.text.startswith("[[", self.at):
                self.at += 2
                array = self._table_path(self._keys())
                self._tables[array] = self._tables.get(array, 0) + 1
                table = (*array, self._tables[array] - 1)
                self._mark(table)
                self.at = self.text.index("]]", self.at) + 2
            elif self.text[self.at] == "[":
                self.at += 1
                table = self._table_path(self._keys())
                if len(table) and isinstance(table[-1], str) and table in self._tables:
                    table = (*table, self._tables[table] - 1)
                self._mark(table)
                self.at = self.text.index("]", self.at) + 1
            else:
                self._pair(table)

    def _table_path(self, keys: list[str]) -> KeyPath:
        """The path that a header means: below an array of tables, its last table is meant."""
        path: KeyPath = ()
        for key in keys[:-1]:
            path = (*path, key)
            self._mark(path)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        path = (*path, keys[-1])
        self._mark(path)
        return path

    def _pair(self, table: KeyPath) -> None:
        path = table
        start = self.at
        keys = self._keys()
        for key in keys:
            path = (*path, key)
            self._mark(path, start)
        self.at = self.text.index("=", self.at) + 1
        self._value(path)

    def _keys(self) -> list[str]:
        """The parts of a dotted key."""
        keys: list[str] = []
        while True:
            self._next(_SPACE)
            quoted = _STRING.match(self.text, self.at)
            found = quoted or _BARE.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            keys.append(tomllib.loads(f"key = {found[0]}")["key"] if quoted else found[0])
            self._next(_SPACE)
            if not self.text.startswith(".", self.at):
                return keys
            self.at += 1

    def _value(self, path: KeyPath) -> None:
        self._next(_SPACE)
        self._mark(path)
        if self.text.startswith("[", self.at):
            self._items(path)
        elif self.text.startswith("{", self.at):
            self._inline_table(path)
        else:
            found = _STRING.match(self.text, self.at) or _SCALAR.match(self.text, self.at)
            assert found is not None
            self.at = found.end()

    def _items(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self._next(_BLANK) and self.text[self.at] != "]":
            self._value((*path, index))
            index += 1
            self._comma()
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._next(_BLANK) and self.text[self.at] != "}":
            self._pair(path)
            self._comma()
        self.at += 1

    def _comma(self) -> None:
        self._next(_BLANK)
        if self.text.startswith(",", self.at):
            self.at += 1

    def _next(self, skipped: re.Pattern[str]) -> bool:
        """Skip white space. Returns whether there is more text."""
        found = skipped.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return self.at < len(self.text)

    def _mark(self, path: KeyPath, at: int | None = None) -> None:
        self.lines.setdefault(path, bisect_right(self._starts, self.at if at is None else at))
