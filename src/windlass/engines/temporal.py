"""Sessions driven by Temporal: it queues them, restarts lost ones and keeps the timers; the store keeps their logs."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from windlass.agent import Agent
from windlass.decisions import AnyResolution
from windlass.errors import (
    ConfigError,
    SessionBusy,
    SessionConflict,
    SessionError,
    SessionUnknown,
    StoreError,
    WindlassError,
)
from windlass.ids import check_id, check_new_id
from windlass.messages import AnyMessage
from windlass.ownership import Lost, queued_kind
from windlass.records import Asked, Suspended
from windlass.results import Result
from windlass.stores.batches import column_text
from windlass.stores.refusals import driven_by_engine
from windlass.terms import next_change

from .messages import checked_message, inbox_key, result_of
from .pool import check_priority, work_store
from .scopes import ScopeFactory, scope_for

try:
    from temporalio import activity
    from temporalio.client import Client, WorkflowHandle
    from temporalio.common import Priority, WorkflowIDConflictPolicy
    from temporalio.exceptions import ApplicationError
    from temporalio.service import RPCError, RPCStatusCode
    from temporalio.worker import UnsandboxedWorkflowRunner
    from temporalio.worker import Worker as TemporalWorker

    from .temporal_workflow import DRIVE, EXPIRE, WORKFLOW, Drive, SessionWorkflow, Started, Stop
except ImportError as error:
    raise ConfigError(f"the Temporal engine needs temporalio ({error}): pip install 'windlass[temporal]'") from error

ScopeT = TypeVar("ScopeT")
OutputT = TypeVar("OutputT")

log = logging.getLogger("windlass.worker")

TASK_QUEUE = "windlass"
HEARTBEAT = 2.0
"""After this many seconds without a heartbeat, a worker's sessions are taken over."""

_SILENT = 2.0
"""A worker that has shown no life for so many seconds, or for a heartbeat, no longer keeps its sessions."""

_LOOK = 0.2
"""How often, in seconds, a turn without an activity looks whether its worker stops."""

_AT_ONCE = 0.05
"""After how many seconds another worker may go on with a session."""

_LOST = 200
"""How many sessions of dead workers are reported at a time."""

_PATIENCE = 30.0
"""How long, in seconds, `connect` waits for a server that starts."""

Tell: TypeAlias = Callable[[str, Sequence[Asked]], object]


