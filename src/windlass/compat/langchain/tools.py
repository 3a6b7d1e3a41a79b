"""Tools of LangChain as tools of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from windlass.compat.conversations import read_conversation
from windlass.errors import ConfigError
from windlass.messages import ToolResult, ToolResultPart
from windlass.tools import Tool
from windlass.tools.schema_tools import SchemaTool


def langchain_tools(tools: Iterable[BaseTool], **options: Any) -> list[Tool[..., Any]]:
    """Make tools of LangChain tools of an agent: `Agent(model, tools=langchain_tools([search]))`.

    `options` are those of `@tool`, such as `effect="pure"`, and hold for all of them. Without them every tool is
    `unsafe`. Arguments that a tool takes from LangGraph, such as its state or store, are not supplied.
    """
    return [_tool(one, options) for one in tools]


def _tool(given: Any, options: dict[str, Any]) -> SchemaTool:
    if not isinstance(given, BaseTool):
        raise ConfigError(f"langchain_tools([…]) takes tools of LangChain, not {given!r:.80}: decorate it with @tool")
    described = convert_to_openai_tool(given)["function"]
    schema = {"type": "object", "properties": {}, **described.get("parameters", {})}
    made = {**options, "description": described.get("description", "")}
    return SchemaTool(_runner(given), name=given.name, schema=schema, **made)


def _runner(given: BaseTool) -> Callable[..., Any]:
    async def run(arguments: dict[str, Any], idempotency_key: str) -> ToolResult:
        call = {"name": given.name, "args": arguments, "id": idempotency_key, "type": "tool_call"}
        answer = await given.ainvoke(call)
        return _result(answer) if isinstance(answer, ToolMessage) else ToolResult.of(answer)

    return run


def _result(answer: ToolMessage) -> ToolResult:
    [message] = read_conversation("langchain", [answer]).messages
    [part] = message.parts
    assert isinstance(part, ToolResultPart)
    return ToolResult(part.content, part.status)
