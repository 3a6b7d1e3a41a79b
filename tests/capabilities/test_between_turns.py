"""Summaries that are written between two turns."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from windlass import Completed, Halt, ModelCalling
from windlass.capabilities import AtTokens, Summarize
from windlass.messages import ModelReply, Usage, assistant
from windlass.records import Compacted, SideReplied
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel

from .chats import Chat, assert_sound, texts


class Writer:
    """A model that waits until it is let."""

    name = "writer"

    def __init__(self, *texts):
        self.texts = list(texts) or ["They talked."]
        self.requests = []
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.cancelled = 0

    async def reply(self, request):
        self.requests.append(request)
        self.asked.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if isinstance(text, Exception):
            raise text
        return ModelReply(assistant(text), Usage(input=700, output=7, requests=1))


def strategy(writer, **given):
    return Summarize(writer, **{"trigger": AtTokens(400), "keep": 2, "between_turns": True, **given})


async def talk(agent, writer, first=0):
    """Turns until the writer was asked."""
    for turn in range(first, first + 20):
        result = await agent.run(f"question {turn}", session="s")
        assert result.outcome == Completed()
        await asyncio.sleep(0)
        if writer.requests:
            return turn
    raise AssertionError("nobody was asked for a summary")


async def test_a_summary_is_written_while_nobody_waits_and_used_in_the_next_turn():
    writer = Writer()
    chat = Chat()
    agent = chat.agent(strategy(writer))
    last = await talk(agent, writer)
    state = await agent.state("s")
    assert state.over
    assert not state.compactions
    assert not any(isinstance(record, SideReplied) for record in await agent.store.read("s"))
    writer.free.set()
    for _ in range(3):
        await asyncio.sleep(0)
    result = await agent.run(f"question {last + 1}", session="s")
    assert texts(chat.requests[-1].messages)[0].endswith("They talked.")
    assert len(writer.requests) == 1
    [made] = [record for record in await agent.store.read("s") if isinstance(record, Compacted)]
    assert made.reason == "prepared between turns"
    [side] = [record for record in await agent.store.read("s") if isinstance(record, SideReplied)]
    assert side.by == "summarize"
    assert result.usage.input >= 700
    await assert_sound(agent)


async def test_one_that_is_not_ready_is_waited_for_only_when_it_is_due():
    writer = Writer()
    chat = Chat()
    agent = chat.agent(strategy(writer))
    last = await talk(agent, writer)
    assert (await agent.run(f"question {last + 1}", session="s")).outcome == Completed()
    assert not (await agent.state("s")).compactions
    due = asyncio.ensure_future(agent.run(f"question {last + 2} " + "z" * 400, session="s"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not due.done()
    assert len(chat.requests) == last + 2
    assert len(writer.requests) == 1
    writer.free.set()
    assert (await due).state.compactions
    assert len([record for record in await agent.store.read("s") if isinstance(record, SideReplied)]) == 1


async def test_one_that_fails_is_asked_for_again_when_it_is_due():
    writer = Writer(RuntimeError("no"), "They talked.")
    writer.free.set()
    agent = Chat().agent(strategy(writer))
    last = await talk(agent, writer)
    await agent.run(f"question {last + 1}", session="s")
    assert not any(isinstance(record, SideReplied) for record in await agent.store.read("s"))
    for turn in range(last + 2, last + 6):
        assert (await agent.run(f"question {turn}", session="s")).outcome == Completed()
        await asyncio.sleep(0)
    assert len(writer.requests) >= 2
    assert (await agent.state("s")).compactions


async def test_one_of_another_history_is_not_used():
    writer = Writer()
    writer.free.set()
    store = MemoryStore()
    agent = Chat().agent(strategy(writer), store=store)
    last = await talk(agent, writer)
    by_hand = Chat().agent(Summarize(ScriptedModel("By hand.", name="hand"), trigger=[], keep=1), store=store)
    await by_hand.compact("s")
    await agent.run(f"question {last + 1}", session="s")
    shown = (await agent.state("s")).shown
    assert "By hand." in shown[0].text


async def test_guards_judge_it_before_it_leaves():
    writer = Writer()
    writer.free.set()
    agent = Chat().agent(strategy(writer))

    @agent.gate(ModelCalling, band="guard")
    def nothing_else(event):
        return Halt("no summaries") if event.request.model == "writer" else None

    for turn in range(5):
        await agent.run(f"question {turn}", session="s")
        await asyncio.sleep(0)
    assert writer.requests == []


async def test_a_session_that_ends_with_its_turn_is_not_summarised():
    writer = Writer()
    agent = Chat(*[{"n": n, "size": 250} for n in range(5)]).agent(strategy(writer, trigger=AtTokens(600)))
    await agent.run("go")
    for _ in range(5):
        await asyncio.sleep(0)
    assert writer.requests == []


async def test_a_closed_session_is_not_waited_for():
    writer = Writer()
    agent = Chat().agent(strategy(writer))
    async with agent.session("s"):
        await talk(agent, writer)
    for _ in range(5):
        await asyncio.sleep(0)
    assert writer.cancelled == 1


def test_a_loop_that_closes_neither_hangs_nor_warns():
    capability = None

    async def once():
        nonlocal capability
        writer = Writer()
        capability = strategy(writer)
        agent = Chat().agent(capability)
        await talk(agent, writer)
        await writer.asked.wait()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(once())
    [ahead] = capability._ahead.values()
    assert ahead.task.cancelled()


def test_turns_of_separate_loops_get_on_without_it():
    chat = Chat()
    agent = chat.agent(Summarize(trigger=AtTokens(400), keep=2, between_turns=True))
    for turn in range(8):
        assert agent.run_sync(f"question {turn}", session="s").outcome == Completed()
    assert asyncio.run(agent.state("s")).compactions


@pytest.mark.parametrize("size", [1, 3])
async def test_not_too_many_are_kept(monkeypatch, size):
    from windlass.capabilities import summarize

    monkeypatch.setattr(summarize, "SESSIONS", size)
    writer = Writer()
    capability = strategy(writer)
    agent = Chat().agent(capability)
    for session in range(5):
        for turn in range(4):
            await agent.run(f"question {turn} " + "z" * 100, session=f"s{session}")
    assert len(capability._ahead) <= size
    assert len(capability._seen) <= size
