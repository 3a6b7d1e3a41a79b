"""The conversation: parts, messages, requests, replies, tool calls and their results."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import is_ as _is
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr
from msgspec.structs import replace as _replace

from .errors import BadReply

if TYPE_CHECKING:
    from os import PathLike

Role = Literal["user", "assistant", "tool"]
Status = Literal["ok", "error", "denied", "answered", "responded", "cancelled", "interrupted"]
Finish = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "paused", "other"]

T = TypeVar("T")


class Value(Struct, frozen=True, omit_defaults=True, gc=False):
    """An immutable value; `replace` makes a changed copy.

    Values are made of older values only, so they cannot form cycles, and the garbage collector may skip them.
    """

    def replace(self, **changes: Any) -> Self:
        """A copy of this value with some fields changed."""
        return _replace(self, **changes)


class TextPart(Value, frozen=True, tag="text", tag_field="type"):
    """Plain text; `origin` names the hook or capability that added it, if any."""

    text: str
    origin: str | None = None


class ThinkingPart(Value, frozen=True, tag="thinking", tag_field="type"):
    """A model's reasoning. With a `signature` it is *signed*: it must be sent back unchanged or not at all."""

    text: str
    signature: str | None = None
    redacted: bool = False
    vendor: str | None = None


class _Media(Value, frozen=True):
    """The constructors of parts with content other than text."""

    kinds: ClassVar[tuple[str, ...]]
    """The beginnings of the media types that the part may have."""

    @classmethod
    def from_file(cls, path: str | PathLike[str], *, media_type: str | None = None) -> Self:
        """Read a file. Its media type is guessed from its content and its name if you do not state it."""
        from pathlib import Path

        file = Path(path)
        return cls.from_bytes(file.read_bytes(), media_type=media_type, name=file.name)

    @classmethod
    def from_bytes(cls, data: bytes, *, media_type: str | None = None, name: str | None = None) -> Self:
        """A part with this content. Its media type is guessed from content and name if you do not state it."""
        found = _media_type(cls, data, name) if media_type is None else media_type
        fields: dict[str, Any] = {"data": data, "media_type": found}
        return cls(**fields, **({"name": name} if "name" in cls.__struct_fields__ else {}))


class ImagePart(_Media, frozen=True, tag="image", tag_field="type"):
    """An image, as bytes or as a URL."""

    kinds = ("image/",)

    data: bytes | None = None
    url: str | None = None
    media_type: str = "image/png"
    origin: str | None = None


class DocumentPart(_Media, frozen=True, tag="document", tag_field="type"):
    """A document such as a PDF, as bytes or as a URL."""

    kinds = ("application/", "text/")

    data: bytes | None = None
    url: str | None = None
    media_type: str = "application/pdf"
    name: str | None = None
    origin: str | None = None


class AudioPart(_Media, frozen=True, tag="audio", tag_field="type"):
    """Speech, music or other sound, as bytes or as a URL."""

    kinds = ("audio/",)

    data: bytes | None = None
    url: str | None = None
    media_type: str = "audio/wav"
    origin: str | None = None


class VideoPart(_Media, frozen=True, tag="video", tag_field="type"):
    """A video, as bytes or as a URL."""

    kinds = ("video/",)

    data: bytes | None = None
    url: str | None = None
    media_type: str = "video/mp4"
    origin: str | None = None


class FilePart(Value, frozen=True, tag="file", tag_field="type"):
    """A file that you have uploaded to a vendor, which no other vendor can read.

    `id` is the vendor's name of the file: an id, or for Google its URI. `vendor` is the vendor's name in model names,
    such as "openai" or "anthropic". `media_type` tells whether it is an image, a document, sound or a video.
    """

    id: str
    vendor: str
    media_type: str = "application/pdf"
    name: str | None = None
    origin: str | None = None


