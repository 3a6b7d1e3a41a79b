"""What the formats share: texts, media as URLs, and arguments of calls."""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from windlass.messages import (
    ContentPart,
    DocumentPart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

Wire = dict[str, Any]


class BadConversation(ValueError):
    """A message that cannot be read."""


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """The value, if it is an object."""
    if not isinstance(value, Mapping):
        raise BadConversation(f"{what} must be an object, not a {type(value).__name__}")
    return value


def items(value: Any, what: str) -> list[Any]:
    """The value, if it is a list; none is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise BadConversation(f"{what} must be a list, not a {type(value).__name__}")
    return list(value)


def text(value: Any, what: str) -> str:
    """The value, if it is a text."""
    if not isinstance(value, str):
        raise BadConversation(f"{what} must be a text, not a {type(value).__name__}")
    return value


def texts(content: Any, what: str) -> str:
    """The text of some content, which may be a list of texts."""
    if isinstance(content, str):
        return content
    found = [
        one if isinstance(one, str) else text(mapping(one, what).get("text"), what) for one in items(content, what)
    ]
    return "".join(found)


def call_of(id: Any, name: Any, arguments: Any, names: dict[str, str]) -> ToolCallPart:
    """A call of a tool. `names` learns the name of the tool by the id of the call, for its result."""
    given, tool = text(id, "the id of a call"), text(name, "the name of a tool")
    names[given] = tool
    return ToolCallPart(tool, arguments_text(arguments), vendor_id=given)


def succeeded(part: ToolResultPart) -> bool:
    """Whether a result is what was asked for."""
    return part.status in ("ok", "answered", "responded")


def spoken_parts(message: Message) -> list[Part]:
    """The parts of a message that are neither thinking nor about tools."""
    return [part for part in message.parts if not isinstance(part, ToolCallPart | ThinkingPart | ToolResultPart)]


def arguments_text(value: Any) -> str:
    """The arguments of a call as JSON."""
    if isinstance(value, str):
        return value or "{}"
    try:
        return json.dumps(value if value is not None else {}, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadConversation(f"the arguments of a call have no JSON form: {error}") from error


def arguments_object(written: str) -> dict[str, Any]:
    """The arguments of a call as an object; empty if the model did not write one."""
    try:
        value = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def image(url: Any) -> ImagePart:
    """An image from its URL, which may contain the data."""
    where = text(url, "the URL of an image")
    if not where.startswith("data:"):
        return ImagePart(url=where)
    head, _, data = where.partition(",")
    media_type = head.removeprefix("data:").partition(";")[0]
    return ImagePart(decoded(data), media_type=media_type or "image/png")


def decoded(data: Any) -> bytes:
    """The bytes in some base64."""
    try:
        return b64decode(text(data, "base64 data"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadConversation(f"invalid base64: {error}") from error


def encoded(data: bytes) -> str:
    """Bytes as base64."""
    return b64encode(data).decode()


def url_of(part: ImagePart | DocumentPart) -> str:
    """The URL of a part, with the data in it if there is no other."""
    return part.url or f"data:{part.media_type};base64,{encoded(part.data or b'')}"


def note(part: Any) -> str:
    """What stands for a part that a format has no place for."""
    kind = type(part).__name__.removesuffix("Part").lower()
    media_type = getattr(part, "media_type", None) or getattr(part, "vendor", "")
    return f"[{kind}: {media_type}]"


def described(parts: tuple[ContentPart, ...]) -> str:
    """Content as text only."""
    return "".join([part.text if type(part) is TextPart else note(part) for part in parts])


class Ids:
    """The ids of calls in a list that is written: the vendor's where it is unique, else Windlass's own."""

    def __init__(self, messages: list[Message]) -> None:
        self._ids: dict[str, str] = {}
        used: set[str] = set()
        for call in [call for message in messages for call in message.tool_calls]:
            id = call.vendor_id or ""
            if not id or id in used:
                id = _UNUSUAL.sub("_", call.id) or id
            used.add(id)
            self._ids[call.id or id] = self._ids[id] = id

    def call(self, part: ToolCallPart) -> str:
        """The id of a call."""
        return self._ids[part.id or part.vendor_id or ""]

    def result(self, part: ToolResultPart) -> str:
        """The id of the call that a result is of."""
        return self._ids.get(part.call_id, part.call_id)


_UNUSUAL = re.compile(r"[^a-zA-Z0-9_-]")
