"""Tool calls of a log, judged again: what hooks make of their arguments, whether they may run, and what comes back."""

from __future__ import annotations

from typing import Any

from windlass._hooks.dispatch import Passage, failed_hook
from windlass._hooks.merging import strictest
from windlass._kernel.handing_over import question_of
from windlass._kernel.injections import Injections
from windlass._kernel.questions import after_answer, asks_of
from windlass._kernel.tool_decisions import ALLOW, ToolDecisions, is_invalid
from windlass._kernel.tool_results import CLOSED
from windlass._kernel.transcript import Transcript
from windlass.decisions import Allow, Ask, Deny, Edit, Halt
from windlass.errors import HookError
from windlass.events import Delegating, ToolCalling, ToolReturning
from windlass.messages import Delegation, ToolCall
from windlass.records import Delegated, ToolCalled, ToolDecided, ToolReturned
from windlass.states import CallFold
from windlass.tools import ArgumentsError

from .judge import NOT_KEPT, SECRET, SILENT, Answers, Given, Judge

_UNFINISHED = ("cancelled", "interrupted")


class CallJudge:
    """Judges the calls of one session. `again` are those to judge once more, since the turn was resumed."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._only = judge.plan.only
        self._site = site = judge.site
        self._questions = questions = judge.questions
        injections = Injections(site.journal, site, Transcript(site.journal, site, questions))
        self._decisions = ToolDecisions(site, questions, injections, reviewed=False)
        self._given: dict[str, Given] = {}
        self.again: list[str] = []

    def _state(self, call_id: str) -> CallFold | None:
        step = self._judge.fold.open
        return None if step is None else step.calls.get(call_id)

    # ------------------------------------------------------------ may it run?

    async def decide(self, call_id: str) -> None:
        """The verdict on a call, and its final arguments."""
        judge, state = self._judge, self._state(call_id)
        passes, recorded = judge.calls.get(call_id, (0, None))
        if state is None or recorded is None or passes != judge.passes or ("ToolCalling", call_id) in judge.done:
            return
        judge.done.add(("ToolCalling", call_id))
        name = state.proposed.name
        if state.masked:
            judge.lacks(ToolCalling, call_id, name, SECRET)
            return
        was = Given(recorded.verdict, recorded.answers)
        try:
            call = self._as_judged(state, recorded)
        except ArgumentsError as error:
            refused = Deny(str(error))
            judge.note(ToolCalling, call_id, was, Given(refused, (("arguments", refused),)), name)
            return
        given, changed = await self._verdict(self._decisions.passage(call), call, recorded)
        if judge.take_lacks(ToolCalling, call_id) or not judge.note(ToolCalling, call_id, was, given, name):
            return
        self._given[call_id] = given
        if changed is None or self._misses_tool(call_id, recorded.verdict, name):
            return
        if changed is not call or recorded.json is not None:
            self._compare_arguments(state, recorded, changed)

    def _as_judged(self, state: CallFold, recorded: ToolDecided) -> ToolCall:
        """A call as hooks see it first: with complete arguments. Where only some hooks are replayed, as the last."""
        proposed = state.proposed
        if self._only is None:
            return self._site.arguments.complete(proposed).call
        return proposed if recorded.json is None else proposed.replace(json=recorded.json)

    async def _verdict(self, passage: Passage, call: ToolCall, recorded: ToolDecided) -> tuple[Given, ToolCall | None]:
        """The verdict, who gave it, and the call as it may run."""
        try:
            changed: ToolCall = (await passage.rewrite()).call
        except HookError as error:
            refused = Deny(failed_hook(error))
            self._site.failed[error.hook or "?"] = str(error.__cause__ or error)
            return Given(refused, ((error.hook or "?", refused),)), None
        verdict = await passage.judge()
        if self._only is None:
            return Given(self._decisions.unmatched(call) if verdict is None else verdict, passage.answers), changed
        answers = (*self._kept(recorded.answers), *passage.answers)
        return Given(strictest(ToolCalling, answers) if answers else self._default(call, recorded), answers), None

    def _default(self, call: ToolCall, recorded: ToolDecided) -> Any:
        """What the recorded agent does with a call that no gate speaks of, where only some hooks are replayed."""
        return recorded.verdict if not recorded.answers else unmatched_by(self._judge.unmatched, call)

    def _kept(self, answers: Answers) -> Answers:
        """The recorded answers that stand where only some hooks are replayed."""
        return [answer for answer in answers if self._only is not None and answer[0] not in self._only]

    def _misses_tool(self, call_id: str, verdict: Any, name: str) -> bool:
        """Whether the agent does not have a tool that was called and that the log's agent had."""
        judge = self._judge
        if self._only is not None or not isinstance(verdict, Allow) or judge.serves(name):
            return False
        judge.differs(ToolCalling, call_id, ("called", "no such tool"), kind="outcome", tool=name)
        return True

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

    # ------------------------------------------------------------ once more, in another pass

    def resume(self) -> None:
        """The turn goes on in another pass: gates are asked again about the calls that have not begun."""
        step = self._judge.fold.open
        calls = () if step is None else step.calls.items()
        self.again = [
            call_id
            for call_id, state in calls
            if call_id in self._given
            and state.result is None
            and not state.called
            and state.decided is not None
            and not is_invalid(state.decided)
        ]

    async def decide_again(self, record: ToolDecided | None = None) -> None:
        """The verdicts on calls that were decided in an earlier pass: on all, or on those up to the call of a record.

        All calls of a step are decided before the first of them runs.
        """
        judge = self._judge
        if not self.again or not judge.fold.going:
            return
        step, last = judge.fold.open, None if record is None else record.call
        for call_id in () if step is None else tuple(step.calls):
            if call_id in self.again and not judge.is_over():
                self.again.remove(call_id)
                await self._decide_again(call_id, record if call_id == last else None)
            if call_id == last:
                break

    async def _decide_again(self, call_id: str, record: ToolDecided | None) -> None:
        """The strictest of what holds since a person answered, and what gates say now."""
        judge, questions, state = self._judge, self._questions, self._state(call_id)
        if state is None or state.decided is None:
            return
        answered = questions.answer_to(call_id) if state.waits else None
        if answered is not None and answered.digest != state.decided.digest:
            answered = None
        if answered is not None and isinstance(answered.answer, Edit):
            return  # other arguments
        decided, before = state.decided, self._given[call_id]
        was, held = decided.verdict, before.verdict
        if answered is not None:
            was = after_answer(ToolCalling, decided.answers or (("default", was),), answered) or ALLOW
            held = after_answer(ToolCalling, tuple(before.answers) or (("default", held),), answered) or ALLOW
        settled = asks_of(tuple(before.answers)) if answered is not None or not state.waits else ()
        call = self._decisions.shown(state)
        passage = self._decisions.passage(call, decided)
        judged = await questions.judge_again(passage, held, settled, questions.asked_again(call_id))
        new: Answers = judged.new
        verdict = judged.verdict
        if record is not None:
            was = record.verdict
            if self._only is not None:
                kept = self._kept(record.answers[len(decided.answers) + (answered is not None) :])
                new = (*kept, *new)
                verdict = strictest(ToolCalling, (("", verdict), *kept))
        given = Given(verdict, (*before.answers, *new))
        if judge.take_lacks(ToolCalling, call_id):
            del self._given[call_id]
        elif judge.note(ToolCalling, call_id, Given(was, () if record is None else record.answers), given, call.name):
            self._given[call_id] = given
            self._misses_tool(call_id, was, call.name)

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
        before = self._given.get(record.call, SILENT)
        judged = await self._questions.judge_again(passage, ALLOW, asks_of(tuple(before.answers)))
        answers: Answers = judged.new
        if self._only is not None:
            answers = (*[it for it in self._kept(record.answers) if it not in asks], *judged.new)
        given = Given(strictest(ToolCalling, answers) if answers else judged.verdict, answers)
        if not judge.take_lacks(ToolCalling, record.call):
            was = Given(record.verdict, record.answers)
            self._given[record.call] = given
            judge.note(ToolCalling, record.call, was, given, name)

    async def decide_changed(self, record: ToolCalled) -> None:
        """The verdict on the arguments that a wrap made after the gates had judged."""
        judge, state = self._judge, self._state(record.call)
        if state is None or record.json is None:
            return
        about = f"{record.call}/attempt.{record.attempt}"
        if (call := self._complete(state, record.json, masked=record.masked)) is None:
            return
        recorded = judge.recorded("ToolCalling", about)
        passage = self._decisions.passage(call, state.decided, about)
        verdict = await passage.judge()
        answers: Answers = passage.answers
        was = SILENT if recorded is None else Given(recorded.verdict, recorded.answers)
        if self._only is not None:
            answers = (*self._kept(was.answers), *answers)
            verdict = strictest(ToolCalling, answers) if answers else was.verdict
        elif verdict is None:
            verdict = self._decisions.unmatched(call)
        if not judge.take_lacks(ToolCalling, about):
            judge.note(ToolCalling, about, was, Given(verdict, answers), state.proposed.name)

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
        if state is None or ("ToolReturning" not in judge.plan.points and not judge.has_verdicts):
            return
        about, recorded = record.call, judge.recorded("ToolReturning", record.call)
        if recorded is None:
            recorded = judge.recorded("ToolReturning", record.call + CLOSED)
            if recorded is not None or record.result.status in _UNFINISHED:
                about = record.call + CLOSED
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


def unmatched_by(unmatched: str, call: ToolCall) -> Any:
    """What an agent does with a call that no gate speaks of."""
    if unmatched == "ask":
        return Ask(f"Allow {call.name}?")
    return Deny(f"No rule allows {call.name}.") if unmatched == "deny" else ALLOW
