"""Durable observers: every fact of the log, in order, with the state of its moment, at least once, by any process."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    HookFailed,
    Slot,
    StepEnded,
    ToolCalled,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    TurnStarted,
    tool,
)
from windlass.errors import HookError, RegistrationError
from windlass.stores import MemoryStore, SQLiteStore
from windlass.testing import FakeClock, ScriptedModel, calls, says

SESSION = "s1"


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def adder(*sums: int, **options: Any) -> Agent[Any, Any]:
    replies = [calls("add", a=n, b=0) for n in sums]
    return Agent(ScriptedModel(*replies, says("done")), tools=[add], **options)


async def turns(agent: Agent[Any, Any], *messages: str, session: str = SESSION) -> None:
    for message in messages:
        await agent.run(message, session=session)


async def failures(store: Any, session: str = SESSION) -> list[HookFailed]:
    return [record for record in await store.read(session) if isinstance(record, HookFailed)]


async def logged(*replies: Any, sessions: tuple[str, ...] = (SESSION,), store: Any = None, **options: Any) -> Any:
    """A store with sessions of an agent that observed nothing: a process that crashed before it told anybody."""
    store = store or MemoryStore()
    for session in sessions:
        await Agent(ScriptedModel(*replies), tools=[add], store=store, **options).run("go", session=session)
    return store


def refuse(call: Any) -> str:
    with pytest.raises(HookError) as caught:
        call()
    return str(caught.value)


# ---------------------------------------------------------------- the state of the fact


@pytest.mark.parametrize("way", ["live", "caught up", "next turn"])
async def test_a_durable_observer_sees_the_state_of_its_fact(way: str):
    """Catching up on a log of three turns shows three turns, not the last one three times."""
    store = MemoryStore()
    plain = Agent(ScriptedModel(says("one"), says("two"), says("three")), store=store)
    rows: list[tuple[str, str, int, int]] = []
    agent = Agent(ScriptedModel(says("one"), says("two"), says("three"), says("four")), store=store)

    @agent.observe(TurnEnded, durable=True)
    def save(fact: Any, turn: Turn[Any]) -> None:
        rows.append((turn.turn_ref, turn.state.text, turn.steps, fact.seq))

    await turns(agent if way == "live" else plain, "a", "b", "c")
    if way == "caught up":
        assert await agent.catch_up() == 3
    if way == "next turn":
        await agent.run("d", session=SESSION)
    log = await store.read(SESSION)
    assert [row[:3] for row in rows[:3]] == [("s1/t1", "one", 1), ("s1/t2", "two", 1), ("s1/t3", "three", 1)]
    assert all(type(log[seq - 1]) is TurnEnded for _, _, _, seq in rows)
    assert [seq for *_, seq in rows] == sorted({seq for *_, seq in rows})


async def test_a_durable_observer_of_steps_sees_how_many_there_were():
    agent = adder(1, 2, 3)
    seen: list[tuple[int, int, int]] = []

    @agent.observe(StepEnded, durable=True)
    async def count(fact: Any, turn: Turn[Any]) -> None:
        seen.append((fact.step, turn.steps, len(turn.context)))

    await agent.run("go", session=SESSION)
    assert seen == [(1, 1, 3), (2, 2, 5), (3, 3, 7), (4, 4, 8)]


@pytest.mark.parametrize("options", [{}, {"wait": True}, {"durable": True}])
@pytest.mark.parametrize("fact", [ToolCalled, ToolReturned])
async def test_every_observer_gets_the_arguments_of_the_call(fact: Any, options: Any):
    agent = adder(1, 2)
    seen: list[Any] = []

    @agent.rewrite(ToolCalling)
    def more(event: Any) -> Any:
        return event.call.replace(arguments={**event.call.arguments, "b": 10})

    @agent.observe(fact, **options)
    def audit(fact: Any, turn: Turn[Any]) -> None:
        seen.append(dict(turn.call(fact.call).arguments))

    await agent.run("go", session=SESSION)
    assert seen == [{"a": 1, "b": 10}, {"a": 2, "b": 10}]
    assert await failures(agent.store) == []


async def test_an_observer_of_the_end_of_a_step_gets_the_calls_of_that_step():
    agent = adder(7)
    seen: list[Any] = []

    @agent.observe(StepEnded, durable=True)
    def audit(fact: Any, turn: Turn[Any]) -> None:
        if fact.step == 1:
            seen.append(turn.call("s1/1/1").arguments["a"])

    await agent.run("go", session=SESSION)
    assert seen == [7]


class Sums(msgspec.Struct):
    """What was added."""

    of: list[int] = []


async def test_a_durable_observer_is_given_slots_as_they_were():
    agent = adder(1, 2)
    agent.slot(Slot("sums", Sums))
    seen: list[list[int]] = []

    @agent.gate(ToolCalling)
    def keep(event: Any, turn: Turn[Any]) -> None:
        turn.set(Sums, Sums([*turn.get(Sums).of, event.call.arguments["a"]]))

    @agent.observe(ToolReturned, durable=True)
    def save(fact: Any, sums: Sums, turn: Turn[Any]) -> None:
        assert turn.get(Sums) == sums
        seen.append(sums.of)

    await agent.run("go", session=SESSION, slots={"sums": Sums()})
    assert seen == [[1], [1, 2]]


# ---------------------------------------------------------------- what it may not


async def test_a_durable_observer_can_change_nothing_and_has_no_scope():
    agent = adder(1)
    slot = agent.slot(Slot("n", int))
    said: list[str] = []

    @agent.observe(ToolReturned, durable=True)
    async def meddler(fact: Any, turn: Turn[Any]) -> None:
        said.append(refuse(lambda: turn.cancel("no")))
        said.append(refuse(lambda: turn.add("hello")))
        said.append(refuse(lambda: turn.set(slot, 1)))
        said.append(refuse(lambda: turn.scope))
        with pytest.raises(HookError, match="cannot ask a model"):
            await turn.ask(ScriptedModel(says("x")), "hello")

    result = await agent.run("go", session=SESSION, scope={"user": "ann"})
    assert result.outcome == Completed()
    assert ["cannot cancel" in said[0], "read-only" in said[1], "read-only" in said[2]] == [True] * 3
    assert "durable observer 'meddler' has no scope" in said[3]
    assert await failures(agent.store) == []


async def test_a_live_observer_cannot_ask_a_model_either():
    agent, other = adder(1), ScriptedModel(says("x"))

    @agent.observe(ToolReturned, wait=True)
    async def meddler(fact: Any, turn: Turn[Any]) -> None:
        with pytest.raises(HookError, match="cannot ask a model"):
            await turn.ask(other, "hello")

    await agent.run("go", session=SESSION)
    assert other.requests == []
    assert await failures(agent.store) == []


def test_what_a_durable_observer_cannot_be_is_refused_at_registration():
    agent = adder()
    with pytest.raises(RegistrationError, match="has wait, but a turn does not wait for a durable observer"):
        agent.observe(TurnEnded, durable=True, wait=True)(lambda fact: None)
    with pytest.raises(RegistrationError, match="tries"):
        agent.observe(TurnEnded, durable=True, tries=0)(lambda fact: None)
    with pytest.raises(RegistrationError, match="tries"):
        agent.observe(TurnEnded, tries=2)(lambda fact: None)


# ---------------------------------------------------------------- where it runs, and for how long


async def test_a_plain_durable_observer_runs_in_a_thread():
    agent = adder(1)
    threads: set[int] = set()
    agent.observe(ToolReturned, durable=True)(lambda fact: threads.add(threading.get_ident()))
    await agent.run("go", session=SESSION)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_time_out_of_a_durable_observer_is_enforced(is_async: bool):
    release, told = threading.Event(), []
    agent = adder(1, 2, observer_patience=20, clock=FakeClock(auto=True))

    def plain(fact: Any, turn: Turn[Any]) -> None:
        told.append(turn.call(fact.call).arguments["a"])
        if told[-1] == 1:
            release.wait(20)

    async def later(fact: Any, turn: Turn[Any]) -> None:
        told.append(turn.call(fact.call).arguments["a"])
        if told[-1] == 1:
            await asyncio.sleep(20)

    agent.observe(ToolReturned, durable=True, name="slow", timeout=0.3, tries=2)(later if is_async else plain)
    try:
        await agent.run("go", session=SESSION)
    finally:
        release.set()
    assert told == [1, 1, 2]
    (failed,) = await failures(agent.store)
    assert (failed.hook, failed.error.type, failed.effect) == ("slow", "HookTimeout", "skipped")


async def test_a_durable_observer_that_hangs_does_not_keep_the_turn_waiting():
    agent = adder(1, observer_patience=0.01)
    hangs = asyncio.Event()

    @agent.observe(ToolReturned, durable=True)
    async def stuck(fact: Any) -> None:
        await hangs.wait()

    assert (await agent.run("go", session=SESSION)).text == "done"
    hangs.set()
    await agent.aclose()
    assert await agent.store.cursor(SESSION, "stuck") == len(await agent.store.read(SESSION))


async def test_a_durable_observer_that_hangs_does_not_hold_up_another_one():
    agent = adder(1, observer_patience=0.01)
    hangs, seen = asyncio.Event(), asyncio.Event()

    @agent.observe(ToolReturned, durable=True)
    async def stuck(fact: Any) -> None:
        await hangs.wait()

    @agent.observe(ToolReturned, durable=True)
    async def fine(fact: Any) -> None:
        seen.set()

    await agent.run("go", session=SESSION)
    assert seen.is_set()
    hangs.set()
    await agent.aclose()


# ---------------------------------------------------------------- a fact that keeps failing


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_fact_that_keeps_failing_is_skipped_after_three_tries_and_that_is_recorded_once(
    is_async: bool, error: Any
):
    if is_async and error is KeyboardInterrupt:
        return  # on the loop that is the user's
    clock = FakeClock(auto=True)
    agent = adder(*range(1, 9), clock=clock)
    told: list[int] = []

    def plain(fact: Any, turn: Turn[Any]) -> None:
        told.append(turn.call(fact.call).arguments["a"])
        if told[-1] == 2:
            raise error("poison")

    async def later(fact: Any, turn: Turn[Any]) -> None:
        plain(fact, turn)

    agent.observe(ToolReturned, durable=True, name="audit")(later if is_async else plain)
    result = await agent.run("go", session=SESSION)
    await agent.aclose()
    assert result.outcome == Completed()
    assert told == [1, 2, 2, 2, 3, 4, 5, 6, 7, 8]
    (failed,) = await failures(agent.store)
    assert (failed.hook, failed.event, failed.effect) == ("audit", "ToolReturned", "skipped")
    assert (await agent.store.read(SESSION))[failed.fact - 1].call == "s1/2/1"
    assert clock.slept == [0.05, 0.2]


async def test_tries_says_how_often_a_fact_is_told():
    agent = adder(1, clock=FakeClock(auto=True))
    told: list[int] = []

    @agent.observe(ToolReturned, durable=True, tries=5)
    def audit(fact: Any) -> None:
        told.append(fact.seq)
        if len(told) < 5:
            raise RuntimeError("not yet")

    await agent.run("go", session=SESSION)
    assert len(told) == 5
    assert len(set(told)) == 1
    assert await failures(agent.store) == []


async def test_a_fact_that_is_skipped_while_no_turn_runs_is_recorded_by_the_next_turn():
    """Only a turn writes to the log of its session: whoever tells from outside leaves a note in the inbox."""
    store = await logged(calls("add", a=1, b=2), says("3"))
    agent = Agent(ScriptedModel(says("hello")), tools=[add], store=store, clock=FakeClock(auto=True))

    @agent.observe(ToolReturned, durable=True)
    def audit(fact: Any) -> None:
        raise RuntimeError("poison")

    await agent.catch_up()
    await agent.catch_up()
    assert await failures(store) == []
    await agent.run("hello", session=SESSION)
    (failed,) = await failures(store)
    assert (failed.hook, failed.effect, failed.error.message) == ("audit", "skipped", "poison")


async def test_a_fact_of_a_session_that_has_ended_is_skipped_and_recorded_in_its_log():
    store = MemoryStore()
    agent = Agent(ScriptedModel(says("one")), store=store, observer_patience=0.0, clock=FakeClock(auto=True))

    @agent.observe(TurnEnded, durable=True)
    async def audit(fact: Any) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("poison")

    result = await agent.run("hi")
    await agent.aclose()
    assert [failed.effect for failed in await failures(store, result.session_id)] == ["skipped"]


# ---------------------------------------------------------------- other sessions, other processes


async def test_any_process_that_has_the_observer_delivers_what_others_left():
    """Sessions that never run again are not lost."""
    store = await logged(calls("add", a=1, b=2), says("3"), sessions=("x", "y", "z"))
    seen: list[tuple[str, int]] = []
    agent = adder(store=store)

    @agent.observe(ToolReturned, durable=True)
    def audit(fact: Any, turn: Turn[Any]) -> None:
        seen.append((turn.session_id, fact.seq))

    assert await agent.catch_up() == 3
    assert await agent.catch_up() == 0
    assert [session for session, _ in seen] == ["x", "y", "z"]
    assert len({seq for _, seq in seen}) == 1
    assert await store.behind("audit") == []


async def test_closing_an_agent_delivers_what_others_left_in_sessions_at_rest():
    store = await logged(calls("add", a=1, b=2), says("3"))
    log = list(await store.read(SESSION))
    broken_off = log[: next(at for at, r in enumerate(log) if isinstance(r, ToolReturned)) + 1]
    await store.append("broken off", broken_off, 0)
    seen: list[str] = []
    agent = adder(store=store)
    agent.observe(ToolReturned, durable=True, name="audit")(lambda fact, turn: seen.append(turn.session_id))
    async with agent:
        await agent.run("hi", session="mine")
    assert seen == [SESSION]
    await agent.catch_up()
    assert seen == [SESSION, "broken off"]


async def test_sessions_of_another_agent_are_left_to_that_one():
    store = await logged(says("x"), name="sales")
    seen: list[str] = []
    agent = Agent(ScriptedModel(), store=store, name="support")
    agent.observe(TurnEnded, durable=True, name="audit")(lambda fact, turn: seen.append(turn.session_id))
    assert await agent.catch_up() == 0
    assert seen == []


async def test_facts_of_sub_agents_are_caught_up_with_their_path():
    def family(store: Any, seen: list[Any] | None) -> Agent[Any, Any]:
        child = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], name="child")
        parent = Agent(ScriptedModel(calls("child", task="add"), says("ok")), tools=[child.as_tool()], store=store)
        if seen is not None:
            parent.observe(ToolReturned, durable=True, name="audit")(
                lambda fact, turn: seen.append((turn.session_id, fact.path, turn.call(fact.call).name))
            )
        return parent

    store = MemoryStore()
    await family(store, None).run("go", session=SESSION)
    seen: list[Any] = []
    assert await family(store, seen).catch_up() == 2
    assert sorted(seen) == [("s1", "", "child"), ("s1//1/1", "s1//1/1", "add")]
    live: list[Any] = []
    await family(MemoryStore(), live).run("go", session=SESSION)
    assert sorted(live) == sorted(seen)


async def test_of_two_agents_of_one_process_only_one_tells():
    store = await logged(*[calls("add", a=n, b=2) for n in range(5)], says("3"), sessions=("x", "y"))
    seen: list[tuple[str, int]] = []
    agents = [adder(store=store) for _ in range(4)]
    for agent in agents:

        @agent.observe(ToolReturned, durable=True, name="audit")
        async def audit(fact: Any, turn: Turn[Any]) -> None:
            await asyncio.sleep(0)
            seen.append((turn.session_id, fact.seq))

    assert sum(await asyncio.gather(*[agent.catch_up() for agent in agents])) == 10
    assert len(seen) == len(set(seen)) == 10


async def test_a_process_that_finds_the_cursor_moved_by_another_one_stops(tmp_path: Path):
    """Two processes may both tell the fact they are at, and no other."""
    ours, theirs = SQLiteStore(tmp_path / "a.db"), SQLiteStore(tmp_path / "a.db")
    await logged(*[calls("add", a=n, b=2) for n in range(5)], says("3"), store=ours)
    told: dict[str, list[int]] = {"ours": [], "theirs": []}
    both = asyncio.Barrier(2)

    def process(store: Any, name: str) -> Agent[Any, Any]:
        agent = adder(store=store)

        @agent.observe(ToolReturned, durable=True, name="audit")
        async def audit(fact: Any) -> None:
            told[name].append(fact.seq)
            if len(told[name]) == 1:
                await both.wait()

        return agent

    counts = await asyncio.gather(process(ours, "ours").catch_up(), process(theirs, "theirs").catch_up())
    assert sorted(counts) == [1, 5]
    winner, loser = sorted(told.values(), key=len, reverse=True)
    assert len(set(winner)) == 5
    assert loser == winner[:1]
    await ours.close()
    await theirs.close()


@pytest.mark.parametrize("way", ["run", "stream", "resume"])
async def test_each_fact_is_told_once_in_order_however_the_turn_runs(way: str, tmp_path: Path):
    agent = adder(1, 2, 3, store=f"sqlite:///{tmp_path}/a.db")
    seen: list[int] = []

    @agent.observe(ToolReturned, durable=True)
    def audit(fact: Any, turn: Turn[Any]) -> None:
        seen.append(turn.call(fact.call).arguments["a"])

    if way == "resume":
        agent.gate(ToolCalling)(lambda event: Ask("may I?") if event.call.arguments["a"] == 2 else None)
    async with agent:
        if way == "stream":
            async for _ in agent.stream("go", session=SESSION):
                pass
        else:
            result = await agent.run("go", session=SESSION)
        if way == "resume":
            assert seen == [1]
            await agent.resume(SESSION, answers={result.waiting_for[0].id: Approve()})
        assert await agent.store.cursor(SESSION, "audit") == len(await agent.store.read(SESSION))
    assert seen == [1, 2, 3]


# ---------------------------------------------------------------- shutting down


async def test_the_store_may_be_closed_right_after_the_last_turn(tmp_path: Path, caplog: Any):
    """The documented shutdown leaves no task behind whose error nobody sees."""
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    for number in range(3):
        agent = adder(1, store=f"sqlite:///{tmp_path}/{number}.db")
        agent.observe(TurnEnded, durable=True, name="audit")(lambda fact: None)
        await agent.run("hi", session=SESSION)
        await agent.store.close()
        del agent
        gc.collect()
        await asyncio.sleep(0)
    assert unseen == []
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_closing_an_agent_waits_for_all_observers_and_closes_its_own_store(tmp_path: Path):
    release = threading.Event()
    agent = adder(1, store=f"sqlite:///{tmp_path}/a.db", observer_patience=0.0)
    seen: list[str] = []

    @agent.observe(TurnStarted)
    def plain(fact: Any) -> None:
        release.wait(20)
        seen.append("plain")

    @agent.observe(TurnEnded)
    async def later(fact: Any) -> None:
        await asyncio.to_thread(release.wait, 20)
        seen.append("async")

    @agent.observe(TurnEnded, durable=True)
    def durable(fact: Any) -> None:
        release.wait(20)
        seen.append("durable")

    async with agent as entered:
        assert entered is agent
        await agent.run("hi", session=SESSION)
        assert seen == []
        asyncio.get_running_loop().call_soon(release.set)
    assert sorted(seen) == ["async", "durable", "plain"]
    with pytest.raises(Exception, match="is closed"):
        await agent.store.read(SESSION)


async def test_a_store_of_the_application_stays_open(tmp_path: Path):
    store = SQLiteStore(tmp_path / "a.db")
    async with adder(1, store=store) as agent:
        await agent.run("hi", session=SESSION)
    assert await store.read(SESSION)
    await store.close()


async def test_closing_does_not_wait_for_ever_for_an_observer_that_hangs(tmp_path: Path, caplog: Any):
    release = threading.Event()
    agent = adder(1, store=f"sqlite:///{tmp_path}/a.db", observer_patience=0.0)
    agent.observe(TurnEnded, durable=True, name="stuck")(lambda fact: release.wait(20))
    await agent.run("hi", session=SESSION)
    await agent.aclose(patience=0.01)
    release.set()
    assert "before its observers had been told everything" in caplog.text


async def test_closing_an_agent_that_never_ran_is_fine(tmp_path: Path):
    async with adder(store=f"sqlite:///{tmp_path}/a.db"):
        pass
    agent = adder()
    await agent.aclose()
    await agent.aclose()
