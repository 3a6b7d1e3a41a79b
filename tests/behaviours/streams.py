"""Transformers, and ways to read a stream, as several tests need them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.checks import numbers, only_this_task

from windlass import (
    Agent,
    ModelCall,
    Retracted,
    TextDelta,
    TextPart,
    tool,
)
from windlass.deltas import AnyDelta

SECRET = "marmalade"


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Upper:
    """A transformer that shouts."""

    def feed(self, text: str) -> Iterable[str]:
        yield text.upper()

    def flush(self) -> Iterable[str]:
        return ()


class Redactor:
    """Replaces e-mail addresses; holds back the word that may still become one."""

    pattern = re.compile(r"\S+@\S+")

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Iterable[str]:
        self.held += text
        head, space, tail = self.held.rpartition(" ")
        if space:
            self.held = tail
            yield self.pattern.sub("[e-mail]", head) + space

    def flush(self) -> Iterable[str]:
        yield self.pattern.sub("[e-mail]", self.held)


async def told(agent: Agent, message: str | None = "go", **options: Any) -> tuple[list[Any], Any]:
    """All events of a stream, and the result. The numbering has no gaps, and what is shown at the end is the text."""
    stream = agent.stream(message, **options)
    events = [event async for event in stream]
    assert numbers(events) == list(range(1, len(events) + 1))
    assert await only_this_task()
    return events, stream.result


def texts(events: Iterable[Any]) -> list[str]:
    """What a stream showed and took back, in order."""
    return [
        "<retracted>" if isinstance(event, Retracted) else event.text
        for event in events
        if isinstance(event, TextDelta | Retracted)
    ]


def mentions(event: Any, word: str) -> bool:
    """Whether a word is anywhere in an event."""
    return word in repr(event) or word in repr(msgspec.to_builtins(event, enc_hook=repr))


def deltas(events: Iterable[Any]) -> list[AnyDelta]:
    return [event for event in events if isinstance(event, AnyDelta)]


def of(events: Iterable[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def caching(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def cache(request: Any, call_next: Any) -> Any:
        return "from the cache"


def editing(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def edit(request: Any, call_next: Any) -> Any:
        reply = await call_next(request)
        return reply.replace(message=reply.message.replace(parts=(TextPart(reply.text + " (edited)"),)))


def falling_back(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def fall_back(request: Any, call_next: Any) -> Any:
        await call_next(request)
        return await call_next(request.replace(model="other"))


def replaying(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def first_of_two(request: Any, call_next: Any) -> Any:
        first = await call_next(request)
        await call_next(request)
        return first


def hedging(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def hedge(request: Any, call_next: Any) -> Any:
        return (await asyncio.gather(call_next(request), call_next(request)))[0]
