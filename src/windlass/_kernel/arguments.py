"""The arguments of calls: validated, completed with defaults, as canonical JSON, before any hook
sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from windlass.decisions import Allow
from windlass.messages import ToolCall
from windlass.records import ToolDecided
from windlass.states import Fold
from windlass.tools import Tool, completed_arguments

Masks: TypeAlias = Callable[[Any], Any]
"""Takes the secrets out of a record."""


class Prepared(Struct, frozen=True, gc=False):
    """A call with its arguments read: `call` is what hooks and wraps see, `values` is what the tool
    gets.

    `tool` is None if the session has no tool of that name. `values` is None if they must be decoded
    from `call`.
    """

    call: ToolCall
    tool: Tool[..., Any] | None = None
    values: tuple[Any, ...] | None = None


class Arguments(Struct, eq=False):
    """Reads the arguments of a session's calls."""

    _tools: Mapping[str, Tool[..., Any]]
    _fold: Fold
    _mask: Masks | None

    def tool(self, name: str) -> Tool[..., Any] | None:
        """The tool of this name, unless a hook took it out when the session started."""
        opened = self._fold.opened
        if (
            opened is not None
            and opened.tools is not None
            and all(spec.name != name for spec in opened.tools)
        ):
            return None
        return self._tools.get(name)

    def read(self, call: ToolCall) -> Prepared:
        """A call as it runs if no hook or wrap looks at it; `ArgumentsError` if its arguments do
        not fit."""
        opened, name = self._fold.opened, call.name
        tool = self._tools.get(name) if opened is None or opened.tools is None else self.tool(name)
        return Prepared(call) if tool is None else Prepared(call, tool, tool.prepare(call.json))

    def complete(self, call: ToolCall) -> Prepared:
        """A call with complete arguments as canonical JSON; `ArgumentsError` if they do not fit.

        A call without a tool is not checked: hooks and wraps may answer for it.
        """
        opened, name = self._fold.opened, call.name
        tool = self._tools.get(name) if opened is None or opened.tools is None else self.tool(name)
        if tool is None:
            return Prepared(call)
        json, values = completed_arguments(tool, call.json)
        if json == call.json:
            return Prepared(call, tool, values)
        completed = ToolCall(call.id, call.name, json, call.vendor_id)
        if self._mask is not None:
            return Prepared(_without_secret_defaults(self._mask, call, completed), tool)
        return Prepared(completed, tool, values)


def _without_secret_defaults(mask: Masks, given: ToolCall, completed: ToolCall) -> ToolCall:
    """A completed call without defaults that hold a secret: no hook sees them, and the tool gets
    them unmasked."""
    if not _holds_secrets(mask, completed.json):
        return completed
    before, shown = given.arguments, completed.arguments
    for name, value in completed.arguments.items():
        if _holds_secrets(mask, completed.replace(arguments={"value": value}).json):
            del shown[name]
            if name in before:
                shown[name] = before[name]
    return completed.replace(arguments=shown)


def _holds_secrets(mask: Masks, json: str) -> bool:
    decided = ToolDecided("", Allow(), json=json)
    return mask(decided) is not decided
