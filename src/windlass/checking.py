"""Checks values from user code once, where they enter: a value that a log could not return unchanged is refused.

Each function returns the value as a log returns it, which is usually the value itself: common shapes are checked by
hand, in a fraction of a microsecond. Anything unusual is converted: a list of parts becomes a tuple. The error is a
`TypeError` that says what is wrong; the caller adds where the value came from.
"""

from __future__ import annotations

import datetime
import decimal
import json as stdlib_json
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeGuard, TypeVar, get_args

import msgspec
from msgspec import Struct

from .decisions import Allow, Answer, AnyResolution, Decision, Deny, Edit, Finish, Regenerate, Veto, Vote
from .errors import BadReply, ConfigError
from .messages import (
    CONTENT_PARTS,
    MEDIA_PARTS,
    ContentPart,
    FilePart,
    FrozenDict,
    FrozenList,
    Message,
    Messages,
    ModelReply,
    ModelRequest,
    OpaquePart,
    RateLimits,
    Status,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    ToolSpec,
    Usage,
    as_message,
    as_parts,
    as_reply,
    checked_data,
    json_with_surrogates,
    plain,
    render,
)

T = TypeVar("T")

_STATUSES = frozenset(get_args(Status))
_ROLES = ("user", "assistant", "tool")
_NATIVE = (
    bytes, bytearray, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal,
)  # fmt: skip
"""Types that `to_builtins` leaves alone, so that none of them is mistaken for text."""


# ---------------------------------------------------------------- any value


def read_back(value: object, kind: Any) -> Any:
    """The value as a log returns it, converted to this type; TypeError if a log could not return it."""
    try:
        typed = msgspec.convert(msgspec.to_builtins(value, builtin_types=_NATIVE), kind)
        try:
            read = _decoder(kind).decode(msgspec.json.encode(typed))
        except UnicodeEncodeError:  # a lone surrogate
            read = msgspec.convert(stdlib_json.loads(json_with_surrogates(msgspec.to_builtins(typed))), kind)
        _compare(read, value, "")
        return read
    except RecursionError:
        raise TypeError("it contains itself, or is nested too deeply") from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise TypeError(_reason(value, error)) from None


def _compare(read: Any, value: Any, path: str) -> None:
    """Raise unless a value reads back unchanged; only a list may become a tuple."""
    if isinstance(read, Struct):
        if type(value) is not type(read):
            raise TypeError(f"Expected {type(read).__name__}, got {type(value).__name__} - at `${path}`")
        for name in read.__struct_fields__:
            _compare(getattr(read, name), getattr(value, name), f"{path}.{name}")
    elif isinstance(read, list | tuple) and isinstance(value, list | tuple):
        for at, (one, other) in enumerate(zip(read, value, strict=True)):
            _compare(one, other, f"{path}[{at}]")
    elif read != value:
        raise TypeError(f"it would be read as {read!r:.60}, not as {value!r:.60} - at `${path}`")


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _reason(value: object, error: Exception) -> str:
    """What is wrong with a value: where, what was expected, and what to write instead."""
    what, _, path = str(error).partition(" - at `$")
    where = f"{type(value).__name__}{path.removesuffix('`')}"
    hint = ""
    if path.endswith(("parts`", "content`")) and "`array`" in what:
        hint = "; pass a tuple of parts, such as (TextPart('hello'),)"
        text = getattr(value, "parts", None)
        if type(text) is str and isinstance(value, Message) and value.role != "tool":
            hint += f", or use {value.role}({text[:40]!r})"
    return f"{where}: {what.replace('`', '')}{hint}"


# ---------------------------------------------------------------- parts and messages


def _is_name(value: object) -> bool:
    return value is None or type(value) is str


def _is_part(part: Any) -> bool:
    """Whether a part has the types that a log returns."""
    kind = type(part)
    if kind is TextPart:
        return type(part.text) is str and (part.origin is None or type(part.origin) is str)
    if kind is ToolCallPart:
        return type(part.name) is type(part.json) is type(part.id) is str and _is_name(part.vendor_id)
    if kind is ThinkingPart:
        return (
            type(part.text) is str
            and type(part.redacted) is bool
            and _is_name(part.signature)
            and _is_name(part.vendor)
        )
    if kind is ToolResultPart:
        has_names = type(part.call_id) is type(part.name) is str
        return has_names and _is_content(part.content) and _is_status(part.status)
    return _is_content((part,))


