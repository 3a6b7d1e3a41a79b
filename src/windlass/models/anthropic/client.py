"""The model: asks Anthropic through its SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from windlass.deltas import AnyDelta
from windlass.errors import BadReply
from windlass.messages import ModelReply, ModelRequest, thawed

from .decode import decode_reply
from .encode import VENDOR, Encoder
from .errors import translating
from .settings import betas, checked_settings, encode_body, merged_settings
from .streaming import Assembly

LONGEST_UNSTREAMED = 8192
"""With more `max_tokens` a reply may take longer than connections live; it is then streamed, whoever asks."""


class AnthropicMessages:
    """A model of Anthropic's Messages API.

    `client` may be any asynchronous client of the SDK (Bedrock, Vertex …); its own retries are switched off. Settings
    beyond those of all models: `cache` (True, False or a time to live such as "1h") and in `extra` whatever the vendor
    takes: `tools` there are those it executes itself, and `betas` are sent as the header.
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
        import anthropic

        self.name = name or f"{VENDOR}:{model}"
        self._model = model
        self._settings = checked_settings(settings)
        made = client or anthropic.AsyncAnthropic(base_url=base_url, api_key=api_key)
        self._client: Any = made.with_options(max_retries=0)
        self._encoder = Encoder()
        self._schema: tuple[Any, Any] = (None, None)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Answer a request."""
        asked = self._asked(request)
        if asked["max_tokens"] > LONGEST_UNSTREAMED:
            return await self._whole(request)
        with translating():
            return decode_reply(await self._client.messages.create(**asked))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Answer a request piece by piece; closing the generator closes the connection."""
        assembly = Assembly()
        with translating():
            async with await self._client.messages.create(**self._asked(request), stream=True) as events:
                async for event in events:
                    delta = assembly.feed(event)
                    if delta is not None:
                        yield delta
        yield assembly.reply()

    async def _whole(self, request: ModelRequest) -> ModelReply:
        async for event in self.stream(request):
            if isinstance(event, ModelReply):
                return event
        raise BadReply("the stream gave no reply")

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        """What the SDK is called with. It knows settings by version; in `extra_body` it takes them all."""
        settings = merged_settings(self._settings, request.settings)
        body = encode_body(self._encoder, request, settings, self._output_schema(request.output))
        asked: dict[str, Any] = {name: body.pop(name) for name in ("messages", "max_tokens")}
        asked |= {"model": self._model, "extra_headers": betas(body), "extra_body": body}
        if settings.get("timeout") is not None:
            asked["timeout"] = settings["timeout"]
        return asked

    def _output_schema(self, schema: Mapping[str, Any] | None) -> Any:
        """The schema of the output as far as the vendor takes it; the rest becomes description."""
        if schema is None:
            return None
        if self._schema[0] is not schema:
            from anthropic import transform_schema

            self._schema = (schema, transform_schema(thawed(schema)))
        return self._schema[1]


__all__ = ["AnthropicMessages", "LONGEST_UNSTREAMED"]
