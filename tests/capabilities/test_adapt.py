"""Adapt: observations from the log, rules over a window, changes within bounds, on record and replayable."""

from __future__ import annotations

from typing import Any

import pytest
from tests.capabilities.critics import down, notes, strict_critic

from windlass import Agent, ErrorPolicy, StopReason, ToolError, tool
from windlass.capabilities import (
    Adapt,
    Adaptation,
    AdaptationRule,
    Bounds,
    Critic,
    Knowledge,
    Observation,
)
from windlass.errors import ConfigError
from windlass.stores.memory import MemoryStore
from windlass.testing import (
    FakeClock,
    FunctionModel,
    ScriptedModel,
    assert_same_everywhere,
    calls,
    check_capability,
    says,
)

BACKUP = "backup"


def backup(*replies: Any) -> Any:
    return ScriptedModel(*replies, name=BACKUP)


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    raise ToolError("it is dark")


def to_backup(least: int = 2) -> AdaptationRule:
    return AdaptationRule(
        lambda known: known.failed_calls > 0.5, Adaptation(model=BACKUP), "tools fail too often", least
    )


def adapting(adapt: Adapt, *replies: Any, **options: Any) -> Agent:
    options = {"clock": FakeClock(), **options}
    return Agent(ScriptedModel(*replies), tools=[look], system="Be kind.", capabilities=[adapt], **options)


def switching(model: Any = None, *, least: int = 2) -> Adapt:
    return Adapt([to_backup(least)], Bounds(models=[model or backup(says("from the backup"))]))


async def test_it_passes_the_checks_for_capabilities():
    brief = AdaptationRule(lambda known: known.steps >= 1, Adaptation(mode="brief"), "busy", least=1)
    await check_capability(lambda: Adapt([brief], Bounds(modes={"brief": "Be brief."})))
    await check_capability(lambda: switching(FunctionModel(lambda request: says("It said hello."), name=BACKUP)))


async def test_it_switches_the_model_in_the_middle_of_a_turn_and_says_why():
    agent = adapting(switching(), calls("look"), calls("look"), says("never"))
    result = await agent.run("go", session="s")
    assert result.text == "from the backup"
    (noted,) = await notes(agent, "adapt")
    assert noted["reason"] == "tools fail too often"
    assert noted["change"] == {"model": BACKUP}
    assert [one["failed_calls"] for one in noted["knowledge"]["observations"]] == [1, 1]
    assert "tools fail too often" in " ".join(str(result.why()).split())


async def test_it_holds_in_later_turns_and_the_way_back_is_a_rule():
    model = backup(says("one"), says("two"), says("three"))
    back = AdaptationRule(lambda known: known.failure_rate == 0, Adaptation(back=True), "all is well", 3)
    adapt = Adapt([to_backup(1), back], Bounds(models=[model]))
    agent = adapting(adapt, calls("look"), says("own again"))
    texts = [(await agent.run("go", session="s")).text for _ in range(4)]
    assert texts == ["one", "two", "three", "own again"]
    assert [one["reason"] for one in await notes(agent, "adapt")] == ["tools fail too often", "all is well"]
    assert (await notes(agent, "adapt"))[1]["current"] == {}


async def test_each_session_has_knowledge_of_its_own():
    agent = adapting(switching(backup(says("backup")), least=1), calls("look"), says("own"))
    assert (await agent.run("go", session="a")).text == "backup"
    assert (await agent.run("go", session="b")).text == "own"


def sharing(store: Any, *replies: Any, least: int = 2) -> Agent:
    adapt = Adapt([to_backup(least)], Bounds(models=[backup(*[says("backup")] * 9)]), share=True)
    return adapting(adapt, *replies, store=store)


async def test_knowledge_can_be_shared_by_all_sessions_of_a_store():
    store = MemoryStore()
    agent = sharing(store, *[calls("look"), says("own")] * 2)
    other = sharing(store)
    assert (await agent.run("go", session="a")).text == "own"
    assert (await agent.run("go", session="b")).text == "backup"
    assert (await notes(agent, "adapt", "b"))[0]["reason"] == "tools fail too often"
    assert (await agent.run("go", session="a")).text == "backup"
    assert (await other.run("go", session="c")).text == "backup"
    assert await notes(other, "adapt", "c") == []


