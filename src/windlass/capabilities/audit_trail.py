"""AuditTrail: exports every effect and decision as JSON lines that can be checked against the log's hash chain."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from windlass.errors import StoreError
from windlass.logs import Link
from windlass.protocols import Store
from windlass.records import (
    KINDS,
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

from .option_types import check_types
from .options import require, require_name

if TYPE_CHECKING:
    from windlass import Hooks

Line: TypeAlias = dict[str, Any]

EFFECTS: tuple[type[Record], ...] = (
    TurnStarted, ModelReplied, ModelAttempted, SideReplied, ToolCalled, ToolAttempted, ToolReturned, UndoCalled,
    Delegated, TurnEnded,
)  # fmt: skip
DECISIONS: tuple[type[Record], ...] = (
    ToolDecided, HookDecided, Rewritten, ReplyRejected, StopVetoed, Asked, Answered, Withdrawn, Suspended, Resumed,
    TakenOver, CancelRequested, ErrorHandled, HookFailed, Noted,
)  # fmt: skip

_CONTENT = frozenset(
    {
        "reply", "result", "message", "json", "text", "fields", "data", "question", "details", "call", "request",
        "feedback", "task", "answers", "waiting_for", "delegation", "proposed",
    }
)  # fmt: skip
"""The fields that quote the conversation. An id of a call is kept."""


class AuditTrail:
    """Export every effect and decision as a JSON line, with its place in the hash chain of the log.

    `target` is a file to append to, or a function that gets each line as a dict. Lines are exported at least once, also
    after a crash, in the order of each session's log. With `content=False` they say what was done and decided, by whom
    and when, but quote nothing. `records` are the kinds of records to export. With `sync`, each line is on disk before
    the next one. `name` is the name of the capability and of its cursor in the store. `check_trail` compares a file
    with the logs.
    """

    @check_types
    def __init__(
        self,
        target: str | os.PathLike[str] | Callable[[Line], object],
        *,
        content: bool = True,
        records: Iterable[type[Record]] = (*EFFECTS, *DECISIONS),
        sync: bool = True,
        name: str = "audit_trail",
    ) -> None:
        require_name("AuditTrail", name)
        require("AuditTrail", "target", target, target != "", "a file or a function")
        self.records = frozenset(records)
        legal = bool(self.records) and self.records <= frozenset(KINDS.values())
        require("AuditTrail", "records", records, legal, "kinds of records, such as ToolReturned")
        self.name = name
        self.content = content
        self.sync = sync
        self._target = target if callable(target) else Path(target)

    def install(self, registrar: Hooks) -> None:
        """Observe the whole log, durably."""

        @registrar.observe(Record, durable=True, name=self.name, inherit=True)
        def export(fact: Record, link: Link) -> object:
            if type(fact) in self.records:
                line = self._line(fact, link)
                if not isinstance(self._target, Path):
                    return self._target(line)
                self._write(self._target, line)
            return None

    def _line(self, fact: Record, link: Link) -> Line:
        plain = plain_record(fact)
        if not self.content:
            if "verdict" in plain:
                plain["verdict"] = _without_reason(plain["verdict"])
            plain = {key: value for key, value in plain.items() if key not in _CONTENT or _is_id(key, value)}
        return {"session": link.session, "seq": link.seq, "batch": link.batch, "link": link.hash, **plain}

    def _write(self, path: Path, line: Line) -> None:
        """Append a line in one write, so that lines of several processes do not mix."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # a line that was cut off when the disk was full
                data = b"\n" + data
            if os.write(file, data) != len(data):
                raise OSError(f"the line for {path.name} could not be written completely")
            if self.sync:
                os.fsync(file)
        finally:
            os.close(file)


def _is_id(key: str, value: object) -> bool:
    return key == "call" and isinstance(value, str)


def _without_reason(verdict: Any) -> Any:
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
        if value != expected and not (key == "verdict" and value == _without_reason(expected)):
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
