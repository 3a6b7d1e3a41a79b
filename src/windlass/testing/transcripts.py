"""What must hold of every transcript."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.messages import Message, ToolResultPart


def unpaired(messages: Iterable[Message]) -> list[str]:
    """What is wrong with the calls of a transcript: each must have one result, in the next message, in order."""
    wrong: list[str] = []
    listed = list(messages)
    for index, message in enumerate(listed):
        wanted = [call.id for call in message.tool_calls]
        following = listed[index + 1] if index + 1 < len(listed) else Message("user")
        given = [part.call_id for part in following.parts if isinstance(part, ToolResultPart)]
        if wanted and (following.role != "tool" or wanted != given):
            wrong.append(f"message {index} calls {wanted}, the next one ({following.role}) answers {given}")
        if message.role == "tool" and (index == 0 or not listed[index - 1].tool_calls):
            wrong.append(f"message {index} has results that nobody asked for")
        if len(set(wanted)) != len(wanted) or (wanted and not all(wanted)):
            wrong.append(f"message {index} has calls whose ids are not unique: {wanted}")
    return wrong
