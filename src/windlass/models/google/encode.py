"""Messages as the JSON that Gemini takes: a codec per kind of part, and no message encoded twice."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import blake2b
from mimetypes import guess_type
from typing import Any, TypeAlias

from windlass.messages import (
    ImagePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    thawed,
)
from windlass.models.history import History, IdOf
from windlass.models.parts import arguments, inlined, readable

VENDOR = "google"
FINE = ("ok", "answered", "responded")
# Said about a whole answer; there is no place for it in a request.
REMARKS = ("groundingMetadata", "urlContextMetadata", "citationMetadata")
NOT_SENT = (*REMARKS, "finish")
# Gemini 3 refuses a call without a signature, unless it has this one: the call was made by another model.
NOT_SIGNED = b64encode(b"skip_thought_signature_validator").decode()

Json: TypeAlias = dict[str, Any]


def history(*, newer: bool) -> History:
    """The encoded conversations of a model. Gemini takes several messages of one role in a row, but for answers.

    A `newer` model (Gemini 3) wants its calls signed and takes images inside of results.
    """

    def encode(message: Message, id_of: IdOf) -> list[Json]:
        content = _Content(id_of, newer=newer)
        for part in message.parts:
            CODECS[type(part)](content, part)
        wire: list[Json] = readable(content.json(message.role))
        return wire

    return History(encode, wire_id, join)


def join(row: list[Json], wire: list[Json]) -> None:
    """Add contents to those before; an answer that follows another is one with it, or it may not have calls, and the
    results of one step are in one content."""
    for one in wire:
        before = row[-1] if row else one
        if row and before["role"] == one["role"] and (one["role"] == "model" or (_results(before) and _results(one))):
            parts = [*before["parts"], *one["parts"]]
            row[-1] = {"parts": sorted(parts, key=_no_result) if _results(one) else parts, "role": one["role"]}
        else:
            row.append(one)


def _results(content: Json) -> bool:
    return not _no_result(content["parts"][0])


def _no_result(part: Json) -> bool:
    return "functionResponse" not in part


def opened(contents: list[Json]) -> list[Json]:
    """The contents as Gemini takes them: calls come after somebody has said something."""
    if contents and (contents[0]["role"] == "user" or not any("functionCall" in part for part in contents[0]["parts"])):
        return contents
    return [{"parts": [{"text": "."}], "role": "user"}, *contents]


def wire_id(call_id: str, vendor_id: str | None) -> str:
    """The id of a call on the wire. Older models give none, and take ours: results are bound to calls by it."""
    return vendor_id or "call_" + blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


class _Content:
    """The parts of one message on their way to the wire."""

    def __init__(self, id_of: IdOf, *, newer: bool) -> None:
        self.newer = newer
        self.id_of = id_of
        self._parts: list[Json] = []
        self._after: list[Json] = []
        self._signature: str | None = None
        self._called = False

    def sign_next(self, signature: str) -> None:
        self._flush()
        self._signature = signature

    def add(self, part: Json) -> None:
        if self._signature is not None:
            part["thoughtSignature"] = self._signature
            self._signature = None
        self._parts.append(part)

    def add_call(self, part: Json) -> None:
        if self.newer and not self._called and self._signature is None:
            self._signature = NOT_SIGNED
        self._called = True
        self.add(part)

    def add_after(self, part: Json) -> None:
        """Add a part behind all results: nothing may come between those."""
        self._after.append(part)

    def json(self, role: str) -> list[Json]:
        """The content; an answer that says nothing is none."""
        self._flush()
        parts = self._parts + self._after
        if role == "assistant":
            return [{"parts": parts, "role": "model"}] if parts else []
        return [{"parts": parts or [{"text": ""}], "role": "user"}]

    def _flush(self) -> None:
        """A signature whose part is gone stands for itself."""
        if self._signature is not None:
            self.add({"text": ""})


def _text(content: _Content, part: TextPart) -> None:
    if part.text:
        content.add({"text": part.text})


def _thinking(content: _Content, part: ThinkingPart) -> None:
    if part.vendor != VENDOR:
        return
    if part.text:
        thought: Json = {"text": part.text, "thought": True}
        content.add(thought | {"thoughtSignature": part.signature} if part.signature else thought)
    elif part.signature:
        content.sign_next(part.signature)
        if part.redacted:
            content.add({"text": ""})


def _image(content: _Content, part: ImagePart) -> None:
    content.add(_blob(part))


def _call(content: _Content, part: ToolCallPart) -> None:
    call = {"name": part.name, "args": arguments(part.json), "id": content.id_of(part)}
    content.add_call({"functionCall": call})


def _result(content: _Content, part: ToolResultPart) -> None:
    said = {"output" if part.status in FINE else "error": part.text}
    response: Json = {"name": part.name, "response": said, "id": content.id_of(part)}
    blobs = [_blob(item) for item in part.content if type(item) is ImagePart]
    blobs += [thawed(item.data) for item in part.content if type(item) is OpaquePart and item.vendor == VENDOR]
    if blobs and content.newer:
        response["parts"] = blobs
    content.add({"functionResponse": response})
    if not content.newer:
        for blob in blobs:
            content.add_after(blob)


def _opaque(content: _Content, part: OpaquePart) -> None:
    if part.vendor == VENDOR and not any(key in part.data for key in NOT_SENT):
        content.add(thawed(part.data))


CODECS: dict[type[Part], Callable[[_Content, Any], None]] = {
    TextPart: _text,
    ThinkingPart: _thinking,
    ImagePart: _image,
    ToolCallPart: _call,
    ToolResultPart: _result,
    OpaquePart: _opaque,
}


def _blob(part: ImagePart) -> Json:
    if (found := inlined(part)) is not None:
        return {"inlineData": {"mimeType": found[0], "data": found[1]}}
    url = part.url or ""
    return {"fileData": {"mimeType": _media_type(url, part.media_type), "fileUri": url}}


def _media_type(url: str, said: str) -> str:
    """What an address ends in says more than the media type that an image has unless somebody says."""
    guessed = guess_type(url.partition("?")[0])[0] or ""
    return guessed if said == "image/png" and guessed.startswith("image/") else said
