"""Encodes messages for Gemini: one codec per kind of part, and each message only once."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import blake2b
from mimetypes import guess_type
from typing import Any, TypeAlias

from windlass.messages import (
    MEDIA_PARTS,
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    MediaPart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    VideoPart,
    thawed,
)
from windlass.models.history import History, IdOf
from windlass.models.media import IMAGES, form_of, inline_data, note
from windlass.models.parts import arguments, readable

VENDOR = "google"
FINE = ("ok", "answered", "responded")
# Fields about a whole answer, which cannot be sent in a request.
REMARKS = ("groundingMetadata", "urlContextMetadata", "citationMetadata")
NOT_SENT = (*REMARKS, "finish")
# Gemini 3 rejects a call without a signature. This one marks a call by another model.
NOT_SIGNED = b64encode(b"skip_thought_signature_validator").decode()

Json: TypeAlias = dict[str, Any]


def history(*, newer: bool) -> History:
    """The cache of encoded messages. Gemini accepts several messages of one role in a row, except answers.

    A `newer` model (Gemini 3) requires signed calls and accepts images inside results.
    """

    def encode(message: Message, id_of: IdOf) -> list[Json]:
        content = _Content(id_of, newer=newer)
        for part in message.parts:
            CODECS[type(part)](content, part)
        wire: list[Json] = readable(content.json(message.role))
        return wire

    return History(encode, wire_id, join)


def join(row: list[Json], wire: list[Json]) -> None:
    """Add contents to a row. Consecutive answers are joined, because the second could not have calls otherwise; so are
    the results of one step."""
    for one in wire:
        before = row[-1] if row else one
        results = _has_results(before) and _has_results(one)
        if row and before["role"] == one["role"] and (one["role"] == "model" or results):
            parts = [*before["parts"], *one["parts"]]
            row[-1] = {"parts": sorted(parts, key=_is_not_result) if _has_results(one) else parts, "role": one["role"]}
        else:
            row.append(one)


def _has_results(content: Json) -> bool:
    return not _is_not_result(content["parts"][0])


def _is_not_result(part: Json) -> bool:
    return "functionResponse" not in part


def with_opening(contents: list[Json]) -> list[Json]:
    """Add a first user message if a conversation is empty or starts with calls, which Gemini rejects."""
    if contents and (contents[0]["role"] == "user" or not any("functionCall" in part for part in contents[0]["parts"])):
        return contents
    return [{"parts": [{"text": "."}], "role": "user"}, *contents]


def wire_id(call_id: str, vendor_id: str | None) -> str:
    """The id of a call on the wire, which links results to calls. Older models send none, but accept ours."""
    return vendor_id or "call_" + blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


class _Content:
    """The encoded parts of one message."""

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
        """Add a part after all results: nothing may come between them."""
        self._after.append(part)

    def json(self, role: str) -> list[Json]:
        """The content; empty for an empty answer."""
        self._flush()
        parts = self._parts + self._after
        if role == "assistant":
            return [{"parts": parts, "role": "model"}] if parts else []
        return [{"parts": parts or [{"text": ""}], "role": "user"}]

    def _flush(self) -> None:
        """Send a signature without its part as an empty text."""
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


MEDIA = (
    *IMAGES, "image_file", "document", "document_url", "document_file", "audio", "audio_url", "audio_file", "video",
    "video_url", "video_file",
)  # fmt: skip


def accepts(part: MediaPart) -> bool:
    """Whether Gemini accepts a part: any file, except one that was uploaded to another vendor."""
    return form_of(part, VENDOR) in MEDIA


def _media(content: _Content, part: MediaPart) -> None:
    content.add(_blob(part))


def _call(content: _Content, part: ToolCallPart) -> None:
    call = {"name": part.name, "args": arguments(part.json), "id": content.id_of(part)}
    content.add_call({"functionCall": call})


def _result(content: _Content, part: ToolResultPart) -> None:
    media = [item for item in part.content if isinstance(item, MEDIA_PARTS)]
    text = part.text + "".join(note(item) for item in media if not accepts(item))
    result = {"output" if part.status in FINE else "error": text}
    response: Json = {"name": part.name, "response": result, "id": content.id_of(part)}
    blobs = [_blob(item) for item in media if accepts(item)]
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
    ImagePart: _media,
    DocumentPart: _media,
    AudioPart: _media,
    VideoPart: _media,
    FilePart: _media,
    ToolCallPart: _call,
    ToolResultPart: _result,
    OpaquePart: _opaque,
}


def _blob(part: MediaPart) -> Json:
    if not accepts(part):
        return {"text": note(part)}
    if (found := inline_data(part)) is not None:
        return {"inlineData": {"mimeType": found[0], "data": found[1]}}
    if isinstance(part, FilePart):
        return {"fileData": {"mimeType": part.media_type, "fileUri": part.id}}
    url = part.url or ""
    return {"fileData": {"mimeType": _media_type(url, part.media_type), "fileUri": url}}


def _media_type(url: str, stated: str) -> str:
    """The media type of a file. If it is only our default, the extension of the address is more reliable."""
    guessed = guess_type(url.partition("?")[0])[0] or ""
    return guessed if stated in _DEFAULTS and guessed.partition("/")[0] == stated.partition("/")[0] else stated


_DEFAULTS = [kind().media_type for kind in (ImagePart, DocumentPart, AudioPart, VideoPart)]
