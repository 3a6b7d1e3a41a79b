"""The endpoint for requests: what a model saw, part by part, who put it there, and what its cache could use."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from windlass.context.budget import sections_of
from windlass.context.prefixes import Prefix, filling, prefixes
from windlass.context.replay import Call as ModelCall
from windlass.context.replay import Description, described, pipelines, requests
from windlass.errors import WindlassError
from windlass.messages import Message, ToolResultPart
from windlass.records import ModelAttempted, ModelReplied, Record
from windlass.server.errors import Problem

from .blame import Sources
from .edits import edits_of
from .requests import Call, Endpoint, Endpoints
from .sessions import Since, session_log, slice_of
from .words import ROW, WHOLE, Data, cut, cut_row, cut_text, json_text, plain

PART = 6000
"""How many characters of a part are shown."""

JSON_FIELDS = ("model", "system", "messages", "tools", "settings", "output")

CALLS = 200
"""How many of the last model calls are looked at together."""

FEWEST, MESSAGES = 12, 300_000
"""Fewer, but not fewer than this, if their requests have more messages together."""

LATEST = 200
"""Among how many sessions the latest one of an agent is looked for."""

TEXT = 400

PARTS = 400
"""How many of the last messages are shown."""


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose model calls to look at: those of a turn or a session, or of the latest session of an agent."""

    session: Annotated[str, Meta(max_length=2000)] = ""
    turn: Annotated[int, Meta(ge=0, le=10**9)] = 0
    agent: Annotated[str, Meta(max_length=400)] = ""


async def request(call: Call) -> Data:
    """The request of the model call that a record is about."""
    log, number = await session_log(call), call.number("number")
    records = log.records[:number]
    if not records or not _is_call(records[-1]):
        raise Problem(404, "request_unknown", f"record {number} is not about a model call")
    return await asyncio.to_thread(_view, log.score.session, records, await _described(call, records))


async def request_json(call: Call) -> Data:
    """The same request as indented JSON, in slices."""
    log, number = await session_log(call), call.number("number")
    records = log.records[:number]
    if not records or not _is_call(records[-1]):
        raise Problem(404, "request_unknown", f"record {number} is not about a model call")
    known = await _described(call, records)
    return slice_of(await asyncio.to_thread(_json, log.score.session, records, known), call.query.offset)


async def _described(call: Call, records: Sequence[Record]) -> dict[str, Description]:
    store = call.inspector.source.store
    return {digest: described(await store.pipeline(digest)) for digest in pipelines(records)}


def _json(session: str, records: Sequence[Record], known: Mapping[str, Description]) -> str:
    sent = _last(session, records, known).request
    shown = {**{name: getattr(sent, name) for name in JSON_FIELDS}, "messages": list(sent.messages)}
    return json.dumps(json.loads(json_text(shown)), indent=1, ensure_ascii=False)


def _last(session: str, records: Sequence[Record], known: Mapping[str, Description]) -> ModelCall:
    found = deque(_rebuilt(session, records, known), maxlen=1)
    return found[0]


def _rebuilt(session: str, records: Sequence[Record], known: Mapping[str, Description]) -> Iterator[ModelCall]:
    """The model calls of a log. One that no agent wrote may not fold."""
    try:
        yield from requests(session, records, known)
    except (LookupError, ValueError, TypeError, AttributeError, WindlassError) as error:
        reason = f"the requests of this log cannot be rebuilt: {type(error).__name__}: {error}"
        raise Problem(409, "log_unreadable", reason) from error


async def rewritten(call: Call, number: int) -> list[Data]:
    """What rewrites changed in the request of the model call that a record is about, in order."""
    log = await session_log(call)
    records = log.records[:number]
    last = await asyncio.to_thread(_last, log.score.session, records, await _described(call, records))
    return [{"hook": hook, "edits": edits_of(before, after)} for hook, before, after in last.edits]


async def row(call: Call) -> Data:
    """One row with whole texts, if they are not huge. For a model call: also what hooks had changed in its request."""
    log, number = await session_log(call), call.number("number")
    wanted = call.request.query_params.get("call", "")
    for found in [one for turn in log.score.turns for one in turn.rows if one["n"] == number]:
        if wanted in (call_id := str(found.get("call", "")), cut_text(call_id, ROW), cut_text(call_id, WHOLE)):
            changed = any(one["event"] == "ModelCalling" for one in found.get("changes", ()))
            more = {"edits": await rewritten(call, number)} if changed and found["k"] == "model" else {}
            return cut_row({**found, **more}, WHOLE)
    raise Problem(404, "row_unknown", f"session {log.score.session!r} has no row of record {number}")


async def context(call: Call) -> Data:
    """What filled the context of each model call, what its cache could use, and what broke its prefix."""
    query: Place = call.query
    session = query.session
    if not session:
        infos = await call.inspector.source.store.find(limit=LATEST)
        names = [one.session for one in infos if one.records and query.agent in ("", one.agent)]
        session = names[0] if names else ""
    if not session:
        return {"session": "", "turn": 0, "calls": [], "skipped": 0, "problem": ""}
    log = await call.inspector.source.log(session)
    records = list(log.records)
    numbers = [number for number, one in enumerate(records, 1) if _is_call(one)]
    known = await _described(call, records)
    calls: list[Data] = []
    skipped, problem = 0, ""
    try:
        calls, skipped = await asyncio.to_thread(_calls, session, records, numbers, known, query.turn)
    except Problem as found:
        problem = str(found.message)
    view = {"session": session, "turn": query.turn, "calls": calls, "skipped": skipped, "problem": problem}
    return cut(view, TEXT)  # type: ignore[no-any-return]


