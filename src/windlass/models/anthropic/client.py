"""The model: asks Anthropic through its SDK."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from anthropic import AsyncAnthropic, AsyncStream

from windlass.deltas import AnyDelta
from windlass.errors import BadReply, ConfigError
from windlass.messages import ModelReply, ModelRequest
from windlass.models.history import Wire

from .decode import decode_reply
from .encode import VENDOR
from .errors import translating, understood
from .requests import Requests
from .settings import merged
from .streaming import Assembly

PATH = "/v1/messages"
LONGEST_UNSTREAMED = 21_333
"""With more `max_tokens` a reply may take longer than connections live; it is then streamed, whoever asks."""

T = TypeVar("T")


class _Connection:
    """A client of the SDK that never retries: the one passed in, or one of our own for each event loop."""

    def __init__(self, client: Any, base_url: str | None, api_key: str | None) -> None:
        if client is not None and not inspect.iscoroutinefunction(getattr(client, "post", None)):
            kind = type(client).__name__
            raise ConfigError(f"client is {kind}; pass an AsyncAnthropic, or its like for Bedrock, Vertex or Foundry")
        self._given = None if client is None else client.with_options(max_retries=0)
        self._base_url = base_url
        self._api_key = api_key
        self._own: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncAnthropic] = WeakKeyDictionary()

    def client(self) -> Any:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._own.get(loop)
        if client is None:
            client = self._own[loop] = AsyncAnthropic(base_url=self._base_url, api_key=self._key(), max_retries=0)
        return client

    def _key(self) -> str | None:
        """The SDK finds what is not given; a server of one's own may want none, and the SDK wants one."""
        found = self._api_key or os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN")
        return self._api_key if found or self._base_url is None else "none"

    async def post(self, body: Wire, options: Wire) -> Any:
        client = self.client()
        asked = client.post(PATH, cast_to=object, body=body, options=options)
        return await _within(_patience(client, options), asked)

    async def stream(self, body: Wire, options: Wire) -> AsyncGenerator[Any, None]:
        client = self.client()
        patience = _patience(client, options)
        asked = client.post(
            PATH, cast_to=object, body=body, options=options, stream=True, stream_cls=AsyncStream[object]
        )
        async with await _within(patience, asked) as events:
            while True:
                try:
                    event = await _within(patience, anext(events))
                except StopAsyncIteration:
                    return
                yield event

    async def close(self) -> None:
        client = self._own.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


async def _within(seconds: float | None, awaited: Awaitable[T]) -> T:
    """Wait for something, though not for ever: bytes that trickle in keep a connection alive, but are no answer."""
    async with asyncio.timeout(seconds):
        return await awaited


def _patience(client: Any, options: Wire) -> float | None:
    """How many seconds may pass until an answer, or the next piece of it."""
    timeout: Any = options.get("timeout", client.timeout)
    seconds: float | None = getattr(timeout, "read", timeout)
    return seconds


def _options(settings: Mapping[str, Any], body: Wire) -> Wire:
    """What the SDK is told beside the body."""
    headers = dict(body.pop("extra_headers", None) or {})
    if betas := body.pop("betas", None):
        headers["anthropic-beta"] = betas if isinstance(betas, str) else ",".join(betas)
    options: Wire = {"headers": headers} if headers else {}
    if "timeout" in settings:
        options["timeout"] = settings["timeout"]
    return options


class AnthropicMessages:
    """A model of Anthropic's Messages API, and of every server that speaks it.

    `client` may be any asynchronous client of the SDK (Bedrock, Vertex …); its own retries are switched off, and it
    stays the caller's to close. Settings beyond those of all models: `cache` (True, False or a time to live such as
    "1h"), and in `extra` whatever the vendor takes: `tools` there are those it executes itself, `betas` and
    `extra_headers` become headers. It knows no `seed`.
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
        merged(settings, {})
        self.name = name or f"{VENDOR}:{model}"
        self._settings = settings
        self._requests = Requests(model)
        self._connection = _Connection(client, base_url, api_key)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        settings = merged(self._settings, request.settings)
        body = self._requests.body(request, settings)
        if body["max_tokens"] > LONGEST_UNSTREAMED:
            return await self._heard(request)
        with translating():
            answer = await self._connection.post(body, _options(settings, body))
        with understood():
            return decode_reply(answer)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        settings = merged(self._settings, request.settings)
        body = self._requests.body(request, settings, streaming=True)
        heard = Assembly()
        with translating():
            async with aclosing(self._connection.stream(body, _options(settings, body))) as events:
                async for event in events:
                    with understood():
                        delta = heard.feed(event)
                    if delta is not None:
                        yield delta
        with understood():
            reply = heard.reply()
        yield reply

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
