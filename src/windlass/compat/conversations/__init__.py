"""Conversations of other projects: their lists of messages become the history of a session, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from windlass.errors import ConfigError
from windlass.messages import Message

from . import anthropic, langchain, openai, openai_responses
from .openai_responses import joined
from .parts import BadConversation, Ids, Reading
from .sessions import case_of_session, eval_lines, otel_events

ConversationFormat = Literal["openai", "openai_responses", "anthropic", "langchain"]


class Conversation(NamedTuple):
    """A conversation from elsewhere: the system text, which belongs to the agent, and the messages of the history.

    `left_out` names what could not be kept, by message: `message 3: the place of a system text`.
    """

    system: str
    messages: list[Message]
    left_out: tuple[str, ...] = ()


def read_conversation(format: ConversationFormat, messages: Any) -> Conversation:
    """Read a list of messages of another project, for `agent.import_history(session, conversation.messages)`.

    `format` is `openai` (Chat Completions), `openai_responses` (the items of Responses), `anthropic` (Messages) or
    `langchain`: message objects, or what `messages_to_dict` makes of them. Objects of the vendors' SDKs are read like
    the dicts that they stand for. Anthropic's whole body, with `system` and `messages`, is read as well.

    Fields that Windlass has no place for stay beside the messages and are written again in the same format; `left_out`
    names what is not kept. Raises `ConfigError` with the number of the first message that cannot be read.
    """
    module, given, system = _module(format), messages, ""
    reading = Reading()
    if isinstance(given, Mapping):
        more = [name for name in given if name not in ("system", "messages")]
        reading.left_out += [f"{name!r} of the body" for name in more]
        system, given = _text_of(given.get("system"), reading), given.get("messages")
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise ConfigError(f"a conversation must be a list of messages, not a {type(given).__name__}")
    texts = [system] if system else []
    found: list[Message] = []
    for index, one in enumerate(given):
        reading.index = index
        try:
            read = module.read(one, reading)
        except BadConversation as error:
            raise ConfigError(f"message {index} of the conversation cannot be read: {error}") from None
        if isinstance(read, str):
            if found:
                reading.leave_out("the place of a system text")
            texts.append(read)
        else:
            found += read
    history = joined(found) if format == "openai_responses" else found
    return Conversation("\n\n".join(texts), history, tuple(reading.left_out))


def write_conversation(
    format: ConversationFormat,
    messages: Iterable[Message],
    *,
    system: str = "",
    left_out: list[str] | None = None,
) -> list[Any]:
    """Write messages, such as `result.messages`, as another project's list of plain values.

    `format` is as in `read_conversation`; `langchain` is what `messages_from_dict` reads. Anthropic's
    list has no system text: pass it as `system` there. A part that a format has no place for becomes a text that names
    it. `left_out` is a list to which is added what else the format has no place for, such as another vendor's thinking.
    """
    module = _module(format)
    wire: list[Any] = module.system(system) if system else []
    given = list(messages)
    ids = Ids(given)
    for index, message in enumerate(given):
        ids.index = index
        module.add(wire, message, ids)
    if left_out is not None:
        left_out += ids.left_out
    return wire


def _module(format: str) -> ModuleType:
    modules: dict[str, ModuleType] = {
        "openai": openai,
        "openai_responses": openai_responses,
        "anthropic": anthropic,
        "langchain": langchain,
    }
    if format not in modules:
        raise ConfigError(f"{format!r} is not a format of conversations: use one of {', '.join(modules)}")
    return modules[format]


def _text_of(system: Any, reading: Reading) -> str:
    if isinstance(system, str) or system is None:
        return system or ""
    if isinstance(system, list) and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in system):
        fields = {name for one in system for name in one if name not in ("type", "text")}
        reading.left_out += [f"{name!r} of the system text" for name in sorted(fields)]
        return "\n\n".join([one["text"] for one in system])
    raise ConfigError("the system text of the conversation must be a text or a list of text blocks")


FORMATS: tuple[str, ...] = get_args(ConversationFormat)

__all__ = [
    "FORMATS",
    "Conversation",
    "ConversationFormat",
    "case_of_session",
    "eval_lines",
    "otel_events",
    "read_conversation",
    "write_conversation",
]