def _calls(
    session: str, records: Sequence[Record], numbers: Sequence[int], known: Mapping[str, Description], turn: int
) -> tuple[list[Data], int]:
    """The last calls of a turn, or of the session, and how many come before them."""
    kept: deque[tuple[int, ModelCall]] = deque(maxlen=CALLS + 1)
    count = 0
    for number, one in zip(numbers, _rebuilt(session, records, known), strict=False):
        if turn and one.turn > turn:
            break
        if not turn or one.turn == turn:
            count += 1
        elif count == 0:
            kept.clear()  # only the last call before the turn is needed
        kept.append((number, one))
    size = sum([len(one.request.messages) for _, one in kept])
    while size > MESSAGES and len(kept) > FEWEST:
        size -= len(kept.popleft()[1].request.messages)
    stable = prefixes([one for _, one in kept])
    shown = [(number, one, prefix) for (number, one), prefix in zip(kept, stable, strict=True)]
    shown = [one for one in shown if not turn or one[1].turn == turn][-CALLS:]
    return [_call_view(*one) for one in shown], max(0, count - len(shown))


def _call_view(number: int, call: ModelCall, prefix: Prefix) -> Data:
    filled = filling(call.request, call.usage.input)
    return {
        "n": number, "turn": call.turn, "step": call.step, "round": call.round, "attempt": call.attempt,
        "model": call.request.model, "tokens": filled.tokens, "vendor": filled.vendor,
        "input": call.usage.input, "origins": list(filled.origins.items()), "hash": prefix.hash,
        "stable": prefix.stable, "cached": prefix.cached,
        "broken": None if prefix.broken is None else plain(prefix.broken),
        "inexact": bool(call.inexact),
    }  # fmt: skip


def _is_call(record: Record) -> bool:
    return isinstance(record, ModelAttempted) or (isinstance(record, ModelReplied) and record.paid)


def _view(session: str, records: Sequence[Record], known: Mapping[str, Description]) -> Data:
    before: ModelCall | None = None
    current: ModelCall | None = None
    for found in _rebuilt(session, records, known):
        before, current = current, found
    assert current is not None
    prefix = prefixes([current] if before is None else [before, current])[-1]
    sent = current.request
    found_filling = filling(sent, current.usage.input)
    same = 0 if before is None else _common(before.request.messages, sent.messages)
    first = max(0, len(sent.messages) - PARTS)
    sources = Sources(records)
    system = [
        {"origin": origin, "text": one.text, "source": sources.of(one.text, origin)}
        for one in sections_of(sent)
        if one.text and (origin := one.origin or "system")
    ]
    return cut(  # type: ignore[no-any-return]
        {
            "model": sent.model,
            "tokens": found_filling.tokens,
            "vendor": found_filling.vendor,
            "origins": list(found_filling.origins.items()),
            "system": system,
            "tools": [spec.name for spec in sent.tools],
            "settings": plain(sent.settings),
            "messages": [
                _message(one, sources, new=at >= same and before is not None)
                for at, one in enumerate(sent.messages)
                if at >= first
            ],
            "skipped": first,
            "gone": 0 if before is None else max(0, len(before.request.messages) - same),
            "first": before is None,
            "prefix": {"hash": prefix.hash, "stable": prefix.stable, "cached": prefix.cached, "tokens": prefix.tokens},
            "broken": None if prefix.broken is None else plain(prefix.broken),
            "rewritten": [{"hook": hook, "fields": list(fields)} for hook, fields in current.rewritten],
            "inexact": list(current.inexact),
        },
        PART,
    )


def _common(old: Sequence[Message], new: Sequence[Message]) -> int:
    """How many messages at the start are the same."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _message(message: Message, sources: Sources, *, new: bool) -> Data:
    default = message.origin or message.role
    parts = [one for part in message.parts for one in _part(part, default)]
    return {"role": message.role, "new": new, "parts": [{**one, "source": _source(one, sources)} for one in parts]}


def _source(part: Data, sources: Sources) -> list[Data]:
    return sources.of(str(part["text"]), str(part["origin"])) if part["text"] else []


def _part(part: Any, default: str) -> list[Data]:
    if isinstance(part, ToolResultPart):
        inner = [_part(item, f"result of {part.name}")[0] for item in part.content]
        return inner or [{"origin": f"result of {part.name}", "text": ""}]
    origin, data = getattr(part, "origin", None) or default, plain(part)
    kind = data.get("type", "part")
    if isinstance(text := data.get("text"), str):
        return [{"origin": origin, "text": text, "kind": kind}]
    if kind == "tool_call":
        return [{"origin": origin, "text": f"{part.name} {part.json}", "kind": "call"}]
    return [{"origin": origin, "text": json_text(part), "kind": kind}]


_REQUEST = "/api/sessions/{session}/requests/{number}"

ENDPOINTS: Endpoints = (
    Endpoint("/api/sessions/{session}/rows/{number}", row),
    Endpoint(_REQUEST, request),
    Endpoint(f"{_REQUEST}/json", request_json, query=Since),
    Endpoint("/api/context", context, query=Place),
)
