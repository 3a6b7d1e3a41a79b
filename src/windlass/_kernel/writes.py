"""What hooks and tools write: slots and messages become records when the hook has returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from windlass.errors import HookError, SlotConflict
from windlass.records import MessageHeld, SlotSet
from windlass.slots import Slot
from windlass.turns import Writes

from .journal import Journal


class WriteBuffer(Struct, eq=False):
    """Turns what hooks and tools wrote into records.

    While calls run in parallel, two writers of a slot conflict.
    """

    _journal: Journal
    _writers: dict[str, str] | None = None

    def keep(self, writes: Writes, stage: str = "") -> None:
        """Record what a hook or tool wrote; `stage` is where a hook wrote it."""
        journal = self._journal
        for name, (slot, value) in writes.slots.items():
            if self._writers is not None:
                self._refuse_conflict(self._writers, slot, writes.by)
            slots = journal.state.slots
            if slot.merge is not None and name in slots:
                value = self._merge(slot, slot.merge, value, writes.by)
            journal.record(SlotSet(name, slot.dump(value, writes.by), writes.by, stage))
        for message in writes.messages:
            journal.record(MessageHeld(message, writes.by, stage))
        writes.close()

    def in_parallel(self, on: bool) -> None:
        """Whether several calls run at once."""
        self._writers = {} if on else None

    def _merge(self, slot: Slot[Any], merge: Callable[[Any, Any], Any], value: Any, by: str) -> Any:
        try:
            return merge(slot.load(self._journal.state.slots), value)
        except Exception as error:
            text = f"the merge rule of slot {slot.name!r} failed on what {by!r} set: {type(error).__name__}: {error}"
            raise HookError(text, hook=by) from error

    def _refuse_conflict(self, writers: dict[str, str], slot: Slot[Any], by: str) -> None:
        first = writers.setdefault(slot.name, by)
        if first != by and slot.merge is None:
            raise SlotConflict(
                f"{first!r} and {by!r} set slot {slot.name!r} at the same time; give it a merge rule",
                hook=by,
            )
