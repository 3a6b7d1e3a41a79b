"""Six hooks around an agent in one class: override what you need; the rest costs nothing."""

from collections.abc import Sequence

from windlass import Agent, HookAction, Lifecycle, Message, ModelReply, ToolCall, ToolResult, tool
from windlass.testing import ScriptedModel, calls, says
from windlass.types import CallTool


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Narrator(Lifecycle):
    """Prints what happens, and cleans up the user's text and the answer."""

    def before_agent(self, text: str) -> str:
        print("before_agent   ", text)
        return text.strip()

    def before_model(self, messages: Sequence[Message]) -> None:
        print("before_model   ", len(messages), "messages")

    def after_model(self, reply: ModelReply) -> object:
        print("after_model    ", reply.text or f"calls {reply.tool_calls[0].name}")
        return HookAction.CONTINUE

    async def wrap_tool_call(self, call: ToolCall, call_next: CallTool) -> ToolResult:
        result = await call_next(call)
        print("wrap_tool_call ", call.name, call.arguments, "=", result.text)
        return result

    def after_agent(self, text: str) -> str:
        print("after_agent    ", text)
        return f"{text}."


agent = Agent(ScriptedModel(calls("add", a=19, b=23), says("42")), tools=[add]).with_lifecycle(Narrator())
result = agent.run_sync("  What is 19 + 23?  ")
assert result.text == "42."
assert result.messages[0].text == "What is 19 + 23?"
