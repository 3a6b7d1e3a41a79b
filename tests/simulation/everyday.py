"""Agents as users write them, without a bug, for the tests of the simulation; and what must hold of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from windlass import Agent, Ask, Deny, TokenLimit, ToolCalling, ToolReturned, Turn, TurnEnded, tool
from windlass.capabilities import AtTokens, Budget, ClearResults, Fallback, LoopGuard, Retry, Summarize, Timeout, Trim
from windlass.testing import Grammar, Moment, ScriptedModel, SimulatedWorld, Simulation

AnyAgent = Agent[Any, Any]


def model(name: str = "model") -> ScriptedModel:
    return ScriptedModel(name=name)


@tool(effect="pure")
async def search(query: str) -> str:
    """Search the library."""
    await asyncio.sleep(0.1)
    return f"All of {query}. " * 40


# ---------------------------------------------------------------- people


def refunds(world: SimulatedWorld) -> AnyAgent:
    """Two of three people approve a large refund within a day."""

    @tool
    async def refund(order: int, amount: Annotated[int, Meta(ge=1, le=5)]) -> str:
        """Refund an order."""
        await world.pause()
        world.effect(f"refunded {order}")
        return "refunded"

    agent = Agent(model(), tools=[refund])

    @agent.gate(ToolCalling, tool="refund")
    def two_people(event: ToolCalling) -> Ask | None:
        if event.call.arguments["amount"] < 3:
            return None
        return Ask("Refund it?", approvers=("ann", "bob", "eve"), quorum=2, expires=86_400, default="reject")

    return agent


def newsroom(world: SimulatedWorld) -> AnyAgent:
    """A chief with two agents for tools, one of which asks before it publishes."""

    @tool
    async def publish(title: str) -> str:
        """Publish."""
        world.effect("published")
        return "published"

    reader = Agent(model("reads"), tools=[search], name="reader")
    editor = Agent(model("edits"), tools=[search, publish], name="editor")

    @editor.gate(ToolCalling, tool="publish")
    def ask(event: ToolCalling) -> Ask:
        return Ask("May it be published?")

    return Agent(model(), tools=[reader.as_tool(), editor.as_tool()], name="chief")


def secretary(world: SimulatedWorld) -> AnyAgent:
    """An agent in the background that writes mails, and asks before."""

    @tool
    async def mail(to: Literal["ann", "bob"]) -> str:
        """Write a mail."""
        world.effect("mailed")
        return "sent"

    clerk = Agent(model("writes"), tools=[mail, search], name="clerk")

    @clerk.gate(ToolCalling, tool="mail")
    def ask(event: ToolCalling) -> Ask:
        return Ask("May it be sent?")

    @tool(effect="pure")
    async def have_written(what: str, turn: Turn[Any]) -> str:
        """Have something written."""
        return (await turn.delegate(clerk, f"Write {what}.", background=True, share=0.2)).agent

    return Agent(model(), tools=[have_written, search], subagents=[clerk])


# ---------------------------------------------------------------- limits, and what the model sees


def thrifty(world: SimulatedWorld) -> AnyAgent:
    limits = [Budget(usd=0.002, tokens=120), Timeout(tool=0.4)]
    return Agent(model(), tools=[search], capabilities=limits, criteria=[TokenLimit(100)])


def researcher(world: SimulatedWorld) -> AnyAgent:
    """Its context is compacted again and again."""
    compaction = [Summarize(trigger=AtTokens(300)), ClearResults(), Trim()]
    return Agent(model(), tools=[search], capabilities=compaction)


def masked(world: SimulatedWorld) -> AnyAgent:
    """Numbers are masked while the text streams."""
    agent = Agent(model(), tools=[search])

    @agent.transform
    class NoNumbers:
        def __init__(self) -> None:
            self.held = ""

        def feed(self, text: str) -> Iterator[str]:
            *words, self.held = (self.held + text).split(" ")
            for word in words:
                yield self.hidden(word) + " "

        def flush(self) -> Iterator[str]:
            yield self.hidden(self.held)

        def hidden(self, word: str) -> str:
            return "…" if any(letter.isdigit() for letter in word) else word

    return agent


def no_numbers(moment: Moment) -> None:
    said = [message.text for message in moment.state.messages if message.role == "assistant"]
    assert not any(letter.isdigit() for text in said for letter in text), said


# ---------------------------------------------------------------- effects


def outbox(world: SimulatedWorld) -> AnyAgent:
    """Another system hears of every order, whatever crashes."""
    posted: list[str] = world.data.setdefault("posted", [])

    @tool
    async def order(item: int) -> str:
        """Order."""
        world.effect("ordered")
        return "ordered"

    agent = Agent(model(), tools=[order])

    @agent.observe(ToolReturned, durable=True)
    async def post(fact: ToolReturned) -> None:
        await world.pause()
        posted.append(fact.call)

    @agent.observe(TurnEnded, durable=True)
    def count(fact: TurnEnded) -> None:
        world.data["turns"] = world.data.get("turns", 0) + 1

    return agent


def everything_is_posted(moment: Moment) -> None:
    returned: list[str] = moment.world.data.setdefault("returned", [])
    if isinstance(moment.record, ToolReturned):
        returned.append(moment.record.call)
    if moment.at_end:
        assert set(returned) <= set(moment.world.data.get("posted", ()))


def quota(world: SimulatedWorld) -> AnyAgent:
    """Nobody gets more than two mails, counted in the store."""

    @tool
    async def mail(to: Literal["ann", "bob"]) -> str:
        """Write a mail."""
        world.effect(f"mailed {to}")
        sent = world.data.setdefault("sent", [])
        sent.append(to)
        return "sent"

    agent = Agent(model(), tools=[mail])
    mails = agent.storage("mails")

    @agent.gate(ToolCalling, tool="mail")
    async def at_most_two(event: ToolCalling) -> Deny | None:
        count = await mails.add(event.call.arguments["to"], once=event.call.id)
        return Deny("two mails are enough") if count > 2 else None

    return agent


def two_mails_at_most(moment: Moment) -> None:
    sent = moment.world.data.get("sent", [])
    assert max(map(sent.count, sent), default=0) <= 2, sent


def robust(world: SimulatedWorld) -> AnyAgent:
    """Payments with an idempotency key, retries, another model, and time limits."""

    @tool(effect="idempotent")
    async def pay(amount: int, idempotency_key: str) -> str:
        """Pay."""
        await world.pause()
        world.effect("paid", idempotency_key)
        return "paid"

    capabilities = [Retry(tools=["pay", "search"]), Fallback(model("other")), Timeout(model=0.5, tool=0.5), LoopGuard()]
    return Agent(model(), tools=[pay, search], capabilities=capabilities)


class Line(Struct):
    """A line of an order."""

    part: Annotated[str, Meta(pattern=r"^[A-Z]{2}-\d{3}$")]
    count: Annotated[int, Meta(ge=1, le=9)]
    price: Decimal


class Quote(Struct):
    """An offer."""

    lines: list[Line]
    until: date


def offers(world: SimulatedWorld) -> AnyAgent:
    """Typed arguments, and a typed answer."""

    @tool
    async def reserve(lines: list[Line], until: date, notes: dict[str, str] | None = None) -> str:
        """Reserve parts."""
        assert all(line.count > 0 for line in lines)
        return "reserved"

    return Agent(model(), tools=[reserve], output=Quote)


NUMBERS = Grammar(says=["Call 555123 now.", "It costs 12 euros, or 13."])
ALL: dict[str, Simulation] = {
    "refunds": Simulation(refunds),
    "newsroom": Simulation(newsroom, grammar=Grammar(steps=(0, 2), parallel=2)),  # calls within calls are many
    "secretary": Simulation(secretary),
    "thrifty": Simulation(thrifty),
    "researcher": Simulation(researcher),
    "masked": Simulation(masked, grammar=NUMBERS, invariants=[no_numbers]),
    "outbox": Simulation(outbox, invariants=[everything_is_posted]),
    "quota": Simulation(quota, invariants=[two_mails_at_most]),
    "robust": Simulation(robust),
    "offers": Simulation(offers),
}
