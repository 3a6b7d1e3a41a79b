"""Forks: a session cut at any record goes on like any other, with its sub-agents, and its origin does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Answered,
    Approve,
    Ask,
    Cancelled,
    Completed,
    Deny,
    MessageAdding,
    ModelCalling,
    ModelReplying,
    Reject,
    SessionStarting,
    Slot,
    State,
    StepStarting,
    TextDelta,
    ToolCall,
    ToolCalling,
    Turn,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.errors import SessionConflict, SessionError, SessionUnknown
from windlass.protocols import Store
from windlass.records import (
    CancelRequested,
    Charged,
    Delegated,
    MessageHeld,
    ModelReplied,
    Record,
    SessionOpened,
    Suspended,
    ToolCalled,
    ToolReturned,
)
from windlass.states import fold
from windlass.stores import MemoryStore, SQLiteStore, open_store
from windlass.testing import FunctionModel, ScriptedModel, World, calls, says, unpaired
from windlass.testing.crashing import Life, _differences, _repeated_calls, as_scenario, live
from windlass.testing.worlds import Journal
from windlass.transfer import export_session, import_session

from .crash import scenarios


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    memory = request.param == "memory"
    made: Store = MemoryStore(keep_ended=1000) if memory else SQLiteStore(tmp_path / "a.db", synchronous="NORMAL")
    yield made
    await made.close()


class Open:
    """A store that stays open whoever closes it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def close(self) -> None:
        """The fixture does it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def exported(store: Store, names: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Sessions byte by byte, with their chains; all of them if none are named."""
    return {name: await export_session(store, name) for name in names or await store.sessions()}


async def lived(play: Any, world: World) -> Life:
    left: dict[str, Any] = {}
    async with asyncio.timeout(30):
        await live(play, world, left.__setitem__)
    return left["life"]


async def forked_everywhere(play: Any, given: Store, folder: Path, exact: bool = True, ends: Any = ()) -> list[str]:
    """What is wrong with the forks of a scenario, cut at every record it writes and played to their ends."""
    store: Any = Open(given)
    world = World(Journal(folder / "journal"), store, "session")
    base = await lived(play, world)
    assert base.violations == []
    notes = world._journal.notes()
    before, records = await exported(store), await store.read("session")
    wrong: list[str] = []
    for at in range(1, len(records) + 1):
        journal = Journal(folder / f"journal-{at}", 1)
        journal.path.write_bytes((folder / "journal").read_bytes())
        fork = World(journal, store, f"fork-{at}")
        await as_scenario(play(fork), fork).agent.fork("session", at=at, to=fork.session)
        copied = [record for name in await _of(store, fork.session) for record in await store.read(name)]
        life = await lived(play, fork)
        found = [*life.violations]
        if (life.outcome.partition("(")[0], life.text) not in ends:
            found += _differences(base, life, exact)
        found += _repeated_calls(notes, journal.notes(), life.recorded, 1, exact)
        called = sum(isinstance(record, ToolCalled) and record.name == "send" for record in copied)
        sent = [note.process for note in journal.notes() if note.what == "effect" and note.name.startswith("send")]
        if called + sent.count(1) > sent.count(0):
            found.append(f"{called} were sent, {sent.count(1)} again, {sent.count(0)} in the original")
        after = await exported(store, before)
        found += [f"{name} is not what it was" for name, lines in before.items() if after[name] != lines]
        wrong += [f"forked at {at}, {type(records[at - 1]).__name__}: {what}" for what in found]
    return wrong


async def _of(store: Store, session: str) -> list[str]:
    return [name for name in await store.sessions() if name == session or name.startswith(f"{session}//")]


LOOSE: dict[Any, list[tuple[str, str]]] = {
    scenarios.regeneration: [],
    scenarios.retries: [],
    scenarios.cancelled: [],
    scenarios.cancelled_from_outside: [("Completed", "done")],
    scenarios.injections: [],
    scenarios.steering: [],
    scenarios.steered_at_the_end: [("Completed", "done?")],
    scenarios.superseded: [("Failed", "")],
    scenarios.in_the_background: [],
    scenarios.in_the_background_of_hooks: [],
}
"""What is not the same in every fork, and what else may come of one.

Who steered or cancelled the other session did not do so in the fork, what fails at first does not fail again, agents in
the background work for the other session, and a cut may part what a hook adds from what it is added to."""


