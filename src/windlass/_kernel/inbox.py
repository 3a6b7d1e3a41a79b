"""What comes from outside: steering, a cancel. Only the owner of the session moves it into the log."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass._hooks.readers import SKIPPED
from windlass.approvals import answer_of, check_answer
from windlass.errors import StaleAnswer
from windlass.messages import Message, as_message
from windlass.outcomes import Cancelled
from windlass.protocols import Store
from windlass.records import Answered, CancelRequested, HookFailed, InboxTaken, MessageHeld
from windlass.states import Fold, fold_log

from .segment import Segment
from .stages import add_message


async def take_inbox(segment: Segment) -> bool:
    """Move what came from outside into the log: steering becomes a message, a cancel ends the turn it was meant for.

    Whether a message was added. What comes after this is told by the next commit. An entry that is none of these is
    taken, and counts for nothing: else it would end every turn from here on.
    """
    segment.inbox = added = False
    entries = await segment.program.store.take(segment.fold.session, segment.fold.inbox)
    for key, kind, data in entries:
        taken = InboxTaken(key, kind)
        if kind == "steer" and (message := _steering(data)) is not None:
            added = await _hear(segment, taken, message) or added
        else:
            segment.record(taken)
        if kind == "answer" and (answered := fitting(segment, data)) is not None:
            segment.record_answer(answered)
        if kind == SKIPPED and (failed := _failed(data)) is not None:
            segment.record(failed)
        if kind == "cancel" and (reason := _cancelled(segment, data)) is not None:
            segment.record(CancelRequested(reason))
            segment.conclude(Cancelled(reason))
    return added


async def from_below(store: Store, fold: Fold) -> list[tuple[str, Any]]:
    """The answers and cancels in the inboxes of agents below that wait for a person: their kinds, and what they say.

    Those of the lowest come first: a question is answered by whoever asks it.
    """
    found: list[tuple[str, Any]] = []
    for call in fold.open.calls.values() if fold.open is not None else ():
        if call.result is None and call.children:
            session = call.children[-1].started.session
            child = fold_log(session, await store.read(session))
            if child.turn is not None and child.turn.waiting:
                found += await from_below(store, child)
                entries = await store.take(session, child.inbox)
                found += [(kind, data) for _, kind, data in entries if kind in ("answer", "cancel")]
    return found


def fitting(segment: Segment, data: Any) -> Answered | None:
    """An answer from outside as a record, if it fits a question that is open.

    It counts if it was given before its question expired, by the clock of whoever gave it, or is read before that, by
    ours; whatever the default is, until the default is recorded.
    """
    try:
        ask_id, digest, answer, at = answer_of(data)
    except (AttributeError, KeyError, TypeError, msgspec.ValidationError):  # whoever put it there wrote no answer
        return None
    asked = next((asked for asked in segment.waiting if asked.id == ask_id and asked.digest == digest), None)
    if asked is None:
        return None
    given = min(at, segment.now())
    try:
        answer = check_answer(segment.fold.session, asked, answer, given)
    except StaleAnswer:
        return None
    return Answered(ask_id, answer, digest, answer.by or "", asked.by, at=given)


def _cancelled(segment: Segment, data: Any) -> str | None:
    """Why the turn is cancelled; None if it was another turn, which is over. A text is meant for whatever runs."""
    if not isinstance(data, dict):
        return str(data)
    return str(data.get("reason", "")) if data.get("turn") == segment.fold.turns else None


def _failed(data: Any) -> HookFailed | None:
    """What a durable observer was told in vain while no turn was at work."""
    try:
        return msgspec.convert(data, HookFailed)
    except msgspec.ValidationError:
        return None


def _steering(data: Any) -> Message | None:
    """What somebody said to the turn; None if it is no message of a user."""
    try:
        message = msgspec.convert(data, Message) if isinstance(data, dict) else as_message(data)
    except (TypeError, msgspec.ValidationError):
        return None
    return message if message.role == "user" else None


async def _hear(segment: Segment, taken: InboxTaken, message: Message) -> bool:
    """Steering enters at once, or after the step that is open: a call and its result are not to be parted.

    That it was taken is recorded together with the message, so that no crash comes between them.
    """
    if segment.fold.open is None:
        return await add_message(segment, message, "steering", taken)
    segment.record(taken)
    segment.record(MessageHeld(message, "steering"))
    return True


async def steered(segment: Segment) -> bool:
    """Take the inbox if there is something in it: whether the turn has been told more and should go on."""
    return segment.inbox and await take_inbox(segment)
