"""A `ModelRequest` as the JSON that Gemini takes: a codec per kind of part, and no message encoded twice."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from windlass.messages import (
    ImagePart,
    Message,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    thawed,
)

VENDOR = "google"
KEPT_MESSAGES = 8192
FINE = ("ok", "answered", "responded")
# Said about a whole answer; there is no place for it in a request.
REMARKS = ("groundingMetadata", "urlContextMetadata", "citationMetadata")
# Gemini 3 refuses a call without a signature, unless it has this one: the call was made by another model.
NOT_SIGNED = b64encode(b"skip_thought_signature_validator").decode()
GENERATION = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "seed": "seed",
}
CHOICES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576}

Json = dict[str, Any]


class Encoded(NamedTuple):
    """A message, what it is on the wire (None: nothing), and the ids its calls have there."""

    message: Message
    content: Json | None
    calls: dict[str, str]


class Encoder:
    """Encodes the requests of one model. What it has encoded it keeps, so that a step costs what is new in it."""

    def __init__(self, model: str) -> None:
        self._older = model.rpartition("/")[2].startswith(("gemini-1", "gemini-2"))
        self._kept: dict[int, Encoded] = {}
        self._last: tuple[list[Message], list[Json], dict[str, str]] = ([], [], {})
        self._tools: tuple[tuple[ToolSpec, ...], list[Json]] = ((), [])

    def body(self, request: ModelRequest, settings: Mapping[str, Any]) -> Json:
        """The whole request."""
        body: Json = {"contents": self.contents(request.messages)}
        if request.system:
            body["systemInstruction"] = {"parts": [{"text": request.system}], "role": "user"}
        if request.tools:
            body["tools"] = self.tools(request.tools)
            if choice := settings.get("tool_choice"):
                body["toolConfig"] = {"functionCallingConfig": _choice(choice)}
        body["generationConfig"] = self._generation(settings, request.output)
        for key, value in (settings.get("extra") or {}).items():
            _add(body, key, thawed(value))
        return body

    def contents(self, messages: Iterable[Message]) -> list[Json]:
        """The conversation. That which went before is most often that of the last request, and is taken from there."""
        items = list(messages)
        before, contents, calls = self._last
        known = len(before)
        if known and items[:known] == before:
            contents = contents.copy()
        else:
            known, contents, calls = 0, [], {}
        for message in items[known:]:
            encoded = self._message(message, calls)
            calls.update(encoded.calls)
            if encoded.content is not None:
                contents.append(encoded.content)
        self._last = (items, contents, calls)
        return contents.copy()

    def tools(self, specs: tuple[ToolSpec, ...]) -> list[Json]:
        """The declarations of the tools, made anew when they change."""
        if specs is not self._tools[0]:
            self._tools = (specs, [{"functionDeclarations": [_declaration(spec) for spec in specs]}])
        return self._tools[1].copy()

    def _message(self, message: Message, calls: Mapping[str, str]) -> Encoded:
        kept = self._kept.get(id(message))
        if kept is not None and kept.message is message:
            return kept
        content = _Content(calls, older=self._older)
        for part in message.parts:
            CODECS[type(part)](content, part)
        encoded = Encoded(message, content.json(message.role), content.calls)
        if len(self._kept) >= KEPT_MESSAGES:
            self._kept.clear()
        self._kept[id(message)] = encoded
        return encoded

    def _generation(self, settings: Mapping[str, Any], output: Mapping[str, Any] | None) -> Json:
        config: Json = {}
        for ours, theirs in GENERATION.items():
            if (value := settings.get(ours)) is not None:
                config[theirs] = value
        if isinstance(stop := config.get("stopSequences"), str):
            config["stopSequences"] = [stop]
        if (reasoning := settings.get("reasoning")) is not None:
            config["thinkingConfig"] = _thinking(reasoning, older=self._older)
        if output is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = thawed(output)
        return config


class _Content:
    """The parts of one message on their way to the wire."""

    def __init__(self, known: Mapping[str, str], *, older: bool) -> None:
        self.older = older
        self.calls: dict[str, str] = {}
        self._known = known
        self._parts: list[Json] = []
        self._after: list[Json] = []
        self._signature: str | None = None

    def sign_next(self, signature: str) -> None:
        self._flush()
        self._signature = signature

    def add(self, part: Json) -> None:
        if self._signature is not None:
            part["thoughtSignature"] = self._signature
            self._signature = None
        self._parts.append(part)

    def add_call(self, part: Json) -> None:
        first = not any("functionCall" in added for added in self._parts)
        if first and self._signature is None and not self.older:
            self._signature = NOT_SIGNED
        self.add(part)

    def add_after(self, part: Json) -> None:
        """Add a part behind all results: nothing may come between those."""
        self._after.append(part)

    def wire_id(self, call_id: str) -> str | None:
        return self._known.get(call_id) or (_made_id(call_id) if call_id else None)

    def json(self, role: str) -> Json | None:
        self._flush()
        parts = self._parts + self._after
        return {"parts": parts, "role": "model" if role == "assistant" else "user"} if parts else None

    def _flush(self) -> None:
        """A signature whose part is gone stands for itself."""
        if self._signature is not None:
            self.add({"text": ""})


def _text(content: _Content, part: TextPart) -> None:
    if part.text:
        content.add({"text": part.text})


def _thinking_part(content: _Content, part: ThinkingPart) -> None:
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
    wire = part.vendor_id or (_made_id(part.id) if part.id else None)
    call: Json = {"name": part.name, "args": part.arguments}
    if wire is not None:
        call["id"] = wire
        content.calls[part.id] = wire
    content.add_call({"functionCall": call})


def _result(content: _Content, part: ToolResultPart) -> None:
    response: Json = {"name": part.name, "response": {"output" if part.status in FINE else "error": part.text}}
    if (wire := content.wire_id(part.call_id)) is not None:
        response["id"] = wire
    blobs = [_blob(item) for item in part.content if type(item) is ImagePart]
    if blobs and not content.older:
        response["parts"] = blobs
    content.add({"functionResponse": response})
    if content.older:
        for blob in blobs:
            content.add_after(blob)


def _opaque(content: _Content, part: OpaquePart) -> None:
    if part.vendor == VENDOR and not any(key in part.data for key in REMARKS):
        content.add(thawed(part.data))


CODECS: dict[type[Part], Callable[[_Content, Any], None]] = {
    TextPart: _text,
    ThinkingPart: _thinking_part,
    ImagePart: _image,
    ToolCallPart: _call,
    ToolResultPart: _result,
    OpaquePart: _opaque,
}


def _blob(part: ImagePart) -> Json:
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": b64encode(part.data).decode()}}
    return {"fileData": {"mimeType": part.media_type, "fileUri": part.url}}


def _made_id(call_id: str) -> str:
    return "call_" + blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _declaration(spec: ToolSpec) -> Json:
    declared: Json = {"name": spec.name, "description": spec.description}
    if spec.schema:
        declared["parametersJsonSchema"] = thawed(spec.schema)
    return declared


def _choice(choice: str) -> Json:
    mode = CHOICES.get(choice)
    return {"mode": mode} if mode else {"mode": "ANY", "allowedFunctionNames": [choice]}


def _thinking(reasoning: object, *, older: bool) -> Json:
    """`reasoning` may be a bool, a word, a number of tokens, or the vendor's own mapping."""
    if isinstance(reasoning, Mapping):
        return dict(reasoning)
    if reasoning is True:
        return {"includeThoughts": True}
    if reasoning is False or reasoning == "none":
        return {"thinkingBudget": 0}
    if isinstance(reasoning, str) and not older:
        return {"includeThoughts": True, "thinkingLevel": reasoning.upper()}
    budget = BUDGETS.get(reasoning, -1) if isinstance(reasoning, str) else reasoning
    return {"includeThoughts": True, "thinkingBudget": budget}


def _add(body: Json, key: str, value: Any) -> None:
    """Add what the user says to what we say: mappings are joined, tools come behind ours, all else replaces."""
    present = body.get(key)
    if isinstance(present, dict) and isinstance(value, dict):
        for inner, item in value.items():
            _add(present, inner, item)
    elif key == "tools" and present:
        body[key] = present + value
    else:
        body[key] = value
