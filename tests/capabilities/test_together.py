"""The ready-made capabilities together, as an application would install them."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import pytest

from windlass import Agent, Completed, tool
from windlass import capabilities as ready_made
from windlass.capabilities import (
    Budget,
    Cache,
    DryRun,
    Fallback,
    LoopGuard,
    Moderate,
    Permissions,
    Retry,
    Steering,
    Timeout,
    Validate,
)
from windlass.errors import ConfigError, ServerError
from windlass.models import PricedModel
from windlass.testing import FakeClock, ScriptedModel, agreeable, assert_same_everywhere, calls, says


@tool(effect="pure", inline=True)
def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


def effects() -> list[Any]:
    """All capabilities on effects that change nothing as long as nothing goes wrong."""
    return [
        Retry(tools="look", jitter=False),
        Fallback(ScriptedModel(says("from the backup"), name="together:backup"), breaker=None),
        Cache(tools=True),
        Timeout(model=60, tool=60, step=600, turn=6000),
        DryRun(),
        Validate(input=lambda message: None, output=lambda reply: None, results=lambda result: None),
        Moderate(lambda text: None, parallel=True),
        LoopGuard(),
        Steering(),
    ]


def agent_with(*script: Any, capabilities: list[Any]) -> Agent:
    model = ScriptedModel(*script, name="together:model")
    return Agent(model, tools=[look], capabilities=capabilities, clock=FakeClock(auto=True))


@pytest.mark.parametrize("turned", [False, True])
async def test_all_capabilities_on_effects_work_together_in_any_order(turned):
    capabilities = effects()[::-1] if turned else effects()
    agent = agent_with(calls("look", what="sea"), says("blue"), capabilities=capabilities)
    result = await agent.run("go")
    assert (result.text, result.outcome) == ("blue", Completed())
    assert result.messages[2].parts[0].text == "saw sea"
    assert len(agent.explain().data["capabilities"]) == len(capabilities)


async def test_together_they_are_the_same_everywhere():
    def factory() -> Agent:
        return agent_with(calls("look", what="sea"), ServerError("down"), says("blue"), capabilities=effects())

    assert (await assert_same_everywhere(factory)).state.text == "from the backup"


def default_constructible() -> list[Any]:
    """All ready-made capabilities that need no arguments."""
    made = []
    for name in sorted(ready_made.__all__):
        kind = getattr(ready_made, name)
        if isinstance(kind, type) and hasattr(kind, "install"):
            required = [
                one
                for one in inspect.signature(kind).parameters.values()
                if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            ]
            with suppress(ConfigError):  # it says what it needs
                made += [] if required else [kind()]
    return made


async def test_all_that_need_no_arguments_work_together():
    capabilities = default_constructible()
    assert len(capabilities) >= 5
    approved = says('{"verdict": "approve", "score": 9}')  # the model's own verdict, for SelfCritique
    agent = agent_with(calls("look", what="sea"), says("blue"), approved, capabilities=capabilities)
    result = await agent.run("go", session="s")
    if waiting := result.state.waiting:  # permissions without rules ask about every call
        result = await agent.resume("s", answers={asked.id: agreeable(asked) for asked in waiting})
    assert (result.text, result.outcome) == ("blue", Completed())


async def test_an_agent_with_capabilities_reads_like_a_sentence(tmp_path):
    (tmp_path / "policy.toml").write_text('unmatched = "deny"\nallow = ["look"]\n')
    model = PricedModel(ScriptedModel(calls("look", what="sea"), says("blue")), (1.0, 2.0))
    policy = Permissions.load(tmp_path / "policy.toml")
    agent = Agent(model, tools=[look], capabilities=[Retry(), Budget(usd=1.0), policy])
    assert (await agent.run("How is the sea?")).text == "blue"
    assert [one["name"] for one in agent.explain().data["capabilities"]] == ["retry", "budget", "permissions"]
