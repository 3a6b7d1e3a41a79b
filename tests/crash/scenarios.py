"""The scenarios of the crash matrix: each builds its agent in the world it is given."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Compacting,
    Delegating,
    Deny,
    Edit,
    ErrorPolicy,
    Finish,
    Halt,
    Injected,
    MessageAdding,
    ModelCall,
    ModelError,
    ModelReplying,
    ModelRequest,
    Regenerate,
    Reject,
    Respond,
    Resuming,
    Slot,
    Stage,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopping,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    Veto,
    tool,
    user,
)
from windlass.capabilities import AtTokens, ClearResults, Offload, Summarize
from windlass.errors import ContextOverflow, DelegationRefused, ServerError
from windlass.records import Asked, Record, TurnEnded
from windlass.testing import FunctionModel, Scenario, World, calls, says


def workshop(world: World) -> list[Any]:
    """One tool of each effect class."""

    @tool(effect="pure")
    def look(n: int) -> str:
        """Look something up."""
        return f"seen {n}"

    @tool(effect="idempotent")
    async def pay(n: int, idempotency_key: str) -> str:
        """Pay, once per key."""
        world.effect("pay", idempotency_key)
        return f"paid {n}"

    @tool
    async def send(n: int) -> str:
        """Send something off."""
        world.effect(f"send {n}")
        return f"sent {n}"

    return [look, pay, send]


def tool_loop(world: World) -> Agent:
    """One call after the other, of each class."""
    model = world.model(calls("look", n=1), calls("send", n=2), calls("pay", n=3), calls("send", n=4), says("done"))
    return Agent(model, tools=workshop(world), store=world.store)


def parallel_tools(world: World) -> Agent:
    """All classes side by side, twice."""
    wanted = [("send", {"n": 1}), ("pay", {"n": 2}), ("look", {"n": 3}), ("send", {"n": 4}), ("pay", {"n": 5})]
    again = [("pay", {"n": 6}), ("send", {"n": 7}), ("nowhere", {})]
    return Agent(
        world.model(calls(wanted), calls(again), says("done")), tools=workshop(world), store=world.store, max_parallel=2
    )


def watched_tools(world: World) -> Agent:
    """Calls side by side whose results hooks look at, change, add to, and finish the turn with."""
    wanted = [("pay", {"n": 1}), ("pay", {"n": 2}), ("pay", {"n": 3}), ("look", {"n": 4})]
    agent = Agent(
        world.model(calls(wanted), calls("pay", n=5), says("never")),
        tools=workshop(world),
        store=world.store,
        max_parallel=2,
    )

    @agent.rewrite(ToolReturning)
    async def marked(event: ToolReturning) -> Any:
        await asyncio.sleep(0.001)
        return f"<{event.result.text}>"

    @agent.gate(ToolReturning)
    async def seen(event: ToolReturning) -> Any:
        await asyncio.sleep(0.001)
        return Finish("paid all") if event.call.arguments["n"] == 5 else Allow()

    @agent.inject(ToolReturning)
    async def beside(event: ToolReturning) -> Any:
        await asyncio.sleep(0.001)
        return Injected(f"beside {event.call.arguments['n']}", durable=event.call.arguments["n"] == 2)

    return agent


def approvals(world: World) -> Scenario:
    """One call edited, one rejected, one answered by a person, one approved, one that nobody was asked about."""
    wanted = [(name, {"n": n}) for n, name in enumerate(["send", "send", "send", "pay", "look"], 1)]
    agent = Agent(
        world.model(calls(wanted), calls("send", n=6), says("done")), tools=workshop(world), store=world.store
    )

    @agent.gate(ToolCalling, tool=["send", "pay"])
    def sure(event: ToolCalling) -> Any:
        return Ask(f"Really {event.call.name}?")

    def answer(asked: Asked) -> Any:
        assert asked.call is not None
        match asked.call.arguments["n"]:
            case 1:
                return Edit({"n": 11}, by="ann")
            case 2:
                return Reject("not that one", by="ann")
            case 3:
                return Respond("I did it myself", by="ann")
            case _:
                return Approve(by="ann")

    return Scenario(agent, answers=answer)


def edited_twice(world: World) -> Scenario:
    """What a person wrote goes through the gates again, and another gate asks about it."""
    agent = Agent(world.model(calls("send", n=1), says("done")), tools=workshop(world), store=world.store)

    @agent.gate(ToolCalling, name="first")
    def first(event: ToolCalling) -> Any:
        return Ask("first?") if event.call.arguments["n"] == 1 else None

    @agent.gate(ToolCalling, name="second")
    def second(event: ToolCalling) -> Any:
        return Ask("second?") if event.call.arguments["n"] == 2 else None

    return Scenario(agent, answers=lambda asked: Edit({"n": 2}) if "first" in asked.by else Approve())


def approved_by_several(world: World) -> Scenario:
    """Two people approve a call in two stages; of another, one edits it and the other approves that."""
    wanted = [("send", {"n": 1}), ("send", {"n": 2}), ("look", {"n": 3})]
    agent = Agent(world.model(calls(wanted), says("done")), tools=workshop(world), store=world.store)

    @agent.gate(ToolCalling, tool="send", name="several")
    def several(event: ToolCalling) -> Any:
        if event.call.arguments["n"] == 1:
            return Ask("sure?", stages=[Stage(("ann",)), Stage(("bob",))])
        return Ask("sure?", approvers=("ann", "bob"), quorum=2)

    def answer(asked: Asked) -> Any:
        assert asked.call is not None
        by = "bob" if asked.answers else "ann"
        return Edit({"n": 5}, by=by) if asked.call.arguments["n"] == 2 else Approve(by=by)

    return Scenario(agent, answers=answer)


def delegated_to_several(world: World) -> Scenario:
    """An agent below waits for three people, one answer after the other."""
    model = world.model(calls("send", n=1), says("helped"), name="helping")
    helper = Agent(model, tools=workshop(world), name="helper")
    helper.gate(ToolCalling, name="three")(lambda event: Ask("sure?", approvers=("ann", "bob", "cid"), quorum=3))
    tasks = [("helper", {"task": "help"}), ("send", {"n": 2})]
    model = world.model(calls(tasks), says("done"))
    return Scenario(Agent(model, tools=[helper.as_tool(), *workshop(world)], store=world.store))


def approvals_elsewhere(world: World) -> Scenario:
    """People are asked about a turn, a request, a reply and an end."""
    agent = Agent(world.model(calls("send", n=1), says("done")), tools=workshop(world), store=world.store)
    for event in (TurnStarting, ModelReplying, TurnEnding):
        agent.gate(event, name=f"ask_{event.__name__}")(lambda event: Ask(f"{type(event).__name__}?"))
    return Scenario(agent)


def regeneration(world: World) -> Agent:
    """Replies are rejected, in the first step and in the last."""
    first = (says("no calls"), calls("send", n=1))
    agent = Agent(
        world.model(first, calls("pay", n=2), (says("bad"), says("good"))), tools=workshop(world), store=world.store
    )

    @agent.gate(ModelReplying)
    def good_ones(event: ModelReplying) -> Any:
        return Regenerate("not like that") if event.reply.text in ("no calls", "bad") else None

    return agent


def stop_veto(world: World) -> Agent:
    """A stop is vetoed once."""
    agent = Agent(
        world.model(says("done?"), calls("send", n=1), says("done")), tools=workshop(world), store=world.store
    )

    @agent.gate(Stopping)
    def not_yet(event: Stopping) -> Any:
        return None if event.stop_active else Veto("send something first")

    return agent


def cancelled(world: World) -> Agent:
    """The turn is cancelled while calls run side by side."""

    @tool(effect="idempotent")
    async def stop(turn: Turn) -> str:
        """Cancel the turn."""
        while not world.count("pay", "session/2/3"):  # noqa: ASYNC110 — it may have been in another process
            await asyncio.sleep(0.001)
        turn.cancel("enough")
        await asyncio.sleep(30)
        return "never"

    wanted = [("send", {"n": 1}), ("stop", {}), ("pay", {"n": 2})]
    model = world.model(calls("send", n=0), calls(wanted), says("done"))
    return Agent(model, tools=[*workshop(world), stop], store=world.store)


def cancelled_from_outside(world: World) -> Agent:
    """Another process puts a cancel into the inbox while a call runs."""

    @tool(effect="idempotent")
    async def wait(idempotency_key: str) -> str:
        """Wait for the others."""
        await world.store.put(world.session, "cancel-1", "cancel", "enough")
        return "waited"

    return Agent(
        world.model(calls("send", n=1), calls("wait"), says("done")), tools=[*workshop(world), wait], store=world.store
    )


def cancelled_at_the_end(world: World) -> Scenario:
    """Another process cancels the turn while a person is asked about its end."""
    agent = Agent(world.model(calls("send", n=1), says("done")), tools=workshop(world), store=world.store)

    @agent.gate(TurnEnding, name="well?")
    async def ask(event: TurnEnding) -> Ask:
        await world.store.put(world.session, "cancel-1", "cancel", "enough")
        return Ask("Well?")

    return Scenario(agent, answers=Reject("no"))


def budget_stop(world: World) -> Agent:
    """A limit ends the turn; it counts what was spent before a crash."""
    rows = [calls("send", n=n) for n in range(1, 9)]
    return Agent(world.model(*rows), tools=workshop(world), store=world.store, criteria=[TokenLimit(35)])


def injections(world: World) -> Agent:
    """Hooks inject for the turn and for the step, durably and not; hooks and tools add messages."""

    @tool(effect="idempotent")
    async def note(n: int, turn: Turn) -> str:
        """Do it and add a message."""
        world.effect("note", str(n))
        turn.add(f"noted {n}")
        return f"noted {n}"

    wanted = [("note", {"n": 2}), ("note", {"n": 3})]
    agent = Agent(world.model(calls("note", n=1), calls(wanted), says("done")), tools=[note], store=world.store)

    @agent.inject(TurnStarting)
    def retrieved(event: TurnStarting) -> Any:
        return "The user likes tea."

    @agent.inject(TurnStarting)
    def summary(event: TurnStarting) -> Any:
        return Injected("What was before.", durable=True)

    @agent.inject(TurnStarting)
    def secret(event: TurnStarting) -> Any:
        return Injected("not for the log", record=False)

    @agent.inject(StepStarting)
    def hint(event: StepStarting) -> Any:
        return Injected(f"step {event.step} begins", durable=event.step == 2)

    @agent.inject(ToolCalling)
    def beside(event: ToolCalling) -> Any:
        return Injected(f"about {event.call.arguments['n']}", durable=event.call.arguments["n"] == 2)

    @agent.inject(StepEnding)
    def after(event: StepEnding) -> Any:
        return "the step is over"

    @agent.gate(StepEnding)
    def adding(event: StepEnding, turn: Turn) -> None:
        if event.step.number == 1:
            turn.add("added by a hook")

    @agent.gate(MessageAdding)
    def door(event: MessageAdding) -> Any:
        return Deny("never") if event.message.text == "noted 3" else None

    return agent


def steering(world: World) -> Agent:
    """Messages from outside come in while calls run."""

    @tool(effect="idempotent")
    async def work(n: int) -> str:
        """Work."""
        world.effect("work", str(n))
        await world.store.put(world.session, f"steer-{n}", "steer", f"more of {n}")
        return f"worked {n}"

    wanted = [("work", {"n": 2}), ("look", {"n": 3})]
    model = world.model(calls("work", n=1), calls(wanted), says("done"))
    return Agent(model, tools=[work, *workshop(world)], store=world.store)


def steered_at_the_end(world: World) -> Agent:
    """A message comes in when the model has finished, and it goes on."""

    def reply(request: ModelRequest) -> Any:
        heard = any(message.text == "one more thing" for message in request.messages)
        return says("done" if heard else "done?")

    agent = Agent(world.watch(FunctionModel(reply)), store=world.store)

    @agent.gate(StepEnding)
    async def late(event: StepEnding) -> None:
        await world.store.put(world.session, "late", "steer", "one more thing")

    return agent


NOTES = Slot("notes", dict[str, int], merge=lambda old, new: {**old, **new})
COUNT = Slot("count", int, default=0)


def slots(world: World) -> Scenario:
    """Hooks and tools keep values; a second turn goes on with them."""

    @tool(effect="idempotent")
    async def remember(n: int, turn: Turn) -> str:
        """Remember a number."""
        world.effect("remember", str(n))
        turn.set(NOTES, {str(n): n})
        return "yes"

    wanted = [("remember", {"n": 1}), ("remember", {"n": 2})]
    agent = Agent(
        world.model(calls(wanted), says("one"), calls("remember", n=3), says("two")),
        tools=[remember],
        store=world.store,
    )
    agent.slot(NOTES)
    agent.slot(COUNT)

    @agent.gate(StepStarting)
    def counting(event: StepStarting, turn: Turn) -> None:
        turn.set(COUNT, turn.state.steps + 1)

    return Scenario(agent, ["go", "go on"])


def retries(world: World) -> Agent:
    """Wraps try again, model and tools; errors are retried by the policy, too."""

    @tool(effect="idempotent")
    async def flaky(idempotency_key: str) -> str:
        """Fail once."""
        if world.effect("flaky", idempotency_key) == 1:
            raise ConnectionError("try again")
        return "worked"

    script = [
        (ServerError("once"), ServerError("twice"), calls("flaky")),
        (says("poor"), calls("send", n=1)),
        (ServerError("policy"), says("done")),
    ]
    agent = Agent(
        world.model(*script), tools=[*workshop(world), flaky], store=world.store, errors=ErrorPolicy.retrying(delay=0)
    )

    @agent.wrap(ModelCall)
    async def again(request: Any, call_next: Any) -> Any:
        for _ in range(2):
            try:
                reply = await call_next(request)
                if reply.text != "poor":
                    return reply
            except ModelError as error:
                if str(error) == "policy":
                    raise
        return await call_next(request)

    @agent.wrap(ToolCall, tool="flaky")
    async def once_more(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except ConnectionError:
            return await call_next(call)

    return agent


def streaming(world: World) -> Scenario:
    """A streamed turn, with somebody who holds the text back."""
    model = world.model(calls("send", n=1, _text="sending"), says(chunks=["do", "ne"], thinking="hm"))
    agent = Agent(model, tools=workshop(world), store=world.store)

    @agent.transform
    class Louder:
        def feed(self, text: str) -> Any:
            yield text.upper()

        def flush(self) -> Any:
            return ()

    @agent.rewrite(ModelReplying)
    def signed(event: ModelReplying) -> None:
        return None

    return Scenario(agent, stream=True)


def superseded(world: World) -> Scenario:
    """A new message on a suspended turn: its calls are closed, then the next turn runs."""
    model = world.model(calls([("send", {"n": 1}), ("send", {"n": 2})]), says("never mind"))
    agent = Agent(model, tools=workshop(world), store=world.store)

    @agent.gate(ToolCalling)
    def sure(event: ToolCalling) -> Any:
        return Ask("sure?") if event.call.arguments["n"] == 1 else None

    @agent.rewrite(TurnEnding)
    def ending(event: TurnEnding) -> None:
        world.effect("an end", event.turn.turn_ref)

    return Scenario(agent, ["go", "something else"], answers=None)


def drifting(world: World) -> Scenario:
    """A hook looks at a turn that goes on, asks, and injects."""
    agent = Agent(world.model(calls("send", n=1), says("done")), tools=workshop(world), store=world.store)

    @agent.gate(ToolCalling)
    def sure(event: ToolCalling) -> Any:
        return Ask("sure?")

    @agent.gate(Resuming)
    def still(event: Resuming) -> Any:
        return Ask("still?")

    return Scenario(agent)


def asked_and_approved(world: World) -> Scenario:
    """A person lets a call in doubt run again: it has the same key."""

    @tool(in_doubt="ask")
    async def transfer(n: int, idempotency_key: str) -> str:
        """Transfer money."""
        world.effect("transfer", idempotency_key)
        return f"transferred {n}"

    wanted = [("transfer", {"n": 1}), ("transfer", {"n": 2}), ("look", {"n": 3})]
    model = world.model(calls(wanted), says("done"))
    return Scenario(Agent(model, tools=[transfer, *workshop(world)], store=world.store), answers=Approve(by="ann"))


def asked_and_rejected(world: World) -> Scenario:
    """A person does not let a call in doubt run again: the model is told."""

    @tool(in_doubt="ask")
    async def transfer(n: int) -> str:
        """Transfer money."""
        world.effect(f"transfer {n}")
        return f"transferred {n}"

    model = world.model(calls([("transfer", {"n": 1}), ("send", {"n": 2})]), says("done"))
    return Scenario(Agent(model, tools=[transfer, *workshop(world)], store=world.store), answers=Reject("leave it"))


def compensated(world: World) -> Agent:
    """What a call in doubt may have done is undone, by a plain function and by an async one."""

    def unbook(n: int) -> None:
        world.undo(f"book {n}")

    @tool(compensate=unbook)
    def book(n: int) -> str:
        """Book a seat."""
        world.effect(f"book {n}")
        return f"booked {n}"

    async def unreserve(idempotency_key: str) -> None:
        world.undo("reserve " + idempotency_key.rpartition("/")[2])

    @tool(effect="idempotent", in_doubt="compensate", compensate=unreserve)
    async def reserve(n: int, idempotency_key: str) -> str:
        """Reserve a table."""
        world.effect("reserve " + idempotency_key.rpartition("/")[2])
        return f"reserved {n}"

    model = world.model(calls("book", n=1), calls([("book", {"n": 2}), ("reserve", {"n": 3})]), says("done"))
    return Agent(model, tools=[book, reserve], store=world.store)


def undone(world: World) -> Agent:
    """One call, which may have to be undone."""

    @tool(compensate=lambda: world.undo("book"), inline=True)
    def book() -> str:
        """Book a seat."""
        world.effect("book")
        return "booked"

    return Agent(world.model(calls("book"), says("done")), tools=[book], store=world.store)


def delegated(world: World) -> Scenario:
    """An agent below asks a person about one call, is refused another, and its parent works beside it."""
    wanted = [("send", {"n": 1}), ("pay", {"n": 2}), ("send", {"n": 3})]
    helper = Agent(
        world.model(calls("send", n=0), calls(wanted), says("helped"), name="helping"),
        tools=workshop(world),
        name="helper",
    )

    @helper.gate(ToolCalling, tool="send")
    def sure(event: ToolCalling) -> Any:
        return Ask("sure?") if event.call.arguments["n"] else None

    tasks = [("helper", {"task": "help"}), ("send", {"n": 4}), ("pay", {"n": 5})]
    agent = Agent(
        world.model(calls(tasks), calls("send", n=6), says("done")),
        tools=[helper.as_tool(), *workshop(world)],
        store=world.store,
    )

    def answer(asked: Asked) -> Any:
        assert asked.call is not None
        return Approve(by="ann") if asked.call.arguments["n"] == 1 else Reject("not that", by="ann")

    return Scenario(agent, answers=answer)


def two_below(world: World) -> Scenario:
    """Two agents side by side, one of which hands its task on; the one below asks a person."""
    lowest = Agent(world.model(calls("send", n=1), says("deep"), name="lowest"), tools=workshop(world), name="lowest")

    @lowest.gate(ToolCalling)
    def sure(event: ToolCalling) -> Any:
        return Ask("sure?")

    middle = Agent(
        world.model(calls("lowest", task="dig"), says("passed on"), name="middle"),
        tools=[lowest.as_tool()],
        name="middle",
    )
    other = Agent(world.model(calls("pay", n=2), says("paid"), name="other"), tools=workshop(world), name="other")
    model = world.model(calls([("middle", {"task": "one"}), ("other", {"task": "two"})]), says("done"))
    return Scenario(Agent(model, tools=[middle.as_tool(), other.as_tool()], store=world.store))


def helper(world: World, name: str, *replies: Any) -> Agent:
    """An agent below, with a tool of each effect class."""
    return Agent(world.model(*replies, name=name), tools=workshop(world), name=name)


def delegated_by_a_tool(world: World) -> Scenario:
    """A tool gives tasks to two agents side by side, one of which asks a person, and then to a third."""
    quick = helper(world, "quick", calls("send", n=1), says("quick"))
    slow = helper(world, "slow", calls("send", n=2), says("slow"))
    third = helper(world, "third", calls("pay", n=3), says("third"))
    slow.gate(ToolCalling, name="sure")(lambda event: Ask("sure?"))

    @tool(effect="idempotent")
    async def work(turn: Turn) -> str:
        """Have it done."""
        found = await asyncio.gather(turn.delegate(quick, "be quick"), turn.delegate(slow, "take care"))
        found.append(await turn.delegate(third, "finish"))
        return " ".join(result.text for result in found)

    model = world.model(calls([("work", {}), ("send", {"n": 4})]), says("done"))
    return Scenario(Agent(model, tools=[work, *workshop(world)], store=world.store))


def tasks_judged_by_people(world: World) -> Scenario:
    """People are asked about tasks of a tool and of a gate, and let some of them begin."""
    first = helper(world, "first", calls("send", n=1), says("first"))
    other = helper(world, "other", calls("pay", n=2), says("other"))
    third = helper(world, "third", says("third"))

    @tool(effect="idempotent")
    async def work(turn: Turn) -> str:
        """Have it done."""
        found = [await turn.delegate(first, "begin")]
        try:
            found.append(await turn.delegate(other, "never"))
        except DelegationRefused as refused:
            return f"{found[0].text}, {refused.reason}"
        return "it was not refused"

    model = world.model(calls([("work", {}), ("send", {"n": 4})]), says("done"))
    agent = Agent(model, tools=[work, *workshop(world)], store=world.store)
    agent.gate(Delegating, name="sure")(lambda event: Ask(f"{event.task.task}?"))

    @agent.gate(ModelReplying)
    async def look(event: ModelReplying, turn: Turn) -> None:
        await turn.delegate(third, "look")

    def answer(asked: Asked) -> Any:
        return Reject("not that", by="ann") if asked.question == "never?" else Approve(by="ann")

    return Scenario(agent, answers=answer)


def delegated_by_hooks(world: World) -> Scenario:
    """Hooks give tasks to agents that act, from the opening of the turn to its end.

    Hooks at the end of a step are not asked again once the step has ended, so their agent does nothing unsafe.
    """
    agent = Agent(
        world.model(calls([("send", {"n": 1}), ("pay", {"n": 2})]), says("done")),
        tools=workshop(world),
        store=world.store,
    )

    def has_it_done(event: Any, number: int, **options: Any) -> None:
        name = f"for_{event.__name__}"
        child = helper(world, name, calls("send" if event is not StepEnding else "look", n=number), says(name))

        @agent.gate(event, name=name, **options)
        async def gate(event: Any, turn: Turn) -> None:
            await turn.delegate(child, "look")

    events: list[Any] = [TurnStarting, StepStarting, ModelReplying, MessageAdding, StepEnding, TurnEnding]
    for number, event in enumerate(events, 11):
        has_it_done(event, number)
    has_it_done(ToolCalling, 21, tool="send")
    has_it_done(ToolReturning, 22, tool="send")
    remembering = helper(world, "remembering", calls("send", n=23), says("tea"))

    @agent.inject(TurnStarting)
    async def remember(event: TurnStarting, turn: Turn) -> str:
        return (await turn.delegate(remembering, "remember")).text

    agent.inject(Delegating, name="hint")(lambda event: "Mind the gap.")
    return Scenario(agent)


def asked_while_a_turn_is_opened(world: World) -> Scenario:
    """A gate on the user's message gives a task to an agent that asks a person before it acts."""
    child = helper(world, "checker", calls("send", n=1), says("fine"))
    child.gate(ToolCalling, name="sure")(lambda event: Ask("sure?"))
    agent = Agent(world.model(calls("send", n=2), says("done")), tools=workshop(world), store=world.store)
    agent.inject(Delegating, name="hint")(lambda event: Injected("Mind the gap.", durable=True))
    agent.inject(Delegating, name="secret")(lambda event: Injected("Psst.", record=False))

    @agent.gate(TurnStarting)
    async def check(event: TurnStarting, turn: Turn) -> Any:
        return Allow() if (await turn.delegate(child, "check it")).text == "fine" else Halt("no")

    return Scenario(agent)


