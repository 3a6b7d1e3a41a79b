"""When everything happened: every record of a log has a time, and time never goes back in a log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from windlass import (
    Agent,
    Allow,
    Answered,
    Approve,
    Ask,
    Asked,
    Deny,
    Evaluated,
    HookDecided,
    HookFailed,
    Injected,
    ModelCalled,
    ModelCalling,
    ModelReplied,
    ModelReplying,
    Pipeline,
    Regenerate,
    Resumed,
    SessionOpened,
    Slot,
    StepEnding,
    StepStarting,
    Stopping,
    Suspended,
    ToolCalled,
    ToolCalling,
    ToolDecided,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    Veto,
    fold,
    tool,
    user,
)
from windlass.cli import main
from windlass.records import KINDS, Fact, MessageHeld, Record, Rewritten, decode, encode
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says, without_times
from windlass.why import Why

AnyAgent = Agent[Any, Any]


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@tool
async def fail() -> str:
    """Fail."""
    raise ValueError("no")


def rich(store: Any = "memory:", clock: Any = None, child_asks: bool = True) -> AnyAgent:
    """An agent whose turn has records of almost every kind."""
    helper: AnyAgent = Agent(ScriptedModel(calls("send", to="bob"), says("helped")), tools=[send], name="helper")
    if child_asks:
        helper.gate(ToolCalling, name="child_asks")(lambda event: Ask("Send to bob?"))
    model = ScriptedModel(
        says("bad"),
        calls([("add", {"a": 1, "b": 2}), ("send", {"to": "ann"}), ("fail", {}), ("send", {"to": "eve"})]),
        calls([("helper", {"task": "help"})]),
        says("early"),
        says("done"),
    )
    agent: AnyAgent = Agent(
        model, tools=[add, send, fail, helper.as_tool()], store=store, clock=clock, system="You work."
    )
    slot = agent.slot(Slot("mood", str))
    side = ScriptedModel(*[says("side") for _ in range(20)])
    vetoed: list[str] = []

    @agent.rewrite(TurnStarting)
    def polite(event: Any) -> Any:
        return event.message.text + ", please"

    @agent.inject(TurnStarting)
    def remember(event: Any) -> str:
        return "Ann likes letters."

    @agent.inject(StepStarting)
    async def recall(event: Any, turn: Any) -> str:
        reply = await turn.ask(side, "what?")
        turn.set(slot, "busy")
        return f"{reply.text} {event.step}"

    @agent.rewrite(ModelCalling)
    def brief(event: Any) -> Any:
        return event.request.replace(system=event.request.system + " Be brief.")

    @agent.gate(ModelReplying)
    def critic(event: Any) -> Any:
        return Regenerate("better") if event.reply.text == "bad" else None

    @agent.gate(ToolCalling, tool="send")
    async def asks(event: Any) -> Any:
        return Deny("not eve") if event.call.arguments["to"] == "eve" else Ask("Send?")

    @agent.gate(ToolCalling, mode="shadow")
    def shadow(event: Any) -> Any:
        return Deny("shadow")

    @agent.rewrite(ToolReturning, tool="add")
    def shown(event: Any) -> Any:
        return "three"

    @agent.inject(StepEnding, optional=True)
    def broken(event: Any) -> Any:
        raise RuntimeError("broken")

    @agent.gate(Stopping)
    def go_on(event: Any) -> Any:
        if not vetoed:
            vetoed.append("")
            return Veto("not yet")
        return None

    @agent.gate(TurnEnding)
    def ends(event: Any) -> Any:
        return None

    return agent


async def all_logs(agent: AnyAgent) -> dict[str, Sequence[Record]]:
    return {name: await agent.store.read(name) for name in await agent.store.sessions()}


async def finish(agent: AnyAgent, session: str = "s", answer: Any = None) -> Any:
    result = await agent.resume(session, answers={})
    while isinstance(result.outcome, Suspended):
        asked = result.waiting_for[0]
        result = await agent.resume(session, answers={asked.id: answer or Approve("ann")})
    return result


def assert_times(log: Sequence[Record]) -> None:
    """Every record has a time, in whole microseconds, and none is before the one before it."""
    assert log
    for before, record in zip([None, *log], log, strict=False):
        assert record.at > 0, record
        assert round(record.at, 6) == record.at, record
        assert before is None or before.at <= record.at, (before, record)
        assert decode(encode(record)).at == record.at


def stores(folder: Path) -> list[str]:
    return ["memory:", f"sqlite:///{folder}/agent.db"]


@pytest.mark.parametrize("kind", [0, 1], ids=["memory", "sqlite"])
async def test_every_record_of_a_rich_log_has_a_time_that_never_goes_back(kind: int, tmp_path: Path):
    agent = rich(stores(tmp_path)[kind])
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    result = await finish(agent)
    assert result.text == "done"
    logs = await all_logs(agent)
    assert len(logs) == 2
    for log in logs.values():
        assert_times(log)
    kinds = {type(record).__name__ for log in logs.values() for record in log}
    assert kinds >= {
        "SessionOpened", "TurnStarted", "MessageAdded", "Injected", "Rewritten", "HookDecided", "HookFailed",
        "ModelReplied", "ReplyRejected", "ToolDecided", "ToolCalled", "ToolReturned", "Delegated", "Charged",
        "StepEnded", "Evaluated", "StopVetoed", "Asked", "Answered", "Suspended", "Resumed", "SlotSet", "SideReplied",
        "Concluded", "TurnEnded",
    }  # fmt: skip


class SteppingClock(FakeClock):
    """A clock that a test can set back, as people and servers do."""

    def back(self, seconds: float) -> None:
        self.start -= seconds


async def test_a_clock_that_goes_back_is_not_followed():
    clock = SteppingClock(1_700_000_000.0)

    @tool(effect="pure", inline=True)
    def jump() -> str:
        """Set the clock back."""
        clock.back(3600)
        return "jumped"

    agent: AnyAgent = Agent(
        ScriptedModel(calls("jump"), says("one"), calls("jump"), says("two")), tools=[jump], clock=clock
    )
    agent.gate(ToolCalling)(lambda event: Allow())
    await agent.run("go", session="s")
    clock.back(3600)
    await agent.run("again", session="s")
    clock.back(3600)
    other: AnyAgent = Agent(ScriptedModel(says("three")), tools=[jump], clock=clock, store=agent.store)
    await other.run("and again", session="s")
    log = await agent.store.read("s")
    assert_times(log)
    assert log[-1].at >= 1_700_000_000.0
    state = await other.state("s")
    assert state == fold("s", log)


async def test_a_resumed_turn_goes_on_after_the_last_record_whatever_the_clock_says(tmp_path: Path):
    clock = SteppingClock(1_700_000_000.0)
    address = f"sqlite:///{tmp_path}/agent.db"
    agent = rich(address, clock)
    await agent.run("go", session="s")
    suspended = (await agent.store.read("s"))[-1]
    clock.back(100_000)
    await finish(agent)
    for log in (await all_logs(agent)).values():
        assert_times(log)
    resumed = [record for record in await agent.store.read("s") if isinstance(record, Resumed)]
    assert resumed[0].at >= suspended.at


async def test_a_fork_keeps_the_times_of_its_records_and_goes_on_from_there():
    clock = FakeClock(1_700_000_000.0)
    agent = rich(clock=clock)
    await agent.run("go", session="s")
    clock.tick(60)
    fork = await agent.fork("s")
    log, copy = await agent.store.read("s"), await agent.store.read(fork)
    assert_times(copy)
    opened = next(record for record in copy if isinstance(record, SessionOpened))
    assert (opened.how, opened.forked_at) == ("forked", 1_700_000_060.0)
    assert [record.at for record in copy] == [record.at for record in log]
    await finish(agent, fork)
    for one in (await all_logs(agent)).values():
        assert_times(one)


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_what_observers_and_streams_are_told_has_the_time_it_has_in_the_log(way: str):
    agent = rich(child_asks=False)
    seen: list[Fact] = []
    for kind in KINDS.values():
        agent.observe(kind, wait=True, name=f"sees {kind.__name__}")(lambda fact: seen.append(fact))
    if way == "run":
        await agent.run("go", session="s")
        await finish(agent)
        told = seen
    else:
        told = []
        async with agent.stream("go", session="s") as stream:
            told += [event async for event in stream if isinstance(event, Fact)]
        while waiting := (await agent.state("s")).waiting:
            async with agent.stream(session="s", answers={waiting[0].id: Approve()}) as stream:
                told += [event async for event in stream if isinstance(event, Fact)]
    logs = await all_logs(agent)
    assert all(fact.at > 0 for fact in told)
    for name, log in logs.items():
        path = "" if name == "s" else name
        times = {(type(record), record.at) for record in log}
        found = [
            fact for fact in told if fact.path == path and isinstance(fact, Record) and type(fact) is not Evaluated
        ]
        assert len(found) > 10
        assert {(type(fact), fact.at) for fact in found} <= times


async def test_a_fact_that_is_not_written_has_its_time_too():
    clock = FakeClock(1_700_000_000.0)

    async def slow(request: Any) -> Any:
        clock.tick(2.5)
        return says("done").reply

    agent: AnyAgent = Agent(FunctionModel(slow), clock=clock)
    called: list[ModelCalled] = []
    replied: list[ModelReplied] = []
    agent.observe(ModelCalled, wait=True)(called.append)
    agent.observe(ModelReplied, wait=True)(replied.append)
    await agent.run("go")
    assert replied[0].at - called[0].at == 2.5


def sending(store: Any = "memory:", clock: Any = None) -> AnyAgent:
    agent: AnyAgent = Agent(
        ScriptedModel(calls("send", to="ann"), says("done")), tools=[send], store=store, clock=clock
    )
    agent.gate(ToolCalling, name="asks")(lambda event: Ask("Send?"))
    return agent


@pytest.mark.parametrize("kind", [0, 1], ids=["memory", "sqlite"])
async def test_an_answer_says_when_the_person_answered_not_when_the_turn_went_on(kind: int, tmp_path: Path):
    clock = FakeClock(1_700_000_000.0)
    agent = sending(stores(tmp_path)[kind], clock)
    result = await agent.run("go", session="s")
    clock.tick(60)
    await agent.resolve("s", result.waiting_for[0].id, Approve("ann"))
    clock.tick(3600)
    await agent.resume("s")
    log = await agent.store.read("s")
    assert_times(log)
    [asked] = [record for record in log if isinstance(record, Asked)]
    [answered] = [record for record in log if isinstance(record, Answered)]
    [resumed] = [record for record in log if isinstance(record, Resumed)]
    assert (asked.at, answered.at, resumed.at) == (1_700_000_000.0, 1_700_000_060.0, 1_700_003_660.0)
    assert (answered.by, answered.answered_at) == ("ann", 0.0)


async def test_an_answer_that_was_passed_to_resume_was_given_then():
    clock = FakeClock(1_700_000_000.0)
    agent = sending(clock=clock)
    result = await agent.run("go", session="s")
    clock.tick(60)
    await agent.resume("s", answers={result.waiting_for[0].id: Approve()})
    [answered] = [record for record in await agent.store.read("s") if isinstance(record, Answered)]
    assert (answered.at, answered.answered_at) == (1_700_000_060.0, 0.0)


async def test_an_answer_that_the_log_has_gone_past_still_says_when_it_was_given():
    """Two calls: one waits for a person, who answers while the other is at work."""
    clock = FakeClock(1_700_000_000.0)

    @tool
    async def work() -> str:
        """Work for long."""
        clock.tick(10)
        await agent.resolve("s", "s/1/1", Approve("ann"))
        clock.tick(50)
        return "worked"

    model = ScriptedModel(calls([("send", {"to": "ann"}), ("work", {})]), says("done"))
    agent: AnyAgent = Agent(model, tools=[send, work], clock=clock, store="memory:")
    agent.gate(ToolCalling, tool="send")(lambda event: Ask("Send?"))
    first = await agent.run("go", session="s")
    result = first if first.text == "done" else await agent.resume("s")
    assert result.text == "done"
    log = await agent.store.read("s")
    assert_times(log)
    [answered] = [record for record in log if isinstance(record, Answered)]
    assert (answered.at, answered.answered_at) == (1_700_000_060.0, 1_700_000_010.0)
    assert "answered at 22:13:30.000" in str(result.why())


async def test_an_answer_from_a_clock_that_is_ahead_does_not_take_the_log_with_it():
    clock = FakeClock(1_700_000_000.0)
    agent = sending(clock=clock)
    ahead = sending(agent.store, FakeClock(1_800_000_000.0))
    result = await agent.run("go", session="s")
    await ahead.resolve("s", result.waiting_for[0].id, Approve("ann"))
    await agent.resume("s")
    assert {record.at for record in await agent.store.read("s")} == {1_700_000_000.0}


async def test_a_childs_question_and_its_answer_have_their_times_in_both_logs():
    clock = FakeClock(1_700_000_000.0)
    child = sending(clock=clock)
    agent: AnyAgent = Agent(
        ScriptedModel(calls([("agent", {"task": "send"})]), says("done")), tools=[child.as_tool()], clock=clock
    )
    result = await agent.run("go", session="s")
    clock.tick(60)
    await agent.resolve("s", result.waiting_for[0].id, Approve("ann"))
    clock.tick(60)
    result = await agent.resume("s")
    assert result.text == "done"
    for log in (await all_logs(agent)).values():
        assert_times(log)
        assert [record.at for record in log if isinstance(record, Asked)] == [1_700_000_000.0]
        assert [record.at for record in log if isinstance(record, Answered)] == [1_700_000_060.0]


async def test_a_decision_names_its_tool_and_how_long_the_hooks_took_that_spoke():
    clock = FakeClock(1_700_000_000.0)
    model = ScriptedModel(calls([("add", {"a": 1, "b": 2}), ("send", {"to": "ann"})]), says("done"))
    agent: AnyAgent = Agent(model, tools=[add, send], clock=clock)

    @agent.rewrite(ToolCalling, tool="add", name="doubles")
    def doubles(event: Any) -> Any:
        clock.tick(1)
        return {"a": 2, "b": 4}

    @agent.gate(ToolCalling, tool="add", name="silent")
    def silent(event: Any) -> Any:
        clock.tick(10)

    @agent.gate(ToolCalling, tool="add", name="allows")
    def allows(event: Any) -> Any:
        clock.tick(2)
        return Allow()

    @agent.gate(ToolReturning, tool="add", name="looks")
    def looks(event: Any) -> Any:
        clock.tick(3)
        return Allow()

    @agent.gate(ToolReturning, tool="send", name="breaks")
    def breaks(event: Any) -> Any:
        clock.tick(4)
        raise ValueError("broken")

    @agent.inject(StepStarting, name="adds")
    def adds(event: Any) -> Any:
        clock.tick(5)
        return "context" if event.step == 1 else None

    await agent.run("go", session="s")
    log = await agent.store.read("s")
    decided = {record.call: record for record in log if isinstance(record, ToolDecided)}
    assert {call: (one.name, one.took) for call, one in decided.items()} == {
        "s/1/1": ("add", 2.0), "s/1/2": ("send", 0.0),
    }  # fmt: skip
    took = {
        (type(record).__name__, getattr(record, "hook", "") or record.answers[0][0]): record.took  # type: ignore[attr-defined]
        for record in log
        if isinstance(record, Rewritten | Injected | HookFailed | HookDecided)
    }
    assert took == {
        ("Injected", "adds"): 5.0, ("Rewritten", "doubles"): 1.0, ("HookDecided", "looks"): 3.0,
        ("HookFailed", "breaks"): 4.0, ("HookDecided", "breaks"): 4.0,
    }  # fmt: skip
    [called] = [record for record in log if isinstance(record, ToolCalled) and record.call == "s/1/1"]
    assert called.at == decided["s/1/2"].at == 1_700_000_018.0


async def test_silent_hooks_do_not_make_a_record_longer():
    agent: AnyAgent = Agent(ScriptedModel(calls("add", a=1, b=2), says("done")), tools=[add])
    agent.gate(ToolCalling)(lambda event: None)
    await agent.run("go", session="s")
    [decided] = [record for record in await agent.store.read("s") if isinstance(record, ToolDecided)]
    assert without_times(decided) == ToolDecided("s/1/1", Allow(), name="add")
    assert b"took" not in encode(decided)


async def test_a_secret_that_looks_like_a_time_masks_no_time():
    clock = FakeClock(1_700_000_000.25)
    agent: AnyAgent = Agent(
        ScriptedModel(calls("send", to="1700000000"), says("done")), tools=[send], clock=clock, secrets=["1700000000"]
    )
    agent.gate(ToolCalling)(lambda event: Allow())
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    assert "1700000000" not in str([without_times(record) for record in log])
    assert {record.at for record in log} == {1_700_000_000.25}


async def test_a_phase_handler_cannot_set_the_time_of_a_record():
    kept = MessageHeld(user("note"), "handler", at=5.0)

    class Notes:
        def handle(self, state: Any, turn: Any) -> Any:
            return state.record(kept)

    clock = FakeClock(1_700_000_000.0)
    pipeline = Pipeline.minimal([]).with_handler("before_step", Notes()).build()
    agent: AnyAgent = Agent(ScriptedModel(says("done")), pipeline=pipeline, clock=clock)
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    assert_times(log)
    assert kept.at == 5.0
    assert [record.at for record in log if isinstance(record, MessageHeld)] == [1_700_000_000.0]


def test_a_log_of_an_older_version_is_read_and_shown_without_times():
    lines = [
        b'{"kind":"TurnStarted","turn":1,"message":{"role":"user","parts":[{"type":"text","text":"hi"}]},"ref":"s/t1"}',
        b'{"kind":"MessageAdded"}',
        b'{"kind":"ToolDecided","call":"s/1/1","verdict":{"decision":"Deny","reason":"no"}}',
    ]
    log = [decode(line) for line in lines]
    assert [record.at for record in log] == [0.0, 0.0, 0.0]
    assert "hi" in str(Why("s", log))
    assert Why("s", log).data["began"] is None


async def test_a_turn_on_an_older_log_gives_times_from_there_on():
    agent: AnyAgent = Agent(ScriptedModel(says("one"), says("two")))
    await agent.run("go", session="s")
    old = [without_times(record) for record in await agent.store.read("s")]
    other: AnyAgent = Agent(ScriptedModel(says("two")))
    await other.store.append("s", old, 0)
    await other.run("again", session="s")
    assert_times((await other.store.read("s"))[len(old) :])


async def test_the_explanation_of_a_turn_has_the_time_of_each_entry():
    clock = FakeClock(1_700_000_000.0)
    agent = sending(clock=clock)
    result = await agent.run("go", session="s")
    clock.tick(86_400)
    result = await agent.resume("s", answers={result.waiting_for[0].id: Approve("ann")})
    why = result.why()
    text = str(why)
    assert "began       2023-11-14 22:13:20.000 UTC" in text
    assert "ended       2023-11-15 22:13:20.000 UTC, after 86400.000 s" in text
    assert text.count("  2023-11-15 (UTC)\n") == 1
    entries = [entry for part in why.data["parts"] for entry in part["entries"]]
    assert all(isinstance(entry["at"], float) for entry in entries)
    assert [entry["at"] for entry in entries if entry["what"] == "answer"] == [1_700_086_400.0]
    lines = [line for line in text.splitlines() if line.startswith("  2")]
    assert len(lines) == len(entries) + 1
    assert all(line.strip().startswith("22:13:20.000  ") or "(UTC)" in line for line in lines)


def test_why_and_show_print_the_time_of_every_entry_and_record(tmp_path: Path):
    address = f"sqlite:///{tmp_path}/agent.db"
    agent = sending(address, FakeClock(1_700_000_000.0))
    agent.run_sync("go", session="s")
    told = CliRunner().invoke(main, ["why", "--store", address, "s"]).output
    assert "began       2023-11-14 22:13:20.000 UTC" in told
    assert "  22:13:20.000  ask" in told
    records = CliRunner().invoke(main, ["show", "--store", address, "s", "--records"]).stdout.splitlines()
    assert all(line[7:30] == "2023-11-14 22:13:20.000" for line in records)
