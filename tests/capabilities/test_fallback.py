"""Fallback: the next model in order, every attempt recorded, never past a guard."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from windlass import Agent, Ask, Failed, Halt, ModelCalling, Noted, Retracted, StopReason, TextDelta, ToolCalling, tool
from windlass.capabilities import Breaker, Fallback, Retry
from windlass.errors import (
    AuthFailed,
    BadRequest,
    ConfigError,
    ContextOverflow,
    Overloaded,
    QuotaExceeded,
    ServerError,
)
from windlass.testing import (
    FakeClock,
    FunctionModel,
    ScriptedModel,
    assert_same_everywhere,
    breaks,
    calls,
    check_capability,
    says,
)

_numbers = count()


def model(*script: Any, vendor: str = "one") -> ScriptedModel:
    """A model of its own name: circuit breakers are common to the process."""
    return ScriptedModel(*script, name=f"{vendor}:m{next(_numbers)}")


def agent_with(*models: Any, fallback: dict[str, Any] | None = None, **options: Any) -> Agent:
    first, *others = models
    options = {"clock": FakeClock(auto=True), **options}
    return Agent(first, capabilities=[Fallback(*others, **(fallback or {}))], **options)


async def notes(agent: Agent, session: str = "s") -> list[tuple[str, str]]:
    log = await agent.store.read(session)
    return [(record.data["model"], record.data["why"]) for record in log if type(record) is Noted]


@pytest.mark.parametrize("options", [{}, {"timeout": 30, "breaker": None}])
async def test_it_passes_the_checks_for_capabilities(options):
    await check_capability(lambda: Fallback(ScriptedModel(name="checked:backup"), **options))


@pytest.mark.parametrize(
    "error",
    [
        ServerError("down"),
        QuotaExceeded("empty"),
        AuthFailed("no key"),
        ContextOverflow("too long"),
        TimeoutError("slow"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_next_model_answers_if_one_fails(error):
    one, two = model(error), model(says("hi"))
    agent = agent_with(one, two)
    result = await agent.run("go", session="s")
    assert result.text == "hi"
    assert await notes(agent) == [(one.name, f"{type(error).__name__}: {error}")]
    attempted = [record for record in await agent.store.read("s") if type(record).__name__ == "ModelAttempted"]
    assert [record.error.type for record in attempted] == [type(error).__name__]


async def test_models_are_asked_in_order_and_the_first_error_is_the_cause_if_all_fail():
    """Behaviour 58: in order, and the first error is the cause."""
    first, last = AuthFailed("no key"), BadRequest("also bad")
    models = model(first), model(ServerError("down")), model(last)
    result = await agent_with(*models).run("go")
    assert isinstance(result.outcome, Failed)
    with pytest.raises(BadRequest) as caught:
        result.raise_for_error()
    assert caught.value is last
    assert caught.value.__cause__ is first
    assert [len(one.requests) for one in models] == [1, 1, 1]


async def test_an_error_that_on_does_not_name_is_raised_at_once():
    two = model(says("never"))
    agent = agent_with(model(AuthFailed("no key")), two, fallback={"on": ["rate_limit", ServerError]})
    assert (await agent.run("go")).outcome.error.type == "AuthFailed"
    assert two.requests == []


async def test_a_bug_in_a_hook_is_not_a_failed_model():
    """Behaviour 58: a bug surfaces as itself."""
    two = model(says("never"))
    agent = agent_with(model(says("hi")), two)

    @agent.rewrite(ModelCalling)
    def broken(event: ModelCalling) -> Any:
        raise KeyError("oops")

    assert isinstance((await agent.run("go")).outcome, Failed)
    assert two.requests == []


@pytest.mark.parametrize("finish", ["refusal", "content_filter"])
async def test_a_refusal_is_put_to_the_next_model(finish):
    agent = agent_with(model(says("I will not.", finish=finish)), model(says("hi")))
    assert (await agent.run("go")).text == "hi"
    agent = agent_with(model(says("I will not.", finish=finish)), model(says("hi")), fallback={"refusals": False})
    assert (await agent.run("go")).text == "I will not."


async def test_a_refusal_of_all_models_stands():
    one, two = model(says("No.", finish="refusal")), model(says("Neither.", finish="refusal"))
    result = await agent_with(one, two).run("go")
    assert result.stop_reason is StopReason.REFUSAL


async def test_a_model_that_takes_too_long_is_left():
    clock = FakeClock()
    name = f"one:m{next(_numbers)}"

    async def never(request: Any) -> Any:
        await clock.alarm(1000)

    agent = agent_with(FunctionModel(never, name=name), model(says("hi")), fallback={"timeout": 5}, clock=clock)
    turn = asyncio.ensure_future(agent.run("go", session="s"))
    await clock.advance(6)
    assert (await turn).text == "hi"
    assert await notes(agent) == [(name, f"ModelTimeout: model {name!r} took longer than 5 s")]


@pytest.mark.parametrize(("vendor", "kept"), [("one", True), ("two", False)])
async def test_settings_of_the_vendor_stay_with_the_vendor(vendor, kept):
    """Behaviour 59: foreign settings are removed, the request is untouched."""
    settings = {"temperature": 0.5, "extra": {"cache_control": "x"}, "headers": {"a": "b"}, "prompt_cache_key": "k"}
    one, two = model(ServerError("down")), model(says("hi"), vendor=vendor)
    await agent_with(one, two, settings=settings).run("go")
    assert dict(two.requests[0].settings) == (settings if kept else {"temperature": 0.5})
    assert dict(one.requests[0].settings) == settings


async def test_a_model_that_a_guard_forbids_is_not_asked():
    two, three = model(says("never")), model(says("never"))
    agent = agent_with(model(ServerError("down")), two, three)

    @agent.gate(ModelCalling, band="guard")
    def only_ours(event: ModelCalling) -> Halt | None:
        return Halt("not this one") if event.request.model == two.name else None

    result = await agent.run("go")
    assert (result.stop_reason, result.outcome.detail) == (StopReason.HALTED, "not this one")
    assert (two.requests, three.requests) == ([], [])


async def test_streamed_text_of_a_failed_model_is_retracted():
    agent = agent_with(model(breaks("Hel", chunks=["Hel"])), model(says("Bye.", chunks=["Bye."])))
    async with agent.stream("go") as stream:
        events = [event async for event in stream if isinstance(event, TextDelta | Retracted)]
    seen = [event.text if isinstance(event, TextDelta) else "<retracted>" for event in events]
    assert seen == ["Hel", "<retracted>", "Bye."]


async def test_it_is_the_same_everywhere_when_models_fail():
    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look."""
        return "seen"

    name = f"one:m{next(_numbers)}"

    def factory() -> Agent:
        backup = ScriptedModel(calls("look"), says("hi"), name=f"{name}-backup")
        agent = agent_with(
            ScriptedModel(ServerError("down"), ServerError("down"), name=name),
            backup,
            tools=[look],
            fallback={"breaker": None},
        )
        agent.gate(ToolCalling, name="ask")(lambda event: Ask("May it?"))
        return agent

    # The script of the backup is in its model: another process would begin it anew.
    lived = await assert_same_everywhere(factory, answers=None)
    assert lived.state.waiting


