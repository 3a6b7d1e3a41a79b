"""Decodes replies of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.errors import BadReply
from windlass.messages import (
    FrozenDict,
    Message,
    ModelReply,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
)
from windlass.models.openai.dialects import COMPATIBLE
from windlass.models.openai.errors import error_from
from windlass.models.parts import refuse_text, text_in
from windlass.models.usage import positive_counts, stated_cost, tier

from .tags import split_tags

FINISHES = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "model_length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "safety": "content_filter",
}
KNOWN_FIELDS = frozenset(["role", "content", "refusal", "tool_calls", "reasoning", "reasoning_content"])
"""The fields of a message that we decode; all others are kept unchanged."""
SEARCH_FIELDS = ("citations", "search_results")
"""Fields beside the answer of a server that has searched the web itself."""
_VENDOR_RUN = ("annotations", "executed_tools", *SEARCH_FIELDS)
_STATUSES = {1002: 429, 1004: 401, 1008: 402, 2013: 400}
"""The HTTP statuses of MiniMax's error codes."""
_VARIED = frozenset([COMPATIBLE.vendor, "fireworks", "huggingface", "lmstudio", "together", "vllm"])
"""Vendors whose models put their reasoning into different fields."""
_OF_A_CALL = frozenset(["index", "id", "type", "function"])


def decode(body: object, vendor: str, tags: tuple[str, str] | None = None) -> ModelReply:
    """The whole reply. `tags` mark a thought at the beginning of its text."""
    if not isinstance(body, Mapping):
        raise BadReply(f"the answer is not an object: {str(body)[:200]}", retryable=True)
    choice = first_choice(body.get("choices"))
    if choice is None:
        refuse_error(body)
        raise BadReply(f"the answer has no choices: {str(body)[:200]}", retryable=True)
    if choice.get("error"):
        raise error_from(choice["error"])
    message = choice.get("message") or {}
    beside = {"logprobs": choice.get("logprobs"), **{name: body.get(name) for name in SEARCH_FIELDS}}
    parts = tuple(_parts(message, vendor, beside, tags))
    return reply(body, parts, text_in(choice, "finish_reason") or None, bool(message.get("refusal")), vendor)


def refuse_error(body: Mapping[str, Any]) -> None:
    """Raise the error that a body without choices reports; some servers send it as if it were an answer."""
    if body.get("error"):
        raise error_from(body["error"])
    is_error = body.get("object") == "error" or "detail" in body or {"message", "code"} <= body.keys()
    if is_error and "choices" not in body:
        raise error_from(body)
    status = body.get("base_resp")
    if isinstance(status, Mapping) and (code := status.get("status_code")):
        raise error_from(status.get("status_msg"), status=_STATUSES.get(code, 500))


def first_choice(choices: list[Any] | None) -> Any:
    """The first of several answers, in whatever order they come; None if it is not among these."""
    for choice in choices or ():
        if not choice.get("index"):
            return choice
    return None


def reply(body: Mapping[str, Any], parts: tuple[Part, ...], raw: str | None, refused: bool, vendor: str) -> ModelReply:
    """A reply made of these parts, with the facts in the body."""
    message = Message("assistant", parts)
    finish = FINISHES.get((raw or "").lower(), "other")
    if refused:
        finish = "refusal"
    elif message.tool_calls and (finish == "stop" or raw is None):
        finish = "tool_calls"
    spent = _full_usage(body, parts, vendor)
    return ModelReply(message, spent, finish, text_in(body, "model") or None, raw, text_in(body, "id") or None)


def _parts(
    message: Mapping[str, Any], vendor: str, beside: dict[str, Any], tags: tuple[str, str] | None
) -> Iterator[Part]:
    if thinking := thinking_of(message):
        yield ThinkingPart(thinking, vendor=vendor)
    for kind, data in content_of(message.get("content")):
        for piece, text in split_tags(data, tags) if kind == "text" else [(kind, data)]:
            yield _content(piece, text, vendor)
        tags = None if kind == "text" else tags
    if refusal := text_in(message, "refusal"):
        yield TextPart(refusal)
    fields = {name: value for name, value in message.items() if name not in KNOWN_FIELDS} | beside
    fields |= thinking_field(message, vendor) if thinking else {}
    calls: dict[str, Any] = {}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or custom_function(call.get("custom") or {})
        yield ToolCallPart(text_in(function, "name"), arguments_of(function), vendor_id=text_in(call, "id") or None)
        if more := extra_fields(call):
            calls[call.get("id") or ""] = more
    yield from opaque_parts({**fields, "calls": calls}, vendor)


def _content(kind: str, data: Any, vendor: str) -> Part:
    if kind == "text":
        return TextPart(data)
    if kind == "tagged":
        return ThinkingPart(data)  # without a vendor: servers do not want such thoughts back
    return ThinkingPart(data, vendor=vendor) if kind == "thinking" else OpaquePart(vendor, data)


