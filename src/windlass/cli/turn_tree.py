"""A turn with the turns of its sub-agents, read from a store: as rows for the waterfall, and as plain data."""

from __future__ import annotations

from typing import Any

import click

from windlass.errors import SessionUnknown
from windlass.inspector.digests import active
from windlass.inspector.score import Score, Turn
from windlass.inspector.sources import is_live
from windlass.inspector.words import Data
from windlass.logs import SessionInfo
from windlass.protocols import Store

DEEPEST = 8
"""How many levels of sub-agents are read."""


async def read_turn(store: Store, session: str, number: int | None = None, depth: int = 0) -> Data:
    """A turn of a session, by default the latest, with its rows; `agents` has those of its sub-agents, by session."""
    score = Score(session)
    score.extend(await store.read(session))
    if not score.number:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    turn = score.turn if number is None else next((one for one in score.turns if one.n == number), None)
    if number is not None and turn is None:
        raise click.ClickException(f"session {session!r} has no turn {number}: {_turns(score)}")
    rows = [] if turn is None else turn.rows
    agents: Data = {}
    for name in [str(row["child"]) for row in rows if row.get("child")]:
        if depth < DEEPEST and name not in agents:
            try:
                agents[name] = await read_turn(store, name, depth=depth + 1)
            except (
                SessionUnknown
            ):  # the parent was killed before the session of its sub-agent was made, or it is pruned
                continue
    live = turn is score.turn and turn is not None and turn.state == "running"
    return {
        "session": session,
        "agent": score.agent,
        "parent": score.parent or None,
        "forked_from": score.origin or None,
        "records": score.number,
        "turns": [one.n for one in score.turns],
        "live": live and await is_live(store, SessionInfo(session, parent=score.parent)),
        "turn": None if turn is None else {**turn.head(), "rows": rows},
        "spent": None if turn is None else spent(turn),
        "agents": agents,
    }


def _turns(score: Score) -> str:
    if not score.turns:
        return "it has none yet"
    first, last = score.turns[0].n, score.turns[-1].n
    return f"it has turn {first}" if first == last else f"it has turns {first} to {last}"


def spent(turn: Turn) -> Data:
    """What a turn spent: model calls, tokens, money with that of its sub-agents, and seconds."""
    models = [row for row in turn.rows if row["k"] in ("model", "attempt", "side") and "in" in row]
    charged = [row["charged"] for row in turn.rows if row.get("charged")]
    costs = [one["cost"] for one in (*models, *charged) if one.get("cost") is not None]
    spoke = [one.get("took", 0.0) for row in turn.rows for one in (row, *row.get("says", ()), *row.get("changes", ()))]
    return {
        "model_calls": len(models),
        **{name: sum(one[key] for one in models) for name, key in (("input", "in"), ("output", "out"))},
        "cached": sum(one["cached"] or 0 for one in models),
        "cost": sum(costs) if costs else None,
        "seconds": {
            "model": active([row for row in turn.rows if row["k"] in ("model", "attempt")]),
            "tools": active([row for row in turn.rows if row.get("called") and row["k"] == "tool"]),
            "hooks": sum(spoke),
            "people": sum(row["t"] - row["t0"] for row in turn.rows if row["k"] == "wait" and not row["open"]),
        },
    }


# ---------------------------------------------------------------- as plain data

_NAMES = {
    "k": "kind", "n": "record", "t0": "began", "t": "at", "v": "verdict", "why": "reason", "says": "decisions",
    "in": "input", "out": "output", "json": "arguments", "final": "final_arguments",
}  # fmt: skip
_NESTED = (
    "says", "changes", "answered", "answers", "asks", "asked", "discarded", "rejected", "passed", "charged", "verdict",
    "vote",
)  # fmt: skip
_INTERNAL = ("z", "more")


def public(tree: Data) -> Data:
    """The turn with names that programs can rely on."""
    turn = tree["turn"]
    if turn is not None:
        rows = [_renamed(row) for row in turn["rows"]]
        turn = {"number": turn["n"], **_renamed({**turn, "n": None}), "rows": rows}
        del turn["record"]
    return {**tree, "turn": turn, "agents": {name: public(one) for name, one in tree["agents"].items()}}


def _renamed(row: Data) -> Data:
    found: Data = {}
    for name, value in row.items():
        if name not in _INTERNAL:
            found[_NAMES.get(name, name)] = _nested(value) if name in _NESTED else value
    return found


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {_NAMES.get(name, name): one for name, one in value.items() if name not in _INTERNAL}
    return [_nested(one) for one in value] if isinstance(value, list) else value