IN_THE_STORE = [scenarios.counted]
"""Their turns depend on values that belong to the store, not to the session: a fork finds them as they are by then."""


@pytest.mark.parametrize(
    "play", [play for play in scenarios.ALL if play not in IN_THE_STORE], ids=lambda play: play.__name__
)
async def test_a_fork_at_any_record_comes_to_the_same_end(play: Any, store: Store, tmp_path: Path):
    wrong = await forked_everywhere(play, store, tmp_path, play not in LOOSE, LOOSE.get(play, ()))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("play", [scenarios.delegated, scenarios.two_below], ids=lambda play: play.__name__)
async def test_sub_agents_are_forked_on_a_server_as_well(play: Any, database: str, tmp_path: Path):
    store = open_store(database)
    wrong = await forked_everywhere(play, store, tmp_path)
    await store.close()
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- what was answered, and what was done


class Shop:
    """Agents over one store whose models answer by what they read, and a tool that notes what it did.

    `depth` is how many agents are between the one that is run and the one that pays.
    """

    def __init__(self, store: Store, depth: int = 1, event: Any = ToolCalling, **options: Any) -> None:
        self.store = store
        self.paid: list[str] = []
        self.hold: asyncio.Event | None = None
        self.began = asyncio.Event()

        @tool(**options)
        async def pay(euros: int, idempotency_key: str) -> str:
            """Pay."""
            self.paid.append(idempotency_key)
            self.began.set()
            if self.hold is not None:
                await self.hold.wait()
            return f"paid {euros}"

        agent: Agent[Any, Any] = Agent(FunctionModel(_once(calls("pay", euros=5))), tools=[pay], name="a0", store=store)
        if event is not None:
            agent.gate(event, name="ask")(lambda event: Ask("May it?"))
        for level in range(1, depth + 1):
            model = FunctionModel(_once(calls(agent.name, task="pay")))
            agent = Agent(model, tools=[agent.as_tool()], name=f"a{level}", store=store)
        self.agent = agent

    async def finish(self, session: str, answer: Any = Approve()) -> State:  # noqa: B008
        """Go on with a session to its end, with the same answer to all that is asked."""
        state = fold(session, await self.store.read(session))
        if not state.turns:
            state = (await self.agent.run("go", session=session)).state
        while not state.over:
            waiting = state.waiting if isinstance(state.outcome, Suspended) else ()
            state = (await self.agent.resume(session, answers={asked.id: answer for asked in waiting})).state
        return state

    async def at(self, session: str, kind: type[Record]) -> int:
        """After which record one of this kind is there, the first of them."""
        return next(at for at, record in enumerate(await self.store.read(session), 1) if isinstance(record, kind))


def _once(first: Any) -> Any:
    """A model that calls once in a turn, then is done."""

    def reply(request: Any) -> Any:
        return says("done") if any(message.role == "tool" for message in request.messages) else first

    return reply


EVENTS = [None, TurnStarting, ModelCalling, ModelReplying, ToolCalling, TurnEnding]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: getattr(event, "__name__", "none"))
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_whatever_is_asked_a_fork_asks_for_itself_and_comes_to_its_end(store: Store, depth: int, event: Any):
    shop = Shop(store, depth, event)
    whole = await shop.finish("s")
    assert (whole.outcome, len(shop.paid)) == (Completed(), 1)
    before = await exported(store)
    for at, record in enumerate(await store.read("s"), 1):
        where = f"forked at {at}, {type(record).__name__}"
        state = await shop.finish(await shop.agent.fork("s", at=at))
        assert (state.outcome, state.text, state.waiting) == (Completed(), whole.text, ()), where
        assert [message.role for message in state.messages] == [message.role for message in whole.messages], where
        assert state.usage == whole.usage, where
        assert "Error" not in repr(state.messages), where
        assert before == await exported(store, before), where
    assert set(shop.paid) & {"s" + "//1/1" * depth + "/1/1"} == {shop.paid[0]}


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_nothing_is_done_in_a_fork_because_of_an_answer_in_the_original(store: Store, depth: int):
    shop = Shop(store, depth)
    await shop.finish("s")
    for at in range(1, len(await store.read("s")) + 1):
        shop.paid.clear()
        fork = await shop.agent.fork("s", at=at)
        await shop.finish(fork, Reject("no"))
        assert shop.paid == [], f"forked at {at}"


