"""Moving sessions: as JSON lines from store to store, and as forks, which may be cut anywhere."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from windlass import (
    Agent,
    Answered,
    Approve,
    Ask,
    Asked,
    Completed,
    Delegating,
    Failed,
    Injected,
    ModelReplying,
    SessionStarting,
    ToolCalling,
    TurnStarting,
    tool,
)
from windlass.errors import SessionConflict, SessionError, SessionUnknown, StoreError
from windlass.protocols import Store
from windlass.records import Delegated, SessionOpened, SlotSet, StepEnded, ToolCalled, ToolReturned, encode
from windlass.stores import MemoryStore
from windlass.stores.batches import SLICE
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says, unpaired
from windlass.transfer import export_session, import_session


def _open(kind: str, path: Path) -> Store:
    return MemoryStore(keep_ended=1000) if kind == "memory" else SQLiteStore(path, synchronous="NORMAL")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = _open(request.param, tmp_path / "a.db")
    yield made
    await made.close()


@pytest.fixture(params=["memory", "sqlite"])
async def other(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = _open(request.param, tmp_path / "b.db")
    yield made
    await made.close()


class Shop:
    """An agent that lives through nearly everything: injections, tools of all kinds, an approval, a sub-agent."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.effects: list[str] = []
        effects = self.effects

        @tool(effect="pure")
        async def look() -> str:
            """Look."""
            return "seen"

        @tool(effect="idempotent")
        async def pay(idempotency_key: str) -> str:
            """Pay."""
            effects.append(f"pay {idempotency_key}")
            return "paid"

        @tool
        async def send() -> str:
            """Send."""
            effects.append("send")
            return "sent"

        clerk = Agent(FunctionModel(_clerk), tools=[send], name="clerk")
        self.agent: Agent[Any, Any] = Agent(
            FunctionModel(_keeper), tools=[look, pay, send, clerk.as_tool()], store=store
        )
        self.agent.inject(SessionStarting)(lambda event: "You keep a shop.")
        self.agent.inject(TurnStarting)(lambda event: "It rains.")
        self.agent.inject(TurnStarting, name="rule")(lambda event: Injected("Be brief.", durable=True))
        self.agent.inject(Delegating)(lambda event: "Hurry.")
        self.agent.gate(ToolCalling, tool="pay")(lambda event: Ask("Pay?"))
        self.agent.gate(ModelReplying)(lambda event: Ask("Say it?") if len(event.reply.tool_calls) < 3 else None)
        self.agent.gate(TurnStarting)(lambda event: Ask("Begin?"))

    async def finish(self, session: str) -> Any:
        """Go on with a turn, saying yes to all, or begin another one."""
        if (await self.agent.state(session)).over:
            result = await self.agent.run("And now?", session=session)
        else:
            result = await self.agent.resume(session)
        while result.waiting_for:
            result = await self.agent.resume(session, answers={asked.id: Approve() for asked in result.waiting_for})
        return result

    async def logs(self, *sessions: str) -> list[Any]:
        return [list(await self.store.read(session)) for session in sessions]


def _clerk(request: Any) -> Any:
    assert "Hurry." in repr(request.messages)
    return calls("send") if len(request.messages) == 1 else says("packed")


def _keeper(request: Any) -> Any:
    """Each turn: three calls at once, then a task for the clerk, then a word."""
    assert "It rains." in repr(request.messages)
    assert "You keep a shop." in request.system
    replies = 0
    for message in request.messages:
        if message.role == "assistant":
            replies = 0 if message.text == "done" else replies + 1
    return [calls([("look", {}), ("pay", {}), ("send", {})]), calls("clerk", task="pack it"), says("done")][replies]


async def lived(store: Store, session: str = "s") -> Shop:
    shop = Shop(store)
    await shop.agent.run("Sell!", session=session)
    await shop.finish(session)
    return shop


# ---------------------------------------------------------------- export and import


async def same_chain(store: Store, other: Store) -> None:
    """What was moved is the same, link by link."""
    assert await export_session(other, "s") == await export_session(store, "s")
    assert await other.verify("s") == await store.verify("s")


