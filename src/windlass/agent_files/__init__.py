"""Agents as TOML files: read with precise errors, without any Python code."""

from __future__ import annotations

from .found import NotTrusted, find_agent_file, load_found_agent, trust_agent_file
from .json_schemas import json_schema
from .loading import load_agent_file
from .problems import AgentFileError, Problem

__all__ = [
    "AgentFileError",
    "NotTrusted",
    "Problem",
    "find_agent_file",
    "json_schema",
    "load_agent_file",
    "load_found_agent",
    "trust_agent_file",
]
