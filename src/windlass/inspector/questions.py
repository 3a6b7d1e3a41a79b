"""The endpoints for open questions: what waits for a person, answers, and rules made of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from windlass.approvals import open_questions, progress, resolve, top_session
from windlass.capabilities.permissions import Permissions
from windlass.capabilities.remembered_rules import add_rule, user_rules
from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.errors import ConfigError, SessionUnknown, StoreError, ToolError
from windlass.messages import ToolCall, json_with_surrogates
from windlass.records import Asked
from windlass.server.errors import Problem

from .requests import Call, Endpoint, Endpoints
from .score import Score
from .words import DEEPEST, ROW, WHOLE, Data, cut, nesting, plain, shown_json

LOOKED_AT = 200
"""How many sessions are searched for earlier answers and calls."""

Text = Annotated[str, Meta(max_length=100_000)]


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to a question. `digest` binds it to what was shown; `rule` is also kept as a rule."""

    session: Text
    question: Text
    digest: Text
    answer: Literal["approve", "edit", "reject", "respond"]
    text: Text = ""
    arguments: dict[str, Any] = {}
    rule: Text | None = None


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that is tried on recorded calls."""

    rule: Annotated[str, Meta(max_length=2000)]


async def questions(call: Call) -> Data:
    """The open questions of all sessions, with what led to them."""
    store = call.inspector.source.store
    found, damaged = list[tuple[str, Asked]](), list[str]()
    for session in dict.fromkeys([name for name, _ in await store.approvals()]):
        try:
            found += await open_questions(store, session)
        except (SessionUnknown, StoreError):
            damaged.append(session)
    found.sort(key=lambda question: -question[1].priority)
    views = [await _view(call, session, asked) for session, asked in found]
    return {
        "control": call.inspector.control,
        "inspect": call.inspector.breakpoints is not None,
        "by": call.inspector.person,
        "rules": str(user_rules()),
        "now": time.time(),
        "questions": views,
        "damaged": damaged,
    }


async def _view(call: Call, session: str, asked: Asked) -> Data:
    score = (await call.inspector.source.log(session)).score
    turn = score.turn
    model = next((row for row in reversed(turn.rows) if row["k"] == "model"), None) if turn else None
    row = next((row for row in turn.rows if row.get("call") == asked.id), None) if turn else None
    subject, whole = _subject(asked)
    return {
        "session": session,
        "control": call.inspector.may_answer(session),
        "agent": score.agent,
        "asked": cut(subject, WHOLE if whole else ROW),
        "call": None if asked.call is None else _call_view(asked.call, whole=whole),
        "whole": whole,
        "at": asked.at,
        "standing": "" if not asked.terms else cut(str(progress(asked)), ROW),
        "turn": turn.n if turn else 0,
        "said": cut({"user": turn.text if turn else "", "model": model["text"] if model else ""}, 2000),
        "shadow": cut([one for one in (row or {}).get("says", ()) if one["shadow"]], ROW),
    }


def _subject(asked: Asked) -> tuple[Data, bool]:
    """What is asked, and whether it can be shown whole."""
    try:
        subject = plain(asked.replace(answers=(), terms=()))
        arguments = {} if asked.call is None else asked.call.arguments
        shown = None not in [shown_json(value) for value in arguments.values()]
        return subject, shown and len(json_with_surrogates(subject)) <= WHOLE and nesting(subject) < DEEPEST
    except RecursionError:  # arguments that are nested too deeply
        return plain(asked.replace(answers=(), terms=(), call=None, proposed=None, details={})), False


def _call_view(call: ToolCall, *, whole: bool) -> Data:
    """A call: its arguments as JSON text, value by value."""
    shown = {name: shown_json(value) or '"…"' for name, value in call.arguments.items()}
    return {"id": call.id, "name": call.name, "arguments": shown if whole else cut(shown, ROW)}


async def like(call: Call) -> list[Data]:
    """Earlier answers to questions about the same tool, the latest first."""
    tool, found = call.request.query_params.get("tool", ""), list[Data]()
    async for score in _scores(call):
        for turn in score.turns:
            for row in turn.rows:
                if row["k"] == "tool" and row["name"] == tool and row.get("answered"):
                    answer = row["answered"][-1]
                    final = row.get("final") or row["json"]
                    one = {"session": score.session, "turn": turn.n, "json": row["json"], "final": final}
                    found.append(cut({**one, **{name: answer[name] for name in ("v", "by", "why", "at")}}, ROW))
    return sorted(found, key=lambda one: -one["at"])[:12]


async def try_rule(call: Call) -> Data:
    """How many recorded calls of a tool a rule would have allowed, and how many of those were refused."""
    query: Rule = call.query
    try:
        rules = Permissions(allow=[query.rule], unmatched="ask")
    except (ConfigError, ValueError) as error:
        raise Problem(400, "invalid_rule", str(error)) from None
    counts = {"calls": 0, "matched": 0, "refused": 0}
    name = query.rule.partition("(")[0]
    async for score in _scores(call):
        for turn in score.turns:
            for row in turn.rows:
                if row["k"] != "tool" or (row["name"] != name and "*" not in name):
                    continue
                verdict = await rules.judge(ToolCall(row["call"], row["name"], row.get("final") or row["json"]))
                counts["calls"] += 1
                if verdict.decision == "allow":
                    counts["matched"] += 1
                    counts["refused"] += row["status"] == "denied"
    return counts


async def _scores(call: Call) -> AsyncGenerator[Score, None]:
    for info in await call.inspector.source.store.find(limit=LOOKED_AT):
        if info.records:
            with suppress(SessionUnknown, StoreError):  # a damaged log says nothing
                yield (await call.inspector.source.log(info.session)).score
            await asyncio.sleep(0)


async def answer(call: Call) -> Data:
    """Answer a question. The answer waits in the session's inbox until the session is resumed, or is read at once."""
    given: Answer = call.body
    store = call.inspector.source.store
    if not call.inspector.may_answer(given.session):
        raise Problem(403, "not_its_own", "only questions of sessions of this process can be answered here")
    asked = {asked.id: asked for _, asked in await open_questions(store, given.session)}.get(given.question)
    if asked is None:
        raise Problem(409, "stale_answer", "this question is not open any more")
    asking = {name for name, one in await store.approvals() if one.id == given.question}
    await _check_rule(given, asked)
    resolution = _resolution(given, call.inspector.person)
    if call.inspector.agent is not None:
        await call.inspector.agent.resolve(given.session, given.question, resolution)
    else:
        await resolve(store, given.session, given.question, resolution, fits=lambda edited: _same_shape(asked, edited))
    if given.rule:
        add_rule(user_rules(), given.rule, by=call.inspector.person, at=time.time())
    return {"top": await top_session(store, given.session, asking), "rules": str(user_rules()) if given.rule else ""}


