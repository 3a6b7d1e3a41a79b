"""Verdicts in words, and when two of them are the same."""

from __future__ import annotations

from typing import Any, NamedTuple

from windlass.decisions import Allow, Answer, Ask, Deny, Finish, Halt, Regenerate, Rewind, Veto, Vote
from windlass.terms import stages_of


class Said(NamedTuple):
    """A verdict: its kind, its reason, and what makes two of a kind different."""

    kind: str
    text: str = ""
    value: Any = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


_ALLOWED = Said("allow")


def said(verdict: Any) -> Said:
    """A verdict in words. That no gate spoke is an allow, wherever it matters."""
    match verdict:
        case None | Allow():
            return _ALLOWED
        case Deny(reason=text) | Halt(reason=text):
            return Said(_name(verdict), text)
        case Ask(question=text):
            return Said("ask", text, _terms(verdict))
        case Regenerate(feedback=text) | Veto(feedback=text):
            return Said(_name(verdict), text)
        case Answer(value=value) | Finish(value=value):
            return Said(_name(verdict), str(value), value)
        case Rewind(to=to, note=note):
            return Said("rewind", note, to)
        case Vote():
            return Said(verdict.name.lower(), "", verdict)
        case _:
            return Said(_name(verdict))


def same(was: Said, now: Said) -> bool:
    """Whether two verdicts have the same effect. Other words do not make a difference."""
    return was.kind == now.kind and was.value == now.value


def _terms(ask: Ask) -> tuple[Any, ...]:
    """Who must answer a question, what they may answer, and what holds if they do not."""
    stages = tuple([stage and (frozenset(stage.approvers), stage.quorum, stage.escalate) for stage in stages_of(ask)])
    return stages, frozenset(ask.allow), None if ask.expires is None else ask.default


def _name(verdict: object) -> str:
    return type(verdict).__name__.lower()
