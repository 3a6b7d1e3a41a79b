"""Capabilities on effects in processes that are killed at every write."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.testing import crash_points

PLAYS = Path(__file__).with_name("crash_plays.py")
CRITICS = Path(__file__).with_name("critic_plays.py")


@pytest.mark.timeout(240)
def test_a_turn_in_which_all_of_them_work_survives_a_crash_at_every_write():
    report = crash_points(f"{PLAYS}:all_at_work", workers=2)
    assert report.text == "A longer answer."
    assert len(report.points) > 10


@pytest.mark.timeout(240)
def test_a_follow_up_is_read_exactly_once_whatever_write_the_process_dies_at():
    report = crash_points(f"{PLAYS}:followed_up", workers=2)
    assert report.text == "done again"
    assert any("steering" in write for write in report.writes)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("play", "text"), [("judged", "A good answer."), ("refined", "three is good")])
def test_no_verdict_is_paid_for_twice_whatever_write_the_process_dies_at(play, text):
    report = crash_points(f"{CRITICS}:{play}", workers=2)
    assert report.text == text
    assert sum("SideReplied" in point.where for point in report.points) >= 4


def test_a_skill_stays_active_whatever_write_the_process_dies_at():
    report = crash_points(f"{PLAYS}:using_a_skill", workers=2)
    assert report.text == "done"
    assert "effect send" not in " ".join(report.writes)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("play", ["remembering", "remembering_in_files"])
def test_what_is_remembered_is_kept_exactly_once_whatever_write_the_process_dies_at(play):
    report = crash_points(f"{PLAYS}:{play}", workers=2)
    assert report.text == "tool one, end one, tool two, end two"


@pytest.mark.timeout(240)
def test_a_model_is_asked_once_what_to_remember_whatever_write_the_process_dies_at():
    report = crash_points(f"{PLAYS}:remembering_by_a_model", workers=2)
    assert report.text == "likes tea, lives in Rome"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("play", ["rerouted", "rerouted_together"])
def test_a_route_and_an_adaptation_are_chosen_once_whatever_write_the_process_dies_at(play):
    report = crash_points(f"{CRITICS}:{play}", workers=2)
    assert report.text == "from the backup"
    assert any("SlotSet" in point.where for point in report.points)
