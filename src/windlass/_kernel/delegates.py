"""A tool that hands its task to another agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass.errors import ConfigError, ToolError
from windlass.messages import Delegation
from windlass.tools import Tool

if TYPE_CHECKING:
    from .program import Program


Compiles: TypeAlias = "Callable[[Program, tuple[str, ...] | None], Program]"
"""What makes an agent a child of another one, with these of its tools."""


class Delegate(Tool[..., Any]):
    """An agent as a tool. It is `resumable`: what its session holds is not done again, so it is never in doubt."""

    __slots__ = ("agent", "compiled", "only", "share")

    def __init__(
        self,
        agent: str,
        compiled: Compiles,
        name: str | None,
        description: str | None,
        share: float | None,
        tools: Sequence[str] | None,
    ) -> None:
        async def delegate(task: str) -> str:
            """Hand a task to another agent and wait for what it says.

            Args:
                task: What to do, with all that has to be known for it.
            """
            raise ToolError(f"tool {self.name!r} hands its task to an agent; it works only where a turn calls it")

        text = description or f"Hand a task to the agent {agent!r}, which works on it alone and says what it found."
        super().__init__(delegate, {"name": name or agent, "description": text}, {})
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"as_tool(share={share!r}) of agent {agent!r}: it must be above 0 and at most 1")
        given: object = tools
        if isinstance(given, str):
            raise ConfigError(f"as_tool(tools={tools!r}) of agent {agent!r}: give a list of names")
        self.effect, self.in_doubt = "resumable", "rerun"
        self.agent = agent
        self.compiled = compiled
        self.share = share
        self.only = None if tools is None else tuple(tools)

    def delegation(self, task: str) -> Delegation:
        """What is handed over with a task if no hook changes it."""
        return Delegation(self.agent, task, self.share, self.only)
