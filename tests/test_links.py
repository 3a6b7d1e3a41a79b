"""Links: a durable observer learns where a fact is in the hash chain, so that an export can be checked later."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Injected,
    ModelReplied,
    Slot,
    ToolCalling,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarting,
    tool,
)
from windlass.errors import RegistrationError, StoreError
from windlass.logs import Link
from windlass.protocols import Store
from windlass.records import decode, encode
from windlass.stores import MemoryStore, SQLiteStore, linked_records, open_store
from windlass.testing import FakeClock, ScriptedModel, calls, says
from windlass.transfer import export_session, import_session


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        made: Any = MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "store.db", synchronous="NORMAL")
    else:
        made = open_store(request.getfixturevalue("database"))
    yield made
    with suppress(StoreError):
        await made.close()


@tool(effect="idempotent")
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


class Trail:
    """Exports facts as JSON lines, each with its link."""

    def __init__(self, *facts: Any) -> None:
        self.facts = facts or (ModelReplied, ToolDecided, ToolReturned, TurnEnded)
        self.lines: list[str] = []

    def install(self, registrar: Any) -> None:
        for fact in self.facts:
            registrar.observe(fact, durable=True, name=f"trail of {fact.__name__}")(self.export)

    def export(self, fact: Any, link: Link) -> None:
        plain = encode(fact.replace(seq=0, path=""))
        self.lines.append(json.dumps({"link": msgspec.to_builtins(link), "fact": json.loads(plain)}))

    def links(self) -> list[Link]:
        return [msgspec.convert(json.loads(line)["link"], Link) for line in self.lines]

    async def check(self, store: Store) -> None:
        """Every line is what the log has at its link."""
        facts = [decode(json.dumps(json.loads(line)["fact"]).encode()) for line in self.lines]
        assert [encode(record) for record in await linked_records(store, self.links())] == [encode(f) for f in facts]


def linked_agent(store: Store, trail: Any, *replies: Any, **options: Any) -> Agent[Any, Any]:
    given = replies or (calls("look", n=1), says("done"))
    return Agent(ScriptedModel(*given), tools=[look], store=store, capabilities=[trail], **options)


async def _through_run(agent: Agent[Any, Any]) -> None:
    await agent.run("go", session="s")


async def _through_stream(agent: Agent[Any, Any]) -> None:
    async for _ in agent.stream("go", session="s"):
        pass


@pytest.mark.parametrize("way", [_through_run, _through_stream])
async def test_an_exported_line_can_be_checked_against_the_chain(store, way):
    trail = Trail()
    agent = linked_agent(store, trail)
    await way(agent)
    await way(linked_agent(store, trail))
    await agent.aclose()
    assert len(trail.lines) == len(set(trail.lines)) == 10
    await trail.check(store)
    heads = {batch.link.hex() for batch in await store.batches("s")}
    assert {link.hash for link in trail.links()} <= heads
    assert all(link.batch < link.seq for link in trail.links())


async def test_a_link_stays_the_same_when_the_log_grows(store):
    first, later = Trail(), Trail()
    agent = linked_agent(store, first)
    await agent.run("go", session="s")
    await agent.aclose()
    for _ in range(3):
        await linked_agent(store, Trail(ToolDecided)).run("again", session="s")
    again = linked_agent(store, later)
    for cursor in ("ModelReplied", "ToolDecided", "ToolReturned", "TurnEnded"):
        await store.advance("s", f"trail of {cursor}", 0)
    await again.catch_up()
    assert len(first.lines) == 5
    assert set(first.lines) < set(later.lines)
    await first.check(store)


async def test_facts_of_a_turn_that_was_resumed_and_of_a_sub_agent_have_links(store):
    def made(trail: Trail, *replies: Any) -> Agent[Any, Any]:
        helper = Agent(ScriptedModel(calls("look", n=1), says("helped")), tools=[look], name="helper")
        agent = Agent(ScriptedModel(*replies), tools=[helper.as_tool()], store=store, capabilities=[trail])
        agent.gate(ToolCalling, tool="helper")(lambda event: Ask("may it?"))
        return agent

    trail = Trail()
    first = await made(trail, calls("helper", task="help")).run("go", session="s")
    agent = made(trail, says("done"))
    assert (await agent.resume("s", answers={first.waiting_for[0].id: Approve()})).text == "done"
    await agent.aclose()
    await trail.check(store)
    sessions = set(await store.sessions())
    assert len(sessions) == 2
    assert {link.session for link in trail.links()} == sessions


async def test_links_hold_after_pruning(store):
    clock, trail = FakeClock(), Trail(Injected, ModelReplied)
    agent = linked_agent(store, trail, says("done"), clock=clock)
    agent.inject(TurnStarting)(lambda event: "It rains.")
    await agent.run("go", session="s")
    await agent.aclose()
    await trail.check(store)
    assert await store.prune(before=clock.now() + 1)
    records = await linked_records(store, trail.links())
    assert sorted(type(record).__name__ for record in records) == ["Injected", "ModelReplied"]
    assert [record.parts for record in records if isinstance(record, Injected)] == [()]
    with pytest.raises(AssertionError):
        await trail.check(store)


async def test_a_line_that_the_log_does_not_have_is_refused(store):
    trail = Trail(TurnEnded)
    agent = linked_agent(store, trail)
    await agent.run("go", session="s")
    await agent.aclose()
    [link] = trail.links()
    assert [type(record) for record in await linked_records(store, [link, link])] == [TurnEnded, TurnEnded]
    assert await linked_records(store, []) == []
    for wrong in (link.replace(hash="00" * 16), link.replace(batch=link.batch - 1)):
        with pytest.raises(StoreError, match=rf"record {link.seq} of session 's' is not the one that was linked"):
            await linked_records(store, [wrong])
    for missing in (link.replace(seq=900), link.replace(session="unknown"), link.replace(seq=0)):
        with pytest.raises(StoreError, match="has no record"):
            await linked_records(store, [missing])
    await store.erase("s")
    with pytest.raises(StoreError, match="session 's' has no record"):
        await linked_records(store, [link])


async def test_a_log_that_was_replaced_as_a_whole_is_told_from_the_one_that_was_exported(tmp_path):
    logs = {}
    for text in ("pay 10", "pay 99"):
        store = SQLiteStore(tmp_path / f"{text}.db")
        logs[text] = Trail(TurnEnded)
        agent = linked_agent(store, logs[text], says(text))
        await agent.run("go", session="s")
        await agent.aclose()
        await store.close()
    other = SQLiteStore(tmp_path / "pay 99.db")
    assert await other.verify("s")
    with pytest.raises(StoreError, match="is not the one that was linked: the log differs"):
        await logs["pay 10"].check(other)
    await other.close()


async def test_a_changed_log_is_refused(tmp_path):
    file = tmp_path / "store.db"
    trail = Trail()
    agent = linked_agent(SQLiteStore(file), trail)
    await agent.run("go", session="s")
    await agent.aclose()
    with sqlite3.connect(file) as db:
        db.execute("UPDATE batches SET data = (SELECT data FROM batches WHERE seq = 0) WHERE seq != 0")
    db.close()
    with pytest.raises(StoreError, match="the log of session 's' is broken"):
        await linked_records(agent.store, trail.links())
    await agent.store.close()


async def test_an_observer_may_ask_for_turn_and_link_and_gets_both_again_if_it_fails(store):
    got: list[Any] = []
    agent = Agent(ScriptedModel(says("done")), store=store, clock=FakeClock(auto=True))

    @agent.observe(TurnEnded, durable=True)
    async def fails_once(fact: TurnEnded, turn: Any, link: Link) -> None:
        got.append((turn.session_id, fact.seq, link))
        if len(got) == 1:
            raise ValueError("not yet")

    await agent.run("go", session="s")
    await agent.aclose()
    assert len(got) == 2
    assert got[0] == got[1]
    session, seq, link = got[0]
    assert (link.session, link.seq) == (session, seq)


async def test_only_a_durable_observer_gets_a_link():
    agent = Agent(ScriptedModel())
    agent.observe(TurnEnded)(lambda fact, link: None)
    with pytest.raises(
        RegistrationError, match=r"a parameter 'link' that Windlass cannot supply.*a durable observer `link`"
    ):
        agent.compile()


async def test_a_slot_comes_before_a_link():
    class Chosen(msgspec.Struct):
        x: int = 1

    got: list[Any] = []
    agent = Agent(ScriptedModel(says("done")))
    agent.slot(Slot("link", Chosen, default=Chosen))

    @agent.observe(TurnEnded, durable=True)
    def look_at(fact: TurnEnded, link: Chosen) -> None:
        got.append(link)

    look_at.__annotations__["link"] = Chosen
    await agent.run("go", session="s")
    await agent.aclose()
    assert got == [Chosen()]


async def test_a_fork_has_links_of_its_own(store):
    trail = Trail(ModelReplied)
    agent = linked_agent(store, trail)
    await agent.run("go", session="s")
    await agent.fork("s", to="fork")
    await agent.catch_up()
    assert {link.session for link in trail.links()} == {"s", "fork"}
    await trail.check(store)
    await agent.aclose()


async def test_links_hold_in_a_store_that_the_session_was_moved_to(store):
    trail = Trail()
    agent = linked_agent(store, trail)
    agent.inject(TurnStarting)(lambda event: "It rains.")
    await agent.run("go", session="s")
    await agent.aclose()
    other = MemoryStore()
    await import_session(other, await export_session(store, "s"))
    await trail.check(other)
    await linked_agent(other, Trail()).run("go on", session="s")
    await trail.check(other)


@pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)
async def test_links_are_given_while_the_turn_runs(store):
    got, more = asyncio.Event(), asyncio.Event()
    agent = Agent(ScriptedModel(calls("wait"), says("done")), store=store)

    @agent.tool
    async def wait() -> str:
        """Wait."""
        await asyncio.wait_for(got.wait(), 30)
        more.set()
        return "waited"

    @agent.observe(ModelReplied, durable=True)
    async def first(fact: ModelReplied, link: Link) -> None:
        [record] = await linked_records(store, [link])
        assert isinstance(record, ModelReplied)
        got.set()

    await agent.run("go", session="s")
    assert more.is_set()
    await agent.aclose()
