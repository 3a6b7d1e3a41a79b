"""OpenAI's SDK: which client is asked, with which key, and how its streams and errors are read."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient

from windlass.errors import ConfigError, ModelError
from windlass.models.connections import Connection, Sdk
from windlass.models.errors import request_id

from .dialects import Dialect
from .errors import said, translated


class _Events(AsyncStream[object]):
    """The SDK's stream, which also knows whether the server has said that it is done.

    Signs of life have no data, and the SDK would stumble over them.
    """

    done = False

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            self.done = self.done or event.data.startswith("[DONE]")
            if event.data.strip() not in ("", "null"):
                yield event


def connection(name: str, client: object, base_url: str | None, api_key: str | None, dialect: Dialect) -> Connection:
    """The connection of a model: by the client that was passed in, or to the server at an address."""
    address = base_url or dialect.base_url

    def key() -> str:
        return _key(name, api_key, dialect, base_url)

    if client is None:
        key()

    def made() -> AsyncOpenAI:
        return AsyncOpenAI(
            api_key=key(),
            base_url=address,
            max_retries=0,
            default_headers=_headers(address),
            http_client=DefaultAsyncHttpxClient(),
        )

    return Connection(Sdk(_Events, translated, _told), None if client is None else _checked(client), made)


def _key(name: str, given: str | None, dialect: Dialect, base_url: str | None) -> str:
    """The key that was given or is in the environment. A server of one's own may want none, and the SDK wants one."""
    variable = dialect.key
    key = given or (os.environ.get(variable) if variable else None)
    if key or variable is None or not dialect.at(base_url):
        return key or "none"
    raise ConfigError(f"model={name!r} has no key: set {variable}, or pass api_key=… or client=…")


def _headers(address: str | None) -> dict[str, str]:
    """A plain server nearby gets a new connection each time, which costs nothing: llama.cpp drops used ones unsaid."""
    return {"Connection": "close"} if address is not None and address.startswith("http://") else {}


def _checked(client: object) -> AsyncOpenAI:
    if isinstance(client, AsyncOpenAI):
        return client
    kind = type(client).__name__
    hint = f"this one is not asynchronous: pass an Async{kind}" if hasattr(client, "chat") else "pass an AsyncOpenAI"
    raise ConfigError(f"client is a {kind}; {hint}, or one made from it (AsyncAzureOpenAI …)")


def _told(body: Any, response: httpx2.Response) -> ModelError | None:
    if isinstance(body, dict) and body.get("error") and not body.keys() & {"choices", "output", "status"}:
        return said(body["error"], request_id=request_id(response.headers))
    return None
