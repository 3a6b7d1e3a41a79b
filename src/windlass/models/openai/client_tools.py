"""Tools that OpenAI defines and your program runs: shell, computer, apply_patch and custom tools.

A call of one becomes a plain call of the tool that your program gives for it. The vendor's own item is kept beside it
and sent back, and the result is put into the form that the vendor expects for that kind of call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from windlass.messages import FilePart, ImagePart, ToolResultPart, ToolSpec
from windlass.models.history import Wire
from windlass.models.media import data_url
from windlass.models.parts import text_in

ClientTools: TypeAlias = Mapping[str, str]
"""The names of our tools by kind of call; for custom tools, by kind and name."""

TYPES = {
    "shell": "shell_call",
    "local_shell": "local_shell_call",
    "computer": "computer_call",
    "computer_use_preview": "computer_call",
    "apply_patch": "apply_patch_call",
    "custom": "custom_tool_call",
}
"""The kinds of calls by the type of the tool."""
KINDS = tuple(dict.fromkeys(TYPES.values()))
BLANK = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""The screenshot for a result without an image: the vendor requires one."""


def client_tools(tools: Iterable[ToolSpec], vendor: str) -> ClientTools:
    """The tools of a request that the vendor has defined."""
    found: dict[str, str] = {}
    for tool in tools:
        if tool.native and (kind := TYPES.get(str(tool.native.get(vendor, {}).get("type")))) is not None:
            found[f"{kind}:{tool.name}" if kind == "custom_tool_call" else kind] = tool.name
    return found


def tool_for(item: Mapping[str, Any], tools: ClientTools) -> str | None:
    """The name of our tool for a call, if there is one."""
    kind = item.get("type") or ""
    if not tools or kind not in KINDS:
        return None
    return tools.get(f"{kind}:{text_in(item, 'name')}" if kind == "custom_tool_call" else kind)


def arguments_in(item: Mapping[str, Any]) -> str:
    """The arguments of a call as the JSON of an object, without nulls."""
    return json.dumps(_present(_ARGUMENTS[item["type"]](item)), ensure_ascii=False, separators=(",", ":"))


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _computer(item: Mapping[str, Any]) -> Mapping[str, Any]:
    names = ("action", "actions", "pending_safety_checks")
    return {name: item[name] for name in names if item.get(name)}


_ARGUMENTS: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "shell_call": lambda item: item.get("action") or {},
    "local_shell_call": lambda item: {**(item.get("action") or {}), "type": None},
    "computer_call": _computer,
    "apply_patch_call": lambda item: item.get("operation") or {},
    "custom_tool_call": lambda item: {"input": text_in(item, "input")},
}


def tagged_id(item: Mapping[str, Any]) -> str:
    """The id of a call with its kind, so that its result is sent in the right form."""
    return f"{item['type']}:{text_in(item, 'call_id')}"


def untagged(id: str) -> tuple[str | None, str]:
    """The kind of a call, if it is one of these, and the vendor's id."""
    kind, found, rest = id.partition(":")
    return (kind, rest) if found and kind in KINDS else (None, id)


def call_item(kind: str, call_id: str, name: str, arguments: Mapping[str, Any]) -> Wire:
    """A call whose own item is not known."""
    item: Wire = {"type": kind, "call_id": call_id, "status": "completed"}
    if kind == "custom_tool_call":
        return {"type": kind, "call_id": call_id, "name": name, "input": str(arguments.get("input", ""))}
    if kind == "computer_call":
        return {"pending_safety_checks": [], **item, **arguments}
    field = "operation" if kind == "apply_patch_call" else "action"
    return {**item, field: {**({"type": "exec"} if kind == "local_shell_call" else {}), **arguments}}


def output_item(kind: str, call_id: str, result: ToolResultPart, content: Any) -> list[Wire]:
    """The items for a result; `content` is its content as for any other call."""
    fine = result.status in ("ok", "answered", "responded")
    if kind == "custom_tool_call":
        return [{"type": f"{kind}_output", "call_id": call_id, "output": content}]
    if kind == "local_shell_call":
        return [{"type": f"{kind}_output", "id": call_id, "output": result.text}]
    if kind == "apply_patch_call":
        status = "completed" if fine else "failed"
        return [{"type": f"{kind}_output", "call_id": call_id, "status": status, "output": result.text}]
    if kind == "shell_call":
        return [{"type": f"{kind}_output", "call_id": call_id, "output": _chunks(result.text, fine)}]
    return _screenshot(call_id, result)


def _chunks(text: str, fine: bool) -> list[Wire]:
    """The output of a shell: as the tool returned it, if that has the vendor's form, or the text as standard output."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    chunks: list[Any] = given if isinstance(given, list) else [given]
    if chunks and all(isinstance(chunk, dict) and {"stdout", "outcome"} <= chunk.keys() for chunk in chunks):
        return [{"stderr": "", **chunk} for chunk in chunks]
    return [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0 if fine else 1}}]


def _screenshot(call_id: str, result: ToolResultPart) -> list[Wire]:
    shown = next((part for part in reversed(result.content) if isinstance(part, ImagePart | FilePart)), None)
    image: Wire = {"file_id": shown.id} if isinstance(shown, FilePart) else {"image_url": BLANK}
    if isinstance(shown, ImagePart):
        image = {"image_url": data_url(shown)}
    output = {"type": "computer_screenshot", **image}
    items: list[Wire] = [{"type": "computer_call_output", "call_id": call_id, "output": output}]
    if result.text:
        items.append({"type": "input_text", "text": f"From {result.name}: {result.text}"})
    return items


def acknowledge(row: list[Wire], wire: list[Wire]) -> None:
    """Add items to a row. The safety checks of a computer call are acknowledged if it was carried out: your gates saw
    them among its arguments."""
    for item in wire:
        if item.get("type") == "computer_call_output" and item["output"].get("image_url") != BLANK:
            calls = [call for call in row if call.get("type") == "computer_call" and call["call_id"] == item["call_id"]]
            checks = [check for call in calls for check in call.get("pending_safety_checks") or ()]
            item = {**item, "acknowledged_safety_checks": checks} if checks else item
        row.append(item)


def choice_of(native: Mapping[str, Any], name: str) -> Wire:
    """The `tool_choice` for a tool that the vendor has defined."""
    return {"type": native["type"], **({"name": name} if native["type"] == "custom" else {})}


__all__ = [
    "BLANK",
    "KINDS",
    "ClientTools",
    "acknowledge",
    "arguments_in",
    "call_item",
    "choice_of",
    "client_tools",
    "output_item",
    "tagged_id",
    "tool_for",
    "untagged",
]
