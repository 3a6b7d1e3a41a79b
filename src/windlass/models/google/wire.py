"""One request and its answer, as JSON, over the connection of the SDK's client.

The SDK's typed methods drop what they do not know from an answer, send requests of their own (`CONTINUATION`, tool
calls) and validate the whole conversation anew at each step; the client below them has the keys, the addresses and the
connections, and hands out the JSON as it came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.genai.types import HttpOptions, HttpRetryOptions

NO_RETRY = HttpRetryOptions(attempts=1)


class Exchange:
    """A request that can be made once: `whole`, or `open`, `chunks` and `close`."""

    def __init__(self, client: Any, model: str, body: dict[str, Any], timeout: float | None) -> None:
        self._api: Any = client._api_client
        self._path = _path(model, vertex=bool(self._api.vertexai))
        self._body = body
        milliseconds = None if timeout is None else max(1, round(timeout * 1000))
        self._options = HttpOptions(timeout=milliseconds, retry_options=NO_RETRY)
        self._response: Any = None

    async def whole(self) -> Any:
        """The whole answer."""
        self._response = await self._send("generateContent", stream=False)
        return self._response.json

    async def open(self) -> None:
        """Send the request for a stream and wait for the head of the answer."""
        self._response = await self._send("streamGenerateContent?alt=sse", stream=True)

    def chunks(self) -> AsyncIterator[Any]:
        """The pieces of the answer, as they come."""
        pieces: AsyncIterator[Any] = self._response.async_segments()
        return pieces

    async def close(self) -> None:
        """Let go of the connection; if the answer has not ended, that ends it."""
        stream: Any = getattr(self._response, "response_stream", None)
        if hasattr(stream, "aclose"):
            await stream.aclose()
        elif stream is not None:
            stream.close()

    async def _send(self, verb: str, *, stream: bool) -> Any:
        request = self._api._build_request("post", f"{self._path}:{verb}", self._body, self._options)
        return await self._api._async_request(request, self._options, stream)


def _path(model: str, *, vertex: bool) -> str:
    if model.startswith(("models/", "tunedModels/", "publishers/", "projects/")):
        return model
    if not vertex:
        return f"models/{model}"
    publisher, _, plain = model.rpartition("/")
    return f"publishers/{publisher or 'google'}/models/{plain}"
