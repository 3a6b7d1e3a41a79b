"""From what several gates answered to one verdict that does not depend on their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from windlass.decisions import (
    ANSWER_KINDS,
    Again,
    Answer,
    AnyDecision,
    Ask,
    Deny,
    Finish,
    Halt,
    Regenerate,
    Rewind,
    Veto,
    Vote,
)
from windlass.events import Decidable, Event

Answers: TypeAlias = Sequence[tuple[str, Any]]


def rank_of(event: type[Event[Any, Any, Any]], decision: Decidable) -> int | None:
    """How strict a decision is at this event, 0 first; None if it is not legal there."""
    for rank, legal in enumerate(event.ranks):
        if type(decision) is legal or (isinstance(legal, Vote) and decision is legal):
            return rank
    return None


def strictest(event: type[Event[Any, Any, Any]], answers: Answers) -> Any:
    """The strictest answer; at equal rank all of them as one, whatever their order. None if nobody answered."""
    if not answers:
        return None
    ranked = [(rank_of(event, decision), name, decision) for name, decision in answers]
    best = min(rank for rank, _, _ in ranked if rank is not None)
    alike = sorted([(name, d) for rank, name, d in ranked if rank == best], key=lambda item: item[0])
    return alike[0][1] if len(alike) == 1 else _merge(event, alike)


def after_approval(event: type[Event[Any, Any, Any]], answers: Answers) -> Any:
    """What holds once the `Ask`s among the answers are approved: the next rank."""
    return strictest(event, [(name, decision) for name, decision in answers if type(decision) is not Ask])


def _merge(event: type[Event[Any, Any, Any]], alike: list[tuple[str, Any]]) -> Any:
    decisions: list[AnyDecision] = [decision for _, decision in alike]
    match decisions[0]:
        case Deny():
            return Deny(_joined(d.reason for d in decisions if isinstance(d, Deny)))
        case Halt():
            halts = [d for d in decisions if isinstance(d, Halt)]
            replies = [d.reply for d in halts if d.reply is not None]
            return Halt(_joined(d.reason for d in halts), _joined(replies, "\n") if replies else None)
        case Regenerate():
            return Regenerate(_joined((d.feedback for d in decisions if isinstance(d, Regenerate)), "\n"))
        case Veto():
            return Veto(_joined((d.feedback for d in decisions if isinstance(d, Veto)), "\n"))
        case Ask():
            return _merge_asks(event, alike)
        case Answer() | Finish():
            return _same_value(event, alike)
        case Rewind():
            rewinds = [d for d in decisions if isinstance(d, Rewind)]
            return Rewind(min(d.to for d in rewinds), _joined((d.note for d in rewinds), "\n"))
        case Again():
            return Again(
                max((d.after for d in decisions if isinstance(d, Again) and d.after is not None), default=None)
            )
        case same:
            return same


def _merge_asks(event: type[Event[Any, Any, Any]], alike: list[tuple[str, Any]]) -> Any:
    """One question with all reasons, the answers all of them allow and the approvers all of them name."""
    asks: list[Ask] = [ask for _, ask in alike]
    allow = tuple(kind for kind in ANSWER_KINDS if all(kind in ask.allow for ask in asks))
    named = [set(ask.approvers) for ask in asks if ask.approvers is not None]
    approvers = tuple(sorted(set.intersection(*named))) if named else None
    if not allow or approvers == ():
        what = "answer" if not allow else "approver"
        return _refusal(event, f"{_names(alike)} ask, but no {what} satisfies all of them")
    expiries = [ask.expires for ask in asks if ask.expires is not None]
    approve = "approve" in allow and all(ask.default == "approve" for ask in asks)
    default = "approve" if approve else "reject"
    question = _joined((ask.question for ask in asks), "\n")
    return Ask(question, allow, approvers, min(expiries) if expiries else None, default)  # type: ignore[arg-type]


def _same_value(event: type[Event[Any, Any, Any]], alike: list[tuple[str, Any]]) -> Any:
    first = alike[0][1]
    if all(decision.value == first.value for _, decision in alike[1:]):
        return first
    return _refusal(event, f"{_names(alike)} gave different values for {type(first).__name__}")


def _refusal(event: type[Event[Any, Any, Any]], reason: str) -> Deny | Halt:
    return Deny(reason) if Deny in event.ranks else Halt(reason)


def _names(alike: list[tuple[str, Any]]) -> str:
    return " and ".join(repr(name) for name, _ in alike)


def _joined(texts: Iterable[str], by: str = "; ") -> str:
    return by.join(dict.fromkeys(text for text in texts if text))
