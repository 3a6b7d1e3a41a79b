"""Where an MCP server is: a command to start, or an address."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from windlass.errors import ConfigError


class MCPError(ConfigError):
    """An MCP server cannot be used. `server` is its name."""

    def __init__(self, message: str, *, server: str = "") -> None:
        super().__init__(message)
        self.server = server


class Server(Struct, frozen=True, kw_only=True):
    """A server: its name, and its command or its address. `max_message` is in bytes, `start_timeout` in seconds."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    max_message: int = 16_000_000
    start_timeout: float = 30.0

    @property
    def place(self) -> str:
        """The command or address in words, without its environment and headers, which may hold secrets."""
        return self.url or " ".join(self.command)

    @property
    def digest(self) -> str:
        """A hash of what the server is. Values of variables and headers are not part of it."""
        folder = "" if self.url else os.path.abspath(self.cwd or ".")  # a command may name files relative to it
        parts = (self.name, self.command, folder, self.url, sorted(self.env), sorted(self.headers))
        return blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()

    def launched(self) -> list[str]:
        """The command as it is started: on Linux the server dies with this process, even if that is killed."""
        if sys.platform != "linux":
            return list(self.command)
        script = str(Path(__file__).with_name("launch.py"))
        return [sys.executable, "-I", "-S", script, str(os.getpid()), *self.command]

    def error(self, what: str) -> MCPError:
        """An error that names the server."""
        return MCPError(f"MCP server {self.name!r} ({self.place}) {what}", server=self.name)


__all__ = ["MCPError", "Server"]
