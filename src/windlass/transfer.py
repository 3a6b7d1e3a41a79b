"""Moves sessions: as JSON lines from store to store, or as a fork within one."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeGuard

import msgspec

from .approvals import child_session_error
from .errors import ConfigError, SessionConflict, SessionError, SessionUnknown, StoreError
from .ids import check_id, check_new_id
from .logs import Batch, Log, Seal
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
    parent_of,
)
from .states import BACKGROUND, Fold, background_key
from .stores.batches import SLICE, lines_of, records_of
from .stores.chains import START, Chain, chain_of
from .terms import without_answers

FORMAT = 2


async def export_session(store: Store, session: str) -> list[str]:
    """A session as JSON lines: a header, then the records, with the link of each batch in the hash chain after it.

    The header has the descriptions of the agents that wrote the session, as the store keeps them: their hooks, their
    tools and their system text.
    """
    batches = await store.batches(session)
    if not batches:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    header: dict[str, Any] = {"windlass": FORMAT, "session": session, "records": batches[-1].seq + batches[-1].count}
    if batches[0].previous != START:
        header["start"] = batches[0].previous.hex()
    if fingerprint := _chain_of(store).fingerprint:
        header["key"] = fingerprint.hex()
    if pipelines := await _descriptions(store, batches):
        header["pipelines"] = pipelines
    lines, pause = [_line(header)], _Pause()
    for batch in batches:
        lines += batch.lines.decode("utf-8", "surrogatepass").split("\n")
        lines.append(_line({"link": batch.link.hex(), "count": batch.count, **_plain_seals(batch)}))
        await pause.after(len(batch.lines))
    return lines


async def import_session(
    store: Store, lines: Iterable[str], session: str | None = None, *, key: str | bytes | None = None
) -> str:
    """Put an exported session into a store, under its own id or another. Nothing is written if the lines are damaged.

    Under its own id the hash chain stays the same if both stores have the same key, or none. Under another id its turns
    and steps get new ids, as in a fork. The sessions of its sub-agents are not copied, so none of them may be running.
    `key` is the key of the store that the session was exported from, if it is not the key of this one.
    """
    if session is not None:
        check_new_id(session)
    lines = list(lines)
    log, batches = await _parse(lines, chain_of(key) if key is not None else _chain_of(store))
    descriptions = _read_descriptions(_plain(next(line for line in lines if line.strip()), 1))
    records = [record for batch in batches for record in batch]
    name = log.session if session is None else session
    if session is None:
        _check_exported_id(log, records)
    if await store.read(name):
        raise SessionConflict(f"session {name!r} already exists; import it under another id", session=name)
    await _check_background(store, log, records, renamed=name != log.session)
    if name != log.session:
        log = await _renamed_log(log, batches, records, name)
    await store.create([log])
    for digest, data in descriptions.items():
        await store.put_pipeline(digest, data)
    return name


_PIPELINE = re.compile(rb'"pipeline":"([0-9a-f]{16})"')


async def _descriptions(store: Store, batches: Iterable[Batch]) -> dict[str, str]:
    """The descriptions of the agents that wrote a log, by digest."""
    digests = dict.fromkeys([found.decode() for batch in batches for found in _PIPELINE.findall(batch.lines)])
    stored = {digest: await store.pipeline(digest) for digest in digests}
    return {digest: data.decode("utf-8", "surrogatepass") for digest, data in stored.items() if data is not None}


def _read_descriptions(header: dict[str, Any]) -> dict[str, bytes]:
    """The descriptions in a header. Each is what its digest says, or it is damaged."""
    given = header.get("pipelines", {})
    if not isinstance(given, dict):
        raise StoreError("line 1: the descriptions of agents are damaged")
    found: dict[str, bytes] = {}
    for digest, text in given.items():
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""
        if blake2b(data, digest_size=8).hexdigest() != digest:
            raise StoreError(f"line 1: the description of agent {str(digest)[:40]!r} is not the one that was exported")
        found[digest] = data
    return found


class _Pause:
    """Lets other tasks run once in a while, during work on a large session."""

    def __init__(self) -> None:
        self._size = 0

    async def after(self, size: int) -> None:
        """So many bytes of the log were worked on."""
        self._size += size
        if self._size >= SLICE:
            self._size = 0
            await asyncio.sleep(0)


async def _check_background(store: Store, log: Log, records: list[Record], *, renamed: bool) -> None:
    """Raise if a background child would be started once more, because its own session was not imported before."""
    at_work = [record for record in records if isinstance(record, Delegated) and record.background]
    left = _without_background(records)
    for started in [record for record in at_work if record not in left]:
        if renamed or not await store.read(started.session):
            remedy = "import it under its own id" if renamed else f"import session {started.session!r} first"
            raise SessionError(
                f"session {log.session!r}: agent {started.agent!r} works for it in the background; {remedy}",
                session=log.session,
            )


def _check_exported_id(log: Log, records: list[Record]) -> None:
    """Raise if an id from an export cannot be that of a user's session, nor that of a sub-agent's."""
    try:
        check = check_id if parent_of(records) else check_new_id
        check(log.session)
    except ConfigError as error:
        raise StoreError(f"{error}. Import it under another id") from None


def _chain_of(store: Store) -> Chain:
    """How a store computes its links. A store that does not say so has no key."""
    chain: Chain = getattr(store, "chain", None) or Chain()
    return chain


async def _renamed_log(log: Log, batches: list[list[Record]], whole: list[Record], name: str) -> Log:
    """The log of a session under another id, batch by batch. What was pruned stays pruned."""
    _check_no_child_runs(whole, log.session)
    copy, pause = _Copy(log.session, name, whole), _Pause()
    new: list[Batch] = []
    for batch, records in zip(log.batches, batches, strict=True):
        lines = lines_of([copy.renamed(record) for record in records])
        new.append(batch.replace(lines=lines) if batch.pruned else Batch(batch.seq, batch.count, b"", lines))
        await pause.after(len(lines))
    return Log(name, tuple(new))


async def _parse(lines: Iterable[str], chain: Chain) -> tuple[Log, list[list[Record]]]:
    """The session in some lines, and the records of its batches. Raises `StoreError` unless it is what was exported."""
    texts = [line for line in (line.rstrip("\r\n") for line in lines) if line]
    header: dict[str, Any] = _plain(texts[0], 1) if texts else {}
    session = header.get("session")
    if header.get("windlass") not in (1, FORMAT) or not isinstance(session, str):
        known = f"format 1 or {FORMAT}"
        raise StoreError(f"this is not a session exported by Windlass in {known}: {(texts or [''])[0][:80]!r}")
    start = _hex(header.get("start", START.hex()), 1)
    chain = _chain_of_export(header, chain)
    batches: list[Batch] = []
    records: list[list[Record]] = []
    batch: list[bytes] = []
    previous, count, pause = start, 0, _Pause()
    for number, line in enumerate(texts[1:], 2):
        await pause.after(len(line))
        plain = _plain(line, number)
        if "kind" in plain:
            batch.append(line.encode("utf-8", "surrogatepass"))
            continue
        if plain.get("pruned"):
            raise StoreError(
                f"line {number}: these records were pruned by a version of Windlass that left no proof of it, so they "
                "cannot be checked; export the session again from its store"
            )
        seals, nonce = _read_seals(plain, number)
        one = Batch(count, len(batch), _hex(plain.get("link"), number), b"\n".join(batch), previous, seals, nonce)
        if len(batch) != plain.get("count") or _link_of(chain, session, one) != one.link:
            raise StoreError(f"line {number}: the records before it differ from the exported ones")
        records.append(records_of(session, count, one.lines))
        batches.append(one)
        previous = one.link
        count += len(batch)
        batch = []
    if batch or not count or count != header.get("records"):
        raise StoreError(f"the export is cut short: {count} of {header.get('records')} records are complete")
    return Log(session, tuple(batches), start), records


def _chain_of_export(header: dict[str, Any], chain: Chain) -> Chain:
    """How the store that was exported from computed its links."""
    if header.get("key") is None:
        return Chain()
    if header["key"] == chain.fingerprint.hex():
        return chain
    raise StoreError(
        "the session was exported from a store with another key, so it cannot be checked; pass the key of that store "
        "as `key`, or set WINDLASS_EXPORT_KEY"
    )


def _link_of(chain: Chain, session: str, batch: Batch) -> bytes | None:
    """The link of a batch; None if its seals do not fit."""
    try:
        return chain.link(session, batch)
    except (ValueError, RecursionError):
        return None


def _plain_seals(batch: Batch) -> dict[str, Any]:
    """The seals of a batch for the line of its link."""
    if not batch.seals:
        return {}
    seals = [[seal.index, seal.digest.hex()] for seal in batch.seals]
    return {"seals": seals, **({"nonce": batch.nonce.hex()} if batch.nonce else {})}


def _read_seals(plain: dict[str, Any], number: int) -> tuple[tuple[Seal, ...], bytes]:
    """The seals in the line of a link."""
    try:
        seals = msgspec.convert(plain.get("seals", []), list[tuple[int, str]])
        if any(index < 0 for index, _ in seals):
            raise ValueError("a position is negative")
        return tuple([Seal(index, bytes.fromhex(digest)) for index, digest in seals]), _hex(
            plain.get("nonce", ""), number
        )
    except ValueError as error:
        raise StoreError(f"line {number}: the seals are damaged ({error})") from error


def _hex(text: Any, number: int) -> bytes:
    """A link of a hash chain, or a salt."""
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError) as error:
        raise StoreError(f"line {number} is not a link of a hash chain") from error


def _plain(line: str, number: int) -> dict[str, Any]:
    """The JSON object on a line. It may contain lone surrogates, as the store wrote them."""
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"line {number} is not a JSON object: {error}") from error
    if not isinstance(plain, dict):
        raise StoreError(f"line {number} is not a JSON object: {line[:80]!r}")
    return plain


def _line(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


# ---------------------------------------------------------------- forks


async def fork_session(store: Store, session: str, to: str, at: int | None, now: float) -> None:
    """Copy the first `at` records of a session, or all, to a new session, and the sessions of its running sub-agents.

    An answer given in one session does not count in its fork: answers that had no effect yet are left out. Turns and
    steps get the ids of the new session; calls keep their ids, and so a call in doubt keeps its idempotency key. All
    copies are stored at once, or none.
    """
    records = await store.read(session)
    if not records:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    if parent := parent_of(records):
        raise child_session_error(session, parent)
    at = len(records) if at is None else at
    if not 0 < at <= len(records):
        raise SessionError(
            f"session {session!r} has records 1 to {len(records)}; it cannot be forked at {at}", session=session
        )
    copies = (await _copy_of(store, session, to, records, at)).with_children()
    await _check_ids_free(store, [copy.to for copy in copies])
    await store.create([Log(copy.to, await _batches_of(copy.log(now))) for copy in reversed(copies) if copy.records])


async def _batches_of(records: Iterable[Record]) -> tuple[Batch, ...]:
    """A new log as batches. A long one has several, and other tasks run in between."""
    batches: list[Batch] = []
    lines: list[bytes] = []
    seq, size = 0, 0
    for record in records:
        lines.append(lines_of([record]))
        size += len(lines[-1])
        if size >= SLICE:
            batches.append(Batch(seq, len(lines), b"", b"\n".join(lines)))
            seq, size, lines = seq + len(lines), 0, []
            await asyncio.sleep(0)
    if lines:
        batches.append(Batch(seq, len(lines), b"", b"\n".join(lines)))
    return tuple(batches)


class _Copy:
    """The copy of a session under another id: the records that it keeps, and the copies of its running sub-agents.

    `at` is the number of records at which the session is cut, `asked` has the ids of all questions ever asked in it.
    """

    def __init__(self, session: str, to: str, records: list[Record], at: int = 0, asked: Iterable[str] = ()) -> None:
        self.session = session
        self.to = to
        self.records = records
        self.at = at
        self.asked = set(asked)
        self.parent = ""
        self.children: list[_Copy] = []
        self.calls = _calls(records)

    def with_children(self) -> list[_Copy]:
        """This copy, then those of its sub-agents, at all depths."""
        return [self, *[copy for child in self.children for copy in child.with_children()]]

    @cached_property
    def _levels(self) -> list[_Copy]:
        """This copy and those of its sub-agents, the deepest first."""
        return sorted(self.with_children(), key=lambda copy: -len(copy.session))

    def log(self, now: float) -> Iterator[Record]:
        """The log of the copy. Decisions of hooks may come before the `SessionOpened`."""
        opened = False
        for one in self.records:
            record = self.renamed(_without_answers(one))
            if isinstance(record, SessionOpened):
                if not opened:
                    opened = True
                    record = record.replace(how="forked", origin=f"{self.session}@{self.at}", forked_at=now)
                if self.parent and record.parent:
                    record = record.replace(parent=self.parent)
            yield record

    def renamed(self, record: Record) -> Record:
        """The record with the ids of turns, steps and running sub-agents changed to those of the new session."""
        if isinstance(record, Delegated | Charged):
            names = {copy.session: copy.to for copy in self.children}
            return record.replace(session=names.get(record.session, record.session))
        if isinstance(record, Suspended):
            return record.replace(waiting_for=tuple([self.renamed(asked) for asked in record.waiting_for]))
        field = _IDS.get(type(record))
        if field is None:
            return record
        levels = self._levels if isinstance(record, Asked | Answered) else [self]
        if isinstance(record, Asked) and record.answers:
            record = record.replace(answers=tuple([self.renamed(answered) for answered in record.answers]))
        return record.replace(**{field: _new_id(getattr(record, field), levels)})


_IDS: dict[type[Record], str] = {
    Injected: "about",
    HookDecided: "about",
    Rewritten: "about",
    Asked: "id",
    Answered: "id",
    TurnStarted: "ref",
}


def _calls(records: Sequence[Record]) -> dict[str, str]:
    """The ids of all calls, by their own id and by the sessions of the sub-agents that worked on them."""
    calls = [part.id for record in records if isinstance(record, ModelReplied) for part in record.reply.tool_calls]
    started = [(one.session, one.call) for one in records if isinstance(one, Delegated) and one.call]
    return dict([*started, *zip(calls, calls, strict=True)])


def _new_id(name: str, levels: Sequence[_Copy]) -> str:
    """The id of a turn, step, request or reply in the copy of its session. Calls keep theirs."""
    for copy in levels:
        if name == copy.session or name.startswith(f"{copy.session}/"):
            return name if _call_of(name, copy.calls) else copy.to + name.removeprefix(copy.session)
    return name


async def _check_ids_free(store: Store, names: Sequence[str]) -> None:
    """Raise unless these ids are free for a fork and its sub-agents."""
    for name in names:
        if await store.read(name):
            raise SessionConflict(f"session {name!r} already exists; fork to another id", session=name)
    if len(names) > 1:  # else the store refuses before anything is written
        erased = {info.session for info in await store.find(search=names[0], status="erased")}
        for name in [name for name in names if name in erased]:
            raise SessionConflict(f"session {name!r} was erased; fork to another id", session=name)


# ---------------------------------------------------------------- the records that a fork keeps


async def _copy_of(store: Store, session: str, to: str, records: Sequence[Record], at: int) -> _Copy:
    """The copy of a session, and of the sub-agents that are running where it is cut."""
    kept = _without_torn_end([record for record in records[:at] if not _stays_behind(record)])
    kept = _without_background(kept)
    children: list[_Copy] = []
    for started in _running_children(kept):
        log = await store.read(started.session)
        if not log and any(isinstance(record, Charged) and record.session == started.session for record in records):
            raise SessionUnknown(
                f"session {session!r} cannot be forked at {at}: sub-agent {started.agent!r} is running there, and its "
                f"session {started.session!r} is no longer in the store",
                session=started.session,
            )
        place = started.session.removeprefix(session).lstrip("/")
        end = _independent_length(log, kept, started)
        children.append(await _copy_of(store, started.session, f"{to}//{place}", log, end))
    kept = _matching_children(kept, children)
    asked = [record.id for record in records if isinstance(record, Asked)]
    copy = _Copy(session, to, kept, at, asked)
    await asyncio.sleep(0)
    pending = _pending_answers(kept, copy.calls, {name for child in children for name in child.asked})
    copy.records = [record for index, record in enumerate(kept) if index not in pending]
    copy.children = children
    for child in children:
        child.parent = to
    return copy


def _stays_behind(record: Record) -> bool:
    """Whether a fork leaves out a record: a fork is open and has its own inbox, with the same keys for answers."""
    return isinstance(record, SessionEnded) or (isinstance(record, InboxTaken) and record.entry == "answer")


def _without_background(records: list[Record]) -> list[Record]:
    """The records without the starts of background children whose results have not come in: they work for the original.

    A hook or tool that runs again in the fork starts its own.
    """
    taken = {record.key for record in records if isinstance(record, InboxTaken) and record.entry == BACKGROUND}
    return [record for record in records if not _is_at_work(record, taken)]


def _is_at_work(record: Record, taken: Container[str]) -> bool:
    """Whether a record starts a background child whose result has not come in."""
    return isinstance(record, Delegated) and record.background and background_key(record.session) not in taken


def _without_torn_end(records: list[Record]) -> list[Record]:
    """The records without those at the end that count only together with the next ones, and that are made again.

    These are a reply that was cut short, a veto without its feedback, what a call without a result wrote, and held
    messages that have not all entered the transcript.
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
    messages = [(item.message, item.by) for item in held]
    while records and _is_torn(records[-1], calls.values(), messages):
        records.pop()
    return records


