"""ClearResults: hides old tool results from the model; the calls stay visible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.context.compaction import Window
from windlass.errors import ConfigError
from windlass.events import Compaction
from windlass.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from windlass.turns import Turn

from .cutting import check_text
from .option_types import check_types
from .triggers import AtFraction, Trigger, as_trigger, is_number, notes_on

if TYPE_CHECKING:
    from windlass import Hooks

CLEARED = "{}"
"""What takes the place of arguments."""

PLACEHOLDER = "[This result was cleared to save space.]"


class ClearResults:
    """Clear old tool results when the `trigger` is due, all at once, except the last `keep` results and the results of
    tools named in `exclude`. The calls stay, without their arguments if `arguments` is true; the transcript keeps
    everything.

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
        arguments: bool = False,
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
        self.arguments = arguments

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
        return [self._clear(message, old.get(start + at, {})) for at, message in enumerate(messages)]

    def _old(self, window: Window) -> dict[int, dict[int, Part]]:
        """What may be cleared and is longer than what takes its place: by message, the new parts by their position."""
        results = [
            (at, position, part)
            for at, message in enumerate(window.messages)
            if message.role == "tool"
            for position, part in enumerate(message.parts)
            if type(part) is ToolResultPart
        ]
        of_old = [one for one in results[: max(len(results) - self.keep, 0)] if one[2].name not in self.exclude]
        old: dict[int, dict[int, Part]] = {}
        for at, position, part in of_old:
            if _length(part) > len(self.placeholder[0].text):
                old.setdefault(at, {})[position] = part.replace(content=self.placeholder)
        if self.arguments:
            answered = {part.call_id for _, _, part in of_old}
            for at, message in enumerate(window.messages):
                for position, call in enumerate(message.parts):
                    if type(call) is ToolCallPart and call.id in answered and len(call.json) > len(CLEARED):
                        old.setdefault(at, {})[position] = call.replace(json=CLEARED)
        return old

    def _freed(self, window: Window, old: Mapping[int, Mapping[int, Part]]) -> int:
        """Estimate how many tokens would be freed."""
        before = [window.messages[at].parts[position] for at, parts in old.items() for position in parts]
        return window.parts(before) - window.parts([part for parts in old.values() for part in parts.values()])

    def _clear(self, message: Message, cleared: Mapping[int, Part]) -> Message:
        """A message with some of its parts cleared."""
        if not cleared:
            return message
        return message.replace(parts=tuple([cleared.get(at, part) for at, part in enumerate(message.parts)]))

    def explained(self, window: int | None) -> Mapping[str, Any]:
        """The options and notes for `agent.explain()`."""
        options = {"trigger": repr(self.trigger), "keep": self.keep, "exclude": sorted(self.exclude), "gain": self.gain}
        options |= {"arguments": True} if self.arguments else {}
        return {**options, "notes": notes_on(self.trigger, window)}


def _length(part: ToolResultPart) -> int:
    """The approximate length of the content; parts other than text count as long."""
    return sum([len(inner.text) if isinstance(inner, TextPart) else 1000 for inner in part.content])
