"""The endpoints for what governs agents: pipelines with what their hooks did, coverage, costs, streams and effects."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct

from windlass.errors import SessionUnknown, StoreError
from windlass.logs import SessionInfo

from .figures import SEVERITY, HookFigures, Summary, ToolFigures, TurnFigures, summarise
from .phrases import values_in_one_line
from .pipelines import changes, condition, is_detailed, observers, points, read_pipeline, stage_of
from .requests import Call, Endpoint, Endpoints
from .sessions import session_log
from .sources import Source, is_live
from .words import Data, cut

PATIENCE = 1.2
"""For how many seconds logs are read for one answer. The page asks again for the rest."""

MOST = 5000
"""How many sessions are looked at, the latest first."""

SHOWN = 120
"""How many rows of a table are sent."""

BINS = 40
"""How many bars a chart over time has at most."""

TEXT = 400


class Governance:
    """The figures of the sessions of a store. Those of a session are kept until its log grows."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._known: OrderedDict[str, Summary] = OrderedDict()
        self._pipelines: dict[str, Data] = {}

    async def summary(self, session: str) -> Summary:
        """The figures of one session. Raises `SessionUnknown` if there is none."""
        log = await self.source.log(session)
        known = self._known.get(session)
        if known is None or known.records != len(log.records):
            records = list(log.records)
            known = await asyncio.to_thread(summarise, session, records, log.score)
            self._keep(known)
        return known

    def _keep(self, summary: Summary) -> None:
        self._known[summary.session] = summary
        self._known.move_to_end(summary.session)
        while len(self._known) > MOST:
            self._known.popitem(last=False)

    async def all(self) -> tuple[list[tuple[SessionInfo, Summary]], int]:
        """The figures of all sessions, the latest first, as far as time allows, and how many are still missing."""
        store, until = self.source.store, time.monotonic() + PATIENCE
        found: list[tuple[SessionInfo, Summary]] = []
        missing = 0
        for info in await store.find(limit=MOST):
            if info.status == "erased":
                continue
            known = self._known.get(info.session)
            if known is None or known.records != info.records:
                if time.monotonic() > until:
                    missing += 1
                    continue
                try:
                    records = list(await store.read(info.session))
                except (SessionUnknown, StoreError):
                    continue
                known = await asyncio.to_thread(summarise, info.session, records)
                self._keep(known)
            found.append((info, known))
        return found, missing

    async def pipeline(self, digest: str) -> Data:
        """The stored description of an agent; an empty one if the store has none."""
        if digest not in self._pipelines:
            try:
                found = read_pipeline(await self.source.store.pipeline(digest))
            except StoreError:
                return {}
            if not found:
                return found
            self._pipelines[digest] = found
        return self._pipelines[digest]


class Scope(Struct, frozen=True, forbid_unknown_fields=True):
    """What to look at: one turn, one session, or all sessions of an agent, by default the latest."""

    session: Annotated[str, Meta(max_length=2000)] = ""
    turn: Annotated[int, Meta(ge=0, le=10**9)] = 0
    agent: Annotated[str, Meta(max_length=400)] = ""


async def pipeline(call: Call) -> Data:
    """A pipeline with what its hooks did, which gates saw which tool, what that cost, and how it changed."""
    query: Scope = call.query
    governance = call.inspector.governance
    if query.session:
        summary = await governance.summary(query.session)
        turn = query.turn or None
        chosen = [(SessionInfo(query.session, agent=summary.agent), summary)]
        agents, missing = [summary.agent], 0
    else:
        everything, missing = await governance.all()
        agents = list(dict.fromkeys([one.agent for _, one in everything]))
        agent = query.agent if query.agent in agents else agents[0] if agents else ""
        chosen, turn = [pair for pair in everything if pair[1].agent == agent], None
    figures = TurnFigures()
    for _, one in chosen:
        figures.merge(one.of(turn))
    history = _history(chosen, turn)
    digest = history[-1]["digest"] if history else ""
    described = await governance.pipeline(digest)
    view = {
        "scope": {"session": query.session, "turn": query.turn, "agent": chosen[0][1].agent if chosen else ""},
        "agents": agents,
        "sessions": len(chosen),
        "turns": sum([len(one.turns) for _, one in chosen]) if turn is None else 1,
        "turn_numbers": [one.turn for one in chosen[0][1].turns] if query.session and chosen else [],
        "missing": missing,
        "digest": digest,
        "known": bool(described),
        "detailed": is_detailed(described),
        "points": _with_figures(points(described), figures),
        "observers": observers(described),
        "criteria": described.get("criteria", []),
        "unmatched": described.get("unmatched", ""),
        "coverage": _coverage(described, figures, call.inspector.effects),
        "cost": _costs(chosen, figures, turn),
        "streams": figures.streams[-SHOWN:],
        "streams_of": len(figures.streams),
        "changes": [await _change(governance, before, after) for before, after in pairwise(history)][-SHOWN:],
        "history": history[-SHOWN:],
        "now": time.time(),
    }
    return cut(view, TEXT)  # type: ignore[no-any-return]


