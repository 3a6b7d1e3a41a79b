"""The endpoints for sessions: the list, one session, its turns, its records, and whether its chain is intact."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from windlass._text import inert_json
from windlass.errors import SessionUnknown, StoreError
from windlass.logs import SessionInfo
from windlass.protocols import Store
from windlass.records import Record, encode
from windlass.server.errors import Problem

from .digests import digest
from .pipelines import around_models, mediation
from .requests import Call, Endpoint, Endpoints
from .score import Score, Turn
from .sources import SessionLog, is_live
from .words import ROW, WHOLE, Data, cut, cut_row, cut_text, moment

TITLE = 240

NEAR = 50
CHILDREN = 50
"""How many turns before and after one, and how many sub-agents are named."""

ROWS = 40_000
"""How many rows of a turn are sent, the last ones: enough for more than 10,000 steps."""

TOOLS = 300
"""How many tools of an agent are looked at."""

SLICE = 64 * 1024
"""How many characters of a raw record are sent at once."""

SLICE_OF_ROWS = 500
"""After how many rows other requests run while a turn is searched."""

SEARCHES = 2.0
"""For how many seconds the logs are searched for a text."""


LISTED = 20_000
"""How many sessions are listed at most."""


class Find(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions to list."""

    search: Annotated[str, Meta(max_length=400)] = ""
    limit: Annotated[int, Meta(ge=1, le=LISTED)] = LISTED


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """What to look for in a turn."""

    text: Annotated[str, Meta(min_length=1, max_length=400)]


class Since(Struct, frozen=True, forbid_unknown_fields=True):
    """From where on a raw record is wanted."""

    offset: Annotated[int, Meta(ge=0, le=2**40)] = 0


async def find(call: Call) -> Data:
    """The sessions, the latest first: those with a text in their id, first message or agent, or in their log."""
    query: Find = call.query
    store = call.inspector.source.store
    infos = list(await store.find(search=query.search, limit=query.limit))
    more_of, incomplete = len(infos) == query.limit, False
    if query.search:
        more, incomplete = await _search_logs(store, query.search, {info.session for info in infos}, query.limit)
        infos += more
    return {
        "store": call.inspector.source.name,
        "control": call.inspector.control,
        "now": time.time(),
        "incomplete": incomplete,
        "more": more_of,
        "sessions": [await info_view(store, info) for info in infos],
    }


async def _search_logs(store: Store, text: str, known: set[str], limit: int) -> tuple[list[SessionInfo], bool]:
    """The other sessions with a text in their log. True says that time was up before all were searched."""
    wanted = [text.lower().encode("utf-8", "surrogatepass"), text.lower().encode("unicode_escape")]
    until = time.monotonic() + SEARCHES
    found: list[SessionInfo] = []
    for info in await store.find(limit=limit):
        if time.monotonic() > until:
            return found, True
        if info.session in known:
            continue
        try:
            batches = await store.batches(info.session)
        except StoreError:
            continue
        if any(word in batch.lines.lower() for batch in batches for word in wanted):
            found.append(info)
        await asyncio.sleep(0)
    return found, False


async def info_view(store: Store, info: SessionInfo) -> Data:
    """A session in the list. `live` says that a process works on it."""
    live = info.status == "running" and (await is_live(store, info))
    fields: Data = {name: getattr(info, name) for name in SessionInfo.__struct_fields__}
    times = {"started": moment(info.started), "updated": moment(info.updated)}
    return {**fields, **times, "title": cut_text(info.title, TITLE), "agent": cut_text(info.agent, TITLE), "live": live}


async def digests(call: Call) -> Data:
    """What the list shows of some sessions besides their ids and times. One that is damaged says so."""
    names = call.request.query_params.getlist("id")[:60]
    found: Data = {}
    for name in names:
        try:
            log = await call.inspector.source.log(name)
        except SessionUnknown:
            continue
        except StoreError as error:
            found[name] = {"damaged": cut_text(str(error), ROW)}
            continue
        found[name] = cut(digest(log.score), ROW)
        await asyncio.sleep(0)
    return found


async def session_log(call: Call) -> SessionLog:
    """The log of the session in the path."""
    return await call.inspector.source.log(_named(call))


def _named(call: Call) -> str:
    """The session in the path. One sign = before the id is no part of it: `.` and `..` cannot stand in a path alone."""
    return call.path("session").removeprefix("=")


async def show(call: Call) -> Data:
    """A session: its turns, parent and children."""
    log = await session_log(call)
    return {**head(log.score), "now": time.time(), "live": await _live(call, log.score)}


async def _live(call: Call, score: Score) -> bool:
    store = call.inspector.source.store
    running = score.turn is not None and score.turn.state == "running"
    return running and await is_live(store, SessionInfo(score.session, parent=score.parent))


