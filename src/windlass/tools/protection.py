"""Which files of a workspace the tool pack never writes: those that decide what agents and programs may do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase

from windlass import trust
from windlass.errors import ConfigError, ToolError
from windlass.folders import config_folder, data_folder

from .rooted import Root, plain_name

FOLDERS = (".git", ".claude", ".windlass")
"""Folders that the file tools do not write into, wherever they are. Commands may write `.git`, but not its settings."""
FILES = (
    "windlass.toml", "windlass.*.toml", "*.windlass.toml", "agent.toml", "*.agent.toml", ".mcp.json",
    "windlass.db", "windlass.db-*", "windlass.db.*",
)  # fmt: skip
"""Names of files that define agents or are their logs, wherever they are."""
GIT = ("hooks", "config", "config.worktree", "commondir")
"""The parts of a `.git` folder that make git run programs."""


class Protection:
    """The files that decide what agents may do: agent files, trusted files, policies, hooks, the user's folders."""

    def __init__(self, root: Root, extra: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._root = root
        named = [os.path.realpath(os.path.join(root.path, os.path.expanduser(path))) for path in extra]
        self.private = tuple([os.path.realpath(folder()) for folder in (config_folder, data_folder)])
        if any(root.path == one or root.path.startswith(f"{one}/") for one in self.private):
            raise ConfigError(f"Workspace(root={root.path!r}): the root is in the user's own folder for settings")
        self.named = tuple(named)
        below = f"{root.path}/"
        self._hidden = tuple([one[len(below) :] for one in self.private if one.startswith(below)])

    def paths(self) -> list[str]:
        """The files and folders with real paths: those that the application named or the user trusts."""
        return [*self.private, *self.named, *trust.trusted()]

    def check(self, parts: tuple[str, ...]) -> None:
        """Raise `ToolError` if the file at this real path must not be written."""
        plain = [plain_name(part) for part in parts]
        path = "/".join(parts)
        if any(part in FOLDERS for part in plain):
            raise ToolError(f"{path!r} cannot be written: files in {', '.join(FOLDERS)} can make programs run")
        if plain and any(fnmatchcase(plain[-1], pattern) for pattern in FILES):
            raise ToolError(f"{path!r} cannot be written: it can define an agent or be its log")
        whole = [plain_name(part) for part in f"{self._root.path}/{path}".split("/")]
        for known in self.paths():
            one = [plain_name(part) for part in known.split("/")]
            if whole[: len(one)] == one:
                raise ToolError(f"{path!r} cannot be written: it is a file of the user's settings, trust or policy")

    def check_readable(self, parts: tuple[str, ...]) -> None:
        """Raise `ToolError` for what is in the user's own folders: keys and sessions are there."""
        if self.hides("/".join(parts)):
            raise ToolError(f"{'/'.join(parts)!r} cannot be read: it is in the user's own folder for settings")

    def hides(self, path: str) -> bool:
        """Whether a real path from the root on is in the user's own folders."""
        return any(path == one or path.startswith(f"{one}/") for one in self._hidden)
