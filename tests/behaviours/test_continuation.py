"""Going on and stopping: votes, vetoes, regeneration, limits and errors, all of them bounded."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.logs import SESSION, find

from windlass import (
    ActiveTimeLimit,
    Agent,
    Approve,
    Ask,
    Cancelled,
    Completed,
    Continuing,
    CostLimit,
    Deadline,
    Erring,
    ErrorHandled,
    ErrorLimit,
    ErrorPolicy,
    Evaluated,
    Failed,
    FinishedBecause,
    Halt,
    Ignore,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReplying,
    Pipeline,
    Regenerate,
    Reject,
    ReplyContains,
    ReplyRejected,
    RetryLimit,
    Rewind,
    StepEnding,
    StepLimit,
    Stopped,
    Stopping,
    StopReason,
    Suspended,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolDecided,
    ToolError,
    TurnEnded,
    TurnEnding,
    TurnFailed,
    Usage,
    Veto,
    Vote,
    tool,
)
from windlass.decisions import Again
from windlass.errors import BadReply, RateLimited, ServerError
from windlass.records import ToolReturned
from windlass.testing import FunctionModel, ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(effect="pure", inline=True)
def fail() -> str:
    """Fail."""
    raise RuntimeError("the disk is full")


def forever(**usage: Any) -> FunctionModel:
    """A model that never stops calling a tool."""
    return FunctionModel(lambda request: calls("add", a=1, b=2, _usage=Usage(**usage) if usage else None))


def steps(result: Any) -> int:
    return result.state.turn.steps


# ---------------------------------------------------------------- 92: regeneration


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
async def test_a_guardrail_that_always_regenerates_is_bounded(bound: int):
    """Behaviour 92: exactly the bounded number of attempts, then a typed outcome; every attempt is paid for."""
    model = ScriptedModel(*[says("rude", usage=Usage(input=10, output=5))] * 10)
    agent = Agent(model, max_regenerations=bound)
    agent.gate(ModelReplying, name="guardrail")(lambda event: Regenerate("be kind"))
    result = await agent.run("go", session=SESSION)
    assert len(model.requests) == bound + 1
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.REGENERATION
    assert "be kind" in result.outcome.detail
    assert result.usage == Usage(input=10 * (bound + 1), output=5 * (bound + 1), requests=bound + 1)
    assert result.text == ""
    assert [message.role for message in result.messages] == ["user"]
    rejected = await find(agent, ReplyRejected)
    assert [(record.feedback, record.by) for record in rejected] == [("be kind", ("guardrail",))] * (bound + 1)


async def test_the_default_bound_of_regeneration_is_two():
    """Behaviour 92: an agent that says nothing allows two more attempts."""
    model = ScriptedModel(*[says("rude")] * 10)
    agent = Agent(model)
    agent.gate(ModelReplying)(lambda event: Regenerate("be kind"))
    await agent.run("go")
    assert len(model.requests) == 3


async def test_a_regenerated_request_carries_the_rejected_reply_and_the_feedback_at_its_tail_only():
    """Behaviour 92: for this attempt only: neither the next step nor the transcript has them."""
    model = ScriptedModel(says("rude"), calls("add", a=1, b=2), says("kind"))
    agent = Agent(model, tools=[add])
    agent.gate(ModelReplying)(lambda event: Regenerate("be kind") if event.reply.text == "rude" else None)
    result = await agent.run("go")
    tail = model.requests[1].messages[-2:]
    assert (tail[0].role, tail[0].text) == ("assistant", "rude")
    assert tail[1].role == "user"
    assert "be kind" in tail[1].text
    assert [message.role for message in model.requests[2].messages] == ["user", "assistant", "tool"]
    assert "rude" not in [message.text for message in result.messages]
    assert result.usage.requests == 3


async def test_every_regenerated_attempt_passes_model_calling_again():
    """Behaviour 92: the whole event runs again, rewrites too."""
    model = ScriptedModel(*[says("rude")] * 3)
    agent = Agent(model, system="Be kind.")
    judged: list[str] = []
    agent.rewrite(ModelCalling)(lambda event: event.request.replace(system=event.request.system + " Please."))
    agent.gate(ModelCalling)(lambda event: judged.append(event.request.system))
    agent.gate(ModelReplying)(lambda event: Regenerate("no"))
    await agent.run("go")
    assert judged == ["Be kind. Please."] * 3


async def test_the_calls_of_rejected_replies_are_never_proposed():
    """Behaviour 92: nothing of a rejected reply is decided or run."""
    model = ScriptedModel(*[calls("add", a=1, b=2)] * 3)
    agent = Agent(model, tools=[add])
    agent.gate(ModelReplying)(lambda event: Regenerate("no tools"))
    await agent.run("go", session=SESSION)
    assert await find(agent, ToolDecided) == []


async def test_the_bound_of_regeneration_counts_per_step():
    """Behaviour 92: a step that needed its attempts does not take them from the next."""
    model = ScriptedModel(says("rude"), says("rude"), calls("add", a=1, b=2), says("rude"), says("rude"), says("kind"))
    agent = Agent(model, tools=[add])
    agent.gate(ModelReplying)(lambda event: Regenerate("be kind") if event.reply.text == "rude" else None)
    result = await agent.run("go")
    assert result.outcome == Completed()
    assert result.text == "kind"


# ---------------------------------------------------------------- 93: vetoes


@pytest.mark.parametrize("cap", [0, 1, 3])
async def test_a_stop_hook_that_always_vetoes_is_ended_by_the_cap(cap: int):
    """Behaviour 93: the cap ends it, and `stop_active` was visible from the second time."""
    active: list[bool] = []
    model = ScriptedModel(*[says("done")] * 10)
    agent = Agent(model, max_vetoes=cap)

    @agent.gate(Stopping)
    def never_enough(event: Any) -> Veto:
        active.append(event.stop_active)
        return Veto("go on")

    result = await agent.run("go", session=SESSION)
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.VETO_CAP
    assert "never_enough" in result.outcome.detail
    assert active == [False] + [True] * cap
    assert len(model.requests) == cap + 1
    assert [message.text for message in result.messages].count("go on") == cap


async def test_a_stop_hook_that_vetoes_once_lets_the_model_go_on_with_its_feedback():
    """Behaviour 93: the model reads the feedback, the second stop stands."""
    model = ScriptedModel(says("done"), says("checked"))
    agent = Agent(model)
    agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("check it"))
    result = await agent.run("go")
    assert result.outcome == Completed()
    assert result.text == "checked"
    assert model.requests[1].messages[-1].text == "check it"


async def test_vetoes_are_counted_per_turn():
    """Behaviour 93: the next turn starts afresh."""
    active: list[bool] = []
    agent = Agent(ScriptedModel(*[says("done")] * 4))
    agent.gate(Stopping)(
        lambda event: active.append(event.stop_active) or (None if event.stop_active else Veto("go on"))
    )
    await agent.run("one", session=SESSION)
    await agent.run("two", session=SESSION)
    assert active == [False, True, False, True]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (StepLimit(1), StopReason.STEP_LIMIT),
        (TokenLimit(1), StopReason.TOKEN_LIMIT),
        (CostLimit(0.0), StopReason.COST_LIMIT),
        (ActiveTimeLimit(0.0), StopReason.TIME_LIMIT),
        (Deadline(at=0.0), StopReason.DEADLINE),
        (lambda state: Vote.FORBID, StopReason.FORBIDDEN),
    ],
    ids=["steps", "tokens", "cost", "time", "deadline", "forbid"],
)
@pytest.mark.parametrize("last", ["a call", "an answer"])
async def test_a_hard_limit_is_never_vetoed(limit: Any, reason: StopReason, last: str):
    """Behaviour 93: the stop hook is not even asked."""
    asked: list[int] = []
    model = ScriptedModel(calls("add", a=1, b=2) if last == "a call" else says("done"), says("more"))
    agent = Agent(model, tools=[add], criteria=[limit])
    agent.gate(Stopping)(lambda event: asked.append(1) or Veto("go on"))
    result = await agent.run("go")
    assert result.stop_reason is reason
    assert asked == []
    begun = 0 if reason in (StopReason.TIME_LIMIT, StopReason.DEADLINE) else 1  # no time is left: nothing is begun
    assert len(model.requests) == begun


async def test_a_cancel_is_never_vetoed():
    """Behaviour 93: a cancelled turn ends cancelled and no stop hook is asked."""
    asked: list[int] = []
    waiting = asyncio.Event()

    async def reply(request: Any) -> Any:
        waiting.set()
        await asyncio.sleep(30)

    agent = Agent(FunctionModel(reply))
    agent.gate(Stopping)(lambda event: asked.append(1) or Veto("go on"))
    running = asyncio.ensure_future(agent.run("go", session=SESSION))
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asked == []
    assert isinstance((await agent.state(SESSION)).outcome, Cancelled)


async def test_an_error_is_never_vetoed():
    """Behaviour 93: a failed turn has failed."""
    asked: list[int] = []
    agent = Agent(ScriptedModel(ModelError("down"), says("up")))
    agent.gate(Stopping)(lambda event: asked.append(1) or Veto("go on"))
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert asked == []


async def test_a_halt_of_a_stop_hook_is_stricter_than_a_veto():
    """Behaviour 93: Halt over Veto, in either order."""
    for order in ([Halt("enough"), Veto("go on")], [Veto("go on"), Halt("enough")]):
        agent = Agent(ScriptedModel(says("done")))
        for number, answer in enumerate(order):
            agent.gate(Stopping, name=f"g{number}")(lambda event, answer=answer: answer)
        result = await agent.run("go")
        assert result.outcome == Stopped(StopReason.HALTED, "enough")


# ---------------------------------------------------------------- 94: votes

STRICTEST = [Vote.FORBID, Vote.REQUEST, Vote.ALLOW_STOP, Vote.ALLOW]
ELECTIONS = [votes for size in (1, 2, 3, 4) for votes in itertools.permutations(STRICTEST, size)]


@pytest.mark.parametrize("voters", ["criteria", "hooks", "both"])
async def test_the_strictest_vote_wins_in_any_order(voters: str):
    """Behaviour 94: Forbid, then Request, then AllowStop, then Allow, whoever votes first."""
    for votes in ELECTIONS:
        model = ScriptedModel(says("one"), says("two"))
        agent = Agent(model, pipeline=Pipeline(criteria=()))
        for number, vote in enumerate(votes):
            if voters == "criteria" or (voters == "both" and number % 2):
                agent.criterion(lambda state, vote=vote: vote if state.turn.steps == 1 else None)
            else:
                agent.gate(Continuing, name=f"voter{number}")(
                    lambda event, vote=vote: vote if event.turn.steps == 1 else None
                )
        result = await agent.run("go", session=SESSION)
        expected = min(votes, key=STRICTEST.index)
        first = (await find(agent, Evaluated))[0]
        assert first.vote is expected, votes
        goes_on = expected in (Vote.REQUEST, Vote.ALLOW)
        assert len(model.requests) == (2 if goes_on else 1), votes
        reason = StopReason.FORBIDDEN if expected is Vote.FORBID else StopReason.COMPLETED
        assert result.stop_reason is reason, votes


async def test_no_vote_at_all_means_stop():
    """Behaviour 94: if nobody votes the turn stops, even after a call."""
    model = ScriptedModel(calls("add", a=1, b=2), says("never said"))
    agent = Agent(model, tools=[add], pipeline=Pipeline(criteria=()))
    result = await agent.run("go", session=SESSION)
    assert len(model.requests) == 1
    assert result.outcome == Completed()
    (evaluated,) = await find(agent, Evaluated)
    assert (evaluated.vote, evaluated.reasons) == (None, ())


async def test_it_is_on_record_who_cast_the_vote_that_counted_and_why():
    """Behaviour 94: "why did it stop?" always has an answer."""
    agent = Agent(ScriptedModel(says("one")), criteria=[StepLimit(1), ReplyContains("one", Vote.REQUEST)])
    result = await agent.run("go", session=SESSION)
    (evaluated,) = await find(agent, Evaluated)
    assert evaluated.vote is Vote.FORBID
    assert evaluated.reasons == (("StepLimit", "1 of 1 steps are done"),)
    assert result.outcome == Stopped(StopReason.STEP_LIMIT, "StepLimit: 1 of 1 steps are done")


async def test_by_default_a_turn_goes_on_only_if_a_tool_was_called():
    """Behaviour 94: the built-in criterion requests after calls and allows to stop otherwise."""
    model = ScriptedModel(calls("add", a=1, b=2), says("3"))
    result = await Agent(model, tools=[add]).run("go")
    assert result.outcome == Completed()
    assert len(model.requests) == 2


async def test_the_strongest_of_several_limits_is_the_reason():
    """Behaviour 94: stop reasons are ranked in one place, not by the order of the criteria."""
    for criteria in itertools.permutations([StepLimit(1), TokenLimit(1), CostLimit(0.0)]):
        result = await Agent(ScriptedModel(says("one")), criteria=criteria).run("go")
        assert result.stop_reason is StopReason.STEP_LIMIT


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal"])
async def test_how_the_model_finished_is_the_reason_of_an_ordinary_stop(finish: str):
    """Behaviour 94: a reply that was cut off is no completion."""
    result = await Agent(ScriptedModel(says("one", finish=finish))).run("go")
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason.value == finish


async def test_a_criterion_may_ask_to_go_on_by_how_the_model_finished():
    """Behaviour 94: a cut-off reply may be continued."""
    model = ScriptedModel(says("one", finish="length"), says("two"))
    result = await Agent(model, criteria=[FinishedBecause("length", Vote.REQUEST)]).run("go")
    assert len(model.requests) == 2
    assert result.outcome == Completed()


# ---------------------------------------------------------------- limits


async def test_a_step_limit_ends_a_turn_that_would_go_on_for_ever():
    """Behaviour 94: at most so many steps in a turn, and every call has its result."""
    agent = Agent(forever(), tools=[add], criteria=[StepLimit(3)])
    result = await agent.run("go", session=SESSION)
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert steps(result) == 3
    assert result.messages[-1].role == "tool"
    again = await agent.run("go", session=SESSION)
    assert steps(again) == 3


async def test_a_token_limit_counts_input_and_output():
    """Behaviour 94: at most so many tokens in a turn."""
    agent = Agent(forever(input=30, output=10), tools=[add], criteria=[TokenLimit(100)])
    result = await agent.run("go")
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert (steps(result), result.usage.total) == (3, 120)


async def test_a_token_limit_counts_rejected_replies():
    """Behaviours 92, 94: what a rejected attempt cost is spent."""
    model = ScriptedModel(
        says("rude", usage=Usage(60, 0)), calls("add", a=1, b=2, _usage=Usage(60, 0)), says("never said")
    )
    agent = Agent(model, tools=[add], criteria=[TokenLimit(100)])
    agent.gate(ModelReplying)(lambda event: Regenerate("no") if event.reply.text == "rude" else None)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert len(model.requests) == 2


async def test_a_cost_limit_counts_money():
    """Behaviour 94: at most so much money in a turn."""
    agent = Agent(forever(input=1, cost=0.04), tools=[add], criteria=[CostLimit(0.1)])
    result = await agent.run("go")
    assert result.stop_reason is StopReason.COST_LIMIT
    assert steps(result) == 3


async def test_an_unknown_cost_is_not_taken_for_nothing():
    """Behaviour 94: a limit that cannot be checked is closed, not open."""
    result = await Agent(forever(), tools=[add], criteria=[CostLimit(0.1)]).run("go")
    assert result.stop_reason is StopReason.COST_LIMIT
    assert isinstance(result.outcome, Stopped)
    assert "unknown" in result.outcome.detail


async def test_an_active_time_limit_counts_work(clock):
    """Behaviour 94: seconds of work in a turn."""

    @tool(effect="pure", inline=True)
    def work() -> str:
        """Work."""
        clock.tick(4)
        return "worked"

    agent = Agent(
        FunctionModel(lambda request: calls("work")), tools=[work], criteria=[ActiveTimeLimit(10)], clock=clock
    )
    result = await agent.run("go")
    assert result.stop_reason is StopReason.TIME_LIMIT
    assert steps(result) == 3


async def test_an_active_time_limit_does_not_count_a_pause(clock):
    """Behaviour 94: an overnight question costs no working time."""

    @tool(effect="pure", inline=True)
    def work() -> str:
        """Work."""
        clock.tick(4)
        return "worked"

    agent = Agent(ScriptedModel(calls("work"), says("done")), tools=[work], criteria=[ActiveTimeLimit(10)], clock=clock)
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    first = await agent.run("go", session=SESSION)
    clock.tick(12 * 3600)
    result = await agent.resume(SESSION, answers={first.waiting_for[0].id: Approve()})
    assert result.outcome == Completed()
    assert result.state.turn is not None
    assert result.state.turn.active == pytest.approx(4)


@pytest.mark.parametrize("given", ["after", "at", "agent's clock"])
async def test_a_deadline_ends_the_turn_when_its_moment_has_come(given: str, clock):
    """Behaviour 94: a moment, or so many seconds after the turn began, by the clock of the agent."""

    @tool(effect="pure", inline=True)
    def work() -> str:
        """Work."""
        clock.tick(4)
        return "worked"

    deadline = {
        "after": Deadline(after=10, now=clock.now),
        "at": Deadline(at=clock.now() + 10, now=clock.now),
        "agent's clock": Deadline(after=10),
    }[given]
    model = ScriptedModel(*[calls("work")] * 3, says("never said"))
    result = await Agent(model, tools=[work], criteria=[deadline], clock=clock).run("go")
    assert result.stop_reason is StopReason.DEADLINE
    assert steps(result) == 3


async def test_a_pause_uses_up_a_deadline(clock):
    """Behaviour 94: a deadline is a moment, whatever happened until then."""
    model = ScriptedModel(calls("add", a=1, b=2), says("never said"))
    agent = Agent(model, tools=[add], criteria=[Deadline(after=60, now=clock.now)], clock=clock)
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    first = await agent.run("go", session=SESSION)
    clock.tick(3600)
    result = await agent.resume(SESSION, answers={first.waiting_for[0].id: Approve()})
    assert result.stop_reason is StopReason.DEADLINE


async def test_limits_survive_pause_and_resume():
    """Behaviour 94: limits are counted in the log: another process goes on counting where the first stopped."""

    def agent(store: Any = None) -> Agent[Any, Any]:
        made = Agent(forever(input=10), tools=[add], criteria=[StepLimit(4), TokenLimit(1000)], store=store)
        made.gate(ToolCalling)(lambda event: Ask("May it?"))
        return made

    first = agent()
    result = await first.run("go", session=SESSION)
    seen = 0
    while isinstance(result.outcome, Suspended) and seen < 9:
        seen += 1
        result = await agent(first.store).resume(SESSION, answers={result.waiting_for[0].id: Approve()})
    assert seen == 4
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert (steps(result), result.usage.input) == (4, 40)


async def test_a_retry_limit_bounds_the_retries_of_a_turn():
    """Behaviour 94: no more retries than that are made, and the outcome says why."""
    model = ScriptedModel(*[ServerError("down")] * 9)
    agent = Agent(model, errors=ErrorPolicy.retrying(5, delay=0), criteria=[RetryLimit(1)])
    result = await agent.run("go")
    assert len(model.requests) == 2
    assert result.stop_reason in (StopReason.RETRY_LIMIT, StopReason.ERROR)


async def test_a_retry_limit_counts_over_the_steps_of_a_turn():
    """Behaviour 94: retries of different steps add up."""
    down = ServerError("down")
    model = ScriptedModel(
        down, calls("add", a=1, b=2), down, calls("add", a=1, b=2), down, calls("add", a=1, b=2), says("done")
    )
    agent = Agent(model, tools=[add], errors=ErrorPolicy.retrying(5, delay=0), criteria=[RetryLimit(2)])
    result = await agent.run("go", session=SESSION)
    assert result.stop_reason in (StopReason.RETRY_LIMIT, StopReason.ERROR)
    retried = [record for record in await find(agent, ErrorHandled) if record.action == "retry"]
    assert len(retried) == 2


async def test_an_error_limit_stops_at_the_first_error_of_a_tool():
    """Behaviour 94: error presence is a criterion."""
    model = ScriptedModel(calls("fail"), says("never said"))
    result = await Agent(model, tools=[fail], criteria=[ErrorLimit(1)]).run("go")
    assert len(model.requests) == 1
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.ERROR


async def test_an_error_limit_counts_the_errors_of_all_steps():
    """Behaviour 94: two failed calls in two steps are two errors."""
    model = ScriptedModel(calls("fail"), calls("fail"), says("never said"))
    result = await Agent(model, tools=[fail], criteria=[ErrorLimit(2)]).run("go")
    assert len(model.requests) == 2
    assert result.stop_reason is StopReason.ERROR


# ---------------------------------------------------------------- 97, 83a: errors of tools


async def test_a_turn_whose_model_recovered_from_a_failed_tool_is_completed():
    """Behaviour 97: a tool that failed in step 1 and a model that recovered: the outcome is Completed."""
    model = ScriptedModel(calls("fail"), calls("add", a=1, b=2), says("3"))
    agent = Agent(model, tools=[add, fail])
    result = await agent.run("go", session=SESSION)
    assert result.outcome == Completed()
    assert result.stop_reason is StopReason.COMPLETED
    assert result.error is None
    part = model.requests[1].messages[-1].parts[0]
    assert part.status == "error"
    assert part.text == f"Error: the tool failed (call {SESSION}/1/1)"
    returned = [record for record in await agent.store.read(SESSION) if isinstance(record, ToolReturned)]
    assert returned[0].error.message == "the disk is full"


@pytest.mark.parametrize("policy", [None, ErrorPolicy.strict()], ids=["told to the model", "ends the turn"])
async def test_the_ending_hooks_run_when_a_tool_fails(policy: ErrorPolicy | None):
    """Behaviours 83a, 97: StepEnding and TurnEnding run on every exit, with the outcome as argument."""
    model = ScriptedModel(calls("fail"), says("recovered"))
    agent = Agent(model, tools=[fail], errors=policy)
    steps_seen: list[Any] = []
    turns_seen: list[Any] = []
    facts: list[Any] = []
    agent.gate(StepEnding)(lambda event: steps_seen.append(event))
    agent.gate(TurnEnding)(lambda event: turns_seen.append(event.outcome))
    agent.observe(TurnFailed, wait=True)(lambda fact: facts.append(fact.error.message))
    agent.observe(TurnEnded, wait=True)(lambda fact: facts.append(type(fact.outcome).__name__))
    result = await agent.run("go", session=SESSION)
    assert steps_seen[0].step.results[0].is_error
    if policy is None:
        assert [event.error for event in steps_seen] == [None, None]
        assert turns_seen == [Completed()]
        assert facts == ["Completed"]
    else:
        (ended,) = steps_seen
        assert str(ended.error) == "the disk is full"
        (outcome,) = turns_seen
        assert isinstance(outcome, Failed)
        assert (outcome.error.type, outcome.error.message) == ("RuntimeError", "the disk is full")
        assert facts == ["the disk is full", "Failed"]
        with pytest.raises(RuntimeError, match="the disk is full"):
            result.raise_for_error()
        (message,) = [message for message in result.messages if message.role == "tool"]
        assert len(message.parts) == 1, "no call is left without a result"


async def test_the_ending_hooks_run_when_the_model_fails():
    """Behaviour 83a: the same for an error of the model."""
    agent = Agent(ScriptedModel(ServerError("down")))
    seen: list[Any] = []
    agent.gate(TurnEnding)(lambda event: seen.append(event.outcome))
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert seen == [result.outcome]


# ---------------------------------------------------------------- 81: what nobody handles


async def test_an_error_that_an_error_hook_has_no_answer_for_propagates():
    """Behaviour 81: a hook that returns None leaves the error to the policy: the turn fails with that very error."""
    down = ModelError("down")
    agent = Agent(ScriptedModel(down))
    seen: list[Any] = []
    agent.gate(Erring)(lambda event: seen.append((event.error, event.category, event.attempt)))
    result = await agent.run("go")
    assert seen == [(down, "model", 1)]
    assert isinstance(result.outcome, Failed)
    with pytest.raises(ModelError) as caught:
        result.raise_for_error()
    assert caught.value is down


async def test_a_wrap_that_returns_nothing_is_an_error_that_names_it():
    """Behaviour 81: None is no reply: it does not become an empty answer."""
    agent = Agent(ScriptedModel(says("hello")))

    @agent.wrap(ModelCall)
    async def forgetful(request: Any, call_next: Any) -> Any:
        await call_next(request)

    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    with pytest.raises(BadReply, match="forgetful"):
        result.raise_for_error()


async def test_a_pause_is_never_handled_as_an_error():
    """Behaviour 81: neither error hooks nor wraps that catch everything see a suspension."""
    seen: list[str] = []
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], errors=ErrorPolicy.retrying(5, delay=0)
    )
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    agent.gate(Erring)(lambda event: seen.append("error hook"))

    @agent.wrap(ToolCall)
    async def catches_everything(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except BaseException as error:
            seen.append(repr(error))
            return "handled"

    result = await agent.run("go", session=SESSION)
    assert isinstance(result.outcome, Suspended)
    assert seen == []
    assert result.error is None
    done = await agent.resume(SESSION, answers={result.waiting_for[0].id: Approve()})
    assert done.outcome == Completed()
    assert seen == []


# ---------------------------------------------------------------- the error policy


async def test_by_default_an_error_of_the_model_that_is_not_retryable_ends_the_turn():
    """Behaviours 81, 97: the default policy halts for all but tools and what may pass."""
    model = ScriptedModel(ModelError("down"), says("up"))
    result = await Agent(model).run("go")
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == 1


@pytest.mark.parametrize("error", [ServerError("down"), RateLimited("slow down"), TimeoutError("too slow")], ids=repr)
async def test_the_retrying_preset_retries_the_model_within_its_bound(error: Exception):
    """Behaviours 81, 97: retried until it works, or until the bound; both are on record."""
    model = ScriptedModel(error, error, says("up"))
    agent = Agent(model, errors=ErrorPolicy.retrying(2, delay=0))
    result = await agent.run("go", session=SESSION)
    assert result.outcome == Completed()
    assert result.error is None
    assert [record.action for record in await find(agent, ErrorHandled)] == ["retry", "retry"]

    model = ScriptedModel(*[error] * 9)
    agent = Agent(model, errors=ErrorPolicy.retrying(2, delay=0))
    result = await agent.run("go", session=SESSION)
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == 3
    assert [record.action for record in await find(agent, ErrorHandled)] == ["retry", "retry", "halt"]


async def test_the_retrying_preset_waits_between_attempts(clock):
    """Behaviours 81, 97: the delay is slept by the agent's clock, and grows."""
    model = ScriptedModel(ServerError("down"), ServerError("down"), says("up"))
    await Agent(model, errors=ErrorPolicy.retrying(2, delay=7), clock=clock).run("go")
    first, second = clock.slept
    assert 0 <= first <= 7
    assert 0 <= second <= 14


