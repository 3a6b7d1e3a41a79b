"""Workspace: tools for one folder of files, which nothing that they are given leads out of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError

from .definitions import Tool
from .file_tools import FileTools
from .protection import Protection
from .rooted import Root

if TYPE_CHECKING:
    from windlass import Hooks


class Workspace:
    """Let the model work in a folder: `read`, `glob` and `grep` its files, and `write`, `edit` and `multi_edit` them.

    All paths are below `root`; absolute paths, `..` and links that lead out of it are refused. With `write=False` the
    model can only read. Files that decide what agents may do cannot be written: agent files such as `windlass.toml`,
    `.git`, `.claude`, files that the user trusts, the user's own folders, and what `protect` names.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = ".",
        *,
        write: bool = True,
        protect: Sequence[str | os.PathLike[str]] = (),
        name: str = "workspace",
    ) -> None:
        _check_options(root, protect, name, write=write)
        self.name = name
        self.write = write
        folder = Root(root)
        self.root = folder.path
        self._files = FileTools(folder, Protection(folder, protect))

    def install(self, registrar: Hooks) -> None:
        """Register the tools."""
        files = self._files
        tools: list[Tool[..., Any]] = [files.read, files.glob, files.grep]
        if self.write:
            tools += [files.write, files.edit, files.multi_edit]
        for one in tools:
            registrar.tool(one)

    def summary(self) -> str:
        """The folder and what may be done there, for `explain`."""
        return f"{self.root}: {'read and write' if self.write else 'read only'}"


def _check_options(root: object, protect: object, name: object, **flags: object) -> None:
    if not isinstance(root, str | os.PathLike):
        raise ConfigError(f"Workspace(root={root!r}): root must be the path of a folder")
    if isinstance(protect, str | os.PathLike) or not isinstance(protect, Sequence):
        raise ConfigError(f"Workspace(protect={protect!r}): protect must be a list of paths")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"Workspace(name={name!r}): name must be a text")
    for option, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"Workspace({option}={value!r}): {option} must be True or False")