def _history(chosen: Sequence[tuple[SessionInfo, Summary]], turn: int | None) -> list[Data]:
    """The pipelines of these sessions in the order of time, each where it differs from the one before."""
    found = sorted(
        [(at, digest, how, number, in_turn, one.session) for _, one in chosen
         for in_turn, digest, how, at, number in one.pipelines if turn is None or in_turn <= turn]
    )  # fmt: skip
    history: list[Data] = []
    for at, digest, how, number, in_turn, session in found:
        if not history or history[-1]["digest"] != digest:
            place = {"turn": in_turn, "session": session, "record": number}
            history.append({"digest": digest, "at": at, "how": how, **place})
    return history


async def _change(governance: Governance, before: Data, after: Data) -> Data:
    old, new = await governance.pipeline(before["digest"]), await governance.pipeline(after["digest"])
    return {**after, "before": before["digest"], "known": bool(old and new), "changes": changes(old, new)}


def _with_figures(placed: list[Data], figures: TurnFigures) -> list[Data]:
    """The points with what their hooks did. Hooks that the pipeline does not have follow at the end of their point."""
    left = dict(figures.hooks)
    for point in placed:
        for hook in point["hooks"]:
            found = left.pop((hook["event"], hook["name"]), None)
            hook["figures"] = None if found is None else found.view()
    by_name = {point["point"]: point for point in placed}
    for (event, name), found in left.items():
        place = {"ModelCall": "wrap(ModelCall)", "ToolCall": "wrap(ToolCall)", "Step": "wrap(Step)"}.get(event, event)
        if place in by_name and name:
            by_name[place]["hooks"].append(_other(event, name, found, "not in it"))
    for (event, name), found in figures.persons.items():
        if event in by_name:
            by_name[event]["hooks"].append(_other(event, name, found, "person"))
    return placed


def _other(event: str, name: str, figures: HookFigures, verb: str) -> Data:
    """Who spoke there without being part of the pipeline: a person, or a hook of another version."""
    return {
        "name": name, "verb": verb, "event": event, "band": "normal", "capability": "", "on": [], "fails": "",
        "figures": figures.view(),
    }  # fmt: skip


# ---------------------------------------------------------------- coverage


def _coverage(described: Data, figures: TurnFigures, effects: dict[str, str]) -> Data:
    """Which gate looks at which effect: as it is set up, and as it happened."""
    hooks = [hook for hook in described.get("hooks", ()) if hook["kind"] in ("gate", "hook", "rewrite")]
    gates = [hook for hook in hooks if hook["event"] == "ToolCalling"]
    known = {one["name"]: one for one in described.get("tools", ())}
    named = {hook["name"] for hook in gates}
    spoke = [hook for tool in figures.tools.values() for hook in tool.seen if hook not in named]
    gates += [{"name": name, "kind": "gate", "event": "ToolCalling", "gone": True} for name in dict.fromkeys(spoke)]
    columns = [{"name": hook["name"], "verb": stage_of(hook), "gone": bool(hook.get("gone"))} for hook in gates]
    detailed = is_detailed(described)
    rows = [
        _covered(name, known.get(name, {}), figures.tools.get(name, ToolFigures()), gates, effects, detailed=detailed)
        for name in dict.fromkeys([*known, *figures.tools])
    ]
    if described.get("unmatched", "allow") != "allow":
        for row in rows:
            row["bare"] = False
    calling = [hook["name"] for hook in hooks if hook["event"] == "ModelCalling"]
    guards = [hook["name"] for hook in hooks if hook["event"] == "ModelCalling" and hook.get("band") == "guard"]
    others = [
        {"name": "requests to models", "calls": figures.model.calls, "seen": calling},
        {"name": "side calls of hooks", "calls": figures.side.calls, "seen": guards},
    ]
    vendor = [{"name": name, "calls": count} for name, count in figures.vendor.items()]
    return {"gates": columns, "tools": rows, "others": others, "vendor": vendor, "static": detailed}


