"""Refine: versions are judged and improved, the best one wins, and the log serves what was paid for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.capabilities.critics import APPROVE, critic_agent, critic_model, down, notes, strict_critic, verdict

from windlass import Agent, Completed, ModelCalling, ModelError, Regenerate, StopReason, TextDelta, tool
from windlass.capabilities import Refine, Retry
from windlass.decisions import Answer, Halt, Veto
from windlass.errors import ConfigError
from windlass.events import ModelReplying, Stopping
from windlass.records import ReplyPassed
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    return "MARKER-RESULT"


def refining(refine: Refine, *replies: Any) -> Agent:
    return Agent(ScriptedModel(*replies), tools=[look], system="MARKER-SYSTEM", capabilities=[refine])


@pytest.mark.parametrize("wants", ["hello", "nothing"])
async def test_it_passes_the_checks_for_capabilities(wants):
    await check_capability(lambda: Refine(strict_critic(wants=wants)), changes_answer=wants == "nothing")


async def test_the_model_improves_its_answer_until_the_critic_approves():
    agent = refining(Refine(critic_model(verdict("revise", 4, "Say more."), APPROVE)), says("Hm."), says("Hello."))
    result = await agent.run("go", session="s")
    assert (result.text, result.outcome) == ("Hello.", Completed())
    draft, feedback = list(agent.model.requests[1].messages)[-2:]
    assert (draft.text, "Say more." in feedback.text) == ("Hm.", True)
    assert [(one["version"], one["verdict"]) for one in await notes(agent, "refine")] == [(1, "revise"), (2, "approve")]
    (end,) = await notes(agent, "refine.end")
    assert (end["winner"], end["versions"], end["approved"]) == (2, 2, True)


@pytest.mark.parametrize(
    ("scores", "winner"), [((7, 3, 5), "one"), ((3, 7, 5), "two"), ((3, 5, 7), "three"), ((5, 5, 4), "two")]
)
async def test_the_best_version_wins_and_the_outcome_says_that_none_was_approved(scores, winner):
    critic = critic_model(*[verdict("revise", score, "More.") for score in scores])
    agent = refining(Refine(critic), says("one"), says("two"), says("three"))
    result = await agent.run("go", session="s")
    assert (result.text, result.outcome) == (winner, Completed(objections=("refine",)))
    (end,) = await notes(agent, "refine.end")
    assert (end["versions"], end["score"], end["approved"]) == (3, max(scores), False)
    assert [message.text for message in result.messages] == ["go", winner]
    assert (result.usage.requests, result.usage_by["refine.loop"].requests) == (6, 3)


async def test_versions_are_bounded_and_one_means_no_improvement():
    critic = critic_model(verdict("revise", 4))
    agent = refining(Refine(critic, versions=1), says("one"))
    assert (await agent.run("go")).text == "one"
    assert len(agent.model.requests) == len(critic.requests) == 1


async def test_an_approval_needs_the_score_that_is_wanted():
    critic = critic_model(verdict("approve", 6), verdict("approve", 8))
    agent = refining(Refine(critic, accept=8), says("one"), says("two"))
    assert (await agent.run("go")).outcome == Completed()
    assert len(critic.requests) == 2


async def test_the_critic_sees_nothing_of_how_a_version_was_made():
    critic = critic_model(verdict("revise", 1, "More."), APPROVE)
    thoughtful = says("one", thinking="MARKER-THINKING")
    agent = refining(Refine(critic), calls("look", _text="MARKER-BESIDE"), thoughtful, says("two"))
    await agent.run("go")
    for request in critic.requests:
        assert "MARKER" not in f"{request.system} {list(request.messages)!r} {request.tools!r}"
    assert "<answer>\none\n" not in critic.requests[1].messages[-1].text


async def test_an_agent_may_be_the_critic():
    inspector = critic_agent(calls("look"), verdict("revise", 3, "More."), APPROVE, tools=[look])
    result = await refining(Refine(inspector), says("one"), says("two")).run("go")
    assert (result.text, result.outcome) == ("two", Completed())


@pytest.mark.parametrize(
    ("critics", "text"),
    [((ModelError("down"),), "one"), ((verdict("revise", 4, "More."), ModelError("down")), "one")],
)
async def test_an_unreachable_critic_never_approves(critics, text):
    agent = refining(Refine(critic_model(*critics)), says("one"), says("two"))
    result = await agent.run("go", session="s")
    assert (result.text, result.outcome) == (text, Completed(unreviewed=("refine",)))
    assert (await notes(agent, "refine"))[-1]["unreviewed"] == "ModelError: down"


async def test_if_an_improvement_fails_the_best_version_so_far_wins():
    critic = critic_model(verdict("revise", 4, "More."))
    agent = refining(Refine(critic), says("one"), ModelError("overloaded"))
    result = await agent.run("go", session="s")
    assert (result.text, result.outcome) == ("one", Completed(objections=("refine",)))
    assert (await notes(agent, "refine"))[-1]["failed"] == "ModelError: overloaded"


async def test_an_improvement_that_a_gate_refuses_is_not_sent():
    agent = refining(Refine(critic_model(verdict("revise", 4, "secret"))), says("one"), says("two"))
    agent.gate(ModelCalling)(
        lambda event: Halt("no") if "secret" in event.request.messages[-1].text and not event.side else None
    )
    assert (await agent.run("go")).stop_reason is StopReason.HALTED
    assert len(agent.model.requests) == 1


async def test_a_version_that_calls_tools_is_no_answer_yet():
    critic = critic_model(verdict("revise", 4, "Look it up."), APPROVE)
    agent = refining(Refine(critic), says("one"), calls("look"), says("two"))
    result = await agent.run("go")
    assert (result.text, result.outcome) == ("two", Completed())
    assert len(critic.requests) == 2


async def test_an_error_of_the_first_call_is_left_to_others():
    agent = Agent(
        ScriptedModel(ModelError("busy", retryable=True), says("one")),
        capabilities=[Retry(2, delay=0), Refine(critic_model(APPROVE))],
    )
    assert (await agent.run("go")).text == "one"


async def test_another_gate_may_still_ask_again():
    agent = refining(Refine(strict_critic(wants="one"), versions=2), says("one"), says("one, longer"))
    agent.gate(ModelReplying)(lambda event: None if "longer" in event.reply.text else Regenerate("Longer."))
    assert (await agent.run("go")).text == "one, longer"


@pytest.mark.parametrize("live", [False, True])
async def test_users_see_only_the_winner_unless_it_is_live(live):
    agent = refining(
        Refine(critic_model(verdict("revise", 4, "More."), APPROVE), live=live),
        says("Hm no.", chunks=["Hm ", "no."]),
        says("Hello.", chunks=["Hel", "lo."]),
    )
    async with agent.stream("go") as stream:
        seen = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert ("Hm " in seen) is live
    assert stream.result.text == "Hello."


@pytest.mark.parametrize("critic", [strict_critic, down])
async def test_it_is_the_same_everywhere(critic):
    await assert_same_everywhere(lambda: refining(Refine(critic()), calls("look"), says("Hm."), says("good")))


@pytest.mark.parametrize("options", [{"versions": 0}, {"accept": 0}, {"name": ""}, {"criteria": ""}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match=r"Refine\(|Reviewer\("):
        Refine(critic_model(), **options)


def test_explain_says_who_judges():
    line = "refine · by critic; at most 3 versions, the best one wins"
    assert line in str(refining(Refine(critic_model())).explain())


async def test_an_empty_answer_is_judged_like_any_other():
    critic = critic_model(verdict("revise", 0, "There is nothing."), APPROVE)
    agent = refining(Refine(critic), says(""), says("Hello."))
    result = await agent.run("go", session="s")
    assert (result.text, result.outcome) == ("Hello.", Completed())
    assert "<answer>\n\n</answer>" in critic.requests[0].messages[-1].text
    unseen = await refining(Refine(down()), says("")).run("go")
    assert unseen.outcome == Completed(unreviewed=("refine",))


async def test_a_verdict_on_one_answer_does_not_count_for_a_later_one():
    critic = critic_model(APPROVE, verdict("revise", 0))
    agent = refining(Refine(critic, versions=1), says("My key is 4711."), says(""))
    agent.gate(ModelReplying, name="keys")(lambda event: Regenerate("no keys") if "key" in event.reply.text else None)
    assert (await agent.run("go")).outcome == Completed(objections=("refine",))


async def test_a_verdict_on_one_step_does_not_count_for_an_answer_that_no_critic_saw():
    agent = refining(Refine(critic_model(verdict("revise")), versions=1), says("Hm."))
    agent.gate(Stopping, name="once")(lambda event: None if event.stop_active else Veto("Again."))
    agent.gate(ModelCalling, name="known")(lambda event: Answer("Known.") if event.turn.steps == 1 else None)
    result = await agent.run("go", session="s")
    assert (result.text, result.outcome) == ("Known.", Completed(objections=("refine",)))
    log = await agent.store.read("s")
    assert [(one.step, one.by) for one in log if isinstance(one, ReplyPassed)] == [(1, ("refine",))]
