"""A turn with middlewares of LangChain that write state, messages and results, to be killed anywhere."""

import operator
from typing import Annotated, Any, NotRequired

from langchain.agents import AgentState
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
)
from langchain.tools import ToolRuntime
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command

from windlass import Agent, Approve
from windlass.compat.langchain import Middlewares, agent_model
from windlass.testing import Scenario, World, calls, says


class State(AgentState):
    log: Annotated[list[str], operator.add]
    runs: NotRequired[int]


class Everywhere(AgentMiddleware):
    state_schema = State

    def before_agent(self, state: Any, runtime: Any) -> Any:
        return {"log": ["begins"], "runs": state.get("runs", 0) + 1}

    def before_model(self, state: Any, runtime: Any) -> Any:
        state["messages"][0].content = state["messages"][0].content.upper()
        return {"log": [f"before {len(state['messages'])}"]}

    def after_model(self, state: Any, runtime: Any) -> Any:
        return {"log": [f"after {len(state['messages'])}"], "messages": [HumanMessage("noted")]}

    def after_agent(self, state: Any, runtime: Any) -> Any:
        return {"log": [f"ends {len(state['messages'])}"]}

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(system_prompt=f"{len(request.messages)} messages"))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return Command(update={"messages": [await handler(request)], "log": ["called"]})


def scene(world: World) -> Scenario:
    @tool
    def note(what: str, runtime: ToolRuntime[Any, Any]) -> Command:
        """Note."""
        world.effect("note", what)
        done = ToolMessage(f"noted {what}", tool_call_id=runtime.tool_call_id)
        return Command(update={"log": [what], "messages": [done]})

    @tool
    def pay(sum: int) -> str:
        """Pay."""
        world.effect("pay", str(sum))
        return f"paid {sum}"

    capability = Middlewares(
        Everywhere(),
        PIIMiddleware("email"),
        ModelCallLimitMiddleware(run_limit=4),
        HumanInTheLoopMiddleware({"pay": True}),
        SummarizationMiddleware(agent_model(), trigger=("messages", 9), keep=("messages", 4)),
        tools=[note, pay],
        effect="idempotent",
    )
    model = world.model(
        calls([("note", {"what": "a"}), ("note", {"what": "b"})]),
        calls("pay", sum=1),
        says("a summary"),
        says("mail a@b.org"),
    )
    return Scenario(Agent(model, store=world.store, capabilities=[capability]), "I am a@b.org", answers=Approve())
