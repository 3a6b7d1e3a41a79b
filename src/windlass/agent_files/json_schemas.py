"""The JSON schema of agent files, for editors."""

from __future__ import annotations

from .capability_schemas import capability_schemas, options_schema
from .schema import BY_FILE, CAPABILITY, agent_shape, subagent_shape
from .shapes import Schema

SCHEMA_ID = "urn:windlass:agent-file"


def json_schema() -> Schema:
    """The JSON schema of agent files, for editors. The options of built-in capabilities are in it."""
    from windlass.mcp import MCP
    from windlass.tools import Workspace

    root = agent_shape().schema()
    inner = subagent_shape().schema()
    known = {"type": "object", "properties": capability_schemas(), "additionalProperties": CAPABILITY.schema()}
    for one in (root, inner):
        one["properties"]["workspace"] |= options_schema(Workspace)
        one["properties"]["mcp"]["additionalProperties"] = options_schema(MCP, "name")
        text = one["properties"]["capabilities"]["description"]
        one["properties"]["capabilities"] = {"description": text, "$ref": "#/$defs/capabilities"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Windlass agent file",
        **root,
        "$defs": {"subagent": inner, "subagent_file": BY_FILE.schema(), "capabilities": known},
    }