def _is_torn(last: Record, writers: Container[str], held: Sequence[tuple[Message, str]]) -> bool:
    """Whether the last record counts only together with the next. `writers` are the calls without a result, as the
    records that they wrote name them."""
    match last:
        case HookDecided(event="MessageAdding"):
            return bool(held)
        case ModelReplied():
            return last.reply.message.partial
        case MessageAdded(message=Message() as message):
            return (message, last.by) in held
        case MessageHeld() | SlotSet():
            return last.by in writers
        case _:
            return isinstance(last, StopVetoed)


def _running_children(records: Sequence[Record]) -> list[Delegated]:
    """The sub-agents of calls that have no result yet, and those that hooks and tools of the open turn started.

    The result of such a one may be asked for again until the turn has ended.
    """
    running: list[Delegated] = []
    for record in records:
        if isinstance(record, Delegated) and not record.background:
            running.append(record)
        elif isinstance(record, ToolReturned):
            running = [started for started in running if started.call != record.call]
        elif isinstance(record, TurnEnded):
            running = []
    return running


def _independent_length(records: Sequence[Record], parent: Sequence[Record], started: Delegated) -> int:
    """How many records a sub-agent wrote before the first answer or cancel that its parent's log does not have.

    Records that the parent's log was charged for are included: they existed when the parent was cut.
    """
    answers = Counter([record.id for record in parent if _settles(record)])
    charges = [record for record in parent if isinstance(record, Charged) and record.session == started.session]
    charged = sum([record.usage.requests for record in charges])
    fold = Fold(started.session)
    for number, record in enumerate(records):
        spent = fold.turn.usage.requests if fold.turn is not None else 0
        if isinstance(record, CancelRequested):
            return number
        if isinstance(record, Answered) and not record.partial:
            answers[record.id] -= 1
            if answers[record.id] < 0 and spent >= charged:
                while isinstance(records[number - 1], Resumed | InboxTaken):
                    number -= 1
                return number
        fold.add(record)
    return len(records)


