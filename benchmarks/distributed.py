"""Measure sessions on several workers, with PostgreSQL and Temporal here: `python benchmarks/distributed.py`.

The model answers at once, and the tool is an unsafe one that adds two numbers, so what remains is what Windlass, the
store and the engine cost. Every session is verified. Then a worker is killed, and one is stopped, among sessions whose
model takes two seconds, and the time until others go on with its sessions is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))

from tests.faults.campaign import Campaign, Plan  # noqa: E402
from tests.servers.postgres import PostgresServer  # noqa: E402
from tests.servers.temporal import TemporalServer  # noqa: E402

from windlass import Agent, ModelRequest, tool  # noqa: E402
from windlass.engines.pool import Queue  # noqa: E402
from windlass.engines.temporal import TemporalRunner, connect  # noqa: E402
from windlass.testing import FunctionModel, calls, says  # noqa: E402


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def reply(request: ModelRequest) -> Any:
    """As many calls as the user's message says, then the number of them."""
    steps = int(next(message.text for message in request.messages if message.role == "user"))
    done = sum(message.role == "tool" for message in request.messages)
    return says(f"done {done}") if done + 1 >= steps else calls("add", a=done, b=1)


def agent() -> Agent[Any, Any]:
    """The agent of all processes."""
    return Agent(FunctionModel(reply), tools=[add], name="adder", store=os.environ["DISTRIBUTED_STORE"])


class Bench:
    """The servers, and the workers of one engine."""

    def __init__(self) -> None:
        self.postgres, self.temporal = PostgresServer(), TemporalServer()
        self.postgres.start()
        self.temporal.start()
        self.workers: list[subprocess.Popen[bytes]] = []

    def begin(self, engine: str, workers: int) -> None:
        os.environ["DISTRIBUTED_STORE"] = self.postgres.database()
        words = [sys.executable, "-m", "windlass", "worker", f"{HERE}:agent", "--concurrency", "100"]
        words += ["--temporal", self.temporal.address] if engine == "temporal" else ["--poll", "0.02"]
        self.workers = [subprocess.Popen(words, stderr=subprocess.DEVNULL) for _ in range(workers)]

    def end(self) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait()

    def close(self) -> None:
        self.temporal.remove()
        self.postgres.remove()


async def measure(engine: str, address: str, sessions: int, steps: int) -> dict[str, float]:
    """Milliseconds per step of one session alone, and of many at once; each sample has sessions of its own."""
    made = agent()
    runner = Queue(made) if engine == "pool" else TemporalRunner(made, await connect(address))

    async def run(name: str, length: int) -> None:
        send = runner.submit if isinstance(runner, Queue) else runner.send
        await send(str(length), session=name, key="k")
        result = await runner.result(name, "k", timeout=300)
        assert result.text == f"done {length - 1}", result
        assert len(result.steps) == length, len(result.steps)

    await asyncio.gather(*[run(f"warm{number}", 2) for number in range(12)])
    alone: list[float] = []
    for number in range(5):
        began = time.perf_counter()
        await run(f"alone{number}", 100)
        alone.append((time.perf_counter() - began) / 100)
    began = time.perf_counter()
    await asyncio.gather(*[run(f"many{number}", steps) for number in range(sessions)])
    many = (time.perf_counter() - began) / (sessions * steps)
    await made.store.close()
    return {"alone": statistics.median(alone) * 1e3, "many": many * 1e3}


def takeover(engine: str, workers: int) -> dict[str, Any]:
    """What happens to sessions of a worker that is killed, and of one that is stopped for two heartbeats."""
    faults = ("worker", "stop") if engine == "temporal" else ("worker",)
    campaign = Campaign(Plan(engine=engine, workers=workers, steps=6, faults=faults))
    try:
        campaign.start()
        return asyncio.run(campaign.run())
    finally:
        campaign.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(
        f"{os.cpu_count()} processors, load {load()}; PostgreSQL without fsync and Temporal's development server, on "
        f"the same machine as {given.workers} workers and the client"
    )
    bench, found = Bench(), dict[str, list[dict[str, float]]](temporal=[], pool=[])
    many = f"{given.sessions} sessions of {given.steps} steps at once"
    try:
        for number in range(given.rounds):
            for engine, rounds in found.items():
                bench.begin(engine, given.workers)
                try:
                    rounds.append(asyncio.run(measure(engine, bench.temporal.address, given.sessions, given.steps)))
                finally:
                    bench.end()
                print(
                    f"round {number + 1}  {engine:9} one session of 100 steps: {rounds[-1]['alone']:.2f} ms a step   "
                    f"{many}: {rounds[-1]['many']:.2f} ms a step   load {load()}",
                    flush=True,
                )
    finally:
        bench.close()
    for engine, rounds in found.items():
        alone, together = (statistics.median(one[name] for one in rounds) for name in ("alone", "many"))
        print(f"median   {engine:9} one session of 100 steps: {alone:.2f} ms a step   {many}: {together:.2f} ms a step")
    for engine in found:
        took = takeover(engine, given.workers)
        assert not took["sessions that ended wrong"], took
        figures = "   ".join(
            f"{how}: p50 {took[f'{how}: seconds, p50']} s, most {took[f'{how}: seconds, most']} s"
            for how in ("killed", "stopped")
            if f"{how}: seconds, p50" in took
        )
        print(
            f"takeover {engine:9} {took['takeovers']} of {took['sessions']} sessions, heartbeat "
            f"{took['heartbeat, seconds']} s: {figures}   load {load()}",
            flush=True,
        )


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
