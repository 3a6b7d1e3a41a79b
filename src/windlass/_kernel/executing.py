"""Tool calls: all of a step are decided before the first runs; only a chain that ends in an allow is executed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage, cancelled, failed_hook
from windlass._hooks.merging import strictest
from windlass._hooks.wraps import Kind, NotPassable, passable
from windlass.checking import checked_call, checked_result, is_result
from windlass.decisions import Allow, Answer, Ask, Deny, Edit, Finish, Halt
from windlass.errors import HookError, NotDone, SlotConflict, ToolError, UnsafeRetry, name_raiser, raiser_of, text_of
from windlass.events import LateResult, ToolCalling, ToolReturning
from windlass.messages import TextPart, ToolCall, ToolResult, as_result, text_result
from windlass.outcomes import Completed, ErrorValue, Stopped, StopReason, error_value, recorded_error
from windlass.records import (
    Answered,
    HookDecided,
    HookFailed,
    Injected,
    ToolAttempted,
    ToolCalled,
    ToolDecided,
    ToolReturned,
)
from windlass.states import CallFold, Fold, StepFold
from windlass.tools import ArgumentsError, Tool
from windlass.turns import Asker, Turn, Writes

from .arguments import Prepared
from .delegates import Delegate
from .delegating import ChildWaits, Handing, end_children, hand_over
from .doubting import UNKNOWN, settle, waits_for_word
from .erring import handling_of
from .inbox import take_inbox
from .questions import Answers, Judged, after_answer, asked_again, asks_of, judge_again, question, settled_by
from .returning import CLOSED, beside_result, details_of, pass_on
from .segment import Segment

_ALLOW = Allow()
_RESULT = Kind(ToolCall, "a ToolResult or a value", is_result, checked_result, ToolError)
_ARGUMENTS = "arguments"
_NOBODY = Point(ToolCalling, ())


class Executor:
    """Decides and runs the open calls of a step."""

    __slots__ = (
        "_onion", "_read", "attempts", "delegates", "held_up", "judged", "judged_again", "limited", "prepared",
        "prompt", "retried", "returning", "segment", "waiting_writes", "wrapped", "written",
    )  # fmt: skip

    def __init__(self, segment: Segment) -> None:
        program = segment.program
        self.segment = segment
        self.delegates = program.delegates
        self.judged = program.judges_calls or segment.resumed
        self.returning = segment.hooks.tool_returning is not None
        self.limited = segment.limited("tool")
        self.prepared: dict[str, Prepared] = {}
        self.judged_again: set[str] = set()
        self.written: dict[str, Writes] | None = None
        self.waiting_writes: dict[str, tuple[CallFold, ToolResult, Writes]] | None = None
        self.wrapped = program.wraps_tools
        seen = self.judged or self.wrapped or self.returning
        self._read = segment.arguments.complete if seen else segment.arguments.read
        calling = segment.hooks.tool_calling
        waits = self.wrapped or segment.listens or segment.durable or segment.resumed or self.delegates
        self.prompt = not (waits or (calling is not None and calling.groups))
        if self.wrapped:
            self.attempts: dict[str, Attempts] = {}
            self.retried: dict[str, int] = {}
            self.held_up: set[str] = set()
            self._onion = segment.wrapped(segment.hooks.tool_wraps, self._innermost, _RESULT, self._guarded, _place)

    async def execute(self, fold: Fold) -> None:
        """All calls are decided, then those that may run do."""
        step = fold.open
        assert step is not None
        ready: list[CallFold] = []
        held_back = False
        for call in step.calls.values():
            if call.result is None:
                if self.judged:
                    await self._decide(call)
                else:
                    self._allow(call, fold.at)
                if self._is_held_back(call):
                    held_back = True
                else:
                    ready.append(call)
        if self.judged and not await self._may_begin(fold, step, ready, held_back):
            return
        if len(ready) == 1:
            await self._run(ready[0])
        elif ready:
            await self._run_all(ready)
        if step.decided or (fold.turn is not None and fold.turn.waiting):
            await self._conclude(fold, step)

    def _is_held_back(self, call: CallFold) -> bool:
        """Whether a decided call does not run now: it waits for a person, or a gate halted the turn over it."""
        assert call.decided is not None
        verdict = call.decided.verdict
        if verdict is _ALLOW and not call.called:
            return False
        return type(verdict) is Halt or type(verdict) is Ask or (call.called > 0 and self._in_doubt(call))

    async def _may_begin(self, fold: Fold, step: StepFold, ready: list[CallFold], held_back: bool) -> bool:
        """Whether calls may be made, once all are decided: no gate halted the turn, nothing ended it meanwhile."""
        segment = self.segment
        if held_back and (halts := [c for c in step.calls.values() if _is_halted(c)]):
            await self._halt([c.decided.verdict for c in halts if c.decided is not None])
            return False
        if not fold.going:
            for call in ready if segment.limit_hit is not None else ():
                await self._run(call)
            return False
        segment.refuse_cancelled()
        if segment.waiting:
            await segment.commit()
        return True

    async def _halt(self, halts: list[Any]) -> None:
        """A halt on any call closes all of them; none runs."""
        segment = self.segment
        halt = strictest(ToolCalling, [(str(index), halt) for index, halt in enumerate(halts)])
        if self.delegates:
            await end_children(segment, halt.reason)
        step = segment.fold.open
        for call in tuple(step.calls.values()) if step is not None else ():
            if call.result is None:
                await self._return(call, text_result(f"Not run, the turn was halted: {halt.reason}", "denied"))
        segment.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)

    async def _conclude(self, fold: Fold, step: StepFold) -> None:
        """What the gates said of the results means halt, wait, finish, or simply go on. All of it is in the log."""
        segment = self.segment
        of_calls = [d for d in step.decided if d.event in ("ToolReturning", "ToolCalling")]
        spoken = [(_position(d.about), d.verdict) for d in of_calls if not d.about.endswith(CLOSED)]
        halts = [(call, verdict) for call, verdict in spoken if isinstance(verdict, Halt)]
        finishes = [(call, verdict.value) for call, verdict in spoken if isinstance(verdict, Finish)]
        if halts:
            halt = strictest(ToolReturning, halts)
            segment.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)
        elif segment.waiting:
            await self._wait(fold)
        elif finishes:
            value = min(finishes, key=lambda finish: finish[0])[1]
            segment.conclude(Completed(value), value if isinstance(value, str) else as_result(value).text)

    async def _wait(self, fold: Fold) -> None:
        """Wait for the answers, unless one came from outside while others were at work: then its call goes on."""
        segment, open_questions = self.segment, len(self.segment.waiting)
        await segment.commit()
        if segment.inbox:
            await take_inbox(segment)
        if fold.going and len(segment.waiting) < open_questions:
            await self.execute(fold)
        elif fold.going:
            segment.suspend()

    # ------------------------------------------------------------ the arguments

    def _prepare(self, state: CallFold) -> Prepared:
        """The arguments of a call, read once and kept until it has run. Complete if hooks, wraps or people see it."""
        prepared = self.prepared.get(state.proposed.id)
        if prepared is None:
            prepared = self.prepared[state.proposed.id] = self._read(state.call)
        return prepared

    def _shown(self, state: CallFold) -> ToolCall:
        """What hooks and wraps see of a call: the recorded bytes if somebody spoke of it. An invalid one as it is."""
        if state.decided is not None and state.decided.digest:
            return state.call
        try:
            return self._prepare(state).call
        except ArgumentsError:
            return state.call

    def _refuse(self, state: CallFold, error: ArgumentsError) -> None:
        """The arguments do not fit the tool: no hook is asked, and the model reads how to mend them."""
        denied = Deny(str(error))
        self.segment.record(
            ToolDecided(state.proposed.id, denied, "", ((_ARGUMENTS, denied),), name=state.proposed.name)
        )

    def _in_doubt(self, state: CallFold) -> bool:
        return waits_for_word(self.segment, state, self._shown(state))

    # ------------------------------------------------------------ decide

    def _allow(self, state: CallFold, at: float) -> None:
        """Nobody judges the call: it runs if its arguments fit."""
        proposed = state.proposed
        try:
            self.prepared[proposed.id] = self._read(state.call)
        except ArgumentsError as error:
            self._refuse(state, error)
        else:
            self.segment.add(ToolDecided(proposed.id, _ALLOW, name=proposed.name, at=at))

    async def _decide(self, state: CallFold) -> None:
        """The verdict on one call, into the log. One that the log has is looked at again until the call has begun."""
        segment = self.segment
        if state.decided is not None:
            if state.called == 0 and not _invalid(state.decided):
                await self._decide_again(state, state.decided)
            return
        try:
            call = self._prepare(state).call
        except ArgumentsError as error:
            self._refuse(state, error)
            return
        if segment.hooks.tool_calling is None and call.name not in self.delegates:
            self._decide_unmatched(state, call)
            return
        passage, changed = self._passage(call), call
        try:
            if self.delegates or passage.point.changing:
                changed = (await passage.rewrite()).call
        except HookError as error:
            denied = Deny(failed_hook(error))
            answers, json, took = ((error.hook or "?", denied),), _difference(state, call), passage.took
            segment.record(HookFailed(error.hook, "ToolCalling", error_value(error), "Deny", took=took))
            segment.record(ToolDecided(call.id, denied, call.digest, answers, json, name=call.name, took=took))
            return
        verdict = await passage.judge()
        if self._may_go_on(passage, verdict, changed, state, rewritten=changed is not call) and passage.injects:
            await self._inject(passage, changed)

    def _passage(self, call: ToolCall, decided: ToolDecided | None = None, about: str | None = None) -> Passage:
        """The way of a call through its hooks. That of a task for another agent goes on through `Delegating`."""
        segment = self.segment
        point = segment.hooks.tool_calling or _NOBODY
        event, about = ToolCalling(call, segment.turn), call.id if about is None else about
        tool = self.delegates.get(call.name)
        if tool is None:
            return Passage(point, event, segment, about)
        second = segment.hooks.delegating if segment.program.max_depth > 0 else None
        delegation = None if decided is None else decided.delegation
        default = self._unmatched(call)
        offered = tool.delegation
        return Handing(
            point, event, segment, about, offered=offered, second=second, default=default, delegation=delegation
        )

    def _put(self, passage: Passage, ask: Ask, call: ToolCall, by: Iterable[str], delegating: tuple[str, ...]) -> None:
        """The question to a person; `delegating` names the hooks that spoke at `Delegating`."""
        asked = question(self.segment, passage, ask, call.digest, by, call=call)
        if asked.by and set(asked.by) <= set(delegating):
            asked = asked.replace(event="Delegating")
        self.segment.ask_person(asked)

    def _decide_unmatched(self, state: CallFold, call: ToolCall) -> None:
        """No gate looks at calls: what the agent says of unmatched ones holds."""
        segment = self.segment
        verdict, digest = self._unmatched(call), call.digest
        segment.record(ToolDecided(call.id, verdict, digest, (), _difference(state, call), name=call.name))
        if type(verdict) is Ask:
            nobody = Passage(_NOBODY, ToolCalling(call, segment.turn), segment, call.id)
            segment.ask_person(question(segment, nobody, verdict, digest, (), call=call))

    def _may_go_on(self, passage: Passage, verdict: Any, call: ToolCall, state: CallFold, *, rewritten: bool) -> bool:
        """Record the verdict on a call, with its final arguments if somebody spoke and they differ. Whether it runs."""
        segment = self.segment
        if verdict is None:
            verdict = self._unmatched(call)
        answers, name, took = passage.answers, call.name, passage.took
        spoken = rewritten or answers or verdict is not _ALLOW
        if not spoken and type(passage) is Passage:
            record, fold = segment.add, segment.fold
            record(ToolDecided(call.id, _ALLOW, name=name, at=fold.tick(segment.now)))
            return True
        names: tuple[str, ...] = ()
        digest, json = (call.digest, _difference(state, call)) if spoken else ("", None)
        if isinstance(passage, Handing):
            delegation, names = passage.delegation, passage.names()
            segment.record(ToolDecided(call.id, verdict, digest, answers, json, delegation, names, name, took))
        else:
            segment.record(ToolDecided(call.id, verdict, digest, answers, json, name=name, took=took))
        if type(verdict) is Ask:
            self._put(passage, verdict, call, asks_of(answers), names)
        return type(verdict) not in (Ask, Halt, Deny)

    def _unmatched(self, call: ToolCall) -> Any:
        """What holds when no gate answered."""
        unmatched = self.segment.program.unmatched
        if unmatched == "allow":
            return _ALLOW
        if unmatched == "ask":
            return Ask(f"Allow {call.name}?")
        return Deny(f"No rule allows {call.name}.")

    async def _decide_again(self, state: CallFold, decided: ToolDecided) -> None:
        """A call that was decided and has not begun: a person may have answered; on resume gates are asked again."""
        segment, call = self.segment, self._shown(state)
        answered = segment.answer_to(call.id) if state.waits else None
        if answered is not None and answered.digest != decided.digest:
            answered = None
        if answered is not None and isinstance(answered.answer, Edit):
            await self._decide_edited(state.call.replace(arguments=answered.answer.arguments), decided, answered)
            return
        recorded = decided.answers or (("default", decided.verdict),)
        held = decided.verdict
        if answered is not None:
            held = after_answer(ToolCalling, recorded, answered) or _ALLOW
        settled = () if state.waits and answered is None else settled_by(recorded)
        passage, judged = None, Judged(held)
        if self._is_judged(call) and segment.resumed and call.id not in self.judged_again:
            self.judged_again.add(call.id)
            passage = self._passage(call, decided)
            judged = await judge_again(segment, passage, held, settled, asked_again(segment, call.id))
        verdict, names = judged.verdict, decided.delegating
        if judged.new and passage is not None:
            names = (*names, *_names(passage))
        if judged.new or answered is not None:
            person = () if answered is None else ((answered.by or "person", held),)
            answers = (*decided.answers, *person, *judged.new)
            bound = decided.replace(digest=call.digest, json=_difference(state, call) or decided.json)
            took = 0.0 if passage is None else passage.took
            bound = bound.replace(verdict=verdict, answers=answers, delegating=names)
            segment.record(bound.replace(name=call.name, took=took, at=0.0))
        if type(verdict) is Ask:
            if judged.new or not segment.is_waiting(call.id):
                by = judged.asking or asks_of(decided.answers)
                self._put(passage or self._passage(call, decided), verdict, call, by, names)
        elif answered is not None and not isinstance(verdict, Halt | Deny) and self._is_judged(call):
            await self._inject(self._passage(call, decided), call)

    async def _decide_edited(self, call: ToolCall, decided: ToolDecided, answered: Answered) -> None:
        """A person wrote other arguments: all gates look at them; those that asked may only refuse."""
        segment = self.segment
        try:
            call = segment.completed(call)
        except ArgumentsError as error:
            denied = Deny(f"{answered.by or 'a person'} changed the arguments to what does not fit: {error}")
            by = answered.by or "person"
            segment.record(
                decided.replace(verdict=denied, digest="", answers=((by, denied),), name=call.name, took=0.0, at=0.0)
            )
            return
        if not self._is_judged(call):
            segment.record(ToolDecided(call.id, _ALLOW, call.digest, (), call.json, name=call.name))
            return
        passage = self._passage(call, decided)
        judged = await judge_again(segment, passage, _ALLOW, settled_by(decided.answers))
        names = _names(passage)
        answers: Answers = (*settled_by(decided.answers), (answered.by or "person", _ALLOW), *judged.new)
        delegation = passage.delegation if isinstance(passage, Handing) else None
        name, took = call.name, passage.took
        segment.record(
            ToolDecided(call.id, judged.verdict, call.digest, answers, call.json, delegation, names, name, took)
        )
        if type(judged.verdict) is Ask:
            self._put(passage, judged.verdict, call, judged.asking, names)
        elif not isinstance(judged.verdict, Halt | Deny):
            await self._inject(passage, call)

    def _is_judged(self, call: ToolCall) -> bool:
        """Whether there may be a gate that looks at the call."""
        return self.segment.hooks.tool_calling is not None or call.name in self.delegates

    async def _inject(self, passage: Passage, call: ToolCall) -> None:
        if not passage.injects:
            return
        for item in await passage.inject(call.id):
            beside_result(self.segment, item)

    # ------------------------------------------------------------ run

    async def _run_all(self, calls: list[CallFold]) -> None:
        """Several calls in parallel, `sequential` tools as barriers between them."""
        segment = self.segment
        await segment.commit()
        batch: list[CallFold] = []
        for call in calls:
            tool = segment.program.tools.get(call.call.name)
            if tool is not None and tool.sequential:
                await self._run_batch(batch)
                batch = []
                await self._run(call)
            else:
                batch.append(call)
        await self._run_batch(batch)

    async def _run_batch(self, batch: list[CallFold]) -> None:
        if len(batch) < 2:
            for call in batch:
                await self._run(call)
            return
        slots = asyncio.Semaphore(self.segment.program.max_parallel)

        async def run(call: CallFold) -> None:
            async with slots:
                await self._run(call)

        self.segment.parallel(True)
        self.waiting_writes = {}
        tasks = [asyncio.ensure_future(run(call)) for call in batch]
        try:
            await asyncio.gather(*tasks)
            await self._keep_in_order(batch)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._keep_what_is_done()
            raise
        finally:
            self.waiting_writes = None
            self.segment.parallel(False)

    def _keep_what_is_done(self) -> None:
        """The batch breaks off: calls that had ended keep their results and what they wrote."""
        segment = self.segment
        for state, result, writes in (self.waiting_writes or {}).values():
            segment.unreturned[state.call.id] = self._kept(writes, result)

    async def _keep_in_order(self, batch: list[CallFold]) -> None:
        """What parallel calls wrote, in the order of the calls and not in that of their ends."""
        waiting = self.waiting_writes or {}
        for call in batch:
            if (held := waiting.get(call.proposed.id)) is not None:
                state, result, writes = held
                result = self._kept(writes, result)
                waiting[call.proposed.id] = (state, result, Writes(writes.by))
                await self._return(state, result)
                del waiting[call.proposed.id]

    def _kept(self, writes: Writes, result: ToolResult) -> ToolResult:
        """The result of a call once what it wrote is kept; a conflict is its result."""
        try:
            self.segment.keep(writes)
        except HookError as error:
            return text_result(f"Error: {error}", "error")
        return result

    async def _run(self, state: CallFold) -> None:
        """A decided call to its result: refused, answered for it, in doubt since a crash, or executed.

        Once the turn is concluded, which a call may have done that ran before this one, nothing is begun any more.
        """
        segment = self.segment
        fold = segment.fold
        if not fold.going:
            if segment.limit_hit is not None:
                await self._close(state, segment.limit_hit)
            return
        decided, prepared = state.decided, self.prepared.get(state.proposed.id)
        assert decided is not None, f"call {state.proposed.id} was not decided"
        call = self._shown(state) if prepared is None or decided.digest else prepared.call
        details: ErrorValue | None = None
        if decided.verdict is not _ALLOW and type(decided.verdict) is not Allow:
            result = self._not_executed(call, decided)
        elif state.called and (settled := await settle(segment, state)) is not None:
            result = settled
        elif self.limited and (stopped := segment.stopped_before("tool")) is not None:
            await self._close(state, stopped)
            return
        else:
            try:
                if self.wrapped:
                    result = await self._in_wraps(state, call)
                else:
                    number = self._next(state) if self.delegates else state.called + 1
                    result = _result(call.name, await self.attempt(call, number, ""))
            except ChildWaits:
                return
            except (Exception, asyncio.CancelledError) as raised:
                if isinstance(raised, asyncio.CancelledError) and cancelled():
                    raise
                error = raised if isinstance(raised, Exception) else ToolError("the tool cancelled itself")
                if self.written:
                    self.written.pop(call.id, None)
                failed = await self._failed(call, state, error)
                if failed is None:
                    await self._run(state)
                    return
                result = failed
                if not isinstance(error, ToolError):  # whose text is the result
                    details = details_of(segment, call, error)
        if self.written and (writes := self.written.pop(call.id, None)) is not None:
            if self.waiting_writes is not None:
                self.waiting_writes[call.id] = (state, result, writes)
                return
            result = self._kept(writes, result)
        await self._return(state, result, details)
        self.prepared.pop(call.id, None)
        if state.undoing:
            await segment.commit()
        if segment.listens:
            await segment.told()

    async def _close(self, state: CallFold, stopped: Stopped) -> None:
        """A limit forbids this call. One that was started, or works on in a child, is closed with the step."""
        if state.result is None and not state.called and not state.children:
            await self._return(state, text_result(f"Not run: {stopped.detail}", "cancelled"))

    def _next(self, state: CallFold) -> int:
        """The number of the next attempt. A child that was interrupted is not a new one: it goes on."""
        return (len(state.attempts) if state.call.name in self.delegates else state.called) + 1

    def _not_executed(self, call: ToolCall, decided: ToolDecided) -> ToolResult:
        """The result of a call that was answered for the tool, or refused."""
        verdict: Any = decided.verdict
        if _invalid(decided):
            return text_result(f"Error: {verdict.reason}", "error")
        if type(verdict) is not Answer:
            reason = verdict.reason if isinstance(verdict, Deny | Halt) else "it was not allowed"
            return text_result(f"Denied: {reason}", "denied")
        answered = self.segment.answer_to(call.id)
        person = answered is not None and getattr(answered.answer, "text", None) == verdict.value
        return as_result(verdict.value, "responded" if person else "answered")

    async def _failed(self, call: ToolCall, state: CallFold, error: Exception) -> ToolResult | None:
        """An error as a result the model reads; None if the call is to be tried again. Or the turn ends with it."""
        segment = self.segment
        unsafe = bool(state.called) and _unsafe(segment.program.tools.get(call.name))
        if not isinstance(error, HookError) and (
            segment.hooks.erring or segment.program.policy.action("tool") != "ignore"
        ):
            retryable = not unsafe or isinstance(error, NotDone)
            answer = await handling_of(segment, error, "tool", retryable, details_of(segment, call, error))
            if answer.action in ("fail", "halt"):
                segment.settled = (*segment.settled, (error, answer, details_of(segment, call, error)))
                raise error
            if answer.action == "retry":
                if len(state.attempts) < state.called:
                    details = details_of(segment, call, error)
                    segment.record(ToolAttempted(call.id, state.called or 1, "", None, details))
                if self.wrapped:
                    self.retried[call.id] = state.called
                if answer.delay:
                    await segment.clock.sleep(answer.delay)
                return None
        timed_out = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
        if timed_out and unsafe:
            return text_result(UNKNOWN, "interrupted")
        return text_result(_error_text(error, call, segment.program.tools.get(call.name)), "error")

    # ------------------------------------------------------------ one attempt, innermost

    async def attempt(self, call: ToolCall, number: int, fingerprint: str) -> Any:
        """The only place where a tool is called: arguments decoded, the start in the log, then the tool's value."""
        segment, prepared = self.segment, self.prepared.get(call.id)
        if prepared is None or prepared.call is not call or prepared.values is None:
            try:
                prepared = segment.arguments.read(call)
            except ToolError as error:
                return text_result(f"Error: {error}", "error")
        tool, values = prepared.tool, prepared.values
        if tool is None or values is None:
            return unknown_tool(call.name, segment)
        if self.delegates and isinstance(tool, Delegate):
            return await self._hand_over(tool, call, values[0], number, fingerprint)
        fold = segment.fold
        at = fold.at if self.prompt and number == 1 else fold.tick(segment.now)
        segment.add(ToolCalled(call.id, call.name, number, fingerprint, call.json if fingerprint else None, at=at))
        if tool.quick and (not segment.durable or tool.effect == "pure"):
            return tool.fn(*values)
        if tool.direct and not segment.durable:
            return await tool.fn(*values)
        return await self._invoke(tool, call, values)

    async def _hand_over(self, tool: Delegate, call: ToolCall, task: str, number: int, fingerprint: str) -> ToolResult:
        """The same for a task that another agent works on. Its start is in the log once, however often it goes on."""
        segment = self.segment
        assert segment.fold.open is not None
        if segment.fold.open.calls[call.id].called < number:
            json = call.json if fingerprint else None
            segment.record(ToolCalled(call.id, call.name, number, fingerprint, json))
        try:
            return await hand_over(segment, tool, call, task, number)
        except ChildWaits:
            if self.wrapped:
                self.held_up.add(call.id)
            raise

    async def _invoke(self, tool: Tool[..., Any], call: ToolCall, values: tuple[Any, ...]) -> Any:
        """The value of a tool that is not simply awaited. Its start is stored first, if it matters."""
        if self.segment.durable and tool.effect != "pure":
            await self.segment.commit()
        writes = None
        supplied: dict[str, Any] | None = None
        if tool.supplied:
            writes = Writes(f"{tool.name} ({call.id})")
            supplied = self._supply(tool, call, writes)
        if tool.timeout is None:
            value = await self._call(tool, call, values, supplied)
        else:
            async with asyncio.timeout(tool.timeout):
                value = await self._call(tool, call, values, supplied)
        if writes is not None:
            if self.written is None:
                self.written = {}
            self.written[call.id] = writes
        return value

    async def _call(
        self, tool: Tool[..., Any], call: ToolCall, values: tuple[Any, ...], supplied: dict[str, Any] | None
    ) -> Any:
        if tool.is_async:
            return await tool.invoke(values, supplied)
        if tool.inline:
            return tool.invoke(values, supplied)
        late = Late(self.segment, call.id)
        try:
            return await self.segment.in_thread(lambda: late.run(partial(tool.invoke, values, supplied)))
        except asyncio.CancelledError:
            late.given_up = True
            raise

    def _supply(self, tool: Tool[..., Any], call: ToolCall, writes: Writes) -> dict[str, Any]:
        segment = self.segment
        supplied: dict[str, Any] = {}
        for name, source in tool.supplied:
            if source == "turn":
                asker = Asker("ToolCall", call.id, tool.name, (f"tool {tool.name}",))
                supplied[name] = Turn(segment, writes, None, asker)
            elif source == "key":
                supplied[name] = call.id
            else:
                supplied[name] = segment.slot(source.removeprefix("slot:")).load(segment.fold.slots)
        return supplied

    # ------------------------------------------------------------ inside wraps

    async def _in_wraps(self, state: CallFold, call: ToolCall) -> ToolResult:
        """The call inside its wraps: what leaves the outermost is the result."""
        onion, tried = self._onion, self.retried.get(call.id, 0) if self.retried else 0
        first, inner = onion.first, onion.inner
        attempts = self.attempts[call.id] = Attempts(state, call, tried, tried, tried)
        try:
            result = await first(call, inner)
            if (result is None or result is not attempts.result) and not is_result(result):
                result = onion.checked(result)
        except (Exception, asyncio.CancelledError) as error:
            onion.raised(error)
        finally:
            del self.attempts[call.id]
        if self.held_up and call.id in self.held_up:  # whatever a wrap made of that
            raise ChildWaits
        if result is not attempts.result:
            self._write_attempt(call.id, attempts)
        return cast(ToolResult, result)

    def _guarded(self, call: ToolCall, given: ToolResult) -> ToolResult:
        """What leaves the guard band counts as what the tool said, if it was called."""
        attempts = self.attempts[call.id]
        if attempts.result is not None:
            attempts.result = given
        return given

    async def _innermost(self, call: ToolCall) -> ToolResult:
        """One attempt of a wrap: no unsafe call is made twice, what the gates have not judged goes to them first."""
        self.segment.refuse_cancelled()
        passable(ToolCall, call)
        attempts = self.attempts.get(call.id)
        if attempts is None:
            raise HookError(f"call_next was kept and called when call {call.id} was over", hook="", event="ToolCall")
        if self.held_up and call.id in self.held_up:
            raise ChildWaits
        number = attempts.number = attempts.number + 1
        if self.written:
            self.written.pop(call.id, None)
        if call is not attempts.call:
            call = self._changed_by_wrap(_passed(call), attempts)
        if number - attempts.since > 1 or call is not attempts.call or self.segment.resumed:
            if (settled := await self._before(call, attempts)) is not None:
                return settled
            if attempts.number - attempts.since > 1:
                _refuse_unsafe(self.segment.program.tools.get(call.name), call, attempts)
        if self.limited and (stopped := self.segment.stopped_before("tool")) is not None:
            attempts.result = text_result(f"Not run: {stopped.detail}", "cancelled")
            return attempts.result
        try:
            value = await self.attempt(call, number, attempts.fingerprint)
            attempts.result = result = _result(call.name, value)
        except Exception as error:
            name_raiser(error, "")
            attempts.error = attempts.known = error
            raise
        except asyncio.CancelledError as cancel:
            if cancelled():
                raise
            attempts.error = attempts.known = ToolError("the tool cancelled itself")
            raise attempts.error from cancel
        return result

    def _changed_by_wrap(self, call: ToolCall, attempts: Attempts) -> ToolCall:
        """What a wrap handed on, completed: the call that was judged if it comes to the same."""
        with suppress(ArgumentsError):  # the wrap reads that when the call is judged
            call = self.segment.completed(call)
        judged = attempts.call
        return judged if (call.name, call.json) == (judged.name, judged.json) else call

    async def _before(self, call: ToolCall, attempts: Attempts) -> ToolResult | None:
        if attempts.number - attempts.since > 1:
            self._write_attempt(call.id, attempts)
            _refuse_unsafe(self.segment.program.tools.get(call.name), call, attempts)
        attempts.error = attempts.result = None
        changed = call is not attempts.call
        attempts.fingerprint = call.digest if changed else ""
        if self.segment.resumed and (served := attempts.served()) is not None:
            return served
        if changed:
            attempts.result = await self._judge_changed(call, attempts)
        return attempts.result

    def _write_attempt(self, call_id: str, attempts: Attempts) -> None:
        """An attempt that did not stand is recorded, once."""
        if attempts.result is None and attempts.error is None:
            return
        attempts.written += 1
        error = None if attempts.error is None else details_of(self.segment, attempts.state.call, attempts.error)
        result = attempts.result if error is None else None
        self.segment.record(ToolAttempted(call_id, attempts.written, attempts.fingerprint, result, error))
        attempts.error = attempts.result = None

    async def _judge_changed(self, call: ToolCall, attempts: Attempts) -> ToolResult | None:
        """A wrap changed the call after the gates had judged: they judge again; there an `Ask` is a `Deny`."""
        segment = self.segment
        try:
            segment.completed(call)
        except ArgumentsError as error:
            return text_result(f"Error: {error}", "error")
        passage = self._passage(call, attempts.state.decided, f"{call.id}/attempt.{attempts.number}")
        verdict = await passage.judge()
        verdict = self._unmatched(call) if verdict is None else verdict
        if passage.answers:
            segment.record(HookDecided("ToolCalling", passage.about, verdict, passage.answers, took=passage.took))
        if isinstance(verdict, Answer):
            return as_result(verdict.value, "answered")
        if isinstance(verdict, Ask):
            verdict = Deny(f"nobody can be asked about a call that a wrap changed: {verdict.question}")
        return text_result(f"Denied: {verdict.reason}", "denied") if isinstance(verdict, Deny | Halt) else None

    # ------------------------------------------------------------ the result

    async def _return(self, state: CallFold, result: ToolResult, error: ErrorValue | None = None) -> None:
        """ToolReturning, for every result, then the record. If that is broken off the result is kept for the end."""
        segment, call, fold = self.segment, state.call, self.segment.fold
        if fold.turn is not None and fold.turn.injected:
            result = _with_durable(fold.turn.injected, call.id, result)
        if self.returning:
            try:
                result = await pass_on(segment, self._shown(state), result)
            except asyncio.CancelledError:
                segment.unreturned[call.id] = result
                raise
        segment.add(ToolReturned(call.id, call.name, result, error, at=fold.tick(segment.now)))


