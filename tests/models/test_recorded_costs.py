"""What each recorded reply costs: at least what genai-prices makes of the vendor's own words, or it is unknown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import genai_prices
import httpx2
import pytest

from windlass.models import open_model
from windlass.prices import billed_apart

from .recordings import WIRE, expected, interactions, is_converse, recordings, served
from .serving import asked, asking

FOLDERS = ("openai_chat", "openai_responses", "other", "anthropic", "google")


class Case(NamedTuple):
    """A pair of a request and its answer, and how genai-prices calls this way to ask."""

    pair: dict[str, Any]
    streamed: bool
    vendor: str
    model: str
    base_url: str
    flavors: tuple[str, ...]


def recorded() -> list[Any]:
    """A case for each pair in which a model is asked and answers."""
    return [
        pytest.param(case, id=f"{path.stem}-{at}")
        for folder in FOLDERS
        for path in recordings(folder)
        for at, (pair, facts) in enumerate(zip(interactions(path), expected(path), strict=True), 1)
        if not facts.get("error") and facts.get("usage") and (case := case_of(pair, bool(facts.get("stream"))))
    ] or [pytest.param(None, marks=pytest.mark.skip(reason=f"no recordings at {WIRE}"))]


def case_of(pair: dict[str, Any], streamed: bool) -> Case | None:
    place = urlsplit(pair["request"]["uri"])
    host, path = f"{place.scheme}://{place.netloc}", place.path
    if pair["request"]["method"] != "POST":
        return None
    if is_converse(pair):
        return Case(pair, streamed, "bedrock", unquote(path.split("/")[2]), host, ("default",))
    if "enerateContent" in path:
        return Case(pair, streamed, "google", path.split("/models/")[1].split(":")[0], host, ("default",))
    model = (pair["request"].get("parsed_body") or {}).get("model", "")
    if path.endswith("/messages"):
        return Case(pair, streamed, "anthropic", model, host, ("default",))
    if not path.endswith(("/chat/completions", "/responses")):
        return None
    base, _, _ = path.partition("/chat/completions") if "/chat/" in path else path.partition("/responses")
    vendor = "openai" if "/chat/" in path else "openai-responses"
    return Case(pair, streamed, vendor, model, host + base, ("chat" if vendor == "openai" else "responses", "default"))


def opened(case: Case) -> Any:
    """The model at the address of the recording, behind which is what was recorded."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        return served(case.pair["response"], 1)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    name = f"{case.vendor}:{case.model}"
    if case.vendor == "bedrock":
        return open_model(name, api_key="k", base_url=case.base_url, client=http)
    if case.vendor == "anthropic":
        from anthropic import AsyncAnthropic

        return open_model(name, client=AsyncAnthropic(api_key="k", base_url=case.base_url, http_client=http))
    if case.vendor == "google":
        from google import genai

        options = genai.types.HttpOptions(httpx_async_client=http, base_url=case.base_url, api_version="v1beta")
        return open_model(name, client=genai.Client(api_key="k", http_options=options))
    from openai import AsyncOpenAI

    return open_model(name, client=AsyncOpenAI(api_key="k", base_url=case.base_url, http_client=http))


def told(case: Case) -> dict[str, Any]:
    """The answer as one piece of JSON, as far as it tells of usage."""
    response = case.pair["response"]
    if "parsed_body" in response:
        return dict(response["parsed_body"])
    body = response["body"]["string"]
    if case.vendor == "bedrock" and not case.streamed:
        return dict(json.loads(body))
    pieces = list(frames(body) if isinstance(body, bytes) else events(body))
    whole: dict[str, Any] = {}
    for piece in pieces:
        inside = piece.get("message") if case.vendor == "anthropic" else piece.get("response")
        found = inside if isinstance(inside, Mapping) else piece
        for name in ("usage", "usageMetadata"):
            if found.get(name):
                whole[name] = {**whole.get(name, {}), **{k: v for k, v in found[name].items() if v is not None}}
        usage = (piece.get("x_groq") or {}).get("usage")
        whole |= {"usage": usage} if usage else {}
        whole |= {name: found[name] for name in ("model", "modelVersion", "output") if found.get(name)}
    return whole


def events(body: str) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        if line.startswith("data:") and line[5:].strip().startswith("{"):
            yield json.loads(line[5:])


def frames(body: bytes) -> Iterator[dict[str, Any]]:
    from botocore.eventstream import EventStreamBuffer

    buffer = EventStreamBuffer()
    buffer.add_data(body)
    for message in buffer:
        yield json.loads(message.payload)


def by_the_library(case: Case) -> tuple[float | None, Any]:
    """What genai-prices extracts from the answer, and its price."""
    answer = told(case)
    for flavor in case.flavors:
        try:
            usage = genai_prices.extract_usage(answer, provider_api_url=case.base_url, api_flavor=flavor)
        except (LookupError, ValueError):
            continue
        try:
            model = usage.model or case.model
            price = (
                usage.calc_price()
                if usage.model
                else genai_prices.calc_price(usage.usage, str(model), provider_api_url=case.base_url)
            )
        except (LookupError, ValueError):
            return None, usage.usage
        return float(price.total_price), usage.usage
    return None, None


@pytest.mark.parametrize("case", recorded())
async def test_a_recorded_reply_costs_what_the_price_lists_say_or_more(case: Case) -> None:
    reply = await asked(opened(case), asking(), streaming=case.streamed)
    cost, extracted = by_the_library(case)
    usage = reply.usage
    apart = {kind for kind, count in usage.details.items() if count and billed_apart(kind)}
    if cost is None or case.base_url.startswith("https://openrouter.ai"):
        return
    for kind in extracted._reported_values():
        if kind in usage.details:
            assert usage.details[kind] == getattr(extracted, kind)
    if apart - {"web_searches"} and usage.cost is None:
        return
    assert usage.cost is not None
    assert usage.cost >= cost - 1e-12
    if not apart:
        assert usage.cost == pytest.approx(cost)
