"""Five vendors as they speak on the wire, made to say whatever a reply says; written after their documentation."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote
from zlib import crc32

from windlass.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServerError,
)
from windlass.messages import ModelReply, OpaquePart, TextPart, ThinkingPart, ToolCallPart
from windlass.testing import Cassette, Exchange, Scene, sse

Json = dict[str, Any]


class Vendor(NamedTuple):
    """How a vendor speaks: `whole` and `events` say a reply, `failure` an error, `inside` an error in a stream.

    `stream` makes the bytes of events.
    """

    name: str
    path: Callable[[bool], str]
    model: Callable[[Any], Any]
    whole: Callable[[ModelReply], Json]
    events: Callable[[ModelReply], list[Any]]
    failure: Callable[[Scene], tuple[int, Json]]
    inside: Any
    cannot: frozenset[str] = frozenset()
    stream: Callable[..., Any] = sse


def make(vendor: Vendor) -> Callable[[Scene], tuple[Any, Cassette] | None]:
    """Makes the models that `check_model` asks for."""

    def made(scene: Scene) -> tuple[Any, Cassette] | None:
        if scene.label in vendor.cannot:
            return None
        cassette = Cassette(exchanges(vendor, scene), cuts=random.Random(scene.label))
        return vendor.model(cassette.client()), cassette

    return made


def exchanges(vendor: Vendor, scene: Scene) -> list[Exchange]:
    """What a vendor says in a scene."""
    path = vendor.path(scene.streamed)
    if scene.name == "garbage":
        return [Exchange.of(path, "<html>Bad gateway</html>", headers={"content-type": "text/html"})]
    if not scene.replies:
        status, body = vendor.failure(scene)
        after = {} if scene.retry_after is None else {"retry-after": f"{scene.retry_after:.0f}"}
        return [Exchange.of(path, body, status=status, headers=after)]
    return [_exchange(vendor, scene, path, reply) for reply in scene.replies]


def _exchange(vendor: Vendor, scene: Scene, path: str, reply: ModelReply) -> Exchange:
    if not scene.streamed:
        whole = json.dumps(vendor.whole(reply))
        broken = scene.ending == "breaks"
        answer = whole[: len(whole) // 2] if broken else whole
        kind = {"content-type": "application/json"}
        return Exchange.of(path, answer, headers=kind, ending="breaks" if broken else "ends")
    events = vendor.events(reply)
    if scene.ending != "ends":
        events = events[: 1 + next(at for at, event in enumerate(events) if "Hello" in json.dumps(event))]
    if scene.ending == "fails":
        failed = json.loads(json.dumps(vendor.inside).replace("MESSAGE", scene.message))
        events.append(tuple(failed) if isinstance(failed, list) else failed)
    ending: Any = scene.ending if scene.ending in ("breaks", "stalls") else "ends"
    return Exchange.of(path, vendor.stream(*events), ending=ending)


def cut(text: str) -> list[str]:
    """A text in up to three pieces."""
    size = -(-len(text) // 3) or 1
    return [text[start : start + size] for start in range(0, len(text), size)]


STATUS: dict[type[ModelError] | None, int] = {
    RateLimited: 429, QuotaExceeded: 429, Overloaded: 503, ServerError: 500, AuthFailed: 401, ModelNotFound: 404,
    BadRequest: 400, ContextOverflow: 400,
}  # fmt: skip


# ---------------------------------------------------------------- Chat Completions


def _chat_model(http: Any) -> Any:
    from openai import AsyncOpenAI

    from windlass.models.openai import OpenAIChat

    return OpenAIChat("m", client=AsyncOpenAI(api_key="k", http_client=http))


def _chat_finish(reply: ModelReply) -> str:
    return {"refusal": "stop", "other": "stop"}.get(reply.finish, reply.finish)


def _chat_usage(reply: ModelReply) -> Json:
    usage = reply.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def chat_whole(reply: ModelReply) -> Json:
    message: Json = {"role": "assistant", "content": None}
    for part in reply.message.parts:
        if isinstance(part, TextPart):
            message["refusal" if reply.finish == "refusal" else "content"] = part.text
        elif isinstance(part, ThinkingPart):
            message["reasoning_content"] = part.text
        elif isinstance(part, OpaquePart):
            message["reasoning_details"] = [{"type": "reasoning.new", "data": part.data}]
        elif isinstance(part, ToolCallPart):
            function = {"name": part.name, "arguments": part.json}
            calls = message.setdefault("tool_calls", [])
            calls.append({"id": part.vendor_id, "type": "function", "function": function})
    choice = {"index": 0, "finish_reason": _chat_finish(reply), "message": message, "logprobs": None}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-2025-01-01", "choices": [choice],
        "usage": _chat_usage(reply), "service_tier": "default", "a_new_field": {"of": ["next", "year"]},
    }  # fmt: skip


def chat_events(reply: ModelReply) -> list[Any]:
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    number = -1
    for part in reply.message.parts:
        if isinstance(part, TextPart):
            field = "refusal" if reply.finish == "refusal" else "content"
            deltas += [{field: piece} for piece in cut(part.text)]
        elif isinstance(part, ThinkingPart):
            deltas += [{"reasoning_content": piece} for piece in cut(part.text)]
        elif isinstance(part, OpaquePart):
            deltas.append({"reasoning_details": [{"type": "reasoning.new", "data": part.data, "index": 0}]})
        elif isinstance(part, ToolCallPart):
            number += 1
            begin = {
                "index": number,
                "id": part.vendor_id,
                "type": "function",
                "function": {"name": part.name, "arguments": ""},
            }
            pieces = [{"index": number, "function": {"arguments": piece}} for piece in cut(part.json)]
            deltas += [{"tool_calls": [piece]} for piece in (begin, *pieces)]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-2025-01-01"}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _chat_finish(reply)}]})
    return [*chunks, {**head, "choices": [], "usage": _chat_usage(reply)}, "[DONE]"]


OPENAI_CODES: dict[type[ModelError] | None, str] = {
    QuotaExceeded: "insufficient_quota", ContextOverflow: "context_length_exceeded", ModelNotFound: "model_not_found",
    AuthFailed: "invalid_api_key", RateLimited: "rate_limit_exceeded",
}  # fmt: skip


def openai_failure(scene: Scene) -> tuple[int, Json]:
    error = {"message": scene.message, "type": "some_error", "param": None, "code": OPENAI_CODES.get(scene.error)}
    return STATUS[scene.error], {"error": error}


CHAT = Vendor(
    "chat", lambda streamed: "/v1/chat/completions", _chat_model, chat_whole, chat_events, openai_failure,
    {"error": {"message": "MESSAGE", "type": "server_error", "code": "server_error"}},
)  # fmt: skip


# ---------------------------------------------------------------- Responses


def _responses_model(http: Any) -> Any:
    from openai import AsyncOpenAI

    from windlass.models.openai import OpenAIResponses

    return OpenAIResponses("m", client=AsyncOpenAI(api_key="k", http_client=http))


def _items(reply: ModelReply) -> list[Json]:
    items: list[Json] = []
    for number, part in enumerate(reply.message.parts):
        if isinstance(part, TextPart):
            content = (
                {"type": "refusal", "refusal": part.text}
                if reply.finish == "refusal"
                else {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
            )
            items.append({"type": "message", "role": "assistant", "status": "completed", "content": [content]})
        elif isinstance(part, ThinkingPart):
            summary = [{"type": "summary_text", "text": part.text}]
            items.append({"type": "reasoning", "summary": summary, "encrypted_content": part.signature})
        elif isinstance(part, OpaquePart):
            items.append({"type": "telepathy", "said": part.data})
        elif isinstance(part, ToolCallPart):
            call = {"call_id": part.vendor_id, "name": part.name, "arguments": part.json, "status": "completed"}
            items.append({"type": "function_call", **call})
        items[-1]["id"] = f"item_{number}"
    return items


def responses_whole(reply: ModelReply) -> Json:
    usage = reply.usage
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    reason = reasons.get(reply.finish)
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m-2025-01-01", "error": None,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": _items(reply),
        "usage": {
            "input_tokens": usage.input, "output_tokens": usage.output, "total_tokens": usage.total,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        },
        "a_new_field": {"of": ["next", "year"]},
    }  # fmt: skip


def responses_events(reply: ModelReply) -> list[Any]:
    events: list[Json] = [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(_items(reply)):
        at = {"output_index": index, "item_id": item["id"]}
        bare = {name: value for name, value in item.items() if name not in ("content", "summary", "arguments")}
        events.append({"type": "response.output_item.added", **at, "item": bare})
        if item["type"] == "message":
            [content] = item["content"]
            kind, text = ("refusal", content["refusal"]) if "refusal" in content else ("output_text", content["text"])
            place = {**at, "content_index": 0}
            events.append({"type": "response.content_part.added", **place, "part": {"type": kind}})
            events += [{"type": f"response.{kind}.delta", **place, "delta": piece} for piece in cut(text)]
        elif item["type"] == "reasoning":
            place = {**at, "summary_index": 0}
            name = "response.reasoning_summary_text.delta"
            events += [{"type": name, **place, "delta": piece} for piece in cut(item["summary"][0]["text"])]
        elif item["type"] == "function_call":
            name = "response.function_call_arguments.delta"
            events += [{"type": name, **at, "delta": piece} for piece in cut(item["arguments"])]
        events.append({"type": "response.output_item.done", **at, "item": item})
    events.append({"type": "response.telepathy.started", "whatever": 1})
    whole = responses_whole(reply)
    return [
        (event["type"], {**event, "sequence_number": number})
        for number, event in enumerate([*events, {"type": f"response.{whole['status']}", "response": whole}])
    ]


RESPONSES = Vendor(
    "responses", lambda streamed: "/v1/responses", _responses_model, responses_whole, responses_events, openai_failure,
    ("error", {"type": "error", "code": "server_error", "message": "MESSAGE", "param": None, "sequence_number": 9}),
)  # fmt: skip


# ---------------------------------------------------------------- Anthropic


def _anthropic_model(http: Any) -> Any:
    from anthropic import AsyncAnthropic

    from windlass.models.anthropic import AnthropicMessages

    return AnthropicMessages("m", client=AsyncAnthropic(api_key="k", http_client=http))


def _blocks(reply: ModelReply) -> list[Json]:
    blocks: list[Json] = []
    for part in reply.message.parts:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, ThinkingPart):
            blocks.append({"type": "thinking", "thinking": part.text, "signature": part.signature})
        elif isinstance(part, OpaquePart):
            blocks.append({"type": "telepathy", "said": part.data})
        elif isinstance(part, ToolCallPart):
            blocks.append({"type": "tool_use", "id": f"toolu_{part.vendor_id}", "name": part.name, "input": part.json})
    return blocks


def _stop(reply: ModelReply) -> str:
    return {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "other": "end_turn"}.get(
        reply.finish, reply.finish
    )


def _counted(reply: ModelReply) -> Json:
    usage = reply.usage
    return {
        "input_tokens": usage.input - usage.cached,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
    }


def anthropic_whole(reply: ModelReply) -> Json:
    blocks = [
        {**block, "input": json.loads(block["input"])} if block["type"] == "tool_use" else block
        for block in _blocks(reply)
    ]
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m-20250101", "content": blocks,
        "stop_reason": _stop(reply), "stop_sequence": None, "usage": _counted(reply), "a_new_field": {"of": ["next"]},
    }  # fmt: skip


def anthropic_events(reply: ModelReply) -> list[Any]:
    message = {**anthropic_whole(reply.replace(message=reply.message.replace(parts=()))), "stop_reason": None}
    message["usage"] = {**_counted(reply), "output_tokens": 1}
    events: list[Json] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, block in enumerate(_blocks(reply)):
        begin, deltas = _block_deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": begin})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    counted = {"output_tokens": reply.usage.output}
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": _stop(reply), "stop_sequence": None}, "usage": counted}
    )
    events.append({"type": "telepathy_ended"})
    events.append({"type": "message_stop"})
    return [(event["type"], event) for event in events]


def _block_deltas(block: Json) -> tuple[Json, list[Json]]:
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in cut(block["text"])]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if block["type"] == "tool_use":
        pieces = [] if block["input"] == "{}" else cut(block["input"])
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block, []


ANTHROPIC_KINDS: dict[type[ModelError] | None, tuple[int, str, str]] = {
    RateLimited: (429, "rate_limit_error", ""),
    QuotaExceeded: (400, "invalid_request_error", "Your credit balance is too low: "),
    Overloaded: (529, "overloaded_error", ""),
    ServerError: (500, "api_error", ""),
    AuthFailed: (401, "authentication_error", ""),
    ModelNotFound: (404, "not_found_error", ""),
    BadRequest: (400, "invalid_request_error", ""),
    ContextOverflow: (400, "invalid_request_error", "prompt is too long: "),
}


def anthropic_failure(scene: Scene) -> tuple[int, Json]:
    status, kind, before = ANTHROPIC_KINDS[scene.error]
    error = {"type": kind, "message": before + scene.message}
    return status, {"type": "error", "error": error, "request_id": "req_1"}


ANTHROPIC = Vendor(
    "anthropic", lambda streamed: "/v1/messages", _anthropic_model, anthropic_whole, anthropic_events,
    anthropic_failure, ("error", {"type": "error", "error": {"type": "overloaded_error", "message": "MESSAGE"}}),
    frozenset(["filter", "filter, streamed", "broken arguments"]),
)  # fmt: skip


# ---------------------------------------------------------------- Google


def _google_model(http: Any) -> Any:
    from google import genai

    from windlass.models.google import GoogleGemini

    options = genai.types.HttpOptions(httpx_async_client=http, api_version="v1beta")
    return GoogleGemini("gemini-3-m", client=genai.Client(api_key="k", http_options=options))


def _google_parts(reply: ModelReply, pieces: Callable[[str], list[str]]) -> list[Json]:
    parts: list[Json] = []
    for part in reply.message.parts:
        if isinstance(part, TextPart):
            parts += [{"text": piece} for piece in pieces(part.text)]
        elif isinstance(part, ThinkingPart):
            parts += [{"text": piece, "thought": True} for piece in pieces(part.text)]
            parts[-1]["thoughtSignature"] = part.signature
        elif isinstance(part, OpaquePart):
            parts.append({"telepathy": {"said": part.data}})
        elif isinstance(part, ToolCallPart):
            call = {"name": part.name, "args": json.loads(part.json), "id": part.vendor_id}
            parts.append({"functionCall": call})
    return parts


def _google_finish(reply: ModelReply) -> str:
    return {"length": "MAX_TOKENS", "content_filter": "SAFETY"}.get(reply.finish, "STOP")


def _google_about(reply: ModelReply) -> Json:
    usage = reply.usage
    counted = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "cachedContentTokenCount": usage.cached,
        "totalTokenCount": usage.total,
    }
    return {"usageMetadata": counted, "modelVersion": "m-001", "responseId": "r-1", "aNewField": {"of": ["next"]}}


def google_whole(reply: ModelReply) -> Json:
    content = {"role": "model", "parts": _google_parts(reply, lambda text: [text])}
    candidate = {"content": content, "finishReason": _google_finish(reply), "index": 0}
    return {"candidates": [candidate], **_google_about(reply)}


def google_events(reply: ModelReply) -> list[Any]:
    chunks: list[Json] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]}
        for part in (*_google_parts(reply, cut), {"text": ""})
    ]
    chunks[-1]["candidates"][0]["finishReason"] = _google_finish(reply)
    return [{**chunk, **_google_about(reply)} for chunk in chunks]


def google_failure(scene: Scene) -> tuple[int, Json]:
    before = {ContextOverflow: "The input token count exceeds the maximum number of tokens: "}.get(scene.error, "")  # type: ignore[call-overload]
    details: list[Json] = []
    if scene.error is QuotaExceeded:
        details.append({"violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}]})
    if scene.retry_after is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{scene.retry_after:.0f}s"})
    status = STATUS[scene.error]
    return status, {"error": {"code": status, "message": before + scene.message, "status": "X", "details": details}}


GOOGLE = Vendor(
    "google",
    lambda streamed: f"/v1beta/models/gemini-3-m:{'streamGenerateContent?alt=sse' if streamed else 'generateContent'}",
    _google_model, google_whole, google_events, google_failure,
    {"error": {"code": 503, "message": "MESSAGE", "status": "UNAVAILABLE"}},
    frozenset(["refusal", "refusal, streamed", "broken arguments", "broken arguments, streamed"]),
)  # fmt: skip


# ---------------------------------------------------------------- Bedrock

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def frame(kind: str, data: Any, *, as_exception: bool = False) -> bytes:
    """A message of AWS's event stream: lengths, headers, JSON and checksums."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    if as_exception:
        headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    payload = data if isinstance(data, bytes) else json.dumps(data).encode()
    prelude = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    message = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return message + struct.pack("!I", crc32(message))


