"""Paths as permission rules compare them: absolute, without `..` and links, and in the case that the disk ignores."""

from __future__ import annotations

import os
import re
from fnmatch import translate
from functools import lru_cache
from glob import escape
from typing import NamedTuple
from unicodedata import normalize
from urllib.parse import unquote

from .globs import needle

PARAMETERS = frozenset(
    {
        "path", "paths", "file", "files", "file_path", "file_paths", "filename", "folder", "directory", "dir", "cwd",
        "source", "destination", "src", "dst", "target", "old_path", "new_path", "notebook_path",
    }
)  # fmt: skip
"""Parameters whose values are paths unless the policy says otherwise."""


class Place(NamedTuple):
    """A path from the arguments of a call.

    A tool may read it in several ways, such as with `~` or as a `file:` address. For each reading there is the absolute
    path, and the path with its links followed. There are no readings if it cannot be a path. It is not `resolved` if
    its links lead nowhere, as in a loop, or cannot be read.
    """

    text: str
    readings: tuple[tuple[str, str], ...]
    resolved: bool = True


def place_of(text: str, folder: str) -> Place:
    """Read a path; a relative one starts at a folder. The disk is looked up, so ask again for every call."""
    texts = [text]
    if text.startswith("~"):
        texts.append(os.path.expanduser(text))
    if text.lower().startswith("file:"):
        texts.append(re.sub(r"(?i)^file:(//[^/]*)?(?=/|$)|^file:", "", unquote(text)))
    try:
        readings = tuple([_reading(one, folder) for one in texts])
        return Place(text, readings, all(_is_resolved(real) for _, real in readings))
    except (ValueError, OSError):  # a NUL in it, or a folder that cannot be read
        return Place(text, ())


def _reading(text: str, folder: str) -> tuple[str, str]:
    path = os.path.join(folder, text)
    return _plain(os.path.abspath(path)), _plain(os.path.realpath(path))


def _is_resolved(real: str) -> bool:
    """Whether a path, whose links were followed, can be looked up. What does not exist yet, can be."""
    try:
        os.stat(real)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return True


def _plain(path: str) -> str:
    """A path with `/` between its parts. POSIX lets two leading slashes mean something else; no system does."""
    path = path if os.sep == "/" else path.replace(os.sep, "/")
    return "/" + path.lstrip("/") if path.startswith("//") else path


class PathPattern:
    """A glob for paths. `*` also matches `/`; a pattern that ends with `/` means a folder and everything in it.

    A pattern that begins with `*` is compared with the whole absolute path, any other one starts at the folder. The
    part before the first wildcard is resolved once, here: a link that is put there later changes nothing. Whether case
    counts is found out there, too; for a pattern that begins with `*`, in the folder.
    """

    __slots__ = ("_absolute", "_fold", "_real", "_text", "needle")

    def __init__(self, glob: str, folder: str) -> None:
        inside = re.sub(r"/\**$", "/", glob) if glob.endswith(("/", "/**")) else glob
        prefix, rest = ("", inside) if inside.startswith("*") else _split(os.path.expanduser(inside), folder)
        real = _plain(os.path.realpath(prefix)) if prefix else ""
        self._fold = folds_case(real or os.path.realpath(folder))
        self._text = _regex(glob, "")
        self._absolute = self._regex(_plain(os.path.abspath(prefix)) if prefix else "", rest)
        self._real = self._regex(real, rest)
        part = needle(glob.rstrip("/*"))
        everywhere = all(part in whole for whole in (os.path.abspath(prefix) + rest, real + rest))
        self.needle = part if everywhere and not self._fold else ""

    def _regex(self, prefix: str, rest: str) -> re.Pattern[str]:
        prefix = "" if prefix == "/" and rest.startswith("/") else prefix
        return _regex(self._folded(rest), escape(self._folded(prefix)))

    def _folded(self, text: str) -> str:
        return normalize("NFC", text).casefold() if self._fold else text

    def allows(self, place: Place) -> bool:
        """Whether the path matches in every reading, with its links followed."""
        matches = self._real.match
        usable = place.resolved and bool(place.readings)
        return usable and all(matches(self._folded(real)) for _, real in place.readings)

    def touches(self, place: Place) -> bool:
        """Whether the path matches in any reading, as it is written or with its links followed."""
        if self._text.match(place.text):
            return True
        patterns = (self._absolute, self._real)
        return any(
            pattern.match(self._folded(path)) for reading in place.readings for path in reading for pattern in patterns
        )


def _split(glob: str, folder: str) -> tuple[str, str]:
    """The part of a pattern before the first component with a wildcard, as an absolute path, and the rest."""
    parts = os.path.join(folder, glob).split("/")
    count = next((at for at, part in enumerate(parts) if re.search(r"[*?\[]", part)), len(parts))
    rest = "/".join(parts[count:])
    if count == len(parts):  # no wildcard: the trailing slash of a folder is the rest
        return os.path.join(folder, glob), "/" if glob.endswith("/") else ""
    return "/".join(parts[:count]) or "/", f"/{rest}"


def _regex(glob: str, prefix: str) -> re.Pattern[str]:
    """A pattern after a prefix without wildcards. `/**/` also matches a single `/`."""
    globs = [glob]
    if glob.endswith("/"):
        globs = [glob[:-1], glob + "*"] if prefix + glob != "/" else ["/*"]
    while any("/**/" in one for one in globs):
        globs = [new for one in globs for new in {one.replace("/**/", "/", 1), one.replace("/**/", "/*/", 1)}]
    return re.compile("|".join([translate(prefix + one) for one in globs]))


@lru_cache(maxsize=256)
def folds_case(path: str) -> bool:
    """Whether the file system of a path ignores case: whether an existing folder is found in other letters, too."""
    while path != os.path.dirname(path):
        parent, name = os.path.split(path)
        if name.swapcase() != name and os.path.exists(path):
            other = os.path.join(parent, name.swapcase())
            return os.path.exists(other) and os.path.samefile(path, other)
        path = parent
    return False
