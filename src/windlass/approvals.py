"""Answers to questions: checks them, and delivers them to the process that owns the session."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from ._text import inert_json, visible, visible_id
from ._threads import run_alone
from .checking import checked_resolution
from .decisions import AnyResolution, Approve, Edit, Reject, Respond
from .errors import SessionError, SessionUnknown, StaleAnswer, ToolError
from .messages import ToolCall
from .protocols import Store
from .records import Answered, Asked, Delegated, Record, parent_of
from .states import Fold, fold_in_slices
from .terms import Need, Standing, answer_to, first_digest, refusal, standing, with_answer
from .turns import Turn
from .types import Approver

Fits: TypeAlias = Callable[[ToolCall], None]
"""Raises a `ToolError` if a tool of this process does not take the arguments of a call."""

_KINDS: dict[type[Any], str] = {Approve: "approve", Edit: "edit", Reject: "reject", Respond: "respond"}


_UNCHECKED = (
    "others have to approve it too, so an edit is first checked against the tool: answer with the agent "
    "(`agent.resolve`, or `windlass approve --agent`)"
)


async def resolve(
    store: Store,
    session: str,
    ask_id: str,
    answer: AnyResolution,
    *,
    now: float | None = None,
    mask: Callable[[Any], Any] | None = None,
    fits: Fits | None = None,
) -> None:
    """Answer a question of a session, from any process. The session's owner reads the answer from its inbox.

    Each person answers a question once. `StaleAnswer` refuses a second answer, an answer to a question that is not
    open, and an answer that is not allowed or comes too late. `mask` removes secrets from the answer. For an `Edit`,
    `fits` raises if the tool does not accept the edited arguments. An `Edit` that others have to approve is refused
    without it: nobody should approve what cannot run. `agent.resolve` gives both.
    """
    now = time.time() if now is None else now
    while True:
        log = await _read_log(store, session)
        if not log.records:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        waiting = {asked.id: asked for asked in log.fold.state.waiting}
        if ask_id not in waiting:
            still_open = [asked.id for asked in await _unanswered(store, log, now)]
            raise stale_answer(session, ask_id, "no such question is open; " + _open(still_open))
        holders = await _holders(store, log, waiting[ask_id])
        if not holders:
            raise stale_answer(session, ask_id, "it has been answered already, or the agent that asked it has ended")
        asked = _current(holders, now)
        if asked is None:
            raise stale_answer(session, ask_id, "it has been answered already")
        answered = check_answer(session, asked, answer, now, fits)
        if answered.partial and isinstance(answer, Edit) and asked.call is not None and fits is None:
            raise stale_answer(session, ask_id, _UNCHECKED)
        data = _entry(answered, now, mask)
        if await store.put(holders[0].session, holders[0].key(holders[0].place), "answer", data):
            for above in holders[1:]:
                await store.put(above.session, above.key(holders[0].place), "answer", data)
            return
        # somebody has answered since the log was read: look again at what is still needed


async def claim(
    store: Store,
    session: str,
    answered: Answered,
    *,
    now: float,
    mask: Callable[[Any], Any] | None = None,
    fits: Fits | None = None,
    due: bool = False,
) -> tuple[str, str] | None:
    """Take the place of an answer with which a session is resumed, before the answer is used.

    It is the place that `resolve` would take, so that of two answers at the same time one is refused. An answer that is
    `due` comes from `due_answer`. Returns the session and the key of the inbox entry; the key is empty if nobody else
    could answer. None says that others have answered since the inbox was read, and that the question is still open, or
    that the answer was due. `StaleAnswer` says that it is not open.
    """
    log = await _read_log(store, session)
    asked = next((asked for asked in log.fold.state.waiting if asked.id == answered.id), None)
    holders = [] if asked is None else await _holders(store, log, asked)
    if not holders:
        return session, ""
    current = _with_unread(holders, now, fits) if due else _current(holders, now, fits)
    if current is None and not due:
        raise stale_answer(session, answered.id, "it has been answered already")
    if current is None or current.digest != answered.digest:
        return None
    if not due and check_answer(session, current, answered.answer, now).partial != answered.partial:
        return None
    key = holders[0].key(holders[0].place)
    entry = _entry(answered, now, mask)
    made = await store.put(holders[0].session, key, "answer", {**entry, "due": True} if due else entry)
    return (holders[0].session, key) if made else None


def _entry(answered: Answered, now: float, mask: Callable[[Any], Any] | None) -> dict[str, Any]:
    """An answer as an inbox entry."""
    answer = msgspec.to_builtins(answered.answer)
    entry = {"id": answered.id, "digest": answered.digest, "answer": answer, "at": now}
    data: dict[str, Any] = entry if mask is None else mask(entry)
    return data if data == entry else {**data, "masked": True}


async def open_questions(
    store: Store, session: str | None = None, *, now: float | None = None
) -> list[tuple[str, Asked]]:
    """The questions of a session, or of all, that need more answers; the highest priority first.

    Answers that wait in an inbox count. A question of a sub-agent is listed for its own session and for the sessions
    above it. See `progress` for how far a question is answered.
    """
    questions: list[tuple[str, Asked]] = []
    names = [session] if session is not None else [name for name, _ in await store.approvals()]
    now = time.time() if now is None else now
    for name in dict.fromkeys(names):
        log = await _read_log(store, name)
        questions += [(name, asked) for asked in await _unanswered(store, log, now)]
    return sorted(questions, key=lambda question: -question[1].priority)


def progress(asked: Asked, now: float | None = None) -> Standing:
    """How far a question is answered: who has approved, and who is still needed. Its text is "1 of 2 (ann), needs bob".

    A question from `open_questions`, `session.approvals()` or a state has the answers that were given so far.
    """
    return standing(asked, time.time() if now is None else now)


class _Log(Struct):
    """The log of a session, folded."""

    session: str
    records: Sequence[Record]
    fold: Fold

    def question(self, asked: Asked) -> Asked | None:
        """The same question as it is open in this log."""
        waiting = self.fold.turn.waiting if self.fold.turn is not None else ()
        return next((other for other in waiting if _same(other, asked)), None)

    def times(self, asked: Asked) -> int:
        """How often a question was asked, answered or not."""
        return sum(isinstance(record, Asked) and record.id == asked.id for record in self.records)


class _Holder(Struct):
    """A session in which a question is open, the unread answers in its inbox, and the next place for one.

    The places of the answers to a question are numbered from 0 without a gap, so that two processes cannot take the
    same one. An answer that was moved from the inbox into the log between reading the log and the inbox is missing
    here. Then `place` is too low and not free: whoever wants it has to read both again.
    """

    log: _Log
    asked: Asked
    unread: list[dict[str, Any]]
    place: int

    @property
    def session(self) -> str:
        return self.log.session

    def key(self, place: int) -> str:
        """The inbox key of an answer."""
        return _key(self.log, self.asked) + (f"/{place}" if place else "")


async def _read_log(store: Store, session: str) -> _Log:
    records = await store.read(session)
    return _Log(session, records, await fold_in_slices(session, records))


def _same(one: Asked, other: Asked) -> bool:
    """Whether a question in one log is the question in another, whatever people have answered since."""
    return one.id == other.id and first_digest(one) == first_digest(other)


async def _unanswered(store: Store, log: _Log, now: float) -> list[Asked]:
    found: list[Asked] = []
    for asked in log.fold.state.waiting if log.records else ():
        holders = await _holders(store, log, asked)
        if holders and (current := _current(holders, now)) is not None:
            found.append(current)
    return found


def _current(holders: Sequence[_Holder], now: float, fits: Fits | None = None) -> Asked | None:
    """A question with the answers that logs and inboxes have, of all sessions that hold it; None if it is settled, by
    an answer or by time."""
    current = _with_unread(holders, now, fits)
    if current is None:
        return None
    found = standing(current, now)
    return current if found.status == "open" or found.expired else None


def _with_unread(holders: Sequence[_Holder], now: float, fits: Fits | None = None) -> Asked | None:
    """A question with the answers that logs and inboxes have; None if one of them has settled it."""
    current: Asked | None = max(
        [holder.asked for holder in holders], key=lambda one: (one.proposed is not None, len(one.answers))
    )
    for data in [data for holder in holders for data in holder.unread]:
        if current is None:
            break
        try:
            answered = matching_answer(holders[0].session, current, data, now, fits)
        except StaleAnswer:
            continue
        if answered is not None:
            current = with_answer(current, answered) if answered.partial else None
    return current


async def _holders(store: Store, log: _Log, asked: Asked) -> list[_Holder]:
    """The sessions in which a question is open: first the agent that asks, then its parents.

    The first one decides: whichever session the question was found in, it is answered there. There is none if the agent
    that asks does not wait any more, or if a session above has an answer that it has not passed on yet.
    """
    asking, parents = await _asking(store, log, asked)
    if asking is None or asking.question(asked) is None:
        return []
    logs = [asking]
    for above in parents:
        if above.question(asked) is not None:
            logs.append(above)
        elif above.times(asked) >= logs[-1].times(asked):
            return []
        else:  # it was asked again, and the sessions above have not heard of that
            break
    return [await _holder(store, one, asked) for one in logs]


async def _asking(store: Store, log: _Log, asked: Asked) -> tuple[_Log | None, list[_Log]]:
    """The agent that asks a question which some session in its tree has, and the sessions above that agent.

    The agent is None if its log is not in the store.
    """
    above: list[_Log] = []
    below_it, parent = log, parent_of(log.records)
    while parent:
        found = await _read_log(store, parent)
        if not _started(below_it.session, found.records):
            break
        above.append(found)
        below_it, parent = found, parent_of(found.records)
    while True:
        names = [record.session for record in log.records if isinstance(record, Delegated)]
        below = [found for name in names if (found := await _read_log(store, name)).times(asked)]
        if not below:
            lost = asked.id.count("//") > log.session.count("//")  # it is a question of a sub-agent
            return (None if lost else log), above
        above.insert(0, log)
        log = below[0]


async def _holder(store: Store, log: _Log, asked: Asked) -> _Holder:
    question = log.question(asked)
    assert question is not None
    first = _key(log, question)
    entries = [entry for entry in await store.inbox(log.session, log.fold.inbox) if entry[1] == "answer"]
    used = [key for key in (*log.fold.inbox, *[key for key, _, _ in entries]) if _is_place(key, first)]
    unread = [data for _, _, data in entries if isinstance(data, dict) and data.get("id") == asked.id]
    return _Holder(log, question, unread, len(used))


def _is_place(key: str, first: str) -> bool:
    """Whether an inbox key is one of the places for answers to a question."""
    return key == first or (key.startswith(f"{first}/") and key[len(first) + 1 :].isdecimal())


def _started(session: str, records: Sequence[Record]) -> bool:
    """Whether a log says that its agent started this session. An old fork of a child names the original's parent."""
    return any(isinstance(record, Delegated) and record.session == session for record in records)


