"""Who asks Bedrock, where, and over which client."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import httpx2
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import ConnectTimeoutError, CredentialRetrievalError
from botocore.session import Session

from windlass.errors import AuthFailed, ConfigError, ConnectionFailed, ModelTimeout
from windlass.models import open_model
from windlass.models.bedrock import BedrockConverse
from windlass.testing import Cassette

from .serving import ADDRESS, MODEL, Server, answer, asked, asking, heard, streamed, text


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that AWS does not know."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def session(region: str | None = "eu-west-1") -> Any:
    """One with credentials that never change."""
    made = Session()
    made.set_credentials("AKIDEXAMPLE", "secret", "token")
    if region:
        made.set_config_variable("region", region)
    return made


async def test_a_model_is_opened_by_its_name_whose_end_has_a_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    server = Server(answer("Hi"))
    model = open_model("bedrock:us.amazon.nova-micro-v1:0", client=server.http)
    assert model.name == "bedrock:us.amazon.nova-micro-v1:0"
    await model.reply(asking())
    assert str(server.requests[0].url) == f"{ADDRESS}/model/us.amazon.nova-micro-v1%3A0/converse"
    assert server.requests[0].headers["authorization"] == "Bearer key"


async def test_the_arn_of_a_profile_is_one_piece_of_the_address() -> None:
    arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"
    server = Server(streamed(text(0, "Hi")))
    await asked(server.model(arn), streaming=True)
    path = "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Aapplication-inference-profile%2Fabc/converse-stream"
    assert server.requests[0].url.raw_path.decode() == path


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_request_is_signed_as_aws_signs_it(streaming: bool) -> None:
    server = Server(streamed(text(0, "Hi")) if streaming else answer("Hi"))
    model = BedrockConverse(MODEL, client=server.http, session=session())
    await asked(model, streaming=streaming)
    [request] = server.requests
    assert request.url.host == "bedrock-runtime.eu-west-1.amazonaws.com"
    again = AWSRequest("POST", str(request.url), {"content-type": request.headers["content-type"]}, request.content)
    again.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(Credentials("AKIDEXAMPLE", "secret", "token"), "bedrock", "eu-west-1")
    again.headers["X-Amz-Date"] = request.headers["x-amz-date"]
    again.headers["X-Amz-Security-Token"] = "token"
    signed = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    assert request.headers["authorization"].endswith(f"Signature={signed}")
    assert request.headers["x-amz-security-token"] == "token"


async def test_botocore_itself_would_send_the_same() -> None:
    """The same request by AWS's own client: address, path and body."""
    server = Server(answer("Hi"))
    await BedrockConverse(MODEL, client=server.http, session=session(), settings={"cache": False}).reply(asking())
    theirs: list[Any] = []
    client = session().create_client("bedrock-runtime")

    def caught(request: Any, **_: Any) -> None:
        theirs.append(request)
        raise KeyboardInterrupt

    client.meta.events.register("before-send", caught)
    with pytest.raises(KeyboardInterrupt):
        client.converse(modelId=MODEL, messages=[{"role": "user", "content": [{"text": "Hello"}]}])
    client.close()
    assert str(server.requests[0].url) == theirs[0].url
    assert server.asked[0] == json.loads(theirs[0].body)
    assert server.requests[0].headers["content-type"] == theirs[0].headers["Content-Type"].decode()


async def test_where_bedrock_is_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(*[answer("Hi")] * 4)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    for options in ({}, {"region": "cn-north-1"}, {"base_url": "http://proxy:8080/"}):
        await BedrockConverse("m", client=server.http, api_key="k", **options).reply(asking())
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "http://from.the.environment")
    await BedrockConverse("m", client=server.http, api_key="k").reply(asking())
    assert [str(request.url).removesuffix("/model/m/converse") for request in server.requests] == [
        "https://bedrock-runtime.ap-south-1.amazonaws.com",
        "https://bedrock-runtime.cn-north-1.amazonaws.com.cn",
        "http://proxy:8080",
        "http://from.the.environment",
    ]


async def test_a_region_in_the_environment_wins_over_a_profile_and_one_of_a_session_over_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-west-1\n")
    server = Server(*[answer("Hi")] * 3)
    await BedrockConverse("m", client=server.http, api_key="k").reply(asking())
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    await BedrockConverse("m", client=server.http, api_key="k").reply(asking())
    await BedrockConverse("m", client=server.http, api_key="k", session=session("us-west-2")).reply(asking())
    regions = [request.url.host.split(".")[1] for request in server.requests]
    assert regions == ["eu-west-1", "us-east-2", "us-west-2"]


async def test_a_session_of_boto3_does_as_well() -> None:
    server = Server(answer("Hi"))
    given = boto3.Session("AKIDEXAMPLE", "secret", region_name="us-west-2")
    await BedrockConverse("m", client=server.http, session=given).reply(asking())
    assert server.requests[0].url.host == "bedrock-runtime.us-west-2.amazonaws.com"
    assert "AKIDEXAMPLE" in server.requests[0].headers["authorization"]


