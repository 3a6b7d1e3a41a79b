"""The prompts of an MCP server, as messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from windlass.messages import Message

from .contents import Limits, content_parts
from .listings import plain_text
from .requests import list_prompts


class Prompt(Struct, frozen=True):
    """A prompt that a server offers. `arguments` are the names of its arguments, `required` those that it needs."""

    name: str
    description: str = ""
    arguments: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


async def prompts_of(client: Any) -> list[Prompt]:
    """The prompts that a server lists."""
    return [
        Prompt(
            one.name,
            plain_text(one.description or ""),
            tuple([argument.name for argument in one.arguments or ()]),
            tuple([argument.name for argument in one.arguments or () if argument.required]),
        )
        for one in await list_prompts(client)
    ]


def messages_of(name: str, arguments: Mapping[str, str], limits: Limits) -> Callable[[Any], Awaitable[list[Message]]]:
    """A request for the messages of a prompt."""

    async def work(client: Any) -> list[Message]:
        given = await client.get_prompt(name, dict(arguments))
        return [Message(one.role, content_parts([one.content], limits)) for one in given.messages]

    return work


__all__ = ["Prompt", "messages_of", "prompts_of"]
