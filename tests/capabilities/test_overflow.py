"""A request that was too large for its model, though our count said that it fits, or before it was sent."""

from __future__ import annotations

import pytest

from windlass import Compacting, Completed, Deny, ErrorHandled, Failed, ModelCall, TurnStarting
from windlass.capabilities import AtTokens, ClearResults, Summarize, Trim
from windlass.errors import ContextOverflow
from windlass.events import Compaction
from windlass.records import Compacted, HookFailed
from windlass.testing import FunctionModel

from .chats import Chat, asks_for_summary, assert_sound, texts


class Strict(Chat):
    """A model that takes no more than so many characters."""

    def __init__(self, most, *plan, **given):
        super().__init__(*plan, **given)
        self.most = most
        self.refused = 0

    def reply(self, request):
        if not asks_for_summary(request) and sum(len(repr(message)) for message in request.messages) > self.most:
            self.refused += 1
            return ContextOverflow("prompt is too long", status=400)
        return super().reply(request)


async def talk(agent, turns=8):
    return [await agent.run(f"question {turn}", session="s") for turn in range(turns)]


@pytest.mark.parametrize("way", ["run", "stream", "iterate", "wrapped"])
async def test_the_turn_compacts_and_tries_again(way):
    chat = Strict(2500)
    agent = chat.agent(Summarize(trigger=[], keep=2))
    if way == "wrapped":

        @agent.wrap(ModelCall)
        async def through(request, call_next):
            return await call_next(request)

    for turn in range(8):
        if way == "stream":
            async with agent.stream(f"question {turn}", session="s") as stream:
                async for _ in stream:
                    pass
            assert stream.result.outcome == Completed()
        elif way == "iterate":
            states = [state async for state in agent.iterate(f"question {turn}", session="s")]
            assert states[-1].outcome == Completed()
        else:
            assert (await agent.run(f"question {turn}", session="s")).outcome == Completed()
    log = await agent.store.read("s")
    made = [record for record in log if isinstance(record, Compacted)]
    handled = [record for record in log if isinstance(record, ErrorHandled)]
    assert chat.refused == len(made) == len(handled) >= 1
    assert {record.reason for record in made} == {"the request was too large for the model"}
    assert {(record.error.type, record.action, record.by) for record in handled} == {
        ("ContextOverflow", "retry", "compaction")
    }
    await assert_sound(agent)


async def test_without_a_strategy_the_error_stands():
    chat = Strict(2500)
    results = await talk(chat.agent())
    assert isinstance(results[-1].outcome, Failed)
    assert results[-1].outcome.error.type == "ContextOverflow"


async def test_it_is_tried_again_once_in_a_step():
    chat = Strict(10)
    agent = chat.agent(Trim([], 1))
    [result] = await talk(agent, 1)
    assert chat.refused == 1  # there is nothing to cut
    assert isinstance(result.outcome, Failed)
    chat.most = 2500
    await talk(agent, 3)
    chat.most, chat.refused = 10, 0
    [result] = await talk(agent, 1)
    assert chat.refused == 2
    with pytest.raises(ContextOverflow):
        result.raise_for_error()


class Nibble:
    """A strategy that drops the oldest message."""

    name = "nibble"

    def install(self, registrar):
        registrar.compactor(self)

    def plan(self, window, *, forced=False):
        return Compaction((0, 1)) if forced else None

    async def replace(self, plan, window, turn):
        return []


async def test_a_strategy_that_gains_little_is_not_asked_over_and_over():
    chat = Strict(10_000)
    agent = chat.agent(Nibble())
    await talk(agent, 4)
    chat.most = 10
    [result] = await talk(agent, 1)
    assert chat.refused == 2
    assert len(result.state.shown) == len(result.messages) - 1
    assert isinstance(result.outcome, Failed)


async def test_who_may_not_compact_meets_the_error():
    chat = Strict(2500)
    agent = chat.agent(Trim([], 1))

    @agent.gate(Compacting)
    def never(event):
        return Deny("not now")

    results = await talk(agent)
    assert isinstance(results[-1].outcome, Failed)


async def test_strategies_are_asked_until_enough_is_gone():
    plan = [{"n": n, "size": 900} for n in range(6)]
    chat = Strict(6000, *plan)
    agent = chat.agent(ClearResults([], keep=1), Summarize(trigger=[], keep=2))
    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    log = await agent.store.read("s")
    assert [record.by for record in log if isinstance(record, Compacted)] == ["clear_results"]
    assert chat.asked == []


async def test_what_would_not_fit_is_compacted_before_it_is_sent():
    chat = Chat()
    agent = chat.agent(Trim([], 2), window=500, injection_reserve=0)
    assert all(result.outcome == Completed() for result in await talk(agent, 12))
    assert all(sum(len(text) // 4 for text in texts(request.messages)) < 500 for request in chat.requests)
    assert (await agent.state("s")).compactions


async def test_a_model_that_breaks_off_for_it_is_heard_once():
    chat = Strict(2500)
    agent = chat.agent(Trim([], 2))
    said = []
    for turn in range(8):
        async with agent.stream(f"question {turn}", session="s") as stream:
            said += [event async for event in stream]
        assert stream.result.text.startswith("word")
    assert [fact for fact in said if isinstance(fact, Compacted)]


@pytest.mark.parametrize("window", [1, 50, 200])
async def test_a_summary_that_cannot_be_asked_for_within_the_window_never_leaves(window):
    chat = Chat()
    asked = []
    writer = FunctionModel(lambda request: asked.append(request) or "They talked.", name="writer")
    writer.context_window = window
    agent = chat.agent(Summarize(writer, trigger=AtTokens(300), keep=2))
    *_, last = await talk(agent)
    assert asked == []
    assert not last.state.compactions
    failed = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert "to 'writer'" in failed[-1].error.message
    assert failed[-1].error.type == "ContextOverflow"
    await assert_sound(agent)


async def test_a_side_call_that_would_not_fit_never_leaves():
    chat = Chat()
    agent = chat.agent(window=1000)

    @agent.inject(TurnStarting)
    async def recall(event):
        return (await event.turn.ask("chat", "word " * 2000)).text

    result = await agent.run("question", session="s")
    assert chat.requests == []
    assert isinstance(result.outcome, Failed)
    assert "'recall'" in result.outcome.error.message
    assert "it was not sent" in result.outcome.error.message
