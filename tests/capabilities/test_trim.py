"""Trim: the oldest messages are no longer shown."""

from __future__ import annotations

from windlass import Completed
from windlass.capabilities import AtMessages, AtTokens, Trim
from windlass.capabilities.trim import NOTE

from .chats import Chat, assert_paired, assert_sound, texts


async def test_the_oldest_messages_are_dropped():
    chat = Chat()
    agent = chat.agent(Trim(AtMessages(7), 3))
    for turn in range(6):
        await agent.run(f"question {turn}", session="s")
    state = await agent.state("s")
    assert len(state.messages) == 12
    assert len(state.shown) < 8
    assert texts(chat.requests[-1].messages)[0] == NOTE
    assert texts(chat.requests[-1].messages)[-1] == "question 5"
    assert [message.text for message in state.shown].count(NOTE) == 1
    await assert_sound(agent)


async def test_the_target_counts_messages_where_the_trigger_does():
    agent = Chat().agent(Trim(AtMessages(10), 1))
    await agent.run("one long message " * 500, session="s")
    for turn in range(5):
        await agent.run(f"question {turn}", session="s")
    [shown] = (await agent.state("s")).compactions
    assert 2 <= len(shown.messages) < 5


async def test_a_long_turn_keeps_its_message_and_its_pairs():
    chat = Chat(*[{"n": n, "size": 300} for n in range(10)])
    agent = chat.agent(Trim(AtTokens(500), 2, note="(gone)"))
    result = await agent.run("go on", session="s")
    assert result.outcome == Completed()
    for request in chat.requests:
        assert_paired(request.messages)
        assert "go on" in texts(request.messages)
    assert texts(chat.requests[-1].messages)[:2] == ["(gone)", "go on"]
    await assert_sound(agent)


async def test_trimming_twice_is_trimming_once():
    agent = Chat().agent(Trim([], 2))
    for turn in range(4):
        await agent.run(f"question {turn}", session="s")
    assert len(await agent.compact("s")) == 1
    once = await agent.state("s")
    assert await agent.compact("s") == ()
    assert await agent.state("s") == once
