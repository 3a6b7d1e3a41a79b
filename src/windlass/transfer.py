"""Moving sessions: as JSON lines from store to store, or as a fork within one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .errors import SessionConflict, SessionError, SessionUnknown, StoreError
from .protocols import Store
from .records import (
    Answered,
    Asked,
    Concluded,
    Delegated,
    HookDecided,
    Injected,
    MessageAdded,
    ModelReplied,
    Record,
    ReplyRejected,
    Rewritten,
    SessionEnded,
    SessionOpened,
    StepEnded,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    UndoCalled,
    decode,
)
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
        _refuse_at_work(whole, exported, "import it under its own id")
        calls = _calls(whole)
        batches = [[_renamed(record, exported, name, calls) for record in batch] for batch in batches]
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


def forked(records: Sequence[Record], session: str, to: str, at: int, now: float) -> list[Record]:
    """The log of a fork: the first `at` records of a session, but for answers to what is still undone there.

    Who answered for one future did not answer for another. Turns and steps get the ids of the new session; calls keep
    those they were proposed with, and so a call in doubt keeps its key.
    """
    if not 0 < at <= len(records):
        raise SessionError(
            f"session {session!r} has records 1 to {len(records)}; it cannot be forked at {at}", session=session
        )
    opened = records[0]
    first = opened if isinstance(opened, SessionOpened) else SessionOpened()
    kept = [record for record in records[1:at] if not isinstance(record, SessionEnded)]
    _refuse_at_work(kept, session, "fork before or after")
    calls = _calls(kept)
    undone = _undone(kept, calls)
    kept = [record for index, record in enumerate(kept) if index not in undone]
    return [
        first.replace(how="forked", origin=f"{session}@{at}", at=now),
        *[_renamed(record, session, to, calls) for record in kept],
    ]


_IDS: dict[type[Record], str] = {
    Injected: "about",
    HookDecided: "about",
    Rewritten: "about",
    Asked: "id",
    Answered: "id",
    TurnStarted: "ref",
}


def _renamed(record: Record, session: str, to: str, calls: set[str]) -> Record:
    """A record whose id of a turn or step is that of the new session."""
    field = _IDS.get(type(record))
    if field is None:
        return record
    name: str = getattr(record, field)
    if _call_of(name, calls) or not name.startswith(f"{session}/"):
        return record
    return record.replace(**{field: to + name.removeprefix(session)})


def _undone(records: Sequence[Record], calls: set[str]) -> set[int]:
    """Where the answers of the open turn are by which nothing has happened yet, and what was decided by them."""
    undone: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        about = _about(record, calls)
        if isinstance(record, TurnStarted | TurnEnded | StepEnded):
            undone.clear()
        elif isinstance(record, ToolCalled | UndoCalled | ToolReturned):
            undone = {name: found for name, found in undone.items() if name in calls and name != record.call}
        elif isinstance(record, ModelReplied | ReplyRejected | MessageAdded | Concluded):
            undone = {name: found for name, found in undone.items() if name in calls}
        elif isinstance(record, Answered):
            undone.setdefault(about, []).append(index)
        elif about in undone:
            undone[about].append(index)
    return {index for found in undone.values() for index in found}


def _about(record: Record, calls: set[str]) -> str:
    """The id of the call, or else of the turn, request or reply, that a record is about."""
    name: str = getattr(record, _IDS.get(type(record), "call"), "")
    return _call_of(name, calls) or name


def _calls(records: Sequence[Record]) -> set[str]:
    """The ids of all calls that were proposed."""
    return {part.id for record in records if isinstance(record, ModelReplied) for part in record.reply.tool_calls}


def _call_of(name: str, calls: set[str]) -> str:
    """The call that an id belongs to: its own, that of an attempt, a doubt or a sub-agent's question. "" if none."""
    parts = name.split("/")
    for end in range(3, len(parts) + 1):
        *above, last = parts[:end]
        if (call := "/".join([*above, last.split(".")[0]])) in calls:
            return call
    return ""


def _refuse_at_work(records: Sequence[Record], session: str, instead: str) -> None:
    """Raise if a sub-agent was started and its call is open: its session is that of one log, and cannot serve two."""
    at_work: dict[str, str] = {}
    for record in records:
        if isinstance(record, Delegated):
            at_work[record.call] = record.agent
        elif isinstance(record, ToolReturned):
            at_work.pop(record.call, None)
    for call, agent in at_work.items():
        raise SessionError(
            f"session {session!r}: sub-agent {agent!r} is at work there, in call {call!r}; {instead}", session=session
        )