@pytest.mark.parametrize("depth", [1, 2])
async def test_what_a_sub_agent_did_before_the_cut_is_not_done_again(store: Store, depth: int):
    shop = Shop(store, depth)
    await shop.finish("s")
    answered = await shop.at("s", Answered)
    for at in range(answered, len(await store.read("s")) + 1):
        shop.paid.clear()
        fork = await shop.agent.fork("s", at=at)
        assert (await shop.agent.state(fork)).waiting == ()
        result = await shop.agent.resume(fork) if not (await shop.agent.state(fork)).over else None
        assert result is None or (result.outcome, result.text) == (Completed(), "done")
        assert shop.paid == []


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_answer_that_a_sub_agent_has_not_acted_on_does_not_travel(store: Store, depth: int):
    """As after a crash: the answer is in the logs above, and maybe in its own, but the call was not made."""
    whole = Shop(MemoryStore(), depth)
    await whole.finish("s")
    names = ["s" + "//1/1" * level for level in range(depth + 1)]
    logs = {name: await whole.store.read(name) for name in names}
    waited, called = await whole.at(names[-1], Suspended), await whole.at(names[-1], ToolCalled)
    for number, count in enumerate(range(waited, called)):
        shop = Shop(store, depth)
        renamed = {name: name.replace("s", f"s{number}", 1) for name in names}
        for name in names[:-1]:
            await store.append(renamed[name], _moved(logs[name][: await whole.at(name, Answered)], renamed), 0)
        await store.append(renamed[names[-1]], _moved(logs[names[-1]][:count], renamed), 0)
        fork = await shop.agent.fork(f"s{number}")
        (asked,) = (await shop.agent.state(fork)).waiting
        assert [again.id for again in (await shop.agent.resume(fork)).waiting_for] == [asked.id]
        assert shop.paid == []
        assert (await shop.agent.resume(fork, answers={asked.id: Reject("no")})).outcome == Completed()
        assert shop.paid == []
        assert (await shop.agent.resume(f"s{number}")).outcome == Completed()
        assert len(shop.paid) == 1


def _moved(records: Any, names: dict[str, str]) -> list[Record]:
    """The records with the sessions of sub-agents under other ids."""
    moved: list[Record] = []
    for record in records:
        if isinstance(record, Delegated | Charged):
            record = record.replace(session=names[record.session])
        elif isinstance(record, SessionOpened) and record.parent:
            record = record.replace(parent=names[record.parent])
        moved.append(record)
    return moved


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_sub_agent_that_waited_waits_in_the_fork(store: Store, depth: int):
    shop = Shop(store, depth)
    await shop.finish("s")
    fork = await shop.agent.fork("s", at=await shop.at("s", Suspended))
    for level in range(depth + 1):
        name = fork + "//1/1" * level
        state = fold(name, await store.read(name))
        assert isinstance(state.outcome, Suspended)
        assert state.outcome.waiting_for == state.waiting != ()


