"""The results as rows: the measured costs, the figure that is judged, and its bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Found = dict[str, Any]
Pair = tuple[float | None, float | None]
NOTHING: Pair = (None, None)


class Row(NamedTuple):
    """One line of the table: costs of Windlass and of the hand loop, a figure, and its bar if it has one."""

    job: str
    what: str
    cpu: Pair = NOTHING
    wall: Pair = NOTHING
    figure: float | None = None
    unit: str = "×"
    bar: float | None = None

    @property
    def missed(self) -> bool:
        return self.bar is not None and self.figure is not None and self.figure > self.bar


def step_rows(found: Found) -> Iterator[Row]:
    for size, costs in found.items():
        cpu = _pair(costs, "cpu")
        bar = 4.0 if int(size) >= 100 else None
        yield Row("step", f"N={size}", cpu, _pair(costs, "wall"), _ratio(cpu), bar=bar)
    short = found["10"]
    renewed = short["renewed"]["cpu"], short["hand"]["cpu"]
    wall = short["renewed"]["wall"], short["hand"]["wall"]
    yield Row("step", "N=10, each turn with an agent of its own", renewed, wall, _ratio(renewed))
    for small, bar in (("10", 1.2), ("100", None)):
        yield Row("step", f"growth, N=2000 over N={small}", figure=_growth(found, "windlass", small), bar=bar)
        yield Row("step", f"  of the hand loop, over N={small}", figure=_growth(found, "hand", small))


def _growth(found: Found, contender: str, small: str) -> float:
    return found["2000"][contender]["cpu"] / found[small][contender]["cpu"]


def hook_rows(found: Found) -> Iterator[Row]:
    for count, costs in found.items():
        cpu = _pair(costs, "cpu")
        yield Row("hooks", f"k={count}, a step", cpu, _pair(costs, "wall"), _ratio(cpu))
    for count, costs in found.items():
        if "added" in costs:
            added = costs["added"]["windlass"], costs["added"]["hand"]
            bar = 2.4 if count == "20" else None
            yield Row("hooks", f"k={count}, added per object and step", added, figure=_ratio(added), bar=bar)
    more = tuple((found["20"][name]["cpu"] - found["5"][name]["cpu"]) / 15 for name in ("windlass", "hand"))
    yield Row("hooks", "k=5 to 20, added per further object", more, figure=_ratio(more), bar=2.0)


def verb_rows(found: Found) -> Iterator[Row]:
    plain = found["plain"]
    yield Row("verbs", "the plain step", (plain["cpu"], None), (plain["wall"], None))
    for name, costs in found.items():
        if name != "plain":
            added, bar = costs["added"], 0.3 if costs["judged"] else None
            yield Row("verbs", f"+ {name}", (added, None), figure=added / plain["cpu"], bar=bar)


def capability_rows(found: Found) -> Iterator[Row]:
    bare = found["bare"]
    yield Row("capabilities", "the bare step", (bare["cpu"], None), (bare["wall"], None))
    for name, costs in found.items():
        if name not in ("bare", "all", "silent"):
            added = costs["cpu"] - bare["cpu"]
            yield Row("capabilities", f"+ {name}", (added, None), figure=costs["cpu"] / bare["cpu"])
    for name, what, bar in (("silent", "all their hooks, doing nothing", None), ("all", "all at once", 3.0)):
        costs = found[name]
        yield Row(
            "capabilities", what, (costs["cpu"], None), (costs["wall"], None), costs["cpu"] / bare["cpu"], bar=bar
        )


def latency_rows(found: Found) -> Iterator[Row]:
    hand = found["hand 0"]["wall_median"]
    for count, bar in (("0", None), ("1", 5.0), ("5", 10.0)):
        costs = found[f"windlass {count}"]
        wall, over = costs["wall_median"], costs["percent_over"]
        yield Row(
            "latency", f"lifecycles: {count}, over the hand loop", NOTHING, (wall, hand), over["hand 0"], "%", bar
        )
        if bar is not None:
            yield Row("latency", f"lifecycles: {count}, over none", figure=over["windlass 0"], unit="%", bar=bar)


def stream_rows(found: Found) -> Iterator[Row]:
    for count in ("0", "1"):
        cpu = found[f"windlass {count}"]["cpu"], found[f"hand {count}"]["cpu"]
        what = f"{1 / cpu[0]:.2f} million a second, transformers: {count}"
        yield Row("stream", what, cpu, figure=cpu[0], unit="µs", bar=2.0 if count == "1" else None)
    cost = found["windlass facts"]["cpu"]
    what = f"{1 / cost:.2f} million a second, {found['facts_per_step']:.0f} facts a step"
    yield Row("stream", what, (cost, None), figure=cost, unit="µs", bar=10.0)


def store_rows(found: Found) -> Iterator[Row]:
    for name, what, bar in (("pure", "one commit a step", 3.0), ("unsafe", "an unsafe tool, two commits a step", None)):
        wall = found[name]["wall"], found["hand"]["wall"]
        cpu = found[name]["cpu"], found["hand"]["cpu"]
        yield Row("store", f"SQLite, {what}", cpu, wall, _ratio(wall), bar=bar)
    for name in ("pure", "unsafe"):
        size = found["bytes"][name] / found["bytes"]["hand"]
        yield Row("store", f"bytes of N=400, {name} tool", figure=size, bar=2.0)
    rate = found["records_per_second"]
    yield Row("store", f"100 sessions: {rate:,} records a second", figure=1e6 / rate, unit="µs", bar=100.0)
    times = found["resume_ms"]
    yield Row("store", "resume after 2,000 steps", figure=times["2000"], unit="ms", bar=100.0)
    yield Row("store", "  over that after 500, per step", figure=times["2000"] / times["500"] / 4)
    memory = found["memory"]["cpu"], found["none"]["cpu"]
    percent = (memory[0] / memory[1] - 1) * 100
    yield Row("store", "a step in memory, over none kept", memory, figure=percent, unit="%", bar=30.0)


def context_rows(found: Found) -> Iterator[Row]:
    cache = found["cache"]
    what = f"{cache['hit_percent']:.1f} % of {cache['input_tokens'] / 1e6:.1f} million tokens hit; missed"
    yield Row("context", what, figure=100 - cache["hit_percent"], unit="%", bar=10.0)
    for name, what in (("nothing", "assembly of 2,000 messages"), ("injected", "  with parts of the turn")):
        costs = found["assembly"][name]
        yield Row("context", what, (costs["cpu"], None), (costs["wall"], None), costs["cpu"], "µs", 1000.0)
    short, long = found["step"]["10"], found["step"]["1000"]
    yield Row("context", "a step after 1,000 steps, over 10", (long, None), figure=long / short, bar=1.5)


def import_rows(found: Found) -> Iterator[Row]:
    cpu = _pair(found, "cpu")
    yield Row("imports", "the process", cpu, figure=_ratio(cpu), bar=2.0)
    net = tuple(ms - found["empty"]["cpu"] for ms in cpu)
    yield Row("imports", "less an empty process", net, _pair(found, "wall"), net[0] / net[1])
    shown = found["help"]
    yield Row("imports", "windlass --help", (shown["cpu"], None), (shown["wall"], None), shown["cpu"], "ms", 150.0)
    rss = found["windlass"]["rss_mb"]
    yield Row("imports", f"VmRSS (hand loop {found['hand']['rss_mb']:.1f} MB)", figure=rss, unit="MB", bar=30.0)


def construct_rows(found: Found) -> Iterator[Row]:
    for key, what, bar in (
        ("make 0", "Agent(model, tools=[add])", 50.0),
        ("make 5", "with 5 lifecycles", None),
        ("compile 0", "compile, at the first run", None),
        ("compile 5", "compile with 5 lifecycles", None),
    ):
        costs = found[key]
        yield Row("construct", what, (costs["cpu"], None), (costs["wall"], None), costs["cpu"], "µs", bar)


def concurrent_rows(found: Found) -> Iterator[Row]:
    cpu, wall = _pair(found, "cpu"), _pair(found, "wall")
    yield Row("concurrent", "CPU", cpu, figure=_ratio(cpu), bar=3.0)
    yield Row("concurrent", "wall", NOTHING, wall, _ratio(wall))


def simulation_rows(found: Found) -> Iterator[Row]:
    for name, bar in (("faults", 2000.0), ("no faults", None)):
        cost = found[name]
        what = f"a session with {name}: {1e6 / cost['cpu']:.0f} a second"
        yield Row("simulation", what, (cost["cpu"], None), (cost["wall"], None), cost["cpu"], "µs", bar)


def model_rows(found: Found) -> Iterator[Row]:
    for name, costs in found.items():
        for key, what in (("", ""), (" with a part injected", ", part injected")):
            pair = costs[f"step 400{key}"], costs[f"step 10{key}"]
            yield Row("models", f"{name}: step 400 over 10{what}", pair, figure=_ratio(pair), bar=1.3)
    for name, costs in found.items():
        rate = costs["chunks_per_second"]
        yield Row("models", f"{name}: {rate:,} chunks a second", figure=1e6 / rate, unit="µs", bar=10.0)


def memory_rows(found: Found) -> Iterator[Row]:
    yield Row("memory", "an idle agent", figure=found["bytes_per_agent"] / 1024, unit="KB")
    yield Row("memory", "an idle agent, compiled", figure=found["bytes_per_compiled_agent"] / 1024, unit="KB")


def _pair(found: Found, key: str) -> tuple[float, float]:
    return found["windlass"][key], found["hand"][key]


def _ratio(pair: tuple[float, float]) -> float:
    return pair[0] / max(pair[1], 1e-3)


ROWS: dict[str, tuple[str, Callable[[Found], Iterator[Row]]]] = {
    "step": ("step: a model without latency, one tool call per step; µs per step", step_rows),
    "hooks": ("hooks: k no-op objects at before, after, wrap-model and wrap-tool, N=100; µs", hook_rows),
    "verbs": (
        "verbs: what silent hooks add to the plain step, N=100; µs, and as a share of the plain step",
        verb_rows,
    ),
    "capabilities": (
        "capabilities: what each adds to the bare step, N=100; µs, and the step over the bare step",
        capability_rows,
    ),
    "latency": ("latency: a model that takes 1 ms; µs per step, medians", latency_rows),
    "stream": ("stream: a delta of text, from the model to the consumer; µs", stream_rows),
    "store": ("store: N=400 in an SQLite file on tmpfs, synchronous=FULL; µs per step", store_rows),
    "context": (
        "context: a session of 300 steps, 5 hooks that inject, 2 compactions, on a simulated cache; µs",
        context_rows,
    ),
    "imports": (
        "imports: `import windlass` over `import asyncio, json`; ms (judged: CPU of the process)",
        import_rows,
    ),
    "construct": ("construct: µs", construct_rows),
    "concurrent": ("concurrent: 1,000 turns of N=10 at once, a model that takes 10 ms; ms", concurrent_rows),
    "simulation": ("simulation: a session of ten steps, with invariants checked; µs", simulation_rows),
    "models": ("models: our part of encoding a request and of decoding a chunk, per adapter", model_rows),
    "memory": ("memory: resident", memory_rows),
}


def rows(results: dict[str, Found]) -> list[Row]:
    """The rows of all jobs that ran."""
    return [row for job, found in results.items() for row in ROWS[job][1](found)]


def table(given: list[Row]) -> str:
    """The rows as plain text."""
    lines = [
        f"{'':<44}{'CPU':>22}{'wall':>22}",
        f"{'':<44}{'Windlass':>11}{'by hand':>11}{'Windlass':>11}{'by hand':>11}{'figure':>12}{'bar':>9}",
    ]
    job = None
    for row in given:
        if row.job != job:
            job = row.job
            lines += ["", ROWS[job][0]]
        lines.append(_line(row))
    return "\n".join(lines)


def _line(row: Row) -> str:
    costs = "".join(f"{'' if cost is None else format(cost, '.2f'):>11}" for cost in (*row.cpu, *row.wall))
    figure = "" if row.figure is None else f"{row.figure:.2f} {row.unit}"
    bar = "" if row.bar is None else f"{row.bar:g} {row.unit}"
    verdict = "" if row.bar is None else "FAIL" if row.missed else "ok"
    return f"  {row.what:<42}{costs}{figure:>12}{bar:>9}  {verdict}".rstrip()
