"""Drives agents in the background: each in a task of its own, in a session that it owns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextvars import copy_context
from typing import Any

import msgspec
from msgspec.structs import replace

from ._kernel.active_time import ActiveTime
from ._kernel.audience import Audience
from ._kernel.background import Detached, detached, handle
from ._kernel.child_program import program_of
from ._kernel.children import placed_below
from ._kernel.given_answers import take_partial_answers
from ._kernel.handing_over import error_result, is_for, result_of
from ._kernel.inbox import BackgroundResult
from ._kernel.loop import drive_wrapped
from ._kernel.program import Program
from ._kernel.segment import detached_pass
from .approvals import due_answer
from .errors import ConfigError, SessionBusy, SessionConflict, SessionError
from .messages import Usage
from .outputs import Output
from .protocols import Store
from .records import Delegated, Injected, Suspended, parent_of
from .results import Result
from .run_options import GivenOptions, options_on_resume
from .sessions import (
    AnyAnswers,
    RunningTurn,
    Sessions,
    check_resumable,
    outside_of_turns,
    unknown_session,
    watch_inboxes,
)
from .states import BACKGROUND, Fold, State, background_key, children_at_work, fold_in_slices, over
from .turns import BackgroundTask

log = logging.getLogger("windlass")

_NOTHING: Mapping[str, Any] = {}
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5
"""How long to wait, in seconds, before asking again whether a child in another process or thread is done."""


class BackgroundTasks:
    """The tasks of this process that drive the background children of one agent, by session."""

    def __init__(self, store: Store, sessions: Sessions[Any]) -> None:
        self._store = store
        self._sessions = sessions
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # ------------------------------------------------------------ driving

    def start(self, child: Detached) -> None:
        """Drive a child to its end, or until it waits for a person, unless it is being driven here."""
        self._start(child, _NOTHING)

    def _start(self, child: Detached, answers: AnyAnswers) -> asyncio.Task[None]:
        session = child.started.session
        known = self._tasks.get(session)
        if known is not None and not known.done():
            return known
        context = copy_context()
        context.run(outside_of_turns)
        task = asyncio.get_running_loop().create_task(self._drive(child, answers), context=context)
        self._tasks[session] = task

        def forget(done: asyncio.Task[None]) -> None:
            if self._tasks.get(session) is done:
                del self._tasks[session]

        task.add_done_callback(forget)
        return task

    async def _drive(self, child: Detached, answers: AnyAnswers) -> None:
        """A child's turn. If another process or task drives it, or the store fails, that is all: what is not done is
        done by the next to go on."""
        session = child.started.session
        try:
            await self.drive(child, answers)
        except (SessionBusy, SessionConflict) as error:
            log.debug("background child %r is driven elsewhere: %s", session, error)
        except Exception as error:
            log.warning("background child %r was interrupted: %s: %s", session, type(error).__name__, error)

    async def drive(self, child: Detached, answers: AnyAnswers, *, takeover: bool = False) -> State:
        """A child's turn, to its end or its next suspension, and then its result to its parent."""
        asked: set[tuple[Any, ...]] = set()
        state, stored = await self._pass(child, answers, takeover=takeover)
        while stored and state.waiting and (given := await self._ask_approvers(child, state, asked)):
            state, stored = await self._pass(child, given)
        if not stored:
            log.warning("background child %r was interrupted: its session could not be written", child.started.session)
        elif state.over:
            await self._deliver(child, state)
        return state

    async def _pass(self, child: Detached, answers: AnyAnswers, *, takeover: bool = False) -> tuple[State, bool]:
        """One pass over a child's turn. False if its log does not have how it ended: it can be resumed."""
        async with self._sessions.alone(child.started.session, takeover=takeover) as running:
            fold = running.fold
            began = fold.turn is not None
            if began and over(fold):
                if answers:
                    check_resumable(fold.state)
                return fold.state, True
            if not began and (child.task is None or await self._was_erased(child)):
                return fold.state, True
            if began and not answers and self._waits(child, running):
                return fold.state, True
            if not began and child.injected is None:
                child = replace(child, injected=await self._injected(child))
            segment = detached_pass(child, fold, running.claim, answers, mail=running.mail, took_over=running.took_over)
            running.begin(segment.journal, segment.cancellation)
            if child.cancelled is not None:
                segment.cancellation.cancel(child.cancelled)
            if self._store.durable:
                watch_inboxes(self._store)
            try:
                if began and await take_partial_answers(segment):
                    return segment.state, True
                with placed_below(segment):
                    state = await drive_wrapped(segment)
                return state, segment.journal.broken is None
            finally:
                segment.site.close()
                segment.journal.seal()
                segment.failures.note(None)

    async def _was_erased(self, child: Detached) -> bool:
        """Whether a child that was started before has been erased since."""
        return child.injected is None and await self._is_erased(child.started.session)

    def _waits(self, child: Detached, running: RunningTurn) -> bool:
        """Whether a child waits for people, and nothing has come since."""
        turn, now = running.fold.turn, child.program.now()
        if turn is None or not isinstance(turn.outcome, Suspended) or running.mail or child.cancelled is not None:
            return False
        return not any(due_answer(asked, now) for asked in turn.waiting)

    async def _injected(self, child: Detached) -> tuple[Injected, ...]:
        """What hooks injected for a child that has not begun, from the log of its parent."""
        records = await self._store.read(child.parent)
        found = [one for one in records if isinstance(one, Injected) and is_for(one, child.started)]
        return tuple([item.replace(about=f"{child.started.session}/t1") for item in found])

    async def _ask_approvers(self, child: Detached, state: State, asked: set[tuple[Any, ...]]) -> AnyAnswers:
        """What the approvers of this process answer to what a child asks."""
        result = Result(state, Output(str), child.program.hooks.slots)
        answers, failures = await self._sessions.ask_approvers(child.program, result, asked, child.scope)
        for failure in failures:
            log.warning("session %r: %r", child.started.session, failure)
        return answers

    async def _deliver(self, child: Detached, state: State) -> None:
        """Put the result into the inbox of the parent: once, however often it is tried."""
        started = child.started
        if state.turn is None:
            lost = "was not started: its task held a secret that is not kept"
            why = "has no result: its session was erased" if await self._was_erased(child) else lost
            shown = error_result(started.agent, why)
            result = BackgroundResult(started.session, started.agent, shown.text, Usage(requests=0))
        else:
            text = result_of(started.agent, state).text
            result = BackgroundResult(started.session, started.agent, text, state.usage)
        data = msgspec.to_builtins(result)
        await self._store.put(child.parent, background_key(started.session), BACKGROUND, data)
        if (above := self._store.passes.get(child.parent)) is not None:
            above.note_mail()

    # ------------------------------------------------------------ waiting, and ending

    async def wait(self, sessions: Iterable[str]) -> None:
        """Wait until none of these children is driven here."""
        found = [self._tasks[session] for session in sessions if session in self._tasks]
        if mine := _of_this_loop(found):
            await asyncio.wait(mine)

    async def ended(self, session: str) -> Fold:
        """Wait until a child has ended, or waits for a person. Raises `SessionError` if nobody works on it."""
        pause = _FIRST_PAUSE
        while True:
            await self.wait([session])
            driven = session in self._tasks or self._store.passes.get(session) is not None
            alive = driven or (await self._store.ownership(session)).alive
            fold = await self._fold(session)
            if fold.turn is not None and fold.turn.outcome is not None:
                return fold
            if not alive and await self._is_erased(session):
                raise SessionError(f"the background task in session {session!r} was erased", session=session)
            if not alive:
                raise SessionError(
                    f"the background task in session {session!r} was interrupted, and no process works on it: call "
                    "agent.resume_background(…) for the session that started it",
                    session=session,
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def cancel(self, session: str, reason: str) -> None:
        """Cancel a child, in whatever process it is driven. One that waits for people ends when it is resumed."""
        running: RunningTurn | None = self._store.passes.get(session)
        begun = running is not None and running.cancellation is not None
        if running is None or not running.cancel(reason) or not begun:  # a pass that is entered may yet do nothing
            await self._sessions.put(session, f"cancel/{session}", "cancel", {"turn": 1, "reason": reason})

    async def cancel_unbegun(self, session: str, reason: str) -> bool:
        """Cancel a child that has no log yet; False if the session is not that of one."""
        if await self._store.read(session):
            return False
        above = await self._fold(session.rpartition("//")[0])
        started = [child.started.session for child in above.background if not child.taken]
        if session not in started or await self._is_erased(session):
            return False
        await self.cancel(session, reason)
        return True

    async def cancel_all(self, session: str, reason: str) -> bool:
        """Cancel the children that work for a session, begun or not, and those of agents below it; whether there were
        any."""
        return await self._cancel_below(await self._fold(session), reason)

    async def _cancel_below(self, fold: Fold, reason: str) -> bool:
        found = False
        for started in children_at_work(fold):
            found = await self._cancel_below(await self._fold(started.session), reason) or found
        for session in [child.started.session for child in fold.background if not child.taken]:
            child = await self._fold(session)
            if over(child) if child.turn is not None else await self._is_erased(session):
                continue
            await self.cancel(session, reason)
            await self._cancel_below(child, reason)
            found = True
        return found

    async def _is_erased(self, session: str) -> bool:
        """Whether the log of a session is empty because it was erased."""
        if await self._store.read(session):
            return False
        found = await self._store.find(search=session, status="erased")
        return any(info.session == session for info in found)

    async def _fold(self, session: str) -> Fold:
        return await fold_in_slices(session, await self._store.read(session))

    async def drain(self, patience: float | None = None) -> None:
        """Wait for the children that are driven on this event loop. After `patience` seconds they are interrupted: they
        can be resumed."""
        while mine := _of_this_loop(self._tasks.values()):
            _, late = await asyncio.wait(mine, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # ------------------------------------------------------------ going on

    async def go_on(self, program: Program, session: str, scope: Any) -> tuple[BackgroundTask[Any], ...]:
        """Drive the children of a session that are not done."""
        fold = await self._fold(session)
        if fold.turn is None:
            raise unknown_session(session)
        above, audience = await self._lineage(program, session, scope)
        found: list[BackgroundTask[Any]] = []
        for one in fold.background:
            child = detached(one, above, session, scope, audience, may_wait="//" not in session)
            if one.taken or child is None:
                continue
            self.start(child)
            if not await self._is_erased(one.started.session):
                delegate = above.subagents[one.started.agent]
                found.append(handle(self, delegate, one.started, child.program.hooks.slots))
        return tuple(found)

    async def resume(
        self,
        program: Program,
        session: str,
        answers: AnyAnswers | None,
        scope: Any,
        options: GivenOptions | None,
        *,
        takeover: bool,
    ) -> Any:
        """Resume a background child by itself, under the guards of those above; None if it is not one.

        Its turn was started with the options of its agent: others raise `ConfigError`. With `takeover` it is taken
        over from the task or process that drives it.
        """
        parent = parent_of(await self._store.read(session))
        fold = await self._fold(parent) if parent else None
        one = next((c for c in fold.background if c.started.session == session), None) if fold is not None else None
        if one is None:
            return None
        above, audience = await self._lineage(program, parent, scope)
        child = detached(one, above, parent, scope, audience, may_wait="//" not in parent)
        if child is None:
            raise ConfigError(
                f"agent {program.name!r} does not know agent {one.started.agent!r}, which works in session "
                f"{session!r}: declare it with Agent(subagents=[…])"
            )
        options_on_resume(session, None, options, child.program.models, child.program.tools, child.program.mask)
        if not takeover:
            await self.wait([session])
        state = await self.drive(child, answers or _NOTHING, takeover=takeover)
        written = (await self._fold(session)).written
        return above.subagents[one.started.agent].result(state, child.program.hooks.slots, None, written)

    async def _lineage(self, root: Program, session: str, scope: Any) -> tuple[Program, Audience | None]:
        """What the agent of a session is compiled to, below those above it, and who hears of its children."""
        parent = parent_of(await self._store.read(session))
        program, above = root, None
        if parent:
            upper, above = await self._lineage(root, parent, scope)
            records = await self._store.read(parent)
            started = next((r for r in records if isinstance(r, Delegated) and r.session == session), None)
            delegate = None if started is None else upper.subagents.get(started.agent)
            if started is None or delegate is None:
                raise ConfigError(f"the agent of session {session!r} is not known to agent {upper.name!r}")
            program = program_of(upper, delegate, started.tools)
        time = ActiveTime(program.monotonic)
        audience = Audience(
            program.hooks, program.observers, Fold(session), scope, time, program.now, program.tools, above=above
        )
        return program, audience if audience.listens else None


def _of_this_loop(tasks: Iterable[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """The tasks of the running event loop. Others cannot be awaited here."""
    loop = asyncio.get_running_loop()
    return [task for task in tasks if task.get_loop() is loop]
