"""A reply of Chat Completions as ours."""

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
from windlass.models.openai.errors import said
from windlass.models.parts import refuse_text, text_in
from windlass.models.usage import counted, stated_cost, tier

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
UNDERSTOOD = frozenset(["role", "content", "refusal", "tool_calls", "reasoning", "reasoning_content"])
"""The fields of a message that we understand; all others are kept as they are."""
LOOKED_UP = ("citations", "search_results")
"""What stands beside the answer of a server that has searched by itself."""
_VENDOR_RUN = ("annotations", "executed_tools", *LOOKED_UP)
_STATUSES = {1002: 429, 1004: 401, 1008: 402, 2013: 400}
"""What MiniMax calls errors in an answer, as a status."""
_OF_A_CALL = frozenset(["index", "id", "type", "function"])


def decode(body: object, vendor: str) -> ModelReply:
    """The whole reply."""
    if not isinstance(body, Mapping):
        raise BadReply(f"the answer is no object: {str(body)[:200]}", retryable=True)
    choice = first_of(body.get("choices"))
    if choice is None:
        refuse_error(body)
        raise BadReply(f"the answer has no choices: {str(body)[:200]}", retryable=True)
    if choice.get("error"):
        raise said(choice["error"])
    message = choice.get("message") or {}
    beside = {"logprobs": choice.get("logprobs"), **{name: body.get(name) for name in LOOKED_UP}}
    parts = tuple(_parts(message, vendor, beside))
    return reply(body, parts, text_in(choice, "finish_reason") or None, bool(message.get("refusal")), vendor)


def refuse_error(body: Mapping[str, Any]) -> None:
    """Raise the error that a body without choices tells of; some servers tell of one as if it were an answer."""
    if body.get("error"):
        raise said(body["error"])
    told = body.get("object") == "error" or "detail" in body or {"message", "code"} <= body.keys()
    if told and "choices" not in body:
        raise said(body)
    status = body.get("base_resp")
    if isinstance(status, Mapping) and (code := status.get("status_code")):
        raise said(status.get("status_msg"), status=_STATUSES.get(code, 500))


def first_of(choices: list[Any] | None) -> Any:
    """The first of several answers, in whatever order they come; None if it is not among these."""
    for choice in choices or ():
        if not choice.get("index"):
            return choice
    return None


def reply(body: Mapping[str, Any], parts: tuple[Part, ...], raw: str | None, refused: bool, vendor: str) -> ModelReply:
    """A reply of these parts, with what the body tells about it."""
    message = Message("assistant", parts)
    finish = FINISHES.get((raw or "").lower(), "other")
    if refused:
        finish = "refusal"
    elif message.tool_calls and (finish == "stop" or raw is None):
        finish = "tool_calls"
    spent = _spent(body, parts, vendor)
    return ModelReply(message, spent, finish, text_in(body, "model") or None, raw, text_in(body, "id") or None)


def _parts(message: Mapping[str, Any], vendor: str, beside: dict[str, Any]) -> Iterator[Part]:
    if thinking := thinking_of(message):
        yield ThinkingPart(thinking, vendor=vendor)
    for kind, data in content_of(message.get("content")):
        yield _content(kind, data, vendor)
    if refusal := text_in(message, "refusal"):
        yield TextPart(refusal)
    fields = {name: value for name, value in message.items() if name not in UNDERSTOOD} | beside
    fields |= thinking_field(message, vendor) if thinking else {}
    calls: dict[str, Any] = {}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield ToolCallPart(text_in(function, "name"), arguments_of(function), vendor_id=text_in(call, "id") or None)
        if more := more_of(call):
            calls[call.get("id") or ""] = more
    yield from kept({**fields, "calls": calls}, vendor)


def _content(kind: str, data: Any, vendor: str) -> Part:
    if kind == "text":
        return TextPart(data)
    return ThinkingPart(data, vendor=vendor) if kind == "thinking" else OpaquePart(vendor, data)


