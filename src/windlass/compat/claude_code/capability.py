"""ClaudeCodeHooks: the hooks of Claude Code, as they are in settings files, at the points of our lifecycle."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, Unpack, cast

from windlass.errors import ConfigError
from windlass.protocols import Model

from .aliases import ToolAlias
from .environment import shell_program
from .handlers import HookRun
from .lifecycle import Bridge, Options
from .protocol import EVENTS
from .settings import Problem
from .sources import Places, find_hooks
from .workers import Workers

if TYPE_CHECKING:
    from windlass import Hooks, Tool

log = logging.getLogger("windlass.compat")

Mode: TypeAlias = Literal["compat", "strict"]
MODES: tuple[Mode, ...] = ("compat", "strict")


class LoadOptions(TypedDict, total=False):
    """The options of `ClaudeCodeHooks.load`: those of the class."""

    mode: Mode
    trust: bool
    settings: Sequence[str | os.PathLike[str] | Mapping[str, Any]]
    plugins: Sequence[str | os.PathLike[str]]
    user_dir: str | os.PathLike[str] | None
    root: str | os.PathLike[str] | None
    tools: Mapping[str, ToolAlias | str] | None
    permission_mode: str
    prompt_model: Model | str | None
    python_workers: bool
    on_message: Callable[[str], object] | None
    name: str


class ClaudeCodeHooks:
    """Run the hooks of Claude Code unchanged: those in the settings of the user, of a project and of plugins.

    With the mode `"compat"`, everything is as in Claude Code, also that a hook that crashes, takes too long or answers
    nonsense blocks nothing; each such case is reported. With `"strict"` such a hook blocks where hooks can block, and
    settings with mistakes are refused.

    Hooks of the project run only if the user has trusted its settings and the scripts that they name, as they are now:
    `windlass hooks trust`. `untrusted` lists the files that are not. `problems` has what in the settings has no effect,
    and `runs` the latest runs of hooks.

    - `project_dir`: the folder of the project. Commands run there.
    - `mode`: `"compat"` or `"strict"`.
    - `trust`: whether the settings of the project count although the user has not trusted them.
    - `settings`: more settings: files, or objects as they are in such files. They need no trust.
    - `plugins`: folders of plugins, besides those that the settings enable.
    - `user_dir`: the user's folder; by default `CLAUDE_CONFIG_DIR` or `~/.claude`.
    - `root`: the folder at which relative paths of tools start; by default the project.
    - `tools`: what tools of your own are called in hooks: `{"run": ToolAlias("Bash", {"cmd": "command"})}`.
    - `permission_mode`: what hooks read as `permission_mode`.
    - `prompt_model`: the model that prompt hooks ask; by default that of the turn.
    - `python_workers`: whether hooks that are Python scripts run in interpreters that are kept.
    - `on_message`: gets the messages that hooks have for the user; by default they go to the Python log.
    - `name`: the name of the capability.
    """

    def __init__(
        self,
        project_dir: str | os.PathLike[str] = ".",
        *,
        mode: Mode = "compat",
        trust: bool = False,
        settings: Sequence[str | os.PathLike[str] | Mapping[str, Any]] = (),
        plugins: Sequence[str | os.PathLike[str]] = (),
        user_dir: str | os.PathLike[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        tools: Mapping[str, ToolAlias | str] | None = None,
        permission_mode: str = "default",
        prompt_model: Model | str | None = None,
        python_workers: bool = False,
        on_message: Callable[[str], object] | None = None,
        name: str = "claude_code_hooks",
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"ClaudeCodeHooks(mode={mode!r}): mode must be 'compat' or 'strict'")
        if not os.path.isdir(project_dir):
            raise ConfigError(f"ClaudeCodeHooks(project_dir={project_dir!r}): there is no such folder")
        if not cast(object, name):
            raise ConfigError(f"ClaudeCodeHooks(name={name!r}): name must be a text")
        for option, given in {"settings": settings, "plugins": plugins}.items():
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise ConfigError(f"ClaudeCodeHooks({option}={given!r}): {option} must be a list")
        places = Places.of(project_dir, user=user_dir, named=settings, plugins=plugins)
        found = find_hooks(places, trusts=trust)
        self.name = name
        self.problems: tuple[Problem, ...] = found.problems
        self.untrusted: tuple[Path, ...] = found.untrusted
        self._found = found
        self._bridges: list[Bridge] = []
        self._options = Options(
            str(places.project),
            os.path.realpath(places.project if root is None else root),
            mode == "strict",
            permission_mode,
            prompt_model,
            Workers() if python_workers else None,
            dict(tools or {}),
            on_message,
        )
        if mode == "strict" and found.problems:
            raise ConfigError(_listed("ClaudeCodeHooks(mode='strict'): the settings have mistakes", found.problems))
        for problem in found.problems:
            log.warning("%s", problem)
        for path in found.untrusted:
            log.warning("%s is not trusted, so its hooks do not run: look at it with `windlass hooks trust`", path)

    @classmethod
    def load(cls, project_dir: str | os.PathLike[str] = ".", **options: Unpack[LoadOptions]) -> Self:
        """Read all settings for a project. The options are those of the class."""
        return cls(project_dir, **options)

    @property
    def runs(self) -> list[HookRun]:
        """The latest runs of hooks, the latest last: what they answered, and why that had an effect or none."""
        return [run for bridge in self._bridges for run in bridge.engine.runs]

    def install(self, registrar: Hooks) -> None:
        """Register what the hooks need. An event without hooks costs nothing."""
        shell_program()
        bridge = Bridge(self._found, self._options, registrar, self.name)
        self._bridges.append(bridge)
        bridge.install()

    def summary(self) -> str:
        """How many hooks there are on which events, for `explain`."""
        counts: dict[str, int] = {}
        for handler in self._found.handlers:
            counts[handler.event] = counts.get(handler.event, 0) + 1
        hooks = ", ".join([f"{event} {count}" for event, count in sorted(counts.items())]) or "no hooks"
        untrusted = f"; {len(self.untrusted)} files are not trusted" if self.untrusted else ""
        return f"{hooks}; {'strict' if self._options.closed else 'compat'}{untrusted}"

    def warnings(self, tools: Mapping[str, Tool[..., Any]]) -> list[str]:
        """What has no effect, for `explain`."""
        never = sorted({one.event for one in self._found.handlers if not EVENTS[one.event].here})
        return [
            *[str(problem) for problem in self.problems],
            *[f"{path} is not trusted: run `windlass hooks trust`" for path in self.untrusted],
            *[f"hooks on {event} never run: there is no such event here" for event in never],
        ]


def _listed(text: str, problems: Iterable[Problem]) -> str:
    return "\n".join([f"{text}:", *[f"- {problem}" for problem in problems]])
