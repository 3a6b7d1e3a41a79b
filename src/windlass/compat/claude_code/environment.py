"""The variables and the command line of a command hook."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from windlass.folders import data_folder

from .answers import Output
from .settings import Handler

_CREDENTIAL = re.compile(
    r"(?i)(?:^|_)(?:API_?KEYS?|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|CREDENTIALS?|PRIVATE_KEY)(?:_|$)|ACCESS_KEY|AUTH_TOKEN"
)
ENV_FILE_EVENTS = ("SessionStart", "Setup", "CwdChanged", "FileChanged")
KNOWN_VARIABLES = frozenset(
    {
        "CLAUDE_PROJECT_DIR", "CLAUDE_PLUGIN_ROOT", "CLAUDE_PLUGIN_DATA", "CLAUDE_ENV_FILE", "CLAUDECODE",
        "CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_SESSION_ID", "CLAUDE_PID", "CLAUDE_EFFORT", "CLAUDE_CODE_REMOTE",
        "CLAUDE_CODE_REMOTE_SESSION_ID", "CLAUDE_CODE_BRIDGE_SESSION_ID", "CLAUDE_CONFIG_DIR",
        "CLAUDE_CODE_SHELL_PREFIX", "CLAUDE_CODE_SUBPROCESS_ENV_SCRUB", "CLAUDE_CODE_ENTRYPOINT",
    }
)  # fmt: skip
"""The variables that a hook can rely on, and those that a user may set."""


class CannotStart(Exception):
    """A hook cannot be started; the text says why."""

    @property
    def output(self) -> Output:
        """The failure as what came of the hook."""
        return Output(None, failure=f"it could not be started: {self}")


def data_place(*parts: str) -> Path:
    """A folder of the bridge for data of hooks, made on first use and readable by the user alone."""
    folder = data_folder() / "claude-code"
    for part in (".", *parts):
        folder = folder / part
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def environment(
    handler: Handler, project: str, session: str, env_file: str | None, given: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a command: those of this process, those `given` in settings, and those that Claude Code sets."""
    own = {**os.environ, **given} if given else os.environ
    scrub = own.get("CLAUDE_CODE_SUBPROCESS_ENV_SCRUB") == "1"
    env = {
        name: value
        for name, value in own.items()
        if not name.startswith("OTEL_") and not (scrub and _CREDENTIAL.search(name))
    }
    env |= {
        "CLAUDE_PROJECT_DIR": project,
        "CLAUDECODE": "1",
        "CLAUDE_CODE_CHILD_SESSION": "1",
        "CLAUDE_CODE_SESSION_ID": session,
        "CLAUDE_PID": str(os.getpid()),
    }
    for name in ("CLAUDE_ENV_FILE", "CLAUDE_PLUGIN_ROOT", "CLAUDE_PLUGIN_DATA"):
        env.pop(name, None)
    if env_file is not None and handler.event in ENV_FILE_EVENTS:
        env["CLAUDE_ENV_FILE"] = env_file
    return env | plugin_variables(handler)


def plugin_variables(handler: Handler) -> dict[str, str]:
    """The variables of a plugin's hook."""
    if handler.source.root is None:
        return {}
    name = re.sub(r"[^\w.-]", "-", handler.source.plugin).strip(".") or "plugin"
    data = data_place("plugin-data", name)
    options = {
        f"CLAUDE_PLUGIN_OPTION_{re.sub(r'[^A-Za-z0-9_]', '_', key).upper()}": text
        for key, text in handler.source.options.items()
    }
    return {**options, "CLAUDE_PLUGIN_ROOT": str(handler.source.root), "CLAUDE_PLUGIN_DATA": str(data)}


def command_words(handler: Handler, env: Mapping[str, str], cwd: str) -> list[str]:
    """The words of a command that starts in a folder. What the model wrote is in none of them: it goes to stdin.

    Raises `CannotStart`.
    """
    if handler.args is not None:
        words = [_filled(word, env, handler.source.options) for word in (handler.command, *handler.args)]
        place = os.path.join(cwd, words[0]) if os.path.dirname(words[0]) else words[0]
        if shutil.which(place, path=env.get("PATH")) is None:
            raise CannotStart(f"there is no program {words[0]!r}")
        return words
    if "${user_config." in handler.command:
        raise CannotStart("${user_config.…} can only be used with args")
    if handler.shell == "powershell":
        program = shutil.which("pwsh") or shutil.which("powershell")
        if program is None:
            raise CannotStart("PowerShell is not installed here")
        return [program, "-NoProfile", "-Command", handler.command]
    prefix = env.get("CLAUDE_CODE_SHELL_PREFIX")
    command = f"{prefix} {shlex.quote(handler.command)}" if prefix else handler.command
    return [*shell_program(), command]


@cache
def shell_program() -> tuple[str, ...]:
    """The shell for commands: bash where there is one."""
    program = shutil.which("bash") or shutil.which("sh")
    if program is None:
        raise CannotStart("there is no shell here")
    return program, "-c"


def _filled(word: str, env: Mapping[str, str], options: Mapping[str, str]) -> str:
    """A word with its placeholders filled in."""
    return re.sub(
        r"\$\{(?:(CLAUDE_PROJECT_DIR|CLAUDE_PLUGIN_ROOT|CLAUDE_PLUGIN_DATA)|user_config\.([^}]+))\}",
        lambda match: env.get(match[1], "") if match[1] else options.get(match[2], ""),
        word,
    )


def fill_input(template: Any, payload: Mapping[str, Any]) -> Any:
    """The input of a tool hook, with `${tool_input.file_path}` and the like filled in from the input of the hook."""
    if isinstance(template, dict):
        return {key: fill_input(value, payload) for key, value in template.items()}
    if isinstance(template, list):
        return [fill_input(value, payload) for value in template]
    if not isinstance(template, str):
        return template
    whole = re.fullmatch(r"\$\{([\w.]+)\}", template)
    if whole is not None:
        return _looked_up(payload, whole[1])
    return re.sub(r"\$\{([\w.]+)\}", lambda match: str(_looked_up(payload, match[1]) or ""), template)


def _looked_up(payload: Mapping[str, Any], path: str) -> Any:
    found: Any = payload
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
