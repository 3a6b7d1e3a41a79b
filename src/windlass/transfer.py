"""Moving sessions: as JSON lines from store to store, or as a fork within one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .errors import SessionConflict, SessionUnknown, StoreError
from .protocols import Store
from .records import (
    Answered,
    Asked,
    HookDecided,
    Injected,
    ModelReplied,
    Record,
    Rewritten,
    SessionEnded,
    SessionOpened,
    StepEnded,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
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

    A chain that was never pruned must come out the same.
    """
    name, batches = _parsed(lines)
    name = session or name
    if await store.read(name):
        raise SessionConflict(f"session {name!r} is there already; import it under another id", session=name)
    seq = 0
    for records, _ in batches:
        await store.append(name, records, seq)
        seq += len(records)
    return name


def _parsed(lines: Iterable[str]) -> tuple[str, list[tuple[list[Record], dict[str, Any]]]]:
    given = [line for line in (line.rstrip("\n") for line in lines) if line]
    header: dict[str, Any] = _plain(given[0], 1) if given else {}
    if header.get("windlass") != FORMAT:
        raise StoreError(f"this is no session exported by Windlass in format {FORMAT}: {(given or [''])[0][:80]!r}")
    batches: list[tuple[list[Record], dict[str, Any]]] = []
    held: list[str] = []
    link, whole, count = START, True, 0
    for number, line in enumerate(given[1:], 2):
        plain = _plain(line, number)
        if "link" not in plain:
            held.append(line)
            continue
        made = link_of(link, "\n".join(held).encode("utf-8", "surrogatepass"))
        link = bytes.fromhex(plain["link"])
        whole = whole and not plain.get("pruned")
        if len(held) != plain.get("count") or (whole and made != link):
            raise StoreError(f"line {number}: the records before it are not those that were exported")
        batches.append(([decode(record.encode("utf-8", "surrogatepass")) for record in held], plain))
        count += len(held)
        held = []
    if held or count != header.get("records"):
        raise StoreError(f"the export is cut short: {count} of {header.get('records')} records are whole")
    return str(header["session"]), batches


def _plain(line: str, number: int) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line.encode("utf-8", "surrogatepass"), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise StoreError(f"line {number} is no JSON object: {error}") from error


def _line(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


# ---------------------------------------------------------------- forks


def forked(records: Sequence[Record], session: str, to: str, at: int, now: float) -> list[Record]:
    """The log of a fork: the first `at` records of a session, but for the answers to what is still undone there.

    Who answered for one future did not answer for another. Turns and steps get the ids of the new session; calls keep
    those they were proposed with, and so a call in doubt keeps its key.
    """
    if not 0 < at <= len(records):
        raise StoreError(f"session {session!r} has records 1 to {len(records)}; it cannot be forked at {at}")
    opened = records[0]
    first = opened if isinstance(opened, SessionOpened) else SessionOpened()
    kept = [record for record in records[1:at] if not isinstance(record, SessionEnded)]
    undone = _undone(kept)
    kept = [record for record in kept if not (isinstance(record, Answered) and record.id in undone)]
    calls = {part.id for record in kept if isinstance(record, ModelReplied) for part in record.reply.tool_calls}
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
    if _call_of(name) in calls or not name.startswith(f"{session}/"):
        return record
    return record.replace(**{field: to + name.removeprefix(session)})


def _undone(records: Sequence[Record]) -> set[str]:
    """The ids of questions that were answered in the turn that is open, about something that has not happened yet."""
    answered: set[str] = set()
    for record in records:
        if isinstance(record, TurnStarted | TurnEnded | StepEnded):
            answered.clear()
        elif isinstance(record, Answered):
            answered.add(record.id)
        elif isinstance(record, ToolReturned):
            answered = {name for name in answered if _call_of(name) != record.call}
        elif isinstance(record, ToolCalled):
            answered = {name for name in answered if not name.startswith(f"{record.call}/doubt.")}
    return answered


def _call_of(name: str) -> str:
    """The call that an attempt or a doubt is about."""
    return name.split("/attempt.")[0].split("/doubt.")[0]
