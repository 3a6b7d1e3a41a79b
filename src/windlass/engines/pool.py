"""A pool of workers on one store: messages are queued in it, and any number of processes run their turns."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from windlass.agent import Agent
from windlass.approvals import due_answer
from windlass.errors import ConfigError, SessionBusy, SessionConflict, StoreError
from windlass.messages import AnyMessage
from windlass.ownership import Work, queued_kind
from windlass.protocols import Store, WorkStore
from windlass.records import Suspended
from windlass.results import Result
from windlass.stores.batches import column_text

from .messages import check_session, checked_message, inbox_key, result_of
from .scopes import ScopeFactory, scope_for

ScopeT = TypeVar("ScopeT")
OutputT = TypeVar("OutputT")

log = logging.getLogger("windlass.worker")

POLL = 0.1
"""How often, in seconds, an idle worker looks for work."""

_DUE = 5.0
"""How often, in seconds, a worker looks for questions that have expired."""

_FIRST_REST, _LAST_REST = 1.0, 60.0
"""How long, in seconds, a worker leaves a session alone whose pass failed."""

_REMEMBERED = 10_000
"""After so many sessions that wait, a worker forgets those that need not be left alone."""


class Queue(Generic[ScopeT, OutputT]):
    """Messages for an agent that wait in its store until a worker runs their turns."""

    def __init__(self, agent: Agent[ScopeT, OutputT]) -> None:
        work_store(agent, "a queue")
        self.agent = agent

    async def submit(self, message: AnyMessage, *, session: str, key: str, priority: int = 5) -> bool:
        """Queue a message for a session; False if the session was given one with this key before.

        Call it again with the same key if you do not know whether it succeeded. The message opens a turn of its own,
        after earlier messages of its session. Sessions with a higher `priority`, 0 to 9, come first.
        """
        await check_session(self.agent.store, session)
        check_priority(priority)
        agent = self.agent
        kind = queued_kind(column_text(agent.name), priority)
        return await agent._sessions.put(session, inbox_key(key), kind, checked_message(message))  # pyright: ignore[reportPrivateUsage]

    async def result(self, session: str, key: str, *, timeout: float | None = None) -> Result[OutputT]:
        """Wait for the turn of a queued message to end or to wait for a person, and return its result.

        Raises `TimeoutError` after `timeout` seconds.
        """
        async with asyncio.timeout(timeout):
            return await result_of(self.agent, session, inbox_key(key))


def check_priority(priority: object) -> None:
    """Raise `ConfigError` unless this is a priority."""
    if type(priority) is not int or not 0 <= priority <= 9:
        raise ConfigError(f"priority={priority!r} must be a whole number from 0 to 9")


def work_store(agent: Agent[Any, Any], what: str) -> WorkStore:
    """The agent's store, if workers of several processes can use it."""
    store: Store = agent.store
    if not store.durable or not isinstance(store, WorkStore):
        raise ConfigError(
            f"agent {agent.name!r} keeps its sessions in {type(store).__name__}, but {what} needs a store that "
            "processes share: Agent(store='sqlite:///agent.db') or Agent(store='postgresql://…')"
        )
    return store


class _Rest(NamedTuple):
    """A session that is left alone until a time, after a pass that failed or left its log at this length."""

    until: float = 0.0
    seconds: float = 0.0
    seq: int = -1


