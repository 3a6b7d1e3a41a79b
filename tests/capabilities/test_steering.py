"""Steering: messages to a running turn, each read once, in their order, whatever crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Agent, Completed, MessageAdding, StepLimit, StopReason, TurnEnded, tool
from windlass.capabilities import Steering
from windlass.errors import ConfigError
from windlass.testing import FunctionModel, ScriptedModel, calls, check_capability, says, unpaired


def users(result: Any) -> list[str]:
    return [message.text for message in result.messages if message.role == "user"]


def texts(result: Any) -> list[str]:
    return [message.text for message in result.messages if message.role != "tool"]


def agent_with(steering: Steering, *script: Any, sent: tuple[tuple[str, str], ...] = (), **options: Any) -> Agent:
    """An agent whose tool sends messages to its own session."""
    agent = Agent(ScriptedModel(*script), capabilities=[steering], **options)

    @tool(name="work", effect="pure")
    async def work() -> str:
        """Work."""
        for mode, text in sent:
            await getattr(steering, mode)(agent, "s", text)
        return "worked"

    agent.tool(work)
    return agent


async def test_it_passes_the_checks_for_capabilities():
    await check_capability(Steering)


async def test_a_message_is_read_after_the_running_step():
    agent = agent_with(Steering(), calls("work"), says("done"), sent=(("steer", "In French."),))
    result = await agent.run("go", session="s")
    assert texts(result) == ["go", "", "In French.", "done"]
    assert unpaired(result.messages) == []


async def test_a_message_during_the_last_step_keeps_the_turn_going():
    steering = Steering()

    async def reply(request: Any) -> Any:
        if len(request.messages) == 1:
            await steering.steer(agent, "s", "One more thing.")
            return says("done")
        return says("done again")

    agent: Agent = Agent(FunctionModel(reply), capabilities=[steering])
    result = await agent.run("go", session="s")
    assert texts(result) == ["go", "done", "One more thing.", "done again"]
    assert result.outcome == Completed()


async def test_follow_ups_wait_until_the_model_is_done_and_are_answered_one_by_one():
    sent = (("follow_up", "Then this."), ("follow_up", "Then that."))
    agent = agent_with(Steering(), calls("work"), says("one"), says("two"), says("three"), sent=sent)
    result = await agent.run("go", session="s")
    assert texts(result) == ["go", "", "one", "Then this.", "two", "Then that.", "three"]
    assert result.outcome == Completed()
    assert await agent.storage("steering").items("to ") == {}


async def test_equal_follow_ups_are_each_read():
    sent = (("follow_up", "Go on."), ("follow_up", "Go on."))
    agent = agent_with(Steering(), calls("work"), says("one"), says("two"), says("three"), sent=sent)
    assert users(await agent.run("go", session="s")) == ["go", "Go on.", "Go on."]


async def test_collected_messages_are_read_as_one_before_follow_ups():
    sent = (("follow_up", "Then."), ("collect", "Red."), ("collect", "Green."))
    agent = agent_with(Steering(), calls("work"), says("one"), says("two"), says("three"), sent=sent)
    assert users(await agent.run("go", session="s")) == ["go", "Red.\n\nGreen.", "Then."]


async def test_more_follow_ups_than_a_turn_takes_wait_for_the_next_one():
    sent = tuple([("follow_up", str(number)) for number in range(3)])
    script = [calls("work"), *[says("done")] * 9]
    agent = agent_with(Steering(), *script, sent=sent, max_vetoes=2)
    result = await agent.run("go", session="s")
    assert (users(result), result.outcome) == (["go", "0", "1"], Completed())
    assert users(await agent.run("again", session="s"))[-2:] == ["again", "2"]


async def test_an_interrupt_breaks_off_the_model_call():
    steering, asked, broken_off = Steering(), asyncio.Event(), asyncio.Event()

    async def reply(request: Any) -> Any:
        if len(request.messages) > 1:
            return says("stopped")
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            broken_off.set()

    agent = Agent(FunctionModel(reply), capabilities=[steering])
    turn = asyncio.ensure_future(agent.run("go", session="s"))
    await asked.wait()
    assert await steering.interrupt(agent, "s", "Stop.")
    result = await turn
    assert broken_off.is_set()
    assert texts(result) == ["go", "(interrupted by the user)", "Stop.", "stopped"]
    assert result.outcome == Completed()


@pytest.mark.parametrize("way", ["stream", "iterate"])
async def test_an_interrupt_reaches_a_turn_that_is_streamed_or_iterated(way):
    steering, asked = Steering(), asyncio.Event()

    async def reply(request: Any) -> Any:
        if len(request.messages) == 1:
            asked.set()
            await asyncio.Event().wait()
        return says("stopped")

    agent = Agent(FunctionModel(reply), capabilities=[steering])

    async def consume() -> None:
        async for _ in getattr(agent, way)("go", session="s"):
            pass

    turn = asyncio.ensure_future(consume())
    await asked.wait()
    assert await steering.interrupt(agent, "s", "Stop.")
    await turn
    assert (await agent.state("s")).text == "stopped"


@pytest.mark.parametrize(("effect", "unknown"), [("pure", False), ("unsafe", True)])
async def test_an_interrupt_breaks_off_the_tools_and_every_call_has_a_result(effect, unknown):
    steering, started = Steering(), asyncio.Semaphore(0)

    @tool(effect=effect)
    async def wait() -> str:
        """Wait."""
        started.release()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(calls([("wait", {}), ("wait", {})]), says("stopped"))
    agent = Agent(model, tools=[wait], capabilities=[steering])
    turn = asyncio.ensure_future(agent.run("go", session="s"))
    await started.acquire()
    await started.acquire()
    assert await steering.interrupt(agent, "s", "Stop.")
    result = await turn
    parts = result.messages[2].parts
    assert [part.status for part in parts] == ["interrupted"] * 2
    assert all(("unknown" in part.text) is unknown for part in parts)
    assert texts(result) == ["go", "", "Stop.", "stopped"]
    assert unpaired(result.messages) == []


async def test_an_interrupt_of_one_session_leaves_the_others_alone():
    steering, started = Steering(), asyncio.Semaphore(0)
    release = asyncio.Event()

    async def reply(request: Any) -> Any:
        if len(request.messages) == 1:
            started.release()
            await release.wait()
        return says("done")

    agent = Agent(FunctionModel(reply), capabilities=[steering])
    turns = [asyncio.ensure_future(agent.run("go", session=session)) for session in ("a", "b")]
    await started.acquire()
    await started.acquire()
    assert await steering.interrupt(agent, "a", "Stop.")
    assert users(await turns[0]) == ["go", "Stop."]
    release.set()
    assert texts(await turns[1]) == ["go", "done"]


async def test_without_a_running_turn_nothing_is_broken_off_and_the_next_turn_reads_it():
    steering = Steering()
    agent = agent_with(steering, says("one"), says("two"), says("three"))
    await agent.run("go", session="s")
    assert not await steering.interrupt(agent, "s", "Hello?")
    assert "Hello?" in users(await agent.run("again", session="s"))


async def test_a_time_out_of_a_model_is_no_interrupt():
    agent = Agent(ScriptedModel(TimeoutError("slow"), says("hi")), capabilities=[Steering()])
    assert (await agent.run("go")).text == "hi"


async def test_sessions_do_not_read_each_others_follow_ups():
    steering = Steering()
    agent = agent_with(steering, *[says("done")] * 4)
    await steering.follow_up(agent, "s", "for s")
    await steering.follow_up(agent, "s2", "for s2")
    assert users(await agent.run("go", session="s")) == ["go", "for s"]
    assert users(await agent.run("go", session="s2")) == ["go", "for s2"]


async def test_messages_pass_the_door_of_the_transcript():
    sent = (("steer", "a secret"), ("follow_up", "another secret"))
    agent = agent_with(Steering(), calls("work"), says("one"), says("two"), sent=sent)

    @agent.rewrite(MessageAdding, when=lambda event: event.message.role == "user")
    def clean(event: MessageAdding) -> Any:
        return event.message.map_text(lambda text: text.replace("secret", "***"))

    assert users(await agent.run("go", session="s")) == ["go", "a ***", "another ***"]


async def test_a_limit_is_not_overridden():
    steering = Steering()
    agent = agent_with(steering, says("one"), says("never"), criteria=[StepLimit(1)])
    await steering.follow_up(agent, "s", "More.")
    assert (await agent.run("go", session="s")).stop_reason is StopReason.STEP_LIMIT


async def test_a_follow_up_is_read_once_although_the_store_still_has_it_as_after_a_crash(tmp_path):
    steering = Steering()
    agent = agent_with(steering, *[says("done")] * 5, store=f"sqlite:///{tmp_path}/a.db")
    await steering.follow_up(agent, "s", "Once.")
    waiting = await agent.storage("steering").items("to ")
    await agent.run("go", session="s")
    for key, entry in waiting.items():
        await agent.storage("steering").put(key, entry)
    assert users(await agent.run("again", session="s")) == ["go", "Once.", "again"]
    await agent.aclose()


async def test_another_process_sends_and_this_one_reads(tmp_path):
    address = f"sqlite:///{tmp_path}/a.db"
    agent = agent_with(Steering(), says("one"), says("two"), store=address)
    there = Steering()
    other = Agent(ScriptedModel(), capabilities=[there], store=address)
    await there.follow_up(other, "s", "From afar.")
    assert users(await agent.run("go", session="s")) == ["go", "From afar."]
    await agent.aclose()
    await other.aclose()


async def test_nothing_is_written_if_nobody_steers():
    kinds = []
    for capabilities in ([], [Steering()]):
        agent = Agent(ScriptedModel(says("done")), capabilities=capabilities)
        await agent.run("go", session="s")
        kinds.append([type(record) for record in await agent.store.read("s")])
    assert kinds[0] == kinds[1]
    assert kinds[0][-1] is TurnEnded


async def test_misuse_is_refused():
    steering = Steering()
    agent = agent_with(steering)
    for send in (steering.steer, steering.interrupt, steering.follow_up, steering.collect):
        with pytest.raises(ConfigError, match="text must be"):
            await send(agent, "s", "")
    with pytest.raises(ConfigError, match="name"):
        Steering(name="")
