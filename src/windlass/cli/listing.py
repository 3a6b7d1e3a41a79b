"""A list of sessions: one line each for a pipe, two with state, cost, time and verdicts for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from windlass._text import one_line, printable, visible_id
from windlass.approvals import open_questions
from windlass.errors import StoreError
from windlass.inspector.digests import digest
from windlass.inspector.phrases import COUNTS, money, span
from windlass.inspector.score import Score
from windlass.inspector.sources import is_live
from windlass.inspector.words import Data
from windlass.logs import SessionInfo
from windlass.protocols import Store

from .painting import Paint

MOST_RECORDS = 5_000
"""Logs with more records are not read for a list. `windlass show` has what they cost."""

ALL_RECORDS = 50_000
"""How many records are read for a list in all: of the first sessions, so many as fit."""


NARROW = 60
"""Below this width, what is known of a session is not put into columns."""


class Listed(Struct):
    """A session in the list; `digest` has what its log says, None if it was not read."""

    info: SessionInfo
    state: str
    digest: Data | None = None

    def public(self) -> Data:
        """The session for programs."""
        found: Data = to_builtins(self.info)
        if self.digest is not None:
            names = {"turns": "turns", "steps": "steps", "cost": "cost", "took": "seconds", "verdicts": "verdicts"}
            found |= {"state": self.state, **{names[name]: self.digest[name] for name in names}}
        return found


async def listed(store: Store, infos: Sequence[SessionInfo], *, details: bool) -> list[Listed]:
    """Sessions with what their logs say. Answered questions are not counted, even if their turn still waits."""
    found: list[Listed] = []
    left = ALL_RECORDS
    for info in infos:
        one = Listed(await _counted(store, info), info.status)
        if details and info.records <= min(MOST_RECORDS, left) and info.status != "erased":
            left -= info.records
            await _read(store, one)
        found.append(one)
    return found


async def _counted(store: Store, info: SessionInfo) -> SessionInfo:
    """A session with the number of its unanswered questions. If its log is damaged, the number of its row stays."""
    try:
        return info.replace(waiting=len(await open_questions(store, info.session))) if info.waiting else info
    except StoreError:
        return info


async def _read(store: Store, one: Listed) -> None:
    score = Score(one.info.session)
    try:
        score.extend(await store.read(one.info.session))
    except StoreError:
        one.state = "damaged"
        return
    one.digest = digest(score)
    if one.info.status == "suspended" or one.info.waiting:
        one.state = "waiting"
    elif score.turn is None:
        one.state = one.info.status
    elif score.turn.state == "running":
        one.state = "live" if await is_live(store, one.info) else "interrupted"
    else:
        one.state = score.turn.state


# ---------------------------------------------------------------- as text


def line(info: SessionInfo) -> str:
    """A session on one line, for a pipe."""
    questions = "question" if info.waiting == 1 else "questions"
    waiting = f", {info.waiting} open {questions}" if info.waiting else ""
    head = f"{visible_id(info.session):<30} {_when(info.updated)}  {info.status}{waiting}, {info.records} records"
    return f"{head}  {printable(info.title)}".rstrip()


def _when(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "????-??-?? ??:??"


def painted(sessions: Sequence[Listed], paint: Paint, width: int, *, full: bool) -> Iterator[str]:
    """Sessions for a terminal, those of sub-agents below their parents."""
    names = {one.info.session for one in sessions}
    children: dict[str, list[Listed]] = {}
    for one in sessions:
        if one.info.parent in names:
            children.setdefault(one.info.parent, []).append(one)
    widest = max([len(visible_id(one.info.session)) for one in sessions], default=0)
    column = min(max(widest, 8), 26)

    def below(one: Listed, depth: int) -> Iterator[str]:
        yield from _two_lines(one, paint, width, column, depth, full)
        for child in children.get(one.info.session, ()):
            yield from below(child, depth + 1)

    for one in sessions:
        if one.info.parent not in names:
            yield from below(one, 0)


def _two_lines(one: Listed, paint: Paint, width: int, column: int, depth: int, full: bool) -> Iterator[str]:
    info, found = one.info, one.digest or {}
    state = "error" if one.state == "damaged" else one.state
    mark = paint.tone(paint.shapes.get(state, paint.shapes["silent"]), state)
    indent = "  " * min(depth, 4)
    words = {"done": "completed"}.get(one.state, one.state)
    cost = money(found.get("cost")) if found else ""
    took = span(found["took"]) if found.get("took") else ""
    name = visible_id(info.session)
    counts = found.get("verdicts") or {}
    asks = f"{info.waiting} open question{'' if info.waiting == 1 else 's'}" if info.waiting else ""
    if width < NARROW:
        yield from _narrow(one, paint, width, indent, (mark, name, words, cost, took, asks), full)
        return
    fields = f"{_when(info.updated)}  {cost:>8}  {took:>8}".rstrip()
    if len(indent) + 4 + max(len(name), column) + 13 + len(fields) > width:
        fields = _when(info.updated)
    state_word = (
        paint.tone(f"{words:<12}", state) if state in ("waiting", "failed", "stopped", "error") else f"{words:<12}"
    )
    yield f"{indent}{mark} {paint(f'{name:<{column}}', bold=True)}  {state_word} {fields}".rstrip()
    verdicts = "  ".join(_verdicts(counts, paint))
    plain = sum(len(_counted_verdicts(kind, number)) + 4 for kind, number in counts.items())
    room = max(width - len(indent) - 3 - plain - (len(asks) + 2 if asks else 0), 16)
    rest = [
        _title(info, room, full),
        *([paint.tone(asks, "waiting")] if asks else []),
        *([verdicts] if verdicts else []),
    ]
    yield f"{indent}  {'  '.join(rest)}"


def _narrow(
    one: Listed, paint: Paint, width: int, indent: str, fields: tuple[str, str, str, str, str, str], full: bool
) -> Iterator[str]:
    """A session on a terminal without room for columns: a line for each thing to know."""
    mark, name, words, cost, took, asks = fields
    yield f"{indent}{mark} {paint(name, bold=True)}  {words}"
    yield f"{indent}  {'  '.join([text for text in (_when(one.info.updated), cost, took) if text])}"
    yield f"{indent}  {_title(one.info, max(width - len(indent) - 3, 16), full)}"
    if asks:
        yield f"{indent}  {paint.tone(asks, 'waiting')}"
    for text in _verdicts((one.digest or {}).get("verdicts") or {}, paint):
        yield f"{indent}  {text}"


def _title(info: SessionInfo, room: int, full: bool) -> str:
    title = printable(info.title) if full else one_line(info.title, room)
    return title or ("erased" if info.status == "erased" else "no message yet")


def _verdicts(counts: dict[str, Any], paint: Paint) -> Iterator[str]:
    for kind, number in counts.items():
        yield paint.tone(f"{paint.shapes[kind]} {_counted_verdicts(kind, number)}", kind)


def _counted_verdicts(kind: str, number: int) -> str:
    return f"{number} {'error' if kind == 'error' and number == 1 else COUNTS[kind]}"
