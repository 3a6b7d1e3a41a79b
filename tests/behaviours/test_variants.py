"""Variants of an agent: the same hooks, guards and store with another model, settings, criteria or tools."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Deny,
    ModelReplied,
    StepLimit,
    Stopped,
    Suspended,
    ToolCalling,
    TurnEnded,
    tool,
)
from windlass.errors import CompiledError, ConfigError
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def lookup(n: int) -> str:
    """Look something up."""
    return f"found {n}"


def voice(name: str) -> Any:
    return FunctionModel(lambda request: says(f"{name} {dict(request.settings)}"), name=name)


def looking(name: str) -> Any:
    def reply(request: Any) -> Any:
        return says(f"done by {name}") if request.messages[-1].role == "tool" else calls("lookup", n=1)

    return FunctionModel(reply, name=name)


async def test_a_variant_has_other_options_in_every_turn():
    agent = Agent(voice("big"), models=[voice("small")], settings={"seed": 1})
    cheap = agent.variant(model="small", settings={"top_p": 0.5})
    for _ in range(2):
        assert (await cheap.run("hi", session="s")).text == "small {'seed': 1, 'top_p': 0.5}"
    assert (await agent.run("hi", session="s")).text == "big {'seed': 1}"
    assert cheap.model.name == "small"
    assert agent.model.name == "big"
    assert cheap.store is agent.store


async def test_a_variant_with_equal_options_is_compiled_once():
    agent = Agent(voice("big"), models=[voice("small")])
    one, two = [agent.variant(model="small", settings={"seed": 1}, criteria=[StepLimit(3)]) for _ in range(2)]
    assert one._program is two._program
    assert one._program is not agent.variant(model="small", settings={"seed": 2})._program
    assert agent.variant()._program is agent._program


async def test_a_variant_replaces_the_model_of_its_agent_by_one_of_the_same_name():
    agent = Agent(ScriptedModel(says("own")), models=[voice("other")])
    tested = agent.variant(model=ScriptedModel(says("for a test")))
    assert (await tested.run("hi")).text == "for a test"
    assert (await agent.run("hi")).text == "own"
    with pytest.raises(ConfigError, match="has another model named 'other'"):
        agent.variant(model=voice("other"))


async def test_variants_are_kept_within_a_bound():
    def rule(state: Any) -> Any:
        return None

    agent = Agent(voice("big"))
    agent.variant(criteria=[rule])
    kept = weakref.ref(rule)
    del rule
    gc.collect()
    assert kept() is not None
    for seed in range(1, 200):
        await agent.run("hi", settings={"seed": seed})
    gc.collect()
    assert kept() is None
    assert len(agent._compile().variants) <= 64


async def test_options_without_a_hash_work():
    class Odd:
        __hash__ = None  # type: ignore[assignment]
        __name__ = "odd"

        def __call__(self, state: Any) -> Any:
            return None

    assert (await Agent(voice("big")).run("hi", criteria=[Odd()])).text == "big {}"


async def test_the_hooks_and_guards_of_an_agent_hold_in_its_variants():
    agent = Agent(looking("big"), models=[looking("small")], per_run_tools=True)
    agent.gate(ToolCalling, tool="lookup", band="guard")(lambda event: Deny("never"))
    variant = agent.variant(model="small", tools=[lookup])
    result = await variant.run("go")
    assert "never" in result.messages[2].parts[0].content[0].text
    assert result.text == "done by small"


async def test_a_variant_is_compiled_and_compiles_its_agent():
    agent = Agent(voice("big"))
    variant = agent.variant(settings={"seed": 1})
    for each in (agent, variant):
        with pytest.raises(CompiledError):
            each.gate(ToolCalling)(lambda event: None)


async def test_a_variant_of_a_variant_has_the_options_of_both():
    agent = Agent(voice("big"), models=[voice("small")])
    both = agent.variant(model="small").variant(settings={"seed": 1}).variant(tools=[lookup])
    assert (await both.run("hi")).text == "small {'seed': 1}"
    assert [*both.tools] == ["lookup"]
    assert 'variant with     model small · settings {"seed": 1} · tools lookup' in str(both.explain())
    assert both.explain().data["variant"] == {"model": "small", "settings": {"seed": 1}, "tools": ["lookup"]}
    assert agent.explain().data["variant"] is None


async def test_the_options_of_a_turn_come_on_top_of_those_of_a_variant():
    variant = Agent(voice("big"), models=[voice("small")]).variant(model="small", settings={"seed": 1})
    result = await variant.run("hi", settings={"top_p": 0.5})
    assert result.text == "small {'seed': 1, 'top_p': 0.5}"
    assert result.state.turn is not None
    assert result.state.turn.options is not None
    assert result.state.turn.options.settings == {"top_p": 0.5}


async def test_the_turns_of_a_variant_have_no_options_of_their_own():
    agent = Agent(voice("big"), models=[voice("small")])
    result = await agent.variant(model="small").run("hi")
    assert result.state.turn is not None
    assert result.state.turn.options is None


async def test_an_agent_and_its_variants_resume_the_sessions_of_each_other():
    store = MemoryStore()
    agent = Agent(looking("big"), models=[looking("small")], tools=[lookup], store=store)
    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    variant = agent.variant(model="small")
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    (question,) = result.waiting_for
    await variant.resolve("s", question.id, Approve(by="eve"))
    resumed = await variant.resume("s")
    assert resumed.text == "done by small"
    assert "model 'big' is 'small' now" in " ".join(str(resumed.why()).split())


async def test_a_running_turn_is_busy_for_variants_too():
    agent = Agent(ScriptedModel(says("one"), says("two")), busy="queue")
    variant, order = agent.variant(settings={"seed": 1}), []

    async def run(which: Agent, name: str) -> None:
        await which.run(name, session="s")
        order.append(name)

    await asyncio.gather(run(agent, "first"), run(variant, "second"))
    assert order == ["first", "second"]
    assert (await agent.state("s")).turns == 2


async def test_observers_follow_the_turns_of_variants_and_closing_one_keeps_the_store_open(tmp_path):
    seen: list[str] = []
    durable: list[str] = []
    async with Agent(voice("big"), models=[voice("small")], store=f"sqlite:///{tmp_path}/a.db") as agent:
        agent.observe(ModelReplied)(lambda fact: seen.append(fact.reply.text))
        agent.observe(TurnEnded, durable=True, name="ended")(lambda fact, turn: durable.append(turn.session_id))
        async with agent.variant(model="small") as variant:
            await variant.run("hi", session="a")
        await agent.run("hi", session="b")
    assert seen == ["small {}", "big {}"]
    assert sorted(durable) == ["a", "b"]


async def test_a_variant_can_be_a_sub_agent():
    child = Agent(voice("big"), models=[voice("small")], name="child", settings={"seed": 1})
    tools = [child.as_tool(), child.variant(model="small").as_tool("cheap")]
    model = ScriptedModel(calls([("child", {"task": "a"}), ("cheap", {"task": "b"})]), says("done"))
    result = await Agent(model, tools=tools).run("go")
    texts = [part.content[0].text for part in result.messages[2].parts]
    assert texts == ["big {'seed': 1}", "small {'seed': 1}"]


async def test_a_variant_is_refused_like_the_options_of_a_run():
    agent = Agent(voice("big"))
    for options in ({"model": "x"}, {"system": "s"}, {"tools": "lookup"}):
        with pytest.raises(ConfigError):
            agent.variant(**options)


async def test_capabilities_check_variants_and_turns_with_options():
    class Small:
        def install(self, registrar: Any) -> None:
            registrar.check(lambda agent: "no seeds, please" if "seed" in agent.settings else None)

    agent = Agent(voice("big"), capabilities=[Small()])
    with pytest.raises(ConfigError, match="no seeds, please"):
        agent.variant(settings={"seed": 1})
    with pytest.raises(ConfigError, match="no seeds, please"):
        await agent.run("hi", settings={"seed": 1})
    assert (await agent.run("hi", settings={"top_p": 1})).text == "big {'top_p': 1}"


async def test_a_variant_may_have_fewer_steps():
    agent = Agent(looking("big"), tools=[lookup])
    assert isinstance((await agent.variant(criteria=[StepLimit(1)]).run("go")).outcome, Stopped)
