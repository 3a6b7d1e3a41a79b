"""Anthropic's SDK: its client, its key and its errors."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

import httpx2
from anthropic import AnthropicError, AsyncAnthropic, AsyncStream, DefaultAsyncHttpxClient

from windlass.errors import ConfigError, ModelError
from windlass.keys import how_to_store
from windlass.models.connections import Connection, Sdk

from .errors import error_from, translate_error

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def connection(name: str, client: Any, base_url: str | None, api_key: str | None) -> Connection:
    """The connection of a model: through the client that was passed in, or to a server address."""
    base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL")
    if client is not None:
        _check(client)
    elif base_url is None and api_key is None and not any(map(os.environ.get, KEYS)):
        _check_credentials(name)

    def make() -> AsyncAnthropic:
        key = _key(api_key, base_url)
        return AsyncAnthropic(base_url=base_url, api_key=key, max_retries=0, http_client=DefaultAsyncHttpxClient())

    return Connection(Sdk(AsyncStream[object], translate_error, _error_in), client, make)


def _check(client: Any) -> None:
    ours = any(kind.__module__.partition(".")[0] == "anthropic" for kind in client.__class__.__mro__)
    if not ours or not inspect.iscoroutinefunction(client.post):
        wrong = "not asynchronous" if ours else "not one of Anthropic's"
        hint = "an AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex or the like"
        raise ConfigError(f"client is a {type(client).__name__}, which is {wrong}; pass {hint}")


def _check_credentials(name: str) -> None:
    """Raise if the SDK finds no credentials; it also looks for profiles and federated identities."""
    remedy = f"set ANTHROPIC_API_KEY, or pass api_key=… or client=…{how_to_store(name)}"
    try:
        found = AsyncAnthropic(http_client=httpx2.AsyncClient())
    except AnthropicError as error:
        raise ConfigError(f"model={name!r} has no key: {remedy} ({error})") from error
    if found.api_key is None and found.auth_token is None and getattr(found, "credentials", None) is None:
        raise ConfigError(f"model={name!r} has no key: {remedy}")


def _key(api_key: str | None, base_url: str | None) -> str | None:
    """The key for the SDK, which finds keys in the environment by itself. A private server may need no key, but the SDK
    requires one."""
    found = api_key or any(map(os.environ.get, KEYS))
    return api_key if found or base_url is None else "none"


def _error_in(body: Any, response: httpx2.Response) -> ModelError | None:
    if isinstance(body, Mapping) and body.get("type") == "error":
        return error_from(body, response.status_code, response.headers)
    return None


__all__ = ["connection"]
