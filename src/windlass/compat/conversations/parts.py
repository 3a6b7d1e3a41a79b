"""What the formats share: texts, media as URLs, and arguments of calls."""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from windlass.messages import (
    AudioPart,
    ContentPart,
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    VideoPart,
    thawed,
)

Wire = dict[str, Any]

FIELDS = "fields"
"""The key of what a format says beside a part; it follows the part as an opaque part."""
RESULT = "result"
"""The key of what a format says beside a result of a tool; it is in the content of the result."""
MESSAGE = "message"
"""The key of what a format says beside a message; it is the last part of the message."""


class BadConversation(ValueError):
    """A message that cannot be read."""


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """The value, if it is an object: a mapping, or what an SDK of a vendor makes of one."""
    if isinstance(value, Mapping):
        return value
    dump: Any = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        dumped: Mapping[str, Any] = dump(mode="json", exclude_none=True)
        return dumped
    raise BadConversation(f"{what} must be an object, not a {type(value).__name__}")


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


class Reading:
    """What is known while a conversation is read: tools by the ids of calls, and what had to be left out."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.left_out: list[str] = []
        self.index = 0

    def leave_out(self, what: str) -> None:
        """Name something that is not kept."""
        self.left_out.append(f"message {self.index}: {what}")

    def kept(self, vendor: str, given: Mapping[Any, Any], *known: str, key: str = FIELDS) -> list[OpaquePart]:
        """The fields that are not known, as an opaque part: writing in the same format puts them back. What has no JSON
        form is left out."""
        fields: dict[str, Any] = {}
        for name, value in given.items():
            if name in known or value is None:
                continue
            try:
                OpaquePart(vendor, {name: value})
            except TypeError:
                self.leave_out(f"{name!r}, which has no JSON form")
            else:
                fields[name] = value
        return [OpaquePart(vendor, {key: fields})] if fields else []

    def opaque(self, vendor: str, block: Mapping[Any, Any], *, mediated: bool = True) -> list[OpaquePart]:
        """A block of a kind that Windlass does not know, as an opaque part."""
        try:
            return [OpaquePart(vendor, dict(block), mediated)]
        except TypeError:
            self.leave_out(f"a block of the type {block.get('type')!r}, which has no JSON form")
            return []


def kept_fields(part: Any, vendor: str, key: str) -> Wire | None:
    """What `Reading.kept` made an opaque part of; None for any other part."""
    if type(part) is not OpaquePart or part.vendor != vendor or not isinstance(part.data, Mapping):
        return None
    found = part.data.get(key) if len(part.data) == 1 else None
    return thawed(found) if isinstance(found, Mapping) else None


def put_back(wire: Wire, fields: Wire) -> None:
    """Put fields back into an object; objects in both become one."""
    for name, value in fields.items():
        known = wire.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            put_back(known, value)
        else:
            wire[name] = value


def call_of(id: Any, name: Any, arguments: Any, reading: Reading) -> ToolCallPart:
    """A call of a tool."""
    given, tool = text(id, "the id of a call"), text(name, "the name of a tool")
    reading.names[given] = tool
    return ToolCallPart(tool, arguments_text(arguments), vendor_id=given)


def succeeded(part: ToolResultPart) -> bool:
    """Whether a result is what was asked for."""
    return part.status in ("ok", "answered", "responded")


def arguments_text(value: Any) -> str:
    """The arguments of a call as JSON."""
    if isinstance(value, str):
        return value or "{}"
    try:
        return json.dumps(value if value is not None else {}, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadConversation(f"the arguments of a call have no JSON form: {error}") from error


def arguments_object(written: str) -> dict[str, Any] | None:
    """The arguments of a call as an object, or None if the model did not write one."""
    try:
        value = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


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


def url_of(part: ImagePart | DocumentPart | AudioPart | VideoPart) -> str:
    """The URL of a part, with the data in it if there is no other."""
    return part.url or f"data:{part.media_type};base64,{encoded(part.data or b'')}"


def note(part: Any) -> str:
    """What stands for a part that a format has no place for."""
    kind = type(part).__name__.removesuffix("Part").lower()
    media_type = getattr(part, "media_type", None) or getattr(part, "vendor", "")
    return f"[{kind}: {media_type}]"


def described(parts: tuple[ContentPart, ...]) -> str:
    """Content as text only."""
    shown = [part for part in parts if type(part) is not OpaquePart]
    return "".join([part.text if type(part) is TextPart else note(part) for part in shown])


class Ids:
    """The ids of calls in a list that is written: the vendor's where it is unique, else Windlass's own. And what had to
    be left out of the list."""

    def __init__(self, messages: list[Message]) -> None:
        self.left_out: list[str] = []
        self.index = 0
        self._ids: dict[str, str] = {}
        used: set[str] = set()
        for call in [call for message in messages for call in message.tool_calls]:
            id = call.vendor_id or ""
            if not id or id in used:
                id = _UNUSUAL.sub("_", call.id) or id
            used.add(id)
            self._ids[call.id or id] = self._ids[id] = id

    def leave_out(self, what: str) -> None:
        """Name something that the format has no place for."""
        self.left_out.append(f"message {self.index}: {what}")

    def leave_out_part(self, part: Any) -> None:
        """Name a part that the format has no place for."""
        if type(part) is not OpaquePart:
            self.leave_out("thinking")
        elif not (isinstance(part.data, Mapping) and {FIELDS, RESULT, MESSAGE} & part.data.keys()):
            self.leave_out(f"data of {part.vendor}")
        else:
            [fields] = part.data.values() if len(part.data) == 1 else [part.data]
            names = ", ".join(map(repr, fields)) if isinstance(fields, Mapping) else "something"
            self.leave_out(f"{names} of {part.vendor}")

    def call(self, part: ToolCallPart) -> str:
        """The id of a call."""
        return self._ids[part.id or part.vendor_id or ""]

    def result(self, part: ToolResultPart) -> str:
        """The id of the call that a result is of."""
        return self._ids.get(part.call_id, part.call_id)


_UNUSUAL = re.compile(r"[^a-zA-Z0-9_-]")
