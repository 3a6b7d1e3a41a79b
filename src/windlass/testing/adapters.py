"""What every adapter of a model must keep to, as checks that a third party can run: `await check_model(make)`."""

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
    ImagePart,
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

_TOLD: dict[type, type] = {TextPart: TextDelta, ThinkingPart: ThinkingDelta, ToolCallPart: ArgumentsDelta}


class ModelReport(Struct, frozen=True):
    """What came of the scenes of one adapter: those it passed, why it failed others, and which were not played."""

    passed: tuple[str, ...]
    failed: dict[str, str]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"the model fails {len(self.failed)} of {len(self.passed) + len(self.failed)} scenes"]
        lines += [f"- {scene}: {why}" for scene, why in self.failed.items()]
        return "\n".join([*lines, *([f"not played: {', '.join(self.skipped)}"] if self.skipped else [])])


class ModelFailed(AssertionError):
    """An adapter does not keep to what every adapter must.

    `report.failed` says for each scene that failed why it did.
    """

    def __init__(self, message: str, *, report: ModelReport) -> None:
        super().__init__(message)
        self.report = report


async def check_model(make: MakeModel, *, timeout: float = 30.0) -> ModelReport:
    """Check an adapter; raise `ModelFailed`, an AssertionError that lists all it fails.

    `make`, plain or async, is called for each `Scene` of `SCENES`, whole and streamed, and returns a model whose vendor
    says what the scene wants; with a `Cassette` beside it, what was sent is checked too, and that connections are
    closed. For None the scene is skipped, and the report says so; only "text" may not be. A model that has no `stream`
    is not asked to stream.

    - *replies*: the parts, the finish and the usage are those of the scene, and what is counted can be
    - *streams*: pieces, and last the whole reply; the pieces of a part, joined, are that part; both ways say the same
    - *errors*: those of the vendor come out as errors of `windlass.errors`, say whether trying again may help, and what
      the vendor said; a reply that breaks off is one of them
    - *closing*: a stream that is closed, or whose reader is cancelled, lets go of the connection
    - *requests*: they are not changed; equal ones are sent equally; what is unknown goes back to its vendor unharmed,
      what another vendor said does not; requests at once are not mixed up
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
        failed["text"] = "this scene is the least that a model must play"
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
    """A scene with the model that plays it."""

    def __init__(self, scene: Scene, model: Any, cassette: Cassette | None, timeout: float) -> None:
        self.scene = scene
        self.model = model
        self.cassette = cassette
        self.timeout = timeout

    async def ask(self, request: ModelRequest) -> ModelReply:
        """Ask in the way of the scene, and check what every reply must be."""
        before = repr(request)
        async with asyncio.timeout(self.timeout):
            reply = await (self._streamed(request) if self.scene.streamed else self._whole(request))
        assert repr(request) == before, "it has changed the request"
        _check_reply(reply)
        return reply

    async def _whole(self, request: ModelRequest) -> ModelReply:
        reply = await self.model.reply(request)
        assert type(reply) is ModelReply, f"it replies with a {type(reply).__name__}, not a ModelReply"
        return reply

    async def _streamed(self, request: ModelRequest) -> ModelReply:
        pieces: list[Any] = [piece async for piece in self.model.stream(request)]
        *deltas, reply = pieces or [None]
        assert type(reply) is ModelReply, f"the stream ends with {reply!r}, not with a ModelReply"
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
        assert stage.cassette.open == 0, "a response was read and not closed"


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
        raise AssertionError(f"it raises {kind} ({error}), which is no ModelError: translate it") from error
    else:
        raise AssertionError(f"it replies with {reply.text!r}; {scene.error.__name__} is to be raised")  # type: ignore[union-attr]


def _check_error(scene: Scene, error: ModelError) -> None:
    assert isinstance(error, scene.error or ModelError), (
        f"it raises {type(error).__name__} ({error}), which is no {scene.error.__name__}"  # type: ignore[union-attr]
    )
    kind = type(error).__name__
    assert scene.retryable in (None, error.retryable), f"its {kind} has retryable={error.retryable}"
    assert scene.message in str(error), f"its {kind} says {str(error)!r}; the vendor said {scene.message!r}"
    assert str(error), f"its {kind} says nothing"
    expected = scene.retry_after
    assert expected is None or error.retry_after == expected, f"it has retry_after={error.retry_after}, not {expected}"


async def _goes_back(stage: _Stage) -> None:
    """What a vendor said is sent back to it with the next request, signed and unknown things unharmed."""
    scene = stage.scene
    request = scene.ask()
    first = await stage.ask(request)
    _compare(first, scene.replies[0])
    history = [*request.messages, first.message.replace(id="s/1"), user("And?")]
    _compare(await stage.ask(request.replace(messages=history)), scene.replies[1])
    signed = any(isinstance(part, ThinkingPart) and part.signature for part in first.message.parts)
    kept = {"thinking": SIGNATURE if signed else "", "unknown": UNKNOWN}[scene.name]
    for body in stage.bodies[1:]:
        assert _count(body, kept) or not kept, f"{kept!r} came from the vendor, and is not sent back to it"
        assert not stage.bodies[:1] or not _count(stage.bodies[0], kept) or not kept


async def _at_once(stage: _Stage) -> None:
    replies = await asyncio.gather(*[stage.ask(asking(f"Say {word}.")) for word in ("one", "two")])
    texts = sorted(reply.text for reply in replies)
    assert texts == ["One.", "Two."], f"two requests at once are answered by {texts}"
    bodies = stage.bodies
    assert not bodies or sorted(_count(body, "Say one.") for body in bodies) == [0, 1], (
        "what is asked at once is mixed up"
    )


async def _pauses(stage: _Stage) -> None:
    """A stream can be closed where it waits, by its reader or by a cancellation."""
    async with asyncio.timeout(stage.timeout):
        stream = stage.model.stream(stage.scene.ask())
        piece = await anext(stream)
        assert not isinstance(piece, ModelReply), "a reply comes before it is complete"
        await stream.aclose()
        _check_closed(stage, "a stream was closed")
        stream = stage.model.stream(stage.scene.ask())
        await anext(stream)
        reading = asyncio.ensure_future(_rest(stream))
        for _ in range(50):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled(), f"its reader was cancelled; what came out is {reading!r}"
        await stream.aclose()
        _check_closed(stage, "the reader of a stream was cancelled")


async def _rest(stream: Any) -> None:
    async for _ in stream:
        pass


def _check_closed(stage: _Stage, what: str) -> None:
    assert stage.cassette is None or stage.cassette.open == 0, f"{what}, and the connection is still open"


_PLAYS: dict[str, Callable[[_Stage], Awaitable[None]]] = {
    "thinking": _goes_back,
    "unknown": _goes_back,
    "at once": _at_once,
    "a pause": _pauses,
}


# ---------------------------------------------------------------- what a reply must be


def _check_reply(reply: ModelReply) -> None:
    message, usage = reply.message, reply.usage
    assert message.role == "assistant", f"the reply is of role {message.role!r}"
    assert reply.finish in get_args(Finish), f"finish={reply.finish!r} is none of {', '.join(get_args(Finish))}"
    for part in message.parts:
        assert type(part) is not ToolResultPart, "a reply holds no results"
        assert type(part) is not ToolCallPart or part.name, "a call has no name"
        assert type(part) is not ToolCallPart or not part.id, (
            f"a call has the id {part.id!r}; the vendor's is vendor_id"
        )
        assert type(part) is not ThinkingPart or part.vendor, "thinking does not say its vendor: others will get it"
        assert type(part) is not OpaquePart or part.vendor, "an opaque part does not say its vendor"
    counts = (usage.input, usage.output, usage.cached, usage.cache_written, usage.reasoning)
    assert min(counts) >= 0, f"there are negative counts in {usage}"
    assert usage.requests == 1, f"one reply is {usage.requests} requests"
    assert usage.cached + usage.cache_written <= usage.input, f"`input` includes what is cached; not so in {usage}"
    assert usage.reasoning <= usage.output, f"`output` includes reasoning; not so in {usage}"


def _check_pieces(deltas: list[Any], reply: ModelReply) -> None:
    parts = reply.message.parts
    joined: dict[int, str] = {}
    for delta in deltas:
        assert isinstance(delta, AnyDelta), f"the stream has {delta!r} before its end, which is no delta"
        assert 0 <= delta.part < len(parts), f"a piece is of part {delta.part}; the reply has {len(parts)} parts"
        part = parts[delta.part]
        assert _TOLD.get(type(part)) is type(delta), (
            f"a {type(delta).__name__} is of part {delta.part}, which is a {type(part).__name__}"
        )
        if isinstance(delta, ArgumentsDelta) and isinstance(part, ToolCallPart):
            assert delta.name in ("", part.name), f"a piece is of a call of {delta.name!r}, the part of {part.name!r}"
        joined[delta.part] = joined.get(delta.part, "") + delta.text
    for place, part in enumerate(parts):
        if type(part) in _TOLD:
            whole = _text(part)
            assert joined.get(place, "") == whole, (
                f"the pieces of part {place} make {joined.get(place, '')!r}, the reply has {whole!r}"
            )


def _text(part: Part) -> str:
    return part.json if isinstance(part, ToolCallPart) else getattr(part, "text", "")


def _compare(reply: ModelReply, expected: ModelReply) -> None:
    found, wanted = _shown(reply.message), _shown(expected.message)
    assert found == wanted, f"the reply is {found}; the vendor said {wanted}"
    assert reply.finish == expected.finish, f"finish={reply.finish!r}; the vendor's means {expected.finish!r}"
    for name in ("input", "output", "cached"):
        told, spent = getattr(reply.usage, name), getattr(expected.usage, name)
        assert told == spent, f"usage.{name} is {told}, the vendor counted {spent}"
    assert reply.usage.reasoning in (0, expected.usage.reasoning), f"usage.reasoning is {reply.usage.reasoning}"


def _shown(message: Message) -> list[tuple[Any, ...]]:
    """The parts, as far as all vendors have them: what is unknown first, neighbours of one kind joined, arguments as
    what they mean."""
    unknown = any(isinstance(part, OpaquePart) and UNKNOWN in str(part.data) for part in message.parts)
    shown: list[tuple[Any, ...]] = [("unknown",)] if unknown else []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            shown.append(("call", part.name, _plain(part.json)))
        elif isinstance(part, ImagePart):
            shown.append(("image",))
        elif text := _text(part):
            kind = "thinking" if isinstance(part, ThinkingPart) else "text"
            before = shown.pop()[1] if shown and shown[-1][0] == kind else ""
            shown.append((kind, before + text))
    return shown


def _plain(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


# ---------------------------------------------------------------- what was sent


def _check_bodies(stage: _Stage) -> None:
    bodies = stage.bodies
    if len(bodies) > 1:
        assert bodies[0] == bodies[1], "the same request, sent again, is another one on the wire"
    for body in bodies:
        for text, times in _SENT.get(stage.scene.name, {}).items():
            found = _count(body, text)
            assert found == times, f"{text!r} is {found} times in what is sent; expected: {times}"


_SENT: dict[str, dict[Any, int]] = {
    "text": {"You are a parrot.": 1, "Say hello.": 1, "The weather in a city.": 1},
    "conversation": {"How is the weather?": 1, "Let me see.": 1, "18 degrees": 1, "no such city": 1, FOREIGN: 0},
    "picture": {"What is that?": 1, b64encode(PICTURE).decode(): 1},
    "output": {"capital of France": 1, "A city.": 1},
    "settings": {0.25: 1, 77: 1, "passed on": 1},
}


def _count(body: Any, wanted: Any) -> int:
    """In how many values of a body a text is, or a number."""
    if isinstance(body, dict):
        return sum(_count(item, wanted) for item in body.values())
    if isinstance(body, list):
        return sum(_count(item, wanted) for item in body)
    if isinstance(body, str) and isinstance(wanted, str):
        return int(bool(wanted) and wanted in body)
    return int(type(body) is type(wanted) and body == wanted)