async def top_session(store: Store, session: str, asking: Container[str]) -> str:
    """The session to resume for a question: of the sessions above that ask it too, the topmost."""
    above = parent_of(await store.read(session))
    while above in asking:
        records = await store.read(above)
        if not _started(session, records):
            break
        session, above = above, parent_of(records)
    return session


def child_session_error(session: str, parent: str) -> SessionError:
    """The error for running, resuming or forking a sub-agent's session by itself, outside its parent's guards."""
    return SessionError(
        f"session {session!r} belongs to a sub-agent, which runs only inside the call of session {parent!r} that "
        f"started it: resume {parent!r}, or fork that session",
        session=session,
    )


def _key(log: _Log, asked: Asked) -> str:
    """The inbox key of the first answer; it differs each time the question is asked."""
    return f"answer/{asked.id}/{log.times(asked)}"


def answer_of(data: dict[str, Any]) -> tuple[str, str, AnyResolution, float]:
    """The id, digest, answer and time of an inbox entry. An entry without a time counts as too late."""
    at = data.get("at")
    answered_at = float(at) if isinstance(at, int | float) and not math.isnan(at) else math.inf
    return data["id"], data["digest"], msgspec.convert(data["answer"], AnyResolution), answered_at


def matching_answer(session: str, asked: Asked, data: Any, now: float, fits: Fits | None = None) -> Answered | None:
    """An answer from an inbox as a record; None if it is not an answer to this question, as it stands.

    It counts if it was given before the question expired, by the giver's clock, or is read before that, by ours. So
    does the answer that was due when a turn was resumed. An `Edit` that others have to approve must fit. `StaleAnswer`
    says why it does not count.
    """
    try:
        ask_id, digest, answer, at = answer_of(data)
    except (AttributeError, KeyError, TypeError, msgspec.ValidationError):  # the entry is not an answer
        return None
    if (ask_id, digest) != (asked.id, asked.digest):
        return None
    if data.get("due") is True:
        return due_answer(asked, at)
    answered = check_answer(session, asked, answer, min(at, now), masked=data.get("masked") is True)
    if answered.partial and isinstance(answer, Edit):
        _check_edit(session, asked, answer, fits)
    return answered


