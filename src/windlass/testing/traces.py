"""What the hooks did: a trace of events, hooks and answers that can be compared between two ways of running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from windlass.decisions import Vote
from windlass.records import Evaluated, HookDecided, HookFailed, Injected, Record, Rewritten, ToolDecided

Row: TypeAlias = tuple[str, str, str]


class HookTrace:
    """Rows of (event, hook, what it did), read from a log."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.rows: list[Row] = [row for record in records for row in _rows(record)]

    def of(self, event: str) -> list[Row]:
        """The rows of one event."""
        return [row for row in self.rows if row[0] == event]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HookTrace) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "\n".join(f"{event:16} {hook:24} {what}" for event, hook, what in self.rows)


def _rows(record: Record) -> list[Row]:
    match record:
        case HookDecided(event=event, answers=answers):
            return [(event, name, _named(decision)) for name, decision in answers]
        case ToolDecided(answers=answers, verdict=verdict):
            return [("ToolCalling", name, _named(decision)) for name, decision in answers] or [
                ("ToolCalling", "", _named(verdict))
            ]
        case Rewritten(event=event, hook=hook):
            return [(event, hook, "rewrite")]
        case Injected(event=event, hook=hook):
            return [(event, hook, "inject")]
        case HookFailed(event=event, hook=hook, effect=effect):
            return [(event, hook, f"failed: {effect}")]
        case Evaluated(vote=vote, reasons=reasons):
            return [("Continuing", name, "" if vote is None else vote.value) for name, _ in reasons]
        case _:
            return []


def _named(decision: object) -> str:
    return decision.value if isinstance(decision, Vote) else type(decision).__name__
