"""Workspace: tools for one folder of files, which nothing that they are given leads out of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from windlass.decisions import Ask
from windlass.errors import ConfigError
from windlass.events import ToolCalling
from windlass.records import SessionEnded

from .definitions import Tool
from .fetching import FetchTool
from .file_tools import FileTools
from .isolation import KINDS, Isolation, Kind, Sandbox, choose
from .protection import Protection
from .rooted import Root
from .shell_tool import ShellTool, clean_environment

if TYPE_CHECKING:
    from windlass import Assembly, Hooks


class Workspace:
    """Let the model work in a folder: `read`, `glob` and `grep` its files, `write`, `edit` and `multi_edit` them, and
    run commands with `shell`.

    All paths are below `root`; absolute paths, `..` and links that lead out of it are refused. Without `write` the
    model can only read, and without `shell` it runs no commands. Files that decide what agents may do cannot be
    written: agent files such as `windlass.toml`, `.git`, `.claude`, files that the user trusts, the user's own folders,
    and what `protect` names. With `fetch`, a list of hosts such as `"docs.python.org"` or `"*.example.org"`, the model
    can fetch web pages from these hosts, but never from private addresses.

    Commands run isolated: `isolation` is `"bubblewrap"`, `"landlock"`, `"none"`, or `"auto"` for the best that works
    here. With `"none"` every command is asked about. `network` opens the network to commands, and `readable` names more
    folders that they can read. They get the variables in `env`, those of this process that `inherit` names, and no
    others. A command ends after `timeout` seconds unless the model gives another time. `max_file` is the largest file,
    in bytes, that a command can write, and `max_processes` how many processes there can be; 0 is no limit.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = ".",
        *,
        write: bool = True,
        shell: bool = True,
        fetch: Sequence[str] | None = None,
        isolation: Literal["auto", "bubblewrap", "landlock", "none"] = "auto",
        network: bool = False,
        readable: Sequence[str | os.PathLike[str]] = (),
        env: Mapping[str, str] | None = None,
        inherit: Sequence[str] = (),
        timeout: float = 120.0,
        max_file: int = 1_000_000_000,
        max_processes: int = 512,
        protect: Sequence[str | os.PathLike[str]] = (),
        name: str = "workspace",
    ) -> None:
        _check_options(root, name, write=write, shell=shell, network=network)
        _check_lists(protect=protect, readable=readable, inherit=inherit, fetch=fetch or ())
        _check_numbers(timeout=timeout, max_file=max_file, max_processes=max_processes)
        if isolation not in ("auto", *KINDS):
            raise ConfigError(f"Workspace(isolation={isolation!r}): isolation must be 'auto' or one of {KINDS}")
        if shell and not write:
            raise ConfigError("Workspace(write=False): commands can write, so add shell=False")
        self.name = name
        self.write, self.shell = write, shell
        self._fetch = FetchTool(fetch) if fetch else None
        folder = Root(root)
        self.root = folder.path
        protection = Protection(folder, protect)
        self._files = FileTools(folder, protection)
        self._wanted: Literal["auto"] | Kind = isolation
        places = [os.path.realpath(os.path.expanduser(path)) for path in readable]
        self._choose = partial(choose, root=self.root, protection=protection, readable=places, network=network)
        self._env = clean_environment(self.root, env or {}, inherit)
        self._limits = {"files": -(-max_file // 1024), "processes": max_processes}
        self._timeout = timeout

    @cached_property
    def _sandbox(self) -> Sandbox:
        return self._choose(self._wanted)

    @property
    def isolation(self) -> Isolation:
        """What commands are isolated from. The first use tries it; `str` of it says it in words."""
        return self._sandbox.describe()

    def install(self, registrar: Hooks) -> None:
        """Register the tools, and a gate that asks about each command if nothing isolates it."""
        files = self._files
        tools: list[Tool[..., Any]] = [files.read, files.glob, files.grep]
        if self.write:
            tools += [files.write, files.edit, files.multi_edit]
        for one in tools:
            registrar.tool(one)
        if self._fetch is not None:
            registrar.tool(self._fetch.fetch)
        if self.shell:
            self._install_shell(registrar)

    def _install_shell(self, registrar: Hooks) -> None:
        known: list[Assembly] = []
        registrar.check(known.append)
        tools = lambda: known[-1].tools if known else {}  # noqa: E731
        shell = ShellTool(self._sandbox, self._env, self._limits, timeout=self._timeout, tools=tools)
        registrar.tool(shell.shell)
        registrar.observe(SessionEnded, name=f"{self.name}.end_shell", wait=True)(shell.session_ended)
        if not self.isolation.isolated:
            registrar.gate(ToolCalling, name=f"{self.name}.unisolated", tool="shell")(_ask_about_command)

    def summary(self) -> str:
        """The folder and what may be done there, for `explain`."""
        shell = f"; shell: {self.isolation}" if self.shell else ""
        return f"{self.root}: {'read and write' if self.write else 'read only'}{shell}"


def _ask_about_command(event: ToolCalling) -> Ask:
    return Ask("Nothing isolates commands here: this one can read and change all that you can. Run it?")


def _check_options(root: object, name: object, **flags: object) -> None:
    if not isinstance(root, str | os.PathLike):
        raise ConfigError(f"Workspace(root={root!r}): root must be the path of a folder")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"Workspace(name={name!r}): name must be a text")
    for option, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"Workspace({option}={value!r}): {option} must be True or False")


def _check_lists(**lists: object) -> None:
    for option, value in lists.items():
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f"Workspace({option}={value!r}): {option} must be a list")


def _check_numbers(**numbers: object) -> None:
    for option, value in numbers.items():
        legal = isinstance(value, int | float if option == "timeout" else int) and not isinstance(value, bool)
        if not legal or value < (1e-9 if option == "timeout" else 0):  # type: ignore[operator]
            raise ConfigError(f"Workspace({option}={value!r}): {option} must be a number, not negative")
