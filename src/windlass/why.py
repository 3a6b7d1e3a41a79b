"""Explains why a turn went as it did: its records, step by step, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, TypeVar

import msgspec

from . import records as r
from ._text import clock, date, entry, inert_json, one_line, uncut, visible
from .decisions import Allow, Answer, Approve, Deny, Edit, Finish, Halt, Reject, Respond, Veto, Vote
from .messages import OpaquePart, ToolCallPart, Usage, json_with_surrogates, thawed
from .outcomes import Cancelled, Completed, Failed, Stopped, StopReason
from .states import PROGRESS, of_latest_turn, stop_reason
from .terms import standing, with_answer

Data: TypeAlias = dict[str, Any]
Entry: TypeAlias = tuple[str, str, Data]
"""One entry about a record: a word for what happened, a sentence, and the same as plain data."""

_R = TypeVar("_R", bound=r.Record)


class Why:
    """A turn, explained: why it ended, who decided what, and what was changed, denied, asked and retried.

    `str` is text of at most 100 columns, with the time of each entry in UTC. Long values are shortened, and say by how
    much, unless `full` is set. Questions and the calls they are about are always shown whole. `data` is plain data with
    whole values: `ended` says why, `parts` holds what happened before the first step, in each step and at the end, in
    the order of the log. Each entry has its time (`at`) and, if a hook answered, how long it `took`.
    """

    __slots__ = ("_full", "data")

    def __init__(self, session: str, records: Iterable[r.Record], *, full: bool = False) -> None:
        self._full = full
        with uncut() if full else nullcontext():
            self.data = _Reader(session, of_latest_turn(list(records))).explain()

    def json(self) -> str:
        """The data as JSON text."""
        return json.dumps(self.data, indent=2)

    def __str__(self) -> str:
        with uncut() if self._full else nullcontext():
            return "\n".join(_lines(self.data))

    def __repr__(self) -> str:
        return f"<Why {self.data['ended']['outcome']} of session {self.data['session']!r}>"


class _Reader:
    """Reads the records of one turn in order and remembers what later ones refer to."""

    def __init__(self, session: str, records: Sequence[r.Record]) -> None:
        self.session = session
        self.records = records
        self.parts: list[Data] = []
        self.place: int | str = "start"
        self.calls: dict[str, ToolCallPart] = {}
        self.known: dict[tuple[str, str], Any] = {}
        self.questions: dict[str, r.Asked] = {}
        self.children: dict[str, str] = {}
        self.pipeline = ""
        self.restarts = 0

    def explain(self) -> Data:
        for record in self.records:
            self.place = self._place(record)
            self._count_restarts(record)
            times = _times(record)
            for what, text, data in _DESCRIBERS.get(type(record), _no_entries)(self, record):
                text += f" (took {times['took']:.3f} s)" if times.get("took", 0.0) >= _SLOW else ""
                self._part()["entries"].append({"what": what, **times, **_plain(data), "text": visible(text)})
        started = _last(self.records, r.TurnStarted)
        usage = _spent(self.records)
        return {
            "session": self.session,
            "turn": started.turn if started is not None else None,
            "message": started.message.text if started is not None else None,
            "began": None if started is None else started.at or None,
            "ended": _plain(self._ended()),
            "parts": self.parts,
            "usage": _plain({name: getattr(usage, name) for name in Usage.__struct_fields__}),
        }

    def _count_restarts(self, record: r.Record) -> None:
        """Count as the state does: how often in a row the turn was resumed and nothing was finished."""
        if isinstance(record, r.Resumed):
            self.restarts += 1
        elif isinstance(record, PROGRESS):
            self.restarts = 0

    def _part(self) -> Data:
        if not self.parts or self.parts[-1]["place"] != self.place:
            self.parts.append({"place": self.place, "entries": []})
        return self.parts[-1]

    def _place(self, record: r.Record) -> int | str:
        """The step a record belongs to; before the first one `start`, once the turn is concluded `end`."""
        if isinstance(record, r.Concluded | r.TurnEnded):
            return "end"
        step = getattr(record, "step", None)
        about = getattr(record, "about", None) or getattr(record, "call", None) or getattr(record, "id", None)
        if isinstance(record, r.Delegated):
            self.children[f"{record.session}/"] = record.call
        if isinstance(record, r.Asked | r.Answered):  # perhaps the question of a sub-agent
            about = next((call for child, call in self.children.items() if record.id.startswith(child)), about)
        if step is None and isinstance(about, str) and about.startswith(f"{self.session}/"):
            number = re.match(r"\d+(?=/|$)", about[len(self.session) + 1 :])
            step = int(number[0]) if number is not None else None
        return step or self.place

    # ------------------------------------------------------------ why it ended

    def _ended(self) -> Data:
        outcome = self._outcome()
        reason = stop_reason(outcome)
        vote = _last(self.records, r.Evaluated)
        return {
            "outcome": "Running" if outcome is None else type(outcome).__name__,
            "at": self._ended_at(),
            "reason": None if reason is None else reason.value,
            "detail": self._detail(outcome),
            "by": list(dict.fromkeys(self._causes(outcome))),
            "vote": None if vote is None else _vote_data(vote),
            "unreviewed": list(getattr(outcome, "unreviewed", ())),
            "objections": list(getattr(outcome, "objections", ())),
        }

    def _ended_at(self) -> float | None:
        """When the turn ended, or was suspended."""
        last = _last(self.records, r.TurnEnded) or _last(self.records, r.Suspended)
        return last.at or None if last is not None and self._outcome() is not None else None

    def _outcome(self) -> r.Outcome | None:
        for record in reversed(self.records):
            if isinstance(record, r.TurnEnded):
                return record.outcome
            if isinstance(record, r.Suspended):
                return record
            if isinstance(record, r.Resumed | r.TurnStarted):
                return None
        return None

    def _detail(self, outcome: r.Outcome | None) -> str:
        return outcome_detail(outcome, by_model=_last(self.records, r.ModelReplied) is not None)

    def _causes(self, outcome: r.Outcome | None) -> list[str]:
        """The hooks, people or rules that caused the outcome."""
        match outcome:
            case Completed(value=None):
                replied = _last(self.records, r.ModelReplied)
                return [] if replied is not None else self._answered_with(Answer)
            case Completed():
                return self._answered_with(Finish)
            case Stopped(reason=StopReason.HALTED):
                return self._answered_with(Halt)
            case Stopped(reason=StopReason.WITHHELD):
                failed = [f.hook for f in _all(self.records, r.HookFailed) if f.effect == "withheld"]
                return failed or self._answered_with(Deny, "TurnEnding")
            case Stopped(reason=StopReason.VETO_CAP):
                return self._answered_with(Veto)
            case Stopped(reason=StopReason.REGENERATION):
                rejected = _last(self.records, r.ReplyRejected)
                return list(rejected.by) if rejected is not None else []
            case Stopped(reason=StopReason.NO_PROGRESS):
                vote = _last(self.records, r.Evaluated)
                return [name for name, _ in vote.reasons] if vote is not None else []
            case Stopped():
                vote = _last(self.records, r.Evaluated)
                return [name for name, _ in vote.reasons] if vote is not None and vote.vote is Vote.FORBID else []
            case Failed(error=error):
                handled = _last(self.records, r.ErrorHandled)
                return [error.hook] if error.hook else [handled.by] if handled is not None else []
            case r.Suspended(waiting_for=waiting):
                return [name for asked in waiting for name in asked.by]
            case _:
                return []

    def _answered_with(self, kind: type, event: str | None = None) -> list[str]:
        """The names behind the latest decision of this kind; a person's Reject counts as a Halt or Deny."""
        for record in reversed(self.records):
            if isinstance(record, r.HookDecided | r.ToolDecided) and not getattr(record, "shadow", False):
                at = getattr(record, "event", "ToolCalling")
                names = [name for name, decision in record.answers if isinstance(decision, kind)]
                if names and not _side_call(getattr(record, "about", "")) and event in (None, at):
                    return names
            if isinstance(record, r.ErrorHandled) and kind is Halt and record.action == "halt":
                return [record.by]
            if isinstance(record, r.Answered) and kind in (Halt, Deny) and isinstance(record.answer, Reject):
                return [record.by or "a person"]
        return []