def thinking_of(message: Mapping[str, Any]) -> str:
    """The reasoning in a message or a piece of one; servers call it by two names, some by both at once."""
    return text_in(message, "reasoning_content") or text_in(message, "reasoning")


def thinking_field(message: Mapping[str, Any], vendor: str) -> dict[str, str]:
    """In which field a server that nobody knows has put its reasoning: some take it back in no other."""
    own = vendor == COMPATIBLE.vendor and not message.get(COMPATIBLE.thinking)
    return {"thinking_field": "reasoning"} if own else {}


def content_of(content: object) -> Iterator[tuple[str, Any]]:
    """Content, which is a text or a list of texts, of thinking, and of what only the vendor knows."""
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
    """The arguments as the model wrote them; some servers have parsed them already."""
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments)


def whole(arguments: str) -> bool:
    """Whether nothing is missing from arguments."""
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


def more_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has that we do not understand, such as a signature that its vendor wants to have back."""
    return {name: value for name, value in call.items() if value and name not in _OF_A_CALL}


def kept(fields: Mapping[str, Any], vendor: str) -> Iterator[OpaquePart]:
    """What is kept as it is: that which is only ours to carry, and the traces of what the vendor did itself."""
    told = {name: value for name, value in fields.items() if value}
    ran = {name: told.pop(name) for name in _VENDOR_RUN if name in told}
    if told:
        yield OpaquePart(vendor, told)
    if ran:
        yield OpaquePart(vendor, ran, mediated=False)


def _spent(body: Mapping[str, Any], parts: tuple[Part, ...], vendor: str) -> Usage:
    """What was spent. Searches that are not counted left their traces in the answer, and are at least one."""
    told = body.get("usage") or {}
    spent = usage(told)
    ran = {name for part in parts if type(part) is OpaquePart and not part.mediated for name in part.data}
    searches = told.get("num_search_queries") or int("annotations" in ran)
    run = sum(len(part.data.get("executed_tools", ())) for part in parts if type(part) is OpaquePart)
    details = {**spent.details, **counted(web_searches=searches, executed_tools=run), **tier(body.get("service_tier"))}
    return spent.replace(details=FrozenDict(details), cost=stated_cost(told) if vendor == "openrouter" else None)


def usage(told: Mapping[str, Any] | None) -> Usage:
    """The tokens that were spent."""
    if not told:
        return Usage()
    inputs, outputs = told.get("prompt_tokens_details") or {}, told.get("completion_tokens_details") or {}
    counts = {**told, **inputs}
    cited = told.get("citation_tokens")  # Perplexity counts them, and its reasoning, beside what was said
    thought = (outputs if cited is None else told).get("reasoning_tokens") or 0
    beside = _unsaid(told, outputs) if cited is None else cited + thought
    return Usage(
        told.get("prompt_tokens") or 0,
        (told.get("completion_tokens") or 0) + beside,
        _counted(counts, "cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens"),
        _counted(counts, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"),
        thought,
        details=counted(
            output_citation_tokens=cited,
            input_audio_tokens=inputs.get("audio_tokens"),
            input_image_tokens=inputs.get("image_tokens"),
            output_audio_tokens=outputs.get("audio_tokens"),
            output_image_tokens=outputs.get("image_tokens"),
        ),
    )


def _counted(told: Mapping[str, Any], *names: str) -> int:
    """A number of tokens that servers call by several names."""
    return next((told[name] for name in names if told.get(name)), 0)


def _unsaid(told: Mapping[str, Any], outputs: Mapping[str, Any]) -> int:
    """What the model has thought, if it is counted in the total only: with its number elsewhere, or with no details."""
    over = (told.get("total_tokens") or 0) - (told.get("prompt_tokens") or 0) - (told.get("completion_tokens") or 0)
    thought = outputs.get("reasoning_tokens") if outputs or told.get("prompt_tokens_details") else over
    return over if over > 0 and over == thought else 0
