"""The files of the page, read once: nothing else is ever served, whatever a path says."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No script, style or image from elsewhere or in the page, no frame around it, and no HTML made from text."""

HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def static_routes() -> list[Route]:
    """A route for each file of the page. They hold no data, so they need no token."""
    root = resources.files(__package__ or "windlass.inspector") / "static"
    routes = [_route(path, file) for path, file in _walk(root, "")]
    return [*routes, _route("/", root / "index.html")]


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            yield from _walk(entry, f"{path}/{entry.name}")
        elif entry.name.rpartition(".")[2] in TYPES:
            yield f"{path}/{entry.name}", entry


def _route(path: str, file: Traversable) -> Route:
    body, kind = file.read_bytes(), TYPES[file.name.rpartition(".")[2]]

    async def respond(request: Request) -> Response:
        return Response(body, 200, HEADERS, kind)

    return Route(path, respond, methods=["GET"])