def outcome_detail(outcome: r.Outcome | None, *, by_model: bool) -> str:
    """Why a turn ended as it did, in words. `by_model` says that a model replied in it."""
    match outcome:
        case None:
            return "the log has no end of this turn: it is running, or was interrupted and can be resumed"
        case Completed(value=None):
            return "the model finished" if by_model else "a hook answered"
        case Completed():
            return "a hook completed it with a value"
        case Stopped(detail=detail):
            return detail
        case Failed(error=error):
            return f"{error.type}: {error.message}"
        case Cancelled(reason=reason):
            return reason
        case r.Suspended(waiting_for=waiting):
            return "; ".join(asked.question for asked in waiting) or "it waits for an answer"


# ---------------------------------------------------------------- one describer per kind of record

_DESCRIBERS: dict[type[r.Record], Callable[[_Reader, Any], Iterable[Entry]]] = {}


def _describes(kind: type[_R]) -> Callable[[Callable[[_Reader, _R], Iterable[Entry]]], None]:
    def register(describe: Callable[[_Reader, _R], Iterable[Entry]]) -> None:
        _DESCRIBERS[kind] = describe

    return register


def _no_entries(reader: _Reader, record: r.Record) -> Iterable[Entry]:
    """For records that other records already explain."""
    return ()


