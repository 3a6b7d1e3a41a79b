"""Serves an application on a socket with uvicorn, and stops within seconds, also while streams are open."""

from __future__ import annotations

import socket
from typing import Any, Literal, Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

LAST_RESPONSES = 2
"""How many seconds responses may take to end once all turns and streams have."""


class Served(Protocol):
    """An application that ends its streams when it is told to stop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def stop(self) -> None: ...


class Listener(uvicorn.Server):
    """uvicorn, but turns and streams end before it waits for connections: an open stream would never end by itself.

    The parser `h11` bounds the size of a request's head, which costs time; the quick one, if it is installed, does not.
    """

    def __init__(self, server: Served, *, http: Literal["auto", "h11"] = "auto") -> None:
        config = uvicorn.Config(
            server,
            http=http,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=LAST_RESPONSES,
            backlog=2048,
        )
        super().__init__(config)
        self._served = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._served.stop()
        await super().shutdown(sockets)


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def address_of(listening: socket.socket) -> str:
    """The address of a socket, as a client writes it."""
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(server: Served, listening: socket.socket, *, http: Literal["auto", "h11"] = "auto") -> None:
    """Serve until SIGTERM or SIGINT."""
    listener: Any = Listener(server, http=http)
    await listener.serve(sockets=[listening])