async def test_a_signed_stream_that_is_recorded_can_be_played(tmp_path: Path) -> None:
    said = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\nconnection: close\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said + streamed(text(0, "Héllo")))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for mode in ("record", "replay"):
            with Cassette(tmp_path / "tape.jsonl", mode=mode) as tape:  # type: ignore[arg-type]
                model = BedrockConverse("m", client=tape.client(), session=session(), base_url=address)
                assert (await asked(model, streaming=True)).text == "Héllo"


def test_a_missing_region_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"'bedrock:m' has no region: set AWS_REGION, .*region=…"):
        open_model("bedrock:m")


def test_a_profile_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match=r"cannot be reached: .*nobody"):
        open_model("bedrock:m")


class AsyncSession:
    async def get_credentials(self) -> Any: ...


@pytest.mark.parametrize("wrong", [object(), AsyncSession()])
def test_a_session_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"session of 'bedrock:m' is a \w+; pass a botocore.session.Session or a boto"
    ):
        open_model("bedrock:m", session=wrong)


def test_a_client_of_another_make_is_refused() -> None:
    theirs = session().create_client("bedrock-runtime")
    with httpx2.Client() as synchronous:
        for wrong, kind in ((theirs, "botocore's BedrockRuntime"), (synchronous, "httpx2's Client")):
            hint = "for credentials and region, pass a botocore or boto3 session as session=…"
            with pytest.raises(ConfigError, match=rf"{kind}; pass an httpx2.AsyncClient; {hint}"):
                open_model("bedrock:m", client=wrong)
    theirs.close()


def test_missing_credentials_are_refused_at_once_where_nothing_else_can_be_asked_for_them() -> None:
    with pytest.raises(ConfigError, match="model='bedrock:m' has no credentials: set AWS_BEARER_TOKEN_BEDROCK or AWS_"):
        BedrockConverse("m", region="us-east-1", client=Server().http)


@pytest.mark.parametrize("streaming", [False, True])
async def test_missing_credentials_are_an_error_that_says_what_to_set(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    monkeypatch.setattr(session, "get_credentials", lambda: None)
    model = BedrockConverse("m", region="us-east-1", client=Server().http, session=session)
    with pytest.raises(AuthFailed, match="no credentials for bedrock: set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY"):
        await asked(model, streaming=streaming)


class Slow:
    """A session whose credentials come over the network."""

    region_name = "us-east-1"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.threads: list[threading.Thread] = []

    def get_credentials(self) -> Any:
        self.threads.append(threading.current_thread())
        expiry = datetime.now(UTC) - timedelta(seconds=1)
        return RefreshableCredentials("old", "old", "old", expiry, self._refreshed, "test")

    def _refreshed(self) -> dict[str, str]:
        self.threads.append(threading.current_thread())
        if self.error:
            raise self.error
        expiry = datetime.now(UTC) + timedelta(hours=1)
        return {"access_key": "FRESH", "secret_key": "s", "token": "t", "expiry_time": expiry.isoformat()}


async def test_credentials_are_fetched_in_a_thread_and_kept_fresh() -> None:
    server, slow = Server(*[answer("Hi")] * 3), Slow()
    model = BedrockConverse("m", client=server.http, session=slow, base_url=ADDRESS)
    await model.reply(asking())
    await asyncio.gather(model.reply(asking()), model.reply(asking()))
    assert all("FRESH" in request.headers["authorization"] for request in server.requests)
    assert len(slow.threads) == 2
    assert threading.main_thread() not in slow.threads


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (CredentialRetrievalError(provider="sso", error_msg="log in again"), AuthFailed, False),
        (ConnectTimeoutError(endpoint_url="http://sts"), ConnectionFailed, True),
    ],
)
async def test_credentials_that_cannot_be_fetched_are_an_error(error: Exception, kind: Any, retryable: bool) -> None:
    model = BedrockConverse("m", client=Server().http, session=Slow(error), base_url=ADDRESS)
    with pytest.raises(kind, match="the credentials could not be fetched") as caught:
        await model.reply(asking())
    assert caught.value.retryable is retryable


async def test_a_client_that_is_passed_in_stays_open_and_says_how_long_to_wait() -> None:
    server = Server(answer("Hi"))
    model = server.model()
    await model.reply(asking())
    await model.aclose()
    assert not server.http.is_closed

    async def never(request: httpx2.Request) -> httpx2.Response:
        return await asyncio.get_running_loop().create_future()

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(never), timeout=0.01) as hasty:
        for options, settings in (({}, {}), ({"timeout": None}, {"timeout": 0.01})):
            hasty.timeout = httpx2.Timeout(options.get("timeout", 0.01))
            model = BedrockConverse("m", client=hasty, api_key="k", base_url=ADDRESS, settings=settings)
            with pytest.raises(ModelTimeout):
                await model.reply(asking())


async def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("windlass.models.bedrock", "botocore"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(
        ConfigError, match=r"needs 'botocore.*', which is not installed: pip install 'windlass\[bedrock\]'"
    ):
        open_model("bedrock:m")


async def test_slowly_sent_bytes_are_heard_as_they_come() -> None:
    deltas, reply = await heard(Server(streamed(text(0, *"Hello"))).model(), asking())
    assert [delta.text for delta in deltas] == list("Hello")
    assert reply.text == "Hello"
