"""What all vendors' errors have in common: how long to wait, and a network that fails."""

from __future__ import annotations

import json

import httpx2
import pytest

from windlass.errors import AuthFailed, BadReply, ConnectionFailed, ModelError, ModelTimeout, RateLimited
from windlass.messages import TextPart
from windlass.testing.scenes import said, weather

from .serving import Server, asked, asking
from .wires import VENDORS, Vendor

of_all = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)

WAITS = [
    ({"retry-after": "7"}, 7.0),
    ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
    ({"retry-after": "Mon, 16 Nov 2026 00:00:30 GMT", "date": "Mon, 16 Nov 2026 00:00:00 GMT"}, 30.0),
    ({"retry-after": "Mon, 16 Nov 2020 00:00:30 GMT"}, 0.0),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "inf"}, None),
    ({"retry-after": "-3"}, 0.0),
    ({}, None),
]


@of_all
@pytest.mark.parametrize(("headers", "seconds"), WAITS)
async def test_a_server_says_in_many_ways_how_long_to_wait(
    vendor: Vendor, headers: dict[str, str], seconds: float | None
) -> None:
    server = Server(httpx2.Response(429, json={"error": {"message": "slow"}}, headers=headers))
    with pytest.raises(RateLimited) as caught:
        await vendor.model(server.http).reply(asking())
    assert caught.value.retry_after == seconds


NETWORK = [
    (httpx2.ConnectError("refused"), ConnectionFailed),
    (httpx2.ReadError("reset"), ConnectionFailed),
    (httpx2.RemoteProtocolError("peer closed"), ConnectionFailed),
    (httpx2.ReadTimeout("slow"), ModelTimeout),
    (httpx2.ConnectTimeout("slow"), ModelTimeout),
]


@of_all
@pytest.mark.parametrize(("error", "kind"), NETWORK)
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_network_that_fails_can_be_tried_again(
    vendor: Vendor, error: Exception, kind: type[ModelError], streaming: bool
) -> None:
    server = Server(error)
    with pytest.raises(kind) as caught:
        await asked(vendor.model(server.http), streaming=streaming)
    assert caught.value.retryable
    assert len(server.requests) == 1


UNSENDABLE = [
    httpx2.LocalProtocolError("Illegal header value b'Bearer sk-secret\\n'"),
    UnicodeEncodeError("ascii", "Bearer sk-secrét", 14, 15, "ordinal not in range(128)"),
]


@of_all
@pytest.mark.parametrize("error", UNSENDABLE)
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_key_that_cannot_be_sent_is_not_told_and_not_tried_again(
    vendor: Vendor, error: Exception, streaming: bool
) -> None:
    with pytest.raises(AuthFailed, match="most likely the key") as caught:
        await asked(vendor.model(Server(error).http), streaming=streaming)
    assert not caught.value.retryable
    assert "sk-" not in str(caught.value)


@of_all
async def test_an_answer_that_is_nested_too_deeply_is_a_bad_reply(vendor: Vendor) -> None:
    deep = httpx2.Response(200, content=b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    deep.headers["content-type"] = "application/json"
    with pytest.raises(BadReply):
        await asked(vendor.model(Server(deep).http), streaming=False)


SPOKEN = said(TextPart("Hello"), weather("Paris"), finish="tool_calls")
WRONG = [
    ('"Hello"', "7"), ('"Hello"', '{"a": 1}'), ('"call_1"', "7"), ('"toolu_call_1"', "7"), ('"weather"', "7"),
    ('"weather"', '["weather"]'), ('"He"', "7"), ('"He"', "[7]"),
]  # fmt: skip


@of_all
@pytest.mark.parametrize(("right", "wrong"), WRONG)
async def test_something_else_where_a_text_or_an_id_belongs_is_a_bad_reply_that_names_the_field(
    vendor: Vendor, right: str, wrong: str
) -> None:
    """It would be found out only when the reply is written to the log or joined with others."""
    whole, events = json.dumps(vendor.whole(SPOKEN)), json.dumps(vendor.events(SPOKEN))
    for told, streaming in ((whole, False), (events, True)):
        if right not in told:
            continue
        answer = json.loads(told.replace(right, wrong))
        if streaming:
            answer = vendor.stream(*[tuple(event) if isinstance(event, list) else event for event in answer])
        server = Server(answer.encode() if isinstance(answer, str) else answer)
        with pytest.raises(BadReply, match=r"'\w+' must be a string") as caught:
            await asked(vendor.model(server.http), streaming=streaming)
        assert caught.value.retryable
