"""Notes: facts that hooks and tools record by themselves, each once, however often its maker runs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct

from windlass.errors import ConfigError, HookError
from windlass.records import Noted
from windlass.turns import Asker

from .journal import Journal

LONGEST = 200
"""How many characters the kind of a note may have."""

LARGEST = 8192
"""How many bytes of JSON a note may have."""


class Notes(Struct, eq=False):
    """The notes of one pass, each counted among those of the same kind by the same maker."""

    _journal: Journal
    _resumed: bool
    _counts: dict[str, int] = {}

    def add(self, asker: Asker, place: str, kind: object, data: Any) -> None:
        """Record a note, unless the log has it: then the first one stands."""
        if getattr(asker.chain[-1], "shadow", False):
            raise HookError(
                f"shadow gate {asker.by!r} cannot make a note: only what it answers is recorded",
                hook=asker.by,
            )
        if not isinstance(kind, str) or not 0 < len(kind) <= LONGEST or not kind.isprintable():
            raise ConfigError(
                f"turn.note({kind!r}, …): the kind of a note is a text, such as 'budget.warning'"
            )
        plain = _plain(asker.by, kind, data)
        counted = f"{asker.event}:{place}:{asker.by}:{kind}"
        self._counts[counted] = number = self._counts.get(counted, 0) + 1
        key = f"{counted}#{number}"
        turn = self._journal.fold.turn if self._resumed else None
        if turn is None or not any(note.key == key for note in turn.notes):
            self._journal.record_side(Noted(asker.by, kind, plain, key))


def _plain(by: str, kind: str, data: Any) -> Any:
    """The data of a note as plain JSON values, which its maker cannot change afterwards."""
    try:
        text = json.dumps(
            msgspec.to_builtins(data, str_keys=True), separators=(",", ":"), allow_nan=False
        )
        plain = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"note {kind!r} by {by!r}: its data has no JSON form: {error}") from None
    if (size := len(text)) > LARGEST:
        raise ConfigError(
            f"note {kind!r} by {by!r} has {size:,} bytes; a note has at most {LARGEST:,}"
        )
    return plain
