"""The score of a session: its turns as rows of what happened, with times and with who decided, read from the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from windlass import records as r
from windlass.decisions import Reject
from windlass.messages import OpaquePart, ToolCallPart, Usage
from windlass.outcomes import Cancelled, Completed, Failed, Stopped
from windlass.why import outcome_detail

from .words import LATEST, Data, decided, json_text, moment, plain, said

_R = TypeVar("_R", bound=r.Record)

TONES = {
    "Deny": "deny", "Regenerate": "deny", "Veto": "deny", "Halt": "deny", "Reject": "deny", "FORBID": "deny",
    "Ask": "ask",
    "Answer": "changed", "Finish": "changed", "Rewind": "changed", "Edit": "changed", "Respond": "changed",
    "Allow": "allow", "Approve": "allow",
}  # fmt: skip
"""What a verdict counts as: refused, asked, changed or allowed."""

LONGEST = 1e9
"""No call or hook takes longer, in seconds, whatever a log says."""

OUTCOMES = {Completed: "done", Stopped: "stopped", Failed: "failed", Cancelled: "cancelled"}


class Turn(Struct):
    """One turn: its rows, and how it stands. `state` is running, waiting, done, stopped, failed or cancelled.

    `changed` is the number of the last record that changed the turn. `hooks` is how many seconds its hooks took, None
    if that was not measured.
    """

    n: int
    text: str
    began: float
    last: float
    changed: int
    rows: list[Data]
    state: str = "running"
    reason: str = ""
    detail: str = ""
    answer: str | None = None
    pipeline: str = ""
    vote: Data | None = None
    hooks: float | None = None

    def head(self) -> Data:
        """The turn without its rows."""
        fields = ("n", "text", "began", "last", "state", "reason", "detail", "answer", "pipeline", "vote", "hooks")
        return {name: getattr(self, name) for name in fields}


class Score:
    """Reads the records of one session in order. More can be added when the log grows."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.turns: list[Turn] = []
        self.agent = self.parent = self.origin = self.pipeline = ""
        self.children: list[str] = []
        self.number = 0
        self.ended = False
        self.preface: list[Data] = []
        self.begin_turn()

    def begin_turn(self) -> None:
        """Forget what belongs to one turn only."""
        self.mark = 0.0
        self.step = 0
        self.calls: dict[str, Data] = {}
        self.asked: dict[str, Data] = {}
        self.models: dict[int, Data] = {}
        self.early: list[tuple[str, Data]] = []
        self.wait: Data | None = None
        self.said: set[tuple[Any, ...]] = set()
        self.user: Data | None = None
        self.by_child: dict[str, Data] = {}
        self.attempts: dict[tuple[int, int, int], Data] = {}

    def extend(self, records: Iterable[r.Record]) -> None:
        """Read more records."""
        for record in records:
            self.number += 1
            if not 0.0 <= record.at <= LATEST:
                record = record.replace(at=moment(record.at))
            _READERS.get(type(record), _read_unknown)(self, record)
            if self.turns:
                turn = self.turns[-1]
                turn.last, turn.changed = max(turn.last, record.at), self.number

    @property
    def turn(self) -> Turn | None:
        """The turn that is read, or the latest one."""
        return self.turns[-1] if self.turns else None

    # ------------------------------------------------------------ rows

    def add(self, kind: str, record: r.Record, **fields: Any) -> Data:
        """Add a row for a record. Before the first turn it is kept for that one."""
        row: Data = {"k": kind, "n": self.number, "z": self.number, "step": self.step, "t": record.at, **fields}
        (self.turns[-1].rows if self.turns else self.preface).append(row)
        return row

    def touch(self, row: Data) -> Data:
        """Note that a record changed a row."""
        row["z"] = self.number
        row.setdefault("more", []).append(self.number)
        return row

    def target(self, event: str, about: str) -> Data | None:
        """The row that a decision or a rewrite is about; None if it comes later: a model call that is not made yet."""
        if (call := self.calls.get(about)) is not None:
            return call
        if event in ("ModelCalling", "ModelReplying", "StepStarting"):
            known = self.models.get(self._step_of(about) or self.step)
            if event != "ModelReplying" or known is None:
                return None
            return known if known["round"] == _round_of(about) else None
        turn = self.turn
        if turn is None or not turn.rows:
            return self.preface[-1] if self.preface else None
        return self.user if event == "TurnStarting" else turn.rows[-1]

    def attach(self, event: str, about: str, field: str, value: Data) -> None:
        """Put a decision or a change at its row."""
        value["n"] = self.number
        row = self.target(event, about)
        if row is None:
            self.early.append((field, value))
        else:
            self.put(self.touch(row), field, value)

    def put(self, row: Data, field: str, value: Data) -> None:
        """Add a decision to a row, unless it is there: gates are asked again when a turn is resumed."""
        known = row.setdefault(field, [])
        if field == "says":
            said = (id(row), *[value[name] for name in ("hook", "event", "shadow", "v", "why")])
            if said in self.said:
                return
            self.said.add(said)
        known.append(value)

    def _step_of(self, about: str) -> int | None:
        found = re.match(r"/(\d+)", about[len(self.session) :]) if about.startswith(self.session) else None
        return int(found[1]) if found else None

    # ------------------------------------------------------------ questions

    def close_wait(self, at: float) -> Data | None:
        """The end of waiting for people, if the turn waited."""
        wait, self.wait = self.wait, None
        if wait is not None:
            self.touch(wait)["t"] = at
            wait["open"] = False
        return wait


