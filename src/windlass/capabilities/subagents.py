"""Subagents: a tool with which the model gives tasks to named agents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from windlass.decisions import Deny
from windlass.errors import ConfigError, ToolError
from windlass.events import Delegating, ToolCalling
from windlass.messages import Value
from windlass.outcomes import Completed
from windlass.tools import tool
from windlass.turns import Turn

from .option_types import check_types
from .options import require, require_count, require_name

if TYPE_CHECKING:
    from windlass import Agent, Hooks


class Subagent(Value, frozen=True, eq=False, gc=True):
    """An agent that may be given tasks.

    `description` tells the model what it is good for. `share`, above 0 and up to 1, limits a task to that part of the
    tokens and money that are left; `tools` limits it to some of the agent's tools.
    """

    agent: Agent[Any, Any]
    description: str = ""
    share: float | None = None
    tools: tuple[str, ...] | None = None


class Subagents:
    """Let the model give tasks to some `agents` by name, with one tool; several at once if it calls it several times.

    Each task is a session of its own below this one, under the guards of this agent, and what it spends is charged
    here. `fan_out` limits how many tasks a turn may give, `depth` how deep agents may be nested, counted from the
    outermost. With `background`, the model may also start a task that it does not wait for; its result comes in as a
    message. `tool` is the name of the tool.
    """

    @check_types
    def __init__(
        self,
        agents: Iterable[Agent[Any, Any] | Subagent],
        *,
        fan_out: int = 8,
        depth: int = 2,
        background: bool = True,
        tool: str = "delegate",
        name: str = "subagents",
    ) -> None:
        require_name("Subagents", name)
        require("Subagents", "tool", tool, tool != "", "a text")
        require_count("Subagents", "fan_out", fan_out)
        require_count("Subagents", "depth", depth)
        require("Subagents", "agents", agents, isinstance(agents, Iterable), "a list of agents")
        given = [one if isinstance(one, Subagent) else Subagent(one) for one in agents]
        for one in given:
            require("Subagents", "agents", one.agent, hasattr(one.agent, "as_tool"), "agents, or Subagent(agent, …)")
            one.agent.as_tool(share=one.share, tools=one.tools)  # raises if they do not fit
        self.agents = {one.agent.name: one for one in given}
        if not given or len(self.agents) != len(given):
            raise ConfigError("Subagents: give at least one agent, and each a name of its own: Agent(name=…)")
        self.name, self.tool = name, tool
        self.fan_out, self.depth, self.background = fan_out, depth, background

    def install(self, registrar: Hooks) -> None:
        """Register the tool, the limits and the agents."""
        for one in self.agents.values():
            registrar.subagent(one.agent)
        registrar.tool(self._make_tool())
        registrar.gate(ToolCalling, tool=self.tool, name=f"{self.name}.fan_out")(self._limit_number)
        registrar.gate(Delegating, name=f"{self.name}.depth", inherit=True)(self._limit_depth)

    def summary(self) -> str:
        """The agents and limits, for `explain`."""
        names = ", ".join(self.agents)
        return f"{names}; at most {self.fan_out} tasks per turn, {self.depth} deep"

    def _make_tool(self) -> Any:
        async def delegate(agent: str, task: str, turn: Turn[Any]) -> str:
            return await self._wait_for(agent, task, turn)

        async def delegate_or_start(agent: str, task: str, turn: Turn[Any], background: bool = False) -> str:
            return await (self._start if background else self._wait_for)(agent, task, turn)

        fn = delegate_or_start if self.background else delegate
        fn.__annotations__["agent"] = Literal[tuple(self.agents)]
        return tool(name=self.tool, description=self._description(), effect="idempotent")(fn)

    def _description(self) -> str:
        lines = [
            f"- {name}: {one.description}" if one.description else f"- {name}" for name, one in self.agents.items()
        ]
        how = "Call it several times at once for tasks that do not depend on each other."
        if self.background:
            how += " With background, you get the result later, as a message, and can go on meanwhile."
        return f"Give a task to another agent, with all that it has to know. {how} The agents:\n" + "\n".join(lines)

    def _limit_number(self, event: ToolCalling) -> Deny | None:
        """Refuse a task that is one too many. The calls of the turn count, in their order."""
        state = event.turn.state
        said = state.messages[state.turn.start :] if state.turn is not None else ()
        earlier = sum(call.name == self.tool for message in said for call in message.tool_calls)
        beside = (
            [one.call.id for one in state.open.calls if one.call.name == self.tool] if state.open is not None else []
        )
        if earlier + beside.index(event.call.id) < self.fan_out:
            return None
        return Deny(f"this turn has given {self.fan_out} tasks already, and may give no more (fan_out)")

    def _limit_depth(self, event: Delegating, turn: Turn[Any]) -> Deny | None:
        """Refuse a task that is too deep. The session of an agent below has one `//` for each agent above it."""
        if turn.session_id.count("//") < self.depth:
            return None
        return Deny(f"agents are nested as deep as they may be already (depth={self.depth})")

    def _agent(self, name: str, task: str) -> Subagent:
        if not task.strip():
            raise ToolError(f"agent {name!r} got an empty task: say what it has to do")
        return self.agents[name]

    async def _wait_for(self, agent: str, task: str, turn: Turn[Any]) -> str:
        one = self._agent(agent, task)
        result = await turn.delegate(one.agent, task, share=one.share, tools=one.tools)
        if not isinstance(result.outcome, Completed):
            raise ToolError(f"agent {agent!r} did not complete its task: {result.stop_reason.value}")
        return result.state.text

    async def _start(self, agent: str, task: str, turn: Turn[Any]) -> str:
        one = self._agent(agent, task)
        started = await turn.delegate(one.agent, task, share=one.share, tools=one.tools, background=True)
        return (
            f"Agent {agent!r} works on it in the background, as task {started.session}. The result will be a message."
        )
