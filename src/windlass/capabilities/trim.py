"""Trim: hides the oldest messages from the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.context.compaction import Window
from windlass.events import Compaction
from windlass.messages import Message, user
from windlass.turns import Turn

from .cutting import Keep, as_keep, check_target, check_text, compacted_recently, oldest
from .option_types import check_types
from .triggers import AtFraction, AtMessages, Trigger, as_trigger, notes_on

if TYPE_CHECKING:
    from windlass import Hooks

NOTE = "Earlier messages of this conversation are no longer shown."


class Trim:
    """Hide the oldest messages from models when the `trigger` is due.

    The last messages, as `keep` says, always stay, and more of them as long as they fit the `target`, a fraction of the
    trigger's threshold. A note replaces the hidden messages. The transcript keeps them all.
    """

    @check_types
    def __init__(
        self,
        trigger: Trigger | Iterable[Trigger] = AtFraction(0.8),  # noqa: B008
        keep: Keep | int = AtMessages(6),  # noqa: B008
        *,
        target: float = 0.5,
        note: str = NOTE,
        name: str = "trim",
    ) -> None:
        check_text("Trim", "name", name)
        check_text("Trim", "note", note)
        check_target("Trim", target)
        self.name = name
        self.trigger = as_trigger("Trim", trigger)
        self.keep = as_keep("Trim", keep, self.trigger)
        self.target = target
        self.note = user(note, origin=name)

    def install(self, registrar: Hooks) -> None:
        """Register this strategy."""
        registrar.compactor(self)

    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None:
        """The range to hide now."""
        if not forced and (not self.trigger.due(window) or compacted_recently(window, self.name)):
            return None
        added = window.size([self.note])
        found = oldest(window, self.name, self.keep, self.trigger, self.target, added=added, forced=forced)
        return None if found is None else Compaction(found, reason=repr(self.trigger))

    async def replace(self, plan: Compaction, window: Window, turn: Turn[Any]) -> Sequence[Message]:
        """The note."""
        return [self.note]

    def explained(self, window: int | None) -> Mapping[str, Any]:
        """The options and notes for `agent.explain()`."""
        options = {"trigger": repr(self.trigger), "keep": repr(self.keep), "target": self.target}
        return {**options, "notes": notes_on(self.trigger, window)}
