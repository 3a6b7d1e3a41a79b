"""How a step ends: its messages enter the transcript past the guard's door, and StepEnding runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from windlass.decisions import Halt, Rewind
from windlass.events import ModelReplying, StepEnding
from windlass.messages import Messages, ToolCall, ToolResult, user
from windlass.outcomes import Stopped, StopReason, error_value
from windlass.records import HookFailed, ModelReplied, ReplyRejected, Rewound, StepEnded
from windlass.states import CallFold, Fold, Step, StepFold, step_id

from .injections import Injections
from .questions import Questions
from .shields import shielded
from .site import Site
from .tool_results import ToolResults
from .transcript import Transcript

if TYPE_CHECKING:
    from .children import Children

ENDED_BY_ERROR = "the turn ended with an error"
"""What a model reads of a call that an error closed; the text of the error may be what a hook would
have withheld."""


class StepEnd:
    """Ends steps, whoever asks for it; the loop calls it as the applier.

    The runner sets `current_step`, the step that began in this pass, and `accepted_step`, the one whose reply the gates
    let pass.
    """

    __slots__ = (
        "_children",
        "_ending",
        "_guarded",
        "_has_handlers",
        "_injections",
        "_journal",
        "_questions",
        "_replying",
        "_results",
        "_settles_replies",
        "_site",
        "_transcript",
        "_voice",
        "accepted_step",
        "current_step",
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        questions: Questions,
        injections: Injections,
        results: ToolResults,
    ) -> None:
        self._journal = site.journal
        self._site = site
        self._questions = questions
        self._transcript: Transcript = injections.transcript
        self._injections = injections
        self._results = results
        self._children: Children | None = None
        self._replying = site.hooks.at(ModelReplying)
        self._ending = site.hooks.at(StepEnding)
        self.current_step = self.accepted_step = 0
        self._voice = site.journal.audience.voice
        self._settles_replies = self._replying is not None or self._voice is not None
        self._guarded = self._transcript.guarded
        self._has_handlers = bool(site.program.handlers)

    def connect(self, children: Children) -> None:
        """What ends the agents below, once the turn has given a task to one."""
        self._children = children

    def apply(self, fold: Fold, step: StepFold) -> Awaitable[None]:
        """Apply a finished step to the state. A suspended step stays open."""
        turn = fold.turn
        suspended = turn is None or turn.outcome is not None
        return self._leave_open() if suspended else self.end(commits=True)

    async def _leave_open(self) -> None:
        """The turn is suspended: its step goes on when it is resumed."""

    async def end(
        self,
        error: BaseException | None = None,
        reason: str = "",
        *,
        commits: bool = False,
    ) -> None:
        """MessageAdding, the record that ends the step, messages that hooks added beside, then
        StepEnding. `reason` is what a model reads of calls without a result."""
        journal = self._journal
        fold = journal.fold
        if self._settles_replies and (
            self._voice is not None or self.accepted_step != fold.steps + 1
        ):
            self._settle_reply(reason or _why_open(fold))
        step, number = fold.open, fold.steps + 1
        messages = failure = None
        if step is not None:
            for call in step.calls.values():
                if call.result is None:  # also one that a replaced executor has forgotten
                    await self._close_calls(reason or _why_open(fold))
                    break
            if self._guarded:
                about = step_id(fold.session, number)
                messages, failure = await self._transcript.admit_step(step.messages(), about)
        journal.add(StepEnded(number, messages, journal.time.take(), at=fold.at))
        if fold.turn is not None and fold.turn.held:
            await self._transcript.add_held()
        if self._ending is not None:
            ending = self._run_hooks(Step(number, None) if step is None else step.step(), error)
            await (shielded(ending) if self._ending.waits else ending)
            if fold.turn is not None and fold.turn.held:
                await self._transcript.add_held()
        if self._has_handlers:
            await self._transcript.run_handlers("after_step")
        if failure is not None:
            raise failure
        if commits and not journal.commit_now():
            await journal.commit()

    async def abandon(self, reason: str, error: BaseException | None = None) -> None:
        """End a step that has begun and cannot go on: its calls are closed and StepEnding runs with
        the error."""
        fold = self._journal.fold
        if fold.open is not None or self.current_step == fold.steps + 1:
            await self.end(error, reason)

    def keep_partial(self) -> None:
        """Keep what the user has seen of a reply that was cut short, marked as partial; not if
        hooks would have had to look at it first."""
        voice, fold, point = self._journal.audience.voice, self._journal.fold, self._replying
        if voice is None or (fold.open is not None and fold.open.reply is not None):
            return
        if point is not None and (point.changing or point.speaks):
            return
        if (partial := voice.take_partial()) is not None:
            message = partial.message.replace(id=step_id(fold.session, voice.step))
            reply = partial.replace(message=message)
            self._journal.record(ModelReplied(voice.step, reply, voice.round, voice.attempt, True))

    def _settle_reply(self, reason: str) -> None:
        """A reply that its gates have not let pass yet does not enter the transcript; another one
        does."""
        step, point, voice = self._journal.fold.open, self._replying, self._journal.audience.voice
        if step is None or step.reply is None:
            return
        accepted = self.accepted_step == step.number or any(
            call.decided for call in step.calls.values()
        )
        if point is not None and point.speaks and not accepted:
            self._journal.record(ReplyRejected(step.number, reason))
            if voice is not None:
                voice.drop(reason)
        elif voice is not None:
            voice.confirm()

    async def end_sub_agents(self, reason: str, *, last: bool = False) -> None:
        """End the agents that work on open calls.

        Hooks of the end of the step and of the turn may still have to meet theirs, but not if this
        is the `last` that the turn does.
        """
        if (children := self._children) is not None:
            await (children.end_all(reason, frozenset()) if last else children.end_all(reason))

    async def end_sub_agents_without_hooks(self, reason: str) -> None:
        """End all agents below, past their hooks, which may kill the process or fail."""
        if self._children is not None:
            await self._children.end_without_hooks(reason)

    async def record_result(self, call: CallFold, shown: ToolCall, result: ToolResult) -> None:
        """Give a call its result, past its hooks."""
        await self._results.record(call, shown, result)

    async def _close_calls(self, reason: str) -> None:
        """Give every open call a result: one that was started is of unknown outcome, the others did
        not run."""
        await self.end_sub_agents(reason)
        step = self._journal.fold.open
        for call in tuple(step.calls.values()) if step is not None else ():
            if call.result is None:
                await self._results.close(call, reason)

    # ------------------------------------------------------------ StepEnding

    async def _run_hooks(self, step: Step, error: BaseException | None) -> None:
        point, journal, site = self._ending, self._journal, self._site
        assert point is not None
        session, limit = journal.fold.session, journal.program.ending_timeout
        about = step_id(session, step.number)
        passage = site.passage(point, StepEnding(step, site.turn, error), about + "/end")
        try:
            async with asyncio.timeout(limit):
                await passage.rewrite()
                verdict = await self._questions.decide(passage)
        except TimeoutError as late:
            journal.record(HookFailed("StepEnding", "StepEnding", error_value(late), effect="Halt"))
            verdict = Halt(f"the hooks of StepEnding took longer than {limit} s")
        if isinstance(verdict, Halt):
            journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
        elif isinstance(verdict, Rewind):
            by = tuple(
                sorted(name for name, decision in passage.answers if isinstance(decision, Rewind))
            )
            await self._rewind(verdict, by)
        else:
            await self._injections.inject(passage, step_id(session, step.number + 1))

    async def _rewind(self, rewind: Rewind, by: tuple[str, ...]) -> None:
        """Back to before the reply of step `to`; the note tells the model what it left behind."""
        journal = self._journal
        state, names = journal.state, ", ".join(by)
        turn = state.turn
        assert turn is not None
        first = state.steps - turn.steps + 1
        if not first <= rewind.to <= state.steps:
            detail = f"{names} wanted to rewind to step {rewind.to}; this turn has steps {first} to {state.steps}"
            journal.conclude(Stopped(StopReason.HALTED, detail))
            return
        if turn.rewinds >= journal.program.max_vetoes:
            journal.conclude(
                Stopped(StopReason.VETO_CAP, f"{names} rewound {turn.rewinds + 1} times")
            )
            return
        if journal.audience.voice is not None:
            journal.audience.voice.rewind(range(rewind.to, state.steps + 1))
        journal.record(Rewound(rewind.to, _first_of(state.messages, turn.start + 1, rewind.to), by))
        if rewind.note:
            await self._transcript.add(user(rewind.note, origin=names), names)


def _why_open(fold: Fold) -> str:
    """Why calls of a step that ends by itself have no result."""
    concluded = None if fold.turn is None else fold.turn.concluded
    if isinstance(concluded, Stopped) and concluded.reason is StopReason.LENGTH:
        return f"{concluded.detail}."
    return "The step ended before this call had a result."


def _first_of(messages: Messages, start: int, step: int) -> int:
    """The index of the first reply of this step or a later one: an earlier rewind may have cut the
    step itself."""
    for index in range(start, len(messages)):
        message = messages[index]
        if message.role == "assistant" and message.id and int(message.id.rsplit("/", 1)[1]) >= step:
            return index
    return len(messages)