def _is_content(parts: Any) -> bool:
    """Whether these are content parts with the types that a log returns."""
    if type(parts) is not tuple:
        return False
    for part in parts:
        kind = type(part)
        if kind is TextPart:
            if type(part.text) is not str or not _is_name(part.origin):
                return False
        elif kind in MEDIA_PARTS:
            if not _is_media(part):
                return False
        elif kind is not OpaquePart or type(part.vendor) is not str or type(part.mediated) is not bool:
            return False  # the data of an opaque part is checked when it is made
    return True


def _is_media(part: Any) -> bool:
    if type(part.media_type) is not str or not _is_name(part.origin) or not _is_name(getattr(part, "name", None)):
        return False
    if type(part) is FilePart:
        return type(part.id) is type(part.vendor) is str
    return (part.data is None or type(part.data) is bytes) and _is_name(part.url)


def _is_status(status: Any) -> bool:
    return type(status) is str and status in _STATUSES


def _is_message(message: Message) -> bool:
    if type(message.parts) is not tuple or message.role not in _ROLES or not _is_name(message.origin):
        return False
    for part in message.parts:
        if not _is_part(part):
            return False
    return type(message.id) is str and type(message.partial) is bool


def checked_message(message: Message) -> Message:
    """A message as a log returns it."""
    if _is_message(message):
        return message
    read: Message = read_back(message, Message)
    return read


def message_without_calls(value: object) -> Message:
    """A text or a message without tool calls and results, which only steps may add."""
    message = checked_message(as_message(value))
    if message.role == "tool":
        raise TypeError("role 'tool' is reserved for the results of a step: use 'user' or 'assistant'")
    for part in message.parts:
        if type(part) is ToolCallPart or type(part) is ToolResultPart:
            raise TypeError(f"a message cannot contain a {type(part).__name__}: only a step adds calls and results")
    return message


def checked_import(session: str, messages: Iterable[Any]) -> list[Message]:
    """An existing history as the transcript of a session: each call has its result in the next message, in order.

    Calls get ids of the session. Results may come in several messages, and in any order. Raises `ConfigError` with the
    number of the first message that does not fit.
    """
    history: list[Message] = []
    calls: dict[str, ToolCallPart] = {}
    results: dict[str, ToolResultPart] = {}
    count = 0

    def close(index: int) -> None:
        if missing := [key for key in calls if calls[key].id not in results]:
            raise _bad_import(index, f"call {missing[0]!r} has no result: a tool message with it must come next")
        if calls:
            paired = [results[call.id] for call in dict.fromkeys(calls.values())]
            history.append(Message("tool", tuple(paired)))
        calls.clear()
        results.clear()

    if isinstance(messages, str | Message):
        raise ConfigError(f"a history must be a list of messages, not a {type(messages).__name__}")
    for index, given in enumerate(messages):
        if type(given) is not Message:
            raise _bad_import(index, f"it is a {type(given).__name__}, not a Message")
        try:
            message = checked_message(given)
        except TypeError as error:
            raise _bad_import(index, str(error)) from None
        if message.role != "tool":
            close(index)
        parts: list[Any] = []
        for part in message.parts:
            if type(part) is ToolCallPart:
                count += 1
                parts.append(_import_call(index, message, part, calls, f"{session}/h{count}"))
            elif type(part) is ToolResultPart:
                _import_result(index, message, part, calls, results)
            elif message.role == "tool":
                raise _bad_import(index, f"a tool message has results only, not a {type(part).__name__}")
            else:
                parts.append(part)
        if message.role != "tool":
            history.append(message.replace(parts=tuple(parts), id=""))
    if not history:
        raise ConfigError("the history has no messages")
    close(len(history))
    return history


def _import_call(
    index: int, message: Message, part: ToolCallPart, calls: dict[str, ToolCallPart], id: str
) -> ToolCallPart:
    if message.role != "assistant":
        raise _bad_import(index, f"a {message.role} message cannot call a tool")
    keys = [key for key in (part.id, part.vendor_id) if key]
    if not keys:
        raise _bad_import(index, f"the call of {part.name!r} has neither an id nor a vendor_id")
    call = part.replace(id=id)
    for key in dict.fromkeys(keys):
        if key in calls:
            raise _bad_import(index, f"two calls have the id {key!r}")
        calls[key] = call
    return call


def _import_result(
    index: int,
    message: Message,
    part: ToolResultPart,
    calls: dict[str, ToolCallPart],
    results: dict[str, ToolResultPart],
) -> None:
    call = calls.get(part.call_id)
    if message.role != "tool":
        raise _bad_import(index, f"a {message.role} message cannot have the result of a tool")
    if call is None:
        raise _bad_import(index, f"the result of {part.call_id!r} has no call in the message before it")
    if call.id in results:
        raise _bad_import(index, f"call {part.call_id!r} has two results")
    if part.name and part.name != call.name:
        raise _bad_import(index, f"call {part.call_id!r} is of tool {call.name!r}, but its result of {part.name!r}")
    results[call.id] = part.replace(call_id=call.id, name=call.name)


