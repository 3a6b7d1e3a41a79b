"""`HumanInTheLoopMiddleware` as a gate: its questions are approvals of Windlass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.middleware.types import ToolCallRequest

from windlass.decisions import Ask
from windlass.events import ToolCalling
from windlass.turns import Turn

from .model_wraps import Tools
from .runs import Memory, Run, failed
from .tool_wraps import runtime_of


def review(middleware: HumanInTheLoopMiddleware[Any, Any, Any], memory: Memory, tools: Tools) -> Callable[..., Any]:
    """The gate that asks people about the calls that a middleware lists."""
    name = f"{middleware.name}.interrupt_on"

    def ask(event: ToolCalling, turn: Turn[Any]) -> Ask | None:
        config: Any = middleware.interrupt_on.get(event.call.name)
        if config is None:
            return None
        call: Any = {"name": event.call.name, "args": event.call.arguments, "id": event.call.id, "type": "tool_call"}
        state = Run.in_step(memory, turn).state
        if (when := config.get("when")) is not None:
            runtime = runtime_of(memory, turn, state, event.call.id, tools)
            tool = tools.of(event.tool.spec) if event.tool is not None else None
            try:
                if not when(ToolCallRequest(call, tool, state, runtime)):
                    return None
            except Exception as error:
                raise failed(name, error) from error
        description = config.get("description")
        if callable(description):
            try:
                description = description(call, state, memory.runtime(turn))
            except Exception as error:
                raise failed(name, error) from error
        if description is None:
            description = f"{middleware.description_prefix}\n\nTool: {call['name']}\nArgs: {call['args']}"
        return Ask(str(description), tuple(dict.fromkeys(config["allowed_decisions"])))

    return ask
