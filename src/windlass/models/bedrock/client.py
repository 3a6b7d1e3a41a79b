"""The model: calls Bedrock's Converse API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import httpx2

from windlass.deltas import AnyDelta
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
from .families import family
from .requests import Requests
from .settings import LACKS
from .streaming import Assembly

_COUNTED = ("messages", "system", "toolConfig", "additionalModelRequestFields")
"""The fields of a request that count."""
PRICED = "aws"
"""The name of the vendor in the price lists."""


class BedrockConverse:
    """A model of Amazon Bedrock, by its id (`us.amazon.nova-micro-v1:0`), or by the ARN of a profile.

    Credentials are found as by AWS's own tools: `api_key` or `AWS_BEARER_TOKEN_BEDROCK`, else the credentials of
    `session` (from botocore or boto3) or of the environment; likewise the `region`. `client` is the HTTP client, which
    the caller must close. Further settings: `cache` (True, False or a time to live such as "1h"), and in `extra` any
    fields of Converse, which are merged with ours: `additionalModelRequestFields`, `guardrailConfig` …
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
        self._model = model
        self._settings = settings
        self.check_settings({})
        self._path = f"/model/{quote(model, safe='')}"
        self._requests = Requests(model)
        self._connection = connection(self.name, client, base_url, api_key, session, region)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        lacks = LACKS if family(self._model).top_k else (*LACKS, "top_k")
        refuse_lacking(self.name, lacks, merged(self._settings, settings))

    def takes_output(self, request: ModelRequest) -> bool:
        """Whether the model can be given the schema of an answer."""
        return family(self._model).output

    @property
    def knows_cost(self) -> bool:
        """Whether the cost of replies is known."""
        return is_listed(str(self._connection.client().base_url), self._model)

    @property
    def context_window(self) -> int | None:
        """The size of the context window in tokens, if it is known."""
        return context_window(PRICED, self._model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a request, and wait for the whole reply."""
        body, settings = self._request(request)
        answer = await self._connection.post(f"{self._path}/converse", body, **_options(settings))
        with reading_reply():
            return self._connection.finished(decode_reply(answer.body, self._model), self._model, answer.headers)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Send a request, and yield the reply piece by piece. Closing the generator closes the connection."""
        body, settings = self._request(request)
        options = _options(settings)
        path, reader = f"{self._path}/converse-stream", Assembly(self._model)
        async with aclosing(self._connection.stream(path, body, reader, self._model, **options)) as pieces:
            async for piece in pieces:
                yield piece

    async def count_tokens(self, request: Countable) -> int:
        """The number of tokens in a request, or in one message, as the vendor counts them. Not every model can."""
        body, settings = self._request(as_request(request))
        counted = {name: body[name] for name in _COUNTED if name in body}
        answer = await self._connection.post(
            f"{self._path}/count-tokens", {"input": {"converse": counted}}, **_options(settings)
        )
        with reading_reply():
            return count_in(answer.body, "inputTokens")

    def _request(self, request: ModelRequest) -> tuple[Wire, dict[str, Any]]:
        """The body of a request, and its settings."""
        refuse_unsupported(request.messages, accepts, self.name, MEDIA)
        request, settings = narrow_tools(request, merged(self._settings, request.settings))
        return self._requests.body(request, settings), settings

    async def aclose(self) -> None:
        """Close the connections that this model has opened on the running event loop."""
        await self._connection.close()


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request besides its body."""
    return {"headers": settings.get("headers"), "timeout": settings.get("timeout")}


__all__ = ["BedrockConverse"]
