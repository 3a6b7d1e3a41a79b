"""A server that an Anthropic client asks, and what it says, written by hand after the vendor's documentation."""

from __future__ import annotations

import json
from typing import Any

from anthropic import AsyncAnthropic
from tests.models import serving
from tests.models.serving import Pieces, asked, asking, cut, facts, heard

from windlass.models.anthropic import AnthropicMessages

MODEL = "claude-sonnet-4-6"
USAGE = {"input_tokens": 10, "output_tokens": 1}


class Server(serving.Server):
    """Serves answers in turn to its client."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.client = AsyncAnthropic(api_key="k", base_url="http://server", http_client=self.http)

    def model(self, model: str = MODEL, **settings: Any) -> AnthropicMessages:
        """A model that asks this server."""
        return AnthropicMessages(model, client=self.client, settings=settings)


def answer(*content: Any, stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    """A whole answer; a text is a block of text."""
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x-1",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": 5},
        **more,
    }


def events(*told: Any) -> bytes:
    """A stream of server-sent events."""
    return "".join([f"event: {item['type']}\ndata: {json.dumps(item)}\n\n" for item in told]).encode()


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        {"type": "ping"},
        *[{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    """The events of a block of text."""
    return block(index, {"type": "text", "text": ""}, *[{"type": "text_delta", "text": piece} for piece in pieces])


def call(index: int, id: str, name: str, *pieces: str, **more: Any) -> list[dict[str, Any]]:
    """The events of a call, its arguments in pieces."""
    start = {"type": "tool_use", "id": id, "name": name, "input": {}, **more}
    return block(index, start, *[{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)])


def streamed(*blocks: list[dict[str, Any]], stop: str = "end_turn", **ending: Any) -> bytes:
    """A stream of blocks, from its start to its end."""
    message = {**answer(stop=None), "usage": USAGE}
    usage = ending.pop("usage", {"output_tokens": 5})
    return events(
        {"type": "message_start", "message": message},
        *[event for told in blocks for event in told],
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None, **ending}, "usage": usage},
        {"type": "message_stop"},
    )


__all__ = [
    "MODEL",
    "Pieces",
    "Server",
    "answer",
    "asked",
    "asking",
    "block",
    "call",
    "cut",
    "events",
    "facts",
    "heard",
    "streamed",
    "text",
]
