"""One job of one contender, in this process: `measure.py CONTENDER JOB SECONDS` prints the results as JSON.

Every sample is verified: the tool ran as often as the turn asks for it, with the right arguments, every hook was called
as often as it should be, and the final text is right. A loop written by hand runs between the samples; what it costs
says how quick the machine was meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent)]  # after everything else: no module here hides a package of a contender

import handloop
from contender import DELTA, DELTAS, Contender, Variant, script
from costs import Cost, rounds, summary, timing
from work import work

SIZES = (10, 100, 400)
HOOKS = (0, 1, 5, 20)
AT_ONCE, AT_ONCE_STEPS, AT_ONCE_DELAY = 1000, 10, 0.01
KEPT = 100
DEEP = {"strands"}  # its calls nest deeper with every step, beyond Python's default limit
Costs = dict[str, Any]


def supply(contender: Contender, **options: Any) -> Callable[[], Any]:
    """A function that returns an agent for the next turn: always the same one, unless agents keep conversations."""
    agent = contender.make(**options)
    return (lambda: contender.make(**options)) if contender.remembers else (lambda: agent)


async def sample(contender: Contender, agents: Callable[[], Any], steps: int, calls: int = 0, turns: int = 1) -> Cost:
    """The cost of turns one after the other; raises unless they did the work and called hooks `calls` times each."""
    work.plan(steps)
    script.hooks = 0
    served = [agents() for _ in range(turns)]
    with timing() as timer:
        for agent in served:
            if (text := await contender.turn(agent)) != "done":
                raise RuntimeError(f"the turn ended with {text!r}")
    work.verify(turns)
    if script.hooks != turns * calls:
        raise RuntimeError(f"the hooks were called {script.hooks} times instead of {turns * calls}")
    return timer.cost


def verify(text: str, turns: int) -> None:
    if text != "done":
        raise RuntimeError(f"the turn ended with {text!r}")
    work.verify(turns)


async def calibrate() -> float:
    """CPU microseconds of a step of the loop written by hand, now."""
    work.plan(100)
    with timing() as timer:
        for _ in range(5):
            await handloop.loop(handloop.fake_model, {"add": handloop.add}, "go")
    work.verify(5)
    return timer.cost.cpu / 500 * 1e6


class Samples:
    """The costs of configurations of one job, and how quick the machine was meanwhile."""

    def __init__(self) -> None:
        self.costs: dict[str, list[Cost]] = {}
        self.hand: list[float] = []

    async def until(self, seconds: float, configurations: dict[str, Callable[[], Awaitable[Cost]]]) -> None:
        """Measure the configurations in turn, in alternating order, until the time is up."""
        names = list(configurations)
        for number in rounds(seconds, least=2):
            self.hand.append(await calibrate())
            for name in names if number % 2 == 0 else names[::-1]:
                self.costs.setdefault(name, []).append(await configurations[name]())

    def found(self, units: dict[str, int], scale: float = 1e6) -> Costs:
        """The summaries by configuration, per unit."""
        costs = {name: summary(costs, units[name], scale) for name, costs in self.costs.items()}
        return {**costs, "hand": round(min(self.hand), 3)}


async def step(contender: Contender, seconds: float) -> Costs:
    """The cost of a step in turns of different lengths, and of further steps early and late in a turn.

    Every sample has the same number of steps, so short turns are measured several at a time.
    """
    await sample(contender, supply(contender), 10)
    samples, each = Samples(), max(SIZES)

    def of(size: int) -> Callable[[], Awaitable[Cost]]:
        async def measure() -> Cost:
            agents = supply(contender)
            await sample(contender, agents, 2)
            return await sample(contender, agents, size, turns=each // size)

        return measure

    await samples.until(seconds, {str(size): of(size) for size in SIZES})
    found = samples.found({str(size): each for size in SIZES})
    total = {size: found[str(size)]["cpu"] * size for size in SIZES}
    found["early"] = round((total[100] - total[10]) / 90, 3)
    found["late"] = round((total[400] - total[100]) / 300, 3)
    return found


async def hooks(contender: Contender, seconds: float) -> Costs:
    """The cost of a step with k no-op hook objects."""
    samples = Samples()
    for count in HOOKS:
        await sample(contender, supply(contender, hooks=count), 10, count * contender.hook_calls(10))

    def of(count: int) -> Callable[[], Awaitable[Cost]]:
        async def measure() -> Cost:
            agents = supply(contender, hooks=count)
            await sample(contender, agents, 2, count * contender.hook_calls(2))
            return await sample(contender, agents, 100, count * contender.hook_calls(100))

        return measure

    await samples.until(seconds, {str(count): of(count) for count in HOOKS})
    return samples.found({str(count): 100 for count in HOOKS})


async def variants(contender: Contender, seconds: float) -> Costs:
    """The cost of a step with other settings, each of them a function that makes such an agent."""
    samples = Samples()

    def of(variant: Variant) -> Callable[[], Awaitable[Cost]]:
        async def measure() -> Cost:
            agent = variant.make()
            await sample(contender, lambda: agent, 2, variant.calls(2))
            return await sample(contender, lambda: agent, 100, variant.calls(100))

        return measure

    await samples.until(seconds, {name: of(variant) for name, variant in contender.variants.items()})
    return samples.found(dict.fromkeys(contender.variants, 100))


async def construct(contender: Contender, seconds: float) -> Costs:
    """Making an agent, with and without hook objects."""
    samples = Samples()

    def of(count: int, batch: int = 10) -> Callable[[], Awaitable[Cost]]:
        async def measure() -> Cost:
            with timing() as timer:
                made = [contender.make(hooks=count) for _ in range(batch)]
            del made
            return timer.cost

        return measure

    counts = (0, 5, 20)
    await samples.until(seconds, {str(count): of(count) for count in counts})
    return samples.found({str(count): 10 for count in counts})


async def idle(contender: Contender, seconds: float) -> Costs:
    """The resident memory of agents that do nothing."""
    kept = [contender.make() for _ in range(10)]
    gc.collect()
    start = status_kb("VmRSS")
    kept += [contender.make() for _ in range(1000)]
    gc.collect()
    return {"kb_per_agent": round((status_kb("VmRSS") - start) / 1000, 2)}


async def concurrent(contender: Contender, seconds: float) -> Costs:
    """Many turns at once on one event loop, with a model that takes 10 ms."""
    await sample(contender, supply(contender), AT_ONCE_STEPS)
    start, ideal = status_kb("VmRSS"), AT_ONCE_STEPS * AT_ONCE_DELAY
    samples = Samples()

    async def measure() -> Cost:
        supplied = supply(contender)
        agents = [supplied() for _ in range(AT_ONCE)]
        work.plan(AT_ONCE_STEPS, AT_ONCE_DELAY)
        with timing() as timer:
            texts = await asyncio.gather(*[contender.turn(agent) for agent in agents])
        for text in set(texts):
            verify(text, AT_ONCE)
        return timer.cost

    samples.costs["seconds"] = []
    for number in rounds(seconds, least=1):
        samples.hand.append(await calibrate())
        samples.costs["seconds"].append(await measure())
        if number == 0:
            grown = status_kb("VmHWM") - start
    found = samples.found({"seconds": 1}, scale=1)
    return {**found, "ideal": ideal, "grown_mb": round(grown / 1024, 1)}


async def stream(contender: Contender, seconds: float) -> Costs:
    """The cost of a piece of text on its way from the model to the program."""
    samples = Samples()

    def of(variant: str) -> Callable[[], Awaitable[Cost]]:
        async def measure() -> Cost:
            work.plan(1)
            script.hooks = count = 0
            with timing() as timer:
                async for text in contender.stream(variant):
                    count += len(text)
            if count != DELTAS * len(DELTA):
                raise RuntimeError(f"{count} characters arrived")
            if (", 1 " in variant) != (script.hooks > 0):
                raise RuntimeError(f"the transformer was called {script.hooks} times")
            return timer.cost

        return measure

    await samples.until(seconds, {variant: of(variant) for variant in contender.streams})
    return samples.found(dict.fromkeys(contender.streams, DELTAS))


async def store(contender: Contender, seconds: float) -> Costs:
    """The cost of a stored turn per step, and what it leaves on the disk once the store is closed."""
    found: Costs = {}
    for variant in contender.stores:
        samples, sizes = Samples(), dict.fromkeys(map(str, SIZES), 0)

        def of(steps: int, variant: str = variant, sizes: dict[str, int] = sizes) -> Callable[[], Awaitable[Cost]]:
            async def measure() -> Cost:
                with tempfile.TemporaryDirectory(dir=tmpfs(), prefix="peers-") as folder:
                    async with contender.kept(variant, folder) as turn:
                        cost = await kept_turn(turn, steps)
                    sizes[str(steps)] = size_of(folder)
                return cost

            return measure

        await samples.until(seconds / len(contender.stores), {str(size): of(size) for size in SIZES})
        found[variant] = {**samples.found({str(size): size for size in SIZES}), "bytes": sizes}
    return found


async def resume(contender: Contender, seconds: float) -> Costs:
    """The cost of opening a stored session of 100 steps again and answering one more message."""
    found: Costs = {}
    for variant in contender.stores:
        with tempfile.TemporaryDirectory(dir=tmpfs(), prefix="peers-") as folder:
            async with contender.kept(variant, folder) as turn:
                await kept_turn(turn, KEPT)
            samples = Samples()
            number = 0

            async def again(variant: str = variant, folder: str = folder) -> Cost:
                nonlocal number
                number += 1
                shutil.copytree(folder, copy := f"{folder}-{number}")
                try:
                    return await continued(contender, variant, copy)
                finally:
                    shutil.rmtree(copy)

            await samples.until(seconds / len(contender.stores), {"ms": again})
        found[variant] = samples.found({"ms": 1}, scale=1e3)
    return found


async def continued(contender: Contender, variant: str, folder: str) -> Cost:
    """The cost of one more message in a stored session; raises unless the model was shown the whole history."""
    script.continues, script.shown = True, 0
    try:
        with timing() as timer:
            async with contender.kept(variant, folder) as turn:
                text = await turn()
    finally:
        script.continues = False
    if text != "done" or script.shown != 2 * KEPT + 1:
        raise RuntimeError(f"the model was shown {script.shown} messages instead of {2 * KEPT + 1}, and said {text!r}")
    return timer.cost


async def kept_turn(turn: Callable[[], Awaitable[str]], steps: int) -> Cost:
    work.plan(steps)
    with timing() as timer:
        text = await turn()
    verify(text, 1)
    return timer.cost


CHILD = """
import time
{statement}
cpu = time.process_time()
import sys
with open("/proc/self/status") as status:
    resident = next(line for line in status if line.startswith("VmRSS")).split()[1]
