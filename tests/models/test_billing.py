"""What vendors bill apart from plain tokens is counted by kind and priced, or the cost is unknown: never too low."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import genai_prices
import pytest

from windlass.messages import TextPart, Usage
from windlass.models import open_model
from windlass.prices import priced
from windlass.testing import Cassette, Exchange
from windlass.testing.scenes import said

from .serving import asked
from .test_costs import bedrock, chat, claude, gemini, responses
from .wires import ANTHROPIC, BEDROCK, CHAT, CLAUDE, GOOGLE, RESPONSES, Vendor

SPENT = Usage(input=10_000, cached=4_000, output=2_000, reasoning=500)
PLAIN = {"input_tokens": 10_000, "cache_read_tokens": 4_000, "output_tokens": 2_000, "output_reasoning_tokens": 500}
NOVA = "us.amazon.nova-pro-v1:0"


def modality(**counts: int) -> list[dict[str, Any]]:
    return [{"modality": kind.upper(), "tokenCount": count} for kind, count in counts.items()]


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": f"{kind}_1", "status": "completed", **fields}


GROUNDED = {"webSearchQueries": ["a", "b"], "groundingChunks": [{"web": {"uri": "u"}}]}
MAPPED = {"groundingChunks": [{"maps": {"uri": "u"}}]}
SEARCHES = [item("web_search_call", action={"type": "search"}), item("web_search_call", action={"type": "open_page"})]
NONE = None
# (vendor, how it is opened, who prices it, the model, what the answer says more, what of it is counted, None: no price)
BILLED: dict[str, tuple[Vendor, Any, str, str, dict[str, Any], dict[str, int], str | None]] = {
    "audio of OpenAI": (
        CHAT, chat, "openai", "gpt-audio",
        {"usage": {"prompt_tokens_details": {"audio_tokens": 900, "cached_tokens": 0},
                   "completion_tokens_details": {"audio_tokens": 700, "reasoning_tokens": 0}}},
        {"input_audio_tokens": 900, "output_audio_tokens": 700}, "tokens",
    ),
    "a dearer tier of OpenAI": (
        CHAT, chat, "openai", "gpt-5", {"id": {"service_tier": "priority"}}, {"priority_requests": 1}, "priority",
    ),
    "a cheaper tier of OpenAI": (
        RESPONSES, responses, "openai", "gpt-5", {"usage": {}, "a_new_field": {"service_tier": "flex"}},
        {"flex_requests": 1}, "flex",
    ),
    "a dearer tier without a price": (
        CHAT, chat, "openai", "gpt-4-turbo", {"id": {"service_tier": "priority"}}, {"priority_requests": 1}, NONE,
    ),
    "a search in a chat": (
        CHAT, chat, "openai", "gpt-4o", {"message": {"annotations": [{"type": "url_citation"}]}}, {"web_searches": 1},
        "tokens",
    ),
    "searches of OpenAI": (
        RESPONSES, responses, "openai", "gpt-5", {"a_new_field": {"output": [*SEARCHES, item("file_search_call")]}},
        {"web_searches": 1, "storage_searches": 1}, "tokens",
    ),
    "searches that OpenAI counts": (
        RESPONSES, responses, "openai", "gpt-5", {"a_new_field": {"tool_usage": {"web_search": {"num_requests": 3}}}},
        {"web_searches": 3}, "tokens",
    ),
    "an image of OpenAI's tool": (
        RESPONSES, responses, "openai", "gpt-5", {"a_new_field": {"output": [item("image_generation_call")]}},
        {"image_generations": 1}, NONE,
    ),
    "a container of OpenAI": (
        RESPONSES, responses, "openai", "gpt-5", {"a_new_field": {"output": [item("code_interpreter_call")]}},
        {"code_executions": 1}, NONE,
    ),
    "a cache for an hour": (
        ANTHROPIC, claude, "anthropic", "claude-sonnet-4-5",
        {"usage": {"cache_creation_input_tokens": 1000, "cache_creation": {"ephemeral_1h_input_tokens": 800}}},
        {"cache_write_1h_tokens": 800}, "tokens",
    ),
    "searches of Anthropic": (
        ANTHROPIC, claude, "anthropic", "claude-sonnet-4-5", {"usage": {"server_tool_use": {"web_search_requests": 2}}},
        {"web_searches": 2}, "tokens",
    ),
    "the fast mode of Anthropic": (
        ANTHROPIC, claude, "anthropic", "claude-opus-4-6", {"usage": {"speed": "fast"}}, {"fast_requests": 1}, NONE,
    ),
    "another model of Anthropic": (
        ANTHROPIC, claude, "anthropic", "claude-sonnet-4-5",
        {"usage": {"iterations": [{"type": "message"}, {"type": "advisor_message", "input_tokens": 99}]}},
        {"other_iterations": 1}, NONE,
    ),
    "images of Google": (
        GOOGLE, gemini, "google", "gemini-2.5-flash-image",
        {"usageMetadata": {"candidatesTokensDetails": modality(image=1290)}}, {"output_image_tokens": 1290}, "tokens",
    ),
    "audio for Google": (
        GOOGLE, gemini, "google", "gemini-2.5-flash",
        {"usageMetadata": {"promptTokensDetails": modality(text=1000, audio=9000),
                           "cacheTokensDetails": modality(audio=3000, text=1000)}},
        {"input_audio_tokens": 9000, "cache_audio_read_tokens": 3000}, "tokens",
    ),
    "audio for Google that is not in the cache": (
        GOOGLE, gemini, "google", "gemini-2.5-flash",
        {"usageMetadata": {"promptTokensDetails": modality(text=6000, audio=4000),
                           "cacheTokensDetails": modality(text=4000)}},
        {"input_audio_tokens": 4000, "cache_audio_read_tokens": 0}, "tokens",
    ),
    "audio for Google that may be in the cache": (
        GOOGLE, gemini, "google", "gemini-2.5-flash",
        {"usageMetadata": {"promptTokensDetails": modality(audio=9000)}}, {"input_audio_tokens": 9000}, NONE,
    ),
    "a document for Google": (
        GOOGLE, gemini, "google", "gemini-2.5-flash",
        {"usageMetadata": {"promptTokensDetails": modality(document=300, image=200, video=100),
                           "cacheTokensDetails": modality(text=4000)}},
        {"input_image_tokens": 500, "input_video_tokens": 100, "cache_image_read_tokens": 0,
         "cache_video_read_tokens": 0}, "tokens",
    ),
    "searches of an older Gemini": (
        GOOGLE, gemini, "google", "gemini-2.5-flash", {"finishReason": {"groundingMetadata": GROUNDED}},
        {"web_searches": 1}, "tokens",
    ),
    "searches of a newer Gemini": (
        GOOGLE, gemini, "google", "gemini-3-flash-preview", {"finishReason": {"groundingMetadata": GROUNDED}},
        {"web_searches": 2}, "tokens",
    ),
    "maps of Google": (
        GOOGLE, gemini, "google", "gemini-2.5-flash", {"finishReason": {"groundingMetadata": MAPPED}},
        {"map_searches": 1}, NONE,
    ),
    "a cache for an hour at Bedrock": (
        BEDROCK, bedrock, "aws", CLAUDE,
        {"usage": {"cacheWriteInputTokens": 1000, "cacheDetails": [{"ttl": "1h", "inputTokens": 800}]}},
        {"cache_write_1h_tokens": 800}, "tokens",
    ),
    "a dearer tier of Bedrock": (
        BEDROCK, bedrock, "aws", NOVA, {"usage": {}, "metrics": {"serviceTier": {"type": "priority"}}},
        {"priority_requests": 1}, NONE,
    ),
    "tools of Bedrock": (
        BEDROCK, bedrock, "aws", NOVA, {"usage": {"serverToolUsage": {"nova_grounding": 1}}}, {"server_tools": 1}, NONE,
    ),
}  # fmt: skip


def patched(value: Any, patch: Mapping[str, Any]) -> Any:
    """A copy of an answer, in which each mapping that has a key of the patch has more: in the value, if that is a
    mapping that is not new, or else beside it."""
    if isinstance(value, tuple | list):
        return type(value)(patched(one, patch) for one in value)
    if not isinstance(value, Mapping):
        return value
    made = {name: patched(one, patch) for name, one in value.items()}
    for name, more in patch.items():
        if name in made and "usage" in name.lower() and isinstance(made[name], Mapping):
            made[name] = {**made[name], **more}
        elif name == "message" and isinstance(made.get("delta"), Mapping):
            made["delta"] = {**made["delta"], **more} if made.get("finish_reason") is None else made["delta"]
        elif name == "message" and isinstance(made.get(name), Mapping):
            made[name] = {**made[name], **more}
        elif name in made and name != "message":
            made |= {**more, "output": [*made["output"], *more["output"]]} if "output" in more else more
    return made


def tape(vendor: Vendor, model: str, patch: Mapping[str, Any], streamed: bool, path: str = "") -> Cassette:
    reply = said(TextPart("Hi."), usage=SPENT)
    answer: Any = vendor.stream(*patched(vendor.events(reply), patch)) if streamed else None
    if not streamed:
        answer = json.dumps(patched(vendor.whole(reply), patch))
    if isinstance(answer, str):
        answer = re.sub(r'"m-(2025-01-01|20250101|001)"', f'"{model}"', answer)
    path = path or vendor.path(streamed).replace("/gemini-3-m:", f"/{model}:").replace(quote(CLAUDE), quote(model))
    return Cassette([Exchange.of(path, answer, headers={} if streamed else {"content-type": "application/json"})])


def library(provider: str, model: str, counts: Mapping[str, int], tier: str) -> float:
    """What genai-prices makes of these counts; what the cache wrote is in the input, and is 1,000 where it matters."""
    written = {"cache_write_tokens": 1000, "input_tokens": 11_000} if "cache_write_1h_tokens" in counts else {}
    audio = {"cache_read_tokens": 0, "output_reasoning_tokens": 0} if "output_audio_tokens" in counts else {}
    usage = {**PLAIN, **written, **audio, **{kind: count for kind, count in counts.items() if "requests" not in kind}}
    context = {} if tier == "tokens" else {"price_context": {"service_tier": tier}}
    price = genai_prices.calc_price(genai_prices.Usage(**usage), model, provider_id=provider, **context)
    return float(price.total_price)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", BILLED)
async def test_what_is_billed_apart_is_counted_and_priced_or_the_cost_is_unknown(case: str, streamed: bool) -> None:
    vendor, opened, provider, model, patch, counts, how = BILLED[case]
    with tape(vendor, model, patch, streamed) as cassette:
        usage = (await asked(opened(cassette.client(), model), streaming=streamed)).usage
    assert usage.details == counts
    if how is None:
        assert usage.cost is None
        return
    assert usage.cost == pytest.approx(library(provider, model, counts, how))
    plain = priced(usage.replace(details={}), provider, model).cost
    assert plain is not None
    if how != "flex" and "document" not in case and "not in the cache" not in case:
        assert usage.cost > plain


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_openrouter_says_itself_what_it_took_for_a_response_too(streamed: bool) -> None:
    from openai import AsyncOpenAI

    stated = {"usage": {"cost": 0.0253, "cost_details": {"upstream_inference_cost": None}}}
    for address, cost in (("https://openrouter.ai/api/v1", 0.0253), ("http://localhost:8000/v1", None)):
        path = f"{urlsplit(address).path}/responses"
        with tape(RESPONSES, "openai/gpt-5", stated, streamed, path) as cassette:
            client = AsyncOpenAI(api_key="k", base_url=address, http_client=cassette.client())
            model = open_model("openai-responses:openai/gpt-5", client=client)
            assert (await asked(model, streaming=streamed)).usage.cost == cost
