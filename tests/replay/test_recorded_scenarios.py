"""An agent that has not changed decides what it decided: over all scenarios of the crash matrix, and at random."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.crash import scenarios

from windlass import (
    Agent,
    Answer,
    Approve,
    Deny,
    Failed,
    MessageAdding,
    ModelCalling,
    ModelReplying,
    Reject,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopping,
    Suspended,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.events import SessionStarting
from windlass.replay import Replay
from windlass.stores import MemoryStore, open_store
from windlass.testing import ScriptedModel, says
from windlass.testing.crashing import _one_message, as_scenario
from windlass.testing.hook_sets import HookSet, PlannedHook
from windlass.testing.strategies import hook_sets, scripts
from windlass.testing.worlds import Journal, World

CAMPAIGN = bool(os.environ.get("WINDLASS_CAMPAIGN"))

WATCHED = (
    SessionStarting,
    TurnStarting,
    StepStarting,
    ModelCalling,
    ModelReplying,
    ToolCalling,
    ToolReturning,
    MessageAdding,
    StepEnding,
    Stopping,
    TurnEnding,
)


@pytest.mark.parametrize("play", list(scenarios.ALL), ids=lambda play: play.__name__)
async def test_a_recorded_scenario_replays_as_it_was(play: Any, tmp_path: Path):
    """Behaviour 116: the same agent gives the same verdicts."""
    store = open_store(f"sqlite:///{tmp_path / 'log.db'}")
    world = World(Journal(tmp_path / "journal"), store, "main")
    scenario = as_scenario(play(world), world)
    life: Any = type("Life", (), {"recorded": {}})()
    for number, message in enumerate(scenario.messages, 1):
        await _one_message(scenario, world, number, message, life)
    await scenario.agent.aclose()

    again = open_store(f"sqlite:///{tmp_path / 'log.db'}")
    second = World(Journal(tmp_path / "journal"), again, "main")
    judge = Replay(as_scenario(play(second), second).agent, again, scope=lambda session: scenario.scope)
    found = [one async for one in judge.sessions()]
    await again.close()
    assert found
    if play is scenarios.injections:  # a guard keeps a message out, so the log does not have it
        assert [(one.status, one.unjudged[0].hook) for one in found] == [("unjudged", "door")]
        return
    assert [
        (one.session, one.status, one.differences, one.unjudged, one.error) for one in found if one.status != "same"
    ] == []


# ---------------------------------------------------------------- at random


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def wipe(path: str) -> str:
    """Wipe a path."""
    return f"wiped {path}"


TOOLS = [add, wipe]
KEPT_OUT = ("withheld", "kept out of the log")


def planned(hooks: HookSet, script: Any, store: MemoryStore) -> Agent:
    agent = Agent(ScriptedModel(*script), tools=TOOLS, store=store, criteria=[StepLimit(6)])
    hooks.install(agent)
    return agent


async def test_after_a_failed_rewrite_no_gate_is_asked():
    """The answer was withheld: the gate behind it had no say."""
    hooks = HookSet(
        (
            PlannedHook("broken", "rewrite", "TurnEnding", answer=RuntimeError("the hook broke")),
            PlannedHook("strict", "gate", "TurnEnding", answer=Deny("no")),
        )
    )
    store = await lived(hooks, [says("a")])
    found = await Replay(planned(hooks, [], store), store).session("s")
    assert (found.status, found.differences) == ("same", ())


async def test_a_hook_that_fails_while_it_rewrites_is_no_new_refusal():
    """It ended the turn then, too: no gate gave a verdict."""
    hooks = HookSet((PlannedHook("both", "hook", "ModelCalling", does="rewrite decide", answer=Answer(1)),))
    store = await lived(hooks, [says("a")])
    found = await Replay(planned(hooks, [], store), store).session("s")
    assert (found.status, found.differences) == ("same", ())


async def lived(hooks: HookSet, script: Any) -> MemoryStore:
    """A store with a turn of a random agent; everything that people are asked is approved, or rejected."""
    store = MemoryStore()
    agent = planned(hooks, script, store)
    result = await agent.run("hello", session="s")
    for _ in range(4):
        if isinstance(result.outcome, Suspended):
            waiting = result.outcome.waiting_for
            answers = {asked.id: Approve() if "approve" in asked.allow else Reject() for asked in waiting}
            result = await agent.resume("s", answers=answers)
    return store


@given(hook_sets(tools=TOOLS, max_size=6), scripts(TOOLS))
@settings(max_examples=3000 if CAMPAIGN else 150, derandomize=not CAMPAIGN)
def test_a_random_agent_replays_as_it_was(hooks: HookSet, script: Any):
    """Behaviour 116: also if its hooks fail; only what they kept out of the log is unjudged."""

    async def check() -> None:
        store = await lived(hooks, script)
        found = await Replay(planned(hooks, script, store), store).session("s")
        assert found.status in ("same", "unjudged"), (found, await store.read("s"))
        assert all(any(words in lack.why for words in KEPT_OUT) for lack in found.unjudged)

    asyncio.run(check())


@given(hook_sets(tools=TOOLS, max_size=3, failing=False), scripts(TOOLS))
@settings(max_examples=2000 if CAMPAIGN else 100, derandomize=not CAMPAIGN)
def test_gates_are_asked_about_the_same_events_in_the_same_order(hooks: HookSet, script: Any):
    """Nothing that was judged is left out, and nothing is judged that was not."""

    async def check() -> None:
        seen: list[tuple[str, str]] = []

        def watched(store: MemoryStore) -> Agent:
            agent = planned(hooks, script, store)
            for event in WATCHED:
                agent.gate(event, name=f"watch {event.__name__}", live=True)(
                    lambda event: seen.append((type(event).__name__, payload_of(event)))
                )
            return agent

        store = MemoryStore()
        result = await watched(store).run("hello", session="s")
        live, seen[:] = list(seen), []
        found = await Replay(watched(store), store).session("s")
        if found.status == "same" and not isinstance(result.outcome, Failed | Suspended):
            assert seen == live, await store.read("s")

    asyncio.run(check())


def payload_of(event: Any) -> str:
    """What a gate sees of an event, without what a replay cannot have: the data of results, and limits."""
    match event:
        case ToolReturning(call=call, result=result):
            return f"{call} {result.content} {result.status}"
        case ModelReplying(reply=reply):
            return f"{reply.text} {[(call.name, call.json) for call in reply.tool_calls]} {reply.finish}"
        case MessageAdding(message=message):
            return f"{message.role} {message.text} {message.parts if message.role == 'tool' else ''}"
        case ModelCalling(request=request):
            return f"{request.system} {[message.text for message in request.messages]}"
        case _:
            return "" if event.payload is None else str(getattr(event, event.payload))
