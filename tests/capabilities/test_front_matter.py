"""Front matter: plain YAML is read without PyYAML, and as PyYAML reads it."""

from __future__ import annotations

import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.capabilities.front_matter import read_front_matter

PLAIN = {
    "plain": "name: pdf-forms\ndescription: Fill in PDF forms.",
    "quoted": "name: 'it''s'\ndescription: \"a \\\"b\\\" \\u00e9\\n\"",
    "folded": "name: x\ndescription: >\n  One line\n  and another.\n\n  A paragraph.\n",
    "folded, stripped": "description: >-\n  One line\n  and another.\nname: x",
    "literal": "name: x\ndescription: |\n  - a\n    b\n\n  c\n",
    "continued": "name: x\ndescription: One line\n  and another\n  and a third\nlicense: MIT",
    "continued in quotes": 'name: x\ndescription: "One line\n  and another"',
    "comments": "# first\nname: x # why\n\ndescription: a#b\n# last",
    "list": 'name: x\nallowed-tools:\n  - Read\n  - Bash(git:*)\n  - "a, b"',
    "list without indent": "allowed-tools:\n- Read\n- Write\nname: x",
    "flow list": "allowed-tools: [Read, 'Write', \"Bash(git status)\", ]\nname: x",
    "flow list over lines": "allowed-tools: [\n  Read,\n  Write\n]\nname: x",
    "mapping": 'name: x\nmetadata:\n  author: Ann\n  version: "1.0"\n  # why\n  note: a b',
    "colons": "name: a:b\ndescription: https://example.org/x",
    "empty": "name:\ndescription: ~\nlicense: null",
    "umlauts": "name: ü\ndescription: „Größe“ — gut",
}


def as_texts(value):
    if isinstance(value, list):
        return [as_texts(one) for one in value]
    if isinstance(value, dict):
        return {key: as_texts(one) for key, one in value.items()}
    return "" if value is None else str(value)


def stripped(found):
    return {key: value.strip() if isinstance(value, str) else value for key, value in found.items()}


@pytest.fixture
def without_yaml(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN.keys())
def test_plain_yaml_is_read_as_a_parser_reads_it(text, without_yaml):
    expected = as_texts(yaml.safe_load(text))
    found, body = read_front_matter(f"---\n{text}\n---\n\n# Body\n", expected)
    assert stripped(found) == stripped(expected)
    assert body == "# Body"


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), st.text(st.characters(codec="utf-8", categories=["L", "P", "Zs"]))))
def test_what_a_yaml_writer_writes_is_read_back(values):
    text = yaml.safe_dump(values, allow_unicode=True, width=60)
    found, _ = read_front_matter(f"---\n{text}---\n", values)
    assert stripped(found) == stripped(values)


def test_what_is_not_asked_for_is_not_read(without_yaml):
    found, _ = read_front_matter("---\nname: x\ndependencies: [ray[data], @motion/core]\n---\n", ["name"])
    assert found == {"name": "x"}


def test_a_colon_in_a_description_is_no_mistake():
    found, _ = read_front_matter("---\ndescription: Use when: the user asks\n---\n", ["description"])
    assert found == {"description": "Use when: the user asks"}


@pytest.mark.parametrize("value", ["&a x", "{a: 1}", "!!str x", "[[a], b]", '"\\x41"', "\n  a:\n    b:\n      c: 1"])
def test_more_than_plain_yaml_needs_the_extra(value, monkeypatch):
    text = f"---\nname: {value}\n---\n"
    assert "name" in read_front_matter(text, ["name"])[0]
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"windlass\[yaml\]"):
        read_front_matter(text, ["name"])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("# A skill\n", "no front matter"),
        ("", "no front matter"),
        ("---\nname: x\n", "no end"),
        ("---\nname: x\nname: y\n---\n", "'name' twice"),
        ("---\nname: [a\n---\n", "not valid YAML"),
        ("---\njust text\n---\n", "not a mapping"),
    ],
)
def test_broken_front_matter_says_what_is_wrong(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        read_front_matter(text, ["name"])


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm():
    found, body = read_front_matter("\ufeff---\r\nname: x\r\n---\r\nBody\r\n", ["name"])
    assert (found, body) == ({"name": "x"}, "Body")
