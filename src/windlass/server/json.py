"""JSON of responses, also of text that is not valid Unicode."""

from __future__ import annotations

from typing import Any, cast

from windlass.records import Record, encode


def to_json(value: Any) -> bytes:
    """A value as JSON, written as records are."""
    return encode(cast(Record, value))
