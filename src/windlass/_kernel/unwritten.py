"""On resume: what hooks keep out of the log they are asked for again, wherever in the turn it belongs."""

from __future__ import annotations

from collections.abc import Iterator

from windlass._hooks.dispatch import Passage
from windlass.events import StepEnding, StepStarting, ToolCalling, ToolReturning, TurnStarting
from windlass.messages import ToolCall, ToolCallPart, ToolResult, ToolResultPart
from windlass.states import Fold, step_id

from .segment import Segment
from .stages import inject_again


async def inject_unwritten(segment: Segment) -> None:
    """Ask the hooks of this turn whose parts are not in the log, once for each place that still counts."""
    turn = segment.fold.turn
    assert turn is not None
    places = dict.fromkeys([(item.event, item.about) for item in turn.injected if not item.record])
    returned = dict(_returned(segment.fold)) if places else {}
    for event, about in places:
        if (passage := _passage(segment, event, about, returned)) is not None:
            await inject_again(segment, passage, about)


def _passage(
    segment: Segment, event: str, about: str, returned: dict[str, tuple[ToolCall, ToolResult]]
) -> Passage | None:
    """An event of the turn, as its hooks saw it; None if what they would say of it is shown no more."""
    fold, hooks, turn = segment.fold, segment.hooks, segment.turn
    assert fold.turn is not None
    number = fold.steps + 1
    if event == "TurnStarting" and hooks.turn_starting is not None:
        return Passage(hooks.turn_starting, TurnStarting(fold.turn.message, turn), segment, about)
    if about == step_id(fold.session, number) and (fold.open is None or fold.open.reply is None):
        if event == "StepStarting" and hooks.step_starting is not None:
            return Passage(hooks.step_starting, StepStarting(number, turn), segment, f"{about}/start")
        last = fold.state.turn.last if fold.state.turn is not None else None
        if event == "StepEnding" and hooks.step_ending is not None and last is not None:
            return Passage(hooks.step_ending, StepEnding(last, turn), segment, f"{about}/end")
    if about in returned:
        call, result = returned[about]
        if event == "ToolCalling" and hooks.tool_calling is not None:
            return Passage(hooks.tool_calling, ToolCalling(call, turn), segment, about)
        if event == "ToolReturning" and hooks.tool_returning is not None:
            return Passage(hooks.tool_returning, ToolReturning(call, result, turn), segment, about)
    return None


def _returned(fold: Fold) -> Iterator[tuple[str, tuple[ToolCall, ToolResult]]]:
    """The calls of the turn that have their result, by id."""
    assert fold.turn is not None
    calls: dict[str, ToolCall] = {}
    for message in fold.messages[fold.turn.start :]:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                calls[part.id] = ToolCall(part.id, part.name, part.json, part.vendor_id)
            elif isinstance(part, ToolResultPart) and part.call_id in calls:
                yield part.call_id, (calls[part.call_id], ToolResult(part.content, part.status))
    for state in fold.open.calls.values() if fold.open is not None else ():
        if state.result is not None:
            yield state.call.id, (state.call, state.result)
