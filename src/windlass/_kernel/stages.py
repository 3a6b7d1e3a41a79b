"""A stage: an event that hooks rewrite and judge, whose verdict is recorded, may wait for a person, and is reused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from windlass._hooks.dispatch import Passage
from windlass.checking import read_back
from windlass.decisions import Allow, Ask, Deny, Halt
from windlass.errors import ConfigError, HookError, text_of
from windlass.events import MessageAdding
from windlass.messages import Message
from windlass.messages import digest as digest_of
from windlass.outcomes import Stopped, StopReason
from windlass.records import HookDecided, Injected, MessageAdded, Record
from windlass.states import Fold, State, step_id

from .composites import PhaseHandler
from .questions import Settled, after_answer, asked_again, asks_of, judge_again, question, settled_by
from .segment import Segment


class Waiting:
    """The verdict is not there yet: a question waits for its answer."""


WAITING = Waiting()


async def decide(segment: Segment, passage: Passage, reviewed: Callable[[], str] = str, settled: Settled = ()) -> Any:
    """The verdict on an event other than a tool call: None if nobody spoke, WAITING if a person must answer.

    `reviewed` gives the digest of what a person would review; an answer to something else counts for nothing. `settled`
    are gates whose question was answered with what is judged here.
    """
    event, about = passage.point.event, passage.about
    recorded = _recorded(segment, event.__name__, about) if segment.resumed else None
    if recorded is not None:
        return await _decide_again(segment, passage, reviewed, recorded)
    if settled:
        verdict = (await judge_again(segment, passage, None, settled)).verdict
    else:
        verdict = await passage.judge()
    if passage.answers:
        segment.record(HookDecided(event.__name__, about, verdict, passage.answers, took=passage.took))
    if not isinstance(verdict, Ask):
        return verdict
    segment.ask_person(question(segment, passage, verdict, reviewed(), asks_of(passage.answers)))
    return WAITING


async def _decide_again(segment: Segment, passage: Passage, reviewed: Callable[[], str], recorded: HookDecided) -> Any:
    """The verdict on an event that the log has one of: gates are asked again, and the strictest of both holds."""
    event, about = passage.point.event, passage.about
    answered = segment.answer_to(about)
    if answered is not None and answered.digest != reviewed():
        answered = None
    held = recorded.verdict if answered is None else after_answer(event, recorded.answers, answered)
    settled = () if answered is None else settled_by(recorded.answers)
    judged = await judge_again(segment, passage, held, settled, asked_again(segment, about))
    if judged.new:
        answers = (*recorded.answers, *judged.new)
        segment.record(HookDecided(event.__name__, about, judged.verdict, answers, took=passage.took))
        passage.answers = answers
    else:
        passage.answers = recorded.answers
    if not isinstance(judged.verdict, Ask):
        return judged.verdict
    by = judged.asking or asks_of(recorded.answers)
    segment.ask_person(question(segment, passage, judged.verdict, reviewed(), by))
    return WAITING


def _recorded(segment: Segment, event: str, about: str) -> HookDecided | None:
    """What the log had to say of this stage when the segment was entered; it is served once."""
    for decided in reversed(segment.recorded):
        if decided.event == event and decided.about == about:
            segment.recorded = tuple(
                [other for other in segment.recorded if (other.event, other.about) != (event, about)]
            )
            return decided
    return None


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


async def handled(segment: Segment, handlers: Sequence[PhaseHandler]) -> None:
    """Let phase handlers go on from the state. A message that one adds passes the guard's door like any other."""
    for handler in handlers:
        name = type(handler).__name__
        try:
            answer = handler.handle(segment.state, segment.turn)
            made: object = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            text = f"phase handler {name!r} failed: {type(error).__name__}: {text_of(error)}"
            raise HookError(text, hook=name) from error
        if not isinstance(made, State):
            raise ConfigError(f"phase handler {name!r} returned {type(made).__name__}; it must return a State")
        for record in segment.made_by(name, made):
            record = _readable(name, record)
            if isinstance(record, MessageAdded) and record.message is not None:
                await add_message(segment, record.message, record.by or name)
            else:
                segment.record(record)


def _readable(handler: str, record: Record) -> Record:
    """A record that a phase handler made, as a log gives it back."""
    try:
        read: Record = read_back(record, type(record))
    except TypeError as error:
        text = f"phase handler {handler!r} made an invalid {type(record).__name__}: {error}"
        raise HookError(text, hook=handler) from None
    return read


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
