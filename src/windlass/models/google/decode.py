"""Decodes Gemini's facts about an answer as a whole: its usage, its finish and its files."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from windlass.messages import AudioPart, FrozenDict, ImagePart, MediaPart, Usage, VideoPart
from windlass.models.usage import positive_counts, tier

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
# The finish reasons for model output that Gemini could not read, so that there is no answer.
MALFORMED = ("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL")


MODALITIES = {"AUDIO": "audio", "IMAGE": "image", "DOCUMENT": "image", "VIDEO": "video"}
"""Kinds of tokens other than text, with their names in `Usage.details`; documents are billed as images."""


def finish_of(raw: str | None, *, calls: bool) -> str:
    """Our finish. Gemini reports STOP after calls, too, and a whole answer may have no finish."""
    if raw in ("STOP", None):
        return "tool_calls" if calls else "stop"
    return FINISHES.get(raw, "other")


def usage_of(counts: Mapping[str, Any], grounding: Mapping[str, Any] = {}, *, by_query: bool = False) -> Usage:
    """Our usage: thoughts are output, and what the vendor's tools add to the prompt is input.

    Searches are billed `by_query`, or once per reply with searches.
    """
    thoughts = counts.get("thoughtsTokenCount") or 0
    cached = counts.get("cachedContentTokenCount") or 0
    queries = len(grounding.get("webSearchQueries") or ())
    chunks = [chunk for chunk in grounding.get("groundingChunks") or () if isinstance(chunk, Mapping)]
    maps = any("maps" in chunk for chunk in chunks)
    details = positive_counts(
        **_by_kind("input", counts, "promptTokensDetails", "toolUsePromptTokensDetails"),
        **_by_kind("output", counts, "candidatesTokensDetails"),
        web_searches=queries if by_query else min(queries, 1),
        map_searches=int(maps),
        **tier(counts.get("serviceTier") or (counts.get("trafficType") or "").removeprefix("ON_DEMAND_")),
    )
    if cached:
        details = FrozenDict({**details, **_cached_by_kind(counts, details)})
    return Usage(
        input=(counts.get("promptTokenCount") or 0) + (counts.get("toolUsePromptTokenCount") or 0),
        output=(counts.get("candidatesTokenCount") or 0) + thoughts,
        cached=cached,
        reasoning=thoughts,
        details=details,
    )


def _by_kind(direction: str, counts: Mapping[str, Any], *fields: str) -> dict[str, int]:
    """The tokens other than text, by kind."""
    found: dict[str, int] = {}
    for detail in [detail for field in fields for detail in counts.get(field) or ()]:
        if (kind := MODALITIES.get(detail.get("modality"))) is not None:
            name = f"{direction}_{kind}_tokens"
            found[name] = found.get(name, 0) + (detail.get("tokenCount") or 0)
    return found


def _cached_by_kind(counts: Mapping[str, Any], details: Mapping[str, int]) -> dict[str, int]:
    """The cached tokens other than text, by kind. A kind that is in the prompt but not in the cache gets an explicit 0,
    which differs from an unknown count."""
    if not counts.get("cacheTokensDetails"):
        return {}
    cached = _by_kind("input", counts, "cacheTokensDetails")
    kinds = [kind for kind in dict.fromkeys(MODALITIES.values()) if f"input_{kind}_tokens" in details]
    return {f"cache_{kind}_read_tokens": cached.get(f"input_{kind}_tokens", 0) for kind in kinds}


_PARTS: dict[str, type[ImagePart] | type[AudioPart] | type[VideoPart]] = {
    "image": ImagePart,
    "audio": AudioPart,
    "video": VideoPart,
}


def media_of(part: Mapping[str, Any]) -> MediaPart | None:
    """The image, sound or video in a part; None if it is another file, or belongs to a thought."""
    data = part.get("inlineData") or part.get("fileData") or {}
    media_type = data.get("mimeType") or ""
    kind = _PARTS.get(media_type.partition("/")[0])
    if part.get("thought") or kind is None:
        return None
    if "data" in data:
        return kind(b64decode(data["data"]), media_type=media_type)
    return kind(url=data.get("fileUri"), media_type=media_type)
