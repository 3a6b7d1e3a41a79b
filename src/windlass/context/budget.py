"""How large a request is, and how large it may be. Every message is counted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from windlass.errors import ConfigError, ContextOverflow
from windlass.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    Message,
    Messages,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    Usage,
    VideoPart,
)
from windlass.protocols import Model

IMAGE = 800
"""The estimated tokens of an image of any size."""

DOCUMENT, AUDIO, VIDEO = 3_000, 1_000, 10_000
"""The estimated tokens of a document, a sound or a video whose size is unknown: it is at an address, or uploaded."""

BYTES_PER_TOKEN = {"document": 20, "audio": 500, "video": 400}
"""About how many bytes of a file make one token. Vendors bill pages and seconds; most files are compressed."""

MESSAGE = 4
"""The tokens of a message in addition to its content."""

LARGE = 500
"""The tokens from which on a request is large enough to learn from it how its vendor counts."""

PLAUSIBLE = (0.3, 4.0)
"""The range of plausible factors: scripted models, or models that report no counts, fall outside and are ignored."""

REMEMBERED = 100_000
"""The number of messages whose size is remembered."""


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: four characters each, or two if the text is not ASCII."""
    return (len(text) >> (2 if text.isascii() else 1)) + 1


def check_tokenizer(count: Callable[[str], int]) -> Callable[[str], int]:
    """Wrap the application's tokenizer so that its errors name it."""
    name = getattr(count, "__qualname__", None) or type(count).__name__

    def counted(text: str) -> int:
        try:
            size = count(text)
        except Exception as error:
            raise ConfigError(f"tokenizer {name!r} failed: {type(error).__name__}: {error}") from error
        if type(size) is not int or size < 0:
            raise ConfigError(f"tokenizer {name!r} returned {size!r}; it must return the number of tokens of a text")
        return size

    return counted


class Counter:
    """Counts tokens with the application's tokenizer, or estimates them."""

    def __init__(self, count: Callable[[str], int] | None = None) -> None:
        self.text = estimate_tokens if count is None else check_tokenizer(count)
        self._sizes: dict[int, tuple[Message, int]] = {}
        self._tools: tuple[tuple[ToolSpec, ...], int] = ((), 0)
        self._system: tuple[str, int] = ("", 0)

    def part(self, part: Part) -> int:
        """The tokens of one part."""
        count = _PARTS.get(type(part))
        return IMAGE if count is None else count(self, part)

    def parts(self, parts: Iterable[Part]) -> int:
        """The tokens of some parts."""
        return sum([self.part(part) for part in parts])

    def message(self, message: Message) -> int:
        """The tokens of a message, counted once."""
        known = self._sizes.get(id(message))
        if known is not None and known[0] is message:
            return known[1]
        size = MESSAGE
        for part in message.parts:
            size += self.part(part)
        if len(self._sizes) >= REMEMBERED:
            self._sizes.clear()
        self._sizes[id(message)] = (message, size)
        return size

    def fixed(self, system: str, tools: tuple[ToolSpec, ...]) -> int:
        """The tokens of the system text and the tools."""
        if system != self._system[0]:
            self._system = (system, self.text(system))
        if tools is not self._tools[0]:
            self._tools = (tools, sum([self.tool(spec) for spec in tools]))
        return self._system[1] + self._tools[1]

    def tool(self, spec: ToolSpec) -> int:
        """The tokens of a tool's description and schema."""
        schema = msgspec.json.encode(spec.schema).decode()
        return MESSAGE + self.text(spec.name) + self.text(spec.description) + self.text(schema)


def _text(counter: Counter, part: TextPart) -> int:
    return counter.text(part.text)


def _thinking(counter: Counter, part: ThinkingPart) -> int:
    return counter.text(part.text) + counter.text(part.signature or "")


def _call(counter: Counter, part: ToolCallPart) -> int:
    return counter.text(part.name) + counter.text(part.json)


def _result(counter: Counter, part: ToolResultPart) -> int:
    size = MESSAGE
    for inner in part.content:
        size += counter.part(inner)
    return size


def _document(counter: Counter, part: DocumentPart) -> int:
    if part.data is not None and part.media_type.startswith("text/"):
        return counter.text(part.data.decode(errors="replace"))
    return _size(part.data, "document", DOCUMENT)


def _audio(counter: Counter, part: AudioPart) -> int:
    return _size(part.data, "audio", AUDIO)


def _video(counter: Counter, part: VideoPart) -> int:
    return _size(part.data, "video", VIDEO)


def _size(data: bytes | None, kind: str, unknown: int) -> int:
    return unknown if data is None else len(data) // BYTES_PER_TOKEN[kind] + 1


def _file(counter: Counter, part: FilePart) -> int:
    sizes = {"image": IMAGE, "audio": AUDIO, "video": VIDEO}
    return sizes.get(part.media_type.partition("/")[0], DOCUMENT)


def _opaque(counter: Counter, part: OpaquePart) -> int:
    return counter.text(msgspec.json.encode(part.data, enc_hook=str).decode())


_PARTS: dict[type, Callable[[Counter, Any], int]] = {
    TextPart: _text,
    ThinkingPart: _thinking,
    ToolCallPart: _call,
    ToolResultPart: _result,
    DocumentPart: _document,
    AudioPart: _audio,
    VideoPart: _video,
    FilePart: _file,
    OpaquePart: _opaque,
}


