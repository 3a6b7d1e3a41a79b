"""The effect ledger: what becomes of a call that was started by somebody who did not live to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Cancelled,
    Completed,
    Edit,
    Reject,
    Respond,
    Resumed,
    Suspended,
    ToolCalling,
    Turn,
    tool,
)
from windlass.errors import StaleAnswer, ToolDefinitionError
from windlass.records import Concluded, Record, ToolCalled, ToolDecided, UndoCalled
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, calls, crash_points, says

from . import scenarios

Undo = Callable[..., Any]


class Desk:
    """A tool that notes how often it ran, with which key; and an agent that calls it."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []
        self.undone: list[Any] = []
        self.options = options

    def agent(self, store: Any = None, *, tools: bool = True, **options: Any) -> Agent:
        @tool(**self.options)
        async def book(seat: int, idempotency_key: str) -> str:
            """Book a seat."""
            self.ran.append(idempotency_key)
            return f"booked {seat}"

        script = [says("done")] if store is not None else [calls("book", seat=7), says("done")]
        return Agent(ScriptedModel(*script), tools=[book] if tools else [], store=store or MemoryStore(), **options)

    async def interrupted(self, after: type[Record] = ToolCalled) -> MemoryStore:
        """The log of a run whose process died right after this record."""
        agent = self.agent()
        await agent.run("go", session="s")
        self.ran.clear()
        log = await agent.store.read("s")
        end = next(place for place, record in enumerate(log, 1) if type(record) is after)
        store = MemoryStore()
        await store.append("s", log[:end], 0)
        for digest in {record.pipeline for record in log if hasattr(record, "pipeline")}:
            await store.put_pipeline(digest, await agent.store.pipeline(digest) or b"")
        return store


async def result_of(agent: Agent, **options: Any) -> Any:
    """The result of the only call, once the turn is resumed."""
    resumed = await agent.resume("s", **options)
    assert (resumed.text, resumed.outcome) == ("done", Completed())
    return resumed.messages[-2].parts[0]


# ---------------------------------------------------------------- the policies


async def test_an_unsafe_call_in_doubt_is_told_of():
    desk = Desk()
    done = await result_of(desk.agent(await desk.interrupted()))
    assert (done.status, desk.ran) == ("interrupted", [])


@pytest.mark.parametrize("options", [{"effect": "idempotent"}, {"retry": "safe"}])
async def test_what_may_be_repeated_is_run_again_with_the_same_key(options: Any):
    desk = Desk(**options)
    done = await result_of(desk.agent(await desk.interrupted()))
    assert (done.status, desk.ran) == ("ok", ["s/1/1"])


@pytest.mark.parametrize("effect", ["idempotent", "unsafe"])
async def test_a_person_is_asked_about_a_call_in_doubt(effect: Any):
    desk = Desk(effect=effect, in_doubt="ask")
    store = await desk.interrupted()
    waiting = await desk.agent(store).resume("s")
    assert isinstance(waiting.outcome, Suspended)
    [asked] = waiting.waiting_for
    assert asked.question == "book was started and may or may not have happened: run it again?"
    assert (asked.call is not None and asked.call.arguments, asked.allow) == (
        {"seat": 7},
        ("approve", "reject", "respond"),
    )
    assert desk.ran == []
    done = await result_of(desk.agent(store), answers={asked.id: Approve(by="ann")})
    assert (done.status, desk.ran) == ("ok", ["s/1/1"])


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (Reject("leave it"), "interrupted", "leave it"),
        (Reject(), "interrupted", "outcome unknown"),
        (Respond("it went through"), "responded", "it went through"),
    ],
)
async def test_a_person_may_say_what_became_of_a_call_in_doubt(answer: Any, status: str, text: str):
    desk = Desk(in_doubt="ask")
    store = await desk.interrupted()
    [asked] = (await desk.agent(store).resume("s")).waiting_for
    done = await result_of(desk.agent(store), answers={asked.id: answer})
    assert (done.status, desk.ran) == (status, [])
    assert text in done.content[0].text


async def test_the_arguments_of_what_may_have_happened_cannot_be_edited():
    desk = Desk(in_doubt="ask")
    store = await desk.interrupted()
    [asked] = (await desk.agent(store).resume("s")).waiting_for
    with pytest.raises(StaleAnswer, match="cannot be answered with 'edit'"):
        await desk.agent(store).resume("s", answers={asked.id: Edit({"seat": 8})})


