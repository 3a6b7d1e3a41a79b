"""`wrap_tool_call` as a wrap of the tool call, and the tools that middlewares bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import BaseMessage, RemoveMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.types import Command

from windlass.errors import HookError
from windlass.messages import Message as OurMessage
from windlass.messages import ToolCall, ToolResult, ToolResultPart, as_result
from windlass.tools.schema_tools import SchemaTool
from windlass.turns import Turn

from .model_wraps import Tools, loop_at_work
from .own_model import working
from .runs import Memory, Run, update_of
from .runtimes import writer
from .tools import called, result_of, schema_tool
from .transcripts import Transcript, View


class ToolWraps:
    """What the wraps of all middlewares share."""

    def __init__(self, memory: Memory, tools: Tools) -> None:
        self.memory = memory
        self.tools = tools

    def wrap_of(self, middleware: Any, *, is_async: bool) -> Callable[..., Any]:
        """The wrap that runs a middleware: an async one, or one that runs in a thread."""
        name = f"{middleware.name}.wrap_tool_call"

        async def wrap(call: ToolCall, call_next: Any, turn: Turn[Any]) -> Any:
            one = _Call(self, call, turn, name)

            async def handler(changed: ToolCallRequest) -> Any:
                if (tool := one.strange(changed)) is not None:
                    return await tool.ainvoke(one.invocation(changed, tool))
                return one.shown(await call_next(one.back(changed)))

            with working(turn, asyncio.get_running_loop(), name, self.memory.runtime(turn)):
                return one.result(await middleware.awrap_tool_call(one.given, handler))

        def wrap_in_thread(call: ToolCall, call_next: Any, turn: Turn[Any]) -> Any:
            one = _Call(self, call, turn, name)

            def handler(changed: ToolCallRequest) -> Any:
                if (tool := one.strange(changed)) is not None:
                    return tool.invoke(one.invocation(changed, tool))
                return one.shown(call_next(one.back(changed)))

            loop = loop_at_work.get()
            assert loop is not None
            with working(turn, loop, name, self.memory.runtime(turn)):
                return one.result(middleware.wrap_tool_call(one.given, handler))

        return wrap if is_async else wrap_in_thread


class _Call:
    """One call of a middleware's wrap."""

    def __init__(self, wraps: ToolWraps, call: ToolCall, turn: Turn[Any], name: str) -> None:
        self._wraps = wraps
        self._call = call
        self._turn = turn
        self._name = name
        self._run = Run.in_step(wraps.memory, turn)
        self._results: list[tuple[ToolMessage, ToolMessage, ToolResult]] = []
        ours = turn.tools.get(call.name)
        self._tool = wraps.tools.of(ours.spec) if ours is not None else None
        given: Any = {"name": call.name, "args": call.arguments, "id": call.id, "type": "tool_call"}
        runtime = runtime_of(wraps.memory, turn, self._run.state, call.id, wraps.tools)
        self.given = ToolCallRequest(given, self._tool, self._run.state, runtime)

    def strange(self, changed: Any) -> BaseTool | None:
        """The tool that a middleware brings for a call, if it is not the agent's: the gates have judged the call, and
        the middleware runs it."""
        if not isinstance(changed, ToolCallRequest):
            raise HookError(f"{self._name} called its handler with {type(changed).__name__}", hook=self._name)
        tool = changed.tool
        if tool is None or tool is self._tool or tool.name in self._turn.tools:
            return None
        if self._tool is not None:
            raise HookError(
                f"{self._name} put the tool {tool.name!r}, which the agent does not have, in the place of "
                f"{self._call.name!r}: give it to the agent",
                hook=self._name,
            )
        return tool

    def invocation(self, changed: ToolCallRequest, tool: BaseTool) -> Any:
        """The call of a tool that the middleware runs."""
        call: Any = changed.tool_call
        runtime = runtime_of(self._wraps.memory, self._turn, self._run.state, call["id"], self._wraps.tools)
        return {**call, "args": injected(tool, call["args"], runtime)}

    def back(self, changed: ToolCallRequest) -> ToolCall:
        """The call that a middleware passes on."""
        call = changed.tool_call
        name, arguments = call["name"], call["args"]
        if changed.tool is not None and changed.tool is not self._tool:
            name = changed.tool.name
        if name == self._call.name and arguments == self._call.arguments:
            return self._call
        return self._call.replace(name=name, arguments=dict(arguments))

    def shown(self, given: Any) -> ToolMessage:
        """The result as a middleware sees it."""
        result = as_result(given)
        part = ToolResultPart(self._call.id, self._call.name, result.content, result.status)
        [message] = Transcript.of([OurMessage("tool", (part,))]).seen(View())
        assert isinstance(message, ToolMessage)
        message.id = None
        message.artifact = result.data
        self._results.append((message, message.model_copy(deep=True), result))
        return message

    def result(self, answer: Any) -> ToolResult:
        """What leaves the wrap: the result itself if the middleware did not change it."""
        if isinstance(answer, Command):
            return result_of_command(self._wraps.memory, self._turn, self._name, answer, self._call.id)
        if not isinstance(answer, ToolMessage):
            raise HookError(
                f"{self._name} returned {type(answer).__name__}; it must return a ToolMessage or a Command",
                hook=self._name,
            )
        for message, original, result in reversed(self._results):
            if answer is message or answer == message:
                if answer == original:
                    return result
                break
        return result_of(answer)


