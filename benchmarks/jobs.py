"""The measurements. Each runs in a fresh process and returns plain data.

Within a round all contenders and configurations take their turn, in alternating order, so that a slow moment of the
machine hits them alike.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import adapters
import agents
import capable
import contexts
import handloop
import silent
from costs import Cost, cost_of, resident_kb, rounds, summary, timing
from work import work

from windlass import Agent, Approve, Ask, ToolCalling
from windlass.stores.memory import MemoryStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import Faults, Grammar, simulate

SIZES = (10, 100, 400, 2000)
HOOKS = (0, 1, 5, 20)
CONTENDERS: dict[str, Callable[[int], Callable[[], Awaitable[str]]]] = {
    "hand": handloop.ready,
    "windlass": agents.ready,
}

Samples = defaultdict[str, list[Cost]]


async def warm(contender: str, hooks: int = 0) -> Callable[[], Awaitable[str]]:
    """A turn to be measured, run once before: an agent is compiled at its first run."""
    turn = CONTENDERS[contender](hooks)
    await cost_of(turn, steps=2)
    return turn


async def step(seconds: float) -> dict[str, Any]:
    """The cost of a step in turns of different lengths. Every sample has the same number of steps."""
    samples: dict[int, Samples] = {size: defaultdict(list) for size in SIZES}
    for number in rounds(seconds):
        for size in SIZES:
            for contender in _order(list(CONTENDERS), number):
                turn = await warm(contender)
                cost = await cost_of(turn, size, turns=max(SIZES) // size)
                samples[size][contender].append(cost)
        samples[10]["renewed"].append(await cost_of(agents.renewed, 10, turns=max(SIZES) // 10))
    return {str(size): _summaries(found, max(SIZES)) for size, found in samples.items()}


async def hooks(seconds: float) -> dict[str, Any]:
    """The cost of a step with k no-op hooks at four points, and what one of them adds."""
    steps, turns = 100, 10
    samples: dict[int, Samples] = {count: defaultdict(list) for count in HOOKS}
    for number in rounds(seconds):
        for count in _order(list(HOOKS), number):
            for contender in _order(list(CONTENDERS), number):
                turn = await warm(contender, count)
                samples[count][contender].append(await cost_of(turn, steps, turns))
    found = {str(count): _summaries(costs, steps * turns) for count, costs in samples.items()}
    for count in HOOKS[1:]:
        found[str(count)]["added"] = {
            name: round((found[str(count)][name]["cpu"] - found["0"][name]["cpu"]) / count, 4) for name in CONTENDERS
        }
    return found


async def verbs(seconds: float) -> dict[str, Any]:
    """The cost of a step with one silent hook of each verb, and what the hook adds to the plain step."""
    steps, turns = 100, 5
    samples: Samples = defaultdict(list)
    for number in rounds(seconds):
        for name in _order([None, *silent.HOOKS], number):
            turn = silent.ready(name)
            await cost_of(turn, steps=2)
            silent.verify(name, steps=2, turns=1)
            samples[name or "plain"].append(await cost_of(turn, steps, turns))
            silent.verify(name, steps, turns)
    found = _summaries(samples, steps * turns)
    for name, hook in silent.HOOKS.items():
        added = round(found[name]["cpu"] - found["plain"]["cpu"], 4)
        found[name] |= {"added": added, "judged": hook.judged}
    return found


async def capabilities(seconds: float) -> dict[str, Any]:
    """The cost of a step with each capability, with all of them, and with their hooks doing nothing."""
    steps, turns = 100, 3
    samples: Samples = defaultdict(list)
    for number in rounds(seconds):
        for row in _order(list(capable.ROWS), number):
            team = capable.Team(row)
            await cost_of(team.turn, steps=2)
            samples[row].append(await cost_of(team.turn, steps, turns))
            await team.verify()
    return _summaries(samples, steps * turns)


async def latency(seconds: float) -> dict[str, Any]:
    """The wall time of a step where the model takes a millisecond.

    The error of a timer is larger than the overhead, so overheads are medians over pairs from the same round.
    """
    steps, delay = 20, 0.001
    configurations = [("hand", 0), ("windlass", 0), ("windlass", 1), ("windlass", 5)]
    turns = {(name, count): await warm(name, count) for name, count in configurations}
    samples: Samples = defaultdict(list)
    for number in rounds(seconds):
        for name, count in _order(configurations, number):
            samples[f"{name} {count}"].append(await cost_of(turns[name, count], steps, delay=delay))
    found = _summaries(samples, steps)
    for name in ("windlass 0", "windlass 1", "windlass 5"):
        found[name]["percent_over"] = {base: _percent_over(samples[name], samples[base]) for base in samples}
    return found


def _percent_over(costs: list[Cost], base: list[Cost]) -> float:
    ratio = statistics.median(one.wall / other.wall for one, other in zip(costs, base, strict=True))
    return round((ratio - 1) * 100, 3)


async def stream(seconds: float) -> dict[str, Any]:
    """The cost of a delta of text on its way to the consumer of a stream, also where steps and facts come between.

    A reply of 2,000 pieces; and a turn of 100 steps, each with 20 pieces, a tool call and more than five facts.
    """
    pieces, steps, each = 2000, 100, 20
    configurations = {
        "windlass 0": (agents.streaming(pieces), 1, pieces),
        "windlass 1": (agents.streaming(pieces, 1), 1, pieces),
        "hand 0": (handloop.streaming(pieces), 1, pieces),
        "hand 1": (handloop.streaming(pieces, 1), 1, pieces),
        "windlass facts": (agents.streaming(each), steps, each * steps),
    }
    samples: Samples = defaultdict(list)
    facts = 0
    for number in rounds(seconds):
        for name in _order(list(configurations), number):
            turn, length, expected = configurations[name]
            work.plan(length)
            with timing() as timer:
                deltas, told = await turn()
            if deltas != expected:
                raise RuntimeError(f"{name}: {deltas} deltas arrived instead of {expected}")
            samples[name].append(timer.cost)
            facts = max(facts, told)
    return {**_summaries(samples, pieces), "facts_per_step": facts / steps}


async def store(seconds: float) -> dict[str, Any]:
    """The cost of storing a turn in an SQLite file on tmpfs, against the hand loop's own file, and of reading it."""
    found: dict[str, Any] = {"bytes": {}, "resume_ms": {}}
    samples: Samples = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=_tmpfs(), prefix="bench-store-") as folder:
        for number in rounds(seconds):
            for name in _order(["hand", "pure", "unsafe"], number):
                samples[name].append(await _keep(name, f"{folder}/{name}{number}.db", 400, found["bytes"]))
        found |= _summaries(samples, 400)
        found["records_per_second"] = max([await _many(f"{folder}/many{at}.db") for at in range(3)])
        for steps in (500, 1000, 2000):
            found["resume_ms"][str(steps)] = await _resume(f"{folder}/{steps}.db", steps)
    for number in range(30):
        for name in _order(["memory", "none"], number):
            samples[name].append(await _in_memory(keeps=name == "memory", steps=2000))
    for name in ("memory", "none"):
        found[name] = summary(samples[name], 2000)
    return found


