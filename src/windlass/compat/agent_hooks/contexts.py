"""Values of Windlass as the JSON that interceptors see, and the JSON that they changed as values again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from windlass.messages import (
    CONTENT_PARTS,
    ContentPart,
    Message,
    ModelReply,
    ModelRequest,
    Part,
    TextPart,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    render,
)

Json = dict[str, Any]


class Unreadable(ValueError):
    """An interceptor changed a value to something that the agent cannot use."""


# ---------------------------------------------------------------- content


def content_json(parts: Iterable[Part]) -> Any:
    """Text as a string, nothing as None, anything else as a list of parts. Thinking and tool calls are left out."""
    shown = [part for part in parts if isinstance(part, CONTENT_PARTS)]
    if all(type(part) is TextPart for part in shown):
        return "".join([part.text for part in shown if type(part) is TextPart]) if shown else None
    return msgspec.to_builtins(shown)


def content_parts(content: Any) -> tuple[ContentPart, ...]:
    """The parts in the content that an interceptor left."""
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    try:
        return tuple(msgspec.convert(content, list[ContentPart]))
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise Unreadable(f"content must be a text or a list of parts: {error}") from error


def with_content(parts: Sequence[Part], content: Any) -> tuple[Part, ...]:
    """These parts with other content, which comes where the old content began; thinking and calls stay."""
    new = content_parts(content)
    first = next((index for index, part in enumerate(parts) if isinstance(part, CONTENT_PARTS)), None)
    if first is None:
        calls = next((i for i, part in enumerate(parts) if type(part) is ToolCallPart), len(parts))
        return (*parts[:calls], *new, *parts[calls:])
    rest = [part for part in parts[first:] if not isinstance(part, CONTENT_PARTS)]
    return (*parts[:first], *new, *rest)


# ---------------------------------------------------------------- tool calls and results


def arguments_json(text: str) -> Json:
    """The arguments that a model wrote. A text that is not a JSON object is shown as `{"unparsed": text}`."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"unparsed": text}
    return value if isinstance(value, dict) else {"unparsed": text}


def call_id(call: Any) -> str:
    """The id of a call for interceptors: the vendor's, or Windlass's own if there is none."""
    return str(call.vendor_id or call.id or call.name)


def calls_json(message: Message) -> list[Json]:
    """The calls that a message proposes."""
    return [{"id": call_id(p), "name": p.name, "args": arguments_json(p.json)} for p in message.tool_calls]


def with_calls(message: Message, before: list[Json], after: Any) -> Message:
    """The message with the calls that an interceptor left; unchanged calls keep their text."""
    if after == before:
        return message
    known = dict(zip([call["id"] for call in before], message.tool_calls, strict=True))
    shown = {call["id"]: call for call in before}
    calls: list[ToolCallPart] = []
    for call in _objects("tool_calls", after):
        old = known.get(str(call.get("id")))
        if old is not None and call == shown[call["id"]]:
            calls.append(old)
            continue
        name, args = call.get("name"), call.get("args")
        if not isinstance(name, str) or not isinstance(args, dict):
            raise Unreadable("each of tool_calls needs a name and args, which are an object")
        text = _encoded(args)
        given = call.get("id")
        calls.append(old.replace(name=name, json=text) if old else ToolCallPart(name, text, vendor_id=str(given or "")))
    return message.replace(parts=(*[p for p in message.parts if type(p) is not ToolCallPart], *calls))


def result_json(result: ToolResult) -> Any:
    """What a tool returned: text, the object or list in the text if it is one, or a list of parts."""
    content = content_json(result.content)
    if isinstance(content, str) and content[:1] in ("{", "["):
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            return content
    return content


def with_result(result: ToolResult, value: Any) -> ToolResult:
    """The result with another value. Its `data` goes, because it may hold what the interceptor removed."""
    return result.replace(content=render(value) if value is not None else (), data=None)


# ---------------------------------------------------------------- requests


def messages_json(request: ModelRequest) -> list[Json]:
    """A request as a list of messages: the system text, then the conversation, with one entry for each tool result."""
    shown: list[Json] = [{"role": "system", "content": request.system}] if request.system else []
    ids: dict[str, str] = {}
    for message in request.messages:
        shown += _entries(message, ids)
    return shown


