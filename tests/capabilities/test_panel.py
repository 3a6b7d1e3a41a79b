"""Panel: critics in parallel, weights and consensus, and a stated rule for critics that cannot be reached."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest
from tests.capabilities.critics import APPROVE, REJECT, REVISE, critic_agent, critic_model, down, notes, strict_critic

from windlass import Agent, Approve, Ask, Completed, StopReason, ToolCalling, tool
from windlass.capabilities import Critic, Critique, Panel, Reviewer
from windlass.errors import ConfigError
from windlass.testing import FunctionModel, ScriptedModel, assert_same_everywhere, calls, check_capability, says

SAID = {"approve": APPROVE, "revise": REVISE, "reject": REJECT}
YES, NO, NEVER, GONE = Critique("approve", 9), Critique("revise", 4), Critique("reject", 0), TimeoutError()


def seats(*opinions: Any, weights: Any = ()) -> tuple[Any, list[Any]]:
    reviewers = [
        Reviewer(ScriptedModel(name=f"critic{number}"), weight=weight)
        for number, weight in enumerate(weights or [1] * len(opinions))
    ]
    return reviewers, list(zip(reviewers, opinions, strict=True))


def consensus(*opinions: Any, weights: Any = (), **options: Any) -> str:
    reviewers, said = seats(*opinions, weights=weights)
    return Panel(*reviewers, **options).count(said)


@pytest.mark.parametrize(
    ("opinions", "outcome"),
    [
        ((YES, YES, NO), "approve"),
        ((YES, NO, NO), "revise"),
        ((YES, NO), "revise"),
        ((NEVER, NEVER, YES), "reject"),
        ((NEVER, NO, NO), "revise"),
        ((YES, YES, GONE), "approve"),
        ((YES, GONE, GONE), "unreviewed"),
        ((GONE, GONE, GONE), "unreviewed"),
        ((NO, GONE, GONE), "unreviewed"),
    ],
)
def test_a_majority_of_the_votes_decides_whatever_the_order(opinions, outcome):
    assert {consensus(*order) for order in permutations(opinions)} == {outcome}


@pytest.mark.parametrize(
    ("opinions", "outcome"),
    [
        ((YES, YES, YES), "approve"),
        ((YES, YES, NO), "revise"),
        ((YES, YES, NEVER), "revise"),
        ((NEVER, NEVER, NEVER), "reject"),
        ((YES, YES, GONE), "unreviewed"),
        ((YES, NO, GONE), "revise"),
        ((GONE, GONE, GONE), "unreviewed"),
    ],
)
def test_unanimous_means_all_of_them(opinions, outcome):
    assert {consensus(*order, consensus="unanimous") for order in permutations(opinions)} == {outcome}


def test_weights_decide_if_the_consensus_is_weighted():
    assert consensus(YES, NO, NO, weights=[3, 1, 1], consensus="weighted") == "approve"
    assert consensus(YES, NO, NO, weights=[2, 1, 1], consensus="weighted") == "revise"
    assert consensus(YES, NO, NO, weights=[3, 1, 1], consensus="weighted", threshold=0.6) == "revise"
    assert consensus(YES, NO, NO, weights=[3, 1, 1]) == "revise"
    assert consensus(NEVER, YES, YES, weights=[3, 1, 1], consensus="weighted") == "reject"


def test_weights_count_as_they_are_written():
    """As floats, 0.2 and 0.1 are more than half of 0.2, 0.3 and 0.1."""
    assert consensus(YES, NO, YES, weights=[0.2, 0.3, 0.1], consensus="weighted") == "revise"
    assert consensus(NO, YES, NO, weights=[0.3, 0.4, 0.1], consensus="weighted") == "revise"
    assert consensus(YES, YES, NO, weights=[0.1, 0.2, 0.7], consensus="weighted", threshold=0.3) == "revise"
    assert consensus(YES, YES, weights=[1e308, 1e308], consensus="weighted") == "approve"


@pytest.mark.parametrize(
    ("absent", "outcome"), [("abstain", "approve"), ("object", "approve"), ("unreviewed", "unreviewed")]
)
def test_the_rule_for_absent_critics(absent, outcome):
    assert consensus(YES, YES, GONE, absent=absent) == outcome


def test_an_absent_critic_may_count_as_a_vote_against():
    assert consensus(YES, GONE, absent="object") == "revise"
    assert consensus(YES, YES, GONE, absent="object", consensus="unanimous") == "revise"
    assert consensus(YES, YES, GONE, weights=[1, 1, 9], absent="object", consensus="weighted") == "revise"
    assert consensus(GONE, GONE, absent="object") == "unreviewed"


def test_the_quorum_is_more_than_half_unless_you_say_otherwise():
    assert consensus(YES, GONE, GONE, quorum=1) == "approve"
    assert consensus(YES, YES, GONE, quorum=3) == "unreviewed"
    assert consensus(YES, YES, GONE, GONE) == "unreviewed"


def test_an_approval_needs_the_score_that_is_wanted():
    assert consensus(Critique("approve", 6), Critique("approve", 7), accept=7) == "revise"


def panel_of(*critics: Any, replies: Any = (), **options: Any) -> Agent:
    replies = replies or [says("Hm."), says("Hello.")]
    return Agent(ScriptedModel(*replies), capabilities=[Panel(*critics, **options)])


@pytest.mark.parametrize("consensus", ["majority", "unanimous", "weighted"])
async def test_it_passes_the_checks_for_capabilities(consensus):
    def make(wants: str) -> Panel:
        return Panel(*[strict_critic(f"critic{one}", wants=wants) for one in (1, 2)], consensus=consensus)

    await check_capability(lambda: make("hello"))
    await check_capability(lambda: make("nothing"), changes_answer=True)


async def test_critics_work_at_the_same_time():
    inside: list[str] = []
    together = asyncio.Event()

    def critic(name: str) -> FunctionModel:
        async def judge(request: Any) -> Any:
            inside.append(name)
            if len(inside) == 3:
                together.set()
            await together.wait()
            return APPROVE

        return FunctionModel(judge, name=name)

    agent = panel_of(critic("a"), critic("b"), critic("c"))
    assert (await agent.run("go")).outcome == Completed()


async def test_every_vote_is_noted_in_the_order_of_the_panel_and_the_feedback_of_all_is_read():
    slow = asyncio.Event()

    async def last(request: Any) -> Any:
        await slow.wait()
        return REVISE

    def first(request: Any) -> Any:
        slow.set()
        return REJECT

    critics = [FunctionModel(last, name="tone"), FunctionModel(first, name="safety"), strict_critic("facts", wants="H")]
    agent = panel_of(*critics, rounds=1)
    result = await agent.run("go", session="s")
    votes = await notes(agent, "panel.vote")
    assert [(vote["round"], vote["critic"], vote["verdict"]) for vote in votes[:3]] == [
        (1, "tone", "revise"),
        (1, "safety", "reject"),
        (1, "facts", "approve"),
    ]
    feedback = agent.model.requests[1].messages[-1].text
    assert "tone: Say more.\nsafety: This is dangerous." in feedback
    assert "facts" not in feedback
    ends = await notes(agent, "panel")
    assert [(end["round"], end["outcome"]) for end in ends] == [(1, "revise"), (2, "revise")]
    assert result.outcome == Completed(objections=("panel",))
    assert ends[1]["spent"]["requests"] == result.usage_by["panel"].requests == 6


async def test_two_critics_of_one_model_have_criteria_of_their_own():
    model = critic_model(APPROVE, APPROVE)
    agent = panel_of(Reviewer(model, "Is it polite?", name="tone"), Reviewer(model, "Is it true?", name="facts"))
    assert (await agent.run("go")).outcome == Completed()
    assert sorted("polite" in request.system for request in model.requests) == [False, True]


async def test_without_a_quorum_the_answer_is_unreviewed():
    agent = panel_of(down("a"), down("b"), critic_model(APPROVE))
    result = await agent.run("go", session="s")
    assert (result.text, result.outcome) == ("Hm.", Completed(unreviewed=("panel",)))
    assert [vote.get("unreviewed") for vote in await notes(agent, "panel.vote")][2] is None
    assert [end["outcome"] for end in await notes(agent, "panel")] == ["unreviewed"]
    strict = panel_of(down("a"), down("b"), unreachable="halt")
    assert (await strict.run("go")).stop_reason is StopReason.HALTED


async def test_an_absent_critic_is_named_and_the_others_decide():
    agent = panel_of(down("a"), critic_model(APPROVE, name="b"), critic_model(APPROVE, name="c"))
    assert (await agent.run("go", session="s")).outcome == Completed()
    votes = await notes(agent, "panel.vote")
    assert [vote.get("unreviewed") for vote in votes] == ["ModelError: the critic is down", None, None]


async def test_a_consensus_to_reject_ends_the_turn():
    agent = panel_of(critic_model(REJECT, name="a"), critic_model(REJECT, name="b"), reply="No.")
    result = await agent.run("go")
    assert (result.stop_reason, result.text) == (StopReason.HALTED, "No.")


async def test_models_and_agents_can_sit_together():
    agent = panel_of(critic_agent(REVISE, APPROVE), critic_model(REVISE, APPROVE))
    result = await agent.run("go")
    assert (result.text, result.outcome) == ("Hello.", Completed())
    assert result.usage_by["panel"].requests == 4


async def test_it_is_the_same_everywhere():
    def factory() -> Agent:
        critics = [strict_critic("a"), strict_critic("b", wants="Hello"), down("c")]
        return panel_of(*critics, replies=[says("Hm."), says("Hello."), says("Hello, good friend.")])

    assert (await assert_same_everywhere(factory)).state.text == "Hello, good friend."


@pytest.mark.parametrize(
    "options",
    [
        {"consensus": "x"},
        {"threshold": 1},
        {"threshold": "x"},
        {"absent": "x"},
        {"quorum": 0},
        {"quorum": 3},
        {"rounds": -1},
        {"accept": 0},
        {"name": ""},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match=r"Panel\("):
        Panel(critic_model(name="a"), critic_model(name="b"), **options)


@pytest.mark.parametrize("critics", [(), ("a",), ("a", "a")])
def test_a_panel_needs_critics_with_different_names(critics):
    with pytest.raises(ConfigError, match="Panel: give two or more critics"):
        Panel(*[critic_model(name=name) for name in critics])


def test_explain_says_who_votes_and_how():
    agent = panel_of(critic_model(name="a"), critic_model(name="b"), consensus="unanimous")
    line = "panel · a, b; unanimous; absent critics: unreviewed; sent back, then the answer passes with an objection"
    assert line in " ".join(str(agent.explain()).split())


async def test_a_critic_of_the_panel_may_wait_for_a_person():
    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look."""
        return "seen"

    inspector = critic_agent(calls("look"), APPROVE, tools=[look])
    inspector.gate(ToolCalling)(lambda event: Ask("May the inspector look?"))
    other = strict_critic("other", wants="Hm")
    agent = panel_of(inspector, other)
    waiting = await agent.run("go", session="s")
    (asked,) = waiting.waiting_for
    result = await agent.resume("s", answers={asked.id: Approve()})
    assert (result.text, result.outcome) == ("Hm.", Completed())
    assert len(agent.model.requests) == 1
    assert len(other.requests) == 1
    assert [vote["critic"] for vote in await notes(agent, "panel.vote")] == ["inspector", "other"]


@pytest.mark.parametrize(
    "make", [lambda: Panel(strict_critic("a"), strict_critic("b")), lambda: Critic(strict_critic())]
)
async def test_in_the_guard_band_the_answers_of_sub_agents_are_judged_too(make):
    child = Agent(ScriptedModel(says("Hm."), says("good"), name="child-model"), name="child")
    model = ScriptedModel(calls("child", task="Do it."), says("good, too"))
    agent = Agent(model, tools=[child.as_tool()]).with_capability(make(), band="guard")
    result = await agent.run("go")
    assert (result.text, result.outcome) == ("good, too", Completed())
    assert len(child.model.requests) == 2
