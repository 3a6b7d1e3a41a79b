"""Reads a TOML file with the line of every key, and collects what is wrong with it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from .positions import KeyPath, line_numbers
from .problems import AgentFileError, Problem

Read: TypeAlias = Callable[[Path], bytes]

MAX_BYTES = 256 * 1024
"""A larger file is refused: parsing it could take long."""

_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"), (str, "a text"), (int, "a whole number"), (float, "a number"), (list, "a list"),
    (dict, "a table"),
)  # fmt: skip


class Document:
    """The content of an agent file. `path` is the file, `problems` is shared with the files that it refers to."""

    def __init__(self, path: Path, content: bytes, problems: list[Problem]) -> None:
        self.path = path
        self.folder = path.absolute().parent
        self.problems = problems
        self.lines: Mapping[KeyPath, int] = {}
        self.data: dict[str, Any] | None = self._parse(content)

    def add_problem(self, path: KeyPath, message: str, *, key: str | None = None) -> None:
        """Add a problem of the value at a path. Its line is that of the nearest key that has one."""
        near = path
        while near not in self.lines and near:
            near = near[:-1]
        self._add(self.lines.get(near, 1), key_of(path) if key is None else key, message)

    def _add(self, line: int, key: str, message: str) -> None:
        self.problems.append(Problem(shown_path(self.path), line, key, message))

    def _parse(self, content: bytes) -> dict[str, Any] | None:
        if len(content) > MAX_BYTES:
            self._add(1, "", f"the file has {len(content)} bytes; at most {MAX_BYTES} are read")
            return None
        try:
            text = content.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            self._add(content.count(b"\n", 0, error.start) + 1, "", "the file is not valid UTF-8")
            return None
        try:
            data = tomllib.loads(text)
            self.lines = line_numbers(text)
        except RecursionError:
            self._add(1, "", "lists or tables are nested too deeply")
            return None
        except ValueError as error:  # also whole numbers with thousands of digits
            found = _LINE.search(str(error))
            line = int(found[1]) if found else text.count("\n") + 1 if "end of document" in str(error) else 1
            self._add(line, "", f"not valid TOML: {_LINE.sub('', str(error))}")
            return None
        return data


def read_document(path: Path, read: Read, problems: list[Problem]) -> Document:
    """Read a file. If it cannot be read, that is the only problem, and an error at once."""
    try:
        return Document(path, read(path), problems)
    except OSError as error:
        raise AgentFileError(
            [Problem(shown_path(path), 1, "", f"cannot be read: {error.strerror or error}")]
        ) from error


def shown_path(path: Path) -> str:
    """A path for people: relative if it is in the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def key_of(path: KeyPath) -> str:
    """A path as people write it: `hooks[0].event`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def kind_of(value: object) -> str:
    """The type of a TOML value, in words."""
    return next((words for kind, words in _KINDS if isinstance(value, kind)), "a date or time")
