"""The number of tokens in a request, as the vendor counts them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from windlass.errors import BadReply, ConfigError, RateLimited
from windlass.messages import Messages, ModelRequest, ToolSpec, user
from windlass.models import PricedModel, open_model
from windlass.testing import Cassette, Exchange

from .test_costs import bedrock, claude, gemini, responses
from .wires import CLAUDE

REQUEST = ModelRequest(
    "Be brief.",
    Messages([user("Hello")]),
    (ToolSpec("add", "Adds.", {"type": "object"}),),
    settings={"temperature": 0, "max_tokens": 9, "reasoning": "low"},
)
COUNTERS: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "responses": (responses, "gpt-5", "/v1/responses/input_tokens", {"input_tokens": 12}),
    "anthropic": (claude, "claude-sonnet-4-6", "/v1/messages/count_tokens", {"input_tokens": 12}),
    "google": (gemini, "gemini-3-pro", "/v1beta/models/gemini-3-pro:countTokens", {"totalTokens": 12}),
    "bedrock": (bedrock, CLAUDE, f"/model/{quote(CLAUDE, safe='')}/count-tokens", {"inputTokens": 12}),
}
NOT_COUNTED = {"max_tokens", "maxTokens", "temperature", "stream", "store", "include", "inferenceConfig"}


@pytest.mark.parametrize("vendor", COUNTERS)
async def test_the_vendor_counts_the_tokens_of_a_request_or_a_message(vendor: str) -> None:
    opened, model, path, answer = COUNTERS[vendor]
    with Cassette([Exchange.of(path, answer)] * 3) as cassette:
        counter = opened(cassette.client(), model)
        assert await counter.count_tokens(REQUEST) == 12
        assert await counter.count_tokens("Hello") == 12
        assert await PricedModel(counter, (1, 2)).count_tokens(["Hello", "you"]) == 12  # type: ignore[attr-defined]
    sent = [request.body.json for request in cassette.requests]
    inner = sent[0].get("generateContentRequest") or sent[0]
    inner = inner["input"]["converse"] if vendor == "bedrock" else inner
    assert "Be brief." in str(inner)
    assert "Adds." in str(inner)
    assert not NOT_COUNTED & inner.keys()


@pytest.mark.parametrize("vendor", COUNTERS)
async def test_an_answer_without_a_count_is_a_bad_reply_and_errors_are_translated(vendor: str) -> None:
    opened, model, path, _ = COUNTERS[vendor]
    busy = {"error": {"message": "slow", "type": "rate_limit_error", "code": 429}, "message": "slow"}
    with Cassette([Exchange.of(path, {"tokens": "many"}), Exchange.of(path, busy, status=429)]) as cassette:
        counter = opened(cassette.client(), model)
        with pytest.raises(BadReply):
            await counter.count_tokens("Hello")
        with pytest.raises(RateLimited):
            await counter.count_tokens("Hello")


async def test_a_model_that_cannot_count_says_so() -> None:
    openai: Any = open_model("openai:gpt-5", api_key="k")
    with pytest.raises(ConfigError, match=r"'openai:gpt-5' cannot count tokens: .* but openai-responses:… can"):
        await openai.count_tokens("Hello")
    groq: Any = open_model("groq:m", api_key="k")
    with pytest.raises(ConfigError, match="'groq:m' cannot count tokens: its vendor has no request for that"):
        await groq.count_tokens("Hello")