@_describes(r.SessionOpened)
def _(reader: _Reader, record: r.SessionOpened) -> Iterable[Entry]:
    reader.pipeline = record.pipeline
    changed = [name for name in ("system", "tools") if getattr(record, name) is not None]
    if changed:
        yield "session", f"hooks changed its {' and '.join(changed)}", {"changed": changed}


@_describes(r.TurnStarted)
def _(reader: _Reader, record: r.TurnStarted) -> Iterable[Entry]:
    if (options := record.options) is not None:
        reader.pipeline = options.pipeline
        yield "options", f"of this turn: {'; '.join(_option_texts(options))}", {"options": options}


def _option_texts(options: r.TurnOptions) -> Iterable[str]:
    if options.model:
        yield f"model {one_line(options.model)}"
    if options.settings:
        yield f"settings {_value(thawed(options.settings))}"
    if options.criteria:
        yield f"criteria {', '.join([_criterion_text(criterion) for criterion in options.criteria])}"
    if options.tools:
        yield f"tools {_names(options.tools)}"


def _criterion_text(criterion: r.TurnCriterion) -> str:
    parameters = [f"{name}={value!r}" for name, value in (criterion.parameters or {}).items()]
    return one_line(f"{criterion.name}({', '.join(parameters)})" if parameters else criterion.name)


@_describes(r.HistoryImported)
def _(reader: _Reader, record: r.HistoryImported) -> Iterable[Entry]:
    count = len(record.messages)
    text = f"{count} messages of an earlier history were imported"
    if record.withheld:
        text += f"; hooks kept {record.withheld} out"
    yield "import", text, {"by": record.agent, "messages": count, "withheld": record.withheld}


@_describes(r.MessageAdded)
def _(reader: _Reader, record: r.MessageAdded) -> Iterable[Entry]:
    if record.message is not None:
        text = f"{_who(record.by)} added: {_quoted(record.message.text)}"
        yield "message", text, {"by": record.by, "message": record.message.text}


@_describes(r.Injected)
def _(reader: _Reader, record: r.Injected) -> Iterable[Entry]:
    added = record.parts if isinstance(record.parts, str) else _parts_text(_plain(list(record.parts)))
    what = _quoted(added) if record.record else "something that is not in the log"
    data = {"event": record.event, "hook": record.hook, "about": record.about, "added": added}
    yield "inject", f"{_at(record.hook, record.event)} added {what}", {**data, "durable": record.durable}


@_describes(r.Rewritten)
def _(reader: _Reader, record: r.Rewritten) -> Iterable[Entry]:
    changes: dict[str, Data] = {}
    texts: list[str] = []
    for name, after in record.fields.items():
        before = reader.known.get((f"{record.event} {record.about}", name), _UNKNOWN)
        if before is _UNKNOWN:
            before = _previous_value(reader, record, name)
        changes[name] = {"after": after} if before is _UNKNOWN else {"before": before, "after": after}
        texts.append(_change_text(name, before, after))
        reader.known[f"{record.event} {record.about}", name] = after
    data = {"event": record.event, "hook": record.hook, "about": record.about, "changes": changes}
    of = f" of {one_line(reader.calls[record.about].name)}" if record.about in reader.calls else ""
    yield "rewrite", f"{_at(record.hook, record.event)}{of}: {'; '.join(texts) or 'nothing'}", data


_UNKNOWN: Any = object()


def _previous_value(reader: _Reader, record: r.Rewritten, field: str) -> Any:
    """The value of a field before its first rewrite, if the log has it: the arguments of a call, the final text."""
    if record.event == "ToolCalling" and field == "json" and record.about in reader.calls:
        return reader.calls[record.about].json
    if record.event == "TurnEnding" and field == "value":
        return reader.known.get(("text", ""), _UNKNOWN)
    return _UNKNOWN


