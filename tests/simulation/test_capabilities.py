"""All shipped capabilities in simulations: alone, and together. WINDLASS_CAMPAIGN=1 runs thousands of seeds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Ask, ToolCalling, capabilities, tool
from windlass.capabilities import (
    Adaptation,
    AdaptationRule,
    Bounds,
    Critique,
    Destination,
    FileIndex,
    Key,
    Reviewer,
)
from windlass.compat.agent_hooks import AgentHooks
from windlass.testing import NotSimulated, ScriptedModel, simulate

SEEDS = 2000 if os.environ.get("WINDLASS_CAMPAIGN") else 20


class Permissive:
    """An interceptor of Agent Hooks."""

    def intercept(self, context: dict[str, Any]) -> dict[str, str]:
        refused = context["interception_point"] == "pre_tool_call" and context["tool_call"]["args"].get("amount") == 0
        return {"decision": "deny", "reason": "app:nothing_to_pay"} if refused else {"decision": "allow"}


def other(name: str = "other") -> ScriptedModel:
    return ScriptedModel(name=name)


def brief() -> Any:
    rule = AdaptationRule(lambda known: known.steps >= 1, Adaptation(mode="brief", model="backup"), "busy", least=1)
    return capabilities.Adapt([rule], Bounds(modes={"brief": "Be brief."}, models=[other("backup")]))


def inspector() -> Agent[Any, Any]:
    return Agent(other("inspector-model"), output=Critique, name="inspector")


def helper() -> Agent[Any, Any]:
    return Agent(other("helper-model"), tools=[look], name="helper")


def skills(folder: Path) -> Any:
    place = folder / "skills" / "greeting"
    place.mkdir(parents=True, exist_ok=True)
    (place / "SKILL.md").write_text("---\nname: greeting\ndescription: How to greet.\n---\nSay hello.\n")
    return capabilities.Skills(folder / "skills")


def index(folder: Path) -> Any:
    (folder / "texts").mkdir(exist_ok=True)
    (folder / "texts" / "help.md").write_text("Please help, and go on.\n")
    return capabilities.Retrieve(FileIndex(folder / "texts"))


async def search(query: str) -> list[str]:
    await asyncio.sleep(0.1)
    return [f"All of {query}."]


async def is_fine(text: str) -> bool:
    await asyncio.sleep(0.1)
    return True


MAKE: dict[str, Callable[[Path], Any]] = {
    "adapt": lambda folder: brief(),
    "approval": lambda folder: capabilities.Approval("pay"),
    "audit_trail": lambda folder: capabilities.AuditTrail(folder / "trail.jsonl", sync=False),
    "auto_approve": lambda folder: capabilities.AutoApprove("pay(amount=0)", uses=2),
    "budget": lambda folder: capabilities.Budget(usd=1.0, tokens=400),
    "cache": lambda folder: capabilities.Cache(),
    "clear_results": lambda folder: capabilities.ClearResults(),
    "critic": lambda folder: capabilities.Critic(inspector()),
    "dry_run": lambda folder: capabilities.DryRun(),
    "events": lambda folder: capabilities.Events("debug"),
    "fallback": lambda folder: capabilities.Fallback(other()),
    "logging": lambda folder: capabilities.Logging(),
    "loop_guard": lambda folder: capabilities.LoopGuard(),
    "memory": lambda folder: capabilities.Memory(),
    "metadata": lambda folder: capabilities.Metadata(Key("order", int, default=0, model="write")),
    "metrics": lambda folder: capabilities.Metrics(),
    "moderate": lambda folder: capabilities.Moderate(other("moderator"), unreachable="pass"),
    "notify": lambda folder: capabilities.Notify(lambda notification: None),
    "offload": lambda folder: capabilities.Offload(),
    "panel": lambda folder: capabilities.Panel(inspector(), Reviewer(other("second"), "Be strict.", name="second")),
    "permissions": lambda folder: capabilities.Permissions(ask=["pay"]),
    "planning": lambda folder: capabilities.Planning(),
    "rate_limit": lambda folder: capabilities.RateLimit(requests=5),
    "redact": lambda folder: capabilities.Redact(),
    "refine": lambda folder: capabilities.Refine(other("judge"), "Be kind."),
    "remembered_rules": lambda folder: capabilities.RememberedRules(folder / "rules.toml"),
    "request_archive": lambda folder: capabilities.RequestArchive(folder / "requests.db"),
    "retrieve": index,
    "retrieve_async": lambda folder: capabilities.Retrieve(search),
    "retry": lambda folder: capabilities.Retry(tools=["look", "note"]),
    "rewind": lambda folder: capabilities.Rewind(),
    "route": lambda folder: capabilities.Route(
        {"other": Destination(other("routed"), "Elsewhere.")}, choose=other("r")
    ),
    "self_critique": lambda folder: capabilities.SelfCritique(),
    "skills": skills,
    "steering": lambda folder: capabilities.Steering(),
    "structured_output": lambda folder: capabilities.StructuredOutput("tool"),
    "subagents": lambda folder: capabilities.Subagents([helper()]),
    "summarize": lambda folder: capabilities.Summarize(),
    "telemetry": lambda folder: capabilities.Telemetry(),
    "timeout": lambda folder: capabilities.Timeout(tool=0.5),
    "tool_select": lambda folder: capabilities.ToolSelect(),
    "trim": lambda folder: capabilities.Trim(),
    "validate": lambda folder: capabilities.Validate(input=is_fine, output=is_fine, results=is_fine),
    "agent_hooks": lambda folder: AgentHooks([Permissive()]),
    "agent_hooks_incremental": lambda folder: AgentHooks([Permissive()], incremental=True, name="streamed"),
}
APART = ("dry_run", "rate_limit", "budget", "structured_output", "agent_hooks_incremental", "retrieve_async")
"""With these in it, an agent with all of them does hardly anything else, or does it twice."""

REAL = {"Webhook"}
"""It needs a real network."""


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


def agent_with(folder: Path, *names: str) -> Agent[Any, Any]:
    output: Any = Critique if "structured_output" in names else str
    made = [MAKE[name](folder) for name in names]
    agent: Agent[Any, Any] = Agent(ScriptedModel(), tools=[pay, look, note], capabilities=made, output=output)

    if "auto_approve" in names or "remembered_rules" in names:

        @agent.gate(ToolCalling, tool="pay", name="permissions")
        def ask(event: ToolCalling) -> Ask:
            return Ask("May it pay?")

    return agent


@pytest.mark.parametrize("name", MAKE)
def test_a_capability_holds_in_every_simulated_session(name: str, tmp_path: Path) -> None:
    simulate(lambda: agent_with(tmp_path, name), seeds=SEEDS)


def test_all_capabilities_hold_together_in_every_simulated_session(tmp_path: Path) -> None:
    simulate(lambda: agent_with(tmp_path, *[name for name in MAKE if name not in APART]), seeds=min(SEEDS, 400))


def test_every_shipped_capability_is_simulated_or_known_to_need_something_real(tmp_path: Path) -> None:
    shipped = {name for name in capabilities.__all__ if hasattr(getattr(capabilities, name), "install")}
    assert shipped - {type(make(tmp_path)).__name__ for make in MAKE.values()} == REAL


def test_a_capability_that_needs_the_network_is_refused() -> None:
    def build() -> Agent[Any, Any]:
        asks = capabilities.Approval("pay", by=[capabilities.Webhook("https://example.org/ask")])
        return Agent(ScriptedModel(), tools=[pay], capabilities=[asks])

    with pytest.raises(NotSimulated, match=r"network|host|thread"):
        simulate(build, seeds=20)