def _bad_import(index: int, what: str) -> ConfigError:
    return ConfigError(f"message {index} of the history cannot be imported: {what}")


def checked_parts(value: object, origin: str | None = None) -> tuple[ContentPart, ...]:
    """A text, a part or a list of them as content parts with their origin."""
    parts = as_parts(value, origin)
    if _is_content(parts):
        return parts
    read: tuple[ContentPart, ...] = read_back(parts, tuple[ContentPart, ...])
    return read


# ---------------------------------------------------------------- replies, requests, calls and results


def is_reply(reply: Any) -> TypeGuard[ModelReply]:
    """Whether this is a reply with the types that a log returns."""
    if type(reply) is not ModelReply or type(message := reply.message) is not Message:
        return False
    if type(parts := message.parts) is not tuple:
        return False
    for part in parts:
        if type(part) is ToolCallPart:
            if type(part.name) is not str or type(part.json) is not str:
                return False
            if part.id is not _NO_ID and type(part.id) is not str:
                return False
            if part.vendor_id is not None and type(part.vendor_id) is not str:
                return False
        elif type(part) is ToolResultPart or not _is_part(part):
            return False
    if message.role not in _ROLES or not (message.partial is False or message.partial is True):
        return False
    if message.id is not _NO_ID and type(message.id) is not str:
        return False
    if reply.usage is not _NO_USAGE and not _is_usage(reply.usage):
        return False
    if reply.limits is not None and type(reply.limits) is not RateLimits:
        return False
    if type(reply.finish) is not str or (reply.client_calls is not _NO_NAMES and not _are_names(reply.client_calls)):
        return False
    if message.origin is None and reply.model is None and reply.raw_finish is None and reply.response_id is None:
        return True
    return all(map(_is_name, (message.origin, reply.model, reply.raw_finish, reply.response_id)))


def _is_usage(usage: Any) -> bool:
    return (
        type(usage) is Usage
        and type(usage.input) is int
        and type(usage.output) is int
        and type(usage.cached) is int
        and type(usage.cache_written) is int
        and type(usage.reasoning) is int
        and type(usage.requests) is int
        and (usage.cost is None or (type(usage.cost) is float and usage.cost - usage.cost == 0.0))
        and (usage.details is _NO_USAGE.details or _are_counts(usage.details))
    )


def _are_counts(details: Any) -> bool:
    return isinstance(details, Mapping) and all(type(name) is str and type(n) is int for name, n in details.items())


def _are_names(names: Any) -> bool:
    return type(names) is tuple and all(type(name) is str for name in names)


_NO_ID = Message("assistant").id
_NO_USAGE = ModelReply(Message("assistant")).usage
_NO_NAMES = ModelReply(Message("assistant")).client_calls


def checked_reply(value: object) -> ModelReply:
    """A reply, a message or a text as a full reply, as a log returns it."""
    if is_reply(value):
        return value
    reply = as_reply(value)
    if is_reply(reply):
        return reply
    read: ModelReply = read_back(reply, ModelReply)
    if any(type(part) is ToolResultPart for part in read.message.parts):
        raise TypeError("a reply cannot contain the results of tools")
    return read


def reply_of(model: str, value: object) -> ModelReply:
    """The reply of a model; raises `BadReply` with the model's name if it is not a valid reply."""
    if is_reply(value):
        return value
    try:
        return checked_reply(value)
    except (BadReply, TypeError) as error:
        raise BadReply(f"model {model!r} returned an invalid reply: {error}") from None


def checked_request(request: ModelRequest, known: ModelRequest) -> ModelRequest:
    """A request made from a known one; the fields that changed must have proper types."""
    for name, is_proper, what in _REQUEST:
        value: Any = getattr(request, name)
        if value is not getattr(known, name) and not is_proper(value):
            raise TypeError(f"{name} must be {what}, got {type(value).__name__}")
    if request.messages is not known.messages:
        messages = checked_history(request.messages, known.messages)
        if messages is not request.messages:
            return request.replace(messages=messages)
    return request


def _are_specs(tools: Any) -> bool:
    return type(tools) is tuple and all(
        type(spec) is ToolSpec
        and type(spec.name) is type(spec.description) is str
        and all(isinstance(field, Mapping) for field in (spec.schema, spec.native))
        for spec in tools
    )


_REQUEST: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("system", lambda value: type(value) is str, "a str"),
    ("side", lambda value: type(value) is str, "a str"),
    ("model", lambda value: type(value) is str, "the name of a model"),
    ("tools", _are_specs, "a tuple of ToolSpecs"),
    ("sections", _is_content, "a tuple of TextParts"),
    ("settings", lambda value: isinstance(value, Mapping), "a mapping"),
    ("output", lambda value: value is None or isinstance(value, Mapping), "a mapping or None"),
)


