"""A turn before it is let in: its hooks see it begun, but the log has nothing of it yet."""

from __future__ import annotations

from windlass._hooks.dispatch import Recorder
from windlass.messages import Message, TextPart
from windlass.records import Record, TurnStarted
from windlass.states import Fold


class Opening:
    """What hooks write while a turn is opened, kept until it is known what of the user's message may be stored.

    `fold` is the log as it would be, with the message as it came; `recorder` writes to the real one.
    """

    __slots__ = ("fold", "recorder", "records")

    def __init__(self, fold: Fold, started: TurnStarted, recorder: Recorder) -> None:
        self.fold = Fold.of(fold.state)
        self.fold.add(started)
        self.recorder = recorder
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep a record for later; hooks see its effect at once."""
        self.fold.add(record)
        self.records.append(record)


def withheld(message: Message) -> Message:
    """What the log has of a user message that was not let in: only how long it was."""
    return Message("user", (TextPart(f"[withheld: {len(message.text)} characters]"),))
