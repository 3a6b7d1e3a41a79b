"""The inspector as an ASGI application: the page, and what it asks for, behind one token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from windlass import Agent
from windlass.errors import ConfigError
from windlass.replay.runs import ScopeFactory
from windlass.server.access import LOOPBACK, Access
from windlass.server.app import SHORTEST_TOKEN
from windlass.server.errors import Problem, problem_response
from windlass.server.streams import Streams

from . import contexts, diffs, evaluations, governance, live, pauses, questions, sessions, whatif
from .breakpoints import Breakpoints
from .files import static_routes
from .requests import Endpoints
from .sources import Source, top_of

READING: Endpoints = (
    *sessions.ENDPOINTS,
    *live.ENDPOINTS,
    *contexts.ENDPOINTS,
    *questions.READING,
    *diffs.ENDPOINTS,
    *whatif.ENDPOINTS,
    *governance.ENDPOINTS,
    *evaluations.ENDPOINTS,
)
WRITING: Endpoints = questions.WRITING


class Inspector:
    """A page on what the sessions of a store did: `uvicorn.run(Inspector(source, token=token))`.

    - `source`: the store; see `open_source`.
    - `token`: the page sends it as `Authorization: Bearer TOKEN`; at least 16 characters.
    - `hosts`: the names under which browsers reach it, by default those of loopback. Other Hosts are refused.
    - `control`: also answer questions. Without it nothing can be changed: the routes that write do not exist.
    - `person`: in whose name questions are answered.
    - `agent`: the agent that wrote the sessions, for what the log does not have: the effects of its tools. It masks its
      secrets in answers and checks edited arguments. What-if asks its hooks.
    - `scope`: a function that takes the id of a session and returns the scope of its turns, or an awaitable of it, for
      the hooks that what-if asks.
    - `evals`: files that `EvalRun.save` wrote, and folders with such files.
    - `breakpoints`: those of agents in this process. Questions of their sessions can be answered, too, others only with
      `control`.

    The page itself needs no token: it holds no data. It gets the token from the part of its address after `#`, which
    browsers do not send.
    """

    def __init__(
        self,
        source: Source,
        *,
        token: str,
        hosts: Sequence[str] = LOOPBACK,
        control: bool = False,
        person: str = "",
        agent: Agent[Any, Any] | None = None,
        scope: ScopeFactory | None = None,
        evals: Sequence[Path] = (),
        breakpoints: Breakpoints | None = None,
    ) -> None:
        if len(token) < SHORTEST_TOKEN or not token.isascii():
            raise ConfigError(f"the token must have at least {SHORTEST_TOKEN} ASCII characters")
        self.source = source
        self.control = control
        self.person = person or "somebody"
        self.agent = agent
        self.scope = scope
        self.replaying = False
        self.breakpoints = breakpoints
        self.effects = {} if agent is None else {one["name"]: one["effect"] for one in agent.explain().data["tools"]}
        self.streams = Streams()
        self.governance = governance.Governance(source)
        self.evaluations = evaluations.Evaluations(evals)
        static = static_routes()
        app = Starlette(
            routes=[*static, *[endpoint.route(self) for endpoint in self._endpoints()]],
            exception_handlers={HTTPException: _http_problem},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        self._app = Access(app, token=token, hosts=hosts, open_paths={route.path for route in static})

    def _endpoints(self) -> Endpoints:
        """The routes for data. Those that write exist only with `control` or `breakpoints`."""
        writing = WRITING if self.control or self.breakpoints is not None else ()
        return (*READING, *writing, *(pauses.ENDPOINTS if self.breakpoints is not None else ()))

    def may_answer(self, session: str) -> bool:
        """Whether questions of a session can be answered here."""
        own = set[str]() if self.breakpoints is None else self.breakpoints.sessions
        return self.control or session in own or top_of(session) in own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.stop()
            await self.source.close()

    async def stop(self) -> None:
        """End all streams."""
        await self.streams.close(0.0)


async def _http_problem(request: Request, error: Exception) -> Response:
    """An unknown path or a method that it does not take."""
    assert isinstance(error, HTTPException)
    return problem_response(Problem(error.status_code, "not_found", error.detail))
