"""Results of calls as Claude Code shows them to hooks, and back: `tool_response` and `updatedToolOutput`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from windlass.messages import TextPart, ToolResult, ToolResultPart

from .aliases import CallView

_STATUS = re.compile(r"(?:^|\n)\[exit status (\d+)\]$|^\[exit status (\d+)\]\n(?=\[the output has )")


def failure_of(tool: str, result: ToolResult | ToolResultPart) -> str | None:
    """The error of a result, as PostToolUseFailure has it; None if the call did what was asked.

    A command that exits with another code than 0 has failed for Claude Code.
    """
    if result.status != "ok":
        return result.text
    found = _STATUS.search(result.text) if tool == "Bash" else None
    if found is None:
        return None
    return f"Exit code {found[1] or found[2]}\n{_STATUS.sub('', result.text)}".rstrip()


def response_of(view: CallView, result: ToolResult) -> Any:
    """The `tool_response` of a result."""
    make = _RESPONSES.get(view.tool)
    if make is not None:
        return make(view.input, result.text)
    blocks = [{"type": "text", "text": part.text} for part in result.content if isinstance(part, TextPart)]
    return blocks if view.server else result.text


def sample_response(tool: str, given: Any) -> Any:
    """The `tool_response` of a call that had no output."""
    make = _RESPONSES.get(tool)
    return make(given if isinstance(given, Mapping) else {}, "") if make is not None else ""


def output_text(view: CallView, output: Any) -> str | None:
    """The text that an `updatedToolOutput` means; None if it does not have the shape of the tool's output."""
    if view.tool in _RESPONSES:
        read = _OUTPUTS.get(view.tool)
        return None if read is None or not isinstance(output, Mapping) else read(output)
    if isinstance(output, str):
        return output
    if isinstance(output, list) and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in output):
        return "\n".join([one["text"] for one in output])
    return None


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("[there are more than ")]


def _bash(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    shown = "" if text == "[no output]" else text
    return {"stdout": shown, "stderr": "", "interrupted": False, "isImage": False}


def _read(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    start = given.get("offset", 1)
    lines = [line.split("\t", 1)[-1] for line in text.splitlines()]
    file = {
        "filePath": given.get("file_path", ""),
        "content": "\n".join(lines),
        "numLines": len(lines),
        "startLine": start,
        "totalLines": len(lines),
    }
    return {"type": "text", "file": file}


def _write(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {
        "type": "create",
        "filePath": given.get("file_path", ""),
        "content": given.get("content", ""),
        "structuredPatch": [],
        "success": True,
    }


def _edit(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {
        "filePath": given.get("file_path", ""),
        "oldString": given.get("old_string", ""),
        "newString": given.get("new_string", ""),
        "structuredPatch": [],
        "userModified": False,
        "replaceAll": given.get("replace_all", False),
        "success": True,
    }


def _multi_edit(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"filePath": given.get("file_path", ""), "edits": given.get("edits", []), "success": True}


def _glob(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    names = [] if text == "no files found" else _lines(text)
    return {"filenames": names, "numFiles": len(names), "durationMs": 0, "truncated": "\n[there are more" in text}


def _grep(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    lines = [] if text == "no matches" else _lines(text)
    names = list(dict.fromkeys([line.split(":", 1)[0] for line in lines]))
    content = "" if text == "no matches" else text
    return {"mode": "content", "filenames": names, "numFiles": len(names), "content": content, "numLines": len(lines)}


def _fetch(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"url": given.get("url", ""), "code": 200, "codeText": "OK", "bytes": len(text.encode()), "result": text}


def _agent(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"status": "completed", "prompt": given.get("prompt", ""), "content": [{"type": "text", "text": text}]}


def _todos(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"oldTodos": [], "newTodos": given.get("todos", [])}


_RESPONSES: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "Bash": _bash,
    "Read": _read,
    "Write": _write,
    "Edit": _edit,
    "MultiEdit": _multi_edit,
    "Glob": _glob,
    "Grep": _grep,
    "WebFetch": _fetch,
    "Agent": _agent,
    "TodoWrite": _todos,
}


def _texts(output: Mapping[str, Any], *fields: str) -> str | None:
    found = [output.get(field, "") for field in fields]
    return "\n".join([text for text in found if text]) if all(isinstance(text, str) for text in found) else None


def _read_back(output: Mapping[str, Any]) -> str | None:
    file = output.get("file")
    return _texts(file, "content") if isinstance(file, Mapping) else None


def _agent_back(output: Mapping[str, Any]) -> str | None:
    blocks = output.get("content")
    if not isinstance(blocks, list) or not all(isinstance(one, Mapping) for one in blocks):
        return None
    return "\n".join([str(one.get("text", "")) for one in blocks])


_OUTPUTS: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "Bash": lambda output: _texts(output, "stdout", "stderr") if "stdout" in output else None,
    "Read": _read_back,
    "Grep": lambda output: _texts(output, "content") if "content" in output else None,
    "WebFetch": lambda output: _texts(output, "result") if "result" in output else None,
    "Agent": _agent_back,
}