def delegated_by_wraps(world: World) -> Scenario:
    """Wraps of model and tool calls give tasks to agents that ask a person."""
    router = helper(world, "router", calls("send", n=1), says("routed"))
    checker = helper(world, "checker", calls("send", n=2), says("checked"))
    for child in (router, checker):
        child.gate(ToolCalling, name="sure")(lambda event: Ask("sure?"))
    agent = Agent(world.model(calls("pay", n=3), says("done")), tools=workshop(world), store=world.store)

    @agent.wrap(ModelCall)
    async def route(request: Any, call_next: Any, turn: Turn) -> Any:
        reply = await call_next(request)
        await turn.delegate(router, f"where to, step {turn.state.steps}?")
        return reply

    @agent.wrap(ToolCall)
    async def check(call: Any, call_next: Any, turn: Turn) -> Any:
        await turn.delegate(checker, "is it fine?")
        return await call_next(call)

    return Scenario(agent)


def waits_for_background(world: World, agent: list[Agent], *children: Agent) -> Any:
    """A tool that waits for the agents in the background, which do nothing before it does."""

    async def patient(request: Any, call_next: Any) -> Any:
        while not world.count("wait", "session"):  # noqa: ASYNC110 — it may have been in another process
            await asyncio.sleep(0.001)
        return await call_next(request)

    for child in children:
        child.wrap(ModelCall)(patient)

    @tool(effect="idempotent")
    async def wait() -> str:
        """Wait for the agents in the background."""
        world.effect("wait", "session")
        for task in await agent[0].resume_background(world.session):
            await task.result()
        return "waited"

    return wait


