"""Retries are right by default: what is retried, how often, after which wait, and what a crash leaves of the count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    Again,
    Agent,
    Completed,
    Deadline,
    Erring,
    ErrorHandled,
    ErrorPolicy,
    Fail,
    Failed,
    Halt,
    Ignore,
    ModelCall,
    ModelCalling,
    ModelReplied,
    Retracted,
    Stopped,
    StopReason,
    TextDelta,
    tool,
)
from windlass.errors import (
    AuthFailed,
    BadRequest,
    ConnectionFailed,
    ContentFiltered,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    ModelTimeout,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServerError,
)
from windlass.outcomes import error_from_value, error_value
from windlass.records import HookDecided, decode
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, ScriptedModel, breaks, calls, says

PASSING = [RateLimited, Overloaded, ServerError, ConnectionFailed, ModelTimeout]
LASTING = [QuotaExceeded, AuthFailed, ModelNotFound, BadRequest, ContentFiltered, ContextOverflow, ModelError]


# ---------------------------------------------------------------- what is retried


@pytest.mark.parametrize("kind", PASSING)
def test_an_error_that_may_pass_is_retryable_unless_it_says_otherwise(kind: Any):
    assert kind("x").retryable
    assert not kind("x", retryable=False).retryable


@pytest.mark.parametrize("kind", LASTING)
def test_an_error_that_repeating_does_not_help_is_not_retryable_unless_it_says_otherwise(kind: Any):
    assert not kind("x").retryable
    assert kind("x", retryable=True).retryable


@pytest.mark.parametrize("kind", [*PASSING, *LASTING])
@pytest.mark.parametrize("retryable", [True, False])
def test_an_error_of_the_log_is_as_retryable_as_it_was(kind: Any, retryable: bool):
    again = error_from_value(error_value(kind("x", retryable=retryable)))
    assert type(again) is kind
    assert again.retryable is retryable  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [*PASSING, TimeoutError, ConnectionError, ConnectionResetError])
async def test_an_error_that_may_pass_is_retried_without_any_policy(kind: Any):
    clock = FakeClock(auto=True)
    model = ScriptedModel(kind("x"), kind("x"), says("ok"))
    result = await Agent(model, clock=clock).run("go")
    assert result.outcome == Completed()
    assert result.text == "ok"
    assert len(clock.slept) == 2


@pytest.mark.parametrize("kind", [*LASTING, KeyError])
async def test_any_other_error_of_a_model_is_not_repeated(kind: Any):
    for policy in (None, ErrorPolicy.retrying(2)):
        model = ScriptedModel(kind("x"), says("never said"))
        result = await Agent(model, errors=policy, clock=FakeClock(auto=True)).run("go")
        assert isinstance(result.outcome, Failed)
        assert len(model.requests) == 1


async def test_what_an_error_says_of_itself_wins_over_its_class():
    model = ScriptedModel(BadRequest("x", retryable=True), RateLimited("y", retryable=False), says("never said"))
    result = await Agent(model, clock=FakeClock(auto=True)).run("go")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "RateLimited"
    assert len(model.requests) == 2


@pytest.mark.parametrize("policy", [ErrorPolicy.never(), ErrorPolicy(retries=0), ErrorPolicy.strict()])
async def test_a_policy_without_retries_retries_nothing(policy: ErrorPolicy):
    model = ScriptedModel(ServerError("x"), says("never said"))
    result = await Agent(model, errors=policy).run("go")
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == 1


async def test_a_policy_for_tools_leaves_the_retries_of_models_as_they_are():
    model = ScriptedModel(ServerError("x"), says("ok"))
    policy = ErrorPolicy(actions={"tool": "halt"})
    assert (await Agent(model, errors=policy, clock=FakeClock(auto=True)).run("go")).text == "ok"


async def test_a_phase_handler_that_times_out_is_not_retried():
    from windlass import Pipeline

    class Slow:
        def handle(self, state: Any, turn: Any) -> Any:
            raise TimeoutError("slow handler")

    pipeline = Pipeline.minimal().with_handler("after_step", Slow())
    model = ScriptedModel(says("one"), says("never said"))
    result = await Agent(model, pipeline=pipeline).run("go")
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == 1


# ---------------------------------------------------------------- how long it waits


async def test_the_wait_is_as_long_as_the_vendor_asks_for():
    clock = FakeClock(auto=True)
    model = ScriptedModel(RateLimited("x", retry_after=20), says("ok"))
    assert (await Agent(model, clock=clock).run("go")).text == "ok"
    assert clock.slept == [20]


async def test_a_vendor_that_asks_for_more_than_the_cap_is_not_asked_again():
    clock = FakeClock(auto=True)
    model = ScriptedModel(RateLimited("x", retry_after=60), RateLimited("x", retry_after=61), says("never said"))
    agent = Agent(model, clock=clock)
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.retry_after == 61
    assert clock.slept == [60]
    assert result.why().data["ended"]["by"] == ["the cap of 60 s"]


@pytest.mark.parametrize("luck", [0.0, 0.5, 0.999])
async def test_without_advice_it_backs_off_exponentially_with_full_jitter(luck: float, monkeypatch: Any):
    monkeypatch.setattr("random.random", lambda: luck)
    clock = FakeClock(auto=True)
    model = ScriptedModel(*[ServerError("x")] * 12, says("ok"))
    policy = ErrorPolicy(retries=12, total=12, delay=0.5, cap=30)
    assert (await Agent(model, clock=clock, errors=policy).run("go")).text == "ok"
    ceilings = [0.5, 1, 2, 4, 8, 16, *[30] * 6]
    expected = [luck * ceiling for ceiling in ceilings]
    assert clock.slept == [wait for wait in expected if wait]


def test_a_policy_can_say_how_long_it_would_wait():
    policy = ErrorPolicy(delay=2)
    assert 0 <= (policy.wait_before_retry(ServerError("x"), 1) or 0.0) <= 2
    assert policy.wait_before_retry(ServerError("x"), 3) is None, "the retries are used up"
    assert policy.wait_before_retry(AuthFailed("x"), 1) is None
    assert policy.wait_before_retry(RateLimited("x", retry_after=61), 1) is None
    assert (policy.backoff(ServerError("x"), 5000) or 0.0) <= 60


@pytest.mark.parametrize(
    "wrong",
    [{"cap": -1}, {"cap": None}, {"delay": "1"}, {"delay": float("nan")}, {"retries": 1.5}, {"total": -1}],
    ids=repr,
)
def test_a_bound_that_cannot_be_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=f"ErrorPolicy: .*{next(iter(wrong))}"):
        ErrorPolicy(**wrong)


async def test_a_deadline_holds_while_it_waits():
    clock = FakeClock()
    model = ScriptedModel(RateLimited("x", retry_after=50), says("never said"))
    turn = asyncio.create_task(Agent(model, clock=clock, criteria=[Deadline(after=5)]).run("go"))
    await clock.wait_for_sleepers(2)
    await clock.advance(5)
    result = await turn
    assert result.stop_reason is StopReason.DEADLINE
    assert len(model.requests) == 1


# ---------------------------------------------------------------- how often


def stubborn(agent: Agent[Any, Any], attempts: int) -> None:
    @agent.wrap(ModelCall)
    async def stubborn(request: Any, call_next: Any) -> Any:
        for _ in range(attempts - 1):
            try:
                return await call_next(request)
            except ModelError:
                pass
        return await call_next(request)


@pytest.mark.parametrize(("wrapped", "made"), [(1, 3), (2, 4), (3, 3), (5, 5)])
async def test_attempts_of_wraps_and_policy_are_counted_together(wrapped: int, made: int):
    """The policy retries while fewer than three stand there; a wrap that it enters is free to make its own."""
    model = ScriptedModel(*[ServerError("x")] * 20)
    agent = Agent(model, clock=FakeClock(auto=True))
    stubborn(agent, wrapped)
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert len(model.requests) == made


async def test_every_model_call_has_its_own_count():
    @tool(effect="pure", inline=True)
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    down = ServerError("x")
    script = [down, down, calls("add", a=1, b=2), down, down, says("3")]
    result = await Agent(ScriptedModel(*script), tools=[add], clock=FakeClock(auto=True)).run("go")
    assert result.text == "3"


async def test_a_reply_that_a_wrap_threw_away_before_it_failed_is_paid_for():
    model = ScriptedModel(says("poor"), says("good"))
    agent = Agent(model, clock=FakeClock(auto=True))

    @agent.wrap(ModelCall)
    async def picky(request: Any, call_next: Any) -> Any:
        reply = await call_next(request)
        if reply.text == "poor":
            raise Overloaded("a wrap says so")
        return reply

    result = await agent.run("go")
    assert result.text == "good"
    assert result.usage.requests == 2


async def test_a_retry_sends_the_judged_request_and_asks_nobody_on_model_calling_again():
    model = ScriptedModel(ServerError("x"), ServerError("x"), says("ok"))
    agent = Agent(model, system="Add.", clock=FakeClock(auto=True))
    seen: list[str] = []

    @agent.rewrite(ModelCalling)
    def brief(event: Any) -> Any:
        seen.append("rewrite")
        return event.request.replace(system=f"{event.request.system} {len(seen)}")

    agent.gate(ModelCalling, name="look")(lambda event: seen.append("gate"))

    @agent.wrap(ModelCall)
    async def watch(request: Any, call_next: Any) -> Any:
        seen.append("wrap")
        return await call_next(request)

    assert (await agent.run("go")).text == "ok"
    assert seen == ["rewrite", "gate", "wrap", "wrap", "wrap"]
    assert [request.system for request in model.requests] == ["Add. 1"] * 3


async def test_the_hooks_of_the_steps_start_are_not_run_again_for_a_retry():
    from windlass import StepStarted, StepStarting

    model = ScriptedModel(ServerError("x"), says("ok"))
    agent = Agent(model, clock=FakeClock(auto=True))
    begun: list[int] = []
    agent.gate(StepStarting)(lambda event: begun.append(event.step))
    agent.observe(StepStarted, wait=True)(lambda fact: begun.append(-fact.step))
    await agent.run("go")
    assert sorted(begun) == [-1, 1]


async def test_the_reply_says_which_attempt_it_came_from():
    for wrapped in (False, True):
        agent = Agent(ScriptedModel(ServerError("x"), ServerError("x"), says("ok")), clock=FakeClock(auto=True))
        if wrapped:
            stubborn(agent, 2)
        stream = agent.stream("go", session="s")
        events = [event async for event in stream]
        assert [event.attempt for event in events if isinstance(event, ModelReplied | TextDelta)] == [3, 3]


async def test_streamed_text_is_retracted_before_the_wait():
    clock = FakeClock()
    model = ScriptedModel(breaks("half a ", error=RateLimited("x", retry_after=20)), says("whole"))
    stream = Agent(model, clock=clock).stream("go")
    seen: list[Any] = []

    async def read() -> None:
        async for event in stream:
            seen.append(event)  # noqa: PERF401 -- it is looked at while it is read

    reading = asyncio.create_task(read())
    await clock.wait_for_sleepers()
    await clock.advance(19)
    assert [type(event) for event in seen if isinstance(event, TextDelta | Retracted)] == [TextDelta, Retracted]
    await clock.advance(1)
    await reading
    assert stream.result.text == "whole"


async def test_side_calls_are_retried_and_then_their_asker_gets_the_error():
    for script, told in (([ServerError("x")] * 2 + [says("fine")], "fine"), ([ServerError("x")] * 3, "ServerError")):
        critic, clock = ScriptedModel(*script, name="critic"), FakeClock(auto=True)
        agent = Agent(ScriptedModel(says("ok")), models=[critic], clock=clock)
        heard: list[str] = []

        @agent.gate(ModelCalling)
        async def ask(event: Any, turn: Any, heard: list[str] = heard) -> None:
            try:
                heard.append((await turn.ask("critic", "Is it good?")).text)
            except ServerError as error:
                heard.append(type(error).__name__)

        agent.gate(Erring)(lambda event: pytest.fail("Erring is not asked about side calls"))
        assert (await agent.run("go")).outcome == Completed()
        assert heard == [told]
        assert len(clock.slept) == 2


# ---------------------------------------------------------------- after a crash


async def crashed_at(agent_of: Any, kind: type, count: int) -> tuple[MemoryStore, str]:
    """A store as a crash leaves it right after the `count`-th record of a kind was kept."""
    agent, _ = agent_of(MemoryStore())
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    at = [index for index, record in enumerate(log) if isinstance(record, kind)][count - 1]
    store = MemoryStore()
    await store.append("s", list(log[: at + 1]), 0)
    return store, "s"


@pytest.mark.parametrize("wrapped", [1, 2])
@pytest.mark.parametrize("retried", [1, 2])
async def test_after_a_crash_the_count_goes_on(wrapped: int, retried: int):
    def agent_of(store: MemoryStore) -> tuple[Agent[Any, Any], ScriptedModel]:
        model = ScriptedModel(*[ServerError("x")] * 20)
        agent = Agent(model, store=store, clock=FakeClock(auto=True))
        if wrapped > 1:
            stubborn(agent, wrapped)
        return agent, model

    whole, model = agent_of(MemoryStore())
    await whole.run("go", session="s")
    log = await whole.store.read("s")
    retries = [r for r in log if isinstance(r, ErrorHandled) and r.action == "retry"]
    if retried > len(retries):
        return
    store, _ = await crashed_at(agent_of, ErrorHandled, retried)
    made_before = retries[retried - 1].attempt
    agent, again = agent_of(store)
    result = await agent.resume("s")
    assert isinstance(result.outcome, Failed)
    assert made_before + len(again.requests) == len(model.requests)
    after = await store.read("s")
    kept = [(r.action, r.attempt) for r in after if isinstance(r, ErrorHandled)]
    assert kept == [(r.action, r.attempt) for r in log if isinstance(r, ErrorHandled)]


# ---------------------------------------------------------------- Erring


async def test_fail_ends_the_turn_as_failed_and_nothing_is_retried():
    model = ScriptedModel(ServerError("x"), says("never said"))
    agent = Agent(model)
    agent.gate(Erring, name="no")(lambda event: Fail())
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "ServerError"
    assert isinstance(result.error, ServerError)
    assert len(model.requests) == 1
    assert result.why().data["ended"]["by"] == ["no"]


async def test_fail_ends_the_turn_with_a_tools_error():
    @tool(effect="pure", inline=True)
    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    agent = Agent(ScriptedModel(calls("fail"), says("never said")), tools=[fail])
    agent.gate(Erring)(lambda event: Fail())
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "ValueError"
    assert [message.role for message in result.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("policy", [ErrorPolicy.strict(), None], ids=["strict", "Fail"])
async def test_the_error_of_a_pure_tool_that_ends_the_turn_is_not_an_unknown_outcome(policy: ErrorPolicy | None):
    @tool(effect="pure", inline=True)
    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    agent = Agent(ScriptedModel(calls("fail"), says("never said")), tools=[fail], errors=policy)
    if policy is None:
        agent.gate(Erring)(lambda event: Fail())
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    (part,) = result.messages[-1].parts
    assert "unknown" not in part.text  # type: ignore[union-attr]
    assert part.status == "cancelled"  # type: ignore[union-attr]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [(Halt("h"), Fail(), Stopped), (Fail(), Ignore(), Failed), (Fail(), Again(), Failed), (Ignore(), Again(), Failed)],
)
async def test_the_strictest_answer_to_an_error_wins(first: Any, second: Any, outcome: type, swapped: bool):
    model = ScriptedModel(ServerError("x"), says("never said"))
    agent = Agent(model, clock=FakeClock(auto=True))
    answers = (second, first) if swapped else (first, second)
    for name, answer in zip("ab", answers, strict=True):
        agent.gate(Erring, name=name)(lambda event, answer=answer: answer)
    result = await agent.run("go")
    assert isinstance(result.outcome, outcome)
    assert len(model.requests) == 1


async def test_again_tries_what_the_policy_would_not_after_its_own_wait_and_within_the_bounds():
    clock = FakeClock(auto=True)
    model = ScriptedModel(*[AuthFailed("x")] * 9)
    agent = Agent(model, clock=clock)
    counted: list[int] = []
    agent.gate(Erring)(lambda event: counted.append(event.attempt) or Again(after=7 * event.attempt))
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert (clock.slept, counted, len(model.requests)) == ([7, 14], [1, 2, 3], 3)


async def test_again_without_a_time_waits_as_the_policy_would():
    clock = FakeClock(auto=True)
    agent = Agent(ScriptedModel(RateLimited("x", retry_after=9), says("ok")), clock=clock)
    agent.gate(Erring)(lambda event: Again())
    assert (await agent.run("go")).text == "ok"
    assert clock.slept == [9]


def test_again_takes_no_time_that_is_none():
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Again"):
            Again(after=wrong)


def test_a_log_of_before_that_says_retry_is_read_as_again():
    old = (
        b'{"kind":"HookDecided","event":"Erring","about":"s/1/error","verdict":{"decision":"Retry","delay":2.5},'
        b'"answers":[["a",{"decision":"Retry"}]],"shadow":true}'
    )
    record = decode(old)
    assert isinstance(record, HookDecided)
    assert record.verdict == Again(2.5)
    assert record.answers == (("a", Again(0.0)),)
