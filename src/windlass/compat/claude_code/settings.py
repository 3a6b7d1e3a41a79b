"""Reads hooks from settings files. What is wrong with an entry is a problem of that entry, not of the file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from .plain_text import first_line
from .protocol import EVENTS

MAX_FILE = 4_000_000
TYPES = ("command", "http", "mcp_tool", "prompt", "agent")
Scope: TypeAlias = Literal["managed", "named", "local", "project", "user", "plugin"]


class Source(Struct, frozen=True):
    """Where hooks come from: a file, its scope, and for a plugin its name, folder and options."""

    scope: Scope
    path: Path
    plugin: str = ""
    root: Path | None = None
    options: Mapping[str, str] = {}

    def __str__(self) -> str:
        return f"{self.path} ({self.scope if not self.plugin else f'plugin {self.plugin}'})"


class Handler(Struct, frozen=True):
    """One hook as a settings file has it. `place` is where it stands in the file, such as `PreToolUse[0].hooks[1]`."""

    event: str
    matcher: str | None
    type: str
    source: Source
    place: str
    condition: str | None = None
    timeout: float | None = None
    status: str = ""
    once: bool = False
    command: str = ""
    args: tuple[str, ...] | None = None
    shell: str = "bash"
    background: bool = False
    rewakes: bool = False
    rewake_message: str = ""
    on_failure: str = "continue"
    url: str = ""
    headers: Mapping[str, str] = {}
    allowed_env: tuple[str, ...] = ()
    server: str = ""
    tool: str = ""
    input: Mapping[str, Any] = {}
    prompt: str = ""
    model: str = ""
    goes_on: bool = False

    @property
    def name(self) -> str:
        """What it runs, in one line, for people."""
        if self.type == "command":
            return " ".join([self.command, *(self.args or ())])
        if self.type == "mcp_tool":
            return f"mcp__{self.server}__{self.tool}"
        return self.url or self.prompt.strip().split("\n")[0]

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two handlers the same. A plugin's copy stays apart from one in settings."""
        owner = (self.source.plugin, str(self.source.root or ""))
        match self.type:
            case "command":
                return (*owner, "command", self.command, self.args, self.shell, self.condition)
            case "http":
                return (*owner, "http", self.url, self.condition)
            case "mcp_tool":
                given = json.dumps(self.input, sort_keys=True, default=str)
                return (*owner, "mcp_tool", self.server, self.tool, given, self.condition)
            case _:
                return (*owner, self.type, self.prompt, self.model, self.condition)


class Problem(Struct, frozen=True):
    """Something in a settings file that does not do what it seems to be meant for, and how to mend it."""

    source: str
    place: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.place}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


class Settings(Struct, frozen=True):
    """The content of one settings file, as far as it is about hooks."""

    source: Source
    handlers: tuple[Handler, ...] = ()
    problems: tuple[Problem, ...] = ()
    disabled: bool | None = None
    managed_only: bool = False
    plugins: Mapping[str, bool] = {}
    http_urls: tuple[str, ...] | None = None
    http_env: tuple[str, ...] | None = None
    env: Mapping[str, str] = {}
    options: Mapping[str, Mapping[str, str]] = {}


class NotSettings(ValueError):
    """A file is not a settings file: it cannot be read, or it is not a JSON object."""


def decode_settings(content: bytes) -> dict[str, Any]:
    """The JSON object in a settings file. Raises `NotSettings`."""
    if len(content) > MAX_FILE:
        raise NotSettings(f"it is larger than {MAX_FILE:,} bytes")
    try:
        data = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NotSettings(f"it is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise NotSettings("it is not a JSON object")
    return data


def read_settings(content: bytes, source: Source) -> Settings:
    """The hooks in the content of a settings file. Raises `NotSettings` if it is none."""
    return settings_of(decode_settings(content), source)


def settings_of(data: Mapping[str, Any], source: Source) -> Settings:
    """The hooks in the decoded content of a settings file."""
    reader = _Reader(source)
    handlers = tuple(reader.handlers(data.get("hooks", {})))
    disabled = data.get("disableAllHooks")
    plugins = data.get("enabledPlugins")
    return Settings(
        source,
        handlers,
        tuple(reader.problems),
        disabled if isinstance(disabled, bool) else None,
        data.get("allowManagedHooksOnly") is True,
        {name: on is True for name, on in plugins.items()} if isinstance(plugins, dict) else {},
        _allowlist(data.get("allowedHttpHookUrls")),
        _allowlist(data.get("httpHookAllowedEnvVars")),
        _texts_of(data.get("env")),
        {name: _texts_of(one.get("options")) for name, one in _objects_of(data.get("pluginConfigs")).items()},
    )


def _texts_of(value: Any) -> dict[str, str]:
    """The names and plain values of an object, as texts that a process can get."""
    if not isinstance(value, dict):
        return {}
    return {
        name: (one if isinstance(one, str) else json.dumps(one)).replace("\0", "")
        for name, one in value.items()
        if isinstance(one, str | bool | int | float) and name and not {"=", "\0"} & {*name}
    }


def _objects_of(value: Any) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in value.items() if isinstance(one, dict)} if isinstance(value, dict) else {}


def _allowlist(value: Any) -> tuple[str, ...] | None:
    return tuple([one for one in value if isinstance(one, str)]) if isinstance(value, list) else None