def in_the_background(world: World) -> Scenario:
    """A tool starts an agent that outlives the turn and asks a person; the next turn gets its result."""
    child = helper(world, "child", calls("send", n=1), calls("pay", n=2), says("helped"))
    child.gate(ToolCalling, tool="send", name="sure")(lambda event: Ask("sure?"))
    made: list[Agent] = []

    @tool(effect="idempotent")
    async def start(turn: Turn) -> str:
        """Start it."""
        return (await turn.delegate(child, "help", background=True)).session

    tools = [start, waits_for_background(world, made, child), *workshop(world)]
    model = world.model(calls([("start", {}), ("send", {"n": 3})]), says("one"), calls("wait"), says("two"))
    approver = lambda asked: Approve(by="ann")  # noqa: E731
    made.append(Agent(model, tools=tools, store=world.store, subagents=[child], approvers=[approver]))
    made[0].inject(Delegating, name="hint")(lambda event: "Mind the gap.")
    return Scenario(made[0], ["go", "and now?"])


def in_the_background_of_hooks(world: World) -> Scenario:
    """A gate and a wrap start agents, one of which has one of its own."""
    last = helper(world, "last", calls("send", n=1), says("last"))
    one = helper(world, "one", calls("send", n=2), says("one"), says("one and last"))
    other = helper(world, "other", calls("send", n=3), says("other"))
    one.subagent(last)

    @one.wrap(ToolCall)
    async def with_last(call: Any, call_next: Any, turn: Turn) -> Any:
        await turn.delegate(last, "last", background=True)
        return await call_next(call)

    made: list[Agent] = []
    tools = [waits_for_background(world, made, one, other), *workshop(world)]
    model = world.model(calls("send", n=4), calls("wait"), says("done"))
    agent = Agent(model, tools=tools, store=world.store, subagents=[one, other])
    made.append(agent)

    @agent.gate(StepStarting)
    async def starting(event: StepStarting, turn: Turn) -> None:
        if event.step == 1:
            await turn.delegate(one, "one", background=True)

    @agent.wrap(ToolCall, tool="send")
    async def around(call: Any, call_next: Any, turn: Turn) -> Any:
        await turn.delegate(other, "other", background=True)
        return await call_next(call)

    @agent.rewrite(MessageAdding)
    def unordered(event: MessageAdding) -> Any:
        return user("a result") if event.message.origin in ("one", "other") else None

    return Scenario(agent)