async def test_an_approval_of_the_call_is_none_of_its_repetition():
    desk = Desk(in_doubt="ask")

    def guarded(store: Any = None) -> Agent:
        agent = desk.agent(store)
        agent.gate(ToolCalling, name="sure")(lambda event: Ask("sure?"))
        return agent

    agent = guarded()
    [asked] = (await agent.run("go", session="s")).waiting_for
    await agent.resume("s", answers={asked.id: Approve()})
    log = await agent.store.read("s")
    end = next(place for place, record in enumerate(log, 1) if isinstance(record, ToolCalled))
    store = MemoryStore()
    await store.append("s", log[:end], 0)
    desk.ran.clear()
    for start in (1, 2, 3):
        [doubt] = (await guarded(store).resume("s")).waiting_for
        assert doubt.id == f"s/1/1/doubt.{start}"
        assert len(desk.ran) == start - 1
        await guarded(store).resume("s", answers={doubt.id: Approve()})
        log = await store.read("s")
        last = max(place for place, record in enumerate(log, 1) if isinstance(record, ToolCalled))
        store = MemoryStore()
        await store.append("s", log[:last], 0)


@pytest.mark.parametrize("answered", [True, False])
async def test_a_fork_asks_for_itself_about_a_call_in_doubt(answered: bool):
    desk = Desk(in_doubt="ask")
    store = await desk.interrupted()
    [asked] = (await desk.agent(store).resume("s")).waiting_for
    if answered:
        await desk.agent(store).resume("s", answers={asked.id: Approve()})
    log = await store.read("s")
    at = max(place for place, record in enumerate(log, 1) if isinstance(record, ToolCalled))
    agent = desk.agent(store)
    fork = await agent.fork("s", at=at if answered else None)
    [again] = (await agent.resume(fork)).waiting_for
    assert again.id == f"s/1/1/doubt.{1 + answered}"
    desk.ran.clear()
    forked = await agent.resume(fork, answers={again.id: Approve()})
    assert (forked.outcome, desk.ran) == (Completed(), ["s/1/1"])


async def test_a_compensation_gets_the_arguments_and_the_key():
    desk = Desk()
    desk.options = {"compensate": lambda seat, idempotency_key: desk.undone.append((seat, idempotency_key))}
    store = await desk.interrupted()
    done = await result_of(desk.agent(store))
    assert (done.status, desk.ran, desk.undone) == ("interrupted", [], [(7, "s/1/1")])
    assert "has been undone" in done.content[0].text
    told = str(await desk.agent(store).why("s"))
    assert "book was in doubt: its compensation was started" in told


async def test_a_compensation_that_fails_is_told_and_not_repeated():
    desk = Desk()

    async def unbook(**given: Any) -> None:
        desk.undone.append(given)
        raise ConnectionError("no line")

    desk.options = {"compensate": unbook}
    done = await result_of(desk.agent(await desk.interrupted()))
    assert desk.undone == [{"seat": 7, "idempotency_key": "s/1/1"}]
    assert "Undoing it failed." in done.content[0].text
    assert "no line" not in done.content[0].text


async def test_a_compensation_that_is_in_doubt_itself_is_told_and_not_repeated():
    desk = Desk()
    desk.options = {"compensate": lambda seat: desk.undone.append(seat)}
    store = await desk.interrupted()
    await desk.agent(store).resume("s")
    log = await store.read("s")
    end = next(place for place, record in enumerate(log, 1) if isinstance(record, UndoCalled))
    again = MemoryStore()
    await again.append("s", log[:end], 0)
    done = await result_of(desk.agent(again))
    assert desk.undone == [7]
    assert "Undoing it was started, too, and may or may not have happened" in done.content[0].text


async def test_a_compensation_in_a_class_is_bound_like_its_tool():
    class Office:
        def __init__(self) -> None:
            self.undone: list[int] = []

        def unbook(self, seat: int) -> None:
            self.undone.append(seat)

        @tool(compensate=unbook)
        def book(self, seat: int) -> str:
            """Book a seat."""
            return f"booked {seat}"

    office = Office()
    office.book.undo((3,), "key")
    assert office.undone == [3]


def test_who_compensates_may_be_killed_as_well():
    report = crash_points(scenarios.undone, crashes=2)
    assert any("UndoCalled" in point.where for point in report.points)


async def test_a_step_that_was_open_when_the_turn_was_concluded_is_closed_on_resume():
    @tool
    async def send() -> str:
        """Send something off."""
        return "sent"

    @tool
    async def stop(turn: Turn) -> str:
        """End the turn."""
        turn.cancel("enough")
        await asyncio.sleep(30)
        return "never"

    agent = Agent(ScriptedModel(calls([("send", {}), ("stop", {})])), tools=[send, stop])
    whole = await agent.run("go", session="s")
    log = await agent.store.read("s")
    end = next(place for place, record in enumerate(log, 1) if isinstance(record, Concluded))
    store = MemoryStore()
    await store.append("s", log[:end], 0)
    resumed = await Agent(ScriptedModel(), tools=[send, stop], store=store).resume("s")
    assert resumed.outcome == whole.outcome == Cancelled("enough")
    assert [part.status for part in resumed.messages[-1].parts] == ["ok", "interrupted"]
    assert len(resumed.messages) == len(whole.messages)


