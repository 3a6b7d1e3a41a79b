"""The model: asks Anthropic through its SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from windlass.deltas import AnyDelta
from windlass.errors import BadReply
from windlass.messages import ModelReply, ModelRequest
from windlass.models.errors import understood
from windlass.models.history import Wire
from windlass.models.settings import narrowed
from windlass.prices import context_window

from .connection import connection
from .decode import decode_reply
from .encode import VENDOR
from .requests import Requests
from .settings import merged
from .streaming import Assembly

PATH = "/v1/messages"
LONGEST_UNSTREAMED = 21_333
"""With more `max_tokens` a reply may take longer than connections live; it is then streamed, whoever asks."""


def _options(settings: Mapping[str, Any], body: Wire) -> Wire:
    """What the SDK is told beside the body."""
    headers = dict(settings.get("headers") or {})
    if betas := body.pop("betas", None):
        headers["anthropic-beta"] = betas if isinstance(betas, str) else ",".join(betas)
    return {"headers": headers or None, "timeout": settings.get("timeout")}


class AnthropicMessages:
    """A model of Anthropic's Messages API, and of every server that speaks it.

    `client` may be any asynchronous client of the SDK (Bedrock, Vertex …); its own retries are switched off, and it
    stays the caller's to close. Settings beyond those of all models: `cache` (True, False or a time to live such as
    "1h"), and in `extra` whatever the vendor takes: `tools` there are those that it knows itself (one with the name of
    a tool of ours describes that one), `betas` become a header. It knows no `seed`.
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        settings: Mapping[str, Any] = {},
        name: str | None = None,
    ) -> None:
        self.name = name or f"{VENDOR}:{model}"
        self._settings = settings
        self.check_settings({})
        self._model = model
        self._requests = Requests(model)
        self._connection = connection(self.name, client, base_url, api_key)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        merged(self._settings, settings)

    @property
    def context_window(self) -> int | None:
        """How many tokens the model can have before it, if that is known."""
        return context_window(VENDOR, self._model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        asked, settings = narrowed(request, merged(self._settings, request.settings))
        body = self._requests.body(asked, settings)
        if body["max_tokens"] > LONGEST_UNSTREAMED:
            return await self._heard(request)
        answer = await self._connection.post(PATH, body, **_options(settings, body))
        with understood():
            return self._connection.costed(decode_reply(answer), self._model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        request, settings = narrowed(request, merged(self._settings, request.settings))
        body = self._requests.body(request, settings, streaming=True)
        heard = self._connection.hear(PATH, body, Assembly(), self._model, **_options(settings, body))
        async with aclosing(heard) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Close the connections that this model has opened in the running event loop."""
        await self._connection.close()

    async def _heard(self, request: ModelRequest) -> ModelReply:
        async with aclosing(self.stream(request)) as stream:
            async for piece in stream:
                if isinstance(piece, ModelReply):
                    return piece
        raise BadReply("the stream gave no reply")


__all__ = ["AnthropicMessages", "LONGEST_UNSTREAMED"]
