"""One silent hook of each verb, and how often a turn must call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import agents

from windlass import (
    Agent,
    ModelCall,
    ModelCalling,
    ModelReplying,
    StepLimit,
    StepStarting,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
)


class Calls:
    """How often the hooks were called. The figures include the cost of counting, about 0.03 µs a call."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


calls = Calls()


def stay_silent(event: Any) -> None:
    calls.count += 1


async def stay_silent_async(event: Any) -> None:
    calls.count += 1


def see_turn(fact: ToolReturned, turn: Turn[Any]) -> None:
    calls.count += 1


async def pass_on(given: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    calls.count += 1
    return await call_next(given)


class PassOn(agents.PassOn):
    """A transformer that changes nothing. Only the last reply of a turn has text, so only that one is flushed."""

    def flush(self) -> tuple[str, ...]:
        calls.count += 1
        return ()


def register_gates(agent: Agent[Any, str]) -> None:
    for number in range(5):
        agent.gate(ToolCalling, name=f"gate{number}")(stay_silent)


class Silent(NamedTuple):
    """A row of the table: how to register its hooks, and how often a step, a tool call or a turn calls them.

    A criterion is not counted. Only `judged` rows have a bar.
    """

    register: Callable[[Agent[Any, str]], object]
    per: Literal["step", "call", "turn"]
    times: int = 1
    judged: bool = True

    def expected(self, steps: int, turns: int) -> int:
        """How often the hooks are called in some turns of `steps` steps. The last step of a turn calls no tool."""
        return self.times * turns * {"step": steps, "call": steps - 1, "turn": 1}[self.per]


HOOKS: dict[str, Silent] = {
    "gate ToolCalling": Silent(lambda agent: agent.gate(ToolCalling)(stay_silent), "call"),
    "5 gates ToolCalling": Silent(register_gates, "call", 5),
    "gate ModelCalling": Silent(lambda agent: agent.gate(ModelCalling)(stay_silent), "step"),
    "gate ModelReplying": Silent(lambda agent: agent.gate(ModelReplying)(stay_silent), "step"),
    "gate ToolReturning": Silent(lambda agent: agent.gate(ToolReturning)(stay_silent), "call"),
    "rewrite ToolCalling": Silent(lambda agent: agent.rewrite(ToolCalling)(stay_silent), "call"),
    "rewrite ModelCalling": Silent(lambda agent: agent.rewrite(ModelCalling)(stay_silent), "step"),
    "rewrite ToolReturning": Silent(lambda agent: agent.rewrite(ToolReturning)(stay_silent), "call"),
    "inject StepStarting": Silent(lambda agent: agent.inject(StepStarting)(stay_silent), "step"),
    "observe ToolReturned": Silent(lambda agent: agent.observe(ToolReturned)(stay_silent), "call"),
    "observe ToolReturned, async": Silent(lambda agent: agent.observe(ToolReturned)(stay_silent_async), "call"),
    "observe ToolReturned, with turn": Silent(
        lambda agent: agent.observe(ToolReturned)(see_turn), "call", judged=False
    ),
    "wrap ModelCall": Silent(lambda agent: agent.wrap(ModelCall)(pass_on), "step"),
    "wrap ToolCall": Silent(lambda agent: agent.wrap(ToolCall)(pass_on), "call"),
    "transform": Silent(lambda agent: agent.transform(PassOn), "turn"),
    "criterion StepLimit": Silent(lambda agent: agent.criterion(StepLimit(10**6)), "step", times=0, judged=False),
}


def ready(name: str | None) -> Callable[[], Awaitable[str]]:
    """A function that runs one turn of a new agent with the hooks of one row, or without hooks."""
    agent = agents.make()
    if name is not None:
        HOOKS[name].register(agent)

    async def turn() -> str:
        return (await agent.run("go")).text

    return turn


def verify(name: str | None, steps: int, turns: int) -> None:
    """Raise unless the turns called the hooks as often as they should, then reset the count."""
    expected = 0 if name is None else HOOKS[name].expected(steps, turns)
    if calls.count != expected:
        raise RuntimeError(f"{name}: the hooks were called {calls.count} times instead of {expected}")
    calls.count = 0
