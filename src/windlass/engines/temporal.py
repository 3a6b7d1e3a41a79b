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
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from windlass.agent import Agent
from windlass.decisions import AnyResolution
from windlass.errors import (
    ConfigError,
    SessionBusy,
    SessionConflict,
    SessionError,
    StoreError,
    WindlassError,
)
from windlass.ids import check_id
from windlass.messages import AnyMessage
from windlass.ownership import Lost, queued_kind, queued_kinds
from windlass.records import Asked, InboxTaken, Suspended, TurnEnded
from windlass.results import Result
from windlass.states import State
from windlass.stores.batches import column_text
from windlass.stores.refusals import driven_by_engine
from windlass.terms import next_change

from .life_signs import LifeSigns
from .messages import check_session, checked_message, inbox_key, result_of
from .pool import check_priority, work_store
from .scopes import ScopeFactory, scope_for

try:
    from temporalio import activity
    from temporalio.api.enums.v1 import PendingActivityState
    from temporalio.client import Client, WorkflowHandle
    from temporalio.common import Priority, WorkflowIDConflictPolicy
    from temporalio.envconfig import ClientConfig
    from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
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
"""After about so many seconds without a sign of life, a worker's sessions are taken over."""

_SILENT, _LATE = 2.0, 0.5
"""A worker that has shown no life for so many seconds, or for a heartbeat, may be late by some more; then its sessions
are taken over."""

_GRACE = 5
"""After so many heartbeats Temporal itself takes a worker for lost, if the store knows it sooner. Each heartbeat to
Temporal is a write for each session, while all sessions of a worker share one sign of life in the store."""

_LOOK = 0.2
"""How often, in seconds, a turn without an activity looks whether its worker stops."""

_AT_ONCE = 0.05
"""After how many seconds another worker may go on with a session."""

_LONGEST_PAUSE = 10.0
"""After how many seconds, at most, a session is tried again that the store could not serve."""

_LOST = 200
"""How many sessions of dead workers are reported at a time."""

_REPORTS = 4
"""How often, about a second apart, a lost session is reported until another worker has it."""

_LOOK_INTO_BACKGROUND = 0.5
"""How often, in seconds, a session whose background agents work looks whether something has come for it."""

_UNSERVED = 5.0
"""How often, in seconds, a worker that is not full looks for sessions whose workflow was not told of a message."""

_FIRST_REST, _LAST_REST = 60.0, 3600.0
"""How long, in seconds, a worker leaves a session alone whose workflow it has told."""

_PATIENCE = 30.0
"""How long, in seconds, `connect` waits for a server that starts."""

Tell: TypeAlias = Callable[[str, Sequence[Asked]], object]


async def connect(address: str, namespace: str = "default") -> Client:
    """A client of the Temporal server at `host:port`, also if it is starting now.

    An API key, certificates and the like come from the environment, as for Temporal's own tools: `TEMPORAL_API_KEY`,
    `TEMPORAL_TLS` and those that begin with `TEMPORAL_TLS_`. Raises `ConfigError` if the server does not answer within
    half a minute.
    """
    try:
        settings = ClientConfig.load_client_connect_config(disable_file=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"the variables TEMPORAL_… of the environment cannot be used: {error}") from error
    settings["target_host"], settings["namespace"] = address, namespace
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return await Client.connect(**settings)
        except ValueError as error:
            raise ConfigError(f"{address!r} is not the address of a Temporal server, host:port: {error}") from error
        except (RuntimeError, RPCError) as error:
            if time.monotonic() > until:
                raise ConfigError(f"Temporal at {address} does not answer: {error}") from error
        await asyncio.sleep(0.2)


class _Report(NamedTuple):
    """A session that is to be reported as lost, when, and how often still.

    Temporal may give it to the lost worker once more, which had asked for work before its line was cut.
    """

    lost: Lost
    at: float
    left: int


