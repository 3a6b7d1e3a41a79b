"""Agents below this one: how a child lives in its parent's call.

A child is a session of its own in the parent's store, named after the call. It runs in the same
loop, awaited by the call, so that what ends the parent ends the child. The parent's log says that
the child was started, what it asks people, what it has cost and what came of it; the rest is in the
child's own log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import cancelled
from windlass.decisions import Approve, Ask
from windlass.errors import ConfigError, SessionConflict, StoreError
from windlass.events import Delegating, SubagentStopping, TurnStarting
from windlass.ids import child_id, old_child_id
from windlass.messages import (
    Message,
    ModelCall,
    ToolCall,
    ToolResult,
    user,
)
from windlass.outcomes import Cancelled, error_value
from windlass.records import (
    MASK,
    Answered,
    Asked,
    Charged,
    Delegated,
    HookFailed,
    Injected,
    Record,
    Suspended,
    Withdrawn,
)
from windlass.states import CallFold, Child, Fold, children_at_work, fold_in_slices
from windlass.storage import placed
from windlass.terms import first_digest, without_answers
from windlass.turns import Asker, ChildWaits, Invocation

from .arguments import changed_log, not_run
from .audience import Audience
from .cancellation import Cancellation
from .child_program import program_of, unknown_child
from .delegation import AFTER_CALLS, Delegate
from .ends_without_hooks import end_turn
from .handing_over import (
    check_nesting,
    error_result,
    inject_again,
    injected_for,
    is_about_task,
    judge_task,
    key_of,
    question_of,
    result_of,
    session_of,
)
from .inbox import answer_in, entries_below
from .injections import Injections
from .journal import Journal
from .limits import Limits, delegated
from .program import Program
from .questions import Questions
from .site import Site

if TYPE_CHECKING:
    from .segment import Segment

MakesChild: TypeAlias = "Callable[[Program, Fold, Parent, Message | None, bool], Segment]"
"""Makes the pass over a child's turn."""

Drives: TypeAlias = "Callable[[Segment], Any]"
"""Takes a child's turn to its end, inside its wraps."""


class SecretNotKept(Exception):
    """The task of a child that was not begun held a secret, which nobody has any more."""


class Parent(Struct, frozen=True):
    """What a child's pass needs of its parent's. A child in the background has a pass of its own,
    without a `journal` or `limits` above it.

    `started` says how the child was started. `delivered` are answers for it that are in the
    parent's log; None if it takes answers by itself. `injected` are the parts that hooks injected
    for it. `stopping` are hooks that may hold up its stop. `may_wait` is false if it works for a hook
    or tool that cannot wait for a person. `interruptible` says what a cancel of its task means: see
    `Cancellation`.
    """

    session: str
    scope: Any
    started: Delegated
    journal: Journal | None = None
    limits: Limits | None = None
    audience: Audience | None = None
    delivered: tuple[Answered, ...] | None = None
    injected: tuple[Injected, ...] = ()
    stopping: Point | None = None
    may_wait: bool = True
    interruptible: bool = False


