"""AuditTrail: exports every effect and decision as JSON lines that can be checked against the log's hash chain."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.logs import Link
from windlass.records import (
    KINDS,
    Record,
)

from .option_types import check_types
from .options import require, require_name
from .trail_lines import DECISIONS, EFFECTS, Line, plain_record, without_reason

if TYPE_CHECKING:
    from windlass import Hooks

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
                plain["verdict"] = without_reason(plain["verdict"])
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
