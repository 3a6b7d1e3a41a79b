"""`check_model`: the models of the kit pass, and every way in which an adapter can be wrong is found and named."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from windlass.deltas import ArgumentsDelta, TextDelta
from windlass.errors import ModelError, ServerError
from windlass.messages import Message, ModelReply, ModelRequest, OpaquePart, ThinkingPart, ToolCallPart
from windlass.testing import (
    SCENES,
    Cassette,
    FunctionModel,
    ModelFailed,
    Scene,
    ScriptedModel,
    breaks,
    check_model,
    says,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_model.py"


@pytest.fixture(scope="module")
def own() -> ModuleType:
    """The example of an adapter, which passes."""
    spec = importlib.util.spec_from_file_location("own_model", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_model"] = module
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- the kit's own models


def script(scene: Scene) -> list[Any]:
    """What a scripted model says in a scene."""
    if scene.ending == "stalls":
        return [says(chunks=["Hello,", " world."], chunk_delay=60)] * 2
    error = (scene.error or ModelError)(
        scene.message or "it broke off", retryable=bool(scene.retryable), retry_after=scene.retry_after
    )
    if scene.error is not None:
        return [breaks("Hello,", error=error)]
    return [reply.replace(message=_vendored(reply.message)) for reply in scene.replies]


def _vendored(message: Message) -> Message:
    parts = [
        part.replace(vendor="scripted") if isinstance(part, ThinkingPart | OpaquePart) else part
        for part in message.parts
    ]
    return message.replace(parts=tuple(parts))


async def test_a_scripted_model_passes():
    report = await check_model(lambda scene: ScriptedModel(*script(scene)))
    assert report.skipped == ()
    assert len(report.passed) == sum(len(scene.ways()) for scene in SCENES)


async def test_a_model_made_of_a_function_passes_and_make_may_be_async():
    async def make(scene: Scene) -> FunctionModel:
        said = iter(script(scene))
        return FunctionModel(lambda request: next(said))

    assert (await check_model(make)).skipped == ()


async def test_a_model_that_cannot_stream_is_not_asked_to():
    class Whole:
        name = "whole"

        def __init__(self, scene: Scene) -> None:
            self.model = ScriptedModel(*script(scene))

        async def reply(self, request: ModelRequest) -> Any:
            return await self.model.reply(request)

    report = await check_model(Whole)
    assert set(report.skipped) == {way.label for scene in SCENES for way in scene.ways() if way.streamed}


async def test_scenes_that_are_not_played_are_reported_and_one_must_be():
    report = await check_model(lambda scene: ScriptedModel(*script(scene)) if scene.name == "text" else None)
    assert report.passed == ("text", "text, streamed")
    assert "thinking" in report.skipped
    with pytest.raises(ModelFailed, match=r"text: this scene cannot be skipped.*\nskipped: text, text, streamed"):
        await check_model(lambda scene: None)


async def test_the_example_passes(own):
    report = await check_model(own.play)
    assert {"text", "several calls, streamed", "a pause, streamed", "settings"} <= set(report.passed)


# ---------------------------------------------------------------- adapters that are wrong


def replied(change: Callable[[ModelReply], ModelReply]) -> Callable[[Any], type]:
    """An adapter whose replies are changed."""

    def broken(model: Any) -> type:
        class Broken(model):  # type: ignore[misc]
            async def stream(self, request):
                async for piece in super().stream(request):
                    yield change(piece) if isinstance(piece, ModelReply) else piece

        return Broken

    return broken


def streamed(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], type]:
    """An adapter whose stream, heard to its end, is changed. Whole replies are as they should be."""

    def broken(model: Any) -> type:
        class Broken(model):  # type: ignore[misc]
            async def reply(self, request):
                return [piece async for piece in model.stream(self, request)][-1]

            async def stream(self, request):
                for piece in change([piece async for piece in super().stream(request)]):
                    yield piece

        return Broken

    return broken


def asked(change: Callable[[Any, ModelRequest], Any]) -> Callable[[Any], type]:
    """An adapter whose body is made differently."""

    def broken(model: Any) -> type:
        class Broken(model):  # type: ignore[misc]
            def body(self, request):
                return change(super().body, request)

        return Broken

    return broken


def raising(change: Callable[[ModelError], Exception]) -> Callable[[Any], type]:
    """An adapter whose errors are changed."""

    def broken(model: Any) -> type:
        class Broken(model):  # type: ignore[misc]
            async def stream(self, request):
                try:
                    async for piece in super().stream(request):
                        yield piece
                except ModelError as error:
                    raise change(error) from error

        return Broken

    return broken


def _mutating(body: Any, request: ModelRequest) -> Any:
    request.messages._items.append(request.messages[0])
    request.messages._length += 1
    return body(request)


def _growing() -> Callable[[Any, ModelRequest], Any]:
    kept: list[Any] = []

    def grow(body: Any, request: ModelRequest) -> Any:
        made = body(request)
        kept.extend(made["messages"])
        return {**made, "messages": list(kept)}

    return grow


def _mixing(model: Any) -> type:
    class Mixing(model):  # type: ignore[misc]
        async def stream(self, request):
            self.request = request
            await asyncio.sleep(0)
            async for piece in super().stream(self.request):
                yield piece

    return Mixing


def _not_closing(model: Any) -> type:
    class Leaving(model):  # type: ignore[misc]
        async def stream(self, request):
            self.pieces = super().stream(request)
            while True:
                try:
                    piece = await anext(self.pieces)
                except StopAsyncIteration:
                    return
                yield piece

        async def aclose(self):
            await self.pieces.aclose()

    return Leaving


def _swallowing(model: Any) -> type:
    class Swallowing(model):  # type: ignore[misc]
        async def stream(self, request):
            async with aclosing(super().stream(request)) as pieces:
                try:
                    async for piece in pieces:
                        yield piece
                except asyncio.CancelledError:
                    yield ModelReply(Message("assistant"))

    return Swallowing


def _late(model: Any) -> type:
    """All pieces come when the reply is complete."""

    class Late(model):  # type: ignore[misc]
        async def stream(self, request):
            for piece in [piece async for piece in super().stream(request)]:
                yield piece

    return Late


def _shallow(reply: ModelReply, **changes: Any) -> ModelReply:
    parts = [
        part.replace(**changes) if isinstance(part, ToolCallPart) and "json" in changes else part
        for part in reply.message.parts
    ]
    return reply.replace(message=reply.message.replace(parts=tuple(parts)))


def _at(place: int) -> Callable[[list[Any]], list[Any]]:
    return lambda pieces: [
        piece.replace(part=piece.part + place) if isinstance(piece, TextDelta) else piece for piece in pieces
    ]


BROKEN: list[Any] = [
    pytest.param(streamed(lambda pieces: pieces[:-1]), "text, streamed", "ended with", id="no reply at the end"),
    pytest.param(streamed(lambda pieces: [*pieces, "!"]), "text, streamed", "ended with '!'", id="something after it"),
    pytest.param(streamed(lambda pieces: pieces[1:]), "text, streamed", "the pieces of part 0 make", id="a lost piece"),
    pytest.param(streamed(lambda pieces: [pieces[0], *pieces]), "text, streamed", "the pieces of part 0", id="twice"),
    pytest.param(streamed(_at(1)), "text, streamed", "a piece is for part 1", id="a wrong part"),
    pytest.param(
        streamed(lambda pieces: [p.replace(part=0) if isinstance(p, ArgumentsDelta) else p for p in pieces]),
        "several calls, streamed",
        "which is a TextPart",
        id="arguments of a text",
    ),
    pytest.param(streamed(lambda pieces: [None, *pieces]), "text, streamed", "None", id="no delta"),
    pytest.param(_late, "a pause, streamed", "TimeoutError", id="all at the end"),
    pytest.param(replied(lambda reply: reply.replace(finish="end_turn")), "text", "finish='end_turn'", id="raw finish"),
    pytest.param(replied(lambda reply: reply.replace(finish="stop")), "call", "finish='stop'", id="wrong finish"),
    pytest.param(
        replied(lambda reply: reply.replace(usage=reply.usage.replace(input=0))), "text", "usage.input is 0", id="usage"
    ),
    pytest.param(
        replied(lambda reply: reply.replace(usage=reply.usage.replace(requests=0))),
        "text",
        "1 request, not 0",
        id="requests",
    ),
    pytest.param(
        replied(lambda reply: reply.replace(usage=reply.usage.replace(cached=99))),
        "text",
        "`input` must include cached tokens",
        id="cached beside the input",
    ),
    pytest.param(
        replied(lambda reply: reply.replace(message=reply.message.replace(role="user"))), "text", "role", id="role"
    ),
    pytest.param(
        replied(lambda reply: reply.replace(message=reply.message.replace(parts=reply.message.parts[:1]))),
        "several calls",
        "the vendor said",
        id="lost calls",
    ),
    pytest.param(replied(lambda reply: _shallow(reply, json="{}")), "call", "the vendor said", id="lost arguments"),
    pytest.param(
        replied(lambda reply: _shallow(reply, json="{}", id="x")), "call", "the id 'x'", id="an id of its own"
    ),
    pytest.param(
        replied(
            lambda reply: reply.replace(
                message=reply.message.replace(parts=(ThinkingPart("Hm."), *reply.message.parts))
            )
        ),
        "text",
        "a thinking part has no vendor",
        id="thinking of nobody",
    ),
    pytest.param(replied(lambda reply: reply.message), "text", "not a ModelReply", id="a message"),
    pytest.param(raising(lambda error: RuntimeError("no")), "a rate limit", "RuntimeError", id="a foreign error"),
    pytest.param(
        raising(lambda error: ServerError("no", retryable=True)), "a wrong key", "ServerError", id="wrong kind"
    ),
    pytest.param(
        raising(lambda error: type(error)(str(error), retryable=not error.retryable)),
        "overload",
        "retryable",
        id="retry",
    ),
    pytest.param(
        raising(lambda error: type(error)(str(error), retryable=error.retryable)),
        "a rate limit",
        "retry_after",
        id="wait",
    ),
    pytest.param(
        raising(lambda error: type(error)("oh", retryable=error.retryable, retry_after=error.retry_after)),
        "a bad request",
        "the vendor said",
        id="a lost message",
    ),
    pytest.param(asked(_mutating), "text", "it modified the request", id="a changed request"),
    pytest.param(asked(_growing()), "text", "the same request, sent twice", id="a growing request"),
    pytest.param(
        asked(lambda body, request: body(request.replace(messages=request.messages[:1]))),
        "conversation",
        "the request contains 'Let me see.' 0 times",
        id="lost messages",
    ),
    pytest.param(
        asked(lambda body, request: {**body(request), "foreign": repr(request.messages[1].parts[0])}),
        "conversation",
        "another vendor",
        id="foreign thoughts",
    ),
    pytest.param(
        asked(lambda body, request: body(request.replace(settings={}))), "settings", "0 times", id="lost settings"
    ),
    pytest.param(
        asked(lambda body, request: body(request.replace(output=None))), "output", "0 times", id="a lost schema"
    ),
    pytest.param(_mixing, "at once, streamed", "mixed up", id="two requests mixed up"),
    pytest.param(_not_closing, "a pause, streamed", "the connection is still open", id="a connection left open"),
    pytest.param(_swallowing, "a pause, streamed", "its reader was cancelled", id="a swallowed cancellation"),
]


@pytest.mark.parametrize(("broken", "scene", "why"), BROKEN)
async def test_an_adapter_that_is_wrong_is_caught(own, broken, scene, why):
    name = scene.removesuffix(", streamed")

    def make(played: Scene) -> tuple[Any, Cassette] | None:
        if played.name not in ("text", name):
            return None
        made = own.play(played)
        assert made is not None
        model, cassette = made
        return broken(own.OwnModel)(model.model, model.client), cassette

    with pytest.raises(ModelFailed) as failed:
        await check_model(make, timeout=0.5 if why == "TimeoutError" else 50)
    assert scene in failed.value.report.failed
    assert why in failed.value.report.failed[scene]
    assert f"- {scene}: " in str(failed.value)


async def test_an_adapter_that_believes_a_stream_that_ends_early_is_caught():
    def make(scene: Scene) -> ScriptedModel:
        hasty = scene.name in ("an early end", "a broken connection")
        return ScriptedModel(*([says("Hello,")] if hasty else script(scene)))

    with pytest.raises(ModelFailed) as failed:
        await check_model(make)
    assert set(failed.value.report.failed) == {
        "a broken connection", "a broken connection, streamed", "an early end, streamed"
    }  # fmt: skip
    assert "it must raise ConnectionFailed" in str(failed.value)
