"""The agent of the recorded shop, for `windlass ui --agent tests/inspector/desk.py:agent`, and one that is stricter."""

from __future__ import annotations

import time
from typing import Any

from tests.inspector.shop import desk

from windlass import Agent, Deny, ToolCalling
from windlass.stores import MemoryStore


def agent() -> Agent[Any, Any]:
    """The agent as it recorded the sessions."""
    return desk(MemoryStore())


def stricter() -> Agent[Any, Any]:
    """The same agent with a new gate."""
    made = desk(MemoryStore())

    @made.gate(ToolCalling, tool="find_order", name="opening_hours")
    def opening_hours(event: Any) -> Any:
        return Deny("the shop is closed") if event.call.arguments["order"] == "4417" else None

    return made


def slow() -> Agent[Any, Any]:
    """The same agent with a gate that blocks its thread."""
    made = desk(MemoryStore())

    @made.gate(ToolCalling, name="busy")
    def busy(event: Any) -> Any:
        time.sleep(0.1)

    return made
