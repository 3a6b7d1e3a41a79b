"""The workflow of a session: drive it while there is something to do, and wait in between.

Temporal replays this module, so it is small and deterministic. It sees no message, no answer and no history: these are
in the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

DRIVE = "windlass.drive"
"""The activity that works on a session until its turn ends or waits."""

EXPIRE = "windlass.expire"
"""The activity that cancels a turn whose time is over."""

WORKFLOW = "windlass.session"

_LONG = timedelta(days=3650)
"""A turn may take as long as it takes: its own limits end it, and a lost heartbeat tells that its worker is gone."""


_RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=50), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=2)
)


@dataclass
class Started:
    """What the workflow of a session is started with. `heartbeat` is in seconds."""

    session: str
    heartbeat: float


@dataclass
class Drive:
    """What the activity is told: the session, and what has called it, a "poke" or a "timer"."""

    session: str
    woken: str


@dataclass
class Stop:
    """Where the activity has left a session: "idle", or "waiting" for a person, at the latest until a time."""

    status: str
    until: float | None = None


@workflow.defn(name=WORKFLOW)
class SessionWorkflow:
    """One session. It ends when there is nothing to do, and is started again with the next message."""

    def __init__(self) -> None:
        self._pokes = 0
        self._deadline: float | None = None
        self._status = "working"

    @workflow.run
    async def run(self, started: Started) -> None:
        """Drive the session, then wait for a poke or a time, until it is idle."""
        woken = "poke"
        while True:
            seen = self._pokes
            self._status = "working"
            stop = await self._drive(started, woken)
            if stop.status == "idle":
                self._deadline = None
            if self._pokes != seen:
                woken = "poke"
            elif stop.status == "idle":
                self._status = "idle"
                return
            else:
                self._status = stop.status
                woken = await self._wait(started, seen, stop)
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(started)

    async def _drive(self, started: Started, woken: str) -> Stop:
        """One call of the activity. It is repeated only if its worker or the store is lost, not if the turn fails."""
        driving = workflow.start_activity(
            DRIVE,
            Drive(started.session, woken),
            result_type=Stop,
            start_to_close_timeout=_LONG,
            heartbeat_timeout=timedelta(seconds=started.heartbeat),
            retry_policy=_RETRIES,
        )
        try:
            while not driving.done():
                deadline, left = self._deadline, self._seconds_until(self._deadline)
                try:
                    await workflow.wait_condition(
                        lambda deadline=deadline: driving.done() or self._deadline != deadline,  # type: ignore[misc]
                        timeout=left,
                    )
                except TimeoutError:
                    await self._expire(started)
            stop: Stop = await driving
            return stop
        except ActivityError as error:
            workflow.logger.warning("session %s: %s", started.session, error.cause)
            return Stop("broken")

    async def _expire(self, started: Started) -> None:
        """The time of the turn is over: it is cancelled, wherever it runs."""
        self._deadline = None
        await workflow.execute_activity(
            EXPIRE, started.session, start_to_close_timeout=timedelta(seconds=30), retry_policy=_RETRIES
        )

    async def _wait(self, started: Started, seen: int, stop: Stop) -> str:
        """Wait for a poke, or until a question or the turn expires. Returns what came."""
        moments = (self._deadline, stop.until)
        waits = [left for left in map(self._seconds_until, moments) if left is not None]
        try:
            await workflow.wait_condition(lambda: self._pokes != seen, timeout=min(waits, default=None))
        except TimeoutError:
            if self._seconds_until(self._deadline) == 0.0:
                await self._expire(started)
            return "timer"
        return "poke"

    def _seconds_until(self, at: float | None) -> float | None:
        return None if at is None else max(0.0, at - workflow.now().timestamp())

    @workflow.signal
    def poke(self, deadline: float | None = None) -> None:
        """Something has come into the session's inbox. `deadline` is when its turn is to be over."""
        self._pokes += 1
        if deadline is not None:
            self._deadline = deadline

    @workflow.query
    def status(self) -> str:
        """How it stands: "working", "waiting" for a person, "idle", or "broken": no turn can be run."""
        return self._status
