"""Scenarios in which processes are killed while capabilities on effects work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from windlass import Agent, ModelRequest, Turn, TurnEnding, tool
from windlass.capabilities import (
    Cache,
    Fallback,
    Key,
    LoopGuard,
    Memory,
    MemoryFiles,
    Metadata,
    Planning,
    Retry,
    Rewind,
    Skills,
    Steering,
    StructuredOutput,
    Timeout,
    Validate,
)
from windlass.errors import ServerError
from windlass.testing import FunctionModel, Scenario, Scripted, World, calls, says


class Sum(Struct):
    total: int


def all_at_work(world: World) -> Agent:
    """A model that is down, a backup, a result that is kept, and a rejected answer."""

    @tool(effect="pure")
    async def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    @tool(effect="idempotent")
    async def pay(idempotency_key: str) -> str:
        """Pay."""
        world.effect("pay", idempotency_key)
        return "paid"

    three = calls([("look", {"what": "sea"}), ("look", {"what": "sea"}), ("pay", {})])
    backup = world.model(three, (says("short"), says("A longer answer.")), name="crash:backup")
    down = (ServerError("down"),)
    capabilities = [
        Retry(2, delay=0),
        Fallback(backup, breaker=None),
        Cache(models=False, tools=True),
        Timeout(model=600, tool=600),
        Validate(output=lambda reply: "Write a longer answer." if len(reply.text) < 10 else None),
        LoopGuard(),
        Steering(),
    ]
    model = world.model(down, down, name="crash:model")
    return Agent(model, tools=[look, pay], capabilities=capabilities, store=world.store)


def followed_up(world: World) -> Agent:
    """A follow-up that waits in the store while the turn runs."""

    @tool(effect="idempotent")
    async def work(idempotency_key: str) -> str:
        """Work; meanwhile the user writes. Made again, it writes the same entry as `Steering.follow_up` did."""
        await agent.storage("steering").put(f"to {world.session}\n1", {"mode": "follow_up", "text": "Go on."})
        world.effect("work", idempotency_key)
        return "worked"

    model = world.model(calls("work"), says("done"), says("done again"))
    agent: Agent = Agent(model, tools=[work], capabilities=[Steering()], store=world.store)
    return agent


def planned(world: World) -> Agent:
    """A plan that is written and updated beside an effect, with a reminder at every step and a veto."""

    @tool(effect="idempotent")
    async def pay(idempotency_key: str) -> str:
        """Pay."""
        world.effect("pay", idempotency_key)
        return "paid"

    items = [{"text": "pay", "status": "in_progress"}, {"text": "tell", "status": "pending"}]
    model = world.model(
        calls("write_todos", items=items),
        calls([("pay", {}), ("update_todo", {"item": 1, "status": "done", "start": 2})]),
        says("Is it done?"),
        calls("update_todo", item=2, status="done"),
        says("All done."),
    )
    planning = Planning(remind=1, finish_first=True)
    return Agent(model, tools=[pay], capabilities=[planning], store=world.store)


def counted(world: World) -> Agent:
    """A number that each call of a tool raises by one, and that the last answer must tell."""
    number = Key("number", int, default=0, merge=lambda old, new: old + new)
    metadata = Metadata(number)

    @tool(effect="idempotent")
    async def count(idempotency_key: str, turn: Turn[Any]) -> str:
        """Count."""
        metadata.set(turn, number, 1)
        world.effect("count", idempotency_key)
        return "counted"

    model = world.model(calls([("count", {})] * 2), calls("count"), says("Counted."))
    agent: Agent = Agent(model, tools=[count], capabilities=[metadata], store=world.store)

    @agent.rewrite(TurnEnding)
    def tell(event: TurnEnding, turn: Turn[Any]) -> str:
        return f"Counted to {metadata.get(turn, number)}."

    return agent


def returned(world: World) -> Agent:
    """A checkpoint, an effect, a rewind that must tell of the effect, and another way to the end."""

    @tool(effect="idempotent")
    async def pay(idempotency_key: str) -> str:
        """Pay."""
        world.effect("pay", idempotency_key)
        return "paid"

    model = world.model(
        calls("checkpoint", label="before"),
        calls("pay"),
        calls("rewind", label="before", note="It is paid already."),
        says("Paid once."),
    )
    return Agent(model, tools=[pay], capabilities=[Rewind()], store=world.store)


def using_a_skill(world: World) -> Agent:
    """A skill that is used and restricts a tool."""

    @tool(effect="idempotent")
    async def look(idempotency_key: str) -> str:
        """Look."""
        world.effect("look", idempotency_key)
        return "looked"

    @tool
    async def send() -> str:
        """Send."""
        world.effect("send")
        return "sent"

    both = calls([("look", {}), ("send", {})])
    model = world.model(calls("use_skill", name="forms"), both, says("done"))
    return Agent(
        model, tools=[look, send], capabilities=[Skills(Path(__file__).with_name("skills"))], store=world.store
    )


def remembering(world: World, backend: MemoryFiles | None = None) -> Scenario:
    """Two turns that remember, with the tool and at their end; a third that tells what is remembered, and how often."""

    def reply(request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if last.role == "tool":
            return says("noted")
        if last.parts[0].text != "tell":
            return calls("remember", text=f"tool {last.parts[0].text}")
        recalled = [part.text for part in last.parts if getattr(part, "origin", None) == "memory.recall"]
        return says(", ".join([line.partition("] ")[2] for line in recalled[0].splitlines()[1:]]))

    memory = Memory(backend, key="k", tools=True, learn=lambda event: f"end {event.turn.user_message.text}")
    agent: Agent = Agent(world.watch(FunctionModel(reply)), capabilities=[memory], store=world.store)
    return Scenario(agent, ["one", "two", "tell"])


def remembering_in_files(world: World) -> Scenario:
    """The same with a folder of files."""
    return remembering(world, MemoryFiles(world.folder / "memory"))


def remembering_by_a_model(world: World) -> Scenario:
    """A turn from which a model learns two things, and one that tells what is remembered."""

    def learn(request: ModelRequest) -> Scripted:
        said = request.messages[0].text
        return says("[]" if "tell" in said else '["likes tea", "lives in Rome"]' if "(nothing)" in said else '["no"]')

    def reply(request: ModelRequest) -> Scripted:
        parts = request.messages[-1].parts
        recalled = [part.text for part in parts if getattr(part, "origin", None) == "memory.recall"]
        return says(", ".join([line[2:] for text in recalled for line in text.splitlines()[1:]]) or "hello")

    memory = Memory(key="k", learn=world.watch(FunctionModel(learn, name="crash:learner")))
    agent: Agent = Agent(world.watch(FunctionModel(reply)), capabilities=[memory], store=world.store)
    return Scenario(agent, ["I like tea.", "tell"])


def answered(world: World) -> Agent[Any, Sum]:
    """A typed answer through a tool, after an effect and a wrong answer."""

    @tool(effect="idempotent")
    async def pay(idempotency_key: str) -> str:
        """Pay."""
        world.effect("pay", idempotency_key)
        return "paid"

    model = world.model(calls("pay"), (calls("final_answer", total="three"), calls("final_answer", total=3)))
    return Agent(model, tools=[pay], output=Sum, capabilities=[StructuredOutput("tool")], store=world.store)
