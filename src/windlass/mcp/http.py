"""Serves an MCP server over streamable HTTP: on the loopback interface, for clients that have the token."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

_HOST = "127.0.0.1"


async def serve_http(server: MCPServer, *, port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve until the process is told to end. Port 0 takes a free port; `ready` gets the address."""
    import uvicorn

    with socket.create_server((_HOST, port), backlog=2048) as listener:  # clients may connect before uvicorn runs
        taken = listener.getsockname()[1]
        hosts = [f"{name}:{taken}" for name in (_HOST, "localhost")]
        security = TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts])
        app = server.streamable_http_app(host=_HOST, transport_security=security)
        config = uvicorn.Config(_guarded(app, token), log_level="warning", timeout_graceful_shutdown=1)
        ready(f"http://{_HOST}:{taken}/mcp")
        await uvicorn.Server(config).serve(sockets=[listener])


def _guarded(app: Any, token: str) -> Any:
    """The application for requests that carry the token; all others get 401."""
    expected = f"Bearer {token}".encode()

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, expected):
                headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body"})
                return
        await app(scope, receive, send)

    return guard


__all__ = ["serve_http"]