async def test_the_strict_preset_ends_the_turn_with_a_tools_error():
    """Behaviours 81, 97: any error ends the turn, and the model is not asked again."""
    model = ScriptedModel(calls("fail"), says("never said"))
    result = await Agent(model, tools=[fail], errors=ErrorPolicy.strict()).run("go")
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == 1


async def test_retries_in_a_row_are_forgotten_after_a_good_step_but_the_total_is_not():
    """Behaviours 81, 97: `retries` bounds those in a row, `total` all of a turn."""
    down = ServerError("down")
    script = [reply for _ in range(5) for reply in (down, calls("add", a=1, b=2))]
    policy = ErrorPolicy(actions={"model": "retry"}, retries=1, total=3, delay=0)
    model = ScriptedModel(*script, says("done"))
    agent = Agent(model, tools=[add], errors=policy)
    result = await agent.run("go", session=SESSION)
    assert isinstance(result.outcome, Failed)
    actions = [record.action for record in await find(agent, ErrorHandled)]
    assert actions == ["retry", "retry", "retry", "halt"]


async def test_a_hook_may_retry_where_the_policy_would_halt_but_not_beyond_the_bound():
    """Behaviours 81, 97: the policy holds when no hook answers; bounds hold always."""
    model = ScriptedModel(*[ServerError("down")] * 9)
    agent = Agent(model, errors=ErrorPolicy(retries=3, delay=0))
    attempts: list[int] = []
    agent.gate(Erring)(lambda event: attempts.append(event.attempt) or Again())
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == 4
    assert attempts == [1, 2, 3, 4]


