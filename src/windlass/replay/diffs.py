"""Two sessions side by side, up to the first difference in what happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from windlass import records as r
from windlass.decisions import Allow, Approve, Edit, Reject, Respond, Vote
from windlass.messages import Message, TextPart, ToolCallPart, Value, json_with_surrogates
from windlass.outcomes import Completed, Failed, Stopped

from .verdicts import said


class Row(Value, frozen=True):
    """Something that happened: in which turn and step, what kind of thing, and in words."""

    turn: int
    step: int
    kind: str
    text: str


class SessionDiff(Value, frozen=True):
    """What two sessions have in common from their start on, and the first rows in which they differ.

    A row is None if that session ends there; both are None if the sessions are the same. Times, ids, costs and the
    names of the sessions make no difference.
    """

    left: str
    right: str
    common: tuple[Row, ...] = ()
    first: Row | None = None
    second: Row | None = None

    @property
    def same(self) -> bool:
        """Whether the same happened in both."""
        return self.first is None and self.second is None


def diff(left: str, left_log: Iterable[r.Record], right: str, right_log: Iterable[r.Record]) -> SessionDiff:
    """Compare two logs, row by row."""
    rows, others = rows_of(left, left_log), rows_of(right, right_log)
    at = next((at for at, (row, other) in enumerate(zip(rows, others, strict=False)) if row != other), None)
    if at is None:
        at = min(len(rows), len(others))
    first = rows[at] if at < len(rows) else None
    second = others[at] if at < len(others) else None
    return SessionDiff(left, right, tuple(rows[:at]), first, second)


def rows_of(session: str, records: Iterable[r.Record]) -> list[Row]:
    """What happened in a session, row by row."""
    turn = step = 0
    rows: list[Row] = []
    for record in records:
        if isinstance(record, r.TurnStarted):
            turn = record.turn
        elif isinstance(record, r.ModelReplied):
            step = record.step
        for kind, text in _told(record):
            rows.append(Row(turn, step, kind, text.replace(f"{session}/", "")))
    return rows


def _told(record: r.Record) -> Sequence[tuple[str, str]]:
    """The rows of one record: a word and a sentence for each."""
    match record:
        case r.TurnStarted(message=message):
            return [("user", message.text)]
        case r.MessageAdded(message=message, by=by) if message is not None:
            return [("message", f"{message.text} ({by})" if by else message.text)]
        case r.ModelReplied(reply=reply):
            return [_part(part) for part in reply.message.parts if isinstance(part, TextPart | ToolCallPart)]
        case r.ReplyRejected(feedback=feedback, by=by):
            return [("rejected", _by(feedback, by))]
        case r.ToolDecided(name=name, verdict=verdict, answers=answers) if answers or not isinstance(verdict, Allow):
            return [("decided", _by(f"{name}: {said(verdict)}", [hook for hook, _ in answers]))]
        case r.HookDecided(event=event, verdict=verdict, answers=answers, shadow=False):
            return [("decided", _by(f"{event}: {said(verdict)}", [hook for hook, _ in answers]))]
        case r.Rewritten(event=event, hook=hook, fields=fields):
            return [("rewritten", f"{event}: {_fields(fields)} (by {hook})")]
        case r.Injected(hook=hook, event=event, parts=parts):
            return [("injected", f"{event}: {''.join([getattr(part, 'text', '') for part in parts])} (by {hook})")]
        case r.ToolReturned(name=name, result=result):
            status = "" if result.status == "ok" else f" ({result.status})"
            return [("result", f"{name}{status}: {result.text}")]
        case r.Delegated(agent=agent, task=task):
            return [("delegated", f"{agent}: {task}")]
        case r.Compacted(by=by, range=(start, end)):
            return [("compacted", f"messages {start} to {end} (by {by})")]
        case r.Rewound(to=to, by=by):
            return [("rewound", _by(f"to step {to}", by))]
        case r.ErrorHandled(error=error, action=action, by=by):
            return [("error", f"{error.type}: {error.message}; {action} (by {by})")]
        case r.Asked(question=question, by=by):
            return [("asked", _by(question, by))]
        case r.Answered(answer=answer, by=by):
            return [("answered", _by(_answer(answer), [by] if by else []))]
        case r.Noted(kind=kind, data=data, by=by):
            return [("noted", f"{kind}: {_plain(data)} (by {by})")]
        case r.SlotSet(slot=slot, value=value, by=by):
            return [("slot", f"{slot} = {_plain(value)} (by {by})")]
        case r.StopVetoed(reason=reason, by=by, feedback=feedback):
            return [("vetoed", _by(f"{reason}: {feedback}", by))]
        case r.Evaluated(vote=vote, reasons=reasons):
            return [("vote", f"{_vote(vote)}: {'; '.join([f'{name}: {why}' for name, why in reasons])}")]
        case r.CancelRequested(reason=reason):
            return [("cancelled", reason)]
        case r.TurnEnded(outcome=outcome):
            return [("ended", _outcome(outcome))]
        case _:
            return []


def _part(part: TextPart | ToolCallPart) -> tuple[str, str]:
    return ("model", part.text) if isinstance(part, TextPart) else ("calls", f"{part.name} {part.json}")


def _by(text: str, names: Iterable[str]) -> str:
    given = ", ".join(dict.fromkeys(names))
    return f"{text} (by {given})" if given else text


def _answer(answer: Any) -> str:
    match answer:
        case Approve():
            return "approved"
        case Edit(arguments=arguments):
            return f"edited: {_plain(arguments)}"
        case Reject(message=message):
            return f"rejected: {message}" if message else "rejected"
        case Respond(text=text):
            return f"responded: {text}"
        case _:
            return type(answer).__name__.lower()


def _vote(vote: Vote | None) -> str:
    return "stop" if vote is None else vote.name.lower()


def _outcome(outcome: Any) -> str:
    match outcome:
        case Completed(value=value):
            return "completed" if value is None else f"completed: {_plain(value)}"
        case Stopped(reason=reason, detail=detail):
            return f"stopped ({reason.value}): {detail}" if detail else f"stopped ({reason.value})"
        case Failed(error=error):
            return f"failed: {error.type}: {error.message}"
        case _:
            return type(outcome).__name__.lower()


def _fields(fields: Mapping[str, Any]) -> str:
    """The new values of some fields."""
    return "; ".join([_field(name, value) for name, value in fields.items()])


def _field(name: str, value: Any) -> str:
    """A new value; arguments are JSON already, and of messages only those count that are new."""
    if name == "json":
        return str(value)
    if name == "messages" and isinstance(value, Mapping) and isinstance(value.get("new"), list):
        try:
            return (
                " ".join([message.text for message in msgspec.convert(value["new"], list[Message])]) or "fewer messages"
            )
        except msgspec.ValidationError:
            return f"{name} {_plain(value)}"
    return f"{name} {_plain(value)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json_with_surrogates(msgspec.to_builtins(value, enc_hook=str))
