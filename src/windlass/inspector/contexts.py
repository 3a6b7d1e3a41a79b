"""The endpoint for requests: what a model saw, part by part, who put it there, and what its cache could use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.context.budget import sections_of
from windlass.context.prefixes import filling, prefixes
from windlass.context.replay import Call as ModelCall
from windlass.context.replay import Description, described, pipelines, requests
from windlass.messages import Message, ToolResultPart
from windlass.records import ModelAttempted, ModelReplied, Record
from windlass.server.errors import Problem

from .blame import Sources
from .requests import Call, Endpoint, Endpoints
from .sessions import session_log
from .words import Data, cut, json_text, plain

PART = 6000
"""How many characters of a part are shown."""

PARTS = 400
"""How many of the last messages are shown."""


async def request(call: Call) -> Data:
    """The request of the model call that a record is about."""
    log, number = await session_log(call), call.number("number")
    store = call.inspector.source.store
    records = log.records[:number]
    if not records or not _is_call(records[-1]):
        raise Problem(404, "request_unknown", f"record {number} is not about a model call")
    known = {digest: described(await store.pipeline(digest)) for digest in pipelines(records)}
    return await asyncio.to_thread(_view, log.score.session, records, known)


def _is_call(record: Record) -> bool:
    return isinstance(record, ModelAttempted) or (isinstance(record, ModelReplied) and record.paid)


def _view(session: str, records: Sequence[Record], known: Mapping[str, Description]) -> Data:
    before: ModelCall | None = None
    current: ModelCall | None = None
    for found in requests(session, records, known):
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


ENDPOINTS: Endpoints = (Endpoint("/api/sessions/{session}/requests/{number}", request),)
