"""Scopes: an agent that declares the type of its scope neither runs nor resumes without it, and nothing is consumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypedDict, runtime_checkable

import pytest

from windlass import Agent, Approve, Ask, ToolCalling, Turn, tool
from windlass.capabilities import Trim
from windlass.errors import ConfigError
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says

AnyAgent = Agent[Any, Any]


class Desk:
    """The application's data."""

    def __init__(self) -> None:
        self.refunds: list[int] = []


class BigDesk(Desk):
    """More of it."""


@tool(inline=True)
def refund(euros: int, turn: Turn[Desk]) -> str:
    """Give money back."""
    turn.scope.refunds.append(euros)
    return "done"


def clerk(*script: Any, asks: bool = True, **options: Any) -> AnyAgent:
    script = script or (calls("refund", euros=5), says("done"))
    agent: AnyAgent = Agent(ScriptedModel(*script), tools=[refund], **{"scope": Desk, "name": "clerk", **options})
    if asks:
        agent.gate(ToolCalling, name="asker")(lambda event: Ask("Refund?"))
    return agent


async def by_run(agent: AnyAgent, scope: Any) -> Any:
    return await agent.run("go", session="s", scope=scope)


async def without_a_session(agent: AnyAgent, scope: Any) -> Any:
    return await agent.run("go", scope=scope)


async def by_run_sync(agent: AnyAgent, scope: Any) -> Any:
    return agent.run_sync("go", session="s", scope=scope)


async def by_stream(agent: AnyAgent, scope: Any) -> Any:
    async with agent.stream("go", session="s", scope=scope) as stream:
        async for _ in stream:
            pass
    return stream.result


async def by_iterate(agent: AnyAgent, scope: Any) -> Any:
    return [state async for state in agent.iterate("go", session="s", scope=scope)]


async def in_a_session(agent: AnyAgent, scope: Any) -> Any:
    async with agent.session("s") as session:
        return await session.run("go", scope=scope)


async def by_resume(agent: AnyAgent, scope: Any) -> Any:
    return await agent.resume("s", answers={"s/1/1": Approve()}, scope=scope)


async def by_resume_sync(agent: AnyAgent, scope: Any) -> Any:
    return agent.resume_sync("s", answers={"s/1/1": Approve()}, scope=scope)


async def by_stream_that_resumes(agent: AnyAgent, scope: Any) -> Any:
    async with agent.stream(session="s", answers={"s/1/1": Approve()}, scope=scope) as stream:
        async for _ in stream:
            pass


async def by_iterate_that_resumes(agent: AnyAgent, scope: Any) -> Any:
    return [state async for state in agent.iterate(session="s", answers={"s/1/1": Approve()}, scope=scope)]


async def in_a_session_that_resumes(agent: AnyAgent, scope: Any) -> Any:
    async with agent.session("s") as session:
        return await session.resume({"s/1/1": Approve()}, scope=scope)


Way = Callable[[AnyAgent, Any], Awaitable[Any]]
RUNS = [by_run, without_a_session, by_run_sync, by_stream, by_iterate, in_a_session]
RESUMES = [
    by_resume, by_resume_sync, by_stream_that_resumes, by_iterate_that_resumes, in_a_session_that_resumes,
]  # fmt: skip
WRONG = [None, {"refunds": []}, Desk]


@pytest.mark.parametrize("scope", WRONG, ids=["none", "a dict", "the class"])
@pytest.mark.parametrize("way", RUNS)
async def test_an_agent_that_declares_its_scope_does_not_run_without_it(way: Way, scope: Any):
    agent = clerk()
    with pytest.raises(ConfigError, match="agent 'clerk' needs a scope of type Desk"):
        await way(agent, scope)
    assert list(await agent.store.sessions()) == []
    assert agent.model.requests == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("scope", WRONG, ids=["none", "a dict", "the class"])
@pytest.mark.parametrize("way", RESUMES)
async def test_an_agent_that_declares_its_scope_does_not_resume_without_it_and_no_answer_is_burnt(way: Way, scope: Any):
    store, desk = MemoryStore(), Desk()
    await clerk(store=store).run("go", session="s", scope=desk)
    before = list(await store.read("s"))
    agent = clerk(says("done"), store=store)
    with pytest.raises(ConfigError, match="needs a scope of type Desk"):
        await way(agent, scope)
    assert list(await store.read("s")) == before
    await way(agent, desk)
    assert desk.refunds == [5]


async def test_an_answer_in_the_inbox_stays_there_until_the_scope_is_given():
    store, desk = MemoryStore(), Desk()
    agent = clerk(store=store)
    await agent.run("go", session="s", scope=desk)
    await agent.resolve("s", "s/1/1", Approve(by="eve"))
    with pytest.raises(ConfigError, match="scope"):
        await agent.resume("s")
    result = await agent.resume("s", scope=desk)
    assert (result.text, desk.refunds) == ("done", [5])


