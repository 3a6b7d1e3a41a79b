"""Prices that you state, for models and servers that the price lists do not know."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from openai import AsyncOpenAI

from windlass import Agent, CostLimit, tool
from windlass.errors import ConfigError
from windlass.messages import Message, ModelReply, ModelRequest, TextPart, ToolCallPart, Usage
from windlass.models import Price, PricedModel, open_model
from windlass.outcomes import Completed, Stopped, StopReason
from windlass.protocols import StreamingModel
from windlass.testing import Cassette, Exchange, ScriptedModel, calls, says

SPENT = Usage(input=1_000_000, cached=400_000, cache_written=100_000, output=200_000)
HELLO = Message("assistant", (TextPart("Hello."),))


@tool(effect="pure")
def nothing() -> str:
    """Do nothing."""
    return "done"


def chat(text: str = "Hi.", prompt: int = 1000, completion: int = 100) -> dict[str, Any]:
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    return {
        "id": "c", "model": "gpt-4o-mini", "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        (Price(3, 15), 3 + 0.2 * 15),
        (Price(3, 15, cache_read=0.3), 0.6 * 3 + 0.4 * 0.3 + 0.2 * 15),
        (Price(3, 15, cache_read=0.3, cache_write=3.75), 0.5 * 3 + 0.4 * 0.3 + 0.1 * 3.75 + 0.2 * 15),
        (Price(0, 0), 0.0),
    ],
)
def test_a_stated_price_is_per_million_tokens(price: Price, cost: float) -> None:
    assert price.cost(SPENT) == pytest.approx(cost)


def test_what_is_billed_apart_has_a_rate_per_thousand_or_the_cost_is_unknown() -> None:
    searched = Usage(input=1000, details={"web_searches": 2, "input_image_tokens": 500})
    assert Price(1, 1).cost(searched) is None
    assert Price(1, 1, others={"web_searches": 10}).cost(searched) == pytest.approx(0.001 + 0.02)
    assert Price(1, 1).cost(Usage()) is None
    assert Price(1, 1).cost(Usage(input=1, cached=2)) is None


@pytest.mark.parametrize("price", [(1,), (1, 2, 3), "cheap", 5, (-1, 1), (1, float("nan")), (True, 1), ("1", 1), None])
def test_a_price_that_is_none_is_refused(price: Any) -> None:
    with pytest.raises(ConfigError, match="price"):
        PricedModel(ScriptedModel("Hi."), price)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("price", [(2.0, 8.0), Price(2, 8)])
async def test_a_model_of_your_own_costs_what_you_say(price: Any, streamed: bool) -> None:
    model = PricedModel(ScriptedModel(says("Hello.", usage=Usage(input=500_000, output=250_000, cost=9.0))), price)
    agent = Agent(model, criteria=[CostLimit(10.0)])
    if streamed:
        async with agent.stream("Hi") as stream:
            async for _ in stream:
                pass
        result = stream.result
    else:
        result = await agent.run("Hi")
    assert isinstance(result.outcome, Completed)
    assert result.usage.cost == pytest.approx(3.0)
    assert model.name == "scripted"
    assert isinstance(model, StreamingModel) is hasattr(ScriptedModel, "stream")


class Plain:
    """A model with nothing but what a model must have, and one thing more."""

    name = "plain"
    context_window = 1234

    async def reply(self, request: ModelRequest) -> str:
        return "Hi."


async def test_a_priced_model_is_otherwise_the_model_that_it_was_made_of() -> None:
    model: Any = PricedModel(Plain(), (1, 1))
    assert (model.name, model.context_window, hasattr(model, "stream")) == ("plain", 1234, False)
    result = await Agent(model).run("Hi")
    assert (result.text, result.usage.cost) == ("Hi.", None)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = model.nonsense


@pytest.mark.parametrize("vendor", ["openai", "openai-chat", "openrouter", "groq", "deepseek", "mistral", "ollama"])
async def test_a_gateway_can_have_a_price_and_a_limit(vendor: str) -> None:
    with Cassette([Exchange.of("/v1/chat/completions", chat(prompt=1_000_000, completion=500_000))]) as cassette:
        client = AsyncOpenAI(api_key="k", base_url="https://gateway.example/v1", http_client=cassette.client())
        model = open_model(f"{vendor}:gpt-4o-mini", client=client, price=(0.5, 2.0))
        result = await Agent(model, criteria=[CostLimit(2.0)]).run("Hi")
    assert isinstance(result.outcome, Completed)
    assert result.usage.cost == pytest.approx(1.5)


async def limited(model: Any) -> Stopped:
    result = await Agent(model, tools=[nothing], criteria=[CostLimit(5.0)]).run("Hi")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.COST_LIMIT
    return result.outcome


async def test_a_limit_that_meets_an_unknown_cost_says_how_to_state_a_price() -> None:
    message = Message("assistant", (ToolCallPart("nothing"),))
    call = ModelReply(message, Usage(input=10), "tool_calls", "gpt-4o-mini")
    told = (await limited(ScriptedModel(call, says("never")))).detail
    assert "the cost is unknown (last model: 'gpt-4o-mini'), so it counts as over the limit" in told
    assert "open_model(…, price=(input, output)) or PricedModel(model, …)" in told
    assert "windlass[prices]" not in told


async def test_it_names_what_has_no_rate_and_replies_that_say_nothing_of_tokens() -> None:
    spent = Usage(input=10, details={"code_executions": 2, "input_audio_tokens": 5})
    told = (await limited(PricedModel(ScriptedModel(calls("nothing", _usage=spent), says("no")), (1, 1)))).detail
    assert ", including 2 code_executions, so" in told
    told = (await limited(PricedModel(ScriptedModel(calls("nothing", _usage=Usage()), says("no")), (1, 1)))).detail
    assert "the reply does not report its usage" in told


def test_without_the_price_lists_it_says_how_to_get_them() -> None:
    code = (
        "import sys; sys.modules['genai_prices'] = None\n"
        "from windlass import Agent, CostLimit, Usage, tool\n"
        "from windlass.testing import ScriptedModel, calls\n"
        "nothing = tool(lambda: 'done', name='nothing', effect='pure')\n"
        "model = ScriptedModel(calls('nothing', _usage=Usage(input=10)), 'never')\n"
        "print(Agent(model, tools=[nothing], criteria=[CostLimit(1)]).run_sync('Hi').outcome.detail)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "or install windlass[prices] for the vendors' price lists" in done.stdout


def test_usages_add_up_by_kind_and_go_apart_again() -> None:
    one = Usage(input=5, details={"web_searches": 1, "input_audio_tokens": 3})
    two = Usage(input=7, details={"web_searches": 2})
    assert (one + two).details == {"web_searches": 3, "input_audio_tokens": 3}
    assert (one + two - one).details == two.details
    assert (one - one).details == {}
    assert hash(one + Usage(input=1)) == hash(one + Usage(input=1))
    with pytest.raises(TypeError):
        (one + two).details["web_searches"] = 0  # type: ignore[index]


async def test_counts_by_kind_are_in_the_log_and_sum_up_over_turns() -> None:
    reply = ModelReply(HELLO, Usage(input=1, cost=0.5, details={"web_searches": 1}))
    agent = Agent(ScriptedModel(reply, reply))
    await agent.run("One.", session="s")
    await agent.run("Two.", session="s")
    usage = (await agent.state("s")).usage
    assert (usage.details, usage.cost) == ({"web_searches": 2}, 1.0)
