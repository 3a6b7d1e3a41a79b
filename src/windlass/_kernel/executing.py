"""Tool calls: all of a step are decided before the first runs; only a chain that ends in an allow is executed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass._hooks.merging import strictest
from windlass._hooks.wraps import compose
from windlass.decisions import Allow, Answer, Ask, Deny, Edit, Finish, Halt
from windlass.errors import HookError, NotDone, ToolError, UnsafeRetry
from windlass.events import ToolCalling, ToolReturning
from windlass.messages import ToolCall, ToolResult, as_result, render, text_result
from windlass.outcomes import Completed, Stopped, StopReason, error_value
from windlass.policies import category_of
from windlass.records import Answered, HookDecided, Injected, ToolAttempted, ToolCalled, ToolDecided, ToolReturned
from windlass.states import CallFold, State
from windlass.tools import Tool
from windlass.turns import Turn, Writes

from .segment import Segment
from .stages import after_answer, asks_again, question

_ALLOW = Allow()
_NOBODY = Point(ToolCalling, ())
_UNKNOWN = "Interrupted, outcome unknown: it was started and may or may not have happened. Do not assume either."


class Executor:
    """Decides and runs the open calls of a step."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.attempts: dict[str, Attempts] = {}
        self.call: Any = compose(segment.hooks.tool_wraps, self._innermost, segment)
        self.wrapped = bool(segment.hooks.tool_wraps) or segment.resumed
        self.judged = segment.program.judges_calls or segment.resumed
        self.halts: list[Halt] = []
        self.finishes: dict[str, Finish] = {}

    async def execute(self, state: State) -> None:
        """All calls are decided, then those that may run do. One alone needs no task."""
        segment = self.segment
        step = segment.fold.open
        assert step is not None
        ready = [call for call in step.calls.values() if call.result is None]
        if self.judged:
            for call in ready:
                await self._decide(call)
            if halts := [c.decided.verdict for c in ready if c.decided and type(c.decided.verdict) is Halt]:
                await self._halt(ready, halts)
                return
            ready = [call for call in ready if not call.waits]
        else:
            for call in ready:
                segment.record(ToolDecided(call.call.id, _ALLOW))
        if len(ready) == 1:
            await self._run(ready[0])
        else:
            await self._run_all(ready)
        if self.halts or self.finishes or segment.waiting:
            self._conclude()

    async def _halt(self, calls: list[CallFold], halts: list[Any]) -> None:
        """A halt on any call closes all of them; none runs."""
        segment = self.segment
        halt = strictest(ToolCalling, [(str(index), halt) for index, halt in enumerate(halts)])
        for call in calls:
            if call.result is None:
                await self._return(call, text_result(f"Not run, the turn was halted: {halt.reason}", "denied"))
        segment.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)

    def _conclude(self) -> None:
        """What the results of the step mean for the turn: halt, wait, finish, or simply go on."""
        segment = self.segment
        if self.halts:
            halt = strictest(ToolReturning, [(str(index), halt) for index, halt in enumerate(self.halts)])
            segment.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)
        elif segment.waiting:
            segment.suspend()
            return
        elif self.finishes:
            value = self.finishes[min(self.finishes)].value
            segment.conclude(Completed(value), value if isinstance(value, str) else as_result(value).text)
        self.halts, self.finishes = [], {}

    # ------------------------------------------------------------ decide

    async def _decide(self, state: CallFold) -> None:
        """The verdict on one call, into the log. A call that waits is looked at again once it is answered."""
        segment = self.segment
        decided = state.decided
        if decided is not None:
            if not state.waits:
                if segment.resumed and state.called == 0 and _may_rerun(segment):
                    await self._judge_again(state, decided)
                return
            answered = segment.answer_to(state.proposed.id)
            if answered is not None and answered.digest == decided.digest:
                await self._after_answer(state, decided, answered)
            return
        point = segment.hooks.tool_calling
        call = state.call
        if point is None:
            self._decide_unmatched(call)
            return
        passage = Passage(point, ToolCalling(call, segment.turn), segment, call.id)
        try:
            changed: ToolCall = (await passage.rewrite()).call
        except HookError as error:
            denied = Deny(str(error))
            segment.record(ToolDecided(call.id, denied, call.digest, ((error.hook or "?", denied),)))
            return
        await self._judge(passage, changed, None if changed is call else changed.json)

    def _decide_unmatched(self, call: ToolCall) -> None:
        """No gate looks at calls: what the agent says of unmatched ones holds."""
        segment = self.segment
        verdict, digest = self._unmatched(call), call.digest
        segment.record(ToolDecided(call.id, verdict, digest))
        if type(verdict) is Ask:
            nobody = Passage(_NOBODY, ToolCalling(call, segment.turn), segment, call.id)
            segment.ask_person(question(segment, nobody, verdict, digest, call=call))

    async def _judge(self, passage: Passage, call: ToolCall, json: str | None, only: Any = None) -> None:
        segment = self.segment
        verdict = await passage.judge(only)
        if verdict is None:
            verdict = self._unmatched(call)
        segment.record(ToolDecided(call.id, verdict, call.digest, tuple(passage.answers), json))
        if type(verdict) is Ask:
            segment.ask_person(question(segment, passage, verdict, call.digest, call=call))
        elif not isinstance(verdict, Halt | Deny):
            await self._inject(passage, call)

    def _unmatched(self, call: ToolCall) -> Any:
        """What holds when no gate answered."""
        unmatched = self.segment.program.unmatched
        if unmatched == "allow":
            return _ALLOW
        if unmatched == "ask":
            return Ask(f"Allow {call.name}?")
        return Deny(f"No rule allows {call.name}.")

    async def _judge_again(self, state: CallFold, decided: ToolDecided) -> None:
        """On resume: gates that say so are asked again, and the strictest of old and new holds."""
        point = self.segment.hooks.tool_calling
        assert point is not None
        passage = Passage(point, ToolCalling(state.call, self.segment.turn), self.segment, state.call.id)
        passage.answers = [*decided.answers]
        before = len(passage.answers)
        verdict = await passage.judge(asks_again)
        if len(passage.answers) > before and verdict != decided.verdict:
            self.segment.record(decided.replace(verdict=verdict, answers=tuple(passage.answers)))
            if type(verdict) is Ask:
                asked = question(self.segment, passage, verdict, state.call.digest, call=state.call)
                self.segment.ask_person(asked)

    async def _after_answer(self, state: CallFold, decided: ToolDecided, answered: Answered) -> None:
        """A person answered. Edited arguments go through the gates again, but for those that asked."""
        segment = self.segment
        point = segment.hooks.tool_calling
        call = state.call
        if isinstance(answered.answer, Edit):
            edited = call.replace(arguments=answered.answer.arguments)
            if point is None:
                segment.record(ToolDecided(call.id, _ALLOW, edited.digest, (), edited.json))
                return
            asked = {name for name, decision in decided.answers if isinstance(decision, Ask)}
            passage = Passage(point, ToolCalling(edited, segment.turn), segment, call.id)
            passage.answers = [("person", _ALLOW)]
            await self._judge(passage, edited, edited.json, only=lambda hook: hook.name not in asked)
            return
        verdict = after_answer(ToolCalling, decided.answers, answered)
        verdict = _ALLOW if verdict is None else verdict
        if point is not None and _may_rerun(segment) and isinstance(verdict, Allow | Answer):
            passage = Passage(point, ToolCalling(call, segment.turn), segment, call.id)
            passage.answers = [("person", verdict)]
            verdict = await passage.judge(asks_again)
            if isinstance(verdict, Ask):
                verdict = after_answer(ToolCalling, passage.answers, answered)
        json = None if call.json == state.proposed.json else call.json
        segment.record(ToolDecided(call.id, verdict, call.digest, decided.answers, json))
        if point is not None and not isinstance(verdict, Halt | Deny):
            await self._inject(Passage(point, ToolCalling(call, segment.turn), segment, call.id), call)

    async def _inject(self, passage: Passage, call: ToolCall) -> None:
        for item in await passage.inject(call.id):
            _beside_result(self.segment, item)

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
        tasks = [asyncio.ensure_future(run(call)) for call in batch]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            self.segment.parallel(False)

    async def _run(self, state: CallFold) -> None:
        """A decided call to its result: refused, answered for it, in doubt since a crash, or executed."""
        segment = self.segment
        assert state.decided is not None, f"call {state.proposed.id} was not decided"
        verdict = state.decided.verdict
        call = state.call
        if type(verdict) is not Allow:
            result = self._not_executed(call, verdict)
        elif state.called and self._in_doubt(state):
            result = text_result(_UNKNOWN, "interrupted")
        else:
            attempts = Attempts(state)
            try:
                if self.wrapped:
                    result = await self._wrapped(call, attempts)
                else:
                    result = await self._attempt(call, attempts)
            except Exception as error:
                result = self._failed(call, attempts, error)
            if attempts.halt is not None:
                self.halts.append(attempts.halt)
        if segment.hooks.tool_returning is None:
            segment.record(ToolReturned(call.id, call.name, result, segment.clock.now()))
        else:
            await self._return(state, result)

    async def _wrapped(self, call: ToolCall, attempts: Attempts) -> ToolResult:
        """The call inside its wraps: what leaves the outermost is the result."""
        self.attempts[call.id] = attempts
        try:
            result = await self.call(call)
        finally:
            del self.attempts[call.id]
        if result is attempts.result:
            return attempts.result  # type: ignore[return-value]
        self._write_attempt(call.id, attempts)
        return as_result(result)

    def _innermost(self, call: ToolCall) -> Awaitable[ToolResult]:
        return self._attempt(call, self.attempts[call.id])

    def _not_executed(self, call: ToolCall, verdict: Any) -> ToolResult:
        """The result of a call that was answered for the tool, or refused."""
        if type(verdict) is not Answer:
            reason = verdict.reason if isinstance(verdict, Deny | Halt) else "it was not allowed"
            return text_result(f"Denied: {reason}", "denied")
        answered = self.segment.answer_to(call.id)
        person = answered is not None and getattr(answered.answer, "text", None) == verdict.value
        return as_result(verdict.value, "responded" if person else "answered")

    def _in_doubt(self, state: CallFold) -> bool:
        """Started by somebody who did not live to tell, and not safe to repeat."""
        tool = self.segment.program.tools.get(state.call.name)
        started = state.called > len(state.attempts)
        return started and (tool is None or (tool.effect == "unsafe" and tool.retry != "safe"))

    def _failed(self, call: ToolCall, attempts: Attempts, error: Exception) -> ToolResult:
        """An error as a result the model reads, unless the policy wants it otherwise."""
        if not isinstance(error, UnsafeRetry):
            attempts.error = error
        category = category_of(error)
        if category in ("unknown", "model", "validation"):
            category = "tool"
        if category == "hook":
            return text_result(f"Error: {error}", "error")
        if self.segment.program.policy.action(category if category == "timeout" else "tool") == "halt" and (
            self.segment.program.policy.action("tool") == "halt"
        ):
            raise error
        tool = self.segment.program.tools.get(call.name)
        unsafe = tool is not None and tool.effect == "unsafe" and tool.retry != "safe"
        if unsafe and attempts.started and isinstance(attempts.error, TimeoutError):
            return text_result(f"{_UNKNOWN} ({type(attempts.error).__name__}: {attempts.error})", "interrupted")
        return text_result(_error_text(error), "error")

    # ------------------------------------------------------------ one attempt, innermost

    async def _attempt(self, call: ToolCall, attempts: Attempts) -> ToolResult:
        """One attempt, innermost. Only a wrap makes a second one or changes the call."""
        segment = self.segment
        attempts.number += 1
        tool = segment.program.tools.get(call.name)
        if self.wrapped and (settled := await self._before(tool, call, attempts)) is not None:
            return settled
        if tool is None:
            return self._keep(attempts, unknown_tool(call.name, segment))
        try:
            values = tool.prepare(call.json)
        except ToolError as error:
            return self._keep(attempts, text_result(f"Error: {error}", "error"))
        segment.record(ToolCalled(call.id, call.name, attempts.number, attempts.fingerprint, segment.clock.now()))
        if tool.effect != "pure" and segment.program.store.durable:
            await segment.commit()
        attempts.started = True
        try:
            if tool.is_async and not tool.supplied and tool.timeout is None:
                value = await tool.invoke(values, None)
            else:
                value = await self._invoke(tool, call, values)
        except Exception as error:
            attempts.error = error
            raise
        attempts.result = result = value if type(value) is ToolResult else ToolResult(render(value))
        return result

    async def _before(self, tool: Tool[..., Any] | None, call: ToolCall, attempts: Attempts) -> ToolResult | None:
        """No unsafe call is made twice; what the log has is served; what the gates have not judged goes to them."""
        if attempts.number > 1:
            self._write_attempt(call.id, attempts)
            _refuse_unsafe(tool, call, attempts)
        attempts.error = None
        judged = attempts.state.call
        changed = call is not judged and (call.json != judged.json or call.name != judged.name)
        attempts.fingerprint = call.digest if changed else ""
        if self.segment.resumed and (served := attempts.served()) is not None:
            return served
        return await self._judge_changed(call, attempts) if changed else None

    def _keep(self, attempts: Attempts, result: ToolResult) -> ToolResult:
        attempts.result = result
        return result

    async def _invoke(self, tool: Tool[..., Any], call: ToolCall, values: tuple[Any, ...]) -> Any:
        writes = None
        supplied: dict[str, Any] | None = None
        if tool.supplied:
            writes = Writes(f"tool {tool.name}")
            supplied = self._supply(tool, call, writes)
        if tool.timeout is None:
            value = await self._call(tool, values, supplied)
        else:
            async with asyncio.timeout(tool.timeout):
                value = await self._call(tool, values, supplied)
        if writes is not None:
            self.segment.keep(writes)
        return value

    async def _call(self, tool: Tool[..., Any], values: tuple[Any, ...], supplied: dict[str, Any] | None) -> Any:
        if tool.is_async:
            return await tool.invoke(values, supplied)
        if tool.inline:
            return tool.invoke(values, supplied)
        return await self.segment.in_thread(lambda: tool.invoke(values, supplied))

    def _supply(self, tool: Tool[..., Any], call: ToolCall, writes: Writes) -> dict[str, Any]:
        segment = self.segment
        supplied: dict[str, Any] = {}
        for name, source in tool.supplied:
            if source == "turn":
                supplied[name] = Turn(segment, writes)
            elif source == "key":
                supplied[name] = call.id
            else:
                supplied[name] = segment.slot(source.removeprefix("slot:")).load(segment.fold.slots)
        return supplied

    async def _judge_changed(self, call: ToolCall, attempts: Attempts) -> ToolResult | None:
        """A wrap changed the call after the gates had judged: they judge again; there an `Ask` is a `Deny`."""
        segment = self.segment
        point = segment.hooks.tool_calling
        if point is None:
            return None
        passage = Passage(point, ToolCalling(call, segment.turn), segment, f"{call.id}/attempt.{attempts.number}")
        verdict = await passage.judge()
        if passage.answers:
            segment.record(HookDecided("ToolCalling", passage.about, verdict, tuple(passage.answers)))
        if isinstance(verdict, Answer):
            return self._keep(attempts, as_result(verdict.value, "answered"))
        if isinstance(verdict, Ask):
            verdict = Deny(f"nobody can be asked about a call that a wrap changed: {verdict.question}")
        if isinstance(verdict, Halt):
            attempts.halt = verdict
        if isinstance(verdict, Deny | Halt):
            return self._keep(attempts, text_result(f"Denied: {verdict.reason}", "denied"))
        return None

    def _write_attempt(self, call_id: str, attempts: Attempts) -> None:
        """The previous attempt did not stand: it is recorded."""
        if attempts.result is None and attempts.error is None:
            return
        error = None if attempts.error is None else error_value(attempts.error)
        result = attempts.result if error is None else None
        number = attempts.number - 1 if attempts.written < attempts.number - 1 else attempts.number
        if number > attempts.written:
            self.segment.record(ToolAttempted(call_id, number, attempts.fingerprint, result, error))
            attempts.written = number

    # ------------------------------------------------------------ the result

    async def _return(self, state: CallFold, result: ToolResult) -> None:
        """ToolReturning, for every result, then the record."""
        segment = self.segment
        call = state.call
        if (point := segment.hooks.tool_returning) is not None:
            result = await self._returning(Passage(point, ToolReturning(call, result, segment.turn), segment, call.id), result)
        segment.record(ToolReturned(call.id, call.name, result, segment.clock.now()))

    async def _returning(self, passage: Passage, result: ToolResult) -> ToolResult:
        segment = self.segment
        try:
            result = (await passage.rewrite()).result
        except HookError as error:
            return text_result(f"Error: the result is withheld: {error}", "error")
        verdict = await passage.judge()
        if passage.answers:
            segment.record(HookDecided("ToolReturning", passage.about, verdict, tuple(passage.answers)))
        if isinstance(verdict, Deny):
            return text_result(f"Withheld: {verdict.reason}", "denied")
        if isinstance(verdict, Halt):
            self.halts.append(verdict)
        elif isinstance(verdict, Finish):
            self.finishes[passage.about] = verdict
        for item in await passage.inject(passage.about):
            if item.durable:
                result = result.replace(content=(*result.content, *item.parts))
            else:
                _beside_result(segment, item)
        return result


