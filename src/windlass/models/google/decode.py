"""What Gemini says about an answer as a whole: usage, finish, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.messages import Usage

LENGTH = "MAX_TOKENS"
FILTERED = frozenset(
    [
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    ]
)


def finish_of(raw: str, *, calls: bool) -> str:
    """The finish in our words. Gemini says STOP after calls too."""
    if raw == "STOP":
        return "tool_calls" if calls else "stop"
    if raw == LENGTH:
        return "length"
    return "content_filter" if raw in FILTERED else "other"


def usage_of(said: Mapping[str, Any]) -> Usage:
    """The usage in our words: thoughts are output, and what a vendor's tool put into the prompt is input."""
    thoughts = said.get("thoughtsTokenCount") or 0
    return Usage(
        input=(said.get("promptTokenCount") or 0) + (said.get("toolUsePromptTokenCount") or 0),
        output=(said.get("candidatesTokenCount") or 0) + thoughts,
        cached=said.get("cachedContentTokenCount") or 0,
        reasoning=thoughts,
    )
