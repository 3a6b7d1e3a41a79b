"""What a rewrite may hand back for each payload, and what it changed, for blame."""

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
    """The new payload in its proper type, or an error that names the hook and says what it may change."""
    try:
        return _COERCIONS[type(old)](old, new)
    except (BadReply, TypeError, ValueError) as error:
        text = (
            f"{hook.kind} {hook.name!r} ({hook.source}) cannot change the {event.payload} of {event.__name__}: {error}"
        )
        raise IllegalAnswer(text, hook=hook.name, event=event.__name__) from error


def _message(old: Message, new: Any) -> Message:
    if type(new) is str:
        if new != old.text and old.role == "tool":
            raise ValueError("the text of a tool message is in its results: return a Message with changed results")
        return _said(old, new)
    if type(new) is not Message:
        raise TypeError(f"expected a Message or a str, got {type(new).__name__}")
    message = checked_message(new)
    if message.role != old.role:
        raise ValueError(f"a {old.role} message cannot become a {message.role} message")
    if _calls(message) != _calls(old):
        raise ValueError("the tool calls and results of a message cannot be added, taken away, renamed or changed")
    return message


def _said(old: Message, text: str) -> Message:
    """The message with another text: the same message if that is its text."""
    return old if text == old.text else old.replace(parts=_with_text(old.parts, text))


