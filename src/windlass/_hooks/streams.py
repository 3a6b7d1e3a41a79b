"""Transformers: they change a model's reply as it streams; the reply is their output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Literal

from windlass._options import FLAG, TEXT, WHOLE, Domain, choice, short_repr
from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, HookError, RegistrationError, text_of
from windlass.masking import Mask, Masking
from windlass.messages import (
    Message,
    ModelReply,
    ModelRequest,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from windlass.types import Transformer

from .hooks import problem_of_when

Channel = Literal["text", "thinking", "arguments"]
CHANNELS: tuple[Channel, ...] = ("text", "thinking", "arguments")
LAST = -(2**62)
"""The priority that comes after all others of a band."""


class Transform:
    """A registered transformer: the class, its channels and its place in the chain.

    `when` says whether it changes the reply to a request.
    """

    __slots__ = (
        "above",
        "band",
        "capability",
        "channels",
        "factory",
        "inherit",
        "name",
        "priority",
        "when",
    )

    def __init__(
        self,
        factory: Callable[[], Transformer],
        channels: Sequence[Channel],
        name: str | None,
        priority: int,
        band: Literal["early", "normal", "guard"],
        inherit: bool,
        when: Callable[[ModelRequest], Any] | None = None,
    ) -> None:
        self.factory = factory
        self.when = when
        self.channels = tuple(channels)
        self.name: str = name or str(getattr(factory, "__name__", type(factory).__name__))
        self.priority = priority
        self.band: Literal["early", "normal", "guard"] = band
        self.capability: str | None = None
        self.inherit = inherit or band == "guard"
        self.above = 0
        self._check(channels)

    def inherited(self) -> Transform:
        """A copy for a sub-agent, where it comes after the sub-agent's own."""
        transform = copy(self)
        transform.above += 1
        return transform

    def _check(self, channels: object) -> None:
        """Refuse an object that is not a transformer, and illegal options."""
        for option, domain in _OPTIONS.items():
            if not domain.holds(value := getattr(self, option)):
                text = f"has {option}={short_repr(value)}"
                raise self._error(f"{text}; {option} must be {domain.text}")
        if (problem := problem_of_when(self.when)) is not None:
            raise self._error(problem)
        unknown: list[str] = [name for name in self.channels if name not in CHANNELS]
        if isinstance(channels, str):
            unknown = [channels]
        if unknown:
            known = ", ".join(CHANNELS)
            raise self._error(f"names unknown channels {unknown}; pass a tuple of some of {known}")
        factory: Any = self.factory
        if isinstance(factory, type) and not _is_transformer(factory):
            raise self._error("is a class without the methods feed(text) and flush()")
        if not callable(factory) or not _takes_nothing(factory):
            raise self._error(
                "cannot be made: pass a class with feed(text) and flush(), or a function that returns "
                "such an object. Both are called without arguments, once for each attempt"
            )

    def changes(self, request: ModelRequest) -> bool:
        """Whether it changes the reply to this request. Raises in its name if it cannot tell."""
        try:
            return self.when is None or bool(self.when(request))
        except Exception as error:
            raise _failure(self.name, error) from error

    def _error(self, problem: str) -> RegistrationError:
        return RegistrationError(f"transform {self.name!r} {problem}", hook=self.name)


def masking(mask: Mask) -> Transform:
    """The transformer that removes secrets from what models say, after all others.

    A call gets its arguments whole; its log and stream do not have them.
    """
    channels: tuple[Channel, ...] = ("text", "thinking")
    return Transform(lambda: Masking(mask), channels, "secrets", LAST, "guard", inherit=True)


_OPTIONS: dict[str, Domain] = {
    "name": TEXT,
    "priority": WHOLE,
    "band": choice("early", "normal", "guard"),
    "inherit": FLAG,
}


def _is_transformer(value: object) -> bool:
    return callable(getattr(value, "feed", None)) and callable(getattr(value, "flush", None))


