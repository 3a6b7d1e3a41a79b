"""Builds an answer from its chunks (a whole answer is one chunk), and returns what each adds.

A signature belongs to one part. The signature of a text, call or image is kept in an empty `ThinkingPart` before that
part. A signature with an empty text has no other part, and its `ThinkingPart` is `redacted`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ConnectionFailed, ContentFiltered
from windlass.messages import Message, ModelReply, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart
from windlass.models.errors import reading_reply
from windlass.models.parts import text_in

from .arguments import put
from .decode import FINISHES, MALFORMED, finish_of, media_of, usage_of
from .encode import REMARKS, VENDOR
from .errors import error_from

# Parts for tools that Gemini runs itself, without our hooks.
BY_VENDOR = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
UNMEDIATED = ("groundingMetadata", "urlContextMetadata")

Json: TypeAlias = dict[str, Any]


class Assembly:
    """One answer, as far as it has arrived."""

    def __init__(self, *, streamed: bool = False, newer: bool = False) -> None:
        self._streamed = streamed
        self._newer = newer
        self._parts: list[Part] = []
        self._pieces: list[str] = []
        self._calling: Json | None = None
        self._signature: str | None = None
        self._open: type[TextPart] | type[ThinkingPart] | None = None
        self._remarks: Json = {}
        self._usage: Json = {}
        self._finish: str | None = None
        self._about: Json = {}

    def feed(self, chunk: Any) -> list[AnyDelta]:
        """Add the next chunk; returns its deltas."""
        with reading_reply():
            return self._take(chunk)

    def reply(self) -> ModelReply:
        """The whole reply; raises if a stream broke off before its finish."""
        raw = self._finish
        if raw is None and self._streamed:
            raise ConnectionFailed("Gemini's answer broke off", retryable=True, request_id=self._id)
        self._close()
        message = Message("assistant", (*self._parts, *self._remark_parts()))
        if raw in MALFORMED and not message.tool_calls:
            text = f"Gemini could not read its model's answer: {self._about.get('finishMessage') or raw}"
            raise BadReply(text, retryable=True, request_id=self._id)
        if raw is None and not message.parts:
            raise BadReply("Gemini's answer is empty", retryable=True, request_id=self._id)
        finish = finish_of(raw, calls=bool(message.tool_calls))
        usage = usage_of(self._usage, self._remarks.get("groundingMetadata") or {}, by_query=self._newer)
        return ModelReply(message, usage, finish, text_in(self._about, "modelVersion") or None, raw, self._id)

    @property
    def _id(self) -> str | None:
        return text_in(self._about, "responseId") or None

    def _take(self, chunk: Json) -> list[AnyDelta]:
        if type(chunk) is not dict:
            raise TypeError(f"not a JSON object: {str(chunk)[:200]}")
        deltas: list[AnyDelta] = []
        if candidates := chunk.get("candidates"):
            for first in [candidate for candidate in candidates if not candidate.get("index")][:1]:
                self._candidate(first, deltas)
        elif "error" in chunk:
            raise error_from(chunk["error"])
        if usage := chunk.get("usageMetadata"):
            self._usage.update(usage)
        for name in ("modelVersion", "responseId"):
            if name in chunk:
                self._about[name] = chunk[name]
        feedback = chunk.get("promptFeedback") or {}
        reason = feedback.get("blockReason")
        if reason and not reason.endswith("UNSPECIFIED"):
            why = ": ".join(filter(None, [reason, feedback.get("blockReasonMessage")]))
            raise ContentFiltered(f"Gemini refuses the prompt: {why}", request_id=self._id)
        return deltas

    def _candidate(self, candidate: Json, deltas: list[AnyDelta]) -> None:
        for name, value in candidate.items():
            if not value:
                continue
            if name == "content":
                for part in value.get("parts") or ():
                    self._part(part, deltas)
            elif name == "finishReason":
                self._finish = value
            elif name in REMARKS:
                self._remarks[name] = {**self._remarks.get(name, {}), **value}
            elif name in ("finishMessage", "safetyRatings", "continuationToken"):
                self._about[name] = value
        if self._finish is not None:
            self._end_call(deltas, cut_off=FINISHES.get(self._finish) == "length")

    def _part(self, part: Json, deltas: list[AnyDelta]) -> None:
        for key in part:
            if key in CODECS:
                CODECS[key](self, part, part.get("thoughtSignature"), deltas)
                return
        if part:
            self._keep(part)

    def add_text(self, part: Json, signature: str | None, deltas: list[AnyDelta]) -> None:
        """Add a piece of text, of the answer or of a thought."""
        text = text_in(part, "text")
        thought = part.get("thought")
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

    def add_call(self, part: Json, signature: str | None, deltas: list[AnyDelta]) -> None:
        """Add a call. If the request asked for its arguments in pieces, its delta comes when they are complete."""
        call = part["functionCall"]
        if self._calling is not None and _begins(call, self._calling):
            self._end_call(deltas)
        if self._calling is None and not call:
            return
        if self._calling is None:
            self._calling = {**call, "args": call.get("args") or {}}
        self._signature = signature or self._signature
        for piece in call.get("partialArgs") or ():
            put(self._calling["args"], piece)
        if not call.get("willContinue"):
            self._end_call(deltas)

    def _end_call(self, deltas: list[AnyDelta], *, cut_off: bool = False) -> None:
        """End the open call. If it was cut off, its JSON is left invalid, so that nothing takes it for complete."""
        call, signature = self._calling, self._signature
        self._calling = self._signature = None
        if call is None:
            return
        self._close(signature)
        name, arguments = text_in({"name": call["name"]}, "name"), json.dumps(call["args"], ensure_ascii=False)
        if cut_off:
            arguments = arguments[:-1]
        deltas.append(ArgumentsDelta(arguments, len(self._parts), name=name))
        self._parts.append(ToolCallPart(name, arguments, vendor_id=text_in(call, "id") or None))

    def add_file(self, part: Json, signature: str | None, deltas: list[AnyDelta]) -> None:
        """Add an image, a sound or a video; any other file is kept as it is."""
        media = media_of(part)
        if media is None:
            self._keep(part)
        else:
            self._close(signature)
            self._parts.append(media)

    def _keep(self, part: Json) -> None:
        self._close()
        self._parts.append(OpaquePart(VENDOR, part, mediated=not any(key in part for key in BY_VENDOR)))

    def _close(self, signature: str | None = None, *, own: str | None = None) -> None:
        """End the open part; `signature` belongs to the next part, `own` to this one."""
        if self._open is not None:
            text = "".join(self._pieces)
            thought = self._open is ThinkingPart
            self._parts.append(ThinkingPart(text, own, vendor=VENDOR) if thought else TextPart(text))
            self._open = None
            self._pieces = []
        if signature:
            self._parts.append(ThinkingPart("", signature, vendor=VENDOR))

    def _remark_parts(self) -> list[Part]:
        """Opaque parts with facts about the answer: its sources, and why it ended early."""
        remarks = [(name in UNMEDIATED, {name: value}) for name, value in self._remarks.items()]
        if self._finish in FINISHES:
            why: Json = {
                name: self._about[name] for name in ("finishMessage", "continuationToken") if name in self._about
            }
            if FINISHES[self._finish] == "content_filter" and "safetyRatings" in self._about:
                why["safetyRatings"] = self._about["safetyRatings"]
            remarks += [(False, {"finish": why})] if why else []
        return [OpaquePart(VENDOR, data, mediated=not by_vendor) for by_vendor, data in remarks]


def _begins(call: Json, before: Json) -> bool:
    """Whether this is a new call, although the previous one has no end marker."""
    return "name" in call and ("partialArgs" not in call or call["name"] != before["name"])


Codec: TypeAlias = Callable[[Assembly, Json, str | None, list[AnyDelta]], None]
CODECS: dict[str, Codec] = {
    "text": Assembly.add_text,
    "functionCall": Assembly.add_call,
    "inlineData": Assembly.add_file,
    "fileData": Assembly.add_file,
}
