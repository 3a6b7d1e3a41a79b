"""Checks for model adapters, which third parties can run on their own: `await check_model(make)`."""

from __future__ import annotations

import asyncio
import inspect
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, get_args

from msgspec import Struct

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ModelError
from windlass.messages import (
    Finish,
    MediaPart,
    Message,
    ModelReply,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    user,
)
from windlass.protocols import Model, StreamingModel

from .cassettes import Cassette
from .scenes import FOREIGN, PICTURE, SCENES, SIGNATURE, UNKNOWN, Scene, asking

Made: TypeAlias = Model | tuple[Model, Cassette] | None
MakeModel: TypeAlias = Callable[[Scene], Made | Awaitable[Made]]

_DELTAS: dict[type, type] = {TextPart: TextDelta, ThinkingPart: ThinkingDelta, ToolCallPart: ArgumentsDelta}


class ModelReport(Struct, frozen=True):
    """The result of `check_model`: the scenes that passed, why others failed, and which were skipped."""

    passed: tuple[str, ...]
    failed: dict[str, str]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        count = len(self.passed) + len(self.failed)
        result = f"fails {len(self.failed)} of {count} scenes" if self.failed else f"passes all {count} scenes"
        lines = [f"the model {result}", *[f"- {scene}: {why}" for scene, why in self.failed.items()]]
        return "\n".join([*lines, *([f"skipped: {', '.join(self.skipped)}"] if self.skipped else [])])


class ModelFailed(AssertionError):
    """An adapter fails a scene of `check_model`.

    `report.failed` has the reason for each failed scene.
    """

    def __init__(self, message: str, *, report: ModelReport) -> None:
        super().__init__(message)
        self.report = report


async def check_model(make: MakeModel, *, timeout: float = 30.0) -> ModelReport:
    """Check an adapter. Raises `ModelFailed`, an AssertionError that lists all failures.

    `make`, plain or async, is called for each `Scene` of `SCENES`, whole and streamed. It returns a model whose vendor
    answers as the scene wants. It may also return a pair of the model and its `Cassette`: then the requests it sent are
    checked too, and that connections are closed. If it returns None the scene is skipped, and the report says so; only
    "text" cannot be skipped. The streamed scenes are skipped for a model without `stream`.

    - *replies*: the parts, the finish and the usage match the scene, and the usage is plausible
    - *streams*: the pieces come first, the whole reply last; joined, the pieces of a part are that part; streamed and
      whole replies are the same
    - *errors*: the vendor's errors become errors of `windlass.errors` that have its message and say whether a retry may
      help; a reply that breaks off is an error
    - *closing*: a stream that is closed, or whose reader is cancelled, closes its connection
    - *requests*: they are not modified; equal requests are equal on the wire; unknown parts go back unchanged to the
      vendor they came from, and never to another one; concurrent requests do not get mixed up
    """
    passed, failed, skipped = list[str](), dict[str, str](), list[str]()
    for scene in [way for each in SCENES for way in each.ways()]:
        stage = await _stage(make, scene, timeout)
        if stage is None:
            skipped.append(scene.label)
            continue
        try:
            await _play(stage)
        except Exception as error:
            failed[scene.label] = str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
        else:
            passed.append(scene.label)
        finally:
            await stage.close()
    if "text" in skipped:
        failed["text"] = "this scene cannot be skipped: every model must pass it"
    report = ModelReport(tuple(passed), failed, tuple(skipped))
    if failed:
        raise ModelFailed(str(report), report=report)
    return report


async def _stage(make: MakeModel, scene: Scene, timeout: float) -> _Stage | None:
    made = make(scene)
    if inspect.isawaitable(made):
        made = await made
    model, cassette = made if isinstance(made, tuple) else (made, None)
    if model is None or (scene.streamed and not isinstance(model, StreamingModel)):
        return None
    return _Stage(scene, model, cassette, timeout)


class _Stage:
    """A scene and the model to check with it."""

    def __init__(self, scene: Scene, model: Any, cassette: Cassette | None, timeout: float) -> None:
        self.scene = scene
        self.model = model
        self.cassette = cassette
        self.timeout = timeout

    async def ask(self, request: ModelRequest) -> ModelReply:
        """Send a request, whole or streamed as the scene says, and check what every reply must satisfy."""
        before = repr(request)
        async with asyncio.timeout(self.timeout):
            reply = await (self._streamed(request) if self.scene.streamed else self._whole(request))
        assert repr(request) == before, "it modified the request"
        _check_reply(reply)
        return reply

    async def _whole(self, request: ModelRequest) -> ModelReply:
        reply = await self.model.reply(request)
        assert type(reply) is ModelReply, f"it returned a {type(reply).__name__}, not a ModelReply"
        return reply

    async def _streamed(self, request: ModelRequest) -> ModelReply:
        pieces: list[Any] = [piece async for piece in self.model.stream(request)]
        *deltas, reply = pieces or [None]
        assert type(reply) is ModelReply, f"the stream ended with {reply!r}, not with a ModelReply"
        _check_pieces([TextDelta(piece) if isinstance(piece, str) else piece for piece in deltas], reply)
        return reply

    @property
    def bodies(self) -> list[Any]:
        """The bodies that were sent."""
        return [request.body.json for request in self.cassette.requests] if self.cassette is not None else []

    async def close(self) -> None:
        if hasattr(self.model, "aclose"):
            await self.model.aclose()