def _change_text(name: str, before: Any, after: Any) -> str:
    """One field of a rewrite: its old value, if known, and its new value. A JSON text is shown verbatim."""
    show = one_line if name == "json" and isinstance(after, str) and isinstance(before, str) else _value
    was = "" if before is _UNKNOWN else f"{show(before)} → "
    return f"{one_line(name)} {was or 'is now '}{show(after)}"


@_describes(r.HookDecided)
def _(reader: _Reader, record: r.HookDecided) -> Iterable[Entry]:
    what = "shadow" if record.shadow else "decide"
    about = {"event": record.event, "about": record.about}
    side = _side_call(record.about)
    for hook, decision in record.answers:
        text = f"{_at(hook, record.event)}{side}: {_decision(decision)}"
        yield what, text + (", only recorded" if record.shadow else ""), {**about, "hook": hook, **_decided(decision)}
    if len(record.answers) > 1:
        yield "verdict", f"on {record.event}: {_decision(record.verdict)}", {**about, **_decided(record.verdict)}


@_describes(r.ToolDecided)
def _(reader: _Reader, record: r.ToolDecided) -> Iterable[Entry]:
    if record.json is not None and record.call in reader.calls:
        reader.calls[record.call] = reader.calls[record.call].replace(json=record.json)
    call = _call(reader, record.call)
    about = {"event": "ToolCalling", "about": record.call, "call": call, "tool": record.name or None}
    for hook, decision in record.answers:
        event = "Delegating" if hook in record.delegating else "ToolCalling"
        text = f"{_at(hook, event)} on {call}: {_decision(decision)}"
        yield "decide", text, {**about, "event": event, "hook": hook, **_decided(decision)}
    if not record.answers and not isinstance(record.verdict, Allow):
        text = f"no answer for {call}, so the agent's default applies: {_decision(record.verdict)}"
        yield "decide", text, {**about, "hook": None, **_decided(record.verdict)}
    if len(record.answers) > 1:
        yield "verdict", f"on {call}: {_decision(record.verdict)}", {**about, **_decided(record.verdict)}


@_describes(r.HookFailed)
def _(reader: _Reader, record: r.HookFailed) -> Iterable[Entry]:
    text = f"{_at(record.hook, record.event)} failed: {_error(record.error)}"
    data = {"event": record.event, "hook": record.hook, "error": record.error, "effect": record.effect}
    yield "failed", text + (f"; effect: {one_line(record.effect)}" if record.effect else ""), data


@_describes(r.ModelAttempted)
def _(reader: _Reader, record: r.ModelAttempted) -> Iterable[Entry]:
    outcome = _error(record.error) if record.error is not None else _reply(record.reply)
    text = f"attempt {record.attempt} at the model call was discarded: {outcome}"
    yield "attempt", text, {"of": "model", "attempt": record.attempt, "round": record.round, "error": record.error}


@_describes(r.ModelReplied)
def _(reader: _Reader, record: r.ModelReplied) -> Iterable[Entry]:
    message = record.reply.message
    reader.calls.update({call.id: call for call in message.tool_calls})
    reader.known["text", ""] = message.text
    unmediated = sum(isinstance(part, OpaquePart) and not part.mediated for part in message.parts)
    text = _reply(record.reply)
    text += "" if record.paid else " (no model was called for it)"
    text += " (cut short)" if message.partial else ""
    text += f" ({unmediated} parts were executed by the vendor: no hook was asked)" if unmediated else ""
    calls = [{"id": call.id, "tool": call.name, "json": call.json} for call in message.tool_calls]
    data = {"reply": message.text, "calls": calls, "finish": record.reply.finish, "round": record.round}
    yield (
        "reply",
        text,
        {
            **data,
            "attempt": record.attempt,
            "paid": record.paid,
            "partial": message.partial,
            "not_mediated": unmediated,
        },
    )


@_describes(r.ReplyRejected)
def _(reader: _Reader, record: r.ReplyRejected) -> Iterable[Entry]:
    by = ", ".join(record.by)
    text = f"the reply was rejected{f' by {one_line(by)}' if by else ''}: {_quoted(record.feedback)}"
    yield "reject", text, {"by": record.by, "feedback": record.feedback}