async def test_with_retry_before_it_each_attempt_has_a_fallback_and_after_it_each_model_is_retried():
    one, two = model(*[ServerError("down")] * 9), model(*[ServerError("down")] * 9)
    both = [Retry(delay=0), Fallback(two, breaker=None)]
    await Agent(one, capabilities=both, clock=FakeClock(auto=True)).run("go")
    assert (len(one.requests), len(two.requests)) == (3, 3)
    one, two = model(*[ServerError("down")] * 9), model(*[ServerError("down")] * 9)
    both = [Fallback(two, breaker=None), Retry(delay=0)]
    await Agent(one, capabilities=both, clock=FakeClock(auto=True)).run("go")
    assert (len(one.requests), len(two.requests)) == (3, 3)


# ---------------------------------------------------------------- the circuit breaker


def breaking(clock: FakeClock, *script: Any, seconds: float = 30) -> tuple[Agent, ScriptedModel, ScriptedModel]:
    one, two = model(*script), model(*[says("hi")] * 20)
    fallback = {"breaker": Breaker(failures=2, seconds=seconds)}
    return agent_with(one, two, fallback=fallback, clock=clock), one, two


async def test_a_model_that_keeps_failing_is_not_asked_for_a_while():
    clock = FakeClock(auto=True)
    agent, one, two = breaking(clock, *[Overloaded("busy")] * 3, says("back"), says("back"))
    for _ in range(4):
        assert (await agent.run("go")).text == "hi"
    assert (len(one.requests), len(two.requests)) == (2, 4)
    clock.tick(31)
    assert (await agent.run("go")).text == "hi"  # it is tried once, and fails
    assert (await agent.run("go")).text == "hi"
    assert len(one.requests) == 3
    clock.tick(31)
    assert (await agent.run("go")).text == "back"
    assert (await agent.run("go", session="s")).text == "back"
    assert await notes(agent) == []


async def test_only_one_request_tries_a_model_after_the_pause():
    clock = FakeClock(auto=True)
    agent, one, _ = breaking(clock, *[Overloaded("busy")] * 9)
    await agent.run("go")
    await agent.run("go")
    clock.tick(31)
    await asyncio.gather(*[agent.run("go") for _ in range(5)])
    assert len(one.requests) == 3


async def test_the_breaker_is_common_to_the_agents_of_a_process_and_says_so():
    clock = FakeClock(auto=True)
    agent, one, _ = breaking(clock, *[Overloaded("busy")] * 2)
    await agent.run("go")
    await agent.run("go")
    other = agent_with(one, model(says("hello")), fallback={"breaker": Breaker(2)}, clock=clock)
    assert (await other.run("go", session="s")).text == "hello"
    assert await notes(other) == [(one.name, "it failed too often lately")]
    assert len(one.requests) == 2


async def test_a_broken_model_is_asked_if_all_others_fail():
    clock = FakeClock(auto=True)
    one = model(*[Overloaded("busy")] * 2, says("back"))
    two = model(says("hi"), says("hi"), AuthFailed("no key"))
    agent = agent_with(one, two, fallback={"breaker": Breaker(2)}, clock=clock)
    assert [(await agent.run("go")).text for _ in range(3)] == ["hi", "hi", "back"]


async def test_an_error_of_the_request_does_not_break_the_circuit():
    one, two = model(*[BadRequest("bad")] * 3, says("fine")), model(*[says("hi")] * 3)
    agent = agent_with(one, two, fallback={"breaker": Breaker(2)})
    assert [(await agent.run("go")).text for _ in range(4)] == ["hi", "hi", "hi", "fine"]


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fallback(),
        lambda: Fallback("x", timeout=0),
        lambda: Fallback("x", on=7),  # type: ignore[arg-type]
        lambda: Fallback("x", breaker=5),  # type: ignore[arg-type]
        lambda: Breaker(failures=0),
        lambda: Breaker(seconds=0),
        lambda: Agent(ScriptedModel(), capabilities=[Fallback("no-such-model")]),
    ],
)
def test_invalid_options_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_explain_has_the_models_in_order():
    one, two = model(), model()
    assert f"fallback · then {two.name}" in str(agent_with(one, two).explain())
