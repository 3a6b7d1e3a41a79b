"""Real MCP servers for the tests: two from npm, installed once into the virtual environment, and scripts beside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import BIN, install

from windlass.mcp import MCP

SERVERS = Path(__file__).with_name("servers")
NODE = str(BIN / "node")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own for each test."""
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def npm() -> Path:
    """The folder of the servers from npm, installed by the lock file; without a network the tests are skipped."""
    return install(SERVERS, "mcp-servers") / "@modelcontextprotocol"


@pytest.fixture
def everything(npm: Path) -> list[str]:
    """The command of the server with everything."""
    return [NODE, str(npm / "server-everything" / "dist" / "index.js"), "stdio"]


@pytest.fixture
def rogue() -> Callable[..., MCP]:
    """A server that misbehaves."""

    def make(how: str, *arguments: str, **options: Any) -> MCP:
        command = [sys.executable, str(SERVERS / "rogue.py"), how, *arguments]
        return MCP("rogue", command=command, **options)

    return make


@pytest.fixture
def plain() -> Callable[..., MCP]:
    """A server written with the SDK."""

    def make(**options: Any) -> MCP:
        return MCP("plain", command=[sys.executable, str(SERVERS / "plain.py")], **options)

    return make


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening(command: list[str], port: int, **environment: str) -> Iterator[str]:
    """Run a server that listens on a port, until the test is over."""
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # both servers say so when they listen
            if str(port) in line:
                break
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


@pytest.fixture
def everything_http(npm: Path) -> Iterator[str]:
    """The address of the server with everything."""
    port = free_port()
    script = str(npm / "server-everything" / "dist" / "index.js")
    yield from listening([NODE, script, "streamableHttp"], port, PORT=str(port))


@pytest.fixture
def plain_http() -> Iterator[str]:
    """The address of the server written with the SDK."""
    port = free_port()
    yield from listening([sys.executable, str(SERVERS / "plain.py"), str(port)], port)
