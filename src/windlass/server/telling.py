"""The words of a turn for clients that can only append: text as it comes, completed from the records."""

from __future__ import annotations

from windlass.deltas import StreamEvent, TextDelta
from windlass.records import ModelReplied

GAP = "\n\n"


class Teller:
    """Follows the events of a turn. Each text it returns is appended to what the client has.

    Text that was sent cannot be taken back: if a reply was replaced, the new one follows after an empty line, as do
    the replies of later steps.
    """

    def __init__(self) -> None:
        self._place = (0, 0, 0)
        self._reply = ""
        self._any = False

    def feed(self, event: StreamEvent) -> str:
        """What to append for an event."""
        if isinstance(event, TextDelta) and not event.path:
            gap = self._turn_to((event.step, event.round, event.attempt))
            return self._append(gap, event.text)
        if isinstance(event, ModelReplied) and not event.path and (text := event.reply.message.text):
            gap = self._turn_to((event.step, event.round, event.attempt))
            return self._complete(gap, text)
        return ""

    def finish(self, text: str) -> str:
        """What to append at the end, given the answer of the turn."""
        return self._complete("", text) if text else ""

    def _turn_to(self, place: tuple[int, int, int]) -> str:
        if place == self._place:
            return ""
        self._place, self._reply = place, ""
        return GAP if self._any else ""

    def _complete(self, gap: str, text: str) -> str:
        if text.startswith(self._reply):
            return self._append(gap, text[len(self._reply) :])
        self._reply = ""
        return self._append(GAP, text)

    def _append(self, gap: str, text: str) -> str:
        if not text:
            return ""
        self._reply += text
        self._any = True
        return gap + text
