"""What a wrap says about the usage of a reply counts, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from windlass import Agent, ModelCall, ModelReply, ModelRequest, Usage, assistant, fold
from windlass.records import ModelAttempted, ModelReplied
from windlass.testing import ScriptedModel, says

SPENT = Usage(input=1000, output=100)


def agent_with(wrap: Callable[..., Any], *replies: ModelReply, band: Any = "normal") -> Agent[str]:
    agent = Agent(ScriptedModel(*replies or (says("Hi.", usage=SPENT),)))
    agent.wrap(ModelCall, band=band)(wrap)
    return agent


async def ran(agent: Agent[str], way: str) -> Any:
    if way == "stream":
        async with agent.stream("Hello?", session="s") as stream:
            async for _ in stream:
                pass
        result = stream.result
    else:
        result = await agent.run("Hello?", session="s")
    log = await agent.store.read("s")
    assert fold("s", log).usage == (await agent.state("s")).usage
    return result, [record for record in log if isinstance(record, ModelAttempted | ModelReplied)]


async def priced(request: ModelRequest, call_next: Any) -> ModelReply:
    reply: ModelReply = await call_next(request)
    return reply.replace(usage=reply.usage.replace(cost=0.25))


@pytest.mark.parametrize("band", ["early", "normal", "guard"])
@pytest.mark.parametrize("way", ["run", "stream"])
async def test_a_cost_that_a_wrap_sets_is_charged_once(way: str, band: str) -> None:
    result, records = await ran(agent_with(priced, band=band), way)
    assert result.usage == SPENT.replace(cost=0.25)
    [replied] = records
    assert (replied.paid, replied.reply.usage.cost) == (True, 0.25)


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_of_two_attempts_both_are_charged_and_the_last_as_the_wrap_says(way: str) -> None:
    async def twice(request: ModelRequest, call_next: Any) -> ModelReply:
        await call_next(request)
        return await priced(request, call_next)

    first, second = says("One.", usage=SPENT.replace(cost=1.0)), says("Two.", usage=SPENT)
    result, records = await ran(agent_with(twice, first, second), way)
    assert result.usage == Usage(2000, 200, requests=2, cost=1.25)
    assert [type(record) for record in records] == [ModelAttempted, ModelReplied]


async def test_a_reply_that_a_wrap_makes_itself_is_not_charged() -> None:
    async def cached(request: ModelRequest, call_next: Any) -> ModelReply:
        await call_next(request)
        return ModelReply(assistant("Of the cache."), Usage(input=9, cost=9.0))

    result, records = await ran(agent_with(cached), "run")
    assert (result.text, result.usage) == ("Of the cache.", SPENT)
    assert records[-1].paid is False


async def test_a_wrap_may_change_the_text_and_the_usage_of_a_reply_that_has_an_id() -> None:
    async def both(request: ModelRequest, call_next: Any) -> ModelReply:
        reply = await priced(request, call_next)
        return reply.replace(message=assistant("Changed."))

    given = ModelReply(assistant("Hi."), SPENT, response_id="r1")
    result, _ = await ran(agent_with(both, given), "run")
    assert (result.text, result.usage) == ("Changed.", SPENT.replace(cost=0.25))