class Verdict(Struct):
    """What a critic says."""

    fine: bool


def asked_and_noted(world: World) -> Scenario:
    """Hooks and tools ask models for values, one of which has to be repaired, and make notes."""
    critic = world.watch(FunctionModel(_verdict, name="critic"))

    @tool(effect="idempotent")
    async def study(turn: Turn) -> str:
        """Study."""
        turn.note("study.began", {"step": turn.state.steps})
        verdict = await turn.ask(critic, "first study", output=Verdict)
        turn.note("study.ended", {"fine": verdict.fine})
        return f"fine: {verdict.fine}"

    wanted = [("study", {}), ("send", {"n": 1})]
    agent = Agent(world.model(calls(wanted), says("done")), tools=[study, *workshop(world)], store=world.store)

    @agent.gate(ToolCalling, tool="send")
    async def judge(event: ToolCalling, turn: Turn) -> Any:
        turn.note("judged", event.call.name)
        return Allow() if (await turn.ask(critic, "then judge", output=Verdict)).fine else Deny("no")

    @agent.gate(TurnEnding)
    async def review(event: TurnEnding, turn: Turn) -> None:
        await turn.ask(critic, "at last review", output=Verdict)
        turn.note("reviewed")

    return Scenario(agent, answers=None)


def watched_by_another(world: World) -> Scenario:
    """A second consumer watches the turn, and goes on from its token in the next process."""
    kid = helper(world, "kid", calls("pay", n=2), says("helped"))
    model = world.model(calls([("send", {"n": 1}), ("kid", {"task": "help"})]), calls("look", n=3), says("done"))
    agent = Agent(model, tools=[kid.as_tool(), *workshop(world)], store=world.store)
    kept = world.folder / "token"

    async def follow() -> None:
        """Each record comes once, in the order of its log; the last one before a crash may come again."""
        token, seen = msgspec.json.decode(kept.read_bytes()) if kept.exists() else (None, {})
        async with agent.watch(world.session, since=token) as watch:
            async for event in watch:
                assert isinstance(event, Record)
                if event.seq != seen.get(event.path, 0) + 1:
                    world.effect(f"record {event.seq} came after {seen.get(event.path, 0)}")
                seen[event.path] = event.seq
                (world.folder / "next").write_bytes(msgspec.json.encode((watch.token, seen)))
                (world.folder / "next").replace(kept)
                if isinstance(event, TurnEnded) and not event.path:
                    break

    @agent.wrap(Turn)
    async def watched(turn: Turn, call_next: Any) -> Any:
        following = asyncio.ensure_future(follow())
        result = await call_next(turn)
        await following
        return result

    return Scenario(agent)