async def test_a_hook_may_halt_where_the_policy_would_retry():
    """Behaviours 81, 97: a Halt of a hook is an outcome with its reason, not an error."""
    model = ScriptedModel(ServerError("down"), says("up"))
    agent = Agent(model, errors=ErrorPolicy.retrying(3, delay=0))
    agent.gate(Erring)(lambda event: Halt("not worth it", reply="Sorry."))
    result = await agent.run("go")
    assert result.outcome == Stopped(StopReason.HALTED, "not worth it")
    assert result.text == "Sorry."
    assert len(model.requests) == 1


async def test_a_model_call_without_a_reply_cannot_be_ignored():
    """Behaviours 81, 97: there is nothing to go on with, so to ignore it means to halt."""
    model = ScriptedModel(ServerError("down"), says("up"))
    agent = Agent(model)
    agent.gate(Erring)(lambda event: Ignore())
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == 1


async def test_the_error_of_a_hook_is_not_sent_through_hooks_again():
    """Behaviours 81, 97: a hook that fails ends the turn and no error hook is asked."""
    asked: list[int] = []
    agent = Agent(ScriptedModel(says("hello")), errors=ErrorPolicy.retrying(3, delay=0))
    agent.gate(Erring)(lambda event: asked.append(1) or Again())

    @agent.rewrite(ModelCalling)
    def broken(event: Any) -> Any:
        raise RuntimeError("boom")

    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.hook == "broken"
    assert asked == []