class Late:
    """A tool in a thread, which nobody can stop. If it was given up and gives a result after all, that is told."""

    __slots__ = ("call", "given_up", "loop", "segment")

    def __init__(self, segment: Segment, call: str) -> None:
        self.segment = segment
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.given_up = False

    def run(self, invoke: Callable[[], Any]) -> Any:
        try:
            value = invoke()
        except Exception:
            self._tell("error", 0)
            raise
        if self.given_up:
            result = as_result(value)
            self._tell(result.status, len(result.text))
        return value

    def _tell(self, status: str, size: int) -> None:
        if self.given_up and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.segment.late, LateResult, self.call, status, size)


class Attempts(Struct):
    """The attempts at one call that wraps made in this process. `call` is what the gates judged."""

    state: CallFold
    call: ToolCall
    number: int = 0
    written: int = 0
    since: int = 0
    fingerprint: str = ""
    result: ToolResult | None = None
    error: Exception | None = None
    known: Exception | None = None

    def served(self) -> ToolResult | None:
        """What the log has of this attempt; a recorded error is raised again."""
        for attempt in self.state.attempts:
            if (attempt.attempt, attempt.fingerprint) == (self.number, self.fingerprint):
                self.written = self.number
                if attempt.result is None:
                    assert attempt.error is not None
                    self.known = recorded_error(attempt.error)
                    raise self.known
                return attempt.result
        return None