async def test_a_session_comes_out_of_another_store_as_it_was(store, other):
    shop = await lived(store)
    lines = await export_session(store, "s")
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert await import_session(other, lines) == "s"
    assert list(await other.read("s")) == list(await store.read("s"))
    await same_chain(store, other)
    moved = Shop(other)
    assert await moved.agent.state("s") == await shop.agent.state("s")
    assert (await moved.finish("s")).text == "done"


async def test_a_turn_that_waits_can_be_moved_and_goes_on_there(store, other):
    shop = Shop(store)
    await shop.agent.run("Sell!", session="s")
    await import_session(other, await export_session(store, "s"))
    assert list(await other.approvals()) == list(await store.approvals())
    moved = Shop(other)
    assert (await moved.finish("s")).text == "done"
    assert moved.effects == ["send", "pay s/1/2", "send"]


@pytest.mark.parametrize("cut", ["waiting for a call", "waiting for a reply", "over"])
async def test_under_another_id_a_session_goes_on_as_well(store, other, cut):
    shop = Shop(store)
    result = await shop.agent.run("Sell!", session="s")
    while result.waiting_for and not (cut == "waiting for a reply" and result.waiting_for[0].event == "ModelReplying"):
        if cut == "waiting for a call":
            break
        answers = {asked.id: Approve() for asked in result.waiting_for}
        result = await shop.agent.resume("s", answers=answers)
    assert await import_session(other, await export_session(store, "s"), "t") == "t"
    assert list(await other.sessions()) == ["t"]
    await other.verify("t")
    result = await Shop(other).finish("t")
    assert (result.outcome, result.text, unpaired(result.messages)) == (Completed(), "done", [])


async def test_a_session_whose_sub_agent_is_at_work_keeps_its_id(store, other):
    child = Agent(ScriptedModel(calls("send")), tools=[tool(_send)], name="clerk")
    child.gate(ToolCalling)(lambda event: Ask("Send?"))
    agent = Agent(ScriptedModel(calls("clerk", task="pack")), tools=[child.as_tool()], store=store)
    assert (await agent.run("go", session="s")).waiting_for
    lines = await export_session(store, "s")
    with pytest.raises(SessionError, match=r"sub-agent 'clerk' is running there.*import it under its own id"):
        await import_session(other, lines, "t")
    assert list(await other.sessions()) == []
    assert await import_session(other, lines) == "s"


