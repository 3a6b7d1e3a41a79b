"""ClearResults: hides old tool results from the model; the calls stay visible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.context.compaction import Window
from windlass.errors import ConfigError
from windlass.events import Compaction
from windlass.messages import Message, Part, TextPart, ToolResultPart
from windlass.turns import Turn

from .cutting import check_text
from .option_types import check_types
from .triggers import AtFraction, Trigger, as_trigger, is_number, notes_on

if TYPE_CHECKING:
    from windlass import Hooks

PLACEHOLDER = "[This result was cleared to save space.]"


class ClearResults:
    """Clear old tool results when the `trigger` is due, all at once, except the last `keep` results and the results of
    tools named in `exclude`. The calls stay, and the transcript keeps everything.

    It waits until clearing would free at least the fraction `gain` of the request.
    """

    @check_types
    def __init__(
        self,
        trigger: Trigger | Iterable[Trigger] = AtFraction(0.6),  # noqa: B008
        *,
        keep: int = 3,
        exclude: Iterable[str] = (),
        placeholder: str = PLACEHOLDER,
        gain: float = 0.2,
        name: str = "clear_results",
    ) -> None:
        owner = "ClearResults"
        check_text(owner, "name", name)
        check_text(owner, "placeholder", placeholder)
        if type(keep) is not int or keep < 0:
            raise ConfigError(f"{owner}: keep={keep!r} must be the number of results that stay, 0 or more")
        if isinstance(exclude, str):
            raise ConfigError(f"{owner}: exclude={exclude!r} must be a list or tuple of tool names")
        if not (is_number(gain) and 0 < gain < 1):
            raise ConfigError(f"{owner}: gain={gain!r} must be a fraction of the request, above 0 and below 1")
        self.name = name
        self.trigger = as_trigger(owner, trigger)
        self.keep = keep
        self.exclude = frozenset(exclude)
        self.placeholder = (TextPart(placeholder, origin=name),)
        self.gain = gain

    def install(self, registrar: Hooks) -> None:
        """Register this strategy."""
        registrar.compactor(self)

    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None:
        """The range to clear now: from the first old result to the last."""
        if not forced and not self.trigger.due(window):
            return None
        old = self._old(window)
        if not old:
            return None
        if not forced and self._freed(window, old) < window.tokens * self.gain:
            return None
        cuts = window.cuts()
        start = max(cut for cut in cuts if cut <= min(old))
        end = min((cut for cut in cuts if cut > max(old)), default=None)
        return None if end is None else Compaction((start, end), reason=repr(self.trigger))

    async def replace(self, plan: Compaction, window: Window, turn: Turn[Any]) -> Sequence[Message]:
        """The same messages with the old results cleared."""
        old = self._old(window)
        start, end = plan.range
        messages = window.messages[start:end]
        return [self._clear(message, old.get(start + at, set())) for at, message in enumerate(messages)]

    def _old(self, window: Window) -> dict[int, set[int]]:
        """The positions of results that may be cleared and are longer than the placeholder, by message."""
        found = [
            (at, position, part)
            for at, message in enumerate(window.messages)
            if message.role == "tool"
            for position, part in enumerate(message.parts)
            if type(part) is ToolResultPart
        ]
        old: dict[int, set[int]] = {}
        for at, position, part in found[: max(len(found) - self.keep, 0)]:
            if part.name not in self.exclude and _length(part) > len(self.placeholder[0].text):
                old.setdefault(at, set()).add(position)
        return old

    def _freed(self, window: Window, old: Mapping[int, set[int]]) -> int:
        """Estimate how many tokens would be freed."""
        parts = [window.messages[at].parts[position] for at, positions in old.items() for position in positions]
        return window.parts(parts) - len(parts) * window.parts(self.placeholder)

    def _clear(self, message: Message, positions: set[int]) -> Message:
        """A message with some of its results cleared."""
        if not positions:
            return message
        parts: list[Part] = list(message.parts)
        for position in positions:
            part = parts[position]
            assert isinstance(part, ToolResultPart)
            parts[position] = part.replace(content=self.placeholder)
        return message.replace(parts=tuple(parts))

    def explained(self, window: int | None) -> Mapping[str, Any]:
        """The options and notes for `agent.explain()`."""
        options = {"trigger": repr(self.trigger), "keep": self.keep, "exclude": sorted(self.exclude), "gain": self.gain}
        return {**options, "notes": notes_on(self.trigger, window)}


def _length(part: ToolResultPart) -> int:
    """The approximate length of the content; parts other than text count as long."""
    return sum([len(inner.text) if isinstance(inner, TextPart) else 1000 for inner in part.content])
