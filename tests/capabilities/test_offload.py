"""Offload: a model is shown the beginning of a big result, and reads the rest by its handle."""

from __future__ import annotations

from itertools import pairwise

from windlass import Agent, Compacting, Deny, ToolResultPart, tool
from windlass.capabilities import Offload
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, calls, says
from windlass.transfer import export_session, import_session

from .chats import Chat, assert_sound


def results(messages):
    return [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


async def test_a_big_result_is_cut_before_the_model_sees_it_and_kept_whole():
    chat = Chat({"n": 1, "size": 4000}, {"n": 2, "size": 40})
    agent = chat.agent(Offload(200, preview=20))
    result = await agent.run("go", session="s")
    seen = results(chat.requests[1].messages)[0].text
    assert seen.startswith("page 1: xxx")
    assert len(seen) < 400
    assert 'read_result(handle="s/1/1", offset=' in seen
    assert [len(part.text) for part in results(result.messages)] == [4008, 48]
    assert results(chat.requests[2].messages)[1].text == results(result.messages)[1].text
    await assert_sound(agent)


async def test_the_rest_is_read_by_its_handle():
    chat = Chat(
        {"n": 1, "size": 4000},
        calls("read_result", handle="s/1/1", offset=4000, length=100),
        calls("read_result", handle="s/1/1", length=100_000),
    )
    agent = chat.agent(Offload(200, preview=20))
    result = await agent.run("go", session="s")
    _, end, start = results(result.messages)
    assert end.text == "xxxxxxxx\n[characters 4000 to 4007 of 4008; this is the end]"
    assert start.text.endswith("[characters 0 to 799 of 4008; go on with offset=800]")
    assert results(result.state.shown)[2].text == start.text


async def test_a_handle_that_nobody_knows_is_an_error_the_model_reads():
    chat = Chat(calls("read_result", handle="s/9/9"), {"n": 1}, calls("read_result", handle="s/2/1", offset=10**6))
    result = await chat.agent(Offload()).run("go", session="s")
    unknown, _, beyond = results(result.messages)
    assert unknown.status == beyond.status == "error"
    assert "no result with the handle 's/9/9'" in unknown.text
    assert "the result has characters 0 to 207" in beyond.text


async def test_several_results_of_a_step_are_cut_and_the_later_ones_too():
    wanted = calls([("look", {"n": 1, "size": 3000}), ("look", {"n": 2, "size": 30}), ("look", {"n": 3, "size": 3000})])
    chat = Chat(wanted, {"n": 4, "size": 3000}, {"n": 5, "size": 3000})
    result = await chat.agent(Offload(200, preview=20)).run("go", session="s")
    assert ["read_result" in part.text for part in results(result.state.shown)] == [True, False, True, True, True]
    for before, after in pairwise(chat.requests):
        assert list(after.messages)[: len(before.messages)] == list(before.messages)


async def test_who_is_not_let_leaves_the_result_whole():
    chat = Chat({"n": 1, "size": 4000})
    agent = chat.agent(Offload(200, preview=20))

    @agent.gate(Compacting)
    def never(event):
        return Deny("not now")

    result = await agent.run("go", session="s")
    assert len(results(chat.requests[1].messages)[0].text) == 4008
    assert not result.state.compactions


async def test_old_results_are_cut_when_that_is_asked_for():
    agent = Chat({"n": 1, "size": 4000}).agent()
    await agent.run("go", session="s")
    later = Chat(says("ok")).agent(Offload(200, preview=20), store=agent.store)
    await later.run("go on", session="s")
    assert len(await later.compact("s")) == 1
    assert await later.compact("s") == ()
    assert "read_result" in results((await later.state("s")).shown)[0].text


async def test_a_handle_holds_in_a_fork_and_elsewhere():
    chat = Chat({"n": 1, "size": 4000})
    agent = chat.agent(Offload(200, preview=20))
    await agent.run("go", session="s")
    await agent.fork("s", to="fork")
    store = MemoryStore()
    await import_session(store, await export_session(agent.store, "s"), "moved")
    for session, where in (("fork", agent.store), ("moved", store)):
        reader = Chat(calls("read_result", handle="s/1/1", length=10))
        result = await reader.agent(Offload(200, preview=20), store=where).run("more", session=session)
        assert results(result.messages)[-1].text.startswith("page 1: xx\n")


async def test_one_reading_of_a_text_that_is_not_ascii_is_no_larger_either():
    @tool(effect="pure", inline=True)
    def page() -> str:
        """A page in another script."""
        return "ж" * 4000

    script = [calls("page"), calls("read_result", handle="s/1/1", length=100_000), says("read")]
    agent = Agent(ScriptedModel(*script), tools=[page]).with_capability(Offload(200, preview=20))
    result = await agent.run("go", session="s")
    assert results(result.messages)[1].text.endswith("[characters 0 to 399 of 4000; go on with offset=400]")
