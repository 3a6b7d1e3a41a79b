"""Every event with every decision and every failure, in every way of running."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from windlass import Completed, Deny, Failed, Halt, Stopped, Suspended
from windlass.decisions import Ask, Reject
from windlass.errors import IllegalAnswer
from windlass.records import HookFailed

from .arena import CANARY, DECISIONS, EVENTS, FAILURES, WAYS, Arena, legal, refuses
from .conftest import sample

NEVER_HERE = {"Compacting", "Delegating", "SubagentStopping", "Resuming", "Erring"}
HERE = [event for event in EVENTS if event.__name__ not in NEVER_HERE]


def name(cell: tuple[Any, ...]) -> str:
    return "-".join(str(getattr(part, "__name__", part)) for part in cell)


LEGAL = [cell for cell in itertools.product(HERE, DECISIONS, WAYS) if legal(cell[0], cell[1])]
ILLEGAL = [cell for cell in itertools.product(HERE, DECISIONS, WAYS) if not legal(cell[0], cell[1])]
BROKEN = list(itertools.product(HERE, FAILURES, WAYS))


@pytest.mark.parametrize("cell", sample(LEGAL, 0.5), ids=name)
@pytest.mark.parametrize("band", ["normal", "guard"])
async def test_a_legal_answer_holds(cell: Any, band: Any, tmp_path: Path):
    event, decision, way = cell
    arena = Arena(way, tmp_path)
    arena.attack(lambda agent: agent.gate(event, band=band, name="attacker")(lambda seen: decision))
    await arena.play()
    await arena.check()
    if refuses(event, decision):
        assert arena.ran == []


@pytest.mark.parametrize("cell", sample(ILLEGAL, 0.25), ids=name)
async def test_an_illegal_answer_is_the_gates_failure(cell: Any, tmp_path: Path):
    event, decision, way = cell
    arena = Arena(way, tmp_path)
    arena.attack(lambda agent: agent.gate(event, name="attacker")(lambda seen: decision))
    await arena.play()
    await arena.check()
    await assert_named(arena, event)
    if event.raised in (Halt, Deny) and event.__name__ not in AFTER:
        assert arena.ran == []


AFTER = ("ToolReturning", "StepEnding", "TurnEnding", "Continuing", "Stopping")


@pytest.mark.parametrize("cell", sample(BROKEN, 0.5), ids=name)
async def test_a_gate_that_fails_is_closed_and_named(cell: Any, tmp_path: Path):
    event, how, way = cell
    fn, options = FAILURES[how]
    arena = Arena(way, tmp_path)
    arena.attack(lambda agent: agent.gate(event, name="attacker", **options)(fn))
    await arena.play(answers=None)
    await arena.check()
    await assert_named(arena, event)
    if event.__name__ not in AFTER:
        assert arena.ran == []
    requests = repr(arena.requests)
    assert CANARY not in requests, "the text of a failing gate reached the model"


@pytest.mark.parametrize("cell", sample([c for c in BROKEN if c[0].payload is not None], 0.5), ids=name)
async def test_a_rewrite_that_fails_is_closed_and_named(cell: Any, tmp_path: Path):
    event, how, way = cell
    fn, options = FAILURES[how]
    arena = Arena(way, tmp_path)
    arena.attack(lambda agent: agent.rewrite(event, name="attacker", **options)(fn))
    await arena.play(answers=None)
    await arena.check()
    if event.__name__ not in AFTER and how != "swallows its time-out":
        assert arena.ran == []
    outcome = repr(arena.result.outcome) + repr(await arena.logs())
    assert "attacker" in outcome
    assert CANARY not in repr(arena.requests)


@pytest.mark.parametrize(
    "event", [event for event in HERE if event.injects is not None], ids=lambda event: event.__name__
)
@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("optional", [True, False])
async def test_an_injection_that_fails_is_named_or_skipped(event: Any, how: str, optional: bool):
    fn, options = FAILURES[how]
    arena = Arena("run")
    arena.attack(lambda agent: agent.inject(event, name="attacker", optional=optional, **options)(fn))
    await arena.play()
    await arena.check()
    assert "attacker" in repr(arena.result.outcome) + repr(await arena.logs())
    if optional and how != "answers nonsense":
        assert arena.result.outcome == Completed()


@pytest.mark.parametrize("event", [event for event in HERE if Ask in event.ranks], ids=lambda event: event.__name__)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", [None, "reject"])
async def test_nothing_that_was_asked_about_happens_without_approval(event: Any, way: str, answer: Any, tmp_path: Path):
    arena = Arena(way, tmp_path)
    arena.attack(lambda agent: agent.gate(event, name="asker")(lambda seen: Ask("May it?")))
    await arena.play(answers=None if answer is None else lambda asked: Reject("no"))
    await arena.check()
    if event.__name__ != "TurnEnding":
        assert arena.ran == []
    elif answer is None and way != "child":
        assert isinstance(arena.result.outcome, Suspended)


async def assert_named(arena: Arena, event: Any) -> None:
    found = [r for log in (await arena.logs()).values() for r in log if isinstance(r, HookFailed)]
    named = [record for record in found if record.hook == "attacker"]
    spoken = isinstance(getattr(arena.result, "error", None), IllegalAnswer)
    assert named or spoken or "attacker" in repr(arena.result.outcome), "nobody heard of the failure"
    assert isinstance(arena.result.outcome, Completed | Stopped | Failed | Suspended)
