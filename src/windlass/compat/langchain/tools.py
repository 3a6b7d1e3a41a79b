"""Tools of LangChain as tools of an agent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ValidationError

from windlass.compat.conversations import read_conversation
from windlass.errors import ConfigError, ToolError
from windlass.messages import ToolResult, ToolResultPart, plain, thawed
from windlass.tools import Tool
from windlass.tools.schema_tools import SchemaTool
from windlass.turns import Turn

_FUNCTIONS = ("func", "coroutine", "_run", "_arun")
_SCRATCHPAD = "__pregel_scratchpad"
"""What `interrupt()` looks for, and finds in a graph only."""
_INJECTED = ("ToolRuntime", "InjectedState", "InjectedStore")


def langchain_tools(tools: Iterable[BaseTool], **options: Any) -> list[Tool[..., Any]]:
    """Make tools of LangChain tools of an agent: `Agent(model, tools=langchain_tools([search]))`.

    `options` are those of `@tool`, such as `effect="pure"`, and hold for all of them. Without them every tool is
    `unsafe`. A tool that takes the state, the store or the runtime, or whose result ends the turn (`return_direct`),
    is refused: give it to `Middlewares(tools=[…])`.
    """
    return [_tool(one, options) for one in tools]


def _tool(given: Any, options: dict[str, Any]) -> SchemaTool:
    if not isinstance(given, BaseTool):
        raise ConfigError(f"langchain_tools([…]) takes tools of LangChain, not {given!r:.80}: decorate it with @tool")
    if given.return_direct:
        raise ConfigError(f"the result of tool {given.name!r} ends the turn: give it to Middlewares(tools=[…])")
    if taken := _takes(given):
        raise ConfigError(f"tool {given.name!r} takes {taken} from LangGraph: give it to Middlewares(tools=[…])")
    refuse_interrupts(given)
    return schema_tool(given, _runner(given), options)


def refuse_interrupts(given: BaseTool) -> None:
    """Refuse a tool that asks a person by LangGraph's own means."""
    types = sys.modules.get("langgraph.types")
    for name in () if types is None else _FUNCTIONS:
        fn = getattr(given, name, None)
        code, scope = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
        if code is not None and any(scope.get(word) is getattr(types, "interrupt", fn) for word in code.co_names):
            raise ConfigError(
                f"tool {given.name!r} calls interrupt(), which only LangGraph can resume: let a gate on ToolCalling "
                "answer Ask, or use HumanInTheLoopMiddleware"
            )


def schema_tool(given: BaseTool, run: Callable[..., Any], options: Mapping[str, Any]) -> SchemaTool:
    """A tool with the name, the description and the schema of one of LangChain."""
    described = convert_to_openai_tool(given)["function"]
    schema = {"type": "object", "properties": {}, **described.get("parameters", {})}
    return SchemaTool(
        run, name=given.name, schema=schema, **{**options, "description": described.get("description", "")}
    )


def _takes(given: BaseTool) -> str | None:
    """What a tool takes that the model does not give, other than the id of the call."""
    of_function = [getattr(given, name, None) for name in _FUNCTIONS]
    notes = [getattr(fn, "__annotations__", {}) for fn in of_function]
    if isinstance(given.args_schema, type):
        notes.append(getattr(given.args_schema, "__annotations__", {}))
    written = " ".join([str(hint) for hints in notes for hint in hints.values()])
    return next((name for name in _INJECTED if name in written), None)


def _runner(given: BaseTool) -> Callable[..., Any]:
    async def run(arguments: dict[str, Any], idempotency_key: str, turn: Turn[Any]) -> ToolResult:
        call = {"name": given.name, "args": arguments, "id": idempotency_key, "type": "tool_call"}
        if "langgraph.config" not in sys.modules:  # nobody has imported what would look for a runtime
            return await called(given, call, _result)
        from .runtimes import configured, runtime_in

        with configured(turn, runtime_in(turn)):
            return await called(given, call, _result)

    return run


async def called(given: BaseTool, call: dict[str, Any], convert: Callable[[Any], ToolResult]) -> ToolResult:
    """Call a tool. The model reads what is wrong with its arguments, and what a `ToolException` says."""
    try:
        return convert(await given.ainvoke(call))
    except ToolException as error:
        raise ToolError(str(error)) from error
    except KeyError as error:
        if error.args == (_SCRATCHPAD,):
            raise ToolError(f"tool {given.name!r} calls interrupt(), which only LangGraph can resume") from error
        raise
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ToolError(f"the arguments of {given.name!r} are not valid: {'; '.join(problems)}") from error


def _result(answer: Any) -> ToolResult:
    return result_of(answer) if isinstance(answer, ToolMessage) else ToolResult.of(answer)


def result_of(message: ToolMessage) -> ToolResult:
    """The result that a message tells, with its artifact as data."""
    read = message.model_copy(update={"id": None, "artifact": None})
    [made] = read_conversation("langchain", [read]).messages
    [part] = made.parts
    assert isinstance(part, ToolResultPart)
    try:
        data = thawed(plain(message.artifact))
    except TypeError:  # an artifact without a JSON form stays in the tool
        data = None
    return ToolResult(part.content, part.status, data)
