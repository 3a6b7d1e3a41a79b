"""Agents in the background: how a turn starts them, goes on with them, waits for them and ends them.

A child in the background has a session and a claim of its own. `Program.background` drives it in a
task; its result comes through the inbox of its parent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from windlass.outcomes import Cancelled
from windlass.records import MASK, Delegated, Injected
from windlass.states import BackgroundChild, Fold
from windlass.turns import Asker, BackgroundTask, Invocation

from .audience import Audience
from .child_program import program_of
from .delegation import Delegate
from .handing_over import check_nesting, injected_for, judge_task, key_of, refused, session_of
from .inbox import Inbox
from .injections import Injections
from .journal import Journal
from .limits import Limits
from .program import Background, Program
from .site import Site

log = logging.getLogger("windlass")

SHARE = 0.5
"""The part of what is left that a background child is granted if its starter does not say."""


class Detached(Struct, frozen=True, eq=False):
    """All that is needed to drive a child in the background, whatever becomes of its parent's pass.

    `above` is the program of its parent, whose session is `parent`. `task` is None if it held a
    secret that is not kept. `injected` are the parts that hooks injected for it; None if the
    parent's log has to be asked. `cancelled` is why it shall end, if its parent was cancelled.
    """

    program: Program
    above: Program
    parent: str
    started: Delegated
    task: str | None
    scope: Any
    audience: Audience | None
    injected: tuple[Injected, ...] | None = None
    may_wait: bool = True
    cancelled: str | None = None


def detached(
    child: BackgroundChild,
    above: Program,
    parent: str,
    scope: Any,
    audience: Audience | None,
    *,
    may_wait: bool,
) -> Detached | None:
    """A child that was started before. None if its agent is not known here."""
    started = child.started
    if (delegate := above.subagents.get(started.agent)) is None:
        log.warning(
            "session %r: agent %r cannot continue in the background, in session %r: declare it with "
            "Agent(subagents=[…])",
            parent,
            started.agent,
            started.session,
        )
        return None
    program = program_of(above, delegate, started.tools)
    task = None if started.masked and MASK in started.task else started.task
    return Detached(
        program,
        above,
        parent,
        started,
        task,
        scope,
        audience,
        may_wait=may_wait,
        cancelled=child.cancelled,
    )


def handle(background: Background, delegate: Delegate, started: Delegated, slots: Any) -> Any:
    """What code keeps of a background child: a way to wait for it."""

    async def result() -> Any:
        fold: Fold = await background.ended(started.session)
        return delegate.result(fold.state, slots, None, fold.written)

    waiting: Callable[[], Awaitable[Any]] = result
    return BackgroundTask(started.session, started.agent, started.task, waiting)


class InBackground(Struct, frozen=True, eq=False):
    """The background children of a session, during one pass.

    An `ephemeral` session ends with its turn. Nobody could take a result later, so it waits for its
    children.
    """

    _site: Site
    _injections: Injections
    _limits: Limits
    _inbox: Inbox
    _ephemeral: bool

    @property
    def _journal(self) -> Journal:
        return self._site.journal

    @property
    def _program(self) -> Program:
        """The agent, without what the turn has of its own: children may outlive the turn."""
        program = self._journal.program
        return program.base or program

    def _at_work(self) -> list[str]:
        """The sessions of the children whose results have not come in."""
        return [c.started.session for c in self._journal.fold.background if not c.taken]

    async def start(
        self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]
    ) -> Any:
        """Start a child, unless the log says that it was started. That it was is stored before it does
        anything."""
        if run.is_broken_off:
            raise asyncio.CancelledError("a child agent waits for a person")
        journal, program = self._journal, self._program
        tool: Delegate = agent.as_tool(**options)
        check_nesting(program, asker, tool.agent)
        self._check_known(tool, asker)
        key = key_of(self._site, asker, run, f"{tool.agent}:background", task)
        known = [child.started for child in journal.fold.background if child.started.key == key]
        slots = program_of(program, tool).hooks.slots
        if known:
            return handle(program.background(), tool, known[0], slots)
        given = await judge_task(self._site, self._injections, None, tool, asker, key, task)
        assert given is not None  # nobody is asked
        tokens, usd = self._limits.portion(SHARE if given.share is None else given.share)
        session = session_of(journal.fold.session, key)
        started = Delegated(
            "", session, tool.agent, given.task, given.tools, tokens, usd, key, asker.by, True
        )
        journal.record(started)
        await journal.commit()
        child = Detached(
            program_of(program, tool, given.tools),
            program,
            journal.fold.session,
            started,
            given.task,
            self._site.scope,
            journal.audience.detached(),
            injected_for(self._site, started, session),
            not self._ephemeral,
        )
        program.background().start(child)
        return handle(program.background(), tool, started, slots)

    def _check_known(self, tool: Delegate, asker: Asker) -> None:
        """Raise if the agent cannot work in the background here."""
        text = f"agent {tool.agent!r} was not started in the background"
        if self._journal.opening is not None:
            raise refused(
                asker,
                f"{text}: the turn is still being opened. Start it at StepStarting or later",
            )
        known = self._program.subagents.get(tool.agent)
        if known is None or known.compiled != tool.compiled:
            why = "" if known is None else "another agent has its name, and "
            raise refused(
                asker,
                f"{text}: {why}after a crash another process must find it by its name. Declare it: "
                f"Agent(subagents=[…]) of agent {self._program.name!r}, or registrar.subagent(…)",
            )

    def go_on(self) -> None:
        """Drive the children that are not done: a process that drove them may have died, or people may
        have answered what they ask."""
        journal = self._journal
        for child in journal.fold.background:
            if not child.taken:
                found = detached(
                    child,
                    self._program,
                    journal.fold.session,
                    self._site.scope,
                    journal.audience.detached(),
                    may_wait=not self._ephemeral,
                )
                if found is not None:
                    journal.program.background().start(found)

    async def collect(self) -> bool:
        """Before a session that ends with its turn: wait for its children and take their results.

        Whether a message was added.
        """
        if not (sessions := self._at_work()):
            return False
        await self._journal.program.background().wait(sessions)
        return await self._inbox.take()

    async def end(self, outcome: Any) -> None:
        """The turn ends: its children go on, unless it was cancelled or nobody could take their
        results."""
        sessions = self._at_work()
        cancelled = isinstance(outcome, Cancelled)
        if not sessions or self._journal.broken is not None or not (cancelled or self._ephemeral):
            return
        background = self._journal.program.background()
        reason = outcome.reason if cancelled else "the session that it worked for has ended"
        for session in sessions:
            await background.cancel(session, reason)
        if self._ephemeral:
            await background.wait(sessions)
            await self._inbox.take_charges()