@_describes(r.ReplyPassed)
def _(reader: _Reader, record: r.ReplyPassed) -> Iterable[Entry]:
    by = ", ".join(record.by)
    text = f"the reply passed although {one_line(by)} rejected it once more: {_quoted(record.feedback)}"
    yield "pass", text, {"by": record.by, "feedback": record.feedback}


@_describes(r.ToolCalled)
def _(reader: _Reader, record: r.ToolCalled) -> Iterable[Entry]:
    if record.attempt > 1 or record.json is not None:
        changed = "" if record.json is None else f" with arguments that a wrap changed: {one_line(record.json)}"
        text = f"attempt {record.attempt} at {_call(reader, record.call)}{changed}"
        yield "call", text, {"about": record.call, "attempt": record.attempt, "json": record.json}


@_describes(r.UndoCalled)
def _(reader: _Reader, record: r.UndoCalled) -> Iterable[Entry]:
    text = f"{one_line(record.name)} was in doubt: its compensation was started"
    yield "undo", text, {"call": record.call, "name": record.name}


@_describes(r.ToolAttempted)
def _(reader: _Reader, record: r.ToolAttempted) -> Iterable[Entry]:
    size = 0 if record.result is None else len(record.result.text)  # no hook has redacted its content
    outcome = _error(record.error) if record.error is not None else f"a result of {size} characters"
    text = f"attempt {record.attempt} at {_call(reader, record.call)} was discarded: {outcome}"
    yield "attempt", text, {"of": record.call, "attempt": record.attempt, "error": record.error, "size": size}


@_describes(r.ToolReturned)
def _(reader: _Reader, record: r.ToolReturned) -> Iterable[Entry]:
    status = record.result.status
    text = f"{one_line(record.name)}{'' if status == 'ok' else f' ({status})'}: {_quoted(record.result.text)}"
    yield "result", text, {"about": record.call, "tool": record.name, "status": status, "result": record.result.text}


@_describes(r.Delegated)
def _(reader: _Reader, record: r.Delegated) -> Iterable[Entry]:
    agent, session = one_line(record.agent), one_line(record.session)
    where = "in the background, in session" if record.background else "in session"
    text = f"agent {agent} was given the task {_quoted(record.task)}, {where} {session}"
    names = ("call", "session", "agent", "task", "tools", "tokens", "usd", "background")
    yield "delegate", text, {name: getattr(record, name) for name in names}


@_describes(r.Charged)
def _(reader: _Reader, record: r.Charged) -> Iterable[Entry]:
    text = f"session {one_line(record.session)} has spent {record.usage.total} tokens, which count in this turn"
    yield "charge", text, {"call": record.call, "session": record.session, "tokens": record.usage.total}


@_describes(r.StepEnded)
def _(reader: _Reader, record: r.StepEnded) -> Iterable[Entry]:
    if record.messages is not None:
        yield (
            "message",
            "the messages that entered the transcript differ from the reply and its results",
            {"by": "MessageAdding"},
        )


@_describes(r.Evaluated)
def _(reader: _Reader, record: r.Evaluated) -> Iterable[Entry]:
    yield "vote", _vote(_vote_data(record)), _vote_data(record)


@_describes(r.StopVetoed)
def _(reader: _Reader, record: r.StopVetoed) -> Iterable[Entry]:
    text = f"{_names(record.by)} vetoed the stop ({one_line(record.reason)}): {_quoted(record.feedback)}"
    yield "veto", text, {"by": record.by, "reason": record.reason, "feedback": record.feedback}


@_describes(r.Rewound)
def _(reader: _Reader, record: r.Rewound) -> Iterable[Entry]:
    text = f"{_names(record.by)} went back to before step {record.to}; {record.length} messages remain"
    yield "rewind", text, {"by": record.by, "to": record.to, "length": record.length}


@_describes(r.Compacted)
def _(reader: _Reader, record: r.Compacted) -> Iterable[Entry]:
    start, end = record.range
    because = f" ({one_line(record.reason)})" if record.reason else ""
    text = f"{one_line(record.by)} compacted messages {start} to {end - 1}{because}: "
    text += f"the request shrank from about {record.before:,} to {record.after:,} tokens"
    yield "compacted", text, {name: getattr(record, name) for name in ("by", "range", "reason", "before", "after")}