def _with_text(parts: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """The parts with another text: the first text part holds it, the others are gone, the rest stays where it is.

    Without a text part it comes after the thinking, before all else. No part is ever empty.
    """
    first = next((at for at, part in enumerate(parts) if type(part) is TextPart), None)
    kept = [part for at, part in enumerate(parts) if type(part) is not TextPart or (at == first and text)]
    if first is not None:
        return tuple([part.replace(text=text) if type(part) is TextPart else part for part in kept])
    at = next((at for at, part in enumerate(parts) if type(part) is not ThinkingPart), len(parts))
    return (*parts[:at], TextPart(text), *parts[at:])


def _calls(message: Message) -> list[tuple[str, ...]]:
    """The calls of a message, with their arguments, and the calls whose results it has."""
    return [
        (part.id, part.name, part.json) if isinstance(part, ToolCallPart) else (part.call_id, part.name)
        for part in message.parts
        if isinstance(part, ToolCallPart | ToolResultPart)
    ]


def _request(old: ModelRequest, new: Any) -> ModelRequest:
    if type(new) is not ModelRequest:
        raise TypeError(f"expected a ModelRequest made with event.request.replace(…), got {type(new).__name__}")
    return checked_request(new, old)


def _reply(old: ModelReply, new: Any) -> ModelReply:
    if type(new) is str:
        return old if new == old.text else old.replace(message=_said(old.message, new))
    if type(new) is Message:
        new = old.replace(message=new)
    if type(new) is not ModelReply:
        raise TypeError(f"expected a ModelReply, a Message or a str, got {type(new).__name__}")
    reply = checked_reply(new)
    if not _signed(reply) <= _signed(old):
        raise ValueError("a signed part cannot be edited: leave it, or drop it whole")
    return reply


def _signed(reply: ModelReply) -> set[ThinkingPart]:
    return {p for p in reply.message.parts if isinstance(p, ThinkingPart) and p.signature}


def _call(old: ToolCall, new: Any) -> ToolCall:
    if isinstance(new, dict):
        new = old.replace(arguments=new)
    if type(new) is not ToolCall:
        raise TypeError(f"expected a ToolCall made with event.call.replace(arguments=…), got {type(new).__name__}")
    if (new.id, new.name) != (old.id, old.name):
        raise ValueError("only the arguments may change")
    return checked_call(new)


def _result(old: ToolResult, new: Any) -> ToolResult:
    if type(new) is str:
        return old if new == old.text else old.replace(content=_with_text(old.content, new))
    return checked_result(new, old.status)


def _delegation(old: Delegation, new: Any) -> Delegation:
    """Another task, a smaller share, fewer tools; what was taken away once does not come back."""
    if type(new) is str:
        new = old.replace(task=new)
    if type(new) is not Delegation:
        raise TypeError(f"expected a Delegation made with event.task.replace(…), or a str, got {type(new).__name__}")
    if new.agent != old.agent:
        raise ValueError("the task cannot be handed to another agent")
    if type(new.task) is not str:
        raise TypeError(f"a task is a str, not {type(new.task).__name__}")
    if new.share is not None and not 0 < new.share <= 1:
        raise ValueError(f"a share is above 0 and at most 1, not {new.share}")
    if old.share is not None and (new.share is None or new.share > old.share):
        raise ValueError(f"the share of {old.share} may only become smaller, not {new.share}")
    if old.tools is not None and (
        more := ["all"] if new.tools is None else [name for name in new.tools if name not in old.tools]
    ):
        known = ", ".join(old.tools) or "none"
        raise ValueError(f"the tools are {known} and may only become fewer; it adds {', '.join(more)}")
    kept: Delegation = read_back(new, Delegation)
    return kept


def _compaction(old: Compaction, new: Any) -> Compaction:
    """Another range, other instructions; the kernel moves the range to where nothing is parted."""
    if type(new) is tuple:
        new = old.replace(range=new)
    if type(new) is str:
        new = old.replace(instructions=new)
    if type(new) is not Compaction:
        raise TypeError(f"expected a Compaction made with event.plan.replace(…), got {type(new).__name__}")
    if (new.by, new.reason) != (old.by, old.reason):
        raise ValueError("only the range and the instructions may change")
    plan: Compaction = read_back(new, Compaction)
    bounds: Any = plan.range
    if [type(at) for at in bounds] != [int, int] or not 0 <= bounds[0] < bounds[1]:
        raise ValueError(f"a range is (first, end) with 0 <= first < end, not {bounds!r}")
    return plan


def _setup(old: Setup, new: Any) -> Setup:
    if type(new) is not Setup:
        raise TypeError(f"expected a Setup made with event.setup.replace(…), got {type(new).__name__}")
    tools: Any = new.tools
    if isinstance(tools, list | tuple):
        tools = tuple([getattr(tool, "spec", tool) for tool in tools])
    read: Setup = read_back(new.replace(tools=tools), Setup)
    return read.replace(tools=tuple([spec.replace(schema=plain(spec.schema)) for spec in read.tools]))


def _text(old: str, new: Any) -> str:
    if not isinstance(new, str):
        raise TypeError(f"expected str, got {type(new).__name__}")
    return str.__str__(new)


_COERCIONS: dict[type, Callable[[Any, Any], Any]] = {
    Message: _message,
    ModelRequest: _request,
    ModelReply: _reply,
    ToolCall: _call,
    ToolResult: _result,
    str: _text,
    Setup: _setup,
    Compaction: _compaction,
    Delegation: _delegation,
}


def changes(old: Any, new: Any) -> dict[str, Any]:
    """The new values of the fields that differ, as plain values; of messages only those that are new."""
    if old is new:
        return {}
    if not isinstance(old, msgspec.Struct):
        return {} if old == new else {"value": _plain(new)}
    changed: dict[str, Any] = {}
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before is after:
            continue
        if isinstance(after, Messages):
            if fresh := _fresh(before, after):
                changed[field] = fresh
        elif before != after:
            changed[field] = _plain(after)
    return changed


def _plain(value: Any) -> Any:
    """What a reader of the log gets to see of a value."""
    try:
        return plain(msgspec.to_builtins(value, enc_hook=str, str_keys=True))
    except (TypeError, RecursionError):  # a number that JSON does not have, say
        return repr(value)


def _fresh(before: Messages, after: Messages) -> dict[str, Any]:
    """What a changed list of messages has that the old one had not, and where the old ones are in it.

    Each run of `kept` ones is where it stood, where it stands and how long it is; the new ones have the other places.
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
    return {"from": len(old), "to": len(after), "new": _plain(added), "kept": kept}
