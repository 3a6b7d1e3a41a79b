"""Opens files below one folder by directory descriptors, so that no path, link or race leads out of it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import unicodedata
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from windlass.errors import ConfigError, ToolError

_FOLDER = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MAX_LINKS = 40
_SWAPPED = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


class Outside(ToolError):
    """A path leads out of the workspace."""


class Place:
    """A file or folder below the root: the open folder that holds it, its name there, and its real path in parts."""

    def __init__(self, folder: int, name: str, parts: tuple[str, ...]) -> None:
        self.folder = folder
        self.name = name
        self.parts = parts

    @property
    def path(self) -> str:
        """The path from the root on, without links."""
        return "/".join(self.parts) or "."

    def open_folder(self) -> int:
        """A descriptor of the folder. Raises `OSError` if it is something else."""
        return os.open(self.name, _FOLDER, dir_fd=self.folder)

    def open_file(self) -> int:
        """A descriptor for reading. Raises `ToolError` unless it is a regular file."""
        if not stat.S_ISREG(os.stat(self.name, dir_fd=self.folder, follow_symlinks=False).st_mode):
            raise ToolError(f"{self.path!r} is not a regular file")
        found = os.open(self.name, _FILE, dir_fd=self.folder)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise ToolError(f"{self.path!r} is not a regular file")
        return found

    def replace(self, data: bytes) -> None:
        """Replace the file at once, or make it; a crash leaves the old or the new one.

        An existing file keeps its mode. The new content is written beside it first.
        """
        try:
            known = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            known = None
        if known is not None and not stat.S_ISREG(known.st_mode):
            raise ToolError(f"{self.path!r} is not a regular file")
        if known is not None and not os.access(self.name, os.W_OK, dir_fd=self.folder):
            raise ToolError(f"{self.path!r} is read-only")
        temporary = f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        made = os.open(temporary, flags, 0o666, dir_fd=self.folder)
        try:
            with os.fdopen(made, "wb") as file:
                if known is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(known.st_mode))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self.folder)
            raise


class Root:
    """A folder. All paths are taken as relative to it; absolute ones must lie in it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd:
            raise ConfigError("Workspace needs a system with directory descriptors: Linux or macOS")
        given = os.path.abspath(os.path.expanduser(folder))
        self.path = os.path.realpath(given)
        if not os.path.isdir(self.path):
            raise ConfigError(f"Workspace(root={str(folder)!r}): there is no such folder")
        if self.path == os.path.abspath(os.sep):
            raise ConfigError("Workspace(root='/'): the root of the file system cannot be a workspace")
        self._names = tuple(dict.fromkeys((self.path, given)))

    @contextmanager
    def find(
        self, path: str, *, make: bool = False, check: Callable[[tuple[str, ...]], None] | None = None
    ) -> Generator[Place, None, None]:
        """The place of a path, whose folders stay open meanwhile. With `make`, missing folders are made.

        Links are followed as far as they stay in the root. `check` is told the real path before anything is made.
        """
        walk = _Walk(self, path, make, check)
        try:
            yield walk.place()
        finally:
            walk.close()

    def inner(self, path: str, what: str) -> list[str] | None:
        """The parts of a path below the root; None for an absolute path that is not below it."""
        if not path.startswith("/"):
            return path.split("/")
        plain = "/" + path.lstrip("/")
        for name in self._names:
            if plain == name or plain.startswith(f"{name}/"):
                return plain[len(name) :].split("/")
        return None


class _Walk:
    """One way from the root to a place. Each folder is opened in the one before, and no link is ever followed by the
    system: its text is read and walked like the rest of the path."""

    def __init__(self, root: Root, path: str, make: bool, check: Callable[[tuple[str, ...]], None] | None) -> None:
        self._root, self._given, self._make, self._check = root, path, make, check
        self._left = _MAX_LINKS
        self._stack: list[tuple[int, str]] = []

    def place(self) -> Place:
        given = self._given
        if not given or "\0" in given:
            raise ToolError(f"{given!r} is not a path")
        if given == "~" or given.startswith("~/"):
            raise Outside(f"{given!r} is in the home folder; give a path in the workspace")
        pending = deque(self._inside(given))
        self._stack.append((os.open(self._root.path, _FOLDER), ""))
        while pending:
            name = pending.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                self._up()
            elif (target := self._link(name)) is not None:
                if target.startswith("/"):
                    while len(self._stack) > 1:
                        self._up()
                pending.extendleft(reversed(self._inside(target)))
            elif any(part not in ("", ".") for part in pending):
                self._down(name, pending)
            else:
                parts = (*self._parts, name)
                self._judge(parts)
                return Place(self._stack[-1][0], name, parts)
        self._judge(self._parts)
        return Place(self._stack[-1][0], ".", self._parts)

    @property
    def _parts(self) -> tuple[str, ...]:
        return tuple([name for _, name in self._stack[1:]])

    def _judge(self, parts: tuple[str, ...]) -> None:
        if self._check is not None:
            self._check(parts)

    def _inside(self, path: str) -> list[str]:
        parts = self._root.inner(path, self._given)
        if parts is None:
            raise Outside(f"{self._given!r} is outside the workspace {self._root.path}")
        return parts

    def _up(self) -> None:
        if len(self._stack) == 1:
            raise Outside(f"{self._given!r} is outside the workspace {self._root.path}")
        os.close(self._stack.pop()[0])

    def _link(self, name: str) -> str | None:
        """The target of a link; None if the name is no link, or does not exist."""
        try:
            target = os.readlink(name, dir_fd=self._stack[-1][0])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise
        self._spend()
        return target

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ToolError(f"{self._given!r} has too many links")

    def _down(self, name: str, pending: deque[str]) -> None:
        folder = self._stack[-1][0]
        try:
            found = os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if not self._make:
                raise
            self._judge((*self._parts, name, *[part for part in pending if part not in ("", ".")]))
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            self._spend()
            pending.appendleft(name)
            return
        except OSError as error:
            if error.errno in _SWAPPED and self._is_link(name):  # it was swapped for a link: look again
                self._spend()
                pending.appendleft(name)
                return
            raise
        self._stack.append((found, name))

    def _is_link(self, name: str) -> bool:
        try:
            return stat.S_ISLNK(os.stat(name, dir_fd=self._stack[-1][0], follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return True

    def close(self) -> None:
        while self._stack:
            os.close(self._stack.pop()[0])


def plain_name(name: str) -> str:
    """A name as any file system may compare it: without case, normalised, without characters that have no width."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join([letter for letter in folded if unicodedata.category(letter) != "Cf"]).rstrip(". ")
