"""What Gemini says about an answer as a whole: usage, finish, and why there is none."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from windlass.messages import ImagePart, Usage

FINISHES = {
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(
        [
            "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "JAILBREAK",
            "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
        ],
        "content_filter",
    ),
}  # fmt: skip
# The model has written something that Gemini could not read, so that there is no answer to speak of.
MALFORMED = ("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL")


def finish_of(raw: str | None, *, calls: bool) -> str:
    """The finish in our words. Gemini says STOP after calls too, and a whole answer may lack it."""
    if raw in ("STOP", None):
        return "tool_calls" if calls else "stop"
    return FINISHES.get(raw, "other")


def usage_of(said: Mapping[str, Any]) -> Usage:
    """The usage in our words: thoughts are output, and what a vendor's tool put into the prompt is input."""
    thoughts = said.get("thoughtsTokenCount") or 0
    return Usage(
        input=(said.get("promptTokenCount") or 0) + (said.get("toolUsePromptTokenCount") or 0),
        output=(said.get("candidatesTokenCount") or 0) + thoughts,
        cached=said.get("cachedContentTokenCount") or 0,
        reasoning=thoughts,
    )


def image_of(part: Mapping[str, Any]) -> ImagePart | None:
    """The image in a part, if it is one that the model shows and does not only think of."""
    data = part.get("inlineData") or part.get("fileData") or {}
    kind = data.get("mimeType") or ""
    if part.get("thought") or not kind.startswith("image/"):
        return None
    if "data" in data:
        return ImagePart(b64decode(data["data"]), media_type=kind)
    return ImagePart(url=data.get("fileUri"), media_type=kind)
