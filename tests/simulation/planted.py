"""Agents with one bug each, for the tests of the simulation; and one without a bug."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from windlass import Agent, Allow, Ask, Deny, Slot, ToolCalling, ToolReturned, tool
from windlass.capabilities import Retry
from windlass.pipeline import DEFAULT, Pipeline
from windlass.records import Record
from windlass.stores import MemoryStore
from windlass.testing import Grammar, Moment, ScriptedModel, SimulatedWorld, Simulation, between, may_call, one_of

SEATS = Grammar(may_call("reserve", seat=between(1, 2), guest=one_of("ann", "bob", "eve")), steps=(1, 3))
PAYMENTS = Grammar(may_call("pay", amount=between(1, 3)), steps=(1, 3))


def model() -> ScriptedModel:
    return ScriptedModel()


# ---------------------------------------------------------------- no bug


def clean(world: SimulatedWorld) -> Agent[Any, Any]:
    """Every kind of tool, a gate that asks, a slot, observers: and nothing is wrong."""
    seats: dict[int, str] = world.data.setdefault("seats", {})
    seen: list[str] = []

    @tool
    async def reserve(seat: int, guest: str) -> str:
        """Reserve a seat for a guest."""
        await world.pause()
        if seats.setdefault(seat, guest) != guest:
            return "taken"
        world.effect("reserved")
        return "reserved"

    @tool(effect="pure")
    async def free() -> list[int]:
        """The free seats."""
        await world.pause()
        return [seat for seat in (1, 2, 3) if seat not in seats]

    @tool(effect="idempotent")
    def announce(text: str, idempotency_key: str) -> str:
        """Announce something to all guests."""
        world.effect("announced", idempotency_key)
        return "announced"

    @tool(effect="pure", inline=True)
    def double(number: int) -> int:
        """Twice a number."""
        return 2 * number

    agent: Agent[Any, Any] = Agent(model(), tools=[reserve, free, announce, double])
    count = agent.slot(Slot("count", int, default=int))

    @agent.gate(ToolCalling, tool="reserve")
    def ask_for_b(event: ToolCalling) -> Ask | None:
        return Ask("May B?") if event.call.arguments["guest"] == "b" else None

    @agent.observe(ToolReturned)
    def note(fact: ToolReturned) -> None:
        seen.append(fact.name)

    @agent.observe(ToolReturned)
    async def note_slowly(fact: ToolReturned) -> None:
        await asyncio.sleep(1)
        seen.append(fact.name)

    assert count is not None
    return agent


def one_guest_a_seat(moment: Moment) -> None:
    sold = moment.world.data.get("sold", [])
    assert len(sold) == len({seat for seat, _ in sold}), f"a seat was sold twice: {sold}"


def nothing_is_wrong(moment: Moment) -> None:
    assert moment.state.seq > 0


CLEAN = Simulation(clean, invariants=[one_guest_a_seat, nothing_is_wrong])


# ---------------------------------------------------------------- tools


def pure_payment(world: SimulatedWorld) -> Agent[Any, Any]:
    """A payment says that it is pure: after a crash it is made again."""

    @tool(effect="pure")
    async def pay(amount: int) -> str:
        """Pay."""
        world.effect(f"paid {amount}")
        return "paid"

    return Agent(model(), tools=[pay])


def own_retry(world: SimulatedWorld) -> Agent[Any, Any]:
    """A tool pays again if the answer takes too long."""

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        for _ in range(2):
            world.effect("paid")
            try:
                await asyncio.wait_for(world.pause(), 0.3)
            except TimeoutError:
                continue
            return "paid"
        return "perhaps paid"

    return Agent(model(), tools=[pay])


def safe_payment(world: SimulatedWorld) -> Agent[Any, Any]:
    """A payment says that a retry is safe, and an error after it leads to a second one."""

    @tool(retry="safe")
    async def pay(amount: int) -> str:
        """Pay."""
        await world.pause()
        world.effect("paid")
        return "paid"

    return Agent(model(), tools=[pay], capabilities=[Retry(tools="pay")])


def racing_seats(world: SimulatedWorld) -> Agent[Any, Any]:
    """A seat is looked up, then something is awaited, then it is sold: parallel calls sell it twice."""
    sold: list[tuple[int, str]] = world.data.setdefault("sold", [])

    @tool
    async def reserve(seat: int, guest: str) -> str:
        """Reserve a seat for a guest."""
        if any(taken == seat for taken, _ in sold):
            return "taken"
        await world.pause()
        sold.append((seat, guest))
        return "reserved"

    return Agent(model(), tools=[reserve])


def stuck_lock(world: SimulatedWorld) -> Agent[Any, Any]:
    """A lock is not released if the call is cancelled or times out: the next call waits for ever."""
    lock = asyncio.Lock()

    @tool(timeout=0.5)
    async def reserve(seat: int, guest: str) -> str:
        """Reserve a seat for a guest."""
        await lock.acquire()
        await world.pause()
        lock.release()
        return "reserved"

    @tool
    async def release(seat: int) -> str:
        """Release a seat."""
        async with lock:
            return "released"

    return Agent(model(), tools=[reserve, release])


def spinning(world: SimulatedWorld) -> Agent[Any, Any]:
    """A tool waits for something by asking again and again."""

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        while True:  # noqa: ASYNC110 -- the bug
            await asyncio.sleep(0)

    return Agent(model(), tools=[pay])


def exiting(world: SimulatedWorld) -> Agent[Any, Any]:
    """A tool wants to end the process."""

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        raise SystemExit(3)

    return Agent(model(), tools=[pay])


def built_once(world: SimulatedWorld) -> Agent[Any, Any]:
    """Building the agent takes a lock that a crash does not release."""
    if world.data.setdefault("locked", False):
        raise RuntimeError("another process is at work")
    world.data["locked"] = True
    return Agent(model(), tools=[pay])


# ---------------------------------------------------------------- hooks


def forgetful_gate(world: SimulatedWorld) -> Agent[Any, Any]:
    """The gate counts in memory: a process that starts anew lets three more payments through."""
    paid = 0

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        world.data["paid"] = world.data.get("paid", 0) + 1
        return "paid"

    agent: Agent[Any, Any] = Agent(model(), tools=[pay])

    @agent.gate(ToolCalling, tool="pay")
    def at_most_three(event: ToolCalling) -> Deny | None:
        nonlocal paid
        paid += 1
        return Deny("three payments are enough") if paid > 3 else None

    return agent


def three_payments(moment: Moment) -> str | None:
    paid = moment.world.data.get("paid", 0)
    return f"{paid} payments were made, but three are allowed" if paid > 3 else None


def asks_again(world: SimulatedWorld) -> Agent[Any, Any]:
    """The gate's question is another one at each time that it is asked: no answer ever counts."""
    asked = 0

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent: Agent[Any, Any] = Agent(model(), tools=[pay])

    @agent.gate(ToolCalling, tool="pay")
    def ask(event: ToolCalling) -> Ask:
        world.data["asked"] = world.data.get("asked", 0) + 1
        return Ask(f"Question {world.data['asked']}: may it pay?", approvers=(f"approver {world.data['asked']}",))

    assert asked == 0
    return agent


