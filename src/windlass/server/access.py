"""Who may talk to the server: the right Host, no foreign Origin, and the token."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import Problem, problem_response

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names of this machine that only this machine can use."""

OPEN_PATHS = frozenset({"/health"})
"""Paths that need no token."""


class Access:
    """Checks each request before anything else reads it.

    The Host must be one of `hosts`, so that a name which an attacker lets point here (DNS rebinding) is refused. A
    browser's Origin must be the server itself or one of `origins`. All paths but the `open_paths` need the token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: Iterable[str],
        origins: Iterable[str] = (),
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._token = token.encode()
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        # Routes see the path as it was sent, so that an encoded slash stays part of a session's id.
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        problem = _repeated(scope["headers"]) or self._problem(dict(scope["headers"]), path, scope["method"])
        if problem is not None:
            await problem_response(problem)(scope, receive, send)
            return
        await self._app({**scope, "path": path}, receive, send)

    def _problem(self, headers: dict[bytes, bytes], path: str, method: str) -> Problem | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if _name_of(host) not in self._hosts:
            return Problem(421, "wrong_host", "the Host of this request is not one that this server answers to")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin not in self._origins and not _is_same(origin, host):
            return Problem(403, "foreign_origin", "requests from this origin are not allowed")
        if path in self._open_paths or (method == "OPTIONS" and origin in self._origins):
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            return Problem(401, "wrong_token", "send the server's token: Authorization: Bearer TOKEN")
        return None


def _repeated(headers: Iterable[tuple[bytes, bytes]]) -> Problem | None:
    """A request that says twice where it goes, where it comes from or who sends it can mean either."""
    sent = [name for name, _ in headers if name in (b"host", b"origin", b"authorization")]
    if len(sent) == len(set(sent)):
        return None
    return Problem(400, "invalid_request", "send each of Host, Origin and Authorization only once")


def _name_of(host: str) -> str | None:
    """The name in a Host header, without the port; None if it is not valid."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin is the server that was asked."""
    return origin in (f"http://{host}", f"https://{host}")
