"""The adapters of vendors without their SDKs: encoding a turn that grows, and decoding prepared chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

from windlass.messages import (
    Message,
    Messages,
    ModelRequest,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    user,
)
from windlass.models.settings import merged

CHUNKS = 10_000
EARLY, LATE = range(6, 16), range(396, 406)
TOOLS = (ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}),)

Body = Callable[[ModelRequest], Any]
Feed = Callable[[Any], Iterable[Any]]


class Adapter(NamedTuple):
    """One adapter: makes a fresh encoder, a fresh decoder, and the chunks of a long text."""

    encoder: Callable[[], Body]
    decoder: Callable[[], Feed]
    chunks: Callable[[], list[Any]]


def growth(adapter: Adapter, rounds: int, *, injected: bool = False) -> tuple[float, float]:
    """The µs that encoding takes at the 10th and the 400th step of a turn, without or with an injected part."""
    early: list[int] = []
    late: list[int] = []
    for _ in range(rounds):
        body = adapter.encoder()
        items = [user("Go.")]
        for step in range(1, LATE.stop):
            call = ToolCallPart("add", '{"a": 1}', id=f"s/{step}/0", vendor_id=f"call_{step}")
            items.append(Message("assistant", (TextPart("Let me see."), call), id=f"s/{step}"))
            items.append(Message("tool", (ToolResultPart(f"s/{step}/0", "add", (TextPart("2"),)),)))
            overlay = {0: items[0].replace(parts=(*items[0].parts, TextPart("It is Monday.")))} if injected else None
            request = ModelRequest("Be quick.", Messages(Messages.sharing(items), overlay=overlay), TOOLS)
            start = perf_counter_ns()
            body(request)
            took = perf_counter_ns() - start
            if step in EARLY:
                early.append(took)
            elif step in LATE:
                late.append(took)
    return median(early) / 1000, median(late) / 1000


def rate(adapter: Adapter, rounds: int) -> float:
    """Chunks decoded per second, in the best round."""
    chunks = adapter.chunks()
    best = 0.0
    for _ in range(rounds):
        feed = adapter.decoder()
        deltas = 0
        start = perf_counter_ns()
        for chunk in chunks:
            for _delta in feed(chunk):
                deltas += 1
        took = perf_counter_ns() - start
        if deltas < CHUNKS:
            raise RuntimeError(f"{len(chunks)} chunks gave only {deltas} deltas")
        best = max(best, len(chunks) / took * 1e9)
    return best


# ---------------------------------------------------------------- the vendors


def _chat() -> Adapter:
    from windlass.models.openai.chat.encode import ChatEncoder
    from windlass.models.openai.chat.streaming import ChatStream
    from windlass.models.openai.dialects import OPENAI

    def encoder() -> Body:
        made, settings = ChatEncoder("gpt-5", OPENAI), merged({}, {})
        return lambda request: made.body(request, settings, streaming=True)

    def chunk(text: str) -> Any:
        return {
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5",
            "service_tier": "default", "system_fingerprint": None, "obfuscation": "x",
            "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
        }  # fmt: skip

    return Adapter(encoder, lambda: ChatStream("openai").feed, lambda: [chunk(" word") for _ in range(CHUNKS)])


def _responses() -> Adapter:
    from windlass.models.openai.dialects import RESPONSES
    from windlass.models.openai.responses.encode import ResponsesEncoder
    from windlass.models.openai.responses.streaming import ResponseStream

    def encoder() -> Body:
        made, settings = ResponsesEncoder("gpt-5", RESPONSES), merged({}, {})
        return lambda request: made.body(request, settings, streaming=True)

    def chunk(number: int) -> Any:
        return {
            "type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0,
            "delta": " word", "logprobs": [], "sequence_number": number, "obfuscation": "x",
        }  # fmt: skip

    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    begin = {"type": "response.output_item.added", "output_index": 0, "item": item}
    return Adapter(encoder, lambda: ResponseStream().feed, lambda: [begin, *map(chunk, range(CHUNKS))])


def _anthropic() -> Adapter:
    from windlass.models.anthropic.requests import Requests
    from windlass.models.anthropic.streaming import Assembly

    def encoder() -> Body:
        made, settings = Requests("claude-sonnet-4-5"), merged({}, {})
        return lambda request: made.body(request, settings, streaming=True)

    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    begin = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    chunk = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " word"}}
    return Adapter(encoder, lambda: Assembly().feed, lambda: [*begin, *[dict(chunk) for _ in range(CHUNKS)]])


def _google() -> Adapter:
    from windlass.models.google.settings import Encoder
    from windlass.models.google.streaming import Assembly

    def encoder() -> Body:
        made, settings = Encoder("gemini-3-pro"), merged({}, {})
        return lambda request: made.body(request, settings)

    def chunk() -> Any:
        content = {"role": "model", "parts": [{"text": " word"}]}
        usage = {"promptTokenCount": 11, "candidatesTokenCount": 5, "totalTokenCount": 16}
        return {
            "candidates": [{"content": content, "index": 0}],
            "usageMetadata": usage,
            "modelVersion": "gemini-3-pro",
        }

    return Adapter(encoder, lambda: Assembly(streamed=True).feed, lambda: [chunk() for _ in range(CHUNKS)])


def _bedrock() -> Adapter:
    from windlass.models.bedrock.requests import Requests
    from windlass.models.bedrock.streaming import Assembly

    def encoder() -> Body:
        made, settings = Requests("us.anthropic.claude-sonnet-4-5-20250929-v1:0"), merged({}, {})
        return lambda request: made.body(request, settings)

    def chunk() -> Any:
        return "contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": " word"}, "p": "abcdefghijk"}

    return Adapter(encoder, lambda: Assembly("m").feed, lambda: [chunk() for _ in range(CHUNKS)])


ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
    "bedrock": _bedrock,
}