# ---------------------------------------------------------------- playing


async def _play(stage: _Stage) -> None:
    play = _PLAYS.get(stage.scene.name)
    if play is not None:
        await play(stage)
    elif stage.scene.error is not None:
        await _fails(stage)
    else:
        for reply in stage.scene.replies:
            _compare(await stage.ask(stage.scene.ask()), reply)
        _check_bodies(stage)
    if stage.cassette is not None:
        stage.cassette.assert_done()
        assert stage.cassette.open == 0, "a response was not closed"


async def _fails(stage: _Stage) -> None:
    scene = stage.scene
    try:
        reply = await stage.ask(scene.ask())
    except ModelError as error:
        _check_error(scene, error)
    except (TimeoutError, AssertionError):
        raise
    except Exception as error:
        kind = f"{type(error).__module__}.{type(error).__name__}"
        raise AssertionError(f"it raised {kind} ({error}), which is not a ModelError: translate it") from error
    else:
        raise AssertionError(f"it replied with {reply.text!r}; it must raise {scene.error.__name__}")  # type: ignore[union-attr]


def _check_error(scene: Scene, error: ModelError) -> None:
    assert isinstance(error, scene.error or ModelError), (
        f"it raised {type(error).__name__} ({error}), not {scene.error.__name__}"  # type: ignore[union-attr]
    )
    kind = type(error).__name__
    assert scene.retryable in (None, error.retryable), f"its {kind} has retryable={error.retryable}"
    assert scene.message in str(error), f"its {kind} says {str(error)!r}, but the vendor said {scene.message!r}"
    assert str(error), f"its {kind} has no message"
    expected = scene.retry_after
    assert expected is None or error.retry_after == expected, f"it has retry_after={error.retry_after}, not {expected}"


async def _sends_back(stage: _Stage) -> None:
    """Check that signed and unknown parts of a reply go back to the vendor unchanged with the next request."""
    scene = stage.scene
    request = scene.ask()
    first = await stage.ask(request)
    _compare(first, scene.replies[0])
    history = [*request.messages, first.message.replace(id="s/1"), user("And?")]
    _compare(await stage.ask(request.replace(messages=history)), scene.replies[1])
    signed = any(isinstance(part, ThinkingPart) and part.signature for part in first.message.parts)
    mark = {"thinking": SIGNATURE if signed else "", "unknown": UNKNOWN}[scene.name]
    for body in stage.bodies[1:]:
        assert _count(body, mark) or not mark, f"{mark!r} came from the vendor, but was not sent back to it"
        assert not stage.bodies[:1] or not _count(stage.bodies[0], mark) or not mark


async def _at_once(stage: _Stage) -> None:
    replies = await asyncio.gather(*[stage.ask(asking(f"Say {word}.")) for word in ("one", "two")])
    texts = sorted(reply.text for reply in replies)
    assert texts == ["One.", "Two."], f"two concurrent requests got the answers {texts}"
    bodies = stage.bodies
    assert not bodies or sorted(_count(body, "Say one.") for body in bodies) == [0, 1], (
        "concurrent requests are mixed up"
    )


async def _pauses(stage: _Stage) -> None:
    """Check that a waiting stream can be closed, and that its reader can be cancelled."""
    async with asyncio.timeout(stage.timeout):
        stream = stage.model.stream(stage.scene.ask())
        piece = await anext(stream)
        assert not isinstance(piece, ModelReply), "the stream yielded a reply before it was complete"
        await stream.aclose()
        _check_closed(stage, "a stream was closed")
        stream = stage.model.stream(stage.scene.ask())
        await anext(stream)
        reading = asyncio.ensure_future(_rest(stream))
        for _ in range(50):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled(), f"its reader was cancelled, but ended as {reading!r}"
        await stream.aclose()
        _check_closed(stage, "the reader of a stream was cancelled")


async def _rest(stream: Any) -> None:
    async for _ in stream:
        pass


def _check_closed(stage: _Stage, what: str) -> None:
    assert stage.cassette is None or stage.cassette.open == 0, f"{what}, but the connection is still open"


_PLAYS: dict[str, Callable[[_Stage], Awaitable[None]]] = {
    "thinking": _sends_back,
    "unknown": _sends_back,
    "at once": _at_once,
    "a pause": _pauses,
}


# ---------------------------------------------------------------- checking replies