@pytest.mark.parametrize("depth", [1, 2])
async def test_the_question_of_a_sub_agent_is_answered_in_each_fork_alone(store: Store, depth: int):
    shop = Shop(store, depth)
    (asked,) = (await shop.agent.run("go", session="s")).waiting_for
    rejecting, approving = await shop.agent.fork("s", to="no"), await shop.agent.fork("s", to="yes")
    assert sorted({session for session, _ in await store.approvals()}) == sorted(await store.sessions())
    (there,) = (await shop.agent.state(rejecting)).waiting
    assert there == asked  # the same call, and so the same id
    await shop.agent.resolve(rejecting, there.id, Reject("no"))
    await shop.agent.resolve(approving, there.id, Approve())
    assert (await shop.agent.resume(rejecting)).outcome == Completed()
    assert shop.paid == []
    assert (await shop.agent.resume(approving)).outcome == Completed()
    assert len(shop.paid) == 1
    assert (await shop.agent.state("s")).waiting == (asked,)
    assert (await shop.finish("s")).outcome == Completed()


async def test_an_answer_from_another_process_is_heard_in_a_fork_that_asks_again(store: Store):
    shop = Shop(store, 0)
    (asked,) = (await shop.agent.run("go", session="s")).waiting_for
    await shop.agent.resolve("s", asked.id, Approve())
    assert (await shop.agent.resume("s")).outcome == Completed()
    fork = await shop.agent.fork("s", at=await shop.at("s", Answered))
    await shop.agent.resolve(fork, asked.id, Reject("not here"))
    result = await shop.agent.resume(fork)
    assert (result.outcome, result.waiting_for, len(shop.paid)) == (Completed(), (), 1)
    assert "not here" in repr(result.messages)


# ---------------------------------------------------------------- what was cut off in the middle


async def _cancelled(shop: Shop, session: str) -> None:
    """A turn that is cancelled while the tool runs."""
    shop.hold = asyncio.Event()
    running = asyncio.ensure_future(shop.agent.run("go", session=session))
    await shop.began.wait()
    await shop.agent.cancel(session, "enough")
    await running
    shop.hold = None


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_unsafe_call_of_a_sub_agent_is_in_doubt_in_a_fork(store: Store, depth: int):
    shop = Shop(store, depth, None)
    await _cancelled(shop, "s")
    before = await exported(store)
    fork = await shop.agent.fork("s", at=await shop.at("s", Delegated))
    result = await shop.agent.resume(fork)
    assert (result.outcome, result.text, len(shop.paid)) == (Completed(), "done", 1)
    lowest = fork + "//1/1" * depth
    (returned,) = [record for record in await store.read(lowest) if isinstance(record, ToolReturned)]
    assert (returned.call, returned.result.status) == ("s" + "//1/1" * depth + "/1/1", "interrupted")
    assert before == await exported(store, before)


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_idempotent_call_of_a_sub_agent_is_made_again_with_its_key(store: Store, depth: int):
    shop = Shop(store, depth, None, effect="idempotent")
    await _cancelled(shop, "s")
    result = await shop.agent.resume(await shop.agent.fork("s", at=await shop.at("s", Delegated)))
    assert (result.outcome, shop.paid) == (Completed(), ["s" + "//1/1" * depth + "/1/1"] * 2)


async def test_a_person_is_asked_in_the_fork_about_a_call_in_doubt(store: Store):
    shop = Shop(store, 2, None, in_doubt="ask")
    await _cancelled(shop, "s")
    forks = [await shop.agent.fork("s", at=await shop.at("s", Delegated)) for _ in range(2)]
    for fork, answer in zip(forks, [Reject("leave it"), Approve()], strict=True):
        (asked,) = (await shop.agent.resume(fork)).waiting_for
        assert asked.id == "s//1/1//1/1/1/1/doubt.1"
        assert (await shop.agent.resume(fork, answers={asked.id: answer})).outcome == Completed()
    assert shop.paid == ["s//1/1//1/1/1/1"] * 2


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_cancel_counts_in_a_fork_that_has_it(store: Store, depth: int):
    shop = Shop(store, depth, None)
    await _cancelled(shop, "s")
    requested = await shop.at("s", CancelRequested)
    for at in range(1, len(await store.read("s")) + 1):
        state = await shop.finish(await shop.agent.fork("s", at=at))
        assert state.outcome == (Cancelled("enough") if at >= requested else Completed()), f"forked at {at}"
        assert unpaired(state.messages) == []


