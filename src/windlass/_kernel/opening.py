"""A turn before it is accepted: hooks see it as started, but the log does not have it yet."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import force_setattr

from windlass.messages import Message, TextPart
from windlass.records import Record, TurnStarted
from windlass.states import Fold


class Opening:
    """The records that hooks write while a turn opens, kept until the user's message is judged.

    `fold` is the log as if the turn had started with the original message; `began` is when the turn
    began. `adopted` are those of the records that come from the log of a child.
    """

    __slots__ = ("_now", "adopted", "began", "fold", "records")

    def __init__(self, fold: Fold, started: TurnStarted, now: Callable[[], float]) -> None:
        self.fold = Fold.of(fold.state)
        self.fold.at = self.began = started.at
        self.fold.add(started)
        self.records: list[Record] = []
        self.adopted: list[Record] = []
        self._now = now

    def add(self, record: Record) -> None:
        """Keep a record with the current time. Hooks see its effect at once."""
        force_setattr(record, "at", self.fold.tick(self._now))
        self.fold.add(record)
        self.records.append(record)


def withheld(message: Message) -> Message:
    """The placeholder in the log for a user message that was refused: only its length."""
    return Message("user", (TextPart(f"[withheld: {len(message.text)} characters]"),))