class ToolCallPart(Value, frozen=True, tag="tool_call", tag_field="type"):
    """A call that a model proposes. `json` is the text of the arguments exactly as the model wrote it.

    `id` is Windlass's own (`session/step/position`), set when the reply is recorded; `vendor_id` is the vendor's.
    """

    name: str
    json: str = "{}"
    id: str = ""
    vendor_id: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, decoded at each access."""
        return _decode_arguments(self.name, self.json)


class OpaquePart(Value, frozen=True, gc=True, tag="opaque", tag_field="type"):
    """Data that only its vendor understands, kept so that it can be sent back unchanged.

    `data` is a JSON value; it is copied when the part is made and is read-only. `mediated` is false for something that
    the vendor has executed, so that no hook was asked.
    """

    vendor: str
    data: Any
    mediated: bool = True

    def __post_init__(self) -> None:
        force_setattr(self, "data", plain(self.data))


ContentPart: TypeAlias = TextPart | ImagePart | DocumentPart | AudioPart | VideoPart | FilePart | OpaquePart
MediaPart: TypeAlias = ImagePart | DocumentPart | AudioPart | VideoPart | FilePart
MEDIA_PARTS = (ImagePart, DocumentPart, AudioPart, VideoPart, FilePart)
CONTENT_PARTS = (TextPart, *MEDIA_PARTS, OpaquePart)


def _media_type(part: type[_Media], data: bytes, name: str | None) -> str:
    """The media type of some content; raises if it cannot be told, or if another kind of part must be used."""
    from ._media import guess_media_types

    guessed = guess_media_types(data, name)
    what = repr(name) if name else f"a file of {len(data)} bytes"
    if not guessed:
        raise ValueError(f"the media type of {what} cannot be guessed: pass media_type=…")
    for media_type in guessed:
        if media_type.startswith(part.kinds):
            return media_type
    fit = [kind.__name__ for kind in MEDIA_PARTS[:-1] if guessed[0].startswith(kind.kinds)]
    hint = f"use {fit[0]}" if fit else "pass media_type=…"
    raise ValueError(f"{what} is {guessed[0]}, which is not the content of {part.__name__}: {hint}")


class ToolResultPart(Value, frozen=True, tag="tool_result", tag_field="type"):
    """The result of one call, as the model will read it."""

    call_id: str
    name: str
    content: tuple[ContentPart, ...] = ()
    status: Status = "ok"

    @property
    def text(self) -> str:
        """The text of the content."""
        return "".join([p.text for p in self.content if type(p) is TextPart])


Part: TypeAlias = TextPart | ThinkingPart | MediaPart | ToolCallPart | ToolResultPart | OpaquePart
PARTS = (*CONTENT_PARTS, ThinkingPart, ToolCallPart, ToolResultPart)
PART_TAGS = frozenset(str(part.__struct_config__.tag) for part in PARTS)


class Message(Value, frozen=True):
    """One entry of a transcript: who speaks, and what.

    A step adds an `assistant` message, whose `id` is the step's, and, if it asked for tools, one `tool` message with
    all their results.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    origin: str | None = None
    id: str = ""
    partial: bool = False

    @property
    def text(self) -> str:
        """The text parts, joined."""
        parts = self.parts
        if len(parts) == 1 and type(part := parts[0]) is TextPart:
            return part.text
        return "".join([p.text for p in parts if type(p) is TextPart])

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls that this message proposes."""
        return tuple([p for p in self.parts if type(p) is ToolCallPart])

    def map_text(self, fn: Callable[[str], str]) -> Self:
        """This message with `fn` applied to each text, also to the text of tool results; the same object if no text
        changes. All other parts keep their place, and a text part that becomes empty is removed."""
        parts = _map_parts(self.parts, fn)
        return self if parts is self.parts else _replace(self, parts=parts)


AnyMessage: TypeAlias = str | Message | Sequence[str | ContentPart]
"""What opens a turn: a text, a message, or a list of texts and content parts."""


def user(text: str, *, origin: str | None = None) -> Message:
    """A user message with one text part."""
    return Message("user", (TextPart(text),), origin)


def assistant(text: str, *, origin: str | None = None) -> Message:
    """An assistant message with one text part."""
    return Message("assistant", (TextPart(text),), origin)


_new = object.__new__


class Messages(Sequence[Message]):
    """An immutable sequence of messages that shares its storage with its predecessors.

    A longer transcript costs the same for message 10 and message 10,000: the new view and the old one look at one list
    that only ever grows. `overlay` replaces single messages for the reader (a request with injected parts) and `tail`
    follows the history; neither touches the history.
    """

    __slots__ = ("_items", "_length", "_tail", "overlay")

    def __init__(
        self,
        items: Iterable[Message] = (),
        *,
        overlay: Mapping[int, Message] | None = None,
        tail: tuple[Message, ...] = (),
    ) -> None:
        self.overlay = overlay
        self._tail = tail
        if type(items) is Messages:
            self._items: list[Message] = items._items
            self._length: int = items._length
            self.overlay = items.overlay if overlay is None else overlay
            self._tail = tail or items._tail
        else:
            self._items = list(items)
            self._length = len(self._items)

    @staticmethod
    def sharing(items: list[Message]) -> Messages:
        """A view of a list at its current length; the owner of the list may only append to it."""
        view = _new(Messages)
        view._items = items
        view._length = len(items)
        view.overlay = None
        view._tail = ()
        return view

    @property
    def shared(self) -> tuple[list[Message], int, tuple[Message, ...]]:
        """The list behind this view, how many of its messages the view has, and the tail.

        For caches that follow the growing list. Only its owner may change it.
        """
        return self._items, self._length, self._tail

    def __len__(self) -> int:
        return self._length + len(self._tail)

    def __iter__(self) -> Iterator[Message]:
        items = self._items[: self._length]
        if self.overlay:
            for index, message in self.overlay.items():
                items[index] = message
        items.extend(self._tail)
        return iter(items)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return list(self)[index]
        total = self._length + len(self._tail)
        position = index + total if index < 0 else index
        if not 0 <= position < total:
            raise IndexError(f"message {index} is out of range: there are {total} messages")
        if position >= self._length:
            return self._tail[position - self._length]
        if self.overlay and position in self.overlay:
            return self.overlay[position]
        return self._items[position]

    def map_text(self, fn: Callable[[str], str]) -> Messages:
        """These messages with `fn` applied once to each text, in order, as `Message.map_text` does it; the same object
        if no text changes."""
        shown = list(self)
        mapped = [message.map_text(fn) for message in shown]
        if all(map(_is, mapped, shown)):
            return self
        overlay = {index: mapped[index] for index in self.overlay or ()}
        return Messages(mapped[: self._length], overlay=overlay or None, tail=tuple(mapped[self._length :]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Messages | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Messages({list(self)!r})"


def _refuse(self: Any, *_: Any, **__: Any) -> Any:
    raise TypeError("this value is shared and cannot be changed; pass a changed copy to `.replace(…)`")


class FrozenDict(dict[str, Any]):
    """A read-only mapping. A copy of it is a plain dict."""

    __setitem__: Any = _refuse
    __delitem__: Any = _refuse
    __ior__: Any = _refuse
    clear: Any = _refuse
    pop: Any = _refuse
    popitem: Any = _refuse
    setdefault: Any = _refuse
    update: Any = _refuse

    __copy__ = dict.copy

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __deepcopy__(self, memo: object) -> Any:
        return thawed(self)

    def __reduce__(self) -> Any:
        return frozen, (thawed(self),)


class FrozenList(list[Any]):
    """A read-only list. A copy of it is a plain list."""

    __setitem__: Any = _refuse
    __delitem__: Any = _refuse
    __iadd__: Any = _refuse
    __imul__: Any = _refuse
    append: Any = _refuse
    clear: Any = _refuse
    extend: Any = _refuse
    insert: Any = _refuse
    pop: Any = _refuse
    remove: Any = _refuse
    reverse: Any = _refuse
    sort: Any = _refuse

    __copy__ = list.copy

    def __deepcopy__(self, memo: object) -> Any:
        return thawed(self)

    def __reduce__(self) -> Any:
        return frozen, (thawed(self),)


_NOTHING: Mapping[str, int] = FrozenDict()


class Usage(Value, frozen=True):
    """What was spent: tokens, and USD if the price is known. `input` includes `cached` and `cache_written`.

    A usage counts one request by default. `details` counts items with a price of their own, under the names of
    genai-prices: `input_audio_tokens`, `output_image_tokens`, `cache_write_1h_tokens`, `web_searches` … Tokens in it
    are part of `input` or `output`.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0
    requests: int = 1
    cost: float | None = None
    details: Mapping[str, int] = _NOTHING

    @property
    def total(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        details = self.details
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.cache_written + other.cache_written,
            self.reasoning + other.reasoning,
            self.requests + other.requests,
            None if self.cost is None and other.cost is None else self._cost(other),
            _combined(details, other.details, 1) if details or other.details else details,
        )

    def __sub__(self, before: Usage) -> Usage:
        """What was spent since `before`, an earlier total."""
        return Usage(
            self.input - before.input,
            self.output - before.output,
            self.cached - before.cached,
            self.cache_written - before.cache_written,
            self.reasoning - before.reasoning,
            self.requests - before.requests,
            None if self.cost is None else self.cost - (before.cost or 0.0),
            _combined(self.details, before.details, -1),
        )

    def _cost(self, other: Usage) -> float | None:
        """The sum of both costs; None if either has a request of unknown cost."""
        unknown = (self.cost is None and self.requests) or (other.cost is None and other.requests)
        return None if unknown else (self.cost or 0.0) + (other.cost or 0.0)