def frames(*events: tuple[str, Any]) -> bytes:
    """A stream of events, each a kind and its data; those of errors are exceptions."""
    return b"".join([frame(kind, data, as_exception=kind.endswith("Exception")) for kind, data in events])


def _bedrock_model(http: Any) -> Any:
    from windlass.models.bedrock import BedrockConverse

    return BedrockConverse(CLAUDE, client=http, api_key="k", base_url="https://bedrock-runtime.us-east-1.amazonaws.com")


def _bedrock_blocks(reply: ModelReply) -> list[Json]:
    blocks: list[Json] = []
    for part in reply.message.parts:
        if isinstance(part, TextPart):
            blocks.append({"text": part.text})
        elif isinstance(part, ThinkingPart):
            blocks.append({"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}})
        elif isinstance(part, OpaquePart):
            blocks.append({"telepathy": {"said": part.data}})
        elif isinstance(part, ToolCallPart):
            blocks.append({"toolUse": {"toolUseId": part.vendor_id, "name": part.name, "input": part.json}})
    return blocks


def _bedrock_stop(reply: ModelReply) -> str:
    return {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "content_filtered"}.get(
        reply.finish, "end_turn"
    )


def _bedrock_about(reply: ModelReply) -> Json:
    usage = reply.usage
    counted = {
        "inputTokens": usage.input - usage.cached,
        "outputTokens": usage.output,
        "totalTokens": usage.total,
        "cacheReadInputTokens": usage.cached,
        "cacheWriteInputTokens": 0,
    }
    return {"usage": counted, "metrics": {"latencyMs": 7}, "aNewField": {"of": ["next"]}}


def bedrock_whole(reply: ModelReply) -> Json:
    blocks = _bedrock_blocks(reply)
    for block in blocks:
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    message = {"role": "assistant", "content": blocks}
    return {"output": {"message": message}, "stopReason": _bedrock_stop(reply), **_bedrock_about(reply)}


def bedrock_events(reply: ModelReply) -> list[Any]:
    events: list[Any] = [("messageStart", {"role": "assistant", "p": "abc"})]
    for index, block in enumerate(_bedrock_blocks(reply)):
        at = {"contentBlockIndex": index, "p": "abcd"}
        begin, deltas = _bedrock_deltas(block)
        if begin:
            events.append(("contentBlockStart", {"start": begin, **at}))
        events += [("contentBlockDelta", {"delta": delta, **at}) for delta in deltas]
        events.append(("contentBlockStop", at))
    events.append(("telepathyEnded", {}))
    events.append(("messageStop", {"stopReason": _bedrock_stop(reply)}))
    return [*events, ("metadata", _bedrock_about(reply))]


def _bedrock_deltas(block: Json) -> tuple[Json, list[Json]]:
    if "text" in block:
        return {}, [{"text": piece} for piece in cut(block["text"])]
    if "reasoningContent" in block:
        thought = block["reasoningContent"]["reasoningText"]
        deltas: list[Json] = [{"reasoningContent": {"text": piece}} for piece in cut(thought["text"])]
        return {}, [*deltas, {"reasoningContent": {"signature": thought["signature"]}}]
    if "toolUse" in block:
        call = dict(block["toolUse"])
        text = call.pop("input")
        pieces = [] if text == "{}" else cut(text)
        return {"toolUse": call}, [{"toolUse": {"input": piece}} for piece in pieces]
    return block, []


def bedrock_failure(scene: Scene) -> tuple[int, Json]:
    status, kind = BEDROCK_KINDS[scene.error]
    before = "Input is too long for requested model: " if scene.error is ContextOverflow else ""
    return status, {"__type": f"com.amazon.coral.service#{kind}", "message": before + scene.message}


BEDROCK_KINDS: dict[type[ModelError] | None, tuple[int, str]] = {
    RateLimited: (429, "ThrottlingException"),
    QuotaExceeded: (400, "ServiceQuotaExceededException"),
    Overloaded: (503, "ServiceUnavailableException"),
    ServerError: (500, "InternalServerException"),
    AuthFailed: (403, "UnrecognizedClientException"),
    ModelNotFound: (404, "ResourceNotFoundException"),
    BadRequest: (400, "ValidationException"),
    ContextOverflow: (400, "ValidationException"),
}

BEDROCK = Vendor(
    "bedrock", lambda streamed: f"/model/{quote(CLAUDE, safe='')}/converse{'-stream' if streamed else ''}",
    _bedrock_model, bedrock_whole, bedrock_events, bedrock_failure,
    ("modelStreamErrorException", {"message": "MESSAGE", "originalStatusCode": 500}),
    frozenset(["refusal", "refusal, streamed", "broken arguments"]), frames,
)  # fmt: skip

VENDORS = (CHAT, RESPONSES, ANTHROPIC, GOOGLE, BEDROCK)
