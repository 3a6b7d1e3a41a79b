"""Cache and Steering over PostgreSQL, by agents that share nothing but the database."""

from __future__ import annotations

import asyncio
from typing import Any

from windlass import Agent, tool
from windlass.capabilities import Cache, Steering
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says


def users(result: Any) -> list[str]:
    return [message.text for message in result.messages if message.role == "user"]


async def test_replies_and_results_are_shared_and_survive(database: str):
    ran: list[str] = []

    @tool(effect="pure")
    async def look(what: str) -> str:
        """Look."""
        ran.append(what)
        return f"saw {what}"

    script = [calls("look", what="sea"), says("blue")]
    for number, replies in enumerate((script, [])):
        model = ScriptedModel(*replies)
        agent = Agent(model, tools=[look], capabilities=[Cache(tools=True)], store=database)
        result = await agent.run("go", session=f"s{number}")
        assert result.text == "blue"
        assert result.usage.total == (0 if number else result.usage.total)
        await agent.aclose()
    assert ran == ["sea"]


async def test_entries_expire_and_are_kept_apart(database: str):
    clock = FakeClock()
    model = ScriptedModel(says("one"), says("two"), says("three"))
    cache = Cache(ttl=60, vary=lambda turn: str(turn.scope))
    agent = Agent(model, capabilities=[cache], store=database, clock=clock)
    assert (await agent.run("go", scope="ann")).text == "one"
    assert (await agent.run("go", scope="bob")).text == "two"
    assert (await agent.run("go", scope="ann")).text == "one"
    await clock.advance(61)
    assert (await agent.run("go", scope="ann")).text == "three"
    await agent.aclose()


async def test_equal_requests_at_once_are_made_once(database: str):
    asked: list[int] = []

    async def reply(request: Any) -> Any:
        asked.append(1)
        await asyncio.sleep(0)
        return says("hi")

    agent = Agent(FunctionModel(reply), capabilities=[Cache()], store=database)
    results = await asyncio.gather(*[agent.run("go", session=f"s{n}") for n in range(5)])
    assert [result.text for result in results] == ["hi"] * 5
    assert len(asked) == 1
    await agent.aclose()


async def test_another_process_sends_and_this_one_reads_in_order(database: str):
    agent = Agent(ScriptedModel(*[says(f"{n}") for n in range(5)]), capabilities=[Steering()], store=database)
    there = Steering()
    other = Agent(ScriptedModel(), capabilities=[there], store=database)
    for mode, text in (("follow_up", "first"), ("collect", "x"), ("follow_up", "second"), ("collect", "y")):
        await getattr(there, mode)(other, "s", text)
    await there.follow_up(other, "t", "for another session")
    assert users(await agent.run("go", session="s")) == ["go", "x\n\ny", "first", "second"]
    assert users(await agent.run("again", session="s"))[4:] == ["again"]
    await agent.aclose()
    await other.aclose()


async def test_a_message_steers_and_interrupts_a_turn_that_runs(database: str):
    steering = Steering()
    there = Steering()
    other = Agent(ScriptedModel(), capabilities=[there], store=database)
    begun = asyncio.Event()

    async def reply(request: Any) -> Any:
        if len(request.messages) == 1:
            await there.steer(other, "s", "In French.")
            return calls("work")
        if request.messages[-1].text == "In French.":
            begun.set()
            await asyncio.Event().wait()
        return says("done")

    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        return "worked"

    agent = Agent(FunctionModel(reply), tools=[work], capabilities=[steering], store=database)
    running = asyncio.create_task(agent.run("go", session="s"))
    await begun.wait()
    assert await steering.interrupt(agent, "s", "Stop.")
    result = await running
    assert users(result) == ["go", "In French.", "Stop."]
    assert result.text == "done"
    await agent.aclose()
    await other.aclose()


async def test_a_follow_up_is_read_once_although_the_store_still_has_it(database: str):
    steering = Steering()
    agent = Agent(ScriptedModel(*[says("done")] * 5), capabilities=[steering], store=database)
    await steering.follow_up(agent, "s", "Once.")
    waiting = await agent.storage("steering").items("to ")
    await agent.run("go", session="s")
    for key, entry in waiting.items():
        await agent.storage("steering").put(key, entry)
    assert users(await agent.run("again", session="s")) == ["go", "Once.", "again"]
    await agent.aclose()
