"""A turn before it is let in: its hooks see it begun, but the log has nothing of it yet."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import force_setattr

from windlass.messages import Message, TextPart
from windlass.records import Record, TurnStarted
from windlass.states import Fold


class Opening:
    """What hooks write while a turn is opened, kept until it is known what of the user's message may be stored.

    `fold` is the log as it would be, with the message as it came; `began` is when the turn began.
    """

    __slots__ = ("_now", "began", "fold", "records")

    def __init__(self, fold: Fold, started: TurnStarted, now: Callable[[], float]) -> None:
        self.fold = Fold.of(fold.state)
        self.fold.at = self.began = started.at
        self.fold.add(started)
        self.records: list[Record] = []
        self._now = now

    def add(self, record: Record) -> None:
        """Keep a record for later, at its time; hooks see its effect at once."""
        force_setattr(record, "at", self.fold.tick(self._now))
        self.fold.add(record)
        self.records.append(record)


def withheld(message: Message) -> Message:
    """What the log has of a user message that was not let in: only how long it was."""
    return Message("user", (TextPart(f"[withheld: {len(message.text)} characters]"),))