def _round_of(about: str) -> int:
    """The round of the reply that a decision is about: `s1/3/reply.2` is the second one of its step."""
    found = re.search(r"/\w+\.(\d+)$", about)
    return int(found[1]) if found else 1


_READERS: dict[type[r.Record], Callable[[Score, Any], None]] = {}


def _reads(kind: type[_R]) -> Callable[[Callable[[Score, _R], None]], None]:
    def register(read: Callable[[Score, _R], None]) -> None:
        _READERS[kind] = read

    return register


def _read_unknown(score: Score, record: r.Record) -> None:
    score.add("note", record, by="", what="a record of an unknown kind", text=getattr(record, "name", ""))


def _usage(usage: Usage) -> Data:
    return {"in": usage.input, "out": usage.output, "cached": usage.cached, "cost": usage.cost}


# ---------------------------------------------------------------- session and turn


@_reads(r.SessionOpened)
def _(score: Score, record: r.SessionOpened) -> None:
    score.agent, score.pipeline = record.agent, record.pipeline
    score.parent, score.origin = record.parent or score.parent, record.origin or score.origin
    score.ended = False
    changed = [name for name in ("system", "tools") if getattr(record, name) is not None]
    if changed:
        score.add("note", record, by="SessionStarting", what="changed the session", text=", ".join(changed))


@_reads(r.SessionEnded)
def _(score: Score, record: r.SessionEnded) -> None:
    score.ended = True


@_reads(r.HistoryImported)
def _(score: Score, record: r.HistoryImported) -> None:
    count = len(record.messages)
    text = f"{count} message{'' if count == 1 else 's'} of an earlier history"
    text += f"; hooks kept {record.withheld} out" if record.withheld else ""
    score.add("note", record, by=record.agent, what="imported", text=text)


@_reads(r.TurnStarted)
def _(score: Score, record: r.TurnStarted) -> None:
    text = said(record.message)
    pipeline = (record.options.pipeline if record.options else "") or score.pipeline
    score.begin_turn()
    score.mark = record.at
    rows, score.preface = score.preface, []
    score.turns.append(Turn(record.turn, text, record.at, record.at, score.number, rows, pipeline=pipeline))
    options = None if record.options is None else plain(record.options)
    score.user = score.add("user", record, text=text, withheld=record.withheld, options=options)


@_reads(r.MessageAdded)
def _(score: Score, record: r.MessageAdded) -> None:
    score.mark = record.at
    if record.message is not None:
        score.add("message", record, by=record.by, role=record.message.role, text=said(record.message))


@_reads(r.MessageHeld)
def _(score: Score, record: r.MessageHeld) -> None:
    score.add("message", record, by=record.by, role=record.message.role, text=said(record.message), held=True)


@_reads(r.Injected)
def _(score: Score, record: r.Injected) -> None:
    text = record.parts if isinstance(record.parts, str) else "\n".join(_part_text(part) for part in record.parts)
    score.mark = record.at
    score.add(
        "inject", record, by=record.hook, event=record.event, text=text, durable=record.durable, took=record.took,
        missing="" if record.parts else "pruned" if record.record else "not recorded",
    )  # fmt: skip


def _part_text(part: Any) -> str:
    text = getattr(part, "text", None)
    return text if isinstance(text, str) else f"[{plain(part).get('type', 'part')}]"


