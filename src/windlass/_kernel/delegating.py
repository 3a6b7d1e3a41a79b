"""Tasks for other agents: how they are judged, and how a child lives in its parent's call.

A child is a session of its own in the parent's store, named after the call. It runs in the same loop, awaited by the
call, so that what ends the parent ends the child. What the parent's log has of it is that it was started, what it asks
people, what it has cost and what came of it; all else is in the child's own log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from windlass._hooks.compiled import CompiledHooks, Point
from windlass._hooks.dispatch import Passage, cancelled
from windlass._hooks.hooks import Hook
from windlass._hooks.merging import strictest
from windlass.context.assembly import prompt_of
from windlass.criteria import CostLimit, Deadline, Limit, TokenLimit
from windlass.decisions import Allow, Ask
from windlass.errors import ConfigError, StoreError
from windlass.events import Delegating, ToolCalling
from windlass.messages import Delegation, Message, ToolCall, ToolResult, text_result, user
from windlass.outcomes import Cancelled, Completed, Failed, Stopped, StopReason, error_value
from windlass.records import Answered, Asked, Charged, Delegated, Fact, HookFailed, Injected, Record, Suspended
from windlass.slots import Slot
from windlass.states import CallFold, Child, Fold, State, fold_log
from windlass.tools import ArgumentsError, Tool

from .composites import ExecutionLifecycle
from .delegates import Delegate
from .inbox import fitting, from_below
from .limiting import levels, owed, spent
from .loop import drive_wrapped
from .program import Program
from .segment import Segment
from .stages import inject_again, take_in

_STRICTNESS: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2}


class ChildWaits(BaseException):
    """A child waits for a person. It ends the wraps around the call, which no wrap may see; resume enters them anew."""


# ---------------------------------------------------------------- what a child is compiled to


def program_of(parent: Program, delegate: Delegate, tools: tuple[str, ...] | None = None) -> Program:
    """What an agent is as a child of another one, compiled once."""
    only = delegate.only if tools is None else tools
    key = (delegate.compiled, only)
    if key not in parent.children:
        parent.children[key] = delegate.compiled(parent, only)
    return parent.children[key]


def tools_below(program: Program) -> Iterator[Tool[..., Any]]:
    """The tools of all agents below an agent."""
    met: set[Any] = set()
    found = [program]
    while found:
        above = found.pop()
        for delegate in above.delegates.values() if above.max_depth > 0 else ():
            if (delegate.compiled, delegate.only) not in met:
                met.add((delegate.compiled, delegate.only))
                child = program_of(above, delegate)
                found.append(child)
                yield from child.tools.values()


def check_edit(program: Program, call: ToolCall) -> None:
    """Raise `ArgumentsError` if no tool with the name of the call takes its arguments, here or below.

    A name without a tool is not checked: its tool is in another process.
    """
    known = [tool for tool in (*program.tools.values(), *tools_below(program)) if tool.name == call.name]
    problems: list[ArgumentsError] = []
    for tool in known:
        try:
            tool.complete(call.json)
        except ArgumentsError as problem:
            problems.append(problem)
    if problems and len(problems) == len(known):
        raise problems[0]


def below(
    parent: Program,
    own: Program,
    only: tuple[str, ...] | None,
    describe: Callable[..., bytes],
) -> Program:
    """An agent's program with what its parent passes on: hooks and transformers, its store and its clock."""
    _check_tools(parent, own, only)
    passed = [hook.copied(above=hook.above + 1) for hook in parent.hooks.all if _passes_on(hook)]
    stopping = _stopping(parent)
    slots = _slots(parent, own, [*passed, *stopping])
    mine = [hook.copied(above=hook.above) for hook in own.hooks.all]
    transforms = [*own.hooks.transforms, *[t.inherited() for t in parent.hooks.transforms if t.inherit]]
    hooks = CompiledHooks([*mine, *passed], transforms, slots)
    for kind in parent.hooks.listeners:
        hooks.listeners.setdefault(kind, ())
    tools = {name: tool for name, tool in own.tools.items() if only is None or name in only}
    stricter = _STRICTNESS[own.unmatched] > _STRICTNESS[parent.unmatched]
    return Program(
        name=own.name,
        model=own.model,
        models=own.models,
        sections=own.sections,
        tools=tools,
        settings=own.settings,
        output_schema=own.output_schema,
        read_output=own.read_output,
        hooks=hooks,
        compactors=own.compactors,
        windows=own.budget.windows,
        count=own.budget.count,
        criteria=[_on_clock(criterion, own, parent) for criterion in own.criteria],
        policy=own.policy,
        composites=own.composites,
        handlers=own.handlers,
        store=parent.store,
        clock=parent.clock,
        observers=parent.observers,
        scopes=own.scopes,
        description=describe(
            [*hooks.all, *stopping],
            tools.values(),
            [name for name, _ in own.named_criteria],
            prompt_of(own.sections, own.model_name, own.budget.windows, own.settings, own.output_schema),
            [own.mask, parent.mask],
        ),
        unmatched=own.unmatched if stricter else parent.unmatched,
        reserve=own.reserve,
        max_regenerations=own.max_regenerations,
        max_vetoes=own.max_vetoes,
        max_idle_steps=own.max_idle_steps,
        max_parallel=own.max_parallel,
        mask=own.mask,
        max_depth=min(own.max_depth, parent.max_depth - 1),
        ending_timeout=own.ending_timeout,
        patience=own.patience,
    )