def _result(tool: str, value: object) -> ToolResult:
    """What a tool returned, as a result; a value that is none is the tool's error."""
    if type(value) is str or type(value) is int:
        return ToolResult((TextPart(str(value)),))
    try:
        return checked_result(value)
    except TypeError as error:
        raise ToolError(f"tool {tool!r} returned an invalid value: {error}") from None


def _passed(call: ToolCall) -> ToolCall:
    """A call that a wrap made, checked."""
    try:
        return checked_call(call)
    except TypeError as error:
        raise NotPassable(f"call_next got an invalid ToolCall: {error}", call) from None


def _place(call: ToolCall) -> tuple[str, tuple[Any, ...]]:
    """What the wraps of a call work on."""
    return call.id, ()


def _names(passage: Passage) -> tuple[str, ...]:
    """Who has answered at `Delegating`."""
    return passage.names() if isinstance(passage, Handing) else ()


def _refuse_unsafe(tool: Tool[..., Any] | None, call: ToolCall, attempts: Attempts) -> None:
    """A second attempt at an unsafe call that was started, unless the tool said that nothing happened."""
    if not _unsafe(tool) or not attempts.state.called or isinstance(attempts.known, NotDone):
        return
    outcome = "known" if attempts.known is None else "unknown"
    raise UnsafeRetry(
        f"tool {call.name!r} is unsafe and was started: it is not called again, its outcome is {outcome}. Raise "
        'NotDone in the tool if nothing happened, or declare it with retry="safe" or effect="idempotent"'
    ) from attempts.known


