"""Agents that measure their hooks: one record per segment of a turn says how long they took."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Deny,
    HooksRan,
    ModelCall,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Step,
    StepStarting,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnStarting,
    fold,
    tool,
)
from windlass.decisions import Allow
from windlass.errors import CompiledError
from windlass.messages import TextPart
from windlass.records import HookTimes, decode, encode
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, ScriptedModel, calls, says
from windlass.transfer import export_session, import_session


@tool
async def pay(amount: int) -> str:
    return f"paid {amount}"


@tool
async def look() -> str:
    return "found"


def governed(clock: FakeClock, *script: Any, **options: Any) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(*script, clock=clock), tools=[pay, look], clock=clock, measure_hooks=True, **options
    )

    @agent.gate(ToolCalling, name="limit")
    async def limit(event: Any) -> Any:
        await clock.sleep(0.25)
        return Deny("too much") if event.call.arguments.get("amount", 0) > 100 else None

    @agent.rewrite(ModelCalling, name="tidy")
    async def tidy(event: Any) -> Any:
        await clock.sleep(0.5)

    return agent


async def ran(store: Any, session: str = "s") -> list[HooksRan]:
    return [record for record in await store.read(session) if isinstance(record, HooksRan)]


def by_name(record: HooksRan) -> dict[str, HookTimes]:
    return {row.hook: row for row in record.hooks}


async def test_silent_hooks_are_counted_and_what_hooks_said_by_name():
    clock, store = FakeClock(auto=True), MemoryStore()
    agent = governed(clock, calls("look"), calls("pay", amount=500), says("done"), store=store)
    await agent.run("go", session="s")
    [record] = await ran(store)
    times = by_name(record)
    limit, tidy = times["limit"], times["tidy"]
    assert (limit.event, limit.verb, limit.asked, limit.seconds, limit.slowest) == ("ToolCalling", "gate", 2, 0.5, 0.25)
    assert limit.said == {"deny": 1}
    assert (tidy.asked, tidy.seconds, tidy.said) == (3, 1.5, {})
    [(bucket, count)] = tidy.buckets
    assert count == 3
    assert 2 ** (bucket / 4) <= 0.5e6 < 2 ** ((bucket + 1) / 4)


async def test_the_record_stands_before_the_end_of_the_turn_and_without_the_option_there_is_none():
    clock, store = FakeClock(auto=True), MemoryStore()
    await governed(clock, says("done"), store=store).run("go", session="s")
    kinds = [type(record) for record in await store.read("s")]
    assert kinds.index(HooksRan) == kinds.index(TurnEnded) - 1
    plain: Agent[Any, Any] = Agent(ScriptedModel(says("done")), store=store)
    plain.gate(TurnStarting, name="watch")(lambda event: None)
    await plain.run("go", session="plain")
    assert not await ran(store, "plain")
    silent: Agent[Any, Any] = Agent(ScriptedModel(says("done")), store=store, measure_hooks=True)
    await silent.run("go", session="silent")
    assert not await ran(store, "silent")


async def test_each_segment_of_a_turn_has_a_record_of_its_own():
    clock, store = FakeClock(auto=True), MemoryStore()
    agent = governed(clock, calls("pay", amount=5), says("done"), store=store)
    agent.gate(ToolCalling, name="person")(lambda event: Ask("pay?"))
    waiting = await agent.run("go", session="s")
    assert len(await ran(store)) == 1
    done = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert done.text == "done"
    first, second = await ran(store)
    assert by_name(first)["person"].said == {"ask": 1}
    assert by_name(first)["tidy"].asked == by_name(second)["tidy"].asked == 1
    assert by_name(second)["person"].asked == 1  # gates are asked again before the call


async def test_time_outs_and_failures_are_told_apart():
    clock, store = FakeClock(), MemoryStore()
    agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look], store=store, measure_hooks=True)
    late = asyncio.Event()

    @agent.gate(ToolReturning, name="stuck", timeout=0.01)
    async def stuck(event: Any) -> Any:
        await late.wait()

    @agent.gate(ModelReplying, name="broken", on_error="unreviewed")
    def broken(event: Any) -> Any:
        raise ValueError("no")

    await agent.run("go", session="s")
    del clock
    times = by_name((await ran(store))[0])
    assert times["stuck"].said == {"timeout": 1}
    assert times["broken"].said == {"failed": 2}


@pytest.mark.parametrize("effect", [ModelCall, ToolCall, Step])
async def test_the_time_of_a_wrap_is_its_own(effect: Any):
    clock, store = FakeClock(auto=True), MemoryStore()
    model = ScriptedModel(calls("look", _delay=4), says("done", delay=4), clock=clock)

    @tool
    async def look() -> str:
        await clock.sleep(8)
        return "found"

    agent: Agent[Any, Any] = Agent(model, tools=[look], clock=clock, store=store, measure_hooks=True)

    async def wrap(value: Any, call_next: Any) -> Any:
        await clock.sleep(1)
        result = await call_next(value)
        await clock.sleep(2)
        return result

    agent.wrap(effect, name="outer")(wrap)
    agent.wrap(effect, name="inner")(wrap)
    agent.wrap(Turn, name="turn")(wrap)
    await agent.run("go", session="s")
    times = by_name((await ran(store))[0])
    times_run = {ModelCall: 2, ToolCall: 1, Step: 2}[effect]
    assert (times["outer"].asked, times["outer"].seconds) == (times_run, 3.0 * times_run)
    assert times["inner"].seconds == 3.0 * times_run
    assert "turn" not in times


async def test_calls_that_a_wrap_makes_at_the_same_time_count_once():
    clock, store = FakeClock(auto=True), MemoryStore()

    @tool(effect="pure")
    async def look() -> str:
        await clock.sleep(5)
        return "found"

    agent = Agent(
        ScriptedModel(calls("look"), says("done")), tools=[look], clock=clock, store=store, measure_hooks=True
    )

    @agent.wrap(ToolCall, name="twice")
    async def twice(call: Any, call_next: Any) -> Any:
        first, _ = await asyncio.gather(call_next(call), call_next(call))
        await clock.sleep(1)
        return first

    await agent.run("go", session="s")
    row = by_name((await ran(store))[0])["twice"]
    assert row.seconds < 1.5


async def test_sub_agents_record_their_hooks_in_their_own_log():
    clock, store = FakeClock(auto=True), MemoryStore()
    child: Agent[Any, Any] = Agent(ScriptedModel(says("14")), name="stock", clock=clock)
    child.gate(TurnStarting, name="below")(lambda event: None)
    parent: Agent[Any, Any] = Agent(
        ScriptedModel(calls("stock", task="count"), says("done")),
        tools=[child.as_tool()],
        clock=clock,
        store=store,
        measure_hooks=True,
    )
    parent.gate(ToolCalling, name="above", band="guard")(lambda event: None)
    await parent.run("go", session="s")
    assert set(by_name((await ran(store))[0])) == {"above"}
    [info] = [info for info in await store.find() if info.parent]
    assert set(by_name((await ran(store, info.session))[0])) == {"below"}


class Hold:
    """Keeps the last word back."""

    def __init__(self) -> None:
        self.text = ""

    def feed(self, text: str) -> Sequence[str]:
        out, self.text = self.text, text
        return [out] if out else []

    def flush(self) -> Sequence[str]:
        return [self.text]


async def test_streams_are_counted_with_what_was_held_back_and_retracted():
    clock, store = FakeClock(auto=True), MemoryStore()
    agent = Agent(
        ScriptedModel(says("Tomorrow it comes."), says("It comes."), clock=clock),
        clock=clock,
        store=store,
        measure_hooks=True,
    )
    agent.transform(name="hold")(Hold)
    agent.gate(ModelReplying, name="promises", live=True)(
        lambda event: Regenerate("no dates") if "Tomorrow" in event.reply.text else None
    )
    async with agent.stream("go", session="s") as stream:
        events = [event async for event in stream]
    assert not [event for event in events if type(event).__name__ == "HookRan"]
    first, second = (await ran(store))[0].streams
    assert (first.step, first.round, second.round) == (1, 1, 2)
    assert first.retracted
    assert not second.retracted
    assert first.chunks >= 1
    assert first.characters == len("Tomorrow it comes.")
    assert first.sent >= 1
    assert not first.held
    assert [one.name for one in first.transforms] == ["hold"]
    assert first.transforms[0].held > 0
    assert [part.text for part in stream.result.messages[-1].parts if isinstance(part, TextPart)] == ["It comes."]


async def test_a_reply_that_a_gate_holds_is_sent_when_it_has_spoken():
    clock, store = FakeClock(auto=True), MemoryStore()
    agent = Agent(ScriptedModel(says("It comes."), clock=clock), clock=clock, store=store, measure_hooks=True)

    @agent.gate(ModelReplying, name="judge")
    async def judge(event: Any) -> Any:
        await clock.sleep(3)
        return Allow()

    async with agent.stream("go", session="s") as stream:
        async for _ in stream:
            pass
    [one] = (await ran(store))[0].streams
    assert one.held
    assert one.first_chunk is not None
    assert one.first_sent is not None
    assert one.first_sent - one.first_chunk >= 3


async def test_the_record_can_be_exported_imported_folded_and_forked():
    clock, store = FakeClock(auto=True), MemoryStore()
    agent = governed(clock, calls("look"), says("done"), says("again"), store=store)
    agent.gate(StepStarting, name="start")(lambda event: None)
    await agent.run("go", session="s")
    log = list(await store.read("s"))
    [record] = await ran(store)
    assert decode(encode(record)) == record
    other = MemoryStore()
    await import_session(other, await export_session(store, "s"))
    assert list(await other.read("s")) == log
    assert fold("s", log).text == "done"
    at = log.index(record) + 1
    forked = await agent.fork("s", at=at)
    assert (await agent.resume(forked)).text == "done"


async def test_a_compiled_agent_cannot_begin_to_measure():
    agent = Agent(ScriptedModel(says("done")))
    agent.with_measured_hooks()
    agent.compile()
    with pytest.raises(CompiledError):
        agent.with_measured_hooks()
