"""The endpoints for turns: start, resume, watch, steer and cancel them, and answer what they ask."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote

from starlette.responses import Response

from windlass.approvals import open_questions, progress
from windlass.decisions import AnyResolution
from windlass.deltas import StreamEvent
from windlass.ids import check_new_id
from windlass.records import Record

from .endpoints import Call, Endpoint
from .errors import problem_of
from .hosting import wait_or_leave
from .json import to_json
from .streams import sse
from .turns import Run, Turns
from .views import (
    CancelTurn,
    CancelView,
    DoneView,
    NewSessionTurn,
    NewTurn,
    Question,
    QuestionsView,
    ResumeTurn,
    StartedView,
    SteerTurn,
    TurnView,
    WatchEvents,
    as_message,
    result_view,
    turn_view,
)

Events: TypeAlias = AsyncGenerator[tuple[StreamEvent, str], None]


async def start_anywhere(call: Call) -> Response:
    """Start a turn in a session that the body names, or in a new one."""
    wanted: NewSessionTurn = call.body
    return await _start(call, wanted.session, wanted)


async def start(call: Call) -> Response:
    """Start a turn in the session of the path."""
    return await _start(call, call.session, call.body)


async def _start(call: Call, session: str | None, wanted: NewTurn) -> Response:
    if session is not None:
        check_new_id(session)
    turns = call.turns
    run = await turns.start(session, as_message(wanted.message), takeover=wanted.takeover)
    return await _respond(call, turns, run, wanted)


async def resume(call: Call) -> Response:
    """Resume a suspended or interrupted turn."""
    wanted: ResumeTurn = call.body
    turns = call.turns
    run = await turns.start(call.session, None, answers=wanted.answers, takeover=wanted.takeover)
    return await _respond(call, turns, run, wanted)


async def _respond(call: Call, turns: Turns, run: Run, wanted: NewTurn | ResumeTurn) -> Response:
    """The result of a turn, its events, or only that it was started."""
    left = partial(turns.agent.cancel, run.session, "the client left") if wanted.cancel_on_disconnect else None
    if wanted.mode == "stream":
        return call.hosting.streams.respond(_events(turns, run.session, turns.follow(run), run), left=left)
    if wanted.mode == "start":
        where = f"/agents/{quote(turns.agent.name, safe='')}/sessions/{quote(run.session, safe='')}/events"
        return _json(StartedView(run.session, where), 202)
    await wait_or_leave(run, call.request, left)
    return _json(result_view(run.outcome()), 200)


def _json(view: object, status: int) -> Response:
    return Response(to_json(view), status, media_type="application/json")


async def watch(call: Call) -> Response:
    """The events of a session's latest turn, or those after a token."""
    query: WatchEvents = call.query
    turns, session = call.turns, call.session
    since = query.since or call.request.headers.get("last-event-id") or None
    turns.agent.watch(session, since=since)  # raises if the token is not valid
    await turns.agent.state(session) if turns.running(session) is None else None
    return call.hosting.streams.respond(_events(turns, session, turns.watch(session, since), None))


async def _events(turns: Turns, session: str, events: Events, run: Run | None) -> AsyncGenerator[bytes, None]:
    """Events as server-sent ones. A record has an id to continue after; the last event says how the turn stands."""
    try:
        async for event, token in events:
            kind = str(type(event).__struct_config__.tag)
            yield sse(to_json(event), event=kind, id=token if isinstance(event, Record) else "")
        if run is not None:
            view: TurnView | None = result_view(run.outcome())
        else:
            view = turn_view(await turns.agent.state(session))
        yield sse(to_json(view), event="turn")
    except Exception as error:
        problem = problem_of(error)
        yield sse(to_json({"type": problem.type, "message": problem.message, **problem.details}), event="error")
    finally:
        await events.aclose()


async def cancel(call: Call) -> CancelView:
    """Cancel the turn of a session."""
    wanted: CancelTurn = call.body
    return CancelView(await call.turns.agent.cancel(call.session, wanted.reason))


async def steer(call: Call) -> DoneView:
    """Add a message to the running turn of a session."""
    wanted: SteerTurn = call.body
    await call.turns.agent.steer(call.session, as_message(wanted.message))
    return DoneView()


async def all_questions(call: Call) -> QuestionsView:
    """The open questions of all sessions of an agent's store."""
    return await _questions(call, None)


async def questions(call: Call) -> QuestionsView:
    """The open questions of a session."""
    await call.turns.agent.state(call.session)
    return await _questions(call, call.session)


async def _questions(call: Call, session: str | None) -> QuestionsView:
    found = await open_questions(call.turns.agent.store, session)
    return QuestionsView(tuple([Question(name, asked, str(progress(asked))) for name, asked in found]))


async def answer(call: Call) -> DoneView:
    """Answer a question. The answer counts when the session is resumed, or at once if it is running."""
    given: AnyResolution = call.body
    await call.turns.agent.resolve(call.session, call.path("question"), given)
    return DoneView()


_AGENT = "/agents/{agent}"
_SESSION = f"{_AGENT}/sessions/{{session}}"
_turn: dict[str, Any] = {"returns": TurnView, "streams": True}

ENDPOINTS = (
    Endpoint("POST", f"{_AGENT}/turns", start_anywhere, "Start a turn", "turns", body=NewSessionTurn, **_turn),
    Endpoint("POST", f"{_SESSION}/turns", start, "Start a turn in a session", "turns", body=NewTurn, **_turn),
    Endpoint("POST", f"{_SESSION}/resume", resume, "Resume a turn", "turns", body=ResumeTurn, **_turn),
    Endpoint("GET", f"{_SESSION}/events", watch, "Watch a turn", "turns", query=WatchEvents, streams=True),
    Endpoint("POST", f"{_SESSION}/cancel", cancel, "Cancel a turn", "turns", body=CancelTurn, returns=CancelView),
    Endpoint("POST", f"{_SESSION}/steer", steer, "Add a message to a turn", "turns", body=SteerTurn, returns=DoneView),
    Endpoint("GET", f"{_AGENT}/approvals", all_questions, "All open questions", "approvals", returns=QuestionsView),
    Endpoint("GET", f"{_SESSION}/approvals", questions, "Open questions", "approvals", returns=QuestionsView),
    Endpoint(
        "POST", f"{_SESSION}/approvals/{{question}}", answer, "Answer a question", "approvals",
        body=AnyResolution, returns=DoneView,
    ),
)  # fmt: skip
