"""Opens models by name: `"anthropic:claude-…"`. A vendor's SDK is imported when its first model is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

from windlass.errors import ConfigError
from windlass.prices import AnyPrice, Price
from windlass.protocols import Model

from .priced import PricedModel
from .settings import COMMON, did_you_mean

# vendor: (module, class, the extra that installs its dependencies)
VENDORS: dict[str, tuple[str, str, str]] = {
    "openai": ("windlass.models.openai", "OpenAIChat", "openai"),
    "openai-chat": ("windlass.models.openai.vendors", "openai_chat", "openai"),
    "openai-responses": ("windlass.models.openai", "OpenAIResponses", "openai"),
    "openrouter": ("windlass.models.openai.vendors", "openrouter", "openai"),
    "groq": ("windlass.models.openai.vendors", "groq", "openai"),
    "deepseek": ("windlass.models.openai.vendors", "deepseek", "openai"),
    "mistral": ("windlass.models.openai.vendors", "mistral", "openai"),
    "azure": ("windlass.models.openai.vendors", "azure", "openai"),
    "xai": ("windlass.models.openai.vendors", "xai", "openai"),
    "together": ("windlass.models.openai.vendors", "together", "openai"),
    "fireworks": ("windlass.models.openai.vendors", "fireworks", "openai"),
    "cerebras": ("windlass.models.openai.vendors", "cerebras", "openai"),
    "huggingface": ("windlass.models.openai.vendors", "huggingface", "openai"),
    "moonshot": ("windlass.models.openai.vendors", "moonshot", "openai"),
    "ollama": ("windlass.models.openai.vendors", "ollama", "openai"),
    "lmstudio": ("windlass.models.openai.vendors", "lmstudio", "openai"),
    "vllm": ("windlass.models.openai.vendors", "vllm", "openai"),
    "anthropic": ("windlass.models.anthropic", "AnthropicMessages", "anthropic"),
    "google": ("windlass.models.google", "GoogleGemini", "google"),
    "vertex": ("windlass.models.google.vertex", "vertex", "google"),
    "bedrock": ("windlass.models.bedrock", "BedrockConverse", "bedrock"),
    "local": ("windlass.models.local", "LocalModel", "local"),
}


def open_model(name: str, *, price: AnyPrice | None = None, **options: Any) -> Model:
    """Open the model `vendor:model`. Options go to the vendor's adapter (`base_url`, `api_key`, `client` …).

    If neither the options nor the environment have a key, the one that `windlass keys set` stored is used.

    `price` is its price: a `Price`, or `(input, output)` in USD per million tokens. Without one, the price lists of
    genai-prices are used, if they have the model at that address.
    """
    vendor, model = check_model_name(name)
    module, made, extra = VENDORS[vendor]
    command = f"pip install 'windlass[{extra}]'" + (" && windlass local install" if vendor == "local" else "")
    try:
        adapter = getattr(import_module(module), made)
    except ImportError as error:
        if error.name is not None and error.name.startswith("windlass"):
            raise
        raise ConfigError(f"model={name!r} needs {_missing(error)}: {command}") from error
    _check_options(name, adapter, options)
    if not options.keys() & {"api_key", "base_url", "client"}:
        from windlass.keys import stored_key

        if (key := stored_key(vendor)) is not None:
            options["api_key"] = key
    opened: Model = adapter(model, **options)
    return opened if price is None else PricedModel(opened, price)


def check_model_name(name: str) -> tuple[str, str]:
    """The vendor and the model in `vendor:model`. Raises `ConfigError` if there is no such vendor."""
    vendor, _, model = name.partition(":")
    if not model or vendor not in VENDORS:
        known = ", ".join(f"{vendor}:…" for vendor in VENDORS)
        raise ConfigError(f"model={name!r} is not a model: use {_suggestion(name)}; vendors: {known}")
    return vendor, model


_ALIASES = {
    "gemini": "google", "claude": "anthropic", "grok": "xai", "kimi": "moonshot", "hf": "huggingface", "aws": "bedrock",
    "gpt": "openai", "google-vertex": "vertex", "vertexai": "vertex", "vertex-ai": "vertex", "azure-openai": "azure",
    "x-ai": "xai", "lm-studio": "lmstudio", "moonshotai": "moonshot", "together-ai": "together", "llama.cpp": "local",
}  # fmt: skip
"""Names that people use for vendors."""
_MODELS = {"gpt": "openai", "o": "openai", "claude": "anthropic", "gemini": "google", "grok": "xai", "kimi": "moonshot"}
"""The vendors of models, by the beginnings of their names."""


def _suggestion(name: str) -> str:
    """A valid name in place of one without a vendor, or with a misspelt one."""
    given, found, model = name.replace("/", ":", 1).partition(":") if ":" not in name else name.partition(":")
    if found and model:
        from difflib import get_close_matches

        plain = given.lower().replace("_", "-")
        close = [plain] if plain in VENDORS else get_close_matches(plain, [*VENDORS, *_ALIASES], 1, 0.75)
        vendor = _ALIASES.get(close[0], close[0]) if close else None
        if vendor:
            return f"'{vendor}:{model}'"
    vendor = _MODELS.get(name.partition("-")[0].rstrip("0123456789."))
    return f"'{vendor}:{name}'" if vendor and ":" not in name else "'vendor:model', such as 'openai:gpt-5'"


def _check_options(name: str, adapter: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that the adapter does not have."""
    known = [*list(signature(adapter).parameters)[1:], "price"]
    for option in options:
        if option not in known:
            meant = did_you_mean(option, known)
            setting = f"; it is a setting: use settings={{{option!r}: …}}" if option in COMMON else ""
            text = f"model={name!r} has no option {option!r}{meant}{setting}"
            raise ConfigError(f"{text}; the options are {', '.join(known)}")


def _missing(error: ImportError) -> str:
    """What an import lacks: a module, or a name in an installed one."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name!r}, which is not installed"
    return f"a package that is missing or out of date ({error})"


__all__ = ["Price", "PricedModel", "open_model"]
