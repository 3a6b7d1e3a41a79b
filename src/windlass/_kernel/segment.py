"""One pass over a turn, from entering it to its end or its next suspension: its parts, wired
together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from windlass._hooks.wraps import surround
from windlass.context.assembly import calibrate
from windlass.context.budget import Meter
from windlass.decisions import AnyResolution
from windlass.deltas import StreamEvent
from windlass.events import SubagentStopping
from windlass.messages import Message, user
from windlass.outcomes import Cancelled, Completed, Failed, Stopped
from windlass.ownership import Claim
from windlass.records import Record
from windlass.states import Fold, State, Step, StepFold, TurnFold, children_at_work

from .active_time import ActiveTime
from .audience import Audience
from .cancellation import Cancellation
from .channel import Channel
from .contracts import (
    ContinuationEvaluator,
    ErrorHandler,
    ExecutionLifecycle,
    StepApplier,
    StepRunner,
    StopResolver,
    ToolExecutor,
)
from .entry import Entry
from .error_handling import DefaultErrorHandler, Failures
from .inbox import Inbox
from .injections import Injections
from .journal import Journal
from .limits import Limits
from .loop import drive_wrapped
from .model_calls import ModelCalls
from .program import Program
from .questions import Questions, prior_verdicts
from .replies import Replies
from .site import Site
from .step import Runner
from .step_end import StepEnd
from .tool_attempts import ToolAttempts
from .tool_calls import Executor
from .tool_decisions import ToolDecisions
from .tool_results import ToolResults
from .transcript import Transcript
from .turn import TurnLifecycle
from .turn_end import TurnEnd
from .turn_start import TurnStart
from .votes import Evaluator, Resolver

if TYPE_CHECKING:
    from .background import Detached, InBackground
    from .children import Children, Parent
    from .compaction import Compaction


class Phases:
    """The composites of one pass, made in the order in which they need each other.

    `goes_on` says that the turn goes on without a vote. Composites that replace ours are always asked.
    """

    __slots__ = (
        "applier",
        "errors",
        "evaluator",
        "executor",
        "goes_on",
        "lifecycle",
        "resolver",
        "runner",
    )

    executor: ToolExecutor
    runner: StepRunner
    applier: StepApplier
    evaluator: ContinuationEvaluator
    resolver: StopResolver
    errors: ErrorHandler
    lifecycle: ExecutionLifecycle
    goes_on: Callable[[Fold], bool]

    def make(self, segment: Segment) -> None:
        """Make all of them for a pass."""
        makers = segment.program.composites
        self.executor = makers.executor(segment)
        runner = makers.runner(segment)
        self.runner = InStepWraps(segment.site, runner) if segment.site.hooks.step_wraps else runner
        self.applier = makers.applier(segment)
        self.evaluator = makers.evaluator(segment)
        self.resolver = makers.resolver(segment)
        ours = type(self.evaluator) is Evaluator and type(self.resolver) is Resolver
        self.goes_on = self.evaluator.goes_on if ours else _never  # type: ignore[attr-defined]
        self.errors = makers.errors(segment)
        self.lifecycle = makers.lifecycle(segment)


def _never(fold: Fold) -> bool:
    return False


class Segment:
    """The parts of one pass.

    A composite gets the few of them that it uses; `parent` is there for a child's pass.
    """

    __slots__ = (
        "cancellation", "children", "entry", "failures", "inbox", "injections", "limits", "meter", "parent", "phases",
        "questions", "results", "site", "step_end",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        fold: Fold,
        entry: Entry,
        claim: Claim,
        *,
        channel: Channel[StreamEvent] | None = None,
        parent: Parent | None = None,
        mail: bool = False,
    ) -> None:
        above = None if parent is None else parent.journal
        listening = None if parent is None else parent.audience
        time = ActiveTime(program.monotonic, None if above is None else above.time)
        prior = {decided.event for decided in prior_verdicts(fold)} if entry.resumed else ()
        hooks = program.hooks.with_events(prior) if prior else program.hooks
        audience = Audience(
            hooks,
            program.observers,
            fold,
            entry.scope,
            time,
            program.now,
            program.tools,
            channel=channel,
            mask=program.mask,
            above=listening,
            known_above=() if parent is None else parent.delivered or (),
            holds=bool({"ModelReplying", "TurnEnding"}.intersection(prior)),
        )
        journal = Journal(
            program,
            fold,
            audience,
            time,
            claim,
            parent=above,
            opens_turn=entry.message is not None,
            mail=mail,
        )
        if above is None and listening is not None:
            listening.join(audience)
        self.entry = entry
        self.parent = parent
        self.cancellation = Cancellation(
            journal, interruptible=parent is not None and parent.interruptible
        )
        self.limits = Limits(
            journal,
            None if parent is None else parent.limits,
            None if parent is None else parent.started,
        )
        self.site = Site(
            hooks,
            journal,
            self.cancellation,
            self.limits,
            entry.scope,
            resumed=entry.resumed,
            in_background=parent is not None and parent.started.background,
        )
        may_ask = parent is None or parent.may_wait
        self.questions = Questions(journal, resumed=entry.resumed, may_ask=may_ask)
        transcript = Transcript(journal, self.site, self.questions)
        self.injections = Injections(journal, self.site, transcript)
        self.inbox = Inbox(journal, transcript)
        self.failures = Failures(journal, self.site)
        self.results = ToolResults(journal, self.site, self.injections)
        self.children: Children | None = None
        self.site.connect(self)
        self.step_end = StepEnd(self.site, self.questions, self.injections, self.results)
        if program.delegates or (fold.turn is not None and _has_children(fold, fold.turn)):
            self.below()
        self.meter = _meter(program, fold)
        self.phases = Phases()
        self.phases.make(self)

    @property
    def program(self) -> Program:
        """The compiled agent."""
        return self.site.program

    @property
    def journal(self) -> Journal:
        """The log."""
        return self.site.journal

    @property
    def fold(self) -> Fold:
        """The log so far."""
        return self.site.journal.fold

    @property
    def state(self) -> State:
        """The current state."""
        return self.site.journal.state

    def below(self) -> Children:
        """What gives tasks to the agents below, made when it is first needed."""
        if self.children is None:
            self.children = _children(self)
            self.step_end.connect(self.children)
        return self.children

    def in_background(self) -> InBackground:
        """What starts agents in the background and waits for them."""
        from .background import InBackground

        return InBackground(
            self.site, self.injections, self.limits, self.inbox, self.entry.ephemeral
        )

    # ------------------------------------------------------------ for composites that replace ours

    def record(self, record: Record) -> None:
        """Add a record to the log."""
        self.journal.record(record)

    def conclude(
        self, outcome: Completed | Stopped | Failed | Cancelled, text: str | None = None
    ) -> None:
        """Decide how the turn will end. The first decision stands."""
        self.journal.conclude(outcome, text)

    async def commit(self) -> None:
        """Hand the pending records to the store."""
        await self.journal.commit()

    async def settle(self) -> State:
        """Write what is left and wait for observers, at the end of the turn."""
        return await self.journal.settle(self.site.tasks)


def compaction(segment: Segment) -> Compaction:
    """What compacts the session of a pass."""
    from .compaction import Compaction

    return Compaction(segment.journal, segment.site, segment.questions, segment.meter)


def _meter(program: Program, fold: Fold) -> Meter | None:
    if not program.metered:
        return None
    meter = Meter(program.budget)
    calibrate(meter, fold, program)
    return meter


def _has_children(fold: Fold, turn: TurnFold) -> bool:
    """Whether agents work for a turn, or hooks or tools want to give tasks to some."""
    return bool(children_at_work(fold)) or any(
        asked.event == "Delegating" for asked in turn.waiting
    )


def _children(segment: Segment) -> Children:
    from .children import Children  # most agents have no agents below them

    s = segment
    return Children(
        s.site, s.questions, s.injections, s.limits, s.cancellation, _child, drive_wrapped
    )


def _child(
    program: Program, fold: Fold, parent: Parent, message: Message | None, mail: bool
) -> Segment:
    """The pass over a child's turn."""
    assert parent.journal is not None
    entry = Entry(message=message, scope=parent.scope, ephemeral=True, resumed=message is None)
    claim = parent.journal.claim.replace(begins=False)
    return Segment(program, fold, entry, claim, parent=parent, mail=mail)