def runtime_of(memory: Memory, turn: Turn[Any], state: Any, call: str, tools: Tools) -> ToolRuntime[Any, Any]:
    """What LangGraph gives to a tool."""
    runtime = memory.runtime(turn)
    return ToolRuntime(
        state=state,
        context=runtime.context,
        config={"configurable": {"thread_id": turn.session_id}},
        stream_writer=writer(turn),
        tool_call_id=call,
        store=runtime.store,
        tools=[tools.of(tool.spec) for tool in turn.tools.values()],
        execution_info=runtime.execution_info,
    )


def result_of_command(memory: Memory, turn: Turn[Any], name: str, command: Command[Any], call: str) -> ToolResult:
    """Apply the update of a command; the result of the call is the message for it in there."""
    update = update_of(name, command) or {}
    if not isinstance(update, dict):
        raise HookError(f"{name} returned a Command whose update is not a dict", hook=name)
    messages = update.get("messages") or []
    own, rest = None, []
    for message in messages if isinstance(messages, list | tuple) else [messages]:
        if isinstance(message, ToolMessage) and message.tool_call_id == call:
            own = message
        else:
            rest.append(message)
    if own is None:
        raise HookError(f"{name} returned a Command without a ToolMessage for call {call!r}", hook=name)
    run = Run.in_step(memory, turn)
    removed = [message for message in rest if isinstance(message, RemoveMessage)]
    run.apply(name, {**update, "messages": removed or None})
    run.keep(whole=False)
    for message in rest:
        if isinstance(message, BaseMessage) and not isinstance(message, RemoveMessage):
            for ours in Transcript().back([message]):
                turn.add(ours)
    return result_of(own)


def middleware_tool(given: BaseTool, memory: Memory, tools: Tools, options: Mapping[str, Any]) -> SchemaTool:
    """A tool that a middleware brings: it gets the state and the runtime, and may return a command."""

    async def run(arguments: dict[str, Any], idempotency_key: str, turn: Turn[Any]) -> ToolResult:
        name = f"tool {given.name!r}"
        runtime = runtime_of(memory, turn, Run.in_step(memory, turn).state, idempotency_key, tools)
        call = {"name": given.name, "args": injected(given, arguments, runtime), "id": idempotency_key}

        def result(answer: Any) -> ToolResult:
            if isinstance(answer, Command):
                return result_of_command(memory, turn, name, answer, idempotency_key)
            return result_of(answer) if isinstance(answer, ToolMessage) else ToolResult.of(answer)

        with working(turn, asyncio.get_running_loop(), name, memory.runtime(turn)):
            return await called(given, {**call, "type": "tool_call"}, result)

    return schema_tool(given, run, options)


def injected(tool: BaseTool, arguments: Mapping[str, Any], runtime: ToolRuntime[Any, Any]) -> dict[str, Any]:
    """The arguments of a tool with those that the model does not give: state, store and runtime. What a model wrote
    under their names is dropped."""
    found = dict(arguments)
    for name, hint in _hints(tool).items():
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        of = get_origin(hint) or hint
        if isinstance(of, type) and issubclass(of, ToolRuntime):
            found[name] = runtime
            continue
        for note in notes:
            if isinstance(note, InjectedState) or note is InjectedState:
                field = getattr(note, "field", None)
                found[name] = runtime.state if not field else runtime.state.get(field)
            elif isinstance(note, InjectedStore) or note is InjectedStore:
                if runtime.store is None:
                    raise HookError(f"tool {tool.name!r} needs a store: Middlewares(…, store=…)", hook=tool.name)
                found[name] = runtime.store
    return found


def _hints(tool: BaseTool) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for source in (tool.get_input_schema(), *[getattr(tool, name, None) for name in ("func", "coroutine", "_run")]):
        if source is None:
            continue
        try:
            hints |= get_type_hints(source, include_extras=True)
        except (TypeError, NameError):
            continue
    hints.pop("return", None)
    return hints
