"""Transformers: what changes a model's words on their way, and the reply that is built from their output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from windlass.errors import HookError, RegistrationError
from windlass.messages import Message, ModelReply, Part, TextPart, ThinkingPart, ToolCallPart
from windlass.types import Transformer

Channel = Literal["text", "thinking", "arguments"]
CHANNELS: tuple[str, ...] = ("text", "thinking", "arguments")


class Transform:
    """A registered transformer: the class, its channels and its place in the chain."""

    __slots__ = ("band", "channels", "factory", "inherit", "name", "priority")

    def __init__(
        self,
        factory: Callable[[], Transformer],
        channels: Sequence[Channel],
        name: str | None,
        priority: int,
        band: Literal["early", "normal", "guard"],
        inherit: bool,
    ) -> None:
        self.factory = factory
        self.channels = tuple(channels)
        self.name: str = name or str(getattr(factory, "__name__", type(factory).__name__))
        self.priority = priority
        self.band = band
        self.inherit = inherit or band == "guard"
        if unknown := [c for c in self.channels if c not in CHANNELS]:
            raise RegistrationError(
                f"transform {self.name!r} names unknown channels {unknown}; known: {CHANNELS}", hook=self.name
            )


def transform_reply(transforms: Sequence[Transform], reply: ModelReply) -> ModelReply:
    """The reply as the transformers leave it. A signed part that would change is dropped with its signature."""
    parts: list[Part] = []
    changed = False
    for part in reply.message.parts:
        new = _transform_part(transforms, part)
        changed = changed or new is not part
        if new is not None:
            parts.append(new)
    if not changed:
        return reply
    message: Message = reply.message.replace(parts=tuple(parts))
    return reply.replace(message=message)


def _transform_part(transforms: Sequence[Transform], part: Part) -> Part | None:
    if type(part) is TextPart:
        text = _run(transforms, "text", part.text)
        return part if text == part.text else part.replace(text=text) if text else None
    if type(part) is ThinkingPart:
        text = _run(transforms, "thinking", part.text)
        if text == part.text:
            return part
        return None if part.signature or not text else part.replace(text=text)
    if type(part) is ToolCallPart:
        text = _run(transforms, "arguments", part.json)
        return part if text == part.json else part.replace(json=text)
    return part


def _run(transforms: Sequence[Transform], channel: str, text: str) -> str:
    """A whole text through the chain, each link fed by the one before and flushed after it."""
    chunks = [text]
    for transform in transforms:
        if channel not in transform.channels:
            continue
        try:
            link: Any = transform.factory()
            out = [piece for chunk in chunks for piece in link.feed(chunk)]
            out.extend(link.flush())
            if wrong := [type(piece).__name__ for piece in out if not isinstance(piece, str)]:
                raise TypeError(f"it gave {wrong[0]}, not str")
        except Exception as error:
            raise HookError(f"transform {transform.name!r} failed: {error}", hook=transform.name) from error
        chunks = out
    return "".join(chunks)
