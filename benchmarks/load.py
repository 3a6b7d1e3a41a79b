"""Thousands of sessions at once on one event loop, in an SQLite file: `make load`, then `make docs`.

Every session runs turns of ten steps with a model that takes 50 ms and the default (unsafe) tool, so each step commits
twice. The overhead of a step is the time from one model call to the next, or to the end of the turn, less the time of
the model: it includes the tool, the commits, and all waiting for the event loop. Every turn is verified.

Three loads are told apart. Without pauses, sessions ask for all that one event loop can do and more: that gives the
capacity, and latencies that say only how many wait. With pauses, or with a slower model, they ask for a share of the
capacity of as many sessions: the arrivals stay below what is possible, and latencies say what a step costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
from costs import resident_kb

from windlass import Agent, Message, ModelReply, ModelRequest, TextPart, ToolCallPart, tool
from windlass.stores.sqlite import SQLiteStore

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "load.json"
STEPS, DELAY = 10, 0.05
SESSIONS = (10, 100, 1000)
LOADS = (0.5, 0.75)
RARE_LOADS = (0.75,)
GROUP = 100
"""So many sessions begin, or take their next step, together while memory is measured."""
RARELY = (10_000, 5, 1_000_000)
"""Thresholds of the garbage collector with which it practically never looks at all objects."""
Found = dict[str, Any]
Tasks = list["asyncio.Task[None]"]


class Watch:
    """When the turn of a task asked the model last."""

    __slots__ = ("asked", "begun")

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.asked = 0.0


def objects_size(messages: Iterable[Message], counted: set[int]) -> int:
    """The bytes of the Python objects of a transcript, but for those that were `counted` with another transcript."""

    def size(value: Any) -> int:
        if value is None or isinstance(value, type) or id(value) in counted:
            return 0
        counted.add(id(value))
        if isinstance(value, msgspec.Struct):
            inside: Iterable[Any] = [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, dict):
            inside = [*value, *value.values()]
        else:
            inside = value if isinstance(value, list | tuple) else ()
        return sys.getsizeof(value) + sum(map(size, inside))

    return sum(map(size, messages))


class Seen:
    """What is measured while sessions run."""

    def __init__(self) -> None:
        self.overheads = array("d")
        self.openings = array("d")
        self.turns = 0


watch: ContextVar[Watch] = ContextVar("watch")


class Gate:
    """Holds up turns until some of them may go on."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        self.waiting.append(passing := asyncio.get_running_loop().create_future())
        await passing

    def open(self, count: int) -> None:
        """Let this many of them go on."""
        for _ in range(min(count, len(self.waiting))):
            self.waiting.popleft().set_result(None)


class SlowModel:
    """Takes `delay` seconds, or waits for a signal at chosen steps."""

    name = "slow"

    def __init__(self) -> None:
        self.delay = DELAY
        self.seen = Seen()
        self.transcripts: list[tuple[int, int]] = []
        self.counted: set[int] = set()
        self.holds: dict[int, Gate] = {}

    async def reply(self, request: ModelRequest) -> ModelReply:
        it, now = watch.get(), time.perf_counter()
        if it.asked:
            self.seen.overheads.append(now - it.asked - self.delay)
        else:
            self.seen.openings.append(now - it.begun)
        it.asked = now
        number = len(request.messages) // 2 + 1
        if held := self.holds.get(number):
            if len(held.waiting) % 100 == 0:
                json = msgspec.json.encode(tuple(request.messages))
                self.transcripts.append((objects_size(request.messages, self.counted), len(json)))
            await held.wait()
        else:
            await asyncio.sleep(self.delay)
        if number < STEPS:
            call = ToolCallPart("add", f'{{"a": {number}, "b": 1}}', vendor_id=f"c{number}")
            return ModelReply(Message("assistant", (call,)), finish="tool_calls")
        return ModelReply(Message("assistant", (TextPart("done"),)))