def thinking_of(message: Mapping[str, Any]) -> str:
    """The reasoning in a message or a piece of one; servers use two names for it, some use both."""
    return text_in(message, "reasoning_content") or text_in(message, "reasoning")


def thinking_field(message: Mapping[str, Any], vendor: str) -> dict[str, str]:
    """The field in which an unknown server has put its reasoning: some accept it back in no other."""
    own = vendor in _VARIED and not message.get(COMPATIBLE.thinking)
    return {"thinking_field": "reasoning"} if own else {}


def content_of(content: object) -> Iterator[tuple[str, Any]]:
    """The items of content, which is a text, or a list of texts, thinking and the vendor's own items."""
    if isinstance(content, str):
        if content:
            yield "text", content
        return
    for item in content if isinstance(content, list) else [] if content is None else [None]:
        if not isinstance(item, Mapping):
            refuse_text("content", content)
        elif item.get("type") in ("text", "output_text"):
            yield "text", text_in(item, "text")
        elif item.get("type") == "thinking":
            yield "thinking", _thought(item.get("thinking"))
        else:
            yield "opaque", item


def _thought(thinking: object) -> str:
    if isinstance(thinking, str):
        return thinking
    return "".join(text_in(item, "text") for item in thinking) if isinstance(thinking, list) else ""


def arguments_of(function: Mapping[str, Any]) -> str:
    """The arguments as the model wrote them; encoded again if the server has parsed them."""
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments)


def custom_function(custom: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a custom tool, whose input is any text, as a call of a function with that input."""
    return {"name": custom["name"], "arguments": {"input": text_in(custom, "input")}} if custom.get("name") else {}


def is_complete(arguments: str) -> bool:
    """Whether arguments are complete JSON."""
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


def extra_fields(call: Mapping[str, Any]) -> dict[str, Any]:
    """The unknown fields of a call, such as a signature that the vendor needs back."""
    return {name: value for name, value in call.items() if value and name not in _OF_A_CALL}


def opaque_parts(fields: Mapping[str, Any], vendor: str) -> Iterator[OpaquePart]:
    """Opaque parts for the vendor's own fields, and for the traces of tools that it ran itself."""
    present = {name: value for name, value in fields.items() if value}
    ran = {name: present.pop(name) for name in _VENDOR_RUN if name in present}
    if present:
        yield OpaquePart(vendor, present)
    if ran:
        yield OpaquePart(vendor, ran, mediated=False)


def _full_usage(body: Mapping[str, Any], parts: tuple[Part, ...], vendor: str) -> Usage:
    """The usage with searches and cost. If searches are not counted but left traces in the answer, one is counted."""
    counts = body.get("usage") or {}
    spent = usage(counts)
    ran = {name for part in parts if type(part) is OpaquePart and not part.mediated for name in part.data}
    searches = counts.get("num_search_queries") or int("annotations" in ran)
    run = sum(len(part.data.get("executed_tools", ())) for part in parts if type(part) is OpaquePart)
    run_details = positive_counts(web_searches=searches, executed_tools=run)
    details = {**spent.details, **run_details, **tier(body.get("service_tier"))}
    return spent.replace(details=FrozenDict(details), cost=stated_cost(counts) if vendor == "openrouter" else None)


def usage(counts: Mapping[str, Any] | None) -> Usage:
    """The usage in tokens."""
    if not counts:
        return Usage()
    inputs, outputs = counts.get("prompt_tokens_details") or {}, counts.get("completion_tokens_details") or {}
    all_counts = {**counts, **inputs}
    cited = counts.get("citation_tokens")  # Perplexity counts these and its reasoning separately from the output
    thought = (outputs if cited is None else counts).get("reasoning_tokens") or 0
    beside = _uncounted_reasoning(counts, outputs) if cited is None else cited + thought
    return Usage(
        counts.get("prompt_tokens") or 0,
        (counts.get("completion_tokens") or 0) + beside,
        _first_count(all_counts, "cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens"),
        _first_count(all_counts, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"),
        thought,
        details=positive_counts(
            output_citation_tokens=cited,
            input_audio_tokens=inputs.get("audio_tokens"),
            input_image_tokens=inputs.get("image_tokens"),
            output_audio_tokens=outputs.get("audio_tokens"),
            output_image_tokens=outputs.get("image_tokens"),
        ),
    )


def _first_count(counts: Mapping[str, Any], *names: str) -> int:
    """A number of tokens for which servers use several names."""
    return next((counts[name] for name in names if counts.get(name)), 0)


def _uncounted_reasoning(counts: Mapping[str, Any], outputs: Mapping[str, Any]) -> int:
    """The reasoning tokens, if only the total includes them: with their number elsewhere, or without any details."""
    completion = counts.get("completion_tokens") or 0
    over = (counts.get("total_tokens") or 0) - (counts.get("prompt_tokens") or 0) - completion
    thought = outputs.get("reasoning_tokens") if outputs or counts.get("prompt_tokens_details") else over
    return over if over > 0 and over == thought else 0