def _verdict(request: ModelRequest) -> Any:
    """A value that does not fit at first."""
    again = any(message.role == "assistant" for message in request.messages)
    return says('{"fine": true}' if again else '{"fine": "rather"}')


def compacting(world: World) -> Scenario:
    """Summaries, cleared results, previews and a request that its model refuses, while an action is going on."""

    @tool(effect="pure")
    def read(n: int) -> str:
        """Read a page."""
        return f"page {n} " + "x" * 400 * n

    def answer(request: ModelRequest) -> Any:
        if request.system.startswith("You write summaries"):
            return says(f"Notes on {len(request.messages[0].text)} characters.")
        seen = [message.id for message in request.messages if message.role == "assistant"]
        step = int(seen[-1].rpartition("/")[2]) if seen else 0
        if step == 3 and not any(message.origin == "summarize" for message in request.messages):
            return ContextOverflow("too long")
        if step == 0 or step >= 7:
            return says("done" if step else "Welcome. " * 80)
        return calls("read", n=step) if step % 2 else calls("send", n=step)

    agent = Agent(world.watch(FunctionModel(answer)), tools=[read, *workshop(world)], store=world.store)
    agent.with_capability(Offload(300, preview=20)).with_capability(ClearResults(AtTokens(500), keep=1, gain=0.1))
    agent.with_capability(Summarize(trigger=AtTokens(600), keep=2))

    @agent.gate(Compacting)
    def not_at_first(event: Compacting) -> Any:
        return Deny("not yet") if event.turn.state.steps == 2 and event.plan.by == "clear_results" else None

    return Scenario(agent, ["hello", "go"])


