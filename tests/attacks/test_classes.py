"""The classes of attack that the matrix alone does not make: cuts, leaks, loops, hooks inside, consumers, processes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Deny,
    ErrorPolicy,
    Halt,
    Message,
    ModelCall,
    ModelCalling,
    ModelReply,
    ModelReplying,
    Stopped,
    StopReason,
    TextDelta,
    TextPart,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.decisions import Again, Edit, Regenerate, Rewind, Veto, Vote
from windlass.errors import RateLimited, SessionBusy, StaleAnswer
from windlass.events import Continuing, Erring, MessageAdding, StepEnding, Stopping
from windlass.stores import MemoryStore, open_store
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says

from .arena import CANARY, WAYS, Arena

# ---------------------------------------------------------------- crash cuts and resume


async def cut(store: MemoryStore, at: int) -> MemoryStore:
    """The store as it would be had the process died after `at` records."""
    copy = MemoryStore()
    await copy.append("s", list(await store.read("s"))[:at], 0)
    return copy


@pytest.mark.parametrize("gate", [lambda event: Deny("new policy"), lambda event: 1 / 0, lambda event: Ask("sure?")])
@pytest.mark.parametrize("asked", [True, False])
async def test_after_any_cut_a_new_gate_keeps_a_call_from_beginning(gate: Any, asked: bool):
    ran: list[int] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return "paid"

    def build(store: MemoryStore, *attack: Any) -> Agent[Any, Any]:
        agent = Agent(FunctionModel(_pays_once), tools=[pay], store=store)
        if asked:
            agent.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
        for fn in attack:
            agent.gate(ToolCalling)(fn)
        return agent

    first = MemoryStore()
    result = await build(first).run("go", session="s")
    if asked:
        await build(first).resume("s", answers={result.waiting_for[0].id: Approve()})
    log = list(await first.read("s"))
    began = next(at for at, record in enumerate(log) if type(record).__name__ == "ToolCalled")
    ran.clear()
    for at in range(3, began + 1):
        agent = build(await cut(first, at), gate)
        state = await agent.state("s")
        if not state.over:
            await agent.resume("s")
        assert ran == [], f"cut after {at} records"


def _pays_once(request: Any) -> Any:
    return calls("pay", x=1) if len(request.messages) == 1 else says("end")


@pytest.mark.parametrize("at", range(1, 9))
async def test_after_any_cut_what_was_redacted_stays_redacted(at: int):
    @tool(effect="pure")
    async def show() -> str:
        """Show a card."""
        return CANARY

    def build(store: Any) -> Agent[Any, Any]:
        agent = Agent(
            FunctionModel(lambda r: calls("show") if len(r.messages) == 1 else says("end")), tools=[show], store=store
        )
        agent.rewrite(ToolReturning, band="guard")(lambda event: event.result.text.replace(CANARY, "•"))
        return agent

    first = MemoryStore()
    await build(first).run("go", session="s")
    store = await cut(first, at)
    agent = build(store)
    if not (await agent.state("s")).over:
        await agent.resume("s")
    assert CANARY not in repr(list(await store.read("s")))


# ---------------------------------------------------------------- leaks

ALONE = [way for way in WAYS if way != "child"]  # whose message comes from its parent's model
DOORS: dict[str, Any] = {
    "TurnStarting": (TurnStarting, "rewrite"),
    "MessageAdding": (MessageAdding, "rewrite"),
    "TurnStarting halts": (TurnStarting, "gate"),
    "MessageAdding denies": (MessageAdding, "gate"),
}


@pytest.mark.parametrize(("door", "way"), [*itertools.product(DOORS, ALONE)])
async def test_a_canary_in_the_message_reaches_nobody_once_it_is_kept_out(door: str, way: str, tmp_path: Any):
    event, verb = DOORS[door]
    arena = Arena(way, tmp_path)

    def attack(agent: Agent[Any, Any]) -> None:
        if verb == "rewrite":
            agent.rewrite(event, band="guard")(_raises_without_words)
        else:
            agent.gate(event, band="guard")(lambda seen: Halt("no") if event is TurnStarting else Deny("no"))

    arena.attack(attack)
    await arena.play(f"my card is {CANARY}", answers=None)
    await arena.check()
    assert CANARY not in await arena.told()


def _raises_without_words(event: Any) -> Any:
    raise ValueError("cannot clean this")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["rewrites", "denies", "fails"])
async def test_a_canary_in_a_result_reaches_nobody(way: str, how: str, tmp_path: Any):
    arena = Arena(way, tmp_path)

    def guard(event: Any) -> Any:
        if how == "fails":
            raise ValueError("cannot clean this")
        return Deny("withheld") if how == "denies" else "clean"

    def with_secret(agent: Agent[Any, Any]) -> None:
        agent.wrap(ToolCall, name="leak")(_leaks)
        getattr(agent, "gate" if how == "denies" else "rewrite")(ToolReturning, band="guard")(guard)

    arena.attack(with_secret)
    await arena.play()
    await arena.check()
    assert CANARY not in await arena.told()


async def _leaks(call: Any, call_next: Any) -> Any:
    await call_next(call)
    return f"card {CANARY}"


async def test_a_held_stream_shows_nothing_before_the_verdict():
    shown: list[str] = []
    agent = Agent(ScriptedModel(says(f"it is {CANARY}", chunks=["it is ", CANARY]), says("fine")))

    @agent.gate(ModelReplying)
    def judge(event: Any) -> Any:
        assert shown == []
        return Regenerate("no cards") if CANARY in event.reply.text else None

    async for event in agent.stream("go"):
        shown += [event.text] if isinstance(event, TextDelta) else []
    assert "".join(shown) == "fine"


# ---------------------------------------------------------------- loops


LOOPS: dict[str, Any] = {
    "regenerate": (ModelReplying, Regenerate("again")),
    "veto": (Stopping, Veto("not yet")),
    "rewind": (StepEnding, Rewind(1)),
    "request": (Continuing, Vote.REQUEST),
    "retry": (Erring, Again()),
}


@pytest.mark.parametrize("loop", LOOPS)
async def test_no_hook_keeps_a_turn_going_without_bound(loop: str):
    event, decision = LOOPS[loop]
    asked = 0

    def reply(request: Any) -> Any:
        nonlocal asked
        asked += 1
        if loop == "retry":
            raise RateLimited("slow down")
        return says("hm")

    agent = Agent(FunctionModel(reply), clock=FakeClock(auto=True))
    agent.gate(event)(lambda seen: decision)
    result = await asyncio.wait_for(agent.run("go"), 30)
    assert result.outcome is not None
    assert asked < 60


async def test_a_paused_model_is_not_asked_for_ever():
    asked = 0

    def reply(request: Any) -> Any:
        nonlocal asked
        asked += 1
        return ModelReply(Message("assistant", (TextPart("hm"),)), finish="paused")

    result = await asyncio.wait_for(Agent(FunctionModel(reply)).run("go"), 30)
    assert isinstance(result.outcome, Stopped)
    assert asked < 200


async def test_attempts_of_a_wrap_and_of_the_policy_are_counted_together():
    model = ScriptedModel(*[RateLimited("slow down")] * 20)
    agent = Agent(model, errors=ErrorPolicy.retrying(2), clock=FakeClock(auto=True))

    @agent.wrap(ModelCall)
    async def thrice(request: Any, call_next: Any) -> Any:
        for _ in range(2):
            try:
                return await call_next(request)
            except RateLimited:
                pass
        return await call_next(request)

    await agent.run("go")
    assert len(model.requests) == 3


async def test_limits_hold_for_attempts_and_side_calls():
    side = ScriptedModel(*[says("fine")] * 60, name="side")
    agent = Agent(ScriptedModel(*[says("end")] * 60), models=[side], criteria=[TokenLimit(30)])

    @agent.gate(ModelReplying)
    async def chatty(event: Any, turn: Any) -> None:
        for _ in range(50):
            await turn.ask(side, "again?")

    result = await agent.run("go")
    assert result.usage.total < 60
    assert result.stop_reason in (StopReason.TOKEN_LIMIT, StopReason.HALTED, StopReason.ERROR)


# ---------------------------------------------------------------- answers, arguments


@pytest.mark.parametrize("answer", ["stale", "twice", "stranger", "misfit", "ill-typed"])
async def test_an_answer_that_does_not_fit_releases_nothing(answer: str):
    ran: list[int] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return "paid"

    agent = Agent(FunctionModel(_pays_once), tools=[pay])
    agent.gate(ToolCalling)(lambda event: Ask("?", approvers=("ann",)))
    (asked,) = (await agent.run("go", session="s")).waiting_for
    given: dict[str, Any] = {
        "stale": {"s/9/9": Approve(by="ann")},
        "twice": {asked.id: Approve(by="ann")},
        "stranger": {asked.id: Approve(by="eve")},
        "misfit": {asked.id: Edit({"x": "lots"}, by="ann")},
        "ill-typed": {asked.id: Approve(by=5)},  # type: ignore[arg-type]
    }[answer]
    if answer == "twice":
        await agent.resolve("s", asked.id, Approve(by="ann"))
        with pytest.raises(StaleAnswer):
            await agent.resolve("s", asked.id, Approve(by="ann"))
        await agent.resume("s")
        assert ran == [1]
        return
    with pytest.raises(Exception, match=r".") as caught:
        await agent.resume("s", answers=given)
    assert "windlass" in type(caught.value).__module__
    assert ran == []
    assert [question.id for question in (await agent.state("s")).waiting] == [asked.id]


@pytest.mark.parametrize("arguments", [{}, {"x": "1"}, {"x": None}, {"y": 1}, {"x": 1, "y": 2}, {"x": [1]}])
@pytest.mark.parametrize("gated", [True, False])
async def test_a_call_that_does_not_fit_is_an_error_that_the_model_reads(arguments: Any, gated: bool):
    seen: list[Any] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        raise AssertionError("it ran")

    agent = Agent(ScriptedModel(calls("pay", **arguments), says("sorry")), tools=[pay])
    if gated:
        agent.gate(ToolCalling)(lambda event: seen.append(event.call.arguments["x"] > 10))
    result = await agent.run("go")
    (part,) = result.messages[2].parts
    assert part.status == "error"
    assert "'pay'" in part.text
    assert seen == []
    assert result.text == "sorry"


# ---------------------------------------------------------------- inside, consumers, processes


@pytest.mark.parametrize("what", ["run", "resume", "stream", "compact", "close"])
async def test_a_hook_that_enters_its_own_session_does_not_hang(what: str):
    agent = Agent(ScriptedModel(says("end")))
    refused: list[Exception] = []

    @agent.gate(ModelCalling)
    async def inside(event: Any) -> None:
        try:
            if what == "stream":
                async for _ in agent.stream("again", session="s"):
                    pass
            elif what == "close":
                async with agent.session("s"):
                    pass
            elif what == "run":
                await agent.run("again", session="s")
            else:
                await getattr(agent, what)("s")
        except Exception as error:
            refused.append(error)

    result = await asyncio.wait_for(agent.run("go", session="s"), 10)
    assert result.text == "end"
    assert isinstance(refused[0], SessionBusy)


@pytest.mark.parametrize("leave", range(1, 8))
async def test_a_consumer_that_leaves_closes_the_turn(leave: int):
    @tool
    async def pay(x: int) -> str:
        """Pay."""
        return "paid"

    ended: list[Any] = []
    agent = Agent(FunctionModel(_pays_once), tools=[pay])
    agent.gate(TurnEnding)(lambda event: ended.append(event.outcome))
    async with agent.stream("go", session="s") as stream:
        for _ in range(leave):
            await anext(stream)
    state = await agent.state("s")
    assert state.over
    assert len(ended) == 1


async def test_another_process_may_answer_and_its_answer_counts_once(tmp_path: Any):
    ran: list[int] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return "paid"

    def build() -> Agent[Any, Any]:
        agent = Agent(FunctionModel(_pays_once), tools=[pay], store=open_store(f"sqlite:///{tmp_path}/s.db"))
        agent.gate(ToolCalling)(lambda event: Ask("?"))
        return agent

    first, second = build(), build()
    (asked,) = (await first.run("go", session="s")).waiting_for
    await second.resolve("s", asked.id, Approve(by="bob"))
    assert ran == []
    await first.resume("s")
    assert ran == [1]
    await first.store.close()
    await second.store.close()
