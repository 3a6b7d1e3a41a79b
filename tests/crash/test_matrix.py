"""The crash matrix: every scenario is killed wherever it writes, resumed by another process, and comes out the same."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.testing import crash_points

from . import scenarios


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str | None:
    """The address of a store that all runs share; None: a file for each."""
    return request.getfixturevalue("database") if request.param == "postgres" else None


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
def test_a_crash_at_any_point_changes_nothing(scenario: Any, store: str | None):
    """Behaviour 98: after a crash at any record, resuming gives the same outcome and repeats nothing."""
    report = crash_points(scenario, store=store, exact=scenario is not scenarios.steered_at_the_end)
    assert f"{report.outcome.partition('(')[0]} {report.text!r}" == scenarios.ALL[scenario]
