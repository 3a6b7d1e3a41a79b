"""Storage: durable values in the store of an agent, for hooks, tools, capabilities and the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Continuing,
    Deny,
    ModelCall,
    ModelCalling,
    ModelReplied,
    Suspended,
    ToolCall,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    Vote,
    tool,
)
from windlass.errors import ConfigError, StoreError
from windlass.pipeline import Pipeline
from windlass.protocols import Store
from windlass.storage import Storage, Taken
from windlass.stores import MemoryStore, SQLiteStore, open_store
from windlass.testing import (
    FakeClock,
    FunctionModel,
    ScriptedModel,
    calls,
    check_capability,
    fake_storage,
    fake_turn,
    says,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


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


@pytest.fixture
def storage(store: Store, clock: FakeClock) -> Storage:
    return Agent(ScriptedModel(), store=store, clock=clock).storage("things")


class Point(msgspec.Struct):
    x: int
    y: int = 0


# ---------------------------------------------------------------- values


async def test_a_value_is_there_until_it_is_deleted(storage):
    assert await storage.get("k") is None
    assert await storage.get("k", 7) == 7
    await storage.put("k", {"point": Point(1), "list": (1, 2.5, None, "ü\ud800")})
    assert await storage.get("k") == {"point": {"x": 1, "y": 0}, "list": [1, 2.5, None, "ü\ud800"]}
    await storage.put("k", None)
    assert await storage.get("k", 7) is None
    await storage.delete("k")
    await storage.delete("k")
    assert await storage.get("k", 7) == 7


async def test_a_value_expires_by_the_clock_of_the_agent(storage, clock):
    await storage.put("k", 1, ttl=10)
    await storage.put("stays", 2)
    clock.tick(9.75)
    assert await storage.items() == {"k": 1, "stays": 2}
    clock.tick(0.25)
    assert await storage.get("k", "gone") == "gone"
    assert await storage.keys() == ["stays"]
    assert await storage.items() == {"stays": 2}
    await storage.put("k", 3)
    clock.tick(1000)
    assert await storage.get("k") == 3


async def test_keys_are_found_and_cleared_by_prefix(storage):
    for key in ("ann/1", "ann/2", "bob/1", "ann"):
        await storage.put(key, key)
    assert await storage.keys("ann/") == ["ann/1", "ann/2"]
    assert await storage.items("b") == {"bob/1": "bob/1"}
    assert list(await storage.items("ann", last=2)) == ["ann/1", "ann/2"]
    assert await storage.items("ann", last=0) == {}
    for wrong in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="last="):
            await storage.items(last=wrong)
    assert await storage.clear("ann/") == 2
    assert await storage.keys() == ["ann", "bob/1"]


async def test_what_was_read_can_be_changed_without_changing_the_value(storage):
    given = [1]
    await storage.put("k", given)
    given.append(2)
    (await storage.get("k")).append(3)
    assert await storage.get("k") == [1]


async def test_storages_of_one_name_share_their_values_and_others_do_not(store, clock):
    one, other = [Agent(ScriptedModel(), store=store, clock=clock) for _ in range(2)]
    await one.storage("a").put("k", 1)
    assert await other.storage("a").get("k") == 1
    assert await other.storage("b").get("k") is None
    assert await other.storage("b").clear() == 0
    assert await one.storage("a").keys() == ["k"]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda s: s.put("k", object()), r"put\('k'\) in storage 'things': the value has no JSON form: .*object"),
        (lambda s: s.put("k", float("nan")), "no JSON form: JSON cannot hold nan"),
        (lambda s: s.put("k", {1, object()}), "no JSON form"),
        (lambda s: s.put("k", "x" * 1_048_575), "the value has 1,048,577 bytes; at most 1,048,576 are kept"),
        (lambda s: s.put("", 1), "the key must be a text, not ''"),
        (lambda s: s.get(7), "the key must be a text, not 7"),
        (lambda s: s.get("é" * 513), "the key has 1,026 bytes; it may have 1,024"),
        (lambda s: s.put("k", 1, ttl=0), "ttl=0 must be above 0"),
        (lambda s: s.add("k", True), "n=True must be a number"),
        (lambda s: s.add("k", inf), "n=inf must be a number"),
        (lambda s: s.add("k", 2**64), "the counter cannot go there: the number .* is too large"),
        (lambda s: s.add("k", once=""), "once must be a text"),
        (lambda s: s.add("k", once="x" * 600), "once has 600 bytes; it may have 512"),
        (lambda s: s.take("k", limit=0), "limit=0 must be above 0"),
        (lambda s: s.take("k", limit=1, per=-1), "per=-1 must be above 0"),
        (lambda s: s.take("k", limit=1, per=1, ttl=1), "give per=… or ttl=…, not both"),
        (lambda s: s.hold("k", "", limit=1, ttl=1), "holder must be a text"),
        (lambda s: s.hold("k", None, limit=1, ttl=1), "holder must be a text"),
        (lambda s: s.hold("k", "a", limit="many", ttl=1), "limit='many' must be a number"),
    ],
)
async def test_a_wrong_argument_is_refused_by_name_and_nothing_is_stored(work, message):
    storage = fake_storage("things")
    with pytest.raises(ConfigError, match=message):
        await work(storage)
    assert await storage.keys() == []


@pytest.mark.parametrize("name", ["", None, 7, "x" * 300])
def test_a_storage_needs_a_name(name):
    with pytest.raises(ConfigError, match="storage: the name"):
        Agent(ScriptedModel()).storage(name)


async def test_an_error_names_the_capability(clock):
    storages = []

    class Notes:
        def install(self, registrar):
            storages.append(registrar.storage("notes"))

    Agent(ScriptedModel(), capabilities=[Notes()])
    with pytest.raises(ConfigError, match="in storage 'notes' of capability 'Notes'"):
        await storages[0].put("k", object())


async def test_secrets_are_masked_in_values_and_refused_in_keys(store):
    agent = Agent(ScriptedModel(), store=store, secrets=["open sesame", "123456"])
    storage = agent.storage("things")
    await storage.put("k", {"text": "say open sesame", "open sesame": 123456, "json": '["open sesame"]'})
    assert await storage.get("k") == {"text": "say •••", "•••": "•••", "json": '["•••"]'}
    assert b"sesame" not in (await store.values.read("things", "k")).data
    for work in (
        lambda: storage.put("open sesame", 1),
        lambda: storage.add("k2", once="open sesame"),
        lambda: storage.hold("k2", "open sesame", limit=1, ttl=1),
    ):
        with pytest.raises(ConfigError, match="holds one of the agent's secrets; use a hash of it") as caught:
            await work()
        assert "sesame" not in str(caught.value)
    assert await storage.add("counter", 123456) == 123456
    assert await storage.get("counter") == 123456


async def test_a_store_without_values_says_so():
    class Old(MemoryStore):
        values = None

        def __setattr__(self, name, value):
            if name != "values":
                super().__setattr__(name, value)

    agent = Agent(ScriptedModel(says("fine")), store=Old())
    assert (await agent.run("go")).text == "fine"
    with pytest.raises(ConfigError, match="the store Old cannot keep values"):
        await agent.storage("a").get("k")


# ---------------------------------------------------------------- counters


async def test_a_counter_adds_and_can_be_set(storage):
    assert await storage.get("n", 0) == 0
    assert await storage.add("n") == 1
    assert await storage.add("n", 2.5) == 3.5
    assert await storage.add("n", -4) == -0.5
    await storage.put("n", 10)
    assert await storage.add("n", 0) == 10
    await storage.put("n", "ten")
    with pytest.raises(ConfigError, match="the value is not a number but of type str"):
        await storage.add("n")


async def test_an_id_is_counted_once_per_counter(storage):
    assert await storage.add("n", 5, once="s1/1/1") == 5
    assert await storage.add("n", 5, once="s1/1/1") == 5
    assert await storage.add("n", 5, once="s1/1/2") == 10
    assert await storage.add("other", 5, once="s1/1/1") == 5
    assert await asyncio.gather(*[storage.add("n", 1, once="s2") for _ in range(10)]) == [11] * 10
    await storage.delete("n")
    assert await storage.add("n", 5, once="s1/1/1") == 5


async def test_a_counter_with_a_ttl_begins_anew_and_remembers_an_id_for_as_long(storage, clock):
    assert await storage.add("n", 1, once="a", ttl=60) == 1
    clock.tick(50)
    assert await storage.add("n", 1, once="b", ttl=60) == 2
    clock.tick(20)
    assert await storage.get("n") is None
    assert await storage.add("n", 1, once="b", ttl=60) == 0
    assert await storage.add("n", 1, once="c", ttl=60) == 1


async def test_pruning_forgets_ids_that_have_expired(storage, store, clock):
    await storage.add("n", 1, once="a", ttl=60)
    await storage.add("kept", 1, once="a")
    clock.tick(61)
    await store.prune(before=clock.now())
    assert await storage.keys() == ["kept"]
    assert await storage.add("n", 1, once="a", ttl=60) == 1
    assert await storage.add("kept", 1, once="a") == 1


# ---------------------------------------------------------------- amounts within a limit


async def test_a_rate_comes_back_evenly(storage, clock):
    take = lambda n=1, **options: storage.take("calls", n, limit=6, per=60, **options)  # noqa: E731
    assert [bool(await take()) for _ in range(7)] == [True] * 6 + [False]
    refused = await take(2)
    assert refused == Taken(False, wait=20.0, left=0.0)
    clock.tick(refused.wait)
    assert await take(2)
    clock.tick(1000)
    assert (await take(0)).left == 6
    assert await take(7) == Taken(False, wait=inf, left=6)


async def test_a_fixed_window_comes_back_at_once(storage, clock):
    take = lambda n=1: storage.take("calls", n, limit=2, ttl=3600)  # noqa: E731
    assert await take()
    clock.tick(600)
    assert await take()
    assert await take() == Taken(False, wait=3000.0, left=0.0)
    clock.tick(3000)
    assert (await take()).left == 1
    assert await take()
    assert not await take()


async def test_a_quota_comes_back_when_it_is_given_back(storage):
    assert await storage.take("seats", 3, limit=3)
    assert await storage.take("seats", limit=3) == Taken(False, wait=inf, left=0)
    assert await storage.take("seats", -2, limit=3) == Taken(True, left=2)
    assert await storage.take("seats", 2, limit=3)
    assert (await storage.take("seats", -100, limit=3)).left == 3
    assert await storage.take("seats", 4, limit=5)
    assert (await storage.take("seats", 0, limit=3)).left == -1


async def test_borrowed_amounts_are_covered_one_after_the_other(storage, clock):
    waits = [(await storage.take("calls", 30, limit=60, per=60, borrow=True)).wait for _ in range(4)]
    assert waits == [0, 0, 30, 60]
    assert not await storage.take("calls", limit=60, per=60)
    assert (await storage.take("calls", -30, limit=60, per=60)).left == -30
    clock.tick(31)
    assert await storage.take("calls", limit=60, per=60)
    assert (await storage.take("big", 90, limit=60, per=60, borrow=True)).wait == 30


async def test_an_id_takes_once_and_a_refused_one_may_try_again(storage, clock):
    take = lambda once: storage.take("calls", limit=2, per=60, once=once)  # noqa: E731
    assert [await take("a") for _ in range(3)] == [Taken(True, left=1)] * 3
    assert await take("b")
    assert not await take("c")
    clock.tick(30)
    assert await take("c")


async def test_a_clock_that_is_behind_gets_no_more_than_the_limit(store, clock):
    ahead, behind = [Agent(ScriptedModel(), store=store, clock=c).storage("s") for c in (FakeClock(1030.0), clock)]
    assert await ahead.take("calls", 2, limit=2, per=60)
    assert await behind.take("calls", limit=2, per=60) == Taken(False, wait=60.0, left=0)
    clock.tick(60)
    assert await behind.take("calls", limit=2, per=60)


async def test_permits_are_held_by_name_until_they_are_released_or_expire(storage, clock):
    hold = lambda holder: storage.hold("slots", holder, limit=2, ttl=10)  # noqa: E731
    assert await hold("a") == Taken(True, left=1)
    clock.tick(4)
    assert await hold("b") == Taken(True, left=0)
    assert await hold("c") == Taken(False, wait=6.0)
    await storage.release("slots", "b")
    await storage.release("slots", "unknown")
    assert await hold("c")
    assert await hold("a")
    clock.tick(9)
    assert not await hold("d")
    clock.tick(1)
    assert await hold("d")
    for holder in "acd":
        await storage.release("slots", holder)
    assert await storage.keys() == []


async def test_a_key_is_used_in_one_way(storage):
    await storage.put("k", {"a": 1})
    for work in (storage.take("k", limit=1), storage.hold("k", "a", limit=1, ttl=1), storage.release("k", "a")):
        with pytest.raises(ConfigError, match=r"the key has a value that (take|hold) did not make"):
            await work
    assert await storage.get("k") == {"a": 1}


async def test_no_more_is_granted_than_the_limit_however_many_ask(storage):
    taken = await asyncio.gather(*[storage.take("calls", limit=7, per=60) for _ in range(30)])
    held = await asyncio.gather(*[storage.hold("slots", str(n), limit=7, ttl=60) for n in range(30)])
    assert [sum(map(bool, answers)) for answers in (taken, held)] == [7, 7]


async def test_memory_drops_expired_values_by_itself(clock):
    store = MemoryStore()
    storage = fake_storage(clock=clock, store=store)
    for number in range(5000):
        clock.tick(1)
        await storage.put(str(number), number, ttl=10)
    assert len(await store.values.find("test")) <= 2048
    assert len(await storage.keys()) == 10


# ---------------------------------------------------------------- in a turn


class Quota:
    """Lets each user make some calls, and counts what was done."""

    def __init__(self, limit: int = 2) -> None:
        self.limit = limit

    def install(self, registrar: Any) -> None:
        storage = registrar.storage("quota")

        @registrar.gate(ToolCalling, inherit=True)
        async def within_quota(event: ToolCalling, turn: Turn[Any]) -> Any:
            if not await storage.take("calls", limit=self.limit, once=event.call.id):
                return Deny("the quota is used up")
            return Allow()

        @registrar.wrap(ModelCall)
        async def count_models(request: Any, call_next: Any) -> Any:
            await storage.add("model calls")
            return await call_next(request)

        @registrar.wrap(ToolCall)
        async def count_tools(call: Any, call_next: Any) -> Any:
            result = await call_next(call)
            await storage.add("tool calls", once=call.id)
            return result

        @registrar.observe(ModelReplied, durable=True)
        async def count_replies(fact: ModelReplied, turn: Turn[Any]) -> None:
            await storage.add("replies", once=f"{turn.session_id} {fact.seq}")

        @registrar.gate(Continuing)
        async def enough(event: Continuing) -> Any:
            return Vote.FORBID if await storage.get("enough") else None


@tool(effect="idempotent")
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def quota_agent(store: Store, *replies: Any, **options: Any) -> Agent[Any, Any]:
    model = ScriptedModel(*(replies or [calls("look", n=1), calls("look", n=2), calls("look", n=3), says("done")]))
    return Agent(model, tools=[look], store=store, capabilities=[Quota()], **options)


async def _through_run(agent: Agent[Any, Any]) -> None:
    await agent.run("go", session="s")


async def _through_stream(agent: Agent[Any, Any]) -> None:
    async for _ in agent.stream("go", session="s"):
        pass


async def _through_iterate(agent: Agent[Any, Any]) -> None:
    async for _ in agent.iterate("go", session="s"):
        pass


@pytest.mark.parametrize("way", [_through_run, _through_stream, _through_iterate])
async def test_hooks_of_every_kind_use_it_however_the_turn_runs(store, way):
    agent = quota_agent(store)
    await way(agent)
    await agent.aclose()
    storage = agent.storage("quota")
    found = {key: await storage.get(key) for key in ("model calls", "tool calls", "replies")}
    assert found == {"model calls": 4, "tool calls": 2, "replies": 4}
    results = [r for r in await store.read("s") if isinstance(r, ToolReturned)]
    assert [r.result.status for r in results] == ["ok", "ok", "denied"]


async def test_a_gate_on_continuing_reads_it(store):
    agent = quota_agent(store)
    await agent.storage("quota").put("enough", True)
    assert (await agent.run("go")).state.steps == 1


async def test_tools_use_it_and_the_application_reads_it_at_any_time(store):
    agent = Agent(ScriptedModel(calls("remember", what="tea"), says("ok")), store=store)
    memory = agent.storage("memory")

    @agent.tool
    async def remember(what: str) -> str:
        """Remember."""
        await memory.put(what, True)
        return "ok"

    await agent.run("go")
    assert await agent.storage("memory").keys() == ["tea"]


async def test_a_gate_that_is_asked_again_on_resume_takes_nothing_twice(store):
    def made(*replies: Any) -> Agent[Any, Any]:
        agent = quota_agent(store, *replies)
        agent.gate(ToolCalling, name="ask")(lambda event: Ask("may it?"))
        return agent

    first = await made(calls("look", n=1)).run("go", session="s")
    assert isinstance(first.outcome, Suspended)
    agent = made(says("done"))
    result = await agent.resume("s", answers={first.waiting_for[0].id: Approve()})
    assert result.text == "done"
    storage = agent.storage("quota")
    assert await storage.get("tool calls") == 1
    assert (await storage.take("calls", 0, limit=2)).left == 1


@pytest.mark.parametrize("own", ["memory:", None])
async def test_a_sub_agent_keeps_its_values_in_the_store_of_its_parent(store, clock, own):
    helper = Agent(
        ScriptedModel(calls("look", n=1), says("helped")),
        tools=[look],
        capabilities=[Quota()],
        store=own,
        name="helper",
        secrets=["child secret"],
    )
    notes = helper.storage("notes")

    @helper.gate(ModelCalling)
    async def write(event: ModelCalling) -> None:
        await notes.put("k", "parent secret, child secret", ttl=10)

    parent = Agent(
        ScriptedModel(calls("helper", task="help"), says("done")),
        tools=[helper.as_tool()],
        store=store,
        clock=clock,
        secrets=["parent secret"],
    )
    assert (await parent.run("go", session="s")).text == "done"
    await parent.aclose()
    quota = parent.storage("quota")
    assert {key: await quota.get(key) for key in ("model calls", "tool calls", "replies")} == {
        "model calls": 2, "tool calls": 1, "replies": 2,
    }  # fmt: skip
    assert await parent.storage("notes").get("k") == "•••, •••"
    clock.tick(10)
    assert await parent.storage("notes").get("k") is None
    assert await notes.keys() == []
    assert await helper.storage("quota").keys() == []


async def test_observers_of_a_sub_agent_use_the_store_of_its_parent(store):
    helper = Agent(ScriptedModel(says("helped")), name="helper")
    counts = helper.storage("counts")
    for fact, options in ((ModelReplied, {}), (ModelReplied, {"wait": True}), (TurnEnded, {"durable": True})):

        @helper.observe(fact, name=f"{fact.__name__} {options}", **options)
        async def count(fact: Any) -> None:
            await counts.add(type(fact).__name__)

    parent = Agent(ScriptedModel(calls("helper", task="x"), says("done")), tools=[helper.as_tool()], store=store)
    await parent.run("go")
    await parent.aclose()
    assert await parent.storage("counts").items() == {"ModelReplied": 2, "TurnEnded": 1}
    assert await counts.keys() == []


async def test_hooks_that_a_sub_agent_inherits_use_the_storage_of_their_agent(store):
    helper = Agent(ScriptedModel(calls("look", n=1), calls("look", n=2), says("helped")), tools=[look], name="helper")
    parent = Agent(
        ScriptedModel(calls("helper", task="help"), says("done")),
        tools=[helper.as_tool()],
        store=store,
        capabilities=[Quota(limit=2)],
    )
    await parent.run("go", session="s")
    [child] = [name for name in await store.sessions() if name != "s"]
    results = [r for r in await store.read(child) if isinstance(r, ToolReturned)]
    assert [r.result.status for r in results] == ["ok", "denied"]


async def test_an_agent_that_a_tool_of_a_sub_agent_runs_by_itself_has_its_own_store():
    inner = Agent(FunctionModel(lambda request: _says("x")), store="memory:")

    @inner.wrap(ModelCall)
    async def count(request: Any, call_next: Any) -> Any:
        await inner.storage("inner").add("n")
        return await call_next(request)

    helper = Agent(ScriptedModel(calls("ask_inner"), says("helped")), name="helper")
    helper.storage("used")

    @helper.tool
    async def ask_inner() -> str:
        """Ask."""
        return (await inner.run("go")).text

    parent = Agent(ScriptedModel(calls("helper", task="help"), says("done")), tools=[helper.as_tool()])
    assert (await parent.run("go")).text == "done"
    assert await inner.storage("inner").get("n") == 1
    assert await parent.storage("inner").keys() == []


async def _says(text: str) -> Any:
    return says(text)


async def test_a_collection_of_hooks_has_its_storage_in_the_agent_that_it_becomes_part_of(store):
    from windlass import Hooks

    hooks = Hooks()
    storage = hooks.storage("things")

    @hooks.gate(ModelCalling)
    async def count(event: ModelCalling) -> None:
        await storage.add("n")

    with pytest.raises(ConfigError, match="these hooks are not part of an agent yet"):
        await storage.get("n")
    agent = Agent(ScriptedModel(says("x")), pipeline=Pipeline.minimal().with_hooks(hooks), store=store)
    await agent.run("go")
    assert await agent.storage("things").get("n") == 1
    with pytest.raises(ConfigError, match="cannot be part of two agents"):
        Agent(ScriptedModel(says("x")), pipeline=Pipeline.minimal().with_hooks(hooks)).compile()


# ---------------------------------------------------------------- the kit


async def test_a_hook_is_tested_alone_with_a_storage(clock):
    storage = fake_storage(clock=clock)

    @tool
    async def remember(what: str) -> str:
        """Remember."""
        await storage.put(what, True, ttl=5)
        return "ok"

    assert await remember("tea") == "ok"
    assert await storage.keys() == ["tea"]
    clock.tick(5)
    assert await storage.keys() == []


async def test_a_capability_that_uses_a_storage_passes_the_checks_for_capabilities():
    assert not (await check_capability(lambda: Quota(limit=100))).failed


async def test_a_fake_turn_has_the_storage_of_its_agent(clock):
    agent = Agent(ScriptedModel(), capabilities=[Quota(limit=1)], clock=clock)
    turn = fake_turn(agent=agent)
    assert turn.now() == clock.now()
    assert await agent.storage("quota").take("calls", limit=1)


async def test_an_id_with_a_ttl_is_forgotten_when_that_is_over(store):
    clock = FakeClock()
    storage = Agent(ScriptedModel(says("x")), store=store, clock=clock).storage("n")
    assert await storage.add("visitors", once="ann", ttl=60) == 1
    assert await storage.add("visitors", once="ann", ttl=60) == 1
    clock.tick(1000)
    assert await storage.add("visitors", once="ann", ttl=60) == 1
    assert await storage.get("visitors") == 1
    assert await storage.take("mails", limit=1, ttl=60, once="ann")
    clock.tick(1000)
    assert await storage.take("mails", limit=1, ttl=60, once="bob")
    assert not await storage.take("mails", limit=1, ttl=60, once="ann")
