"""Workers, servers, lines and clocks fail while sessions run: every session ends right, and nothing is lost or doubled.

A short campaign runs with every test run. `make faults` runs the long one, and prints its figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from . import networks

LONG = bool(os.environ.get("WINDLASS_FAULTS"))
SEED = int(os.environ.get("WINDLASS_FAULTS_SEED", "1"))
SHORT = {"sessions": 12, "steps": 4, "delay": 0.8, "workers": 2, "pause": 0.1, "limit": 120}


def campaign(**plan: Any) -> dict[str, Any]:
    """Run a campaign in a process of its own; with lines that can be cut if this process may make some."""
    plan = {"seed": SEED, **plan}
    words = [sys.executable, "-m", "tests.faults.campaign"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if not networks.possible():
        plan["faults"] = [fault for fault in plan["faults"] if fault != "cut"]
        return _run([*words, json.dumps(plan)], env)
    with networks.network(plan.get("workers", 3)) as made:
        plan |= {"host": networks.SERVER, "network": made.name}
        return _run([*made.inside(), *words, json.dumps(plan)], env)


def _run(words: list[str], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write("\n".join([f"{name:28} {value}" for name, value in found.items()]) + "\n")
    return found


def check(found: dict[str, Any]) -> None:
    assert found["sessions that ended wrong"] == []
    assert found["store problems"] == []
    assert found["unsafe effects twice"] == 0
    assert found["acknowledged batches lost"] == 0
    assert found["acknowledged batches"] > found["sessions"] * found["steps"]


if LONG:

    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("engine", ["temporal", "pool"])
    def test_a_long_campaign(engine: str):
        faults = ["worker", "postgres", "cut", "stop", "clock", "worker"]
        if engine == "temporal":
            faults.insert(1, "temporal")
        found = campaign(engine=engine, faults=faults, steps=10, sessions=200)
        check(found)
        assert found["takeovers"] > 0
        assert found["lost: seconds, p95"] < 5

else:

    @pytest.mark.parametrize(
        ("engine", "faults"), [("temporal", ["worker", "cut", "clock", "temporal"]), ("pool", ["worker", "postgres"])]
    )
    def test_a_short_campaign(engine: str, faults: list[str]):
        """Whether a worker dies with sessions of its own is chance here; the long campaign demands it."""
        check(campaign(engine=engine, faults=faults, **SHORT))
