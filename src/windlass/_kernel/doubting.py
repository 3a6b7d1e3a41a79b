"""Calls in doubt: somebody started them and did not live to tell. The policy of the tool says what becomes of them."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from windlass.decisions import Approve, Respond
from windlass.errors import ToolError
from windlass.messages import ToolCall, ToolResult, text_result
from windlass.records import Asked, HookFailed, UndoCalled
from windlass.states import CallFold
from windlass.tools import DoubtRule, Tool

from .returning import details_of
from .segment import Segment

UNKNOWN = "Interrupted, outcome unknown: it was started and may or may not have happened. Do not assume either."
_ANSWERS = ("approve", "reject", "respond")


def rule_of(segment: Segment, state: CallFold) -> DoubtRule | None:
    """What is to be done about a call in doubt; None if it is not. Of a tool that is gone one can only tell."""
    if not state.in_doubt:
        return None
    tool = segment.program.tools.get(state.call.name)
    return "tell" if tool is None else tool.in_doubt


def waits_for_word(segment: Segment, state: CallFold, call: ToolCall) -> bool:
    """Whether a person has to say what becomes of a call in doubt; the question is put, once per start of the call."""
    if rule_of(segment, state) != "ask" or segment.answer_to(_about(state)) is not None:
        return False
    text = f"{call.name} was started and may or may not have happened: run it again?"
    segment.ask_person(Asked(_about(state), "ToolCalled", text, _ANSWERS, call.digest, (call.name,), call))
    return True


async def settle(segment: Segment, state: CallFold) -> ToolResult | None:
    """The result of a call in doubt; None if it is to be made, for the first time or again."""
    match rule_of(segment, state):
        case None | "rerun":
            return None
        case "tell":
            return text_result(UNKNOWN, "interrupted")
        case "ask":
            return _as_told(segment, state)
        case "compensate":
            return await _undo(segment, state)


def _as_told(segment: Segment, state: CallFold) -> ToolResult | None:
    answered = segment.answer_to(_about(state))
    match None if answered is None else answered.answer:
        case Approve():
            return None
        case Respond(text=text):
            return text_result(text, "responded")
        case rejected:
            message = getattr(rejected, "message", "")
            return text_result(f"{UNKNOWN} {message}".rstrip(), "interrupted")


async def _undo(segment: Segment, state: CallFold) -> ToolResult:
    """Undo what may have happened. That this begins is in the log before it does, and what came of it right after."""
    call = state.call
    tool = segment.program.tools[call.name]
    if state.undoing:
        return text_result(f"{UNKNOWN} Undoing it was started, too, and may or may not have happened.", "interrupted")
    try:
        values = tool.prepare(call.json)
    except ToolError as error:
        return text_result(f"{UNKNOWN} It could not be undone: {error}", "interrupted")
    segment.record(UndoCalled(call.id, call.name))
    await segment.commit()
    try:
        async with asyncio.timeout(tool.timeout):
            await _call(segment, tool, values, call.id)
    except Exception as error:
        segment.record(HookFailed(call.name, "UndoCalled", details_of(segment, call, error), effect="not undone"))
        return text_result(f"{UNKNOWN} Undoing it failed.", "interrupted")
    return text_result("Interrupted: it was started, and whatever it did has been undone.", "interrupted")


async def _call(segment: Segment, tool: Tool[..., Any], values: tuple[Any, ...], key: str) -> None:
    if inspect.iscoroutinefunction(tool.compensate):
        await tool.undo(values, key)
    elif tool.inline:
        tool.undo(values, key)
    else:
        await segment.in_thread(lambda: tool.undo(values, key))


def _about(state: CallFold) -> str:
    """The id of the question: a call that is started again and is in doubt again is asked about again."""
    return f"{state.call.id}/doubt.{state.starts}"
