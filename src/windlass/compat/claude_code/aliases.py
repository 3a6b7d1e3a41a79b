"""Names and fields of tools as Claude Code has them: our `shell` is its `Bash`, in both directions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from windlass.messages import ToolCall
from windlass.tools import Tool


class Shape(NamedTuple):
    """How a value is converted: into the form of Claude Code, and back. Both get the root of the workspace."""

    there: Callable[[Any, str], Any]
    back: Callable[[Any, str], Any]


class ToolAlias(Struct, frozen=True):
    """What a tool is called in hooks, and how its parameters are: `ToolAlias("Bash", {"cmd": "command"})`.

    - `name`: the name of the tool in hooks.
    - `fields`: maps parameters of the tool to fields in hooks. Parameters that it leaves out keep their names.
    - `paths`: the parameters that are paths. Hooks get them absolute.
    """

    name: str
    fields: Mapping[str, str] = {}
    paths: tuple[str, ...] = ()


class BuiltIn(ToolAlias, frozen=True):
    """The alias of a tool of ours, whose values may have other forms."""

    shapes: Mapping[str, Shape] = {}


class CallView(Struct, frozen=True):
    """A call as hooks see it: the name and input that Claude Code would show, and the MCP server, if it has one."""

    tool: str
    input: dict[str, Any]
    alias: ToolAlias
    root: str
    server: str = ""

    @property
    def also(self) -> str:
        """Another name that hooks may mean it by: Claude Code has no tool for several edits any more."""
        return ALSO.get(self.tool, "") if self.alias is _MULTI_EDIT else ""

    def back(self, given: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The arguments that an `updatedInput` means, and what of it has no counterpart.

        `known` are the parameters of the tool.
        """
        alias, notes = self.alias, list[str]()
        parameters = {theirs: ours for ours, theirs in alias.fields.items()}
        arguments: dict[str, Any] = {}
        for field, value in given.items():
            parameter = parameters.get(field, field)
            if known and parameter not in known:
                if field not in _WITHOUT_COUNTERPART:
                    notes.append(f"updatedInput.{field} is not a parameter of this tool and was left out")
                continue
            arguments[parameter] = _back(alias, parameter, value, self.root)
        return arguments, notes


_WITHOUT_COUNTERPART = frozenset(
    {"description", "run_in_background", "prompt", "subagent_type", "model", "output_mode", "multiline", "-n"}
)
"""Fields of Claude Code's tools that our tools do not have, and that hooks send back unchanged."""


def absolute(value: Any, root: str) -> Any:
    """A path below the root as an absolute path."""
    return os.path.normpath(os.path.join(root, value)) if isinstance(value, str) else value


def relative(value: Any, root: str) -> Any:
    """An absolute path below the root as a relative one. Others stay as they are."""
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    path = os.path.normpath(value)
    if path == root:
        return "."
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else value


def _milliseconds(value: Any, root: str) -> Any:
    return round(value * 1000) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _seconds(value: Any, root: str) -> Any:
    return value / 1000 if isinstance(value, int | float) and not isinstance(value, bool) else value