class Fleet:
    """An agent, its store, and the sessions that run on it."""

    def __init__(self, folder: str, memory: bool = False) -> None:
        self.path = os.path.join(folder, "load.db")
        self.model = SlowModel()
        self.added = 0
        self.store: Any = None if memory else SQLiteStore(self.path)
        given = {} if memory else {"store": self.store}
        self.agent: Agent[Any, str] = Agent(self.model, tools=[self._tool()], **given)
        self._numbers = itertools.count()

    def _tool(self) -> Any:
        @tool
        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            self.added += 1
            return a + b

        return add

    async def turn(self) -> None:
        """One turn of a new session; raises unless it did its work."""
        watch.set(it := Watch())
        result = await self.agent.run("go", session=f"s{next(self._numbers)}")
        if result.text != "done" or len(result.state.messages) != 2 * STEPS:
            raise RuntimeError(f"a turn ended with {result.text!r} after {len(result.state.messages)} messages")
        self.model.seen.overheads.append(time.perf_counter() - it.asked - self.model.delay)
        self.model.seen.turns += 1

    @asynccontextmanager
    async def sessions(self, count: int, pause: Callable[[], float] | None = None) -> AsyncIterator[Tasks]:
        """This many sessions at once, each of which is followed by another one, after a pause. At the end the turns
        that are under way are finished."""
        resting: set[asyncio.Task[Any] | None] = set()
        stopping = False

        async def rest(seconds: float) -> None:
            resting.add(task := asyncio.current_task())
            await asyncio.sleep(seconds)
            resting.discard(task)

        async def one(start: float) -> None:
            await rest(start)
            while not stopping:
                await self.turn()
                if pause and not stopping:
                    await rest(pause())

        spread = STEPS * self.model.delay
        starts = [pause() if pause else spread * at / count for at in range(count)]
        tasks = [asyncio.create_task(one(start)) for start in starts]
        try:
            yield tasks
        finally:
            stopping = True
            for task in resting:
                if task is not None:
                    task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            failed = [it for it in ended if isinstance(it, Exception)]
            if failed:
                raise RuntimeError(f"{len(failed)} sessions failed") from failed[0]

    async def warm_up(self, turns: int = 3000) -> None:
        """Run turns that are not measured, a few at a time."""
        self.model.delay = 0.0
        for _ in range(turns // GROUP):
            await asyncio.gather(*[self.turn() for _ in range(GROUP)])
        self.model.delay = DELAY
        self.model.seen = Seen()

    def size(self) -> int:
        """The bytes of the file."""
        return os.path.getsize(self.path)

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()


async def over(fleet: Fleet, tasks: Tasks, warm: float, seconds: float) -> Found:
    """Throughput, overheads and CPU of some seconds, after a warm-up."""
    await asyncio.sleep(warm)
    fleet.model.seen = Seen()
    begun, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
    await asyncio.sleep(seconds)
    while not fleet.model.seen.overheads:  # on a machine that is very busy
        _raise_failures(tasks)
        await asyncio.sleep(seconds)
    took = time.perf_counter() - begun
    cpu, thread = time.process_time() - cpu, time.thread_time() - thread
    _raise_failures(tasks)
    seen = fleet.model.seen
    steps = len(seen.overheads)
    return {
        "seconds": round(took, 1),
        "steps_per_second": round(steps / took),
        "turns_per_second": round(seen.turns / took, 1),
        "overhead_ms": _percentiles(seen.overheads),
        "opening_ms": _percentiles(seen.openings),
        "cpu_us_per_step": round(cpu / steps * 1e6, 1),
        "loop_busy": round(thread / took, 3),
        "process_busy": round(cpu / took, 3),
    }


def _raise_failures(tasks: Tasks) -> None:
    """Raise the error of the first session that failed."""
    for task in tasks:
        if task.done():
            task.result()


def _percentiles(seconds: array[float]) -> Found:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000, 3)
        for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


async def memory(folder: str, count: int, group: int) -> Found:
    """Resident memory per session whose turn is under way, at its first model call and at its last.

    The sessions begin and go on in groups of `group`: what a session needs only while it commits is then there for one
    group at a time, as under a load that is spread over time. Before that, turns fill what a process has once, however
    many sessions it serves: SQLite's page cache and the logs that are kept for the next turn.
    """
    fleet = Fleet(folder)
    await fleet.warm_up()
    gc.collect()
    start = resident_kb()
    first, last = Gate(), Gate()
    fleet.model.holds = {1: first, STEPS: last}
    tasks: Tasks = []
    found = {}
    for name, before, gate in (("first", None, first), ("last", first, last)):
        fleet.model.transcripts, fleet.model.counted = [], set()
        for there in range(group, count + group, group):
            if before is None:
                tasks += [asyncio.create_task(fleet.turn()) for _ in range(min(group, count - len(tasks)))]
            else:
                before.open(group)
            while len(gate.waiting) < min(there, count):
                await asyncio.sleep(0.005)
                _raise_failures(tasks)
        gc.collect()
        found[name] = {
            "kb": round((resident_kb() - start) / count, 2),
            "transcript_kb": round(statistics.mean(size for size, _ in fleet.model.transcripts) / 1024, 2),
            "json_kb": round(statistics.mean(size for _, size in fleet.model.transcripts) / 1024, 2),
        }
    last.open(count)
    await asyncio.gather(*tasks)
    gc.collect()
    found["after"] = {"kb": round((resident_kb() - start) / count, 2)}
    await fleet.close()
    return found


