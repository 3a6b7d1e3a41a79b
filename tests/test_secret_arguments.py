"""Arguments that held a secret are never executed from the log, which has them masked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    Deny,
    Edit,
    ModelCall,
    Reject,
    Respond,
    Suspended,
    ToolCall,
    ToolCalling,
    fold,
    tool,
)
from windlass.records import (
    MASK,
    Delegated,
    ModelAttempted,
    ModelReplied,
    Record,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnStarted,
    decode,
    encode,
)
from windlass.stores import MemoryStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import ScriptedModel, calls, says

SECRET = "hunter2-prod"
NOT_KEPT = "its arguments held a secret that is not kept"


class Door:
    """A tool that takes a password, and what it was given."""

    def __init__(self, **options: Any) -> None:
        self.given: list[str] = []
        self.options = options

    def tool(self) -> Any:
        @tool(**self.options)
        async def login(password: str) -> str:
            """Log in."""
            self.given.append(password)
            return "welcome"

        return login

    def agent(self, *script: Any, store: Any = None, verdict: Any = None, **options: Any) -> Agent:
        """Each agent stands for a process of its own: only one that proposed a call holds its arguments."""
        agent = Agent(
            ScriptedModel(*script), tools=[self.tool()], store=store or MemoryStore(), secrets=[SECRET], **options
        )
        if verdict is not None:
            agent.gate(ToolCalling, name="sure")(lambda event: verdict)
        return agent


def login(password: str = SECRET) -> Any:
    return calls("login", password=password)


async def cut(store: Any, after: type[Record]) -> MemoryStore:
    log = list(await store.read("s"))
    copy = MemoryStore()
    await copy.append("s", log[: next(at for at, record in enumerate(log, 1) if type(record) is after)], 0)
    return copy


async def result_in(store: Any, session: str = "s") -> Any:
    [returned] = [record for record in await store.read(session) if isinstance(record, ToolReturned)]
    return returned.result


async def assert_not_run(door: Door, result: Any, store: Any) -> None:
    assert door.given == []
    assert NOT_KEPT in (await result_in(store)).text
    assert result.outcome == Completed()
    assert SECRET not in repr(await store.read("s"))


async def test_a_masked_record_says_so_and_others_do_not():
    door = Door()
    agent = door.agent(login(), says("done"))
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    assert [type(record) for record in log if record.masked] == [ModelReplied]
    for record in log:
        assert (b'"masked":true' in encode(record)) is record.masked
        assert decode(encode(record)) == record


@pytest.mark.parametrize("verdict", [None, "silent"])
async def test_the_process_that_holds_the_arguments_runs_the_call_with_them(verdict: Any):
    door = Door()
    agent = door.agent(login(), says("done"))
    if verdict:
        agent.gate(ToolCalling)(lambda event: None)
    await agent.run("go", session="s")
    assert door.given == [SECRET]
    assert SECRET not in repr(await agent.store.read("s"))


async def test_a_rewrite_may_put_a_secret_into_a_call():
    door = Door()
    agent = door.agent(login("the usual"), says("done"))
    agent.rewrite(ToolCalling)(lambda event: event.call.replace(arguments={"password": SECRET}))
    await agent.run("go", session="s")
    assert door.given == [SECRET]
    [decided] = [record for record in await agent.store.read("s") if isinstance(record, ToolDecided)]
    assert decided.masked
    assert (decided.json, decided.digest) == (f'{{"password":"{MASK}"}}', ToolCall("", "login", decided.json).digest)


async def test_after_an_approval_in_this_process_it_runs_and_in_another_it_does_not():
    for same in (True, False):
        door = Door()
        agent = door.agent(login(), says("done"), verdict=Ask("Sure?"))
        result = await agent.run("go", session="s")
        assert isinstance(result.outcome, Suspended)
        [asked] = result.waiting_for
        assert MASK in asked.call.json
        other = agent if same else door.agent(says("done"), store=agent.store, verdict=Ask("Sure?"))
        result = await other.resume("s", answers={asked.id: Approve()})
        if same:
            assert (door.given, result.outcome) == ([SECRET], Completed())
        else:
            await assert_not_run(door, result, agent.store)
            assert (await result_in(agent.store)).status == "denied"
            assert "secrets" in str(result.why())


@pytest.mark.parametrize("answer", [Reject("no"), Respond("you are in"), Edit({"password": "guest"})])
async def test_other_answers_count_in_another_process(answer: Any):
    door = Door()
    first = door.agent(login(), verdict=Ask("Sure?"))
    [asked] = (await first.run("go", session="s")).waiting_for
    second = door.agent(says("done"), store=first.store, verdict=Ask("Sure?"))
    await second.resume("s", answers={asked.id: answer})
    text = (await result_in(first.store)).text
    assert door.given == (["guest"] if isinstance(answer, Edit) else [])
    assert text == {Reject: "Denied: no", Respond: "you are in", Edit: "welcome"}[type(answer)]


async def test_an_ask_about_masked_arguments_is_a_deny_in_another_process():
    door = Door()
    first = door.agent(login(), says("done"))
    await first.run("go", session="s")
    door.given.clear()
    store = await cut(first.store, ModelReplied)
    second = door.agent(says("done"), store=store, verdict=Ask("Sure?"))
    await assert_not_run(door, await second.resume("s"), store)
    [decided] = [record for record in await store.read("s") if isinstance(record, ToolDecided)]
    assert decided.verdict == Deny(NOT_KEPT)


@pytest.mark.parametrize("effect", ["pure", "idempotent", "unsafe"])
@pytest.mark.parametrize("after", [ModelReplied, ToolDecided, ToolCalled])
async def test_after_a_crash_masked_arguments_are_not_run(effect: Any, after: type[Record]):
    door = Door(effect=effect)
    first = door.agent(login(), says("done"))
    await first.run("go", session="s")
    door.given.clear()
    store = await cut(first.store, after)
    result = await door.agent(says("done"), store=store).resume("s")
    if effect == "unsafe" and after is ToolCalled:
        assert (await result_in(store)).status == "interrupted"
    await assert_not_run(door, result, store)


@pytest.mark.parametrize("rule", ["ask", "compensate"])
async def test_masked_arguments_are_neither_asked_about_nor_used_to_undo(rule: Any):
    undone: list[str] = []

    def undo(password: str) -> None:
        undone.append(password)

    door = Door(in_doubt=rule, **({"compensate": undo} if rule == "compensate" else {}))
    first = door.agent(login(), says("done"))
    await first.run("go", session="s")
    door.given.clear()
    store = await cut(first.store, ToolCalled)
    await assert_not_run(door, await door.agent(says("done"), store=store).resume("s"), store)
    assert undone == []


async def test_an_edit_with_a_secret_runs_in_the_process_that_got_it_only():
    for through_the_inbox in (False, True):
        door = Door()
        agent = door.agent(login("x"), says("done"), verdict=Ask("Sure?"))
        [asked] = (await agent.run("go", session="s")).waiting_for
        edit = Edit({"password": SECRET})
        if through_the_inbox:
            await agent.resolve("s", asked.id, edit)
        result = await agent.resume("s", answers=None if through_the_inbox else {asked.id: edit})
        if through_the_inbox:
            await assert_not_run(door, result, agent.store)
        else:
            assert door.given == [SECRET]
        assert SECRET not in repr(await agent.store.read("s"))


async def test_an_edited_call_with_a_secret_is_not_run_again_after_a_crash():
    door = Door(effect="idempotent")
    first = door.agent(login("x"), says("done"), verdict=Ask("Sure?"))
    [asked] = (await first.run("go", session="s")).waiting_for
    await first.resume("s", answers={asked.id: Edit({"password": SECRET})})
    assert door.given == [SECRET]
    door.given.clear()
    store = await cut(first.store, ToolCalled)
    await assert_not_run(door, await door.agent(says("done"), store=store).resume("s"), store)


async def test_a_wrap_may_put_a_secret_into_a_call_and_does_so_again_after_a_crash():
    def wrapped(agent: Agent) -> Agent:
        @agent.wrap(ToolCall)
        async def key(call: Any, call_next: Any) -> Any:
            return await call_next(call.replace(arguments={"password": SECRET}))

        return agent

    door = Door(effect="idempotent")
    first = wrapped(door.agent(login("x"), says("done")))
    await first.run("go", session="s")
    store = await cut(first.store, ToolCalled)
    await wrapped(door.agent(says("done"), store=store)).resume("s")
    assert door.given == [SECRET, SECRET]
    assert SECRET not in repr([await first.store.read("s"), await store.read("s")])


async def test_an_attempt_that_the_log_serves_masked_is_not_run():
    """A wrap discarded a reply and takes it after all, in another process: its arguments are gone."""

    def wrapped(agent: Agent, *, asks_twice: bool) -> Agent:
        @agent.wrap(ModelCall)
        async def once(request: Any, call_next: Any) -> Any:
            reply = await call_next(request)
            if asks_twice:
                await call_next(request)
                raise KeyboardInterrupt
            return reply

        return agent

    door = Door()
    first = wrapped(door.agent(login(), login()), asks_twice=True)
    with pytest.raises(KeyboardInterrupt):
        await first.run("go", session="s")
    attempted = [record for record in await first.store.read("s") if isinstance(record, ModelAttempted)]
    assert attempted[0].masked
    log = list(await first.store.read("s"))
    store = MemoryStore()
    await store.append("s", log[: log.index(attempted[0]) + 1], 0)
    second = wrapped(door.agent(says("done"), store=store), asks_twice=False)
    assert (await second.resume("s")).outcome == Completed()
    assert door.given == []
    assert NOT_KEPT in (await result_in(store)).text


async def test_a_task_with_a_secret_is_not_begun_from_the_log():
    def boss(*script: Any, store: Any = None) -> Agent:
        kid = Agent(ScriptedModel(says("hello")), name="kid")
        return Agent(ScriptedModel(*script), tools=[kid.as_tool()], store=store or MemoryStore(), secrets=[SECRET])

    first = boss(calls("kid", task=f"use {SECRET}"), says("done"))
    await first.run("go", session="s")
    assert (await result_in(first.store)).text == "hello"
    for after in (ModelReplied, Delegated):
        store = await cut(first.store, after)
        result = await boss(says("done"), store=store).resume("s")
        assert result.outcome == Completed()
        assert NOT_KEPT in (await result_in(store)).text
        assert list(await store.read("s//1/1")) == []
    begun = await cut(first.store, Delegated)
    kid = list(await first.store.read("s//1/1"))
    place = next(at for at, record in enumerate(kid, 1) if isinstance(record, TurnStarted))
    await begun.append("s//1/1", kid[: place + 1], 0)
    assert (await boss(says("done"), store=begun).resume("s")).outcome == Completed()
    assert (await result_in(begun)).text == "hello"  # one that had begun goes on from its own log


CHILD = """
import asyncio, sys
from windlass import Agent, Ask, ToolCalling, tool
from windlass.testing import FunctionModel, calls, says