async def test_a_session_can_be_forked_while_its_sub_agent_works(store: Store):
    shop = Shop(store, 2, None, effect="idempotent")
    shop.hold = asyncio.Event()
    running = asyncio.ensure_future(shop.agent.run("go", session="s"))
    await shop.began.wait()
    fork = await shop.agent.fork("s")
    shop.hold.set()
    assert (await running).outcome == (await shop.agent.resume(fork)).outcome == Completed()
    if store.durable:  # else the log may not tell of the call yet
        assert shop.paid == ["s//1/1//1/1/1/1"] * 2


async def test_an_answer_that_a_sub_agent_heard_while_it_worked_does_not_travel_before_it_is_charged(store: Store):
    release, ran = asyncio.Event(), list[str]()

    @tool(effect="idempotent")
    async def wait() -> str:
        """Wait for the others."""
        await release.wait()
        return "waited"

    @tool
    async def send(n: int) -> str:
        """Send."""
        ran.append(f"send {n}")
        return "sent"

    wanted = [("wait", {}), ("send", {"n": 1})]
    rows = [calls(wanted), calls("send", n=2), says("helped")]
    model = FunctionModel(lambda request: rows[sum(m.role == "assistant" for m in request.messages)])
    helper = Agent(model, tools=[wait, send], name="helper")
    helper.gate(ToolCalling, tool="send")(lambda event: Ask("sure?"))
    agent = Agent(FunctionModel(_once(calls("helper", task="help"))), tools=[helper.as_tool()], store=store)
    running = asyncio.ensure_future(agent.run("go", session="s"))
    while not await store.approvals("s//1/1"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await agent.resolve("s//1/1", "s//1/1/1/2", Approve())
    release.set()
    (second,) = (await running).waiting_for
    assert (second.id, ran) == ("s//1/1/2/1", ["send 1"])
    records = list(await store.read("s"))
    charged = 1 + [isinstance(record, Charged) for record in records].index(True)
    early, late = await agent.fork("s", at=charged - 1), await agent.fork("s", at=charged)
    assert [asked.id for asked in (await agent.resume(early)).waiting_for] == ["s//1/1/1/2"]
    assert [asked.id for asked in (await agent.resume(late)).waiting_for] == ["s//1/1/2/1"]
    assert ran == ["send 1"]


# ---------------------------------------------------------------- what belongs together


@pytest.mark.parametrize("guarded", [False, True])
async def test_what_a_call_wrote_is_in_a_fork_once(store: Store, guarded: bool):
    seen = Slot("seen", list[int], merge=lambda old, new: old + new)

    @tool(effect="idempotent")
    async def note(turn: Turn) -> str:
        """Note something."""
        turn.add("noted")
        turn.add("secret")
        turn.set(seen, [1])
        return "yes"

    agent = Agent(FunctionModel(_once(calls("note"))), tools=[note], store=store)
    agent.slot(seen)
    if guarded:
        agent.gate(MessageAdding)(lambda event: Deny("never") if event.message.text == "secret" else None)
    await agent.run("go", session="s")
    records = await store.read("s")
    held = next(at for at, record in enumerate(records, 1) if isinstance(record, MessageHeld))
    for at in range(held - 2, len(records)):
        result = await agent.resume(await agent.fork("s", at=at))
        texts = [message.text for message in result.messages]
        assert (texts.count("noted"), texts.count("secret")) == (1, not guarded), f"forked at {at}"
        assert result.state.slots["seen"] == [1], f"forked at {at}"


async def test_a_reply_that_was_cut_short_is_asked_for_again(store: Store):
    model = ScriptedModel(says(chunks=["Once upon", " a time"], chunk_delay=30), says("The whole story."))
    agent = Agent(model, store=store)
    async with agent.stream("Tell me!", session="s") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
    replied = await Shop(store).at("s", ModelReplied)
    assert (await store.read("s"))[replied - 1].reply.message.partial
    result = await agent.resume(await agent.fork("s", at=replied))
    assert (result.outcome, result.text) == (Completed(), "The whole story.")


async def test_what_hooks_made_of_the_session_is_in_the_fork(store: Store):
    agent = Agent(FunctionModel(lambda request: says(request.system)), store=store)
    agent.gate(SessionStarting)(lambda event: Allow())
    agent.inject(SessionStarting)(lambda event: "Be brief.")
    assert (await agent.run("go", session="s")).text == "Be brief."
    for at in range(1, len(await store.read("s")) + 1):
        fork = await agent.fork("s", at=at)
        state = await agent.state(fork)
        result = await (agent.run("go", session=fork) if state.over else agent.resume(fork))
        assert result.text == "Be brief.", f"forked at {at}"


# ---------------------------------------------------------------- where the copies are


async def test_the_copies_are_below_the_fork_and_say_where_they_come_from(store: Store):
    shop = Shop(store, 2)
    await shop.agent.run("go", session="s")
    await shop.agent.fork("s", to="t")
    assert list(await store.sessions())[3:] == ["t//1/1//1/1", "t//1/1", "t"]
    for session, parent in {"t": "", "t//1/1": "t", "t//1/1//1/1": "t//1/1"}.items():
        (opened, *rest) = await store.read(session)
        origin = session.replace("t", "s")
        assert isinstance(opened, SessionOpened)
        assert (opened.how, opened.origin) == ("forked", f"{origin}@{len(await store.read(origin))}")
        assert opened.parent == parent
        assert not [record for record in rest if isinstance(record, Delegated) and record.session[0] != "t"]
        await store.verify(session)
    with pytest.raises(SessionError, match="belongs to a sub-agent"):
        await shop.agent.resume("t//1/1")


async def test_a_fork_of_a_fork_takes_the_sub_agents_along(store: Store):
    shop = Shop(store, 2, TurnStarting)
    await shop.agent.run("go", session="s")
    await shop.agent.fork("s", to="t")
    await shop.agent.fork("t", to="u")
    for name in ("u", "t", "s"):
        state = await shop.agent.state(name)
        assert isinstance(state.outcome, Suspended)
        assert [asked.id for asked in state.waiting] == [f"{name}//1/1//1/1/t1"]
        assert state.outcome.waiting_for == state.waiting
        assert (await shop.finish(name)).outcome == Completed()


async def test_the_second_attempt_at_a_task_is_forked_with_the_first(store: Store):
    shop = Shop(store)

    @shop.agent.wrap(ToolCall)
    async def twice(call: Any, call_next: Any) -> Any:
        await call_next(call)
        return await call_next(call)

    assert (await shop.finish("s")).outcome == Completed()
    assert shop.paid == ["s//1/1/1/1", "s//1/1.2/1/1"]
    before = await exported(store)
    started: set[tuple[str, ...]] = set()
    for at, record in enumerate(await store.read("s"), 1):
        fork = await shop.agent.fork("s", at=at, to="fork" + "+" * at)
        started.add(tuple([name.lstrip("fork+") for name in await store.sessions() if name.startswith(f"{fork}//")]))
        state = await shop.finish(fork)
        assert (state.outcome, unpaired(state.messages)) == (Completed(), []), f"forked at {at}, {record!r}"
        assert before == await exported(store, before)
    assert started == {(), ("//1/1",), ("//1/1.2", "//1/1")}


async def test_erasing_a_fork_leaves_the_original_and_its_sub_agents(store: Store):
    shop = Shop(store, 1)
    await shop.agent.run("go", session="s")
    before = await exported(store)
    await shop.agent.fork("s", to="t")
    assert await store.erase("t")
    assert await exported(store) == before
    assert (await shop.finish("s")).outcome == Completed()


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("at", [0, -1, 99])
async def test_a_session_can_only_be_cut_where_it_has_records(store: Store, at: int):
    shop = Shop(store, 0, None)
    await shop.agent.run("go", session="s")
    count = len(await store.read("s"))
    with pytest.raises(SessionError, match=f"session 's' has records 1 to {count}; it cannot be forked at {at}"):
        await shop.agent.fork("s", at=at)
    assert list(await store.sessions()) == ["s"]


async def test_what_is_not_there_cannot_be_forked(store: Store):
    with pytest.raises(SessionUnknown, match="there is no session 'nobody'"):
        await Shop(store).agent.fork("nobody")


async def test_a_fork_needs_a_free_name_for_itself_and_for_those_below(store: Store):
    shop = Shop(store)
    await shop.agent.run("go", session="s")
    await shop.agent.run("go", session="t")
    await store.append("u//1/1", [SessionOpened(parent="u")], 0)
    await shop.agent.fork("s", to="gone")
    await store.erase("gone//1/1")
    before = await exported(store)
    for to, name in {"s": "s", "t": "t", "u": "u//1/1"}.items():
        with pytest.raises(SessionConflict, match=f"session '{name}' already exists; fork to another id"):
            await shop.agent.fork("s", to=to)
    await store.erase("gone")
    del before["gone"]
    with pytest.raises(SessionConflict, match="session 'gone' was erased; fork to another id"):
        await shop.agent.fork("s", to="gone")
    assert await exported(store) == before


async def test_where_the_log_of_a_sub_agent_is_gone_there_is_no_fork(store: Store):
    shop = Shop(store)
    await shop.finish("s")
    at = await shop.at("s", Delegated)
    await store.erase("s//1/1")
    with pytest.raises(SessionUnknown, match=r"sub-agent 'a0' is running there, .* 's//1/1' is no longer in the store"):
        await shop.agent.fork("s", at=at)
    assert (await shop.finish(await shop.agent.fork("s", at=at - 1))).outcome == Completed()


# ---------------------------------------------------------------- agents that hooks gave a task


def remembering(store: Store, event: Any, ran: list[str]) -> Agent:
    """An agent with a hook that delegates while the turn is opened, or later."""

    def reply(request: Any) -> Any:
        ran.append(request.messages[-1].text)
        return says("tea")

    child = Agent(FunctionModel(reply, name="child"), name="child")
    agent = Agent(FunctionModel(lambda request: says("done")), store=store)

    @agent.inject(event, name="remember")
    async def remember(event: Any, turn: Turn) -> str:
        return (await turn.delegate(child, "remember")).text

    return agent


@pytest.mark.parametrize("event", [SessionStarting, TurnStarting, StepStarting])
async def test_an_agent_that_worked_for_a_hook_of_an_ended_turn_is_not_copied(store: Store, event: Any):
    agent = remembering(store, event, [])
    await agent.run("go", session="s")
    (below,) = [name for name in await store.sessions() if name.startswith("s//")]
    await agent.fork("s", to="whole")
    assert [name for name in await store.sessions() if name.startswith("whole")] == ["whole"]
    ended = len(await store.read("s"))
    await agent.fork("s", at=ended - 1, to="open")
    assert [name for name in await store.sessions() if name.startswith("open//")] == [below.replace("s//", "open//")]


@pytest.mark.parametrize("event", [SessionStarting, TurnStarting, StepStarting])
async def test_a_session_whose_hooks_delegated_can_be_imported_without_their_agents_and_forked(
    store: Store, event: Any
):
    ran: list[str] = []
    agent = remembering(store, event, ran)
    await agent.run("go", session="s")
    other = MemoryStore()
    lines = await export_session(store, "s")
    assert await import_session(other, lines) == "s"
    assert await import_session(other, lines, "t") == "t"
    elsewhere = remembering(other, event, ran)
    await elsewhere.fork("s", to="f")
    for session in ("s", "t", "f"):
        assert (await elsewhere.run("more", session=session)).text == "done"


async def test_an_open_turn_whose_hook_delegated_is_imported_under_its_own_id_only(store: Store):
    agent = remembering(store, TurnStarting, [])
    agent.gate(ModelReplying, name="ask")(lambda event: Ask("good?"))
    await agent.run("go", session="s")
    lines = await export_session(store, "s")
    with pytest.raises(SessionError, match="sub-agent 'child' is running there, for 'remember'"):
        await import_session(MemoryStore(), lines, "t")
