"""The vendor's rate limits on a reply."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from windlass import Agent, ModelCall, ModelReplied, RateLimits
from windlass.models.limits import limits_in
from windlass.testing import SCENES, Cassette, Exchange

from .serving import asked, asking
from .test_costs import bedrock, chat, claude, gemini, responses
from .test_media import replay
from .wires import ANTHROPIC, BEDROCK, CHAT, CLAUDE, GOOGLE, RESPONSES, exchanges

OPENAI = {
    "x-ratelimit-limit-requests": "5000",
    "x-ratelimit-remaining-requests": "4999",
    "x-ratelimit-reset-requests": "12ms",
    "x-ratelimit-limit-tokens": "160000",
    "x-ratelimit-remaining-tokens": "159976",
    "x-ratelimit-reset-tokens": "6m0s",
}
ANTHROPICS = {
    "date": "Wed, 18 Nov 2026 10:00:00 GMT",
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "49",
    "anthropic-ratelimit-requests-reset": "2026-11-18T10:00:01Z",
    "anthropic-ratelimit-tokens-limit": "30000",
    "anthropic-ratelimit-tokens-remaining": "29000",
    "anthropic-ratelimit-tokens-reset": "2026-11-18T10:01:00Z",
}
READ = RateLimits(5000, 4999, 0.012, 160_000, 159_976, 360.0)
OTHERS: list[tuple[dict[str, str], RateLimits | None]] = [
    ({}, None),
    ({"content-type": "application/json"}, None),
    ({"x-ratelimit-limit-requests": "many"}, None),
    (OPENAI, READ),
    (ANTHROPICS, RateLimits(50, 49, 1.0, 30_000, 29_000, 60.0)),
    (
        {
            "x-ratelimit-limit-req-minute": "60",
            "x-ratelimit-remaining-req-minute": "59",
            "x-ratelimit-remaining-tokens-minute": "499990",
        },
        RateLimits(60, 59, tokens_left=499_990),
    ),
    ({"x-ratelimit-reset-tokens-minute": "23.5"}, RateLimits(tokens_reset=23.5)),
    ({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "2m59.56s"}, RateLimits(None, 1, 179.56)),
    ({"x-ratelimit-remaining": "3", "x-tokenlimit-remaining": "7"}, RateLimits(None, 3, tokens_left=7)),
    ({"x-ratelimit-remaining-tokens": "-1"}, RateLimits(tokens_left=0)),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "nan"}, RateLimits(None, 0)),
]


@pytest.mark.parametrize(("headers", "limits"), OTHERS)
def test_limits_are_read_in_the_spelling_of_each_vendor(headers: dict[str, str], limits: RateLimits | None) -> None:
    assert limits_in(headers) == limits


def test_a_reset_may_be_a_moment_in_milliseconds() -> None:
    read = limits_in({"x-ratelimit-reset": f"{(time.time() + 60) * 1000:.0f}"})
    assert read is not None
    assert read.requests_reset == pytest.approx(60, abs=5)


WIRES = [
    pytest.param(CHAT, chat, "m", OPENAI, READ, id="chat"),
    pytest.param(RESPONSES, responses, "m", OPENAI, READ, id="responses"),
    pytest.param(ANTHROPIC, claude, "m", ANTHROPICS, RateLimits(50, 49, 1.0, 30_000, 29_000, 60.0), id="anthropic"),
    pytest.param(GOOGLE, gemini, "gemini-3-m", {}, None, id="google"),
    pytest.param(BEDROCK, bedrock, CLAUDE, {}, None, id="bedrock"),
]


def scene(streamed: bool) -> Any:
    return replace(next(scene for scene in SCENES if scene.name == "text"), streamed=streamed)


def with_headers(told: Exchange, headers: dict[str, str]) -> Exchange:
    return replace(told, response=replace(told.response, headers={**told.response.headers, **headers}))


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("vendor", "opened", "model", "headers", "limits"), WIRES)
async def test_a_reply_has_the_limits_that_the_vendor_reports(vendor, opened, model, headers, limits, streamed) -> None:
    told, *_ = exchanges(vendor, scene(streamed))
    with Cassette([with_headers(told, headers), told]) as cassette:
        asking_model = opened(cassette.client(), model)
        assert (await asked(asking_model, asking(), streaming=streamed)).limits == limits
        assert (await asked(asking_model, asking(), streaming=streamed)).limits is None


async def test_a_wrap_reads_the_limits_and_the_log_does_not_keep_them() -> None:
    seen: list[Any] = []
    with Cassette([with_headers(replay(CHAT, "Hi."), OPENAI)]) as cassette:
        agent = Agent(chat(cassette.client(), "m"))

        @agent.wrap(ModelCall)
        async def watch(request: Any, call_next: Any) -> Any:
            reply = await call_next(request)
            seen.append(reply.limits)
            return reply

        assert (await agent.run("Hello", session="s")).text == "Hi."
    assert seen == [READ]
    [record] = [record for record in await agent.store.read("s") if isinstance(record, ModelReplied)]
    assert record.reply.limits is None