@_describes(r.ErrorHandled)
def _(reader: _Reader, record: r.ErrorHandled) -> Iterable[Entry]:
    text = f"{_error(record.error)} ({one_line(record.category)}): {record.action}, decided by {one_line(record.by)}"
    yield "error", text, {name: getattr(record, name) for name in ("error", "category", "action", "by")}


@_describes(r.Asked)
def _(reader: _Reader, record: r.Asked) -> Iterable[Entry]:
    reader.questions[record.id] = record
    approvers = "" if record.approvers is None else f" {_names(record.approvers)}"
    call = record.call
    about = "" if call is None else f", about {visible(call.name)} {_json(call.json)}"
    text = f'{_at(_names(record.by), record.event)} asked{approvers}: "{visible(record.question)}"{about}'
    names = ("id", "event", "by", "question", "allow", "approvers", "expires_at", "details", "priority", "terms")
    data = {name: getattr(record, name) for name in names}
    yield "ask", text, {**data, "call": None if call is None else {"tool": call.name, "json": call.json}}


@_describes(r.Answered)
def _(reader: _Reader, record: r.Answered) -> Iterable[Entry]:
    asked = reader.questions.get(record.id)
    question = f" {_quoted(asked.question)}" if asked is not None else ""
    who = "no answer in time, so the default" if record.expired else one_line(record.by) or "a person"
    data: Data = {"id": record.id, "by": record.by, "answer": record.answer, "expired": record.expired}
    when = f", answered at {clock(record.answered_at)}" if record.answered_at else ""
    data["answered_at"] = record.answered_at or record.at or None
    if record.partial and asked is not None:
        reader.questions[record.id] = asked = with_answer(asked, record)
        data["standing"] = str(standing(asked, record.answered_at or record.at))
        when += f"; {data['standing']}"
    yield "answer", f"{who} answered{question}: {_resolution(record.answer)}{when}", data


@_describes(r.Suspended)
def _(reader: _Reader, record: r.Suspended) -> Iterable[Entry]:
    ids = [asked.id for asked in record.waiting_for]
    yield (
        "suspend",
        f"the turn waits for {'an answer' if len(ids) == 1 else f'{len(ids)} answers'}",
        {"waiting_for": ids},
    )


@_describes(r.Withdrawn)
def _(reader: _Reader, record: r.Withdrawn) -> Iterable[Entry]:
    ids = ", ".join([one_line(name) for name in record.ids])
    yield "withdrawn", f"nobody needs an answer to {ids} any more: {one_line(record.reason)}", {"ids": record.ids}


@_describes(r.Resumed)
def _(reader: _Reader, record: r.Resumed) -> Iterable[Entry]:
    other = bool(reader.pipeline) and record.pipeline != reader.pipeline
    reader.pipeline = record.pipeline
    text = "the turn continues" + (" with other hooks or tools" if other else "")
    text += f": {'; '.join(one_line(line, 200) for line in record.drift)}" if record.drift else ""
    if reader.restarts > 1:
        text += f" ({reader.restarts} times in a row, and nothing was finished in between)"
    yield "resume", text, {"other_pipeline": other, "drift": record.drift, "restarts": reader.restarts}


@_describes(r.TakenOver)
def _(reader: _Reader, record: r.TakenOver) -> Iterable[Entry]:
    text = f"the session was taken over from {one_line(record.owner)}, which was working on it"
    yield "takeover", text, {"owner": record.owner}


@_describes(r.Noted)
def _(reader: _Reader, record: r.Noted) -> Iterable[Entry]:
    data = "" if record.data is None else f": {_value(record.data)}"
    yield "note", f"{_who(record.by)} noted {one_line(record.kind)}{data}", {"kind": record.kind, "data": record.data}


@_describes(r.SlotSet)
def _(reader: _Reader, record: r.SlotSet) -> Iterable[Entry]:
    text = f"{_who(record.by)} set {one_line(record.slot)} to {_value(record.value)}"
    yield "slot", text, {"slot": record.slot, "value": record.value, "by": record.by}


@_describes(r.SideReplied)
def _(reader: _Reader, record: r.SideReplied) -> Iterable[Entry]:
    text = f"{_who(record.by)} asked a model beside the turn: {_reply(record.reply)}"
    yield "side call", text, {"by": record.by, "reply": record.reply.text}


@_describes(r.CancelRequested)
def _(reader: _Reader, record: r.CancelRequested) -> Iterable[Entry]:
    text = "the turn was asked to cancel" + (f": {one_line(record.reason)}" if record.reason else "")
    yield "cancel", text, {"reason": record.reason}


