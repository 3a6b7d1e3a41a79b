"""Tool calls: all of a step are decided before the first runs; only a chain that ends in an allow
is executed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from windlass._hooks.dispatch import cancelled, failed_hook
from windlass._hooks.merging import strictest
from windlass.decisions import Allow, Answer, Ask, Deny, Finish, Halt
from windlass.errors import (
    DelegationRefused,
    HookError,
    NotDone,
    SlotConflict,
    ToolError,
    raiser_of,
    text_of,
)
from windlass.events import ToolCalling, ToolReturning
from windlass.messages import ToolCall, ToolResult, as_result, text_result
from windlass.outcomes import Completed, ErrorValue, Stopped, StopReason
from windlass.records import ToolAttempted, ToolDecided
from windlass.states import CallFold, Fold, StepFold, TurnFold
from windlass.tools import Tool
from windlass.turns import ChildWaits, Writes

from .arguments import NOT_KEPT, not_run
from .delegation import AFTER_CALLS, FROM_CALLS
from .error_handling import Failures
from .inbox import Inbox
from .limits import Limits
from .questions import Questions
from .site import Site
from .tool_attempts import ToolAttempts, is_unsafe, result_of
from .tool_decisions import ALLOW, ToolDecisions, is_invalid
from .tool_results import CLOSED, UNKNOWN, ToolResults

if TYPE_CHECKING:
    from .in_doubt import CallsInDoubt


class Executor:
    """Decides and runs the open calls of a step.

    While calls run in parallel, `_waiting_writes` holds what each wrote, with its result, until all
    have ended.
    """

    __slots__ = (
        "_attempts", "_attends", "_decisions", "_failures", "_inbox", "_journal", "_judged", "_limited", "_limits",
        "_program", "_questions", "_results", "_reviewed", "_site", "_waiting_writes", "_wrapped", "_written",
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        questions: Questions,
        decisions: ToolDecisions,
        attempts: ToolAttempts,
        results: ToolResults,
        limits: Limits,
        failures: Failures,
        inbox: Inbox,
    ) -> None:
        self._site = site
        self._journal = site.journal
        self._program = site.program
        self._questions = questions
        self._decisions = decisions
        self._attempts = attempts
        self._results = results
        self._limits = limits
        self._failures = failures
        self._inbox = inbox
        self._judged = decisions.judged
        self._limited = limits.exist("tool")
        self._reviewed = results.reviewed
        self._attends = site.journal.audience.attends
        self._wrapped = attempts.wrapped
        self._written = attempts.written
        self._waiting_writes: dict[str, tuple[CallFold, ToolResult, Writes]] | None = None

    async def execute(self, fold: Fold) -> None:
        """All calls are decided, then those that may run do."""
        step, turn = fold.open, fold.turn
        assert step is not None
        assert turn is not None
        stale = False
        if self._judged:
            decided = await self._decide(fold, step, turn)
            if decided is None:
                return
            ready, stale = decided
        else:
            ready = self._decisions.allow(step, fold)
        if len(ready) == 1:
            await self._run(ready[0])
        elif ready:
            await self._run_all(ready)
        if stale:
            await self._attempts.end_unmet_children(AFTER_CALLS)
        if step.decided or turn.waiting:
            await self._conclude(fold, step)
        self._decisions.prepared.clear()  # even an empty dictionary keeps the room for its entries

    async def _decide(
        self, fold: Fold, step: StepFold, turn: TurnFold
    ) -> tuple[list[CallFold], bool] | None:
        """The calls that may run, once all are decided, and whether agents of an earlier pass may still work for the
        step; None if no call may begin."""
        ready: list[CallFold] = []
        held_back = False
        for call in step.calls.values():
            if call.result is not None:
                continue
            try:
                await self._decisions.decide(call)
            except ChildWaits:  # of a gate: no call of the step runs, and the turn waits
                await self._journal.commit()
                self._questions.suspend()
                return None
            verdict = None if call.decided is None else call.decided.verdict
            if verdict is ALLOW or not isinstance(verdict, Halt | Ask):
                ready.append(call)
            else:
                held_back = True
        stale = self._questions.resumed and bool(turn.delegated or turn.waiting)
        if stale:
            await self._attempts.end_unmet_children(FROM_CALLS)
        unclear = held_back or turn.waiting or self._questions.resumed or not fold.going
        if unclear and not await self._may_begin(fold, step, ready, held_back):
            return None
        self._attempts.check_cancelled()
        return ready, stale

    async def _may_begin(
        self, fold: Fold, step: StepFold, ready: list[CallFold], held_back: bool
    ) -> bool:
        """Whether calls may be made, once all are decided: no gate halted the turn, nothing ended
        it meanwhile."""
        if held_back and (
            halts := [call.decided for call in step.calls.values() if _is_halted(call)]
        ):
            await self._halt([decided.verdict for decided in halts if decided is not None])
            return False
        if not fold.going:
            for call in ready if self._limits.hit is not None else ():
                await self._run(call)
            return False
        in_doubt = [call for call in ready if call.called and self._needs_person(call)]
        ready[:] = [call for call in ready if call not in in_doubt]
        if self._questions.waiting:
            await self._journal.commit()
        return True

    def _needs_person(self, call: CallFold) -> bool:
        """Ask a person about a call in doubt, if its tool says so. Whether the answer is still open."""
        if self._decisions.is_lost(call):
            return False
        return self._in_doubt().ask_person(call, self._decisions.shown(call))

    async def _halt(self, halts: list[Any]) -> None:
        """A halt on any call closes all of them; none runs."""
        halt = strictest(ToolCalling, [(str(index), halt) for index, halt in enumerate(halts)])
        await self._attempts.end_children(halt.reason)
        step = self._journal.fold.open
        for call in tuple(step.calls.values()) if step is not None else ():
            if call.result is None:
                result = text_result(f"Not run, the turn was halted: {halt.reason}", "denied")
                await self._results.record(call, self._decisions.shown(call), result)
        self._journal.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)

    async def _conclude(self, fold: Fold, step: StepFold) -> None:
        """What the gates said of the results means halt, wait, finish, or simply go on.

        All of it is in the log.
        """
        of_calls = [d for d in step.decided if d.event in ("ToolReturning", "ToolCalling")]
        spoken = [(_position(d.about), d.verdict) for d in of_calls if not d.about.endswith(CLOSED)]
        halts = [(call, verdict) for call, verdict in spoken if isinstance(verdict, Halt)]
        finishes = [
            (call, verdict.value) for call, verdict in spoken if isinstance(verdict, Finish)
        ]
        if halts:
            halt = strictest(ToolReturning, halts)
            self._journal.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)
        elif self._questions.waiting:
            await self._wait(fold)
        elif finishes:
            value = min(finishes, key=lambda finish: finish[0])[1]
            self._journal.conclude(
                Completed(value), value if isinstance(value, str) else as_result(value).text
            )

    async def _wait(self, fold: Fold) -> None:
        """Wait for the answers, unless one came from outside while others were at work: then its
        call goes on."""
        questions, open_questions = self._questions, len(self._questions.waiting)
        await self._journal.commit()
        if self._journal.has_mail:
            await self._inbox.take()
        if fold.going and len(questions.waiting) < open_questions:
            await self.execute(fold)
        elif fold.going:
            questions.suspend()

    # ------------------------------------------------------------ several calls

    async def _run_all(self, calls: list[CallFold]) -> None:
        """Several calls in parallel, `sequential` tools as barriers between them."""
        await self._journal.commit()
        batch: list[CallFold] = []
        for call in calls:
            tool = self._program.tools.get(call.call.name)
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
        places = asyncio.Semaphore(self._program.max_parallel)

        async def run(call: CallFold) -> None:
            async with places:
                await self._run(call)

        self._site.writes.in_parallel(True)
        self._waiting_writes = {}
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
            self._waiting_writes = None
            self._site.writes.in_parallel(False)

    def _keep_what_is_done(self) -> None:
        """The batch breaks off: calls that had ended keep their results and what they wrote."""
        for state, result, writes in (self._waiting_writes or {}).values():
            self._results.keep(state.call.id, self._keep(writes, result))

    async def _keep_in_order(self, batch: list[CallFold]) -> None:
        """What parallel calls wrote, in the order of the calls and not in that of their ends."""
        waiting = self._waiting_writes or {}
        for call in batch:
            if (held := waiting.get(call.proposed.id)) is not None:
                state, result, writes = held
                result = self._keep(writes, result)
                waiting[call.proposed.id] = (state, result, Writes(writes.by))
                await self._results.record(state, self._decisions.shown(state), result)
                del waiting[call.proposed.id]

    def _keep(self, writes: Writes, result: ToolResult) -> ToolResult:
        """Record what a call wrote. Its result, or the conflict instead."""
        try:
            self._site.keep(writes)
        except HookError as error:
            return text_result(f"Error: {error}", "error")
        return result

    # ------------------------------------------------------------ one call

    async def _run(self, state: CallFold) -> None:
        """A decided call to its result: refused, answered for it, in doubt since a crash, or
        executed.

        Once the turn is concluded, perhaps by a call that ran before this one, nothing more is
        begun.
        """
        if not self._journal.fold.going:
            if self._limits.hit is not None:
                await self._close(state, self._limits.hit)
            return
        decided, decisions = state.decided, self._decisions
        assert decided is not None, f"call {state.proposed.id} was not decided"
        prepared = decisions.prepared.pop(state.proposed.id, None)
        details: ErrorValue | None = None
        if decided.digest:
            call = decisions.shown(state)
            if type(decided.verdict) is Allow:
                decisions.checked(state, call)
        else:
            call = decisions.shown(state) if prepared is None else prepared.call
        if decided.verdict is not ALLOW and type(decided.verdict) is not Allow:
            result = self._not_executed(call, decided)
        elif state.called and (known := await self._known_result(state)) is not None:
            result = known
        elif self._limited and (stopped := self._limits.stop_before("tool")) is not None:
            await self._close(state, stopped)
            return
        else:
            try:
                if self._wrapped:
                    result = await self._attempts.in_wraps(state, call, prepared)
                else:
                    result = result_of(call, await self._attempts.attempt(state, call, prepared))
            except ChildWaits:
                return
            except (Exception, asyncio.CancelledError) as raised:
                if isinstance(raised, asyncio.CancelledError) and cancelled():
                    raise
                error = (
                    raised
                    if isinstance(raised, Exception)
                    else ToolError("the tool cancelled itself")
                )
                failed = await self._failed(call, state, error)
                if failed is None:
                    await self._run(state)
                    return
                result = failed
                if not isinstance(error, ToolError):  # whose text is the result
                    details = self._results.details_of(call, error)
        if self._written and (writes := self._written.pop(call.id, None)) is not None:
            if self._waiting_writes is not None:
                self._waiting_writes[call.id] = (state, result, writes)
                return
            result = self._keep(writes, result)
        if self._reviewed:
            result = await self._results.review(state, call, result)
        self._results.add(state, result, details)
        if state.undoing:
            await self._journal.commit()
        if self._attends and self._journal.audience.has_work():
            await self._journal.audience.flush()

    async def _known_result(self, state: CallFold) -> ToolResult | None:
        """The result of a call that was started before, if it is not to be made again."""
        if self._decisions.is_lost(state) and not state.children:
            return self._in_doubt().result_of_lost(state)
        return await self._in_doubt().result_of(state)

    def _in_doubt(self) -> CallsInDoubt:
        """What decides about calls that a process started before it died."""
        from .in_doubt import CallsInDoubt

        site = self._site
        return CallsInDoubt(site.journal, site.arguments, self._questions, self._results, site.turn)

    async def _close(self, state: CallFold, stopped: Stopped) -> None:
        """A limit forbids this call.

        One that was started, or works on in a child, is closed with the step.
        """
        if state.result is None and not state.called and not state.children:
            result = text_result(f"Not run: {stopped.detail}", "cancelled")
            await self._results.record(state, self._decisions.shown(state), result)

    def _not_executed(self, call: ToolCall, decided: ToolDecided) -> ToolResult:
        """The result of a call that was answered for the tool, or refused."""
        verdict: Any = decided.verdict
        if is_invalid(decided):
            return text_result(f"Error: {verdict.reason}", "error")
        if isinstance(verdict, Deny) and verdict.reason == NOT_KEPT:
            return not_run()
        if type(verdict) is not Answer:
            reason = verdict.reason if isinstance(verdict, Deny | Halt) else "it was not allowed"
            return text_result(f"Denied: {reason}", "denied")
        answered = self._questions.answer_to(call.id)
        person = answered is not None and getattr(answered.answer, "text", None) == verdict.value
        return as_result(verdict.value, "responded" if person else "answered")

    async def _failed(self, call: ToolCall, state: CallFold, error: Exception) -> ToolResult | None:
        """An error as a result the model reads; None if the call is to be tried again.

        Or the turn ends with it.
        """
        program, failures = self._program, self._failures
        self._attempts.written.pop(call.id, None)
        tool = program.tools.get(call.name)
        unsafe = bool(state.called) and is_unsafe(tool)
        if not isinstance(error, HookError) and (
            failures.asks_hooks or program.policy.rules or program.policy.action("tool") != "ignore"
        ):
            retryable, details = (
                isinstance(error, NotDone) or not (unsafe or isinstance(error, DelegationRefused)),
                self._results.details_of(call, error),
            )
            answer = await failures.handling_of(error, "tool", retryable, details, call.name)
            if answer.action in ("fail", "halt"):
                failures.keep_handling(error, answer, details)
                raise error
            if answer.action == "retry":
                if len(state.attempts) < state.called:
                    self._journal.record(
                        ToolAttempted(call.id, state.called or 1, "", None, details)
                    )
                self._attempts.note_retry(state)
                if answer.delay:
                    await program.clock.sleep(answer.delay)
                return None
        timed_out = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
        if timed_out and unsafe:
            return text_result(UNKNOWN, "interrupted")
        return text_result(_error_text(error, call, tool), "error")


def _is_halted(call: CallFold) -> bool:
    return call.result is None and call.decided is not None and type(call.decided.verdict) is Halt


def _error_text(error: Exception, call: ToolCall, tool: Tool[..., Any] | None) -> str:
    """What the model reads of an error: what the tool says to it, or only that it failed.

    The log has the rest.
    """
    if isinstance(error, ToolError | SlotConflict):
        return f"Error: {text_of(error)}"
    if isinstance(error, HookError) and error.event:
        return f"Error: {failed_hook(error)}"
    if hook := raiser_of(error):
        return f"Error: wrap {hook!r} failed; the log has the details"
    if tool is not None and tool.show_errors:
        return f"Error: {type(error).__name__}: {text_of(error)}"
    return f"Error: the tool failed (call {call.id})"


def _position(call_id: str) -> str:
    """The place of a call in its step, such that texts sort like numbers."""
    return call_id.split("/attempt.")[0].rsplit("/", 1)[1].zfill(9)
