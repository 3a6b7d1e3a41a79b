"""Tool calls of a log, judged again: what hooks make of their arguments, whether they may run, and what comes back."""

from __future__ import annotations

from typing import Any

from windlass._hooks.dispatch import Passage, failed_hook
from windlass._hooks.merging import strictest
from windlass._kernel.handing_over import question_of
from windlass._kernel.injections import Injections
from windlass._kernel.questions import Asks, Questions, asks_of
from windlass._kernel.tool_decisions import ALLOW, ToolDecisions
from windlass._kernel.tool_results import CLOSED
from windlass._kernel.transcript import Transcript
from windlass.decisions import Deny, Edit, Halt
from windlass.errors import HookError
from windlass.events import Delegating, ToolCalling, ToolReturning
from windlass.messages import Delegation, ToolCall
from windlass.records import Delegated, ToolCalled, ToolDecided, ToolReturned
from windlass.states import CallFold
from windlass.tools import ArgumentsError

from .judge import NOT_KEPT, SECRET, Answers, Judge

_UNFINISHED = ("cancelled", "interrupted")


class CallJudge:
    """Judges the calls of one session."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._only = judge.plan.only
        self._site = site = judge.site
        self._questions = questions = Questions(site.journal, resumed=True)
        injections = Injections(site.journal, site, Transcript(site.journal, site, questions))
        self._decisions = ToolDecisions(site, questions, injections, reviewed=False)
        self._asks: dict[str, Asks] = {}

    def _state(self, call_id: str) -> CallFold | None:
        step = self._judge.fold.open
        return None if step is None else step.calls.get(call_id)

    # ------------------------------------------------------------ may it run?

    async def decide(self, call_id: str) -> None:
        """The verdict on a call, and its final arguments."""
        judge, state, recorded = self._judge, self._state(call_id), self._judge.calls.get(call_id)
        if state is None or recorded is None or ("ToolCalling", call_id) in judge.done:
            return
        judge.done.add(("ToolCalling", call_id))
        name = state.proposed.name
        if state.masked:
            judge.lacks(ToolCalling, call_id, name, SECRET)
            return
        try:
            call = self._as_judged(state, recorded)
        except ArgumentsError as error:
            refused = Deny(str(error))
            judge.note(ToolCalling, call_id, recorded, refused, (("arguments", refused),), name)
            return
        verdict, answers, changed = await self._verdict(self._decisions.passage(call), call, recorded)
        self._asks[call_id] = asks_of(tuple(answers))
        if judge.take_lacks(ToolCalling, call_id):
            return
        if judge.note(ToolCalling, call_id, recorded, verdict, answers, name) and changed is not None:
            self._compare_arguments(state, recorded, changed)

    def _as_judged(self, state: CallFold, recorded: ToolDecided) -> ToolCall:
        """A call as hooks see it first: with complete arguments. Where only some hooks are replayed, as the last."""
        proposed = state.proposed
        if self._only is None:
            return self._site.arguments.complete(proposed).call
        return proposed if recorded.json is None else proposed.replace(json=recorded.json)

    async def _verdict(
        self, passage: Passage, call: ToolCall, recorded: ToolDecided
    ) -> tuple[Any, Answers, ToolCall | None]:
        """The verdict, who gave it, and the call as it may run."""
        try:
            changed: ToolCall = (await passage.rewrite()).call
        except HookError as error:
            refused = Deny(failed_hook(error))
            return refused, ((error.hook or "?", refused),), None
        verdict = await passage.judge()
        if self._only is None:
            return self._decisions.unmatched(call) if verdict is None else verdict, passage.answers, changed
        given = (*self._kept(recorded.answers), *passage.answers)
        return strictest(ToolCalling, given), given, None

    def _kept(self, answers: Answers) -> Answers:
        """The recorded answers that stand where only some hooks are replayed."""
        return [answer for answer in answers if self._only is not None and answer[0] not in self._only]

    def _compare_arguments(self, state: CallFold, recorded: ToolDecided, changed: ToolCall) -> None:
        """The arguments that a call has in the end, if it may run."""
        if isinstance(recorded.verdict, Deny | Halt):
            return
        was = recorded.json
        if was is None:
            was = self._site.arguments.complete(state.proposed).call.json
        if was != changed.json:
            words = was, changed.json
            self._judge.differs(ToolCalling, recorded.call, words, kind="arguments", tool=state.proposed.name)

    # ------------------------------------------------------------ other arguments than those that were judged

    async def decide_edited(self, record: ToolDecided) -> None:
        """The verdict on the arguments that a person wrote when asked: what the gates asked is settled."""
        judge, state = self._judge, self._state(record.call)
        if state is None or state.decided is None or not state.waits or record.json is None or not record.digest:
            return
        answered = self._questions.answer_to(record.call)
        if answered is None or not isinstance(answered.answer, Edit) or answered.digest != state.decided.digest:
            return
        name, asks = state.proposed.name, asks_of(state.decided.answers)
        if (call := self._complete(state, record.json, masked=record.masked or answered.masked)) is None:
            return
        passage = self._decisions.passage(call, state.decided)
        judged = await self._questions.judge_again(passage, ALLOW, self._asks.get(record.call, ()))
        answers: Answers = judged.new
        if self._only is not None:
            answers = (*[it for it in self._kept(record.answers) if it not in asks], *judged.new)
        verdict = strictest(ToolCalling, answers) if answers else judged.verdict
        self._asks[record.call] = asks_of(tuple(answers))
        if not judge.take_lacks(ToolCalling, record.call):
            judge.note(ToolCalling, record.call, record, verdict, answers, name)

    async def decide_changed(self, record: ToolCalled) -> None:
        """The verdict on the arguments that a wrap made after the gates had judged."""
        judge, state = self._judge, self._state(record.call)
        if state is None or record.json is None:
            return
        about = f"{record.call}/attempt.{record.attempt}"
        if (call := self._complete(state, record.json, masked=record.masked)) is None:
            return
        recorded = judge.decided.get(("ToolCalling", about))
        passage = self._decisions.passage(call, state.decided, about)
        verdict = await passage.judge()
        answers: Answers = passage.answers
        if self._only is not None:
            answers = (*self._kept(() if recorded is None else recorded.answers), *answers)
            verdict = strictest(ToolCalling, answers)
        elif verdict is None:
            verdict = self._decisions.unmatched(call)
        if not judge.take_lacks(ToolCalling, about):
            judge.note(ToolCalling, about, recorded, verdict, answers, state.proposed.name)

    def _complete(self, state: CallFold, json: str, *, masked: bool) -> ToolCall | None:
        """A call with these arguments, as gates see it. None if they cannot be judged, which is noted."""
        judge, call = self._judge, state.proposed.replace(json=json)
        if masked:
            judge.lacks(ToolCalling, call.id, call.name, SECRET)
            return None
        try:
            return self._site.completed(call)
        except ArgumentsError as error:
            judge.lacks(ToolCalling, call.id, call.name, str(error))
            return None

    # ------------------------------------------------------------ results and tasks

    async def review(self, record: ToolReturned) -> None:
        """The verdict on a result."""
        judge, state = self._judge, self._state(record.call)
        if state is None or ("ToolReturning" not in judge.plan.points and not judge.decided):
            return
        about = record.call + CLOSED
        if ("ToolReturning", about) not in judge.decided and record.result.status not in _UNFINISHED:
            about = record.call
        recorded = judge.decided.get(("ToolReturning", about))
        withheld = recorded is not None and isinstance(recorded.verdict, Deny)
        lack = NOT_KEPT if withheld else SECRET if record.masked else ""
        shown = self._decisions.shown(state)
        await judge.judge(ToolReturning, about, lambda: ToolReturning(shown, record.result, self._site.turn), lack)

    async def hand_over(self, record: Delegated) -> None:
        """The verdict on a task that a hook or tool has given with `turn.delegate`."""
        if record.key:
            task = Delegation(record.agent, record.task, None, record.tools)
            about = question_of(self._judge.fold.session, record.key)
            await self._judge.judge(Delegating, about, lambda: Delegating(task, self._site.turn))