@_describes(r.InboxTaken)
def _(reader: _Reader, record: r.InboxTaken) -> Iterable[Entry]:
    yield "inbox", f"{one_line(record.entry)} was read from the inbox", {"key": record.key, "entry": record.entry}


@_describes(r.HooksRan)
def _(reader: _Reader, record: r.HooksRan) -> Iterable[Entry]:
    return ()


@_describes(r.Concluded)
def _(reader: _Reader, record: r.Concluded) -> Iterable[Entry]:
    if record.text is not None:
        reader.known["text", ""] = record.text
        yield "conclude", f"the answer will be {_quoted(record.text)}", {"answer": record.text}


@_describes(r.TurnEnded)
def _(reader: _Reader, record: r.TurnEnded) -> Iterable[Entry]:
    if record.text is not None:
        text = f"the answer is {_quoted(record.text)}" if record.text else "no answer is returned"
        yield "end", text, {"answer": record.text}


@_describes(r.Unknown)
def _(reader: _Reader, record: r.Unknown) -> Iterable[Entry]:
    yield "unknown", f"a record of a kind this version does not know: {one_line(record.name)}", {"kind": record.name}


# ---------------------------------------------------------------- in words


def _side_call(about: str) -> str:
    """For a decision on a side call: who asked."""
    asker = about.rsplit(":", 1)[-1].split("#")[0]
    return f" on the side call of {one_line(asker)}" if about.startswith("side:") else ""


def _at(hook: str, event: str) -> str:
    return f"{_who(hook)} ({one_line(event) or '?'})"


def _who(name: str) -> str:
    return one_line(name) or "unknown"


def _names(names: Sequence[str]) -> str:
    return _who(", ".join(names))


def _quoted(text: str) -> str:
    return f'"{one_line(text)}"'


def _decision(decision: Any) -> str:
    """A decision with its details: `Deny, "too big"`."""
    if isinstance(decision, Vote):
        return f"Vote.{decision.name}"
    if decision is None:
        return "no answer"
    details = [
        _quoted(value) if isinstance(value, str) else f"{name}={_value(value)}"
        for name, value in _fields(decision).items()
        if value not in (None, "", ()) and name in _SHOWN_FIELDS
    ]
    return ", ".join([type(decision).__name__, *details])


_SHOWN_FIELDS = ("reason", "question", "feedback", "note", "reply", "to", "value", "delay", "approvers")


def _decided(decision: Any) -> Data:
    if decision is None:
        return {"decision": None}
    if isinstance(decision, Vote):
        return {"decision": f"Vote.{decision.name}"}
    return {"decision": type(decision).__name__, "details": _fields(decision)}


def _fields(value: msgspec.Struct) -> Data:
    return {name: getattr(value, name) for name in value.__struct_fields__ if name != "holds"}


def _resolution(answer: Any) -> str:
    match answer:
        case Approve():
            return "approved"
        case Edit(arguments=arguments):
            return f"approved with other arguments: {_json(json_with_surrogates(_plain(arguments)))}"
        case Reject(message=message):
            return "rejected" + (f": {_quoted(message)}" if message else "")
        case Respond(text=text):
            return f"responded: {_quoted(text)}"
        case _:
            return _value(answer)


def _error(error: Any) -> str:
    return f"{one_line(error.type)}: {one_line(error.message, 200)}"


def _reply(reply: Any) -> str:
    """A reply in words: its text and its calls."""
    if reply is None:
        return "nothing"
    calls = [f"calls {one_line(call.name)} {one_line(call.json)}" for call in reply.tool_calls]
    return "; ".join([*([_quoted(reply.text)] if reply.text or not calls else []), *calls])


def _call(reader: _Reader, call_id: str) -> str:
    call = reader.calls.get(call_id)
    return f"call {one_line(call_id)}" if call is None else f"{one_line(call.name)} {one_line(call.json, 40)}"