@pytest.mark.parametrize("answer", [None, Ignore(), Halt("enough")], ids=repr)
async def test_an_error_hook_is_asked_about_the_error_of_a_tool(answer: Any):
    """Behaviours 81, 97: any error is put to the hooks; by default a tool's becomes a result the model reads."""
    model = ScriptedModel(calls("fail"), says("recovered"))
    agent = Agent(model, tools=[fail])
    seen: list[str] = []
    agent.gate(Erring)(lambda event: seen.append(event.category) or answer)
    result = await agent.run("go")
    assert len(seen) == 1
    if isinstance(answer, Halt):
        assert result.outcome == Stopped(StopReason.HALTED, "enough")
    else:
        assert result.outcome == Completed()
        assert model.requests[1].messages[-1].parts[0].status == "error"


async def test_a_tools_error_that_a_hook_ignores_leaves_no_call_without_a_result():
    """Behaviours 83a, 97: where the policy would end the turn an ignored error becomes a result after all."""
    two = [("add", {"a": 1, "b": 2}), ("fail", {})]
    model = ScriptedModel(calls(two), says("recovered"))
    agent = Agent(model, tools=[add, fail], errors=ErrorPolicy.strict())
    agent.gate(Erring)(lambda event: Ignore())
    result = await agent.run("go")
    assert result.outcome == Completed()
    (message,) = [message for message in result.messages if message.role == "tool"]
    assert [part.call_id[-2:] for part in message.parts] == ["/1", "/2"]
    assert message.parts[0].text == "3"
    assert message.parts[1].status != "ok"