class Worker(Generic[ScopeT, OutputT]):
    """Takes sessions with work from the agent's store, and runs or resumes their turns, up to `concurrency` at once.

    It takes queued messages, turns whose process has died or has let go of them, and turns whose question was answered
    or has expired. The store's ownership decides who works on a session. A dead worker's sessions are taken at once; a
    worker that is only slow or stopped keeps its own. `scope` makes the scope of a turn from the id of its session.
    `done` counts the passes that have ended, and `stopping` says that `stop` was called.
    """

    def __init__(
        self,
        agent: Agent[ScopeT, OutputT],
        *,
        concurrency: int = 8,
        scope: ScopeFactory | None = None,
        poll: float = POLL,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigError(f"Worker(concurrency={concurrency!r}): concurrency must be a whole number, 1 or more")
        if not poll > 0:
            raise ConfigError(f"Worker(poll={poll!r}): poll must be a number of seconds above 0")
        self.agent = agent
        self.concurrency = concurrency
        self.done = 0
        self._store = work_store(agent, "a worker")
        self._scope = scope
        self._poll = poll
        self._running: dict[str, asyncio.Task[None]] = {}
        self._resting: dict[str, _Rest] = {}
        self.stopping = False
        self._wake = asyncio.Event()
        self._looked_for_due = 0.0

    @property
    def running(self) -> tuple[str, ...]:
        """The sessions that this worker works on."""
        return tuple(self._running)

    def stop(self) -> None:
        """Take no more sessions. `run` returns when the turns that run have ended, or after its patience."""
        self.stopping = True
        self._wake.set()

    def interrupt(self) -> None:
        """Interrupt the turns that run, so that other workers resume them."""
        for session, task in list(self._running.items()):
            if not self.agent.interrupt(session):
                task.cancel()

    async def run(self, *, until_idle: bool = False, patience: float = 30.0) -> None:
        """Work until `stop` is called or, with `until_idle`, until there is nothing to do.

        Turns that have not ended `patience` seconds after `stop` are interrupted, so that other workers resume them.
        """
        pause = self._poll
        try:
            while not self.stopping:
                self._wake.clear()
                busy = bool(self._running)  # a session that is at work is not looked at: it may have more to do
                try:
                    took = await self._take()
                    pause = self._poll
                except StoreError as error:
                    log.warning("the store does not answer: %s", error)
                    took, pause = 0, min(2 * pause, 5.0)
                if until_idle and not (took or busy or self._running):
                    return
                if not took or len(self._running) >= self.concurrency:
                    await self._rest(pause)
        finally:
            await self._drain(patience)

    async def _rest(self, seconds: float) -> None:
        """Wait until a turn has ended or the worker is stopped; while there is room, no longer than some time."""
        full = len(self._running) >= self.concurrency
        with suppress(TimeoutError):
            async with asyncio.timeout(None if full else seconds * random.uniform(0.5, 1.0)):
                await self._wake.wait()

    async def _take(self) -> int:
        """Take as many sessions as there is room for; returns how many."""
        room, now = self.concurrency - len(self._running), time.monotonic()
        if room <= 0:
            return 0
        resting = [session for session, rest in self._resting.items() if rest.until > now]
        found = await self._store.take_work(
            self.agent.name, room, except_for={*self._running, *resting}, due=await self._due(now)
        )
        if self.stopping:  # it was told so meanwhile
            for work in found:
                if work.epoch:
                    await self._store.release(work.session, work.epoch)
            return 0
        for work in found:
            task = asyncio.create_task(self._work(work), name=f"windlass-worker {work.session}")
            self._running[work.session] = task
            task.add_done_callback(lambda _, session=work.session: self._ended(session))  # type: ignore[misc]
        return len(found)

    async def _due(self, now: float) -> Sequence[str]:
        """The sessions with a question that has expired. Looked for from time to time."""
        if now < self._looked_for_due + _DUE:
            return ()
        self._looked_for_due = now
        clock = self.agent._options.clock.now()  # pyright: ignore[reportPrivateUsage]
        open_questions = await self._store.approvals()
        return sorted({session.partition("//")[0] for session, asked in open_questions if due_answer(asked, clock)})

    def _ended(self, session: str) -> None:
        del self._running[session]
        self._wake.set()

    async def _work(self, work: Work) -> None:
        """One pass over a session. What fails is logged, and the session rests for a while."""
        try:
            result = await self._pass(work)
        except (SessionBusy, SessionConflict) as error:
            log.info("session %r is worked on elsewhere: %s", work.session, error)
        except Exception as error:
            log.warning("session %r: %s: %s", work.session, type(error).__name__, error)
            self._let_rest(work.session)
        else:
            self.done += 1
            if result is None or isinstance(result.outcome, Suspended):
                self._note_stop(work.session, -2 if result is None else result.state.seq)
            else:
                self._resting.pop(work.session, None)
            log.info("session %r: %s", work.session, None if result is None else result.stop_reason)

    async def _pass(self, work: Work) -> Result[OutputT] | None:
        agent: Agent[Any, OutputT] = self.agent
        if not work.epoch:
            return await agent.resume(work.session, scope=await self._scope_of(work.session))
        try:
            scope = await self._scope_of(work.session)
            program = agent._enter(scope)  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            await self._store.release(work.session, work.epoch)
            raise
        return await agent._sessions.work(program, work, scope)  # pyright: ignore[reportPrivateUsage]

    async def _scope_of(self, session: str) -> Any:
        return await scope_for(self._scope, session.partition("//")[0])

    def _note_stop(self, session: str, seq: int) -> None:
        """A session waits. If it did so before at the same place, what waits in its inbox has no effect."""
        before = self._resting.get(session, _Rest())
        if before.seq == seq:
            self._let_rest(session, seq)
        else:
            self._resting[session] = _Rest(seq=seq)

    def _let_rest(self, session: str, seq: int = -1) -> None:
        """Leave a session alone, longer each time."""
        now, before = time.monotonic(), self._resting.get(session, _Rest())
        seconds = min(2 * before.seconds or _FIRST_REST, _LAST_REST)
        self._resting[session] = _Rest(now + seconds, seconds, seq)
        if len(self._resting) > _REMEMBERED:
            self._resting = {name: rest for name, rest in self._resting.items() if rest.until > now}

    async def _drain(self, patience: float) -> None:
        """Let the turns end that run. After some time they are interrupted: they can be resumed."""
        until, tasks = time.monotonic() + patience, list(self._running.values())
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        self.interrupt()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.agent._background.drain(max(until - time.monotonic(), 0.0))  # pyright: ignore[reportPrivateUsage]


__all__ = ["POLL", "Queue", "Worker"]