def _combined(one: Mapping[str, int], other: Mapping[str, int], sign: int) -> Mapping[str, int]:
    """The sum of two counts by kind, or their difference; kinds with a count of 0 are left out."""
    counts = {kind: one.get(kind, 0) + sign * other.get(kind, 0) for kind in {**one, **other}}
    return FrozenDict({kind: count for kind, count in counts.items() if count}) if any(counts.values()) else _NOTHING


def frozen(value: Any) -> Any:
    """A read-only copy of a plain value."""
    if type(value) in _FIXED:
        return value
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList([frozen(item) for item in value])
    return value


_FIXED = {str, int, float, bool, type(None), FrozenDict, FrozenList}


def thawed(value: Any) -> Any:
    """A copy of a plain value that can be changed."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """A value as JSON returns it, read-only; TypeError if JSON cannot hold it."""
    try:
        return _plain(value)
    except RecursionError:
        raise TypeError("it contains itself, or is nested too deeply") from None


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if not _LEAST <= value <= _MOST:
            raise TypeError(f"the number {value:.3g} is too large: it must fit into 64 bits")
        return value
    if kind is float:
        if value - value != 0.0:
            raise TypeError(f"JSON cannot hold {value}")
        return value
    if isinstance(value, Mapping):
        return FrozenDict({_key(key): _plain(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList([_plain(item) for item in value])
    builtin = msgspec.to_builtins(value, str_keys=True)
    if type(builtin) is kind:
        raise TypeError(f"JSON cannot hold a {kind.__name__}")
    return _plain(builtin)


def _key(key: Any) -> str:
    name = key if type(key) is str else msgspec.to_builtins(key)
    if type(name) is int or type(name) is str:
        return str(name)
    raise TypeError(f"the keys of a JSON object must be texts, not {type(key).__name__}")


_LEAST, _MOST = -(2**63), 2**64 - 1


class ToolSpec(Value, frozen=True):
    """A tool as a model sees it. `native` has, by vendor, the vendor's own definition of it, which is sent instead of
    description and schema."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = {}
    native: Mapping[str, Any] = {}


