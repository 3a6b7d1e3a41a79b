"""Finds the text files of a folder, and splits them into passages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple


class FoundFile(NamedTuple):
    """A file of a folder: its path within the folder, with `/`, when it was changed, and its size."""

    path: str
    changed: int
    size: int


class Piece(NamedTuple):
    """A part of a text: its first and last line, counted from 1, and the text."""

    first: int
    last: int
    text: str


def files_in(
    folder: str, patterns: Sequence[str], ignore: Sequence[str], skipped: dict[str, str]
) -> Iterator[FoundFile]:
    """The files whose names match a pattern, at any depth. Links to folders and to files outside are not followed.

    `skipped` gets the paths that cannot be read, with the reasons.
    """
    root = os.path.realpath(folder)
    is_wanted, is_ignored = _any_of(patterns), _any_of(ignore)
    waiting = [(root, "")]
    while waiting:
        place, prefix = waiting.pop()
        try:
            with os.scandir(place) as found:
                entries = [entry for entry in found if not is_ignored(entry.name)]
        except OSError as error:
            if not prefix:
                raise
            skipped[prefix] = error.strerror or str(error)
            continue
        for entry in entries:
            path = prefix + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{path}/"))
                elif is_wanted(entry.name) and _is_inside(entry, root):
                    status = entry.stat()
                    yield FoundFile(path, status.st_mtime_ns, status.st_size)
            except OSError as error:  # it was removed meanwhile
                skipped[path] = error.strerror or str(error)


def _any_of(patterns: Sequence[str]) -> Callable[[str], object]:
    """Whether a name matches one of the patterns."""
    return re.compile("|".join([translate(pattern) for pattern in patterns]) or r"(?!)").match


def _is_inside(entry: os.DirEntry[str], root: str) -> bool:
    """Whether an entry is a file of the folder, or a link to one."""
    if not entry.is_file():
        return False
    return not entry.is_symlink() or os.path.realpath(entry.path).startswith(root + os.sep)


def read_text(folder: str, path: str) -> tuple[str, str]:
    """The text of a file, and a digest of it. A file that is not UTF-8 raises `ValueError`."""
    data = Path(folder, path).read_bytes()
    return data.decode("utf-8-sig"), blake2b(data, digest_size=16).hexdigest()


def pieces_of(text: str, size: int) -> Iterator[Piece]:
    """A text in pieces of at most `size` characters, cut between paragraphs, before headings, or between lines."""
    first, length = 1, 0
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        starts = line.startswith("#") or not line.strip()
        if lines and (length + len(line) >= size or (starts and length >= size // 2)):
            yield from _piece(first, lines)
            lines, length = [], 0
        if not lines:
            first = number
        while len(line) > size:
            yield Piece(number, number, line[:size])
            line = line[size:]
        lines.append(line)
        length += len(line) + 1
    yield from _piece(first, lines)


def _piece(first: int, lines: Sequence[str]) -> Iterator[Piece]:
    filled = [at for at, line in enumerate(lines) if line.strip()]
    if filled:
        yield Piece(first + filled[0], first + filled[-1], "\n".join(lines[filled[0] : filled[-1] + 1]))
