"""The values that a rewrite may return for each payload, and the changes that the log records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from windlass.checking import (
    checked_call,
    checked_message,
    checked_reply,
    checked_request,
    checked_result,
    read_back,
)
from windlass.errors import BadReply, IllegalAnswer
from windlass.events import Compaction, Setup
from windlass.messages import (
    Delegation,
    Message,
    Messages,
    ModelReply,
    ModelRequest,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    plain,
)
from windlass.types import AnyEvent

from .hooks import Hook


def coerced(event: type[AnyEvent], hook: Hook, old: Any, new: Any) -> Any:
    """The new payload in its proper type, or an error that names the hook and its mistake."""
    try:
        return _COERCIONS[type(old)](old, new)
    except (BadReply, TypeError, ValueError) as error:
        owner = f"{hook.kind} {hook.name!r} ({hook.source})"
        text = f"{owner} cannot change the {event.payload} of {event.__name__}: {error}"
        raise IllegalAnswer(text, hook=hook.name, event=event.__name__) from error


def _coerce_message(old: Message, new: Any) -> Message:
    if type(new) is str:
        if new != old.text and old.role == "tool":
            hint = "return a Message with changed results"
            raise ValueError(f"the text of a tool message is in its results: {hint}")
        return _message_with_text(old, new)
    if type(new) is not Message:
        raise _unexpected("a Message or a str", new)
    message = checked_message(new)
    if message.role != old.role:
        raise ValueError(f"a {old.role} message cannot become a {message.role} message")
    if _calls(message) != _calls(old):
        what = "the tool calls and results of a message"
        raise ValueError(f"{what} cannot be added, removed, renamed or changed")
    return message


def _message_with_text(old: Message, text: str) -> Message:
    """The message with another text; the same message if the text is equal."""
    return old if text == old.text else old.replace(parts=_parts_with_text(old.parts, text))


def _parts_with_text(parts: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """The parts with another text; all other parts keep their place.

    Text parts at the start and at the end that the new text still has stay as they are. The rest of the new text
    replaces the first of the others. If there is no text part, a new one follows the thinking. There is no empty text
    part.
    """
    places = [at for at, part in enumerate(parts) if type(part) is TextPart]
    if not places:
        others = [at for at, part in enumerate(parts) if type(part) is not ThinkingPart]
        at = others[0] if others else len(parts)
        return (*parts[:at], TextPart(text), *parts[at:])
    while len(places) > 1 and text.startswith(known := parts[places[0]].text):
        text = text[len(known) :]
        del places[0]
    while len(places) > 1 and text.endswith(known := parts[places[-1]].text):
        text = text[: len(text) - len(known)]
        del places[-1]
    new: list[Any] = list(parts)
    new[places[0]] = parts[places[0]].replace(text=text)
    gone = {*places[1:], *([] if text else places[:1])}
    return tuple([part for at, part in enumerate(new) if at not in gone])


def _calls(message: Message) -> list[tuple[str, ...]]:
    """The calls of a message with their arguments, and the calls that its results belong to."""
    calls: list[tuple[str, ...]] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            calls.append((part.id, part.name, part.json))
        elif isinstance(part, ToolResultPart):
            calls.append((part.call_id, part.name))
    return calls


def _coerce_request(old: ModelRequest, new: Any) -> ModelRequest:
    if type(new) is not ModelRequest:
        raise _unexpected("a ModelRequest made with event.request.replace(…)", new)
    return checked_request(new, old)


def _coerce_reply(old: ModelReply, new: Any) -> ModelReply:
    if type(new) is str:
        return old if new == old.text else old.replace(message=_message_with_text(old.message, new))
    if type(new) is Message:
        new = old.replace(message=new)
    if type(new) is not ModelReply:
        raise _unexpected("a ModelReply, a Message or a str", new)
    reply = checked_reply(new)
    if not _signed_parts(reply) <= _signed_parts(old):
        raise ValueError("a signed part cannot be edited: keep it or remove it")
    return reply


def _signed_parts(reply: ModelReply) -> set[ThinkingPart]:
    return {p for p in reply.message.parts if isinstance(p, ThinkingPart) and p.signature}


def _coerce_call(old: ToolCall, new: Any) -> ToolCall:
    if isinstance(new, dict):
        new = old.replace(arguments=new)
    if type(new) is not ToolCall:
        raise _unexpected("a ToolCall made with event.call.replace(arguments=…)", new)
    if (new.id, new.name) != (old.id, old.name):
        raise ValueError("only the arguments may change")
    return checked_call(new)


def _coerce_result(old: ToolResult, new: Any) -> ToolResult:
    if type(new) is str:
        return old if new == old.text else old.replace(content=_parts_with_text(old.content, new))
    return checked_result(new, old.status)


def _coerce_delegation(old: Delegation, new: Any) -> Delegation:
    """Another task, a smaller share, fewer tools. A later rewrite cannot restore them."""
    if type(new) is str:
        new = old.replace(task=new)
    if type(new) is not Delegation:
        raise _unexpected("a Delegation made with event.task.replace(…), or a str", new)
    if new.agent != old.agent:
        raise ValueError("the task cannot be given to another agent")
    if type(new.task) is not str:
        raise TypeError(f"a task must be a str, not {type(new.task).__name__}")
    if new.share is not None and not 0 < new.share <= 1:
        raise ValueError(f"a share must be above 0 and at most 1, not {new.share}")
    if old.share is not None and (new.share is None or new.share > old.share):
        raise ValueError(f"the share of {old.share} can only be reduced, not set to {new.share}")
    if added := _added_tools(old, new):
        known = ", ".join(old.tools or ()) or "none"
        raise ValueError(f"tools can only be removed from {known}; it adds {', '.join(added)}")
    delegation: Delegation = read_back(new, Delegation)
    return delegation


def _added_tools(old: Delegation, new: Delegation) -> list[str]:
    if old.tools is None:
        return []
    return ["all"] if new.tools is None else [name for name in new.tools if name not in old.tools]


def _coerce_compaction(old: Compaction, new: Any) -> Compaction:
    """Another range or other instructions.

    The kernel adjusts the range so that it separates no call from its result.
    """
    if type(new) is tuple:
        new = old.replace(range=new)
    if type(new) is str:
        new = old.replace(instructions=new)
    if type(new) is not Compaction:
        raise _unexpected("a Compaction made with event.plan.replace(…)", new)
    if (new.by, new.reason) != (old.by, old.reason):
        raise ValueError("only the range and the instructions may change")
    plan: Compaction = read_back(new, Compaction)
    bounds: Any = plan.range
    if [type(at) for at in bounds] != [int, int] or not 0 <= bounds[0] < bounds[1]:
        raise ValueError(f"a range must be (first, end) with 0 <= first < end, not {bounds!r}")
    return plan


def _coerce_setup(old: Setup, new: Any) -> Setup:
    if type(new) is not Setup:
        raise _unexpected("a Setup made with event.setup.replace(…)", new)
    tools: Any = new.tools
    if isinstance(tools, list | tuple):
        tools = tuple([getattr(tool, "spec", tool) for tool in tools])
    setup: Setup = read_back(new.replace(tools=tools), Setup)
    specs = [spec.replace(schema=plain(spec.schema)) for spec in setup.tools]
    return setup.replace(tools=tuple(specs))


def _coerce_text(old: str, new: Any) -> str:
    if not isinstance(new, str):
        raise _unexpected("str", new)
    return str.__str__(new)


def _unexpected(expected: str, value: object) -> TypeError:
    return TypeError(f"expected {expected}, got {type(value).__name__}")


_COERCIONS: dict[type, Callable[[Any, Any], Any]] = {
    Message: _coerce_message,
    ModelRequest: _coerce_request,
    ModelReply: _coerce_reply,
    ToolCall: _coerce_call,
    ToolResult: _coerce_result,
    str: _coerce_text,
    Setup: _coerce_setup,
    Compaction: _coerce_compaction,
    Delegation: _coerce_delegation,
}


def changes(old: Any, new: Any) -> dict[str, Any]:
    """The new values of the fields that differ, as plain values. Only new messages are included."""
    if old is new:
        return {}
    if not isinstance(old, msgspec.Struct):
        return {} if old == new else {"value": _as_plain(new)}
    changed: dict[str, Any] = {}
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before is after:
            continue
        if isinstance(after, Messages):
            if change := _message_changes(before, after):
                changed[field] = change
        elif before != after:
            changed[field] = _as_plain(after)
    return changed


def _as_plain(value: Any) -> Any:
    """The value as the log records it."""
    try:
        return plain(msgspec.to_builtins(value, enc_hook=str, str_keys=True))
    except (TypeError, RecursionError):  # for example a number that JSON does not have
        return repr(value)


def _message_changes(before: Messages, after: Messages) -> dict[str, Any]:
    """The messages that only the new list has, and the places of the others.

    Each run of `kept` messages has its old place, its new place and its length. The new messages
    fill the remaining places.
    """
    if before == after:
        return {}
    old = list(before)
    places = {id(message): at for at, message in reversed([*enumerate(old)])}
    added: list[Message] = []
    kept: list[list[int]] = []
    for at, message in enumerate(after):
        place = places.get(id(message))
        if place is None and message in old:
            place = old.index(message)
        if place is None:
            added.append(message)
        elif kept and [place, at] == [kept[-1][0] + kept[-1][2], kept[-1][1] + kept[-1][2]]:
            kept[-1][2] += 1
        else:
            kept.append([place, at, 1])
    return {"from": len(old), "to": len(after), "new": _as_plain(added), "kept": kept}