def checked_history(messages: Iterable[Any], known: Iterable[Message]) -> Messages:
    """A list of messages; the ones that are not in `known` are checked."""
    if isinstance(messages, str | Message):
        raise TypeError(f"messages must be a list of messages, not {type(messages).__name__}")
    trusted = {id(message) for message in known}
    checked: list[Message] = []
    changed = type(messages) is not Messages
    for index, message in enumerate(messages):
        if id(message) not in trusted:
            if type(message) is not Message:
                raise TypeError(f"message {index} is a {type(message).__name__}, not a Message")
            if (read := checked_message(message)) is not message:
                message, changed = read, True
        checked.append(message)
    return Messages(checked) if changed else messages  # type: ignore[return-value]


def checked_call(call: ToolCall) -> ToolCall:
    """A changed call, as a log returns it."""
    if type(call.name) is type(call.json) is type(call.id) is str and _is_name(call.vendor_id):
        return call
    read: ToolCall = read_back(call, ToolCall)
    return read


def is_result(result: Any) -> bool:
    """Whether this is a tool result with the types that a log returns."""
    if type(result) is not ToolResult or not _is_content(result.content) or not _is_status(result.status):
        return False
    return result.data is None or type(result.data) in _PLAIN


_PLAIN = {str, bool, FrozenDict, FrozenList}
"""Types of data that needs no check: `plain` makes the read-only ones."""


def checked_result(value: object, status: Status = "ok") -> ToolResult:
    """Any value as a tool result, as a log returns it."""
    if type(value) is not ToolResult and not isinstance(value, list | tuple | Struct):
        return ToolResult(render(value), status)
    result = value if type(value) is ToolResult else ToolResult(render(value), status)
    if is_result(result):
        return result
    if result.data is not None:
        result = result.replace(data=checked_data(result.data))
        if _is_content(result.content) and _is_status(result.status):
            return result
    read: ToolResult = read_back(result, ToolResult)
    return read


def checked_resolution(answer: AnyResolution) -> AnyResolution:
    """A person's answer as a log returns it."""
    if isinstance(answer, Edit):
        if not isinstance(answer.arguments, dict):
            raise TypeError(f"Edit takes a mapping of arguments, not {type(answer.arguments).__name__}")
        answer = Edit(plain(answer.arguments), answer.by, answer.digest)
    read: AnyResolution = read_back(answer, type(answer))
    return read


def check_reason(reason: object) -> None:
    """Raise `ConfigError` unless the reason of a cancel is a str."""
    if type(reason) is not str:
        raise ConfigError(f"the reason of a cancel must be a str, not {type(reason).__name__}")


# ---------------------------------------------------------------- decisions


def checked_decision(decision: Decision | Vote, *, reply: bool = False) -> Any:
    """A decision as a log returns it. With `reply`, an `Answer` replaces a model's reply."""
    kind = type(decision)
    if kind is Allow or kind is Vote:
        return decision
    if isinstance(decision, Answer):
        value = _checked_reply_value(decision.value) if reply else _checked_value(decision.value)
        return decision if value is decision.value else Answer(value)
    if isinstance(decision, Finish):
        return Finish(_final_value(decision.value))
    if isinstance(decision, Deny) and type(decision.reason) is str:
        return decision
    if isinstance(decision, Regenerate | Veto) and type(decision.feedback) is str:
        return decision
    return read_back(decision, kind)


def _checked_reply_value(value: Any) -> Any:
    """A text, a message or a reply; the type stays the same."""
    if type(value) is str:
        return value
    reply = checked_reply(value)
    return reply.message if type(value) is Message else reply


def _checked_value(value: Any) -> Any:
    """A result, content parts or any plain value; the type stays the same."""
    if type(value) is str:
        return value
    if type(value) is ToolResult:
        return checked_result(value)
    if type(value) is ModelReply:
        return checked_reply(value)
    if type(value) is Message:
        return checked_message(value)
    if isinstance(value, CONTENT_PARTS) or _are_parts(value):
        return checked_parts(value)
    return plain(value)


def _final_value(value: Any) -> Any:
    """The value that completes a turn: a plain value, or the text of a result, a message or parts."""
    if type(value) is str:
        return value
    checked = _checked_value(value)
    if isinstance(checked, ToolResult | Message | ModelReply):
        return checked.text
    return ToolResult(checked).text if type(checked) is tuple else checked


def _are_parts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(part, CONTENT_PARTS) for part in value)
