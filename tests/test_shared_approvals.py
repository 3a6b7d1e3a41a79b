"""Questions to several people through every door: sub-agents, inboxes, processes at once, forks and exports."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Answered, Approve, Ask, Edit, Reject, Suspended, ToolCalling, tool
from windlass.approvals import open_questions, progress, resolve
from windlass.errors import StaleAnswer
from windlass.stores.memory import MemoryStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import ScriptedModel, calls, says
from windlass.transfer import export_session, import_session

PEOPLE = ("ann", "bob", "cid")
LEVELS = ["s", "s//1/1"]


def make(store: Any, quorum: int = 2, ask: Ask | None = None) -> tuple[Agent, list[int]]:
    """An agent that pays once enough people approve."""
    paid: list[int] = []

    @tool
    def pay(euros: int) -> str:
        """Pay."""
        paid.append(euros)
        return f"paid {euros}"

    agent = Agent(ScriptedModel(calls("pay", euros=5), says("paid it")), tools=[pay], store=store, name="payer")
    question = ask or Ask("Pay?", approvers=PEOPLE, quorum=quorum)
    agent.gate(ToolCalling, tool="pay", name="several")(lambda event: question)
    return agent, paid


def nested(store: Any, quorum: int = 2) -> tuple[Agent, list[int]]:
    """The same below another agent."""
    child, paid = make(store, quorum)
    return Agent(ScriptedModel(calls("payer", task="t"), says("done")), tools=[child.as_tool()], store=store), paid


async def standing_of(store: Any, session: str = "s") -> list[str]:
    return [str(progress(asked)) for _, asked in await open_questions(store, session)]


# ---------------------------------------------------------------- sub-agents


async def test_a_question_of_a_child_needs_its_quorum_through_the_parents_resume():
    store = MemoryStore()
    root, paid = nested(store)
    [asked] = (await root.run("go", session="s")).waiting_for
    result = await root.resume("s", answers={asked.id: Approve(by="bob")})
    assert isinstance(result.outcome, Suspended)
    before = list(await store.read("s//1/1"))
    assert [await standing_of(store, level) for level in LEVELS] == [["1 of 2 (bob), needs ann or cid"]] * 2
    result = await root.resume("s", answers={asked.id: Approve(by="cid")})
    assert (result.text, paid) == ("done", [5])
    assert list(await store.read("s//1/1"))[: len(before)] == before


@pytest.mark.parametrize("levels", [("s", "s"), ("s//1/1", "s"), ("s", "s//1/1"), ("s//1/1", "s//1/1")])
async def test_a_question_of_a_child_is_answered_by_several_inboxes(levels: tuple[str, str]):
    store = MemoryStore()
    root, paid = nested(store)
    [asked] = (await root.run("go", session="s")).waiting_for
    await resolve(store, levels[0], asked.id, Approve(by="ann"))
    for level in LEVELS:
        with pytest.raises(StaleAnswer, match="ann has answered it already"):
            await resolve(store, level, asked.id, Approve(by="ann"))
    assert isinstance((await root.resume("s")).outcome, Suspended)
    await resolve(store, levels[1], asked.id, Approve(by="bob"))
    assert await open_questions(store) == []
    assert ((await root.resume("s")).text, paid) == ("done", [5])
    assert [list(await store.inbox(level, ())) for level in LEVELS] == [[], []]


async def test_an_answer_to_resume_and_one_in_the_childs_inbox_make_a_quorum():
    store = MemoryStore()
    root, paid = nested(store, 3)
    [asked] = (await root.run("go", session="s")).waiting_for
    await root.resume("s", answers={asked.id: Approve(by="ann")})
    await resolve(store, "s//1/1", asked.id, Approve(by="bob"))
    with pytest.raises(StaleAnswer, match="ann has answered it already"):
        await resolve(store, "s//1/1", asked.id, Approve(by="ann"))
    assert ((await root.resume("s", answers={asked.id: Approve(by="cid")})).text, paid) == ("done", [5])


@pytest.mark.parametrize("door", ["resume", "s", "s//1/1"])
async def test_an_edit_of_a_childs_call_is_approved_by_another(door: str):
    store = MemoryStore()
    root, paid = nested(store)
    [asked] = (await root.run("go", session="s")).waiting_for
    edit = Edit({"euros": 3}, by="ann")
    if door == "resume":
        await root.resume("s", answers={asked.id: edit})
    else:
        await root.resolve(door, asked.id, edit)
    for level in LEVELS:
        [(_, shown)] = await open_questions(store, level)
        assert shown.call is not None
        assert shown.call.arguments == {"euros": 3}
    await resolve(store, "s", asked.id, Approve(by="bob", digest=shown.digest))
    assert ((await root.resume("s")).text, paid) == ("done", [3])


@pytest.mark.parametrize("level", LEVELS)
async def test_an_edit_that_nobody_can_check_is_refused_where_others_have_to_approve(level: str):
    store = MemoryStore()
    root, paid = nested(store)
    [asked] = (await root.run("go", session="s")).waiting_for
    for arguments in ({"euros": "many"}, {"euros": 3}):
        with pytest.raises(StaleAnswer, match=r"checked against the tool.*windlass approve --agent"):
            await resolve(store, level, asked.id, Edit(arguments, by="ann"))
    with pytest.raises(StaleAnswer, match="do not fit"):
        await root.resolve(level, asked.id, Edit({"euros": "many"}, by="ann"))
    assert await standing_of(store) == ["0 of 2, needs ann or bob or cid"]
    await resolve(store, level, asked.id, Approve(by="ann"))
    await resolve(store, level, asked.id, Approve(by="bob"))
    assert ((await root.resume("s")).text, paid) == ("done", [5])


async def test_an_invalid_edit_in_an_inbox_is_no_approval():
    """It came from a version, or from code, that does not check it."""
    store = MemoryStore()
    agent, paid = make(store)
    [asked] = (await agent.run("go", session="s")).waiting_for
    data = {"id": asked.id, "digest": asked.digest, "answer": {"answer": "Edit", "arguments": {"euros": "many"}}}
    await store.put("s", "some-key", "answer", {**data, "answer": {**data["answer"], "by": "ann"}, "at": 0.0})
    result = await agent.resume("s")
    assert isinstance(result.outcome, Suspended)
    assert await standing_of(store) == ["0 of 2, needs ann or bob or cid"]
    result = await agent.resume("s", answers={asked.id: [Approve(by="ann"), Approve(by="bob")]})
    assert (result.text, paid) == ("paid it", [5])


async def test_a_childs_question_is_rejected_by_one():
    store = MemoryStore()
    root, paid = nested(store)
    [asked] = (await root.run("go", session="s")).waiting_for
    await root.resume("s", answers={asked.id: Approve(by="bob")})
    assert ((await root.resume("s", answers={asked.id: Reject("no", by="cid")})).text, paid) == ("done", [])


# ---------------------------------------------------------------- several processes

ANSWERER = """
import asyncio, sys
from windlass.approvals import resolve
from windlass.decisions import Approve, Reject
from windlass.errors import StaleAnswer
from windlass.stores.sqlite import SQLiteStore