def _matching_children(records: Sequence[Record], children: Sequence[_Copy]) -> list[Record]:
    """The records without the questions of running sub-agents, and answers to them, that their own copies lack."""
    asked = {name for copy in children for name in copy.asked}
    theirs = Counter(
        [
            (type(record), record.id)
            for copy in children
            for record in copy.records
            if isinstance(record, Asked) or _settles(record)
        ]
    )
    left_out: set[int] = set()
    partial: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        if not isinstance(record, Asked | Answered) or record.id not in asked:
            continue
        if isinstance(record, Answered) and record.partial:  # it goes with the answer that settles the question
            partial.setdefault(record.id, []).append(index)
            continue
        theirs[type(record), record.id] -= 1
        if theirs[type(record), record.id] < 0:
            left_out.add(index)
        elif isinstance(record, Answered):
            partial.pop(record.id, None)
    left_out |= {index for places in partial.values() for index in places}
    return [record for index, record in enumerate(records) if index not in left_out]


def _settles(record: Record) -> TypeGuard[Answered]:
    """Whether a record is an answer that closes its question."""
    return isinstance(record, Answered) and not record.partial


def _without_answers(record: Record) -> Record:
    """A record without the partial answers that a suspended turn repeats."""
    if not isinstance(record, Suspended):
        return record
    return record.replace(waiting_for=tuple([without_answers(asked) for asked in record.waiting_for]))


