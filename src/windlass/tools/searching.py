"""Walks a folder by descriptors and searches its files; as a script, in a process of its own that can be ended.

It needs the standard library only, and imports nothing from this package: a process that runs it starts at once.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Generator
from fnmatch import translate
from typing import NamedTuple, TypeAlias

SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache"})
"""Folders that are not searched, unless the search starts in one."""
MAX_SIZE = 10_000_000
"""Larger files are not searched."""
MAX_DEPTH = 100
"""Folders within so many others are not searched."""
SNIFFED = 8192
"""A file with a zero byte in its first bytes, as many as this, is binary."""

_FOLDER = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Found(NamedTuple):
    """A file: its path from the start on, the open folder that holds it, and its name there."""

    path: str
    folder: int
    name: str


def walk(folder: int, prefix: str = "", depth: int = 0) -> Generator[Found, None, None]:
    """The regular files below an open folder, sorted, depth first. No link is followed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                yield Found(f"{prefix}{name}", folder, name)
            elif stat.S_ISDIR(mode) and name not in SKIPPED and depth < MAX_DEPTH:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from walk(inner, f"{prefix}{name}/", depth + 1)
                finally:
                    os.close(inner)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise


def read_text(folder: int, name: str) -> str | None:
    """The text of a file; None if it is binary, too large, or no regular file."""
    try:
        with open(os.open(name, _FILE, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SIZE:
                return None
            return decode(file.read(MAX_SIZE + 1))
    except OSError:
        return None


def decode(data: bytes) -> str | None:
    """The text in some bytes; None if they are binary."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:SNIFFED]:
        return None
    return data.decode("utf-8-sig", "replace")


def split_lines(text: str) -> list[str]:
    """The lines as editors count them, without their ends."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


class GlobError(ValueError):
    """A pattern that is not a glob."""


def glob_test(pattern: str) -> Callable[[str], bool]:
    """A test of paths by a glob such as `src/**/*.py`. `**` is any number of folders; `{a,b}` is one of them.

    A pattern without a slash is about names, in any folder.
    """
    globs = [_components(one) for one in _alternatives(pattern.removeprefix("./"))]
    return lambda path: any(_matches(tuple(path.split("/")), glob) for glob in globs)


_Glob: TypeAlias = "tuple[re.Pattern[str] | None, ...]"


def _components(glob: str) -> _Glob:
    """The tests of the names in a path; None for `**`. Python's expressions of globs do not backtrack."""
    parts = glob.split("/") if "/" in glob else ["**", glob]
    if parts[-1] == "**":
        parts.append("*")
    return tuple([None if part == "**" else re.compile(translate(part)) for part in parts])


def _matches(names: tuple[str, ...], glob: _Glob) -> bool:
    """Whether the names match, found step by step: which numbers of names can the first parts of the glob match?"""
    reached = {0}
    for test in glob:
        if test is None:
            reached = set(range(min(reached), len(names) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(names) and test.match(names[at])}
        if not reached:
            return False
    return len(names) in reached


def _alternatives(pattern: str) -> list[str]:
    """What a pattern with `{a,b}` stands for."""
    done, pending = [], [pattern]
    while pending:
        one = pending.pop()
        match = re.search(r"\{([^{}]*,[^{}]*)\}", one)
        if match is None:
            done.append(one)
        else:
            pending += [one[: match.start()] + choice + one[match.end() :] for choice in match[1].split(",")]
        if len(done) + len(pending) > 256:
            raise GlobError("it has too many alternatives")
    return done


def main() -> None:
    """Print the number and the path of each file and line that match: `LINE\\0PATH\\0`. Arguments: pattern, flags."""
    pattern = re.compile(sys.argv[1], re.IGNORECASE if "i" in sys.argv[2] else 0)
    start = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    for path, folder, name in walk(start):
        for number, line in enumerate(split_lines(read_text(folder, name) or ""), 1):
            if pattern.search(line):
                sys.stdout.buffer.write(b"%d\0%s\0" % (number, os.fsencode(path)))


if __name__ == "__main__":
    main()
