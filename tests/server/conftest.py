"""Servers for tests: one in this process, and one of its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from windlass import Agent
from windlass.server import Server
from windlass.server.listening import Listener, address_of, open_socket

TOKEN = "a-token-of-24-characters"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Live:
    """A server that runs in this process, on a free port of loopback, and a client of it."""

    def __init__(self, server: Server, address: str, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.address = address
        self.client = client
        self.hosting = server._hosting


@pytest.fixture
def live() -> Callable[..., Any]:
    """Opens a real uvicorn: `async with live(agent) as server`."""
    return _live


@asynccontextmanager
async def _live(*agents: Agent[Any, Any], **options: Any) -> AsyncIterator[Live]:
    import asyncio

    server = Server(agents, **{"token": TOKEN, **options})
    listening = open_socket("127.0.0.1", 0)
    listener = Listener(server)
    address = address_of(listening)
    task = asyncio.create_task(listener._serve([listening]))
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(
        base_url=address, headers=BEARER, timeout=30, limits=limits, trust_env=False
    ) as client:
        try:
            yield Live(server, address, client)
        finally:
            await client.aclose()
            listener.should_exit = True
            await task


class Process:
    """`windlass serve` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        token = {"WINDLASS_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "windlass", "serve", *arguments, "--port", "0"],
            cwd=folder, env={**os.environ, **token}, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("listening on "):
                break
        else:
            raise AssertionError("".join(self.lines))
        self.address = line.split()[-1]

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.address, headers=BEARER, timeout=30, trust_env=False)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(20)


@pytest.fixture
def spawn() -> Iterator[Callable[..., Process]]:
    """Starts `windlass serve` in a folder, and ends it after the test."""
    started: list[Process] = []

    def start(folder: Path, *arguments: str) -> Process:
        started.append(Process(folder, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()
