"""Models that need no network: one that follows a script, one that asks a function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from windlass.errors import ModelError
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


class UnexpectedCall(ModelError):
    """A scripted model was asked once more than its script provides."""


class Scripted(msgspec.Struct, frozen=True):
    """One reply of a script, with its chunks and its delay."""

    reply: ModelReply
    chunks: tuple[str, ...] = ()
    delay: float = 0.0


def says(
    text: str = "",
    *,
    chunks: Sequence[str] | None = None,
    thinking: str | None = None,
    signature: str | None = None,
    delay: float = 0.0,
    usage: Usage | None = None,
    finish: Any = "stop",
) -> Scripted:
    """A reply with text; `chunks` says how it is streamed, and gives the text if there is no other."""
    text = text or "".join(chunks or ())
    parts: list[Part] = [ThinkingPart(thinking, signature)] if thinking is not None else []
    parts += [TextPart(text)] if text else []
    reply = ModelReply(Message("assistant", tuple(parts)), usage or _spent(text), finish)
    return Scripted(reply, tuple(chunks or (text,)), delay)


def calls(
    tool: str | Sequence[tuple[str, dict[str, Any] | str]],
    /,
    *,
    _text: str = "",
    _usage: Usage | None = None,
    _delay: float = 0.0,
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
    return Scripted(reply, (_text,) if _text else (), _delay)


def _spent(text: str) -> Usage:
    return Usage(input=10, output=max(1, len(text) // 4), requests=1)


class ScriptedModel:
    """A model that gives the replies of its script, one after the other.

    A reply is made by `says` or `calls`; a plain text, a message and a `ModelReply` do too, an exception is raised. It
    keeps the `requests` it got. Asked too often it raises `UnexpectedCall`; `assert_done` fails if replies are left.
    """

    def __init__(self, *replies: Scripted | ModelReply | Message | str | Exception, name: str = "scripted") -> None:
        self.name = name
        self.script = list(replies)
        self.requests: list[ModelRequest] = []

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The next reply of the script."""
        self.requests.append(request)
        if len(self.requests) > len(self.script):
            raise UnexpectedCall(
                f"model {self.name!r} was asked {len(self.requests)} times, its script has {len(self.script)} replies"
            )
        scripted = self.script[len(self.requests) - 1]
        if isinstance(scripted, Exception):
            raise scripted
        if not isinstance(scripted, Scripted):
            return as_reply(scripted)
        if scripted.delay:
            await asyncio.sleep(scripted.delay)
        return scripted.reply

    def assert_done(self) -> None:
        """Fail unless the whole script was used."""
        left = len(self.script) - len(self.requests)
        assert left <= 0, f"model {self.name!r} was asked {len(self.requests)} times; {left} replies are left"


class FunctionModel:
    """A model whose replies come from a function of the request, plain or async."""

    def __init__(
        self,
        fn: Callable[[ModelRequest], Scripted | ModelReply | Message | str | Awaitable[Any]],
        *,
        name: str = "function",
    ) -> None:
        self.fn = fn
        self.name = name

    async def reply(self, request: ModelRequest) -> ModelReply:
        """What the function says."""
        answer: Any = self.fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer.reply if isinstance(answer, Scripted) else as_reply(answer)
