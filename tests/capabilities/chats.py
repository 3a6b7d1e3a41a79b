"""Agents for tests of compaction: a model that answers at length, writes summaries and calls tools as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass import Agent, ModelRequest, ToolCallPart, ToolResultPart, fold, tool
from windlass.messages import Message
from windlass.testing import FunctionModel, calls, says
from windlass.testing.models import Scriptable

LONG = "word " * 40
"""About fifty tokens."""


@tool(effect="pure", inline=True)
def look(n: int, size: int = 200) -> str:
    """Look something up."""
    return f"page {n}: " + "x" * size


@tool(effect="pure", inline=True)
def check(n: int) -> str:
    """Check something."""
    return f"checked {n}: " + "y" * 200


def asks_for_summary(request: ModelRequest) -> bool:
    return request.system.startswith("You write summaries")


class Chat:
    """A model: it answers at length, or calls the tools of `plan`, one after the other, and then answers.

    `summaries` are what it says when it is asked for one; the last of them over and over.
    """

    def __init__(self, *plan: Any, summaries: Sequence[Scriptable] = ("They talked.",)) -> None:
        self.plan = list(plan)
        self.summaries = list(summaries)
        self.requests: list[ModelRequest] = []
        self.asked: list[ModelRequest] = []

    def reply(self, request: ModelRequest) -> Scriptable:
        if asks_for_summary(request):
            self.asked.append(request)
            return self.summaries.pop(0) if len(self.summaries) > 1 else self.summaries[0]
        self.requests.append(request)
        if not self.plan:
            return says(LONG)
        planned = self.plan.pop(0)
        return planned if not isinstance(planned, dict) else calls("look", **planned)

    def agent(self, *capabilities: Any, **options: Any) -> Agent[Any, Any]:
        agent = Agent(FunctionModel(self.reply, name="chat"), tools=[look, check], **options)
        for capability in capabilities:
            agent.with_capability(capability)
        return agent


def assert_paired(messages: Sequence[Message]) -> None:
    """Every call has its result, after it; there are no others."""
    open_calls: set[str] = set()
    for message in messages:
        assert not open_calls or message.role == "tool"
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                open_calls.add(part.id)
            elif isinstance(part, ToolResultPart):
                assert part.call_id in open_calls
                open_calls.remove(part.call_id)
    assert not open_calls


async def assert_sound(agent: Agent[Any, Any], session: str = "s") -> None:
    """The log folds to the state that is told, what is shown has its pairs, and the transcript is whole."""
    state = await agent.state(session)
    log = await agent.store.read(session)
    assert fold(session, log) == state
    assert_paired(state.shown)
    assert_paired(state.messages)


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]
