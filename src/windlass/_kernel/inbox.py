"""What comes from outside: steering, a cancel. Only the owner of the session moves it into the log."""

from __future__ import annotations

from windlass.messages import as_message
from windlass.outcomes import Cancelled
from windlass.records import CancelRequested, InboxTaken

from .segment import Segment
from .stages import add_message


async def take_inbox(segment: Segment) -> None:
    """Move what came from outside into the log: steering becomes a message, a cancel ends the turn."""
    entries = await segment.program.store.take(segment.fold.session, segment.fold.inbox)
    for key, kind, data in entries:
        segment.record(InboxTaken(key, kind))
        if kind == "steer":
            await add_message(segment, as_message(data), "steering")
        elif kind == "cancel":
            segment.record(CancelRequested(str(data)))
            segment.conclude(Cancelled(str(data)))
