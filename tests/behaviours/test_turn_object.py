"""What hooks and tools ask of the turn: time, money, room in the window, notes, and typed side calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Completed,
    CostLimit,
    Deadline,
    ModelCall,
    ModelCalling,
    ModelReply,
    Noted,
    StepLimit,
    StepStarting,
    TokenLimit,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    TurnStarting,
    assistant,
    tool,
)
from windlass.errors import ConfigError, HookError, OutputError
from windlass.messages import Usage
from windlass.testing import (
    FakeClock,
    FunctionModel,
    RecordingObserver,
    ScriptedModel,
    assert_same_everywhere,
    calls,
    says,
)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


TWO_STEPS = (calls("add", a=1, b=2), says("3"))


# ---------------------------------------------------------------- memory for one turn


async def test_a_memo_is_made_once_in_a_turn_and_anew_in_the_next():
    made: list[list[int]] = []

    def make() -> list[int]:
        made.append([])
        return made[-1]

    agent = Agent(ScriptedModel(*TWO_STEPS, *TWO_STEPS), tools=[add])

    @agent.gate(ModelCalling)
    def count(event: ModelCalling, turn: Turn[Any]) -> None:
        turn.memo(make, make).append(turn.steps)

    @agent.wrap(ModelCall, read_only=True)
    async def look_on(request: Any, call_next: Any, turn: Turn[Any]) -> ModelReply:
        turn.memo(make, make).append(-1)
        reply: ModelReply = await call_next(request)
        return reply

    await agent.run("go", session="s")
    await agent.run("go", session="s")
    assert made == [[0, -1, 1, -1], [0, -1, 1, -1]]


async def test_sessions_at_the_same_time_have_memos_of_their_own():
    agent = Agent(FunctionModel(lambda request: "ok"), tools=[add])
    seen: dict[str, set[str]] = {}

    @agent.gate(ModelCalling)
    def note_session(event: ModelCalling, turn: Turn[Any]) -> None:
        mine = turn.memo("mine", set)
        mine.add(turn.session_id)
        seen[turn.session_id] = mine

    await asyncio.gather(*[agent.run("go", session=f"s{n}") for n in range(3)])
    assert seen == {f"s{n}": {f"s{n}"} for n in range(3)}


async def test_an_observer_has_no_memo():
    agent = Agent(ScriptedModel(says("ok")))
    refused: list[str] = []

    @agent.observe(TurnEnded, wait=True)
    def remember(fact: TurnEnded, turn: Turn[Any]) -> None:
        with pytest.raises(HookError) as caught:
            turn.memo("key", list)
        refused.append(str(caught.value))

    await agent.run("go")
    assert refused == ["an observer cannot remember something: it runs beside the turn"]


# ---------------------------------------------------------------- time


async def test_now_and_sleep_go_by_the_agents_clock():
    clock = FakeClock(5_000.0, auto=True)
    seen: list[float] = []
    agent = Agent(ScriptedModel(says("hi")), clock=clock)

    @agent.wrap(ModelCall)
    async def wait(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
        seen.append(turn.now())
        await turn.sleep(30)
        seen.append(turn.now())
        return await call_next(request)

    assert (await agent.run("go")).outcome == Completed()
    assert seen == [5_000.0, 5_030.0]
    assert clock.slept == [30]


async def test_an_observer_may_ask_for_the_time_but_not_sleep():
    clock = FakeClock(7.0)
    agent = Agent(ScriptedModel(*TWO_STEPS), tools=[add], clock=clock)
    seen: list[Any] = []

    @agent.observe(ToolReturned, wait=True)
    async def look(fact: ToolReturned, turn: Turn[Any]) -> None:
        seen.append(turn.now())
        for asks in (turn.sleep(1), turn.ask("scripted", "hi")):
            with pytest.raises(HookError, match="an observer cannot"):
                await asks
        for name in ("left", "window"):
            with pytest.raises(HookError, match="an observer cannot"):
                getattr(turn, name)
        with pytest.raises(HookError, match="an observer cannot make a note"):
            turn.note("x")
        seen.append("done")

    await agent.run("go")
    assert seen == [7.0, "done"]


async def test_a_cancel_ends_a_sleep():
    clock = FakeClock()
    agent = Agent(ScriptedModel(says("hi")), clock=clock)

    @agent.gate(TurnStarting)
    async def wait(event: TurnStarting, turn: Turn[Any]) -> None:
        await turn.sleep(1_000)

    running = asyncio.create_task(agent.run("go", session="s"))
    await clock.wait_for_sleepers()
    assert await agent.cancel("s", "enough")
    result = await running
    assert result.stop_reason == "cancelled"


async def test_a_time_out_goes_by_the_agents_clock():
    clock = FakeClock()
    agent = Agent(ScriptedModel(says("hi")), clock=clock)
    caught: list[str] = []

    @agent.gate(TurnStarting)
    async def hurry(event: TurnStarting, turn: Turn[Any]) -> None:
        async with turn.timeout(5):
            caught.append("in time")
        try:
            async with turn.timeout(5):
                await asyncio.Event().wait()
        except TimeoutError:
            caught.append("too late")

    running = asyncio.create_task(agent.run("go"))
    await clock.wait_for_sleepers()
    await clock.advance(5)
    assert (await running).outcome == Completed()
    assert caught == ["in time", "too late"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", True])
async def test_a_wrong_duration_is_refused(seconds: Any):
    agent = Agent(ScriptedModel(says("hi")))

    @agent.inject(TurnStarting)
    async def wait(event: TurnStarting, turn: Turn[Any]) -> None:
        await turn.sleep(seconds)

    with pytest.raises(HookError, match=r"turn.sleep\(.*give a number of seconds, 0 or more"):
        (await agent.run("go")).raise_for_error()


# ---------------------------------------------------------------- money


async def test_left_counts_over_the_tree():
    spent = Usage(input=10, output=5, cost=0.01)
    seen: dict[str, Any] = {}
    child = Agent(
        ScriptedModel(calls("add", a=1, b=2, _usage=spent), says("3", usage=spent)), tools=[add], name="child"
    )
    parent = Agent(
        ScriptedModel(calls("child", task="add", _usage=spent), says("done", usage=spent)),
        tools=[child.as_tool()],
        criteria=[StepLimit(9), TokenLimit(100), CostLimit(1.0), Deadline(after=60)],
        clock=FakeClock(),
    )

    @parent.gate(ToolCalling, band="guard")
    def look(event: ToolCalling, turn: Turn[Any]) -> None:
        seen[event.call.name] = turn.left

    assert (await parent.run("go")).outcome == Completed()
    assert (seen["child"].steps, seen["child"].tokens, seen["child"].seconds) == (9, 85, 60.0)
    assert seen["child"].usd == pytest.approx(0.99)
    assert (seen["add"].tokens, seen["add"].seconds) == (70, 60.0)
    assert seen["add"].usd == pytest.approx(0.98)


async def test_without_limits_nothing_is_left_to_count_and_unknown_costs_are_unknown():
    agent = Agent(ScriptedModel(*TWO_STEPS), tools=[add], criteria=[CostLimit(1.0)])
    seen: list[Any] = []

    @agent.inject(StepStarting)
    def look(event: StepStarting, turn: Turn[Any]) -> None:
        seen.append(turn.left)

    await agent.run("go")
    assert (seen[0].tokens, seen[0].seconds, seen[0].usd) == (None, None, 1.0)


# ---------------------------------------------------------------- the window


async def test_the_window_says_what_fills_it():
    agent = Agent(ScriptedModel(*TWO_STEPS), tools=[add], system="Be brief." * 40, window=1_000)
    seen: list[Any] = []

    @agent.inject(TurnStarting)
    def remember(event: TurnStarting) -> str:
        return "a note " * 50

    @agent.gate(ModelCalling)
    def look(event: ModelCalling, turn: Turn[Any]) -> None:
        seen.append(turn.window)

    await agent.run("go")
    first, second = seen
    assert first.size == 1_000
    assert first.free == 1_000 - first.used
    assert {"system", "remember", "tool add", "user"} <= set(first.origins)
    assert list(first.origins.values()) == sorted(first.origins.values(), reverse=True)
    assert second.used > first.used


async def test_a_window_that_is_not_known_has_no_size():
    agent = Agent(ScriptedModel(says("hi")))
    seen: list[Any] = []
    agent.gate(ModelCalling)(lambda event, turn: seen.append(turn.window))
    await agent.run("go")
    assert (seen[0].size, seen[0].free) == (None, None)
    assert seen[0].used > 0


# ---------------------------------------------------------------- notes


def noting(model: Any, **options: Any) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(model, tools=[add], **options)

    @agent.gate(ToolCalling)
    def warn(event: ToolCalling, turn: Turn[Any]) -> Allow:
        turn.note("budget.warning", {"left": 3})
        turn.note("budget.warning", {"left": 2})
        return Allow()

    return agent


async def test_a_note_is_a_record_and_a_fact_with_its_maker():
    agent, heard = noting(ScriptedModel(*TWO_STEPS)), RecordingObserver()
    agent.observe(Noted, wait=True)(heard)
    result = await agent.run("go", session="s")
    log = [record for record in await agent.store.read("s") if isinstance(record, Noted)]
    assert [(note.by, note.kind, note.data) for note in log] == [
        ("warn", "budget.warning", {"left": 3}),
        ("warn", "budget.warning", {"left": 2}),
    ]
    assert all(note.at for note in log)
    assert [fact.data for fact in heard.facts] == [{"left": 3}, {"left": 2}]
    assert "noted budget.warning" in str(result.why())


async def test_observers_get_the_data_of_a_note_as_the_log_has_it():
    agent, heard = Agent(ScriptedModel(says("hi"))), RecordingObserver()
    agent.inject(TurnStarting)(lambda event, turn: turn.note("x", {1: (2, 3)}))
    agent.observe(Noted, wait=True)(heard)
    await agent.run("go", session="s")
    [note] = [record for record in await agent.store.read("s") if isinstance(record, Noted)]
    assert heard.facts[0].data == note.data == {"1": [2, 3]}


async def test_notes_are_the_same_in_every_way_of_running():
    await assert_same_everywhere(lambda: noting(ScriptedModel(*TWO_STEPS)))


async def test_a_hook_that_runs_again_on_resume_does_not_note_again():
    agent: Agent[Any, Any] = Agent(ScriptedModel(*TWO_STEPS), tools=[add])
    left = [3]

    @agent.gate(ToolCalling)
    def ask(event: ToolCalling, turn: Turn[Any]) -> Ask:
        turn.note("asked", left.pop() if left else "again")
        return Ask("may I?")

    waiting = await agent.run("go", session="s")
    await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    notes = [record for record in await agent.store.read("s") if isinstance(record, Noted)]
    assert [note.data for note in notes] == [3]


async def test_a_note_stays_if_its_hook_then_fails():
    agent = Agent(ScriptedModel(*TWO_STEPS), tools=[add])

    @agent.gate(ToolCalling)
    def fail(event: ToolCalling, turn: Turn[Any]) -> None:
        turn.note("before", 1)
        raise ValueError("no")

    await agent.run("go", session="s")
    assert [record.kind for record in await agent.store.read("s") if isinstance(record, Noted)] == ["before"]


async def test_tools_and_sub_agents_note_in_their_own_log():
    @tool
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        turn.note("worked")
        return "ok"

    child = Agent(ScriptedModel(calls("work"), says("done")), tools=[work], name="child")
    parent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])
    heard = RecordingObserver()
    parent.observe(Noted, wait=True)(heard)
    await parent.run("go", session="s")
    [fact] = heard.facts
    assert (fact.by, fact.kind) == ("work", "worked")
    assert fact.path
    assert any(isinstance(record, Noted) for record in await parent.store.read(fact.path))


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("", None, "the kind of a note is a text"),
        (5, None, "the kind of a note is a text"),
        ("big", "x" * 9_000, "has 9,002 bytes; a note has at most 8,192"),
        ("odd", object(), "has no JSON form"),
        ("odd", float("nan"), "has no JSON form"),
        ("k" * 201, None, "the kind of a note is a text"),
        ("k\x1b[2J", None, "the kind of a note is a text"),
    ],
)
async def test_a_wrong_note_is_refused(kind: Any, data: Any, why: str):
    agent = Agent(ScriptedModel(says("hi")))
    agent.inject(TurnStarting)(lambda event, turn: turn.note(kind, data))
    with pytest.raises(HookError, match=why):
        (await agent.run("go")).raise_for_error()


async def test_a_shadow_gate_cannot_note_and_the_turn_goes_on():
    agent = Agent(ScriptedModel(says("hi")))
    agent.gate(TurnStarting, mode="shadow")(lambda event, turn: turn.note("x"))
    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    assert not any(isinstance(record, Noted) for record in await agent.store.read("s"))


async def test_secrets_are_masked_in_notes():
    agent = Agent(ScriptedModel(says("hi")), secrets=["hunter2-hunter2"])
    agent.inject(TurnStarting)(lambda event, turn: turn.note("x", {"key": "hunter2-hunter2"}))
    await agent.run("go", session="s")
    [note] = [record for record in await agent.store.read("s") if isinstance(record, Noted)]
    assert note.data == {"key": "•••"}


# ---------------------------------------------------------------- typed side calls


class Verdict(Struct):
    ok: bool
    why: str


GOOD = '{"ok": true, "why": "fine"}'


def judged(critic: Any, model: Any = None, **options: Any) -> tuple[Agent[Any, Any], list[Any]]:
    agent: Agent[Any, Any] = Agent(model or ScriptedModel(says("hi")))
    said: list[Any] = []

    @agent.inject(TurnStarting)
    async def judge(event: TurnStarting, turn: Turn[Any]) -> None:
        said.append(await turn.ask(critic, "is it fine?", output=Verdict, **options))

    return agent, said


async def test_a_typed_side_call_gives_a_value_of_that_type():
    requests: list[Any] = []

    def reply(request: Any) -> ModelReply:
        requests.append(request)
        return says(GOOD)

    agent, said = judged(FunctionModel(reply))
    assert (await agent.run("go")).outcome == Completed()
    assert said == [Verdict(True, "fine")]
    assert requests[0].output["properties"].keys() == {"ok", "why"}


async def test_a_reply_that_does_not_fit_is_repaired_within_its_bound():
    critic = ScriptedModel(says("it is fine"), says(GOOD), name="critic")
    agent, said = judged(critic)
    result = await agent.run("go", session="s")
    assert said == [Verdict(True, "fine")]
    assert result.usage.requests == 3
    second = critic.requests[1].messages
    assert [message.role for message in second] == ["user", "assistant", "user"]
    assert "not a valid Verdict" in second[-1].text


async def test_beyond_the_bound_the_asker_gets_the_error():
    agent, said = judged(ScriptedModel(*[says("no")] * 3, name="critic"), repairs=1)
    result = await agent.run("go")
    assert said == []
    with pytest.raises(HookError, match="the reply is not a valid Verdict"):
        result.raise_for_error()


async def test_a_reply_that_was_cut_off_is_not_asked_for_again():
    critic = ScriptedModel(ModelReply(assistant('{"ok": tr'), finish="length"), says(GOOD), name="critic")
    agent, _ = judged(critic)
    result = await agent.run("go")
    assert len(critic.requests) == 1
    with pytest.raises(HookError, match=r"was cut off \(finish=length\)"):
        result.raise_for_error()


async def test_on_resume_a_typed_side_call_and_its_repairs_come_from_the_log():
    critic = ScriptedModel(says("it is fine"), says(GOOD), name="critic")
    agent: Agent[Any, Any] = Agent(ScriptedModel(*TWO_STEPS), tools=[add])
    said: list[Any] = []

    @agent.gate(ToolCalling)
    async def judge(event: ToolCalling, turn: Turn[Any]) -> Ask:
        said.append(await turn.ask(critic, "is it fine?", output=Verdict))
        return Ask("may I?")

    waiting = await agent.run("go", session="s")
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert result.text == "3"
    assert said == [Verdict(True, "fine")] * 2
    assert len(critic.requests) == 2


@pytest.mark.parametrize("repairs", [-1, 1.5, True, "2"])
async def test_a_wrong_bound_of_repairs_is_refused(repairs: Any):
    agent, _ = judged(ScriptedModel(says(GOOD), name="critic"), repairs=repairs)
    with pytest.raises(HookError, match=r"repairs=.*whole number"):
        (await agent.run("go")).raise_for_error()


async def test_a_type_that_no_schema_describes_is_refused():
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hi")))

    @agent.inject(TurnStarting)
    async def look(event: TurnStarting, turn: Turn[Any]) -> None:
        await turn.ask("scripted", "hi", output=asyncio.Event)

    with pytest.raises((HookError, ConfigError, OutputError), match="cannot be described to a model"):
        (await agent.run("go")).raise_for_error()


async def test_a_hook_knows_which_agent_is_at_work_and_whether_in_the_background():
    seen: list[Any] = []
    told: list[Any] = []
    child = Agent(ScriptedModel(says("mine"), says("mine")), name="child")
    agent = Agent(ScriptedModel(calls("child", task="go"), calls("later"), says("done")), name="root")
    agent.tool(child.as_tool())
    agent.subagent(child)

    @agent.tool
    async def later(turn: Turn) -> str:
        """Start it."""
        return await (await turn.delegate(child, "go", background=True)).result() and "started"

    @agent.gate(TurnStarting, inherit=True)
    def note(event: TurnStarting, turn: Turn) -> None:
        seen.append((turn.agent, turn.in_background))

    @agent.observe(TurnEnded, wait=True)
    def tell(fact: TurnEnded, turn: Turn) -> None:
        told.append(turn.agent)
        with pytest.raises(HookError, match="an observer cannot ask whether the agent works in the background"):
            assert turn.in_background

    await agent.run("go", session="s")
    assert seen == [("root", False), ("child", False), ("child", True)]
    assert told == ["child", "child", "root"]
