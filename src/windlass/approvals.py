"""Answers to questions: checks them, and delivers them to the process that owns the session."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from ._text import inert_json, visible, visible_id
from ._threads import run_alone
from .checking import checked_resolution
from .decisions import AnyResolution, Approve, Edit, Reject, Respond
from .errors import SessionError, SessionUnknown, StaleAnswer, ToolError
from .messages import ToolCall
from .protocols import Store
from .records import Answered, Asked, Delegated, Record, parent_of
from .states import fold_in_slices
from .types import Approver

Fits: TypeAlias = Callable[[ToolCall], None]
"""Raises a `ToolError` if a tool of this process does not take the arguments of a call."""

_KINDS: dict[type[Any], str] = {Approve: "approve", Edit: "edit", Reject: "reject", Respond: "respond"}


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

    A question is answered once. `StaleAnswer` refuses a second answer, an answer to a question that is not open, and an
    answer that is not allowed or comes too late. `mask` removes secrets from the answer. For an `Edit`, `fits` raises
    if the tool does not accept the edited arguments.
    """
    records = await store.read(session)
    if not records:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    waiting = {asked.id: asked for asked in (await fold_in_slices(session, records)).state.waiting}
    asked = waiting.get(ask_id)
    if asked is None:
        still_open = [other.id for other in await _unanswered(store, session, records)]
        raise stale_answer(session, ask_id, "no such question is open; " + _open(still_open))
    now = time.time() if now is None else now
    answer = check_answer(session, asked, answer, now, fits)
    entry = {"id": ask_id, "digest": asked.digest, "answer": msgspec.to_builtins(answer), "at": now}
    data: dict[str, Any] | None = entry if mask is None else mask(entry)
    if data is not None and data != entry:
        data["masked"] = True
    (owner, key), *above = await _holders(store, session, records, asked)
    first = await store.put(owner, key, "answer", data)
    if not first:
        data = next((held for name, _, held in await store.take(owner, ()) if name == key), None)
    for name, key in above if data is not None else ():
        await store.put(name, key, "answer", data)
    if not first:
        raise stale_answer(session, ask_id, "it has been answered already")


async def open_questions(store: Store, session: str | None = None) -> list[tuple[str, Asked]]:
    """The unanswered questions of a session, or of all, as their logs have them.

    A question whose answer waits in the inbox is left out. A question of a sub-agent is listed for its own session and
    for the sessions above it.
    """
    questions: list[tuple[str, Asked]] = []
    names = [session] if session is not None else [name for name, _ in await store.approvals()]
    for name in dict.fromkeys(names):
        records = await store.read(name)
        questions += [(name, asked) for asked in await _unanswered(store, name, records)]
    return questions


async def _unanswered(store: Store, session: str, records: Sequence[Record]) -> list[Asked]:
    waiting = (await fold_in_slices(session, records)).state.waiting if records else ()
    return [asked for asked in waiting if not await _is_answered(store, session, records, asked)]


async def _is_answered(store: Store, session: str, records: Sequence[Record], asked: Asked) -> bool:
    """Whether an answer waits in an inbox: of this session, of the sub-agent that asks, or of a session between."""
    for holder, _ in await _holders(store, session, records, asked):
        for _, kind, data in await store.take(holder, ()):
            answer = data if kind == "answer" and isinstance(data, dict) else {}
            if (answer.get("id"), answer.get("digest")) == (asked.id, asked.digest):
                return True
    return False


async def _holders(store: Store, session: str, records: Sequence[Record], asked: Asked) -> list[tuple[str, str]]:
    """The sessions in which a question is open, each with its key there: first the agent that asks, then its parents.

    The first one decides: whichever session the question was found in, it is answered there, once.
    """
    holders = [(session, _key(records, asked))]
    above = parent_of(records)
    child: str | None = session
    while child is not None:
        children = [record.session for record in records if isinstance(record, Delegated)]
        child = None
        for name in children:
            records = await store.read(name)
            if await _asks(name, records, asked):
                child = name
                holders.insert(0, (name, _key(records, asked)))
                break
    while above:
        records = await store.read(above)
        if not _started(session, records) or not await _asks(above, records, asked):
            break
        holders.append((above, _key(records, asked)))
        session, above = above, parent_of(records)
    return holders


def _started(session: str, records: Sequence[Record]) -> bool:
    """Whether a log says that its agent started this session. An old fork of a child names the original's parent."""
    return any(isinstance(record, Delegated) and record.session == session for record in records)


