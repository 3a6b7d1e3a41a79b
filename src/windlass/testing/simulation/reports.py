"""What a simulation reports: how many sessions it ran, and its failures, each as a test that can be run."""

from __future__ import annotations

import sys
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass.agent import Agent

from .choices import SimulatedCase
from .refusals import short_path
from .worlds import Violation

if TYPE_CHECKING:
    from .simulations import Simulation


ENOUGH = 20
"""In so many sessions every tool should have run."""

PATIENCE = 300.0
"""After how many virtual seconds without a record a turn hangs, unless it is told otherwise."""

LOADED = "_windlass_"
"""How the names of modules begin that the command line has loaded from a file, beside others of that name."""


class SimulationProgress(Struct, frozen=True):
    """How far a simulation is."""

    done: int
    failed: int
    total: int | None


class Failure(Struct, frozen=True):
    """A session that went wrong. `case` repeats it; if it was made smaller, `test` is a test that does."""

    case: SimulatedCase
    seed: int
    violation: Violation
    test: str = ""

    def __str__(self) -> str:
        shown = f"seed {self.seed}: {self.violation}"
        return f"{shown}\n\n{self.test}" if self.test else shown


class SimulationReport(Struct, frozen=True):
    """What was simulated, and what went wrong. `twice` counts the sessions that were run twice.

    `never_ran` are the tools that the models knew and that ran in no session, so nothing is known of them. `raised` are
    errors of their own that hooks and tools raised, each with a seed: no check failed because of them, but they may be
    mistakes.
    """

    sessions: int
    steps: int
    records: int
    crashes: int
    twice: int
    seconds: float
    failures: tuple[Failure, ...] = ()
    never_ran: tuple[str, ...] = ()
    raised: Mapping[str, int] = {}

    @property
    def rate(self) -> float:
        """Sessions per second."""
        return self.sessions / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        failed = f"{len(self.failures)} failed" if self.failures else "none failed"
        counts = f"{_counted(self.sessions, 'session')}, {_counted(self.steps, 'step')}"
        crashes = _counted(self.crashes, "crash", "crashes")
        head = f"{counts}, {crashes} in {self.seconds:.1f} s ({self.rate:.0f} a second): {failed}"
        shown, others, met = [head], list[int](), set[str]()
        for failure in sorted(self.failures, key=lambda failure: not failure.test):
            if failure.violation.check in met:
                others.append(failure.seed)
            else:
                met.add(failure.violation.check)
                shown.append(str(failure))
        if others:
            more = f"{len(others)} more in the same ways: seeds {', '.join(map(str, others[:20]))}"
            shown.append(more + (" …" if len(others) > 20 else ""))
        if self.raised:
            texts = [f"- {text} (seed {seed})" for text, seed in list(self.raised.items())[:10]]
            shown.append(
                "\n".join(["Hooks and tools raised errors of their own. No check failed because of them:", *texts])
            )
        if self.never_ran and self.sessions >= ENOUGH:
            names = ", ".join(self.never_ran)
            shown.append(
                f"These tools ran in no session: {names}. If their arguments were refused, say what fits: may_call(…)"
            )
        return "\n\n".join(shown)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or f'{one}s'}"


class SimulationFailed(AssertionError):
    """A simulated session went wrong; `report` has all failures."""

    def __init__(self, report: SimulationReport) -> None:
        super().__init__(str(report))
        self.report = report


def test_of(simulation: Simulation, case: SimulatedCase, check: str) -> str:
    """A test that repeats a case."""
    names = _Names(simulation)
    call = names.call
    imported = "SimulatedCase, simulate" if call.startswith("simulate(") else "SimulatedCase"
    return "\n".join(
        [
            f"from windlass.testing import {imported}",
            *names.imports,
            *names.missing,
            "",
            "",
            f"def test_simulated_seed_{case.seed}():",
            *(_MAY_PASS if check == NONDETERMINISM else ()),
            "    case = SimulatedCase(",
            f"        {case.seed},",
            "        {",
            *[f"            {name!r}: {value!r}," for name, value in (case.choices or {}).items()],
            "        },",
            "    )",
            f"    {call}",
        ]
    )


