"""What a simulation reports: how many sessions it ran, and its failures, each as a test that can be run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass.agent import Agent

from .choices import SimulatedCase
from .worlds import Violation

if TYPE_CHECKING:
    from .simulations import Simulation


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
    """What was simulated, and what went wrong. `twice` counts the sessions that were run twice."""

    sessions: int
    steps: int
    records: int
    crashes: int
    twice: int
    seconds: float
    failures: tuple[Failure, ...] = ()

    @property
    def rate(self) -> float:
        """Sessions per second."""
        return self.sessions / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        failed = f"{len(self.failures)} failed" if self.failures else "none failed"
        head = (
            f"{self.sessions} sessions, {self.steps} steps, {self.crashes} crashes in {self.seconds:.1f} s "
            f"({self.rate:.0f} a second): {failed}"
        )
        shown = [failure for failure in self.failures if failure.test]
        others = [failure.seed for failure in self.failures if not failure.test]
        if others:
            more = f"{len(others)} more in the same ways: seeds {', '.join(map(str, others[:20]))}"
            return "\n\n".join([head, *map(str, shown), more + (" …" if len(others) > 20 else "")])
        return "\n\n".join([head, *map(str, shown)])


class SimulationFailed(AssertionError):
    """A simulated session went wrong; `report` has all failures."""

    def __init__(self, report: SimulationReport) -> None:
        super().__init__(str(report))
        self.report = report


def test_of(simulation: Simulation, case: SimulatedCase) -> str:
    """A test that repeats a case."""
    choices = [f"            {name!r}: {value!r}," for name, value in (case.choices or {}).items()]
    lines = [
        "from windlass.testing import SimulatedCase, simulate",
        *_imports(simulation),
        "",
        "",
        f"def test_simulated_seed_{case.seed}():",
        "    case = SimulatedCase(",
        f"        {case.seed},",
        "        {",
        *choices,
        "        },",
        "    )",
        f"    {_call(simulation)}",
    ]
    if "simulate(" not in lines[-1]:
        lines[0] = "from windlass.testing import SimulatedCase"
    return "\n".join(lines)


def _call(simulation: Simulation) -> str:
    if (found := _where(simulation, simulation)) is not None:
        return f"{found[1]}.run(case=case)"
    given = [_word(simulation.target)]
    given.append("case=case")
    if simulation.invariants:
        given.append(f"invariants=[{', '.join(_word(one) for one in simulation.invariants)}]")
    if simulation.tools:
        given.append("tools={" + ", ".join(f"{name!r}: {_word(fn)}" for name, fn in simulation.tools.items()) + "}")
    if simulation.scope is not None:
        given.append(f"scope={_word(simulation.scope)}")
    if getattr(simulation.store, "__name__", "") != "_memory":
        given.append(f"store={_word(simulation.store)}")
    return f"simulate({', '.join(given)})"


def _imports(simulation: Simulation) -> list[str]:
    """The import statements for what the test names."""
    if (found := _where(simulation, simulation)) is not None:
        return [f"from {found[0]} import {found[1]}"]
    others = [simulation.scope] if simulation.scope is not None else []
    if getattr(simulation.store, "__name__", "") != "_memory":
        others.append(simulation.store)
    wanted: dict[str, list[str]] = {}
    for value in (simulation.target, *simulation.invariants, *simulation.tools.values(), *others):
        if (found := _where(simulation, value)) is not None and found[1] not in wanted.setdefault(found[0], []):
            wanted[found[0]].append(found[1])
    return [f"from {module} import {', '.join(names)}" for module, names in wanted.items()]


def _word(value: Any) -> str:
    found = _where(None, value)
    if found is not None:
        return found[1]
    return "agent" if isinstance(value, Agent) else getattr(value, "__name__", repr(value))


def _where(simulation: Simulation | None, value: Any) -> tuple[str, str] | None:
    """The module and the name under which a value can be imported."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is not None and name is not None and getattr(sys.modules.get(module), name, None) is value:
        return module, name
    for module, loaded in list(sys.modules.items()):
        if isinstance(value, Agent) or value is simulation:
            for name, known in list(vars(loaded).items()) if hasattr(loaded, "__dict__") else ():
                if known is value and not name.startswith("_") and module != "__main__":
                    return module, name
    return None