def _takes_nothing(factory: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments. If its parameters are unknown, assume so."""
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return False
    except ValueError:  # its parameters are unknown
        return True
    return True


class Chain:
    """The transformers of one channel of one attempt, each fed by the one before it.

    If a transformer fails, the attempt ends and no text that was held back is released.
    """

    __slots__ = ("_links",)

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._links = [(transform.name, _make(transform)) for transform in transforms]

    def feed(self, text: str) -> Sequence[str]:
        """The output for a chunk."""
        chunks: Sequence[str] = (text,)
        for name, link in self._links:
            chunks = _feed(name, link, chunks)
        return chunks

    def flush(self) -> Sequence[str]:
        """The text that was held back, once the input has ended."""
        chunks: Sequence[str] = ()
        for name, link in self._links:
            chunks = _feed(name, link, chunks, flush=True)
        return chunks


def _make(transform: Transform) -> Transformer:
    try:
        transformer = transform.factory()
        if not _is_transformer(transformer):
            kind = type(transformer).__name__
            raise TypeError(f"it returned {kind}, which has no feed(text) and flush()")
    except Exception as error:
        raise _failure(transform.name, error) from error
    return transformer


def _feed(name: str, link: Transformer, chunks: Sequence[str], flush: bool = False) -> list[str]:
    pieces: list[str] = []
    try:
        for chunk in chunks:
            pieces += link.feed(chunk)
        if flush:
            pieces += link.flush()
        for piece in pieces:
            if type(piece) is not str:
                raise TypeError(f"it returned {type(piece).__name__}, not str")
    except Exception as error:
        raise _failure(name, error) from error
    return pieces


def _failure(name: str, error: Exception) -> HookError:
    return HookError(f"transform {name!r} failed: {text_of(error)}", hook=name)


# ---------------------------------------------------------------- the transformers of an agent

_CHANNEL_OF: dict[type[Any], str] = {
    TextDelta: "text", TextPart: "text",
    ThinkingDelta: "thinking", ThinkingPart: "thinking",
    ArgumentsDelta: "arguments", ToolCallPart: "arguments",
}  # fmt: skip


class Transforms:
    """The transformers of an agent in their order, grouped once by the deltas and parts they
    change. `conditional` says that some of them change only some replies."""

    __slots__ = ("_by_kind", "_transforms", "conditional")

    def __init__(self, transforms: Iterable[Transform]) -> None:
        self._transforms = tuple(transforms)
        self.conditional = any(one.when is not None for one in self._transforms)
        self._by_kind: dict[type[Any], list[Transform]] = {}
        for kind, channel in _CHANNEL_OF.items():
            if links := [one for one in self._transforms if channel in one.channels]:
                self._by_kind[kind] = links

    def __iter__(self) -> Iterator[Transform]:
        return iter(self._transforms)

    def __len__(self) -> int:
        return len(self._transforms)

    def on(self, request: ModelRequest) -> Transforms:
        """Those that change the reply to a request."""
        if not self.conditional:
            return self
        return Transforms([one for one in self._transforms if one.changes(request)])

    def chain(self, kind: type[Any]) -> Chain | None:
        """A new chain for deltas or parts of this kind; None if no transformer changes them."""
        links = self._by_kind.get(kind)
        return None if links is None else Chain(links)

    def change(self, reply: ModelReply) -> bool:
        """Whether the reply has a part for a transformer. If not, none is made."""
        return not self._by_kind.keys().isdisjoint(map(type, reply.message.parts))


# ---------------------------------------------------------------- a reply as it streams


class StreamedPart:
    """One part as it streams: the input from the model, and the output of the transformers."""

    __slots__ = ("chain", "ended", "input", "kind", "name", "output", "part")

    def __init__(self, kind: type[AnyDelta], part: int, name: str, chain: Chain | None) -> None:
        self.kind = kind
        self.part = part
        self.name = name
        self.ended = False
        self.input: list[str] = []
        self.output: list[str] = []
        self.chain = chain

    def feed(self, text: str) -> Sequence[str]:
        """The output for the next piece."""
        self.input.append(text)
        output = (text,) if self.chain is None else self.chain.feed(text)
        self.output += output
        return output


class StreamedReply:
    """A reply as it streams: the model's pieces go in, the output of the transformers comes out.

    All text of an attempt passes through one chain, and so does all reasoning: a transformer may
    see a word begin in one part and end in the next. The arguments of each call have their own
    chain.
    """

    __slots__ = ("_chains", "_transforms", "parts")

    def __init__(self, transforms: Transforms) -> None:
        self._transforms = transforms
        self._chains: dict[type[AnyDelta], Chain | None] = {}
        self.parts: dict[int, StreamedPart] = {}

    def part(self, kind: type[AnyDelta], number: int, name: str = "") -> StreamedPart:
        """The part that the next piece belongs to."""
        part = self.parts.get(number)
        if part is None:
            part = self.parts[number] = StreamedPart(kind, number, name, self._chain(kind))
        if part.ended or part.kind is not kind:
            problem = "has ended" if part.kind is kind else f"is a {part.kind.__name__}"
            raise BadReply(f"the model sent a {kind.__name__} for part {number}, which {problem}")
        return part

    def _chain(self, kind: type[AnyDelta]) -> Chain | None:
        if kind is not ArgumentsDelta and kind in self._chains:
            return self._chains[kind]
        self._chains[kind] = chain = self._transforms.chain(kind)
        return chain

    def flush(self) -> list[tuple[StreamedPart, Sequence[str]]]:
        """End all parts. Text that a chain still held back goes to the last part of that chain."""
        last = {id(part.chain): part for part in self.parts.values() if part.chain is not None}
        flushed: list[tuple[StreamedPart, Sequence[str]]] = []
        for part in last.values():
            assert part.chain is not None
            output = part.chain.flush()
            part.output += output
            flushed.append((part, output))
        for part in self.parts.values():
            part.ended = True
        return flushed

    def rebuild(self, reply: ModelReply) -> ModelReply | None:
        """The reply with the output as its text. None if the pieces do not add up to the reply."""
        parts = reply.message.parts
        if any(number >= len(parts) for number in self.parts):
            return None
        texts: list[str | None] = []
        for number, part in enumerate(parts):
            streamed = self.parts.get(number)
            if streamed is None:
                texts.append(None)
                continue
            is_same_kind = streamed.kind is _DELTA_OF.get(type(part))
            if not is_same_kind or "".join(streamed.input) != _text_in(part):
                return None
            texts.append("".join(streamed.output))
        return _with_texts(reply, texts)

    def partial_parts(self) -> tuple[Part, ...]:
        """The text and reasoning of a reply that was cut short. Incomplete calls are left out."""
        parts: list[Part] = []
        for number in sorted(self.parts):
            part = self.parts[number]
            text = "".join(part.output)
            if text and part.kind is TextDelta:
                parts.append(TextPart(text))
            elif text and part.kind is ThinkingDelta:
                parts.append(ThinkingPart(text))
        return tuple(parts)


_DELTA_OF: dict[type[Any], type[AnyDelta]] = {
    TextPart: TextDelta,
    ThinkingPart: ThinkingDelta,
    ToolCallPart: ArgumentsDelta,
}


def _text_in(part: Part) -> str | None:
    """The text or the JSON of a part, if it has any."""
    if type(part) is ToolCallPart:
        return part.json
    return part.text if type(part) is TextPart or type(part) is ThinkingPart else None


def pieces_of(reply: ModelReply) -> Iterator[tuple[type[AnyDelta], str, int, str]]:
    """A whole reply in one piece per part: its kind, its text, its number and its tool."""
    for number, part in enumerate(reply.message.parts):
        if text := _text_in(part):
            tool = part.name if type(part) is ToolCallPart else ""
            yield _DELTA_OF[type(part)], text, number, tool


# ---------------------------------------------------------------- a reply as a whole


def transform_reply(transforms: Transforms, reply: ModelReply) -> ModelReply:
    """The reply after the transformers."""
    if not transforms.change(reply):
        return reply
    chains: dict[type, Chain | None] = {}
    outputs: dict[int, list[str]] = {}
    last: dict[int, tuple[Chain, int]] = {}
    for number, part in enumerate(reply.message.parts):
        kind, text = type(part), _text_in(part)
        if not text:
            continue
        if kind is ToolCallPart or kind not in chains:
            chains[kind] = transforms.chain(kind)
        if (chain := chains[kind]) is not None:
            outputs[number] = [*chain.feed(text)]
            last[id(chain)] = chain, number
    for chain, number in last.values():
        outputs[number] += chain.flush()
    texts = ["".join(outputs[n]) if n in outputs else None for n in range(len(reply.message.parts))]
    return _with_texts(reply, texts)


def _with_texts(reply: ModelReply, texts: Sequence[str | None]) -> ModelReply:
    """The reply with a new text for each part; None leaves a part unchanged."""
    parts: list[Part] = []
    changed = False
    for part, text in zip(reply.message.parts, texts, strict=True):
        new = _with_text(part, text)
        changed = changed or new is not part
        if new is not None:
            parts.append(new)
    if not changed:
        return reply
    message: Message = reply.message.replace(parts=tuple(parts))
    return reply.replace(message=message)


def _with_text(part: Part, text: str | None) -> Part | None:
    """The part with another text; None if it is now empty, or if it was signed."""
    if text is None or text == _text_in(part):
        return part
    if type(part) is ToolCallPart:
        return part.replace(json=text)
    if not text or (type(part) is ThinkingPart and part.signature):
        return None
    return part.replace(text=text)