def check_answer(
    session: str, asked: Asked, answer: AnyResolution, now: float, fits: Fits | None = None, *, masked: bool = False
) -> Answered:
    """The answer as a record. Raises `StaleAnswer` unless this person may give this answer now."""
    kind = _KINDS.get(type(answer))
    if kind is None or kind not in asked.allow:
        name = kind or type(answer).__name__
        raise stale_answer(session, asked.id, f"it cannot be answered with {name!r}; allowed: {_list(asked.allow)}")
    try:
        answer = checked_resolution(answer)
    except TypeError as error:
        raise stale_answer(session, asked.id, f"the answer is invalid: {error}") from None
    if why := refusal(asked, answer.by or "", now):
        raise stale_answer(session, asked.id, why)
    if answer.digest not in (None, asked.digest):
        raise stale_answer(session, asked.id, "it is not about what was reviewed: the call was edited since")
    if isinstance(answer, Edit):
        _check_edit(session, asked, answer, fits)
    return answer_to(asked, msgspec.structs.replace(answer, digest=None), now, masked=masked)


def _check_edit(session: str, asked: Asked, edit: Edit, fits: Fits | None) -> None:
    if asked.call is not None and fits is not None:
        try:
            fits(asked.call.replace(arguments=edit.arguments))
        except ToolError as error:
            raise stale_answer(session, asked.id, f"the edited arguments do not fit: {error}") from error


