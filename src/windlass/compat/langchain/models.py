"""A chat model of LangChain as a model of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, messages_from_dict

from windlass.compat.conversations import read_conversation, write_conversation
from windlass.errors import ConfigError, ModelError, WindlassError
from windlass.messages import ModelReply, ModelRequest, Usage
from windlass.models.errors import of_connection
from windlass.models.settings import system_with_schema

_FINISHES = {"length": "length", "max_tokens": "length", "content_filter": "content_filter", "refusal": "refusal"}


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

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | ModelReply, None]:
        """Answer a request piece by piece."""
        whole: Any = None
        try:
            chunks = cast("AsyncGenerator[Any, None]", self._bound(request).astream(_messages(request)))
            async with aclosing(chunks):
                async for chunk in chunks:
                    whole = chunk if whole is None else whole + chunk
                    if isinstance(chunk.content, str) and chunk.content:
                        yield chunk.content
        except Exception as error:
            raise self._ours(error) from error
        if whole is None:
            raise ModelError(f"{self.name} streamed nothing", retryable=True)
        yield self._reply(whole)

    def _bound(self, request: ModelRequest) -> Any:
        bound: Any = self.chat
        if request.tools:
            bound = bound.bind_tools([_tool(spec) for spec in request.tools])
        return bound.bind(**request.settings) if request.settings else bound

    def _ours(self, error: Exception) -> Exception:
        if isinstance(error, WindlassError):
            return error
        return of_connection(error) or ModelError(f"{self.name}: {type(error).__name__}: {error}")

    def _reply(self, answer: AIMessage) -> ModelReply:
        data = {
            "content": answer.content,
            "tool_calls": [{**call, "id": call["id"] or f"call_{n}"} for n, call in enumerate(answer.tool_calls, 1)],
        }
        [message] = read_conversation("langchain", [{"type": "ai", "data": data}]).messages
        stated = answer.response_metadata.get("finish_reason") or answer.response_metadata.get("stop_reason")
        finish = "tool_calls" if message.tool_calls else _FINISHES.get(str(stated), "stop")
        raw = stated if isinstance(stated, str) else None
        return ModelReply(message, _usage(answer.usage_metadata), finish, response_id=answer.id, raw_finish=raw)


def _messages(request: ModelRequest) -> list[BaseMessage]:
    system = request.system if request.output is None else system_with_schema(request.output, request.system)
    return messages_from_dict(write_conversation("langchain", request.messages, system=system))


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
