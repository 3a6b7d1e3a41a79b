"""What happens while somebody looks: changes of the list, and of one session, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from windlass.errors import SessionUnknown, StoreError
from windlass.logs import SessionInfo
from windlass.server.errors import Problem
from windlass.server.json import to_json
from windlass.server.streams import sse

from .requests import Call, Endpoint, Endpoints
from .score import Score
from .sessions import ROWS, head, info_view, turn_view
from .sources import is_live
from .words import Data

FIRST_PAUSE, LAST_PAUSE = 0.1, 1.0
"""How long to wait before the store is read again, in seconds: after something new, and at most."""

LATEST = 100
"""How many sessions are looked at for changes, and how many turns of one."""


async def events(call: Call) -> Any:
    """A stream of changes. With `session` those of one session, whose ids are numbers of records."""
    session = call.request.query_params.get("session")
    since = call.request.headers.get("last-event-id", "")
    if session is None:
        return call.stream(_list(call, since))
    if since and not (since.isascii() and since.isdecimal() and len(since) < 13):
        raise Problem(400, "invalid_request", "Last-Event-ID must be the number of a record")
    await call.inspector.source.log(session)
    return call.stream(_session(call, session, int(since or 0)))


async def _list(call: Call, since: str) -> AsyncGenerator[bytes, None]:
    """Sessions that have changed. The first event has none: it says from when on changes are sent."""
    store = call.inspector.source.store
    known: dict[str, Data] = {}
    pause, first = FIRST_PAUSE, True
    while True:
        views = [await info_view(store, info) for info in await store.find(limit=LATEST)]
        changed = [view for view in views if known.get(view["session"]) != view]
        if first and since:
            changed = [view for view in changed if f"{view['updated']:.6f}" >= since]
        elif first:
            changed = []
        known = {view["session"]: view for view in views}
        if first or changed:
            at = max([view["updated"] for view in views], default=0.0)
            data = {"sessions": changed, "waiting": sum(view["waiting"] for view in views)}
            yield sse(to_json(data), event="sessions", id=f"{at:.6f}")
        pause = FIRST_PAUSE if changed else min(pause * 1.6, LAST_PAUSE)
        first = False
        await asyncio.sleep(pause)


async def _session(call: Call, session: str, since: int) -> AsyncGenerator[bytes, None]:
    """The latest turns of a session with the rows that have changed after record `since`."""
    source, pause = call.inspector.source, FIRST_PAUSE
    live: bool | None = None
    while True:
        try:
            score = (await source.log(session)).score
        except (SessionUnknown, StoreError) as error:
            yield sse(to_json({"message": str(error)}), event="lost")
            return
        now = await _is_live(call, score)
        fresh = score.number > since
        if fresh or now != live:
            turns = [turn_view(turn, since, ROWS) for turn in score.turns[-LATEST:] if turn.changed > since]
            data = {**head(score), "live": now, "changed": turns}
            yield sse(to_json(data), event="rows", id=str(score.number))
        since, live = score.number, now
        pause = FIRST_PAUSE if fresh else min(pause * 1.6, LAST_PAUSE)
        await asyncio.sleep(pause)


async def _is_live(call: Call, score: Score) -> bool:
    running = score.turn is not None and score.turn.state == "running"
    return running and await is_live(call.inspector.source.store, SessionInfo(score.session, parent=score.parent))


ENDPOINTS: Endpoints = (Endpoint("/api/events", events),)
