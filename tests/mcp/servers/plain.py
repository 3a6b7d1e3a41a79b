"""An MCP server written with the official SDK: over its pipes, or over HTTP on the port of its argument."""

import asyncio
import sys
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("plain")
cancelled: list[str] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
def store(text: str) -> str:
    """Store a text."""
    return f"stored {text}"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it broke")


@server.tool()
async def wait() -> str:
    """Wait until it is cancelled."""
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        cancelled.append("wait")
        raise
    return "never"


@server.tool()
async def count_cancelled() -> str:
    """Count the cancelled calls."""
    return str(len(cancelled))


@server.tool()
async def work(ctx: Context) -> str:
    """Work in three steps."""
    for step in range(3):
        await ctx.report_progress(step + 1, 3, f"step {step + 1}")
    return "worked"


class Address(BaseModel):
    city: str


def ask_for_city() -> Elicit[Address]:
    return Elicit("Where to?", Address)


@server.tool()
async def ship(answer: Annotated[ElicitationResult[Address], Resolve(ask_for_city)]) -> str:
    """Ask for a city and ship there."""
    return f"{answer.action}: {answer.data.city if answer.action == 'accept' else '-'}"


@server.resource("memo://today")
def memo() -> str:
    """What to do today."""
    return "Water the plants."


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
