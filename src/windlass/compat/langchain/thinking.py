"""Whose thinking a message has: chat models of LangChain are sent their own only."""

from __future__ import annotations

from typing import Any

from windlass.compat.conversations import langchain
from windlass.messages import Message, OpaquePart, ThinkingPart


def without_strange_thinking(message: Message) -> Message:
    """A message without the thinking of a model that was not asked through LangChain: chat models refuse it."""
    if any(map(is_of_langchain, message.parts)):
        return message
    parts = tuple([part for part in message.parts if type(part) is not ThinkingPart or part.vendor == langchain.VENDOR])
    return message if len(parts) == len(message.parts) else message.replace(parts=parts)


def is_of_langchain(part: Any) -> bool:
    """Whether a part has something that only LangChain understands."""
    return type(part) is OpaquePart and part.vendor == langchain.VENDOR
