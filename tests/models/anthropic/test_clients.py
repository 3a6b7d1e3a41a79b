"""Which clients of the SDK a model asks with."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import Any

import anthropic
import httpx2
import pytest
from openai import AsyncOpenAI
from tests.models.wires import frames

from windlass.errors import ConfigError, ConnectionFailed, Overloaded, RateLimited
from windlass.models import open_model
from windlass.models.anthropic import AnthropicMessages

from .serving import Server, answer, asking, heard, streamed, text


async def test_a_model_is_opened_by_its_name_and_finds_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    model: Any = open_model("anthropic:claude-sonnet-4-6")
    client = model._connection.client()
    assert model.name == "anthropic:claude-sonnet-4-6"
    assert (client.api_key, client.max_retries, str(client.base_url)) == ("secret", 0, "https://api.anthropic.com")
    await model.aclose()


def test_a_missing_key_is_an_error_that_says_where_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY, or pass api_key"):
        open_model("anthropic:claude-sonnet-4-6")
    monkeypatch.setenv("ANTHROPIC_PROFILE", "work")
    with pytest.raises(ConfigError, match="work"):
        open_model("anthropic:claude-sonnet-4-6")
    configs = tmp_path / "anthropic" / "configs"
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(configs.parent))
    configs.mkdir(parents=True)
    (configs / "work.json").write_text('{"authentication": {"type": "user_oauth"}}')
    assert open_model("anthropic:claude-sonnet-4-6").name == "anthropic:claude-sonnet-4-6"


async def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    model: Any = open_model("anthropic:m", base_url="http://localhost:1")
    assert model._connection.client().api_key == "none"
    await model.aclose()


def test_a_client_that_is_not_asynchronous_is_refused() -> None:
    refused = pytest.raises(ConfigError, match="not asynchronous; pass an AsyncAnthropic")
    with anthropic.Anthropic(api_key="k") as client, refused:
        AnthropicMessages("m", client=client)


@pytest.mark.parametrize("wrong", [AsyncOpenAI(api_key="k"), httpx2.AsyncClient(), object(), "client"])
def test_a_client_of_somebody_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="not one of Anthropic's; pass an AsyncAnthropic"):
        AnthropicMessages("m", client=wrong)


def test_every_event_loop_has_a_client_of_its_own_and_what_is_passed_in_is_for_all() -> None:
    async def clients(model: AnthropicMessages) -> tuple[Any, Any]:
        pair = model._connection.client(), model._connection.client()
        await model.aclose()
        return pair

    own = AnthropicMessages("m", api_key="k")
    first, second = asyncio.run(clients(own)), asyncio.run(clients(own))
    assert first[0] is first[1]
    assert first[0] is not second[0]
    given = AnthropicMessages("m", client=anthropic.AsyncAnthropic(api_key="k"))
    assert asyncio.run(clients(given)) == asyncio.run(clients(given))


def bedrock(http: httpx2.AsyncClient) -> Any:
    return anthropic.AsyncAnthropicBedrock(aws_region="us-east-1", api_key="k", http_client=http)


def vertex(http: httpx2.AsyncClient) -> Any:
    return anthropic.AsyncAnthropicVertex(region="europe-west1", project_id="p", access_token="t", http_client=http)


PLACE = "/v1/projects/p/locations/europe-west1/publishers/anthropic"
CLIENTS = [
    (bedrock, "/model/claude-x/invoke", {"anthropic_version", "anthropic_beta"}),
    (vertex, f"{PLACE}/models/claude-x:rawPredict", {"anthropic_version"}),
]


@pytest.mark.parametrize(("made", "path", "more"), CLIENTS)
async def test_clients_of_other_clouds_are_asked_the_same(made: Any, path: str, more: set[str]) -> None:
    server = Server(answer("Hi"), httpx2.Response(529, json={"type": "error", "error": {"message": "busy"}}))
    model = AnthropicMessages("claude-x", client=made(server.http), settings={"extra": {"betas": ["b"], "top_k": 3}})
    assert (await model.reply(asking())).text == "Hi"
    assert server.requests[0].url.path == path
    sent = server.asked[0]
    assert set(sent) == {"messages", "max_tokens", "top_k"} | more
    assert sent["messages"][0]["content"][0]["text"] == "Hello"
    with pytest.raises(Overloaded):
        await model.reply(asking())
    assert len(server.requests) == 2


def chunks(*told: dict[str, Any]) -> bytes:
    """Events of the Messages API as Bedrock wraps them."""
    return frames(*[("chunk", {"bytes": b64encode(json.dumps(event).encode()).decode()}) for event in told])


@pytest.mark.parametrize("signed", [False, True])
async def test_a_stream_from_bedrock_is_heard(signed: bool) -> None:
    server = Server(chunks(*told_events(streamed(text(0, "H", "i")))))
    keys = {"aws_access_key": "AKIDEXAMPLE", "aws_secret_key": "s"} if signed else {"api_key": "k"}
    client = anthropic.AsyncAnthropicBedrock(aws_region="us-east-1", http_client=server.http, **keys)  # type: ignore[arg-type]
    deltas, reply = await heard(AnthropicMessages("claude-x", client=client), asking())
    assert ([delta.text for delta in deltas], reply.text, reply.finish) == (["H", "i"], "Hi", "stop")
    assert server.requests[0].url.path == "/model/claude-x/invoke-with-response-stream"
    assert server.requests[0].headers["authorization"].startswith("AWS4-HMAC-SHA256" if signed else "Bearer k")


async def test_an_error_inside_a_stream_from_bedrock_is_one() -> None:
    begin, *_ = told_events(streamed(text(0, "H")))
    server = Server(chunks(begin) + frames(("throttlingException", {"message": "slow down"})))
    with pytest.raises(RateLimited, match="slow down"):
        await heard(AnthropicMessages("claude-x", client=bedrock(server.http)), asking())


async def test_a_stream_from_bedrock_that_breaks_off_is_an_error() -> None:
    whole = chunks(*told_events(streamed(text(0, "H", "i"))))
    server = Server(*[whole[: len(whole) * part // 7] for part in range(1, 7)])
    for _ in range(6):
        with pytest.raises(ConnectionFailed):
            await heard(AnthropicMessages("claude-x", client=bedrock(server.http)), asking())


def told_events(stream: bytes) -> list[dict[str, Any]]:
    """The data of server-sent events."""
    return [json.loads(line[5:]) for line in stream.decode().splitlines() if line.startswith("data:")]


async def test_a_stream_from_vertex_is_heard() -> None:
    server = Server(streamed(text(0, "H", "i")))
    _, reply = await heard(AnthropicMessages("claude-x", client=vertex(server.http)), asking())
    assert reply.text == "Hi"
    assert server.requests[0].url.path.endswith(":streamRawPredict")