# ---------------------------------------------------------------- variables of the module

_calls = 0
_paid: set[int] = set()


def global_counter(world: SimulatedWorld) -> Agent[Any, Any]:
    """Receipts have a number that a variable of the module counts: after a crash it begins again."""

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        global _calls
        _calls += 1
        world.data.setdefault("receipts", []).append(_calls)
        return f"receipt {_calls}"

    return Agent(model(), tools=[pay])


def one_receipt_a_number(moment: Moment) -> None:
    receipts = moment.world.data.get("receipts", [])
    assert len(receipts) == len(set(receipts)), f"two receipts have a number: {receipts}"


def global_gate(world: SimulatedWorld) -> Agent[Any, Any]:
    """A gate remembers in a set of the module what was paid."""

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        world.data.setdefault("amounts", []).append(amount)
        return "paid"

    agent: Agent[Any, Any] = Agent(model(), tools=[pay])

    @agent.gate(ToolCalling, tool="pay")
    def once(event: ToolCalling) -> Deny | None:
        amount = event.call.arguments["amount"]
        if amount in _paid:
            return Deny("it is paid")
        _paid.add(amount)
        return None

    return agent


def paid_once(moment: Moment) -> None:
    amounts = moment.world.data.get("amounts", [])
    assert len(amounts) == len(set(amounts)), f"paid twice: {amounts}"


