"""What all vendors' errors have in common: how long to wait, and a network that fails."""

from __future__ import annotations

import httpx2
import pytest

from windlass.errors import ConnectionFailed, ModelError, ModelTimeout, RateLimited

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