def _covered(
    name: str,
    tool: Data,
    found: ToolFigures,
    gates: Sequence[Data],
    effects: dict[str, str],
    *,
    detailed: bool,
) -> Data:
    """One tool: for each gate whether it is asked about it, and what it said."""
    effect = tool.get("effect") or effects.get(name, "")
    cells: list[Data] = []
    may_refuse = False
    for gate in gates:
        planned = "no" if gate.get("gone") else condition(gate, name) if detailed else "unknown"
        tones = found.seen.get(gate["name"], {})
        worst = next((tone for tone in SEVERITY if tone in tones), "")
        cells.append({"planned": planned, "spoke": sum(tones.values()), "tone": worst})
        real = gate["kind"] != "rewrite" and not gate.get("shadow")
        may_refuse = may_refuse or (real and (planned in ("always", "maybe") or bool(tones)))
    figures = {field: getattr(found, field) for field in ("calls", "ran", "refused", "unanswered")}
    bare = not may_refuse and (detailed or not gates) and effect not in ("pure", "idempotent")
    return {"name": name, "effect": effect, "agent": bool(tool.get("agent")), "cells": cells, "bare": bare,
            "gated": may_refuse, "offered": bool(tool), **figures}  # fmt: skip


# ---------------------------------------------------------------- costs


def _costs(chosen: Sequence[tuple[SessionInfo, Summary]], figures: TurnFigures, turn: int | None) -> Data:
    """Hooks beside the agent: in all, by turn or by session, and over time."""
    if len(chosen) == 1:
        rows = [one.cost() for one in chosen[0][1].turns if turn is None or one.turn == turn]
        rows = [{**row, "session": chosen[0][1].session, "title": ""} for row in rows]
    else:
        rows = [{**one.of(None).cost(), "session": one.session, "title": info.title} for info, one in chosen]
    over_time = _over_time(rows)
    if len(chosen) != 1:
        rows.sort(key=lambda row: -float(row["hooks"]))
    spenders = [
        {"name": name, "event": event, **one.side.view()}
        for (event, name), one in figures.hooks.items()
        if one.side.calls
    ]
    return {"total": figures.cost(), "rows": rows[:SHOWN], "of": len(rows), "time": over_time, "side": spenders}


def _over_time(rows: Sequence[Data]) -> list[Data]:
    """The rows in bins of equal length, with the share of hooks in each."""
    begun = [float(row["began"]) for row in rows if row["began"]]
    if len(begun) < 2 or max(begun) == min(begun):
        return []
    first, size = min(begun), (max(begun) - min(begun)) / min(BINS, len(begun))
    bins: dict[int, Data] = {}
    for row in rows:
        if row["began"]:
            at = min(int((row["began"] - first) / size), min(BINS, len(begun)) - 1)
            one = bins.setdefault(
                at, {"at": first + at * size, "hooks": 0.0, "agent": 0.0, "side": 0, "tokens": 0, "n": 0}
            )
            one["hooks"] += row["hooks"]
            one["agent"] += row["model"] + row["tools"]
            one["side"] += row["side"]["tokens"]
            one["tokens"] += row["spent"]["tokens"]
            one["n"] += 1
    return [{**bins[at], "size": size} for at in sorted(bins)]


# ---------------------------------------------------------------- effects


async def effects(call: Call) -> Data:
    """The calls of all sessions whose outcome the log does not have, and what would happen to each."""
    governance = call.inspector.governance
    found, missing = await governance.all()
    store = call.inspector.source.store
    rows: list[Data] = []
    for info, summary in found:
        if not summary.effects:
            continue
        live = info.status == "running" and await is_live(store, info)
        tools: Data = {}
        for _, digest, *_ in summary.pipelines:
            tools.update(
                {one["name"]: one.get("effect", "") for one in (await governance.pipeline(digest)).get("tools", ())}
            )
        for one in summary.effects:
            effect = call.inspector.effects.get(one["name"]) or tools.get(one["name"], "")
            fate, risk = _fate(one, effect)
            rows.append(
                {**one, "session": info.session, "agent": summary.agent, "title": info.title, "effect": effect,
                 "live": live, "fate": fate, "risk": risk}
            )  # fmt: skip
    rows.sort(key=lambda row: (not row["risk"], -(row["t0"] or 0.0)))
    view = {"rows": rows[:500], "of": len(rows), "sessions": len(found), "missing": missing, "now": time.time()}
    return cut(view, TEXT)  # type: ignore[no-any-return]


