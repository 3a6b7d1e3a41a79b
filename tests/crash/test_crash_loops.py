"""A turn that kills its process is bounded: its calls are interrupted, or it stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass import Approve, Cancelled, Completed, Stopped, StopReason, Suspended, fold
from windlass.records import Record, Resumed, ToolReturned
from windlass.why import Why

from . import killers
from .children import lines, store_in

BOUND = 12
"""How often the reviewers resumed a turn that killed its process each time."""


def run_process(what: str, folder: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, killers.__file__, what, str(folder)], env=environment, check=False
    ).returncode


def live_through(what: str, folder: Path) -> int:
    """Start one process after the other, until one of them lives. How many have died."""
    for died in range(BOUND):
        if run_process(what, folder) == 0:
            return died
    raise AssertionError(f"{what} killed {BOUND} processes in a row")


async def log_of(folder: Path, session: str = "s") -> list[Record]:
    store = store_in(folder)
    log = list(await store.read(session))
    await store.verify(session)
    await store.close()
    return log


def result_in(log: list[Record]) -> Any:
    [returned] = [record for record in log if isinstance(record, ToolReturned)]
    return returned.result


@pytest.mark.parametrize("what", ["idempotent", "exits"])
async def test_a_tool_that_kills_its_process_is_closed_at_the_third_restart(tmp_path: Path, what: str):
    assert live_through(what, tmp_path) == 3
    assert len(lines(tmp_path / "runs")) == 3
    log = await log_of(tmp_path)
    assert sum(isinstance(record, Resumed) for record in log) == 3
    result = result_in(log)
    assert result.status == "interrupted"
    assert "outcome unknown" in result.text
    assert "resumed 3 times in a row" in result.text
    state = fold("s", log)
    assert (state.outcome, state.text, state.turn.restarts) == (Completed(), "done", 0)


async def test_so_is_a_pure_tool_whose_start_is_not_stored_at_first(tmp_path: Path):
    assert live_through("pure", tmp_path) == 4
    log = await log_of(tmp_path)
    assert result_in(log).status == "interrupted"
    assert fold("s", log).outcome == Completed()


async def test_the_result_of_an_interrupted_call_passes_tool_returning(tmp_path: Path):
    live_through("guarded", tmp_path)
    assert lines(tmp_path / "looked") == ["poison interrupted"]


async def test_all_calls_that_were_under_way_are_closed(tmp_path: Path):
    live_through("two", tmp_path)
    log = await log_of(tmp_path)
    assert [record.result.status for record in log if isinstance(record, ToolReturned)] == ["interrupted"] * 2
    assert len(lines(tmp_path / "slow")) == 3


@pytest.mark.parametrize("what", ["model", "step_starting", "tool_calling"])
async def test_without_a_call_under_way_the_turn_stops_with_a_reason_of_its_own(tmp_path: Path, what: str):
    assert live_through(what, tmp_path) == 3
    assert len(lines(tmp_path / "runs")) == 3
    log = await log_of(tmp_path)
    outcome = fold("s", log).outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.CRASH_LOOP
    assert outcome.reason.hard
    assert "resumed 3 times in a row, and each time its process died" in outcome.detail
    told = str(Why("s", log))
    assert "crash_loop" in told
    assert "3 times in a row" in told


@pytest.mark.parametrize("what", ["step_ending", "turn_ending", "tool_returning"])
async def test_hooks_that_kill_the_process_at_the_end_are_left_out_in_the_end(tmp_path: Path, what: str):
    assert live_through(what, tmp_path) <= 7
    state = fold("s", await log_of(tmp_path))
    assert state.stop_reason is StopReason.CRASH_LOOP
    assert state.text == ""
    assert "without its hooks" in state.outcome.detail


async def test_a_suspension_begins_the_count_anew(tmp_path: Path):
    assert run_process("approved", tmp_path) == 0
    store = store_in(tmp_path)
    agent = killers.approved(tmp_path, store)
    state = await agent.state("s")
    assert isinstance(state.outcome, Suspended)
    await agent.resolve("s", state.waiting[0].id, Approve())
    await store.close()
    assert live_through("approved", tmp_path) == 2
    log = await log_of(tmp_path)
    assert result_in(log).status == "interrupted"
    assert fold("s", log).outcome == Completed()


async def test_in_a_tree_the_agent_that_makes_no_progress_is_the_one_whose_call_is_closed(tmp_path: Path):
    assert live_through("tree", tmp_path) == 3
    leaf, middle, root = [await log_of(tmp_path, session) for session in ("s//1/1//1/1", "s//1/1", "s")]
    assert result_in(leaf).status == "interrupted"
    assert (result_in(middle).status, result_in(middle).text) == ("ok", "the kid lives")
    assert (result_in(root).status, result_in(root).text) == ("ok", "the middle lives")
    assert fold("s", root).outcome == Completed()


async def test_a_sub_agent_whose_model_call_kills_the_process_is_stopped_and_its_parent_goes_on(tmp_path: Path):
    assert live_through("deadly_kid", tmp_path) == 3
    root = await log_of(tmp_path)
    assert "crash_loop" in result_in(root).text
    assert fold("s//1/1", await log_of(tmp_path, "s//1/1")).stop_reason is StopReason.CRASH_LOOP
    assert fold("s", root).outcome == Completed()


async def test_a_sub_agent_that_kills_the_process_before_its_first_record_is_bounded_by_its_parent(tmp_path: Path):
    assert live_through("unborn_kid", tmp_path) == 6
    root = await log_of(tmp_path)
    assert result_in(root).status == "interrupted"
    assert fold("s", root).outcome == Completed()


async def test_agents_below_end_without_their_hooks_if_these_kill_the_process(tmp_path: Path):
    assert run_process("deadly_end", tmp_path) == 0
    store = store_in(tmp_path)
    await killers.deadly_end(tmp_path, store).cancel("s", "enough")
    await store.close()
    assert live_through("deadly_end", tmp_path) == 2
    root, *below = [fold(session, await log_of(tmp_path, session)) for session in ("s", "s//1/1", "s//1/1//1/1")]
    assert root.outcome == Cancelled("enough")
    assert all(isinstance(state.outcome, Cancelled) and "3 times in a row" in state.outcome.reason for state in below)
    assert root.usage.requests == 3  # one model call of each agent
    store = store_in(tmp_path)
    assert list(await store.approvals()) == []
    await store.close()


async def test_the_count_is_in_the_log_and_why_says_so(tmp_path: Path):
    for _ in range(3):
        assert run_process("idempotent", tmp_path) == -signal.SIGKILL
    log = await log_of(tmp_path)
    assert fold("s", log).turn.restarts == 2
    assert "2 times in a row, and nothing was finished in between" in str(Why("s", log))


# ---------------------------------------------------------------- time before a crash


async def test_time_before_a_crash_counts_up_to_the_last_record(tmp_path: Path):
    assert run_process("timed", tmp_path) == -signal.SIGKILL
    assert run_process("timed", tmp_path) == 0
    state = fold("s", await log_of(tmp_path))
    assert state.stop_reason is StopReason.TIME_LIMIT
    assert state.turn.active == 5.0  # the model's; what passed between the processes does not count
    assert len(lines(tmp_path / "runs")) == 1


async def test_time_of_a_sub_agent_before_a_crash_counts_for_its_parent(tmp_path: Path):
    assert run_process("timed_tree", tmp_path) == -signal.SIGKILL
    assert run_process("timed_tree", tmp_path) == 0
    state = fold("s", await log_of(tmp_path))
    assert state.stop_reason is StopReason.TIME_LIMIT
    assert state.turn.active == 5.0


async def test_time_suspended_does_not_count_before_a_crash_either(tmp_path: Path):
    assert run_process("timed_approval", tmp_path) == 0
    store = store_in(tmp_path)
    agent = killers.timed_approval(tmp_path, store)
    [asked] = (await agent.state("s")).waiting
    await agent.resolve("s", asked.id, Approve())
    await store.close()
    assert run_process("timed_approval", tmp_path) == -signal.SIGKILL
    assert run_process("timed_approval", tmp_path) == -signal.SIGKILL
    state = fold("s", await log_of(tmp_path))
    assert state.turn.active == 3.0
    assert len(lines(tmp_path / "runs")) == 2
