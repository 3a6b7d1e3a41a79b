"""The model: calls Gemini through the SDK's client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import google.genai as genai
import httpx2
from google.auth.exceptions import GoogleAuthError

from windlass.deltas import AnyDelta
from windlass.errors import ConfigError
from windlass.keys import how_to_store
from windlass.messages import ModelReply, ModelRequest
from windlass.models.connections import Clients
from windlass.models.errors import reading_reply
from windlass.models.media import refuse_unsupported
from windlass.models.settings import merged, refuse_lacking
from windlass.models.tokens import Countable, as_request, count_in
from windlass.prices import context_window, costed, is_listed

from .encode import MEDIA, VENDOR, accepts
from .settings import LACKS, Encoder
from .streaming import Assembly
from .wire import Exchange, inside

API_VERSION = "v1beta"  # thinking, JSON schemas and cached content are not in v1, which is the SDK's default

KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
"""Variables in which the SDK finds a key, or which say that Google Cloud provides the credentials."""


class GoogleGemini:
    """A Gemini model. `client` may be any `genai.Client`, also for Vertex AI, which the caller must close; without one
    the key is `api_key`, or `GEMINI_API_KEY` or `GOOGLE_API_KEY` of the environment. With a `project`, or as
    `vertex:…`, the model is at Vertex AI.

    Settings are merged with those of each request, which win. Gemini's own settings go under `extra`, as in its JSON:
    `safetySettings`, `cachedContent`, `labels`, `generationConfig`, and `tools` that run at Google. One object serves
    any number of turns at once.
    """

    def __init__(
        self,
        model: str,
        *,
        client: genai.Client | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        settings: Mapping[str, Any] = {},
        name: str | None = None,
        project: str | None = None,
        location: str | None = None,
        vertex: bool = False,
    ) -> None:
        self.name = name or f"{VENDOR}:{model}"
        self._model = model
        self._settings = merged(settings, {})
        self.check_settings({})
        cloud = {"vertexai": True, "project": project, "location": location} if vertex or project else {}
        self._connection = _Connection(self.name, client, base_url, api_key, cloud)
        self._encoder = Encoder(model)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        refuse_lacking(self.name, LACKS, merged(self._settings, settings))

    def takes_output(self, request: ModelRequest) -> bool:
        """Whether the model can be given the schema of an answer, beside the tools of this request."""
        return self._encoder.takes_output(request, merged(self._settings, request.settings))

    @property
    def knows_cost(self) -> bool:
        """Whether the cost of replies is known."""
        return is_listed(self._address(), self._model.rpartition("/")[2])

    @property
    def context_window(self) -> int | None:
        """The size of the context window in tokens, if it is known."""
        return context_window(VENDOR, self._model.rpartition("/")[2])

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a request, and wait for the whole reply."""
        assembly = Assembly(newer=self._encoder.newer)
        assembly.feed(await self._exchange(request).whole())
        return self._with_cost(assembly)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Send a request, and yield the reply piece by piece. Closing the generator closes the connection."""
        assembly = Assembly(streamed=True, newer=self._encoder.newer)
        async with aclosing(self._exchange(request).chunks()) as chunks:
            async for chunk in chunks:
                for delta in assembly.feed(chunk):
                    yield delta
        yield self._with_cost(assembly)

    async def count_tokens(self, request: Countable) -> int:
        """The number of tokens in a request, or in one message, as the vendor counts them."""
        answer = await self._exchange(as_request(request)).count()
        with reading_reply():
            return count_in(answer, "totalTokens")

    async def aclose(self) -> None:
        """Close the connections that this model has opened on the running event loop."""
        await self._connection.close()

    def _with_cost(self, assembly: Assembly) -> ModelReply:
        with reading_reply():
            return costed(assembly.reply(), self._address(), self._model.rpartition("/")[2])

    def _address(self) -> str:
        """The address of the server, by which prices are found."""
        return inside(self._connection.client())._http_options.base_url or "google"

    def _exchange(self, request: ModelRequest) -> Exchange:
        refuse_unsupported(request.messages, accepts, self.name, MEDIA)
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings)
        client, version = self._connection.client(), self._connection.version
        return Exchange(client, self._model, body, settings.get("timeout"), version, settings.get("headers"))


class _Connection:
    """The client that was passed in, or our own for each event loop."""

    def __init__(
        self, name: str, client: object, base_url: str | None, api_key: str | None, cloud: Mapping[str, Any]
    ) -> None:
        if client is not None and not isinstance(client, genai.Client):
            raise ConfigError(f"client of {name!r} is a {type(client).__name__}; pass a google.genai.Client")
        self._client = client
        self.version = API_VERSION if client is None else None
        # One is made at once, so that a missing key is found at once; the first event loop uses it.
        spare = [] if client else [_Own.make(name, base_url, api_key, cloud)]
        inside(client or spare[0].client)
        self._own = Clients(lambda: spare.pop() if spare else _Own.make(name, base_url, api_key, cloud), _Own.close)

    def client(self) -> genai.Client:
        return self._own.current().client if self._client is None else self._client

    async def close(self) -> None:
        await self._own.close()


class _Own(NamedTuple):
    """Our own client and its HTTP client."""

    client: genai.Client
    http: httpx2.AsyncClient

    @classmethod
    def make(cls, name: str, base_url: str | None, api_key: str | None, cloud: Mapping[str, Any]) -> _Own:
        # Without a key, the SDK's client would leave a failing task behind.
        if not (api_key or cloud or any(map(os.environ.get, KEYS))):
            raise _missing_key(name, "the environment has none")
        # The SDK's own HTTP client would close itself on another loop when it is garbage collected, with a warning.
        http = httpx2.AsyncClient(timeout=None, follow_redirects=True)
        options = genai.types.HttpOptions(base_url=base_url, httpx_async_client=http)
        try:
            return cls(genai.Client(api_key=api_key, http_options=options, **cloud), http)
        except (ValueError, GoogleAuthError) as error:
            raise _missing_key(name, str(error)) from error

    async def close(self) -> None:
        await self.http.aclose()
        self.client.close()


def _missing_key(name: str, why: str) -> ConfigError:
    remedy = f"set GEMINI_API_KEY or GOOGLE_API_KEY, or pass api_key=… or client=…{how_to_store(name)}"
    return ConfigError(f"model={name!r} has no key: {remedy} ({why})")