class ModelRequest(Value, frozen=True):
    """Everything that is sent to a model. `output` is the JSON schema that the final text must fit, if there is one.

    `sections` are the pieces of the system text, each with its origin; `system` is what is sent. `side` names the hook
    or tool that asks with `turn.ask`; it is empty for the turn's own requests.
    """

    system: str
    messages: Messages
    tools: tuple[ToolSpec, ...] = ()
    model: str = ""
    settings: Mapping[str, Any] = {}
    output: Mapping[str, Any] | None = None
    sections: tuple[TextPart, ...] = ()
    side: str = ""

    def replace(self, **changes: Any) -> Self:
        """A changed copy. `messages` may be any sequence of messages; unchanged fields keep their identity."""
        messages = changes.get("messages")
        if messages is not None and type(messages) is not Messages:
            changes["messages"] = Messages(checked_messages(messages))
        if (tools := changes.get("tools")) is not None:
            changes["tools"] = tuple(getattr(tool, "spec", tool) for tool in tools)
        return _replace(self, **changes)

    def map_text(self, fn: Callable[[str], str]) -> Self:
        """This request with `fn` applied to the system text, then to each text of its messages, in order; the same
        object if no text changes."""
        system = _mapped(self.system, fn)
        sections = _map_parts(self.sections, lambda text: system if text == self.system else fn(text))
        messages = self.messages.map_text(fn)
        if system == self.system and messages is self.messages and sections is self.sections:
            return self
        return _replace(self, system=system, messages=messages, sections=sections)

    @property
    def fingerprint(self) -> str:
        """A hash of what the model reads: requests that differ only in ids and origins have the same one.

        Use it as the key of a response cache. It covers the model, its settings and the tools. It is computed at each
        access, and costs as much as the request is long; `Fingerprints` computes those of a growing conversation.
        """
        return Fingerprints().of(self)


