"""What replies of vendors cost, from the wire to results, records and limits, by the price lists of genai-prices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import genai_prices
import pytest

from windlass import Agent, CostLimit, tool
from windlass.messages import ModelReply, TextPart, Usage
from windlass.outcomes import Stopped
from windlass.records import ModelReplied
from windlass.testing import Cassette, Exchange, sse
from windlass.testing.scenes import said, weather

from .serving import asked
from .wires import ANTHROPIC, BEDROCK, CHAT, CLAUDE, GOOGLE, RESPONSES, Vendor

SPENT = Usage(input=10_000, cached=6_000, output=2_000, reasoning=500)


def chat(http: Any, model: str) -> Any:
    from openai import AsyncOpenAI

    from windlass.models.openai import OpenAIChat

    return OpenAIChat(model, client=AsyncOpenAI(api_key="k", http_client=http))


def responses(http: Any, model: str) -> Any:
    from openai import AsyncOpenAI

    from windlass.models.openai import OpenAIResponses

    return OpenAIResponses(model, client=AsyncOpenAI(api_key="k", http_client=http))


def claude(http: Any, model: str) -> Any:
    from anthropic import AsyncAnthropic

    from windlass.models.anthropic import AnthropicMessages

    return AnthropicMessages(model, client=AsyncAnthropic(api_key="k", http_client=http))


def gemini(http: Any, model: str) -> Any:
    from google import genai

    from windlass.models.google import GoogleGemini

    options = genai.types.HttpOptions(httpx_async_client=http, api_version="v1beta")
    return GoogleGemini(model, client=genai.Client(api_key="k", http_options=options))


def bedrock(http: Any, model: str) -> Any:
    from windlass.models.bedrock import BedrockConverse

    address = "https://bedrock-runtime.us-east-1.amazonaws.com"
    return BedrockConverse(model, client=http, api_key="k", base_url=address)


Open = Callable[[Any, str], Any]
NOVA = "us.amazon.nova-pro-v1:0"
# (vendor, how it is opened, who prices it, the model that is asked, what the wire calls it)
KNOWN: list[Any] = [
    pytest.param(CHAT, chat, "openai", "gpt-4o", "gpt-4o-2024-08-06", id="chat"),
    pytest.param(CHAT, chat, "openai", "gpt-5-mini", "gpt-5-mini-2025-08-07", id="chat, a newer one"),
    pytest.param(RESPONSES, responses, "openai", "gpt-5", "gpt-5-2025-08-07", id="responses"),
    pytest.param(ANTHROPIC, claude, "anthropic", "claude-sonnet-4-5", "claude-sonnet-4-5-20250929", id="anthropic"),
    pytest.param(GOOGLE, gemini, "google", "gemini-2.5-flash", "gemini-2.5-flash", id="google"),
    pytest.param(BEDROCK, bedrock, "aws", NOVA, NOVA, id="bedrock"),
]


def cassette(vendor: Vendor, model: str, used: str, *replies: ModelReply, streamed: bool = False) -> Cassette:
    """The vendor's answers, as if that model had given them."""

    def renamed(answer: Any) -> Any:
        return re.sub(r'"m-(2025-01-01|20250101|001)"', f'"{used}"', answer) if isinstance(answer, str) else answer

    answers = [
        vendor.stream(*vendor.events(reply)) if streamed else json.dumps(vendor.whole(reply)) for reply in replies
    ]
    path = vendor.path(streamed).replace("/gemini-3-m:", f"/{model}:").replace(quote(CLAUDE), quote(model))
    kind = {} if streamed else {"content-type": "application/json"}
    return Cassette([Exchange.of(path, renamed(answer), headers=kind) for answer in answers])


def library(provider: str, model: str) -> float:
    usage = genai_prices.Usage(
        input_tokens=SPENT.input,
        cache_read_tokens=SPENT.cached,
        output_tokens=SPENT.output,
        output_reasoning_tokens=SPENT.reasoning,
    )
    return float(genai_prices.calc_price(usage, model, provider_id=provider).total_price)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("vendor", "opened", "provider", "model", "used"), KNOWN)
async def test_what_a_turn_costs_is_in_its_result_and_in_the_log(vendor, opened, provider, model, used, streamed):
    with cassette(vendor, model, used, said(TextPart("Hi."), usage=SPENT), streamed=streamed) as tape:
        agent = Agent(opened(tape.client(), model))
        if streamed:
            async with agent.stream("Hello?", session="s") as stream:
                async for _ in stream:
                    pass
            result = stream.result
        else:
            result = await agent.run("Hello?", session="s")
    assert result.usage.cost == pytest.approx(library(provider, used))
    [replied] = [record for record in await agent.store.read("s") if isinstance(record, ModelReplied)]
    assert replied.reply is not None
    assert replied.reply.usage.cost == result.usage.cost
    assert f"{result.usage.cost:.4f} USD" in str(result.why())


