"""Scenarios with which the tests of crash_points show what it finds."""

from __future__ import annotations

import itertools
import sqlite3
import time
from contextlib import closing
from typing import Any

from windlass import Agent, Ask, Injected, ModelRequest, ToolCalling, Turn, TurnEnding, TurnStarting, tool
from windlass.messages import Messages, assistant, user
from windlass.testing import FunctionModel, Scenario, ScriptedModel, World, calls, says


def _agent(world: World, work: Any, **options: Any) -> Agent:
    return Agent(world.model(calls("work"), says("done")), tools=[work], store=world.store, **options)


def sound(world: World) -> Agent:
    """Nothing is wrong with this one."""

    @tool
    async def work() -> str:
        """Work."""
        return f"worked {world.effect('work')} times"

    return _agent(world, work)


def says_idempotent_and_is_not(world: World) -> Agent:
    @tool(effect="idempotent")
    async def work() -> str:
        """Work."""
        world.effect("work")
        return "worked"

    return _agent(world, work)


def makes_keys_of_its_own(world: World) -> Agent:
    @tool(effect="idempotent")
    async def work() -> str:
        """Work."""
        world.effect("work", str(time.time_ns()))
        return "worked"

    return _agent(world, work)


def remembers_in_memory(world: World) -> Agent:
    seen: list[str] = []

    @tool(effect="idempotent")
    async def work(idempotency_key: str) -> str:
        """Work."""
        world.effect("work", idempotency_key)
        seen.append("worked")
        return "worked"

    agent = _agent(world, work)

    @agent.rewrite(TurnEnding)
    def tell(event: TurnEnding) -> str:
        return f"worked {len(seen)} times"

    return agent


def keeps_another_transcript(world: World) -> Agent:
    @tool(effect="idempotent")
    async def work(turn: Turn) -> str:
        """Work."""
        turn.add(f"at {time.time_ns()}")
        return "worked"

    return _agent(world, work)


def asks_again(world: World) -> Agent:
    """A hook that is asked again on resume asks the model what it has been asked before."""

    @tool(effect="pure")
    def work() -> str:
        """Work."""
        return "worked"

    agent = _agent(world, work)

    @agent.inject(TurnStarting)
    async def recall(event: TurnStarting) -> Any:
        if event.turn.state.steps:
            shown = Messages([user(event.message.text + "nothing")])
            await agent.model.reply(ModelRequest("", shown, model=agent.model.name))
        return Injected("nothing", record=False)

    return agent


def asked_of_nobody(world: World) -> Scenario:
    """A turn that stays suspended."""
    agent = sound(world)
    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    return Scenario(agent, answers=None)


def two_messages(world: World) -> Scenario:
    return Scenario(
        Agent(world.model(says("one"), says("two")), store=world.store), ["first", "second"], scope={"user": "ann"}
    )


def with_another_store(world: World) -> Agent:
    return Agent(ScriptedModel(says("done")))


def with_a_model_of_ours(world: World) -> Agent:
    return Agent(world.watch(FunctionModel(lambda request: assistant("done"))), store=world.store)


def broken(world: World) -> Agent:
    raise ValueError("nothing to play")


def hangs_after_a_crash(world: World) -> Agent:
    @tool(effect="idempotent", inline=True)
    def work(idempotency_key: str) -> str:
        """Work."""
        if world.effect("work", idempotency_key) > 1:
            time.sleep(60)
        return "worked"

    return _agent(world, work)


def no_scenario(world: World) -> Any:
    return next(itertools.count())


def keeps_its_own_database(world: World) -> Agent:
    """A tool with a database of its own, in which it finds what the killed process did."""

    @tool(effect="idempotent")
    async def work(idempotency_key: str) -> str:
        """Work, once for each key."""
        with closing(sqlite3.connect(world.folder / "work.db")) as db, db:
            db.execute("create table if not exists work (key text primary key)")
            db.execute("insert or ignore into work values (?)", [idempotency_key])
            (count,) = db.execute("select count(*) from work").fetchone()
        world.effect("work", idempotency_key)
        return f"worked {count} times"

    return _agent(world, work)
