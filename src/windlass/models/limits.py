"""Reads the rate limits that vendors report in the headers of an answer."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from windlass.messages import RateLimits

_FAMILIES = ("x-ratelimit-", "anthropic-ratelimit-", "x-tokenlimit-", "ratelimit-", "ratelimitbysize-")
_NAMES = {
    "requests": (
        "x-ratelimit-limit-requests", "anthropic-ratelimit-requests-limit", "x-ratelimit-limit-req-minute",
        "x-ratelimit-limit-requests-minute", "x-ratelimit-limit-requests-day", "x-ratelimit-limit",
    ),
    "requests_left": (
        "x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-remaining",
        "x-ratelimit-remaining-req-minute", "x-ratelimit-remaining-requests-minute",
        "x-ratelimit-remaining-requests-day", "x-ratelimit-remaining",
    ),
    "requests_reset": (
        "x-ratelimit-reset-requests", "anthropic-ratelimit-requests-reset", "x-ratelimit-reset-requests-minute",
        "x-ratelimit-reset-requests-day", "x-ratelimit-reset",
    ),
    "tokens": (
        "x-ratelimit-limit-tokens", "anthropic-ratelimit-tokens-limit", "x-ratelimit-limit-tokens-minute",
        "ratelimitbysize-limit", "x-tokenlimit-limit",
    ),
    "tokens_left": (
        "x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining",
        "x-ratelimit-remaining-tokens-minute", "ratelimitbysize-remaining", "x-tokenlimit-remaining",
    ),
    "tokens_reset": (
        "x-ratelimit-reset-tokens", "anthropic-ratelimit-tokens-reset", "x-ratelimit-reset-tokens-minute",
        "ratelimitbysize-reset",
    ),
}  # fmt: skip
"""The names of the headers for each field, as OpenAI, Anthropic, Mistral, Cerebras, Together and others spell them."""
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST = 10 * 366 * 86_400.0
"""A larger number of seconds is a moment, not a time to wait."""


def limits_in(headers: Mapping[str, str]) -> RateLimits | None:
    """The rate limits in some headers; None if they report none."""
    known = {name: value for name, value in headers.items() if name.startswith(_FAMILIES)}
    if not known:
        return None
    found: dict[str, int | float | None] = {}
    for field, names in _NAMES.items():
        text = next((known[name] for name in names if name in known), None)
        if text is not None:
            found[field] = _wait(text, headers) if field.endswith("reset") else _count(text)
    return RateLimits(**found) if any(value is not None for value in found.values()) else None  # type: ignore[arg-type]


def _count(text: str) -> int | None:
    try:
        return max(0, int(float(text)))
    except (ValueError, OverflowError):
        return None


def _wait(text: str, headers: Mapping[str, str]) -> float | None:
    """The seconds until a limit is full again: a time such as `6m0s`, a number of seconds, or a moment."""
    if re.fullmatch(f"(?:{_TIME.pattern})+", text):
        return sum(float(number) * _SECONDS[unit] for number, unit in _TIME.findall(text))
    try:
        number = float(text)
    except ValueError:
        return _until(text, headers)
    if not 0 <= number < float("inf"):
        return None
    if number > _LONGEST * 100:  # milliseconds
        number /= 1000
    return max(0.0, number - _now(headers)) if number > _LONGEST else number


def _until(text: str, headers: Mapping[str, str]) -> float | None:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return max(0.0, moment.timestamp() - _now(headers))
    except (ValueError, OverflowError, OSError):
        return None


def _now(headers: Mapping[str, str]) -> float:
    """The moment of the answer, by the vendor's clock if it states the time."""
    try:
        return parsedate_to_datetime(headers.get("date") or "").timestamp()
    except (ValueError, OverflowError):
        return time.time()


__all__ = ["limits_in"]
