"""Results on their way to the model: each passes ToolReturning, also that of a call that is closed unfinished."""

from __future__ import annotations

import asyncio

from windlass._hooks.dispatch import Passage, failed_hook
from windlass.decisions import Deny
from windlass.errors import HookError
from windlass.events import ToolReturning
from windlass.messages import ToolCall, ToolResult, text_result
from windlass.outcomes import ErrorValue, error_value
from windlass.records import HookDecided, HookFailed, Injected, ToolReturned
from windlass.states import CallFold

from .segment import Segment
from .stages import keep_out

CLOSED = "/closed"
"""Ends the id under which hooks are asked about the result of a call that is closed."""

_WITHHELD = "withheld: hooks on ToolReturning look at the results of this tool, but have not seen this text"


async def pass_on(segment: Segment, call: ToolCall, result: ToolResult) -> ToolResult:
    """The result of a call as its hooks leave it."""
    point = segment.hooks.tool_returning
    if point is None:
        return result
    passage = Passage(point, ToolReturning(call, result, segment.turn), segment, call.id)
    if point.changing:
        try:
            result = (await passage.rewrite()).result
        except HookError as error:
            return _withheld(segment, error, took=passage.took)
    verdict = await passage.judge()
    denied = isinstance(verdict, Deny)
    try:
        items = [] if denied or not passage.injects else await passage.inject(passage.about)
    finally:  # not before: with its result, or not at all
        if passage.answers:
            segment.record(HookDecided("ToolReturning", passage.about, verdict, passage.answers, took=passage.took))
    if denied:
        return text_result(f"Withheld: {verdict.reason}", "denied")
    for item in items:
        if item.durable:
            result = result.replace(content=(*result.content, *item.parts))
        else:
            beside_result(segment, item)
    return result


async def close(segment: Segment, state: CallFold, result: ToolResult) -> None:
    """Give a call that will not be finished its result. Rewrites and a `Deny` hold; all else hooks say is recorded."""
    call = state.call
    if segment.hooks.tool_returning is not None:
        result = await _pass_closed(segment, call, result)
    segment.record(ToolReturned(call.id, call.name, result))


async def _pass_closed(segment: Segment, call: ToolCall, result: ToolResult) -> ToolResult:
    point, limit = segment.hooks.tool_returning, segment.program.ending_timeout
    assert point is not None
    passage = Passage(point, ToolReturning(call, result, segment.turn), segment, f"{call.id}{CLOSED}")
    try:
        async with asyncio.timeout(limit):
            result = (await passage.rewrite()).result
            verdict = await passage.judge()
    except HookError as error:
        return _withheld(segment, error, result.status, passage.took)
    except TimeoutError as late:
        segment.record(HookFailed("ToolReturning", "ToolReturning", error_value(late), "withheld", took=limit))
        return text_result(f"Withheld: the hooks of ToolReturning took longer than {limit} s", result.status)
    if passage.answers:
        segment.record(HookDecided("ToolReturning", passage.about, verdict, passage.answers, took=passage.took))
    return text_result(f"Withheld: {verdict.reason}", "denied") if isinstance(verdict, Deny) else result


def _withheld(segment: Segment, error: HookError, status: str = "error", took: float = 0.0) -> ToolResult:
    """What stands for a result that a rewrite failed on: the model reads which hook failed, the log why."""
    segment.record(HookFailed(error.hook, "ToolReturning", error_value(error), "withheld", took=took))
    return text_result(f"Error: the result is withheld: {failed_hook(error)}", status)  # type: ignore[arg-type]


def details_of(segment: Segment, call: ToolCall, error: BaseException) -> ErrorValue:
    """What the log has of an error of a tool: its text only if no hook cleans the results of the tool."""
    value = error_value(error)
    point = segment.hooks.tool_returning
    return value if point is None or not point.looks_at(call) else value.replace(message=_WITHHELD)


def beside_result(segment: Segment, item: Injected) -> None:
    """Parts that hooks put beside the result of a call."""
    if item.record or item.durable:
        segment.record(item)
    else:
        keep_out(segment, item)
