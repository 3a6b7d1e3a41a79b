"""A chat model of LangChain as a model of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, messages_from_dict

from windlass.compat.conversations import read_conversation, write_conversation
from windlass.compat.conversations.langchain import THOUGHT
from windlass.deltas import AnyDelta, TextDelta, ThinkingDelta
from windlass.errors import ConfigError, ModelError, WindlassError
from windlass.messages import ModelReply, ModelRequest, OpaquePart, ThinkingPart, ToolCallPart, Usage, digest, thawed
from windlass.models.errors import of_connection, of_status, retry_after
from windlass.models.settings import system_with_schema

from .thinking import is_of_langchain, without_strange_thinking

_FINISHES = {"length": "length", "max_tokens": "length", "content_filter": "content_filter", "refusal": "refusal"}


_ABOUT = ("model_provider", "model_name", "output_version", "id")
"""What is kept of the metadata of a reply: by it, LangChain knows the form of the content."""
_CALLS = ("tool_calls", "invalid_tool_calls")
_OWN_IDS = ("lc_", "run-", "run_")
"""How the ids begin that LangChain itself gives."""


class LangChainModel:
    """A chat model of LangChain, for `Agent(LangChainModel(chat))`.

    `name` is the model's name in requests and records; by default it begins with `langchain:`. Settings of a request
    are bound to the chat model under their own names.
    """

    def __init__(self, chat: BaseChatModel, *, name: str | None = None) -> None:
        given: Any = chat
        if not isinstance(given, BaseChatModel):
            raise ConfigError(f"LangChainModel(…) takes a chat model of LangChain, not a {type(given).__name__}")
        known = getattr(chat, "model_name", None) or getattr(chat, "model", None)
        self.chat = chat
        self.name = name or f"langchain:{known if isinstance(known, str) else type(chat).__name__}"

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Answer a request."""
        try:
            answer = await self._bound(request).ainvoke(_messages(request))
        except Exception as error:
            raise self._ours(error) from error
        return self._reply(answer)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Answer a request piece by piece."""
        whole: Any = None
        pieces = _Pieces()
        try:
            chunks = cast("AsyncGenerator[Any, None]", self._bound(request).astream(_messages(request)))
            async with aclosing(chunks):
                async for chunk in chunks:
                    whole = chunk if whole is None else whole + chunk
                    if thought := chunk.additional_kwargs.get(THOUGHT):
                        yield ThinkingDelta(thought, 0)
                    for piece in pieces.of(chunk.content, whole.content):
                        yield piece
        except Exception as error:
            raise self._ours(error) from error
        if whole is None:
            raise ModelError(f"{self.name} streamed nothing", retryable=True)
        yield self._reply(whole)

    def _bound(self, request: ModelRequest) -> Any:
        """The chat model with tools and settings. It is `bind_tools` that puts a choice of tools into its words."""
        settings = thawed(request.settings)
        chat: Any = self.chat
        if not request.tools:
            settings.pop("tool_choice", None)
            return chat.bind(**settings) if settings else chat
        if settings.get("tool_choice") == "required":
            settings["tool_choice"] = "any"
        return chat.bind_tools([_tool(spec) for spec in request.tools], **settings)

    def _ours(self, error: Exception) -> Exception:
        if isinstance(error, WindlassError):
            return error
        told = f"{self.name}: {type(error).__name__}: {error}"
        response = getattr(error, "response", None)
        for status in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
            if isinstance(status, int) and status >= 400:
                headers = getattr(response, "headers", {})
                return of_status(status)(told, status=status, retry_after=retry_after(headers))
        return of_connection(error) or ModelError(told)

    def _reply(self, answer: AIMessage) -> ModelReply:
        calls = {field: [_with_id(call, field) for call in getattr(answer, field)] for field in _CALLS}
        beside = {name: getattr(answer, name) for name in ("name", "additional_kwargs", "usage_metadata")}
        about = {name: answer.response_metadata[name] for name in _ABOUT if name in answer.response_metadata}
        id = answer.id if answer.id and not answer.id.startswith(_OWN_IDS) else None
        data = {"content": answer.content, **calls, **beside, "response_metadata": about, "id": id}
        [message] = read_conversation("langchain", [{"type": "ai", "data": data}]).messages
        if any(type(part) is ThinkingPart for part in message.parts) and not any(map(is_of_langchain, message.parts)):
            message = message.replace(parts=(*message.parts, OpaquePart("langchain", {"message": {}})))
        stated = answer.response_metadata.get("finish_reason") or answer.response_metadata.get("stop_reason")
        finish = "tool_calls" if message.tool_calls else _FINISHES.get(str(stated), "stop")
        raw = stated if isinstance(stated, str) else None
        return ModelReply(message, _usage(answer.usage_metadata), finish, response_id=answer.id, raw_finish=raw)


class _Pieces:
    """What is new in the chunks of one reply. Blocks of content are known by their index."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def of(self, content: Any, whole: Any) -> Iterator[str | AnyDelta]:
        """The pieces in the content of a chunk; `whole` is the content so far."""
        if isinstance(content, str):
            if content:
                yield content
            return
        for block in content:
            if isinstance(block, str):
                yield block
                continue
            kind = block.get("type")
            key = block.get("index", kind)
            if key not in self._places:
                self._places[key] = _place(whole, block)
            if kind == "text" and isinstance(block.get("text"), str) and block["text"]:
                yield TextDelta(block["text"], self._places[key])
            thought = block.get("thinking" if kind == "thinking" else "reasoning")
            if kind in ("thinking", "reasoning") and isinstance(thought, str) and thought:
                yield ThinkingDelta(thought, self._places[key])


