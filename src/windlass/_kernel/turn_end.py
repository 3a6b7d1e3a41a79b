"""How a turn ends, on every way out: TurnEnding, the last record, and all that is left to write or
to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import failed_hook
from windlass.decisions import Answer, Deny
from windlass.errors import HookError, OutputError, SessionError, StoreError
from windlass.events import TurnEnding, TurnFailed
from windlass.messages import digest
from windlass.outcomes import Cancelled, Completed, Failed, Stopped, StopReason, error_value, marked
from windlass.records import Concluded, HookFailed, Resumed, Rewritten, SessionEnded, TurnEnded
from windlass.states import State, of_latest_turn, over

from .cancellation import Cancellation
from .entry import Entry
from .error_handling import Failures
from .journal import Journal
from .questions import WAITING, Questions
from .shields import shielded
from .site import Site
from .step_end import ENDED_BY_ERROR, StepEnd
from .transcript import Transcript
from .turn_start import TurnStart


class TurnEnd(Struct, eq=False):
    """Ends turns."""

    _site: Site
    _entry: Entry
    _questions: Questions
    _transcript: Transcript
    _step_end: StepEnd
    _failures: Failures
    _cancellation: Cancellation
    _start: TurnStart
    _point: Point | None = None

    def __post_init__(self) -> None:
        self._point = self._site.hooks.at(TurnEnding)

    @property
    def _journal(self) -> Journal:
        return self._site.journal

    async def finish(self) -> State:
        """End a turn that is concluded; one that is suspended stays so."""
        self._cancellation.end()
        turn = self._journal.fold.turn
        if turn is not None and turn.concluded is not None and turn.outcome is None:
            await self._end(turn.concluded, waits=self._may_wait(turn.concluded))
        return await self._settle()

    def _may_wait(self, outcome: Any) -> bool:
        """Whether a person can hold up this end: not if nobody goes on with the turn, or if it was
        cancelled while another end of it waited for a person."""
        if self._cancellation.abandoned:
            return False
        if not isinstance(outcome, Cancelled):
            return True
        fold = self._journal.fold
        records = of_latest_turn([*fold.written, *fold.pending])
        return sum(isinstance(record, Concluded) for record in records) <= 1

    async def _settle(self) -> State:
        return await self._journal.settle(self._site.tasks)

    async def supersede(self) -> None:
        """A new message on a turn that is not over: its open calls are closed first, then it ends,
        hooks and all."""
        journal = self._journal
        await self._step_end.abandon("The user went on before this call had a result.")
        if journal.fold.turn is not None and journal.fold.turn.outcome is not None:
            journal.record(Resumed(journal.program.digest))
        journal.conclude(Stopped(StopReason.SUPERSEDED, "the user went on"))
        assert journal.fold.turn is not None
        await self._end(journal.fold.turn.concluded, waits=False, superseded=True)

    # ------------------------------------------------------------ the ordinary end

    def _end(
        self, outcome: Any, *, waits: bool = True, superseded: bool = False
    ) -> Coroutine[Any, Any, None]:
        """The ending hooks, which nothing breaks off, then the record.

        Unless it `waits`, no person can hold it up. After a `superseded` turn another one follows.
        """
        ending = self._end_now(outcome, waits, superseded)
        return shielded(ending) if self._point is not None and self._point.waits else ending

    async def _end_now(self, outcome: Any, waits: bool, superseded: bool) -> None:
        journal = self._journal
        text: str | None = None
        if self._point is not None:
            ended = await self._judge(self._point, outcome)
            if ended is None and waits:
                self._questions.suspend()
                return
            outcome, text = ended or (outcome, "")
        if journal.fold.turn is not None and journal.fold.turn.held:
            await self._transcript.add_held()
        if (
            journal.program.read_output is not None
            and isinstance(outcome, Completed)
            and (why := self._misfit(text))
        ):
            outcome, text = Stopped(StopReason.WITHHELD, why), ""
        if journal.audience.voice is not None and not superseded:
            self._end_stream(text)
        if journal.program.handlers:
            await self._transcript.run_handlers("after_turn")
        turn = journal.fold.turn
        if turn is not None and turn.delegated:
            await self._step_end.end_sub_agents("the turn ended", last=True)
        if journal.fold.background:
            await self._site.background.end(outcome)
        self._record_end(outcome, text, superseded)

    def _record_end(self, outcome: Any, text: str | None, superseded: bool) -> None:
        """Record that the turn has ended, and the session with it if it has no name."""
        journal = self._journal
        if journal.audience.listens and isinstance(outcome, Failed):
            journal.fact(TurnFailed, outcome.error)
        journal.record_times()
        journal.record(TurnEnded(outcome, text, journal.time.take(), at=journal.tick()))
        self._site.arguments.release()
        if self._entry.ephemeral and not superseded:
            journal.record(SessionEnded(at=journal.fold.at))
        elif journal.program.compactors:
            from .compaction import prepare_compaction

            prepare_compaction(journal, self._site)

    def _misfit(self, text: str | None) -> str:
        """Why the final text is not of the type that the agent promised; nothing if it is."""
        read = self._journal.program.read_output
        try:
            if read is not None:
                read(self._journal.state.text if text is None else text)
        except OutputError as error:
            return f"{error}; to end a turn with another text, answer Halt(reason, reply=…)"
        return ""

    def _end_stream(self, text: str | None) -> None:
        """The stream ends with what it has not told of the answer yet."""
        fold, voice = self._journal.fold, self._journal.audience.voice
        turn = fold.turn
        assert turn is not None
        assert voice is not None
        voice.end_turn(fold.steps if turn.steps else 0, text, turn.text, lambda: fold.state.text)

    # ------------------------------------------------------------ TurnEnding

    async def _judge(self, point: Point, outcome: Any) -> tuple[Any, str | None] | None:
        """TurnEnding: the outcome and the text, if a hook changed it.

        None if a person has to be asked first.
        """
        journal, site = self._journal, self._site
        turn = journal.fold.turn
        assert turn is not None
        before = journal.state.text
        about = f"{journal.fold.session}/t{turn.number}/end"
        passage = site.passage(point, TurnEnding(outcome, before, site.turn), about)
        try:
            async with asyncio.timeout(journal.program.ending_timeout):
                text: str = (await passage.rewrite()).text
                if (
                    text != before
                    and isinstance(outcome, Completed)
                    and (why := self._misfit(text))
                ):
                    raise self._blame(about, why)
                verdict = await self._questions.decide(passage, lambda: digest(text))
                if isinstance(verdict, Answer):
                    text, verdict = await self._respond(point, outcome, str(verdict.value), about)
        except Exception as error:
            verdict = Deny(_why_withheld(error))
            text = ""
            who = getattr(error, "hook", "") or "TurnEnding"
            journal.record(HookFailed(who, "TurnEnding", error_value(error), effect="withheld"))
        if verdict is WAITING:
            return None
        if isinstance(verdict, Deny):
            if isinstance(outcome, Failed | Cancelled):
                return outcome, ""
            return Stopped(StopReason.WITHHELD, verdict.reason), ""
        outcome = marked(outcome, turn.unreviewed, turn.objections)
        return outcome, None if text == before else text

    def _blame(self, about: str, why: str) -> HookError:
        """The error of the hooks that changed the final text to one that does not fit."""
        pending = self._journal.fold.pending
        hooks = [
            record.hook
            for record in pending
            if isinstance(record, Rewritten) and record.about == about
        ]
        by = ", ".join(hooks) or "TurnEnding"
        return HookError(
            f"rewrite {by!r} changed the final text: {why}", hook=by, event="TurnEnding"
        )

    async def _respond(self, point: Point, outcome: Any, words: str, about: str) -> tuple[str, Any]:
        """A person's words for the answer, and the verdict on them: hooks look at them as at any
        other answer."""
        passage = self._site.passage(
            point, TurnEnding(outcome, words, self._site.turn), f"{about}/response"
        )
        text: str = (await passage.rewrite()).text
        responded = self._questions.responded_by(words)
        verdict = await self._questions.decide(passage, lambda: digest(text), responded)
        return (str(verdict.value), None) if isinstance(verdict, Answer) else (text, verdict)

    # ------------------------------------------------------------ the way out when all else fails

    async def failed(self, error: BaseException) -> State:
        """Close the turn after a cancel or a breakdown: every call gets a result, ending hooks run,
        then it is over.

        A cancel from outside is raised; one from inside, an end of time and any other error is the
        outcome. A conflict or a stale answer is raised to the caller.
        """
        by_itself = self._cancellation.end() and isinstance(error, asyncio.CancelledError)
        if isinstance(
            error, SessionError | GeneratorExit
        ):  # with GeneratorExit nothing can be awaited
            raise error
        interrupted = isinstance(error, asyncio.CancelledError) and self._cancellation.stop is None
        if interrupted and self._cancellation.interruptible:
            raise error  # nothing more is written: it can be resumed
        self._failures.note(None if by_itself else error)
        state = await shielded(
            self._close(error), patience=3 * self._journal.program.ending_timeout
        )
        if not isinstance(error, Exception) and not by_itself:
            raise error
        return state

    async def _close(self, error: BaseException) -> State:
        journal = self._journal
        if isinstance(error, StoreError):
            journal.give_up(error)
        if isinstance(error, Exception):
            outcome: Failed | Cancelled | Stopped = Failed(error_value(error))
        else:
            journal.hurry()
            outcome = self._cancellation.stop or Cancelled(str(error))
        try:
            if over(journal.fold):
                if not journal.awaits_turn or self._entry.message is None:
                    return await self._settle()
                self._start.begin_failed(self._entry.message)
            await self._close_turn(outcome, error)
            return await self._settle()
        except SessionError:  # another process has the session: nothing of this is written
            if isinstance(error, Exception):
                raise
            return journal.state
        except StoreError as broken:  # what cannot be stored is still told to the caller
            journal.give_up(broken)  # an agent above must not end either
            unsaved = isinstance(error, StoreError)
            if not isinstance(
                outcome, Failed
            ):  # the log does not have the cancel: it can be resumed
                self._failures.note(broken)
                outcome, unsaved = Failed(error_value(broken)), True
            journal.conclude(outcome)
            turn = journal.fold.turn
            if turn is not None and (turn.outcome is None or unsaved):
                journal.record(TurnEnded(outcome, "", journal.time.take()))
            return journal.state

    async def _close_turn(
        self, outcome: Failed | Cancelled | Stopped, error: BaseException
    ) -> None:
        """Close the step and the turn, with their hooks, or without if these fail."""
        journal = self._journal
        reason = ENDED_BY_ERROR if isinstance(error, Exception) else f"the turn ended: {error}"
        try:
            if not isinstance(outcome, Failed):
                self._step_end.keep_partial()
            self._cancellation.note_request(outcome)
            journal.conclude(outcome)
            await self._step_end.abandon(reason, error)
            ended = journal.fold.turn.concluded if journal.fold.turn else outcome
            await self._end(ended, waits=self._may_wait(ended))
        except (SessionError, StoreError):
            raise
        except Exception as another:
            await self._step_end.end_sub_agents_without_hooks(reason)
            journal.record_times()
            journal.record(TurnEnded(outcome, "", journal.time.take()))
            journal.record(
                HookFailed(
                    "", "TurnEnding", error_value(another), effect="the turn was closed without"
                )
            )


def _why_withheld(error: Exception) -> str:
    """Why an answer is withheld, in words that do not quote the hook's error."""
    return (
        failed_hook(error)
        if isinstance(error, HookError)
        else "the hooks of TurnEnding took too long"
    )