def _passes_on(hook: Hook) -> bool:
    """Observers hear of a child from its parent, but for those that read its log."""
    return hook.durable if hook.kind == "observe" else hook.inherit


def _stopping(parent: Program) -> list[Hook]:
    point = parent.hooks.subagent_stopping
    return [] if point is None else [*point.changing, *point.gates, *point.costly, *point.shadows]


def _check_tools(parent: Program, own: Program, only: tuple[str, ...] | None) -> None:
    if unknown := [name for name in only or () if name not in own.tools]:
        known = ", ".join(own.tools) or "none"
        raise ConfigError(
            f"agent {parent.name!r} lets agent {own.name!r} use {', '.join(map(repr, unknown))}, which it does not "
            f"have; it has: {known}"
        )


def _slots(parent: Program, own: Program, hooks: Iterable[Hook]) -> list[Slot[Any]]:
    """The child's slots, and those of its parent for the hooks that come from there. Each session has its own."""
    mine = own.hooks.slots
    clashing = {name for name, slot in parent.hooks.slots.items() if name in mine and mine[name].type is not slot.type}
    for hook in hooks:
        if wanted := [source for _, source in hook.wants if source in clashing]:
            raise ConfigError(
                f"{hook.kind} {hook.name!r} of agent {parent.name!r} holds for agent {own.name!r} too, but wants slot "
                f"{wanted[0]!r}, which is {parent.hooks.slots[wanted[0]]!r} there and {mine[wanted[0]]!r} here"
            )
    return [*[slot for name, slot in parent.hooks.slots.items() if name not in mine], *mine.values()]


def _on_clock(criterion: Any, own: Program, parent: Program) -> Any:
    """A deadline that goes by its agent's clock goes by its parent's now."""
    if isinstance(criterion, Deadline) and criterion.now == own.clock.now:
        return replace(criterion, now=parent.clock.now)
    return criterion


# ---------------------------------------------------------------- how a task is judged


class Handing(Passage, kw_only=True):
    """A call that hands over a task, on its way through `ToolCalling` and then `Delegating`.

    Both may rewrite before either judges, so that all gates see the final task. `default` is what holds if no gate on
    `ToolCalling` answers; `delegation` is what is handed over, `offered` what it is if nobody changes it.
    """

    offered: Callable[[str], Delegation]
    second: Point | None
    default: Any
    delegation: Delegation | None = None
    delegating: Passage | None = None

    def names(self) -> tuple[str, ...]:
        """Who has answered at `Delegating`."""
        return () if self.delegating is None else tuple([name for name, _ in self.delegating.answers])

    def _prepare(self) -> Passage | None:
        """The second half of the way, if there is a task and somebody looks at it."""
        call: ToolCall = self.event.call
        task = call.arguments.get("task")
        if self.delegating is None and isinstance(task, str):
            given = self.delegation or self.offered(task)
            self.delegation = given if given.task == task else given.replace(task=task)
            if self.second is not None:
                event = Delegating(self.delegation, self.event.turn)
                self.delegating = Passage(self.second, event, self.site, self.about, heard=self.heard)
        return self.delegating

    async def rewrite(self) -> Any:
        await Passage.rewrite(self)
        if (delegating := self._prepare()) is not None:
            self.delegation = given = (await delegating.rewrite()).task
            call: ToolCall = self.event.call
            if call.arguments.get("task") != given.task:
                self.event = replace(self.event, call=call.replace(arguments={**call.arguments, "task": given.task}))
        return self.event

    async def judge(self, only: Callable[[Hook], bool] | None = None) -> Any:
        verdict = await Passage.judge(self, only)
        verdict = self.default if verdict is None else verdict
        delegating = self._prepare()
        if delegating is None or not isinstance(verdict, Allow | Ask):
            return verdict
        await delegating.judge(only)
        before = self.answers or (("default", self.default),)
        self.answers = (*self.answers, *delegating.answers)
        self.took += delegating.took
        return strictest(ToolCalling, (*before, *delegating.answers))

    @property
    def injects(self) -> bool:
        return True

    async def inject(self, about: str | None = None, only: Callable[[Hook], bool] | None = None) -> list[Injected]:
        items = await Passage.inject(self, about, only)
        if (delegating := self._prepare()) is not None:
            items += await delegating.inject(f"{self.event.call.id}/t1", only)
        return items