async def main(file, session, ask, start, *people):
    store = SQLiteStore(file)
    while not __import__("os").path.exists(start):
        await asyncio.sleep(0.002)
    for by in people:
        try:
            await resolve(store, session, ask, Approve(by=by))
            print("saved", by)
        except StaleAnswer as error:
            print("refused", by)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def answer_at_once(folder: Path, session: str, ask: str, *processes: list[str]) -> list[str]:
    """Let several processes answer at the same moment; what they say."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    start = folder / "start"
    running = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", ANSWERER, str(folder / "s.db"), session, ask, str(start), *people,
            env=environment, stdout=asyncio.subprocess.PIPE,
        )
        for people in processes
    ]  # fmt: skip
    await asyncio.sleep(0.5)
    start.touch()
    said = [(await process.communicate())[0].decode().splitlines() for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    return sorted(line for lines in said for line in lines)


@pytest.mark.parametrize("quorum", [1, 2, 3])
async def test_of_processes_that_answer_at_once_no_answer_is_lost_and_none_counts_twice(tmp_path: Path, quorum: int):
    store = SQLiteStore(tmp_path / "s.db")
    agent, paid = make(store, quorum)
    [asked] = (await agent.run("go", session="s")).waiting_for
    orders = [["ann", "bob", "cid"], ["cid", "bob", "ann"]]
    said = await answer_at_once(tmp_path, "s", asked.id, *orders)
    saved = [line.split()[1] for line in said if line.startswith("saved")]
    assert len(saved) == len(set(saved)) == quorum
    assert len(said) == 6
    assert ((await agent.resume("s")).text, paid) == ("paid it", [5])
    answers = [record for record in await store.read("s") if isinstance(record, Answered)]
    assert sorted(answered.by for answered in answers) == sorted(saved)
    assert [answered.partial for answered in answers] == [True] * (quorum - 1) + [False]
    await store.verify("s")
    await store.close()


async def test_processes_that_answer_a_child_at_once_are_all_heard(tmp_path: Path):
    store = SQLiteStore(tmp_path / "s.db")
    root, paid = nested(store, 3)
    [asked] = (await root.run("go", session="s")).waiting_for
    said = await answer_at_once(tmp_path, "s//1/1", asked.id, ["ann"], ["bob", "ann"])
    assert said.count("refused ann") == 1
    result = await root.resume("s", answers={asked.id: Approve(by="cid")})
    assert (result.text, paid) == ("done", [5])
    assert [list(await store.inbox(level, ())) for level in LEVELS] == [[], []]
    await store.close()


RESUMER = """
import asyncio, sys
from windlass import Approve, Suspended
from windlass.errors import NotSuspended, SessionBusy, SessionConflict
from windlass.stores.sqlite import SQLiteStore
sys.path.insert(0, sys.argv[1])
from tests.test_shared_approvals import make