def _check_reply(reply: ModelReply) -> None:
    message, usage = reply.message, reply.usage
    assert message.role == "assistant", f"the reply has role {message.role!r}, not 'assistant'"
    assert reply.finish in get_args(Finish), f"finish={reply.finish!r} must be one of {', '.join(get_args(Finish))}"
    for part in message.parts:
        assert type(part) is not ToolResultPart, "a reply must not contain tool results"
        assert type(part) is not ToolCallPart or part.name, "a call has no name"
        assert type(part) is not ToolCallPart or not part.id, (
            f"a call has the id {part.id!r}; put the vendor's id into vendor_id"
        )
        assert type(part) is not ThinkingPart or part.vendor, (
            "a thinking part has no vendor, so it would be sent to other vendors"
        )
        assert type(part) is not OpaquePart or part.vendor, "an opaque part has no vendor"
    counts = (usage.input, usage.output, usage.cached, usage.cache_written, usage.reasoning)
    assert min(counts) >= 0, f"the usage has negative counts: {usage}"
    assert usage.requests == 1, f"one reply must count as 1 request, not {usage.requests}"
    assert usage.cached + usage.cache_written <= usage.input, f"`input` must include cached tokens: {usage}"
    assert usage.reasoning <= usage.output, f"`output` must include reasoning tokens: {usage}"


def _check_pieces(deltas: list[Any], reply: ModelReply) -> None:
    parts = reply.message.parts
    joined: dict[int, str] = {}
    for delta in deltas:
        assert isinstance(delta, AnyDelta), f"the stream has {delta!r} before its end, which is not a delta"
        assert 0 <= delta.part < len(parts), f"a piece is for part {delta.part}, but the reply has {len(parts)} parts"
        part = parts[delta.part]
        assert _DELTAS.get(type(part)) is type(delta), (
            f"a {type(delta).__name__} is for part {delta.part}, which is a {type(part).__name__}"
        )
        if isinstance(delta, ArgumentsDelta) and isinstance(part, ToolCallPart):
            assert delta.name in ("", part.name), f"a piece calls {delta.name!r}, but its part calls {part.name!r}"
        joined[delta.part] = joined.get(delta.part, "") + delta.text
    for place, part in enumerate(parts):
        if type(part) in _DELTAS:
            whole = _text(part)
            assert joined.get(place, "") == whole, (
                f"the pieces of part {place} make {joined.get(place, '')!r}, but the reply has {whole!r}"
            )


def _text(part: Part) -> str:
    return part.json if isinstance(part, ToolCallPart) else getattr(part, "text", "")


def _compare(reply: ModelReply, expected: ModelReply) -> None:
    found, wanted = _normalise(reply.message), _normalise(expected.message)
    assert found == wanted, f"the reply is {found}, but the vendor said {wanted}"
    assert reply.finish == expected.finish, f"finish={reply.finish!r}, but the vendor's means {expected.finish!r}"
    for name in ("input", "output", "cached"):
        count, spent = getattr(reply.usage, name), getattr(expected.usage, name)
        assert count == spent, f"usage.{name} is {count}, but the vendor counted {spent}"
    assert reply.usage.reasoning in (0, expected.usage.reasoning), f"usage.reasoning is {reply.usage.reasoning}"


def _normalise(message: Message) -> list[tuple[Any, ...]]:
    """The parts in a form that all vendors share: unknown parts first, neighbours of one kind joined, arguments
    decoded."""
    unknown = any(isinstance(part, OpaquePart) and UNKNOWN in str(part.data) for part in message.parts)
    items: list[tuple[Any, ...]] = [("unknown",)] if unknown else []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            items.append(("call", part.name, _plain(part.json)))
        elif isinstance(part, MediaPart):
            items.append((type(part).__name__,))
        elif text := _text(part):
            kind = "thinking" if isinstance(part, ThinkingPart) else "text"
            before = items.pop()[1] if items and items[-1][0] == kind else ""
            items.append((kind, before + text))
    return items


def _plain(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


# ---------------------------------------------------------------- checking requests


def _check_bodies(stage: _Stage) -> None:
    bodies = stage.bodies
    if len(bodies) > 1:
        assert bodies[0] == bodies[1], "the same request, sent twice, differs on the wire"
    for body in bodies:
        for text, times in _SENT.get(stage.scene.name, {}).items():
            found = _count(body, text)
            assert found == times, f"the request contains {text!r} {found} times; expected: {times}"


_SENT: dict[str, dict[Any, int]] = {
    "text": {"You are a parrot.": 1, "Say hello.": 1, "The weather in a city.": 1},
    "conversation": {"How is the weather?": 1, "Let me see.": 1, "18 degrees": 1, "no such city": 1, FOREIGN: 0},
    "picture": {"What is that?": 1, b64encode(PICTURE).decode(): 1},
    "output": {"capital of France": 1, "A city.": 1},
    "settings": {0.25: 1, 77: 1, "passed on": 1},
}


def _count(body: Any, wanted: Any) -> int:
    """The number of values in a body that contain a text, or equal a number."""
    if isinstance(body, dict):
        return sum(_count(item, wanted) for item in body.values())
    if isinstance(body, list):
        return sum(_count(item, wanted) for item in body)
    if isinstance(body, str) and isinstance(wanted, str):
        return int(bool(wanted) and wanted in body)
    return int(type(body) is type(wanted) and body == wanted)
