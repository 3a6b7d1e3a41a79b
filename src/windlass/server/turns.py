"""Turns that the server runs: each in a task of its own, whether or not a client watches it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from windlass import Agent
from windlass.deltas import StreamEvent
from windlass.errors import SessionUnknown
from windlass.messages import Message
from windlass.results import Result
from windlass.sessions import new_id
from windlass.watching import current_token

from .errors import Problem

log = logging.getLogger("windlass.server")

ScopeFactory: TypeAlias = Callable[[str], Awaitable[Any]]

_PAUSE = 0.05
"""How long to wait, in seconds, between two passes over one turn."""


class Run:
    """A turn under way. `since` is the token of the session before it; `result` and `error` are set at its end."""

    def __init__(self, session: str, since: str) -> None:
        self.session = session
        self.since = since
        self.began = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.result: Result[Any] | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the turn has ended, was suspended or was interrupted."""
        return self.task is not None and self.task.done()

    async def wait(self, patience: float | None = None) -> None:
        """Wait for its end. Leaving does not affect it."""
        assert self.task is not None
        await asyncio.wait([self.task], timeout=patience)

    def outcome(self) -> Result[Any]:
        """Its result. Raises why there is none."""
        if self.result is not None:
            return self.result
        if self.error is None or isinstance(self.error, asyncio.CancelledError):
            message = f"the turn of session {self.session!r} was interrupted because the server stops: resume it"
            raise Problem(503, "interrupted", message, session=self.session)
        raise self.error


class Turns:
    """Runs the turns of one agent, and lets clients watch them."""

    def __init__(self, agent: Agent[Any, Any], scope: ScopeFactory | None = None) -> None:
        self.agent = agent
        self._scope = scope
        self._runs: dict[str, Run] = {}
        self.closing = False

    def running(self, session: str) -> Run | None:
        """The turn that this server runs in a session."""
        return self._runs.get(session)

    async def scope_of(self, session: str) -> Any:
        """The scope of a session's turns."""
        return None if self._scope is None else await self._scope(session)

    async def start(
        self,
        session: str | None,
        message: str | Message | None,
        *,
        answers: Mapping[str, Any] | None = None,
        takeover: bool = False,
    ) -> Run:
        """Start a turn, or resume one, and return once it has begun. Raises if it could not begin."""
        name = new_id() if session is None else session
        while self.agent.busy == "queue" and (earlier := self._runs.get(name)) is not None and message is not None:
            await earlier.wait()
        if self.closing:
            raise Problem(503, "stopping", "the server is about to stop and takes no more turns")
        run = Run(name, await current_token(self.agent.store, name))
        run.task = asyncio.create_task(self._drive(run, message, answers, takeover), name=f"turn of {name}")
        run.task.add_done_callback(lambda _: self._forget(run))
        if (running := self._runs.get(name)) is None or running.done:
            self._runs[name] = run
        await run.began.wait()
        if run.error is not None and not isinstance(run.error, asyncio.CancelledError):
            raise run.error
        return run

    async def _drive(
        self, run: Run, message: str | Message | None, answers: Mapping[str, Any] | None, takeover: bool
    ) -> None:
        try:
            scope = await self.scope_of(run.session)
            stream = self.agent.stream(message, session=run.session, answers=answers, scope=scope, takeover=takeover)
            async with stream:
                async for _ in stream:
                    if not run.began.is_set():
                        self._runs[run.session] = run
                        run.began.set()
            run.result = stream.result
        except (Exception, asyncio.CancelledError) as error:
            run.error = error
            if run.began.is_set() and isinstance(error, Exception):
                log.error("the turn of session %r failed: %s", run.session, type(error).__name__, exc_info=error)
        finally:
            run.began.set()

    def _forget(self, run: Run) -> None:
        if self._runs.get(run.session) is run:
            del self._runs[run.session]

    # ------------------------------------------------------------ watching

    async def follow(self, run: Run) -> AsyncGenerator[tuple[StreamEvent, str], None]:
        """The events of a turn from its beginning to its end, each with the token after it."""
        async for event in self._follow(run.session, run.since, run):
            yield event

    async def watch(self, session: str, since: str | None) -> AsyncGenerator[tuple[StreamEvent, str], None]:
        """The events of a session's latest turn, or those after a token."""
        async for event in self._follow(session, since, self._runs.get(session)):
            yield event

    async def _follow(
        self, session: str, since: str | None, run: Run | None
    ) -> AsyncGenerator[tuple[StreamEvent, str], None]:
        while True:
            last = run is None or run.done
            async with self.agent.watch(session, since=since) as watch:
                try:
                    async for event in watch:
                        since = watch.token
                        yield event, since
                except SessionUnknown:
                    if run is None:
                        raise
            if last:
                return
            assert run is not None
            await run.wait(_PAUSE)

    # ------------------------------------------------------------ ending

    async def close(self, drain: float) -> None:
        """Take no more turns, let those under way end within `drain` seconds, and interrupt the rest: they can be
        resumed."""
        self.closing = True
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if not tasks:
            return
        late = set(tasks)
        if drain > 0:
            _, late = await asyncio.wait(tasks, timeout=drain)
        for run in list(self._runs.values()):
            if run.task in late and not self.agent.interrupt(run.session):
                assert run.task is not None
                run.task.cancel()
        if late:
            await asyncio.wait(late, timeout=5)
