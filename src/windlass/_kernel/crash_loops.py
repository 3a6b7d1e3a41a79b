"""Crash loops: a turn that kills its process is not resumed for ever.

The fold counts how often in a row a turn was resumed and nothing was finished (`restarts`). At the
third time the calls that were under way are closed as interrupted; without such calls the turn
stops. If hooks at its end kill the process, too, the turn ends without them.
"""

from __future__ import annotations

from msgspec import Struct

from windlass.messages import ToolCall, text_result
from windlass.outcomes import Cancelled, Failed, Stopped, StopReason
from windlass.states import CallFold, Fold, TurnFold
from windlass.tools import ArgumentsError

from .ends_without_hooks import end_turn
from .entry import Entry
from .site import Site
from .step_end import StepEnd
from .tool_results import UNKNOWN

RESTARTS = 3
"""At which restart without progress a turn is not simply continued."""

RESTARTS_ABOVE = 2 * RESTARTS
"""The same for a call that a sub-agent works on. Its own log counts, too, and its own calls are
closed first."""


class CrashLoops(Struct, eq=False):
    """Ends the crash loop of a turn when it is resumed."""

    _site: Site
    _entry: Entry
    _step_end: StepEnd

    async def break_off(self) -> None:
        """Close the calls that keep killing the process, or conclude the turn, or end it without
        hooks.

        What comes of it is stored before the next hook runs.
        """
        journal = self._site.journal
        fold, turn = journal.fold, journal.fold.turn
        if turn is None or turn.restarts < RESTARTS:
            return
        own, below = _under_way(fold)
        if turn.concluded is not None:
            await self._end_without_hooks(turn)
        elif own and turn.restarts == RESTARTS:
            await self._close(own, turn.restarts)
        elif below and not own and turn.restarts < RESTARTS_ABOVE:
            return
        elif below and not own and turn.restarts == RESTARTS_ABOVE:
            await self._step_end.end_sub_agents(_why(turn.restarts))
            await self._close(below, turn.restarts)
        else:
            journal.conclude(Stopped(StopReason.CRASH_LOOP, _why(turn.restarts)))
        await journal.commit()

    async def _close(self, calls: list[CallFold], restarts: int) -> None:
        """Tell the model that these calls were interrupted, past the hooks that look at results."""
        text = f"{UNKNOWN} It is not called again: {_why(restarts)}."
        for call in calls:
            shown = self._shown(call.call)
            await self._step_end.record_result(call, shown, text_result(text, "interrupted"))

    def _shown(self, call: ToolCall) -> ToolCall:
        """What hooks see of a call."""
        try:
            return self._site.completed(call)
        except ArgumentsError:
            return call

    async def _end_without_hooks(self, turn: TurnFold) -> None:
        """End a turn whose ending hooks kill the process: no message of its open step enters the
        transcript, and its answer is withheld. So end the agents below, whose hooks may be the ones."""
        outcome, why = turn.concluded, _why(turn.restarts)
        if not isinstance(outcome, Failed | Cancelled):
            outcome = Stopped(
                StopReason.CRASH_LOOP,
                f"{why}. The turn was ending, so it ended without its hooks and without an answer",
            )
        await self._step_end.end_sub_agents_without_hooks(why)
        end_turn(self._site.journal, outcome, f"{why}.", session_ends=self._entry.ephemeral)


def _under_way(fold: Fold) -> tuple[list[CallFold], list[CallFold]]:
    """The calls that were under way when the process died: those of tools, and those that
    sub-agents work on."""
    calls = fold.open.calls.values() if fold.open is not None else ()
    started = [call for call in calls if call.in_doubt]
    return (
        [call for call in started if not call.children],
        [call for call in started if call.children],
    )


def _why(restarts: int) -> str:
    return (
        f"the turn was resumed {restarts} times in a row, and each time its process died before "
        "anything was finished"
    )