async def test_a_message_that_would_steer_a_busy_session_is_refused_before_it_is_kept():
    store = MemoryStore()
    agent = clerk(calls("hold"), says("done"), asks=False, store=store, busy="steer")
    refused: list[ConfigError] = []

    @agent.tool
    async def hold(turn: Turn[Desk]) -> str:
        """Hold the line."""
        with pytest.raises(ConfigError, match="scope") as raised:
            await agent.run("and now", session="s")
        refused.append(raised.value)
        return "held"

    await agent.run("go", session="s", scope=Desk())
    assert refused
    assert not [entry async for entry in _inbox(store)]


async def _inbox(store: MemoryStore) -> Any:
    for entry in await store.inbox("s", ()):
        yield entry


async def test_an_instance_of_a_subclass_is_a_scope():
    desk = BigDesk()
    assert (await clerk(asks=False).run("go", scope=desk)).text == "done"
    assert desk.refunds == [5]


async def test_an_agent_that_declares_nothing_takes_any_scope_or_none():
    for scope in (None, {"user": "ann"}, Desk()):
        assert (await Agent(ScriptedModel(says("hi"))).run("go", scope=scope)).text == "hi"


async def test_a_union_and_a_protocol_that_can_be_checked_are_scopes():
    @runtime_checkable
    class HasRefunds(Protocol):
        refunds: list[int]

    for declared in (Desk | dict, HasRefunds):
        agent = clerk(asks=False, scope=declared)
        with pytest.raises(ConfigError, match="scope"):
            await agent.run("go")
        assert (await agent.run("go", scope=Desk())).text == "done"


def test_what_cannot_be_checked_is_refused_as_a_scope():
    class Typed(TypedDict):
        user: str

    class Unchecked(Protocol):
        user: str

    for declared in (Typed, Unchecked, dict[str, str], "Desk", 5, Desk(), (Desk, dict)):
        with pytest.raises(ConfigError, match="scope must be a class"):
            Agent(ScriptedModel(), scope=declared)  # type: ignore[arg-type]


async def test_a_session_is_compacted_with_the_scope_too():
    agent = clerk(asks=False).with_capability(Trim())
    await agent.run("go", session="s", scope=Desk())
    with pytest.raises(ConfigError, match="scope"):
        await agent.compact("s")
    await agent.compact("s", scope=Desk())


# ---------------------------------------------------------------- sub-agents


def above(*children: AnyAgent, **options: Any) -> AnyAgent:
    first = children[0].name
    return Agent(
        ScriptedModel(calls(first, task="t"), says("done")),
        tools=[child.as_tool() for child in children],
        **{"name": "lead", **options},
    )


async def test_the_scope_that_a_sub_agent_declares_is_needed_by_the_agent_above_it():
    desk = Desk()
    for lead in (above(clerk(asks=False)), above(above(clerk(asks=False), name="middle"))):
        with pytest.raises(ConfigError, match="agent 'clerk', a sub-agent of 'lead', needs a scope of type Desk"):
            await lead.run("go", session="s")
        assert list(await lead.store.sessions()) == []
        assert (await lead.run("go", session="s", scope=desk)).text == "done"
    assert desk.refunds == [5, 5]


def test_two_types_of_scope_that_cannot_fit_are_refused_when_the_agent_is_compiled():
    for lead in (above(clerk(), scope=dict), above(above(clerk(), name="middle"), scope=dict)):
        with pytest.raises(ConfigError, match="'lead' declares scope=dict and passes it on to agent 'clerk'"):
            lead.compile()
    with pytest.raises(ConfigError, match="passes it on"):
        above(clerk(scope=BigDesk), scope=Desk).compile()
    with pytest.raises(ConfigError, match="passes it on"):
        above(clerk(), scope=Desk | None).compile()


async def test_a_more_special_scope_above_fits():
    desk = BigDesk()
    assert (await above(clerk(asks=False), scope=BigDesk).run("go", scope=desk)).text == "done"
    assert desk.refunds == [5]


async def test_two_children_may_need_two_things_of_one_scope():
    class Other:
        pass

    class Both(Desk, Other):
        pass

    lead = above(clerk(asks=False), clerk(name="other", scope=Other))
    with pytest.raises(ConfigError, match="'other'"):
        await lead.run("go", scope=Desk())
    assert (await lead.run("go", scope=Both())).text == "done"


def test_explain_says_which_scope_is_needed():
    assert "needs scope      Desk (clerk)" in str(clerk().explain())
    assert "needs scope" not in str(Agent(ScriptedModel()).explain())


# ---------------------------------------------------------------- the kit


async def test_the_kit_hands_a_scope_to_every_way_of_running():
    lived = await assert_same_everywhere(clerk, scope=Desk())
    assert lived.resumed == 1


async def test_a_capability_that_needs_a_scope_can_be_checked():
    class Greets:
        def install(self, registrar: Any) -> None:
            registrar.gate(ToolCalling, name="greets")(self.look)

        async def look(self, event: ToolCalling, turn: Turn[Desk]) -> None:
            assert turn.scope.refunds == []

    await check_capability(Greets, scope=Desk())
