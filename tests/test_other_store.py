"""`with_store`: an agent gets another store before its first run."""

from __future__ import annotations

import pytest

from windlass import Agent
from windlass.capabilities import Steering
from windlass.errors import CompiledError
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, says


async def test_sessions_and_storage_go_to_the_other_store(tmp_path):
    address = f"sqlite:///{tmp_path}/other.db"
    steering = Steering()
    agent = Agent(ScriptedModel(says("one"), says("two")), capabilities=[steering]).with_store(address)
    await agent.run("hello", session="s1")
    await steering.follow_up(agent, "s1", "and then?")
    await agent.aclose()
    other = Agent(ScriptedModel(says("one"), says("two")), capabilities=[Steering()], store=address)
    assert (await other.state("s1")).text == "one"
    assert (await other.run("go on", session="s1")).text == "two"
    assert "and then?" in [message.text for message in (await other.state("s1")).messages]
    await other.aclose()


async def test_a_store_that_is_an_object_stays_open_when_the_agent_is_closed():
    store = MemoryStore()
    agent = Agent(ScriptedModel(says("one"))).with_store(store)
    await agent.run("hello", session="s1")
    await agent.aclose()
    assert agent.store is store
    assert await store.read("s1")


async def test_after_the_first_run_the_store_stays():
    agent = Agent(ScriptedModel(says("one")))
    await agent.run("hello")
    with pytest.raises(CompiledError, match="store"):
        agent.with_store("memory:")
