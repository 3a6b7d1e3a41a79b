"""The connection to Gemini: whose client it is, what of the SDK is used, and that it is let go of."""

from __future__ import annotations

import asyncio
import gc
import gzip
import inspect
import json
from typing import Any

import httpx2
import pytest
from google import genai
from google.auth.credentials import AnonymousCredentials
from google.genai import _api_client

from windlass.errors import ConfigError, ConnectionFailed, ModelTimeout
from windlass.messages import TextPart
from windlass.models import open_model
from windlass.models.google import GoogleGemini

from .serving import HEAD, TRUSTING, Server, Socket, answer, asked, asking, events, heard, listening, taken

CHUNKS = [answer({"text": "Hé"}, finish=None), answer({"text": "llo"})]
VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


# ------------------------------------------------------------ what of the SDK is used


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_sdk_has_inside_what_the_adapter_uses() -> None:
    """If this fails, the SDK has changed: look at `wire.py` before you raise the bound of the extra."""
    inner = _api_client.BaseApiClient
    assert parameters(inner._build_request) == ["self", "http_method", "path", "request_dict", "http_options"]
    assert parameters(inner._async_request) == ["self", "http_request", "http_options", "stream"]
    assert parameters(_api_client.HttpResponse)[:2] == ["headers", "response_stream"]
    assert inspect.isasyncgenfunction(_api_client.HttpResponse.async_segments)
    assert isinstance(inspect.getattr_static(_api_client.HttpResponse, "json"), property)


async def test_the_public_stream_still_loses_what_the_sdk_does_not_know() -> None:
    """If this fails, the public surface may do: then `wire.py` need not use the private one."""
    novel = answer({"hologram": {"depth": 3}})
    models = Server(events(novel)).client.aio.models
    chunks = [chunk async for chunk in await models.generate_content_stream(model="m", contents="Hi")]
    assert "hologram" not in chunks[0].model_dump_json()
    config = genai.types.GenerateContentConfig(should_return_http_response=True)
    with pytest.raises(ValueError, match="not supported in streaming"):
        [chunk async for chunk in await models.generate_content_stream(model="m", contents="Hi", config=config)]


def test_a_client_without_what_is_used_is_refused_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Server().client
    monkeypatch.setattr(client, "_api_client", object())
    with pytest.raises(
        ConfigError, match=rf"google-genai {genai.__version__} no longer has _build_request.*'google-genai>=3,<4'"
    ):
        GoogleGemini("gemini-2.5-flash", client=client)


# ------------------------------------------------------------ whose client


def test_a_missing_key_is_found_at_once_and_names_the_variables() -> None:
    with pytest.raises(ConfigError, match=r"'google:gemini-x' has no key: set GEMINI_API_KEY or GOOGLE_API_KEY"):
        open_model("google:gemini-x")


async def test_a_missing_key_leaves_nothing_behind() -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    with pytest.raises(ConfigError, match="has no key"):
        open_model("google:gemini-x")
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    assert told == []


@pytest.mark.parametrize("client", ["key", object(), httpx2])
def test_only_a_client_of_the_sdk_may_be_passed_in(client: Any) -> None:
    with pytest.raises(ConfigError, match=r"client of 'google:gemini-x' is a \w+; pass a google\.genai\.Client"):
        GoogleGemini("gemini-x", client=client)


def test_the_asynchronous_half_of_a_client_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a AsyncClient"):
        GoogleGemini("gemini-x", client=Server().client.aio)  # type: ignore[arg-type]


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
async def test_a_key_of_the_environment_and_an_address_of_ones_own(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "from-the-environment")

    async def reply(socket: Socket) -> None:
        body = json.dumps(answer({"text": "Hi"})).encode()
        await socket.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)

    async with listening(reply) as (socket, address):
        model = open_model("google:gemini-2.5-flash", base_url=address)
        assert model.name == "google:gemini-2.5-flash"
        assert (await model.reply(asking())).text == "Hi"
        await model.aclose()  # type: ignore[attr-defined]
    head = socket.asked[0].lower()
    assert head.startswith(b"post /v1beta/models/gemini-2.5-flash:generatecontent http/1.1\r\n")
    assert b"x-goog-api-key: from-the-environment\r\n" in head
    assert b"x-server-timeout" not in head


async def test_vertex_is_asked_at_its_own_place() -> None:
    seen: list[httpx2.Request] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json=answer({"text": "Hi"}))

    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    credentials.token = "token"
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(reply))
    client = genai.Client(
        vertexai=True,
        project="p",
        location="europe-west4",
        credentials=credentials,
        http_options=genai.types.HttpOptions(httpx_async_client=http, **TRUSTING),
    )
    places = [
        ("gemini-2.5-flash", "publishers/google/models/gemini-2.5-flash"),
        ("meta/llama-4", "publishers/meta/models/llama-4"),
        ("publishers/google/models/gemini-x", "publishers/google/models/gemini-x"),
    ]
    for name, place in places:
        assert (await GoogleGemini(name, client=client).reply(asking())).text == "Hi"
        expected = f"https://europe-west4-aiplatform.googleapis.com/v1beta1/projects/p/locations/europe-west4/{place}"
        assert str(seen[-1].url) == f"{expected}:generateContent"
        assert seen[-1].headers["authorization"] == "Bearer token"


