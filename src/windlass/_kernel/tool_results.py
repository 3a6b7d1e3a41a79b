"""Results on their way to the model: each passes ToolReturning, also that of a call that is closed
unfinished."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage, failed_hook
from windlass.decisions import Deny
from windlass.errors import HookError
from windlass.events import ToolReturning
from windlass.messages import ToolCall, ToolResult, text_result
from windlass.outcomes import ErrorValue, error_value
from windlass.records import HookDecided, HookFailed, Injected, ToolReturned
from windlass.states import CallFold

from .injections import Injections
from .journal import Journal
from .site import Site

CLOSED = "/closed"
"""Ends the id under which hooks are asked about the result of a call that is closed."""

UNKNOWN = "Interrupted, outcome unknown: it was started and may or may not have happened. Do not assume either."
"""What a model reads of a call that a process started before it died."""

_WITHHELD = (
    "withheld: hooks on ToolReturning look at the results of this tool, but have not seen this text"
)


class ToolResults(Struct, eq=False):
    """Brings results past their hooks into the log.

    `unreturned` are results that no hook has let pass yet, by call.
    """

    _journal: Journal
    _site: Site
    _injections: Injections
    _unreturned: tuple[tuple[str, ToolResult], ...] = ()
    _point: Point | None = None

    def __post_init__(self) -> None:
        self._point = self._site.hooks.at(ToolReturning)

    @property
    def reviewed(self) -> bool:
        """Whether hooks look at results."""
        return self._point is not None

    async def record(
        self, state: CallFold, shown: ToolCall, result: ToolResult, error: ErrorValue | None = None
    ) -> None:
        """A result, past its hooks, into the log."""
        if self._point is not None:
            result = await self.review(state, shown, result)
        self.add(state, result, error)

    async def review(self, state: CallFold, shown: ToolCall, result: ToolResult) -> ToolResult:
        """A result past its hooks.

        If that is broken off, the result is kept for the end of the step.
        """
        point, site, journal = self._point, self._site, self._journal
        assert point is not None
        if (turn := journal.fold.turn) is not None and turn.injected:
            result = _joined(state.call, result, turn.injected)
        given = result
        items: list[Injected] = []
        event = ToolReturning(shown, result, site.turn)
        if not point.is_asked_about(event):
            return result
        passage = Passage(point, event, site, shown.id)
        try:
            if point.changing:
                try:
                    result = (await passage.rewrite()).result
                except HookError as error:
                    return self._withhold(error, took=passage.took)
            verdict: Any = await passage.judge() if point.decides else None
            try:
                if point.injects and not isinstance(verdict, Deny):
                    items = await passage.inject()
            finally:  # not before: with its result, or not at all
                if passage.answers:
                    name, answers, took = point.name, passage.answers, passage.took
                    journal.record(HookDecided(name, shown.id, verdict, answers, took=took))
        except asyncio.CancelledError:
            self.keep(state.call.id, given)
            raise
        if isinstance(verdict, Deny):
            return text_result(f"Withheld: {verdict.reason}", "denied")
        for item in items:
            if item.durable:
                result = result.replace(content=(*result.content, *item.parts))
            else:
                self._injections.put(item)
        return result

    def add(self, state: CallFold, result: ToolResult, error: ErrorValue | None = None) -> None:
        """A result into the log, once its hooks have reviewed it, if there are any."""
        journal, call = self._journal, state.call
        fold = journal.fold
        if self._point is None and (turn := fold.turn) is not None and turn.injected:
            result = _joined(call, result, turn.injected)
        journal.add(ToolReturned(call.id, call.name, result, error, at=fold.tick(journal.now)))

    def keep(self, call: str, result: ToolResult) -> None:
        """Keep a result that no hook has let pass, for the end of the step."""
        self._unreturned += ((call, result),)

    # ------------------------------------------------------------ calls that will not be finished

    async def close(self, state: CallFold, reason: str) -> None:
        """Give a call that will not be finished its result: rewrites and a `Deny` hold, other
        answers are recorded."""
        call = state.call
        result = dict(self._unreturned).get(state.proposed.id) or self._closed(state, reason)
        if self._point is not None:
            result = await self._pass_closed(call, result)
        self._journal.record(ToolReturned(call.id, call.name, result))

    def _closed(self, state: CallFold, reason: str) -> ToolResult:
        """The result of a closed call; a pure one has done nothing, whether it was started or
        not."""
        tool = self._journal.program.tools.get(state.call.name)
        if state.in_doubt and (tool is None or tool.effect != "pure"):
            text = f"Interrupted, outcome unknown: it may or may not have happened. {reason}"
            return text_result(text, "interrupted")
        return text_result(f"Cancelled: {reason}", "cancelled")

    async def _pass_closed(self, call: ToolCall, result: ToolResult) -> ToolResult:
        point, journal, limit = self._point, self._journal, self._journal.program.ending_timeout
        assert point is not None
        event = ToolReturning(call, result, self._site.turn)
        passage = self._site.passage(point, event, f"{call.id}{CLOSED}")
        try:
            async with asyncio.timeout(limit):
                result = (await passage.rewrite()).result
                verdict = await passage.judge()
        except HookError as error:
            return self._withhold(error, result.status, passage.took)
        except TimeoutError as late:
            journal.record(
                HookFailed(
                    "ToolReturning", "ToolReturning", error_value(late), "withheld", took=limit
                )
            )
            return text_result(
                f"Withheld: the hooks of ToolReturning took longer than {limit} s", result.status
            )
        if passage.answers:
            journal.record(
                HookDecided(point.name, passage.about, verdict, passage.answers, took=passage.took)
            )
        return (
            text_result(f"Withheld: {verdict.reason}", "denied")
            if isinstance(verdict, Deny)
            else result
        )

    def _withhold(self, error: HookError, status: str = "error", took: float = 0.0) -> ToolResult:
        """What stands for a result that a rewrite failed on: the model reads which hook failed, the
        log why."""
        self._journal.record(
            HookFailed(error.hook, "ToolReturning", error_value(error), "withheld", took=took)
        )
        return text_result(f"Error: the result is withheld: {failed_hook(error)}", status)  # type: ignore[arg-type]

    def details_of(self, call: ToolCall, error: BaseException) -> ErrorValue:
        """What the log has of a tool's error: its text only if no hook cleans the results of the
        tool."""
        value, point = error_value(error), self._point
        return (
            value if point is None or not point.looks_at(call) else value.replace(message=_WITHHELD)
        )


def _joined(call: ToolCall, result: ToolResult, injected: tuple[Injected, ...]) -> ToolResult:
    """The result with what was injected beside it for good, when the call was judged."""
    for item in injected:
        if item.durable and item.about == call.id:
            result = result.replace(content=(*result.content, *item.parts))
    return result
