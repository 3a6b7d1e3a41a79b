"""The workflow of a session: drive it while there is something to do, and wait in between.

Temporal replays this module, so it is small and deterministic. It sees no message, no answer and no history: these are
in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

DRIVE = "windlass.drive"
"""The activity that works on a session until its turn ends or waits."""

EXPIRE = "windlass.expire"
"""The activity that cancels a turn whose time is over. It runs with the workflow, also if all workers are busy."""

WORKFLOW = "windlass.session"

_LONG = timedelta(days=3650)
"""A turn may take as long as it takes: its own limits end it, and a lost heartbeat tells that its worker is gone."""


_RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=50), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=2)
)


@dataclass
class Started:
    """What the workflow of a session is started with: the agent's name, and after how many seconds without a heartbeat
    the activity is lost. `deadlines` are those that an earlier run has left."""

    session: str
    heartbeat: float
    agent: str = ""
    deadlines: dict[str, float] = field(default_factory=dict)


@dataclass
class Drive:
    """What the activity is told: the session, what has called it, a "poke" or a "timer", and the agent's name."""

    session: str
    woken: str
    agent: str = ""


@dataclass
class Stop:
    """Where the activity has left a session: "idle", or "waiting" for a person, at most for some seconds.

    These are no time of day: the clocks of workers and of the server may differ.
    """

    status: str
    seconds: float | None = None


@workflow.defn(name=WORKFLOW)
class SessionWorkflow:
    """One session. It ends when there is nothing to do, and is started again with the next message."""

    def __init__(self) -> None:
        self._pokes = 0
        self._deadlines: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._status = "working"

    @workflow.run
    async def run(self, started: Started) -> None:
        """Drive the session, then wait for a poke or a time, until it is idle."""
        self._deadlines = {**started.deadlines, **self._deadlines}
        woken = "poke"
        while True:
            seen = self._pokes
            self._status = "working"
            stop = await self._drive(started, woken)
            if self._pokes != seen:
                woken = "poke"
            elif stop.status == "idle":
                self._status = "idle"
                return
            else:
                self._status = stop.status
                woken = await self._wait(started, seen, stop)
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(started, deadlines=self._deadlines))

    async def _drive(self, started: Started, woken: str) -> Stop:
        """One call of the activity. It is repeated only if its worker or the store is lost, not if the turn fails."""
        driving = workflow.start_activity(
            DRIVE,
            Drive(started.session, woken, started.agent),
            result_type=Stop,
            start_to_close_timeout=_LONG,
            heartbeat_timeout=timedelta(seconds=started.heartbeat),
            retry_policy=_RETRIES,
        )
        while not driving.done():
            first = self._first_deadline()
            await self._until(lambda first=first: driving.done() or self._first_deadline() != first, first)  # type: ignore[misc]
            await self._expire(started)
        try:
            stop: Stop = await driving
            return stop
        except ActivityError as error:
            workflow.logger.warning("session %s: %s", started.session, error.cause)
            return Stop("broken")

    async def _wait(self, started: Started, seen: int, stop: Stop) -> str:
        """Wait for a poke, or until a question or the turn expires. Returns what came."""
        until = None if stop.seconds is None else workflow.now().timestamp() + stop.seconds
        while self._pokes == seen:
            moments = [at for at in (until, self._first_deadline()) if at is not None]
            await self._until(lambda: self._pokes != seen, min(moments, default=None))
            if await self._expire(started) or (until is not None and until <= workflow.now().timestamp()):
                return "timer"
        return "poke"

    async def _until(self, happened: Callable[[], bool], at: float | None) -> None:
        """Wait for something, but not beyond a time."""
        left = None if at is None else max(0.0, at - workflow.now().timestamp())
        try:
            await workflow.wait_condition(happened, timeout=left)
        except TimeoutError:
            return
        except asyncio.CancelledError:  # somebody has cancelled the workflow in Temporal: that cancels the turn
            self._deadlines[""] = 0.0
            self._pokes += 1

    def _first_deadline(self) -> float | None:
        return min(self._deadlines.values(), default=None)

    async def _expire(self, started: Started) -> bool:
        """Cancel the turns whose time is over; returns whether there were any. A message that is still queued is looked
        at again, later each time."""
        settled = False
        for key, at in sorted(self._deadlines.items()):
            if at > workflow.now().timestamp():
                continue
            began: bool = await workflow.execute_local_activity(
                EXPIRE,
                args=[started.session, key],
                result_type=bool,
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=_RETRIES,
            )
            if began:
                del self._deadlines[key]
                settled = True
            else:
                self._pauses[key] = min(2 * self._pauses.get(key, 0.5), 60.0)
                self._deadlines[key] = workflow.now().timestamp() + self._pauses[key]
        return settled

    @workflow.signal
    def poke(self, deadline: float | None = None, key: str = "") -> None:
        """Something has come into the session's inbox. `deadline` is when the turn of the message with this key is to
        be over."""
        self._pokes += 1
        if deadline is not None:
            self._deadlines.setdefault(key, deadline)

    @workflow.query
    def status(self) -> str:
        """How it stands: "working", "waiting" for a person, "idle", or "broken": no turn can be run."""
        return self._status
