"""Models that need no network: one that follows a script, one that asks a function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ModelError
from windlass.messages import (
    Message,
    ModelReply,
    ModelRequest,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
    as_reply,
)
from windlass.protocols import Clock

ARGUMENT_PIECES = 3
"""Into how many pieces, at most, the arguments of a call are cut when they are streamed."""


class UnexpectedCall(ModelError):
    """A scripted model was asked once more than its script provides.

    Add a reply to the script, or find out why the turn goes on.
    """


class Scripted(msgspec.Struct, frozen=True):
    """One reply of a script, made by `says`, `calls` or `breaks`: how it is streamed, and when.

    `delay` is waited before the first piece, `chunk_delay` between two. With an `error` there is no reply: it is raised
    after the first `pieces` of what would have been said, or after all of them.
    """

    reply: ModelReply
    chunks: tuple[str, ...] = ()
    delay: float = 0.0
    chunk_delay: float = 0.0
    error: Exception | None = None
    pieces: int | None = None


Scriptable: TypeAlias = Scripted | ModelReply | Message | str | Exception
"""What a script may hold."""


def says(
    text: str = "",
    *,
    chunks: Sequence[str] | None = None,
    thinking: str | None = None,
    signature: str | None = None,
    delay: float = 0.0,
    chunk_delay: float = 0.0,
    usage: Usage | None = None,
    finish: Any = "stop",
) -> Scripted:
    """A reply with text; `chunks` says how it is streamed, and gives the text if there is no other."""
    joined = "".join(chunks or ())
    if text and chunks and text != joined:
        raise ValueError(f"the chunks make {joined!r}, which is not the text {text!r}")
    text = text or joined
    parts: list[Part] = [ThinkingPart(thinking, signature)] if thinking is not None else []
    parts += [TextPart(text)] if text else []
    reply = ModelReply(Message("assistant", tuple(parts)), usage or _spent(text), finish)
    return Scripted(reply, tuple(chunks or ()), delay, chunk_delay)


def calls(
    tool: str | Sequence[tuple[str, dict[str, Any] | str]],
    /,
    *,
    _text: str = "",
    _usage: Usage | None = None,
    _delay: float = 0.0,
    _chunk_delay: float = 0.0,
    **arguments: Any,
) -> Scripted:
    """A reply that calls a tool, or several: `calls("add", a=1)` or `calls([("add", {"a": 1}), ("get", {})])`.

    Arguments given as a text are sent as they are: that is how a model writes broken JSON.
    """
    wanted = [(tool, arguments)] if isinstance(tool, str) else list(tool)
    parts: list[Part] = [TextPart(_text)] if _text else []
    for position, (name, given) in enumerate(wanted):
        json = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        parts.append(ToolCallPart(name, json, vendor_id=f"call_{position + 1}"))
    reply = ModelReply(Message("assistant", tuple(parts)), _usage or _spent(_text), "tool_calls")
    return Scripted(reply, (), _delay, _chunk_delay)


def breaks(
    after: str | Scripted = "",
    *,
    error: Exception | None = None,
    chunks: Sequence[str] | None = None,
    pieces: int | None = None,
    delay: float = 0.0,
    chunk_delay: float = 0.0,
) -> Scripted:
    """A reply that breaks off: streamed, it says what comes `after` and then raises; else it only raises.

    `after` may be a whole reply made by `says` or `calls`, of which the first `pieces` come before the end.
    """
    if isinstance(after, str):
        after = says(after, chunks=chunks, delay=delay, chunk_delay=chunk_delay)
    elif chunks is not None or delay or chunk_delay:
        raise ValueError("the chunks and delays of a reply are its own: says(…, chunks=…, delay=…)")
    return replace(after, error=error or ModelError("the reply broke off", retryable=True), pieces=pieces)


def _spent(text: str) -> Usage:
    return Usage(input=10, output=max(1, len(text) // 4), requests=1)


class ScriptedModel:
    """A model that gives the replies of its script, one after the other, whole or streamed.

    A reply is made by `says`, `calls` or `breaks`; a plain text, a message and a `ModelReply` do too, an exception is
    raised. It keeps the `requests` it got, and counts in `streamed` how many of them were to be streamed. Asked too
    often it raises `UnexpectedCall`. `assert_done` fails if replies are left or if it was asked too often, whatever the
    agent made of the error; `with ScriptedModel(…) as model:` does so at the end of the block. Delays are slept on
    `clock`, if there is one.
    """

    def __init__(self, *replies: Scriptable, name: str = "scripted", clock: Clock | None = None) -> None:
        self.name = name
        self.clock = clock
        self.script = list(replies)
        self.requests: list[ModelRequest] = []
        self.unexpected: list[ModelRequest] = []
        self.streamed = 0

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The next reply of the script."""
        return await _whole(self._next(request), self.clock)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """The next reply of the script, piece by piece, and last as a whole."""
        self.streamed += 1
        async with aclosing(_streamed(self._next(request), self.clock)) as pieces:
            async for piece in pieces:
                yield piece

    def _next(self, request: ModelRequest) -> Scriptable:
        position = len(self.requests) - len(self.unexpected)
        self.requests.append(request)
        if position >= len(self.script):
            self.unexpected.append(request)
            raise UnexpectedCall(
                f"model {self.name!r} was asked {len(self.requests)} times, its script has {len(self.script)} replies"
            )
        return self.script[position]

    def assert_done(self) -> None:
        """Fail unless the whole script was used, and nothing more was asked for."""
        asked = f"model {self.name!r} was asked {len(self.requests)} times"
        left = len(self.script) - (len(self.requests) - len(self.unexpected))
        assert not self.unexpected, f"{asked}, its script has {len(self.script)} replies"
        assert not left, f"{asked}; {left} replies are left"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.assert_done()


