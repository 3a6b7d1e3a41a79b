"""However a tree of agents ends, and whatever fails meanwhile: no child is left over, and no question of one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Completed, Halt, Pipeline, Resuming, ToolCalling, Turn, TurnEnding, fold, tool
from windlass.approvals import open_questions
from windlass.errors import SessionUnknown, StaleAnswer, StoreError, WindlassError
from windlass.messages import Usage
from windlass.records import ModelReplied, SideReplied, ToolReturned
from windlass.stores import MemoryStore, PostgresStore, SQLiteStore
from windlass.testing import FunctionModel, calls, says


class Failing:
    """Makes one read or append of a store fail, and all later ones if it is `dead`, like a process that was killed.

    `left` counts the operations until then. A failing append is `kept` by the store, or not.
    """

    left: int | None = None
    dead = kept = False

    async def fail(self, left: int, work: Awaitable[Any], *, dead: bool, kept: bool) -> bool:
        """Do some work while the store fails after some operations. Whether it did."""
        self.left, self.dead, self.kept = left, dead, kept
        with suppress(WindlassError, asyncio.CancelledError):
            await work
        failed, self.left = self.left < 0, None
        return failed

    def _fails(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left == -1 or (self.dead and self.left < 0)

    async def append(self, *arguments: Any) -> bool:
        if self._fails():
            if self.kept and self.left == -1:
                await super().append(*arguments)  # type: ignore[misc]
            raise StoreError("the line is cut")
        return bool(await super().append(*arguments))  # type: ignore[misc]

    async def read(self, *arguments: Any) -> Any:
        if self._fails():
            raise StoreError("the line is cut")
        return await super().read(*arguments)  # type: ignore[misc]


class FailingMemory(Failing, MemoryStore):
    pass


class FailingSQLite(Failing, SQLiteStore):
    pass


class FailingPostgres(Failing, PostgresStore):
    pass


STORES = ["memory", "sqlite", "postgresql"]


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    match request.param:
        case "memory":
            opened: Any = FailingMemory()
        case "sqlite":
            opened = FailingSQLite(tmp_path / "s.db", synchronous="NORMAL")
        case _:
            opened = FailingPostgres(request.getfixturevalue("database"))
    yield opened
    await opened.close()


@tool
def sign() -> str:
    """Sign."""
    return "signed"


class Tree:
    """Root, middle and leaf. The leaf asks a person about one call and makes another one, which may be `slow`."""

    def __init__(self, store: Any, *, slow: bool = False) -> None:
        self.store = store
        self.working = asyncio.Event()
        self.halts = False

        @tool(effect="idempotent")
        async def look() -> str:
            """Look."""
            self.working.set()
            if slow:
                await asyncio.Event().wait()
            return "seen"

        leaf = Agent(_model([("sign", {}), ("look", {})]), tools=[sign, look], name="leaf")
        leaf.gate(ToolCalling, tool="sign")(lambda event: Ask("sure?"))
        self.middle = Agent(_model([("leaf", {"task": "it"})]), tools=[leaf.as_tool()], name="middle")
        below = self.middle.as_tool(tools=["leaf"])
        self.root = Agent(_model([("middle", {"task": "it"})]), tools=[below], name="root", store=store)
        self.root.gate(Resuming)(lambda event: Halt("no more") if self.halts else None)

    async def check(self, session: str) -> None:
        """Nothing is asked any more, every agent is over, and all that was spent was charged, once."""
        assert list(await self.store.approvals()) == []
        assert await open_questions(self.store) == []
        spent = Usage(requests=0)
        for name in [name for name in await self.store.sessions() if name.split("//")[0] == session]:
            log = await self.store.read(name)
            assert fold(name, log).over, (name, log)
            for record in log:
                if isinstance(record, ModelReplied | SideReplied):
                    spent = spent + record.reply.usage
        assert (await self.root.state(session)).usage == spent


def _model(wanted: list[tuple[str, dict[str, Any]]]) -> FunctionModel:
    def reply(request: Any) -> Any:
        asked = request.messages[-1]
        return calls(wanted) if asked.role == "user" and asked.text != "stop" else says("done")

    return FunctionModel(reply)


async def cancelled(tree: Tree, session: str) -> None:
    """A cancel waits for a suspended tree."""
    await tree.root.cancel(session, "enough")
    await tree.root.resume(session)


async def superseded(tree: Tree, session: str) -> None:
    """The user goes on."""
    await tree.root.run("stop", session=session)


async def halted(tree: Tree, session: str) -> None:
    """A hook stops it when it is resumed."""
    tree.halts = True
    await tree.root.resume(session)


async def cancelled_below(tree: Tree, session: str) -> None:
    """A cancel waits for the middle agent. The root goes on."""
    with suppress(SessionUnknown):
        await tree.root.cancel(f"{session}//1/1", "enough")
    await tree.root.resume(session)


async def approved(tree: Tree, session: str) -> None:
    """A person approves, and all go on."""
    for asked in (await tree.root.state(session)).waiting:
        with suppress(StaleAnswer):  # it was stored before the store failed
            await tree.root.resolve(session, asked.id, Approve())
    await tree.root.resume(session)


ENDS = [cancelled, superseded, halted, cancelled_below, approved]
End = Callable[[Tree, str], Awaitable[None]]


WAYS = [(False, False), (False, True), (True, False), (True, True)]
"""Whether the store is dead once it has failed, and whether it kept what it said it could not."""

FAULTS = pytest.mark.parametrize(
    ("store", "dead", "kept"),
    [
        (store, dead, kept)
        for store in STORES
        for dead, kept in WAYS
        if store != "postgresql" or dead is kept or os.environ.get("WINDLASS_CAMPAIGN")
    ],
    indirect=["store"],
)


@pytest.mark.parametrize("times", [1, 4])
@FAULTS
@pytest.mark.parametrize("end", ENDS)
async def test_a_suspended_tree_that_ends_leaves_no_child_behind(
    store: Any, end: End, dead: bool, kept: bool, times: int
):
    """Whatever read or write fails while it ends, also several times in a row."""
    failed, number = True, 0
    while failed:
        tree, session = Tree(store), f"s{number}"
        assert (await tree.root.run("go", session=session)).waiting_for
        failed = await store.fail(number, end(tree, session), dead=dead, kept=kept)
        for _ in range(times - 1):
            await store.fail(number, tree.root.resume(session), dead=dead, kept=kept)
        for _ in range(10):
            if not (await tree.root.state(session)).over:
                await end(tree, session)
        await tree.check(session)
        number += 1
    assert number > 5


@FAULTS
async def test_so_does_a_tree_that_is_cancelled_while_it_works(store: Any, dead: bool, kept: bool):
    failed, number = True, 0
    while failed:
        tree, session = Tree(store, slow=True), f"s{number}"
        task = asyncio.create_task(tree.root.run("go", session=session))
        await tree.working.wait()
        task.cancel()
        failed = await store.fail(number, task, dead=dead, kept=kept)
        for _ in range(10):
            if not (await tree.root.state(session)).over:
                await cancelled(tree, session)
        await tree.check(session)
        number += 1
    assert number > 3


@FAULTS
@pytest.mark.parametrize("again", [False, True])
async def test_so_do_the_agents_of_a_tool(store: Any, again: bool, dead: bool, kept: bool):
    """It does not delegate again, or its agent was cancelled meanwhile."""
    failed, number = True, 0
    while failed:
        tree, session = Tree(store), f"s{number}"
        _delegate_in_a_tool(tree, again=again)
        assert (await tree.root.run("go", session=session)).waiting_for
        if again:
            [child] = [name for name in await store.sessions() if name.startswith(session) and name.count("//") == 1]
            await tree.root.cancel(child, "enough")
        failed = await store.fail(number, tree.root.resume(session), dead=dead, kept=kept)
        for _ in range(10):
            if not (await tree.root.state(session)).over:
                await tree.root.resume(session)
        await tree.check(session)
        number += 1
    assert number > 5


def _delegate_in_a_tool(tree: Tree, *, again: bool) -> None:
    """Let a tool of the root give the task to the middle agent, whenever it runs or only at first."""
    delegated: list[str] = []

    @tool(effect="idempotent")
    async def work(turn: Turn) -> str:
        """Work."""
        if again or not delegated:
            delegated.append("it")
            await turn.delegate(tree.middle, "it")
        return "worked"

    tree.root = Agent(_model([("work", {})]), tools=[work], name="root", store=tree.store)


# ---------------------------------------------------------------- ends that wait for a person


def ask_at_the_end(tree: Tree, *, also_call: bool, completed: bool = False) -> None:
    """Let the agents below the root ask before they end, however they end or only if they have `completed`. The leaf
    asks about its call first if `also_call`."""
    leaf = Agent(_model([("sign", {})]), tools=[sign], name="leaf")
    tree.middle = Agent(_model([("leaf", {"task": "it"})]), tools=[leaf.as_tool()], name="middle")
    if also_call:
        leaf.gate(ToolCalling, tool="sign")(lambda event: Ask("sure?"))
    for agent in (leaf, tree.middle):

        @agent.gate(TurnEnding, name="publish", when=lambda event: not completed or event.outcome == Completed())
        def publish(event: TurnEnding) -> Ask:
            return Ask("publish?")

    tree.root = Agent(
        _model([("middle", {"task": "it"})]), tools=[tree.middle.as_tool()], name="root", store=tree.store
    )
    tree.root.gate(Resuming)(lambda event: Halt("no more") if tree.halts else None)


@pytest.mark.parametrize("also_call", [False, True])
@pytest.mark.parametrize("by_tool", [False, True])
@pytest.mark.parametrize("end", [cancelled, superseded, halted])
async def test_no_child_holds_up_its_end_after_its_parent_has_ended(
    store: Any, end: End, by_tool: bool, also_call: bool
):
    """A gate on TurnEnding asks a person about every end, also about that of a cancelled turn."""
    tree = Tree(store)
    ask_at_the_end(tree, also_call=also_call)
    if by_tool:
        _delegate_in_a_tool(tree, again=True)
        tree.root.gate(Resuming)(lambda event: Halt("no more") if tree.halts else None)
    assert (await tree.root.run("go", session="s")).waiting_for
    await end(tree, "s")
    await tree.check("s")


async def test_no_child_in_the_background_holds_up_its_end_either(store: Any):
    tree = Tree(store)
    ask_at_the_end(tree, also_call=False, completed=True)

    @tool
    async def begin(turn: Turn) -> str:
        """Begin."""
        task = await turn.delegate(tree.middle, "it", background=True)
        return task.session

    tree.root = Agent(_model([("begin", {})]), tools=[begin], subagents=[tree.middle], name="root", store=store)
    begun = (await tree.root.run("go", session="s")).steps[0].results[0]
    assert begun is not None
    await tree.root.aclose()
    assert await open_questions(store) != []
    assert await tree.root.cancel("s", "enough")
    await tree.root.resume_background("s")
    await tree.root.aclose()
    assert await open_questions(store) == []
    assert [(await tree.root.state(name)).over for name in await store.sessions() if "//" in name] == [True, True]


# ---------------------------------------------------------------- agents that have changed


async def test_a_child_whose_agent_is_gone_ends_with_its_parent(store: Any):
    tree = Tree(store)
    assert (await tree.root.run("go", session="s")).waiting_for
    tree.root = Agent(says_done(), name="root", store=store)
    await cancelled(tree, "s")
    await tree.check("s")


@pytest.mark.parametrize("end", [cancelled, superseded])
async def test_a_child_whose_tools_are_gone_ends_with_its_parent(store: Any, end: End):
    tree = Tree(store)
    assert (await tree.root.run("go", session="s")).waiting_for
    tree.root = _without_tools(store)
    await end(tree, "s")
    await tree.check("s")


async def test_a_child_that_cannot_work_any_more_is_ended_and_its_parent_goes_on(store: Any):
    tree = Tree(store)
    [asked] = (await tree.root.run("go", session="s")).waiting_for
    tree.root = _without_tools(store)
    result = await tree.root.resume("s", answers={asked.id: Approve()})
    assert result.text == "done"
    [returned] = [record for record in await store.read("s") if isinstance(record, ToolReturned)]
    assert "could not work: ConfigError" in returned.result.text
    await tree.check("s")


def says_done() -> FunctionModel:
    return FunctionModel(lambda request: says("done"))


def _without_tools(store: Any) -> Agent:
    """The tree's agents in a later version, in which the middle one has no leaf."""
    middle = Agent(says_done(), name="middle")
    return Agent(says_done(), tools=[middle.as_tool()], name="root", store=store)


# ---------------------------------------------------------------- hooks that fail


async def test_a_child_of_a_hook_ends_with_a_turn_that_is_closed_without_its_hooks(store: Any):
    """A phase handler fails after the turn, each time."""

    class Failing:
        def handle(self, state: Any, turn: Any) -> Any:
            raise ValueError("no")

    critic = Agent(_model([("sign", {})]), tools=[sign], name="critic")
    critic.gate(ToolCalling)(lambda event: Ask("sure?"))
    pipeline = Pipeline.minimal().with_handler("after_turn", Failing())
    tree = Tree(store)
    tree.root = Agent(says_done(), name="root", store=store, pipeline=pipeline)

    @tree.root.gate(TurnEnding)
    async def judged(event: TurnEnding, turn: Turn) -> None:
        await turn.delegate(critic, "look")

    assert (await tree.root.run("go", session="s")).waiting_for
    await cancelled(tree, "s")
    await tree.check("s")
