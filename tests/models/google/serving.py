"""A server that a client of Google's asks."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

from google import genai
from tests.models import serving
from tests.models.serving import Pieces, Socket, asked, asking, cut, facts, heard, listening

from windlass.models.google import GoogleGemini

# Made once: to read all certificates takes longer than any test.
TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING: dict[str, Any] = {"client_args": {"verify": TRUST}, "async_client_args": {"verify": TRUST, "ssl": TRUST}}


class Server(serving.Server):
    """Serves answers in turn to its client."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        super().__init__(*answers)
        told = genai.types.HttpOptions(httpx_async_client=self.http, api_version="v1beta", **TRUSTING, **options)
        self.client = genai.Client(api_key="k", http_options=told)

    def model(self, name: str = "gemini-2.5-flash", **options: Any) -> GoogleGemini:
        return GoogleGemini(name, client=self.client, **options)


def events(*data: Any) -> bytes:
    """A stream of server-sent events, in Google's way of writing them."""
    return "".join(f"data: {json.dumps(item, ensure_ascii=False)}\r\n\r\n" for item in data).encode()


def answer(*parts: dict[str, Any], finish: str | None = "STOP", **besides: Any) -> dict[str, Any]:
    """An answer with one candidate; without a finish it is a chunk of one."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {}) | besides], "responseId": "r1"}


async def taken(stream: AsyncIterator[Any], into: list[Any]) -> None:
    """Put what a stream gives into a list, for as long as it gives."""
    async for piece in stream:
        into.append(piece)  # noqa: PERF401 (what came before an error counts)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"

__all__ = [
    "HEAD",
    "TRUSTING",
    "Pieces",
    "Server",
    "Socket",
    "answer",
    "asked",
    "asking",
    "cut",
    "events",
    "facts",
    "heard",
    "listening",
    "taken",
]
