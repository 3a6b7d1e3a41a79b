"""One way to a verdict that may have to wait for a person: for tool calls and for every other event.

A stage is an event with what it is about. The log has the answers of its gates and, if one of them was an `Ask`, the
question and perhaps its answer. On resume the gates of a stage whose action has not begun are asked again, and the
strictest of what was recorded and what they say now holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct

from windlass._hooks.dispatch import Passage, stage_of
from windlass._hooks.hooks import Hook
from windlass._hooks.merging import after_approval, rank_of, strictest
from windlass.decisions import Answer, Approve, Ask, Deny, Edit, Halt, Regenerate, Reject, Respond
from windlass.messages import ToolCall
from windlass.records import Answered, Asked
from windlass.types import AnyEvent

from .segment import Segment

Answers: TypeAlias = tuple[tuple[str, Any], ...]
Settled: TypeAlias = tuple[tuple[str, Ask | None], ...]
"""The gates whose `Ask` a person has answered, each with its `Ask`; None stands for whatever it asked."""

DO_NOT_RETRY = "A person rejected this. Do not try it again."


class Judged(Struct, frozen=True):
    """A verdict; `new` are the answers since the log was written that it is made of: none if the old verdict holds."""

    verdict: Any
    new: Answers = ()

    @property
    def asking(self) -> tuple[str, ...]:
        """Whose questions are new."""
        return tuple(sorted(asks_of(self.new)))


async def judge_again(
    segment: Segment,
    passage: Passage,
    held: Any,
    settled: Settled,
    only: Callable[[Hook], bool] | None = None,
) -> Judged:
    """The strictest of the verdict that holds so far and what the gates say now; at equal rank the old one.

    Of a gate whose `Ask` was answered only a refusal still counts, or an `Ask` on other terms: a new question.
    """
    event = passage.point.event
    passage.answers = before = () if rank_of(event, held) is None else (("recorded", held),)
    await passage.judge(only)
    said = passage.answers[len(before) :]
    new = tuple([(name, decision) for name, decision in said if _counts(event, name, decision, settled)])
    passage.answers = new
    verdict = strictest(event, new)
    if verdict is None or (held is not None and _rank(event, verdict) >= _rank(event, held)):
        return Judged(held)
    return Judged(verdict, new)


def asked_again(segment: Segment, about: str) -> Callable[[Hook], bool]:
    """Which gates are asked again on resume: all, but for those that would meet what they wrote when first asked.

    A gate may say otherwise: with `on_resume="rerun"` it is always asked, with "reuse" only if the agent that wrote
    the log did not have it.
    """
    turn, known = segment.fold.turn, segment.known
    written = turn.writers if turn is not None else ()

    def asks(hook: Hook) -> bool:
        if hook.on_resume is None:
            return not written or (stage_of(hook.event.__name__, about), hook.name) not in written
        if hook.on_resume == "rerun":
            return True
        return known is not None and (hook.event.__name__, hook.kind, hook.name) not in known

    return asks


def settled_by(answers: Answers) -> Settled:
    """The gates that asked, with their questions, once these are answered."""
    return tuple([(name, decision) for name, decision in answers if isinstance(decision, Ask)])


def asks_of(answers: Answers) -> Iterable[str]:
    """The names of the gates that ask."""
    return [name for name, decision in answers if isinstance(decision, Ask)]


def words_of_a_person(segment: Segment, text: str) -> Settled:
    """The gates whose question a person answered with these very words: they do not ask about them again."""
    turn = segment.fold.turn
    answered = turn.answered if turn is not None else ()
    given = [one for one in answered if isinstance(one.answer, Respond) and one.answer.text == text]
    return tuple([(name, None) for one in given for name in one.covers])


def _counts(event: type[AnyEvent], name: str, decision: Any, settled: Settled) -> bool:
    asked = [ask for hook, ask in settled if hook == name]
    if not asked:
        return True
    if isinstance(decision, Ask):
        return not any(ask is None or _terms(ask) == _terms(decision) for ask in asked)
    return Ask not in event.ranks or _rank(event, decision) < event.ranks.index(Ask)


def _terms(ask: Ask) -> frozenset[str] | None:
    """What makes two questions of one gate the same: who may answer."""
    return None if ask.approvers is None else frozenset(ask.approvers)


def _rank(event: type[AnyEvent], decision: Any) -> int:
    rank = rank_of(event, decision)
    return len(event.ranks) if rank is None else rank


def question(
    segment: Segment, passage: Passage, ask: Ask, digest: str, by: Iterable[str], *, call: ToolCall | None = None
) -> Asked:
    """The question that an `Ask` puts, bound to the digest of what is asked about."""
    allow = tuple([kind for kind in ask.allow if kind in passage.point.event.answers])
    expires_at = None if ask.expires is None else segment.now() + ask.expires
    name, names = passage.point.event.__name__, tuple(sorted(by))
    return Asked(passage.about, name, ask.question, allow, digest, names, call, ask.approvers, ask.default, expires_at)


def after_answer(event: type[AnyEvent], answers: Answers, answered: Answered) -> Any:
    """The verdict once a person has answered: the next rank if approved, what the matrix says if rejected."""
    match answered.answer:
        case Approve() | Edit():
            return after_approval(event, answers)
        case Respond(text=text):
            return Answer(text)
        case Reject(message=message):
            reason = message or DO_NOT_RETRY
            if event.rejected is Regenerate:
                return Regenerate(reason)
            return Halt(reason) if event.rejected is Halt else Deny(reason)