class _Rest(NamedTuple):
    """Until when a session is left alone that nobody works on, or until when if this worker gets others; and how long
    next time."""

    until: float
    if_busy: float
    seconds: float


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
        self._name = column_text(agent.name)
        self._grace = heartbeat * (_GRACE if self._store.shows_life else 1)
        self._signs = LifeSigns(max(heartbeat, _SILENT) + _LATE, max(heartbeat / 2, 1.0))
        self._driving: dict[str, asyncio.Task[Stop]] = {}
        self._begun = 0
        self._patience = 0.0
        self._scope = scope
        self._tell = tell

    # ------------------------------------------------------------ clients

    async def send(
        self, message: AnyMessage, *, session: str, key: str = "", priority: int = 5, deadline: float | None = None
    ) -> bool:
        """Send a message to a session, and start its workflow if it does not run; False if the key was used before.

        Send again with the same `key` if you do not know whether it succeeded. The message opens a turn of its own,
        after earlier ones. Workflows that start with a higher `priority`, 0 to 9, come first. If the turn is not over
        `deadline` seconds from now, it is cancelled, or as soon as it has begun.
        """
        await check_session(self._store, session)
        check_priority(priority)
        text, given = checked_message(message), inbox_key(key or os.urandom(8).hex())
        await self._assign(session)
        kind = queued_kind(self._name, 5)  # in its session, the order of arrival counts
        new = await self.agent._sessions.put(session, given, kind, text)  # pyright: ignore[reportPrivateUsage]
        await self._poke(session, priority, None if deadline is None else self._now() + deadline, given)
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
        """Let a worker look at a session again: after an error that you have mended, or if its workflow was ended.

        The workflow of a session that was erased ends.
        """
        with suppress(SessionConflict):
            await self._assign(session)
        await self._poke(session)

    @property
    def running(self) -> tuple[str, ...]:
        """The sessions that workers of this process work on."""
        return tuple(self._driving)

    def interrupt(self) -> None:
        """Interrupt the turns that run in this process, so that other workers resume them."""
        for session, working in list(self._driving.items()):
            if not self.agent.interrupt(session):
                working.cancel()

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

    async def _poke(self, session: str, priority: int = 5, deadline: float | None = None, key: str = "") -> None:
        """Tell the workflow of a session that something has come, and start it if it does not run."""
        try:
            await self.client.start_workflow(
                WORKFLOW,
                Started(session, self._grace, self._name),
                id=self._workflow(session),
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal="poke",
                start_signal_args=[] if deadline is None else [deadline, key],
                priority=Priority(priority_key=5 - priority // 2),
                task_timeout=timedelta(seconds=max(2 * self.heartbeat, 3.0)),
            )
        except RPCError as error:
            raise SessionError(
                f"Temporal was not told of session {session!r}: {error}; what you sent is stored, so send it again "
                "with the same key, call wake, or let a worker find it after a while",
                session=session,
            ) from error

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
            max_heartbeat_throttle_interval=timedelta(seconds=self._grace * (0.4 if self._store.shows_life else 0.7)),
        )
        looking = [asyncio.create_task(look) for look in (self._look_for_lost(), self._look_for_unserved(concurrency))]
        until = time.monotonic()
        try:
            async with made:
                try:
                    yield made
                finally:
                    until = time.monotonic() + patience
        finally:
            for task in looking:
                task.cancel()
        await self.agent._background.drain(max(until - time.monotonic(), 0.0))  # pyright: ignore[reportPrivateUsage]

    async def _look_for_lost(self) -> None:
        """Look for sessions of workers that have died or are silent, and tell Temporal, which would learn it later."""
        reports: list[_Report] = []
        while True:
            await asyncio.sleep(self.heartbeat / 8 * random.uniform(0.5, 1.0))
            try:
                self._signs.look(await self._store.signs_of_life(self.engine))
                lost = await self._store.take_lost(self.engine, _LOST, silent=self._signs.silent)
                reports += [_Report(one, time.monotonic(), _REPORTS) for one in lost]
            except StoreError as error:
                log.warning("the store does not answer: %s", error)
            due = [one for one in reports if one.at <= time.monotonic()]
            answers = await asyncio.gather(*[self._report_lost(one.lost) for one in due], return_exceptions=True)
            reports = [one for one in reports if one not in due]
            for one, answer in zip(due, answers, strict=True):
                if isinstance(answer, BaseException):
                    log.warning("session %r: its loss cannot be reported: %s", one.lost.session, answer)
                    reports.append(one)
                elif answer and one.left > 1:
                    reports.append(_Report(one.lost, time.monotonic() + 1.0, one.left - 1))

    async def _report_lost(self, lost: Lost) -> bool:
        """Let the activity of a lost worker fail now, if it is still its own. False if another worker has it."""
        root = lost.session.partition("//")[0]
        handle: WorkflowHandle[Any, Any] = self.client.get_workflow_handle(self._workflow(root))
        try:
            described = await handle.describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        for pending in described.raw_description.pending_activities:
            if pending.activity_type.name != DRIVE or pending.last_worker_identity != lost.owner:
                continue
            if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
                log.info("session %r: its worker %s is lost", lost.session, lost.owner)
                driving = self.client.get_async_activity_handle(
                    workflow_id=handle.id, run_id=described.run_id, activity_id=pending.activity_id
                )
                try:
                    await driving.fail(_interrupted())
                except RPCError as error:
                    if error.status is not RPCStatusCode.NOT_FOUND:  # it ended meanwhile
                        raise
            return True
        return False

    async def _look_for_unserved(self, concurrency: int) -> None:
        """Look for sessions whose workflow was not told that something has come, and tell it.

        What came was stored, but its sender died or lost Temporal; or it was sent without a runner. It may also wait in
        line in Temporal: it gets some time, and more while Temporal gives this worker sessions. A worker that is full
        does not look.
        """
        rests, begun = dict[str, _Rest](), self._begun
        while True:
            await asyncio.sleep(_UNSERVED * random.uniform(0.8, 1.2))
            gets_work, begun = self._begun != begun, self._begun
            if len(self._driving) >= concurrency:
                continue
            try:
                found = await self._store.unserved(self.engine, self.agent.name, _LOST)
                now = time.monotonic()
                first = _Rest(now + _UNSERVED / 2, now + _FIRST_REST, _FIRST_REST)
                rests = {session: rests.get(session, first) for session in found}
                for session, rest in rests.items():
                    if now >= (rest.if_busy if gets_work else rest.until):
                        log.info("session %r: something has come for it, and Temporal was not told", session)
                        await self._poke(session)
                        until = now + rest.seconds
                        rests[session] = _Rest(until, until, min(2 * rest.seconds, _LAST_REST))
            except (StoreError, SessionError) as error:
                log.warning("sessions that Temporal was not told of are looked for later: %s", error)

    @activity.defn(name=DRIVE)
    async def _drive(self, given: Drive) -> Stop:
        """Work on a session until its turn ends or waits, while a heartbeat tells that this worker lives."""
        session, attempt = given.session, activity.info().attempt
        beating = asyncio.create_task(self._beat())
        working = asyncio.create_task(self._work(given, attempt))
        self._driving[session] = working
        self._begun += 1
        try:
            return await self._end_of(working, session)
        except ApplicationError:
            raise
        except StoreError as error:
            log.warning("session %r: %s", session, error)
            raise _again(session, str(error), after=min(2.0 ** min(attempt - 1, 9), _LONGEST_PAUSE)) from None
        except (SessionBusy, SessionConflict) as error:
            raise _again(session, str(error), after=1.0) from None
        except Exception as error:
            raise _never(session, error) from None  # a cause would be sent along
        finally:
            beating.cancel()
            if self._driving.get(session) is working:
                del self._driving[session]

    async def _beat(self) -> None:
        """The start of the activity counts as a first heartbeat: a session of few steps needs none."""
        allowed = activity.info().heartbeat_timeout
        pause = (self._grace if allowed is None else allowed.total_seconds()) / 5
        while True:
            await asyncio.sleep(pause)
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

    async def _work(self, given: Drive, attempt: int) -> Stop:
        """Passes over a session, as long as there is something to do."""
        session, agent, tell = given.session, self.agent, given.woken == "timer"
        self._check_agent(given)
        if attempt > 1:
            await self._wait_for_slow_worker(session)
        await self._check_store(session)
        scope = await scope_for(self._scope, session)
        program = agent._enter(scope)  # pyright: ignore[reportPrivateUsage]
        while True:
            result, state, more = await agent._sessions.drive(program, session, scope, self.engine)  # pyright: ignore[reportPrivateUsage]
            if result is not None:
                log.info("session %r: %s", session, result.stop_reason)
                tell = tell or isinstance(result.outcome, Suspended)
                if more:
                    continue
            if tell and not state.over:
                await self._tell_people(session, state.waiting)
            moments = [next_change(asked, self._now()) for asked in state.waiting]
            moment = min([at for at in moments if at is not None], default=None)
            if await self._background_is_over(state, scope, moment):
                seconds = None if moment is None else max(moment - self._now(), _AT_ONCE)
                return Stop("idle") if state.over else Stop("waiting", seconds)
            tell = moment is not None and moment <= self._now()

    async def _wait_for_slow_worker(self, session: str) -> None:
        """Wait for a former worker whose heartbeat was late, as long as the store shows that it works.

        Perhaps only Temporal was away. If the store cannot tell, a worker that is alive gets half a heartbeat more.
        """
        until, pause = time.monotonic() + self.heartbeat / 2, 0.1
        while True:
            if self._store.passes.get(session) is None:
                owner = await self._store.ownership(session)
                if not owner.alive:
                    return
                if time.monotonic() > until and (
                    not self._signs.knows(owner.owner) or owner.owner in self._signs.silent
                ):
                    return
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, 0.5)

    def _check_agent(self, given: Drive) -> None:
        """Raise if the session is one of another agent, whose messages this worker would leave where they are."""
        if given.agent not in ("", self._name):
            raise ConfigError(
                f"session {given.session!r} is for agent {given.agent!r}, but this worker of task queue "
                f"{self.task_queue!r} has agent {self._name!r}: give each agent a task queue of its own"
            )

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

    async def _background_is_over(self, state: State, scope: Any, moment: float | None) -> bool:
        """Let agents in the background end that a session has started, or go on where their worker was lost.

        False as soon as something has come for the session itself, or at a moment.
        """
        if all(child.taken for child in state.background):
            return True
        session, kinds = state.session, queued_kinds(self._name) if state.over else ["answer", "cancel"]
        tasks = await self.agent.resume_background(session, scope=scope)
        ending = asyncio.create_task(self.agent._background().wait([task.session for task in tasks]))  # pyright: ignore[reportPrivateUsage]
        try:
            while not (await asyncio.wait({ending}, timeout=_LOOK_INTO_BACKGROUND))[0]:
                if moment is not None and moment <= self._now():
                    return False
                if await self._store.unread([session]):
                    entries = await self._store.inbox(session, state.inbox)
                    if any(kind in kinds for _, kind, _ in entries):
                        return False
            return True
        finally:
            ending.cancel()

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
    async def _expire(self, session: str, key: str) -> bool:
        """Cancel the turn of a message whose time is over, unless it has ended; without a key, whichever turn is open.

        False if the message is still queued.
        """
        why = "the workflow was cancelled in Temporal"
        if key:
            why = "its deadline has passed"
            records = await self._store.read(session)
            taken = [at for at, one in enumerate(records) if isinstance(one, InboxTaken) and one.key == key]
            if not taken:
                return False
            if any(isinstance(one, TurnEnded) for one in records[taken[0] :]):
                return True
        with suppress(SessionError):  # it has no turn
            await self.agent.cancel(session, why)
        return True


def _again(session: str, why: str, after: float = _AT_ONCE) -> ApplicationError:
    """The error with which the activity asks to be called again: its worker stops, or the store was lost."""
    log.info("session %r: to be taken up again: %s", session, why)
    return _interrupted(after)


def _interrupted(after: float = _AT_ONCE) -> ApplicationError:
    return ApplicationError(
        "interrupted",
        type="Interrupted",
        next_retry_delay=timedelta(seconds=after),
        category=ApplicationErrorCategory.BENIGN,  # our log says why: temporalio needs no traceback in its own
    )


def _never(session: str, error: Exception) -> ApplicationError:
    """The error for a session that cannot be worked on until somebody has mended it. Temporal gets no content."""
    log.error("session %r cannot be worked on: %s: %s", session, type(error).__name__, error)
    text = str(error) if isinstance(error, WindlassError) else "see the log of the worker"
    return ApplicationError(text, type=type(error).__name__, non_retryable=True)


__all__ = ["HEARTBEAT", "TASK_QUEUE", "TemporalRunner", "connect"]