class FunctionModel:
    """A model whose replies come from a function of the request, plain or async.

    It returns whatever a script may hold. An async generator function yields the pieces of a reply and last the reply.
    """

    def __init__(
        self,
        fn: Callable[[ModelRequest], Scriptable | Awaitable[Scriptable] | AsyncIterator[Any]],
        *,
        name: str = "function",
        clock: Clock | None = None,
    ) -> None:
        self.fn = fn
        self.name = name
        self.clock = clock

    async def reply(self, request: ModelRequest) -> ModelReply:
        """What the function says."""
        answer: Any = self.fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, AsyncIterator):
            return await _whole(answer, self.clock)
        reply = None
        async for piece in self._checked(answer):
            reply = piece
        assert isinstance(reply, ModelReply)
        return reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """What the function says, piece by piece, and last as a whole."""
        answer: Any = self.fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        pieces = self._checked(answer) if isinstance(answer, AsyncIterator) else _streamed(answer, self.clock)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def _checked(self, pieces: AsyncIterator[Any]) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """What a generator yields: pieces, then one reply."""
        reply: ModelReply | None = None
        try:
            async for piece in pieces:
                if reply is not None:
                    raise BadReply(f"the function of model {self.name!r} yielded something after the reply")
                if not isinstance(piece, str | AnyDelta):
                    piece = reply = piece.reply if isinstance(piece, Scripted) else as_reply(piece)
                yield piece
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        if reply is None:
            raise BadReply(f"the function of model {self.name!r} yielded no reply; the last thing must be one")


# ---------------------------------------------------------------- how a scripted reply is given


async def _whole(said: Scriptable, clock: Clock | None) -> ModelReply:
    if isinstance(said, Exception):
        raise said
    if not isinstance(said, Scripted):
        return as_reply(said)
    if wait := said.delay + said.chunk_delay * max(0, len(list(_pieces(said))) - 1 if said.chunk_delay else 0):
        await _sleep(wait, clock)
    if said.error is not None:
        raise said.error
    return said.reply


async def _streamed(said: Scriptable, clock: Clock | None) -> AsyncGenerator[AnyDelta | ModelReply, None]:
    if isinstance(said, Exception):
        raise said
    if not isinstance(said, Scripted):
        said = Scripted(as_reply(said))
    if said.delay:
        await _sleep(said.delay, clock)
    for number, piece in enumerate(_pieces(said)):
        if number and said.chunk_delay:
            await _sleep(said.chunk_delay, clock)
        yield piece
    if said.error is not None:
        raise said.error
    yield said.reply


async def _sleep(seconds: float, clock: Clock | None) -> None:
    await (asyncio.sleep(seconds) if clock is None else clock.sleep(seconds))


def _pieces(said: Scripted) -> Iterator[AnyDelta]:
    """The pieces of a reply: the chunks are those of its first text."""
    return islice(_all_pieces(said), said.pieces)


def _all_pieces(said: Scripted) -> Iterator[AnyDelta]:
    chunks = said.chunks
    for place, part in enumerate(said.reply.message.parts):
        if isinstance(part, ThinkingPart):
            yield ThinkingDelta(part.text, place)
        elif isinstance(part, TextPart):
            for chunk in chunks or (part.text,):
                yield TextDelta(chunk, place)
            chunks = ()
        elif isinstance(part, ToolCallPart):
            for number, fragment in enumerate(_cut(part.json)):
                yield ArgumentsDelta(fragment, place, name="" if number else part.name)


def _cut(json: str) -> list[str]:
    size = -(-len(json) // ARGUMENT_PIECES)
    return [json[start : start + size] for start in range(0, len(json), size)] if json else [""]
