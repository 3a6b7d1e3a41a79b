"""The server: agents behind one ASGI application, with access checked first."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from windlass import Agent
from windlass.errors import ConfigError

from . import ag_ui, completions, responses, sessions, working
from .access import LOOPBACK, Access
from .endpoints import Call, Endpoint
from .errors import Problem, problem_response
from .hosting import Hosting

SHORTEST_TOKEN = 16


async def openapi(call: Call) -> dict[str, Any]:
    """The OpenAPI document of this server."""
    from .openapi import describe

    return describe(ENDPOINTS)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/openapi.json", openapi, "This document", "server"),
    *sessions.ENDPOINTS,
    *working.ENDPOINTS,
    *completions.ENDPOINTS,
    *responses.ENDPOINTS,
    *ag_ui.ENDPOINTS,
)
"""All routes of the server."""


class Server:
    """Agents over HTTP, as an ASGI application: `uvicorn.run(Server([agent], token=token))`.

    - `agents`: found by their names, which must differ.
    - `token`: clients send it as `Authorization: Bearer TOKEN`; at least 16 characters.
    - `hosts`: the names under which clients reach the server, by default those of loopback. Other Hosts are refused.
    - `origins`: browser pages that may use the server besides its own, such as `https://chat.example.com`.
    - `scope`: a function that takes a session's id and returns the scope of its turns, for agents that declare one.
    - `max_body`: the largest body of a request, in bytes.
    - `body_timeout`: within how many seconds a body must arrive.
    - `drain`: how many seconds turns under way may take to end when the server stops. Those that take longer are
      interrupted and can be resumed.

    Each turn runs in a task of its own; clients watch it, and leaving does not end it.
    """

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any]],
        *,
        token: str,
        hosts: Sequence[str] = LOOPBACK,
        origins: Sequence[str] = (),
        scope: Callable[[str], Any] | None = None,
        max_body: int = 4 * 1024 * 1024,
        body_timeout: float = 10.0,
        drain: float = 0.0,
    ) -> None:
        _check(token, hosts, origins, max_body, body_timeout, drain)
        self._drain = drain
        self._hosting = Hosting(
            agents, scope=None if scope is None else _awaited(scope), max_body=max_body, body_timeout=body_timeout
        )
        cors = [
            Middleware(
                CORSMiddleware,
                allow_origins=[origin.rstrip("/") for origin in origins],
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["authorization", "content-type", "last-event-id", "x-windlass-session"],
            )
        ]
        app = Starlette(
            routes=[endpoint.route(self._hosting) for endpoint in ENDPOINTS],
            middleware=cors if origins else [],
            exception_handlers={HTTPException: _http_problem},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        self._app = Access(app, token=token, hosts=hosts, origins=origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @property
    def agents(self) -> tuple[Agent[Any, Any], ...]:
        """The agents of this server."""
        return self._hosting.agents

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.aclose()

    async def stop(self) -> None:
        """Take no more turns, give those under way `drain` seconds, interrupt the rest, and end all streams."""
        await self._hosting.close(self._drain)

    async def aclose(self) -> None:
        """Stop, and close the agents."""
        await self.stop()
        for agent in self.agents:
            await agent.aclose(patience=5.0)


def _check(
    token: str, hosts: Sequence[str], origins: Sequence[str], max_body: int, body_timeout: float, drain: float
) -> None:
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"the token must have at least {SHORTEST_TOKEN} printable ASCII characters and no spaces")
    if isinstance(hosts, str) or not hosts:
        raise ConfigError("hosts must be a list of at least one name, such as ['localhost']")
    for origin in origins:
        if not origin.startswith(("http://", "https://")) or "*" in origin:
            raise ConfigError(f"{origin!r} is not an origin: write it as https://chat.example.com")
    if max_body < 1 or body_timeout <= 0 or drain < 0:
        raise ConfigError("max_body and body_timeout must be above 0, and drain must not be negative")


def _awaited(scope: Callable[[str], Any]) -> Callable[[str], Awaitable[Any]]:
    """A scope function that may be sync or async as an async one."""

    async def make(session: str) -> Any:
        made = scope(session)
        return await made if inspect.isawaitable(made) else made

    return make


async def _http_problem(request: Request, error: Exception) -> Response:
    """An unknown path or a method that it does not take."""
    assert isinstance(error, HTTPException)
    return problem_response(
        Problem(error.status_code, "not_found" if error.status_code == 404 else "refused", error.detail)
    )