async def _check_rule(given: Answer, asked: Asked) -> None:
    """A rule goes with an approval, and must allow the very call that is approved."""
    if not given.rule:
        return
    if given.answer != "approve" or asked.call is None:
        raise Problem(400, "invalid_rule", "a rule goes with the approval of a call")
    try:
        rules = Permissions(allow=[given.rule], unmatched="ask")
    except (ConfigError, ValueError) as error:
        raise Problem(400, "invalid_rule", str(error)) from None
    if (await rules.judge(asked.call)).decision != "allow":
        raise Problem(400, "invalid_rule", f"{given.rule!r} does not allow this call")


def _resolution(given: Answer, by: str) -> AnyResolution:
    match given.answer:
        case "approve":
            return Approve(by, given.rule, given.digest)
        case "edit":
            return Edit(given.arguments, by, given.digest)
        case "reject":
            return Reject(given.text, by, given.digest)
        case "respond":
            return Respond(given.text, by, given.digest)


def _same_shape(asked: Asked, edited: ToolCall) -> None:
    """Without the agent the tool is not known: only values may change, not names or JSON types."""
    before, after = asked.call.arguments if asked.call else {}, edited.arguments
    if set(before) != set(after):
        raise ToolError(f"the arguments must stay {', '.join(before)}; start with --agent to change them")
    for name, value in before.items():
        if _kind(value) != _kind(after[name]):
            raise ToolError(f"{name!r} was {_kind(value)} and cannot become {_kind(after[name])}")


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


READING: Endpoints = (
    Endpoint("/api/questions", questions),
    Endpoint("/api/answers", like),
    Endpoint("/api/rules", try_rule, query=Rule),
)

WRITING: Endpoints = (Endpoint("/api/answer", answer, body=Answer),)
"""These routes exist only with `--control`."""
