"""Models that need no network: one follows a script, one calls a function."""

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
"""The maximum number of pieces in which the arguments of a call are streamed."""


class UnexpectedCall(ModelError):
    """A scripted model was called more often than its script has replies.

    Add a reply to the script, or find out why the turn continues.
    """


class Scripted(msgspec.Struct, frozen=True):
    """One reply of a script, made by `says`, `calls` or `breaks`, and how it is streamed.

    `delay` is the wait before the first piece, `chunk_delay` the wait between two. With an `error` there is no reply:
    the error is raised after the first `pieces`, or after all of them.
    """

    reply: ModelReply
    chunks: tuple[str, ...] = ()
    delay: float = 0.0
    chunk_delay: float = 0.0
    error: Exception | None = None
    pieces: int | None = None


Scriptable: TypeAlias = Scripted | ModelReply | Message | str | Exception
"""Everything that a script may contain."""


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
    """A reply with text. `chunks` is the text as it is streamed, and can replace `text`."""
    joined = "".join(chunks or ())
    if text and chunks and text != joined:
        raise ValueError(f"the chunks make {joined!r}, but the text is {text!r}")
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
    """A reply that calls one tool or several: `calls("add", a=1)` or `calls([("add", {"a": 1}), ("get", {})])`.

    Arguments in a string are used as they are, so that a model can write broken JSON.
    """
    wanted = [(tool, arguments)] if isinstance(tool, str) else list(tool)
    parts: list[Part] = [TextPart(_text)] if _text else []
    for position, (name, value) in enumerate(wanted):
        json = value if isinstance(value, str) else msgspec.json.encode(value).decode()
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
    """A reply that breaks off. Streamed, it yields `after` and then raises; otherwise it only raises.

    `after` may be a whole reply made by `says` or `calls`; then its first `pieces` are streamed before the error.
    """
    if isinstance(after, str):
        after = says(after, chunks=chunks, delay=delay, chunk_delay=chunk_delay)
    elif chunks is not None or delay or chunk_delay:
        raise ValueError("set chunks and delays on the reply itself: says(…, chunks=…, delay=…)")
    return replace(after, error=error or ModelError("the reply broke off", retryable=True), pieces=pieces)


def _reply_of(item: Scripted | ModelReply | Message | str) -> ModelReply:
    return item.reply if isinstance(item, Scripted) else as_reply(item)


def _spent(text: str) -> Usage:
    return Usage(input=10, output=max(1, len(text) // 4), requests=1)


class ScriptedModel:
    """A model that returns the replies of its script in order, whole or streamed.

    Make replies with `says`, `calls` or `breaks`. A plain text, a message or a `ModelReply` is a reply, too; an
    exception is raised. `requests` has the requests it received, and `streamed` counts the streamed ones. A call beyond
    the script raises `UnexpectedCall`. `assert_done` fails if replies are left or if the model was called too often,
    even if the agent handled the error; `with ScriptedModel(…) as model:` checks this at the end of the block. Delays
    use `clock`, if there is one.
    """

    def __init__(self, *replies: Scriptable, name: str = "scripted", clock: Clock | None = None) -> None:
        self.name = name
        self.clock = clock
        self.script = list(replies)
        self.requests: list[ModelRequest] = []
        self.unexpected: list[ModelRequest] = []
        self.streamed = 0

    @property
    def knows_cost(self) -> bool:
        """Whether all replies of the script have a cost, in their `usage`."""
        return all(_reply_of(one).usage.cost is not None for one in self.script if not isinstance(one, Exception))

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The next reply of the script."""
        return await play_whole(self._next(request), self.clock)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """The next reply of the script: its pieces, then the whole reply."""
        self.streamed += 1
        async with aclosing(play_stream(self._next(request), self.clock)) as pieces:
            async for piece in pieces:
                yield piece

    def _next(self, request: ModelRequest) -> Scriptable:
        position = len(self.requests) - len(self.unexpected)
        self.requests.append(request)
        if position >= len(self.script):
            self.unexpected.append(request)
            times, replies = len(self.requests), len(self.script)
            raise UnexpectedCall(f"model {self.name!r} was called {times} times, but its script has {replies} replies")
        return self.script[position]

    def assert_done(self) -> None:
        """Fail unless the whole script was used, and the model was not called more often."""
        calls = f"model {self.name!r} was called {len(self.requests)} times"
        left = len(self.script) - (len(self.requests) - len(self.unexpected))
        assert not self.unexpected, f"{calls}, but its script has {len(self.script)} replies"
        assert not left, f"{calls}; {left} replies are left"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.assert_done()


class FunctionModel:
    """A model whose replies come from a function of the request, plain or async.

    The function returns anything that a script may contain. An async generator function yields the pieces of a reply,
    then the reply. The replies need a cost in their `usage` if the agent has a budget in USD.
    """

    knows_cost = True

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
        """The reply of the function."""
        answer: Any = self.fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, AsyncIterator):
            return await play_whole(answer, self.clock)
        reply = None
        async for piece in self._checked(answer):
            reply = piece
        assert isinstance(reply, ModelReply)
        return reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """The reply of the function: its pieces, then the whole reply."""
        answer: Any = self.fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        pieces = self._checked(answer) if isinstance(answer, AsyncIterator) else play_stream(answer, self.clock)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def _checked(self, pieces: AsyncIterator[Any]) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Check that a generator yields pieces, then one reply."""
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
            raise BadReply(f"the function of model {self.name!r} yielded no reply; the last item must be a reply")


# ---------------------------------------------------------------- playing a scripted reply


async def play_whole(item: Scriptable, clock: Clock | None) -> ModelReply:
    if isinstance(item, Exception):
        raise item
    if not isinstance(item, Scripted):
        return as_reply(item)
    if wait := item.delay + item.chunk_delay * max(0, len(list(_pieces(item))) - 1 if item.chunk_delay else 0):
        await _sleep(wait, clock)
    if item.error is not None:
        raise item.error
    return item.reply


async def play_stream(item: Scriptable, clock: Clock | None) -> AsyncGenerator[AnyDelta | ModelReply, None]:
    if isinstance(item, Exception):
        raise item
    if not isinstance(item, Scripted):
        item = Scripted(as_reply(item))
    if item.delay:
        await _sleep(item.delay, clock)
    for number, piece in enumerate(_pieces(item)):
        if number and item.chunk_delay:
            await _sleep(item.chunk_delay, clock)
        yield piece
    if item.error is not None:
        raise item.error
    yield item.reply


async def _sleep(seconds: float, clock: Clock | None) -> None:
    await (asyncio.sleep(seconds) if clock is None else clock.sleep(seconds))


def _pieces(item: Scripted) -> Iterator[AnyDelta]:
    """The pieces of a reply; `chunks` apply to its first text."""
    return islice(_all_pieces(item), item.pieces)


def _all_pieces(item: Scripted) -> Iterator[AnyDelta]:
    chunks = item.chunks
    for place, part in enumerate(item.reply.message.parts):
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
