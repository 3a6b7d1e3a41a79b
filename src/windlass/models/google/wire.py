"""One request and its answer, as JSON, over the connection of the SDK's client.

The SDK's public methods do not do: for a stream they hand out typed objects from which all that the SDK does not know
has been removed (and refuse `should_return_http_response`, which gives the JSON of a whole answer), they send requests
of their own (`CONTINUATION`, tool calls), and they copy the whole conversation anew at each step. The client below
them has the keys, the addresses and the connections, and hands out the JSON as it came; it is private, so three names
of it are used here and nowhere else, `inside` checks that they are there, and the extra stays below the next version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google import genai
from google.genai.types import HttpOptions, HttpRetryOptions

from windlass.errors import ConfigError
from windlass.models.errors import translating

from .errors import translated, translated_in_stream

PATIENCE = 600.0
"""How many seconds a whole answer, or the next chunk of one, may take unless `timeout` says. The SDK waits for ever."""

NO_RETRY = HttpRetryOptions(attempts=1)
BESIDES = (":", "event:", "id:", "retry:")
"""How lines begin that belong to the protocol of streams, and say nothing to us."""
USED = ("_build_request", "_async_request", "vertexai")


def inside(client: object) -> Any:
    """The client within a client, if it is as this module knows it."""
    inner = getattr(client, "_api_client", None)
    if missing := [name for name in USED if not hasattr(inner, name)]:
        text = f"google-genai {genai.__version__} has no {', '.join(missing)} any more"
        raise ConfigError(f"{text}: install a version that this adapter knows, 'google-genai>=3,<4'")
    return inner


class Exchange:
    """A request that can be made once. `version` is that of the API, if it is not for the client to say."""

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
        with translating(translated):
            async with asyncio.timeout(self._patience):
                response = await self._send("generateContent", stream=False)
            return response.json

    async def chunks(self) -> AsyncGenerator[Any, None]:
        """The pieces of the answer, as they come. Closing this closes the connection."""
        with translating(translated_in_stream):
            async with asyncio.timeout(self._patience):
                response = await self._send("streamGenerateContent?alt=sse", stream=True)
        if hasattr(response.response_stream, "aiter_bytes"):
            response.response_stream.aiter_lines = partial(_lines, response.response_stream)
        pieces: AsyncGenerator[Any, None] = response.async_segments()
        try:
            while True:
                with translating(translated_in_stream):
                    try:
                        async with asyncio.timeout(self._patience):
                            chunk = await anext(pieces)
                    except StopAsyncIteration:
                        return
                yield chunk
        finally:
            # What is behind the pieces is closed first: closing them would leave it to the garbage collector.
            await _close(response.response_stream)
            await pieces.aclose()

    async def _send(self, verb: str, *, stream: bool) -> Any:
        request = self._api._build_request("post", f"{self._path}:{verb}", self._body, self._options)
        return await self._api._async_request(request, self._options, stream)


async def _lines(stream: Any) -> AsyncGenerator[str, None]:
    """The lines of an answer as the SDK understands them: without comments, and with a blank before the data.

    They end at line feeds only. The SDK's own end wherever Python ends lines, which may be in the middle of a text.
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
    """Let go of a connection, which is one of httpx or of aiohttp; if the answer has not ended, that ends it."""
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