def _value(value: Any) -> str:
    """A plain value, shortened: the text of a message, anything else as JSON."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict) and isinstance(value.get("parts"), list):
        return _quoted(_parts_text(value["parts"]))
    if isinstance(value, list) and value and all(isinstance(part, dict) and "text" in part for part in value):
        return _quoted(_parts_text(value))
    return one_line(json_with_surrogates(_plain(value)))


def _json(text: str) -> str:
    """JSON text, whole: for what a person approves."""
    return visible(inert_json(text))


def _parts_text(parts: Sequence[Any]) -> str:
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return " ".join(text if isinstance(text, str) else "[…]" for text in texts)


def _vote_data(record: r.Evaluated) -> Data:
    return {"vote": None if record.vote is None else record.vote.value, "by": [list(pair) for pair in record.reasons]}


def _vote(data: Data) -> str:
    cast = [one_line(name) + (f" ({one_line(why)})" if why else "") for name, why in data["by"]]
    if data["vote"] is None:
        return "no votes, so the turn stops"
    return f"{data['vote']}, cast by {', '.join(cast)}" if cast else f"{data['vote']}"


# ---------------------------------------------------------------- plain data, and usage


def _plain(value: Any) -> Any:
    return thawed(msgspec.to_builtins(value, enc_hook=str, str_keys=True))


def _last(records: Sequence[r.Record], kind: type[_R]) -> _R | None:
    return next((record for record in reversed(records) if isinstance(record, kind)), None)


def _all(records: Sequence[r.Record], kind: type[_R]) -> list[_R]:
    return [record for record in records if isinstance(record, kind)]


def _spent(records: Sequence[r.Record]) -> Usage:
    """What the turn spent: all replies of models, including discarded ones and those of sub-agents."""
    charged = [record.usage for record in _all(records, r.Charged)]
    asked = [record for record in records if isinstance(record, r.ModelAttempted | r.ModelReplied | r.SideReplied)]
    paid = [record.reply.usage for record in asked if record.reply is not None and getattr(record, "paid", True)]
    return sum([*paid, *charged], start=Usage(requests=0))


# ---------------------------------------------------------------- as text

_COLUMN = 12
_TITLES = {"start": "Before the first step", "end": "The end"}


def _lines(data: Data) -> list[str]:
    ended = data["ended"]
    turn = "no turn" if data["turn"] is None else f"turn {data['turn']}"
    reason = "" if ended["reason"] in (None, ended["outcome"].lower()) else f", {ended['reason']}"
    lines = [visible(f"{turn.capitalize()} of session {data['session']!r}: {ended['outcome']}{reason}"), ""]
    day = "" if data["began"] is None else date(data["began"])
    for label, text in _ending(data):
        lines.append(entry(label, text, indent=0, column=_COLUMN))
    for part in data["parts"]:
        lines += ["", _TITLES.get(part["place"], f"Step {part['place']}")]
        for one in part["entries"]:
            if one["at"] is not None and date(one["at"]) != day:
                day = date(one["at"])
                lines.append(f"  {day} (UTC)")
            label = f"{clock(one['at'])}  {one['what']}"
            lines.append(entry(label, one["text"], indent=2, column=_COLUMN + len(clock(None)) + 2))
    return [*lines, "", f"Spent: {_usage(data['usage'])}"]


def _ending(data: Data) -> Iterable[tuple[str, str]]:
    ended = data["ended"]
    yield "because", one_line(ended["detail"], 300) or "–"
    if ended["by"]:
        yield "by", _names(ended["by"])
    if ended["vote"] is not None:
        yield "last vote", _vote(ended["vote"])
    if ended["unreviewed"]:
        yield "unreviewed", f"hooks that should have reviewed it failed: {_names(ended['unreviewed'])}"
    if ended["objections"]:
        yield "objections", f"hooks that rejected a reply and let it pass: {_names(ended['objections'])}"
    if data["message"] is not None:
        yield "message", _quoted(data["message"])
    if data["began"] is not None:
        yield "began", f"{date(data['began'])} {clock(data['began'])} UTC"
        if ended["at"] is not None:
            label = "suspended" if ended["outcome"] == "Suspended" else "ended"
            after = ended["at"] - data["began"]
            yield label, f"{date(ended['at'])} {clock(ended['at'])} UTC, after {after:.3f} s"


def _times(record: r.Record) -> Data:
    """When a record was written, and how long the hook took, if one answered."""
    took: float = getattr(record, "took", 0.0)
    return {"at": record.at or None, **({"took": took} if took else {})}


_SLOW = 0.01
"""The text names the duration of hooks that took at least this long, in seconds."""


def _usage(usage: Data) -> str:
    cost = "cost unknown" if usage["cost"] is None else f"{usage['cost']:.4f} USD"
    requests = "1 request" if usage["requests"] == 1 else f"{usage['requests']} requests"
    return f"{requests}, {usage['input']} tokens in, {usage['output']} out, {cost}"