def options_of_a_turn(world: World) -> Scenario:
    """A turn with a model, settings, a limit and tools of its own; one of its calls is approved."""

    def reply(request: ModelRequest) -> Any:
        assert dict(request.settings) == {"seed": 1}, request.settings
        spoken = sum(message.role == "assistant" for message in request.messages)
        return [calls("look", n=1), calls("send", n=2), calls("pay", n=3), calls("send", n=4)][spoken]

    small = world.watch(FunctionModel(reply, name="small"))
    agent = Agent(world.model(says("wrong")), models=[small], store=world.store, per_run_tools=True)

    @agent.gate(ToolCalling, tool="send")
    def sure(event: ToolCalling) -> Any:
        return Ask("sure?")

    return Scenario(
        agent,
        options={
            "model": "small",
            "settings": {"seed": 1},
            "criteria": [StepLimit(3)],
            "tools": workshop(world),
        },
    )


def counted(world: World) -> Agent:
    """A capability counts calls and replies, and takes from a quota; its values are in the store."""
    model = world.model(calls("look", n=1), calls("pay", n=2), calls("pay", n=3), says("done"))
    return Agent(model, tools=workshop(world), store=world.store, capabilities=[Counts()])


class Counts:
    """Counts what a turn does, once each, and says so at its end."""

    def install(self, registrar: Any) -> None:
        storage = registrar.storage("counts")

        @registrar.gate(ToolCalling, tool="pay")
        async def within_quota(event: ToolCalling, turn: Turn) -> Any:
            taken = await storage.take(turn.session_id, limit=1, once=event.call.id)
            return None if taken else Deny("the quota is used up")

        @registrar.wrap(ModelCall)
        async def count_replies(request: Any, call_next: Any, turn: Turn) -> Any:
            reply = await call_next(request)
            await storage.add(f"{turn.session_id} replies", once=f"{turn.turn_ref} {turn.steps}")
            return reply

        @registrar.wrap(ToolCall)
        async def count_calls(call: Any, call_next: Any, turn: Turn) -> Any:
            result = await call_next(call)
            await storage.add(f"{turn.session_id} calls", once=call.id)
            return result

        @registrar.rewrite(TurnEnding)
        async def tell(event: TurnEnding, turn: Turn) -> str:
            counts = [await storage.get(f"{turn.session_id} {what}") for what in ("replies", "calls")]
            left = (await storage.take(turn.session_id, 0, limit=1)).left
            return f"{counts[0]} replies, {counts[1]} calls, {left:g} left"