def _fate(call: Data, effect: str) -> tuple[str, bool]:
    """What would happen to a call if its process were killed now, and whether that is a risk."""
    if call["status"] == "interrupted":
        return "outcome unknown: never repeated by itself", True
    if call["child"]:
        return "its agent would continue", False
    if not call["called"]:
        return ("still waits for an answer" if call["waits"] else "would be decided again"), False
    if effect == "unsafe":
        return "outcome unknown: never repeated by itself", True
    if not effect:
        return "not known: name the agent with --agent", True
    return ("would run again, with the same key" if effect == "idempotent" else "would run again"), False


# ---------------------------------------------------------------- a delegation as one tree


MOST_AGENTS = 60
BAR = 160
"""How many characters say what a bar is about."""


async def tree(call: Call) -> Data:
    """A session with those of its sub-agents, each with its bars on one axis of time."""
    log = await session_log(call)
    source = call.inspector.source
    top = log.score
    for _ in range(MOST_AGENTS):
        if not top.parent:
            break
        try:
            top = (await source.log(top.parent)).score
        except SessionUnknown:
            break
    found: list[Data] = []
    await _branch(call, top.session, 0, None, found)
    return cut({"root": top.session, "asked": log.score.session, "agents": found, "now": time.time()}, TEXT)  # type: ignore[no-any-return]


async def _branch(call: Call, session: str, depth: int, started: Data | None, found: list[Data]) -> None:
    if len(found) >= MOST_AGENTS or any(one["session"] == session for one in found):
        return
    try:
        log = await call.inspector.source.log(session)
    except SessionUnknown:
        found.append(
            {
                "session": session,
                "depth": depth,
                "missing": True,
                "bars": [],
                "marks": [],
                "task": (started or {}).get("task", ""),
            }
        )
        return
    score, summary = log.score, await call.inspector.governance.summary(session)
    rows = [row for turn in score.turns for row in turn.rows]
    kinds = {"model": "model", "attempt": "rejected", "wait": "wait"}
    bars: list[Data] = []
    for row in rows:
        kind = "tool" if row["k"] == "tool" and row.get("called") else kinds.get(row["k"], "")
        if kind:
            name = row.get("name") or ("model" if row["k"] == "model" else row["k"])
            open_ = (row["k"] == "tool" and not row["status"]) or bool(row.get("open"))
            bars.append(
                {"k": "agent" if row.get("child") else kind, "name": name, "a": row["t0"], "b": row["t"], "open": open_,
                 "step": row["step"], "status": row.get("status", ""), "child": row.get("child", ""),
                 "n": row["n"], "call": row.get("call", ""),
                 "text": _words(row)}
            )  # fmt: skip
    total = summary.of(None)
    marks = [
        {"t": row["t"], "tone": "deny" if row.get("status") == "denied" or row.get("rejected") else "error"}
        for row in rows
        if row.get("status") in ("denied", "error", "interrupted") or row.get("rejected") or row["k"] == "error"
    ]
    found.append(
        {"session": session, "agent": score.agent, "depth": depth, "missing": False,
         "state": "" if score.turn is None else score.turn.state, "task": score.turns[0].text if score.turns else "",
         "began": score.turns[0].began if score.turns else 0.0, "last": summary.last, "bars": bars[:2000],
         "marks": marks[:500], "cost": total.cost(), "by": (started or {}).get("by", ""),
         "background": bool((started or {}).get("background"))}
    )  # fmt: skip
    begun = {row["child"]: row for row in rows if row.get("child")}
    for child in score.children:
        await _branch(call, child, depth + 1, begun.get(child), found)


def _words(row: Data) -> str:
    """What a bar is about, in a line."""
    if row["k"] == "tool":
        return values_in_one_line(str(row.get("final") or row["json"]))[:BAR]
    if row["k"] == "wait":
        return "; ".join([str(ask["question"]) for ask in row["asks"]])[:BAR]
    return str(row.get("text") or "")[:BAR]


ENDPOINTS: Endpoints = (
    Endpoint("/api/pipeline", pipeline, query=Scope),
    Endpoint("/api/effects", effects),
    Endpoint("/api/sessions/{session}/tree", tree),
)
