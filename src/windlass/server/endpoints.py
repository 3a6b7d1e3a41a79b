"""The routes of the server as data: what each takes, returns and does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from windlass.ids import check_id

from .bodies import decode_body, decode_query, read_body
from .errors import Problem, problem_of, problem_response
from .json import to_json

if TYPE_CHECKING:
    from .hosting import Hosting
    from .turns import Turns


class Call:
    """A request to an endpoint, with its path, body and query decoded."""

    def __init__(self, hosting: Hosting, request: Request, body: Any = None, query: Any = None) -> None:
        self.hosting = hosting
        self.request = request
        self.body = body
        self.query = query

    def path(self, name: str) -> str:
        """A part of the path."""
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError:
            raise Problem(400, "invalid_request", f"the {name} in the path is not valid UTF-8") from None

    @property
    def turns(self) -> Turns:
        """The turns of the agent in the path."""
        return self.hosting.turns(self.path("agent"))

    @property
    def session(self) -> str:
        """The session in the path."""
        session = self.path("session")
        check_id(session)
        return session


Handler: TypeAlias = Callable[[Call], Awaitable[Any]]
Failure: TypeAlias = Callable[[Problem], Response]


class Endpoint(Struct, frozen=True):
    """One route. `body`, `query` and `returns` are types; `streams` says that it can answer with events."""

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    body: Any = None
    query: Any = None
    returns: Any = None
    status: int = 200
    streams: bool = False
    failure: Failure = problem_response

    def route(self, hosting: Hosting) -> Route:
        """The route of this endpoint."""

        async def respond(request: Request) -> Response:
            try:
                return await self._respond(hosting, request)
            except Exception as error:
                return self.failure(problem_of(error))

        return Route(self.path, respond, methods=[self.method], name=f"{self.method} {self.path}")

    async def _respond(self, hosting: Hosting, request: Request) -> Response:
        call = Call(hosting, request)
        if self.body is not None:
            data = await read_body(request, limit=hosting.max_body, patience=hosting.body_timeout)
            call.body = decode_body(data, self.body)
        if self.query is not None:
            call.query = decode_query(request, self.query)
        answer = await self.handler(call)
        if isinstance(answer, Response):
            return answer
        return Response(to_json(answer), self.status, media_type="application/json")