# ---------------------------------------------------------------- a child at work


class ChildSegment(Segment):
    """A segment of a child's turn. What happens in it is told above, and what it spends is counted above."""

    def __init__(
        self,
        parent: Segment,
        program: Program,
        fold: Fold,
        started: Delegated,
        *,
        message: Message | None = None,
        delivered: tuple[Answered, ...] | None = None,
    ) -> None:
        self.parent = self.above = parent
        self.task_given = self.started = started
        self.delivered = None if delivered is None else tuple([answered.replace() for answered in delivered])
        super().__init__(program, fold, message=message, scope=parent.scope, ephemeral=True)
        self.share = _limits(started)
        if parent.mask is not None:
            self.conceal(parent.mask)
        self.lifecycle = ChildLifecycle(self, self.lifecycle)

    def fact(self, kind: type[Fact], *values: Any) -> None:
        if self.listens:
            self._tell(self._masked(kind(*values, at=self.fold.tick(self.now))))

    def _tell(self, fact: Fact) -> None:
        super()._tell(fact)
        if not any(fact is answered for answered in self.delivered or ()):  # whoever is above has heard it
            self.above.hear(fact.replace(path=self.fold.session), self)

    @property
    def broken(self) -> StoreError | None:
        return super().broken or self.above.broken

    async def told(self) -> None:
        await super().told()
        await self.above.told()

    def injected_from_above(self) -> list[Injected]:
        """What was injected for this child when its task was judged, as parts of its turn."""
        above = self.above.fold.turn
        items = (*(above.injected if above is not None else ()), *self.above.unrecorded)
        mine = f"{self.task_given.call}/t1"
        about = f"{self.fold.session}/t1"
        return [i.replace(about=about) for i in items if i.event == "Delegating" and i.about == mine and i.parts]


class ChildLifecycle:
    """The lifecycle of a child's turn: once its task is let in, what was injected for it joins."""

    def __init__(self, segment: ChildSegment, inner: ExecutionLifecycle) -> None:
        self.segment = segment
        self.inner = inner

    async def start(self, fold: Fold) -> None:
        await self.inner.start(fold)
        turn = fold.turn
        if turn is None or not turn.admitted or not fold.going:
            return
        segment = self.segment
        recorded = {item.hook for item in turn.injected if item.event == "Delegating"}
        recorded |= {message.origin for message in fold.messages if message.origin is not None}
        for item in segment.injected_from_above():
            if item.hook not in recorded:
                await take_in(segment, item)
            elif not item.record:
                segment.unrecorded = (*segment.unrecorded, item)

    async def finish(self, fold: Fold) -> State:
        return await self.inner.finish(fold)

    async def failed(self, fold: Fold, error: BaseException) -> State:
        return await self.inner.failed(fold, error)


