"""Transformers: what changes a model's words on their way, and the reply that is built from their output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Literal

from windlass._options import FLAG, TEXT, WHOLE, Domain, choice, short_repr
from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, HookError, RegistrationError, text_of
from windlass.messages import Message, ModelReply, Part, TextPart, ThinkingPart, ToolCallPart
from windlass.types import Transformer

Channel = Literal["text", "thinking", "arguments"]
CHANNELS: tuple[Channel, ...] = ("text", "thinking", "arguments")
LAST = -(2**62)
"""The priority of what stands behind all others of its band."""


class Transform:
    """A registered transformer: the class, its channels and its place in the chain."""

    __slots__ = ("above", "band", "capability", "channels", "factory", "inherit", "name", "priority")

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
        self.band: Literal["early", "normal", "guard"] = band
        self.capability: str | None = None
        self.inherit = inherit or band == "guard"
        self.above = 0
        self._check(channels)

    def inherited(self) -> Transform:
        """The same for an agent below, where it stands behind that one's own."""
        made = copy(self)
        made.above += 1
        return made

    def _check(self, channels: object) -> None:
        """Refuse what cannot be a transformer, and options that mean nothing."""
        for option, domain in _OPTIONS.items():
            if not domain.holds(value := getattr(self, option)):
                raise self._wrong(f"has {option}={short_repr(value)}; {option} must be {domain.text}")
        if unknown := [channels] if isinstance(channels, str) else [c for c in self.channels if c not in CHANNELS]:
            raise self._wrong(f"names unknown channels {unknown}; give a tuple of some of {', '.join(CHANNELS)}")
        factory: Any = self.factory
        if isinstance(factory, type) and not _is_transformer(factory):
            raise self._wrong("is a class without the methods feed(text) and flush()")
        if not callable(factory) or not _takes_nothing(factory):
            raise self._wrong(
                "cannot be made: give a class with feed(text) and flush(), or a function that makes such an object. "
                "Both are called without arguments, once for each attempt"
            )

    def _wrong(self, what: str) -> RegistrationError:
        return RegistrationError(f"transform {self.name!r} {what}", hook=self.name)


_OPTIONS: dict[str, Domain] = {
    "name": TEXT,
    "priority": WHOLE,
    "band": choice("early", "normal", "guard"),
    "inherit": FLAG,
}


def _is_transformer(made: object) -> bool:
    return callable(getattr(made, "feed", None)) and callable(getattr(made, "flush", None))