@pytest.mark.parametrize("by", ["policy", "hook"])
async def test_a_retried_tool_error_enters_the_step_again_and_finished_calls_stay_finished(by: str):
    """Behaviours 81, 97: the failing call is made again, its sibling is not, and no model is asked for it."""
    ran: list[str] = []

    @tool(effect="pure", inline=True)
    def steady() -> str:
        """Be steady."""
        ran.append("steady")
        return "ok"

    @tool(effect="pure", inline=True)
    def flaky() -> str:
        """Be flaky."""
        ran.append("flaky")
        if ran.count("flaky") == 1:
            raise ToolError("try again")
        return "worked"

    model = ScriptedModel(calls([("steady", {}), ("flaky", {})]), says("done"))
    policy = ErrorPolicy(actions={"tool": "retry"} if by == "policy" else {}, delay=0)
    agent = Agent(model, tools=[steady, flaky], errors=policy)
    if by == "hook":
        agent.gate(Erring)(lambda event: Again())
    result = await agent.run("go")
    assert result.outcome == Completed()
    assert sorted(ran) == ["flaky", "flaky", "steady"]
    assert [part.text for part in model.requests[1].messages[-1].parts] == ["ok", "worked"]
    assert len(model.requests) == 2


async def test_a_person_who_rejects_every_reply_meets_the_bound_of_regeneration():
    """Behaviour 92: a Reject of a reply regenerates, and counts like any other, over all resumes."""
    model = ScriptedModel(*[says(f"draft {n}") for n in range(9)])
    agent = Agent(model, max_regenerations=2)
    agent.gate(ModelReplying)(lambda event: Ask("Send it?"))
    result = await agent.run("go", session=SESSION)
    rejected = 0
    while isinstance(result.outcome, Suspended) and rejected < 9:
        result = await agent.resume(SESSION, answers={result.waiting_for[0].id: Reject("again")})
        rejected += 1
    assert rejected == 3
    assert len(model.requests) == 3
    assert result.stop_reason is StopReason.REGENERATION
    assert result.usage.requests == 3


