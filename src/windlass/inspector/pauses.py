"""The endpoints for breakpoints: where to pause, which turns wait, and what a person lets them do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from msgspec import Meta, Struct

from windlass.errors import ConfigError, ToolError
from windlass.server.errors import Problem
from windlass.server.json import to_json
from windlass.server.streams import sse

from .breakpoints import POINTS, Breakpoint, Breakpoints, Pause, Reply, check_reply, has_tool, verdicts_of
from .requests import Call, Endpoint, Endpoints
from .words import ROW, Data, cut

LOOKS = 0.05
"""How often the page hears of pauses, in seconds."""

Text = Annotated[str, Meta(max_length=100_000)]
Name = Annotated[str, Meta(max_length=400)]


class Chosen(Struct, frozen=True, forbid_unknown_fields=True):
    """The breakpoints that are set from now on."""

    event: Name
    tool: Name = ""


class All(Struct, frozen=True, forbid_unknown_fields=True):
    """All breakpoints: they take the place of those before."""

    breakpoints: Annotated[tuple[Chosen, ...], Meta(max_length=200)] = ()


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """What a paused turn does."""

    pause: int
    verdict: Name = ""
    reason: Text = ""
    arguments: dict[str, Any] | None = None
    text: Text | None = None
    inject: Text = ""


def _breakpoints(call: Call) -> Breakpoints:
    found: Breakpoints | None = call.inspector.breakpoints
    assert found is not None
    return found


async def offer(call: Call) -> Data:
    """The events at which a turn can pause, and what is set."""
    points = [
        {"event": name, "tool": has_tool(event), "verdicts": verdicts_of(event), "edit": event.payload is not None}
        for name, event in POINTS.items()
    ]
    breakpoints = _breakpoints(call)
    return {"points": points, "unwatched": breakpoints.unwatched, "by": call.inspector.person, **_state(breakpoints)}


async def events(call: Call) -> Any:
    """A stream of what changes. As long as one is open, a page watches."""
    breakpoints = _breakpoints(call)
    return call.stream(_changes(breakpoints))


async def _changes(breakpoints: Breakpoints) -> AsyncGenerator[bytes, None]:
    breakpoints.watch(1)
    try:
        known, number = -1, 0
        while True:
            if breakpoints.version != known:
                known, number = breakpoints.version, number + 1
                yield sse(to_json(_state(breakpoints)), event="pauses", id=str(number))
            await asyncio.sleep(LOOKS)
    finally:
        breakpoints.watch(-1)


def _state(breakpoints: Breakpoints) -> Data:
    return {
        "set": [{"event": one.event, "tool": one.tool} for one in breakpoints.all],
        "paused": [_view(pause) for pause in breakpoints.paused],
        "history": cut(list(breakpoints.history), ROW),
    }


def _view(pause: Pause) -> Data:
    return {"pause": pause.number, "began": pause.began, **pause.view}


async def choose(call: Call) -> Data:
    """Set the breakpoints."""
    given: All = call.body
    breakpoints = _breakpoints(call)
    breakpoints.set([Breakpoint(one.event, one.tool) for one in given.breakpoints])
    return _state(breakpoints)


async def answer(call: Call) -> Data:
    """Let a paused turn go on."""
    given: Answer = call.body
    breakpoints = _breakpoints(call)
    pause = next((one for one in breakpoints.paused if one.number == given.pause), None)
    reply = Reply(given.verdict, given.reason, given.arguments, given.text, given.inject)
    if pause is not None:
        try:
            check_reply(pause, reply)
        except (ConfigError, ToolError) as error:
            raise Problem(400, "invalid_reply", str(error)) from None
    if pause is None or not breakpoints.answer(given.pause, reply, call.inspector.person):
        raise Problem(409, "not_paused", "this turn does not wait any more")
    return _state(breakpoints)


ENDPOINTS: Endpoints = (
    Endpoint("/api/breakpoints", offer),
    Endpoint("/api/breakpoints/events", events),
    Endpoint("/api/breakpoints/set", choose, body=All),
    Endpoint("/api/breakpoints/answer", answer, body=Answer),
)
"""These routes exist only in a process that is started with `--inspect`."""
