"""Hooks that object have bounds of their own, and what they spend is told apart."""

from __future__ import annotations

from itertools import permutations

import pytest

from windlass import (
    Agent,
    Completed,
    ModelCall,
    ModelReplying,
    Regenerate,
    SideReplied,
    Stopped,
    Stopping,
    StopReason,
    Veto,
    fold,
    tool,
    user,
)
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, assert_same_everywhere, calls, fake_turn, says


def objecting(*answers: Regenerate | None, replies: int = 5) -> Agent:
    """An agent with a gate for each answer, which always gives it."""
    agent = Agent(ScriptedModel(*[says(f"reply {number}") for number in range(1, replies + 1)]), max_regenerations=3)
    for number, answer in enumerate(answers):
        agent.gate(ModelReplying, name=f"gate{number}")(lambda event, answer=answer: answer)
    return agent


@pytest.mark.parametrize("limit", [0, 1, 2])
async def test_a_hook_asks_again_no_more_often_than_its_own_limit(limit):
    result = await objecting(Regenerate("no", "pass", limit)).run("go")
    assert (result.text, result.outcome) == (f"reply {limit + 1}", Completed(objections=("gate0",)))


async def test_at_its_own_limit_a_hook_may_stop_the_turn():
    result = await objecting(Regenerate("no", "stop", 1)).run("go")
    assert result.stop_reason is StopReason.REGENERATION
    assert result.outcome.detail == "the reply was rejected 2 times: no"


async def test_no_limit_lifts_the_bound_of_the_agent():
    assert (await objecting(Regenerate("no", "pass", 9)).run("go")).text == "reply 4"


@pytest.mark.parametrize("order", list(permutations([0, 2, None], 2)))
async def test_of_several_limits_the_highest_holds(order):
    highest = 3 if None in order else max(order)
    result = await objecting(*[Regenerate("no", "pass", limit) for limit in order]).run("go")
    assert result.text == f"reply {highest + 1}"


def vetoing(*vetoes: Veto) -> Agent:
    agent = Agent(ScriptedModel(*[says(f"reply {number}") for number in range(1, 9)]), max_vetoes=3)
    for number, veto in enumerate(vetoes):
        agent.gate(Stopping, name=f"gate{number}")(lambda event, veto=veto: veto)
    return agent


@pytest.mark.parametrize("limit", [0, 1, 2])
async def test_after_its_own_limit_of_vetoes_the_stop_stands_and_the_outcome_names_the_hook(limit):
    result = await vetoing(Veto("more", limit)).run("go")
    assert (result.text, result.outcome) == (f"reply {limit + 1}", Completed(objections=("gate0",)))


async def test_of_several_limits_of_vetoes_the_highest_holds():
    assert (await vetoing(Veto("more", 0), Veto("more", 2)).run("go")).text == "reply 3"
    assert (await vetoing(Veto("more", 0), Veto("more")).run("go")).stop_reason is StopReason.VETO_CAP


async def test_bounds_are_the_same_everywhere_and_in_the_log():
    lived = await assert_same_everywhere(lambda: vetoing(Veto("more", 1)))
    assert lived.state.outcome == Completed(objections=("gate0",))
    lived = await assert_same_everywhere(lambda: objecting(Regenerate("no", "pass", 1)))
    assert fold(lived.session, lived.log).outcome == Completed(objections=("gate0",))


@pytest.mark.parametrize("kind", [Regenerate, Veto])
@pytest.mark.parametrize("limit", [-1, True, 1.0, "1"])
def test_a_limit_is_a_whole_number(kind, limit):
    with pytest.raises(ValueError, match=f"{kind.__name__}\\(limit="):
        kind(limit=limit)


async def test_what_hooks_and_tools_spend_is_told_apart():
    child = Agent(ScriptedModel(says("checked"), name="child"), name="checker", clock=FakeClock())
    other = ScriptedModel(says("one"), says("two"), name="other")
    spent = []

    @tool
    async def check(turn) -> str:
        """Check."""
        return (await turn.delegate(child, "Check it.")).text

    agent = Agent(ScriptedModel(calls("check"), says("done")), tools=[check])

    @agent.gate(ModelReplying)
    async def review(event, turn):
        await turn.ask(other, "Well?")
        spent.append(turn.usage_by[turn.by])

    result = await agent.run("go")
    assert set(result.usage_by) == {"review", "check"}
    assert result.usage_by["review"] == spent[1] == spent[0] + spent[0]
    assert result.usage_by["review"].requests == 2
    assert result.usage_by["check"].requests == 1
    assert result.usage.requests == 5


async def test_a_turn_knows_the_name_of_its_model():
    seen = []
    agent = Agent(ScriptedModel(says("done"), name="mine"))
    agent.gate(ModelReplying)(lambda event, turn: seen.append(turn.model))
    await agent.run("go")
    await agent.run("go", model=ScriptedModel(says("done"), name="other"))
    assert seen == ["mine", "other"]
    assert fake_turn(model=ScriptedModel(name="faked")).model == "faked"


async def test_nothing_was_spent_without_side_calls():
    result = await Agent(ScriptedModel(says("done"))).run("go")
    assert result.usage_by == {}
    assert not isinstance(result.outcome, Stopped)


async def resumed_after(records: int, agent: Agent, again: Agent) -> Agent:
    """The second agent, with the log of the first up to a crash after some records; it has resumed the turn."""
    await again.store.append("s", (await agent.store.read("s"))[:records], 0)
    await again.resume("s")
    return again


def drafting(asked: list[str]) -> Agent:
    """An agent with a wrap that asks another model about three drafts, and keeps the last."""
    other = FunctionModel(lambda request: says(f"about {request.messages[-1].text}"), name="other")

    def draft(request):
        asked.append(request.messages[-1].text)
        return says(f"draft of {request.messages[-1].text}")

    agent = Agent(FunctionModel(draft), clock=FakeClock())

    @agent.wrap(ModelCall)
    async def revise(request, call_next, turn):
        for _ in range(3):
            reply = await call_next(request)
            opinion = await turn.ask(other, reply.text)
            request = request.replace(messages=[*request.messages, reply.message, user(opinion.text)])
        return reply

    return agent


async def test_a_wrap_that_asks_about_a_reply_does_not_pay_for_it_again_after_a_crash():
    asked: list[str] = []
    agent = drafting(asked)
    whole = await agent.run("go", session="s")
    assert len(asked) == 3
    log = await agent.store.read("s")
    opinions = [number for number, record in enumerate(log, 1) if type(record) is SideReplied]
    assert len(opinions) == 3
    for done, number in enumerate(opinions, 1):
        asked.clear()
        again = await resumed_after(number, agent, drafting(asked))
        state = await again.state("s")
        assert (len(asked), state.text, state.usage.requests) == (3 - done, whole.text, 6)
    assert whole.usage.requests == 6