async def hand_over(segment: Segment, tool: Delegate, call: ToolCall, task: str, number: int) -> ToolResult:
    """A task to a child, and what comes of it. A child that was started before goes on where it stood.

    Whatever happens to the child is a result, but for what cancels the parent too and for questions to people. If its
    log can be read or written no longer, nor is that of the parent written: the next to resume finds both as they were.
    """
    assert segment.fold.open is not None
    state = segment.fold.open.calls[call.id]
    if segment.program.max_depth < 1:
        return _error(tool, "was not started: agents are nested as deep as they may be already (max_depth)")
    session = _session(segment, call, number)
    try:
        known = state.child(session)
        if segment.resumed:
            await _inject_again(segment, state)
        if known is None:
            child: ChildSegment | None = await _start(segment, tool, state, session, task)
        else:
            child = await _find(segment, tool, known)
        if child is None:
            raise ChildWaits
        if child.state.over and child.message is None:
            charge(segment, child)
        else:
            await _run(segment, child)
    except Exception as error:
        if isinstance(error, StoreError):
            segment.give_up(error)
        segment.record(HookFailed(tool.name, "Delegated", error_value(error), effect="the agent could not work"))
        return _error(tool, f"could not work: {type(error).__name__}; the log has the details")
    if child.broken is not None:
        segment.give_up(child.broken)
    if isinstance(child.state.outcome, Suspended) and child.waiting:
        _ask_too(segment, child.waiting)
        raise ChildWaits
    return _result(tool, child.state)


def _session(segment: Segment, call: ToolCall, number: int) -> str:
    """The session of a child: named after its call, but below this session, which may be a fork of the call's."""
    *_, step, position = call.id.split("/")
    return f"{segment.fold.session}/{step}/{position}" + (f".{number}" if number > 1 else "")


async def _inject_again(segment: Segment, state: CallFold) -> None:
    """On resume: hooks whose parts for the child are not in the log are asked once more."""
    point, delegation = segment.hooks.delegating, state.decided.delegation if state.decided is not None else None
    about = f"{state.call.id}/t1"
    asked = any(item.about == about for item in segment.unrecorded)
    if point is not None and delegation is not None and not asked:
        await inject_again(segment, Passage(point, Delegating(delegation, segment.turn), segment, about))


async def _start(segment: Segment, tool: Delegate, state: CallFold, session: str, task: str) -> ChildSegment:
    """A new child. That it was started is stored before it does anything."""
    decided = state.decided.delegation if state.decided is not None else None
    given = (decided or tool.delegation(task)).replace(task=task)
    program = program_of(segment.program, tool, given.tools)
    tokens, usd = _portion(segment, given.share)
    started = Delegated(state.call.id, session, tool.agent, task, given.tools, tokens, usd)
    segment.record(started)
    await segment.commit()
    return ChildSegment(segment, program, Fold(session), started, message=user(task))


async def _find(segment: Segment, tool: Delegate, known: Child) -> ChildSegment | None:
    """A child that was started before, with the answers that came for it. None if it still waits for all of them.

    One that has spent something and has no log is not begun anew: nobody knows what it has done. An answer or a cancel
    may wait in its own inbox, or in that of an agent below it: it came when they had just suspended, or was meant for
    one of them.
    """
    started = known.started
    program = program_of(segment.program, tool, started.tools)
    log = await program.store.read(started.session)
    fold = fold_log(started.session, log)
    if fold.turn is None and (known.charged.requests or known.charged.total):
        raise StoreError(
            f"the log of session {started.session!r}, in which agent {tool.agent!r} was at work for session "
            f"{segment.fold.session!r}, is not in this store: import it too and resume, or go on with a new message"
        )
    if fold.turn is None:
        return ChildSegment(segment, program, fold, started, message=user(started.task))
    delivered = await _delivered(segment, fold, log)
    entries = await program.store.take(started.session, fold.inbox)
    if isinstance(fold.turn.outcome, Suspended) and fold.turn.waiting and not delivered:
        _ask_too(segment, fold.turn.waiting)
        given = [*await from_below(program.store, fold), *[(kind, data) for _, kind, data in entries]]
        for kind, data in given:
            if kind == "answer" and (answered := fitting(segment, data)) is not None:
                segment.record_answer(answered)
                delivered = (*delivered, answered)
        if not delivered and not any(kind == "cancel" for kind, _ in given):
            return None
    child = ChildSegment(segment, program, fold, started, delivered=delivered)
    child.inbox = bool(entries)
    return child


