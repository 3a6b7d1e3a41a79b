"""What the test of background children runs in a process of its own: `python background_workers.py FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from windlass import Agent, Turn, tool
from windlass.testing import FunctionModel, calls, says


def make(folder: Path) -> Agent[Any, Any]:
    """An agent whose child sends something and then waits for the file `go`."""

    @tool
    async def send() -> str:
        """Send."""
        with (folder / "sent").open("a") as file:
            file.write("sent\n")
        return "sent"

    async def reply(request: Any) -> Any:
        if not any(message.role == "assistant" for message in request.messages):
            return calls("send")
        (folder / "began").touch()
        while not (folder / "go").exists():  # noqa: ASYNC110 — another process makes it
            await asyncio.sleep(0.005)
        return says("helped")

    child = Agent(FunctionModel(reply), name="child", tools=[send])

    @tool(effect="pure")
    async def start(turn: Turn[Any]) -> str:
        """Start it."""
        return (await turn.delegate(child, "help", background=True)).session

    def parent(request: Any) -> Any:
        first = not any(message.role == "assistant" for message in request.messages)
        return calls("start") if first else says("done")

    return Agent(FunctionModel(parent), tools=[start], subagents=[child], store=f"sqlite:///{folder / 'agent.db'}")


async def main(folder: Path) -> None:
    async with make(folder) as agent:
        await agent.run("go", session="s")
        (folder / "ended").touch()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
