"""What the tests of engines run in processes of their own, and what they look at: files in a folder, and a store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from windlass import Agent, Ask, ModelRequest, ToolCalling, tool
from windlass.testing import FunctionModel, calls, says

HELD = 60.0
"""After this many seconds something that is held goes on by itself."""

MODULE = "tests.engines.office"


def note(path: Path, *words: str) -> None:
    """Append a line to a file. It is there even if the process is killed right afterwards."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(words) + "\n").encode())
    os.close(file)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Office:
    """The place where the processes of a test meet."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address

    @property
    def effects(self) -> list[str]:
        """The effects of tools: the tool, the session and the number, each with the process that had it."""
        return [line.rpartition(" ")[0] for line in lines(self.folder / "effects")]

    @property
    def workers(self) -> list[int]:
        """The processes that had the effects."""
        return [int(line.rpartition(" ")[2]) for line in lines(self.folder / "effects")]

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def let(self) -> None:
        (self.folder / "hold").unlink()

    async def effect(self, name: str) -> str:
        note(self.folder / "effects", name, str(os.getpid()))
        end = time.monotonic() + HELD
        while (self.folder / "hold").exists() and time.monotonic() < end:  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.005)
        return f"{name} done"

    def agent(self, **options: Any) -> Agent[Any, Any]:
        """Calls the tool that a message names, with its number: `send 3`. A message of several lines has several."""

        @tool
        async def send(number: int) -> str:
            """Send something off."""
            return await self.effect(f"send {number}")

        @tool(effect="idempotent")
        async def pay(number: int, idempotency_key: str) -> str:
            """Pay."""
            return await self.effect(f"pay {number}")

        @tool
        async def ask(number: int) -> str:
            """Do what a person has to allow, however long that takes."""
            return await self.effect(f"ask {number}")

        @tool
        async def sign(number: int) -> str:
            """Sign, if a person agrees."""
            return await self.effect(f"sign {number}")

        async def reply(request: ModelRequest) -> Any:
            last = max(n for n, message in enumerate(request.messages) if message.role == "user")
            done = len([m for m in request.messages[last:] if m.role == "assistant"])
            asked = [line.split() for line in request.messages[last].text.splitlines()]
            if done < len(asked) and len(asked[done]) == 2:
                return calls(asked[done][0], number=int(asked[done][1]))
            return says(f"done: {request.messages[last].text}")

        agent = Agent(FunctionModel(reply), tools=[send, pay, sign, ask], store=self.address, name="clerk", **options)
        agent.gate(ToolCalling, tool="sign", name="sure")(lambda event: Ask("sure?", expires=2.0))
        agent.gate(ToolCalling, tool="ask", name="allowed")(lambda event: Ask("allowed?"))
        return agent


def agent() -> Agent[Any, Any]:
    """The agent of a worker's process."""
    return Office(Path(os.environ["OFFICE"]), os.environ["OFFICE_STORE"]).agent()


class Town(Office):
    """The office of the test itself, which starts the other processes. None outlives the test."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, address)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, command: str = "worker", **environment: str) -> subprocess.Popen[bytes]:
        """A worker as people start it."""
        path = os.pathsep.join(filter(None, sys.path))
        env = {**os.environ, "PYTHONPATH": path, "OFFICE": str(self.folder), "OFFICE_STORE": self.address}
        agent = ["--agent", f"{MODULE}:agent"] if command == "run" else [f"{MODULE}:agent"]
        words = [sys.executable, "-m", "windlass", command, *agent, *arguments]
        with (self.folder / "log").open("ab") as log:
            self.processes.append(subprocess.Popen(words, env={**env, **environment}, stdout=log, stderr=log))
        return self.processes[-1]

    async def until(self, what: Callable[[], Any], seconds: float = 40.0) -> float:
        """Wait for something, and return how long it took."""
        began = time.monotonic()
        while not what():
            assert time.monotonic() < began + seconds, (self.folder / "log").read_text(errors="replace")
            await asyncio.sleep(0.005)
        return time.monotonic() - began

    def close(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.send_signal(18)
            process.kill()
            process.wait()
