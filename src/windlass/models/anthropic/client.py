"""The model: calls Anthropic through its SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from windlass.deltas import AnyDelta
from windlass.errors import BadReply
from windlass.messages import ModelReply, ModelRequest
from windlass.models.errors import reading_reply
from windlass.models.history import Wire
from windlass.models.media import refuse_unsupported
from windlass.models.settings import merged, narrow_tools, refuse_lacking
from windlass.models.tokens import Countable, as_request, count_in
from windlass.prices import context_window, is_listed

from .connection import connection
from .decode import decode_reply
from .encode import MEDIA, VENDOR, accepts
from .requests import Requests
from .settings import LACKS
from .streaming import Assembly

PATH = "/v1/messages"
_NOT_COUNTED = (
    "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "service_tier", "metadata", "container", "stream",
    "inference_geo",
)  # fmt: skip
"""The fields that a request which only counts must not have."""
LONGEST_UNSTREAMED = 21_333
"""With more `max_tokens` a reply may take longer than a connection lasts, so it is always streamed."""


def _options(settings: Mapping[str, Any], body: Wire) -> Wire:
    """The options of the request besides its body."""
    headers = dict(settings.get("headers") or {})
    if betas := body.pop("betas", None):
        headers["anthropic-beta"] = betas if isinstance(betas, str) else ",".join(betas)
    return {"headers": headers or None, "timeout": settings.get("timeout")}


class AnthropicMessages:
    """A model of Anthropic's Messages API, or of any server that implements it.

    `client` may be any asynchronous client of the SDK (Bedrock, Vertex …); its retries are switched off, and the caller
    must close it. Further settings: `cache` (True, False or a time to live such as "1h"), and in `extra` any fields of
    the vendor. `tools` in `extra` are the vendor's own tools (one with the name of our tool replaces its description),
    and `betas` become a header.
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
        refuse_lacking(self.name, LACKS, merged(self._settings, settings))

    def takes_output(self, request: ModelRequest) -> bool:
        """Whether the model can be given the schema of an answer: older ones cannot."""
        return self._requests.takes_output

    @property
    def knows_cost(self) -> bool:
        """Whether the cost of replies is known."""
        return is_listed(str(self._connection.client().base_url), self._model)

    @property
    def context_window(self) -> int | None:
        """The size of the context window in tokens, if it is known."""
        return context_window(VENDOR, self._model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a request, and wait for the whole reply."""
        body, settings = self._request(request)
        if body["max_tokens"] > LONGEST_UNSTREAMED:
            return await self._streamed_reply(request)
        answer = await self._connection.post(PATH, body, **_options(settings, body))
        with reading_reply():
            return self._connection.finished(decode_reply(answer.body), self._model, answer.headers)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Send a request, and yield the reply piece by piece. Closing the generator closes the connection."""
        body, settings = self._request(request, streaming=True)
        stream = self._connection.stream(PATH, body, Assembly(), self._model, **_options(settings, body))
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                yield piece

    async def count_tokens(self, request: Countable) -> int:
        """The number of tokens in a request, or in one message, as the vendor counts them."""
        body, settings = self._request(as_request(request))
        options = _options(settings, body)
        counted = {name: value for name, value in body.items() if name not in _NOT_COUNTED}
        answer = await self._connection.post(f"{PATH}/count_tokens", counted, **options)
        with reading_reply():
            return count_in(answer.body, "input_tokens")

    async def aclose(self) -> None:
        """Close the connections that this model has opened on the running event loop."""
        await self._connection.close()

    def _request(self, request: ModelRequest, *, streaming: bool = False) -> tuple[Wire, dict[str, Any]]:
        """The body of a request, and its settings."""
        refuse_unsupported(request.messages, accepts, self.name, MEDIA)
        request, settings = narrow_tools(request, merged(self._settings, request.settings))
        return self._requests.body(request, settings, streaming=streaming), settings

    async def _streamed_reply(self, request: ModelRequest) -> ModelReply:
        async with aclosing(self.stream(request)) as stream:
            async for piece in stream:
                if isinstance(piece, ModelReply):
                    return piece
        raise BadReply("the stream ended without a reply")


__all__ = ["AnthropicMessages", "LONGEST_UNSTREAMED"]
