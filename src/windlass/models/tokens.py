"""Requests that only count tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from windlass.errors import ConfigError
from windlass.messages import AnyMessage, Messages, ModelRequest, as_message

Countable: TypeAlias = ModelRequest | AnyMessage
"""What can be counted: a whole request, or one message."""


def as_request(value: Countable) -> ModelRequest:
    """A request, or a request with this one message."""
    return value if isinstance(value, ModelRequest) else ModelRequest("", Messages([as_message(value)]))


def cannot_count(model: str, hint: str = "") -> ConfigError:
    """The error of a model whose vendor has no request that counts tokens."""
    return ConfigError(f"model={model!r} cannot count tokens: its vendor has no request for that{hint}")


def count_in(body: Any, field: str) -> int:
    """The count in an answer."""
    count = body.get(field) if isinstance(body, Mapping) else None
    if type(count) is not int:
        raise TypeError(f"{field!r} must be a number of tokens, not {count!r:.100}")
    return count


__all__ = ["Countable", "as_request", "cannot_count", "count_in"]
