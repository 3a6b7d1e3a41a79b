"""Critics that are real models: rounds, verdicts and outcomes are tested, not what the model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass import Agent, Completed, Noted, SideReplied, Stopped
from windlass.capabilities import Critic, Critique, Panel, Refine, Reviewer

MODEL = "local:smollm2"
SHORT: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
TASK = "Name a colour of the sea."


def reviewer(criteria: str = "Is it a colour?", **options: Any) -> Reviewer:
    settings = {"temperature": 0, "max_tokens": 200}
    return Reviewer(MODEL, criteria, settings=settings, same_model=True, **options)


async def notes(agent: Agent, kind: str) -> list[Any]:
    log = await agent.store.read("s")
    return [record.data for record in log if isinstance(record, Noted) and record.kind == kind]


def check_verdict(noted: dict[str, Any]) -> None:
    """Every verdict was parsed: it is one of the three, and its score is in range."""
    assert noted["verdict"] in ("approve", "revise", "reject")
    assert 0 <= noted["score"] <= 10
    assert isinstance(noted["feedback"], str)


async def test_a_critic_loop(weights: Path):
    critic = Critic(reviewer(), rounds=1, on_reject="revise", accept=10)
    agent = Agent(MODEL, settings=SHORT, capabilities=[critic])
    result = await agent.run(TASK, session="s")
    rounds = await notes(agent, "critic")
    assert [noted["round"] for noted in rounds] == list(range(1, len(rounds) + 1))
    for noted in rounds:
        check_verdict(noted)
    approved = rounds[-1]["verdict"] == "approve" and rounds[-1]["score"] == 10
    assert len(rounds) == 2 or approved
    assert isinstance(result.outcome, Completed | Stopped)
    assert result.outcome.objections == (() if approved else ("critic",))
    assert result.outcome.unreviewed == ()
    assert result.usage_by["critic"].requests == rounds[-1]["spent"]["requests"] >= len(rounds)
    assert result.usage.requests == len(rounds) + result.usage_by["critic"].requests


async def test_the_best_of_two_versions(weights: Path):
    agent = Agent(MODEL, settings=SHORT, capabilities=[Refine(reviewer(), versions=2, accept=10)])
    result = await agent.run(TASK, session="s")
    versions, (end,) = await notes(agent, "refine"), await notes(agent, "refine.end")
    for noted in versions:
        check_verdict(noted)
    assert end["versions"] == len(versions)
    assert end["score"] == max(noted["score"] for noted in versions)
    assert isinstance(result.outcome, Completed | Stopped)
    assert result.outcome.objections == (() if end["approved"] else ("refine",))


async def test_a_panel_of_two_and_an_agent(weights: Path):
    checker = Agent(MODEL, output=Critique, name="checker", settings={"temperature": 0, "max_tokens": 200})
    members = [reviewer(name="first"), reviewer("Is it short?", name="second")]
    panel = Panel(*members, Reviewer(checker, same_model=True), rounds=0, on_reject="revise")
    agent = Agent(MODEL, settings=SHORT, capabilities=[panel])
    result = await agent.run(TASK, session="s")
    votes = await notes(agent, "panel.vote")
    assert [vote["critic"] for vote in votes] == ["first", "second", "checker"]
    for vote in votes:
        check_verdict(vote)
    (end,) = await notes(agent, "panel")
    assert end["outcome"] in ("approve", "revise", "reject")
    assert result.outcome.objections == (() if end["outcome"] == "approve" else ("panel",))
    asked = [record for record in await agent.store.read("s") if isinstance(record, SideReplied)]
    assert len(asked) >= 2
