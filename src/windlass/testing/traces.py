"""A trace of events, hooks and answers, to compare what hooks did in two ways of running a turn."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass.decisions import Vote
from windlass.records import Evaluated, HookDecided, HookFailed, Injected, Record, Rewritten, ToolDecided

if TYPE_CHECKING:
    from windlass.agent import Agent

Row: TypeAlias = tuple[str, str, str]


class HookTrace:
    """Rows of (event, hook, what it did), read from a log."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.rows: list[Row] = [row for record in records for row in _rows(record)]

    @classmethod
    async def read(cls, agent: Agent[Any, Any], session: str) -> HookTrace:
        """The trace of one of an agent's sessions."""
        return cls(await agent.store.read(session))

    def of(self, event: str) -> list[Row]:
        """The rows of one event."""
        return [row for row in self.rows if row[0] == event]

    def diff(self, other: HookTrace, mine: str = "this", others: str = "the other") -> str:
        """The differences, line by line: `-` is only in this one, `+` only in the other. Empty if they are equal."""
        lines = difflib.unified_diff(repr(self).splitlines(), repr(other).splitlines(), mine, others, lineterm="")
        return "\n".join(lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HookTrace) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "\n".join(f"{event:16} {hook:24} {what}" for event, hook, what in self.rows)


def assert_same(one: HookTrace, other: HookTrace, *, names: tuple[str, str] = ("one", "other")) -> None:
    """Fail unless two traces are equal, and show the differences."""
    if one != other:
        raise AssertionError(f"the hooks did different things:\n{one.diff(other, *names)}")


def _rows(record: Record) -> list[Row]:
    match record:
        case HookDecided(event=event, answers=answers):
            return [(event, name, _named(decision)) for name, decision in answers]
        case ToolDecided(answers=answers, verdict=verdict, delegating=delegating):
            return [
                ("Delegating" if name in delegating else "ToolCalling", name, _named(decision))
                for name, decision in answers
            ] or [("ToolCalling", "", _named(verdict))]
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
