"""Calls in doubt: a process started them and died before it could say what came of it.

The tool's rule decides.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from msgspec import Struct

from windlass._hooks.reveals import revealed
from windlass.decisions import Approve, Respond
from windlass.errors import HookError, ToolError
from windlass.messages import ToolCall, ToolResult, text_result
from windlass.outcomes import error_value
from windlass.records import Asked, HookFailed, UndoCalled
from windlass.states import CallFold
from windlass.tools import DoubtRule, Tool
from windlass.turns import Turn

from .arguments import NOT_KEPT, Arguments, not_run
from .journal import Journal
from .questions import Questions
from .tool_results import UNKNOWN, ToolResults

_ANSWERS = ("approve", "reject", "respond")


class CallsInDoubt(Struct, eq=False):
    """Decides what becomes of calls in doubt: run again, told to the model, asked of a person, or
    undone."""

    _journal: Journal
    _arguments: Arguments
    _questions: Questions
    _results: ToolResults
    _turn: Turn[Any]

    def _rule(self, state: CallFold) -> DoubtRule | None:
        """The rule for a call in doubt; None if it is not in doubt.

        A call whose tool is gone can only be told of.
        """
        if not state.in_doubt:
            return None
        tool = self._journal.program.tools.get(state.call.name)
        return "tell" if tool is None else tool.in_doubt

    def ask_person(self, state: CallFold, call: ToolCall) -> bool:
        """Ask a person what becomes of the call, once per start of it, if its tool says so.

        Whether the answer is still open.
        """
        if self._rule(state) != "ask" or not self._questions.may_ask:
            return False
        answered, digest = self._questions.answer_to(_about(state)), self._arguments.digest(call)
        if answered is not None and answered.digest == digest:  # what runs is what was asked about
            return False
        text = f"{call.name} was started and may or may not have happened: run it again?"
        self._questions.put(
            Asked(_about(state), "ToolCalled", text, _ANSWERS, digest, (call.name,), call)
        )
        return True

    def result_of_lost(self, state: CallFold) -> ToolResult | None:
        """The result of a call in doubt whose arguments held a secret that nobody has any more: it is
        neither run again nor undone."""
        if self._rule(state) is None:
            return not_run()
        tool = self._journal.program.tools.get(state.call.name)
        if tool is not None and tool.effect == "pure":
            return not_run()
        return text_result(f"{UNKNOWN} It was not run again: {NOT_KEPT}.", "interrupted")

    async def result_of(self, state: CallFold) -> ToolResult | None:
        """The result of a call in doubt; None if the call is to be made, for the first time or
        again."""
        match self._rule(state):
            case None | "rerun":
                return None
            case "tell":
                return text_result(UNKNOWN, "interrupted")
            case "ask":
                return self._as_answered(state)
            case "compensate":
                return await self._undo(state)

    def _as_answered(self, state: CallFold) -> ToolResult | None:
        answered = self._questions.answer_to(_about(state))
        match None if answered is None else answered.answer:
            case Approve():
                return None
            case Respond(text=text):
                return text_result(text, "responded")
            case rejected:
                message = getattr(rejected, "message", "")
                return text_result(f"{UNKNOWN} {message}".rstrip(), "interrupted")

    async def _undo(self, state: CallFold) -> ToolResult:
        """Undo what may have happened.

        The start of that is in the log before it begins, its outcome right after.
        """
        call, journal = self._arguments.known(state) or state.call, self._journal
        tool = journal.program.tools[call.name]
        if state.undoing:
            text = f"{UNKNOWN} Undoing it was started, too, and may or may not have happened."
            return text_result(text, "interrupted")
        try:
            values = revealed(journal.program.reveals, call, tool.prepare(call.json), self._turn)
        except ToolError as error:
            return text_result(f"{UNKNOWN} It could not be undone: {error}", "interrupted")
        except HookError as error:
            journal.record(HookFailed(error.hook, "UndoCalled", error_value(error), "not undone"))
            return text_result(f"{UNKNOWN} It could not be undone.", "interrupted")
        journal.record(UndoCalled(call.id, call.name))
        await journal.commit()
        try:
            async with asyncio.timeout(tool.timeout):
                await self._call(tool, values, call.id)
        except Exception as error:
            details = self._results.details_of(call, error)
            journal.record(HookFailed(call.name, "UndoCalled", details, effect="not undone"))
            return text_result(f"{UNKNOWN} Undoing it failed.", "interrupted")
        return text_result(
            "Interrupted: it was started, and whatever it did has been undone.", "interrupted"
        )

    async def _call(self, tool: Tool[..., Any], values: tuple[Any, ...], key: str) -> None:
        if inspect.iscoroutinefunction(tool.compensate):
            await tool.undo(values, key)
        elif tool.inline:
            tool.undo(values, key)
        else:
            await self._journal.program.in_thread(lambda: tool.undo(values, key))


def _about(state: CallFold) -> str:
    """The id of the question: a call that is started again and is in doubt again is asked about
    again."""
    return f"{state.call.id}/doubt.{state.starts}"
