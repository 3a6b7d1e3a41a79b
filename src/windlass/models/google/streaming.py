"""Puts an answer together from its chunks (a whole answer is one chunk), and says what each adds.

A signature belongs to one part. One of a text, call or image is kept in an empty `ThinkingPart` in front of that part;
one that came with an empty text stands for itself, and its `ThinkingPart` is `redacted`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ConnectionFailed, ContentFiltered
from windlass.messages import ImagePart, Message, ModelReply, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart

from .decode import finish_of, usage_of
from .encode import REMARKS, VENDOR
from .errors import said_error

BY_VENDOR = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
UNMEDIATED = ("groundingMetadata", "urlContextMetadata")


class Assembly:
    """One answer, as far as it has come."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._pieces: list[str] = []
        self._open: type[TextPart] | type[ThinkingPart] | None = None
        self._remarks: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._finish: str | None = None
        self._model: str | None = None
        self._id: str | None = None

    def feed(self, chunk: Any) -> list[AnyDelta]:
        """Take the next chunk; the deltas are what it adds."""
        if not isinstance(chunk, dict):
            raise BadReply(f"Gemini answered with no JSON object: {str(chunk)[:200]!r}", retryable=True)
        if "error" in chunk:
            raise said_error(chunk["error"])
        self._usage.update(chunk.get("usageMetadata") or {})
        self._model = chunk.get("modelVersion") or self._model
        self._id = chunk.get("responseId") or self._id
        if reason := (chunk.get("promptFeedback") or {}).get("blockReason"):
            raise ContentFiltered(f"Gemini refuses the prompt: {reason}", request_id=self._id)
        deltas: list[AnyDelta] = []
        for candidate in (chunk.get("candidates") or ())[:1]:
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._part(part, deltas)
            self._finish = candidate.get("finishReason") or self._finish
            self._remarks.update({key: candidate[key] for key in REMARKS if candidate.get(key)})
        return deltas

    def reply(self) -> ModelReply:
        """The whole reply; an answer without a finish has broken off."""
        if self._finish is None:
            raise ConnectionFailed("the answer of Gemini broke off", retryable=True, request_id=self._id)
        self._close()
        for key, value in self._remarks.items():
            self._parts.append(OpaquePart(VENDOR, {key: value}, mediated=key not in UNMEDIATED))
        message = Message("assistant", tuple(self._parts))
        finish = finish_of(self._finish, calls=bool(message.tool_calls))
        return ModelReply(message, usage_of(self._usage), finish, self._model, self._finish, self._id)

    def _part(self, part: dict[str, Any], deltas: list[AnyDelta]) -> None:
        signature = part.get("thoughtSignature")
        if "text" in part:
            self._text(part["text"], bool(part.get("thought")), signature, deltas)
        elif "functionCall" in part:
            self._call(part["functionCall"], signature, deltas)
        elif (image := _image(part)) is not None:
            self._close(signature)
            self._parts.append(image)
        elif part:
            self._close()
            self._parts.append(OpaquePart(VENDOR, part, mediated=not any(key in part for key in BY_VENDOR)))

    def _text(self, text: str, thought: bool, signature: str | None, deltas: list[AnyDelta]) -> None:
        kind = ThinkingPart if thought else TextPart
        if not text:
            if signature:
                self._close()
                self._parts.append(ThinkingPart("", signature, redacted=True, vendor=VENDOR))
            return
        if signature or kind is not self._open:
            self._close(None if thought else signature)
        deltas.append((ThinkingDelta if thought else TextDelta)(text, len(self._parts)))
        self._open = kind
        self._pieces.append(text)
        if signature:
            self._close(own=signature if thought else None)

    def _call(self, call: dict[str, Any], signature: str | None, deltas: list[AnyDelta]) -> None:
        self._close(signature)
        arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
        deltas.append(ArgumentsDelta(arguments, len(self._parts), name=call["name"]))
        self._parts.append(ToolCallPart(call["name"], arguments, vendor_id=call.get("id")))

    def _close(self, signature: str | None = None, *, own: str | None = None) -> None:
        """End the open part; `signature` is that of the part that follows, `own` that of this one."""
        text = "".join(self._pieces)
        if self._open is ThinkingPart:
            self._parts.append(ThinkingPart(text, own, vendor=VENDOR))
        elif self._open is TextPart:
            self._parts.append(TextPart(text))
        self._open = None
        self._pieces = []
        if signature:
            self._parts.append(ThinkingPart("", signature, vendor=VENDOR))


def _image(part: dict[str, Any]) -> ImagePart | None:
    data = part.get("inlineData") or part.get("fileData") or {}
    kind = data.get("mimeType", "")
    if part.get("thought") or not kind.startswith("image/"):
        return None
    if "data" in data:
        return ImagePart(b64decode(data["data"]), media_type=kind)
    return ImagePart(url=data.get("fileUri"), media_type=kind)
