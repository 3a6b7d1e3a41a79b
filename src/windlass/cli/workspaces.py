"""What `--tools` gives to a model: the tools of the current folder, and the rules for them."""

from __future__ import annotations

from typing import Any

import click

from windlass import Agent, Deny, ToolCalling
from windlass.capabilities import Permissions, Planning
from windlass.tools import Workspace
from windlass.turns import Turn

TOOLS = ("none", "read", "write")
"""What `--tools` may say."""
READS = ("read", "glob", "grep")
"""What never asks."""
PLANS = ("write_todos", "update_todo")
WRITES = ("write", "edit", "multi_edit", "shell")


def add_tools(agent: Agent[Any, Any], tools: str, *, yolo: bool) -> None:
    """Add tools for the current folder. Reading is allowed, all else is asked about; with `yolo` nothing is."""
    if yolo and tools != "write":
        raise click.UsageError("--yolo goes with --tools write: there is nothing else that is asked about")
    allowed: tuple[str, ...] = ()
    if tools != "none":
        workspace = Workspace(write=tools == "write", shell=tools == "write")
        if yolo:
            _require_isolation(workspace)
        agent.with_capability(workspace)
        allowed = (*READS, *(WRITES if yolo else ()))
    if tools == "write":
        agent.with_capability(Planning())
        allowed = (*allowed, *PLANS)
    agent.with_capability(Permissions(allow=allowed, unmatched="ask"), band="guard")
    agent.gate(ToolCalling, name="known_tools")(_refuse_unknown)


def _refuse_unknown(event: ToolCalling, turn: Turn[Any]) -> Deny | None:
    """Refuse a tool that the model has made up, instead of asking about it."""
    name = event.call.name
    return None if name in turn.tools else Deny(f"There is no tool {name!r}. Known tools: {', '.join(turn.tools)}.")


def _require_isolation(workspace: Workspace) -> None:
    """Refuse `--yolo` where commands would run in the open."""
    if not workspace.isolation.isolated:
        raise click.UsageError(
            "there is no --yolo here: nothing isolates commands on this machine (windlass doctor says what to install)"
        )
