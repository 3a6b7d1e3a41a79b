"""A stage: an event that hooks rewrite and judge, whose verdict is recorded, may wait for a person, and is reused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass._hooks.dispatch import Passage
from windlass._hooks.hooks import Hook
from windlass._hooks.merging import after_approval
from windlass.decisions import (
    Allow,
    Answer,
    Approve,
    Ask,
    Deny,
    Edit,
    Halt,
    Regenerate,
    Reject,
    Respond,
)
from windlass.events import MessageAdding
from windlass.messages import Message, ToolCall
from windlass.messages import digest as digest_of
from windlass.outcomes import Stopped, StopReason
from windlass.records import Answered, Asked, HookDecided, Injected, MessageAdded, Record
from windlass.states import Fold, step_id
from windlass.types import AnyEvent

from .segment import Segment

DO_NOT_RETRY = "A person rejected this. Do not try it again."


class Waiting:
    """The verdict is not there yet: a question waits for its answer."""


WAITING = Waiting()


async def decide(segment: Segment, passage: Passage, reviewed: Callable[[], str] = str) -> Any:
    """The verdict on an event other than a tool call: None if nobody spoke, WAITING if a person must answer.

    `reviewed` gives the digest of what a person would review; an answer to something else counts for nothing.

    What a log holds is not asked again: only gates that say `on_resume="rerun"` are, and the strictest of old and new
    holds.
    """
    event, about = passage.point.event, passage.about
    recorded = _recorded(segment, event.__name__, about) if segment.resumed else None
    if recorded is None:
        verdict = await passage.judge()
        if passage.answers:
            segment.record(HookDecided(event.__name__, about, verdict, passage.answers))
    else:
        passage.answers = recorded.answers
        verdict = await passage.judge(only=asks_again(segment))
    if not isinstance(verdict, Ask):
        return verdict
    digest = reviewed()
    answered = segment.answer_to(about)
    askers = {name for name, decision in passage.answers if isinstance(decision, Ask)}
    if answered is not None and answered.digest == digest and askers <= {*answered.covers}:
        return after_answer(event, passage.answers, answered)
    segment.ask_person(question(segment, passage, verdict, digest))
    return WAITING


def asks_again(segment: Segment) -> Callable[[Hook], bool]:
    """Which gates are asked on resume about what was decided before: those that say so, and those that are new."""
    known = segment.known
    return lambda hook: hook.on_resume == "rerun" or (known is not None and hook.name not in known)


def _recorded(segment: Segment, event: str, about: str) -> HookDecided | None:
    """What the log had to say of this stage when the segment was entered; it is served once."""
    for decided in reversed(segment.recorded):
        if decided.event == event and decided.about == about:
            segment.recorded = tuple([other for other in segment.recorded if other is not decided])
            return decided
    return None


def question(segment: Segment, passage: Passage, ask: Ask, digest: str, *, call: ToolCall | None = None) -> Asked:
    """The question that an `Ask` puts, bound to the digest of what is asked about."""
    by = tuple(sorted(name for name, decision in passage.answers if isinstance(decision, Ask)))
    allow = tuple([kind for kind in ask.allow if kind in passage.point.event.answers])
    expires_at = None if ask.expires is None else segment.now() + ask.expires
    name = passage.point.event.__name__
    return Asked(passage.about, name, ask.question, allow, digest, by, call, ask.approvers, ask.default, expires_at)


def after_answer(event: type[AnyEvent], answers: Any, answered: Answered) -> Any:
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


def begun(fold: Fold) -> bool:
    """Whether the log shows that the next step had begun when somebody died."""
    about = step_id(fold.session, fold.steps + 1)
    injected = fold.turn.injected if fold.turn is not None else ()
    return any(item.about == about and item.event == "StepStarting" for item in injected)


def may_go_on(verdict: Any) -> bool:
    """Whether a verdict lets the action happen as it is."""
    return verdict is None or isinstance(verdict, Allow)


async def inject(segment: Segment, passage: Passage, about: str) -> None:
    """What hooks inject here: transient parts are recorded for their turn or step, durable ones become messages."""
    for item in await passage.inject(about):
        await take_in(segment, item)


async def inject_again(segment: Segment, passage: Passage, about: str | None = None) -> None:
    """On resume: hooks whose parts are not in the log are asked once more."""
    turn, event = segment.fold.turn, passage.point.event.__name__
    about = passage.about if about is None else about
    unwritten = {
        item.hook
        for item in (turn.injected if turn is not None else ())
        if not item.record and (item.event, item.about) == (event, about)
    }
    if unwritten:
        again = await passage.inject(about, only=lambda hook: hook.name in unwritten)
        segment.unrecorded = (*segment.unrecorded, *[item for item in again if not item.durable])


async def take_in(segment: Segment, item: Injected) -> None:
    """One injection into the state."""
    if item.durable:
        assert not isinstance(item.parts, str)
        await add_message(segment, Message("user", item.parts, origin=item.hook), item.hook)
    elif item.record:
        segment.record(item)
    else:
        keep_out(segment, item)


def keep_out(segment: Segment, item: Injected) -> None:
    """Parts that stay out of the log; what is in it says that the hook is asked again on resume."""
    segment.unrecorded = (*segment.unrecorded, item)
    segment.record(item.replace(parts=()))


async def add_message(segment: Segment, message: Any, by: str, why: Record | None = None) -> bool:
    """A message into the transcript, past the guard's door. False if it was not let in.

    `why` is a record that goes with it: both are in the log, or neither is.
    """
    place = f"{segment.fold.session}/m{len(segment.fold.messages) + 1}"
    admitted = await admit(segment, message, f"{place}/{digest_of(repr(message))[:8]}")
    if why is not None:
        segment.record(why)
    if not isinstance(admitted, Deny | Halt):
        segment.record(MessageAdded(admitted, by))
        return True
    return False


async def admit(segment: Segment, message: Any, about: str) -> Any:
    """MessageAdding: the message as it may enter, or the `Deny` or `Halt` that keeps it out. A Halt concludes."""
    point = segment.hooks.message_adding
    if point is None:
        return message
    passage = Passage(point, MessageAdding(message, segment.turn), segment, about)
    message = (await passage.rewrite()).message
    verdict = await decide(segment, passage)
    if isinstance(verdict, Halt):
        segment.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
    return verdict if isinstance(verdict, Deny | Halt) else message
