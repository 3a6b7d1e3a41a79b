"""Limits end a turn whatever other hooks want; the outcome names the limit that was reached."""

from windlass import Agent, StepLimit, Stopped, Stopping, StopReason, TokenLimit, Veto, tool
from windlass.testing import FunctionModel, calls


@tool(effect="pure", inline=True)
def search(query: str) -> str:
    """Search for something."""
    return "nothing found"


model = FunctionModel(lambda request: calls("search", query=f"attempt {len(request.messages) // 2 + 1}"))
agent = Agent(model, tools=[search], criteria=[StepLimit(4), TokenLimit(1_000)])


@agent.gate(Stopping)
def never_give_up(event: Stopping) -> Veto:
    """Veto every stop; a stop for a hard limit cannot be vetoed."""
    return Veto("Keep searching.")


result = agent.run_sync("Find the lost city.")
print(f"stopped after {result.state.steps} steps and {result.usage.total} tokens: {result.outcome}")
assert isinstance(result.outcome, Stopped)
assert result.stop_reason is StopReason.STEP_LIMIT
assert result.state.steps == 4
assert result.messages[-1].role == "tool"  # every call has its result, so the session can continue
