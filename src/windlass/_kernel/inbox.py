"""What comes from outside: steering, a cancel. Only the owner of the session moves it into the log."""

from __future__ import annotations

import msgspec

from windlass.messages import Message, as_message
from windlass.outcomes import Cancelled
from windlass.records import CancelRequested, InboxTaken, MessageHeld

from .segment import Segment
from .stages import add_message


async def take_inbox(segment: Segment) -> bool:
    """Move what came from outside into the log: steering becomes a message, a cancel ends the turn.

    Whether a message was added. What comes after this is told by the next commit.
    """
    segment.inbox = added = False
    entries = await segment.program.store.take(segment.fold.session, segment.fold.inbox)
    for key, kind, data in entries:
        segment.record(InboxTaken(key, kind))
        if kind == "steer":
            message = msgspec.convert(data, Message) if isinstance(data, dict) else as_message(data)
            added = await _hear(segment, message) or added
        elif kind == "cancel":
            segment.record(CancelRequested(str(data)))
            segment.conclude(Cancelled(str(data)))
    return added


async def _hear(segment: Segment, message: Message) -> bool:
    """Steering enters at once, or after the step that is open: a call and its result are not to be parted."""
    if segment.fold.open is None:
        return await add_message(segment, message, "steering")
    segment.hold(MessageHeld(message, "steering"))
    return True


async def steered(segment: Segment) -> bool:
    """Take the inbox if there is something in it: whether the turn has been told more and should go on."""
    return segment.inbox and await take_inbox(segment)
