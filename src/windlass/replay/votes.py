"""Votes of a log, cast again: whether a turn goes on after a step, and whether a hook holds up its stop."""

from __future__ import annotations

from typing import Any

from windlass._kernel.votes import Evaluator, reason_of
from windlass.decisions import Vote
from windlass.events import Continuing, Stopping, SubagentStopping
from windlass.outcomes import StopReason
from windlass.records import Evaluated, Record

from .judge import Judge, vote_in_words

_GO_ON = (Vote.REQUEST, Vote.ALLOW)
_OUTSIDE = ("steering", "background")
"""Who may continue a turn although the vote was to stop: this is no vote of the agent's."""


class VoteJudge:
    """Judges the votes of one session. `due` says that a step has ended and its vote is not compared yet."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._evaluator = Evaluator(Unrecorded(judge.site.journal), judge.site)  # type: ignore[arg-type]
        self._stops: StopReason | None = None
        self.due = False

    def begin_turn(self) -> None:
        """A turn begins."""
        self.due, self._stops = False, None

    def resume(self) -> None:
        """The turn goes on in another pass. A stop that it had come to is put to hooks again."""
        fold = self._judge.fold
        voted = None if fold.turn is None else fold.turn.evaluated
        if voted is not None and voted.step == fold.steps and fold.open is None and fold.going:
            self.note(voted)

    def begin_step(self) -> None:
        """The turn goes on."""
        self._stops = None

    def end_step(self) -> None:
        """A step has ended. The criteria of one turn are not known here, so its votes are not compared."""
        fold, turn = self._judge.fold, self._judge.fold.turn
        own = turn is not None and turn.options is not None and bool(turn.options.criteria)
        self.due = fold.going and self._judge.plan.only is None and not own

    async def compare(self, recorded: Evaluated | None) -> None:
        """The vote after a step; without a recorded one, tools were called and nobody objected."""
        judge, fold, program = self._judge, self._judge.fold, self._judge.plan.program
        if recorded is not None and (not self.due or (recorded.reasons and recorded.reasons[0][0] in _OUTSIDE)):
            self._stops = None
            return
        self.due = False
        last, turn = fold.last, fold.turn
        usual = last is not None and last.calls and turn is not None and turn.steps < program.steps_without_votes
        if recorded is None and usual and "Continuing" not in judge.plan.points:
            return
        now = await self._evaluator.evaluate(fold)
        about = f"{fold.session}/{fold.steps}/vote"
        if judge.take_lacks(Continuing, about):
            return
        judge.count()
        was = Vote.REQUEST if recorded is None else recorded.vote
        reasons = (("tools_ran", ""),) if recorded is None else recorded.reasons
        if _effect(was) != _effect(now.vote):
            words = vote_in_words(was, reasons), vote_in_words(now.vote, now.reasons)
            by = tuple([name for name, _ in reasons]), tuple([name for name, _ in now.reasons])
            judge.differs(Continuing, about, words, by, kind="outcome")

    def note(self, evaluated: Evaluated) -> None:
        """The recorded vote stands: whether a stop follows that hooks may veto."""
        reason, _ = reason_of(evaluated, self._judge.plan.program, self._judge.fold)
        self._stops = None if evaluated.vote in _GO_ON or reason.hard else reason

    def forget(self) -> None:
        """The turn ended otherwise."""
        self._stops = None

    async def stop(self) -> None:
        """The verdict on a stop that hooks may veto."""
        reason, self._stops = self._stops, None
        judge, fold = self._judge, self._judge.fold
        if reason is None or fold.turn is None:
            return
        about, vetoed, turn = f"{fold.session}/{fold.steps}/stop", fold.turn.vetoes > 0, judge.site.turn
        await judge.judge(Stopping, about, lambda: Stopping(reason, vetoed, turn))
        point = judge.plan.stopping
        if point is not None and not judge.is_over() and judge.plan.only is None:
            event = SubagentStopping(reason, vetoed, turn, judge.plan.program.name)
            await judge.ask(point, SubagentStopping, about, event)


class Unrecorded:
    """The journal of a vote that is not recorded."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def record(self, record: Record) -> None:
        """Forget it."""

    def fact(self, *values: Any) -> None:
        """Tell nobody."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


def _effect(vote: Vote | None) -> tuple[bool, bool]:
    """Whether the turn goes on after a vote, and whether it is forbidden to."""
    return vote in _GO_ON, vote is Vote.FORBID
