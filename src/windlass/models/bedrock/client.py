"""The model: asks Bedrock's Converse."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import httpx2

from windlass.deltas import AnyDelta
from windlass.messages import ModelReply, ModelRequest
from windlass.models.errors import understood
from windlass.models.settings import narrowed
from windlass.prices import context_window

from .connection import connection
from .decode import decode_reply
from .encode import VENDOR
from .requests import Requests
from .settings import merged
from .streaming import Assembly

PRICED = "aws"
"""What the price lists call the vendor."""


class BedrockConverse:
    """A model of Amazon Bedrock, by its id (`us.amazon.nova-micro-v1:0`), or by the ARN of a profile.

    Who asks is found where all of AWS's tools find it: `api_key` or `AWS_BEARER_TOKEN_BEDROCK`, else the credentials of
    `session` (one of botocore or boto3) or of the environment; so is the `region`. `client` is the HTTP client, and
    stays the caller's to close. Settings beyond those of all models: `cache` (True, False or a time to live such as
    "1h"), and in `extra` whatever Converse takes: `additionalModelRequestFields`, `guardrailConfig`, `serviceTier` …,
    joined with what we say. It knows no `seed` and no `parallel_tool_calls`.
    """

    def __init__(
        self,
        model: str,
        *,
        client: httpx2.AsyncClient | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        session: Any = None,
        region: str | None = None,
        settings: Mapping[str, Any] = {},
        name: str | None = None,
    ) -> None:
        self.name = name or f"{VENDOR}:{model}"
        self._settings = settings
        self.check_settings({})
        self._model = model
        self._path = f"/model/{quote(model, safe='')}"
        self._requests = Requests(model)
        self._connection = connection(self.name, client, base_url, api_key, session, region)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        merged(self._settings, settings)

    @property
    def context_window(self) -> int | None:
        """How many tokens the model can have before it, if that is known."""
        return context_window(PRICED, self._model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        request, settings = narrowed(request, merged(self._settings, request.settings))
        body = self._requests.body(request, settings)
        answer = await self._connection.post(f"{self._path}/converse", body, **_options(settings))
        with understood():
            return self._connection.costed(decode_reply(answer, self._model), self._model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        request, settings = narrowed(request, merged(self._settings, request.settings))
        body, options = self._requests.body(request, settings), _options(settings)
        path, hearing = f"{self._path}/converse-stream", Assembly(self._model)
        async with aclosing(self._connection.hear(path, body, hearing, self._model, **options)) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Close the connections that this model has opened in the running event loop."""
        await self._connection.close()


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What goes with a request beside its body."""
    return {"headers": settings.get("headers"), "timeout": settings.get("timeout")}


__all__ = ["BedrockConverse"]
