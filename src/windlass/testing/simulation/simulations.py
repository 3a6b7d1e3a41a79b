"""Deterministic simulation of an agent: thousands of sessions, each decided by its seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from time import perf_counter
from typing import Any, TypeAlias

from windlass._progress import Report, check_progress
from windlass.agent import Agent
from windlass.errors import ConfigError
from windlass.protocols import Store
from windlass.stores import MemoryStore

from .adopting import Original, adopt, tool_names
from .batches import Played, Setting, play, simulating
from .choices import SimulatedCase
from .faults import Faults
from .grammar import Grammar, Speaker
from .invariants import Invariant
from .reports import (
    NONDETERMINISM,
    PATIENCE,
    Failure,
    SimulationFailed,
    SimulationProgress,
    SimulationReport,
    test_of,
)
from .shrinking import shrink
from .suspects import Suspects
from .variables import Variables
from .worlds import SimulatedWorld, Violation

Target: TypeAlias = Agent[Any, Any] | Callable[[], Agent[Any, Any]] | Callable[[SimulatedWorld], Agent[Any, Any]]

BESIDE = 32
"""How many sessions share an event loop."""

SAMPLE = 100
"""One of so many seeds is run twice, also if nothing is wrong with it."""

AGAIN = 20
"""How many more times a case is run: what outlives a session may show only now and then."""

SHRUNK = 3
"""How many failures, each of another check, are made smaller."""


class Simulation:
    """How to simulate an agent: `Simulation(build, invariants=[…]).run(seeds=1000)`. See `simulate`."""

    def __init__(
        self,
        target: Target,
        *,
        grammar: Grammar | None = None,
        faults: Faults | None = None,
        invariants: Iterable[Invariant] = (),
        tools: Mapping[str, Callable[..., Any]] | None = None,
        scope: Any = None,
        store: Callable[[], Store] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        if not isinstance(target, Agent) and not callable(target):
            raise ConfigError(f"simulate({target!r:.80}): give an agent, or a function that builds one")
        self.target = target
        self.grammar = grammar or Grammar()
        self.faults = faults or Faults()
        self.invariants = tuple(invariants)
        self.tools = dict(tools or {})
        self.scope = scope
        self.store = store or _memory
        self.patience = patience
        self._takes_world = not isinstance(target, Agent) and _takes_argument(target)

    def run(
        self,
        *,
        seeds: int | Iterable[int] = 200,
        case: SimulatedCase | None = None,
        progress: bool | Callable[[SimulationProgress], object] = False,
    ) -> SimulationReport:
        """Simulate a session for each seed, or one case. Raises `SimulationFailed` if anything is wrong."""
        report = self.report(seeds=seeds, case=case, progress=progress)
        if report.failures:
            raise SimulationFailed(report)
        return report

    def report(
        self,
        *,
        seeds: int | Iterable[int] = 200,
        case: SimulatedCase | None = None,
        progress: bool | Callable[[SimulationProgress], object] = False,
    ) -> SimulationReport:
        """The same, without raising: the report has the failures."""
        check_progress(progress, "simulate")
        cases = [case] if case is not None else [SimulatedCase(seed) for seed in _seeds(seeds)]
        with self._simulated() as setting:
            return _Run(self, setting, progress).over(cases, twice=case is not None)

    def logs(self, seeds: Iterable[int]) -> dict[int, list[str]]:
        """The logs of some seeds, line by line, to compare them with those of another process."""
        with self._simulated() as setting:
            played = [play(setting, [SimulatedCase(seed)])[0] for seed in seeds]
        return {each.seed: each.lines for each in played}

    @contextmanager
    def _simulated(self) -> Generator[Setting, None, None]:
        with ExitStack() as stack:
            original = stack.enter_context(Original(self.target)) if isinstance(self.target, Agent) else None
            stack.enter_context(simulating())
            yield self._setting(original)

    def _setting(self, original: Original | None) -> Setting:
        checked = False

        def build(world: SimulatedWorld) -> Agent[Any, Any]:
            nonlocal checked
            made = original.copied(self.tools) if original is not None else self._built(world)
            if not checked:
                self._check_tools(made)
                checked = True
            return made

        scope = self.scope
        return Setting(
            build,
            self.grammar,
            self.faults,
            self.invariants,
            self.store,
            scope if inspect.isroutine(scope) else lambda: scope,
            self.patience,
            self._variables(),
        )

    def _variables(self) -> Variables:
        observers = [*self.invariants, *self.tools.values()]
        namespaces = [fn.__globals__ for fn in (self.target, *observers) if inspect.isfunction(fn)]
        return Variables(observers, namespaces)

    def _built(self, world: SimulatedWorld) -> Agent[Any, Any]:
        make: Any = self.target
        made = make(world) if self._takes_world else make()
        if not isinstance(made, Agent):
            raise ConfigError(f"simulate: {_name(make)} must return an agent, not {type(made).__name__}")
        return adopt(made, self.tools)

    def _check_tools(self, agent: Agent[Any, Any]) -> None:
        known = tool_names(agent)
        Speaker(self.grammar).check_tools(known)
        for name in self.tools:
            if name not in known:
                raise ConfigError(
                    f"simulate(tools={{{name!r}: …}}): the agent has no such tool; it has: {', '.join(known)}"
                )


def simulate(
    target: Target,
    *,
    seeds: int | Iterable[int] = 200,
    case: SimulatedCase | None = None,
    grammar: Grammar | None = None,
    faults: Faults | None = None,
    invariants: Iterable[Invariant] = (),
    tools: Mapping[str, Callable[..., Any]] | None = None,
    scope: Any = None,
    store: Callable[[], Store] | None = None,
    patience: float = PATIENCE,
    progress: bool | Callable[[SimulationProgress], object] = False,
) -> SimulationReport:
    """Run an agent through many simulated sessions, and fail if anything goes wrong in one of them.

    Each seed decides one session: what the model replies, how long everything takes, how parallel calls interleave,
    what fails, where the process crashes and is started again, what people answer, when somebody cancels or steers.
    Time is virtual, so a session takes about a millisecond. The same seed gives the same session, in every process.

    - `target`: a function that builds the agent, anew for each process, and may take the `SimulatedWorld`. An agent
      object works, too; then what its hooks and tools keep in memory survives the crashes.
    - `seeds`: how many, or which. `case`: one session instead, as a failure prints it.
    - `grammar`: what the model may reply. By default any text, and any call that fits the tools' schemas.
    - `faults`: what goes wrong, and how often.
    - `invariants`: functions of a `Moment`, called after each record and at the end. They raise AssertionError, or
      return what is wrong.
    - `tools`: functions that stand in for those of tools which need the real world, by the tools' names.
    - `scope`: the scope of the turns, or a function that makes it.
    - `store`: makes the store of a session, if it is not a `MemoryStore`.
    - `patience`: after how many virtual seconds a turn that still runs, and has recorded nothing, is said to hang.

    What always has to hold: each call has one decision, start and result; no refused call runs and no unsafe one runs
    twice; a turn that ended left no call open; the log folds to the state that the agent returned; nothing that was
    stored is lost; every turn ends once nothing fails any more. Seeds that fail, and one of a hundred others, are run
    twice: if their logs differ, the agent's own code is not deterministic. A failure is made smaller and printed as a
    test.

    A real thread, socket, process or sleep raises `NotSimulated`.
    """
    simulation = Simulation(
        target,
        grammar=grammar,
        faults=faults,
        invariants=invariants,
        tools=tools,
        scope=scope,
        store=store,
        patience=patience,
    )
    return simulation.run(seeds=seeds, case=case, progress=progress)


class _Run:
    """One run over many cases."""

    def __init__(
        self, simulation: Simulation, setting: Setting, progress: bool | Callable[[SimulationProgress], object]
    ) -> None:
        self._simulation = simulation
        self._setting = setting
        self._report = Report[SimulationProgress](progress)
        self._failures: list[Failure] = []
        self._ran: dict[str, bool] = {}
        self._raised: dict[str, int] = {}
        self._done = self._steps = self._records = self._crashes = self._twice = 0

    def over(self, cases: Sequence[SimulatedCase], *, twice: bool) -> SimulationReport:
        """Play all cases, look at failures twice, and make the first ones of each kind smaller."""
        began = perf_counter()
        try:
            for chunk in _chunks(cases, BESIDE):
                sampled = [case for case in chunk if twice or case.seed % SAMPLE == 0]
                for case, played in zip(chunk, self._play(chunk, sampled), strict=True):
                    self._count(played)
                    if played.violations or case in sampled:
                        self._look_twice(case, played)
                self._report(SimulationProgress(self._done, len(self._failures), len(cases)))
        finally:
            self._report.close()
        seconds = perf_counter() - began
        self._shrink()
        return SimulationReport(
            self._done,
            self._steps,
            self._records,
            self._crashes,
            self._twice,
            seconds,
            tuple(self._failures),
            tuple([name for name, ran in self._ran.items() if not ran]),
            dict(islice(self._raised.items(), 100)),
        )

    def _play(self, chunk: Sequence[SimulatedCase], sampled: Sequence[SimulatedCase]) -> list[Played]:
        return play(self._setting, chunk, verify=bool(sampled))

    def _count(self, played: Played) -> None:
        self._done += 1
        self._steps += played.steps
        self._records += played.records
        self._crashes += played.crashes
        for text in played.raised:
            self._raised.setdefault(text, played.seed)
        allowed = {call.tool for call in self._simulation.grammar.calls}
        for name, ran in played.tools.items():
            if not allowed or name in allowed:
                self._ran[name] = ran or self._ran.get(name, False)

    def _look_twice(self, case: SimulatedCase, played: Played) -> None:
        self._twice += 1
        violation = played.violations[0] if played.violations else None
        times = 1 if case.choices is None else AGAIN
        if (differs := differing(self._setting, case, played, times)) is not None:
            violation = differs
        if violation is not None:
            self._failures.append(
                Failure(SimulatedCase(case.seed, case.choices or played.choices), case.seed, violation)
            )

    def _shrink(self) -> None:
        """The first failure of each check."""
        met: set[str] = set()
        for place, failure in enumerate(self._failures):
            check = failure.violation.check
            if check in met or len(met) >= SHRUNK:
                continue
            met.add(check)
            small = shrink(failure.case, lambda case, check=check: self._fails(case, check))  # type: ignore[misc]
            again = self._fails(small, check) or failure.violation
            self._failures[place] = Failure(small, failure.seed, again, test_of(self._simulation, small, check))

    def _fails(self, case: SimulatedCase, check: str) -> Violation | None:
        """How a case fails, if it fails in this way."""
        [played] = play(self._setting, [case])
        if check == NONDETERMINISM:
            return differing(self._setting, case, played)
        return next((violation for violation in played.violations if violation.check == check), None)


def differing(setting: Setting, case: SimulatedCase, played: Played, times: int = 1) -> Violation | None:
    """Run a case so many times more: whether its log differs, and what may be the cause."""
    one = played.lines
    for _ in range(times):
        [again] = play(setting, [case])
        if (other := again.lines) != one:
            break
    else:
        return None
    with Suspects() as suspects:
        play(setting, [case])
    said = f"two runs of seed {case.seed} differ: the agent's own code does not depend on the seed alone"
    return difference(said, one, other, suspects.text)


def difference(said: str, one: Sequence[str], other: Sequence[str], why: str) -> Violation:
    """Two logs of the same seed that differ: where they begin to."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    lines = [log[at] if at < len(log) else "no record" for log in (one, other)]
    same = next((n for n, (a, b) in enumerate(zip(*lines, strict=False)) if a != b), 0)
    start = max(0, same - 200)
    shown = [f"{'…' * (start > 0)}{line[start : start + 300]}" for line in lines]
    text = f"{said}. The first difference is record {at + 1}:\n    {shown[0]}\n    {shown[1]}\n{why}"
    return Violation(NONDETERMINISM, text, at + 1)


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, bool) or (isinstance(seeds, int) and seeds < 1):
        raise ConfigError(f"simulate(seeds={seeds!r}): give how many seeds to run, at least 1, or a list of seeds")
    return list(range(seeds) if isinstance(seeds, int) else seeds)


def _chunks(cases: Sequence[SimulatedCase], size: int) -> Iterator[Sequence[SimulatedCase]]:
    for start in range(0, len(cases), size):
        yield cases[start : start + size]


def _takes_argument(target: Callable[..., Any]) -> bool:
    """Whether a factory takes the world."""
    try:
        inspect.signature(target).bind()
    except TypeError:
        return True
    except ValueError:
        pass
    return False


def _memory() -> Store:
    return MemoryStore(keep_ended=1 << 60)


def _name(target: Any) -> str:
    return getattr(target, "__qualname__", repr(target))