def _unsafe(tool: Tool[..., Any] | None) -> bool:
    return tool is not None and not tool.repeatable


def _difference(state: CallFold, call: ToolCall) -> str | None:
    """The arguments to be recorded with a verdict: those that the log does not have yet."""
    return None if call.json == state.call.json else call.json


def _is_halted(call: CallFold) -> bool:
    return call.result is None and call.decided is not None and type(call.decided.verdict) is Halt


def _invalid(decided: ToolDecided) -> bool:
    """Whether the arguments did not fit the tool: nobody was asked about them, so the verdict has no digest."""
    return not decided.digest and type(decided.verdict) is Deny


def unknown_tool(name: str, segment: Segment) -> ToolResult:
    """The result of a call that nobody can execute."""
    opened = segment.fold.opened
    names = segment.program.tools if opened is None or opened.tools is None else [spec.name for spec in opened.tools]
    known = ", ".join(names) or "none"
    return text_result(f"Error: there is no tool {name!r}. Known tools: {known}.", "error")


def _with_durable(injected: tuple[Injected, ...], call: str, result: ToolResult) -> ToolResult:
    """The result with what was injected beside it for good, when the call was judged."""
    for item in injected:
        if item.durable and item.about == call:
            result = result.replace(content=(*result.content, *item.parts))
    return result


def _error_text(error: Exception, call: ToolCall, tool: Tool[..., Any] | None) -> str:
    """What the model reads of an error: what the tool says to it, or only that it failed. The log has the rest."""
    if isinstance(error, ToolError | SlotConflict):
        return f"Error: {text_of(error)}"
    if hook := raiser_of(error):
        return f"Error: wrap {hook!r} failed; the log has the details"
    if tool is not None and tool.show_errors:
        return f"Error: {type(error).__name__}: {text_of(error)}"
    return f"Error: the tool failed (call {call.id})"


def _position(call_id: str) -> str:
    """The place of a call in its step, such that texts sort like numbers."""
    return call_id.split("/attempt.")[0].rsplit("/", 1)[1].zfill(9)
