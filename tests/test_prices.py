"""Costs by the price lists of genai-prices."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, datetime

import genai_prices
import pytest
from genai_prices import data_snapshot

from windlass import Agent, CostLimit, tool
from windlass.messages import Message, ModelReply, TextPart, Usage
from windlass.outcomes import Stopped
from windlass.prices import costed, priced
from windlass.testing import ScriptedModel, calls


@tool(effect="pure")
def nothing() -> str:
    """Do nothing."""
    return "done"


def by_the_library(usage: Usage, vendor: str, model: str) -> float:
    theirs = genai_prices.Usage(
        input_tokens=usage.input,
        cache_read_tokens=usage.cached,
        cache_write_tokens=usage.cache_written,
        output_tokens=usage.output,
        output_reasoning_tokens=usage.reasoning,
    )
    return float(genai_prices.calc_price(theirs, model, provider_id=vendor).total_price)


def test_a_known_model_has_a_cost():
    usage = priced(Usage(input=1_000_000, output=100_000), "openai", "gpt-5")
    assert usage.cost == pytest.approx(2.25)
    assert usage.replace(cost=None) == Usage(input=1_000_000, output=100_000)


def test_cached_tokens_are_part_of_the_input_and_have_their_own_rate():
    usage = Usage(input=3_000, cached=1_000, cache_written=500, output=10)
    cost = priced(usage, "anthropic", "claude-sonnet-4-5").cost
    assert cost == pytest.approx((1_500 * 3 + 1_000 * 0.3 + 500 * 3.75 + 10 * 15) / 1_000_000)


@pytest.mark.parametrize(
    ("vendor", "model"), [("openai", "no-such-model"), ("nobody", "gpt-5"), ("local", "smollm2"), ("", "")]
)
def test_the_cost_of_an_unknown_model_is_unknown_and_not_zero(vendor, model):
    assert priced(Usage(input=10, output=10), vendor, model).cost is None


def test_a_model_that_is_not_billed_by_tokens_has_an_unknown_cost():
    assert priced(Usage(input=10, output=10), "groq", "whisper-large-v3").cost is None


def test_where_nothing_was_counted_the_cost_is_unknown():
    assert priced(Usage(), "openai", "gpt-5").cost is None


@pytest.mark.parametrize(
    ("used", "asked"), [("gpt-5-2025-08-07", "gpt-5"), (None, "gpt-5"), ("my-deployment", "gpt-5"), ("gpt-5", "latest")]
)
def test_a_reply_costs_what_its_model_does_or_else_the_one_that_was_asked(used, asked):
    reply = ModelReply(Message("assistant"), Usage(input=1_000_000), model=used)
    assert costed(reply, "https://api.openai.com/v1/", asked).usage.cost == pytest.approx(1.25)
    assert costed(reply, "http://localhost:8000/v1/", asked) == reply


def test_a_cost_that_the_vendor_tells_stays():
    reply = ModelReply(Message("assistant"), Usage(input=1_000_000, cost=0.5), model="gpt-5")
    assert costed(reply, "openai", "gpt-5") is reply


@pytest.mark.parametrize("usage", [Usage(input=10, cached=8, cache_written=8), Usage(output=5, reasoning=6)])
def test_counts_that_contradict_each_other_have_no_cost(usage):
    assert priced(usage, "openai", "gpt-5").cost is None


def test_the_server_may_be_named_by_its_address():
    usage = Usage(input=1_000_000, output=1_000_000)
    by_name = priced(usage, "groq", "llama-3.3-70b-versatile")
    assert by_name.cost is not None
    assert priced(usage, "https://api.groq.com/openai/v1", "llama-3.3-70b-versatile") == by_name
    assert priced(usage, "http://127.0.0.1:8080/v1", "llama-3.3-70b-versatile").cost is None


def test_every_model_that_is_billed_by_tokens_costs_what_the_library_says():
    dice = random.Random(1)
    now = datetime.now(UTC)
    compared = 0
    for provider in data_snapshot.get_snapshot().providers:
        for model in dice.sample(provider.models, min(12, len(provider.models))):
            if provider.find_model(model.id) is not model or model.get_prices(now).input_mtok is None:
                continue
            output = dice.randrange(50_000)
            usage = Usage(input=dice.randrange(400_000), output=output, reasoning=dice.randrange(output + 1))
            usage = usage.replace(cached=dice.randrange(usage.input // 2), cache_written=usage.input // 3)
            assert priced(usage, provider.id, model.id).cost == by_the_library(usage, provider.id, model.id)
            compared += 1
    assert compared > 100


def test_a_model_is_looked_up_once_until_newer_price_lists_are_loaded(monkeypatch):
    looked_up = []
    real = data_snapshot.DataSnapshot.find_provider_model

    def counted(self, model_ref, *rest):
        looked_up.append(model_ref)
        return real(self, model_ref, *rest)

    monkeypatch.setattr(data_snapshot.DataSnapshot, "find_provider_model", counted)
    bundled = data_snapshot.get_snapshot()
    newer = data_snapshot.DataSnapshot(providers=bundled.providers, from_auto_update=True)
    data_snapshot.set_custom_snapshot(newer)
    try:
        for _ in range(3):
            priced(Usage(input=1), "openai", "gpt-5")
            priced(Usage(input=1), "openai", "gpt-unheard-of")
        assert looked_up == ["gpt-5", "gpt-unheard-of"]
        data_snapshot.set_custom_snapshot(None)
        priced(Usage(input=1), "openai", "gpt-5")
        assert looked_up == ["gpt-5", "gpt-unheard-of", "gpt-5"]
    finally:
        data_snapshot.set_custom_snapshot(None)


def test_without_the_library_costs_are_unknown_and_nothing_breaks():
    code = (
        "import sys; sys.modules['genai_prices'] = None\n"
        "from windlass.messages import Usage\n"
        "from windlass.prices import priced\n"
        "print(priced(Usage(input=10), 'openai', 'gpt-5'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cost=None" in done.stdout


def test_importing_windlass_loads_no_price_lists():
    code = "import sys, windlass, windlass.prices; print('genai_prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_a_cost_limit_counts_priced_replies():
    usage = priced(Usage(input=400_000), "openai", "gpt-5")
    agent = Agent(
        ScriptedModel(*[calls("nothing", _usage=usage) for _ in range(9)]), tools=[nothing], criteria=[CostLimit(1.2)]
    )
    result = await agent.run("Spend.")
    assert isinstance(result.outcome, Stopped)
    assert result.usage.cost == pytest.approx(1.5)


async def test_one_reply_of_unknown_price_makes_the_sum_unknown():
    replies = [
        ModelReply(Message("assistant", (TextPart("Hi."),)), priced(Usage(input=10), "openai", model))
        for model in ("gpt-5", "no-such-model")
    ]
    agent = Agent(ScriptedModel(*replies))
    first = await agent.run("One.", session="s")
    assert first.usage.cost is not None
    assert (first.usage + (await agent.run("Two.", session="s")).usage).cost is None