async def _delivered(segment: Segment, fold: Fold, log: Sequence[Record]) -> tuple[Answered, ...]:
    """The answers in the parent's log to what the child still asks. An answer is delivered once."""
    turn, above = fold.turn, segment.fold.turn
    assert turn is not None
    assert above is not None
    open_questions = {asked.id: asked for asked in turn.waiting}
    found = [a for a in above.answered if a.id in open_questions and a.digest == open_questions[a.id].digest]
    given = [record.id for record in log if isinstance(record, Answered)]
    if again := [a for a in found if a.id in given]:
        received = [r.id for r in await segment.program.store.read(segment.fold.session) if isinstance(r, Answered)]
        stale = {a.id for a in again if received.count(a.id) <= given.count(a.id)}
        found = [a for a in found if a.id not in stale]
    return tuple(found)


def _ask_too(segment: Segment, questions: Sequence[Asked]) -> None:
    """The questions of a child are its parent's as well. Those who listen have heard them from the child."""
    for asked in questions:
        if not segment.is_waiting(asked.id):
            segment.fold.at = at = max(segment.fold.at, asked.at)
            segment.fold.add(asked.replace(at=at))


async def _run(segment: Segment, child: ChildSegment) -> None:
    """The child's turn, to its end or its next suspension."""
    segment.children = (*segment.children, child)
    try:
        await drive_wrapped(child)
    except asyncio.CancelledError:
        if cancelled() or not child.state.over:
            raise
    finally:
        segment.children = tuple([other for other in segment.children if other is not child])
        charge(segment, child)
        child.release()


async def end_children(segment: Segment, reason: str) -> None:
    """The open calls of a step will not be finished: neither will the children that work on them.

    If the log cannot say so they stay as they are: whoever resumes it goes on with them.
    """
    step = segment.fold.open if segment.broken is None else None
    for call in step.calls.values() if step is not None else ():
        tool = segment.program.delegates.get(call.call.name)
        if call.result is None and call.children and tool is not None:
            await _end(segment, tool, call.children[-1].started, reason)


async def _end(segment: Segment, tool: Delegate, started: Delegated, reason: str) -> None:
    program = program_of(segment.program, tool, started.tools)
    fold = fold_log(started.session, await program.store.read(started.session))
    if fold.turn is None or fold.state.over:
        return
    child = ChildSegment(segment, program, fold, started)
    try:
        await child.lifecycle.failed(fold, asyncio.CancelledError(reason))
    except asyncio.CancelledError:
        if cancelled():
            raise
    if child.broken is not None:
        segment.give_up(child.broken)
        raise child.broken
    charge(segment, child)


def _result(tool: Delegate, state: State) -> ToolResult:
    """What the parent's model reads of a child's turn."""
    match state.outcome:
        case Completed():
            return text_result(state.text)
        case Stopped(reason=StopReason.RETRY_LIMIT as reason):  # whose detail is the text of an error
            return _error(tool, f"was stopped ({reason.value})")
        case Stopped(reason=reason, detail=detail):
            return _error(tool, f"was stopped ({reason.value}): {detail}")
        case Failed(error=error):
            return _error(tool, f"failed: {error.type}" + (f" in {error.hook!r}" if error.hook else ""))
        case Cancelled(reason=why):
            return _error(tool, f"was cancelled: {why}" if why else "was cancelled")
        case _:
            return _error(tool, "waits for nobody and cannot go on")


def _error(tool: Delegate, what: str) -> ToolResult:
    return text_result(f"Error: agent {tool.agent!r} {what}", "error")


# ---------------------------------------------------------------- what a child may spend


def charge(segment: Segment, child: ChildSegment) -> None:
    """What a child has spent since it was last charged, to its parent's turn."""
    usage = owed(segment, child, child.state.usage)
    if usage.requests or usage.total:
        segment.record(Charged(child.task_given.call, child.task_given.session, usage))


def _portion(segment: Segment, share: float | None) -> tuple[int | None, float | None]:
    """A share of the tokens and of the money that are left, for this agent and those above it; None: no limit."""
    if share is None:
        return None, None
    tokens: list[int] = []
    money: list[float] = []
    for level in levels(segment):
        usage = spent(level)
        for limit in (*level.program.limits, *level.share):
            if isinstance(limit, TokenLimit):
                tokens.append(max(limit.tokens - usage.total, 0))
            elif isinstance(limit, CostLimit):
                money.append(max(limit.usd - (usage.cost or 0.0), 0.0))
    return int(min(tokens) * share) if tokens else None, min(money) * share if money else None


def _limits(started: Delegated) -> tuple[Limit, ...]:
    tokens = () if started.tokens is None else (TokenLimit(started.tokens),)
    return tokens if started.usd is None else (*tokens, CostLimit(started.usd))
