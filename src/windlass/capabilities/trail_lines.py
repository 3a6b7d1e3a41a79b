"""The lines of audit trails: which records they have, and whether a file of them agrees with the logs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from windlass.errors import StoreError
from windlass.logs import Link
from windlass.protocols import Store
from windlass.records import (
    Answered,
    Asked,
    CancelRequested,
    Delegated,
    ErrorHandled,
    HookDecided,
    HookFailed,
    ModelAttempted,
    ModelReplied,
    Noted,
    Record,
    ReplyRejected,
    Resumed,
    Rewritten,
    SideReplied,
    StopVetoed,
    Suspended,
    TakenOver,
    ToolAttempted,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    UndoCalled,
    Withdrawn,
    encode,
)
from windlass.stores import linked_records

if TYPE_CHECKING:
    pass

Line: TypeAlias = dict[str, Any]

EFFECTS: tuple[type[Record], ...] = (
    TurnStarted, ModelReplied, ModelAttempted, SideReplied, ToolCalled, ToolAttempted, ToolReturned, UndoCalled,
    Delegated, TurnEnded,
)  # fmt: skip
DECISIONS: tuple[type[Record], ...] = (
    ToolDecided, HookDecided, Rewritten, ReplyRejected, StopVetoed, Asked, Answered, Withdrawn, Suspended, Resumed,
    TakenOver, CancelRequested, ErrorHandled, HookFailed, Noted,
)  # fmt: skip


def without_reason(verdict: Any) -> Any:
    """A verdict without its words."""
    return {"decision": verdict["decision"]} if isinstance(verdict, dict) and "decision" in verdict else verdict


def plain_record(record: Record) -> Line:
    """A record as plain data, without the fields that say where an observer got it from."""
    data = encode(record)
    try:
        plain: Line = msgspec.json.decode(data)
    except msgspec.DecodeError:  # a lone surrogate
        plain = json.loads(data)
    plain.pop("path", None)
    plain.pop("seq", None)
    return plain


async def check_trail(
    path: str | os.PathLike[str],
    store: Store,
    *,
    records: Iterable[type[Record]] = (*EFFECTS, *DECISIONS),
    whole: bool = False,
) -> int:
    """Compare an exported file with the logs in a store, and return how many records it proves.

    Raises `StoreError` if a line was changed, if the log is not the one that was exported, or if a line is missing: one
    of the `records` that were exported, before the last line of its session. A line that occurs twice counts once, and
    a line that was cut off is ignored, since its record was exported again. A session that was erased from the store
    cannot be checked, and raises, too.

    The end of a session may be missing, because it may not be exported yet. With `whole`, every record of every session
    in the store must be in the file.
    """
    lines = list(_lines_of(Path(path)))
    links = [Link(line["session"], line["seq"], line["batch"], line["link"]) for line in lines]
    for line, record in zip(lines, await linked_records(store, links), strict=True):
        if not _agrees(line, plain_record(record)):
            raise StoreError(f"the line of record {line['seq']} of session {line['session']!r} was changed")
    return await _count_complete(lines, store, frozenset(records), whole)


def _agrees(line: Line, logged: Line) -> bool:
    """Whether a line says what the log says. One without content has fewer fields."""
    for key, value in line.items():
        if key in _PLACE:
            continue
        expected = logged.get(key)
        if value != expected and not (key == "verdict" and value == without_reason(expected)):
            return False
    return bool(line["kind"] == logged["kind"])


_PLACE = frozenset({"session", "seq", "batch", "link"})


async def _count_complete(lines: list[Line], store: Store, kinds: frozenset[type[Record]], whole: bool) -> int:
    """How many records the lines prove. Raises if one is missing."""
    exported = {(line["session"], line["seq"]) for line in lines}
    last: dict[str, int] = {}
    for session, seq in exported:
        last[session] = max(seq, last.get(session, 0))
    for session in await store.sessions() if whole else last:
        for seq, record in enumerate(await store.read(session), 1):
            if (whole or seq < last[session]) and (session, seq) not in exported and type(record) in kinds:
                raise StoreError(f"record {seq} of session {session!r} is missing from the trail")
    return len(exported)


def _lines_of(path: Path) -> Iterator[Line]:
    """The lines of a file. One that was cut off is there again, whole, unless it is the last one."""
    texts = path.read_bytes().split(b"\n")
    for number, text in enumerate(texts):
        try:
            line = json.loads(text)
        except ValueError:
            if number + 1 < len(texts) and not any(other.startswith(text) for other in texts if other != text):
                raise StoreError(f"line {number + 1} of {path.name} is not a line of an audit trail") from None
            continue
        if not isinstance(line, dict) or not line.keys() >= _PLACE | {"kind"}:
            raise StoreError(f"line {number + 1} of {path.name} is not a line of an audit trail")
        yield line
