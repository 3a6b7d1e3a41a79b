"""Sub-agents in processes that are killed at every write: limits, shares, links and results stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.testing import crash_points

PLAYS = Path(__file__).with_name("subagent_plays.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("play", "told"),
    [
        ("at_once", ["ok: kid paid; ok: other tried; denied: ", "2 tasks already"]),
        ("too_deep", ["ok: error: ", "was not started", "depth=1"]),
        ("with_a_share", ["error: ", "'greedy' did not complete its task: token_limit", "ok: modest is done"]),
        ("in_the_background", ["two"]),
    ],
)
def test_sub_agents_survive_a_crash_at_every_write(play: str, told: list[str]):
    report = crash_points(f"{PLAYS}:{play}", workers=2)
    assert report.violations == []
    assert len(report.points) > 5
    for words in told:
        assert words in report.text, report.text