async def main(file, ask, start, by):
    store = SQLiteStore(file)
    agent, paid = make(store, 3)
    while not __import__("os").path.exists(start):
        await asyncio.sleep(0.002)
    while True:
        try:
            result = await agent.resume("s", answers={ask: Approve(by=by)})
            break
        except (SessionBusy, SessionConflict):
            await asyncio.sleep(0.01)
    print(type(result.outcome).__name__, *paid)
    await store.close()

asyncio.run(main(*sys.argv[2:]))
"""


async def test_of_processes_that_resume_at_once_one_runs_the_call_and_all_are_counted(tmp_path: Path):
    store = SQLiteStore(tmp_path / "s.db")
    agent, _ = make(store, 3)
    [asked] = (await agent.run("go", session="s")).waiting_for
    await store.close()
    here, start = str(Path(__file__).parents[1]), tmp_path / "start"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = (sys.executable, "-c", RESUMER, here, str(tmp_path / "s.db"), asked.id, str(start))
    running = [
        await asyncio.create_subprocess_exec(*arguments, by, env=environment, stdout=asyncio.subprocess.PIPE)
        for by in PEOPLE
    ]
    await asyncio.sleep(1.0)
    start.touch()
    said = sorted([(await process.communicate())[0].decode().strip() for process in running])
    assert said == ["Suspended", "Suspended", "Suspended 5"]  # its model's script begins anew, and asks to pay again
    store = SQLiteStore(tmp_path / "s.db")
    answers = [record for record in await store.read("s") if isinstance(record, Answered)]
    assert sorted(answered.by for answered in answers) == sorted(PEOPLE)
    assert [answered.partial for answered in answers] == [True, True, False]
    await store.close()


# ---------------------------------------------------------------- forks and exports


async def test_partial_answers_do_not_travel_into_a_fork():
    store = MemoryStore()
    agent, paid = make(store)
    [asked] = (await agent.run("go", session="s")).waiting_for
    await agent.resume("s", answers={asked.id: Edit({"euros": 3}, by="ann")})
    await agent.fork("s", to="f")
    fork = await agent.state("f")
    [question] = fork.waiting
    assert (question.answers, question.digest, question.proposed) == ((), asked.digest, None)
    assert fork.outcome is not None
    assert fork.outcome.waiting_for[0].answers == ()  # type: ignore[union-attr]
    await agent.resume("f", answers={question.id: [Approve(by="bob"), Approve(by="cid")]})
    assert paid == [5]


@pytest.mark.parametrize("settled", [False, True])
async def test_partial_answers_to_a_child_do_not_travel_into_a_fork(settled: bool):
    store = MemoryStore()
    root, paid = nested(store)
    [asked] = (await root.run("go", session="s")).waiting_for
    await root.resume("s", answers={asked.id: Approve(by="ann")})
    if settled:
        await resolve(store, "s", asked.id, Approve(by="bob"))
    await root.fork("s", to="f")
    [question] = (await root.state("f")).waiting
    assert question.answers == ()
    await root.resume("f", answers={question.id: [Approve(by="bob"), Approve(by="cid")]})
    assert paid == [5]


async def test_a_fork_of_a_turn_that_went_on_keeps_who_approved():
    store = MemoryStore()
    agent, _ = make(store)
    [asked] = (await agent.run("go", session="s")).waiting_for
    await agent.resume("s", answers={asked.id: [Approve(by="ann"), Approve(by="bob")]})
    await agent.fork("s", to="f")
    kept = [record.by for record in await store.read("f") if isinstance(record, Answered)]
    assert kept == ["ann", "bob"]


@pytest.mark.parametrize("name", [None, "t"])
async def test_an_export_keeps_partial_answers(name: str | None):
    store = MemoryStore()
    agent, _ = make(store)
    [asked] = (await agent.run("go", session="s")).waiting_for
    await agent.resume("s", answers={asked.id: Approve(by="ann")})
    lines = await export_session(store, "s")
    other = MemoryStore()
    session = await import_session(other, lines, name)
    again, paid = make(other)
    again.model = agent.model
    [question] = (await again.state(session)).waiting
    assert progress(question).approved == ("ann",)
    await again.resume(session, answers={question.id: Approve(by="bob")})
    assert paid == [5]


# ---------------------------------------------------------------- secrets


async def test_an_edit_with_a_secret_runs_whole_once_another_approves_it():
    seen: list[str] = []

    @tool
    def login(password: str) -> str:
        """Log in."""
        seen.append(password)
        return "ok"

    script = ScriptedModel(calls("login", password="x"), says("done"))
    agent = Agent(script, tools=[login], secrets=["hunter22"])
    agent.gate(ToolCalling)(lambda event: Ask("Log in?", approvers=PEOPLE, quorum=3))
    [asked] = (await agent.run("go", session="s")).waiting_for
    edit = Edit({"password": "hunter22"}, by="ann")
    [shown] = (await agent.resume("s", answers={asked.id: [edit, Approve(by="bob")]})).waiting_for
    assert shown.call is not None
    assert shown.call.arguments == {"password": "•••"}
    assert progress(shown).approved == ("ann", "bob")
    await agent.resume("s", answers={asked.id: Approve(by="cid")})
    assert seen == ["hunter22"]
    assert "hunter22" not in repr(await agent.store.read("s"))
