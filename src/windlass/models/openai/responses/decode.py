"""A reply of Responses as ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.errors import BadReply, ServerError
from windlass.messages import Message, ModelReply, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from windlass.models.openai.chat.decode import arguments_of
from windlass.models.openai.errors import said
from windlass.models.parts import text_in
from windlass.models.usage import counted, stated_cost, tier

VENDOR = "openai-responses"
SHOWN = "shown:"
_CLIENT_RUN = ("computer_call", "local_shell_call", "shell_call", "apply_patch_call", "custom_tool_call")
_OF_A_CALL = frozenset(["id", "type", "call_id", "name", "arguments", "status", "created_by"])
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


def decode(body: object, vendor: str = VENDOR, *, states_cost: bool = False) -> ModelReply:
    """The whole reply. `vendor` is whose the parts are that only the server understands; one that `states_cost` is
    believed what it took."""
    if not isinstance(body, Mapping):
        raise BadReply(f"the answer is no object: {str(body)[:200]}", retryable=True)
    status = body.get("status") or "completed"
    if body.get("error"):
        raise said(body["error"])
    if status in ("queued", "in_progress"):
        raise BadReply(f"response {body.get('id')} is {status}, and nobody can say when it will be there")
    if status in ("failed", "cancelled"):
        raise ServerError(f"response {body.get('id')} {status}", retryable=True)
    if "output" not in body:
        raise BadReply("the answer has no output", retryable=True)
    items = body["output"] or []
    message = Message(
        "assistant", (*[part for item in items for part in parts_of(item, vendor)], *_of_calls(items, vendor))
    )
    finish = _finish(body, items, message)
    model, id = text_in(body, "model") or None, text_in(body, "id") or None
    told = body.get("usage") or {}
    cost = stated_cost(told) if states_cost else None
    spent = usage(told).replace(cost=cost, details=counted(**_run(body, items), **tier(body.get("service_tier"))))
    calls = tuple(item["type"] for item in items if _awaited(item))
    return ModelReply(message, spent, finish, model, status, id, calls)


def _run(body: Mapping[str, Any], items: list[Any]) -> dict[str, int]:
    """How often the vendor ran what it bills apart from tokens. Only newer answers count searches themselves."""
    kinds = [item.get("type") for item in items]
    searches = [item for item in items if item.get("type") == "web_search_call"]
    told = ((body.get("tool_usage") or {}).get("web_search") or {}).get("num_requests")
    return {
        "web_searches": sum(_searched(item) for item in searches) if told is None else told,
        "storage_searches": kinds.count("file_search_call"),
        "code_executions": kinds.count("code_interpreter_call"),
        "image_generations": kinds.count("image_generation_call"),
    }


def _searched(item: Mapping[str, Any]) -> bool:
    """Whether a call searched the web; to open a page that was found costs nothing."""
    return (text_in(item.get("action") or {}, "type") or "search") == "search"


def _finish(body: Mapping[str, Any], items: list[Any], message: Message) -> str:
    if body.get("status") == "incomplete":
        return _INCOMPLETE.get(str((body.get("incomplete_details") or {}).get("reason")), "other")
    if any(content.get("type") == "refusal" for item in items for content in _contents(item)):
        return "refusal"
    return "tool_calls" if message.tool_calls else "stop"


def _contents(item: Mapping[str, Any]) -> list[Any]:
    content = item.get("content") if item.get("type") == "message" else None
    return [{"type": "output_text", "text": content}] if isinstance(content, str) else content or []


def parts_of(item: Mapping[str, Any], vendor: str) -> Iterator[Part]:
    """The parts of one item of the output."""
    kind = item.get("type") or ""
    if kind == "message":
        yield from [_content(content, vendor) for content in _contents(item)]
        yield from about(item, vendor)
    elif kind == "reasoning":
        *first, last = thoughts(item)
        yield from [ThinkingPart(text, vendor=vendor) for text in first]
        yield ThinkingPart(last, text_in(item, "encrypted_content") or _shown(item), vendor=vendor)
    elif kind == "function_call":
        yield ToolCallPart(text_in(item, "name"), arguments_of(item), vendor_id=text_in(item, "call_id") or None)
    else:
        yield OpaquePart(vendor, item, mediated=mediated(item))


def _shown(item: Mapping[str, Any]) -> str | None:
    """The seal of reasoning that a server shows instead of sealing it, and wants back just as it was."""
    return f"{SHOWN}{item['id']}" if item.get("content") and item.get("id") else None


def _of_calls(items: list[Any], vendor: str) -> Iterator[OpaquePart]:
    """What calls have that we do not understand, such as a namespace: the vendor wants it back with the call."""
    calls = [item for item in items if item.get("type") == "function_call"]
    told = {
        call.get("call_id") or "": {name: value for name, value in call.items() if value and name not in _OF_A_CALL}
        for call in calls
    }
    if more := {id: fields for id, fields in told.items() if fields}:
        yield OpaquePart(vendor, {"calls": more})


def about(item: Mapping[str, Any], vendor: str) -> Iterator[OpaquePart]:
    """What a message tells beside its text. Annotations are the traces of what the vendor has looked up by itself."""
    told = {"phase": item.get("phase"), "logprobs": _all(item, "logprobs")}
    if any(told.values()):
        yield OpaquePart(vendor, {name: value for name, value in told.items() if value})
    if annotations := _all(item, "annotations"):
        yield OpaquePart(vendor, {"annotations": annotations}, mediated=False)


def _all(item: Mapping[str, Any], name: str) -> list[Any]:
    return [told for content in _contents(item) for told in content.get(name) or ()]


def mediated(item: Mapping[str, Any]) -> bool:
    """Whether an item tells of nothing that the vendor has run by itself."""
    kind = item.get("type") or ""
    if kind in _CLIENT_RUN:
        return (item.get("environment") or {}).get("type") != "container_reference"
    ran = "_call" in kind or kind.startswith(("mcp_", "tool_search", "program"))
    return not ran or item.get("execution") == "client"


def _awaited(item: Mapping[str, Any]) -> bool:
    """Whether an item waits for somebody to answer it who is neither the vendor nor a tool of ours."""
    kind = item.get("type") or ""
    searches = kind == "tool_search_call" and item.get("execution") == "client"
    return kind == "mcp_approval_request" or searches or (kind in _CLIENT_RUN and mediated(item))


def thoughts(item: Mapping[str, Any]) -> list[str]:
    """The pieces of reasoning: the reasoning itself, where a server shows it, and the summaries of it."""
    pieces = [*(item.get("content") or ()), *(item.get("summary") or ())]
    return [text_in(piece, "text") for piece in pieces] or [""]


def _content(content: Mapping[str, Any], vendor: str) -> Part:
    if content.get("type") == "output_text":
        return TextPart(text_in(content, "text"))
    if content.get("type") == "refusal":
        return TextPart(text_in(content, "refusal"))
    return OpaquePart(vendor, content)


def usage(told: Mapping[str, Any] | None) -> Usage:
    """What was spent."""
    if not told:
        return Usage()
    inputs, outputs = told.get("input_tokens_details") or {}, told.get("output_tokens_details") or {}
    input, total = told.get("input_tokens") or 0, told.get("total_tokens") or 0
    return Usage(
        input,
        max(told.get("output_tokens") or 0, total - input),
        inputs.get("cached_tokens") or 0,
        inputs.get("cache_write_tokens") or 0,
        outputs.get("reasoning_tokens") or 0,
    )
