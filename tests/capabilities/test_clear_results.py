"""ClearResults: what old tool calls gave is no longer shown."""

from __future__ import annotations

import pytest

from windlass import ToolResultPart, tool
from windlass.capabilities import AtTokens, ClearResults
from windlass.capabilities.clear_results import PLACEHOLDER
from windlass.records import Compacted
from windlass.testing import calls

from .chats import LONG, Chat, assert_paired, assert_sound


def results(messages):
    return [part.text for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


async def test_below_the_trigger_nothing_is_cleared():
    """Behaviour 69: given below trigger, no edit."""
    chat = Chat(*[{"n": n} for n in range(8)])
    agent = chat.agent(ClearResults(AtTokens(10_000)))
    result = await agent.run("go", session="s")
    assert not result.state.compactions
    assert all(text.startswith("page") for text in results(result.state.shown))


async def test_above_it_the_oldest_are_cleared_except_the_last_and_excluded_tools():
    """Behaviour 69: above the trigger, oldest tool results are cleared except keep-N and excluded tools."""
    plan = [calls([("look", {"n": n}), ("check", {"n": n})]) for n in range(4)]
    chat = Chat(*plan)
    agent = chat.agent(ClearResults(AtTokens(600), keep=3, exclude=["check"]))
    result = await agent.run("go", session="s")
    shown = results(result.state.shown)
    kinds = [text.split()[0] for text in shown]
    assert kinds == [PLACEHOLDER.split()[0], "checked"] * 2 + [PLACEHOLDER.split()[0], "checked", "page", "checked"]
    assert [text.split()[0] for text in results(result.messages)] == ["page", "checked"] * 4
    for request in chat.requests:
        assert_paired(request.messages)
    await assert_sound(agent)


async def test_it_moves_seldom_and_only_if_it_gains():
    chat = Chat(*[{"n": n} for n in range(30)])
    agent = chat.agent(ClearResults(AtTokens(300), keep=3))
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    moves = [record for record in log if isinstance(record, Compacted)]
    assert 1 <= len(moves) <= 8
    assert all(move.after <= move.before * 0.85 for move in moves)


async def test_what_is_cleared_is_cleared_once():
    chat = Chat(*[{"n": n} for n in range(6)])
    agent = chat.agent(ClearResults([], keep=2, placeholder="(gone)"))
    await agent.run("go", session="s")
    assert len(await agent.compact("s")) == 1
    once = await agent.state("s")
    assert results(once.shown) == ["(gone)"] * 4 + results(once.messages)[4:]
    assert await agent.compact("s") == ()
    assert await agent.state("s") == once


async def test_short_results_stay():
    chat = Chat(*[{"n": n, "size": 1} for n in range(6)])
    agent = chat.agent(ClearResults([], keep=0))
    await agent.run("go", session="s")
    assert await agent.compact("s") == ()


@tool(effect="pure", inline=True)
def note(text: str) -> str:
    """Note something."""
    return "ok"


@pytest.mark.parametrize("arguments", [True, False])
async def test_the_arguments_of_old_calls_are_cleared_too_if_you_want(arguments):
    chat = Chat(*[calls([("note", {"text": LONG}), ("check", {"n": n})]) for n in range(4)])
    agent = chat.agent(ClearResults(AtTokens(400), keep=2, exclude=["check"], arguments=arguments))
    agent.tool(note)
    result = await agent.run("go", session="s")
    shown = [message.tool_calls for message in result.state.shown if message.tool_calls]
    assert [bool(calls[0].arguments) for calls in shown[:2]] == [not arguments] * 2
    assert shown[3][0].arguments == {"text": LONG}
    assert [calls[1].arguments for calls in shown] == [{"n": n} for n in range(4)]
    kept = [message.tool_calls[0].arguments for message in result.messages if message.tool_calls]
    assert kept == [{"text": LONG}] * 4
    for request in chat.requests:
        assert_paired(request.messages)
    await assert_sound(agent)


async def test_what_is_cleared_with_its_arguments_is_cleared_once():
    chat = Chat(*[{"n": n} for n in range(6)])
    agent = chat.agent(ClearResults([], keep=2, arguments=True))
    await agent.run("go", session="s")
    assert len(await agent.compact("s")) == 1
    once = await agent.state("s")
    assert [message.tool_calls[0].arguments for message in once.shown if message.tool_calls][:5] == [{}] * 4 + [
        {"n": 4}
    ]
    assert await agent.compact("s") == ()
    assert await agent.state("s") == once
