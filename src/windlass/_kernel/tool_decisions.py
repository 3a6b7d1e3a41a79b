"""Decisions about tool calls: every call of a step is decided before the first of them runs."""

from __future__ import annotations

from typing import Any

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage, failed_hook
from windlass.decisions import Allow, Ask, Deny, Edit, Halt, Reject, Respond
from windlass.errors import HookError
from windlass.events import Delegating, ToolCalling
from windlass.messages import ToolCall
from windlass.outcomes import error_value
from windlass.records import Answered, HookFailed, ToolDecided
from windlass.states import CallFold, Fold, StepFold
from windlass.tools import ArgumentsError

from .arguments import NOT_KEPT, Prepared, changed_log
from .delegation import Handing
from .injections import Injections
from .questions import Answers, Asks, Judged, Questions, after_answer, asks_of
from .site import Site

ALLOW = Allow()
_ARGUMENTS = "arguments"
_SECRETS = "secrets"
_NOBODY = Point(ToolCalling, ())


class ToolDecisions:
    """Decides calls, by their gates or by `unmatched`. `judged` says that gates or the log may have
    a say.

    `prepared` has the arguments of the open calls, read once for a decision and the run that follows.
    """

    __slots__ = (
        "_allows", "_arguments", "_delegates", "_injections", "_journal", "_judged_again", "_point", "_questions",
        "_read", "_site",
        "judged", "prepared",
    )  # fmt: skip

    def __init__(
        self, site: Site, questions: Questions, injections: Injections, *, reviewed: bool
    ) -> None:
        program, hooks = site.program, site.hooks
        self._site = site
        self._journal = site.journal
        self._arguments = site.arguments
        self._questions = questions
        self._injections = injections
        self._delegates = program.delegates
        self._point = hooks.at(ToolCalling)
        self._allows = program.unmatched == "allow"
        self._judged_again: tuple[str, ...] = ()
        by_agent = not self._allows or bool(program.delegates)
        self.judged = self._point is not None or by_agent or questions.resumed
        self.prepared: dict[str, Prepared] = {}
        seen = self.judged or reviewed or bool(hooks.tool_wraps)
        self._read = site.arguments.complete if seen else site.arguments.read

    @property
    def injects(self) -> bool:
        """Whether hooks may inject something between the decision and the call."""
        return self._point is not None and bool(self._point.groups)

    # ------------------------------------------------------------ the arguments

    def _prepare(self, state: CallFold) -> Prepared:
        """The arguments of a call. They are complete if hooks, wraps or people see them."""
        prepared = self.prepared.get(state.proposed.id)
        if prepared is None:
            prepared = self.prepared[state.proposed.id] = self._read(
                state.call if not state.masked else self._call(state)
            )
        return prepared

    def _call(self, state: CallFold) -> ToolCall:
        """A call with all that this process knows of its arguments: the log masks secrets."""
        return self._arguments.known(state) or state.call

    def is_lost(self, state: CallFold) -> bool:
        """Whether the arguments held a secret that the log does not have, and neither does this
        process."""
        return state.masked and self._arguments.known(state) is None

    def shown(self, state: CallFold) -> ToolCall:
        """What hooks and wraps see of a call: the recorded bytes if a gate spoke of it.

        An invalid one as it is.
        """
        if state.decided is not None and state.decided.digest:
            return self._call(state)
        try:
            return self._prepare(state).call
        except ArgumentsError:
            return self._call(state)

    def checked(self, state: CallFold, call: ToolCall) -> None:
        """Raise if a verdict with a digest was given on other arguments than those that are about to
        run."""
        decided = state.decided
        if decided is not None and decided.digest != self._arguments.digest(call):
            raise changed_log(self._journal.fold.session, call.id, call.name)

    def _refuse_lost(self, state: CallFold) -> None:
        """The arguments are not kept: the call does not run, whatever gates or people said of it."""
        denied, before = Deny(NOT_KEPT), () if state.decided is None else state.decided.answers
        answers, call = (*before, (_SECRETS, denied)), state.call
        self._journal.record(ToolDecided(call.id, denied, call.digest, answers, name=call.name))

    def _refuse(self, state: CallFold, error: ArgumentsError) -> None:
        """The arguments do not fit the tool: no hook is asked, and the model reads how to correct
        them."""
        denied = Deny(str(error))
        self._journal.record(
            ToolDecided(
                state.proposed.id, denied, "", ((_ARGUMENTS, denied),), name=state.proposed.name
            )
        )

    # ------------------------------------------------------------ the first decision

    def allow(self, step: StepFold, fold: Fold) -> list[CallFold]:
        """Decide the open calls of a step that no gate judges: each runs if its arguments fit."""
        calls = [state for state in step.calls.values() if state.result is None]
        for state in calls:
            proposed = state.proposed
            try:
                self.prepared[proposed.id] = self._read(
                    state.call if not state.masked else self._call(state)
                )
            except ArgumentsError as error:
                self._refuse(state, error)
            else:
                self._journal.add(ToolDecided(proposed.id, ALLOW, name=proposed.name, at=fold.at))
        return calls

    async def decide(self, state: CallFold) -> None:
        """The verdict on one call, into the log.

        One that the log has is looked at again until the call has begun.
        """
        if state.decided is not None:
            if state.called == 0 and not is_invalid(state.decided):
                await self._decide_again(state, state.decided)
            return
        if state.masked and self.is_lost(state):
            self._refuse_lost(state)
            return
        try:
            prepared = self.prepared[state.proposed.id] = self._read(
                state.call if not state.masked else self._call(state)
            )
        except ArgumentsError as error:
            self._refuse(state, error)
            return
        call = changed = prepared.call
        point, delegates, site = self._point, self._delegates, self._site
        if point is None and call.name not in delegates:
            self._decide_unmatched(state, call)
            return
        if delegates or point is None:
            passage = self.passage(call)
            point = passage.point
        else:
            passage = Passage(point, ToolCalling(call, site.turn), site, call.id)
        if delegates or point.changing:
            try:
                changed = (await passage.rewrite()).call
            except HookError as error:
                self._deny_for_error(state, call, passage, error)
                return
        verdict = await passage.judge() if point.decides or delegates else None
        if verdict is None and changed is call and self._allows and not delegates:
            journal = self._journal
            at = journal.fold.tick(journal.now) if point.waits else journal.fold.at
            journal.add(ToolDecided(call.id, ALLOW, name=call.name, at=at))
        elif not self._record(passage, verdict, changed, state, rewritten=changed is not call):
            return
        if point.injects or delegates:
            await self._injections.inject_beside(passage, changed.id)

    def _deny_for_error(
        self, state: CallFold, call: ToolCall, passage: Passage, error: HookError
    ) -> None:
        """A rewrite failed: the call does not run."""
        denied, took = Deny(failed_hook(error)), passage.took
        answers, json = ((error.hook or "?", denied),), self._arguments.difference(state, call)
        self._journal.record(
            HookFailed(error.hook, "ToolCalling", error_value(error), "Deny", took=took)
        )
        self._journal.record(
            ToolDecided(
                call.id,
                denied,
                self._arguments.bind(call),
                answers,
                json,
                name=call.name,
                took=took,
            )
        )

    def passage(
        self, call: ToolCall, decided: ToolDecided | None = None, about: str = ""
    ) -> Passage:
        """The way of a call through its hooks.

        That of a task for another agent goes on through `Delegating`.
        """
        site, point = self._site, self._point or _NOBODY
        event, about = ToolCalling(call, site.turn), about or call.id
        if not self._delegates or (tool := self._delegates.get(call.name)) is None:
            return Passage(point, event, site, about)
        return Handing(
            point,
            event,
            site,
            about,
            offered=tool.delegation,
            second=site.hooks.at(Delegating) if site.program.max_depth > 0 else None,
            default=self.unmatched(call),
            delegation=None if decided is None else decided.delegation,
        )

    def _decide_unmatched(self, state: CallFold, call: ToolCall) -> None:
        """No gate looks at calls: what the agent says of unmatched ones holds."""
        verdict, digest = self.unmatched(call), self._arguments.bind(call)
        self._journal.record(
            ToolDecided(
                call.id,
                verdict,
                digest,
                (),
                self._arguments.difference(state, call),
                name=call.name,
            )
        )
        if type(verdict) is Ask:
            unjudged = self._site.passage(_NOBODY, ToolCalling(call, self._site.turn), call.id)
            self._questions.put(self._questions.question(unjudged, verdict, digest, (), call=call))

    def unmatched(self, call: ToolCall) -> Any:
        """What holds when no gate answered."""
        unmatched = self._site.program.unmatched
        if unmatched == "allow":
            return ALLOW
        if unmatched == "ask":
            ask = Ask(f"Allow {call.name}?")
            return ask if self._questions.may_ask else self._questions.refusal(ToolCalling, ask)
        return Deny(f"No rule allows {call.name}.")

    def _record(
        self, passage: Passage, verdict: Any, call: ToolCall, state: CallFold, *, rewritten: bool
    ) -> bool:
        """Record the verdict on a call, with its final arguments if a hook spoke and they differ.

        Whether it runs.
        """
        journal, answers = self._journal, passage.answers
        verdict = self.unmatched(call) if verdict is None else verdict
        if type(verdict) is Ask and not self._questions.may_ask:
            verdict = self._questions.refusal(ToolCalling, verdict)
        spoken = rewritten or answers or verdict is not ALLOW
        digest, json = (
            (self._arguments.bind(call), self._arguments.difference(state, call))
            if spoken
            else ("", None)
        )
        delegation, names = (
            (passage.delegation, passage.names()) if isinstance(passage, Handing) else (None, ())
        )
        took = passage.took
        journal.record(
            ToolDecided(call.id, verdict, digest, answers, json, delegation, names, call.name, took)
        )
        if type(verdict) is Ask:
            self._ask(passage, verdict, call, asks_of(answers), names)
        return type(verdict) not in (Ask, Halt, Deny)

    def _ask(
        self,
        passage: Passage,
        ask: Ask,
        call: ToolCall,
        asks: Asks,
        delegating: tuple[str, ...],
    ) -> None:
        """Ask a person; `delegating` names the hooks that spoke at `Delegating`."""
        asked = self._questions.question(passage, ask, self._arguments.bind(call), asks, call=call)
        if asked.by and set(asked.by) <= set(delegating):
            asked = asked.replace(event="Delegating")
        self._questions.put(asked)

    # ------------------------------------------------------------ later decisions

    async def _decide_again(self, state: CallFold, decided: ToolDecided) -> None:
        """A call that was decided and has not begun: a person may have answered; on resume gates
        are asked again."""
        questions, call = self._questions, self.shown(state)
        answered = questions.answer_to(call.id) if state.waits else None
        if answered is not None and answered.digest != decided.digest:
            answered = None
        if answered is not None and isinstance(answered.answer, Edit):
            edited = self._arguments.edited(state, answered)
            if edited is None:
                self._refuse_lost(state)
            else:
                await self._decide_edited(edited, decided, answered)
            return
        is_settled = answered is not None and isinstance(answered.answer, Reject | Respond)
        if isinstance(decided.verdict, Allow | Ask) and not is_settled and self.is_lost(state):
            self._refuse_lost(state)
            return
        recorded = decided.answers or (("default", decided.verdict),)
        held = decided.verdict
        if answered is not None:
            held = after_answer(ToolCalling, recorded, answered) or ALLOW
        settled = () if state.waits and answered is None else asks_of(recorded)
        passage, judged = None, Judged(held)
        if self._is_judged(call) and questions.resumed and call.id not in self._judged_again:
            self._judged_again += (call.id,)
            passage = self.passage(call, decided)
            judged = await questions.judge_again(
                passage, held, settled, questions.asked_again(call.id)
            )
        names = decided.delegating
        if judged.new and isinstance(passage, Handing):
            names = (*names, *passage.names())
        if judged.new or answered is not None:
            person = () if answered is None else ((answered.by or "person", held),)
            answers, json = (
                (*decided.answers, *person, *judged.new),
                self._arguments.difference(state, call) or decided.json,
            )
            took = 0.0 if passage is None else passage.took
            new = decided.replace(
                verdict=judged.verdict,
                digest=self._arguments.bind(call),
                answers=answers,
                json=json,
            )
            self._journal.record(new.replace(delegating=names, name=call.name, took=took, at=0.0))
        if type(judged.verdict) is Ask:
            if judged.new or not questions.is_waiting(call.id):
                asks = judged.asking or asks_of(decided.answers)
                self._ask(passage or self.passage(call, decided), judged.verdict, call, asks, names)
        elif (
            answered is not None
            and not isinstance(judged.verdict, Halt | Deny)
            and self._is_judged(call)
        ):
            await self._injections.inject_beside(self.passage(call, decided), call.id)

    async def _decide_edited(
        self, call: ToolCall, decided: ToolDecided, answered: Answered
    ) -> None:
        """A person wrote other arguments: all gates look at them; those that asked may only
        refuse."""
        journal, person = self._journal, answered.by or "person"
        try:
            call = self._site.completed(call)
        except ArgumentsError as error:
            denied = Deny(
                f"{answered.by or 'a person'} changed the arguments, and they do not fit: {error}"
            )
            answers: Answers = ((person, denied),)
            new = decided.replace(
                verdict=denied, digest="", answers=answers, name=call.name, took=0.0, at=0.0
            )
            journal.record(new)
            return
        if not self._is_judged(call):
            journal.record(
                ToolDecided(
                    call.id, ALLOW, self._arguments.bind(call), (), call.json, name=call.name
                )
            )
            return
        passage = self.passage(call, decided)
        judged = await self._questions.judge_again(passage, ALLOW, asks_of(decided.answers))
        answers = (*asks_of(decided.answers), (person, ALLOW), *judged.new)
        delegation, names = (
            (passage.delegation, passage.names()) if isinstance(passage, Handing) else (None, ())
        )
        verdict, took = judged.verdict, passage.took
        journal.record(
            ToolDecided(
                call.id,
                verdict,
                self._arguments.bind(call),
                answers,
                call.json,
                delegation,
                names,
                call.name,
                took,
            )
        )
        if type(verdict) is Ask:
            self._ask(passage, verdict, call, judged.asking, names)
        elif not isinstance(verdict, Halt | Deny):
            await self._injections.inject_beside(passage, call.id)

    def _is_judged(self, call: ToolCall) -> bool:
        """Whether there may be a gate that looks at the call."""
        return self._point is not None or call.name in self._delegates


def is_invalid(decided: ToolDecided) -> bool:
    """Whether the arguments did not fit the tool: no gate was asked about them, so the verdict has
    no digest."""
    return not decided.digest and type(decided.verdict) is Deny
