"""Opens `vendor:model` for each vendor that implements OpenAI's APIs."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from .client import OpenAIChat
from .dialects import DIALECTS, Dialect


def _opener(vendor: str, dialect: Dialect | None) -> Callable[..., OpenAIChat]:
    def open_model(model: str, **options: Any) -> OpenAIChat:
        options.setdefault("name", f"{vendor}:{model}")
        return OpenAIChat(model, dialect=dialect, **options)

    open_model.__signature__ = signature(OpenAIChat)  # type: ignore[attr-defined]
    return open_model


openai_chat = _opener("openai-chat", None)
openrouter = _opener("openrouter", DIALECTS["openrouter"])
groq = _opener("groq", DIALECTS["groq"])
deepseek = _opener("deepseek", DIALECTS["deepseek"])
mistral = _opener("mistral", DIALECTS["mistral"])
ollama = _opener("ollama", DIALECTS["ollama"])

__all__ = ["deepseek", "groq", "mistral", "ollama", "openai_chat", "openrouter"]
