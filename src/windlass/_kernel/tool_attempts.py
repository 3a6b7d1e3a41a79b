"""Attempts at a tool call: the only place where a tool is called, and the account of what wraps do
around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass._hooks.dispatch import cancelled, failed_hook
from windlass._hooks.reveals import revealed
from windlass._hooks.wraps import Kind, NotPassable, passable
from windlass.checking import checked_call, checked_result, is_result
from windlass.decisions import Answer, Ask, Deny, Halt
from windlass.errors import HookError, NotDone, ToolError, UnsafeRetry, name_raiser
from windlass.events import LateResult
from windlass.messages import TextPart, ToolCall, ToolResult, as_result, text_result
from windlass.outcomes import error_from_value, error_value
from windlass.records import HookDecided, HookFailed, ToolAttempted, ToolCalled
from windlass.states import CallFold
from windlass.tools import ArgumentsError, Tool
from windlass.turns import Asker, ChildWaits, Invocation, Turn, Writes, check_not_broken_off

from .arguments import Prepared
from .cancellation import Cancellation
from .delegation import Delegate
from .limits import Limits
from .site import Site
from .tool_decisions import ToolDecisions
from .tool_results import ToolResults

if TYPE_CHECKING:
    from .children import Children

_RESULT = Kind(ToolCall, "a ToolResult or a value", is_result, checked_result, ToolError)


class ToolAttempts:
    """Makes the attempts at the calls of a pass.

    `written` has what the latest attempt at a call wrote, by call; `retried` the number of the
    attempt after which the error handler had the call made again. A call in `held_up` waits for a
    child agent.
    """

    __slots__ = (
        "_attempts", "_cancellation", "_children", "_decisions", "_durable", "_held_up", "_journal", "_limited",
        "_limits", "_onion", "_prompt", "_results", "_resumed", "_retried", "_reveals", "_site", "wrapped", "written",
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        decisions: ToolDecisions,
        results: ToolResults,
        limits: Limits,
        cancellation: Cancellation,
        children: Children | None,
        *,
        resumed: bool,
    ) -> None:
        self._site = site
        self._journal = site.journal
        self._decisions = decisions
        self._results = results
        self._limits = limits
        self._cancellation = cancellation
        self._children = children
        self._resumed = resumed
        self._limited = limits.exist("tool")
        self._durable = site.program.durable
        self._reveals = site.program.reveals
        self.wrapped = bool(site.hooks.tool_wraps)
        self.written: dict[str, Writes] = {}
        slow = (
            self.wrapped
            or site.journal.audience.attends
            or site.program.durable
            or children is not None
        )
        self._prompt = not (slow or resumed or decisions.injects)
        if self.wrapped:
            self._attempts: dict[str, Attempts] = {}
            self._retried: dict[str, int] = {}
            self._held_up: set[str] = set()
            self._onion = site.wrapped(
                site.hooks.tool_wraps, self._innermost, _RESULT, self._guarded, _place
            )

    def _next(self, state: CallFold) -> int:
        """The number of the next attempt.

        A child that was interrupted is not a new one: it goes on.
        """
        return (
            len(state.attempts) if state.call.name in self._site.program.delegates else state.called
        ) + 1

    def check_cancelled(self) -> None:
        """Raise if the turn was cancelled and a hook swallowed that."""
        if (task := self._cancellation.task) is not None and task.cancelling():
            self._cancellation.check()

    async def end_unmet_children(self, coming: frozenset[str]) -> None:
        """End the agents that a hook or tool had started which did not run again on resume.

        Those of events that are `coming` may still be met.
        """
        if self._children is not None:
            why = "the hook or tool that asked for it did not run again"
            await self._children.end_unmet(why, coming)

    async def end_children(self, reason: str) -> None:
        """End the agents that work on open calls."""
        if self._children is not None:
            await self._children.end_all(reason)

    def note_retry(self, state: CallFold) -> None:
        """The error handler has the call made again."""
        if self.wrapped:
            self._retried[state.call.id] = state.called

    # ------------------------------------------------------------ one attempt, innermost

    def attempt(
        self,
        state: CallFold,
        call: ToolCall,
        prepared: Prepared | None,
        number: int = 0,
        fingerprint: str = "",
    ) -> Awaitable[Any]:
        """The only place where a tool is called: arguments decoded, the start in the log, then the
        tool. Await the value, and make the result of it with `result_of`.

        `prepared` has the arguments for the first attempt: a tool may change its values. An attempt
        without a number is the next one.
        """
        if prepared is None or prepared.call is not call or prepared.values is None:
            try:
                prepared = self._site.arguments.read(call)
            except ToolError as error:
                return _known(text_result(f"Error: {error}", "error"))
        tool, values = prepared.tool, prepared.values
        if tool is None or values is None:
            return _known(self._unknown_tool(call.name))
        if self._children is not None:
            number = number or self._next(state)
            if isinstance(tool, Delegate):
                return self._hand_over(self._children, tool, call, values[0], number, fingerprint)
        elif not number:
            number = state.called + 1
        if self._reveals:
            try:
                values = revealed(self._reveals, call, values, self._site.turn)
            except HookError as error:
                return _known(self._not_revealed(error))
        journal = self._journal
        fold = journal.fold
        at = fold.at if self._prompt and number == 1 else fold.tick(journal.now)
        json = call.json if fingerprint else None
        journal.add(ToolCalled(call.id, call.name, number, fingerprint, json, at=at))
        if self._durable:  # the append of the start fails if the log is not writable
            at_once = tool.quick and tool.effect == "pure" and not self._resumed
            return _known(tool.fn(*values)) if at_once else self._invoke(tool, call, values)
        if tool.effect == "unsafe":
            journal.check_writable()
        if tool.direct:
            value: Awaitable[Any] = tool.fn(*values)
            return value
        return _known(tool.fn(*values)) if tool.quick else self._invoke(tool, call, values)

    def _not_revealed(self, error: HookError) -> ToolResult:
        """The result of a call whose arguments could not be revealed: the tool does not run."""
        self._journal.record(HookFailed(error.hook, "ToolCall", error_value(error), "not run"))
        return text_result(f"Error: the tool was not run: {failed_hook(error)}", "error")

    def _unknown_tool(self, name: str) -> ToolResult:
        """The result of a call that nothing here can execute."""
        opened = self._journal.fold.opened
        tools = self._site.program.tools
        names = (
            tools
            if opened is None or opened.tools is None
            else [*[spec.name for spec in opened.tools], *self._site.program.turn_tools]
        )
        known = ", ".join(names) or "none"
        return text_result(f"Error: there is no tool {name!r}. Known tools: {known}.", "error")

    async def _hand_over(
        self,
        children: Children,
        tool: Delegate,
        call: ToolCall,
        task: str,
        number: int,
        fingerprint: str,
    ) -> ToolResult:
        """A task that another agent works on.

        Its start is in the log once, however often it goes on.
        """
        journal = self._journal
        assert journal.fold.open is not None
        if journal.fold.open.calls[call.id].called < number:
            json = call.json if fingerprint else None
            journal.record(ToolCalled(call.id, call.name, number, fingerprint, json))
        try:
            return await children.hand_over(tool, call, task, number)
        except ChildWaits:
            if self.wrapped:
                self._held_up.add(call.id)
            raise

    async def _invoke(self, tool: Tool[..., Any], call: ToolCall, values: tuple[Any, ...]) -> Any:
        """The value of a tool that is not simply awaited.

        Its start is stored first, if it matters: if the call may not simply be made again, or if
        a process has died in this turn and this tool may be why.
        """
        if self._durable and (tool.effect != "pure" or self._resumed):
            await self._journal.commit()
        writes = None
        supplied: dict[str, Any] | None = None
        if tool.supplied:
            writes = Writes(f"{tool.name} ({call.id})")
            supplied = self._supply(tool, call, writes)
        try:
            if tool.timeout is None:
                value = await self._call(tool, call, values, supplied)
            else:
                async with asyncio.timeout(tool.timeout):
                    value = await self._call(tool, call, values, supplied)
        finally:
            if supplied is not None:
                self._check_not_broken_off(call, supplied)
        if writes is not None:
            self.written[call.id] = writes
        return value

    def _check_not_broken_off(self, call: ToolCall, supplied: dict[str, Any]) -> None:
        try:
            for value in supplied.values():
                if isinstance(value, Turn):
                    check_not_broken_off(value)
        except ChildWaits:
            if self.wrapped:
                self._held_up.add(call.id)
            raise

    async def _call(
        self,
        tool: Tool[..., Any],
        call: ToolCall,
        values: tuple[Any, ...],
        supplied: dict[str, Any] | None,
    ) -> Any:
        if tool.is_async:
            return await tool.invoke(values, supplied)
        if tool.inline:
            return tool.invoke(values, supplied)
        late = LateCall(self._site, call.id)
        try:
            return await self._site.in_thread(
                lambda: late.run(partial(tool.invoke, values, supplied))
            )
        except asyncio.CancelledError:
            late.give_up()
            raise

    def _supply(self, tool: Tool[..., Any], call: ToolCall, writes: Writes) -> dict[str, Any]:
        site = self._site
        supplied: dict[str, Any] = {}
        for name, source in tool.supplied:
            if source == "turn":
                asker = Asker("ToolCall", call.id, tool.name, (f"tool {tool.name}",), tool=tool)
                supplied[name] = Turn(site, writes, None, asker, Invocation())
            elif source == "key":
                supplied[name] = call.id
            else:
                supplied[name] = site.slot(source.removeprefix("slot:")).load(
                    self._journal.fold.slots
                )
        return supplied

    # ------------------------------------------------------------ inside wraps

    async def in_wraps(
        self, state: CallFold, call: ToolCall, prepared: Prepared | None
    ) -> ToolResult:
        """The call inside its wraps: what leaves the outermost is the result."""
        onion, tried = self._onion, self._retried.get(call.id, 0) if self._retried else 0
        first, inner = onion.first, onion.inner
        attempts = self._attempts[call.id] = Attempts(state, call, prepared, tried, tried, tried)
        try:
            result = await first(call, inner)
            known = attempts.result
            if (known is None or result is not known) and not is_result(result):
                result = onion.checked(result)
        except (Exception, asyncio.CancelledError) as error:
            onion.raised(error)
        finally:
            del self._attempts[call.id]
        if self._held_up and call.id in self._held_up:  # whatever a wrap made of that
            raise ChildWaits
        if result is not attempts.result:
            self._write_attempt(call.id, attempts)
        final: ToolResult = result
        return final

    def _guarded(self, call: ToolCall, given: ToolResult) -> ToolResult:
        """What leaves the guard band counts as the tool's own result, if the tool was called."""
        attempts = self._attempts[call.id]
        if attempts.result is not None:
            attempts.result = given
        return given

    async def _innermost(self, call: ToolCall) -> ToolResult:
        """One attempt of a wrap: no unsafe call is made twice, what the gates have not judged goes
        to them first."""
        if (task := self._cancellation.task) is not None and task.cancelling():
            self._cancellation.check()
        if type(call) is not ToolCall:
            passable(ToolCall, call)
        attempts = self._attempts.get(call.id)
        if attempts is None:
            raise HookError(
                f"call_next was kept and called when call {call.id} was over",
                hook="",
                event="ToolCall",
            )
        if self._held_up and call.id in self._held_up:
            raise ChildWaits
        number = attempts.number = attempts.number + 1
        if self.written:
            self.written.pop(call.id, None)
        if call is not attempts.call:
            call = self._changed_by_wrap(_passed(call), attempts)
        if number - attempts.since > 1 or call is not attempts.call or self._resumed:
            if (settled := await self._before(call, attempts)) is not None:
                return settled
            if attempts.number - attempts.since > 1:
                self._refuse_unsafe(call, attempts)
        if self._limited and (stopped := self._limits.stop_before("tool")) is not None:
            attempts.result = text_result(f"Not run: {stopped.detail}", "cancelled")
            return attempts.result
        try:
            prepared, attempts.prepared = attempts.prepared, None
            value = await self.attempt(attempts.state, call, prepared, number, attempts.fingerprint)
            attempts.result = result = result_of(call, value)
            self._onion.accept(result)
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
            call = self._site.completed(call)
        judged = attempts.call
        return judged if (call.name, call.json) == (judged.name, judged.json) else call

    async def _before(self, call: ToolCall, attempts: Attempts) -> ToolResult | None:
        if attempts.number - attempts.since > 1:
            self._write_attempt(call.id, attempts)
            self._refuse_unsafe(call, attempts)
        attempts.error = attempts.result = None
        changed = call is not attempts.call
        attempts.fingerprint = self._site.arguments.digest(call) if changed else ""
        if self._resumed and (served := attempts.served()) is not None:
            return served
        if changed:
            attempts.result = await self._judge_changed(call, attempts)
        return attempts.result

    def _refuse_unsafe(self, call: ToolCall, attempts: Attempts) -> None:
        """Raise at a second attempt at an unsafe call that was started, unless the tool said that
        nothing happened."""
        tool = self._site.program.tools.get(call.name)
        if not is_unsafe(tool) or not attempts.state.called or isinstance(attempts.known, NotDone):
            return
        outcome = "known" if attempts.known is None else "unknown"
        raise UnsafeRetry(
            f"tool {call.name!r} is unsafe and was started: it is not called again, its outcome is {outcome}. Raise "
            'NotDone in the tool if nothing happened, or declare it with retry="safe" or effect="idempotent"'
        ) from attempts.known

    def _write_attempt(self, call_id: str, attempts: Attempts) -> None:
        """An attempt that did not stand is recorded, once."""
        if attempts.result is None and attempts.error is None:
            return
        attempts.written += 1
        error = (
            None
            if attempts.error is None
            else self._results.details_of(attempts.state.call, attempts.error)
        )
        result = attempts.result if error is None else None
        self._journal.record(
            ToolAttempted(call_id, attempts.written, attempts.fingerprint, result, error)
        )
        attempts.error = attempts.result = None

    async def _judge_changed(self, call: ToolCall, attempts: Attempts) -> ToolResult | None:
        """A wrap changed the call after the gates had judged: they judge again; there an `Ask` is a
        `Deny`."""
        try:
            self._site.completed(call)
        except ArgumentsError as error:
            return text_result(f"Error: {error}", "error")
        decisions = self._decisions
        passage = decisions.passage(
            call, attempts.state.decided, f"{call.id}/attempt.{attempts.number}"
        )
        verdict = await passage.judge()
        verdict = decisions.unmatched(call) if verdict is None else verdict
        if passage.answers:
            decided = HookDecided(
                "ToolCalling", passage.about, verdict, passage.answers, took=passage.took
            )
            self._journal.record(decided)
        if isinstance(verdict, Answer):
            return as_result(verdict.value, "answered")
        if isinstance(verdict, Ask):
            verdict = Deny(
                f"a person cannot be asked about a call that a wrap changed: {verdict.question}"
            )
        return (
            text_result(f"Denied: {verdict.reason}", "denied")
            if isinstance(verdict, Deny | Halt)
            else None
        )


