"""Scenarios in which processes are killed while sub-agents work."""

from __future__ import annotations

import asyncio
from typing import Any

from windlass import Agent, ModelCall, ModelRequest, TokenLimit, tool
from windlass.capabilities import Subagent, Subagents
from windlass.messages import Usage
from windlass.testing import FunctionModel, Scenario, World, calls, says


def pay_in(world: World) -> Any:
    """A tool of the children."""

    @tool(effect="idempotent")
    async def pay(n: int, idempotency_key: str) -> str:
        """Pay."""
        world.effect("pay", idempotency_key)
        return f"paid {n}"

    return pay


def child(world: World, name: str, *script: Any, **options: Any) -> Agent[Any, Any]:
    """An agent with a model and a tool of its own."""
    return Agent(world.model(*script, name=f"{name}:model"), name=name, tools=[pay_in(world)], **options)


def telling(world: World, *script: Any) -> Any:
    """A model that follows a script, and then tells the results that it was given."""

    def reply(request: ModelRequest) -> Any:
        spoken = sum(message.role == "assistant" for message in request.messages)
        if spoken < len(script):
            return script[spoken]
        parts = [part for message in request.messages for part in message.parts if message.role == "tool"]
        return says("; ".join([f"{part.status}: {part.text}" for part in parts]))

    return world.watch(FunctionModel(reply, name="parent:model"))


def task(agent: str, text: str = "work", **more: Any) -> tuple[str, dict[str, Any]]:
    return ("delegate", {"agent": agent, "task": text, **more})


def at_once(world: World) -> Agent[Any, Any]:
    """Two agents work at the same time, one with fewer tools; a third task is one too many."""
    kid = child(world, "kid", calls("pay", n=1), says("kid paid"))
    other = child(world, "other", calls("pay", n=2), says("other tried"))
    capability = Subagents([kid, Subagent(other, tools=())], fan_out=2, background=False)
    model = telling(world, calls([task("kid"), task("other"), task("kid", "more")]))
    return Agent(model, capabilities=[capability], store=world.store)


def too_deep(world: World) -> Agent[Any, Any]:
    """An agent that may have agents itself, but not below this one."""
    lowest = child(world, "lowest", says("never"))
    middle = Agent(
        telling(world, calls([task("lowest")])), name="middle", capabilities=[Subagents([lowest], background=False)]
    )
    capability = Subagents([middle], depth=1, background=False)
    return Agent(telling(world, calls([task("middle")])), capabilities=[capability], store=world.store)


def with_a_share(world: World) -> Agent[Any, Any]:
    """An agent that uses up its share, and one that does not."""
    expensive = [calls("pay", n=n, _usage=Usage(100, 0)) for n in range(9)]
    greedy = child(world, "greedy", *expensive, says("never"))
    modest = child(world, "modest", calls("pay", n=77, _usage=Usage(10, 0)), says("modest is done", usage=Usage(10, 0)))
    capability = Subagents([Subagent(greedy, share=0.3), Subagent(modest, share=0.3)], background=False)
    model = telling(world, calls([task("greedy")], _usage=Usage(10, 0)), calls([task("modest")], _usage=Usage(10, 0)))
    return Agent(model, capabilities=[capability], criteria=[TokenLimit(1_000)], store=world.store)


def in_the_background(world: World) -> Scenario:
    """An agent that works in the background; the next turn reads its result."""
    kid = child(world, "kid", calls("pay", n=1), says("kid paid"))
    made: list[Agent[Any, Any]] = []

    @kid.wrap(ModelCall)
    async def patient(request: Any, call_next: Any) -> Any:
        while not world.count("wait", "session"):  # noqa: ASYNC110 — it may have been in another process
            await asyncio.sleep(0.001)
        return await call_next(request)

    @tool(effect="idempotent")
    async def wait() -> str:
        """Wait for the agent in the background."""
        world.effect("wait", "session")
        for running in await made[0].resume_background(world.session):
            await running.result()
        return "waited"

    model = world.model(calls([task("kid", background=True)]), says("one"), calls("wait"), says("two"))
    made.append(Agent(model, tools=[wait], capabilities=[Subagents([kid])], store=world.store))
    return Scenario(made[0], ["go", "and now?"])