async def _keep(name: str, path: str, steps: int, sizes: dict[str, int]) -> Cost:
    """One turn, kept; the file is open when the time begins, and its size is taken when it is closed."""
    work.plan(steps)
    if name == "hand":
        file = handloop.File(path)
        with timing() as timer:
            text = await handloop.kept(file)
        file.close()
    else:
        kept = SQLiteStore(path)
        agent = Agent(
            agents.MODEL, tools=[agents.pure_add if name == "pure" else agents.add], store=kept, max_steps=None
        )
        await kept.put_pipeline("warm", b"")
        with timing() as timer:
            text = (await agent.run("go", session="s")).text
        await kept.verify("s")
        await kept.close()
        with closing(sqlite3.connect(path)) as db:
            db.execute("pragma wal_checkpoint(truncate)")
    if text != "done":
        raise RuntimeError(f"the turn ended with {text!r}")
    work.verify(1)
    sizes[name] = _size(path)
    return timer.cost


async def _many(path: str) -> float:
    """Records per second that 100 sessions write, each with a turn of 20 steps and a model that takes 1 ms."""
    kept = SQLiteStore(path)
    agent = Agent(agents.MODEL, tools=[agents.add], store=kept, max_steps=None)
    work.plan(20, delay=0.001)
    with timing() as timer:
        await asyncio.gather(*[agent.run("go", session=f"s{at}") for at in range(100)])
    work.verify(100)
    records = sum([len(await kept.read(f"s{at}")) for at in range(100)])
    await kept.close()
    return round(records / timer.cost.wall)


