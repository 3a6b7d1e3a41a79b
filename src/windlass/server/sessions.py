"""The endpoints for sessions: list, show, fork and erase them."""

from __future__ import annotations

import msgspec

from windlass.ids import check_new_id
from windlass.records import encode

from .endpoints import Call, Endpoint
from .errors import Problem
from .views import (
    AgentsView,
    AgentView,
    DoneView,
    FindSessions,
    ForkView,
    HealthView,
    NewFork,
    ReadRecords,
    RecordsView,
    SessionsView,
    SessionView,
    WhyView,
    turn_view,
)


async def health(call: Call) -> HealthView:
    """Whether the server is up."""
    return HealthView("stopping" if call.hosting.closing else "ok")


async def agents(call: Call) -> AgentsView:
    """The agents of this server."""
    return AgentsView(
        tuple([AgentView(agent.name, agent.model.name, tuple(agent.tools)) for agent in call.hosting.agents])
    )


async def find(call: Call) -> SessionsView:
    """The sessions of an agent's store."""
    query: FindSessions = call.query
    found = await call.turns.agent.store.find(search=query.search, status=query.status, limit=query.limit)
    return SessionsView(tuple(found))


async def show(call: Call) -> SessionView:
    """A session as its log tells it."""
    turns, session = call.turns, call.session
    state = await turns.agent.state(session)
    running = turns.running(session) is not None or (await turns.agent.store.ownership(session)).alive
    messages = tuple(state.messages)
    return SessionView(session, state.turns, state.steps, running, state.usage, messages, turn_view(state))


async def records(call: Call) -> RecordsView:
    """The records of a session's log."""
    query: ReadRecords = call.query
    store = call.turns.agent.store
    found = await store.read(call.session, query.start)
    if not found and not await store.read(call.session):
        raise Problem(404, "session_unknown", f"there is no session {call.session!r}")
    shown = tuple([msgspec.Raw(encode(record)) for record in found[: query.limit]])
    return RecordsView(shown, query.start + query.limit if len(found) > query.limit else None)


async def why(call: Call) -> WhyView:
    """Why the latest turn of a session went as it did."""
    explained = await call.turns.agent.why(call.session)
    return WhyView(explained.data, str(explained))


async def fork(call: Call) -> ForkView:
    """Copy a session, up to a record."""
    wanted: NewFork = call.body
    if wanted.to is not None:
        check_new_id(wanted.to)
    return ForkView(await call.turns.agent.fork(call.session, at=wanted.at, to=wanted.to))


async def erase(call: Call) -> DoneView:
    """Erase a session and those of its sub-agents."""
    turns, session = call.turns, call.session
    if turns.running(session) is not None:
        raise Problem(409, "session_busy", f"a turn is running in session {session!r}: cancel it first")
    if not await turns.agent.store.erase(session):
        raise Problem(404, "session_unknown", f"there is no session {session!r}")
    return DoneView()


_SESSION = "/agents/{agent}/sessions/{session}"

ENDPOINTS = (
    Endpoint("GET", "/health", health, "Whether the server is up", "server", returns=HealthView),
    Endpoint("GET", "/agents", agents, "The agents of this server", "server", returns=AgentsView),
    Endpoint(
        "GET", "/agents/{agent}/sessions", find, "List sessions", "sessions", query=FindSessions, returns=SessionsView
    ),
    Endpoint("GET", _SESSION, show, "Show a session", "sessions", returns=SessionView),
    Endpoint("DELETE", _SESSION, erase, "Erase a session", "sessions", returns=DoneView),
    Endpoint(
        "GET", f"{_SESSION}/records", records, "The records of a session", "sessions",
        query=ReadRecords, returns=RecordsView,
    ),
    Endpoint("GET", f"{_SESSION}/why", why, "Explain the latest turn", "sessions", returns=WhyView),
    Endpoint(
        "POST", f"{_SESSION}/fork", fork, "Copy a session, up to a record", "sessions",
        body=NewFork, returns=ForkView, status=201,
    ),
)  # fmt: skip