ALL = {
    counted: "Completed '4 replies, 2 calls, 0 left'",
    options_of_a_turn: "Stopped ''",
    tool_loop: "Completed 'done'",
    parallel_tools: "Completed 'done'",
    watched_tools: "Completed 'paid all'",
    approvals: "Completed 'done'",
    edited_twice: "Completed 'done'",
    approved_by_several: "Completed 'done'",
    delegated_to_several: "Completed 'done'",
    approvals_elsewhere: "Completed 'done'",
    regeneration: "Completed 'good'",
    stop_veto: "Completed 'done'",
    cancelled: "Cancelled ''",
    cancelled_from_outside: "Cancelled ''",
    cancelled_at_the_end: "Cancelled ''",
    budget_stop: "Stopped ''",
    injections: "Completed 'done'",
    steering: "Completed 'done'",
    steered_at_the_end: "Completed 'done'",
    slots: "Completed 'two'",
    retries: "Completed 'done'",
    streaming: "Completed 'DONE'",
    superseded: "Completed 'never mind'",
    drifting: "Completed 'done'",
    asked_and_approved: "Completed 'done'",
    asked_and_rejected: "Completed 'done'",
    compensated: "Completed 'done'",
    delegated: "Completed 'done'",
    two_below: "Completed 'done'",
    delegated_by_a_tool: "Completed 'done'",
    tasks_judged_by_people: "Completed 'done'",
    delegated_by_hooks: "Completed 'done'",
    asked_while_a_turn_is_opened: "Completed 'done'",
    delegated_by_wraps: "Completed 'done'",
    in_the_background: "Completed 'two'",
    in_the_background_of_hooks: "Completed 'done'",
    asked_and_noted: "Completed 'done'",
    watched_by_another: "Completed 'done'",
    compacting: "Completed 'done'",
}
