"""Opens `vendor:model` for each vendor that implements OpenAI's APIs, with its usual environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncOpenAI

from windlass.errors import ConfigError

from .client import OpenAIChat
from .dialects import AZURE, DIALECTS, Dialect

OLLAMAS_PORT = 11434


def _opener(vendor: str, dialect: Dialect | None) -> Callable[..., OpenAIChat]:
    def open_model(model: str, **options: Any) -> OpenAIChat:
        options.setdefault("name", f"{vendor}:{model}")
        if dialect is not None and options.get("client") is None and not options.get("base_url"):
            options["base_url"] = _address(vendor)
        options.setdefault("dialect", dialect)
        return OpenAIChat(model, **options)

    open_model.__signature__ = signature(OpenAIChat)  # type: ignore[attr-defined]
    return open_model


def _address(vendor: str) -> str | None:
    """The address of a vendor's server in the environment: `GROQ_BASE_URL` and so on, or `OLLAMA_HOST`."""
    address = os.environ.get(f"{vendor.upper()}_BASE_URL")
    if not address and vendor == "ollama" and (host := os.environ.get("OLLAMA_HOST", "").strip()):
        return ollamas_address(host)
    return address or None


def ollamas_address(host: str) -> str:
    """The address for an `OLLAMA_HOST`, which Ollama's own tools read alike: scheme and port may be missing, and the
    server may listen everywhere."""
    bare = f"[{host}]" if host.count(":") > 1 and "[" not in host and "://" not in host else host  # an IPv6 address
    try:
        given = urlsplit(bare if "://" in bare else f"http://{bare}")
        port = given.port or (OLLAMAS_PORT if "://" not in bare else None)
    except ValueError as error:
        raise ConfigError(f"OLLAMA_HOST={host!r} is not an address: {error}") from None
    name = given.hostname or "127.0.0.1"
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(name, f"[{name}]" if ":" in name else name)
    place = f"{name}:{port}" if port else name
    path = given.path.rstrip("/")
    return f"{given.scheme}://{place}{path if path.endswith('/v1') else f'{path}/v1'}"


def azure(
    model: str,
    *,
    client: AsyncOpenAI | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    api_version: str | None = None,
    settings: Mapping[str, Any] = {},
    name: str | None = None,
    think_tags: bool | tuple[str, str] | None = None,
) -> OpenAIChat:
    """A deployment at Azure OpenAI, by its name. Address and key are `base_url` and `api_key`, or
    `AZURE_OPENAI_ENDPOINT` and `AZURE_OPENAI_API_KEY`; for tokens of Entra ID, pass a client.

    With `api_version` or `OPENAI_API_VERSION` the API with dated versions is used, else the one without versions.
    """
    name = name or f"azure:{model}"
    dialect = AZURE
    if client is None:
        endpoint = (base_url or os.environ.get("AZURE_OPENAI_ENDPOINT") or "").rstrip("/")
        if not endpoint:
            raise ConfigError(
                f"model={name!r} has no address: set AZURE_OPENAI_ENDPOINT, or pass base_url=… or client=…"
            )
        api_key = api_key or os.environ.get(AZURE.key or "")
        if not api_key:
            raise ConfigError(f"model={name!r} has no key: set {AZURE.key}, or pass api_key=… or client=…")
        version = api_version or os.environ.get("OPENAI_API_VERSION") or ""
        if version and "/openai/v1" not in endpoint:
            dialect = AZURE.replace(version=version)
        base_url = endpoint if dialect.version or "/openai/v1" in endpoint else f"{endpoint}/openai/v1"
    return OpenAIChat(
        model, client=client, base_url=base_url, api_key=api_key, settings=settings, name=name, dialect=dialect,
        think_tags=think_tags,
    )  # fmt: skip


openai_chat = _opener("openai-chat", None)
openrouter = _opener("openrouter", DIALECTS["openrouter"])
groq = _opener("groq", DIALECTS["groq"])
deepseek = _opener("deepseek", DIALECTS["deepseek"])
mistral = _opener("mistral", DIALECTS["mistral"])
ollama = _opener("ollama", DIALECTS["ollama"])
xai = _opener("xai", DIALECTS["xai"])
together = _opener("together", DIALECTS["together"])
fireworks = _opener("fireworks", DIALECTS["fireworks"])
cerebras = _opener("cerebras", DIALECTS["cerebras"])
huggingface = _opener("huggingface", DIALECTS["huggingface"])
moonshot = _opener("moonshot", DIALECTS["moonshot"])
lmstudio = _opener("lmstudio", DIALECTS["lmstudio"])
vllm = _opener("vllm", DIALECTS["vllm"])

__all__ = [
    "azure",
    "cerebras",
    "deepseek",
    "fireworks",
    "groq",
    "huggingface",
    "lmstudio",
    "mistral",
    "moonshot",
    "ollama",
    "openai_chat",
    "openrouter",
    "together",
    "vllm",
    "xai",
]