def expired(asked: Asked, now: float) -> bool:
    """Whether the time for answers to a question has run out, so that its default is the answer."""
    return standing(asked, now).expired


def checked_answers(
    session: str,
    waiting: Sequence[Asked],
    answers: Mapping[str, AnyResolution | Sequence[AnyResolution]],
    now: float,
    fits: Fits | None = None,
    mask: Callable[[Answered], Answered] | None = None,
) -> list[Answered]:
    """Answers as records, each matched to an open question, and the defaults of expired questions.

    `mask` removes secrets, as the log does: a digest is that of what the log has.
    """
    questions = {asked.id: asked for asked in waiting}
    records: list[Answered] = []
    for ask_id, given in answers.items():
        if ask_id not in questions:
            raise stale_answer(session, ask_id, "no such question is open; " + _open(questions))
        for answer in answers_in(given):
            if ask_id not in questions:
                raise stale_answer(session, ask_id, "it has been answered already")
            answered = check_answer(session, questions[ask_id], answer, now, fits)
            records.append(answered)
            if answered.partial:
                questions[ask_id] = with_answer(questions[ask_id], answered if mask is None else mask(answered))
            else:
                del questions[ask_id]
    late = [due_answer(asked, now) for asked in questions.values()]
    return [*records, *[answered for answered in late if answered is not None]]


def answers_in(given: object) -> Sequence[Any]:
    """What was given for one question: the answers of several people, or the answer of one."""
    return given if isinstance(given, list | tuple) else (given,)


def due_answer(asked: Asked, now: float) -> Answered | None:
    """The answer that time gives to a question: its default if it has expired, or an approval that counts by now.

    None if it is still open.
    """
    found = standing(asked, now)
    if found.status == "open":
        return None
    if not found.expired:
        return asked.answers[-1].replace(partial=False, at=now)
    default: AnyResolution = Approve() if found.status == "approved" else Reject("The question expired.")
    return Answered(asked.id, default, asked.digest, "default", asked.by, expired=True, at=now)


def stale_answer(session: str, ask_id: str, why: str) -> StaleAnswer:
    """The error for an answer that is not accepted."""
    return StaleAnswer(f"question {ask_id!r} of session {session!r}: {why}", session=session, ask_id=ask_id)


def _open(waiting: Iterable[str]) -> str:
    ids = _list(waiting)
    return f"open: {ids}" if ids else "no question is open"


