"""The model: asks Gemini through the SDK's client and translates what comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from google import genai

from windlass.deltas import AnyDelta
from windlass.errors import ConfigError
from windlass.messages import ModelReply, ModelRequest

from .encode import Encoder
from .errors import translated
from .streaming import Assembly
from .wire import Exchange

API_VERSION = "v1beta"  # thinking, JSON schemas and cached content are not in v1


class GoogleGemini:
    """A Gemini model. `client` may be any `genai.Client`, one for Vertex AI too; without one the key is `api_key`, or
    `GEMINI_API_KEY` or `GOOGLE_API_KEY` of the environment.

    One object serves any number of turns at once.
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
        self.model = model
        self.name = name or f"google:{model}"
        self.settings = dict(settings)
        self.client = client if client is not None else _client(self.name, base_url, api_key)
        self._encoder = Encoder(model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Answer a request, or raise a `ModelError`."""
        exchange = self._exchange(request)
        try:
            answer = await exchange.whole()
        except Exception as error:
            raise translated(error) from error
        assembly = Assembly()
        assembly.feed(answer)
        return assembly.reply()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Answer a request piece by piece; last of all comes the whole reply."""
        exchange = self._exchange(request)
        assembly = Assembly()
        try:
            await exchange.open()
            async for chunk in exchange.chunks():
                for delta in assembly.feed(chunk):
                    yield delta
        except Exception as error:
            raise translated(error, streaming=True) from error
        finally:
            await exchange.close()
        yield assembly.reply()

    def _exchange(self, request: ModelRequest) -> Exchange:
        settings = {**self.settings, **request.settings}
        return Exchange(self.client, self.model, self._encoder.body(request, settings), settings.get("timeout"))


def _client(name: str, base_url: str | None, api_key: str | None) -> Any:
    options = genai.types.HttpOptions(base_url=base_url, api_version=API_VERSION)
    try:
        return genai.Client(api_key=api_key, http_options=options)
    except ValueError as error:
        text = f"model={name!r} has no key: set GEMINI_API_KEY, or pass api_key=… or client=…"
        raise ConfigError(text) from error
