"""One verdict from the answers of several gates; it does not depend on their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from windlass.decisions import (
    ANSWER_KINDS,
    Again,
    Answer,
    Ask,
    Deny,
    Finish,
    Halt,
    Regenerate,
    Rewind,
    Veto,
    Vote,
)
from windlass.events import Decidable
from windlass.terms import people_of, terms_of_asks
from windlass.types import AnyEvent

Answers: TypeAlias = Sequence[tuple[str, Any]]
"""Decisions, each with the name of the hook that gave it."""


def rank_of(event: type[AnyEvent], decision: Decidable) -> int | None:
    """How strict a decision is at this event, 0 first; None if it is not legal there."""
    ranks = _RANKS.get(event)
    if ranks is None:
        ranks = _RANKS[event] = {legal: rank for rank, legal in enumerate(event.ranks)}
    return ranks.get(decision if isinstance(decision, Vote) else type(decision))


_RANKS: dict[type[AnyEvent], dict[Any, int]] = {}
"""The ranks of decisions at each event, by their types or votes."""


def strictest(event: type[AnyEvent], answers: Answers) -> Any:
    """The strictest answer, or None. Several of the same rank become one, in whatever order."""
    if not answers:
        return None
    if len(answers) == 1:
        return answers[0][1]
    ranked = [(rank_of(event, decision), name, decision) for name, decision in answers]
    best = min(rank for rank, _, _ in ranked if rank is not None)
    equals = [(name, decision) for rank, name, decision in ranked if rank == best]
    equals.sort(key=lambda answer: answer[0])
    first = equals[0][1]
    if len(equals) == 1 or type(first) not in _MERGES:
        return first
    return _MERGES[type(first)](event, equals)


def after_approval(event: type[AnyEvent], answers: Answers) -> Any:
    """The verdict once every `Ask` among the answers is approved: the next rank."""
    return strictest(event, [answer for answer in answers if type(answer[1]) is not Ask])


# ---------------------------------------------------------------- answers of the same kind


def _merge_halts(_: type[AnyEvent], equals: Answers) -> Halt:
    replies = [halt.reply for _, halt in equals if halt.reply is not None]
    return Halt(_join_fields(equals, "reason"), _join(replies, "\n") if replies else None)


def _merge_asks(event: type[AnyEvent], equals: Answers) -> Ask | Deny | Halt:
    """One question with all texts and details, and the answers that every `Ask` allows.

    It names everyone who is asked. What each `Ask` requires is in its own answer, as `Asked.terms`.
    """
    asks: list[Ask] = [ask for _, ask in equals]
    allow = tuple(kind for kind in ANSWER_KINDS if all(kind in ask.allow for ask in asks))
    if not allow:
        return _refusal(event, f"{_names(equals)} ask, but no answer satisfies all of them")
    expires = min([ask.expires for ask in asks if ask.expires is not None], default=None)
    approve = "approve" in allow and all(ask.default == "approve" for ask in asks)
    return Ask(
        _join_fields(equals, "question", "\n"),
        allow,
        people_of(terms_of_asks(equals, 0.0)),
        expires,
        "approve" if approve else "reject",
        _merge_details(equals),
        max([ask.priority for ask in asks]),
    )


def _merge_details(equals: Answers) -> dict[str, Any]:
    """The details of all questions. If two have different values of the same name, the names of the hooks part them."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys([name for _, ask in equals for name in ask.details]):
        values = [(hook, ask.details[name]) for hook, ask in equals if name in ask.details]
        same = all(value == values[0][1] for _, value in values)
        merged |= (
            {name: values[0][1]} if same else {f"{hook}: {name}": value for hook, value in values}
        )
    return merged


def _require_same_value(event: type[AnyEvent], equals: Answers) -> Any:
    first = equals[0][1]
    if all(decision.value == first.value for _, decision in equals[1:]):
        return first
    return _refusal(event, f"{_names(equals)} gave different values for {type(first).__name__}")


def _merge_rewinds(_: type[AnyEvent], equals: Answers) -> Rewind:
    return Rewind(min(rewind.to for _, rewind in equals), _join_fields(equals, "note", "\n"))


def _merge_regenerations(_: type[AnyEvent], equals: Answers) -> Regenerate:
    """All feedback. At the bound the reply passes only if nobody wants the turn to stop."""
    stops = any(regenerate.otherwise == "stop" for _, regenerate in equals)
    feedback = _join_fields(equals, "feedback", "\n")
    return Regenerate(feedback, "stop" if stops else "pass", _highest_limit(equals))


def _merge_vetoes(_: type[AnyEvent], equals: Answers) -> Veto:
    return Veto(_join_fields(equals, "feedback", "\n"), _highest_limit(equals))


def _highest_limit(equals: Answers) -> int | None:
    """The limit that holds for all of them: no limit is the highest."""
    limits = [decision.limit for _, decision in equals]
    return None if None in limits else max(limits)


def _merge_retries(_: type[AnyEvent], equals: Answers) -> Again:
    delays = [again.after for _, again in equals if again.after is not None]
    return Again(max(delays, default=None))


_MERGES: dict[type, Callable[[type[AnyEvent], Answers], Any]] = {
    Deny: lambda _, equals: Deny(_join_fields(equals, "reason")),
    Halt: _merge_halts,
    Regenerate: _merge_regenerations,
    Veto: _merge_vetoes,
    Ask: _merge_asks,
    Answer: _require_same_value,
    Finish: _require_same_value,
    Rewind: _merge_rewinds,
    Again: _merge_retries,
}
"""How decisions of one kind become one. The other kinds have no fields: all are equal."""


def _refusal(event: type[AnyEvent], reason: str) -> Deny | Halt:
    return Deny(reason) if Deny in event.ranks else Halt(reason)


def _names(answers: Answers) -> str:
    return " and ".join(repr(name) for name, _ in answers)


def _join_fields(answers: Answers, field: str, separator: str = "; ") -> str:
    return _join([getattr(decision, field) for _, decision in answers], separator)


def _join(texts: Iterable[str], separator: str) -> str:
    return separator.join(dict.fromkeys(text for text in texts if text))