async def test_a_sub_agent_whose_log_was_left_behind_is_not_begun_anew(store, other):
    """What it has done would be done again, and nobody would be told. Once its log is there, too, it goes on."""
    done: list[int] = []

    @tool
    async def act(number: int) -> str:
        """Act."""
        done.append(number)
        return "acted"

    def reply(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return says("done")
        both = calls([("act", {"number": 1}), ("act", {"number": 2})])
        return calls("clerk", task="act") if request.messages[0].text == "go" else both

    def agent(store: Store) -> Agent:
        clerk = Agent(FunctionModel(reply), tools=[act], name="clerk")
        clerk.gate(ToolCalling)(lambda event: Ask("Act?") if event.call.arguments["number"] == 2 else None)
        return Agent(FunctionModel(reply), tools=[clerk.as_tool()], store=store)

    (asked,) = (await agent(store).run("go", session="s")).waiting_for
    await import_session(other, await export_session(store, "s"))
    failed = await agent(other).resume("s", answers={asked.id: Approve()})
    assert isinstance(failed.outcome, Failed)
    assert "the log of session 's//1/1'" in failed.outcome.error.message
    assert done == [1]
    await import_session(other, await export_session(store, "s//1/1"))
    assert (await agent(other).resume("s")).outcome == Completed()
    assert done == [1, 2]


async def _send() -> str:
    """Send."""
    return "sent"


async def test_what_is_not_there_cannot_be_exported(store):
    with pytest.raises(SessionUnknown, match="'nobody'"):
        await export_session(store, "nobody")


async def test_nothing_is_imported_over_something_else(store):
    await lived(store)
    lines = await export_session(store, "s")
    before = list(await store.read("s"))
    with pytest.raises(SessionConflict, match="already exists"):
        await import_session(store, lines)
    assert list(await store.read("s")) == before


async def test_the_id_of_an_erased_session_is_not_used_again(store):
    await lived(store)
    lines = await export_session(store, "s")
    await store.erase("s")
    with pytest.raises((SessionError, StoreError), match="erased"):
        await import_session(store, lines)
    assert list(await store.read("s")) == []


def _without(lines: list[str], at: int) -> list[str]:
    return lines[:at] + lines[at + 1 :]


WRONG: dict[str, Callable[[list[str]], Any]] = {
    "nothing": lambda lines: [],
    "blank": lambda lines: ["", "\n"],
    "another format": lambda lines: [lines[0].replace('"windlass":2', '"windlass":3'), *lines[1:]],
    "no header": lambda lines: lines[1:],
    "no session": lambda lines: ['{"windlass":2,"records":0}'],
    "a list": lambda lines: ["[]", *lines[1:]],
    "no JSON": lambda lines: [*lines[:3], "what?", *lines[3:]],
    "a changed record": lambda lines: [line.replace("Sell!", "Give!") for line in lines],
    "a record less": lambda lines: _without(lines, 2),
    "a record twice": lambda lines: [*lines[:3], *lines[2:]],
    "two records swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "a link less": lambda lines: _without(lines, next(at for at, line in enumerate(lines) if '"link"' in line)),
    "a changed link": lambda lines: [line.replace('"link":"', '"link":"00') for line in lines],
    "a link of another kind": lambda lines: [*lines[:-1], '{"link":7,"count":1}'],
    "no link": lambda lines: [*lines[:-1], "{}"],
    "cut within a batch": lambda lines: lines[:-1],
    "cut after a batch": lambda lines: lines[
        : 1 + max([at for at, line in enumerate(lines[:-1]) if '"link"' in line] or [0])
    ],
    "cut within a line": lambda lines: [*lines[:-1], lines[-1][:20]],
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_does_not_add_up_is_refused_and_nothing_is_written(store, other, wrong):
    await lived(store)
    lines = WRONG[wrong](await export_session(store, "s"))
    with pytest.raises(StoreError):
        await import_session(other, lines)
    assert list(await other.sessions()) == []


async def test_line_ends_do_not_matter(store, other):
    await lived(store)
    lines = await export_session(store, "s")
    await import_session(other, [f"{line}\r\n" for line in lines] + [""])
    await same_chain(store, other)


async def pruned(store: Store) -> list[str]:
    """An export of a session of two turns, pruned after the first."""
    clock = FakeClock()
    agent = Agent(FunctionModel(lambda request: says("well")), store=store, clock=clock)
    agent.inject(TurnStarting)(lambda event: "It rains.")
    await agent.run("one", session="s")
    assert await store.prune(before=clock.now() + 1) > 0
    await agent.run("two", session="s")
    return await export_session(store, "s")


async def test_a_pruned_session_can_be_moved_too(store, other):
    lines = await pruned(store)
    await import_session(other, lines)
    assert list(await other.read("s")) == list(await store.read("s"))
    assert (await other.verify("s")).records == (await store.verify("s")).records


async def test_what_was_not_pruned_is_still_checked(store, other):
    lines = await pruned(store)
    with pytest.raises(StoreError, match="differ from the exported ones"):
        await import_session(other, [line.replace('"two"', '"too"') for line in lines])
    with pytest.raises(StoreError, match="is not a link of a hash chain"):
        await import_session(other, [*lines[:-1], '{"link":"what","count":1}'])
    assert list(await other.sessions()) == []


async def test_a_line_that_says_that_records_were_pruned_lets_nothing_be_changed(store, other):
    """In format 1 such a line was believed, and so any record could be changed."""
    await lived(store)
    lines = await export_session(store, "s")
    for header in (lines[0], lines[0].replace('"windlass":2', '"windlass":1')):
        changed = [header, *[line.replace("Sell!", "Give!") for line in lines[1:]]]
        marked = [line.replace('{"link":', '{"pruned":true,"link":') for line in changed]
        with pytest.raises(StoreError, match=r"left no proof of it.*export the session again"):
            await import_session(other, marked)
    assert list(await other.sessions()) == []


async def test_an_export_of_format_1_is_imported_with_its_links(store, other):
    await lived(store)
    records = list(await store.read("s"))
    lines, link = [json.dumps({"windlass": 1, "session": "s", "records": len(records)})], bytes(16)
    for record in records:
        data = encode(record)
        link = blake2b(data, digest_size=16, key=link).digest()
        lines += [data.decode(), json.dumps({"link": link.hex(), "count": 1})]
    await import_session(other, lines)
    assert list(await other.read("s")) == records
    await other.verify("s")
    with pytest.raises(StoreError, match="differ from the exported ones"):
        await import_session(other, [line.replace("Sell!", "Give!") for line in lines], "t")


async def test_what_a_pruned_record_was_stays_bound_after_a_move(tmp_path):
    one, two, three = [SQLiteStore(tmp_path / f"{name}.db") for name in "123"]
    lines = await pruned(one)
    await import_session(two, lines)
    assert await two.verify("s") == await one.verify("s")
    assert (await two.verify("s")).pruned == 1
    assert await export_session(two, "s") == lines
    for wrong in (
        [line.replace('"seals":[[', '"seals":[[1') for line in lines],
        [re.sub(r',"seals":\[.*?\]\]', "", line) for line in lines],
        [re.sub(r'"seals":\[\[(\d+),"..', r'"seals":[[\1,"00', line) for line in lines],
        [line.replace('"parts":[]', '"parts":[{"type":"text","text":"It snows."}]') for line in lines],
    ):
        assert wrong != lines
        with pytest.raises(StoreError, match="differ from the exported ones"):
            await import_session(three, wrong)
    for store in (one, two, three):
        await store.close()


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\u2028 \x85 \0 \x1c", "\N{GRINNING FACE}"], ids=ascii)
async def test_any_text_survives_the_journey(store, other, text):
    agent = Agent(ScriptedModel(says(f"You said {text}.")), store=store)
    await agent.run(text, session="s")
    lines = await export_session(store, "s")
    await import_session(other, lines)
    assert list(await other.read("s")) == list(await store.read("s"))
    await same_chain(store, other)


# ---------------------------------------------------------------- forks


async def test_a_session_can_be_forked_at_every_record(store):
    shop = await lived(store)
    async with shop.agent.session("s") as session:
        await session.run("Once more.")
        await shop.finish("s")
    names = await store.sessions()
    before = await shop.logs(*names)
    records = before[names.index("s")]
    assert isinstance(records[0], SessionOpened)
    for at in range(1, len(records) + 1):
        name = await shop.agent.fork("s", at=at, to=f"fork-{at}")
        shop.effects.clear()
        result = await shop.finish(name)
        where = f"forked at {at}, after {records[at - 1]!r}"
        assert (result.outcome, result.text) == (Completed(), "done"), where
        assert unpaired(result.messages) == [], where
        assert shop.effects.count("send") <= 2, where
        assert (await store.verify(name)).records == len(await store.read(name)), where
        assert await shop.logs(*names) == before, where


async def test_an_answer_does_not_travel_to_a_fork_where_nothing_was_done_by_it_yet(store):
    shop = await lived(store)
    records = list(await store.read("s"))
    answered = next(at for at, record in enumerate(records, 1) if isinstance(record, Answered) and record.id == "s/1/2")
    called = next(at for at, record in enumerate(records, 1) if isinstance(record, ToolCalled) and record.name == "pay")
    assert called > answered + 1
    for at in range(answered, called):
        name = await shop.agent.fork("s", at=at)
        shop.effects.clear()
        result = await shop.agent.resume(name)
        assert [asked.call.name for asked in result.waiting_for] == ["pay"], at
        assert [effect for effect in shop.effects if effect.startswith("pay")] == []
    name = await shop.agent.fork("s", at=called)
    assert (await shop.agent.state(name)).waiting == ()


@pytest.mark.parametrize("event", ["TurnStarting", "ModelReplying"])
async def test_what_was_asked_about_a_message_or_a_reply_is_asked_again_until_it_has_led_on(store, event):
    shop = await lived(store)
    records = list(await store.read("s"))
    (asked, *_) = [record for record in records if isinstance(record, Asked) and record.event == event]
    answered = next(
        at for at, record in enumerate(records, 1) if isinstance(record, Answered) and record.id == asked.id
    )
    name = await shop.agent.fork("s", at=answered)
    assert [question.question for question in (await shop.agent.state(name)).waiting] == [asked.question]
    ended = next(at for at, record in enumerate(records, 1) if at > answered and isinstance(record, StepEnded))
    name = await shop.agent.fork("s", at=ended)
    assert (await shop.agent.state(name)).waiting == ()


async def test_a_call_in_doubt_keeps_its_id_and_its_key(store):
    ran: list[str] = []

    @tool(effect="idempotent")
    async def pay(idempotency_key: str) -> str:
        """Pay."""
        ran.append(idempotency_key)
        return "paid"

    @tool
    async def send() -> str:
        """Send."""
        ran.append("send")
        return "sent"

    def model(request: Any) -> Any:
        return calls([("pay", {}), ("send", {})]) if len(request.messages) == 1 else says("done")

    agent = Agent(FunctionModel(model), tools=[pay, send], store=store)
    await agent.run("go", session="s")
    records = await store.read("s")
    started = max(at for at, record in enumerate(records, 1) if isinstance(record, ToolCalled))
    name = await agent.fork("s", at=started)
    ran.clear()
    result = await agent.resume(name)
    assert result.text == "done"
    done = {part.call_id: part.status for part in result.messages[2].parts}
    back = {record.call for record in records[:started] if isinstance(record, ToolReturned)}
    assert list(done) == ["s/1/1", "s/1/2"]
    assert ran == ["s/1/1"] * ("s/1/1" not in back)
    assert done["s/1/2"] == ("ok" if "s/1/2" in back else "interrupted")


async def test_the_sub_agent_of_a_fork_has_a_session_of_its_own(store):
    shop = await lived(store)
    records = list(await store.read("s"))
    at = next(at for at, record in enumerate(records) if isinstance(record, Delegated))
    name = await shop.agent.fork("s", at=at, to="t")
    before = await shop.logs("s", "s//2/1")
    shop.effects.clear()
    assert (await shop.finish(name)).text == "done"
    assert shop.effects == ["send"]
    assert "t//2/1" in await store.sessions()
    assert await shop.logs("s", "s//2/1") == before


async def test_a_fork_of_a_fork_goes_on_too(store):
    shop = Shop(store)
    await shop.agent.run("Sell!", session="s")
    first = await shop.agent.fork("s", to="first")
    second = await shop.agent.fork(first, to="second")
    for name in (second, first, "s"):
        result = await shop.finish(name)
        assert (result.text, unpaired(result.messages)) == ("done", [])
    opened = (await store.read(second))[0]
    assert isinstance(opened, SessionOpened)
    assert (opened.how, opened.origin.partition("@")[0]) == ("forked", "first")


# ---------------------------------------------------------------- large sessions


class Turns:
    """Counts how often another task runs."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


class Marking:
    """A store that notes how often another task ran between its calls, and how many batches it was given."""

    def __init__(self, store: Any, turns: Turns) -> None:
        self._store = store
        self._turns = turns
        self._since = 0
        self.idle: dict[str, int] = {}
        self.batches_created = 0

    async def read(self, *given: Any) -> Any:
        found = await self._store.read(*given)
        self._since = self._turns.count
        return found

    async def batches(self, *given: Any) -> Any:
        found = await self._store.batches(*given)
        self._since = self._turns.count
        return found

    async def create(self, logs: Any) -> None:
        self.note("create")
        self.batches_created += sum(len(log.batches) for log in logs)
        await self._store.create(logs)

    def note(self, what: str) -> None:
        self.idle[what] = self._turns.count - self._since

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_other_tasks_run_while_a_large_session_is_forked_exported_and_imported(tmp_path):
    turns = Turns()
    ticking = asyncio.create_task(turns.run())
    store = Marking(SQLiteStore(tmp_path / "large.db", synchronous="NORMAL"), turns)
    agent = Agent(FunctionModel(lambda request: says("hi")), store=store)
    await agent.run("hello", session="s")
    length = len(await store.read("s"))
    for at in range(24):
        await store.append(
            "s", [SlotSet(slot="n", value=f"{at} {n}" + "x" * 1000) for n in range(500)], length + at * 500
        )
    slices = 24 * 500 * 1000 // SLICE
    await agent.fork("s", to="fork")
    assert store.idle["create"] > slices / 2
    assert store.batches_created > slices / 2
    lines = await export_session(store, "s")
    store.note("export")
    assert store.idle["export"] > slices / 2
    before = turns.count
    await import_session(store, lines, "copy")
    assert turns.count - before > slices
    for copy in ("fork", "copy"):
        assert len(await store.read(copy)) == length + 24 * 500
        await store.verify(copy)
    ticking.cancel()
    await store.close()
