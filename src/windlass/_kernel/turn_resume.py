"""How a turn goes on in another pass: answers are taken, drift is compared, and what was left is
picked up."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from windlass.decisions import Allow, Ask, Halt, Reject
from windlass.events import Resuming
from windlass.outcomes import Cancelled, Stopped, StopReason
from windlass.protocols import Store
from windlass.records import (
    Answered,
    HookDecided,
    InboxTaken,
    Resumed,
    StepEnded,
    Suspended,
    TurnStarted,
)
from windlass.states import Fold, children_at_work, fold_log, pipeline_of_turn

from .cancellation import Cancellation
from .crash_loops import CrashLoops
from .drift import differences
from .entry import Entry
from .given_answers import check_digests, read_answers
from .inbox import Inbox
from .injections import Injections
from .journal import Journal
from .questions import WAITING, Questions, asks_of
from .site import Site
from .step import has_begun
from .step_end import StepEnd
from .turn_start import TurnStart

_MARKS = (TurnStarted, StepEnded, Resumed, Suspended)
"""The records up to which the time of work is counted, if the process did not live on."""


class TurnResume(Struct, eq=False):
    """Resumes turns.

    `delivered` are the answers for a child that its parent's log has; None if it takes its own.
    """

    _site: Site
    _entry: Entry
    _questions: Questions
    _injections: Injections
    _inbox: Inbox
    _step_end: StepEnd
    _start: TurnStart
    _crash_loops: CrashLoops
    _cancellation: Cancellation
    _delivered: tuple[Answered, ...] | None

    @property
    def _journal(self) -> Journal:
        return self._site.journal

    async def resume(self) -> bool:
        """Go on with a turn.

        Whether its last step has ended and is to be voted on, unless the log has the vote.
        """
        journal = self._journal
        check_digests(journal.fold)
        if journal.fold.background:
            self._site.background.go_on()
        if self._delivered is None:
            taken, answers = await read_answers(journal, self._inbox, self._entry.answers)
        else:
            taken = await self._inbox.entries_settled_by(self._delivered)
            answers = list(self._delivered)
        cancels, cancelled = await self._inbox.cancels() if journal.has_mail else ([], None)
        taken += cancels
        turn = journal.fold.turn
        assert turn is not None
        if turn.concluded is not None and journal.audience.voice is not None:
            journal.audience.voice.note_untold_answer()
        drift, active = await self._compare(), await self._lost_time()
        about = f"{journal.fold.session}/t{turn.number}/resume"
        settled = [answered for answered in answers if not answered.partial]
        allowed = next((answered for answered in settled if answered.id == about), None)
        verdict = (
            await self._judge(about, drift, allowed)
            if isinstance(turn.outcome, Suspended) and cancelled is None
            else None
        )
        if verdict is WAITING:
            self._stay_suspended(answers, taken)
            return False
        for answered in (
            answers if not isinstance(verdict, Halt) else [allowed] if allowed is not None else []
        ):
            self._site.arguments.hold_edit(answered)
            journal.record_answer(answered)
        journal.record(Resumed(journal.program.digest, drift, active))
        if isinstance(verdict, Halt):
            await self._step_end.abandon(f"The turn was halted: {verdict.reason}")
            journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
            return False
        if cancelled is not None:
            self._cancellation.accept(cancelled)
        return await self._pick_up(taken)

    def _stay_suspended(self, answers: list[Answered], taken: list[InboxTaken]) -> None:
        """A person must allow first that the turn goes on; answers to other questions are kept."""
        journal = self._journal
        for answered in answers:
            journal.record_answer(answered)
        for record in taken:
            journal.record(record)
        if journal.fold.pending:
            self._questions.suspend()

    async def _pick_up(self, taken: list[InboxTaken]) -> bool:
        """Do what the process that died had still to do.

        Whether its last step is to be voted on.
        """
        journal, fold = self._journal, self._journal.fold
        turn = fold.turn
        assert turn is not None
        for record in taken:
            journal.record(record)
        if turn.cancel is not None:  # a fork may have been cut right there
            journal.conclude(Cancelled(turn.cancel))
        await journal.commit()
        await self._crash_loops.break_off()
        if turn.outcome is None and turn.concluded is not None:  # the step may be open
            stopped = self._cancellation.stop is not None
            await self._step_end.abandon(
                "the turn was cancelled" if stopped else "the turn had ended"
            )
        if not fold.going:
            return False
        if not turn.admitted:
            await self._start.go_on()
            return False
        await self._injections.inject_unlogged()
        return fold.open is None and bool(turn.steps) and not has_begun(fold)

    async def _compare(self) -> tuple[str, ...]:
        """What differs from the agent that the turn was recorded with.

        Gates that are new since then are asked.
        """
        program, pipeline = self._journal.program, pipeline_of_turn(self._journal.fold)
        if pipeline == program.digest:
            return ()
        data = await program.store.pipeline(pipeline)
        rows = [] if data is None else msgspec.json.decode(data)["hooks"]
        self._questions.note_known([(row["event"], row["kind"], row["name"]) for row in rows])
        await program.keep()
        return differences(data, program.description)

    async def _lost_time(self) -> float:
        """How long a process had worked when it died, up to the last record that it wrote, here or
        as a sub-agent; 0 if the turn was suspended."""
        fold = self._journal.fold
        if fold.turn is None or fold.turn.outcome is not None:
            return 0.0
        since = next(
            (record.at for record in reversed(fold.written) if type(record) in _MARKS), 0.0
        )
        last = await _last_record(self._journal.program.store, fold)
        return max(last - since, 0.0) if since else 0.0

    async def _judge(self, about: str, drift: tuple[str, ...], answered: Answered | None) -> Any:
        """Resuming: hooks may stop the turn or ask again before it goes on; `answered` is a
        person's answer to that."""
        journal, questions, site = self._journal, self._questions, self._site
        fold = journal.fold
        if answered is not None and isinstance(answered.answer, Reject):
            return Halt(answered.answer.message or "a person stopped the turn")
        if answered is not None:
            return None
        if questions.is_waiting(about):
            return WAITING
        if (point := site.hooks.at(Resuming)) is None:
            return None
        passage = site.passage(point, Resuming(fold.state, site.turn, drift), about)
        await passage.rewrite()
        verdict = await passage.judge()
        if passage.answers:
            journal.record(
                HookDecided("Resuming", about, verdict, passage.answers, took=passage.took)
            )
        if isinstance(verdict, Ask):
            questions.put(questions.question(passage, verdict, "", asks_of(passage.answers)))
            return WAITING
        if verdict is None or isinstance(verdict, Allow):
            asked = fold.open is not None and fold.open.reply is not None
            await self._injections.inject(passage, f"{fold.session}/{fold.steps + 1 + asked}")
        return verdict


async def _last_record(store: Store, fold: Fold) -> float:
    """The time of the last record of a session and of the sub-agents that work for it."""
    last = fold.at
    for started in children_at_work(fold):
        child = fold_log(started.session, await store.read(started.session))
        last = max(last, await _last_record(store, child))
    return last
