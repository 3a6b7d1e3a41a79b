"""Rebuilds the requests that were sent from the log alone: what models saw at each call, and what changed it."""

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
    TurnStarted,
)
from windlass.states import Fold, pipeline_of_turn

from .assembly import Prompt, PromptSource, assemble, join_sections, lasting

NOT_KNOWN = "the agent is unknown: the store has no description of it"


class Change(Struct, frozen=True):
    """A compaction or a rewind: what caused it, and the index of the first message it changed."""

    kind: str
    by: str
    start: int


class Call(Struct, frozen=True):
    """One call of a model, rebuilt from the log.

    `lasting` are the messages without the parts of this step only; `rewritten` names the rewrites on `ModelCalling` and
    the fields they changed, and `edits` has the request before and after each of them; `changes` are the changes to the
    history since the previous call. `inexact` says how the request may differ from the one that was sent; if it is
    empty, they are equal except for settings and secrets.
    """

    step: int
    round: int
    attempt: int
    turn: int
    request: ModelRequest
    lasting: Messages
    reply: ModelReply | None = None
    rewritten: tuple[tuple[str, tuple[str, ...]], ...] = ()
    edits: tuple[tuple[str, ModelRequest, ModelRequest], ...] = ()
    changes: tuple[Change, ...] = ()
    inexact: tuple[str, ...] = ()
    pipeline: str = ""

    @property
    def usage(self) -> Usage:
        """The vendor's usage; empty without a reply."""
        return Usage(requests=0) if self.reply is None else self.reply.usage


class Description(Struct):
    """The part of an agent's stored description that a replay needs."""

    hooks: list[dict[str, Any]]
    prompt: Prompt | None = None
    unmatched: str = "allow"

    @property
    def wraps(self) -> tuple[str, ...]:
        """The wraps, which may change a request after all other hooks."""
        return tuple(
            [str(hook["name"]) for hook in self.hooks if (hook["kind"], hook["event"]) == ("wrap", "ModelCall")]
        )


def described(data: bytes | None) -> Description:
    """Decode a stored description; an empty one without data."""
    return Description([]) if data is None else msgspec.json.decode(data, type=Description)


def pipelines(records: Iterable[Record]) -> set[str]:
    """The digests of the agents that wrote a log."""
    found: set[str] = set()
    for record in records:
        if isinstance(record, TurnStarted):
            found.add("" if record.options is None else record.options.pipeline)
        elif isinstance(record, SessionOpened | Resumed):
            found.add(record.pipeline)
    return found - {""}


def requests(session: str, records: Iterable[Record], known: Mapping[str, Description]) -> Iterator[Call]:
    """The model calls of a session in order, each with its request.

    These are the calls that got a reply, or whose error a wrap has seen. `known` has the stored descriptions of agents
    by digest. Parts that hooks keep out of the log, or that were pruned, are missing; `inexact` names them.
    """
    return _Replay(session, known).calls(records)


class _Replay:
    """Folds a log and yields the request of each call on the way."""

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
        pipeline = pipeline_of_turn(fold)
        description = self.known.get(pipeline, self.unknown)
        source: PromptSource = description.prompt or Prompt((), "")
        about = f"{fold.session}/{step}/request" + ("" if round_ == 1 else f".{round_}")
        rewrites = [record for record in self.rewritten if record.about == about]
        inexact = [] if description.prompt is not None else [NOT_KNOWN]
        inexact += [missing for item in (fold.turn.injected if fold.turn else ()) if (missing := _missing(item))]
        if fingerprint:
            inexact.append(f"a wrap changed the request ({', '.join(description.wraps) or 'an unknown wrap'})")
        request, staying, edits = _rewrite(assemble(fold, source), lasting(fold), rewrites, inexact)
        changes, self.changes = tuple(self.changes), []
        names = tuple([(record.hook, tuple(record.fields)) for record in rewrites])
        turn = fold.turns
        notes = tuple(inexact)
        return Call(step, round_, attempt, turn, request, staying, reply, names, edits, changes, notes, pipeline)


def _same(before: Messages, after: Messages) -> int:
    """How many messages at the start are unchanged. A rewind past a compaction restores what it had replaced."""
    pairs = zip(before, after, strict=False)
    return next((at for at, (old, new) in enumerate(pairs) if old is not new), min(len(before), len(after)))


def _missing(item: Injected) -> str:
    """A note on injected parts that are not in the log."""
    if item.parts or item.durable:
        return ""
    why = "were pruned" if item.record else "are kept out of the log"
    return f"parts that {item.hook!r} injected {why}"


# ---------------------------------------------------------------- rewrites


def _rewrite(
    request: ModelRequest, staying: Messages, rewrites: list[Rewritten], inexact: list[str]
) -> tuple[ModelRequest, Messages, tuple[tuple[str, ModelRequest, ModelRequest], ...]]:
    """Apply rewrites to a request and to its lasting messages; also the request before and after each."""
    edits: list[tuple[str, ModelRequest, ModelRequest]] = []
    for record in rewrites:
        before = request
        try:
            request, staying = _apply(request, staying, record)
            edits.append((record.hook, before, request))
        except (msgspec.ValidationError, KeyError, IndexError, TypeError, ValueError):
            inexact.append(f"the rewrite by {record.hook!r} cannot be read from the log")
    return request, staying, tuple(edits)


def _apply(request: ModelRequest, staying: Messages, record: Rewritten) -> tuple[ModelRequest, Messages]:
    fields = dict(record.fields)
    changes: dict[str, Any] = {}
    if "system" in fields and "sections" not in fields:
        changes["sections"] = _sections(request, fields["system"], record.hook)
    if (messages := fields.pop("messages", None)) is not None:
        changes["messages"], staying = _rearrange(request.messages, staying, messages)
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
    """The sections of a system text that a hook changed: only the added text is the hook's, if it can be told apart."""
    old = request.system
    if old and old in system and join_sections(request.sections) == old:
        before, _, after = system.partition(old)
        added = [TextPart(text.strip(), hook) if text.strip() else None for text in (before, after)]
        return tuple([section for section in (added[0], *request.sections, added[1]) if section is not None])
    return (TextPart(system, hook),)


def _rearrange(messages: Messages, staying: Messages, change: Mapping[str, Any]) -> tuple[Messages, Messages]:
    """Messages after a rewrite: runs of old ones at their new places, and new ones in between.

    Messages that the rewrite put after all lasting ones are for this call only.
    """
    old, kept_old = list(messages), list(staying)
    new = iter(msgspec.convert(change["new"], list[Message]))
    places: list[int | None] = [None] * change["to"]
    for was, at, length in change["kept"]:
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
