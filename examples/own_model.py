"""Your own model: Ollama's native API with only httpx2, checked like the adapters of Windlass."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2

from windlass import Agent, Message, ModelReply, ModelRequest, TextDelta, Usage, errors
from windlass.deltas import ArgumentsDelta
from windlass.messages import TextPart, ToolCallPart, ToolResultPart, thawed
from windlass.testing import Cassette, Exchange, Scene, check_model

ERRORS = {401: errors.AuthFailed, 404: errors.ModelNotFound, 429: errors.RateLimited, 503: errors.Overloaded}
SETTINGS = {"temperature": "temperature", "max_tokens": "num_predict", "stop": "stop", "seed": "seed"}


class OwnModel:
    """A model behind `/api/chat`. It can serve many requests at once, because it keeps no state between them."""

    def __init__(self, model: str, client: httpx2.AsyncClient) -> None:
        self.name, self.model, self.client = f"own:{model}", model, client

    async def reply(self, request: ModelRequest) -> ModelReply:
        reply: ModelReply = [piece async for piece in self.stream(request)][-1]
        return reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Any, None]:
        texts, calls, chunk = list[TextPart](), list[ToolCallPart](), dict[str, Any]()
        try:
            async with self.client.stream("POST", "/api/chat", json=self.body(request)) as response:
                if response.status_code != 200:
                    raise failed(response, json.loads(await response.aread())["error"])
                async for line in response.aiter_lines():
                    chunk = json.loads(line)
                    if text := chunk["message"].get("content"):
                        texts = [TextPart((texts[0].text if texts else "") + text)]
                        yield TextDelta(text)
                    for call in [call["function"] for call in chunk["message"].get("tool_calls", ())]:
                        calls.append(ToolCallPart(call["name"], json.dumps(call["arguments"])))
                        yield ArgumentsDelta(calls[-1].json, len(texts + calls) - 1, name=call["name"])
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            raise errors.ConnectionFailed(f"the answer broke off or is invalid: {error!r}") from error
        if not chunk.get("done"):
            raise errors.ConnectionFailed("the answer broke off")
        finish = "tool_calls" if calls else {"stop": "stop", "length": "length"}.get(chunk["done_reason"], "other")
        usage = Usage(input=chunk.get("prompt_eval_count", 0), output=chunk.get("eval_count", 0))
        yield ModelReply(Message("assistant", (*texts, *calls)), usage, finish, chunk["model"], chunk["done_reason"])

    def body(self, request: ModelRequest) -> dict[str, Any]:
        messages = [{"role": "system", "content": request.system}] + [
            m for each in request.messages for m in wire(each)
        ]
        options = {SETTINGS[name]: thawed(value) for name, value in request.settings.items() if name in SETTINGS}
        tools = [{"name": t.name, "description": t.description, "parameters": thawed(t.schema)} for t in request.tools]
        body = {"model": self.model, "messages": messages, "options": options, "format": thawed(request.output)}
        body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        return {**body, **request.settings.get("extra", {})}


def wire(message: Message) -> list[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls]
    said = {"role": message.role, "content": message.text, "tool_calls": calls}
    return [{"role": "tool", "tool_name": part.name, "content": part.text} for part in results] or [said]


def failed(response: httpx2.Response, text: str) -> errors.ModelError:
    status, after = response.status_code, response.headers.get("retry-after")
    kind = ERRORS.get(status, errors.BadRequest if status < 500 else errors.ServerError)
    return kind(text, status=status, retry_after=float(after) if after else None)


# ---------------------------------------------------------------- does it follow the contract?

STATUS: dict[Any, int] = {
    **{kind: status for status, kind in ERRORS.items()}, errors.ServerError: 500, errors.BadRequest: 400
}  # fmt: skip
NOT_HERE = {
    "thinking", "broken arguments", "refusal", "filter", "usage", "unknown", "picture", "an error in the stream",
}  # fmt: skip


def line(content: str = "", **more: Any) -> str:
    return json.dumps({"model": "m", "message": {"role": "assistant", "content": content}, "done": False} | more)


def spoken(scene: Scene, reply: ModelReply) -> Exchange:
    """The reply as the server would send it; only half of it if the scene ends badly."""
    lines = [line(text) for text in (reply.text[:6], reply.text[6:]) if text]
    for call in reply.tool_calls:
        function = {"name": call.name, "arguments": call.arguments}
        lines.append(line(message={"role": "assistant", "tool_calls": [{"function": function}]}))
    reason = "length" if reply.finish == "length" else "stop"
    usage = reply.usage
    lines.append(line(done=True, done_reason=reason, prompt_eval_count=usage.input, eval_count=usage.output))
    ending = {"ends": "ends", "breaks": "breaks", "stalls": "stalls"}.get(scene.ending, "ends")
    return Exchange.of("/api/chat", "\n".join(lines if scene.ending == "ends" else lines[:1]) + "\n", ending=ending)  # type: ignore[arg-type]


def play(scene: Scene) -> tuple[OwnModel, Cassette] | None:
    """The model, with a server that plays the scene."""
    if scene.name in NOT_HERE or (scene.message and scene.error not in STATUS):
        return None
    if scene.name == "garbage":
        exchanges = [Exchange.of("/api/chat", "<html>")]
    elif scene.replies:
        exchanges = [spoken(scene, reply) for reply in scene.replies]
    else:
        after = {"retry-after": str(scene.retry_after)} if scene.retry_after else {}
        exchanges = [Exchange.of("/api/chat", {"error": scene.message}, status=STATUS[scene.error], headers=after)]
    cassette = Cassette(exchanges)
    return OwnModel("m", cassette.client(base_url="http://localhost:11434")), cassette


async def main() -> None:
    report = await check_model(play)
    print(f"{len(report.passed)} scenes passed; skipped: {', '.join(report.skipped)}")
    hello = Exchange.of("/api/chat", line("Hello!") + "\n" + line(done=True, done_reason="stop"))
    with Cassette([hello]) as cassette:
        agent = Agent(OwnModel("m", cassette.client(base_url="http://localhost:11434")))
        assert (await agent.run("Say hello.")).text == "Hello!"


if __name__ == "__main__":
    asyncio.run(main())