class Budget:
    """The size limits of requests: the context window of each model, and how tokens are counted.

    `factors` has, for each model, the ratio of the vendor's count to ours, as learnt from replies.
    """

    __slots__ = ("count", "counter", "factors", "windows")

    def __init__(self, windows: Mapping[str, int | None], count: Callable[[str], int] | None = None) -> None:
        self.windows = dict(windows)
        self.count = count
        self.counter = Counter(count)
        self.factors: dict[str, float] = {}

    @property
    def known(self) -> bool:
        """Whether any window is known."""
        return any(window is not None for window in self.windows.values())

    def of(self, model: Model) -> Meter:
        """A meter for requests to a model, which need not be one of the agent's."""
        window = self.windows.get(model.name, getattr(model, "context_window", None))
        own = Budget({model.name: window}, self.count)
        own.factors = self.factors
        return Meter(own)

    def limit(self, model: str, settings: Mapping[str, Any]) -> int | None:
        """The maximum tokens of a request to a model: its window, less the room for the answer."""
        window = self.windows.get(model)
        return None if window is None else max(window - int(settings.get("max_tokens") or 0), 0)


class _Tally:
    """How far a growing list of messages was counted: the history, with or without injected parts."""

    __slots__ = ("counted", "items", "sum")

    def __init__(self, items: list[Message]) -> None:
        self.items = items
        self.counted = self.sum = 0


class Meter:
    """The size of one session's requests as they grow. Each message is counted once."""

    __slots__ = ("_tallies", "budget", "counter")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.counter = Counter(budget.count)
        self._tallies: tuple[_Tally, ...] = ()

    def history(self, messages: Messages) -> int:
        """Our count of some messages. Only new ones are counted."""
        items, length, tail = messages.shared
        message = self.counter.message
        tally = next((known for known in self._tallies if known.items is items and known.counted <= length), None)
        if tally is None:
            tally = _Tally(items)
            self._tallies = (tally, *self._tallies[:1])
        if length > tally.counted:
            for item in islice(items, tally.counted, length):
                tally.sum += message(item)
            tally.counted = length
        total = tally.sum
        if messages.overlay:
            total += sum([message(new) - message(items[at]) for at, new in messages.overlay.items()])
        return total + sum([message(item) for item in tail]) if tail else total

    def ours(self, system: str, tools: tuple[ToolSpec, ...], messages: Messages) -> int:
        """Our count of a request."""
        return self.counter.fixed(system, tools) + self.history(messages)

    def theirs(self, ours: int, model: str) -> int:
        """Estimate the vendor's count from ours."""
        return round(ours * self.budget.factors.get(model, 1.0))

    def check(self, request: ModelRequest) -> int:
        """Raise if a request is too large for its model, before it is sent; returns our count of it."""
        ours = self.ours(request.system, request.tools, request.messages)
        size, limit = self.theirs(ours, request.model), self.budget.limit(request.model, request.settings)
        if limit is not None and size > limit:
            raise overflow(request, size, limit, self.breakdown(request))
        return ours

    def learn(self, model: str, ours: int, usage: Usage) -> None:
        """Learn from the vendor's count of a request that we counted, too."""
        if ours >= LARGE and PLAUSIBLE[0] < (factor := usage.input / ours) < PLAUSIBLE[1]:
            self.budget.factors[model] = factor

    def breakdown(self, request: ModelRequest) -> dict[str, int]:
        """The tokens of a request by origin, in the vendor's count, the largest first."""
        sizes: dict[str, int] = {}
        for origin, size in pieces(request, self.counter):
            sizes[origin] = sizes.get(origin, 0) + size
        scaled = {origin: self.theirs(size, request.model) for origin, size in sizes.items()}
        return dict(sorted(scaled.items(), key=lambda item: -item[1]))


def pieces(request: ModelRequest, counter: Counter) -> list[tuple[str, int]]:
    """The pieces of a request in order: the origin of each and our count of it."""
    found = [(section.origin or "system", counter.text(section.text)) for section in sections_of(request)]
    found += [(f"tool {spec.name}", counter.tool(spec)) for spec in request.tools]
    for message in request.messages:
        found.append((message.origin or message.role, MESSAGE))
        for part in message.parts:
            found += _of_part(part, message, counter)
    return found


def sections_of(request: ModelRequest) -> tuple[TextPart, ...]:
    """The sections of the system text; a single one if a hook has changed the text since."""
    rest = request.system
    for section in request.sections:
        head, found, rest = rest.partition(section.text)
        if head.strip() or not found:
            return (TextPart(request.system),)
    return (TextPart(request.system),) if rest.strip() else request.sections


def _of_part(part: Part, message: Message, counter: Counter) -> list[tuple[str, int]]:
    if type(part) is not ToolResultPart:
        return [(getattr(part, "origin", None) or message.origin or message.role, counter.part(part))]
    inner = [(getattr(item, "origin", None) or f"result of {part.name}", counter.part(item)) for item in part.content]
    return [(f"result of {part.name}", MESSAGE), *inner]


def overflow(request: ModelRequest, size: int, limit: int, sizes: Mapping[str, int]) -> ContextOverflow:
    """The error for a request that is too large, with its largest pieces."""
    largest = ", ".join(f"{origin} {tokens:,}" for origin, tokens in list(sizes.items())[:6])
    text = f"the request to {request.model!r} has about {size:,} tokens, but the limit is {limit:,}; it was not sent"
    return ContextOverflow(f"{text}. Largest pieces: {largest}", sizes=sizes)


__all__ = ["Budget", "Counter", "Meter", "estimate_tokens", "overflow", "pieces"]