# ---------------------------------------------------------------- hooks


@_reads(r.Rewritten)
def _(score: Score, record: r.Rewritten) -> None:
    before = score.calls.get(record.about)
    fields: Data = {}
    for name, after in record.fields.items():
        known = before.get("final") or before.get("json") if before is not None and name == "json" else None
        fields[name] = {"before": known, "after": after if isinstance(after, str) else json_text(after)}
    if before is not None and isinstance(record.fields.get("json"), str):
        before["final"] = record.fields["json"]
    change = {"hook": record.hook, "event": record.event, "took": record.took, "fields": fields}
    score.attach(record.event, record.about, "changes", change)
    if record.event == "ModelCalling":
        score.mark = record.at


@_reads(r.HookDecided)
def _(score: Score, record: r.HookDecided) -> None:
    took = record.took if len(record.answers) == 1 else 0.0
    for hook, decision in record.answers:
        answer = {"hook": hook, "event": record.event, "shadow": record.shadow, "took": took, **decided(decision)}
        if record.about.startswith("side:"):
            answer["side"] = record.about
        score.attach(record.event, record.about, "says", answer)
    if record.event == "ModelCalling":
        score.mark = record.at


@_reads(r.HookFailed)
def _(score: Score, record: r.HookFailed) -> None:
    score.add(
        "error", record, by=record.hook, error=record.error.type, text=record.error.message, event=record.event,
        action=record.effect or "recorded", took=record.took, hook=True,
    )  # fmt: skip


# ---------------------------------------------------------------- model calls


@_reads(r.ModelAttempted)
def _(score: Score, record: r.ModelAttempted) -> None:
    score.step = record.step
    text = record.error.message if record.error is not None else record.reply.text if record.reply else ""
    usage = {} if record.reply is None else _usage(record.reply.usage)
    score.attempts[record.step, record.round, record.attempt] = score.add(
        "attempt", record, t0=score.mark, round=record.round, attempt=record.attempt, text=text,
        error=None if record.error is None else record.error.type, **usage,
    )  # fmt: skip
    score.mark = record.at


@_reads(r.ModelReplied)
def _(score: Score, record: r.ModelReplied) -> None:
    score.step = record.step
    message = record.reply.message
    calls = message.tool_calls
    thinking = "".join([part.text for part in message.parts if plain(part).get("type") == "thinking"])  # type: ignore[union-attr]
    row = score.add(
        "model", record, t0=score.mark or record.at, round=record.round, attempt=record.attempt, text=message.text,
        model=record.reply.model or "", finish=record.reply.finish, paid=record.paid, partial=message.partial,
        calls=[call.id for call in calls], thinking=thinking, **_usage(record.reply.usage),
        opaque=[plain(part) for part in message.parts if isinstance(part, OpaquePart) and not part.mediated],
    )  # fmt: skip
    for field, value in score.early:
        score.put(row, field, value)
        row.setdefault("more", []).append(value["n"])
    score.early.clear()
    score.models[record.step] = row
    score.attempts[record.step, record.round, record.attempt] = row
    score.mark = record.at
    for call in calls:
        score.calls[call.id] = _call_row(score, record, call)


def _call_row(score: Score, record: r.Record, call: ToolCallPart) -> Data:
    return score.add("tool", record, t0=record.at, call=call.id, name=call.name, json=call.json, status="", called=0)


@_reads(r.ReplyRejected)
def _(score: Score, record: r.ReplyRejected) -> None:
    score.mark = record.at
    if (row := score.models.get(record.step)) is not None:
        score.touch(row)["rejected"] = {"by": list(record.by), "why": record.feedback}
        for call in row["calls"]:
            if call in score.calls:
                score.touch(score.calls[call])["status"] = "not made"


@_reads(r.ReplyPassed)
def _(score: Score, record: r.ReplyPassed) -> None:
    if (row := score.models.get(record.step)) is not None:
        score.touch(row)["passed"] = {"by": list(record.by), "why": record.feedback}


@_reads(r.SideReplied)
def _(score: Score, record: r.SideReplied) -> None:
    score.add("side", record, by=record.by, text=record.reply.text, paid=record.paid, **_usage(record.reply.usage))


# ---------------------------------------------------------------- tool calls