async def _resume(path: str, steps: int) -> float:
    """Milliseconds that a new agent takes to resume a turn that waits after this many steps."""
    work.plan(steps + 1)
    first = Agent(agents.MODEL, tools=[agents.add], store=SQLiteStore(path), max_steps=None)
    first.gate(ToolCalling)(lambda event: Ask() if event.turn.steps == steps - 1 else None)
    asked = (await first.run("go", session="s")).waiting_for[0]
    await first.store.close()
    again = Agent(agents.MODEL, tools=[agents.add], store=SQLiteStore(path), max_steps=None)
    again.gate(ToolCalling, name="<lambda>")(lambda event: None)
    again.compile()
    with timing() as timer:
        result = await again.resume("s", answers={asked.id: Approve()})
    if result.text != "done":
        raise RuntimeError(f"the turn ended with {result.text!r}")
    await again.store.close()
    return round(timer.cost.wall * 1000, 1)


async def _in_memory(*, keeps: bool, steps: int) -> Cost:
    """A turn in a memory store, or in one that keeps nothing.

    The kernel appends without waiting only to a `MemoryStore` itself, not to a subclass. So the method of one instance
    is replaced, and the log is checked: if the kernel takes another way, the job fails.
    """
    store = MemoryStore()
    if not keeps:
        store.append_now = lambda session, records, expected, claim=None: False  # type: ignore[method-assign]
    agent = Agent(agents.MODEL, tools=[agents.add], store=store, max_steps=None)
    work.plan(steps)
    with timing() as timer:
        result = await agent.run("go")  # held until the time is taken: without a store its records would be freed here
    if result.text != "done":
        raise RuntimeError(f"the turn ended with {result.text!r}")
    work.verify(1)
    kept = sum([len(await store.read(session)) for session in await store.sessions()])
    if kept < steps if keeps else kept > 0:
        raise RuntimeError(f"the store kept {kept} records of {steps} steps")
    return timer.cost


def _size(path: str) -> int:
    return os.path.getsize(path)


def _tmpfs() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None


async def concurrent(seconds: float) -> dict[str, Any]:
    """Many turns at once, served by one agent."""
    turns, steps, delay = 1000, 10, 0.01
    samples: Samples = defaultdict(list)
    for number in rounds(seconds):
        for contender in _order(list(CONTENDERS), number):
            turn = await warm(contender)
            work.plan(steps, delay)
            with timing() as timer:
                texts = await asyncio.gather(*[turn() for _ in range(turns)])
            if texts != ["done"] * turns:
                raise RuntimeError("not every turn ended with 'done'")
            work.verify(turns)
            samples[contender].append(timer.cost)
    return _summaries(samples, 1, scale=1e3)


async def construct(seconds: float) -> dict[str, Any]:
    """Making an agent from a ready-made model and tool, and compiling it."""
    batch = 100
    samples: Samples = defaultdict(list)
    for _ in rounds(seconds):
        for count in (0, 5):
            with timing() as timer:
                made = [agents.make(count) for _ in range(batch)]
            samples[f"make {count}"].append(timer.cost)
            with timing() as timer:
                for agent in made:
                    agent.compile()
            samples[f"compile {count}"].append(timer.cost)
            del made
    return _summaries(samples, batch)


async def simulation(seconds: float) -> dict[str, Any]:
    """Simulated sessions of ten steps with one call each: with faults, and without."""
    batch = 320
    grammar = Grammar(turns=(1, 1), steps=(9, 9), parallel=1, wrong=0.0)
    samples: Samples = defaultdict(list)
    kinds = {"faults": Faults(), "no faults": Faults.none()}
    for number in rounds(seconds):
        for name, faults in kinds.items():
            seeds = range(number * batch + 1, (number + 1) * batch + 1)
            with timing() as timer:
                report = simulate(agents.make, seeds=seeds, grammar=grammar, faults=faults)
            if report.sessions != batch or report.steps < 9 * batch:
                raise RuntimeError(f"the simulation did too little: {report}")
            samples[name].append(timer.cost)
    return _summaries(samples, batch)


async def models(seconds: float) -> dict[str, Any]:
    """Our part of talking to vendors: encoding as a turn grows, and decoding prepared chunks."""
    found: dict[str, Any] = {}
    count = max(3, round(seconds * 2))
    for name, make in adapters.ADAPTERS.items():
        adapter = make()
        found[name] = {"chunks_per_second": round(adapters.rate(adapter, count))}
        for what, injected in (("", False), (" with a part injected", True)):
            early, late = adapters.growth(adapter, count, injected=injected)
            found[name] |= {f"step 10{what}": early, f"step 400{what}": late}
    return found