def detached_pass(
    child: Detached,
    fold: Fold,
    claim: Claim,
    answers: Mapping[str, AnyResolution | Sequence[AnyResolution]],
    *,
    mail: bool,
    took_over: str = "",
) -> Segment:
    """The pass over the turn of a child in the background, which has a claim of its own."""
    message = user(child.task or "") if fold.turn is None else None
    entry = Entry(
        message,
        answers,
        child.scope,
        ephemeral=True,
        resumed=message is None,
        took_over=took_over,
    )
    from .children import Parent

    parent = Parent(
        child.parent,
        child.scope,
        child.started,
        audience=child.audience,
        injected=child.injected or (),
        stopping=child.above.hooks.at(SubagentStopping),
        may_wait=child.may_wait,
        interruptible=True,
    )
    return Segment(child.program, fold, entry, claim, parent=parent, mail=mail)


# ---------------------------------------------------------------- the default composites


def make_lifecycle(s: Segment) -> ExecutionLifecycle:
    above = "" if s.parent is None else s.parent.session
    delivered, injected = (
        (None, ()) if s.parent is None else (s.parent.delivered, s.parent.injected)
    )
    start = TurnStart(s.site, s.entry, s.questions, s.injections, s.cancellation, above)
    resume = None
    if s.entry.message is None:
        from .crash_loops import CrashLoops
        from .turn_resume import TurnResume

        loops = CrashLoops(s.site, s.entry, s.step_end)
        resume = TurnResume(
            s.site,
            s.entry,
            s.questions,
            s.injections,
            s.inbox,
            s.step_end,
            start,
            loops,
            s.cancellation,
            delivered,
        )
    end = TurnEnd(
        s.site,
        s.entry,
        s.questions,
        s.injections.transcript,
        s.step_end,
        s.failures,
        s.cancellation,
        start,
    )
    votes = s.phases.evaluator, s.phases.resolver
    return TurnLifecycle(
        s.entry, start, resume, end, s.injections, s.cancellation, *votes, injected
    )


