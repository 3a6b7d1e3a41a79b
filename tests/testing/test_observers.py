"""The recording observer has seen everything when the turn is over, and changes nothing."""

from __future__ import annotations

import asyncio

from windlass import Agent, ModelReplied, ToolReturned, TurnEnded, tool
from windlass.events import ModelCalled, StepStarted
from windlass.records import ToolCalled
from windlass.testing import FakeClock, RecordingObserver, ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def adding(*kinds):
    observer = RecordingObserver(*kinds)
    model = ScriptedModel(calls("add", a=1, b=2), says("3"))
    return Agent(model, tools=[add], clock=FakeClock(), name="a").with_capability(observer), observer


async def test_it_has_every_record_of_the_turn_and_what_is_only_seen_live():
    agent, observer = adding()
    await agent.run("1 + 2?", session="s")
    log = await agent.store.read("s")
    missing = [record for record in log if record not in observer.facts]
    assert missing == []
    assert len(observer.of(ModelCalled)) == len(observer.of(StepStarted)) == 2
    assert observer.names().index("StepStarted") < observer.names().index("ModelCalled")
    assert observer.names()[-1] == "TurnEnded"


async def test_it_can_be_limited_to_some_kinds():
    agent, observer = adding(ToolReturned, TurnEnded)
    await agent.run("1 + 2?", session="s")
    assert observer.names() == ["ToolReturned", "TurnEnded"]
    [returned] = observer.of(ToolReturned)
    assert returned.result.text == "3"
    assert observer.of(ToolReturned, lambda fact: fact.name == "other") == []


async def test_it_tells_sessions_apart():
    observer = RecordingObserver(ModelReplied)
    agent = Agent(ScriptedModel("a", "b")).with_capability(observer)
    await agent.run("one", session="s1")
    await agent.run("two", session="s2")
    assert [fact.reply.text for fact in observer.in_session("s2")] == ["b"]  # type: ignore[attr-defined]
    observer.clear()
    assert observer.facts == []


async def test_it_does_not_change_the_log():
    agent, _ = adding()
    await agent.run("1 + 2?", session="s")
    plain = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], clock=FakeClock(), name="a")
    await plain.run("1 + 2?", session="s")
    [seen, unseen] = [[type(r) for r in await a.store.read("s")] for a in (agent, plain)]
    assert seen == unseen


def test_it_is_an_observer_also_without_a_capability():
    observer = RecordingObserver()
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
    agent.observe(ToolCalled, wait=True)(observer)
    agent.run_sync("1 + 2?")
    assert observer.names() == ["ToolCalled"]


async def test_it_serves_many_sessions_at_once():
    observer = RecordingObserver(TurnEnded)
    agent = Agent(ScriptedModel(*["x"] * 10)).with_capability(observer)
    await asyncio.gather(*[agent.run("go", session=str(n)) for n in range(10)])
    assert sorted(session for session, _ in observer.seen) == sorted(map(str, range(10)))
