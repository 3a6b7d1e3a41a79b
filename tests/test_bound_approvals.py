"""An approval is bound to the bytes that run: a log that was changed since then runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Completed,
    Delegating,
    Edit,
    Failed,
    Suspended,
    ToolCall,
    ToolCalling,
    tool,
)
from windlass.errors import StoreError
from windlass.records import (
    Asked,
    Delegated,
    ModelReplied,
    Record,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    decode,
    encode,
)
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, calls, says

Change = Callable[[bytes], bytes]


def mallory(line: bytes) -> bytes:
    changed = line.replace(b"ann", b"mal")
    assert changed != line
    return changed


async def changed_copy(
    store: Any, kind: type[Record], change: Change = mallory, *, session: str = "s", until: type[Record] | None = None
) -> MemoryStore:
    """A store with the same logs, except that one record of a session was changed; cut after a record if told so."""
    copy = MemoryStore()
    for name in await store.sessions():
        log = list(await store.read(name))
        if name == session:
            if until is not None:
                log = log[: next(at for at, record in enumerate(log, 1) if type(record) is until)]
            place = max(at for at, record in enumerate(log) if type(record) is kind)
            log[place] = decode(change(encode(log[place])))
        await copy.append(name, log, 0)
    return copy


class Desk:
    """A tool that pays, and what it has paid."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[str] = []
        self.options = options

    def tool(self) -> Any:
        @tool(**self.options)
        async def pay(to: str, amount: int = 10) -> str:
            """Pay somebody."""
            self.paid.append(to)
            return f"paid {to}"

        return pay

    def agent(self, *script: Any, store: Any = None, verdict: Any = None, **options: Any) -> Agent:
        agent = Agent(ScriptedModel(*script), tools=[self.tool()], store=store or MemoryStore(), **options)
        if verdict is not None:
            agent.gate(ToolCalling, name="sure")(lambda event: verdict)
        return agent


async def assert_refused(agent: Agent, desk: Desk, answers: Any = None) -> None:
    """Nothing runs and nothing is written; the error names the session and the call."""
    before = list(await agent.store.read("s"))
    result = await agent.resume("s", answers=answers)
    assert desk.paid == []
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "StoreError"
    with pytest.raises(StoreError, match=r"session 's'.*call 's/1/1'.*the log was changed"):
        result.raise_for_error()
    after = list(await agent.store.read("s"))
    assert after == before
    assert not any(isinstance(record, ToolReturned) for record in after)


@pytest.mark.parametrize("kind", [ModelReplied, ToolDecided, Asked])
async def test_an_approval_does_not_run_other_arguments(kind: type[Record]):
    desk = Desk()
    first = desk.agent(calls("pay", to="ann", amount=10), verdict=Ask("Pay?"))
    [asked] = (await first.run("go", session="s")).waiting_for
    change = mallory if kind is not ToolDecided else lambda line: line.replace(b'"digest":"', b'"digest":"0')
    store = await changed_copy(first.store, kind, change)
    second = desk.agent(says("done"), store=store, verdict=Ask("Pay?"))
    await assert_refused(second, desk, {asked.id: Approve()})


async def test_without_a_change_it_runs():
    desk = Desk()
    first = desk.agent(calls("pay", to="ann"), verdict=Ask("Pay?"))
    [asked] = (await first.run("go", session="s")).waiting_for
    store = await changed_copy(first.store, ModelReplied, lambda line: line)
    second = desk.agent(says("done"), store=store, verdict=Ask("Pay?"))
    assert (await second.resume("s", answers={asked.id: Approve()})).outcome == Completed()
    assert desk.paid == ["ann"]


async def test_an_edited_call_does_not_run_other_arguments():
    desk = Desk(effect="idempotent")
    first = desk.agent(calls("pay", to="bob"), says("done"), verdict=Ask("Pay?"))
    [asked] = (await first.run("go", session="s")).waiting_for
    await first.resume("s", answers={asked.id: Edit({"to": "ann"})})
    assert desk.paid == ["ann"]
    desk.paid.clear()
    store = await changed_copy(first.store, ToolDecided, until=ToolCalled)
    await assert_refused(desk.agent(says("done"), store=store, verdict=Ask("Pay?")), desk)