print(cpu, resident, len(sys.modules))
"""


def imports(contender: Contender, seconds: float) -> Costs:
    """An import in a fresh interpreter: the CPU time of the process up to its end, and the memory it then has.

    `answer` is the CPU time of a process of this harness up to the first answer of an agent: some packages load most of
    themselves when they are used.
    """
    seen: dict[str, list[list[float]]] = {}
    statements = {"empty": "pass", "hand": "import asyncio, json", "peer": contender.statement}
    for _ in range(2):  # writes the bytecode
        imported(contender.statement)
    for number in rounds(seconds):
        for name in list(statements)[:: 1 if number % 2 else -1]:
            seen.setdefault(name, []).append(imported(statements[name]))
    answers = [answered(contender.file) for _ in rounds(seconds / 2)]
    best = {name: [min(column) for column in zip(*found, strict=True)] for name, found in seen.items()}
    return {
        "ms": round(best["peer"][0] * 1000, 1),
        "empty": round(best["empty"][0] * 1000, 1),
        "hand": round(best["hand"][0] * 1000, 1),
        "answer": round(min(answers) * 1000, 1),
        "rss_mb": round(best["peer"][1] / 1024, 1),
        "modules": int(best["peer"][2]),
    }


def imported(statement: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(statement=statement)], capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def answered(name: str) -> float:
    done = subprocess.run(
        [sys.executable, str(HERE / "measure.py"), name, "answer", "0"], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


async def answer(contender: Contender, seconds: float) -> float:
    """The CPU seconds of this process until its first turn, with one tool call, has ended."""
    work.plan(2)
    verify(await contender.turn(contender.make()), 1)
    return time.process_time()


def footprint(contender: Contender) -> Costs:
    """The version, and what the environment holds: distributions and megabytes without bytecode."""
    packages = Path(next(path for path in sys.path if path.endswith("site-packages")))
    tools = {"pip", "setuptools", "_distutils_hack", "distutils", "pkg_resources"}  # what venv puts there
    folders = [path for path in packages.iterdir() if path.name.partition("-")[0] not in tools]
    files = [path for folder in folders for path in (folder, *folder.rglob("*")) if path.is_file()]
    names = {str(found.metadata["Name"]).lower() for found in importlib.metadata.distributions(path=[str(packages)])}
    return {
        "name": contender.name,
        "version": importlib.metadata.version(contender.distribution) if contender.distribution else None,
        "hook_points": contender.hook_points,
        "notes": contender.notes,
        "python": platform.python_version(),
        "distributions": len(names - tools),
        "megabytes": round(sum(path.stat().st_size for path in files if path.suffix != ".pyc") / 1e6, 1),
    }


def status_kb(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise RuntimeError(f"no {key} in /proc/self/status")


def size_of(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def tmpfs() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None


# Name, what measures it, and seconds for a full measurement.
JOBS: dict[str, tuple[Callable[[Contender, float], Any], float]] = {
    "footprint": (lambda contender, seconds: footprint(contender), 0.0),
    "imports": (imports, 8.0),
    "answer": (answer, 0.0),
    "step": (step, 16.0),
    "hooks": (hooks, 10.0),
    "variants": (variants, 4.0),
    "construct": (construct, 2.0),
    "idle": (idle, 0.0),
    "concurrent": (concurrent, 8.0),
    "stream": (stream, 4.0),
    "store": (store, 10.0),
    "resume": (resume, 4.0),
}


def applies(job: str, contender: Contender) -> bool:
    """Whether there is anything to measure."""
    return {
        "variants": bool(contender.variants),
        "concurrent": contender.parallel,
        "stream": bool(contender.streams),
        "store": bool(contender.stores),
        "resume": bool(contender.stores),
    }.get(job, True)


def load(name: str) -> Contender:
    spec = importlib.util.spec_from_file_location(f"contender_{name}", HERE / "contenders" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Contender = module.CONTENDER
    found.file = name
    return found


def measure(contender: Contender, job: str, share: float) -> Costs | None:
    """The results of a job, or None if it does not apply."""
    if not applies(job, contender):
        return None
    function, seconds = JOBS[job]
    found = function(contender, seconds * share)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


def main() -> None:
    name, job, share = sys.argv[1:]
    found: list[Costs | None] = []

    def run() -> None:
        found.append(measure(load(name), job, float(share)))

    if name in DEEP:
        sys.setrecursionlimit(1_000_000)
        threading.stack_size(1 << 29)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    if not found:
        sys.exit(f"{name} failed in {job}")
    print("\n" + json.dumps(found[0]))


if __name__ == "__main__":
    main()