def _call(score: Score, call: str, record: r.Record, name: str) -> Data:
    """The row of a call. Calls of hooks have no model call before them."""
    if call not in score.calls:
        fields = {"t0": record.at, "call": call, "name": name, "json": "{}", "status": "", "called": 0}
        score.calls[call] = score.add("tool", record, **fields)
    return score.touch(score.calls[call])


@_reads(r.ToolDecided)
def _(score: Score, record: r.ToolDecided) -> None:
    row = _call(score, record.call, record, record.name)
    took = record.took if len(record.answers) == 1 else 0.0
    people, delegating = {given["by"] for given in row.get("answered", ())}, set(record.delegating)
    for hook, decision in record.answers:
        event = "Delegating" if hook in delegating else "ToolCalling"
        answer = {"hook": hook, "event": event, "shadow": False, "took": took, "n": score.number, **decided(decision)}
        if hook not in people:
            score.put(row, "says", answer)
    row["verdict"] = decided(record.verdict)
    if record.digest:
        row["digest"] = record.digest
    if record.json is not None:
        row["final"] = record.json


@_reads(r.ToolCalled)
def _(score: Score, record: r.ToolCalled) -> None:
    row = _call(score, record.call, record, record.name)
    if not row["called"]:
        row["t0"] = record.at
    row["called"], row["attempts"], row["t"] = score.number, record.attempt, record.at
    if record.json is not None:
        row["final"] = record.json


@_reads(r.UndoCalled)
def _(score: Score, record: r.UndoCalled) -> None:
    _call(score, record.call, record, record.name)["undo"] = True


@_reads(r.ToolAttempted)
def _(score: Score, record: r.ToolAttempted) -> None:
    row = score.touch(score.calls[record.call]) if record.call in score.calls else score.add("note", record)
    error = None if record.error is None else f"{record.error.type}: {record.error.message}"
    row.setdefault("discarded", []).append({"attempt": record.attempt, "error": error})


@_reads(r.ToolReturned)
def _(score: Score, record: r.ToolReturned) -> None:
    row = _call(score, record.call, record, record.name)
    row["status"], row["result"], row["t"] = record.result.status, record.result.text, record.at
    if record.error is not None:
        row["error"] = f"{record.error.type}: {record.error.message}"
    score.mark = record.at


@_reads(r.Delegated)
def _(score: Score, record: r.Delegated) -> None:
    score.children.append(record.session)
    row = score.calls.get(record.call)
    task = {"child": record.session, "agent": record.agent, "task": record.task, "background": record.background}
    if row is not None:
        score.touch(row).update(task)
    else:
        row = score.add("delegate", record, by=record.by, **task)
    score.by_child[record.session] = row


@_reads(r.Charged)
def _(score: Score, record: r.Charged) -> None:
    row = score.calls.get(record.call) or score.by_child.get(record.session)
    if row is not None:
        score.touch(row)["charged"] = _usage(record.usage)


# ---------------------------------------------------------------- steps and errors


@_reads(r.StepEnded)
def _(score: Score, record: r.StepEnded) -> None:
    score.mark = record.at


@_reads(r.Evaluated)
def _(score: Score, record: r.Evaluated) -> None:
    if score.turn is not None:
        vote = "None" if record.vote is None else record.vote.name
        score.turn.vote = {"v": vote, "by": [list(reason) for reason in record.reasons], "step": record.step}


@_reads(r.StopVetoed)
def _(score: Score, record: r.StopVetoed) -> None:
    score.add("veto", record, by=", ".join(record.by), reason=record.reason, text=record.feedback)


@_reads(r.Rewound)
def _(score: Score, record: r.Rewound) -> None:
    text = f"back to before step {record.to}; {record.length} messages remain"
    score.add("rewind", record, by=", ".join(record.by), text=text)


@_reads(r.Compacted)
def _(score: Score, record: r.Compacted) -> None:
    score.mark = record.at
    names = ("by", "reason", "before", "after")
    score.add("compact", record, range=list(record.range), **{name: getattr(record, name) for name in names})


@_reads(r.ErrorHandled)
def _(score: Score, record: r.ErrorHandled) -> None:
    score.mark = record.at
    score.add(
        "error", record, by=record.by, error=record.error.type, text=record.error.message, action=record.action,
        category=record.category,
    )  # fmt: skip


# ---------------------------------------------------------------- people


