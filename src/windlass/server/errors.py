"""Errors as responses: a status, a type and a message, without the internals of the server."""

from __future__ import annotations

import logging

from msgspec import Struct
from starlette.responses import Response

from windlass.errors import (
    ConfigError,
    NotSuspended,
    SessionBusy,
    SessionConflict,
    SessionDriven,
    SessionUnknown,
    StaleAnswer,
    StoreError,
)
from windlass.errors import SessionError as AnySessionError

from .json import to_json

log = logging.getLogger("windlass.server")


class Problem(Exception):
    """A request that is answered with an error. `details` go into the error's body."""

    def __init__(self, status: int, type: str, message: str, **details: object) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.details = details


class ErrorBody(Struct, frozen=True):
    """What went wrong: a stable `type`, and a message for people."""

    type: str
    message: str


class ErrorView(Struct, frozen=True):
    """The body of every error."""

    error: ErrorBody


_STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (SessionUnknown, 404, "session_unknown"),
    (SessionBusy, 409, "session_busy"),
    (SessionConflict, 409, "session_conflict"),
    (SessionDriven, 409, "session_driven"),
    (NotSuspended, 409, "not_suspended"),
    (StaleAnswer, 409, "stale_answer"),
    (AnySessionError, 409, "session_error"),
    (ConfigError, 400, "invalid_request"),
)


def problem_of(error: BaseException) -> Problem:
    """The problem that an error of Windlass is for a client. Other errors are logged, and the client learns nothing."""
    if isinstance(error, Problem):
        return error
    for kind, status, name in _STATUSES:
        if isinstance(error, kind):
            return Problem(status, name, str(error))
    log.error("a request failed: %s", type(error).__name__, exc_info=error)
    if isinstance(error, StoreError):
        return Problem(503, "store_unavailable", "the store does not answer; the server's log says why")
    return Problem(500, "internal_error", "the server failed; its log says why")


def problem_response(problem: Problem) -> Response:
    """A problem as JSON. A request whose body was not read to its end cannot be followed by another one."""
    body = {"error": {"type": problem.type, "message": problem.message, **problem.details}}
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    if problem.status in (408, 413):
        headers["connection"] = "close"
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(to_json(body), problem.status, headers, "application/json")
