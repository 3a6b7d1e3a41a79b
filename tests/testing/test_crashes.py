"""crash_points finds what is wrong, says where, and refuses what it cannot play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Ask, Cancelled, ToolCalling
from windlass.errors import ConfigError
from windlass.records import TurnEnded
from windlass.testing import CrashReport, ScriptedModel, calls, crash_points
from windlass.testing.crashing import left_over

from . import crash_plays


def wrong_with(play: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as found:
        crash_points(play, **options)
    return str(found.value)


def test_a_sound_agent_passes_and_the_report_tells_where_it_was_killed():
    report = crash_points(crash_plays.sound)
    assert isinstance(report, CrashReport)
    assert (report.outcome, report.text) == ("Completed(value=None, unreviewed=(), objections=())", "done")
    assert report.violations == []
    assert str(report).endswith(f"killed at {len(report.points)} points, no violations")
    asked_replied_twice_and_one_effect = 5
    assert len(report.points) == 2 * len(report.writes) + asked_replied_twice_and_one_effect
    started = next(number for number, write in enumerate(report.writes, 1) if write.endswith("ToolCalled"))
    assert f"after write {started} ({report.writes[started - 1]})" in [point.where for point in report.points]


@pytest.mark.parametrize(
    ("play", "told"),
    [
        (crash_plays.says_idempotent_and_is_not, "the effect work happened 2 times, but 1 times without a crash"),
        (crash_plays.makes_keys_of_its_own, "happened 0 times, but 1 times without a crash"),
        (crash_plays.remembers_in_memory, "the text is worked 0 times, but worked 1 times without a crash"),
        (crash_plays.keeps_another_transcript, "the transcript differs"),
        (crash_plays.asks_again, "was made again although its reply was recorded"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_is_found_and_named(play: Any, told: str):
    assert told in wrong_with(play)


def test_only_outcome_and_text_count_if_one_says_so():
    crash_points(crash_plays.keeps_another_transcript, exact=False)


@pytest.mark.parametrize(
    "play", [crash_plays.asked_of_nobody, crash_plays.two_messages, crash_plays.with_a_model_of_ours]
)
def test_scenarios_may_suspend_go_on_and_bring_their_models(play: Any):
    assert crash_points(play).points


def test_tools_have_a_folder_of_their_own_in_every_run():
    report = crash_points(crash_plays.keeps_its_own_database)
    assert report.text == "done"
    assert len(report.points) > 10


def test_those_who_resume_may_be_killed_as_well():
    play = crash_plays.with_a_model_of_ours
    once, twice = crash_points(play), crash_points(play, crashes=2)
    assert len(twice.points) > len(once.points)
    assert any(", then " in point.where for point in twice.points)


def test_all_runs_may_share_a_store(tmp_path: Path):
    report = crash_points(crash_plays.sound, store=f"sqlite:///{tmp_path}/shared.db")
    assert report.points
    assert (tmp_path / "shared.db").exists()


def test_a_process_that_hangs_is_ended_and_named():
    told = wrong_with(crash_plays.hangs_after_a_crash, timeout=5)
    assert "process 2 timed out" in told


@pytest.mark.parametrize("target", [f"{crash_plays.__file__}:sound", "crash_play_of_mine:sound"])
def test_a_scenario_may_be_named(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "crash_play_of_mine.py").write_text(Path(crash_plays.__file__).read_text())
    monkeypatch.syspath_prepend(tmp_path)
    assert crash_points(target).points


@pytest.mark.parametrize(
    ("play", "told"),
    [
        (crash_plays.broken, "nothing to play"),
        (crash_plays.with_another_store, "must use the world's store"),
        (crash_plays.no_scenario, "a scenario must return an Agent or a Scenario, not int"),
        (lambda world: None, "define it as a function at the top of a file"),
        ("no_such_module:play", "no_such_module"),
    ],
    ids=["broken", "another store", "no scenario", "a lambda", "no module"],
)
def test_what_cannot_be_played_is_refused(play: Any, told: str):
    with pytest.raises(ConfigError) as refused:
        crash_points(play)
    assert told in str(refused.value)


def test_a_store_that_dies_with_the_process_is_refused():
    with pytest.raises(ConfigError, match="outlives"):
        crash_points(crash_plays.sound, store="memory:")


async def test_a_sub_agent_that_did_not_end_with_its_parent_is_a_violation():
    child = Agent(ScriptedModel(calls("work")), name="child")
    child.gate(ToolCalling)(lambda event: Ask("sure?"))
    agent = Agent(ScriptedModel(calls("child", task="it")), tools=[child.as_tool()])
    await agent.run("go", session="s")
    logs = {name: list(await agent.store.read(name)) for name in await agent.store.sessions()}
    assert left_over(logs) == []
    logs["s"].append(TurnEnded(Cancelled("enough")))
    assert left_over(logs) == ["session s//1/1: it has not ended, although session s has"]
