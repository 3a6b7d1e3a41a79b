"""The end of a turn past all hooks, for turns whose hooks kill the process or fail."""

from __future__ import annotations

from windlass.messages import text_result
from windlass.outcomes import Cancelled, Failed, Stopped
from windlass.records import SessionEnded, StepEnded, ToolReturned, TurnEnded

from .journal import Journal
from .tool_results import UNKNOWN


def end_turn(
    journal: Journal, outcome: Stopped | Failed | Cancelled, reason: str, *, session_ends: bool
) -> None:
    """Record the end of a turn, and that of its session if that `session_ends` with it.

    Its open calls are interrupted for this reason. No message of its open step enters the
    transcript.
    """
    step = journal.fold.open
    if step is not None:
        for call in [call for call in step.calls.values() if call.result is None]:
            result = text_result(f"{UNKNOWN} {reason}", "interrupted")
            journal.record(ToolReturned(call.proposed.id, call.proposed.name, result))
        journal.record(StepEnded(step.number, (), journal.time.take()))
    journal.record(TurnEnded(outcome, "", journal.time.take()))
    if session_ends:
        journal.record(SessionEnded())