def _takes_nothing(factory: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments, as far as that is known."""
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return False
    except ValueError:  # nobody knows its parameters
        return True
    return True


class Chain:
    """The transformers of one channel of one attempt, each fed by the one before it.

    One that fails ends the attempt: nothing that was held back is let out.
    """

    __slots__ = ("_links",)

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._links = [(transform.name, _made(transform)) for transform in transforms]

    def feed(self, text: str) -> Sequence[str]:
        """What comes out for a chunk."""
        chunks: Sequence[str] = (text,)
        for name, link in self._links:
            chunks = _fed(name, link, chunks)
        return chunks

    def flush(self) -> Sequence[str]:
        """What was held back, when nothing more will come."""
        chunks: Sequence[str] = ()
        for name, link in self._links:
            chunks = _fed(name, link, chunks, True)
        return chunks


def _made(transform: Transform) -> Transformer:
    try:
        made = transform.factory()
        if not _is_transformer(made):
            raise TypeError(f"it made {type(made).__name__}, which has no feed(text) and flush()")
    except Exception as error:
        raise _failed(transform.name, error) from error
    return made


def _fed(name: str, link: Transformer, chunks: Sequence[str], flush: bool = False) -> Sequence[str]:
    made: list[str] = []
    try:
        for chunk in chunks:
            made += link.feed(chunk)
        if flush:
            made += link.flush()
        for piece in made:
            if type(piece) is not str:
                raise TypeError(f"it gave {type(piece).__name__}, not str")
    except Exception as error:
        raise _failed(name, error) from error
    return made


def _failed(name: str, error: Exception) -> HookError:
    return HookError(f"transform {name!r} failed: {text_of(error)}", hook=name)


# ---------------------------------------------------------------- a reply that is being said

_CHANNEL_OF: dict[type[Any], str] = {
    TextDelta: "text", TextPart: "text",
    ThinkingDelta: "thinking", ThinkingPart: "thinking",
    ArgumentsDelta: "arguments", ToolCallPart: "arguments",
}  # fmt: skip


class Saying:
    """One part while it is being said: what the model gave of it, and what the transformers made of that."""

    __slots__ = ("chain", "given", "kind", "made", "name", "over", "part")

    def __init__(self, kind: type[AnyDelta], part: int, name: str, chain: Chain | None) -> None:
        self.kind = kind
        self.part = part
        self.name = name
        self.over = False
        self.given: list[str] = []
        self.made: list[str] = []
        self.chain = chain

    def feed(self, text: str) -> Sequence[str]:
        """What may be said once this piece has come."""
        self.given.append(text)
        made = (text,) if self.chain is None else self.chain.feed(text)
        self.made += made
        return made


class Speech:
    """A reply as it is being said: pieces of it go in, what the transformers make of them comes out, part by part.

    All text of an attempt passes one chain, and so does all reasoning: what one part begins the next may end. The
    arguments of each call have a chain of their own.
    """

    __slots__ = ("_chains", "_transforms", "parts")

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._transforms = transforms
        self._chains: dict[type[AnyDelta], Chain | None] = {}
        self.parts: dict[int, Saying] = {}

    def part(self, kind: type[AnyDelta], part: int, name: str = "") -> Saying:
        """The part of which something is said next."""
        saying = self.parts.get(part)
        if saying is None:
            saying = self.parts[part] = Saying(kind, part, name, self._chain(kind))
        if saying.over or saying.kind is not kind:
            raise BadReply(
                f"the model says a {kind.__name__} of part {part}, which is a {saying.kind.__name__} or over"
            )
        return saying

    def _chain(self, kind: type[AnyDelta]) -> Chain | None:
        if kind is not ArgumentsDelta and kind in self._chains:
            return self._chains[kind]
        mine = [transform for transform in self._transforms if _CHANNEL_OF[kind] in transform.channels]
        self._chains[kind] = chain = Chain(mine) if mine else None
        return chain

    def end(self) -> list[tuple[Saying, Sequence[str]]]:
        """What the transformers held back, once nothing more will come, with the last part that it may belong to."""
        last = {id(saying.chain): saying for saying in self.parts.values() if saying.chain is not None}
        flushed: list[tuple[Saying, Sequence[str]]] = []
        for saying in last.values():
            assert saying.chain is not None
            made = saying.chain.flush()
            saying.made += made
            flushed.append((saying, made))
        for saying in self.parts.values():
            saying.over = True
        return flushed

    def whole(self, reply: ModelReply) -> ModelReply | None:
        """The model's whole reply, made of what was said. None if that is something else: then nothing said counts."""
        parts = reply.message.parts
        if any(at >= len(parts) for at in self.parts):
            return None
        said: list[str | None] = []
        for at, part in enumerate(parts):
            saying = self.parts.get(at)
            if saying is None:
                said.append(None)
            elif saying.kind is not _DELTA_OF.get(type(part)) or "".join(saying.given) != words(part):
                return None
            else:
                said.append("".join(saying.made))
        return _rebuilt(reply, said)

    def partial(self) -> tuple[Part, ...]:
        """What was said, of a reply that will not be whole: text and reasoning. A call half spoken is none."""
        parts: list[Part] = []
        for at in sorted(self.parts):
            saying = self.parts[at]
            text = "".join(saying.made)
            if text and saying.kind is TextDelta:
                parts.append(TextPart(text))
            elif text and saying.kind is ThinkingDelta:
                parts.append(ThinkingPart(text))
        return tuple(parts)


_DELTA_OF: dict[type[Any], type[AnyDelta]] = {
    TextPart: TextDelta,
    ThinkingPart: ThinkingDelta,
    ToolCallPart: ArgumentsDelta,
}


def words(part: Part) -> str | None:
    """What a part says, if it says something."""
    if type(part) is ToolCallPart:
        return part.json
    return part.text if type(part) is TextPart or type(part) is ThinkingPart else None


def pieces_of(reply: ModelReply) -> Iterator[tuple[type[AnyDelta], str, int, str]]:
    """A whole reply in one piece per part: what kind, what is said, which part, and of which tool."""
    for at, part in enumerate(reply.message.parts):
        if text := words(part):
            yield _DELTA_OF[type(part)], text, at, part.name if type(part) is ToolCallPart else ""


# ---------------------------------------------------------------- a reply as a whole


def transform_reply(transforms: Sequence[Transform], reply: ModelReply) -> ModelReply:
    """The reply as the transformers leave it."""
    if not transforms:
        return reply
    speech = Speech(transforms)
    for kind, text, part, name in pieces_of(reply):
        speech.part(kind, part, name).feed(text)
    speech.end()
    said = speech.whole(reply)
    assert said is not None
    return said


def _rebuilt(reply: ModelReply, said: Sequence[str | None]) -> ModelReply:
    """The reply with what was said of its parts; where nothing was, the part is as it is."""
    parts: list[Part] = []
    changed = False
    for part, text in zip(reply.message.parts, said, strict=True):
        new = _changed(part, text)
        changed = changed or new is not part
        if new is not None:
            parts.append(new)
    if not changed:
        return reply
    message: Message = reply.message.replace(parts=tuple(parts))
    return reply.replace(message=message)


def _changed(part: Part, text: str | None) -> Part | None:
    """The part with other words. One that is empty then is dropped, and so is a signed one, with its signature."""
    if text is None or text == words(part):
        return part
    if type(part) is ToolCallPart:
        return part.replace(json=text)
    if not text or (type(part) is ThinkingPart and part.signature):
        return None
    return part.replace(text=text)
