# ruff: noqa: PT012, SIM117 -- the end of the block is what is tested
"""Cassettes: traffic of a real server is recorded without secrets, and played back to whoever asks the same."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from windlass.testing import Cassette, Exchange, UnexpectedRequest, sse

KEY = "sk-very-secret-0123456789"
EVENTS = sse({"n": 1, "text": "grüß"}, {"n": 2}, ("done", {"n": 3}), "[DONE]")


class Server(ThreadingHTTPServer):
    """A vendor on this machine: it echoes, streams, compresses, tells keys and hangs up."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Vendor)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Vendor(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        getattr(self, self.path.partition("?")[0].strip("/"))(body)

    def send(self, content: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.send_header("set-cookie", "session=abcdefghijkl")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def echo(self, body: bytes) -> None:
        self.send(json.dumps({"you_said": json.loads(body)}).encode(), request_id="r-1")

    def compressed(self, body: bytes) -> None:
        self.send(gzip.compress(b'{"long": "' + b"x" * 500 + b'"}'), content_encoding="gzip")

    def binary(self, body: bytes) -> None:
        self.send(b"\xff\x00\xfe", "application/octet-stream")

    def refused(self, body: bytes) -> None:
        told = f"the key {self.headers['x-api-key']} is wrong"
        self.send(json.dumps({"error": told, "access_token": "another one"}).encode(), status=401)

    def streamed(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        content = EVENTS.encode()
        for start in range(0, len(content), 16):
            piece = content[start : start + 16]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def hangs_up(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"data: 1\n\n")
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


async def ask(cassette: Cassette, url: str, body: Any = None, **options: Any) -> httpx2.Response:
    async with cassette.client() as client:
        response: httpx2.Response = await client.post(url, json=body or {}, **options)
        return response


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cassettes" / "some.jsonl"


# ---------------------------------------------------------------- recording and playing


async def test_what_was_recorded_is_played_without_the_server(server, path):
    with Cassette(path, mode="record") as cassette:
        recorded = await ask(cassette, f"{server.url}/echo", {"a": 1, "b": [2, {"c": None}]})
    with Cassette(path) as cassette:
        played = await ask(cassette, "https://somewhere.example/echo", {"b": [2, {"c": None}], "a": 1})
    assert played.json() == recorded.json() == {"you_said": {"a": 1, "b": [2, {"c": None}]}}
    assert (played.status_code, played.headers["request-id"]) == (200, "r-1")
    assert server.asked == ["/echo"]


async def test_once_asks_the_server_only_when_there_is_no_file(server, path):
    for _ in range(3):
        with Cassette(path, mode="once") as cassette:
            assert (await ask(cassette, f"{server.url}/echo")).json() == {"you_said": {}}
    assert server.asked == ["/echo"]


async def test_recording_anew_forgets_what_was_there(server, path):
    with Cassette(path, mode="record") as cassette:
        await ask(cassette, f"{server.url}/echo", {"first": True})
    with Cassette(path, mode="record") as cassette:
        await ask(cassette, f"{server.url}/echo", {"second": True})
    assert [exchange.request.body.json for exchange in Cassette(path).exchanges] == [{"second": True}]


async def test_nothing_is_written_if_the_test_fails_while_it_records(server, path):
    with pytest.raises(ZeroDivisionError), Cassette(path, mode="once") as cassette:
        await ask(cassette, f"{server.url}/echo")
        raise ZeroDivisionError
    assert not path.exists()


async def test_a_compressed_body_is_kept_readable(server, path):
    with Cassette(path, mode="record") as cassette:
        recorded = await ask(cassette, f"{server.url}/compressed")
    assert '"long"' in path.read_text(encoding="utf-8")
    with Cassette(path) as cassette:
        assert (await ask(cassette, f"{server.url}/compressed")).json() == recorded.json()


async def test_bytes_are_kept_as_they_are(server, path):
    with Cassette(path, mode="record") as cassette:
        await ask(cassette, f"{server.url}/binary")
    with Cassette(path) as cassette:
        assert (await ask(cassette, f"{server.url}/binary")).content == b"\xff\x00\xfe"


async def test_a_stream_is_handed_on_while_it_is_recorded(server, path):
    with Cassette(path, mode="record") as cassette:
        async with cassette.client() as client, client.stream("POST", f"{server.url}/streamed", json={}) as response:
            pieces = [piece async for piece in response.aiter_raw()]
    assert b"".join(pieces).decode() == EVENTS
    assert Cassette(path).exchanges[0].response.body.text == EVENTS


async def test_a_connection_that_broke_breaks_again(server, path):
    with Cassette(path, mode="record") as cassette:
        with pytest.raises(httpx2.TransportError):
            await ask(cassette, f"{server.url}/hangs_up")
    with Cassette(path) as cassette, pytest.raises(httpx2.ReadError):
        await ask(cassette, f"{server.url}/hangs_up")


# ---------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "api-key", "x-goog-api-key", "Cookie", "x-amz-security-token", "X-Mine"]
)
async def test_no_secret_header_is_written_nor_what_it_held(server, path, name):
    with Cassette(path, mode="record", secrets=["x-mine"]) as cassette:
        await ask(cassette, f"{server.url}/echo", {"again": f"my key is {KEY}!"}, headers={name: f"Bearer {KEY}"})
    written = path.read_text(encoding="utf-8")
    assert KEY not in written
    assert name.lower() not in written.lower()
    assert "(scrubbed)!" in written
    assert KEY not in str(cassette.requests)


async def test_a_key_in_the_address_in_a_reply_or_in_a_field_is_not_written(server, path):
    key = "a-key-that-looks-like-nothing"
    with Cassette(path, mode="record", secrets=["tenant"]) as cassette:
        await ask(cassette, f"{server.url}/echo?key={key}&alt=sse", {"tenant": "acme", "deep": [{"api_key": "hush"}]})
        await ask(cassette, f"{server.url}/refused", headers={"x-api-key": key})
    written = path.read_text(encoding="utf-8")
    for secret in (key, "acme", "hush", "another one", "abcdefghijkl", "set-cookie"):
        assert secret not in written
    with Cassette(path, secrets=["tenant"]) as cassette:
        body = {"deep": [{"api_key": "other"}], "tenant": "somebody"}
        assert (await ask(cassette, f"{server.url}/echo?alt=sse&key=other", body)).status_code == 200
        assert (await ask(cassette, f"{server.url}/refused")).json()["error"] == "the key (scrubbed) is wrong"


async def test_the_names_in_a_signature_of_aws_are_no_secrets(server, path):
    scope, signature = "AKIDEXAMPLE/20261116/us-east-1/bedrock/aws4_request", "0123456789abcdef" * 4
    signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=content-type;host;x-amz-date, Signature={signature}"
    said = f"Signature, Credential and SignedHeaders: content-type, x-amz-date; {signature} of AKIDEXAMPLE"
    with Cassette(path, mode="record") as cassette:
        await ask(cassette, f"{server.url}/echo", {"text": said}, headers={"Authorization": signed})
    [exchange] = Cassette(path).exchanges
    expected = "Signature, Credential and SignedHeaders: content-type, x-amz-date; (scrubbed) of (scrubbed)"
    assert exchange.request.body.json == {"text": expected}
    assert not any(secret in path.read_text(encoding="utf-8") for secret in (signature, "AKIDEXAMPLE"))


async def test_what_looks_like_a_key_is_not_written_wherever_it_is(server, path):
    with Cassette(path, mode="record") as cassette:
        await ask(
            cassette, f"{server.url}/echo", {"text": f"{KEY}, Bearer eyJhbGciOi.abc and AIza{'a1' * 16}; task-force"}
        )
    [exchange] = Cassette(path).exchanges
    assert exchange.request.body.json == {"text": "(scrubbed), Bearer (scrubbed) and (scrubbed); task-force"}


# ---------------------------------------------------------------- what is asked for


HELLO = Exchange.of("/hello", {"said": "hello"}, sent={"a": 1})


async def test_an_unexpected_request_fails_the_test_with_what_differs():
    with pytest.raises(UnexpectedRequest, match=r"(?s)POST http://x/hello is not on the cassette.*-.*1.*\+.*2"):
        with Cassette([HELLO]) as cassette:
            await ask(cassette, "http://x/hello", {"a": 2})


async def test_an_unexpected_request_fails_the_test_even_if_somebody_swallowed_it():
    with pytest.raises(UnexpectedRequest, match="all its responses are used"), Cassette([]) as cassette:
        try:
            await ask(cassette, "http://x/hello")
        except AssertionError:
            pass


async def test_an_unexpected_request_is_told_instead_of_what_an_sdk_made_of_it():
    with pytest.raises(UnexpectedRequest) as failed, Cassette([]) as cassette:
        try:
            await ask(cassette, "http://x/hello")
        except AssertionError as error:
            raise ConnectionError("Connection error.") from error
    assert isinstance(failed.value.__cause__, ConnectionError)


async def test_a_response_nobody_asked_for_fails_the_test():
    with pytest.raises(AssertionError, match="1 of 2 responses were not used"), Cassette([HELLO] * 2) as cassette:
        await ask(cassette, "http://x/hello", {"a": 1})


async def test_equal_requests_get_their_responses_in_order():
    exchanges = [Exchange.of("/next", {"number": number}) for number in range(3)]
    with Cassette(exchanges) as cassette:
        replies = [(await ask(cassette, "http://x/next", {"any": number})).json() for number in range(3)]
    assert [reply["number"] for reply in replies] == [0, 1, 2]


@pytest.mark.parametrize(
    ("method", "url"), [("GET", "/hello"), ("POST", "/hell"), ("POST", "/hello?x=1"), ("POST", "/v1/hello")]
)
async def test_another_method_path_or_parameter_is_another_request(method, url):
    with pytest.raises(UnexpectedRequest), Cassette([HELLO]) as cassette:
        async with cassette.client(base_url="http://x") as client:
            await client.request(method, url, json={"a": 1})


# ---------------------------------------------------------------- pieces


@pytest.mark.parametrize("cuts", [1, 7, [3, 5, 4, 999], random.Random(3)])
async def test_a_body_is_played_in_pieces_and_is_the_same(cuts):
    with Cassette([Exchange.of("/s", EVENTS)], cuts=cuts) as cassette:
        async with cassette.client() as client, client.stream("POST", "http://x/s") as response:
            pieces = [piece async for piece in response.aiter_raw()]
    assert len(pieces) > 1
    assert b"".join(pieces).decode() == EVENTS
    assert response.headers["content-type"] == "text/event-stream"


async def test_the_cuts_of_an_exchange_come_before_those_of_the_cassette():
    with Cassette([Exchange.of("/s", "abcdef", cuts=[2])], cuts=1) as cassette:
        async with cassette.client() as client, client.stream("POST", "http://x/s") as response:
            assert [piece async for piece in response.aiter_raw()] == [b"ab", b"cdef"]


async def test_a_response_that_stalls_can_be_left_and_is_then_closed():
    with Cassette([Exchange.of("/s", "abc", ending="stalls")]) as cassette:
        asking = asyncio.create_task(ask(cassette, "http://x/s"))
        while not cassette.open:  # noqa: ASYNC110 -- the cassette has nothing to wait for
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert cassette.open == 0


# ---------------------------------------------------------------- what cannot be


def test_a_cassette_that_is_missing_says_how_to_record_it(path):
    with pytest.raises(FileNotFoundError, match="mode='record'"):
        Cassette(path)


@pytest.mark.parametrize("content", ["", "{}\n", '{"format":"windlass.cassette","version":1}\n{"request":1}\n', "no"])
def test_a_file_that_is_no_cassette_is_refused_with_the_line(tmp_path, content):
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"line [12]"):
        Cassette(path)


def test_a_mode_that_is_none_is_refused(path):
    with pytest.raises(ValueError, match="replay"):
        Cassette(path, mode="rewind")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name a file"):
        Cassette([], mode="record")


async def test_an_sdk_of_a_vendor_can_be_given_its_client(server):
    openai = pytest.importorskip("openai")
    body = {
        "id": "c-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}],
    }  # fmt: skip
    with Cassette([Exchange.of("/v1/chat/completions", body)]) as cassette:
        async with openai.AsyncOpenAI(api_key=KEY, http_client=cassette.client(), max_retries=0) as client:
            said = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi?"}])
    assert said.choices[0].message.content == "Hi."
    assert cassette.requests[0].body.json["messages"] == [{"role": "user", "content": "Hi?"}]


async def test_a_response_that_has_been_read_before_it_comes_is_recorded_whole(path):
    answers = httpx2.MockTransport(lambda request: httpx2.Response(401, json={"error": "who are you?"}))
    with Cassette(path, mode="record", through=answers) as cassette:
        recorded = await cassette.client().post("https://example.test/v1", json={})
    with Cassette(path) as cassette:
        played = await cassette.client().post("https://example.test/v1", json={})
    assert recorded.json() == played.json() == {"error": "who are you?"}
