"""A session in one line of the list: its state, what it cost, and how often hooks refused, asked and changed."""

from __future__ import annotations

from collections.abc import Iterable

from .score import TONES, Score, Turn
from .words import Data

BARS = 66
"""The most bars in the small chart of a session."""


def digest(score: Score) -> Data:
    """What the list shows of a session besides its id, title and times."""
    rows = [row for turn in score.turns for row in turn.rows]
    models = [row for row in rows if row["k"] in ("model", "attempt", "side")]
    costs = [row["cost"] for row in models if row.get("cost") is not None]
    measured = [turn.hooks for turn in score.turns if turn.hooks is not None]
    latest = score.turn
    return {
        "records": score.number,
        "turns": len(score.turns),
        "steps": max([row["step"] for row in rows], default=0),
        "state": "" if latest is None else latest.state,
        "why": "" if latest is None else _why(latest),
        "cost": sum(costs) if costs else None,
        "verdicts": _verdicts(rows),
        "spark": _bars([row["in"] for row in models if row["k"] == "model"]),
        "took": sum(active(turn.rows) for turn in score.turns),
        "hooks": sum(measured) if measured else None,
        "children": score.children,
    }


def _why(turn: Turn) -> str:
    if turn.state == "running":
        running = next(
            (row for row in reversed(turn.rows) if row["k"] == "tool" and row["called"] and not row["status"]), None
        )
        return f"running {running['name']}" if running is not None else ""
    return "" if turn.state == "done" else turn.detail


def _verdicts(rows: Iterable[Data]) -> dict[str, int]:
    counts = {"deny": 0, "ask": 0, "changed": 0, "error": 0}
    for row in rows:
        tones = [TONES.get(answer["v"], "") for answer in row.get("says", ()) if not answer["shadow"]]
        tones += ["changed" for _ in row.get("changes", ())]
        tones += ["deny"] * (row["k"] == "veto")
        tones += ["error"] * (row["k"] == "error" or row.get("status") in ("error", "interrupted"))
        for tone in tones:
            if tone in counts:
                counts[tone] += 1
    return {tone: count for tone, count in counts.items() if count}


def _bars(values: list[int]) -> list[int]:
    """At most `BARS` values: if there are more, the largest of each group."""
    size = -(-len(values) // BARS) or 1
    return [max(values[at : at + size]) for at in range(0, len(values), size)]


def active(rows: Iterable[Data]) -> float:
    """How many seconds models and tools worked; those that worked at the same time count once."""
    spans = sorted((row["t0"], row["t"]) for row in rows if row["k"] in ("model", "attempt") or row.get("called"))
    total = end = 0.0
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