def _renamed(names: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """A converter of a list of objects: it renames their fields."""

    def convert(value: Any, root: str) -> Any:
        if not isinstance(value, list):
            return value
        return [
            {names.get(key, key): item for key, item in one.items()} if isinstance(one, dict) else one for one in value
        ]

    return convert


_STATUSES = {"pending": "pending", "in_progress": "in_progress", "done": "completed", "dropped": "cancelled"}
_STATUSES_BACK = {theirs: ours for ours, theirs in _STATUSES.items()}


def _todos(value: Any, root: str) -> Any:
    if not isinstance(value, list):
        return value
    items = [one if isinstance(one, dict) else {} for one in value]
    return [
        {
            "content": item.get("text", ""),
            "status": _STATUSES.get(item.get("status", "pending"), "pending"),
            "activeForm": item.get("text", ""),
        }
        for item in items
    ]


def _items(value: Any, root: str) -> Any:
    if not isinstance(value, list):
        return value
    todos = [one if isinstance(one, dict) else {} for one in value]
    return [
        {"text": todo.get("content", ""), "status": _STATUSES_BACK.get(todo.get("status", ""), "pending")}
        for todo in todos
    ]


_EDITS = {"old": "old_string", "new": "new_string"}
_EDITS_BACK = {theirs: ours for ours, theirs in _EDITS.items()}
_PATH = Shape(absolute, relative)
_TIME = Shape(_milliseconds, _seconds)

ALSO = {"MultiEdit": "Edit"}
"""Other names that hooks may mean a tool by."""
_MULTI_EDIT = BuiltIn(
    "MultiEdit",
    {"path": "file_path"},
    ("path",),
    {"edits": Shape(_renamed(_EDITS), _renamed(_EDITS_BACK))},
)
BASH = ToolAlias("Bash", {"command": "command"})
TOOLS: dict[str, tuple[ToolAlias, frozenset[str]]] = {
    "shell": (BuiltIn("Bash", shapes={"timeout": _TIME}), frozenset({"command"})),
    "bash": (BASH, frozenset({"command"})),
    "read": (BuiltIn("Read", {"path": "file_path"}, ("path",)), frozenset({"path"})),
    "write": (BuiltIn("Write", {"path": "file_path"}, ("path",)), frozenset({"path", "content"})),
    "edit": (
        BuiltIn("Edit", {"path": "file_path", **_EDITS}, ("path",)),
        frozenset({"path", "old", "new"}),
    ),
    "multi_edit": (_MULTI_EDIT, frozenset({"path", "edits"})),
    "glob": (BuiltIn("Glob", {}, ("path",)), frozenset({"pattern"})),
    "grep": (
        BuiltIn("Grep", {"include": "glob", "ignore_case": "-i", "context": "-C", "limit": "head_limit"}, ("path",)),
        frozenset({"pattern"}),
    ),
    "fetch": (BuiltIn("WebFetch"), frozenset({"url"})),
    "write_todos": (
        BuiltIn("TodoWrite", {"items": "todos"}, (), {"items": Shape(_todos, _items)}),
        frozenset({"items"}),
    ),
}
"""Our tools, each with the parameters without which a tool of that name is another one."""

AGENT = ToolAlias("Agent", {"task": "prompt"})


class Aliases:
    """The names of the tools of an agent in hooks. `own` aliases, by the name of the tool, come first."""

    def __init__(self, root: str, own: Mapping[str, ToolAlias | str]) -> None:
        self._root = root
        self._own = {name: ToolAlias(one) if isinstance(one, str) else one for name, one in own.items()}

    def name_of(self, call: str, tool: Tool[..., Any] | None, arguments: Mapping[str, Any] | None = None) -> str:
        """What hooks call a tool."""
        return self._alias(call, tool, arguments or {})[0].name

    def view(self, call: ToolCall, tool: Tool[..., Any] | None) -> CallView:
        """A call as hooks see it, without arguments that merely hold defaults of our tools."""
        arguments = call.arguments
        alias, server = self._alias(call.name, tool, arguments)
        defaults = defaults_of(tool)
        given: dict[str, Any] = {}
        for parameter, value in arguments.items():
            if parameter in defaults and defaults[parameter] == value:
                continue
            given[alias.fields.get(parameter, parameter)] = _there(alias, parameter, value, self._root)
        if alias is AGENT:
            task = str(arguments.get("task", ""))
            given |= {"description": " ".join(task.split()[:5]), "subagent_type": call.name}
        return CallView(alias.name, given, alias, self._root, server)

    def _alias(self, name: str, tool: Tool[..., Any] | None, arguments: Mapping[str, Any]) -> tuple[ToolAlias, str]:
        own = self._own.get(name)
        if own is not None:
            return own, ""
        parameters = parameters_of(tool) if tool is not None else arguments
        known = TOOLS.get(name)
        if known is not None and known[1].issubset(parameters):
            return known[0], ""
        if tool is None:
            return ToolAlias(name), ""
        if tool.effect == "resumable" and "task" in parameters:
            return AGENT, ""
        capability = tool.capability or ""
        if capability.startswith("mcp:"):
            server = capability.removeprefix("mcp:").partition("#")[0]
            return ToolAlias(f"mcp__{server}__{name.removeprefix(f'{server}__')}"), server
        return ToolAlias(name), ""


def _there(alias: ToolAlias, parameter: str, value: Any, root: str) -> Any:
    shape = _shape(alias, parameter)
    return value if shape is None else shape.there(value, root)


def _back(alias: ToolAlias, parameter: str, value: Any, root: str) -> Any:
    shape = _shape(alias, parameter)
    return value if shape is None else shape.back(value, root)


def _shape(alias: ToolAlias, parameter: str) -> Shape | None:
    if parameter in alias.paths:
        return _PATH
    return alias.shapes.get(parameter) if isinstance(alias, BuiltIn) else None


def parameters_of(tool: Tool[..., Any] | None) -> Mapping[str, Any]:
    """The parameters of a tool by name, each with its schema."""
    found = {} if tool is None else tool.spec.schema.get("properties", {})
    return found if isinstance(found, Mapping) else {}


def defaults_of(tool: Tool[..., Any] | None) -> dict[str, Any]:
    """The defaults of a tool's parameters."""
    schemas = {name: schema for name, schema in parameters_of(tool).items() if isinstance(schema, Mapping)}
    return {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