async def memory_alone(folder: str, count: int, group: int) -> Found:
    """`memory` in a process of its own: what another measurement has freed would be used again, and not be seen."""
    command = (sys.executable, __file__, "--sessions", str(count), "--folder", folder, "--memory", str(group))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the memory of sessions could not be measured")
    found: Found = json.loads(told)
    return found


async def saturation(folder: str, seconds: float, most: int, *, in_memory: bool = False) -> Found:
    """Sessions without a pause between turns: how much one event loop does, and what waiting that costs."""
    found = {}
    for count in [*[count for count in SESSIONS if count < most], most]:
        fleet = Fleet(tempfile.mkdtemp(dir=folder), memory=in_memory)
        async with fleet.sessions(count) as tasks:
            await _turns_ended(fleet, tasks, count // 2, 10 * seconds)
            found[str(count)] = await over(fleet, tasks, 0.0, seconds)
        await fleet.close()
    return found


@contextmanager
def rare_collections() -> Iterator[None]:
    """Full garbage collections practically never happen."""
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def paced(folder: str, seconds: float, capacity: float, count: int, shares: Sequence[float] = LOADS) -> Found:
    """Sessions that pause between turns, as people do, so that together they ask for a share of what is possible.

    Pauses are random and without memory, so turns begin at a constant rate from the first moment on.
    """
    loads = {}
    for load in shares:
        fleet = Fleet(tempfile.mkdtemp(dir=folder))
        async with fleet.sessions(count, pauses(count, capacity * load)) as tasks:
            loads[str(load)] = {
                "asked": round(capacity * load),
                **await over(fleet, tasks, max(seconds / 2, 2.0), seconds),
            }
        await fleet.close()
    return {"sessions": count, "capacity": capacity, "loads": loads}


async def under_way(folder: str, seconds: float, capacity: float, count: int, load: float = RARE_LOADS[0]) -> Found:
    """Sessions that all have a turn under way, with a model so slow that they ask for a share of what is possible."""
    fleet = Fleet(tempfile.mkdtemp(dir=folder))
    fleet.model.delay = delay = count / (capacity * load)
    async with fleet.sessions(count) as tasks:
        warm = STEPS * delay * 1.2
        found = {"asked": round(capacity * load), "delay": round(delay, 2), **await over(fleet, tasks, warm, seconds)}
    await fleet.close()
    return found


async def under_way_rarely(folder: str, seconds: float, capacity: float, count: int) -> Found:
    """The same without full garbage collections."""
    with rare_collections():
        return await under_way(folder, seconds, capacity, count)


async def _turns_ended(fleet: Fleet, tasks: Tasks, count: int, most: float) -> None:
    """Wait until so many turns have ended, so that not all sessions are at the same step."""
    until = time.perf_counter() + most
    while fleet.model.seen.turns < count and time.perf_counter() < until:
        _raise_failures(tasks)
        await asyncio.sleep(0.1)


def pauses(count: int, steps_per_second: float) -> Callable[[], float]:
    """Random pauses, of which the mean makes this many sessions ask for so many steps a second."""
    mean = max(count * STEPS / steps_per_second - STEPS * DELAY, 1e-3)
    dice = random.Random(7)
    return lambda: dice.expovariate(1 / mean)


async def paced_rarely(folder: str, seconds: float, capacity: float, count: int) -> Found:
    """The same without full garbage collections."""
    with rare_collections():
        return await paced(folder, seconds, capacity, count, RARE_LOADS)


async def collection(count: int) -> Found:
    """How long a full garbage collection takes while turns are under way."""
    fleet, gate = Fleet("", memory=True), Gate()
    fleet.model.holds = {1: gate}
    tasks = [asyncio.create_task(fleet.turn()) for _ in range(count)]
    while len(gate.waiting) < count:
        await asyncio.sleep(0.05)
        _raise_failures(tasks)
    gc.collect()
    started = time.process_time()
    gc.collect()
    took = time.process_time() - started
    gate.open(count)
    await asyncio.gather(*tasks)
    return {"ms": round(took * 1000, 1), "objects": len(gc.get_objects())}


async def soak(folder: str, seconds: float, capacity: float, count: int, load: float = 0.5) -> Found:
    """Memory over minutes at half load, without full garbage collections, which would hide cycles. The first third is
    warm-up."""
    with rare_collections():
        return await _soak(folder, seconds, capacity, count, load)


async def _soak(folder: str, seconds: float, capacity: float, count: int, load: float) -> Found:
    fleet = Fleet(tempfile.mkdtemp(dir=folder))
    samples: list[tuple[float, float]] = []
    async with fleet.sessions(count, pauses(count, capacity * load)) as tasks:
        begun = time.perf_counter()
        while (now := time.perf_counter() - begun) < seconds:
            await asyncio.sleep(min(1.0, seconds / 60))
            samples.append((now / 60, resident_kb() / 1024))
            _raise_failures(tasks)
    seen = fleet.model.seen
    steady = samples[len(samples) // 3 :]
    slope = statistics.linear_regression(*zip(*steady, strict=True)).slope
    await fleet.close()
    return {
        "minutes": round(seconds / 60, 1),
        "sessions": seen.turns,
        "steps": len(seen.overheads),
        "rss_mb": [round(mb, 1) for _, mb in samples[:: max(1, len(samples) // 30)]],
        "mb_per_minute": round(slope, 3),
        "rss_mb_end": round(samples[-1][1], 1),
        "overhead_ms": _percentiles(seen.overheads),
        "file_mb": round(fleet.size() / 1e6, 1),
        "bytes_per_session": round(fleet.size() / max(seen.turns, 1)),
    }


def main() -> int:
    options = _options()
    if options.memory:
        print(json.dumps(asyncio.run(memory(str(options.folder), options.sessions, options.memory))))
        return 0
    seconds = options.seconds
    with tempfile.TemporaryDirectory(prefix="load-", dir=options.folder) as folder:
        found: Found = {}
        for name, job in _jobs(folder, options, found):
            print(f"{time.strftime('%H:%M:%S')} {name} …", file=sys.stderr, flush=True)
            found[name] = asyncio.run(job())
            print(json.dumps(found[name]), file=sys.stderr, flush=True)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "steps": STEPS,
        "delay": DELAY,
        "seconds": seconds,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"about": about, **found}, indent=1) + "\n")
    return 0


def _jobs(
    folder: str, options: argparse.Namespace, found: Found
) -> Iterator[tuple[str, Callable[[], Coroutine[Any, Any, Found]]]]:
    """The measurements in order; the later ones need what the first ones found."""
    count, seconds = options.sessions, options.seconds
    yield "memory", lambda: memory_alone(tempfile.mkdtemp(dir=folder), count, GROUP)
    yield "memory at once", lambda: memory_alone(tempfile.mkdtemp(dir=folder), count, count)
    yield "saturation", lambda: saturation(folder, seconds, count)
    yield "without a store", lambda: saturation(folder, seconds, count, in_memory=True)
    capacity = found["saturation"][str(count)]["steps_per_second"]  # of as many sessions: fewer may do more
    yield "paced", lambda: paced(folder, seconds, capacity, count)
    yield "paced, rare collections", lambda: paced_rarely(folder, seconds, capacity, count)
    yield "under way", lambda: under_way(folder, seconds, capacity, count)
    yield "under way, rare collections", lambda: under_way_rarely(folder, seconds, capacity, count)
    yield "collection", lambda: collection(count)
    yield "soak", lambda: soak(folder, options.soak * 60, capacity, count)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000, help="sessions at once")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each load is measured")
    parser.add_argument("--soak", type=float, default=5.0, help="minutes of the soak: 30 for the long one")
    parser.add_argument("--folder", type=Path, default=None, help="where the SQLite files go")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--memory", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
