"""Every recording of Google's traffic, replayed through the adapter with streams cut at random places."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from windlass import ModelReply, ModelRequest, user
from windlass.errors import ModelNotFound
from windlass.messages import Messages, ThinkingPart
from windlass.models.google import GoogleGemini

httpx2 = pytest.importorskip("httpx2")
genai = pytest.importorskip("google.genai")
yaml = pytest.importorskip("yaml")

WIRE = Path(os.environ.get("WINDLASS_WIRE", Path(__file__).parents[4] / "shared" / "wire"))
if not WIRE.is_dir() and os.environ.get("WINDLASS_REQUIRE_WIRE"):
    pytest.fail(f"the recordings are required and not at {WIRE}", pytrace=False)
pytestmark = pytest.mark.skipif(not WIRE.is_dir(), reason="the recordings are not beside the project")


def pairs() -> list[Any]:
    if not WIRE.is_dir():
        return []
    expected = json.loads((WIRE / "EXPECTED.json").read_text())
    found = []
    for name, entry in expected.items():
        if name.startswith("google/"):
            recorded = yaml.safe_load((WIRE / name).read_text())["interactions"]
            for number, (pair, facts) in enumerate(zip(recorded, entry["facts"], strict=True)):
                if "enerateContent" in pair["request"]["uri"]:
                    found.append(pytest.param(pair, facts, id=f"{name}-{number}"))
    return found


class Cut(httpx2.AsyncByteStream):
    def __init__(self, data: bytes, seed: int) -> None:
        self.data, self.random = data, random.Random(seed)

    async def __aiter__(self):
        place = 0
        while place < len(self.data):
            size = self.random.randint(1, 40)
            yield self.data[place : place + size]
            place += size


def model_for(pair: dict[str, Any], seen: list[Any]) -> GoogleGemini:
    def answer(request: Any) -> Any:
        seen.append((str(request.url), json.loads(request.content)))
        response = pair["response"]
        if "parsed_body" in response:
            return httpx2.Response(response["status"]["code"], json=response["parsed_body"])
        return httpx2.Response(200, stream=Cut(response["body"]["string"].encode(), len(seen)))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    options = genai.types.HttpOptions(httpx_async_client=http, api_version="v1beta")
    name = pair["request"]["uri"].split("/models/")[1].split(":")[0]
    return GoogleGemini(name, client=genai.Client(api_key="none", http_options=options))


@pytest.mark.parametrize(("pair", "facts"), pairs())
async def test_a_recording_is_read_as_it_was_meant(pair: dict[str, Any], facts: dict[str, Any]) -> None:
    seen: list[Any] = []
    model = model_for(pair, seen)
    request = ModelRequest("", Messages([user("Hello")]))
    if facts["status"] == 404:
        with pytest.raises(ModelNotFound) as caught:
            await model.reply(request)
        assert (caught.value.status, str(caught.value)) == (404, facts["error"]["message"])
        return
    pieces = [piece async for piece in model.stream(request)] if facts["stream"] else [await model.reply(request)]
    assert seen[0][0] == pair["request"]["uri"]
    reply = pieces[-1]
    assert isinstance(reply, ModelReply)
    thinking = [part for part in reply.message.parts if isinstance(part, ThinkingPart)]
    assert reply.text == facts.get("text", "")
    assert "".join(part.text for part in thinking) == facts.get("thinking", "")
    assert any(part.signature for part in thinking) == facts.get("signature", False)
    calls = [[call.name, json.loads(call.json)] for call in reply.tool_calls]
    assert calls == [[name, json.loads(arguments)] for name, arguments in facts.get("tools", [])]
    assert (reply.raw_finish, reply.model) == (facts["finish"], facts["model"])
    usage = facts["usage"]
    assert reply.usage.total == usage["totalTokenCount"]
    assert reply.usage.cached == usage.get("cachedContentTokenCount", 0)
    assert reply.usage.reasoning == usage.get("thoughtsTokenCount", 0)
