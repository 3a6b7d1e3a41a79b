"""An agent for a cluster. Replace the scripted model with `model="anthropic:…"` or another real one."""

from typing import Any

from windlass import Agent, Ask, ModelRequest, ToolCalling, tool
from windlass.testing import FunctionModel, calls, says


@tool(effect="idempotent")
async def refund(order: int, idempotency_key: str) -> str:
    """Refund an order. A payment service gets the key, so a repeated call pays once."""
    return f"order {order} is refunded"


async def reply(request: ModelRequest) -> Any:
    """Stands in for a model: refunds order 7, then says so."""
    last = request.messages[-1]
    return says(f"Done: {last.text}") if last.role == "tool" else calls("refund", order=7)


def agent() -> Agent[None, str]:
    """Made by every process of the cluster. The store is named on the command line or in WINDLASS_STORE."""
    made = Agent(FunctionModel(reply), tools=[refund], name="shop")

    @made.gate(ToolCalling, tool="refund")
    def ask_a_person(event: ToolCalling) -> Ask | None:
        order = event.call.arguments["order"]
        return Ask(f"Refund order {order}?", expires=3600.0) if order > 100 else None

    return made