@_reads(r.Asked)
def _(score: Score, record: r.Asked) -> None:
    asked = {
        "id": record.id, "event": record.event, "question": record.question, "by": list(record.by),
        "allow": list(record.allow), "digest": record.digest, "default": record.default,
        "approvers": None if record.approvers is None else list(record.approvers), "expires": record.expires_at,
    }  # fmt: skip
    score.asked[record.id] = asked
    if (row := score.calls.get(record.id)) is not None:
        score.touch(row)["asked"] = asked


@_reads(r.Answered)
def _(score: Score, record: r.Answered) -> None:
    answer: Data = {
        "id": record.id, "by": record.by or ("nobody in time" if record.expired else "a person"),
        "partial": record.partial, "digest": record.digest, "expired": record.expired,
        "at": record.answered_at or record.at, "n": score.number, **decided(record.answer),
    }  # fmt: skip
    if isinstance(record.answer, Reject):
        answer["why"] = record.answer.message
    if score.wait is not None:
        score.touch(score.wait)["answers"].append(answer)
    if (row := score.calls.get(record.id)) is not None:
        score.touch(row).setdefault("answered", []).append(answer)


@_reads(r.Withdrawn)
def _(score: Score, record: r.Withdrawn) -> None:
    score.add("note", record, by="", what="questions withdrawn", text=f"{', '.join(record.ids)}: {record.reason}")


@_reads(r.Suspended)
def _(score: Score, record: r.Suspended) -> None:
    asks = [score.asked.get(asked.id) or {"id": asked.id, "question": asked.question, "by": list(asked.by)}
            for asked in record.waiting_for]  # fmt: skip
    score.wait = score.add("wait", record, t0=record.at, asks=asks, answers=[], open=True)
    if score.turn is not None:
        score.turn.state = "waiting"
        score.turn.detail = outcome_detail(record, by_model=True)


@_reads(r.Resumed)
def _(score: Score, record: r.Resumed) -> None:
    score.mark = record.at
    score.early.clear()
    if score.close_wait(record.at) is None or record.drift:
        score.add("resumed", record, text="; ".join(record.drift), drift=bool(record.drift), t0=_last_time(score))
    if score.turn is not None:
        score.turn.state, score.turn.detail = "running", ""


def _last_time(score: Score) -> float:
    return score.turns[-1].last if score.turns else 0.0


@_reads(r.TakenOver)
def _(score: Score, record: r.TakenOver) -> None:
    score.add("note", record, by=record.owner, what="lost the session", text="another process took it over")


@_reads(r.CancelRequested)
def _(score: Score, record: r.CancelRequested) -> None:
    score.add("cancel", record, text=record.reason)


@_reads(r.Noted)
def _(score: Score, record: r.Noted) -> None:
    text = "" if record.data is None else json_text(record.data)
    score.add("note", record, by=record.by, what=f"noted {record.kind}", text=text)


@_reads(r.SlotSet)
def _(score: Score, record: r.SlotSet) -> None:
    score.add("note", record, by=record.by, what=f"set {record.slot}", text=json_text(record.value))


def _adds_nothing(score: Score, record: r.Record) -> None:
    """For records that other rows already show."""


for _kind in (r.HeldReleased, r.InboxTaken):
    _READERS[_kind] = _adds_nothing


@_reads(r.HooksRan)
def _(score: Score, record: r.HooksRan) -> None:
    """How replies were streamed belongs to the model calls that gave them."""
    if score.turn is not None:
        took = sum([max(0.0, one.seconds) for one in record.hooks])
        score.turn.hooks = min((score.turn.hooks or 0.0) + took, LONGEST)
    for one in record.streams:
        row = score.attempts.get((one.step, one.round, one.attempt))
        if row is not None and one.chunks:
            score.touch(row)["stream"] = plain(one)


# ---------------------------------------------------------------- the end


@_reads(r.Concluded)
def _(score: Score, record: r.Concluded) -> None:
    score.close_wait(record.at)
    if score.turn is not None:
        score.turn.answer = record.text


@_reads(r.TurnEnded)
def _(score: Score, record: r.TurnEnded) -> None:
    score.close_wait(record.at)
    if (turn := score.turn) is None:
        return
    outcome = record.outcome
    turn.state = OUTCOMES[type(outcome)]
    turn.reason = outcome.reason.value if isinstance(outcome, Stopped) else ""
    turn.detail = outcome_detail(outcome, by_model=bool(score.models)) or turn.reason.replace("_", " ")
    turn.answer = turn.answer if record.text is None else record.text
