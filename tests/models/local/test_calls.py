"""Calls that are spoken as text: how they are found in pieces, and the schemas that force them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from windlass.messages import ToolSpec
from windlass.models.local.calls import CallReader, bounded, call_as_text, call_schema, describe_tools
from windlass.models.local.encode import or_text

ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
ADD_ALL = ToolSpec("add_all", "Add many.", {"type": "object", "properties": {"all": {"type": "array"}}})


def read(text: str, seed: int) -> tuple[str, str, str]:
    """The words, the name and the arguments that a reader finds in a text cut at random."""
    reader = CallReader([ADD, ADD_ALL])
    cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=seed))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    deltas = [*(reader.read(piece) for piece in pieces if piece), reader.rest()]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    words = "".join(delta.get("content", "") for delta in deltas)
    return words, "".join(call["name"] for call in calls), "".join(call["arguments"] for call in calls)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello there.", ("Hello there.", "", "")),
        ('{"name": "add", "arguments": {"a": 1}}', ("", "add", '{"a": 1}')),
        ('{"name":"add_all","arguments":{"all":[{"b":"}"},"\\"}"]}}', ("", "add_all", '{"all":[{"b":"}"},"\\"}"]}')),
        (' {\n "name"\t: "add",\n "arguments" :\n { "a" : 2\n } \n}\n', ("", "add", '{ "a" : 2\n }')),
        ('{"name": "add", "arguments": {"a": 1', ("", "add", '{"a": 1')),
        ('{"name": "greet", "arguments": {}}', ('{"name": "greet", "arguments": {}}', "", "")),
        ('{"name": "add"}', ('{"name": "add"}', "", "")),
        ('{"na', ('{"na', "", "")),
        ("{", ("{", "", "")),
        ("", ("", "", "")),
    ],
)
def test_a_call_is_found_wherever_the_text_is_cut(text, found, seed):
    assert read(text, seed) == found


def test_words_are_handed_on_at_once():
    reader = CallReader([ADD])
    assert reader.read("H") == {"content": "H"}
    assert reader.read("i") == {"content": "i"}


def test_what_is_spoken_is_found():
    assert read(call_as_text("add", '{"a": 1}'), 3) == ("", "add", '{"a": 1}')
    assert json.loads(call_as_text("add", "")) == {"name": "add", "arguments": {}}


def test_the_tools_are_described_like_functions():
    assert "- add(a): Add two numbers.\n- add_all(all): Add many.\n" in describe_tools([ADD, ADD_ALL])


def test_definitions_of_tools_do_not_get_into_each_others_way():
    def tool(name: str, kind: str) -> ToolSpec:
        schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": kind}}}
        return ToolSpec(name, "", schema)

    schema = call_schema([tool("a", "string"), tool("b", "boolean")], False)
    assert schema["$defs"] == {"a.X": {"type": "string"}, "b.X": {"type": "boolean"}}
    references = [choice["properties"]["arguments"]["properties"]["x"] for choice in schema["anyOf"]]
    assert references == [{"$ref": "#/$defs/a.X"}, {"$ref": "#/$defs/b.X"}]


def test_an_answer_may_be_one_of_the_choices():
    schema = call_schema([ADD], False, {"type": "integer"})
    assert schema["anyOf"][1] == {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": 100}),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 5}),
        ({"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        ({"anyOf": [{"type": "array"}]}, {"anyOf": [{"type": "array", "maxItems": 8}]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"const": {"type": "string"}}, {"const": {"type": "string"}}),
        ({"properties": {"type": {"type": "boolean"}}}, {"properties": {"type": {"type": "boolean"}}}),
    ],
)
def test_what_a_schema_leaves_open_is_bounded(schema: Any, expected: Any):
    assert bounded(schema) == expected


def test_a_grammar_lets_the_model_speak_in_both_languages_of_the_engine():
    assert or_text("%llguidance {}\nstart: %json {}").splitlines()[1:3] == ["start: call | said", "call: %json {}"]
    assert or_text('root ::= "{" x\nx ::= "}"').splitlines()[0] == 'root ::= "{" x | said'
