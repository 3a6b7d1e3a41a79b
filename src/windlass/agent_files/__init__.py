"""Agents as TOML files: read with precise errors, without any Python code."""

from __future__ import annotations

from .json_schemas import json_schema
from .loading import load_agent_file
from .problems import AgentFileError, Problem

__all__ = ["AgentFileError", "Problem", "json_schema", "load_agent_file"]
