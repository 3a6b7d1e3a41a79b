"""Our messages as Anthropic wants them. What has been encoded is kept, so that a step costs only what it adds."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

from windlass.messages import (
    ImagePart,
    Message,
    Messages,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    thawed,
)

VENDOR = "anthropic"
FIELDS = "fields"
"""The key of an opaque part that holds what the block before it has and our part has no place for."""

Block = dict[str, Any]
Calls = dict[str, str]  # our id of a call: its id on the wire

_OWN_ID = re.compile(r"toolu_[a-zA-Z0-9_-]{1,80}")
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TRANSCRIPTS = 64
_MESSAGES = 2048


class Encoded(NamedTuple):
    """The messages of a request; `turn` is where the last one of the user stands, `settled` the last that will stay."""

    messages: list[Block]
    turn: int
    settled: int


class Encoder:
    """Encodes the messages of requests, and remembers what it made of those it has seen."""

    def __init__(self) -> None:
        self._transcripts: OrderedDict[int, _Transcript] = OrderedDict()
        self._seen: OrderedDict[int, tuple[Message, tuple[str, ...], list[Block]]] = OrderedDict()
        self._lock = Lock()

    def encode(self, messages: Messages) -> Encoded:
        """The messages, those of one role merged."""
        with self._lock:
            items, length, tail = messages.shared
            transcript = self._transcript(items, length)
            wire = transcript.wire[:]
            changed: set[int] = set()
            for index in sorted(messages.overlay or ()):
                place = transcript.place(index)
                again = None if place < 0 else self._again(messages, transcript, place)
                if again is None:
                    return self._afresh(messages)
                wire[place] = again
                changed.add(place)
            turn = transcript.turn
            for message in tail:
                added = _append(wire, message, self._blocks(message, transcript.calls))
                changed.add(len(wire) - 1)
                turn = len(wire) - 1 if added and message.role == "user" else turn
            settled = len(wire) - 1
            while settled in changed:
                settled -= 1
            return Encoded(wire, turn, settled)

    def _transcript(self, items: list[Message], length: int) -> _Transcript:
        """What is known of a list, brought up to a length; of a shorter view nothing is."""
        transcript = self._transcripts.get(id(items))
        if transcript is None or len(transcript.seen) > length:
            transcript = _Transcript(items)
        if len(items) == length:
            self._transcripts[id(items)] = transcript
            self._transcripts.move_to_end(id(items))
            if len(self._transcripts) > _TRANSCRIPTS:
                self._transcripts.popitem(last=False)
        for index in range(len(transcript.seen), length):
            transcript.add(items[index], self._blocks(items[index], transcript.calls))
        return transcript

    def _again(self, messages: Messages, transcript: _Transcript, place: int) -> Block | None:
        """One message of the wire with what the overlay says; None if it does not stay one message."""
        start, end = transcript.span(place)
        again: list[Block] = []
        for index in range(start, end):
            _append(again, messages[index], self._blocks(messages[index], transcript.calls))
        return again[0] if len(again) == 1 and again[0]["role"] == transcript.wire[place]["role"] else None

    def _afresh(self, messages: Messages) -> Encoded:
        transcript = _Transcript([])
        for message in messages:
            transcript.add(message, self._blocks(message, transcript.calls))
        return Encoded(transcript.wire, transcript.turn, transcript.turn - 1)

    def _blocks(self, message: Message, calls: Calls) -> list[Block]:
        """The blocks of a message, made once."""
        ids = tuple([_result_id(part, calls) for part in message.parts if type(part) is ToolResultPart])
        calls.update({part.id: wire_id(part) for part in message.parts if type(part) is ToolCallPart})
        known = self._seen.get(id(message))
        if known is not None and known[0] is message and known[1] == ids:
            return known[2]
        blocks = _encode_parts(message.parts, calls)
        self._seen[id(message)] = (message, ids, blocks)
        if len(self._seen) > _MESSAGES:
            self._seen.popitem(last=False)
        return blocks


class _Transcript:
    """A list of messages that only grows, and what it is on the wire as far as it has been seen."""

    def __init__(self, items: list[Message]) -> None:
        self.items = items
        self.seen: list[Message] = []
        self.wire: list[Block] = []
        self.starts: list[int] = []
        self.calls: Calls = {}
        self.turn = -1

    def add(self, message: Message, blocks: list[Block]) -> None:
        """Take the next message."""
        if _append(self.wire, message, blocks):
            if len(self.starts) < len(self.wire):
                self.starts.append(len(self.seen))
            if message.role == "user":
                self.turn = len(self.wire) - 1
        self.seen.append(message)

    def place(self, index: int) -> int:
        """Where on the wire a message is; -1 if it is before all that is there."""
        return bisect_right(self.starts, index) - 1

    def span(self, place: int) -> tuple[int, int]:
        """The messages that are one on the wire."""
        return self.starts[place], self.starts[place + 1] if place + 1 < len(self.starts) else len(self.seen)


def _append(wire: list[Block], message: Message, blocks: list[Block]) -> bool:
    """Add a message, to the one before it if that has the same role; an empty one is left out."""
    if not blocks:
        return False
    role = "assistant" if message.role == "assistant" else "user"
    if not wire or wire[-1]["role"] != role:
        wire.append({"role": role, "content": blocks})
        return True
    content = wire[-1]["content"] + blocks
    if role == "user":  # results come first, or the vendor misses them
        content.sort(key=lambda block: block["type"] != "tool_result")
    wire[-1] = {"role": role, "content": content}
    return True


def wire_id(call: ToolCallPart) -> str:
    """The vendor's id of a call; for a call of somebody else's one that is always the same."""
    given = call.vendor_id or ""
    if _OWN_ID.fullmatch(given) or (not call.id and _VALID_ID.fullmatch(given)):
        return given
    return _made_id(call.id or given or call.name)


def _made_id(text: str) -> str:
    return "toolu_" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _result_id(result: ToolResultPart, calls: Calls) -> str:
    return calls.get(result.call_id) or _made_id(result.call_id)


def _encode_parts(parts: Iterable[Part], calls: Calls) -> list[Block]:
    blocks: list[Block] = []
    dropped = True
    for part in parts:
        if type(part) is OpaquePart and part.vendor == VENDOR and FIELDS in part.data:
            if not dropped:
                blocks[-1].update(thawed(part.data[FIELDS]))
            continue
        block = CODECS[type(part)](part, calls)
        dropped = block is None
        if block is not None:
            blocks.append(block)
    return blocks


def _text(part: TextPart, calls: Calls) -> Block | None:
    """The vendor refuses text of blanks only."""
    return {"type": "text", "text": part.text} if part.text.strip() else None


def _thinking(part: ThinkingPart, calls: Calls) -> Block | None:
    """Only what the vendor has signed may go back to it."""
    if part.vendor != VENDOR or not part.signature:
        return None
    if part.redacted:
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _image(part: ImagePart, calls: Calls) -> Block | None:
    if part.data is not None:
        source = {"type": "base64", "media_type": part.media_type, "data": b64encode(part.data).decode()}
    elif part.url is not None and part.url.startswith("data:") and ";base64," in part.url:
        media_type, _, data = part.url.removeprefix("data:").partition(";base64,")
        source = {"type": "base64", "media_type": media_type, "data": data}
    else:
        source = {"type": "url", "url": part.url or ""}
    return {"type": "image", "source": source}


def _call(part: ToolCallPart, calls: Calls) -> Block | None:
    return {"type": "tool_use", "id": wire_id(part), "name": part.name, "input": arguments(part.json)}


def arguments(text: str) -> dict[str, Any]:
    """The arguments of a call as an object. What is none is wrapped in one, as the vendor advises."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}


def _result(part: ToolResultPart, calls: Calls) -> Block | None:
    block: Block = {"type": "tool_result", "tool_use_id": _result_id(part, calls)}
    if content := _encode_parts(part.content, calls):
        block["content"] = content
    if part.status not in ("ok", "answered", "responded"):
        block["is_error"] = True
    return block


def _opaque(part: OpaquePart, calls: Calls) -> Block | None:
    return thawed(part.data) if part.vendor == VENDOR and isinstance(part.data, Mapping) else None


CODECS: dict[type, Callable[[Any, Calls], Block | None]] = {
    TextPart: _text,
    ThinkingPart: _thinking,
    ImagePart: _image,
    ToolCallPart: _call,
    ToolResultPart: _result,
    OpaquePart: _opaque,
}

__all__ = ["CODECS", "Encoded", "Encoder", "FIELDS", "VENDOR", "arguments", "wire_id"]