class Children(Struct, eq=False):
    """The agents that work on the calls of a pass."""

    _site: Site
    _questions: Questions
    _injections: Injections
    _limits: Limits
    _cancellation: Cancellation
    _make: MakesChild
    _drive: Drives
    _met: set[str] = set()
    _ended: set[str] = set()

    @property
    def _journal(self) -> Journal:
        return self._site.journal

    async def hand_over(self, tool: Delegate, call: ToolCall, task: str, number: int) -> ToolResult:
        """Hand a task to a child and wait for its result. A child that was started before goes on
        where it stood.

        All that happens to the child is a result, except what cancels the parent too and questions
        to people. If the child's log cannot be read or written, or the session was taken over, the
        parent's is not written any more either: the next to resume finds both as they were.
        """
        journal = self._journal
        assert journal.fold.open is not None
        state = journal.fold.open.calls[call.id]
        if journal.program.max_depth < 1:
            return error_result(
                tool.agent,
                "was not started: agents are nested as deep as they may be already (max_depth)",
            )
        session, old = [
            name(journal.fold.session, call.id, number) for name in (child_id, old_child_id)
        ]
        try:
            known = state.child(session) or state.child(old)
            if known is not None:
                self._check_task(call, known.started, task)
            if self._questions.resumed:
                await self._inject_again(state)
            if known is None:
                child: Segment | None = await self._start(tool, state, session, task)
            else:
                child = await self._find(tool, known)
            if child is None:
                raise ChildWaits
            if known is not None:
                self._charge(child)  # what it did before a crash is progress of this turn, too
                await journal.commit()
            if child.state.over and child.entry.message is None:
                self._charge(child)
            else:
                await self._run(child)
        except SecretNotKept:
            return not_run()
        except Exception as error:
            if isinstance(error, StoreError | SessionConflict):
                journal.give_up(error)
            failed = HookFailed(
                tool.name, "Delegated", error_value(error), effect="the agent could not work"
            )
            journal.record(failed)
            await self._end_failed(state, type(error).__name__)
            return error_result(
                tool.agent, f"could not work: {type(error).__name__}; the log has the details"
            )
        if (broken := child.journal.broken) is not None:
            journal.give_up(broken)
        if isinstance(child.state.outcome, Suspended) and child.questions.waiting:
            self._ask_too(child.questions.waiting)
            raise ChildWaits
        return result_of(tool.agent, child.state)

    async def _end_failed(self, state: CallFold, error: str) -> None:
        """End a child that could not work: its call gets a result, so nobody goes on with it."""
        journal = self._journal
        try:
            for child in state.children if journal.broken is None else ():
                await self._end(child.started, f"the agent could not work: {error}")
        except (StoreError, SessionConflict) as broken:
            journal.give_up(broken)

    # ------------------------------------------------------------ tasks of hooks and tools

    async def delegate(
        self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]
    ) -> Any:
        """The result of a child that a hook or tool gives a task to.

        A child that finished before is not run again. One that waits for a person neither returns
        nor raises: the run that started it is broken off.
        """
        if run.is_broken_off:
            raise asyncio.CancelledError("a child agent waits for a person")
        journal, tool = self._journal, agent.as_tool(**options)
        check_nesting(journal.program, asker, tool.agent)
        key = key_of(self._site, asker, run, tool.agent, task)
        may_wait = self._questions.may_ask and _may_wait(asker, journal.opening is not None)
        run.working += 1
        self._met.add(key)
        try:
            child = await self._delegated(tool, asker, key, task, may_wait)
        except (StoreError, SessionConflict) as error:
            journal.give_up(error)
            raise
        finally:
            run.working -= 1
            run.break_off_if_idle()
        if child is not None:
            if (broken := child.journal.broken) is not None:
                journal.give_up(broken)
            if not (isinstance(child.state.outcome, Suspended) and child.questions.waiting):
                self._ended.add(key)
                self._withdraw_of(child.fold.session, "the agent that asked has ended")
                failure = child.failures.latest
                slots, written = child.site.hooks.slots, child.fold.written
                return agent._child_result(child.state, slots, failure, written)
            self._ask_too(child.questions.waiting)
        run.working += 1
        run.note_waiting()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            run.working -= 1
            run.waiting -= 1

    async def _delegated(
        self, tool: Delegate, asker: Asker, key: str, task: str, may_wait: bool
    ) -> Segment | None:
        """The pass over a child's turn, at its end or its next suspension. None if it still waits."""
        known = delegated(self._journal, key)
        if known is None:
            child: Segment | None = await self._start_delegated(tool, asker, key, task, may_wait)
        else:
            if self._questions.resumed:
                await inject_again(self._site, self._injections, tool, asker, known.started)
            child = await self._find(tool, known, may_wait)
        if child is None:
            return None
        if child.state.over and child.entry.message is None:
            self._charge(child)
        else:
            await self._run(child)
        return child

    async def _start_delegated(
        self, tool: Delegate, asker: Asker, key: str, task: str, may_wait: bool
    ) -> Segment | None:
        """A new child, if the hooks on `Delegating` let it begin; None if a person must let it."""
        journal, questions = self._journal, self._questions if may_wait else None
        given = await judge_task(self._site, self._injections, questions, tool, asker, key, task)
        if given is None:
            return None
        program = program_of(journal.program, tool, given.tools)
        tokens, usd = self._limits.portion(given.share)
        session = session_of(journal.fold.session, key)
        started = Delegated(
            "", session, tool.agent, given.task, given.tools, tokens, usd, key, asker.by
        )
        journal.record(started)
        await journal.commit()
        fold = Fold(session)
        if journal.opening is not None:  # a process that died may have started it for this turn
            fold = await fold_in_slices(session, await program.store.read(session))
            self._check_parent(fold)
        message = user(given.task) if fold.turn is None else None
        return self._child(program, fold, started, message=message, may_wait=may_wait)

    async def end_unmet(self, reason: str, coming: frozenset[str]) -> None:
        """On resume: end the children whose hook or tool did not run again, and withdraw their
        questions. Those of events that are `coming` may still be met."""
        turn = self._journal.fold.turn
        for child in turn.delegated if turn is not None else ():
            event = child.started.key.partition(":")[0]
            if child.started.key not in self._met and event not in coming:
                self._met.add(child.started.key)
                await self._end(child.started, reason)
        self._withdraw_unmet(reason, coming)

    def _withdraw_unmet(self, reason: str, coming: frozenset[str]) -> None:
        """Withdraw the questions about tasks whose hook or tool did not run again."""
        session = self._journal.fold.session
        met = {question_of(session, key) for key in self._met}
        unmet = [
            asked.id
            for asked in self._questions.waiting
            if is_about_task(session, asked)
            and asked.id not in met
            and asked.id.rpartition("/")[2].partition(".")[0] not in coming
        ]
        if unmet:
            self._journal.record(Withdrawn(tuple(unmet), reason))

    # ------------------------------------------------------------ tasks of the model

    def _check_parent(self, fold: Fold) -> None:
        """Raise if the log of a child says that another session started it. Old logs do not always
        say it."""
        session, parent = fold.session, self._journal.fold.session
        if "//" in session and fold.opened is not None and fold.opened.parent != parent:
            raise SessionConflict(
                f"session {session!r} was not started by session {parent!r}", session=session
            )

    def _check_task(self, call: ToolCall, started: Delegated, task: str) -> None:
        """Raise if a child was started with another task than the call has: the log was changed."""
        mask = self._journal.mask
        if started.task != (task if mask is None else mask.text(task)):
            raise changed_log(self._journal.fold.session, call.id, call.name)

    async def _inject_again(self, state: CallFold) -> None:
        """On resume: hooks whose parts for the child are not in the log are asked once more."""
        site, delegation = (
            self._site,
            state.decided.delegation if state.decided is not None else None,
        )
        point = site.hooks.at(Delegating)
        if point is not None and delegation is not None:
            about = f"{state.call.id}/t1"
            passage = site.passage(
                point, Delegating(delegation, site.turn, site.tools.get(state.call.name)), about
            )
            await self._injections.inject_for_child(passage, about)

    # ------------------------------------------------------------ a child begins or goes on

    async def _start(self, tool: Delegate, state: CallFold, session: str, task: str) -> Segment:
        """A new child. That it was started is stored before it does anything."""
        journal = self._journal
        decided = state.decided.delegation if state.decided is not None else None
        given = (decided or tool.delegation(task)).replace(task=task)
        program = program_of(journal.program, tool, given.tools)
        tokens, usd = self._limits.portion(given.share)
        started = Delegated(state.call.id, session, tool.agent, task, given.tools, tokens, usd)
        journal.record(started)
        await journal.commit()
        return self._child(program, Fold(session), started, message=user(task))

    async def _find(
        self, tool: Delegate, known: Child, may_wait: bool | None = None
    ) -> Segment | None:
        """A child that was started before, with the answers that came for it. None if it still
        waits for all of them.

        One that has spent something and has no log is not begun anew: what it has done is unknown.
        An answer or a cancel may wait in its own inbox, or in that of an agent below it: it came
        when they had just suspended, or was meant for one of them.
        """
        journal, started = self._journal, known.started
        program = program_of(journal.program, tool, started.tools)
        log = await program.store.read(started.session)
        fold = await fold_in_slices(started.session, log)
        self._check_parent(fold)
        if fold.turn is None and (known.charged.requests or known.charged.total):
            raise StoreError(
                f"the log of session {started.session!r}, in which agent {tool.agent!r} was at work for session "
                f"{journal.fold.session!r}, is not in this store: import it too and resume, or start a new turn"
            )
        if fold.turn is None:
            if started.masked and MASK in started.task:
                raise SecretNotKept
            return self._child(
                program, fold, started, message=user(started.task), may_wait=may_wait
            )
        delivered = await self._delivered(fold, log)
        entries = await program.store.inbox(started.session, fold.inbox)
        if isinstance(fold.turn.outcome, Suspended) and fold.turn.waiting and not delivered:
            self._ask_too(fold.turn.waiting)
            given = [
                *await entries_below(program.store, fold),
                *[(kind, data) for _, kind, data in entries],
            ]
            for kind, data in given:
                if kind == "answer" and (answered := answer_in(journal, data)) is not None:
                    journal.record_answer(answered)
                    if not answered.partial and journal.fold.turn is not None:
                        delivered = (*delivered, journal.fold.turn.answered[-1])
            if not delivered and not any(kind == "cancel" for kind, _ in given):
                return None
        return self._child(
            program, fold, started, delivered=delivered, mail=bool(entries), may_wait=may_wait
        )

    def _child(
        self,
        program: Program,
        fold: Fold,
        started: Delegated,
        *,
        message: Message | None = None,
        delivered: tuple[Answered, ...] | None = None,
        mail: bool = False,
        may_wait: bool | None = None,
    ) -> Segment:
        """The pass over a child's turn."""
        journal = self._journal
        parent = Parent(
            journal.fold.session,
            self._site.scope,
            started,
            journal,
            self._limits,
            journal.audience,
            None if delivered is None else tuple([answered.replace() for answered in delivered]),
            injected_for(self._site, started, fold.session),
            self._site.hooks.at(SubagentStopping),
            self._questions.may_ask if may_wait is None else may_wait,
            self._cancellation.interruptible,
        )
        return self._make(program, fold, parent, message, mail)

    async def _delivered(self, fold: Fold, log: Sequence[Record]) -> tuple[Answered, ...]:
        """The answers in the parent's log to what the child still asks.

        An answer is delivered once.
        """
        turn, above, journal = fold.turn, self._journal.fold.turn, self._journal
        assert turn is not None
        assert above is not None
        open_questions = {asked.id: asked for asked in turn.waiting}
        found = [
            a
            for a in above.answered
            if a.id in open_questions and _answers(a, open_questions[a.id])
        ]
        given = _settled_ids(log)
        if again := [a for a in found if a.id in given]:
            records = await journal.program.store.read(journal.fold.session)
            received = _settled_ids(records)
            stale = {a.id for a in again if received.count(a.id) <= given.count(a.id)}
            found = [a for a in found if a.id not in stale]
        return tuple(found)

    def _ask_too(self, questions: Sequence[Asked]) -> None:
        """The questions of a child are its parent's as well, with the answers that the child has.

        The audience has heard them from the child.
        """
        journal = self._journal
        for asked in questions:
            if not self._questions.is_waiting(asked.id):
                journal.adopt(without_answers(asked))
            for answered in asked.answers:
                mine = next(other for other in self._questions.waiting if other.id == asked.id)
                if all(answered.by != other.by for other in mine.answers):
                    journal.adopt(answered)

    async def _run(self, child: Segment) -> None:
        """The child's turn, to its end or its next suspension."""
        self._limits.add(child.limits)
        self._cancellation.add(child.cancellation)
        try:
            with placed_below(child):
                await self._drive(child)
        except asyncio.CancelledError:
            if child.journal.was_left_waiting and (broken := child.journal.broken) is not None:
                self._journal.give_up(broken)  # this log need not wait for the same store once more
            if cancelled() or not child.state.over:
                raise
        finally:
            self._cancellation.remove(child.cancellation)
            self._limits.remove(child.limits)
            self._charge(child)
            child.site.close()
            child.journal.seal()

    # ------------------------------------------------------------ a child ends

    async def end_all(self, reason: str, coming: frozenset[str] = AFTER_CALLS) -> None:
        """The open calls of a step will not be finished: neither will the children that work on
        them.

        Nor will children of hooks and tools that have not ended. If the log cannot say so they stay
        as they are: the next to resume goes on with them.
        """
        journal = self._journal
        if journal.broken is None:
            self._met &= self._ended
            await self.end_unmet(reason, coming)
        step = journal.fold.open if journal.broken is None else None
        for call in step.calls.values() if step is not None else ():
            tool = journal.program.delegates.get(call.call.name)
            for child in call.children if call.result is None else ():
                await self._end(child.started, reason, tool)

    async def _end(self, started: Delegated, reason: str, tool: Delegate | None = None) -> None:
        """End a child that nobody goes on with, withdraw its questions, and charge what it has
        spent.

        If its agent is not known here, the hooks that it inherits look at its end.
        """
        journal = self._journal
        program = _program_of(journal.program, started, tool)
        fold = await self._fold_of(started)
        if fold.turn is None:
            return
        child = self._child(program, fold, started)
        if fold.state.over:
            self._charge(child)
        else:
            await self._close(child, reason)
        if started.key:  # the result of a call withdraws the questions about it
            self._withdraw_of(started.session, reason)

    def _withdraw_of(self, session: str, reason: str) -> None:
        """Withdraw what a child that has ended, and those below it, asked and nobody answered."""
        below = f"{session}/"
        asked = [one.id for one in self._questions.waiting if one.id.startswith(below)]
        if asked:
            self._journal.record(Withdrawn(tuple(asked), reason))

    async def end_without_hooks(self, reason: str) -> None:
        """End all children that have not ended, and those below them. No hook looks at it."""
        journal = self._journal
        for started in children_at_work(journal.fold):
            program = unknown_child(journal.program)
            fold = await self._fold_of(started)
            if fold.turn is None:
                continue
            child = self._child(program, fold, started)
            if not fold.state.over:
                await child.below().end_without_hooks(reason)
                end_turn(child.journal, Cancelled(reason), f"{reason}.", session_ends=True)
                await child.journal.commit()
            self._charge(child)

    async def _fold_of(self, started: Delegated) -> Fold:
        """The log of a child that is to be ended."""
        journal = self._journal
        log = await journal.ask_store(journal.program.store.read(started.session))
        return await fold_in_slices(started.session, log)

    async def _close(self, child: Segment, reason: str) -> None:
        """Cancel a child's turn that nobody goes on with, and charge what it has spent."""
        child.cancellation.abandon(reason)
        try:
            with placed_below(child):
                await child.phases.lifecycle.failed(child.fold, asyncio.CancelledError(reason))
        except asyncio.CancelledError:
            if cancelled():
                raise
        if (broken := child.journal.broken) is not None:
            self._journal.give_up(broken)
            raise broken
        self._charge(child)

    def _charge(self, child: Segment) -> None:
        """What a child has spent since it was last charged, to its parent's turn."""
        usage, started = self._limits.owed(child.limits, child.state.usage), child.limits.started
        assert started is not None
        if usage.requests or usage.total:
            self._journal.record(Charged(started.call, started.session, usage))