class Fingerprints:
    """The fingerprints of requests that extend one another, such as those of a turn: each message is hashed once."""

    __slots__ = ("_items", "_read", "_tools")

    def __init__(self) -> None:
        self._items: list[Message] | None = None
        self._read = _HashedMessages()
        self._tools: tuple[tuple[ToolSpec, ...], str] = ((), stable_text(()))

    def of(self, request: ModelRequest) -> str:
        """The fingerprint of a request, the same as `request.fingerprint`."""
        if request.tools is not self._tools[0]:
            self._tools = request.tools, stable_text(request.tools)
        settings, output = stable_text(request.settings), stable_text(request.output)
        fixed = f"{len(request.system)}:{request.system}\0{request.model}\0{self._tools[1]}\0{settings}\0{output}"
        hashed = self._messages(request.messages)
        hashed.update(fixed.encode("utf-8", "surrogatepass"))
        return str(hashed.hexdigest())

    def _messages(self, messages: Messages) -> Any:
        """A hash of the messages that can be continued."""
        items, length, tail = messages.shared
        final = min(messages.overlay) if messages.overlay else length  # later requests have these as well
        if items is not self._items or self._read.count > final:
            self._items, self._read = items, _HashedMessages()
        read = self._read
        read.add(items[read.count : final])
        if final == length and not tail:
            return read.hash.copy()
        rest = _HashedMessages(read)
        rest.add(messages[final:])
        return rest.hash