async def test_shared_knowledge_keeps_the_window_and_begins_anew_after_a_change():
    store = MemoryStore()
    agent = sharing(store, *[says("own")] * 15, calls("look"), says("own"), least=10)
    for number in range(15):
        await agent.run("go", session=f"s{number}")
    assert len(await agent.storage("adapt").items("observed ")) == 10
    changed = sharing(MemoryStore(), calls("look"), least=1)
    assert (await changed.run("go", session="s")).text == "backup"
    (left,) = (await changed.storage("adapt").items("observed ")).values()
    assert left["seen"]["outcome"] == "completed"


async def test_modes_and_settings_change_the_next_request():
    rule = AdaptationRule(
        lambda known: known.tokens > 1, Adaptation(mode="brief", settings={"max_tokens": 100}), "too long", 1
    )
    bounds = Bounds(modes={"brief": "Be brief."}, settings={"max_tokens": (50, 500)})
    agent = adapting(Adapt([rule], bounds), says("one two three"), says("one"))
    await agent.run("go", session="s")
    await agent.run("go", session="s")
    first, second = agent.model.requests
    assert (first.system, first.settings) == ("Be kind.", {})
    assert (second.system, second.settings) == ("Be kind.\n\nBe brief.", {"max_tokens": 100})


@pytest.mark.parametrize("limit", ["steps", "tokens"])
async def test_limits_end_a_turn_that_would_go_on(limit):
    rule = AdaptationRule(lambda known: known.failed_calls > 0, Adaptation(limits={limit: 3}), "careful now", 1)
    agent = adapting(Adapt([rule], Bounds(limits={limit: (1, 9)})), *[calls("look")] * 9)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.FORBIDDEN
    assert result.outcome.detail.startswith("adapt.limits: ")
    assert f"of 3 {limit}" in result.outcome.detail
    assert result.state.steps == (3 if limit == "steps" else 2)


async def test_a_limit_does_not_spoil_a_turn_that_ends_by_itself():
    rule = AdaptationRule(lambda known: known.failed_calls > 0, Adaptation(limits={"steps": 2}), "careful now", 1)
    agent = adapting(Adapt([rule], Bounds(limits={"steps": (1, 9)})), calls("look"), says("done"))
    assert (await agent.run("go")).stop_reason is StopReason.COMPLETED


async def test_a_change_may_be_computed_and_is_refused_outside_the_bounds():
    def halve(known: Knowledge) -> Adaptation:
        return Adaptation(settings={"max_tokens": known.current.settings.get("max_tokens", 400) / 2})

    rule = AdaptationRule(lambda known: True, halve, "too expensive", 1)
    bounds = Bounds(settings={"max_tokens": (100, 400)})
    agent = adapting(Adapt([rule], bounds), *[says("hi")] * 5)
    for _ in range(5):
        await agent.run("go", session="s")
    settings = [request.settings.get("max_tokens") for request in agent.model.requests]
    assert settings == [None, 200, 100, 100, 100]
    refused = await notes(agent, "adapt.refused")
    assert refused[0]["why"] == "setting 'max_tokens' is 50.0, not between 100 and 400"
    assert len(refused) == 3


async def test_what_is_in_force_is_not_made_again():
    rule = AdaptationRule(lambda known: True, Adaptation(mode="brief"), "always", 1)
    agent = adapting(Adapt([rule], Bounds(modes={"brief": "Be brief."})), *[says("hi")] * 3)
    for _ in range(3):
        await agent.run("go", session="s")
    assert len(await notes(agent, "adapt")) == 1