class _Reader:
    """Reads the hooks of one file, and collects problems."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []

    def _problem(self, place: str, text: str, remedy: str = "") -> None:
        self.problems.append(Problem(str(self.source), place, text, remedy))

    def handlers(self, events: Any) -> Iterator[Handler]:
        if not isinstance(events, dict):
            self._problem("hooks", "it is not an object", 'write {"PreToolUse": [...]}')
            return
        for event, groups in events.items():
            if event not in EVENTS:
                self._problem(_short(event), "there is no such event", _nearest(event))
            elif not isinstance(groups, list):
                self._problem(event, "it is not a list of groups", 'write [{"matcher": "…", "hooks": [...]}]')
            else:
                for at, group in enumerate(groups):
                    yield from self._group(event, group, f"{event}[{at}]")

    def _group(self, event: str, group: Any, place: str) -> Iterator[Handler]:
        if not isinstance(group, dict):
            self._problem(place, "it is not an object", 'write {"matcher": "…", "hooks": [...]}')
            return
        matcher = group.get("matcher")
        if matcher is not None and not isinstance(matcher, str):
            self._problem(place, "its matcher is not a text", 'write names as in "Edit|Write"')
            return
        hooks = group.get("hooks")
        if not isinstance(hooks, list):
            what = "it has no list of hooks"
            hint = 'put the handler into "hooks": [...]' if "command" in group or "type" in group else ""
            self._problem(place, what, hint)
            return
        for at, given in enumerate(hooks):
            made = self._handler(event, matcher, given, f"{place}.hooks[{at}]")
            if made is not None:
                yield made

    def _handler(self, event: str, matcher: str | None, given: Any, place: str) -> Handler | None:
        if not isinstance(given, dict):
            self._problem(place, "it is not an object", 'write {"type": "command", "command": "…"}')
            return None
        kind = given.get("type")
        if kind not in TYPES:
            said = "it has no type" if kind is None else f"its type is {_short(repr(kind))}"
            self._problem(place, said, f"the types are {', '.join(TYPES)}")
            return None
        if kind not in EVENTS[event].types:
            self._problem(place, f"{event} takes no hooks of type {kind!r}", f"use {', '.join(EVENTS[event].types)}")
            return None
        fields: dict[str, Any] = {}
        for key, (field, legal, wanted) in _FIELDS.items():
            if key in given and given[key] is not None:
                if not legal(given[key]):
                    self._problem(place, f"{key} is {_short(repr(given[key]))}", f"it must be {wanted}")
                    if key in _NEEDED[kind] or key == "if":  # a condition that is dropped would widen the hook
                        return None
                    continue
                fields[field] = tuple(given[key]) if isinstance(given[key], list) else given[key]
        missing = [key for key in _NEEDED[kind] if not fields.get(_FIELDS[key][0])]
        if missing:
            self._problem(place, f"a hook of type {kind!r} needs {missing[0]!r}")
            return None
        fields["background"] = bool(fields.get("background") or fields.get("rewakes"))
        return Handler(event, matcher, kind, self.source, place, **fields)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _seconds(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= 1e9


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


_FIELDS: dict[str, tuple[str, Any, str]] = {
    "if": ("condition", _text, 'a permission rule such as "Bash(git *)"'),
    "timeout": ("timeout", _seconds, "a number of seconds above 0"),
    "statusMessage": ("status", _text, "a text"),
    "once": ("once", _flag, "true or false"),
    "command": ("command", _text, "a text"),
    "args": ("args", _texts, "a list of texts"),
    "shell": ("shell", lambda value: value in ("bash", "powershell"), "'bash' or 'powershell'"),
    "async": ("background", _flag, "true or false"),
    "asyncRewake": ("rewakes", _flag, "true or false"),
    "rewakeMessage": ("rewake_message", _text, "a text"),
    "onFailure": ("on_failure", lambda value: value in ("continue", "block"), "'continue' or 'block'"),
    "url": ("url", lambda value: _text(value) and value.startswith(("http://", "https://")), "an http(s) URL"),
    "headers": ("headers", _text_map, "an object of texts"),
    "allowedEnvVars": ("allowed_env", _texts, "a list of names"),
    "server": ("server", _text, "a text"),
    "tool": ("tool", _text, "a text"),
    "input": ("input", lambda value: isinstance(value, dict), "an object"),
    "prompt": ("prompt", _text, "a text"),
    "model": ("model", _text, "a text"),
    "continueOnBlock": ("goes_on", _flag, "true or false"),
}
"""The fields of a handler: the attribute, what is legal, and that in words."""

_NEEDED: dict[str, tuple[str, ...]] = {
    "command": ("command",),
    "http": ("url",),
    "mcp_tool": ("server", "tool"),
    "prompt": ("prompt",),
    "agent": ("prompt",),
}

KNOWN_FIELDS = frozenset({*_FIELDS, "type", "rewakeSummary", "description", "id", "name", "enabled"})


def _short(text: str) -> str:
    return first_line(text, 60)


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    lowered = {one.lower(): one for one in EVENTS}
    near = get_close_matches(name.lower().replace("_", "").replace("-", "")[:60], list(lowered), 1, 0.7)
    return f"did you mean {lowered[near[0]]}?" if near else ""
