"""The cost of a piece of work: CPU and wall time, measured so that a busy machine distorts them least."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from work import work

LEAST_ROUNDS = 3


class Cost(NamedTuple):
    """Seconds of the clock and of the processor."""

    wall: float
    cpu: float


class Timer:
    """Filled in at the end of a `timing` block."""

    cost: Cost


@contextmanager
def timing() -> Iterator[Timer]:
    """Time a block. The young generations are empty when it starts; the collector is on, as it is by default."""
    timer = Timer()
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    yield timer
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    timer.cost = Cost(wall, cpu)


async def cost_of(turn: Callable[[], Awaitable[str]], steps: int, turns: int = 1, delay: float = 0.0) -> Cost:
    """The cost of some turns one after the other; raises unless the work was done."""
    work.plan(steps, delay)
    with timing() as timer:
        for _ in range(turns):
            if (text := await turn()) != "done":
                raise RuntimeError(f"the turn ended with {text!r}")
    work.verify(turns)
    return timer.cost


def rounds(seconds: float, least: int = LEAST_ROUNDS) -> Iterator[int]:
    """Count rounds until the time is up, but not less than a few."""
    end = time.perf_counter() + seconds
    number = 0
    while number < least or time.perf_counter() < end:
        yield number
        number += 1


def summary(costs: list[Cost], units: float, scale: float = 1e6) -> dict[str, Any]:
    """Costs per unit of work, in µs unless scaled otherwise. `cpu`, the least CPU time, is what ratios are made of."""
    wall = [cost.wall / units * scale for cost in costs]
    cpu = [cost.cpu / units * scale for cost in costs]
    return {
        "cpu": round(min(cpu), 3),
        "cpu_median": round(statistics.median(cpu), 3),
        "wall": round(min(wall), 3),
        "wall_median": round(statistics.median(wall), 3),
        "samples": len(costs),
    }


def resident_kb() -> int:
    """VmRSS of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS in /proc/self/status")