async def test_vetoes_are_counted_over_a_suspension():
    """Behaviour 93: the cap is counted in the log: a pause in between does not start it afresh."""
    ask, done = calls("add", a=1, b=2), says("done")
    model = ScriptedModel(done, ask, done, ask, done, ask, done)
    agent = Agent(model, tools=[add], max_vetoes=2)
    active: list[bool] = []
    agent.gate(Stopping)(lambda event: active.append(event.stop_active) or Veto("go on"))
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    result = await agent.run("go", session=SESSION)
    for _ in range(2):
        assert isinstance(result.outcome, Suspended)
        result = await agent.resume(SESSION, answers={result.waiting_for[0].id: Approve()})
    assert result.stop_reason is StopReason.VETO_CAP
    assert active == [False, True, True]


async def test_a_rewind_of_the_answer_lets_the_model_answer_again():
    agent = Agent(ScriptedModel(says("a"), says("b")))
    agent.gate(StepEnding)(lambda event: Rewind(1, "Say b.") if event.step.number == 1 else None)
    result = await agent.run("go")
    assert result.text == "b"
    assert [message.text for message in result.messages] == ["go", "Say b.", "b"]


async def test_rewinds_are_bounded():
    agent = Agent(FunctionModel(lambda request: says("a")), max_vetoes=2)
    agent.gate(StepEnding, name="back")(lambda event: Rewind(event.step.number, "again"))
    result = await agent.run("go")
    assert result.stop_reason is StopReason.VETO_CAP
    assert "back rewound 3 times" in result.outcome.detail


@pytest.mark.parametrize("criteria", [(), (StepLimit(9),)], ids=["plain", "with a limit"])
async def test_a_reply_that_its_vendor_has_paused_goes_on_when_it_is_sent_back(criteria):
    model = ScriptedModel(says("searching …", finish="paused"), says("found"))
    result = await Agent(model, criteria=criteria).run("search", session="s")
    assert (result.outcome, result.text) == (Completed(), "found")
    assert [message.text for message in model.requests[1].messages] == ["search", "searching …"]


async def test_a_vendor_that_pauses_for_ever_is_stopped_by_a_limit():
    model = FunctionModel(lambda request: says("…", finish="paused"))
    result = await Agent(model, criteria=[StepLimit(3)]).run("search")
    assert (result.stop_reason, result.state.steps) == (StopReason.STEP_LIMIT, 3)