class _HashedMessages:
    """The hash of some messages as models read them: calls have numbers instead of ids, and origins do not count."""

    __slots__ = ("_before", "_calls", "_numbers", "count", "hash")

    def __init__(self, before: _HashedMessages | None = None) -> None:
        self._before = before
        self.hash: Any = _blake2b()(digest_size=16) if before is None else before.hash.copy()
        self._calls: int = 0 if before is None else before._calls
        self._numbers: dict[str, str] = {}
        self.count: int = 0 if before is None else before.count

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            text = stable_bytes((message.role, [self._without_ids(part) for part in message.parts]))
            self.hash.update(b"%d:%b" % (len(text), text))
        self.count += len(messages)

    def _without_ids(self, part: Any) -> Any:
        """A part without its origin, and with the numbers of calls instead of their ids."""
        kind = type(part)
        if kind is ToolCallPart:
            self._calls += 1
            number = self._numbers[part.id or part.vendor_id or ""] = str(self._calls)
            return _replace(part, id=number, vendor_id=None)
        if kind is ToolResultPart:
            content = tuple([self._without_ids(one) for one in part.content])
            return _replace(part, call_id=self._number(part.call_id), content=content)
        return _replace(part, origin=None) if getattr(part, "origin", None) is not None else part

    def _number(self, call: str) -> str:
        found = self._numbers.get(call)
        if found is None:
            return call if self._before is None else self._before._number(call)
        return found


class RateLimits(Value, frozen=True):
    """The vendor's rate limits as of one reply: the limits, how much of each is left, and the seconds until it is full
    again. What the vendor does not report is None."""

    requests: int | None = None
    requests_left: int | None = None
    requests_reset: float | None = None
    tokens: int | None = None
    tokens_left: int | None = None
    tokens_reset: float | None = None


class ModelReply(Value, frozen=True):
    """A model's reply. `finish` is one of `Finish`, or a word from a newer version of Windlass; `raw_finish` is the
    vendor's own word. `client_calls` names calls that your program would have to run but has no tool for: such a reply
    ends the turn. `limits` are the vendor's rate limits, if it reports them; wraps of `ModelCall` read them, and the
    log does not contain them."""

    message: Message
    usage: Usage = Usage()
    finish: str = "stop"
    model: str | None = None
    raw_finish: str | None = None
    response_id: str | None = None
    client_calls: tuple[str, ...] = ()
    limits: RateLimits | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls that the message proposes."""
        return self.message.tool_calls

    def map_text(self, fn: Callable[[str], str]) -> Self:
        """This reply with `fn` applied to each text of its message; the same object if no text changes."""
        message = self.message.map_text(fn)
        return self if message is self.message else _replace(self, message=message)


class ModelCall:
    """The effect of calling a model. Wraps of it receive a `ModelRequest` and return a `ModelReply`."""


class ToolCall(Value, frozen=True):
    """One call as hooks and wraps see it.

    `json` is the text that gates check, that is hashed, and that is executed. `arguments` is decoded from it at each
    access, so changing the mapping changes nothing. Use `call.replace(arguments={...})` to propose other arguments.
    """

    id: str
    name: str
    json: str = "{}"
    vendor_id: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, decoded at each access. Empty if the model did not write a JSON object."""
        return _decode_arguments(self.name, self.json)

    @property
    def digest(self) -> str:
        """The hash that binds decisions and approvals to exactly these arguments of exactly this tool."""
        return digest(self.name, self.json)

    def replace(self, **changes: Any) -> Self:
        """A changed copy; `arguments` may be a mapping. The id cannot change."""
        if "id" in changes and changes["id"] != self.id:
            raise ValueError("a call keeps its id: results are bound to it")
        if "arguments" in changes:
            changes["json"] = _encode_text(changes.pop("arguments"))
        return _replace(self, **changes)


class Delegation(Value, frozen=True):
    """A task for a child agent: the task, its share of the budget and its tools (None: all that it has)."""

    agent: str
    task: str
    share: float | None = None
    tools: tuple[str, ...] | None = None