async def connect(address: str, namespace: str = "default") -> Client:
    """A client of the Temporal server at `host:port`, also if it is starting now.

    Raises `ConfigError` if it does not answer within half a minute.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return await Client.connect(address, namespace=namespace)
        except ValueError as error:
            raise ConfigError(f"{address!r} is not the address of a Temporal server, host:port: {error}") from error
        except (RuntimeError, RPCError) as error:
            if time.monotonic() > until:
                raise ConfigError(f"Temporal at {address} does not answer: {error}") from error
        await asyncio.sleep(0.2)


class TemporalRunner(Generic[ScopeT, OutputT]):
    """Runs the turns of an agent under Temporal, in any number of processes: clients send, workers run.

    A message, an answer or a cancel is written to the agent's store first, and then the session's workflow is told.
    Temporal has only the ids of sessions. There is one workflow per session; an activity with a heartbeat drives it
    until its turn ends or waits. If the heartbeat stops, another worker goes on with the session, and the store lets
    the first one write no more.

    `scope` makes the scope of a turn from the id of its session. `heartbeat` is how many seconds a lost worker keeps a
    session. `tell` is called with a session's open questions when it begins to wait, and when more people may answer.
    """

    def __init__(
        self,
        agent: Agent[ScopeT, OutputT],
        client: Client,
        *,
        task_queue: str = TASK_QUEUE,
        scope: ScopeFactory | None = None,
        heartbeat: float = HEARTBEAT,
        tell: Tell | None = None,
    ) -> None:
        if not heartbeat >= 1:
            raise ConfigError(f"TemporalRunner(heartbeat={heartbeat!r}): heartbeat must be 1 second or more")
        self.agent = agent
        self.client = client
        self.task_queue = task_queue
        self.heartbeat = heartbeat
        self.engine = f"temporal:{client.namespace}/{task_queue}"
        self._store = work_store(agent, "Temporal")
        self._patience = 0.0
        self._scope = scope
        self._tell = tell

    # ------------------------------------------------------------ clients

    async def send(
        self, message: AnyMessage, *, session: str, key: str = "", priority: int = 5, deadline: float | None = None
    ) -> bool:
        """Send a message to a session, and start its workflow if it does not run; False if the key was used before.

        Send again with the same `key` if you do not know whether it succeeded. The message opens a turn of its own,
        after earlier ones. Workflows that start with a higher `priority`, 0 to 9, come first. `deadline` seconds from
        now, an open turn of the session is cancelled.
        """
        check_new_id(session) if not await self._store.read(session) else check_id(session)
        check_priority(priority)
        text = checked_message(message)
        await self._assign(session)
        kind = queued_kind(column_text(self.agent.name), 5)  # in its session, the order of arrival counts
        new = await self.agent._sessions.put(session, inbox_key(key or os.urandom(8).hex()), kind, text)  # pyright: ignore[reportPrivateUsage]
        await self._poke(session, priority, deadline)
        return new

    async def run(
        self, message: AnyMessage, *, session: str, key: str = "", timeout: float | None = None, **options: Any
    ) -> Result[OutputT]:
        """`send` a message, and wait for the turn to end or to wait for a person."""
        given = key or os.urandom(8).hex()
        await self.send(message, session=session, key=given, **options)
        return await self.result(session, given, timeout=timeout)

    async def result(self, session: str, key: str, *, timeout: float | None = None) -> Result[OutputT]:
        """Wait for the turn of a message to end or to wait for a person. It may run in any process."""
        async with asyncio.timeout(timeout):
            return await result_of(self.agent, session, inbox_key(key))

    async def resolve(self, session: str, ask_id: str, answer: AnyResolution) -> None:
        """Answer a question, and let the session go on. An answer that does not count raises `StaleAnswer`."""
        await self.agent.resolve(session, ask_id, answer)
        await self._poke(session.partition("//")[0])

    async def cancel(self, session: str, reason: str = "") -> bool:
        """Cancel the turn of a session, wherever it runs or waits; False if there is none."""
        cancelled = await self.agent.cancel(session, reason)
        if cancelled:
            await self._poke(session.partition("//")[0])
        return cancelled

    async def wake(self, session: str) -> None:
        """Let a worker look at a session again: after an error that you have mended, or if its workflow was ended."""
        await self._assign(session)
        await self._poke(session)

    async def status(self, session: str) -> str:
        """What its workflow says of a session: "working", "waiting" for a person, "idle", or "broken".

        "broken" means that no turn could be run, for instance because the agent lacks an option of the turn. The
        worker's log says why. Mend it, and `wake` the session. "idle" also means that no workflow runs.
        """
        try:
            handle: WorkflowHandle[Any, Any] = self.client.get_workflow_handle(self._workflow(session))
            described = await handle.describe()
            if described.status is not None and described.status.name != "RUNNING":
                return "idle"
            return str(await handle.query("status"))
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return "idle"
            raise

    async def release(self, session: str) -> None:
        """Give an idle session back, so that plain `run` and `resume` work on it. Raises if its workflow runs."""
        check_id(session)
        if (status := await self.status(session)) != "idle":
            raise SessionError(
                f"session {session!r} is {status} under {self.engine!r}; end its turn first", session=session
            )
        found = await self._store.assign(session, "", former=self.engine)
        if found:
            raise driven_by_engine(session, found)

    async def _assign(self, session: str) -> None:
        found = await self._store.assign(session, self.engine)
        if found != self.engine:
            raise driven_by_engine(session, found)

    def _workflow(self, session: str) -> str:
        return f"{self.task_queue}/{session}"

    async def _poke(self, session: str, priority: int = 5, deadline: float | None = None) -> None:
        """Tell the workflow of a session that something has come, and start it if it does not run."""
        at = None if deadline is None else self._now() + deadline
        await self.client.start_workflow(
            WORKFLOW,
            Started(session, self.heartbeat),
            id=self._workflow(session),
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="poke",
            start_signal_args=[at],
            priority=Priority(priority_key=5 - priority // 2),
            task_timeout=timedelta(seconds=max(2 * self.heartbeat, 3.0)),
        )

    def _now(self) -> float:
        return self.agent._options.clock.now()  # pyright: ignore[reportPrivateUsage]

    # ------------------------------------------------------------ workers

    @asynccontextmanager
    async def worker(self, *, concurrency: int = 100, patience: float = 30.0) -> AsyncGenerator[TemporalWorker, None]:
        """A worker for this agent's sessions, up to `concurrency` at once, for as long as the block runs.

        At its end, turns may take `patience` seconds to end. The rest is interrupted, and other workers go on with it.
        """
        self._patience = patience
        made = TemporalWorker(
            self.client,
            task_queue=self.task_queue,
            workflows=[SessionWorkflow],
            activities=[self._drive, self._expire],
            workflow_runner=UnsandboxedWorkflowRunner(),  # the workflow is ours: a sandbox would only cost time
            identity=self._store.passes.owner,
            max_concurrent_activities=concurrency,
            graceful_shutdown_timeout=timedelta(seconds=patience),
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            max_heartbeat_throttle_interval=timedelta(seconds=self.heartbeat * 0.7),
            default_heartbeat_throttle_interval=timedelta(seconds=self.heartbeat * 0.7),
        )
        looking = asyncio.create_task(self._look_for_lost())
        try:
            async with made:
                yield made
        finally:
            looking.cancel()
        await self.agent._background.drain(patience)  # pyright: ignore[reportPrivateUsage]

    async def _look_for_lost(self) -> None:
        """Look for sessions of workers that have died, and tell Temporal, which would wait for their heartbeat."""
        while True:
            await asyncio.sleep(self.heartbeat / 4 * random.uniform(0.5, 1.0))
            try:
                lost = await self._store.take_lost(self.engine, _LOST)
                reports = await asyncio.gather(*[self._report_lost(one) for one in lost], return_exceptions=True)
                failed = [one for one in reports if one is not None]
            except StoreError as error:
                failed = [error]
            if failed:  # without a report, the heartbeat tells
                log.info("sessions of lost workers are not reported: %s", failed[0])

    async def _report_lost(self, lost: Lost) -> None:
        """Let the activity of a dead worker fail now, if it is still its own."""
        handle: WorkflowHandle[Any, Any] = self.client.get_workflow_handle(self._workflow(lost.session))
        described = await handle.describe()
        for pending in described.raw_description.pending_activities:
            if pending.activity_type.name == DRIVE and pending.last_worker_identity == lost.owner:
                log.info("session %r: its worker %s has died", lost.session, lost.owner)
                driving = self.client.get_async_activity_handle(
                    workflow_id=handle.id, run_id=described.run_id, activity_id=pending.activity_id
                )
                await driving.fail(_interrupted())

    @activity.defn(name=DRIVE)
    async def _drive(self, given: Drive) -> Stop:
        """Work on a session until its turn ends or waits, while a heartbeat tells that this worker lives."""
        session = given.session
        beating = asyncio.create_task(self._beat())
        working = asyncio.create_task(self._work(session, given.woken, activity.info().attempt))
        try:
            return await self._end_of(working, session)
        except ApplicationError:
            raise
        except (StoreError, SessionBusy, SessionConflict) as error:
            raise _again(session, str(error), after=1.0) from None
        except Exception as error:
            raise _never(session, error) from None  # a cause would be sent along
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        """The start of the activity counts as a first heartbeat: a session of few steps needs none."""
        while True:
            await asyncio.sleep(self.heartbeat / 4)
            activity.heartbeat()

    async def _end_of(self, working: asyncio.Task[Stop], session: str) -> Stop:
        """What the work comes to.

        If this worker stops, the turn is interrupted, so that another one goes on with it. If only Temporal believes
        that the worker is lost, the turn goes on: the next worker waits for it, or the store lets this one write no
        more.
        """
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            given_up = not activity.is_worker_shutdown()
            while not working.done() and not activity.is_worker_shutdown():
                await asyncio.wait({working}, timeout=_LOOK)
            if given_up and not working.done():
                await asyncio.wait({working}, timeout=self._patience)
            if not working.done() and not self.agent.interrupt(session):
                working.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await working
            raise _again(session, "its worker stops, or was too slow") from None

    async def _work(self, session: str, woken: str, attempt: int) -> Stop:
        """Passes over a session, as long as there is something to do."""
        if attempt > 1:
            await self._wait_for_slow_worker(session)
        await self._check_store(session)
        scope = await scope_for(self._scope, session)
        agent, told = self.agent, woken == "timer"
        program = agent._enter(scope)  # pyright: ignore[reportPrivateUsage]
        while True:
            result, state = await agent._sessions.drive(program, session, scope, self.engine)  # pyright: ignore[reportPrivateUsage]
            if result is None:
                break
            log.info("session %r: %s", session, result.stop_reason)
            told = told or isinstance(result.outcome, Suspended)
        await self._wait_for_background(session, scope)
        if state.over:
            return Stop("idle")
        if told:
            await self._tell_people(session, state.waiting)
        moments = [next_change(asked, self._now()) for asked in state.waiting]
        return Stop("waiting", min([at for at in moments if at is not None], default=None))

    async def _wait_for_slow_worker(self, session: str) -> None:
        """Wait for a former worker whose heartbeat was late, as long as the store shows that it works.

        Perhaps only Temporal was away. If the store cannot tell, a worker that is alive gets half a heartbeat more.
        """
        until = time.monotonic() + self.heartbeat / 2
        while True:
            if self._store.passes.get(session) is None:
                owner = await self._store.ownership(session)
                if not owner.alive:
                    return
                if time.monotonic() > until:
                    silent = await self._store.silence(owner.owner)
                    if silent is None or silent > max(self.heartbeat, _SILENT):
                        return
            await asyncio.sleep(0.1)

    async def _check_store(self, session: str) -> None:
        """Raise unless the store says that this engine drives the session."""
        engine = (await self._store.ownership(session)).engine
        if engine == "":
            raise ConfigError(
                f"the store of this worker does not have session {session!r} of {self.engine!r}: all workers and "
                "clients need the same store"
            )
        if engine != self.engine:
            raise driven_by_engine(session, engine)

    async def _wait_for_background(self, session: str, scope: Any) -> None:
        """Let agents in the background end that this session has started, or go on where their worker was lost."""
        with suppress(SessionUnknown):
            tasks = await self.agent.resume_background(session, scope=scope)
            await self.agent._background().wait([task.session for task in tasks])  # pyright: ignore[reportPrivateUsage]

    async def _tell_people(self, session: str, waiting: Sequence[Asked]) -> None:
        if self._tell is None:
            return
        try:
            told = self._tell(session, waiting)
            if asyncio.iscoroutine(told):
                await told
        except Exception as error:
            log.warning("session %r: tell failed: %s: %s", session, type(error).__name__, error)

    @activity.defn(name=EXPIRE)
    async def _expire(self, session: str) -> None:
        """Cancel the turn of a session whose time is over."""
        with suppress(SessionError):  # it has no turn yet
            await self.agent.cancel(session, "the deadline of the session has passed")


def _again(session: str, why: str, after: float = _AT_ONCE) -> ApplicationError:
    """The error with which the activity asks to be called again: its worker stops, or the store was lost."""
    log.info("session %r: to be taken up again: %s", session, why)
    return _interrupted(after)


def _interrupted(after: float = _AT_ONCE) -> ApplicationError:
    return ApplicationError("interrupted", type="Interrupted", next_retry_delay=timedelta(seconds=after))


def _never(session: str, error: Exception) -> ApplicationError:
    """The error for a session that cannot be worked on until somebody has mended it. Temporal gets no content."""
    log.error("session %r cannot be worked on: %s: %s", session, type(error).__name__, error)
    text = str(error) if isinstance(error, WindlassError) else "see the log of the worker"
    return ApplicationError(text, type=type(error).__name__, non_retryable=True)


__all__ = ["HEARTBEAT", "TASK_QUEUE", "TemporalRunner", "connect"]