async def test_it_observes_times_costs_errors_outcomes_and_objections():
    clock = FakeClock(auto=True)
    seen: list[Knowledge] = []

    async def flaky(request: Any) -> Any:
        await clock.sleep(2)
        if len(asked := list(request.messages)) == 1 and not tried:
            tried.append(asked)
            raise TimeoutError
        return calls("look") if len(asked) == 1 else says("done")

    tried: list[Any] = []
    rule = AdaptationRule(lambda known: bool(seen.append(known)), Adaptation(mode="x"), "watch", 1)
    agent = Agent(
        FunctionModel(flaky),
        tools=[look],
        clock=clock,
        errors=ErrorPolicy.retrying(2, delay=0),
        capabilities=[Adapt([rule], Bounds(modes={"x": "X"})), Critic(strict_critic(wants="never"), rounds=0)],
    )
    result = await agent.run("go")
    first, second = seen[-1].observations
    assert (first.steps, first.errors, first.failed_calls, first.outcome) == (1, 1, 1, "")
    assert (first.seconds, second.seconds) == (4.0, 2.0)
    assert (second.steps, second.outcome, second.objections) == (1, "completed", 1)
    assert first.tokens + second.tokens == result.usage.total
    assert (seen[-1].turns, seen[-1].steps, seen[-1].objection_rate, seen[-1].failure_rate) == (1, 2, 1, 0)
    assert (seen[-1].error_rate, seen[-1].failed_calls, seen[-1].seconds) == (0.5, 0.5, 3.0)


async def test_a_failed_turn_is_observed():
    rule = AdaptationRule(lambda known: known.failure_rate > 0.5, Adaptation(model=BACKUP), "it fails", 2)
    adapt = Adapt([rule], Bounds(models=[backup(says("saved"))]))
    agent = Agent(down("own"), clock=FakeClock(auto=True), capabilities=[adapt])
    for _ in range(2):
        assert (await agent.run("go", session="s")).stop_reason is StopReason.ERROR
    assert (await agent.run("go", session="s")).text == "saved"


async def test_the_window_forgets():
    adapt = Adapt([AdaptationRule(lambda known: False, Adaptation(mode="x"))], Bounds(modes={"x": "X"}), window=3)
    agent = adapting(adapt, *[says("hi")] * 5)
    for _ in range(5):
        await agent.run("go", session="s")
    monitored = (await agent.state("s")).slots["adapt"]
    assert len(monitored["knowledge"]["observations"]) == 3


# ---------------------------------------------------------------- replay


async def test_the_same_facts_give_the_same_adaptation():
    agent = adapting(switching(), calls("look"), calls("look"), says("never"))
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    (replayed,) = switching(backup()).replay(log)
    assert replayed.recorded == replayed.now == Adaptation(model=BACKUP)
    (changed,) = switching(backup(), least=5).replay(log)
    assert changed.now is None


def test_a_decision_depends_on_the_knowledge_alone():
    adapt = switching(backup())
    knowledge = Knowledge((Observation(1, failed_calls=1), Observation(1, failed_calls=1)))
    assert [adapt.decide(knowledge) for _ in range(3)] == [(Adaptation(model=BACKUP), "tools fail too often")] * 3
    assert adapt.decide(Knowledge((Observation(1, failed_calls=1),))) is None
    assert adapt.decide(Knowledge(knowledge.observations, Adaptation(model=BACKUP))) is None


def test_the_first_rule_that_holds_decides():
    rules = [
        AdaptationRule(lambda known: False, Adaptation(mode="a"), least=1),
        AdaptationRule(lambda known: True, Adaptation(mode="b"), least=1),
        AdaptationRule(lambda known: True, Adaptation(mode="c"), least=1),
    ]
    adapt = Adapt(rules, Bounds(modes={"a": "A", "b": "B", "c": "C"}))
    assert adapt.decide(Knowledge((Observation(1),))) == (Adaptation(mode="b"), "rule 2")


async def test_it_is_the_same_everywhere():
    def factory() -> Agent:
        return adapting(switching(backup(says("from the backup"))), calls("look"), calls("look"), says("never"))

    assert (await assert_same_everywhere(factory)).state.text == "from the backup"
    shared = await assert_same_everywhere(lambda: sharing(None, calls("look"), calls("look"), says("never")))
    assert shared.state.text == "backup"


# ---------------------------------------------------------------- bounds


