"""A server that a client of OpenAI's asks."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI
from tests.models import serving
from tests.models.serving import Pieces, Socket, asked, asking, cut, facts, heard, listening


class Server(serving.Server):
    """Serves answers in turn to its client."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.client = AsyncOpenAI(api_key="k", base_url="https://api.openai.com/v1", http_client=self.http)


def events(*data: Any, done: bool = True) -> bytes:
    """A stream of server-sent events."""
    lines = [f"data: {json.dumps(item)}\n\n" for item in data]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


__all__ = ["Pieces", "Server", "Socket", "asked", "asking", "cut", "events", "facts", "heard", "listening"]