NONDETERMINISM = "nondeterminism"
"""The check that two runs of a seed are equal."""

_MAY_PASS = (
    "    # It runs the case several times: they must be equal. What earlier sessions left behind may be missing here.",
)


class _Names:
    """The names by which a test knows what was simulated, and where it imports them from."""

    def __init__(self, simulation: Simulation) -> None:
        self._found: dict[str, list[str]] = {}
        self._missing: dict[str, str] = {}
        self.call = self._call(simulation)

    @property
    def imports(self) -> list[str]:
        return [f"from {module} import {', '.join(names)}" for module, names in self._found.items()]

    @property
    def missing(self) -> list[str]:
        """What a test must bring along, since it cannot be imported."""
        return [f"# {name}: {what} cannot be imported; define it here" for name, what in self._missing.items()]

    def _call(self, simulation: Simulation) -> str:
        if (found := _variable(simulation)) is not None:
            return f"{self._imported(*found)}.run(case=case)"
        given = [self._word(simulation.target), "case=case"]
        if simulation.invariants:
            given.append(f"invariants=[{', '.join([self._word(one) for one in simulation.invariants])}]")
        if simulation.tools:
            tools = [f"{name!r}: {self._word(fn)}" for name, fn in simulation.tools.items()]
            given.append(f"tools={{{', '.join(tools)}}}")
        if simulation.scope is not None:
            given.append(f"scope={self._word(simulation.scope)}")
        if getattr(simulation.store, "__name__", "") != "_memory":
            given.append(f"store={self._word(simulation.store)}")
        if simulation.patience != PATIENCE:
            given.append(f"patience={simulation.patience!r}")
        return f"simulate({', '.join(given)})"

    def _word(self, value: Any) -> str:
        """The name of a value, or a text that makes it."""
        if (found := _where(value)) is not None:
            return self._imported(*found)
        if _is_literal(value):
            return repr(value)
        name = getattr(value, "__name__", type(value).__name__.lower())
        if not name.isidentifier() or name in self._missing:
            name = f"the_{len(self._missing) + 1}_{'function' if callable(value) else 'value'}"
        code = getattr(value, "__code__", None)
        place = "" if code is None else f" of {short_path(code.co_filename)}:{code.co_firstlineno}"
        self._missing[name] = f"{_kind(value)}{place}"
        return name

    def _imported(self, module: str, name: str) -> str:
        names = self._found.setdefault(module, [])
        if name not in names:
            names.append(name)
        return name


def _kind(value: Any) -> str:
    if isinstance(value, Agent):
        return f"the agent {value.name!r}"
    if getattr(value, "__name__", "") == "<lambda>":
        return "the lambda"
    return "the function" if callable(value) else f"the value {value!r:.60}"


def _where(value: Any) -> tuple[str, str] | None:
    """The module and the name under which a value can be imported."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    loaded = sys.modules.get(module or "")
    if loaded is not None and name is not None and getattr(loaded, name, None) is value:
        return _importable(loaded), name
    return None if _is_literal(value) else _variable(value)


def _is_literal(value: Any) -> bool:
    """Whether `repr` makes a text that is the value again."""
    try:
        return bool(literal_eval(repr(value)) == value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False


def _variable(value: Any) -> tuple[str, str] | None:
    """The module and the name of a variable that has a value."""
    for loaded in list(sys.modules.values()):
        for name, known in list(getattr(loaded, "__dict__", {}).items()):
            if known is value and name.isidentifier() and not name.startswith("_"):
                return _importable(loaded), name
    return None


def _importable(module: ModuleType) -> str:
    """The name under which a test can import a module: a script, too, is a module."""
    name = module.__name__
    if name in ("__main__", "__mp_main__") or name.startswith(LOADED):
        spec = getattr(module, "__spec__", None)
        if spec is not None and not spec.name.startswith(("__", LOADED)):
            return str(spec.name)
        return Path(getattr(module, "__file__", None) or name).stem
    return name
