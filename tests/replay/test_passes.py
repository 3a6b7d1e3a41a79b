"""Turns that were resumed: gates are asked again about what was not done, in a replay as in the turn itself."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Answer,
    Approve,
    Ask,
    Deny,
    Edit,
    Halt,
    MessageAdding,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Reject,
    Respond,
    Rewind,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopping,
    Suspended,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    Veto,
    Vote,
    tool,
)
from windlass.approvals import open_questions
from windlass.errors import WindlassError
from windlass.events import Continuing, Resuming
from windlass.replay import Replay, SessionReplay, replay
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says

DAY = 86400.0


@tool
async def pay(amount: int, to: str = "shop") -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="pure")
async def look(place: str) -> str:
    """Look."""
    return f"nothing at {place}"


Hook = Callable[[Agent], Any]
PAYS = (calls("pay", amount=5), says("done"))


def an_agent(store: MemoryStore, *hooks: Hook, script: Any = (), **options: Any) -> Agent:
    agent = Agent(ScriptedModel(*script), tools=[pay, look], store=store, **options)
    for hook in hooks:
        hook(agent)
    return agent


async def once(store: MemoryStore, *hooks: Hook) -> SessionReplay:
    (found,) = await replay(an_agent(MemoryStore(), *hooks), store, "s")
    return found


def gate(event: Any, name: str, answer: Callable[[Any], Any], **options: Any) -> Hook:
    return lambda agent: agent.gate(event, name=name, **options)(answer)


asks = gate(ToolCalling, "ask", lambda event: Ask("Pay?", allow=("approve", "edit", "reject")), tool="pay")


def closes(clock: FakeClock) -> Hook:
    """A gate that lets nothing pass from the second day on."""
    start = clock.now()
    return gate(ToolCalling, "hours", lambda event: Deny("closed") if event.turn.now() > start + DAY / 2 else None)


# ---------------------------------------------------------------- calls that waited


async def asked_and_approved(*hooks: Hook, clock: FakeClock) -> MemoryStore:
    store = MemoryStore()
    agent = an_agent(store, *hooks, script=PAYS, clock=clock)
    await agent.run("go", session="s")
    await clock.advance(DAY)
    await agent.resume("s", answers={"s/1/1": Approve(by="ann")})
    return store


async def test_a_gate_that_changes_its_mind_while_a_person_is_asked_is_no_difference():
    clock = FakeClock()
    hours = closes(clock)
    store = await asked_and_approved(asks, hours, clock=clock)
    assert (await once(store, asks, hours)).status == "same"
    (difference,) = (await once(store, asks)).differences
    assert difference.line == "ToolCalling of pay: deny: closed is now allow"


async def test_a_new_gate_that_refuses_after_the_approval_is_found():
    clock = FakeClock()
    hours = closes(clock)
    (difference,) = (await once(await asked_and_approved(asks, clock=clock), asks, hours)).differences
    assert (difference.line, difference.blocks) == ("ToolCalling of pay: allow is now deny: closed (by hours)", True)


async def test_what_holds_after_an_approval_is_compared():
    dry = gate(ToolCalling, "dry", lambda event: Answer("dry run"), tool="pay")
    store = await asked_and_approved(asks, dry, clock=FakeClock())
    assert (await once(store, asks, dry)).status == "same"
    (difference,) = (await once(store, asks)).differences
    assert difference.line == "ToolCalling of pay: answer: dry run is now allow"


async def test_each_answer_of_parallel_calls_is_a_pass_of_its_own():
    script = (calls([("pay", {"amount": 2}), ("look", {"place": "x"}), ("pay", {"amount": 3})]), says("done"))
    store = MemoryStore()
    agent = an_agent(store, asks, script=script)
    await agent.run("go", session="s")
    await agent.resume("s", answers={"s/1/1": Approve()})
    await agent.resume("s", answers={"s/1/3": Edit({"amount": 4})})
    assert (await once(store, asks)).status == "same"
    big = gate(ToolCalling, "limit", lambda event: Deny("big") if event.call.arguments.get("amount") == 4 else None)
    (difference,) = (await once(store, asks, big)).differences
    assert (difference.about, difference.now) == ("s/1/3", "deny: big")


# ---------------------------------------------------------------- replies and ends


async def test_the_words_of_a_person_are_judged_like_a_reply():
    ask = gate(
        ModelReplying, "ask", lambda event: Ask("ok?", allow=("respond",)) if event.reply.text == "draft" else None
    )
    store = MemoryStore()
    agent = an_agent(store, ask, script=[says("draft")])
    await agent.run("go", session="s")
    await agent.resume("s", answers={"s/1/reply": Respond("our secret")})
    assert (await once(store, ask)).status == "same"
    strict = gate(ModelReplying, "strict", lambda event: Halt("no") if "secret" in event.reply.text else None)
    (difference,) = (await once(store, ask, strict)).differences
    assert difference.line == "ModelReplying: allow is now halt: no (by strict)"


async def test_a_reply_that_was_rejected_in_words_of_the_kernel_is_no_answer_of_a_person():
    odd = gate(
        ModelReplying, "odd", lambda event: Regenerate("answered by a person") if event.reply.text == "one" else None
    )
    store = MemoryStore()
    await an_agent(store, odd, script=[says("one"), says("two")]).run("go", session="s")
    strict = gate(ModelReplying, "strict", lambda event: Halt("no") if event.reply.text == "two" else None)
    assert (await once(store, odd, strict)).differences[0].now == "halt: no"


async def test_a_gate_that_was_broken_off_is_judged_when_it_is_asked_again():
    """It had asked a model when the process died; its verdict came later."""

    async def critic(event: Any) -> Any:
        return Halt("no") if (await event.turn.ask("scripted", "fine?")) else None

    for event in (TurnStarting, ModelReplying):
        store = MemoryStore()
        agent = an_agent(store, gate(event, "critic", critic), script=[says("a"), says("b"), says("c")])
        await agent.run("go", session="whole")
        kinds = [type(record).__name__ for record in await store.read("whole")]
        await agent.fork("whole", at=kinds.index("SideReplied") + 1, to="s")
        await agent.resume("s")
        found = await Replay(an_agent(MemoryStore(), gate(event, "critic", critic)), store).session("s")
        assert (found.status, found.differences) in (("same", ()), ("unjudged", ())), event


# ---------------------------------------------------------------- Resuming


def at_resume(answer: Callable[[Any], Any]) -> Hook:
    return gate(Resuming, "at_resume", answer)


async def test_each_resume_of_a_turn_is_judged():
    def second(event: Any) -> Halt | None:
        return Halt("enough") if event.state.steps else None

    async def lived(*hooks: Hook) -> MemoryStore:
        store = MemoryStore()
        agent = an_agent(store, *hooks, script=(calls("pay", amount=1), calls("pay", amount=2), says("done")))
        await agent.run("go", session="s")
        await agent.resume("s", answers={"s/1/1": Approve()})
        await agent.resume("s", answers={"s/2/1": Approve()})
        return store

    assert (await once(await lived(asks, at_resume(second)), asks, at_resume(second))).status == "same"
    (difference,) = (await once(await lived(asks), asks, at_resume(second))).differences
    assert difference.line == "Resuming: allow is now halt: enough (by at_resume)"


async def test_a_turn_that_is_only_ended_is_not_asked_whether_it_goes_on():
    never = at_resume(lambda event: Halt("never"))
    for ends in ("cancel", "message"):
        store = MemoryStore()
        agent = an_agent(store, asks, never, script=PAYS)
        await agent.run("go", session="s")
        if ends == "cancel":
            await agent.cancel("s")
            await agent.resume("s")
        else:
            await agent.run("something else", session="s")
        assert (await once(store, asks, never)).status == "same", ends


# ---------------------------------------------------------------- at random


ANSWERS: dict[Any, list[Any]] = {
    TurnStarting: [Ask("t?"), Halt("no"), Allow(), Answer("short")],
    StepStarting: [Halt("no"), Allow()],
    ModelCalling: [Ask("m?"), Halt("no"), Answer("canned"), Allow()],
    ModelReplying: [Ask("r?", allow=("approve", "respond", "reject")), Regenerate("again"), Halt("no"), Allow()],
    ToolCalling: [Ask("c?", allow=("approve", "edit", "reject", "respond")), Deny("no"), Answer("dry"), Halt("no")],
    ToolReturning: [Deny("hidden"), Halt("no"), Allow()],
    MessageAdding: [Deny("not in"), Allow()],
    StepEnding: [Rewind(1, "back"), Halt("no"), Allow()],
    Continuing: [Vote.FORBID, Vote.REQUEST, Vote.ALLOW_STOP],
    Stopping: [Veto("go on"), Halt("no"), Allow()],
    TurnEnding: [Deny("no"), Ask("e?", allow=("approve", "respond", "reject")), Allow()],
    Resuming: [Halt("no"), Ask("resume?"), Allow()],
}


def chance(*what: Any) -> random.Random:
    return random.Random(hashlib.blake2b(repr(what).encode()).digest())


def moody(seed: int, store: MemoryStore, clock: FakeClock) -> Agent:
    """An agent with random gates, half of which say something else every day."""

    async def model(request: Any) -> Any:
        luck = chance(seed, len(request.messages), request.messages[-1].text if len(request.messages) else "")
        if luck.random() < 0.35:
            return says(f"text {luck.randint(0, 9)}")
        some = [("pay", {"amount": luck.randint(1, 9)}), ("look", {"place": "x"})]
        return calls([luck.choice(some) for _ in range(luck.randint(1, 3))])

    agent = Agent(FunctionModel(model), tools=[pay, look], store=store, clock=clock, criteria=[StepLimit(5)])
    luck = chance(seed, "hooks")
    for event in luck.sample(list(ANSWERS), luck.randint(2, 5)):
        rate, daily = luck.choice((0.2, 0.5)), luck.random() < 0.5

        def decide(given: Any, event: Any = event, rate: float = rate, daily: bool = daily) -> Any:
            luck = chance(seed, event.__name__, payload_of(given), int(given.turn.now() // DAY) if daily else 0)
            return luck.choice(ANSWERS[event]) if luck.random() < rate else None

        again: Any = luck.choice(({}, {}, {"on_resume": "reuse"}, {"on_resume": "rerun"}))
        agent.gate(event, name=event.__name__, **again)(decide)
    return agent


def payload_of(event: Any) -> Any:
    match event:
        case ModelReplying(reply=reply):
            return reply.text, event.round
        case ModelCalling(request=request):
            return [message.text for message in request.messages]
        case MessageAdding(message=message):
            return message.role, message.text, len(message.parts)
        case ToolReturning(call=call, result=result):
            return call.id, result.text
        case TurnEnding(outcome=outcome, text=text):
            return type(outcome).__name__, text
        case _:
            return "" if event.payload is None else str(getattr(event, event.payload))


async def lived(seed: int) -> MemoryStore:
    """A store with a turn of such an agent over several days, and with forks that go on from any record of it."""
    store, clock, luck = MemoryStore(), FakeClock(), chance(seed, "people")
    agent = moody(seed, store, clock)
    result = await agent.run("hello", session="s")
    for _ in range(6):
        if not isinstance(result.outcome, Suspended):
            break
        await clock.advance(DAY)
        if luck.random() < 0.1:
            await agent.cancel("s")
            result = await agent.resume("s")
        elif luck.random() < 0.1:
            result = await agent.run("something else", session="s")
        else:
            waiting = await open_questions(store, "s")
            result = await agent.resume("s", answers=dict([answer(asked, luck) for _, asked in waiting[:1]]))
    for number in range(3):
        await clock.advance(DAY)
        try:
            await agent.fork("s", at=luck.randint(3, len(await store.read("s"))), to=f"fork{number}")
            await agent.resume(f"fork{number}")
        except WindlassError:
            continue  # there is nothing to go on with
    return store


def answer(asked: Any, luck: random.Random) -> tuple[str, Any]:
    edited = {"amount": 77} if asked.call is not None and asked.call.name == "pay" else {"place": "elsewhere"}
    answers = {"approve": Approve(), "reject": Reject("no"), "respond": Respond("my words"), "edit": Edit(edited)}
    return asked.id, answers[luck.choice(asked.allow)]


@pytest.mark.parametrize("seed", range(0, 400 if os.environ.get("WINDLASS_CAMPAIGN") else 120, 40))
async def test_an_unchanged_agent_replays_as_it_was_however_often_it_was_resumed(seed: int):
    for number in range(seed, seed + 40):
        store = await lived(number)
        async for found in Replay(moody(number, MemoryStore(), FakeClock()), store).sessions():
            assert found.status in ("same", "unjudged"), (number, found.session, found.differences, found.error)
            assert all("withheld" in lack.why for lack in found.unjudged)