class ToolResult(Value, frozen=True):
    """The result of a call: content for the model, a status, and `data` for your program.

    No model reads `data`. It is recorded: it must have a JSON form, and hooks, observers and `result.steps` get that
    form. `data_as` converts it back to its type.
    """

    content: tuple[ContentPart, ...] = ()
    status: Status = "ok"
    data: Any = None

    @classmethod
    def of(cls, value: object, *, data: object = None, status: Status = "ok") -> Self:
        """A result whose content is made from `value`, as if a tool returned it: `ToolResult.of("3 rows", data=rows)`.

        Raises TypeError if `data` has no JSON form."""
        return cls(render(value), status, checked_data(data))

    def data_as(self, kind: type[T]) -> T:
        """`data` as a value of this type: a dataclass, a msgspec struct, or any type that msgspec can read from JSON.

        Raises TypeError if it does not fit.
        """
        try:
            return msgspec.convert(thawed(self.data), kind)
        except msgspec.ValidationError as error:
            raise TypeError(f"the data of this result is not a {getattr(kind, '__name__', kind)}: {error}") from None

    @property
    def text(self) -> str:
        """The text of the content."""
        return "".join([p.text for p in self.content if type(p) is TextPart])

    def map_text(self, fn: Callable[[str], str]) -> Self:
        """This result with `fn` applied to each text of its content; the same object if no text changes. `data` does
        not change."""
        content = _map_parts(self.content, fn)
        return self if content is self.content else _replace(self, content=content)

    @property
    def is_error(self) -> bool:
        """Whether the call did not do what was asked."""
        return self.status not in ("ok", "answered", "responded")


def checked_data(data: object) -> Any:
    """The data of a result as a log returns it; TypeError if it has no JSON form."""
    try:
        return plain(data)
    except TypeError as error:
        raise TypeError(f"the data of a result must have a JSON form: {error}") from None


# ---------------------------------------------------------------- texts in place, and what a model reads


def _mapped(text: str, fn: Callable[[str], str]) -> str:
    mapped: Any = fn(text)
    if not isinstance(mapped, str):
        raise TypeError(f"map_text: the function must return a str, not {type(mapped).__name__}")
    return str.__str__(mapped)


def _map_parts(parts: Any, fn: Callable[[str], str]) -> Any:
    """The parts with other texts in their places; the same tuple if no text changes."""
    mapped: list[Any] = []
    for part in parts:
        if type(part) is TextPart:
            text = _mapped(part.text, fn)
            if text == part.text:
                mapped.append(part)
            elif text:
                mapped.append(part.replace(text=text))
        elif type(part) is ToolResultPart and (content := _map_parts(part.content, fn)) is not part.content:
            mapped.append(part.replace(content=content))
        else:
            mapped.append(part)
    return parts if len(mapped) == len(parts) and all(map(_is, mapped, parts)) else tuple(mapped)


def stable_text(value: object) -> str:
    """A value as text that is the same in every process; an object without a JSON form counts by its type."""
    return stable_bytes(value).decode("utf-8", "surrogatepass")


def stable_bytes(value: object) -> bytes:
    """The same in UTF-8."""
    try:
        return _stable_encoder.encode(value)
    except UnicodeEncodeError:  # a lone surrogate
        text = json_with_surrogates(msgspec.to_builtins(value, enc_hook=_type_name))
        return text.encode("utf-8", "surrogatepass")


def _type_name(value: object) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def text_result(text: str, status: Status = "ok") -> ToolResult:
    """A result with one text part."""
    return ToolResult((TextPart(text),), status)


def render(value: object) -> tuple[ContentPart, ...]:
    """What a tool returned, as content: text and parts unchanged, anything else as JSON."""
    kind = type(value)
    if kind is str:
        return (TextPart(value),)  # type: ignore[arg-type]
    if kind is int:
        return (TextPart(str(value)),)
    if isinstance(value, CONTENT_PARTS):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(part, CONTENT_PARTS) for part in value):
        return tuple(value)
    return (TextPart(_encode_text(value)),)


def as_result(value: object, status: Status = "ok") -> ToolResult:
    """Any value as a tool result."""
    return value if type(value) is ToolResult else ToolResult(render(value), status)