@pytest.mark.parametrize(("vendor", "opened", "provider", "model", "used"), KNOWN)
async def test_a_model_says_before_it_is_called_whether_its_cost_is_known(vendor, opened, provider, model, used):
    with cassette(vendor, model, used) as tape:
        assert opened(tape.client(), model).knows_cost
        assert not opened(tape.client(), "a-model-of-tomorrow").knows_cost


@tool(name="weather", effect="pure", inline=True)
def weather_tool(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


@pytest.mark.parametrize(("vendor", "opened", "provider", "model", "used"), KNOWN)
async def test_a_limit_of_money_stops_a_turn(vendor, opened, provider, model, used):
    calling = said(weather("Paris"), finish="tool_calls", usage=SPENT)
    with cassette(vendor, model, used, calling, calling) as tape:
        limit = CostLimit(library(provider, used) * 1.5)
        result = await Agent(opened(tape.client(), model), tools=[weather_tool], criteria=[limit]).run("How is it?")
    assert isinstance(result.outcome, Stopped)
    assert "USD are spent" in str(result.why())


@pytest.mark.parametrize(("vendor", "opened", "provider", "model", "used"), KNOWN)
async def test_an_unknown_model_has_no_cost_and_a_limit_of_money_says_so(vendor, opened, provider, model, used):
    calling = said(weather("Paris"), finish="tool_calls", usage=SPENT)
    with cassette(vendor, "unheard-of-1", "unheard-of-1-2026", calling) as tape:
        agent = Agent(opened(tape.client(), "unheard-of-1"), tools=[weather_tool], criteria=[CostLimit(100.0)])
        result = await agent.run("How is it?")
    assert result.usage.cost is None
    assert isinstance(result.outcome, Stopped)
    told = str(result.why())
    said_by = "unheard-of-1" if vendor is BEDROCK else "unheard-of-1-2026"
    assert f"(last model: '{said_by}')" in " ".join(told.split())
    assert "the cost is unknown" in told
    assert "cost unknown" in told


async def test_a_server_of_ones_own_has_no_cost_even_if_its_model_is_called_like_a_known_one():
    from openai import AsyncOpenAI

    from windlass.models.openai import OpenAIChat

    with cassette(CHAT, "gpt-5", "gpt-5", said(TextPart("Hi."), usage=SPENT)) as tape:
        client = AsyncOpenAI(api_key="k", base_url="http://localhost:8000/v1", http_client=tape.client())
        assert (await Agent(OpenAIChat("gpt-5", client=client)).run("Hello?")).usage.cost is None


async def test_an_azure_client_is_priced_as_azure():
    from openai import AsyncAzureOpenAI

    from windlass.models.openai import OpenAIChat

    reply = said(TextPart("Hi."), usage=SPENT)
    path = "/openai/deployments/gpt-4o/chat/completions?api-version=2024-06-01"
    with Cassette([Exchange.of(path, CHAT.whole(reply))]) as tape:
        client = AsyncAzureOpenAI(
            api_key="k",
            azure_endpoint="https://x.openai.azure.com",
            api_version="2024-06-01",
            http_client=tape.client(),
        )
        result = await Agent(OpenAIChat("gpt-4o", client=client)).run("Hello?")
    assert result.usage.cost == pytest.approx(library("azure", "gpt-4o"))


STATED = [
    ({"cost": 0.0025}, 0.0025),
    ({"cost": 0}, 0.0),
    ({"cost": 0.0001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}, 0.0201),
    ({"cost": 0, "is_byok": True}, None),
    ({"cost": -1}, None),
    ({"cost": {"total": 3}}, None),
    ({}, None),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("told", "cost"), STATED)
async def test_openrouter_says_itself_what_it_took_and_nobody_else_is_believed(told, cost, streamed):
    from openai import AsyncOpenAI

    from windlass.models.openai import OpenAIChat

    reply = said(TextPart("Hi."), usage=SPENT)
    for address, expected in (("https://openrouter.ai/api/v1", cost), ("http://localhost:8000/v1", None)):
        whole, events = CHAT.whole(reply), CHAT.events(reply)
        whole["usage"] |= told
        events[-2]["usage"] |= told
        answer = sse(*events) if streamed else json.dumps(whole)
        kind = {} if streamed else {"content-type": "application/json"}
        path = f"{urlsplit(address).path}/chat/completions"
        with Cassette([Exchange.of(path, answer, headers=kind)]) as tape:
            client = AsyncOpenAI(api_key="k", base_url=address, http_client=tape.client())
            model = OpenAIChat("unheard-of-1", client=client)
            assert (await asked(model, streaming=streamed)).usage.cost == expected
