"""Results of servers, whatever they send: parts within limits that every store can hold."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import CallToolResult

from windlass import AudioPart, DocumentPart, ImagePart, TextPart
from windlass.mcp.contents import Limits, tool_result
from windlass.mcp.listings import listing_of, plain_text
from windlass.mcp.pipes import read_line
from windlass.messages import ToolResult

CASES = 10_000 if os.environ.get("WINDLASS_CAMPAIGN") else 200
LIMITS = Limits(text=500, media=100)

texts = st.text(st.characters(exclude_categories=()), max_size=60)
encoded = st.binary(max_size=200).map(lambda data: base64.b64encode(data).decode())
media_types = st.sampled_from(["image/png", "audio/wav", "application/pdf", "video/mp4", "text/html", "", "IMAGE/x; a"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
resources = st.one_of(
    st.fixed_dictionaries({"uri": texts, "text": texts}, optional={"mimeType": media_types}),
    st.fixed_dictionaries({"uri": texts, "blob": encoded | texts}, optional={"mimeType": media_types}),
)
blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("image"), "data": encoded | texts, "mimeType": media_types}),
    st.fixed_dictionaries({"type": st.just("audio"), "data": encoded | texts, "mimeType": media_types}),
    st.fixed_dictionaries({"type": st.just("resource"), "resource": resources}),
    st.fixed_dictionaries({"type": st.just("resource_link"), "uri": texts, "name": texts}),
)
results = st.fixed_dictionaries(
    {"content": st.lists(blocks, max_size=6)}, optional={"structuredContent": values, "isError": st.booleans()}
)


def check(result: ToolResult) -> None:
    """The result can be stored, read back, and is within the limits."""
    stored = msgspec.json.encode(result)
    assert msgspec.json.decode(stored, type=ToolResult).status in ("ok", "error")
    assert result.content
    assert sum(len(part.text) for part in result.content if isinstance(part, TextPart)) <= LIMITS.text + 50
    for part in result.content:
        if isinstance(part, ImagePart | AudioPart | DocumentPart):
            assert part.data is not None
            assert len(part.data) <= LIMITS.media + 3


@settings(max_examples=CASES)
@given(results)
def test_any_result_becomes_parts_that_can_be_stored(given: dict[str, Any]) -> None:
    check(tool_result(CallToolResult.model_validate(given, by_name=False), LIMITS))


@settings(max_examples=CASES)
@given(results | values | texts.map(lambda text: text + "\n"), st.integers(0, 2))
def test_any_line_is_a_message_or_nothing(given: Any, how: int) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": given} if how else given).encode()
    message = read_line(line[: -how * 3 or None])
    assert message is None or message.jsonrpc == "2.0"


@settings(max_examples=CASES)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_nothing(line: bytes) -> None:
    message = read_line(line)
    assert message is None or message.jsonrpc == "2.0"


@settings(max_examples=CASES)
@given(st.lists(st.tuples(texts, texts, values), max_size=5))
def test_any_listing_has_safe_and_different_names(tools: list[tuple[str, str, Any]]) -> None:
    from mcp_types import Tool

    made = [
        Tool.model_construct(name=name, title=None, description=text, annotations=None, input_schema=schema)
        for name, text, schema in tools
    ]
    listing = listing_of(made, prefix="s__", only=None, resources=False)
    assert len(listing.by_name()) == len(listing.offers)
    for offer in listing.offers:
        assert len(offer.name) <= 64
        assert offer.name.replace("_", "").replace("-", "").isascii()
        assert plain_text(offer.description) == offer.description
    assert msgspec.json.encode(listing)