# ---------------------------------------------------------------- what is refused when a tool is defined


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"in_doubt": "rerun"}, 'it is unsafe, so in_doubt="rerun" could repeat an effect that has already happened'),
        ({"in_doubt": "compensate"}, "needs a function that undoes a call"),
        ({"in_doubt": "tell", "compensate": print}, 'with in_doubt="tell" compensate is never called'),
        ({"in_doubt": "ask", "compensate": print}, 'with in_doubt="ask" compensate is never called'),
        ({"compensate": "undo"}, "compensate='undo' cannot be called"),
        ({"effect": "pure", "in_doubt": "ask"}, "it is pure: nothing can be in doubt"),
        ({"effect": "pure", "compensate": print}, "it is pure: nothing can be in doubt"),
        ({"in_doubt": "maybe"}, "option 'in_doubt' is 'maybe'"),
        ({"compensate": lambda chair: None}, "its compensation has a parameter 'chair' that the call does not have"),
        ({"compensate": lambda turn: None}, "its compensation has a parameter 'turn' that the call does not have"),
        ({"compensate": lambda seat, /: None}, "it gets the arguments of the call and idempotency_key, by name"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_at_definition(options: Any, told: str):
    def book(seat: int) -> str:
        """Book a seat."""
        return str(seat)

    with pytest.raises(ToolDefinitionError) as refused:
        tool(**options)(book)
    assert told in str(refused.value)
    assert refused.value.tool == "book"


# ---------------------------------------------------------------- an agent that is not the same any more


@pytest.mark.parametrize("started", [True, False])
async def test_a_tool_that_is_gone_on_resume_is_an_error_result(started: bool):
    desk = Desk()
    store = await desk.interrupted(ToolCalled if started else ToolDecided)
    done = await result_of(desk.agent(store, tools=False))
    if started:
        assert (done.status, "outcome unknown" in done.content[0].text) == ("interrupted", True)
    else:
        assert (done.status, "there is no tool 'book'" in done.content[0].text) == ("error", True)


async def test_the_log_tells_what_differs_from_the_agent_that_recorded_the_turn():
    desk = Desk()

    def hooked(store: Any = None, **gates: Any) -> Agent:
        agent = desk.agent(store)
        for name, options in gates.items():
            agent.gate(ToolCalling, name=name, **options)(lambda event: None)
        return agent

    first = hooked(stays={}, goes={}, moves={"priority": 1})
    await first.run("go", session="s")
    log = await first.store.read("s")
    end = next(place for place, record in enumerate(log, 1) if isinstance(record, ToolCalled))
    store = MemoryStore()
    await store.append("s", log[:end], 0)
    await store.put_pipeline(log[0].pipeline, await first.store.pipeline(log[0].pipeline) or b"")

    desk.options = {"description": "Book a seat, for good."}
    other = hooked(store, stays={}, moves={"priority": 2}, comes={})
    result = await other.resume("s")
    assert result.outcome == Completed()
    [resumed] = [record for record in await store.read("s") if isinstance(record, Resumed)]
    assert set(resumed.drift) == {
        "hook 'goes' (gate on ToolCalling) is gone",
        "hook 'comes' (gate on ToolCalling) is new",
        "hook 'moves' (gate on ToolCalling) has changed: priority 1 is 2 now",
        "tool 'book' has changed",
    }
    told = " ".join(str(await other.why("s")).split())
    assert all(line in told for line in resumed.drift)


async def test_the_same_agent_tells_of_no_drift():
    desk = Desk()
    store = await desk.interrupted()
    await desk.agent(store).resume("s")
    [resumed] = [record for record in await store.read("s") if isinstance(record, Resumed)]
    assert resumed.drift == ()


async def test_a_recording_without_a_pipeline_is_said_to_be_one():
    desk = Desk()
    store = await desk.interrupted()
    bare = MemoryStore()
    await bare.append("s", await store.read("s"), 0)
    desk.options = {"description": "Another one."}
    await desk.agent(bare).resume("s")
    [resumed] = [record for record in await bare.read("s") if isinstance(record, Resumed)]
    assert resumed.drift == ("the log does not describe the agent that recorded the turn",)
