"""What `vendor:model` opens, for each vendor that speaks OpenAI's protocols."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from .client import OpenAIChat
from .dialects import DIALECTS, Dialect


def _opening(vendor: str, dialect: Dialect | None) -> Callable[..., OpenAIChat]:
    def opened(model: str, **options: Any) -> OpenAIChat:
        options.setdefault("name", f"{vendor}:{model}")
        return OpenAIChat(model, dialect=dialect, **options)

    opened.__signature__ = signature(OpenAIChat)  # type: ignore[attr-defined]
    return opened


openai_chat = _opening("openai-chat", None)
openrouter = _opening("openrouter", DIALECTS["openrouter"])
groq = _opening("groq", DIALECTS["groq"])
deepseek = _opening("deepseek", DIALECTS["deepseek"])
mistral = _opening("mistral", DIALECTS["mistral"])
ollama = _opening("ollama", DIALECTS["ollama"])

__all__ = ["deepseek", "groq", "mistral", "ollama", "openai_chat", "openrouter"]
