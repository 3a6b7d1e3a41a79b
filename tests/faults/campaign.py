"""A fault campaign: workers run sessions while workers, servers, lines and clocks fail. Prints what came of it.

`python -m tests.faults.campaign '{"engine": "temporal", …}'`, inside the namespace of the servers if there is one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers.postgres import PostgresServer
from tests.servers.temporal import TemporalServer

from windlass import Completed
from windlass.engines.pool import Queue
from windlass.engines.temporal import TemporalRunner, connect
from windlass.records import Resumed

from . import clocks
from .clocks import Clock
from .towns import MODULE, digest_of, make_agent


class Plan(NamedTuple):
    """What a campaign does. `network` is the name of its namespaces."""

    engine: str = "temporal"
    seed: int = 1
    sessions: int = 200
    steps: int = 10
    delay: float = 2.0
    workers: int = 3
    heartbeat: float = 2.0
    faults: tuple[str, ...] = ("worker", "temporal", "worker", "postgres", "cut", "stop", "clock", "worker")
    pause: float = 2.0
    host: str = "127.0.0.1"
    network: str = ""
    limit: float = 240.0


class Ack(NamedTuple):
    """An append that was acknowledged."""

    session: str
    expected: int
    count: int
    digest: str
    pid: int
    at: float


class Campaign:
    """The servers, the workers and the faults."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dice = random.Random(plan.seed)
        self.folder = Path(tempfile.mkdtemp(prefix="faults-"))
        self.clock = Clock(self.folder)
        self.postgres = PostgresServer(plan.host)
        self.postgres.environment = self.clock.environment
        self.temporal = TemporalServer(plan.host)
        self.address = ""
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.events: list[tuple[float, str, int]] = []
        self.losses: list[tuple[float, int, str]] = []

    # ------------------------------------------------------------ processes

    def start(self) -> None:
        self.postgres.start()
        self.address = self.postgres.database()
        if self.plan.engine == "temporal":
            self.temporal.start()
        for worker in range(self.plan.workers):
            self.start_worker(worker)

    def start_worker(self, worker: int) -> None:
        plan = self.plan
        inside = ["ip", "netns", "exec", f"{plan.network}w{worker}"] if plan.network else []
        words = [sys.executable, "-m", "windlass", "worker", f"{MODULE}:agent", "--concurrency", "120", "--drain", "1"]
        if plan.engine == "temporal":
            words += ["--temporal", self.temporal.address, "--heartbeat", str(plan.heartbeat)]
        given = {"FAULTS": str(self.folder), "FAULTS_STORE": self.address, "FAULTS_STEPS": str(plan.steps)}
        env = {**os.environ, **given, "FAULTS_DELAY": str(plan.delay)}
        env |= self.clock.environment
        with (self.folder / "log").open("ab") as log:
            self.workers[worker] = subprocess.Popen([*inside, *words], env=env, stdout=log, stderr=log)

    def close(self) -> None:
        for process in self.workers.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.temporal.remove()
        self.postgres.remove()

    # ------------------------------------------------------------ faults

    async def fail(self, fault: str) -> None:
        worker = self.dice.choice(self._at_work())
        self.events.append((time.monotonic(), fault, worker))
        await {
            "worker": self._kill_worker, "temporal": self._kill_temporal, "postgres": self._kill_postgres,
            "cut": self._cut, "stop": self._stop, "clock": self._jump,
        }[fault](worker)  # fmt: skip

    def _at_work(self) -> list[int]:
        """The workers that have just written something: others have nothing to lose."""
        now = time.monotonic()
        pids = {ack.pid for ack in self._acks() if ack.at > now - 2 * self.plan.delay}
        at_work = [worker for worker, process in self.workers.items() if process.pid in pids]
        return at_work or list(self.workers)

    async def _kill_worker(self, worker: int) -> None:
        process = self.workers[worker]
        process.kill()
        process.wait()
        self.losses.append((time.monotonic(), process.pid, "killed"))
        await asyncio.sleep(self.plan.heartbeat + 1)
        self.start_worker(worker)

    async def _kill_temporal(self, worker: int) -> None:
        self.temporal.kill()
        await asyncio.sleep(1.0)
        await asyncio.to_thread(self.temporal.start)

    async def _kill_postgres(self, worker: int) -> None:
        self.postgres.kill()
        await asyncio.sleep(1.0)
        await asyncio.to_thread(self.postgres.start)

    async def _cut(self, worker: int) -> None:
        await asyncio.to_thread(self._set_line, worker, "down")
        self.losses.append((time.monotonic(), self.workers[worker].pid, "cut off"))
        await asyncio.sleep(2 * self.plan.heartbeat)
        await asyncio.to_thread(self._set_line, worker, "up")

    def _set_line(self, worker: int, state: str) -> None:
        subprocess.run(["ip", "link", "set", f"line{worker}", state], check=True)

    async def _stop(self, worker: int) -> None:
        self.workers[worker].send_signal(signal.SIGSTOP)
        if self.plan.engine == "temporal":  # workers of one store keep their sessions while they are stopped
            self.losses.append((time.monotonic(), self.workers[worker].pid, "stopped"))
        await asyncio.sleep(2 * self.plan.heartbeat)
        self.workers[worker].send_signal(signal.SIGCONT)

    async def _jump(self, worker: int) -> None:
        """The clock of the machine with the workers and PostgreSQL is set an hour on, two hours back, and right.

        Without a C compiler, it is only the clock of the agents.
        """
        for seconds in (3600, -3600, 0):
            self.clock.set(seconds)
            await asyncio.sleep(1.5)

    # ------------------------------------------------------------ the campaign

    async def run(self) -> dict[str, Any]:
        plan = self.plan
        agent = make_agent(self.folder, self.address, plan.steps, plan.delay)
        names = [f"s{number}" for number in range(plan.sessions)]
        began = time.monotonic()
        send = await self._sender(agent)
        await asyncio.gather(*[send(name) for name in names])
        sent = time.monotonic()
        await self._until(lambda: len(self._effects()) >= plan.sessions / 4, "the workers do not begin")
        for fault in plan.faults:
            await self.fail(fault)
            await asyncio.sleep(plan.pause * self.dice.uniform(0.5, 1.0))
        await self._all_over(agent, names)
        ended = time.monotonic()
        await asyncio.sleep(1.0)  # a worker that was fenced may still try to write
        wrong, logs = [], {}
        for name in names:
            await agent.store.verify(name)
            logs[name] = await agent.store.read(name)
            state = await agent.state(name)
            if not isinstance(state.outcome, Completed) or state.text != f"{plan.steps} steps":
                wrong.append((name, repr(state.outcome)[:200]))
        problems = list(await agent.store.verify_store())
        await agent.store.close()
        return {
            "engine": plan.engine, "seed": plan.seed, "sessions": plan.sessions, "steps": plan.steps,
            "workers": plan.workers, "heartbeat, seconds": plan.heartbeat,
            "faults": [fault for _, fault, _ in self.events],
            "clock that jumped": self._clock(),
            "sessions that ended right": len(names) - len(wrong),
            "sessions that ended wrong": wrong,
            "store problems": problems,
            **self._check_effects(),
            **self._check_acknowledged(logs),
            **self._takeovers(),
            "turns resumed": sum(isinstance(record, Resumed) for log in logs.values() for record in log),
            "seconds to send": round(sent - began, 2), "seconds in all": round(ended - began, 1),
            "load of the machine": round(os.getloadavg()[0], 1), "processors": os.cpu_count(),
        }  # fmt: skip

    def _clock(self) -> str:
        if "clock" not in self.plan.faults:
            return "none"
        return "that of the machine with the workers and PostgreSQL" if clocks.possible() else "that of the agents"

    async def _sender(self, agent: Any) -> Callable[[str], Any]:
        """Sends a message; a server that is gone is tried again with the same key."""
        if self.plan.engine == "pool":
            queue = Queue(agent)
            return lambda name: queue.submit(name, session=name, key="k")
        runner: Any = TemporalRunner(agent, await connect(self.temporal.address), heartbeat=self.plan.heartbeat)
        return lambda name: runner.send(name, session=name, key="k")

    async def _all_over(self, agent: Any, names: list[str]) -> None:
        left, until = set(names), time.monotonic() + self.plan.limit
        while left:
            assert time.monotonic() < until, f"{len(left)} sessions do not end: {sorted(left)[:9]}\n{self._log()}"
            await asyncio.sleep(0.5)
            for info in await agent.store.find(status="open"):
                if info.records > 3:
                    left.discard(info.session)

    async def _until(self, happened: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < until, f"{what}\n{self._log()}"
            await asyncio.sleep(0.1)

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-20000:]

    # ------------------------------------------------------------ figures

    def _lines(self, name: str) -> list[list[str]]:
        path = self.folder / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def _effects(self) -> list[list[str]]:
        return self._lines("effects")

    def _check_effects(self) -> dict[str, Any]:
        """How often tools ran: an unsafe one at most once."""
        unsafe = Counter((session, number) for session, verb, number in self._effects() if verb == "send")
        safe = Counter((key, number) for key, verb, number in self._effects() if verb == "pay")
        return {
            "unsafe effects": sum(unsafe.values()),
            "unsafe effects twice": sum(count - 1 for count in unsafe.values()),
            "idempotent effects": sum(safe.values()),
            "idempotent effects twice": sum(count - 1 for count in safe.values()),
        }

    def _acks(self) -> list[Ack]:
        return [Ack(s, int(e), int(c), d, int(p), float(at)) for s, e, c, d, p, at in self._lines("acknowledged")]

    def _check_acknowledged(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Whether each record that a worker was told is stored is in the log, as it was written."""
        lost = 0
        acks = self._acks()
        for ack in acks:
            found = logs[ack.session][ack.expected : ack.expected + ack.count]
            lost += len(found) != ack.count or digest_of(found) != ack.digest
        return {"acknowledged batches": len(acks), "acknowledged batches lost": lost}

    def _takeovers(self) -> dict[str, Any]:
        """How long after the loss of a worker another one wrote to its sessions."""
        by_session: dict[str, list[Ack]] = defaultdict(list)
        for ack in self._acks():
            by_session[ack.session].append(ack)
        took: dict[str, list[float]] = defaultdict(list)
        for at, pid, how in self.losses:
            for acks in by_session.values():
                before = [ack for ack in acks if ack.at < at]
                after = [ack for ack in acks if ack.at > at]
                if before and before[-1].pid == pid and after and after[0].pid != pid:
                    took[how].append(after[0].at - at)
        figures: dict[str, Any] = {"takeovers": sum(map(len, took.values()))}
        for how, seconds in [*took.items(), ("lost", [one for found in took.values() for one in found])]:
            seconds.sort()
            for name, part in (("p50", 0.5), ("p95", 0.95), ("most", 1.0)) if seconds else ():
                figures[f"{how}: seconds, {name}"] = round(seconds[min(int(len(seconds) * part), len(seconds) - 1)], 2)
        return figures


def main() -> None:
    given = json.loads(sys.argv[1])
    plan = Plan(**{**given, "faults": tuple(given.get("faults", Plan._field_defaults["faults"]))})
    campaign = Campaign(plan)
    try:
        campaign.start()
        found = asyncio.run(campaign.run())
    finally:
        campaign.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
