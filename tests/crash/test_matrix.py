"""The crash matrix: every scenario is killed wherever it writes, resumed by another process, and comes out the same."""

from __future__ import annotations

import os
from typing import Any

import pytest

from windlass.testing import crash_points

from . import scenarios

# Together they make every kind of write: to one log and to several, to the inbox, of pipelines, of values.
# `make campaign` plays all scenarios on PostgreSQL, too.
ON_POSTGRES = [
    scenarios.tool_loop,
    scenarios.approvals_elsewhere,
    scenarios.cancelled_from_outside,
    scenarios.steering,
    scenarios.delegated,
    scenarios.delegated_by_a_tool,
    scenarios.counted,
    scenarios.in_the_background,
]
PLAYED = {
    "sqlite": list(scenarios.ALL),
    "postgres": list(scenarios.ALL) if os.environ.get("WINDLASS_CAMPAIGN") else ON_POSTGRES,
}
CELLS = [pytest.param(store, play, id=f"{store}-{play.__name__}") for store, plays in PLAYED.items() for play in plays]


@pytest.mark.parametrize(("store", "scenario"), CELLS)
def test_a_crash_at_any_point_changes_nothing(scenario: Any, store: str, request: pytest.FixtureRequest):
    """Behaviour 98: after a crash at any record, resuming gives the same outcome and repeats nothing."""
    shared = request.getfixturevalue("database") if store == "postgres" else None  # else a file for each run
    report = crash_points(scenario, store=shared, exact=scenario is not scenarios.steered_at_the_end)
    assert f"{report.outcome.partition('(')[0]} {report.text!r}" == scenarios.ALL[scenario]
