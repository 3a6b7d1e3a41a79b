"""One request and its answer, as JSON, over the connection of the SDK's client.

The SDK's public methods are not enough. For a stream they return typed objects without the fields that the SDK does not
know (and reject `should_return_http_response`, which returns the JSON of a whole answer); they send requests of their
own (`CONTINUATION`, tool calls); and they copy the whole conversation at each step. The client below them has the keys,
addresses and connections, and returns the JSON unchanged. It is private, so only this module uses it, through three
names; `inside` checks that they exist, and the extra pins the SDK below its next major version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import google.genai as genai
from google.genai.types import HttpOptions, HttpRetryOptions

from windlass.errors import ConfigError
from windlass.models.errors import translating

from .errors import translate_error, translate_stream_error

PATIENCE = 600.0
"""The default timeout in seconds of a whole answer, or of the next chunk of one. The SDK has none."""

NO_RETRY = HttpRetryOptions(attempts=1)
BESIDES = (":", "event:", "id:", "retry:")
"""The beginnings of lines that belong to the stream protocol and have no data."""
COUNTED = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig")
"""The fields of a request that count."""
USED = ("_build_request", "_async_request", "vertexai")


def inside(client: object) -> Any:
    """The private client inside a client; raises if it lacks a name that this module uses."""
    inner = getattr(client, "_api_client", None)
    if missing := [name for name in USED if not hasattr(inner, name)]:
        text = f"google-genai {genai.__version__} no longer has {', '.join(missing)}"
        raise ConfigError(f"{text}: install a version that this adapter supports, 'google-genai>=3,<4'")
    return inner


class Exchange:
    """A request that can be sent once. `version` is the API version; None for the client's own."""

    def __init__(
        self,
        client: genai.Client,
        model: str,
        body: dict[str, Any],
        timeout: float | None,
        version: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._api = inside(client)
        vertex = bool(self._api.vertexai)
        self._path = _path(model, vertex=vertex)
        self._body = body
        self._patience = PATIENCE if timeout is None else timeout
        milliseconds = None if timeout is None else max(1, round(timeout * 1000))
        version = None if vertex else version
        self._options = HttpOptions(timeout=milliseconds, retry_options=NO_RETRY, api_version=version, headers=headers)

    async def whole(self) -> Any:
        """The whole answer."""
        with translating(translate_error):
            async with asyncio.timeout(self._patience):
                response = await self._send("generateContent", stream=False)
            return response.json

    async def count(self) -> Any:
        """The answer to the question how many tokens the request has."""
        counted = {name: self._body[name] for name in COUNTED if name in self._body}
        if not self._api.vertexai:
            counted = {"generateContentRequest": {"model": self._path, **counted}}
        with translating(translate_error):
            async with asyncio.timeout(self._patience):
                response = await self._send("countTokens", stream=False, body=counted)
            return response.json

    async def chunks(self) -> AsyncGenerator[Any, None]:
        """The pieces of the answer, as they come. Closing this closes the connection."""
        with translating(translate_stream_error):
            async with asyncio.timeout(self._patience):
                response = await self._send("streamGenerateContent?alt=sse", stream=True)
        if hasattr(response.response_stream, "aiter_bytes"):
            response.response_stream.aiter_lines = partial(_lines, response.response_stream)
        pieces: AsyncGenerator[Any, None] = response.async_segments()
        try:
            while True:
                with translating(translate_stream_error):
                    try:
                        async with asyncio.timeout(self._patience):
                            chunk = await anext(pieces)
                    except StopAsyncIteration:
                        return
                yield chunk
        finally:
            # The response is closed first: closing only the pieces would leave it to the garbage collector.
            await _close(response.response_stream)
            await pieces.aclose()

    async def _send(self, verb: str, *, stream: bool, body: dict[str, Any] | None = None) -> Any:
        request = self._api._build_request("post", f"{self._path}:{verb}", body or self._body, self._options)
        return await self._api._async_request(request, self._options, stream)


async def _lines(stream: Any) -> AsyncGenerator[str, None]:
    """The lines of an answer as the SDK expects them: without comments, and with a blank before the data.

    Lines end only at line feeds. The SDK would split at all of Python's line ends, which may be inside a text.
    """
    pending: list[bytes] = []
    async for piece in stream.aiter_bytes():
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line = _line(b"".join([*pending, end]))
            pending = []
            if not line.startswith(BESIDES):
                yield line
        pending.append(rest)
    if line := _line(b"".join(pending)):
        yield line


def _line(raw: bytes) -> str:
    line = raw.removesuffix(b"\r").decode("utf-8-sig", "replace")
    return f"data: {line[5:].lstrip()}" if line.startswith("data:") else line


async def _close(stream: Any) -> None:
    """Close a connection of httpx or aiohttp; an unfinished answer is cut off."""
    if hasattr(stream, "aclose"):
        await stream.aclose()
    elif hasattr(stream, "close"):
        stream.close()


def _path(model: str, *, vertex: bool) -> str:
    if model.startswith(("models/", "tunedModels/", "publishers/", "projects/")):
        return model
    if not vertex:
        return f"models/{model}"
    publisher, _, plain = model.rpartition("/")
    return f"publishers/{publisher or 'google'}/models/{plain}"