class LateCall:
    """A tool in a thread, which cannot be stopped.

    If it was given up and returns after all, that is told as a fact.
    """

    __slots__ = ("_call", "_given_up", "_loop", "_site")

    def __init__(self, site: Site, call: str) -> None:
        self._site = site
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._given_up = False

    def give_up(self) -> None:
        """Nothing waits for the tool any more."""
        self._given_up = True

    def run(self, invoke: Callable[[], Any]) -> Any:
        """Call the tool, in the thread."""
        try:
            value = invoke()
        except Exception:
            self._report("error", 0)
            raise
        if self._given_up:
            result = as_result(value)
            self._report(result.status, len(result.text))
        return value

    def _report(self, status: str, size: int) -> None:
        if self._given_up and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, status, size)

    def _tell(self, status: str, size: int) -> None:
        """Tell of the result when the turn may be over: observers that must be awaited are told
        beside it."""
        journal = self._site.journal
        journal.fact(LateResult, self._call, status, size)
        if journal.audience.listens and journal.audience.backlog.awaited:
            self._site.beside(journal.audience.flush())


class Attempts(Struct):
    """The attempts at one call that wraps made in this process. `call` is what the gates judged."""

    state: CallFold
    call: ToolCall
    prepared: Prepared | None
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
                    self.known = error_from_value(attempt.error)
                    raise self.known
                return attempt.result
        return None


def is_unsafe(tool: Tool[..., Any] | None) -> bool:
    """Whether a call of this tool may not simply be repeated."""
    return tool is not None and not tool.repeatable


async def _known(value: Any) -> Any:
    """A value that has not to be waited for."""
    return value


def result_of(call: ToolCall, value: Any) -> ToolResult:
    """The value of a tool as a result; an invalid value is the tool's error."""
    kind = type(value)
    if kind is str or kind is int:
        return ToolResult((TextPart(str(value)),))
    try:
        return checked_result(value)
    except TypeError as error:
        raise ToolError(f"tool {call.name!r} returned an invalid value: {error}") from None


def _passed(call: ToolCall) -> ToolCall:
    """A call that a wrap made, checked."""
    try:
        return checked_call(call)
    except TypeError as error:
        raise NotPassable(f"call_next got an invalid ToolCall: {error}", call) from None


def _place(call: ToolCall) -> tuple[str, tuple[Any, ...]]:
    """What the wraps of a call work on."""
    return call.id, ()
