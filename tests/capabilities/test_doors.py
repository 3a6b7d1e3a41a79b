"""Compaction through every door: judged, rewritten, told, forked, moved, rewound, and checked like any capability."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import Agent, Compacting, Completed, Deny, HookDecided, Rewind, StepEnding, Stopped, fold
from windlass.capabilities import AtMessages, AtTokens, ClearResults, Offload, Summarize, Trim
from windlass.errors import CompactionError, ConfigError, SessionBusy, SessionError
from windlass.events import Compaction
from windlass.messages import Message, ToolResultPart, user
from windlass.records import Compacted, MessageAdded, Rewound, Rewritten, TurnStarted
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says
from windlass.transfer import export_session, import_session

from .chats import Chat, assert_paired, assert_sound, texts

ALL = [
    lambda: Summarize(trigger=AtTokens(120), keep=2),
    lambda: Summarize(trigger=AtTokens(120), keep=2, between_turns=True),
    lambda: Trim(AtTokens(120), 2),
    lambda: ClearResults(AtTokens(100), keep=0, placeholder="-"),
    lambda: Offload(2, preview=1),
    lambda: Summarize(),
    lambda: Trim(),
    lambda: ClearResults(),
    lambda: Offload(),
]


@pytest.mark.parametrize("make", ALL)
async def test_each_is_a_good_capability(make):
    await check_capability(make)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Summarize(trigger=AtTokens(400), keep=2),
        lambda: Trim(AtTokens(400), 2),
        lambda: ClearResults(AtTokens(300), keep=1),
        lambda: Offload(100, preview=10),
    ],
)
async def test_a_turn_is_the_same_in_every_way_of_running_it(make):
    plan = [{"n": n, "size": 500} for n in range(6)]
    lived = await assert_same_everywhere(lambda: Chat(*plan).agent(make()))
    made = [record for record in lived.log if isinstance(record, Compacted)]
    assert made
    assert fold(lived.session, lived.log).outcome == Completed()


async def talk(agent, turns, first=0):
    return [await agent.run(f"question {turn}", session="s") for turn in range(first, first + turns)]


# ---------------------------------------------------------------- judged


async def test_a_denied_compaction_is_asked_again_only_after_growth():
    chat = Chat(*[{"n": n, "size": 10} for n in range(20)])
    agent = chat.agent(Trim(AtTokens(200), 2), system="Be helpful. " * 50)
    asked = []

    @agent.gate(Compacting)
    def not_now(event):
        asked.append(event.plan)
        return Deny("not now")

    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    assert not result.state.compactions
    assert 2 <= len(asked) <= 10
    decided = [record for record in await agent.store.read("s") if isinstance(record, HookDecided)]
    assert len(decided) == len(asked)
    assert {record.event for record in decided} == {"Compacting"}


async def test_one_that_was_denied_once_comes_when_it_is_due_again():
    chat = Chat(*[{"n": n, "size": 100} for n in range(30)])
    agent = chat.agent(Trim(AtTokens(400), 2))
    answers = [Deny("not now")]

    @agent.gate(Compacting)
    def at_first(event):
        return answers.pop() if answers else None

    result = await agent.run("go", session="s")
    made = [record for record in await agent.store.read("s") if isinstance(record, Compacted)]
    assert result.outcome == Completed()
    assert len(made) >= 3
    assert made[0].before < 500
    assert all(record.before < 450 for record in made[1:])


async def test_a_session_of_an_agent_below_is_left_to_its_own():
    inner = Chat({"n": 1}).agent(Trim([], 1), name="helper")
    outer = Agent(ScriptedModel(calls("helper", task="go"), says("done")), tools=[inner.as_tool()])
    outer.with_capability(Trim([], 1))
    await outer.run("go", session="s")
    with pytest.raises(SessionError, match="sub-agent"):
        await outer.compact("s//1/1")


async def test_a_gate_that_fails_has_denied():
    agent = Chat().agent(Trim([], 1))

    @agent.gate(Compacting)
    def broken(event):
        raise RuntimeError("no")

    await talk(agent, 3)
    assert await agent.compact("s") == ()


async def test_a_denial_by_hand_does_not_hold_for_the_next_time():
    agent = Chat().agent(Trim([], 1))
    answers = [Deny("not now"), None]

    @agent.gate(Compacting)
    def at_first(event):
        return answers.pop(0)

    await talk(agent, 3)
    assert await agent.compact("s") == ()
    assert len(await agent.compact("s")) == 1


async def test_range_and_instructions_can_be_rewritten():
    chat = Chat()
    agent = chat.agent(Summarize(trigger=[], keep=1))

    @agent.rewrite(Compacting)
    def less(event):
        return event.plan.replace(range=(2, 4), instructions="Keep all names.")

    await talk(agent, 4)
    [made] = await agent.compact("s")
    assert made.range == (2, 4)
    assert "Keep all names." in chat.asked[0].messages[0].text
    assert "question 1" in chat.asked[0].messages[0].text
    assert "question 0" not in chat.asked[0].messages[0].text
    assert texts((await agent.state("s")).shown)[0] == "question 0"
    [rewritten] = [record for record in await agent.store.read("s") if isinstance(record, Rewritten)]
    assert rewritten.hook == "less"


async def test_a_rewritten_range_is_moved_so_that_pairs_stay_together():
    """Behaviour 65: also if a hook chose the range."""
    chat = Chat({"n": 1}, {"n": 2}, {"n": 3})
    agent = chat.agent(Trim([], 1))

    @agent.rewrite(Compacting)
    def inside(event):
        return (2, 6)

    await agent.run("go", session="s")
    [made] = await agent.compact("s")
    assert made.range == (3, 5)
    await assert_sound(agent)


async def test_a_range_without_a_safe_cut_changes_nothing():
    """Behaviour 68: also if a hook chose the range."""
    agent = Chat({"n": 1}).agent(Trim([], 1))

    @agent.rewrite(Compacting)
    def inside(event):
        return (2, 3)

    await agent.run("go", session="s")
    assert await agent.compact("s") == ()


# ---------------------------------------------------------------- told


async def test_who_looks_on_is_told_and_why_and_explain_say_it():
    chat = Chat()
    agent = chat.agent(Summarize(trigger=AtTokens(300), keep=2))
    seen = []

    @agent.observe(Compacted, wait=True)
    def look_on(fact):
        seen.append(fact)

    told = []
    for turn in range(6):
        async with agent.stream(f"question {turn}", session="s") as stream:
            told += [event async for event in stream if isinstance(event, Compacted)]
        if told:
            break
    assert len(seen) == len(told) == 1
    assert told[0].before > told[0].after > 0
    assert told[0].seq
    why = " ".join(str(await agent.why("s")).split())
    assert "summarize compacted messages 0 to" in why
    assert f"from about {told[0].before:,} to" in why
    assert "summarize · trigger AtTokens(300) · keep AtMessages(2) · target 0.5" in str(agent.explain())


# ---------------------------------------------------------------- moved


async def compacted_session() -> Any:
    agent = Chat().agent(Trim(AtTokens(300), 2))
    await talk(agent, 8)
    return agent


async def test_a_fork_at_any_record_shows_what_was_shown_there():
    agent = await compacted_session()
    log = await agent.store.read("s")
    for at in range(1, len(log) + 1):
        name = await agent.fork("s", at=at)
        forked = await agent.state(name)
        assert forked.shown == fold("s", log[:at]).shown
        assert forked.messages == fold("s", log[:at]).messages
    name = await agent.fork("s")
    result = await agent.run("go on", session=name)
    assert result.outcome == Completed()
    assert len((await agent.state("s")).messages) == 16


async def test_an_exported_session_shows_the_same():
    agent = await compacted_session()
    store = MemoryStore()
    await import_session(store, await export_session(agent.store, "s"))
    other = Chat().agent(Trim(AtTokens(300), 2), store=store)
    before = await agent.state("s")
    assert (await other.state("s")).shown == before.shown
    await other.run("go on", session="s")
    await assert_sound(other)


# ---------------------------------------------------------------- rewound


@pytest.mark.parametrize("to", range(1, 9))
async def test_a_rewind_past_a_compaction_shows_the_transcript_again(to):
    chat = Chat(*[{"n": n, "size": 200} for n in range(8)])
    agent = chat.agent(ClearResults(AtTokens(350), keep=1), Trim(AtTokens(500), 2))
    rewound = []

    @agent.gate(StepEnding)
    def back(event):
        if event.step.number == 8 and not rewound:
            rewound.append(list(event.turn.state.messages))
            return Rewind(to, "again")
        return None

    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Completed | Stopped)
    assert rewound
    kept = 1 + 2 * (to - 1)
    assert list(result.messages)[:kept] == rewound[0][:kept]
    for request in chat.requests:
        assert_paired(request.messages)
        assert "go" in texts(request.messages)
    after = chat.requests[8]
    results = [part for m in after.messages for part in m.parts if isinstance(part, ToolResultPart)]
    assert len(results) <= to - 1
    assert {part.call_id for part in results} <= {f"s/{step}/1" for step in range(1, to)}
    await assert_sound(agent)


def test_a_rewind_into_what_an_earlier_compaction_replaced_undoes_the_later_ones_too():
    added = [MessageAdded(user(f"message {number}")) for number in range(1, 10)]
    log = [
        TurnStarted(1, user("message 0"), "s/t1"),
        MessageAdded(),
        *added,
        Compacted((2, 8), (user("short"),)),
        Compacted((0, 2), (0,)),
    ]
    assert texts(fold("s", log).shown) == ["message 0", "short", "message 8", "message 9"]
    kept = fold("s", [*log, Rewound(1, 9)])
    assert texts(kept.shown) == ["message 0", "short", "message 8"]
    undone = fold("s", [*log, Rewound(1, 7)])
    assert texts(undone.shown) == texts(undone.messages) == [f"message {number}" for number in range(7)]


# ---------------------------------------------------------------- refused


async def test_nothing_to_compact_with_is_a_clear_error():
    agent = Chat().agent()
    await talk(agent, 1)
    with pytest.raises(ConfigError, match="nothing to compact with"):
        await agent.compact("s")


class Poor:
    """A strategy that gives what it is told to."""

    name = "poor"

    def __init__(self, give: Any) -> None:
        self.give = give

    def install(self, registrar: Any) -> None:
        registrar.compactor(self)

    def plan(self, window: Any, *, forced: bool = False) -> Compaction | None:
        return Compaction((0, len(window.messages)), reason="poor")

    async def replace(self, plan: Compaction, window: Any, turn: Any) -> Any:
        return self.give(list(window.messages[plan.range[0] : plan.range[1]]))


@pytest.mark.parametrize(
    "give",
    [
        lambda old: [message for message in old if message.role != "tool"],
        lambda old: [message for message in old if message.role != "assistant"],
        lambda old: [old[0], *reversed(old[1:3])],
        lambda old: ["a text"],
    ],
)
async def test_a_strategy_that_parts_a_pair_or_gives_something_else_changes_nothing(give):
    """Behaviour 65: whatever a strategy gives."""
    agent = Chat({"n": 1}, {"n": 2}).agent()
    await agent.run("go", session="s")
    before = await agent.state("s")
    poor = Chat().agent(Poor(give), store=agent.store)
    with pytest.raises(CompactionError, match="'poor'"):
        await poor.compact("s")
    assert (await agent.state("s")).shown == before.shown


async def test_the_message_of_the_turn_is_put_back_where_it_belongs():
    agent = Chat({"n": 1}, {"n": 2}).agent(Poor(lambda old: old[-2:]))
    result = await agent.run("go", session="s")
    assert texts(result.state.shown)[0] == "go"
    await assert_sound(agent)


async def test_a_running_session_cannot_be_compacted_by_hand():
    agent = Chat({"n": 1}).agent(Trim([], 1))
    found = []

    @agent.gate(StepEnding)
    async def meanwhile(event):
        try:
            await agent.compact("s")
        except SessionBusy as error:
            found.append(error)

    await agent.run("go", session="s")
    assert found


async def test_turns_and_messages_are_what_a_strategy_may_look_at():
    windows = []

    class Looks(Poor):
        def plan(self, window: Any, *, forced: bool = False) -> Compaction | None:
            windows.append(window)
            return None

    agent = Chat({"n": 1}).agent(Looks(list), window=10_000, injection_reserve=1000, settings={"max_tokens": 500})
    await agent.run("go", session="s")
    first, second = windows
    assert (first.limit, first.place, first.model, list(first.models)) == (8500, 0, "chat", ["chat"])
    assert first.cuts() == [0, 1]
    assert second.cuts() == [0, 1, 3]
    assert second.safe(0, 2) == (0, 1)
    assert second.stays(0)
    assert not second.stays(1)
    assert second.tokens > first.tokens
    assert second.size(second.messages) > second.size([Message("user")])
    assert AtMessages(2).last(second) == 2