MODES = Bounds(modes={"brief": "Be brief."}, settings={"max_tokens": (50, 500)}, limits={"steps": (1, 9)})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Adaptation(model="other"), r"rule 1: model 'other' is not among \[\]"),
        (Adaptation(mode="loud"), r"mode 'loud' is not among \['brief'\]"),
        (Adaptation(settings={"max_tokens": 10}), "setting 'max_tokens' is 10, not between 50 and 500"),
        (Adaptation(settings={"top_k": 10}), r"setting 'top_k' is not among \['max_tokens'\]"),
        (Adaptation(limits={"steps": 10}), "limit 'steps' is 10, not between 1 and 9"),
        (Adaptation(limits={"steps": "9"}), "limit 'steps' is '9', not between"),  # type: ignore[dict-item]
        (Adaptation(limits={"usd": 1}), "limit 'usd' is not among"),
        (Adaptation(), "it changes nothing"),
        ("faster", "'faster' is not an Adaptation"),
    ],
)
def test_a_change_outside_the_bounds_is_refused_when_the_agent_is_assembled(change, why):
    with pytest.raises(ConfigError, match=why):
        Adapt([AdaptationRule(lambda known: True, change)], MODES)


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(), "nothing may be adapted"),
        (Bounds(limits={"calls": (1, 2)}), "limits has 'calls'; the limits are steps, tokens, usd, seconds"),
        (Bounds(settings={"max_tokens": (9, 1)}), "'max_tokens' has"),
        (Bounds(settings={"max_tokens": 9}), "'max_tokens' has 9"),  # type: ignore[dict-item]
    ],
)
def test_bounds_that_cannot_be_are_refused(bounds, why):
    with pytest.raises(ConfigError, match=f"Adapt: {why}"):
        Adapt([AdaptationRule(lambda known: True, Adaptation(back=True))], bounds)


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ([], {}),
        ([to_backup()], {"window": 0}),
        ([to_backup()], {"window": 51}),
        ([to_backup()], {"window": 1}),
        ([to_backup(0)], {}),
        ([AdaptationRule(7, Adaptation(model=BACKUP))], {}),  # type: ignore[arg-type]
        ([to_backup()], {"name": ""}),
        ([7], {}),
    ],
)
def test_invalid_options_are_refused(rules, options):
    with pytest.raises(ConfigError, match="Adapt"):
        Adapt(rules, Bounds(models=[backup()]), **options)


def test_explain_says_what_may_be_adapted():
    adapt = Adapt([AdaptationRule(lambda known: True, Adaptation(mode="brief"))], MODES)
    line = "adapt · 1 rules over 10 observations; modes: brief; settings: max_tokens; limits: steps"
    assert line in " ".join(str(adapting(adapt).explain()).split())


@pytest.mark.parametrize("part", ["when", "adaptation"])
async def test_a_rule_that_raises_changes_nothing_and_is_noted(part):
    def broken(known):
        raise RuntimeError("no such field")

    parts: Any = {"when": lambda known: True, "adaptation": Adaptation(model=BACKUP), part: broken}
    rule = AdaptationRule(**parts, reason="r", least=1)
    agent = Agent(ScriptedModel(says("Done.")), capabilities=[Adapt([rule], Bounds(models=[backup()]))])
    assert (await agent.run("go", session="s")).text == "Done."
    noted = await notes(agent, "adapt.refused")
    assert [one["why"] for one in noted] == ["the rule raised RuntimeError: no such field"]


async def test_whole_numbers_stay_whole():
    """A vendor may refuse 100.0 where it wants a whole number."""
    change = Adaptation(settings={"max_tokens": 100, "temperature": 0.5})
    rule = AdaptationRule(lambda known: known.steps > 0, change, "too long", 1)
    bounds = Bounds(settings={"max_tokens": (50, 500), "temperature": (0, 1)})
    agent = adapting(Adapt([rule], bounds), says("one"), says("two"))
    await agent.run("go", session="s")
    await agent.run("go", session="s")
    assert repr(dict(agent.model.requests[1].settings)) == "{'max_tokens': 100, 'temperature': 0.5}"
