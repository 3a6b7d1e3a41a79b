"""OpenAI's SDK: its client, its key, its streams and its errors."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from openai import AsyncAzureOpenAI, AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient

from windlass.errors import ConfigError, ModelError
from windlass.keys import how_to_store
from windlass.models.connections import Connection, Sdk
from windlass.models.errors import request_id

from .dialects import Dialect
from .errors import error_from, translate_error


class _Events(AsyncStream[object]):
    """The SDK's stream, which also knows whether the server has reported the end.

    Keep-alive events have no data, and the SDK would fail on them, so they are skipped.
    """

    done = False

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            self.done = self.done or event.data.startswith("[DONE]")
            if event.data.strip() not in ("", "null"):
                yield event


def connection(name: str, client: object, base_url: str | None, api_key: str | None, dialect: Dialect) -> Connection:
    """The connection of a model: through the client that was passed in, or to a server address."""
    address = base_url or dialect.base_url

    def key() -> str:
        return _key(name, api_key, dialect, base_url)

    if client is None:
        key()

    def make() -> AsyncOpenAI:
        common: dict[str, Any] = {"api_key": key(), "max_retries": 0, "http_client": DefaultAsyncHttpxClient()}
        if dialect.version and address:
            return AsyncAzureOpenAI(azure_endpoint=address, api_version=dialect.version, **common)
        return AsyncOpenAI(base_url=address, default_headers=_headers(address), **common)

    return Connection(Sdk(_Events, translate_error, _error_in), None if client is None else _checked(client), make)


def _key(name: str, api_key: str | None, dialect: Dialect, base_url: str | None) -> str:
    """The key that was passed in or is in the environment. A private server may need none, but the SDK requires one."""
    variable = dialect.key
    key = api_key or (os.environ.get(variable) if variable else None)
    if key or variable is None or dialect.key_optional or not dialect.at(base_url):
        return key or "none"
    raise ConfigError(f"model={name!r} has no key: set {variable}, or pass api_key=… or client=…{how_to_store(name)}")


def _headers(address: str | None) -> dict[str, str]:
    """Use a new connection for each request to a plain HTTP server: llama.cpp drops used ones without notice."""
    return {"Connection": "close"} if address is not None and address.startswith("http://") else {}


def _checked(client: object) -> AsyncOpenAI:
    if isinstance(client, AsyncOpenAI):
        return client
    kind = type(client).__name__
    hint = f"it is not asynchronous: pass an Async{kind}" if hasattr(client, "chat") else "pass an AsyncOpenAI"
    raise ConfigError(f"client is a {kind}; {hint}, or a subclass (AsyncAzureOpenAI …)")


def _error_in(body: Any, response: httpx2.Response) -> ModelError | None:
    if isinstance(body, dict) and body.get("error") and not body.keys() & {"choices", "output", "status"}:
        return error_from(body["error"], request_id=request_id(response.headers))
    return None