async def test_a_call_that_a_gate_allowed_is_not_run_again_with_other_arguments():
    desk = Desk(effect="idempotent")
    first = desk.agent(calls("pay", to="ann", amount=10), says("done"), verdict=Allow())
    await first.run("go", session="s")
    desk.paid.clear()
    store = await changed_copy(first.store, ModelReplied, until=ToolCalled)
    await assert_refused(desk.agent(says("done"), store=store, verdict=Allow()), desk)


async def test_a_call_in_wraps_is_bound_too():
    desk = Desk(effect="idempotent")

    def wrapped(agent: Agent) -> Agent:
        @agent.wrap(ToolCall)
        async def more(call: Any, call_next: Any) -> Any:
            return await call_next(call.replace(arguments={**call.arguments, "amount": 11}))

        return agent

    first = wrapped(desk.agent(calls("pay", to="ann", amount=10), says("done"), verdict=Allow()))
    await first.run("go", session="s")
    desk.paid.clear()
    store = await changed_copy(first.store, ModelReplied, until=ToolCalled)
    await assert_refused(wrapped(desk.agent(says("done"), store=store, verdict=Allow())), desk)


async def test_the_compensation_of_a_call_is_not_run_with_other_arguments():
    undone: list[str] = []

    def undo(to: str, amount: int) -> None:
        undone.append(to)

    desk = Desk(in_doubt="compensate", compensate=undo)
    first = desk.agent(calls("pay", to="ann", amount=10), says("done"), verdict=Allow())
    await first.run("go", session="s")
    desk.paid.clear()
    store = await changed_copy(first.store, ModelReplied, until=ToolCalled)
    await assert_refused(desk.agent(says("done"), store=store, verdict=Allow()), desk)
    assert undone == []


async def test_the_answer_to_a_question_about_a_call_in_doubt_is_bound_to_its_arguments():
    desk = Desk(in_doubt="ask")
    first = desk.agent(calls("pay", to="ann", amount=10), says("done"))
    await first.run("go", session="s")
    desk.paid.clear()
    store = await changed_copy(first.store, ModelReplied, lambda line: line, until=ToolCalled)
    second = desk.agent(says("done"), store=store)
    [asked] = (await second.resume("s")).waiting_for
    third = desk.agent(says("done"), store=await changed_copy(store, ModelReplied))
    result = await third.resume("s", answers={asked.id: Approve()})
    assert desk.paid == []
    assert isinstance(result.outcome, Suspended)  # it is another question now
    assert result.waiting_for[0].digest != asked.digest


def delegating(desk: Desk, *script: Any, store: Any = None) -> Agent:
    kid = Agent(ScriptedModel(calls("pay", to="bob"), says("ok")), tools=[desk.tool()], name="kid")
    agent = Agent(ScriptedModel(*script), tools=[kid.as_tool()], store=store or MemoryStore())
    agent.gate(Delegating, name="sure")(lambda event: Ask("Start it?"))
    return agent


async def test_a_task_that_was_approved_is_not_another_one_when_it_starts():
    desk = Desk()
    first = delegating(desk, calls("kid", task="pay ann"))
    [asked] = (await first.run("go", session="s")).waiting_for
    store = await changed_copy(first.store, ModelReplied)
    await assert_refused(delegating(desk, says("done"), store=store), desk, {asked.id: Approve()})


async def test_a_child_that_was_not_begun_gets_the_task_that_was_approved():
    desk = Desk()
    first = delegating(desk, calls("kid", task="pay ann"), says("done"))
    [asked] = (await first.run("go", session="s")).waiting_for
    await first.resume("s", answers={asked.id: Approve()})
    desk.paid.clear()
    cut = await changed_copy(first.store, Delegated, until=Delegated)
    store = MemoryStore()
    await store.append("s", await cut.read("s"), 0)
    second = delegating(desk, says("done"), store=store)
    result = await second.resume("s")
    assert desk.paid == []
    assert isinstance(result.outcome, Failed)
    assert "the log was changed" in result.outcome.error.message


async def test_a_plain_step_takes_no_digest(monkeypatch: pytest.MonkeyPatch):
    taken: list[str] = []
    digest = ToolCall.digest.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(ToolCall, "digest", property(lambda call: taken.append(call.id) or digest(call)))
    desk = Desk()
    await desk.agent(calls("pay", to="ann"), says("done")).run("go", session="s")
    assert (desk.paid, taken) == (["ann"], [])
