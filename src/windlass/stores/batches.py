"""The format of durable stores: an append batch as bytes, and what it changes besides the log.

A batch is the JSON of its records, one per line, deflated with a fixed dictionary, because the records of a step are
mostly field names. Links are computed from the uncompressed lines, so that an export can be checked without the store.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from windlass.errors import StoreError
from windlass.logs import Batch
from windlass.records import (
    Answered,
    Asked,
    HistoryImported,
    InboxTaken,
    Record,
    Resumed,
    SessionEnded,
    SessionOpened,
    Suspended,
    TurnEnded,
    TurnStarted,
    decode,
    encode,
)

Status: TypeAlias = Literal["open", "running", "suspended", "ended", "erased"]
DICTIONARY = (
    b'{"kind":"SessionOpened","agent":"agent","pipeline":"{"kind":"SessionEnded"{"kind":"Suspended","waiting_for":['
    b'{"kind":"Resumed"{"kind":"Answered","answer":{"resolution":"Approve"{"kind":"HookFailed","hook":"","event":"",'
    b'"error":{"type":"","message":"{"kind":"ErrorHandled","category":"tool","action":"retry"{"kind":"HookDecided",'
    b'"about":"","answers":[["{"kind":"Rewritten","fields":{"arguments":{"kind":"Injected","parts":[{"type":"text",'
    b'"text":"","origin":"{"kind":"ReplyRejected","feedback":"{"kind":"StopVetoed","reason":"completed","by":["'
    b'{"kind":"Asked","id":"","event":"ToolCalling","question":"","allow":["approve","edit","reject","respond"],'
    b'{"kind":"TurnStarted","turn":1,"message":{"role":"user","parts":[{"type":"text","text":""}]},"ref":"/t1","at":17'
    b'{"kind":"MessageAdded"}{"kind":"Evaluated","vote":"allow_stop","reasons":[["tools_ran","no tool was called"]]}'
    b'{"kind":"Concluded","outcome":{"outcome":"Completed"}}{"kind":"TurnEnded","outcome":{"outcome":"Completed"},'
    b'{"kind":"ModelReplied","step":1,"reply":{"message":{"role":"assistant","parts":[{"type":"text","text":""}],"id":"'
    b'"usage":{"input":,"output":,"cached":,"reasoning":,"cost":},"finish":"tool_calls","model":"","raw_finish":"stop"'
    b'},{"type":"thinking","text":"","signature":"'
    b'{"kind":"ModelReplied","step":1,"reply":{"message":{"role":"assistant","parts":[{"type":"tool_call","name":"",'
    b'"json":"{\\"","id":"/1/1","vendor_id":"call_"}],"id":"/1"},"usage":{"input":1,"output":1},"finish":"tool_calls"}'
    b',"at":17"}\n{"kind":"ToolDecided","call":"/1/1","verdict":{"decision":"Allow"}}\n{"kind":"ToolCalled","call":"'
    b'/1/1","name":"","at":17"}\n{"kind":"ToolReturned","call":"/1/1","name":"","result":{"content":[{"type":"text",'
    b'"text":""}],"status":"error"},"at":17"}\n{"kind":"StepEnded","step":1,"active":0.000'
)
"""Part of the format: it must not change. A missing field name only costs bytes."""

_WINDOW = -12

SLICE = 2**18
"""After this many bytes of a log, work on the event loop lets other tasks run. Most logs are shorter."""

_PACKED_SLICE = 2**16
"""How many packed bytes of a batch are unpacked in one go."""


def lines_of(records: Sequence[Record]) -> bytes:
    """The bytes of a batch. This is the only place where a store encodes records."""
    return b"\n".join([encode(record) for record in records])


def pack(lines: bytes) -> bytes:
    """Compress the lines of a batch."""
    small = zlib.compressobj(1, zlib.DEFLATED, _WINDOW, 2, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    return small.compress(lines) + small.flush()


def unpack(data: bytes) -> bytes:
    """Decompress the lines of a batch; raises `zlib.error` if it is damaged."""
    large = zlib.decompressobj(_WINDOW, DICTIONARY)
    lines = large.decompress(data) + large.flush()
    _check_eof(large)
    return lines


async def unpack_in_slices(data: bytes) -> bytes:
    """`unpack` for a large batch: other tasks run in between."""
    large = zlib.decompressobj(_WINDOW, DICTIONARY)
    packed, pieces = memoryview(data), list[bytes]()
    for start in range(0, len(packed), _PACKED_SLICE):
        pieces.append(large.decompress(packed[start : start + _PACKED_SLICE]))
        await asyncio.sleep(0)
    pieces.append(large.flush())
    _check_eof(large)
    return b"".join(pieces)


def _check_eof(large: Any) -> None:
    """Raise unless a batch was decompressed to its last byte."""
    if not large.eof:
        raise zlib.error("incomplete")
    if large.unused_data:
        raise zlib.error("it has bytes after its end")


async def decode_batches(session: str, batches: Iterable[Batch], start: int = 0) -> list[Record]:
    """The records of some batches, from record `start` on. If there are many, other tasks run in between."""
    records: list[Record] = []
    size = 0
    for batch in batches:
        seq = batch.seq
        for lines in _pieces(batch.lines):
            found = records_of(session, seq, lines)
            records += found[max(start - seq, 0) :] if seq < start else found
            seq += len(found)
            size += len(lines)
            if size >= SLICE:
                size = 0
                await asyncio.sleep(0)
    return records


def _pieces(lines: bytes) -> Iterator[bytes]:
    """The lines of a batch in pieces of about `SLICE` bytes; mostly one."""
    start = 0
    while len(lines) - start > SLICE and (end := lines.find(b"\n", start + SLICE)) >= 0:
        yield lines[start:end]
        start = end + 1
    yield lines[start:] if start else lines


def records_of(session: str, seq: int, lines: bytes) -> list[Record]:
    """Decode the records of a batch. The error for an unreadable record names it."""
    records: list[Record] = []
    try:
        for line in lines.split(b"\n"):
            records.append(decode(line))  # noqa: PERF401 - the error states the record's number
    except (StoreError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the log of session {session!r}, record {seq + len(records) + 1}: {error}") from None
    return records


class Change(Struct):
    """What a batch changes besides the log: the session's row, its open questions, its inbox.

    `ends` says that the batch ends or suspends the turn.
    """

    status: Status | None = None
    agent: str | None = None
    title: str | None = None
    at: float = 0.0
    asked: dict[str, Asked] = {}
    answered: list[str] = []
    taken: list[str] = []
    parent: str | None = None
    ends: bool = False


def change_of(records: Sequence[Record]) -> Change | None:
    """What a batch changes besides the log. Mostly None: the records of a step only add to the log."""
    change: Change | None = None
    for record in records:
        note = _NOTES.get(type(record))
        if note is not None:
            if change is None:
                change = Change()
            note(change, record)
    return change


def column_text(text: str) -> str:
    """The beginning of a text, without lone surrogates and NUL: text columns reject them."""
    return text[:200].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def is_column_text(text: str) -> bool:
    """Whether this is a text that a text column can hold. The ids of sessions are."""
    return bool(text) and "\0" not in text and text.encode("utf-8", "ignore").decode() == text


def _opened(change: Change, record: SessionOpened) -> None:
    change.agent, change.at, change.status = column_text(record.agent), record.at, "open"
    change.parent = record.parent if is_column_text(record.parent) else None


def _imported(change: Change, record: HistoryImported) -> None:
    change.agent, change.at, change.status = column_text(record.agent), record.at, "open"
    first = [message.text for message in record.messages if message.role == "user"]
    change.title, change.ends = column_text(first[0]) if first else None, True


def _started(change: Change, record: TurnStarted) -> None:
    change.title, change.at, change.status = change.title or column_text(record.message.text), record.at, "running"
    change.ends = False


def _asked(change: Change, record: Asked) -> None:
    change.asked[record.id] = record


def _answered(change: Change, record: Answered) -> None:
    if not record.partial and change.asked.pop(record.id, None) is None:
        change.answered.append(record.id)


def _suspended(change: Change, record: Suspended) -> None:
    change.at, change.status, change.ends = record.at, "suspended", True


def _resumed(change: Change, record: Resumed) -> None:
    change.at, change.status, change.ends = record.at, "running", False


def _turn_ended(change: Change, record: TurnEnded) -> None:
    change.at, change.status, change.ends = record.at, "open", True
    change.asked.clear()
    change.answered.append("*")


def _session_ended(change: Change, record: SessionEnded) -> None:
    change.at, change.status, change.ends = record.at, "ended", True


def _taken(change: Change, record: InboxTaken) -> None:
    change.taken.append(record.key)


_NOTES: dict[type[Record], Any] = {
    SessionOpened: _opened,
    HistoryImported: _imported,
    TurnStarted: _started,
    Asked: _asked,
    Answered: _answered,
    Suspended: _suspended,
    Resumed: _resumed,
    TurnEnded: _turn_ended,
    SessionEnded: _session_ended,
    InboxTaken: _taken,
}