def make_runner(s: Segment) -> StepRunner:
    calls = ModelCalls(
        s.journal, s.site, s.cancellation, s.limits, s.meter, resumed=s.entry.resumed
    )
    replies = Replies(
        s.site, calls, s.questions, compaction(s) if s.program.compactors else None, s.failures
    )
    return Runner(
        s.site,
        replies,
        s.phases.executor,
        s.inbox,
        s.questions,
        s.injections,
        s.step_end,
        s.cancellation,
    )


def make_executor(s: Segment) -> ToolExecutor:
    decisions = ToolDecisions(s.site, s.questions, s.injections, reviewed=s.results.reviewed)
    attempts = ToolAttempts(
        s.site, decisions, s.results, s.limits, s.cancellation, s.children, resumed=s.entry.resumed
    )
    return Executor(
        s.site, s.questions, decisions, attempts, s.results, s.limits, s.failures, s.inbox
    )


def make_applier(s: Segment) -> StepApplier:
    return s.step_end


def make_evaluator(s: Segment) -> ContinuationEvaluator:
    return Evaluator(s.journal, s.site)


def make_resolver(s: Segment) -> StopResolver:
    above = None if s.parent is None else s.parent.stopping
    return Resolver(
        s.journal, s.site, s.questions, s.injections.transcript, s.inbox, above, s.entry.ephemeral
    )


def make_errors(s: Segment) -> ErrorHandler:
    return DefaultErrorHandler(s.journal, s.failures, s.step_end)


class InStepWraps(Struct, frozen=True):
    """A step runner inside the wraps of a step."""

    site: Site
    runner: StepRunner

    async def run(self, fold: Fold) -> StepFold:
        steps: list[StepFold] = []

        async def one(_: State) -> Step:
            steps.append(await self.runner.run(fold))
            return steps[0].step()

        await surround(self.site.hooks.step_wraps, one, self.site)(fold.state)
        return steps[0]