at_a_time = asyncio.Semaphore(1)
table: dict[int, str] = {}


def in_the_module(world: SimulatedWorld) -> Agent[Any, Any]:
    """Nothing is wrong: a semaphore of the module, and a table that an invariant knows, which is of the world."""

    @tool
    async def reserve(seat: int, guest: str) -> str:
        """Reserve a seat for a guest."""
        async with at_a_time:
            await world.pause()
            return table.setdefault(seat, guest)

    return Agent(model(), tools=[reserve])


def every_seat_that_was_given_is_in_the_table(moment: Moment) -> None:
    given = moment.world.data.setdefault("given", set())
    if isinstance(moment.record, ToolReturned) and moment.record.result.status == "ok":
        given.add(moment.record.result.text)
    assert given <= set(table.values())


# ---------------------------------------------------------------- nondeterminism


def real_time(world: SimulatedWorld) -> Agent[Any, Any]:
    """A tool tells the real time."""

    @tool(effect="pure")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid at {time.time()}"

    return Agent(model(), tools=[pay])


def real_chance(world: SimulatedWorld) -> Agent[Any, Any]:
    """A gate throws dice."""

    @tool(effect="pure")
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent: Agent[Any, Any] = Agent(model(), tools=[pay])

    @agent.gate(ToolCalling, tool="pay")
    def dice(event: ToolCalling) -> Deny | Allow:
        return Deny("bad luck") if random.random() < 0.5 else Allow()

    return agent


# ---------------------------------------------------------------- a store, and parts of the kernel


class ForgetfulStore(MemoryStore):
    """Loses the last record of every batch of more than five, and says that it has it."""

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        kept = list(records)
        waits = await super().append(session, kept, expected, claim)
        if len(kept) > 5:
            self._logs[session][-1] = self._logs[session][-2]
        return waits


class HastyExecutor:
    """Runs the calls of a step before their starts are recorded, and leaves the rest to the real executor."""

    def __init__(self, segment: Any) -> None:
        self._segment = segment
        self._executor = DEFAULT.executor(segment)

    async def execute(self, fold: Any) -> None:
        tools = self._segment.site.program.tools
        for state in fold.open.calls.values():
            if state.call.name in tools and state.call.arguments.get("amount"):
                await tools[state.call.name].fn(**state.call.arguments)
        await self._executor.execute(fold)


class RepeatingExecutor:
    """Records the result of every call twice."""

    def __init__(self, segment: Any) -> None:
        self._journal = segment.journal
        self._executor = DEFAULT.executor(segment)

    async def execute(self, fold: Any) -> None:
        await self._executor.execute(fold)
        for record in [record for record in fold.pending if isinstance(record, ToolReturned)]:
            self._journal.record(record)


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def pays() -> Agent[Any, Any]:
    return Agent(model(), tools=[pay])


def hasty() -> Agent[Any, Any]:
    return Agent(model(), tools=[pay], pipeline=Pipeline.minimal().with_composite("executor", HastyExecutor))


def repeating() -> Agent[Any, Any]:
    return Agent(model(), tools=[pay], pipeline=Pipeline.minimal().with_composite("executor", RepeatingExecutor))
