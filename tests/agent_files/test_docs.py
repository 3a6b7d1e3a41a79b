"""The schema that editors get accepts what the loader accepts, and every file in the guide is valid."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

from windlass.agent_files import json_schema, load_agent_file

PROJECT = Path(__file__).resolve().parents[2]
GUIDE = (PROJECT / "docs" / "guides" / "agent-files.md").read_text()
FILES = re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.M | re.S)

SHOP = '''
def find_order(number: int) -> str:
    """Find an order."""
    return "shipped"


def check_order(event):
    return None


def question(call):
    return "Refund?"
'''


@pytest.mark.parametrize("text", FILES)
def test_files_in_the_guide_are_valid(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    (folder / "shop.py").write_text(SHOP)
    (folder / "policy.toml").write_text('allow = ["find_order"]')
    (folder / "writer.toml").write_text('model = "openai:gpt-5-mini"')
    (folder / "agent.toml").write_text(text)
    load_agent_file("agent.toml")
    jsonschema.validate(tomllib.loads(text), json_schema())


@pytest.mark.parametrize(
    "text",
    [
        'modle = "x:y"',
        'model = "x:y"\nlimits = { max_stps = 1 }',
        'model = "x:y"\ncapabilities.retry = { atempts = 1 }',
        'model = "x:y"\ncapabilities.retry = { attempts = "many" }',
        'model = "x:y"\nhooks = [{ verb = "gat", run = "a:b" }]',
        'model = "x:y"\nsubagents.x = { model = 3 }',
        'model = "x:y"\nstore = "x.db"',
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(text: str):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), json_schema())


def test_the_schema_is_valid_and_describes_every_key():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)
    assert all(one.get("description") for one in schema["properties"].values())
    assert schema["$defs"]["capabilities"]["properties"]["retry"]["properties"]["attempts"] == {
        "type": "integer",
        "default": 3,
    }