async def test_a_time_limit_is_told_to_the_server_too() -> None:
    server = Server(answer({"text": "Hi"}))
    await server.model(settings={"timeout": 2.5}).reply(asking())
    assert server.requests[0].headers["x-server-timeout"] == "3"
    assert server.requests[0].extensions["timeout"]["read"] == 2.5


# ------------------------------------------------------------ streams on a real socket


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def own(address: str, **settings: Any) -> GoogleGemini:
    options = genai.types.HttpOptions(base_url=address, api_version="v1beta", **TRUSTING)
    return GoogleGemini("gemini-x", client=genai.Client(api_key="k", http_options=options), settings=settings)


async def half(socket: Socket) -> None:
    """Sends the first chunk and waits until somebody hangs up."""
    await socket.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(events(CHUNKS[0])))
    await socket.gone.wait()


async def test_the_first_delta_comes_before_the_rest_is_there_and_closing_hangs_up() -> None:
    async with listening(half) as (socket, address):
        stream = own(address).stream(asking())
        first = await anext(stream)
        assert first.text == "Hé"  # type: ignore[union-attr]
        assert not socket.gone.is_set()
        await stream.aclose()
        await socket.gone.wait()


async def test_cancelling_hangs_up() -> None:
    heard_of = asyncio.Event()

    async def listen(model: GoogleGemini) -> None:
        async for _ in model.stream(asking()):
            heard_of.set()

    async with listening(half) as (socket, address):
        task = asyncio.create_task(listen(own(address)))
        await heard_of.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await socket.gone.wait()


async def test_cancelling_before_the_answer_hangs_up() -> None:
    begun = asyncio.Event()

    async def silent(socket: Socket) -> None:
        begun.set()
        await socket.gone.wait()

    async with listening(silent) as (socket, address):
        task = asyncio.create_task(own(address).reply(asking()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await socket.gone.wait()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_server_that_dribbles_runs_out_of_time(streaming: bool) -> None:
    async def dribble(socket: Socket) -> None:
        body = events(*CHUNKS)
        await socket.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + b"data: {")
        while not socket.gone.is_set():
            await socket.send(b" ")
            await asyncio.sleep(0.005)

    async with listening(dribble) as (socket, address):
        model = own(address, timeout=0.2)
        with pytest.raises(ModelTimeout) as caught:
            await asked(model, streaming=streaming)
        assert caught.value.retryable
        if socket.asked:
            await socket.gone.wait()


@pytest.mark.parametrize("streaming", [False, True])
async def test_gzip(streaming: bool) -> None:
    body = gzip.compress(events(*CHUNKS) if streaming else json.dumps(answer({"text": "Héllo"})).encode())

    async def zipped(socket: Socket) -> None:
        await socket.send(HEAD + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 7):
            await socket.send(chunked(body[at : at + 7]))
        await socket.send(b"0\r\n\r\n")

    async with listening(zipped) as (_, address):
        model = own(address)
        reply = await asked(model, streaming=streaming)
        assert reply.text == "Héllo"


async def test_a_stream_that_breaks_after_any_number_of_bytes_is_an_error_or_whole() -> None:
    """Behind a proxy a stream may end as if it were whole, so that only what it says tells that it is not."""
    body = events(*CHUNKS)
    whole = len(body) - len(b"\r\n\r\n")
    server = Server(*[httpx2.Response(200, content=body[:count]) for count in range(len(body) + 1)])
    model = server.model()
    for count in range(len(body) + 1):
        seen: list[Any] = []
        if count >= whole:
            assert (await heard(model, asking()))[1].message.parts == (TextPart("Héllo"),)
            continue
        with pytest.raises(ConnectionFailed) as caught:
            await taken(model.stream(asking()), seen)
        assert caught.value.retryable
        assert [piece.text for piece in seen] in ([], ["Hé"])


async def test_a_connection_that_breaks_after_any_number_of_bytes_is_an_error() -> None:
    body = chunked(events(CHUNKS[0])) + chunked(events(CHUNKS[1])) + b"0\r\n\r\n"
    counts = iter(range(len(body)))

    async def broken(socket: Socket) -> None:
        await socket.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + body[: next(counts)])

    async with listening(broken) as (_, address):
        model = own(address)
        for _ in range(len(body)):
            with pytest.raises(ConnectionFailed) as caught:
                await heard(model, asking())
            assert caught.value.retryable