class Attempts(Struct):
    """The attempts at one call in this process."""

    state: CallFold
    number: int = 0
    written: int = 0
    fingerprint: str = ""
    started: bool = False
    result: ToolResult | None = None
    error: Exception | None = None
    halt: Halt | None = None

    def served(self) -> ToolResult | None:
        """What the log has of this attempt; a recorded error is raised again."""
        from .calling import recorded_error

        for attempt in self.state.attempts:
            if (attempt.attempt, attempt.fingerprint) == (self.number, self.fingerprint):
                self.written = self.number
                if attempt.result is None:
                    assert attempt.error is not None
                    self.error = recorded_error(attempt.error)
                    raise self.error
                self.result = attempt.result
                return attempt.result
        return None


def _refuse_unsafe(tool: Tool[..., Any] | None, call: ToolCall, attempts: Attempts) -> None:
    """A second attempt at an unsafe call that was started, and that did not say that nothing happened."""
    if tool is None or tool.effect != "unsafe" or tool.retry == "safe" or not attempts.started:
        return
    if isinstance(attempts.error, NotDone):
        return
    raise UnsafeRetry(
        f"tool {call.name!r} is unsafe and was started: it is not called again, its outcome is "
        f"{'unknown' if attempts.error is not None else 'known'}. Raise NotDone in the tool if nothing happened, or declare "
        'it with retry="safe" or effect="idempotent"'
    )


def unknown_tool(name: str, segment: Segment) -> ToolResult:
    """The result of a call that nobody can execute."""
    known = ", ".join(segment.program.tools) or "none"
    return text_result(f"Error: there is no tool {name!r}. Known tools: {known}.", "error")


def _beside_result(segment: Segment, item: Injected) -> None:
    if item.record:
        segment.record(item.replace(durable=False))
    else:
        segment.unrecorded = (*segment.unrecorded, item)


def _may_rerun(segment: Segment) -> bool:
    point = segment.hooks.tool_calling
    return point is not None and any(asks_again(hook) for hook in point.gates)


def _error_text(error: Exception) -> str:
    if isinstance(error, ToolError):
        return f"Error: {error}"
    return f"Error: {type(error).__name__}: {error}"


