"""Who put a text into a request: the record that has it first, and the texts that hooks made it from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from windlass import records as r

from .words import Data, plain

SIMILAR = 0.3
"""How much of a text must be the same at its start and end to be what a rewrite made of another one."""

NEAR = 300
"""Among how many of the last texts the one is looked for that a rewrite changed."""

DEEP = 6
"""How many rewrites of a text are followed."""

_WHAT: dict[type[r.Record], str] = {
    r.TurnStarted: "wrote this",
    r.MessageAdded: "added this message",
    r.MessageHeld: "added this message",
    r.ModelReplied: "said this",
    r.ModelAttempted: "said this in an attempt that was discarded",
    r.ToolReturned: "returned this",
    r.Injected: "put this here",
    r.Rewritten: "changed this",
    r.Compacted: "wrote this in place of earlier messages",
    r.StepEnded: "added this message",
    r.HistoryImported: "imported this",
    r.SessionOpened: "set this when the session was opened",
    r.ReplyRejected: "gave this feedback",
    r.StopVetoed: "gave this feedback",
    r.Delegated: "was given this task",
}


class Place(Struct, frozen=True):
    """Where a text is first: the number of the record, who wrote it, and at which event."""

    text: str
    number: int
    by: str
    hook: str
    event: str
    what: str
    rewrote: bool
    base: str = ""


class Sources:
    """The texts of a log, each with the record that has it first."""

    def __init__(self, records: Sequence[r.Record]) -> None:
        self._first: dict[str, Place] = {}
        self._recent: deque[str] = deque(maxlen=NEAR)
        for number, record in enumerate(records, 1):
            if type(record) in _WHAT:
                self._read(number, record)

    def _read(self, number: int, record: r.Record) -> None:
        by, hook, event = _author(record)
        rewrote = isinstance(record, r.Rewritten)
        for text in _texts(record):
            if text.strip() and text not in self._first:
                base = self._base(text) if rewrote else ""
                what = _WHAT[type(record)]
                self._first[text] = Place(text, number, by, hook, event, what, rewrote, base)
                self._recent.append(text)

    def _base(self, text: str) -> str:
        """The text that a rewrite has most likely changed: the one with most in common at its start and end."""
        best, most = "", SIMILAR
        for other in reversed(self._recent):
            alike = _alike(text, other)
            if alike > most:
                best, most = other, alike
        return best

    def of(self, text: str, origin: str) -> list[Data]:
        """Where a text of a request comes from, the latest first: a rewrite, and what it had changed."""
        found: list[Data] = []
        place = self._first.get(text)
        while place is not None and len(found) < DEEP:
            found.append(_view(place))
            place = self._first.get(place.base) if place.base else None
        if not found:
            own = origin in ("system", "user", "assistant", "tool", "")
            what = "has this in its system text" if own else "brought this"
            found.append(_view(Place(text, 0, "" if own else origin, "", "", what, rewrote=False)))
        return found


def _view(place: Place) -> Data:
    names = ("text", "number", "by", "hook", "event", "what", "rewrote")
    return {name: getattr(place, name) for name in names}


def _author(record: r.Record) -> tuple[str, str, str]:
    """Who wrote what a record has: a name, the hook if it was one, and at which event."""
    match record:
        case r.Rewritten(hook=hook, event=event) | r.Injected(hook=hook, event=event):
            return hook, hook, event
        case r.ToolReturned(name=name):
            return name, "", ""
        case r.ModelReplied() | r.ModelAttempted():
            return "the model", "", ""
        case r.TurnStarted():
            return "the user", "", ""
        case r.MessageAdded(by=by) | r.MessageHeld(by=by) | r.Compacted(by=by):
            return by or "the user", by, ""
        case r.ReplyRejected(by=by) | r.StopVetoed(by=by):
            return ", ".join(by), ", ".join(by), ""
        case r.SessionOpened():
            return "a hook on SessionStarting", "", ""
        case r.HistoryImported():
            return "an earlier history", "", ""
        case _:
            return "the agent", "", ""


def _texts(record: r.Record) -> Iterator[str]:
    """The texts of a record that a request may have."""
    if isinstance(record, r.ReplyRejected | r.StopVetoed):
        yield record.feedback
    elif isinstance(record, r.Injected) and isinstance(record.parts, str):
        yield record.parts
    else:
        yield from _strings(plain(record))


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        if isinstance(name := value.get("name"), str) and isinstance(text := value.get("json"), str):
            yield f"{name} {text}"  # a call, as the request shows it
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, str) and len(value) > 1:
        yield value


def _alike(one: str, other: str) -> float:
    """Which part of the longer of two texts is the same at their start and end."""
    shorter, longer = sorted((len(one), len(other)))
    if not longer or shorter / longer < SIMILAR:
        return 0.0
    start = 0
    while start < shorter and one[start] == other[start]:
        start += 1
    end = 0
    while end < shorter - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return (start + end) / longer