def _place(whole: Any, block: Any) -> int:
    """At which place of the reply the part of a block will stand."""
    blocks = whole if isinstance(whole, list) else [whole]
    at = next((n for n, one in enumerate(blocks) if isinstance(one, dict) and _is_of(one, block)), len(blocks))
    [message] = read_conversation("langchain", [{"type": "ai", "data": {"content": blocks[:at]}}]).messages
    return len([part for part in message.parts if type(part) is not ToolCallPart])


def _is_of(one: dict[str, Any], block: dict[str, Any]) -> bool:
    return one.get("type") == block.get("type") and one.get("index") == block.get("index")


def _with_id(call: Any, field: str) -> Any:
    """A call with an id: some chat models give none."""
    return call if call["id"] else {**call, "id": f"{field}_{digest(str(call))[:8]}"}


def _messages(request: ModelRequest) -> list[BaseMessage]:
    system = request.system if request.output is None else system_with_schema(request.output, request.system)
    given = [without_strange_thinking(message) for message in request.messages]
    messages = messages_from_dict(write_conversation("langchain", given, system=system))
    return [_with_valid_calls(message) if isinstance(message, AIMessage) else message for message in messages]


def _with_valid_calls(message: AIMessage) -> AIMessage:
    """A message whose calls are all valid: chat models forget the others, and then refuse their results."""
    if not message.invalid_tool_calls:
        return message
    calls: list[Any] = [
        {"name": call["name"], "args": {"INVALID_JSON": call["args"]}, "id": call["id"], "type": "tool_call"}
        for call in message.invalid_tool_calls
    ]
    return message.model_copy(update={"tool_calls": [*message.tool_calls, *calls], "invalid_tool_calls": []})


def _tool(spec: Any) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.schema)}
    return {"type": "function", "function": function}


def _usage(stated: Any) -> Usage:
    if not stated:
        return Usage()
    read, written = stated.get("input_token_details") or {}, stated.get("output_token_details") or {}
    return Usage(
        stated.get("input_tokens", 0),
        stated.get("output_tokens", 0),
        read.get("cache_read") or 0,
        read.get("cache_creation") or 0,
        written.get("reasoning") or 0,
    )