def _entries(message: Message, ids: dict[str, str]) -> list[Json]:
    """One message, as the entries that interceptors see. `ids` are the ids of calls that they know, by ours."""
    ids.update({part.id: call_id(part) for part in message.tool_calls})
    entries: list[Json] = []
    for part in message.parts:
        if type(part) is ToolResultPart:
            known = ids.get(part.call_id, part.call_id)
            content = content_json(part.content)
            entries.append({"role": "tool", "tool_call_id": known, "name": part.name, "content": content})
    content = content_json(message.parts)
    if entries and content is None:
        return entries
    entry: Json = {"role": message.role, "content": content}
    if message.tool_calls:
        entry["tool_calls"] = calls_json(message)
    return [*entries, entry]


def with_messages(request: ModelRequest, before: list[Json], after: Any) -> ModelRequest:
    """The request with the messages that an interceptor left; unchanged messages stay the same objects."""
    if after == before:
        return request
    wanted = _objects("messages", after)
    system = wanted[0].get("content") if wanted and wanted[0].get("role") == "system" else ""
    if not isinstance(system, str):
        raise Unreadable("the content of a system message must be a text")
    rest = wanted[1:] if wanted and wanted[0].get("role") == "system" else wanted
    blocks, place = _blocks(request), 0
    messages: list[Message] = []
    while rest:
        found = next((at for at in range(place, len(blocks)) if rest[: len(blocks[at][0])] == blocks[at][0]), None)
        if found is not None:
            entries, message = blocks[found]
        elif place < len(blocks) and _are_versions(rest, blocks[place][0]):
            found = place
            entries, message = blocks[place]
            message = _changed(message, entries, rest[: len(entries)])
        else:
            entries, message = rest[:1], _added(rest[0])
        messages.append(message)
        place = place if found is None else found + 1
        rest = rest[len(entries) :]
    changes: dict[str, Any] = {"messages": messages}
    if system != request.system:
        changes["system"] = system
    return request.replace(**changes)


def _blocks(request: ModelRequest) -> list[tuple[list[Json], Message]]:
    ids: dict[str, str] = {}
    return [(entries, message) for message in request.messages if (entries := _entries(message, ids))]


def _are_versions(rest: list[Json], entries: list[Json]) -> bool:
    """Whether the next entries are a message with other content."""
    taken = rest[: len(entries)]
    return len(taken) == len(entries) and all(map(_is_version, taken, entries))


def _is_version(one: Json, other: Json) -> bool:
    return {**one, "content": None} == {**other, "content": None}


def _added(entry: Json) -> Message:
    """A message that an interceptor added."""
    role = entry.get("role")
    if role not in ("user", "assistant") or entry.get("tool_calls"):
        raise Unreadable("an interceptor may add messages of the user and the assistant, without calls and results")
    return Message(role, content_parts(entry.get("content")), origin="agent_hooks")


def _changed(message: Message, before: list[Json], after: list[Json]) -> Message:
    """A message with the content of other entries."""
    results = iter([(old, new) for old, new in zip(before, after, strict=True) if old["role"] == "tool"])
    parts: list[Part] = []
    for part in message.parts:
        if type(part) is ToolResultPart:
            old, new = next(results)
            parts.append(part if old == new else part.replace(content=content_parts(new.get("content"))))
        else:
            parts.append(part)
    old, new = before[-1], after[-1]
    whole = tuple(parts) if old == new or old["role"] == "tool" else with_content(parts, new.get("content"))
    return message.replace(parts=whole)


# ---------------------------------------------------------------- replies


def reply_json(reply: ModelReply) -> Json:
    """A reply: its content, its calls, and why it ended."""
    message = reply.message
    return {"content": content_json(message.parts), "tool_calls": calls_json(message), "finish_reason": reply.finish}


def with_response(reply: ModelReply, before: Json, after: Mapping[str, Any]) -> ModelReply:
    """The reply with what an interceptor left of it."""
    if after == before:
        return reply
    message = reply.message
    if after.get("content") != before["content"]:
        message = message.replace(parts=with_content(message.parts, after.get("content")))
    message = with_calls(message, before["tool_calls"], after.get("tool_calls"))
    finish = after.get("finish_reason")
    if not isinstance(finish, str):
        raise Unreadable("finish_reason must be a text")
    return reply.replace(message=message, finish=finish)


def _objects(name: str, value: Any) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unreadable(f"{name} must be a list of objects")
    return cast("list[Json]", value)


def _encoded(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"the arguments have no JSON form: {error}") from error