@tool(effect="idempotent")
async def login(password: str) -> str:
    "Log in."
    with open(sys.argv[1] + "/given", "a") as file:
        print(password, file=file, flush=True)
    if sys.argv[2] == "die":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return "welcome"

def reply(request):
    return says("done") if request.messages[-1].role == "tool" else calls("login", password="hunter2-prod")

async def main():
    agent = Agent(FunctionModel(reply), tools=[login], store=f"sqlite:///{sys.argv[1]}/s.db", secrets=["hunter2-prod"])
    if sys.argv[2] == "ask":
        agent.gate(ToolCalling)(lambda event: Ask("Sure?"))
    await agent.run("go", session="s")

asyncio.run(main())
"""


def run_process(folder: Path, how: str) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, "-c", CHILD, str(folder), how], env=environment, check=False).returncode


@pytest.mark.parametrize("how", ["ask", "die"])
async def test_another_process_does_not_run_masked_arguments(tmp_path: Path, how: str):
    assert run_process(tmp_path, how) == (0 if how == "ask" else -signal.SIGKILL)
    given = (tmp_path / "given").read_text().split() if how == "die" else []
    assert given == ([SECRET] if how == "die" else [])
    store = SQLiteStore(tmp_path / "s.db")
    door = Door(effect="idempotent")
    agent = door.agent(says("done"), store=store, verdict=Ask("Sure?") if how == "ask" else None)
    waiting = fold("s", await store.read("s")).waiting
    result = await agent.resume("s", answers={asked.id: Approve() for asked in waiting})
    await assert_not_run(door, result, store)
    await store.close()
