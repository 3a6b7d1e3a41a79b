"""For random histories and strategies: pairs stay together, targets are met, the log grows, nothing is repeated."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windlass import Agent, Compacting, Rewind, StepEnding, fold
from windlass.capabilities import AtMessages, AtTokens, ClearResults, Offload, Summarize, Trim
from windlass.records import Compacted, encode
from windlass.testing import FunctionModel, calls, says

from .chats import asks_for_summary, assert_paired, check, look

# A turn is a list of steps that call tools: how many of each size. Then an answer of some length.
steps = st.lists(
    st.lists(st.tuples(st.sampled_from(["look", "check"]), st.integers(0, 900)), min_size=1, max_size=3), max_size=5
)
turns = st.lists(st.tuples(steps, st.integers(0, 600)), min_size=1, max_size=5)
keeps = st.one_of(st.integers(1, 6).map(AtMessages), st.integers(10, 300).map(AtTokens))
triggers = st.one_of(
    st.integers(20, 800).map(AtTokens),
    st.integers(2, 15).map(AtMessages),
    st.tuples(st.integers(20, 800).map(AtTokens), st.integers(2, 15).map(AtMessages)).map(
        lambda both: both[0] & both[1]
    ),
    st.just([]),
)


@st.composite
def strategies(draw: Any) -> list[Any]:
    made: list[Any] = []
    if draw(st.booleans()):
        made.append(Offload(draw(st.integers(20, 200)), preview=draw(st.integers(1, 10))))
    if draw(st.booleans()):
        made.append(ClearResults(draw(triggers), keep=draw(st.integers(0, 4)), exclude=["check"]))
    kind = draw(st.sampled_from([Summarize, Trim]))
    trigger, keep, target = draw(triggers), draw(keeps), draw(st.sampled_from([0, 0.3, 0.5, 0.8]))
    assume(type(trigger) is not type(keep) or keep.count < trigger.count)
    made.append(kind(trigger=trigger, keep=keep, target=target))
    return made


def agent_of(history: Any, made: list[Any], asked: list[Any]) -> Agent[Any, Any]:
    script = [
        step for turn, answer in history for step in (*[wanted(step) for step in turn], says("a" * answer or "."))
    ]

    def reply(request: Any) -> Any:
        if asks_for_summary(request):
            return says("They talked.")
        asked.append(request)
        return script[len(asked) - 1]

    agent = Agent(FunctionModel(reply), tools=[look, check])
    for strategy in made:
        agent.with_capability(strategy)
    return agent


def wanted(step: Any) -> Any:
    return calls([(name, {"n": 1, "size": size} if name == "look" else {"n": size}) for name, size in step])


async def live(agent: Agent[Any, Any], history: Any) -> list[list[bytes]]:
    """All turns; the log after each."""
    logs = []
    for number, _ in enumerate(history):
        result = await agent.run(f"question {number} " + "z" * 40, session="s")
        assert result.outcome is not None
        assert result.error is None, result.error
        logs.append([encode(record) for record in await agent.store.read("s")])
    return logs


@settings(max_examples=60)
@given(turns, strategies())
def test_compaction_keeps_what_it_promises(history, made):
    """Behaviours 65 and 68: whatever the history and the strategies, no pair is parted and the log only grows."""

    async def check_all() -> None:
        asked: list[Any] = []
        agent = agent_of(history, made, asked)
        logs = await live(agent, history)
        for request in asked:
            assert_paired(request.messages)
        for before, after in pairwise(logs):
            assert after[: len(before)] == before
        log = await agent.store.read("s")
        assert fold("s", log) == await agent.state("s")
        plain = agent_of(history, [], [])
        await live(plain, history)
        assert (await agent.state("s")).messages == (await plain.state("s")).messages
        for record in log:
            if isinstance(record, Compacted):
                assert record.after < record.before

    asyncio.run(check_all())


@settings(max_examples=60)
@given(turns, strategies())
def test_compacting_twice_is_compacting_once(history, made):
    async def check_all() -> None:
        agent = agent_of(history, made, [])
        await live(agent, history)
        await agent.compact("s")
        once, records = await agent.state("s"), len(await agent.store.read("s"))
        assert await agent.compact("s") == ()
        assert await agent.state("s") == once
        assert len(await agent.store.read("s")) == records

    asyncio.run(check_all())


@settings(max_examples=60)
@given(turns, st.sampled_from([Summarize, Trim]), keeps, st.integers(50, 600), st.sampled_from([0.3, 0.5, 0.8]))
def test_the_result_is_within_the_target_where_that_is_possible(history, kind, keep, trigger, target):
    assume(not isinstance(keep, AtTokens) or keep.count < trigger)
    strategy = kind(trigger=AtTokens(trigger), keep=keep, target=target)
    planned: list[tuple[int, bool]] = []
    plan = strategy.plan

    def noticed(window: Any, *, forced: bool = False) -> Any:
        made = plan(window, forced=forced)
        if made is not None:
            last = len(window.messages) - keep.last(window)
            furthest = max(cut for cut in window.cuts() if cut <= last)
            planned.append((window.tokens, made.range[1] == furthest))
        return made

    strategy.plan = noticed

    async def check_all() -> None:
        agent = agent_of(history, [strategy], [])
        await live(agent, history)
        made = [record for record in await agent.store.read("s") if isinstance(record, Compacted)]
        assert len(made) <= len(planned)
        for record in made:
            as_far_as_it_may = (record.before, True) in planned
            assert record.after <= trigger * target or as_far_as_it_may

    asyncio.run(check_all())


@settings(max_examples=40)
@given(turns, strategies(), st.data())
def test_a_rewind_and_a_rewritten_range_leave_a_sound_history(history, made, data):
    async def check_all() -> None:
        asked: list[Any] = []
        agent = agent_of(history, made, asked)

        @agent.rewrite(Compacting)
        def elsewhere(event: Any) -> Any:
            start = data.draw(st.integers(0, 6))
            return (start, start + data.draw(st.integers(1, 12)))

        @agent.gate(StepEnding)
        def back(event: Any) -> Any:
            first = event.turn.state.steps - event.turn.steps + 1
            if event.turn.state.turn.rewinds < 2 and data.draw(st.booleans()):
                return Rewind(data.draw(st.integers(first, event.step.number)))
            return None

        for number, _ in enumerate(history):
            result = await agent.run(f"question {number}", session="s")
            if result.error is not None:
                assert isinstance(result.error, IndexError)  # the script has no more
                break
        for request in asked:
            assert_paired(request.messages)
        state, log = await agent.state("s"), await agent.store.read("s")
        assert fold("s", log) == state
        assert_paired(state.shown)
        if not state.over:
            return
        assert state.place <= len(state.shown)

    asyncio.run(check_all())
