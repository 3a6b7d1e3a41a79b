"""What Gemini says about an answer as a whole: usage, finish, and why there is none."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from windlass.messages import FrozenDict, ImagePart, Usage
from windlass.models.usage import counted, tier

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


MODALITIES = {"AUDIO": "audio", "IMAGE": "image", "DOCUMENT": "image", "VIDEO": "video"}
"""What tokens can be beside text, in the words of `Usage.details`; documents are billed as images."""


def finish_of(raw: str | None, *, calls: bool) -> str:
    """The finish in our words. Gemini says STOP after calls too, and a whole answer may lack it."""
    if raw in ("STOP", None):
        return "tool_calls" if calls else "stop"
    return FINISHES.get(raw, "other")


def usage_of(said: Mapping[str, Any], grounding: Mapping[str, Any] = {}, *, by_query: bool = False) -> Usage:
    """The usage in our words: thoughts are output, and what a vendor's tool put into the prompt is input.

    Searches are billed `by_query`, or once per reply that made some.
    """
    thoughts = said.get("thoughtsTokenCount") or 0
    cached = said.get("cachedContentTokenCount") or 0
    queries = len(grounding.get("webSearchQueries") or ())
    chunks = [chunk for chunk in grounding.get("groundingChunks") or () if isinstance(chunk, Mapping)]
    maps = any("maps" in chunk for chunk in chunks)
    details = counted(
        **_by_kind("input", said, "promptTokensDetails", "toolUsePromptTokensDetails"),
        **_by_kind("output", said, "candidatesTokensDetails"),
        web_searches=queries if by_query else min(queries, 1),
        map_searches=int(maps),
        **tier(said.get("serviceTier") or (said.get("trafficType") or "").removeprefix("ON_DEMAND_")),
    )
    if cached:
        details = FrozenDict({**details, **_cached_by_kind(said, details)})
    return Usage(
        input=(said.get("promptTokenCount") or 0) + (said.get("toolUsePromptTokenCount") or 0),
        output=(said.get("candidatesTokenCount") or 0) + thoughts,
        cached=cached,
        reasoning=thoughts,
        details=details,
    )


def _by_kind(direction: str, said: Mapping[str, Any], *fields: str) -> dict[str, int]:
    """The tokens that are no text, by what they are."""
    counts: dict[str, int] = {}
    for detail in [detail for field in fields for detail in said.get(field) or ()]:
        if (kind := MODALITIES.get(detail.get("modality"))) is not None:
            name = f"{direction}_{kind}_tokens"
            counts[name] = counts.get(name, 0) + (detail.get("tokenCount") or 0)
    return counts


def _cached_by_kind(said: Mapping[str, Any], details: Mapping[str, int]) -> dict[str, int]:
    """The tokens of the cache that are no text. Of a kind that is in the prompt and not in the cache that is said, too:
    else it would be open whether it is."""
    if not said.get("cacheTokensDetails"):
        return {}
    cached = _by_kind("input", said, "cacheTokensDetails")
    kinds = [kind for kind in dict.fromkeys(MODALITIES.values()) if f"input_{kind}_tokens" in details]
    return {f"cache_{kind}_read_tokens": cached.get(f"input_{kind}_tokens", 0) for kind in kinds}


def image_of(part: Mapping[str, Any]) -> ImagePart | None:
    """The image in a part, if it is one that the model shows and does not only think of."""
    data = part.get("inlineData") or part.get("fileData") or {}
    kind = data.get("mimeType") or ""
    if part.get("thought") or not kind.startswith("image/"):
        return None
    if "data" in data:
        return ImagePart(b64decode(data["data"]), media_type=kind)
    return ImagePart(url=data.get("fileUri"), media_type=kind)
