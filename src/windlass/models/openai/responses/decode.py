"""Decodes replies of Responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.errors import BadReply, ServerError
from windlass.messages import Message, ModelReply, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from windlass.models.openai.chat.decode import arguments_of
from windlass.models.openai.client_tools import KINDS, ClientTools, arguments_in, tagged_id, tool_for
from windlass.models.openai.errors import error_from
from windlass.models.parts import text_in
from windlass.models.usage import positive_counts, stated_cost, tier

VENDOR = "openai-responses"
NO_TOOLS: ClientTools = {}
PLAIN_REASONING = "shown:"
"""The prefix of a signature that stands for reasoning which the server shows instead of encrypting it."""
_OF_A_CALL = frozenset(["id", "type", "call_id", "name", "arguments", "status", "created_by"])
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


def decode(
    body: object, vendor: str = VENDOR, *, states_cost: bool = False, tools: ClientTools = NO_TOOLS
) -> ModelReply:
    """The whole reply. `vendor` is the owner of opaque parts; with `states_cost`, the cost that the server states is
    used. `tools` are the tools of the request that the vendor has defined and your program runs."""
    if not isinstance(body, Mapping):
        raise BadReply(f"the answer is not an object: {str(body)[:200]}", retryable=True)
    status = body.get("status") or "completed"
    if body.get("error"):
        raise error_from(body["error"])
    if status in ("queued", "in_progress"):
        raise BadReply(f"response {body.get('id')} is not complete: its status is {status}")
    if status in ("failed", "cancelled"):
        raise ServerError(f"response {body.get('id')} {status}", retryable=True)
    if "output" not in body:
        raise BadReply("the answer has no output", retryable=True)
    items = body["output"] or []
    message = Message(
        "assistant",
        (*[part for item in items for part in parts_of(item, vendor, tools)], *_call_fields(items, vendor, tools)),
    )
    finish = _finish(body, items, message)
    model, id = text_in(body, "model") or None, text_in(body, "id") or None
    counts = body.get("usage") or {}
    cost = stated_cost(counts) if states_cost else None
    details = positive_counts(**_vendor_runs(body, items), **tier(body.get("service_tier")))
    spent = usage(counts).replace(cost=cost, details=details)
    calls = tuple(_call_name(item) for item in items if _is_client_call(item, items) and not tool_for(item, tools))
    return ModelReply(message, spent, finish, model, status, id, calls)


def _vendor_runs(body: Mapping[str, Any], items: list[Any]) -> dict[str, int]:
    """How often the vendor ran tools that it bills separately. Only newer answers contain a count of searches."""
    kinds = [item.get("type") for item in items]
    searches = [item for item in items if item.get("type") == "web_search_call"]
    count = ((body.get("tool_usage") or {}).get("web_search") or {}).get("num_requests")
    return {
        "web_searches": sum(_is_search(item) for item in searches) if count is None else count,
        "storage_searches": kinds.count("file_search_call"),
        "code_executions": kinds.count("code_interpreter_call"),
        "image_generations": kinds.count("image_generation_call"),
    }


def _is_search(item: Mapping[str, Any]) -> bool:
    """Whether a call searched the web; opening a page costs nothing."""
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


def parts_of(item: Mapping[str, Any], vendor: str, tools: ClientTools = NO_TOOLS) -> Iterator[Part]:
    """The parts of one item of the output."""
    kind = item.get("type") or ""
    if (name := tool_for(item, tools)) is not None and mediated(item):
        yield ToolCallPart(name, arguments_in(item), vendor_id=tagged_id(item))
    elif kind == "message":
        yield from [_content(content, vendor) for content in _contents(item)]
        yield from message_details(item, vendor)
    elif kind == "reasoning":
        *first, last = thoughts(item)
        yield from [ThinkingPart(text, vendor=vendor) for text in first]
        yield ThinkingPart(last, text_in(item, "encrypted_content") or _plain_signature(item), vendor=vendor)
    elif kind == "function_call":
        yield ToolCallPart(text_in(item, "name"), arguments_of(item), vendor_id=text_in(item, "call_id") or None)
    else:
        yield OpaquePart(vendor, item, mediated=mediated(item))


def _plain_signature(item: Mapping[str, Any]) -> str | None:
    """The signature of reasoning that a server shows instead of encrypting it, and needs back unchanged."""
    return f"{PLAIN_REASONING}{item['id']}" if item.get("content") and item.get("id") else None


def _call_fields(items: list[Any], vendor: str, tools: ClientTools) -> Iterator[OpaquePart]:
    """The unknown fields of calls, such as a namespace: the vendor needs them back with the call. Of a call of a tool
    that the vendor has defined, these are all fields."""
    calls = [item for item in items if item.get("type") == "function_call"]
    extra = {
        call.get("call_id") or "": {name: value for name, value in call.items() if value and name not in _OF_A_CALL}
        for call in calls
    }
    extra |= {tagged_id(item): dict(item) for item in items if tool_for(item, tools) and mediated(item)}
    if more := {id: fields for id, fields in extra.items() if fields}:
        yield OpaquePart(vendor, {"calls": more})


def message_details(item: Mapping[str, Any], vendor: str) -> Iterator[OpaquePart]:
    """Opaque parts with the facts beside a message's text. Annotations are traces of the vendor's own searches."""
    facts = {"phase": item.get("phase"), "logprobs": _all(item, "logprobs")}
    if any(facts.values()):
        yield OpaquePart(vendor, {name: value for name, value in facts.items() if value})
    if annotations := _all(item, "annotations"):
        yield OpaquePart(vendor, {"annotations": annotations}, mediated=False)


def _all(item: Mapping[str, Any], name: str) -> list[Any]:
    return [value for content in _contents(item) for value in content.get(name) or ()]


def mediated(item: Mapping[str, Any]) -> bool:
    """Whether an item is not the trace of a tool that the vendor ran itself."""
    kind = item.get("type") or ""
    if kind in KINDS:
        return (item.get("environment") or {}).get("type") != "container_reference"
    ran = "_call" in kind or kind.startswith(("mcp_", "tool_search", "program"))
    return not ran or item.get("execution") == "client"


def _is_client_call(item: Mapping[str, Any], items: list[Any]) -> bool:
    """Whether an item needs an answer that the vendor does not give itself. An unknown kind of call does if it has a
    call id, as all such calls have, and its output is not among the items."""
    kind = item.get("type") or ""
    if kind in KINDS:
        return mediated(item)
    if kind in ("mcp_approval_request", "tool_search_call"):
        return kind == "mcp_approval_request" or item.get("execution") == "client"
    unknown = kind.endswith("_call") and kind != "function_call" and bool(item.get("call_id"))
    return unknown and not any(other.get("type") == f"{kind}_output" for other in items)


def _call_name(item: Mapping[str, Any]) -> str:
    """The kind of a call, and the name of a custom tool."""
    return f"{item['type']} {text_in(item, 'name')!r}" if item.get("type") == "custom_tool_call" else str(item["type"])


def thoughts(item: Mapping[str, Any]) -> list[str]:
    """The pieces of reasoning: the reasoning itself, if the server shows it, and its summaries."""
    pieces = [*(item.get("content") or ()), *(item.get("summary") or ())]
    return [text_in(piece, "text") for piece in pieces] or [""]


def _content(content: Mapping[str, Any], vendor: str) -> Part:
    if content.get("type") == "output_text":
        return TextPart(text_in(content, "text"))
    if content.get("type") == "refusal":
        return TextPart(text_in(content, "refusal"))
    return OpaquePart(vendor, content)


def usage(counts: Mapping[str, Any] | None) -> Usage:
    """The usage in tokens."""
    if not counts:
        return Usage()
    inputs, outputs = counts.get("input_tokens_details") or {}, counts.get("output_tokens_details") or {}
    input, total = counts.get("input_tokens") or 0, counts.get("total_tokens") or 0
    return Usage(
        input,
        max(counts.get("output_tokens") or 0, total - input),
        inputs.get("cached_tokens") or 0,
        inputs.get("cache_write_tokens") or 0,
        outputs.get("reasoning_tokens") or 0,
    )
