"""smolagents: `ToolCallingAgent`, which has no asynchronous interface."""

from __future__ import annotations

import time
from typing import Any

from contender import ENDLESS, Contender, hooked, script
from smolagents import LogLevel, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from work import work


class Fake(Model):
    def generate(self, messages: Any, *args: Any, **options: Any) -> ChatMessage:
        if work.delay:
            time.sleep(work.delay)
        number = script.call_due(1 + (len(messages) - 2) // 3 * 2)  # three messages a step, after a system message
        name, given = ("add", {"a": number, "b": 1}) if number else ("final_answer", {"answer": "done"})
        function = ChatMessageToolCallFunction(name=name, arguments=given)
        call = ChatMessageToolCall(id=f"c{number}", type="function", function=function)
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return work.add(a, b)


def look(step: Any, agent: Any = None) -> None:
    hooked()


class SmolAgents(Contender):
    name = "smolagents"
    distribution = "smolagents"
    statement = "from smolagents import ToolCallingAgent"
    hook_points = "`step_callbacks`: after a step, they only look"
    notes = "synchronous only: turns at once and streaming are not measured; the answer is a tool call, too"
    parallel = False

    def make(self, hooks: int = 0, **options: Any) -> Any:
        return ToolCallingAgent(
            tools=[add],
            model=Fake(model_id="fake"),
            verbosity_level=LogLevel.OFF,
            max_steps=ENDLESS,
            step_callbacks=[look] * hooks,
        )

    def hook_calls(self, steps: int) -> int:
        return steps

    async def turn(self, agent: Any) -> str:
        return str(agent.run("go"))


CONTENDER = SmolAgents()