async def memory(seconds: float) -> dict[str, Any]:
    """The resident memory of idle agents, before and after they are compiled."""
    count = 4000
    agents.make().compile()
    gc.collect()
    start = resident_kb()
    made = [agents.make() for _ in range(count)]
    gc.collect()
    waiting = resident_kb()
    for agent in made:
        agent.compile()
    gc.collect()
    compiled = resident_kb()
    return {
        "agents": count,
        "bytes_per_agent": round((waiting - start) * 1024 / count),
        "bytes_per_compiled_agent": round((compiled - start) * 1024 / count),
    }


async def context(seconds: float) -> dict[str, Any]:
    """The share of a long session that a vendor's cache serves, and the cost of assembly and a step after it.

    The cost of a step is what 100 more steps add to a turn, so it excludes the fixed cost of a turn.
    """
    found: dict[str, Any] = {"cache": await contexts.cached(), "assembly": {}, "step": {}}
    assembled: Samples = defaultdict(list)
    turns: dict[tuple[int, int], list[Cost]] = defaultdict(list)
    for number in rounds(seconds):
        for name, injected in (("nothing", False), ("injected", True)):
            assembled[name].append(contexts.assembly(2000, injected))
        for before in _order([10, 1000], number):
            for steps in (100, 200):
                turns[before, steps].append(await contexts.turn_after(before, steps))
    found["assembly"] = _summaries(assembled, 1)
    for before in (10, 1000):
        more, less = (min([cost.cpu for cost in turns[before, steps]]) for steps in (200, 100))
        found["step"][str(before)] = (more - less) / 100 * 1e6
    return found


HELP = """
import contextlib, io
from windlass.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["--help"], standalone_mode=False)
"""
IMPORTS = {"empty": "pass", "hand": "import asyncio, json", "windlass": "import windlass", "help": HELP}
CHILD = """
import time
wall = time.perf_counter()
{statement}
wall, cpu = time.perf_counter() - wall, time.process_time()
import sys
modules = len(sys.modules)
with open("/proc/self/status") as status:
    resident = next(line for line in status if line.startswith("VmRSS")).split()[1]
print(wall, cpu, resident, modules)
"""


async def imports(seconds: float) -> dict[str, Any]:
    """An import in a fresh interpreter: the CPU time of the process up to its end, and the memory it then has."""
    samples: Samples = defaultdict(list)
    resident: defaultdict[str, list[int]] = defaultdict(list)
    modules: dict[str, int] = {}
    for name in IMPORTS:
        _import(name)  # writes the bytecode
    for number in rounds(seconds):
        for name in _order(list(IMPORTS), number):
            wall, cpu, kb, modules[name] = _import(name)
            samples[name].append(Cost(wall, cpu))
            resident[name].append(kb)
    found = _summaries(samples, 1, scale=1e3)
    for name, costs in found.items():
        costs |= {"rss_mb": round(min(resident[name]) / 1024, 2), "modules": modules[name]}
    return found


def _import(name: str) -> tuple[float, float, int, int]:
    code = CHILD.format(statement=IMPORTS[name])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    wall, cpu, resident, modules = done.stdout.split()
    return float(wall), float(cpu), int(resident), int(modules)


def _order(names: list[Any], number: int) -> list[Any]:
    return names if number % 2 == 0 else names[::-1]


def _summaries(samples: Samples, units: float, scale: float = 1e6) -> dict[str, dict[str, Any]]:
    return {name: summary(costs, units, scale) for name, costs in samples.items()}


JOBS: dict[str, tuple[Callable[[float], Any], float]] = {
    "step": (step, 24.0),
    "hooks": (hooks, 18.0),
    "verbs": (verbs, 24.0),
    "capabilities": (capabilities, 30.0),
    "latency": (latency, 14.0),
    "stream": (stream, 6.0),
    "store": (store, 8.0),
    "context": (context, 12.0),
    "imports": (imports, 7.0),
    "construct": (construct, 3.0),
    "concurrent": (concurrent, 10.0),
    "simulation": (simulation, 6.0),
    "models": (models, 6.0),
    "memory": (memory, 0.0),
}


def run_job(name: str, share: float) -> dict[str, Any]:
    """Run one job in this process, for a share of its default time."""
    job, seconds = JOBS[name]
    return asyncio.run(job(seconds * share))
