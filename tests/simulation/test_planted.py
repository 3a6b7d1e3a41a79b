"""Simulation finds a planted bug, prints it as a test that fails, and accuses no agent without one."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from windlass.testing import Faults, Simulation, SimulationFailed, SimulationReport

sys.path.insert(0, str(Path(__file__).parent))
planted = import_module("planted")
everyday = import_module("everyday")
sys.path.pop(0)

SEEDS = 500 if os.environ.get("WINDLASS_CAMPAIGN") else 20

BUGS: dict[str, tuple[Simulation, str, int]] = {
    "an unsafe tool that says it is pure": (
        Simulation(planted.pure_payment, grammar=planted.PAYMENTS), "effect", 100,
    ),
    "a payment that is not safe to retry": (
        Simulation(planted.safe_payment, grammar=planted.PAYMENTS), "effect", 40,
    ),
    "a race between parallel calls": (
        Simulation(planted.racing_seats, grammar=planted.SEATS, invariants=[planted.one_guest_a_seat]),
        "one_guest_a_seat", 60,
    ),
    "a lock that a cancelled call keeps": (Simulation(planted.stuck_lock), "hang", 10),
    "a gate that forgets when the process ends": (
        Simulation(planted.forgetful_gate, grammar=planted.PAYMENTS, invariants=[planted.three_payments]),
        "three_payments", 100,
    ),
    "a gate that always asks something else": (
        Simulation(planted.asks_again, grammar=planted.PAYMENTS), "endless", 4,
    ),
    "the real time": (Simulation(planted.real_time, grammar=planted.PAYMENTS), "nondeterminism", 2),
    "a counter in the module": (
        Simulation(planted.global_counter, grammar=planted.PAYMENTS, invariants=[planted.one_receipt_a_number]),
        "one_receipt_a_number", 60,
    ),
    "a gate that remembers in the module": (
        Simulation(planted.global_gate, grammar=planted.PAYMENTS, invariants=[planted.paid_once]), "paid_once", 100,
    ),
    "a tool that tries again by itself": (Simulation(planted.own_retry, grammar=planted.PAYMENTS), "effect", 10),
    "real dice": (
        Simulation(planted.real_chance, grammar=planted.PAYMENTS, faults=Faults.none()), "nondeterminism", 401,
    ),
    "a tool that runs on and on": (Simulation(planted.spinning, grammar=planted.PAYMENTS), "hang", 2),
    "a tool that exits": (Simulation(planted.exiting, grammar=planted.PAYMENTS), "error", 2),
    "an agent that cannot be built after a crash": (
        Simulation(planted.built_once, grammar=planted.PAYMENTS), "build", 60,
    ),
    "a store that changes what it has": (
        Simulation(planted.pays, grammar=planted.PAYMENTS, store=planted.ForgetfulStore), "store", 100,
    ),
    "an executor that does not wait for the store": (
        Simulation(planted.hasty, grammar=planted.PAYMENTS), "unsafe tool", 2,
    ),
    "an executor that records results twice": (
        Simulation(planted.repeating, grammar=planted.PAYMENTS), "call chain", 2,
    ),
}  # fmt: skip


def found(simulation: Simulation, seeds: int) -> SimulationReport:
    with pytest.raises(SimulationFailed) as failed:
        simulation.run(seeds=seeds)
    return failed.value.report


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_and_printed_as_a_test_that_fails(name: str) -> None:
    simulation, check, seeds = BUGS[name]
    report = found(simulation, seeds)
    checks = {failure.violation.check for failure in report.failures}
    assert checks == {check}
    first = report.failures[0]
    assert f"def test_simulated_seed_{first.seed}" in first.test
    if simulation.target.__module__ == "planted" and check != "nondeterminism":
        space: dict[str, Any] = {}
        exec(first.test.replace("__main__", "planted"), space)
        with pytest.raises(SimulationFailed, match=check):
            space[f"test_simulated_seed_{first.seed}"]()


def test_an_agent_without_a_bug_is_not_accused() -> None:
    report = planted.CLEAN.run(seeds=300)
    assert report.failures == ()
    assert report.crashes > 20
    assert report.twice == 3


@pytest.mark.parametrize("name", everyday.ALL)
def test_agents_as_users_write_them_hold_in_every_session(name: str) -> None:
    report = everyday.ALL[name].run(seeds=SEEDS)
    assert report.never_ran == ()


def test_the_real_time_is_named_with_its_line() -> None:
    [failure, *_] = found(*BUGS["the real time"][::2]).failures
    assert "time.time in " in failure.violation.text
    assert "planted.py:" in failure.violation.text


def test_a_small_case_is_smaller_than_its_seed() -> None:
    simulation, _, seeds = BUGS["a race between parallel calls"]
    [failure, *_] = found(simulation, seeds).failures
    whole = simulation.report(seeds=[failure.seed]).failures[0]
    assert failure.case.choices is not None
    assert set(failure.case.choices) <= {"reply 1", "reply 2", "pause 1", "pause 2", "tool 1", "tool 2"}
    assert whole.violation.check == failure.violation.check