def _program_of(parent: Program, started: Delegated, tool: Delegate | None) -> Program:
    """The program of a child that was started before, as far as its agent is still known."""
    if tool is not None:
        with suppress(ConfigError):  # its agent has changed since
            return program_of(parent, tool, started.tools)
    return unknown_child(parent)


def placed_below(child: Segment) -> AbstractContextManager[None]:
    """Inside, the storages of a child keep their values in its parent's store."""
    program = child.journal.program
    return placed(program.home, program.place) if program.home.used else nullcontext()


def _may_wait(asker: Asker, opening: bool) -> bool:
    """Whether a hook or tool can wait for a person: it is run again from its start afterwards.

    While a turn is opened, only gates on its message can.
    """
    first: Any = asker.chain[0]
    hook: Any = asker.chain[-1]
    if opening and (hook is not first or getattr(first, "event", None) is not TurnStarting):
        return False
    if asker.tool is not None:
        return asker.tool.effect in ("pure", "idempotent")
    if getattr(hook, "kind", "") == "gate":
        return Ask in hook.event.ranks
    return getattr(hook, "kind", "") == "wrap" and hook.event in (ModelCall, ToolCall)


def _answers(answered: Answered, asked: Asked) -> bool:
    """Whether an answer in the parent's log is about what a child asks, as the child knows it."""
    if answered.digest == asked.digest:
        return True
    return answered.digest == first_digest(asked) and not isinstance(answered.answer, Approve)


def _settled_ids(log: Sequence[Record]) -> list[str]:
    """The questions that a log has answers to, once for each time."""
    return [record.id for record in log if isinstance(record, Answered) and not record.partial]
