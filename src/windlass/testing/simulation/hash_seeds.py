"""Compares seeds with those of another process, where texts have other hashes, so that sets have another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from .choices import SimulatedCase
from .reports import Failure, SimulationReport
from .simulations import SAMPLE, difference

_TEST = """\
import os
import subprocess
import sys


def test_simulated_seed_{seed}():
    command = [sys.executable, "-m", "windlass", "simulate", {target!r}, "--seed", "{seed}", "--logs"]
    logs = [
        subprocess.run(command, env={{**os.environ, "PYTHONHASHSEED": hashes}}, check=True, capture_output=True).stdout
        for hashes in ("1", "2")
    ]
    assert logs[0] == logs[1]"""


def sampled(seeds: Iterable[int]) -> list[int]:
    """The seeds that run in another process, too."""
    return [seed for seed in seeds if seed % SAMPLE == 0]


def compared(
    report: SimulationReport, target: str, here: Mapping[int, Sequence[str]], there: Mapping[int, Sequence[str]]
) -> SimulationReport:
    """The report, with the first seed that differs between two processes."""
    for seed, lines in here.items():
        if lines != there[seed]:
            said = f"seed {seed} differs in another process, where PYTHONHASHSEED is another"
            why = "    iterating over a set of texts depends on it: sort the set first; so do `hash` and `id`"
            violation = difference(said, lines, there[seed], why)
            failure = Failure(SimulatedCase(seed), seed, violation, _TEST.format(seed=seed, target=target))
            return replace(report, failures=(*report.failures, failure))
    return report
