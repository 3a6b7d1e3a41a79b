"""Bodies that nobody expected: never an error of the server, and never a hang."""

from __future__ import annotations

import json
import os
from urllib.parse import quote

import httpx2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.conftest import BEARER, TOKEN

from windlass import Agent
from windlass.server import Server
from windlass.server.app import ENDPOINTS
from windlass.testing import FunctionModel, says

CASES = 10_000 if os.environ.get("WINDLASS_CAMPAIGN") else 60
"""How many bodies are tried: `make campaign` tries all."""

WORDS = sorted(
    {"message", "session", "mode", "answers", "model", "messages", "input", "role", "content", "type", "text", "stream",
     "image_url", "url", "at", "to", "answer", "arguments", "reason", "conversation", "previous_response_id", "user",
     "threadId", "runId", "resume", "interruptId", "status", "payload", "tools", "toolCallId", "id", "name", "data"}
)  # fmt: skip
VALUES = st.sampled_from(
    [
        "ann",
        "s",
        "wait",
        "stream",
        "start",
        "user",
        "assistant",
        "text",
        "Approve",
        "Edit",
        "data:image/png;base64,x",
        "",
    ]
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | VALUES | st.text(max_size=20)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=12,
)
likely = st.fixed_dictionaries(
    {}, optional={
        "message": values, "session": VALUES, "mode": VALUES, "model": st.just("ann"), "input": values,
        "answers": values,
        "messages": st.lists(st.fixed_dictionaries({"role": VALUES, "content": values}), max_size=3),
        "threadId": VALUES, "runId": VALUES, "resume": st.lists(st.fixed_dictionaries(
            {"interruptId": VALUES, "status": st.sampled_from(["resolved", "cancelled"])}, optional={"payload": values}
        ), max_size=2),
    },
)  # fmt: skip
bodies = (
    st.binary(max_size=200) | (values | likely).map(lambda value: json.dumps(value).encode()) | st.just(b"[" * 100_000)
)
WRITES = [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]


@settings(
    max_examples=CASES, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(
    at=st.integers(0, len(WRITES) - 1),
    body=bodies,
    session=st.text(min_size=1, max_size=12),
    number=st.text(max_size=5),
)
def test_no_body_is_an_error_of_the_server(at, body, session, number):
    import asyncio

    async def send() -> httpx2.Response:
        server = Server([Agent(FunctionModel(lambda request: says("ok")), name="ann")], token=TOKEN)
        path = (
            WRITES[at]
            .path.replace("{agent}", "ann")
            .replace("{question}", quote(f"q{number}", safe="", errors="ignore"))
        )
        path = path.replace("{session}", quote(session, safe="", errors="ignore") or "s")
        transport = httpx2.ASGITransport(app=server)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=BEARER) as client:
            async with asyncio.timeout(20):
                response = await client.post(path, content=body, headers={"content-type": "application/json"})
        await server.aclose()
        return response

    response = asyncio.run(send())
    assert response.status_code < 500
    assert '"internal_error"' not in response.text  # not in a stream that has begun, either