def as_reply(value: object) -> ModelReply:
    """A reply, a message or a text as a full reply; raises `BadReply` for anything else."""
    if type(value) is ModelReply:
        return value
    if type(value) is Message:
        return ModelReply(value, finish="tool_calls" if value.tool_calls else "stop")
    if type(value) is str:
        return ModelReply(assistant(value))
    raise BadReply(f"expected a ModelReply, a Message or a str, got {type(value).__name__}")


def as_message(value: object) -> Message:
    """A message, a text, or a list of texts and content parts as a message."""
    if type(value) is Message:
        return value
    if type(value) is str:
        return user(value)
    if not isinstance(value, list | tuple):
        hint = ": put it into a list" if isinstance(value, CONTENT_PARTS) else ""
        expected = "expected a str, a Message or a list of texts and content parts"
        raise TypeError(f"{expected}, got {type(value).__name__}{hint}")
    if not value:
        raise TypeError("a message needs at least one text or content part, but the list is empty")
    return Message("user", as_parts(value))


def as_parts(value: object, origin: str | None = None) -> tuple[ContentPart, ...]:
    """A text, a part or a list of them as content parts with their origin."""
    items = value if isinstance(value, list | tuple) else (value,)
    parts: list[ContentPart] = []
    for item in items:
        part = TextPart(item) if isinstance(item, str) else item
        if not isinstance(part, CONTENT_PARTS):
            raise TypeError(f"expected text or content parts, got {type(item).__name__}")
        if origin and not isinstance(part, OpaquePart) and part.origin is None:
            part = part.replace(origin=origin)
        parts.append(part)
    return tuple(parts)


def checked_messages(messages: Iterable[object]) -> list[Message]:
    """The messages as a list; raises an error that names the first item that is not a message."""
    checked: list[Message] = []
    for index, message in enumerate(messages):
        if type(message) is not Message:
            raise TypeError(f"message {index} is a {type(message).__name__}, not a Message")
        if message.role not in ("user", "assistant", "tool"):
            raise ValueError(f"message {index} has role {message.role!r}; system text belongs in `system`")
        checked.append(message)
    return checked


def digest(*texts: str) -> str:
    """The blake2b-128 hash of some texts, in hex."""
    text = "\0".join(texts).encode("utf-8", "surrogatepass")
    return str(_blake2b()(text, digest_size=16).hexdigest())


@cache
def _blake2b() -> Any:
    """The hash function. It loads OpenSSL, which takes longer than most modules here, so it is loaded when needed."""
    from hashlib import blake2b

    return blake2b


_encoder = msgspec.json.Encoder(enc_hook=str)
_stable_encoder = msgspec.json.Encoder(enc_hook=_type_name, order="sorted")
_arguments = msgspec.json.Decoder(dict[str, Any])


def _encode_text(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate
        return json_with_surrogates(msgspec.to_builtins(value, enc_hook=str))


def json_with_surrogates(plain: object) -> str:
    """The JSON of a plain value with lone surrogates in its texts, which are escaped."""
    return stdlib_json.dumps(plain, separators=(",", ":"), default=str)


def _decode_arguments(name: str, json: str) -> dict[str, Any]:
    try:
        return _arguments.decode(json or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _decode_with_surrogates(json)


def _decode_with_surrogates(json: str) -> dict[str, Any]:
    try:
        plain = stdlib_json.loads(json)
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


__all__ = [
    "AnyMessage",
    "AudioPart",
    "ContentPart",
    "DocumentPart",
    "FilePart",
    "Finish",
    "ImagePart",
    "MediaPart",
    "Message",
    "Messages",
    "ModelCall",
    "ModelReply",
    "ModelRequest",
    "OpaquePart",
    "Part",
    "RateLimits",
    "Role",
    "Status",
    "TextPart",
    "ThinkingPart",
    "ToolCall",
    "ToolCallPart",
    "ToolResult",
    "ToolResultPart",
    "ToolSpec",
    "Usage",
    "Value",
    "VideoPart",
    "assistant",
    "thawed",
    "user",
]
