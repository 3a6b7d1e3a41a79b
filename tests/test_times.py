"""When everything happened: every record of a log has a time, and time never goes back in a log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Deny,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Slot,
    StepEnding,
    StepStarting,
    Stopping,
    Suspended,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    Veto,
    tool,
)
from windlass.records import Record, decode, encode
from windlass.testing import ScriptedModel, calls, says

AnyAgent = Agent[Any, Any]


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@tool
async def fail() -> str:
    """Fail."""
    raise ValueError("no")


def rich(store: Any = "memory:", clock: Any = None, child_asks: bool = True) -> AnyAgent:
    """An agent whose turn has records of almost every kind."""
    helper: AnyAgent = Agent(ScriptedModel(calls("send", to="bob"), says("helped")), tools=[send], name="helper")
    if child_asks:
        helper.gate(ToolCalling, name="child_asks")(lambda event: Ask("Send to bob?"))
    model = ScriptedModel(
        says("bad"),
        calls([("add", {"a": 1, "b": 2}), ("send", {"to": "ann"}), ("fail", {}), ("send", {"to": "eve"})]),
        calls([("helper", {"task": "help"})]),
        says("early"),
        says("done"),
    )
    agent: AnyAgent = Agent(
        model, tools=[add, send, fail, helper.as_tool()], store=store, clock=clock, system="You work."
    )
    slot = agent.slot(Slot("mood", str))
    side = ScriptedModel(*[says("side") for _ in range(20)])
    vetoed: list[str] = []

    @agent.rewrite(TurnStarting)
    def polite(event: Any) -> Any:
        return event.message.text + ", please"

    @agent.inject(TurnStarting)
    def remember(event: Any) -> str:
        return "Ann likes letters."

    @agent.inject(StepStarting)
    async def recall(event: Any, turn: Any) -> str:
        reply = await turn.ask(side, "what?")
        turn.set(slot, "busy")
        return f"{reply.text} {event.step}"

    @agent.rewrite(ModelCalling)
    def brief(event: Any) -> Any:
        return event.request.replace(system=event.request.system + " Be brief.")

    @agent.gate(ModelReplying)
    def critic(event: Any) -> Any:
        return Regenerate("better") if event.reply.text == "bad" else None

    @agent.gate(ToolCalling, tool="send")
    async def asks(event: Any) -> Any:
        return Deny("not eve") if event.call.arguments["to"] == "eve" else Ask("Send?")

    @agent.gate(ToolCalling, mode="shadow")
    def shadow(event: Any) -> Any:
        return Deny("shadow")

    @agent.rewrite(ToolReturning, tool="add")
    def shown(event: Any) -> Any:
        return "three"

    @agent.inject(StepEnding, optional=True)
    def broken(event: Any) -> Any:
        raise RuntimeError("broken")

    @agent.gate(Stopping)
    def go_on(event: Any) -> Any:
        if not vetoed:
            vetoed.append("")
            return Veto("not yet")
        return None

    @agent.gate(TurnEnding)
    def ends(event: Any) -> Any:
        return None

    return agent


async def all_logs(agent: AnyAgent) -> dict[str, Sequence[Record]]:
    return {name: await agent.store.read(name) for name in await agent.store.sessions()}


async def finish(agent: AnyAgent, session: str = "s", answer: Any = None) -> Any:
    result = await agent.resume(session, answers={})
    while isinstance(result.outcome, Suspended):
        asked = result.waiting_for[0]
        result = await agent.resume(session, answers={asked.id: answer or Approve("ann")})
    return result


def assert_times(log: Sequence[Record]) -> None:
    """Every record has a time, in whole microseconds, and none is before the one before it."""
    assert log
    for before, record in zip([None, *log], log, strict=False):
        assert record.at > 0, record
        assert round(record.at, 6) == record.at, record
        assert before is None or before.at <= record.at, (before, record)
        assert decode(encode(record)).at == record.at


def stores(folder: Path) -> list[str]:
    return ["memory:", f"sqlite:///{folder}/agent.db"]


@pytest.mark.parametrize("kind", [0, 1], ids=["memory", "sqlite"])
async def test_every_record_of_a_rich_log_has_a_time_that_never_goes_back(kind: int, tmp_path: Path):
    agent = rich(stores(tmp_path)[kind])
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    result = await finish(agent)
    assert result.text == "done"
    logs = await all_logs(agent)
    assert len(logs) == 2
    for log in logs.values():
        assert_times(log)
    kinds = {type(record).__name__ for log in logs.values() for record in log}
    assert kinds >= {
        "SessionOpened", "TurnStarted", "MessageAdded", "Injected", "Rewritten", "HookDecided", "HookFailed",
        "ModelReplied", "ReplyRejected", "ToolDecided", "ToolCalled", "ToolReturned", "Delegated", "Charged",
        "StepEnded", "Evaluated", "StopVetoed", "Asked", "Answered", "Suspended", "Resumed", "SlotSet", "SideReplied",
        "Concluded", "TurnEnded",
    }  # fmt: skip
