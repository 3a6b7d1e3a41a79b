"""Checks that every transcript must pass."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.messages import Message, ToolResultPart


def unpaired(messages: Iterable[Message]) -> list[str]:
    """The errors in a transcript's calls: each call must have one result, in the next message, in order."""
    wrong: list[str] = []
    listed = list(messages)
    for index, message in enumerate(listed):
        wanted = [call.id for call in message.tool_calls]
        following = listed[index + 1] if index + 1 < len(listed) else Message("user")
        results = [part.call_id for part in following.parts if isinstance(part, ToolResultPart)]
        if wanted and (following.role != "tool" or wanted != results):
            wrong.append(
                f"message {index} calls {wanted}, but the next one ({following.role}) has results of {results}"
            )
        if message.role == "tool" and (index == 0 or not listed[index - 1].tool_calls):
            wrong.append(f"message {index} has results without calls")
        if len(set(wanted)) != len(wanted) or (wanted and not all(wanted)):
            wrong.append(f"message {index} has calls with empty or duplicate ids: {wanted}")
    return wrong
