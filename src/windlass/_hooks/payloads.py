"""What a rewrite may hand back for each payload, and what it changed, for blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from windlass.errors import IllegalAnswer
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
    frozen,
    render,
)
from windlass.types import AnyEvent

from .hooks import Hook


def coerced(event: type[AnyEvent], hook: Hook, old: Any, new: Any) -> Any:
    """The new payload in its proper type, or an error that names the hook and says what it may change."""
    try:
        return _COERCIONS[type(old)](old, new)
    except (TypeError, ValueError) as error:
        text = (
            f"{hook.kind} {hook.name!r} ({hook.source}) cannot change the {event.payload} of {event.__name__}: {error}"
        )
        raise IllegalAnswer(text, hook=hook.name, event=event.__name__) from error


def _message(old: Message, new: Any) -> Message:
    if type(new) is str:
        kept = tuple(part for part in old.parts if not isinstance(part, TextPart))
        return old.replace(parts=(TextPart(new), *kept))
    if type(new) is not Message:
        raise TypeError(f"expected a Message or a str, got {type(new).__name__}")
    if new.role != old.role:
        raise ValueError(f"a {old.role} message cannot become a {new.role} message")
    if _calls(new) != _calls(old):
        raise ValueError("the tool calls and results of a message cannot be taken away or renamed")
    return new


def _calls(message: Message) -> list[str]:
    return [
        part.id if isinstance(part, ToolCallPart) else part.call_id
        for part in message.parts
        if isinstance(part, ToolCallPart | ToolResultPart)
    ]


def _request(old: ModelRequest, new: Any) -> ModelRequest:
    if type(new) is not ModelRequest:
        raise TypeError(f"expected a ModelRequest made with event.request.replace(…), got {type(new).__name__}")
    return new


def _reply(old: ModelReply, new: Any) -> ModelReply:
    if type(new) is str:
        kept = tuple(part for part in old.message.parts if not isinstance(part, TextPart))
        new = old.replace(message=old.message.replace(parts=(TextPart(new), *kept)))
    if type(new) is Message:
        new = old.replace(message=new)
    if type(new) is not ModelReply:
        raise TypeError(f"expected a ModelReply, a Message or a str, got {type(new).__name__}")
    if not _signed(new) <= _signed(old):
        raise ValueError("a signed part cannot be edited: leave it, or drop it whole")
    return new


def _signed(reply: ModelReply) -> set[ThinkingPart]:
    return {p for p in reply.message.parts if isinstance(p, ThinkingPart) and p.signature}


def _call(old: ToolCall, new: Any) -> ToolCall:
    if isinstance(new, dict):
        new = old.replace(arguments=new)
    if type(new) is not ToolCall:
        raise TypeError(f"expected a ToolCall made with event.call.replace(arguments=…), got {type(new).__name__}")
    if (new.id, new.name) != (old.id, old.name):
        raise ValueError("only the arguments may change")
    return new


def _result(old: ToolResult, new: Any) -> ToolResult:
    return new if type(new) is ToolResult else ToolResult(render(new), old.status)


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
    kept: Delegation = new if new.tools is None else new.replace(tools=tuple(new.tools))
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
    bounds: Any = new.range
    if [type(at) for at in bounds] != [int, int] or not 0 <= bounds[0] < bounds[1]:
        raise ValueError(f"a range is (first, end) with 0 <= first < end, not {bounds!r}")
    return new


def _exactly(kind: type) -> Callable[[Any, Any], Any]:
    def check(old: Any, new: Any) -> Any:
        if not isinstance(new, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(new).__name__}")
        return new

    return check


_COERCIONS: dict[type, Callable[[Any, Any], Any]] = {
    Message: _message,
    ModelRequest: _request,
    ModelReply: _reply,
    ToolCall: _call,
    ToolResult: _result,
    str: _exactly(str),
    tuple: _exactly(tuple),
    Setup: _exactly(Setup),
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
    return frozen(msgspec.to_builtins(value, enc_hook=str))


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
