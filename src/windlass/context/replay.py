"""The requests that were sent, from the log alone: what models were shown at each call, and who changed it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from windlass.messages import Message, Messages, ModelReply, ModelRequest, TextPart, ToolSpec, Usage
from windlass.records import (
    Compacted,
    ErrorHandled,
    Injected,
    ModelAttempted,
    ModelReplied,
    Record,
    Resumed,
    Rewound,
    Rewritten,
    SessionOpened,
)
from windlass.states import Fold

from .assembly import Prompt, Shown, assemble, joined, lasting

NOT_KNOWN = "it is not known what the agent was: the store has no description of it"


class Change(Struct, frozen=True):
    """Something that changed what models are shown of the history: a compaction or a rewind, by whom, from where on."""

    kind: str
    by: str
    start: int


class Call(Struct, frozen=True):
    """One call of a model, as the log tells it.

    `lasting` are the messages without what goes with the step; `rewritten` names the rewrites on `ModelCalling` and the
    fields they changed, `changes` what happened to the history since the call before. `inexact` says in what the
    request may differ from what was sent; nothing there means that it is what was sent, but for settings and secrets.
    """

    step: int
    round: int
    attempt: int
    turn: int
    request: ModelRequest
    lasting: Messages
    reply: ModelReply | None = None
    rewritten: tuple[tuple[str, tuple[str, ...]], ...] = ()
    changes: tuple[Change, ...] = ()
    inexact: tuple[str, ...] = ()
    pipeline: str = ""

    @property
    def usage(self) -> Usage:
        """What the vendor counted; nothing if there was no reply."""
        return Usage(requests=0) if self.reply is None else self.reply.usage


class Description(Struct):
    """What a store keeps of an agent, as far as a replay needs it."""

    hooks: list[dict[str, Any]]
    prompt: Prompt | None = None

    @property
    def wraps(self) -> tuple[str, ...]:
        """Those who may change a request after all hooks have seen it."""
        return tuple(
            [str(hook["name"]) for hook in self.hooks if (hook["kind"], hook["event"]) == ("wrap", "ModelCall")]
        )


def described(data: bytes | None) -> Description:
    """A description that a store has kept, or one that knows nothing."""
    return Description([]) if data is None else msgspec.json.decode(data, type=Description)


def pipelines(records: Iterable[Record]) -> set[str]:
    """The digests of the agents that a log was written by."""
    return {record.pipeline for record in records if isinstance(record, SessionOpened | Resumed) and record.pipeline}


def requests(session: str, records: Iterable[Record], known: Mapping[str, Description]) -> Iterator[Call]:
    """The calls of a session's models, in order, each with its request.

    They are those that got a reply, or whose error a wrap has seen. `known` has what the store keeps of the agents, by
    digest. What hooks keep out of the log, or a prune has dropped, is missing and named.
    """
    return _Replay(session, known).calls(records)


class _Replay:
    """Folds a log and gives the request of each call on the way."""

    def __init__(self, session: str, known: Mapping[str, Description]) -> None:
        self.fold = Fold(session)
        self.known = known
        self.rewritten: list[Rewritten] = []
        self.changes: list[Change] = []
        self.unknown = Description([])

    def calls(self, records: Iterable[Record]) -> Iterator[Call]:
        for record in records:
            match record:
                case ModelReplied(
                    paid=True, step=step, round=round_, attempt=attempt, reply=reply, fingerprint=changed
                ):
                    yield self._call(step, round_, attempt, reply, changed)
                case ModelAttempted(step=step, round=round_, attempt=attempt, reply=reply, fingerprint=changed):
                    yield self._call(step, round_, attempt, reply, changed)
                case Rewritten(event="ModelCalling"):
                    self.rewritten.append(record)
                case Resumed() | ErrorHandled(attempt=0):  # the request is made anew
                    self.rewritten = []
                case _:
                    pass
            before = self.fold.shown
            self.fold.add(record)
            self.fold.acknowledge(1)
            self.fold.written.clear()
            match record:
                case Compacted(by=by, range=(start, _)):
                    self.changes.append(Change("compaction", by, start))
                case Rewound(by=names):
                    self.changes.append(Change("rewind", ", ".join(names), _same(before, self.fold.shown)))
                case _:
                    pass

    def _call(self, step: int, round_: int, attempt: int, reply: ModelReply | None, fingerprint: str) -> Call:
        fold = self.fold
        description = self.known.get(fold.pipeline, self.unknown)
        shown: Shown = description.prompt or Prompt((), "")
        about = f"{fold.session}/{step}/request" + ("" if round_ == 1 else f".{round_}")
        rewrites = [record for record in self.rewritten if record.about == about]
        inexact = [] if description.prompt is not None else [NOT_KNOWN]
        inexact += [missing for item in (fold.turn.injected if fold.turn else ()) if (missing := _missing(item))]
        if fingerprint:
            inexact.append(f"a wrap changed the request ({', '.join(description.wraps) or 'nobody knows which'})")
        request, staying = _rewritten(assemble(fold, shown), lasting(fold), rewrites, inexact)
        changes, self.changes = tuple(self.changes), []
        names = tuple([(record.hook, tuple(record.fields)) for record in rewrites])
        turn = fold.turns
        return Call(step, round_, attempt, turn, request, staying, reply, names, changes, tuple(inexact), fold.pipeline)


def _same(before: Messages, after: Messages) -> int:
    """How many messages are as they were: one that goes behind a compaction brings back what that had replaced."""
    pairs = zip(before, after, strict=False)
    return next((at for at, (old, new) in enumerate(pairs) if old is not new), min(len(before), len(after)))


def _missing(item: Injected) -> str:
    """What is said of injected parts that the log does not have."""
    if item.parts or item.durable:
        return ""
    why = "a prune has dropped" if item.record else "are kept out of the log"
    return f"parts that {item.hook!r} injected {why}"


# ---------------------------------------------------------------- rewrites


def _rewritten(
    request: ModelRequest, staying: Messages, rewrites: list[Rewritten], inexact: list[str]
) -> tuple[ModelRequest, Messages]:
    """A request as the rewrites left it, and what of its messages is meant to stay."""
    for record in rewrites:
        try:
            request, staying = _applied(request, staying, record)
        except (msgspec.ValidationError, KeyError, IndexError, TypeError, ValueError):
            inexact.append(f"what {record.hook!r} made of the request cannot be read from the log")
    return request, staying


def _applied(request: ModelRequest, staying: Messages, record: Rewritten) -> tuple[ModelRequest, Messages]:
    fields = dict(record.fields)
    changes: dict[str, Any] = {}
    if "system" in fields and "sections" not in fields:
        changes["sections"] = _sections(request, fields["system"], record.hook)
    if (messages := fields.pop("messages", None)) is not None:
        changes["messages"], staying = _rearranged(request.messages, staying, messages)
    for name, value in fields.items():
        changes[name] = msgspec.convert(value, _TYPES[name])
    return request.replace(**changes), staying


_TYPES: dict[str, Any] = {
    "system": str,
    "tools": tuple[ToolSpec, ...],
    "model": str,
    "settings": dict[str, Any],
    "output": dict[str, Any] | None,
    "sections": tuple[TextPart, ...],
}


def _sections(request: ModelRequest, system: str, hook: str) -> tuple[TextPart, ...]:
    """Who put what into a system text that a hook has changed: what it added is its own, else all of it is."""
    old = request.system
    if old and old in system and joined(request.sections) == old:
        before, _, after = system.partition(old)
        added = [TextPart(text.strip(), hook) if text.strip() else None for text in (before, after)]
        return tuple([section for section in (added[0], *request.sections, added[1]) if section is not None])
    return (TextPart(system, hook),)


def _rearranged(messages: Messages, staying: Messages, given: Mapping[str, Any]) -> tuple[Messages, Messages]:
    """Messages as a rewrite left them: runs of old ones at their new places, and new ones in between.

    What it put behind all that is meant to stay is for this call only.
    """
    old, kept_old = list(messages), list(staying)
    new = iter(msgspec.convert(given["new"], list[Message]))
    places: list[int | None] = [None] * given["to"]
    for was, at, length in given["kept"]:
        places[at : at + length] = range(was, was + length)
    found = [next(new) if place is None else old[place] for place in places]
    stays = [place is not None and place < len(kept_old) for place in places]
    end = max([at for at, one in enumerate(stays) if one], default=-1) + 1
    lasting = [
        found[at] if place is None or place >= len(kept_old) else kept_old[place]
        for at, place in enumerate(places[:end])
    ]
    return Messages(found), Messages(lasting)


__all__ = ["Call", "Change", "Description", "described", "pipelines", "requests"]
