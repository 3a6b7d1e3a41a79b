"""Retry: bounded, jittered, honest about unsafe tools, and never in the way of a suspension."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    Again,
    Agent,
    Ask,
    Erring,
    ErrorPolicy,
    Failed,
    Halt,
    ModelCall,
    NotDone,
    Retracted,
    Suspended,
    TextDelta,
    ToolCalling,
    Turn,
    tool,
)
from windlass.capabilities import Fallback, Retry
from windlass.errors import AuthFailed, ConfigError, ConnectionFailed, Overloaded, RateLimited, ServerError
from windlass.testing import (
    FakeClock,
    FunctionModel,
    ScriptedModel,
    agreeable,
    assert_same_everywhere,
    breaks,
    calls,
    check_capability,
    says,
)


def agent_with(*script: Any, retry: Retry | None = None, **options: Any) -> Agent:
    return Agent(
        ScriptedModel(*script), clock=FakeClock(auto=True), capabilities=[retry or Retry(jitter=False)], **options
    )


def slept(agent: Agent) -> list[float]:
    return agent._options.clock.slept  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [Retry, lambda: Retry(5, tools="*")], ids=["default", "tools"])
async def test_it_passes_the_checks_for_capabilities(make):
    await check_capability(make)


async def test_a_failed_model_call_is_made_again():
    """Behaviour 20: two attempts, one message."""
    agent = agent_with(ServerError("down"), says("hi"))
    result = await agent.run("go", session="s")
    assert result.text == "hi"
    assert len(agent.model.requests) == 2
    attempted = [r for r in await agent.store.read("s") if type(r).__name__ == "ModelAttempted"]
    assert [record.error.message for record in attempted] == ["down"]
    assert len([m for m in result.messages if m.role == "assistant"]) == 1


async def test_after_the_last_attempt_the_original_error_is_the_outcome():
    errors = [ServerError("one"), ServerError("two"), ServerError("three")]
    agent = agent_with(*errors, says("never"))
    result = await agent.run("go")
    assert result.outcome.error.message == "three"
    with pytest.raises(ServerError) as caught:
        result.raise_for_error()
    assert caught.value is errors[2]


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
@pytest.mark.parametrize("policy", [None, ErrorPolicy(retries=5)])
async def test_attempts_of_wrap_and_policy_are_counted_together(attempts, policy):
    agent = agent_with(*[ServerError("down")] * 9, retry=Retry(attempts), errors=policy)
    assert isinstance((await agent.run("go")).outcome, Failed)
    assert len(agent.model.requests) == attempts


@pytest.mark.parametrize("several", [[3, 3], [2, 5], [5, 2], [2, 3, 4]], ids=str)
async def test_several_retries_around_a_model_call_share_one_count(several):
    retries = [Retry(attempts, jitter=False, name=f"retry{n}") for n, attempts in enumerate(several)]
    model = ScriptedModel(*[ServerError("down")] * 20)
    agent = Agent(model, clock=FakeClock(auto=True), capabilities=retries)
    assert isinstance((await agent.run("go")).outcome, Failed)
    assert len(model.requests) == max(several)
    assert len(slept(agent)) == max(several) - 1


@pytest.mark.parametrize("several", [[3, 3], [2, 5], [5, 2]], ids=str)
async def test_several_retries_around_a_tool_call_share_one_count(several):
    made = []

    @tool(effect="pure")
    async def fetch() -> str:
        """Fetch."""
        made.append(1)
        raise ConnectionFailed("lost")

    retries = [Retry(attempts, tools="fetch", models=False, name=f"retry{n}") for n, attempts in enumerate(several)]
    model = ScriptedModel(calls("fetch"), says("sorry"))
    agent = Agent(model, tools=[fetch], clock=FakeClock(auto=True), capabilities=retries)
    assert (await agent.run("go")).text == "sorry"
    assert len(made) == max(several)


async def test_a_tool_that_two_patterns_of_one_retry_name_is_called_as_often_as_the_greater_says():
    made = []

    @tool(effect="pure")
    async def fetch() -> str:
        """Fetch."""
        made.append(1)
        raise ConnectionFailed("lost")

    model = ScriptedModel(calls("fetch"), says("sorry"))
    retry = Retry(tools={"f*": 2, "fetch": 4})
    await Agent(model, tools=[fetch], clock=FakeClock(auto=True), capabilities=[retry]).run("go")
    assert len(made) == 4


async def test_the_calls_of_a_sub_agent_have_a_count_of_their_own():
    child_model = ScriptedModel(*[ServerError("down")] * 2, says("done"), name="child")
    child = Agent(child_model, name="child", capabilities=[Retry(jitter=False)], clock=FakeClock(auto=True))

    @tool(effect="idempotent")
    async def ask_child(turn: Turn) -> str:
        """Ask the child."""
        return (await turn.delegate(child, "go")).text

    model = ScriptedModel(calls("ask_child"), says("fine"))
    retry = Retry(2, tools="ask_child", jitter=False)
    agent = Agent(model, tools=[ask_child], clock=FakeClock(auto=True), capabilities=[retry])
    assert (await agent.run("go")).text == "fine"
    assert len(child_model.requests) == 3


async def test_an_error_that_is_not_retryable_propagates_at_once():
    """Behaviour 56: the original error is raised after one attempt."""
    agent = agent_with(AuthFailed("no key"), says("never"))
    assert (await agent.run("go")).outcome.error.type == "AuthFailed"
    assert (len(agent.model.requests), slept(agent)) == (1, [])


async def test_only_the_errors_that_on_names_are_retried_here():
    retry = Retry(4, on=[ConnectionError, "rate_limit"], jitter=False)
    script = [ConnectionFailed("lost"), RateLimited("slow down"), AuthFailed("no key"), says("never")]
    agent = agent_with(*script, retry=retry)
    assert (await agent.run("go")).outcome.error.type == "AuthFailed"
    agent = agent_with(ServerError("down"), says("never"), retry=retry, errors=ErrorPolicy.never())
    assert (await agent.run("go")).outcome.error.type == "ServerError"
    agent = agent_with(AuthFailed("odd"), says("hi"), retry=Retry(on=lambda error: "odd" in str(error)))
    assert (await agent.run("go")).text == "hi"


async def test_the_policy_still_handles_what_is_not_retried_here():
    agent = agent_with(ServerError("down"), RateLimited("slow"), says("hi"), retry=Retry(on=RateLimited, jitter=False))
    assert (await agent.run("go")).text == "hi"
    assert len(agent.model.requests) == 3


async def test_waits_follow_delay_factor_and_cap():
    """Behaviour 57: delay, factor and cap."""
    agent = agent_with(*[ServerError("down")] * 4, says("hi"), retry=Retry(5, delay=1, factor=3, cap=5, jitter=False))
    assert (await agent.run("go")).text == "hi"
    assert slept(agent) == [1, 3, 5, 5]


async def test_waits_are_jittered_within_their_bounds():
    """Behaviour 57: jitter."""
    waits = []
    for _ in range(20):
        agent = agent_with(ServerError("down"), ServerError("down"), says("hi"), retry=Retry(delay=1))
        await agent.run("go")
        waits.append(slept(agent))
    assert all(0 <= one <= 1 and 0 <= two <= 2 for one, two in waits)
    assert len({tuple(pair) for pair in waits}) == 20


async def test_the_wait_that_a_vendor_asks_for_is_kept_and_spread():
    agent = agent_with(Overloaded("busy", retry_after=20), says("hi"))
    await agent.run("go")
    assert slept(agent) == [20]
    waits = set()
    for _ in range(20):
        agent = agent_with(Overloaded("busy", retry_after=20), says("hi"), retry=Retry())
        await agent.run("go")
        waits.update(slept(agent))
    assert len(waits) == 20
    assert all(20 <= wait <= 20.5 for wait in waits)


async def test_a_vendor_that_asks_for_more_than_the_cap_is_not_asked_again():
    agent = agent_with(RateLimited("tomorrow", retry_after=3600), says("never"))
    assert (await agent.run("go")).outcome.error.message == "tomorrow"
    assert slept(agent) == []


async def test_a_dead_vendor_is_asked_a_bounded_number_of_times_by_all_sessions_together():
    asked = []

    def dead(request: Any) -> Any:
        asked.append(1)
        raise Overloaded("dead", retry_after=1)

    clock = FakeClock(auto=True)
    agent = Agent(FunctionModel(dead), clock=clock, capabilities=[Retry()])
    results = await asyncio.gather(*[agent.run("go") for _ in range(50)])
    assert all(isinstance(result.outcome, Failed) for result in results)
    assert len(asked) == 150
    assert len(set(clock.slept)) == 100
    assert all(wait >= 1 for wait in clock.slept)


async def test_text_that_reached_the_user_is_retracted_before_the_next_attempt():
    agent = agent_with(breaks("Hel", chunks=["Hel"]), says("Hello.", chunks=["Hello."]))
    seen: list[str] = []
    async with agent.stream("go") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                seen.append(event.text)
            elif isinstance(event, Retracted):
                seen.append("<retracted>")
    assert seen == ["Hel", "<retracted>", "Hello."]


async def test_a_wrap_inside_sees_every_attempt_and_one_outside_sees_one_call():
    """Behaviour 26: order decides who sees the attempts."""
    seen: list[str] = []

    class Log:
        def __init__(self, name: str) -> None:
            self.name = name

        def install(self, registrar: Any) -> None:
            @registrar.wrap(ModelCall, name=self.name)
            async def log(request: Any, call_next: Any) -> Any:
                seen.append(self.name)
                return await call_next(request)

    model = ScriptedModel(ServerError("down"), says("hi"))
    capabilities = [Log("outer"), Retry(), Log("inner")]
    await Agent(model, capabilities=capabilities, clock=FakeClock(auto=True)).run("go")
    assert seen == ["outer", "inner", "inner"]


async def test_a_gate_on_erring_may_still_end_the_turn_its_own_way():
    agent = agent_with(*[ServerError("down")] * 3)
    agent.gate(Erring, name="sorry")(lambda event: Halt("down", reply="Come back later."))
    assert (await agent.run("go")).text == "Come back later."
    agent = agent_with(*[ServerError("down")] * 9)
    agent.gate(Erring, name="again")(lambda event: Again())
    await agent.run("go")
    assert len(agent.model.requests) == 3


async def test_it_is_the_same_everywhere_when_calls_fail():
    def factory() -> Agent:
        agent = agent_with(
            ServerError("down"),
            calls("fetch"),
            ServerError("down"),
            says("hi"),
            tools=[flaky()[0]],
            retry=Retry(tools="*"),
        )
        agent.gate(ToolCalling, name="ask")(lambda event: Ask("May it?"))
        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.text == "hi"


# ---------------------------------------------------------------- tools


def flaky(*errors: Exception, effect: str = "pure", **options: Any) -> tuple[Any, list[int]]:
    """A tool that raises these errors first, and the calls it has got."""
    ran: list[int] = []
    left = list(errors)

    @tool(effect=effect, inline=True, **options)  # type: ignore[call-overload]
    def fetch() -> str:
        """Fetch."""
        ran.append(1)
        if left:
            raise left.pop(0)
        return "fetched"

    return fetch, ran


def result_of(result: Any) -> str:
    return result.messages[2].parts[0].text


async def run_tool(fetch: Any, retry: Retry) -> Any:
    return await agent_with(calls("fetch"), says("done"), tools=[fetch], retry=retry).run("go")


async def test_tools_are_only_retried_if_they_are_named():
    fetch, ran = flaky(ConnectionError("lost"))
    await run_tool(fetch, Retry())
    assert len(ran) == 1
    fetch, ran = flaky(ConnectionError("lost"))
    assert result_of(await run_tool(fetch, Retry(tools="fet*"))) == "fetched"
    assert len(ran) == 2


async def test_each_tool_has_its_own_number_of_attempts():
    fetch, ran = flaky(*[TimeoutError("slow")] * 9)
    assert "failed" in result_of(await run_tool(fetch, Retry(tools={"fetch": 5})))
    assert len(ran) == 5


async def test_an_error_of_a_tool_that_will_not_pass_is_not_retried():
    fetch, ran = flaky(ValueError("no"))
    await run_tool(fetch, Retry(tools="fetch"))
    assert len(ran) == 1
    fetch, ran = flaky(ValueError("no"))
    await run_tool(fetch, Retry(tools="fetch", on=ValueError))
    assert len(ran) == 2


async def test_an_unsafe_call_that_timed_out_is_not_repeated_and_its_outcome_is_unknown():
    """Behaviour 113: the second attempt is refused."""
    fetch, ran = flaky(TimeoutError("slow"), effect="unsafe")
    agent = agent_with(calls("fetch"), says("done"), tools=[fetch], retry=Retry(tools="fetch", on=Exception))
    result = await agent.run("go")
    assert len(ran) == 1
    assert slept(agent) == []
    assert "unknown" in result_of(result)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (NotDone("closed"), {}),
        (TimeoutError("slow"), {"retry": "safe"}),
        (TimeoutError("slow"), {"effect": "idempotent"}),
    ],
)
async def test_a_call_is_repeated_if_that_is_safe(error, options):
    fetch, ran = flaky(error, **{"effect": "unsafe", **options})
    assert result_of(await run_tool(fetch, Retry(tools="fetch"))) == "fetched"
    assert len(ran) == 2


async def test_a_suspension_under_retry_passes_and_only_the_waiting_call_is_completed_later():
    """Behaviours 54 and 55: a pause is not an error, and finished calls keep their results."""
    fetch, ran = flaky(ConnectionError("lost"))

    @tool(effect="pure", inline=True)
    def wait() -> str:
        """Wait for a person."""
        return "approved"

    child = Agent(ScriptedModel(calls("wait"), says("child done")), tools=[wait], name="child")
    child.gate(ToolCalling, name="ask")(lambda event: Ask("May it?"))
    agent = Agent(
        ScriptedModel(calls([("child", {"task": "go"}), ("fetch", {})]), says("done")),
        tools=[child.as_tool(), fetch],
        capabilities=[Retry(tools="*", on=Exception)],
        clock=FakeClock(auto=True),
    )
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    assert len(ran) == 2
    (asked,) = result.state.waiting
    result = await agent.resume("s", answers={asked.id: agreeable(asked)})
    assert result.text == "done"
    assert len(ran) == 2
    assert [part.text for part in result.messages[2].parts] == ["child done", "fetched"]


async def test_a_cancel_ends_the_wait():
    clock = FakeClock()
    agent = Agent(
        ScriptedModel(ServerError("down"), says("never")), clock=clock, capabilities=[Retry(delay=100, jitter=False)]
    )
    turn = asyncio.ensure_future(agent.run("go", session="s"))
    await clock.wait_for_sleepers()
    assert await agent.cancel("s", "enough")
    assert type((await turn).outcome).__name__ == "Cancelled"
    assert len(agent.model.requests) == 1


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": True},
        {"delay": -1},
        {"cap": float("nan")},
        {"factor": 0.5},
        {"on": "no category"},
        {"on": []},
        {"on": 7},
        {"tools": {"fetch": 0}},
        {"name": ""},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Retry"):
        Retry(**options)


def test_explain_warns_of_a_tool_that_does_not_exist():
    (warning,) = agent_with(retry=Retry(tools="fetch")).explain().data["warnings"]
    assert "'retry.fetch' may never be asked" in warning


def test_two_of_them_work_side_by_side():
    fetch, _ = flaky()
    agent = agent_with(tools=[fetch]).with_capability(Retry(5, models=False, tools="fetch", name="retry_fetch"))
    text = str(agent.explain())
    assert "retry · 3 attempts at a model call" in text
    assert "retry_fetch · 5 at fetch" in text


async def test_the_policy_handles_errors_that_it_is_not_for():
    agent = agent_with(ServerError("down"), ServerError("down"), says("hi"), retry=Retry(1, on=RateLimited))
    assert (await agent.run("go")).text == "hi"


async def test_the_policy_handles_models_that_it_is_not_for():
    agent = agent_with(ServerError("down"), ServerError("down"), says("hi"), retry=Retry(1, models="other*"))
    assert (await agent.run("go")).text == "hi"


async def test_it_can_be_limited_to_some_models():
    agent = agent_with(ServerError("down"), says("never"), retry=Retry(models="other*"), errors=ErrorPolicy.never())
    assert isinstance((await agent.run("go")).outcome, Failed)


async def test_a_retry_inside_a_fallback_counts_each_model_on_its_own():
    backup = ScriptedModel(ServerError("down"), says("hi"), name="backup")
    retries = [Retry(2, jitter=False, name="outer"), Fallback(backup), Retry(2, jitter=False, name="inner")]
    agent = Agent(ScriptedModel(*[ServerError("down")] * 9), clock=FakeClock(auto=True), capabilities=retries)
    assert (await agent.run("go")).text == "hi"
    assert len(agent.model.requests) == 2
