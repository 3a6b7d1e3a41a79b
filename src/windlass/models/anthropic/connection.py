"""The wire to the vendor, through Anthropic's SDK: one request at a time, never repeated, with limited patience."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
from anthropic import AsyncAnthropic, AsyncStream

from windlass.deltas import AnyDelta
from windlass.errors import BadReply, ConfigError, ConnectionFailed, ModelError, ModelTimeout
from windlass.messages import ModelReply
from windlass.models.history import Wire

from .errors import request_id, told_error, translating, understood
from .streaming import Assembly

PATH = "/v1/messages"
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


class Connection:
    """A client of the SDK that never retries: the one passed in, or one of our own for each event loop.

    The timeout is for the whole of an answer, and for each event of a stream.
    """

    def __init__(self, client: Any, base_url: str | None, api_key: str | None) -> None:
        if client is not None and not inspect.iscoroutinefunction(getattr(client, "post", None)):
            hint = "an AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex or the like"
            raise ConfigError(f"client is a {type(client).__name__}, which is not asynchronous; pass {hint}")
        self._given = None if client is None else client.with_options(max_retries=0)
        self._base_url = base_url
        self._api_key = api_key
        self._own: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncAnthropic] = WeakKeyDictionary()

    def client(self) -> Any:
        """The client for the running event loop."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._own.get(loop)
        if client is None:
            client = self._own[loop] = AsyncAnthropic(base_url=self._base_url, api_key=self._key(), max_retries=0)
        return client

    def _key(self) -> str | None:
        """The SDK finds what is not given; a server of one's own may want none, and the SDK wants one."""
        found = self._api_key or any(os.environ.get(name) for name in KEYS)
        return self._api_key if found or self._base_url is None else "none"

    async def ask(self, body: Wire, options: Wire) -> Any:
        """Post a body, and return what the JSON of the answer says."""
        client = self.client()
        with translating():
            async with asyncio.timeout(_seconds(client, options)):
                response = await client.post(PATH, cast_to=httpx2.Response, body=body, options=options)
        return _json(response)

    async def hear(self, body: Wire, options: Wire) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Post a body, and yield what is made of the events of the answer as they come, last of all the whole."""
        client, heard = self.client(), Assembly()
        seconds = _seconds(client, options)
        with translating():
            async with asyncio.timeout(seconds):
                events = await client.post(
                    PATH, cast_to=object, body=body, options=options, stream=True, stream_cls=AsyncStream[object]
                )
        async with events:
            try:
                await _refuse_other_than_events(events.response)
                while (event := await _next(events, seconds, heard)) is not None:
                    with understood():
                        delta = heard.feed(event)
                    if delta is not None:
                        yield delta
                with understood():
                    reply = heard.reply()
            except ModelError as error:
                error.request_id = error.request_id or request_id(events.response.headers)
                raise
        yield reply

    async def close(self) -> None:
        """Close our own client of the running event loop."""
        client = self._own.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _seconds(client: Any, options: Wire) -> float | None:
    """How long we wait. The client itself only counts from byte to byte, which may be for ever."""
    patience: Any = options.get("timeout", client.timeout)
    seconds: float | None = patience.read if isinstance(patience, httpx2.Timeout) else patience
    return seconds


async def _next(events: AsyncStream[object], seconds: float | None, heard: Assembly) -> Any:
    """The next event; none at the end, which a break is too if nothing is missing."""
    try:
        with translating():
            async with asyncio.timeout(seconds):
                return await anext(events, None)
    except (ConnectionFailed, ModelTimeout):
        if heard.complete:
            return None
        raise


async def _refuse_other_than_events(response: httpx2.Response) -> None:
    """A server that answers with a whole instead of a stream has something else to say, or does not stream."""
    if "application/json" in (response.headers.get("content-type") or ""):
        with translating():
            await response.aread()
        body = _json(response)
        if isinstance(body, Mapping) and body.get("type") == "error":
            raise told_error(body, response.status_code, response.headers)
        raise BadReply("a stream was asked for, and the answer is one piece of JSON")


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        text = f"the answer is no JSON: {response.text[:200]!r}"
        raise BadReply(text, retryable=True, request_id=request_id(response.headers)) from error


__all__ = ["Connection"]
