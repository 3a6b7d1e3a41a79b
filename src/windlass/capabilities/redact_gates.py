"""Gates that refuse what has a mark of a blocked kind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from windlass.decisions import Deny, Halt
from windlass.events import ModelReplying, ToolCalling, ToolReturning, TurnStarting
from windlass.messages import TextPart, ThinkingPart

if TYPE_CHECKING:
    from windlass import Hooks


def install_gates(registrar: Hooks, blocked: re.Pattern[str], *, name: str, inherit: bool) -> None:
    """Refuse what has a mark that the rewrites and transformers left where they found a blocked kind."""

    def reason(what: str, texts: Iterable[str]) -> str | None:
        marks = sorted({str(match[match.lastindex or 0]) for text in texts for match in blocked.finditer(text)})
        return f"{what} has content that is not allowed: {', '.join(marks)}" if marks else None

    @registrar.gate(TurnStarting, inherit=inherit, name=f"{name}_block_input")
    def block_input(event: TurnStarting) -> Halt | None:
        why = reason("the message", [event.message.text])
        return None if why is None else Halt(why)

    @registrar.gate(ModelReplying, inherit=inherit, name=f"{name}_block_output")
    def block_output(event: ModelReplying) -> Halt | None:
        parts = event.reply.message.parts
        why = reason("the reply", [part.text for part in parts if isinstance(part, TextPart | ThinkingPart)])
        return None if why is None else Halt(why)

    @registrar.gate(ToolCalling, inherit=inherit, name=f"{name}_block_call")
    def block_call(event: ToolCalling) -> Deny | None:
        why = reason("the call", [event.call.json])
        return None if why is None else Deny(why)

    @registrar.gate(ToolReturning, inherit=inherit, name=f"{name}_block_result")
    def block_result(event: ToolReturning) -> Deny | None:
        why = reason("the result", [event.result.text, msgspec.json.encode(event.result.data).decode()])
        return None if why is None else Deny(why)
