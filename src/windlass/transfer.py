"""Moving sessions: as JSON lines from store to store, or as a fork within one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from .approvals import child_refused
from .errors import SessionConflict, SessionError, SessionUnknown, StoreError
from .messages import Message
from .protocols import Store
from .records import (
    Answered,
    Asked,
    CancelRequested,
    Charged,
    Concluded,
    Delegated,
    HeldReleased,
    HookDecided,
    InboxTaken,
    Injected,
    MessageAdded,
    MessageHeld,
    ModelReplied,
    Record,
    ReplyRejected,
    Resumed,
    Rewritten,
    SessionEnded,
    SessionOpened,
    SlotSet,
    StepEnded,
    StopVetoed,
    Suspended,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    UndoCalled,
    decode,
)
from .states import Fold
from .stores.batches import START, link_of

FORMAT = 1


async def export_session(store: Store, session: str) -> list[str]:
    """A session as JSON lines: a header, then the records, and after each batch its link in the hash chain."""
    batches = await store.batches(session)
    if not batches:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    lines = [_line({"windlass": FORMAT, "session": session, "records": batches[-1].seq + batches[-1].count})]
    for batch in batches:
        lines += batch.lines.decode("utf-8", "surrogatepass").split("\n")
        pruned = {"pruned": True} if batch.pruned else {}
        lines.append(_line({"link": batch.link.hex(), "count": batch.count, **pruned}))
    return lines


async def import_session(store: Store, lines: Iterable[str], session: str | None = None) -> str:
    """Put an exported session into a store, under its own id or another. Nothing is written if the lines do not add up.

    Under its own id the chain comes out the same, unless it was pruned. Under another id its turns and steps are named
    anew, as in a fork; the sessions of its sub-agents stay where they are, so none may be at work.
    """
    exported, batches = _parsed(lines)
    name = session or exported
    if await store.read(name):
        raise SessionConflict(f"session {name!r} is there already; import it under another id", session=name)
    if name != exported:
        whole = [record for batch in batches for record in batch]
        _refuse_at_work(whole, exported)
        copy = _Copy(exported, name, whole)
        batches = [[copy.renamed(record) for record in batch] for batch in batches]
    seq = 0
    for batch in batches:
        await store.append(name, batch, seq)
        seq += len(batch)
    return name


def _parsed(lines: Iterable[str]) -> tuple[str, list[list[Record]]]:
    given = [line for line in (line.rstrip("\r\n") for line in lines) if line]
    header: dict[str, Any] = _plain(given[0], 1) if given else {}
    if header.get("windlass") != FORMAT or not isinstance(header.get("session"), str):
        raise StoreError(f"this is no session exported by Windlass in format {FORMAT}: {(given or [''])[0][:80]!r}")
    batches: list[list[Record]] = []
    held: list[bytes] = []
    previous, count = START.hex(), 0
    for number, line in enumerate(given[1:], 2):
        plain = _plain(line, number)
        if "kind" in plain:
            held.append(line.encode("utf-8", "surrogatepass"))
            continue
        made = link_of(bytes.fromhex(previous), b"\n".join(held)).hex()
        previous = made if not plain.get("pruned") else _link(plain, number)
        if len(held) != plain.get("count") or previous != plain.get("link"):
            raise StoreError(f"line {number}: the records before it are not those that were exported")
        batches.append([decode(record) for record in held])
        count += len(held)
        held = []
    if held or count != header.get("records"):
        raise StoreError(f"the export is cut short: {count} of {header.get('records')} records are whole")
    return header["session"], batches


def _link(plain: dict[str, Any], number: int) -> str:
    """The link of a batch that was pruned: nothing is left to make it from."""
    try:
        return bytes.fromhex(plain["link"]).hex()
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"line {number} is no link of a hash chain") from error


def _plain(line: str, number: int) -> dict[str, Any]:
    """The object on a line. Lone surrogates are in it as the store wrote them."""
    try:
        plain = json.loads(line)
    except ValueError as error:
        raise StoreError(f"line {number} is no JSON object: {error}") from error
    if not isinstance(plain, dict):
        raise StoreError(f"line {number} is no JSON object but {line[:80]!r}")
    return plain


def _line(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


# ---------------------------------------------------------------- forks


async def fork_session(store: Store, session: str, to: str, at: int | None, now: float) -> None:
    """A new session with the first `at` records of another one, or all; and one for each sub-agent at work there.

    Who answered for one future did not answer for another: answers to what is still undone there are left out. Turns
    and steps get the ids of the new session; calls keep those they were proposed with, and so a call in doubt keeps its
    key. Those below are stored first: a fork that is there is there as a whole.
    """
    records = await store.read(session)
    if not records:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    opened = [record for record in records if isinstance(record, SessionOpened) and record.parent]
    if opened:
        raise child_refused(session, opened[0].parent)
    at = len(records) if at is None else at
    if not 0 < at <= len(records):
        raise SessionError(
            f"session {session!r} has records 1 to {len(records)}; it cannot be forked at {at}", session=session
        )
    copies = (await _copied(store, session, to, records, at)).with_those_below()
    await _refuse_taken(store, [copy.to for copy in copies])
    for copy in reversed(copies):
        if copy.records:
            await store.append(copy.to, copy.log(now), 0)


class _Copy:
    """A session that is copied to another id: what is kept of its records, and the sub-agents that are at work there.

    `at` is how many of its records it is made of, `asked` are the ids of all that was ever asked in it.
    """

    def __init__(self, session: str, to: str, records: list[Record], at: int = 0, asked: Iterable[str] = ()) -> None:
        self.session = session
        self.to = to
        self.records = records
        self.at = at
        self.asked = set(asked)
        self.below: list[_Copy] = []
        self.calls = {
            part.id for record in records if isinstance(record, ModelReplied) for part in record.reply.tool_calls
        }

    def with_those_below(self) -> list[_Copy]:
        """This one, then all below it."""
        return [self, *[copy for child in self.below for copy in child.with_those_below()]]

    @cached_property
    def _levels(self) -> list[_Copy]:
        """The same, the deepest first."""
        return sorted(self.with_those_below(), key=lambda copy: -len(copy.session))

    def log(self, now: float) -> list[Record]:
        """The log of the copy. What hooks decided about the session may stand before the record that it was opened."""
        log = [self.renamed(record) for record in self.records]
        opened = next((index for index, record in enumerate(log) if isinstance(record, SessionOpened)), None)
        if opened is not None:
            log[opened] = log[opened].replace(how="forked", origin=f"{self.session}@{self.at}", forked_at=now)
        return log

    def renamed(self, record: Record) -> Record:
        """A record in which the ids of turns, steps and sub-agents at work are those of the new session."""
        if isinstance(record, Delegated | Charged):
            names = {copy.session: copy.to for copy in self.below}
            return record.replace(session=names.get(record.session, record.session))
        if isinstance(record, Suspended):
            return record.replace(waiting_for=tuple([self.renamed(asked) for asked in record.waiting_for]))
        field = _IDS.get(type(record))
        if field is None:
            return record
        levels = self._levels if isinstance(record, Asked | Answered) else [self]
        return record.replace(**{field: _new_id(getattr(record, field), levels)})


_IDS: dict[type[Record], str] = {
    Injected: "about",
    HookDecided: "about",
    Rewritten: "about",
    Asked: "id",
    Answered: "id",
    TurnStarted: "ref",
}


def _new_id(name: str, levels: Sequence[_Copy]) -> str:
    """The id of a turn, step, request or reply in the copy of its session. Calls keep theirs."""
    for copy in levels:
        if name == copy.session or name.startswith(f"{copy.session}/"):
            return name if _call_of(name, copy.calls) else copy.to + name.removeprefix(copy.session)
    return name


async def _refuse_taken(store: Store, names: Sequence[str]) -> None:
    """Raise unless a fork and those below it can have these ids."""
    for name in names:
        if await store.read(name):
            raise SessionConflict(f"session {name!r} is there already; fork to another id", session=name)
    if len(names) > 1:  # else the store refuses before anything is written
        erased = {info.session for info in await store.find(search=names[0], status="erased")}
        for name in [name for name in names if name in erased]:
            raise SessionConflict(f"session {name!r} was erased; fork to another id", session=name)


# ---------------------------------------------------------------- what is kept of a session


async def _copied(store: Store, session: str, to: str, records: Sequence[Record], at: int) -> _Copy:
    """What a fork keeps of a session, and of the sub-agents that are at work where it is cut."""
    kept = _untorn([record for record in records[:at] if not _left_behind(record)])
    below: list[_Copy] = []
    for started in _at_work(kept):
        log = await store.read(started.session)
        if not log and any(isinstance(record, Charged) and record.session == started.session for record in records):
            raise SessionUnknown(
                f"session {session!r} cannot be forked at {at}: sub-agent {started.agent!r} is at work there, and its "
                f"session {started.session!r} is no longer in the store",
                session=started.session,
            )
        name = to + "/" + "/".join(started.session.rsplit("/", 2)[1:])
        below.append(await _copied(store, started.session, name, log, _by_itself(log, kept, started)))
    kept = _agreeing(kept, below)
    asked = [record.id for record in records if isinstance(record, Asked)]
    copy = _Copy(session, to, kept, at, asked)
    undone = _undone(kept, copy.calls, {name for child in below for name in child.asked})
    copy.records = [record for index, record in enumerate(kept) if index not in undone]
    copy.below = below
    return copy


def _left_behind(record: Record) -> bool:
    """A fork is open and has an inbox of its own, in which answers have the same keys."""
    return isinstance(record, SessionEnded) or (isinstance(record, InboxTaken) and record.entry == "answer")


def _untorn(records: list[Record]) -> list[Record]:
    """The records without what counts at their end only together with what came next, and is made again without it.

    That is a reply that was cut short, a veto without its feedback, what a call wrote that has no result, and messages
    that were held back and have not all been let in.
    """
    held: list[MessageHeld] = []
    calls: dict[str, str] = {}
    for record in records:
        if isinstance(record, MessageHeld):
            held.append(record)
        elif isinstance(record, HeldReleased):
            del held[: record.count]
        elif isinstance(record, TurnStarted):
            held.clear()
        elif isinstance(record, ToolCalled):
            calls[record.call] = f"{record.name} ({record.call})"
        elif isinstance(record, ToolReturned):
            calls.pop(record.call, None)
    let_in = [(item.message, item.by) for item in held]
    while records and _torn(records[-1], calls.values(), let_in):
        records.pop()
    return records


def _torn(last: Record, writers: Container[str], let_in: Sequence[tuple[Message, str]]) -> bool:
    """Whether the last record is one of those. `writers` are calls without a result, as what they wrote has them."""
    match last:
        case HookDecided(event="MessageAdding"):
            return bool(let_in)
        case ModelReplied():
            return last.reply.message.partial
        case MessageAdded(message=Message() as message):
            return (message, last.by) in let_in
        case MessageHeld() | SlotSet():
            return last.by in writers
        case _:
            return isinstance(last, StopVetoed)


def _at_work(records: Sequence[Record]) -> list[Delegated]:
    """The sub-agents that were started for calls that have no result yet."""
    found: list[Delegated] = []
    for record in records:
        if isinstance(record, Delegated):
            found.append(record)
        elif isinstance(record, ToolReturned):
            found = [started for started in found if started.call != record.call]
    return found


def _by_itself(records: Sequence[Record], above: Sequence[Record], started: Delegated) -> int:
    """How many records a sub-agent has written without an answer or a cancel that is not in the log above it.

    What that log was charged for had happened by then, whoever answered.
    """
    answers = Counter([record.id for record in above if isinstance(record, Answered)])
    charges = [record for record in above if isinstance(record, Charged) and record.session == started.session]
    charged = sum([record.usage.requests for record in charges])
    fold = Fold(started.session)
    for number, record in enumerate(records):
        spent = fold.turn.usage.requests if fold.turn is not None else 0
        if isinstance(record, CancelRequested):
            return number
        if isinstance(record, Answered):
            answers[record.id] -= 1
            if answers[record.id] < 0 and spent >= charged:
                while isinstance(records[number - 1], Resumed | InboxTaken):
                    number -= 1
                return number
        fold.add(record)
    return len(records)


def _agreeing(records: Sequence[Record], below: Sequence[_Copy]) -> list[Record]:
    """The records with only as many questions of sub-agents at work, and answers to them, as those have themselves."""
    asked = {name for copy in below for name in copy.asked}
    theirs = Counter(
        [(type(record), record.id) for copy in below for record in copy.records if isinstance(record, Asked | Answered)]
    )
    kept: list[Record] = []
    for record in records:
        if isinstance(record, Asked | Answered) and record.id in asked:
            theirs[type(record), record.id] -= 1
            if theirs[type(record), record.id] < 0:
                continue
        kept.append(record)
    return kept


def _undone(records: Sequence[Record], calls: set[str], below: set[str]) -> set[int]:
    """Where the answers of the open turn are by which nothing has happened yet, and what was decided by them.

    What was asked `below` by sub-agents at work is for their own logs to tell.
    """
    undone: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        about = _about(record, calls)
        if isinstance(record, TurnStarted | TurnEnded | StepEnded):
            undone.clear()
        elif isinstance(record, ToolCalled | UndoCalled | ToolReturned):
            undone = {name: found for name, found in undone.items() if name in calls and name != record.call}
        elif isinstance(record, ModelReplied | ReplyRejected | MessageAdded | Concluded):
            undone = {name: found for name, found in undone.items() if name in calls}
        elif isinstance(record, Asked | Answered) and record.id in below:
            continue
        elif isinstance(record, Answered):
            undone.setdefault(about, []).append(index)
        elif about in undone:
            undone[about].append(index)
    return {index for found in undone.values() for index in found}


def _about(record: Record, calls: set[str]) -> str:
    """The id of the call, or else of the turn, request or reply, that a record is about."""
    name: str = getattr(record, _IDS.get(type(record), "call"), "")
    return _call_of(name, calls) or name


def _call_of(name: str, calls: set[str]) -> str:
    """The call that an id belongs to: its own, that of an attempt, a doubt or a sub-agent's question. "" if none."""
    parts = name.split("/")
    for end in range(3, len(parts) + 1):
        *above, last = parts[:end]
        if (call := "/".join([*above, last.split(".")[0]])) in calls:
            return call
    return ""


def _refuse_at_work(records: Sequence[Record], session: str) -> None:
    """Raise if a sub-agent is at work: its session was not exported with that of its parent."""
    for started in _at_work(records):
        raise SessionError(
            f"session {session!r}: sub-agent {started.agent!r} is at work there, in call {started.call!r}; import it "
            "under its own id",
            session=session,
        )