def _list(names: Iterable[str]) -> str:
    return ", ".join([visible_id(name) for name in names])


def call_text(call: ToolCall) -> str:
    """A call for a person to review: the whole call on one line, with unusual characters escaped."""
    return f"{visible(call.name)} {visible(inert_json(call.json))}"


def subject_lines(asked: Asked) -> list[str]:
    """What a question is about, for a person to review: whole, with unusual characters escaped."""
    lines = [] if asked.call is None else [call_text(asked.call)]
    if asked.reply is not None:
        lines += [visible(asked.reply.text)] if asked.reply.text else []
        lines += [f"calls {call_text(ToolCall(call.id, call.name, call.json))}" for call in asked.reply.tool_calls]
    if asked.request is not None:
        last = asked.request.messages[-1].text if asked.request.messages else ""
        many = f"{len(asked.request.messages)} messages"
        lines.append(f"request to {visible(asked.request.model)} with {many}, the last: {visible(last)}")
    return lines if asked.text is None else [*lines, visible(asked.text)]


async def ask_approver(
    session: str,
    approver: Approver,
    asked: Asked,
    turn: Turn[Any],
    now: Callable[[], float],
    fits: Fits | None = None,
) -> Answered | None:
    """The answer of an approver in this process, or None. Raises the approver's error, or why its answer is refused.

    An approver may take the question alone, or the question and the turn.
    """
    try:
        function: Callable[..., Any] = approver
        returned = function(asked, turn) if takes_turn(approver) else function(asked)
        answer = await returned if inspect.isawaitable(returned) else returned
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise RuntimeError("the approver was cancelled, but not the turn") from error
    return None if answer is None else check_answer(session, asked, answer, now(), fits)


def takes_turn(approver: Approver) -> bool:
    """Whether an approver takes the turn beside the question."""
    try:
        parameters = inspect.signature(approver).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].name == "turn" or positional[1].default is inspect.Parameter.empty)


async def at_the_terminal(asked: Asked) -> AnyResolution | None:
    """An approver that asks the person at this process's terminal. An empty line leaves the question open, and so does
    the end of the input."""
    return await _ask_at_terminal(asked, "terminal")


def terminal_approver(by: str) -> Approver:
    """An approver like `at_the_terminal` that answers in the name of a person: for questions that name approvers. It
    leaves questions open that this person may not answer."""

    async def at_terminal(asked: Asked) -> AnyResolution | None:
        return None if asked.approvers is not None and by not in asked.approvers else await _ask_at_terminal(asked, by)

    return at_terminal


async def _ask_at_terminal(asked: Asked, by: str) -> AnyResolution | None:
    words = [*asked.allow, *(["always RULE"] if "approve" in asked.allow else [])]
    lines = [visible(asked.question), *[f"  {line}" for line in subject_lines(asked)]]
    if asked.terms:
        lines += [f"  {visible_id(need.gate)}: {need}" for need in progress(asked).needs]
    problem = ""
    while True:
        prompt = "\n" + "\n".join([*lines, *([problem] if problem else []), f"{' / '.join(words)}: "])
        try:
            word, _, rest = (await run_alone(partial(input, prompt), "windlass-terminal")).strip().partition(" ")
        except EOFError:
            return None
        if not word:
            return None
        try:
            answer = _typed_answer(asked, word.lower(), rest.strip(), by)
        except (msgspec.MsgspecError, ValueError) as error:
            answer, problem = None, visible(str(error))
        if answer is not None:
            return answer


def _typed_answer(asked: Asked, word: str, rest: str, by: str) -> AnyResolution | None:
    """The answer that a person typed; None if it is not one of those that the question allows."""
    if word == "always" and "approve" in asked.allow:
        return Approve(by=by, remember=rest)
    match next((kind for kind in asked.allow if kind.startswith(word)), None):
        case "approve":
            return Approve(by=by)
        case "reject":
            return Reject(rest, by=by)
        case "respond":
            return Respond(rest, by=by)
        case "edit":
            return Edit(msgspec.json.decode(rest, type=dict[str, Any]), by=by)
        case _:
            return None


__all__ = ["Need", "Standing", "at_the_terminal", "open_questions", "progress", "resolve", "terminal_approver"]
