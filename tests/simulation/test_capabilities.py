"""Our own capabilities in simulations: alone, and together. WINDLASS_CAMPAIGN=1 runs thousands of seeds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from windlass import Agent, capabilities, tool
from windlass.testing import ScriptedModel, simulate

SEEDS = 2000 if os.environ.get("WINDLASS_CAMPAIGN") else 20

MAKE: dict[str, Callable[[], Any]] = {
    "approval": lambda: capabilities.Approval("pay"),
    "budget": lambda: capabilities.Budget(usd=1.0, tokens=400),
    "cache": capabilities.Cache,
    "clear_results": capabilities.ClearResults,
    "dry_run": capabilities.DryRun,
    "fallback": lambda: capabilities.Fallback(ScriptedModel(name="other")),
    "loop_guard": capabilities.LoopGuard,
    "memory": capabilities.Memory,
    "offload": capabilities.Offload,
    "permissions": lambda: capabilities.Permissions(ask=["pay"]),
    "planning": capabilities.Planning,
    "rate_limit": lambda: capabilities.RateLimit(requests=5),
    "redact": capabilities.Redact,
    "retry": lambda: capabilities.Retry(tools=["look", "note"]),
    "rewind": capabilities.Rewind,
    "self_critique": capabilities.SelfCritique,
    "steering": capabilities.Steering,
    "summarize": capabilities.Summarize,
    "timeout": lambda: capabilities.Timeout(tool=0.5),
    "tool_select": capabilities.ToolSelect,
    "trim": capabilities.Trim,
}
APART = ("dry_run", "rate_limit", "budget")
"""With these in it, an agent with all of them does hardly anything else."""


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@tool(effect="pure")
async def look(number: int) -> str:
    """Look."""
    await asyncio.sleep(0.1)
    return "x" * 50


@tool(effect="idempotent")
def note(text: str) -> str:
    """Note."""
    return "noted"


def agent_with(*names: str) -> Agent[Any, Any]:
    return Agent(ScriptedModel(), tools=[pay, look, note], capabilities=[MAKE[name]() for name in names])


@pytest.mark.parametrize("name", MAKE)
def test_a_capability_holds_in_every_simulated_session(name: str) -> None:
    simulate(lambda: agent_with(name), seeds=SEEDS)


def test_all_capabilities_hold_together_in_every_simulated_session() -> None:
    simulate(lambda: agent_with(*[name for name in MAKE if name not in APART]), seeds=SEEDS)