async def _asks(session: str, records: Sequence[Record], asked: Asked) -> bool:
    waiting = (await fold_in_slices(session, records)).state.waiting
    return any(other.id == asked.id and other.digest == asked.digest for other in waiting)


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


def _key(records: Sequence[Record], asked: Asked) -> str:
    """The inbox key of an answer; it differs each time the question is asked."""
    times = sum(isinstance(record, Asked) and record.id == asked.id for record in records)
    return f"answer/{asked.id}/{times}"


def answer_of(data: dict[str, Any]) -> tuple[str, str, AnyResolution, float]:
    """The id, digest, answer and time of an inbox entry. An entry without a time counts as too late."""
    at = data.get("at")
    answered_at = float(at) if isinstance(at, int | float) and not math.isnan(at) else math.inf
    return data["id"], data["digest"], msgspec.convert(data["answer"], AnyResolution), answered_at


def check_answer(
    session: str, asked: Asked, answer: AnyResolution, now: float, fits: Fits | None = None
) -> AnyResolution:
    """The answer as a log returns it. Raises `StaleAnswer` unless this person may give this answer now."""
    kind = _KINDS.get(type(answer))
    if kind is None or kind not in asked.allow:
        name = kind or type(answer).__name__
        raise stale_answer(session, asked.id, f"it cannot be answered with {name!r}; allowed: {_list(asked.allow)}")
    if expired(asked, now):
        raise stale_answer(session, asked.id, "it has expired")
    try:
        answer = checked_resolution(answer)
    except TypeError as error:
        raise stale_answer(session, asked.id, f"the answer is invalid: {error}") from None
    if asked.approvers is not None and answer.by not in asked.approvers:
        text = f"{answer.by!r} may not answer it; approvers: {_list(asked.approvers)}"
        raise stale_answer(session, asked.id, text)
    if isinstance(answer, Edit) and asked.call is not None and fits is not None:
        try:
            fits(asked.call.replace(arguments=answer.arguments))
        except ToolError as error:
            raise stale_answer(session, asked.id, f"the edited arguments do not fit: {error}") from error
    return answer


def expired(asked: Asked, now: float) -> bool:
    """Whether a question has expired, so that its default is the answer."""
    return asked.expires_at is not None and now >= asked.expires_at


def checked_answers(
    session: str, waiting: Sequence[Asked], answers: dict[str, AnyResolution], now: float, fits: Fits | None = None
) -> list[Answered]:
    """Answers as records, each matched to an open question, and the defaults of expired questions."""
    questions = {asked.id: asked for asked in waiting}
    records: list[Answered] = []
    for ask_id, answer in answers.items():
        asked = questions.get(ask_id)
        if asked is None:
            raise stale_answer(session, ask_id, "no such question is open; " + _open(questions))
        answer = check_answer(session, asked, answer, now, fits)
        records.append(Answered(ask_id, answer, asked.digest, answer.by or "", asked.by, at=now))
    for asked in waiting:
        if expired(asked, now) and asked.id not in answers:
            default: AnyResolution = Approve() if asked.default == "approve" else Reject("The question expired.")
            records.append(Answered(asked.id, default, asked.digest, "default", asked.by, expired=True, at=now))
    return records


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


async def ask_approver(
    session: str, approver: Approver, asked: Asked, now: Callable[[], float], fits: Fits | None = None
) -> AnyResolution | None:
    """The answer of an approver in this process, or None. Raises the approver's error, or why its answer is refused."""
    try:
        returned = approver(asked)
        answer = await returned if inspect.isawaitable(returned) else returned
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise RuntimeError("the approver was cancelled, but not the turn") from error
    if answer is not None:
        check_answer(session, asked, answer, now(), fits)
    return answer


async def at_the_terminal(asked: Asked) -> AnyResolution | None:
    """An approver that asks the person at this process's terminal. An empty line leaves the question open."""
    call = "" if asked.call is None else f"\n  {call_text(asked.call)}"
    prompt = f"\n{visible(asked.question)}{call}\n{' / '.join(asked.allow)}: "
    word, _, rest = (await run_alone(partial(input, prompt), "windlass-terminal")).strip().partition(" ")
    if not word:
        return None
    kind = next((kind for kind in asked.allow if kind.startswith(word.lower())), None)
    match kind:
        case "approve":
            return Approve(by="terminal")
        case "reject":
            return Reject(rest, by="terminal")
        case "respond":
            return Respond(rest, by="terminal")
        case "edit":
            return Edit(msgspec.json.decode(rest, type=dict[str, Any]), by="terminal")
        case _:
            return await at_the_terminal(asked)
