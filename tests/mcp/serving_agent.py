"""An agent for the tests of `windlass serve-mcp`: it echoes, asks about payments, and waits for ever if told to."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from windlass import Agent, Ask, ToolCalling, tool
from windlass.messages import ModelRequest
from windlass.testing import FunctionModel, calls, says


def reply(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if last.role == "tool":
        return says(f"Result: {last.parts[0].content[0].text}")
    if last.text in ("pay", "wait"):
        return calls(last.text)
    return says(f"{len(request.messages)}: {last.text}")


@tool
def pay() -> str:
    """Pay."""
    os.write(1, b"this does not reach the client\n")
    return "paid"


@tool
async def wait() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


agent = Agent(FunctionModel(reply), name="clerk", tools=[pay, wait], store=f"sqlite:///{os.environ['CLERK_STORE']}")


@agent.gate(ToolCalling, tool="pay")
def ask(event: ToolCalling) -> Ask:
    return Ask("Pay it?")
