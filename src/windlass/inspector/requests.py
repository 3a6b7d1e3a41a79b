"""The routes of the inspector as data, and what each gets of a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from windlass.server.bodies import decode_body, decode_query, read_body
from windlass.server.errors import Problem, problem_of, problem_response
from windlass.server.json import to_json
from windlass.server.streams import Left

if TYPE_CHECKING:
    from .app import Inspector

MAX_BODY = 1024 * 1024
PATIENCE = 10.0
"""The largest body of a request, in bytes, and within how many seconds it must arrive."""

MOST_STREAMS = 100
"""How many streams are open at once."""

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Call:
    """A request, with its path, query and body decoded."""

    def __init__(self, inspector: Inspector, request: Request, query: Any, body: Any) -> None:
        self.inspector = inspector
        self.request = request
        self.query = query
        self.body = body

    def path(self, name: str) -> str:
        """A part of the path."""
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError:
            raise Problem(400, "invalid_request", f"the {name} in the path is not valid UTF-8") from None

    def stream(self, events: AsyncGenerator[bytes, None], *, left: Left | None = None) -> Response:
        """Send events until they end or the page leaves; then `left` is called."""
        if len(self.inspector.streams) >= MOST_STREAMS:
            raise Problem(503, "too_many_streams", f"{MOST_STREAMS} streams are open: close some pages")
        return self.inspector.streams.respond(events, left=left)

    def number(self, name: str) -> int:
        """A part of the path that is a number."""
        text = self.path(name)
        if not text.isdecimal() or not text.isascii() or len(text) > 12:
            raise Problem(400, "invalid_request", f"the {name} in the path is not a number")
        return int(text)


class Endpoint(Struct, frozen=True):
    """One route. `query` and `body` are types; with a body it is a POST."""

    path: str
    handler: Callable[[Call], Awaitable[Any]]
    query: Any = None
    body: Any = None

    def route(self, inspector: Inspector) -> Route:
        """The route of this endpoint."""

        async def respond(request: Request) -> Response:
            try:
                return await self._respond(inspector, request)
            except Exception as error:
                return problem_response(problem_of(error))

        route = Route(self.path, respond, methods=["GET" if self.body is None else "POST"])
        (route.methods or set()).discard("HEAD")  # of a stream it would have no end
        return route

    async def _respond(self, inspector: Inspector, request: Request) -> Response:
        query = None if self.query is None else decode_query(request, self.query)
        body = None
        if self.body is not None:
            body = decode_body(await read_body(request, limit=MAX_BODY, patience=PATIENCE), self.body)
        answer = await self.handler(Call(inspector, request, query, body))
        return answer if isinstance(answer, Response) else Response(to_json(answer), 200, HEADERS, "application/json")


Endpoints: TypeAlias = tuple[Endpoint, ...]