def _pending_answers(records: Sequence[Record], calls: Mapping[str, str], child_questions: set[str]) -> set[int]:
    """The positions of answers in the open turn that had no effect yet, and of the decisions that follow from them.

    Questions of running sub-agents are skipped: their own copies deal with them.
    """
    pending: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        about = _about(record, calls)
        if isinstance(record, TurnStarted | TurnEnded | StepEnded):
            pending.clear()
        elif isinstance(record, ToolCalled | UndoCalled | ToolReturned):
            pending = {name: places for name, places in pending.items() if name in calls and name != record.call}
        elif isinstance(record, ModelReplied | ReplyRejected | MessageAdded | Concluded):
            pending = {name: places for name, places in pending.items() if name in calls}
        elif isinstance(record, Asked | Answered) and record.id in child_questions:
            continue
        elif isinstance(record, Answered):
            pending.setdefault(about, []).append(index)
        elif about in pending:
            pending[about].append(index)
    return {index for places in pending.values() for index in places}


def _about(record: Record, calls: Mapping[str, str]) -> str:
    """The id of the call, or else of the turn, request or reply, that a record is about."""
    name: str = getattr(record, _IDS.get(type(record), "call"), "")
    return _call_of(name, calls) or name


def _call_of(name: str, calls: Mapping[str, str]) -> str:
    """The call that an id belongs to: the id of the call, of an attempt, a doubt or a sub-agent's question; else ""."""
    parts = name.split("/")
    for end in range(3, len(parts) + 1):
        *above, last = parts[:end]
        for prefix in ("/".join(parts[:end]), "/".join([*above, last.split(".")[0]])):
            if prefix in calls:
                return calls[prefix]
    return ""


def _check_no_child_runs(records: Sequence[Record], session: str) -> None:
    """Raise if a sub-agent is running: its session was not exported with that of its parent."""
    for started in _running_children(records):
        raise SessionError(
            f"session {session!r}: sub-agent {started.agent!r} is running there, "
            f"{f'in call {started.call!r}' if started.call else f'for {started.by!r}'}; import it under its own id",
            session=session,
        )


__all__ = ["export_session", "import_session"]