def head(score: Score, around: int = 0) -> Data:
    """A session without its rows. Of many turns those are named that are first, last or near the one `around`."""
    return {
        "session": score.session,
        "agent": cut_text(score.agent, TITLE),
        "parent": score.parent,
        "origin": score.origin,
        "children": score.children[:CHILDREN],
        "children_of": len(score.children),
        "records": score.number,
        "ended": score.ended,
        "turns": [{"n": number} for number in _near([one.n for one in score.turns], around)],
    }


def _near(numbers: list[int], around: int) -> list[int]:
    if len(numbers) <= 3 * NEAR:
        return numbers
    at = numbers.index(around) if around in numbers else len(numbers) - 1
    kept = {0, len(numbers) - 1, *range(max(0, at - NEAR), min(len(numbers), at + NEAR))}
    return [numbers[index] for index in sorted(kept)]


async def turn(call: Call) -> Data:
    """The rows of a turn, 0 for the latest. Long texts are cut; the endpoint of a row has them."""
    log, number = await session_log(call), call.number("turn")
    one = log.score.turn if number == 0 else _turn(log.score, number)
    view = None if one is None else turn_view(one, most=ROWS)
    more = {"now": time.time(), "live": await _live(call, log.score), **await _asked(call, one)}
    return {**head(log.score, 0 if one is None else one.n), **more, "turn": view}


async def _asked(call: Call, turn: Turn | None) -> Data:
    """Who is asked in a turn: by tool, with the effects of the tools, and about model calls."""
    described = await call.inspector.governance.pipeline(turn.pipeline if turn is not None else "")
    tools = dict(list(mediation(described, call.inspector.effects).items())[:TOOLS])
    return cut({"tools": tools, "around": around_models(described)[:TOOLS]}, ROW)  # type: ignore[no-any-return]


def _turn(score: Score, number: int) -> Turn:
    for one in score.turns:
        if one.n == number:
            return one
    raise Problem(404, "turn_unknown", f"session {score.session!r} has no turn {number}")


async def find_rows(call: Call) -> Data:
    """The rows of a turn that have a text anywhere, in words, arguments, results or names of hooks."""
    log, query = await session_log(call), call.query
    one, wanted = _turn(log.score, call.number("turn")), query.text.lower()
    found: list[Data] = []
    for at, row in enumerate(list(one.rows)):
        if any(wanted in text.lower() for text in _texts(row)):
            found.append({"n": row["n"], "call": row.get("call", "")})
        if at % SLICE_OF_ROWS == 0:
            await asyncio.sleep(0)
    return {"rows": found}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in cast(Data, value).values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in cast("list[Any]", value):
            yield from _texts(one)


def turn_view(one: Turn, since: int = 0, most: int | None = None) -> Data:
    """A turn with the rows that a record after `since` has changed, if there are many the last `most` of them."""
    rows = [row for row in one.rows if row["z"] > since] if since else one.rows
    skipped = 0 if most is None else max(0, len(rows) - most)
    return {**cut(one.head(), WHOLE), "rows": [cut_row(row, ROW) for row in rows[skipped:]], "skipped": skipped}


async def record(call: Call) -> Data:
    """A record of the log as indented JSON. A long one comes in slices."""
    log, number = await session_log(call), call.number("number")
    if not 1 <= number <= len(log.records):
        raise Problem(404, "record_unknown", f"session {log.score.session!r} has {len(log.records)} records")
    query: Since = call.query
    return {"number": number, **await asyncio.to_thread(_record, log.records[number - 1], query.offset)}


def _record(record: Record, offset: int) -> Data:
    data = encode(record)
    with suppress(RecursionError):  # then it is nested too deeply to be indented
        try:
            data = msgspec.json.format(data, indent=1)
        except msgspec.DecodeError:  # it holds lone surrogates
            data = json.dumps(json.loads(data), indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return slice_of(data.decode("utf-8", "surrogatepass"), offset)


def slice_of(text: str, offset: int) -> Data:
    """A part of a long JSON text, with where the next one begins."""
    end = offset + SLICE
    return {"text": inert_json(text[offset:end]), "total": len(text), "next": end if end < len(text) else None}


async def verify(call: Call) -> Data:
    """Whether the hash chain of a session is intact."""
    session = _named(call)
    try:
        verified: Any = await call.inspector.source.store.verify(session)
    except SessionUnknown:
        raise
    except StoreError as error:
        return {"ok": False, "text": cut_text(str(error), ROW)}
    return {"ok": True, "text": verified.head, "records": verified.records, "pruned": verified.pruned}


_SESSION = "/api/sessions/{session}"

ENDPOINTS: Endpoints = (
    Endpoint("/api/sessions", find, query=Find),
    Endpoint("/api/digests", digests),
    Endpoint(_SESSION, show),
    Endpoint(f"{_SESSION}/turns/{{turn}}", turn),
    Endpoint(f"{_SESSION}/turns/{{turn}}/find", find_rows, query=Text),
    Endpoint(f"{_SESSION}/records/{{number}}", record, query=Since),
    Endpoint(f"{_SESSION}/verify", verify),
)
