"""The endpoint that compares two sessions: the same up to the first difference, then what each of them did."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from windlass.replay.diffs import Row, rows_of

from .digests import digest
from .requests import Call, Endpoint, Endpoints
from .sources import SessionLog
from .words import Data, cut_text

BEFORE, AFTER = 400, 400
"""How many equal rows before the difference are sent, and how many rows of each session from it on."""

TEXT = 1200
"""How many characters of a row are sent."""

_VERDICT = re.compile(r"(?:\w+: )?(\w+)")


class Pair(Struct, frozen=True, forbid_unknown_fields=True):
    """The ids of two sessions."""

    left: Annotated[str, Meta(max_length=1000)]
    right: Annotated[str, Meta(max_length=1000)]


async def diff(call: Call) -> Data:
    """Two sessions side by side. Times, ids, costs and the names of the sessions make no difference."""
    query: Pair = call.query
    source = call.inspector.source
    left, right = await source.log(query.left), await source.log(query.right)
    return await asyncio.to_thread(_compare, left, right)


def _compare(left: SessionLog, right: SessionLog) -> Data:
    rows, others = _rows(left), _rows(right)
    at = next((at for at, (one, other) in enumerate(zip(rows, others, strict=False)) if one != other), None)
    if at is None:
        at = min(len(rows), len(others))
    first = max(0, at - BEFORE)
    return {
        "same": at == len(rows) == len(others),
        "equal": at,
        "skipped": first,
        "common": [_view(row) for row in rows[first:at]],
        "left": _side(left, rows, at),
        "right": _side(right, others, at),
    }


def _rows(log: SessionLog) -> list[Row]:
    return rows_of(log.score.session, log.records[:])


def _side(log: SessionLog, rows: Sequence[Row], at: int) -> Data:
    """A session, its verdicts as a track, and its rows from the difference on."""
    score = log.score
    verdicts = [(n, _verdict(row)) for n, row in enumerate(rows)]
    track = [{"v": verdict, "same": n < at} for n, verdict in verdicts if verdict]
    return {
        "session": score.session,
        "agent": cut_text(score.agent, 200),
        "title": cut_text(score.turns[0].text if score.turns else "", 240),
        "digest": digest(score),
        "track": track,
        "rows": [_view(row) for row in rows[at : at + AFTER]],
        "more": max(0, len(rows) - at - AFTER),
    }


def _view(row: Row) -> Data:
    return {"turn": row.turn, "step": row.step, "kind": row.kind, "v": _verdict(row), "text": cut_text(row.text, TEXT)}


def _verdict(row: Row) -> str:
    """The verdict that a row is about, by its name; empty if it is about none."""
    if row.kind == "decided":
        found = _VERDICT.match(row.text)
        return "" if found is None else found[1].capitalize()
    return {
        "rejected": "Regenerate",
        "vetoed": "Veto",
        "answered": _ANSWERS.get(row.text.split(" ")[0].rstrip(":"), ""),
    }.get(row.kind, "")


_ANSWERS = {"approved": "Approve", "edited": "Edit", "rejected": "Reject", "responded": "Respond"}

ENDPOINTS: Endpoints = (Endpoint("/api/diff", diff, query=Pair),)
