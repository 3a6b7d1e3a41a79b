"""Agents work in the background with `turn.delegate(…, background=True)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    BackgroundTask,
    Cancelled,
    Charged,
    Completed,
    Delegated,
    Delegating,
    Deny,
    MessageAdding,
    StepStarting,
    StopReason,
    Suspended,
    TokenLimit,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    TurnStarting,
    tool,
)
from windlass.errors import ConfigError, HookError, SessionBusy, SessionError, StoreError
from windlass.messages import Usage
from windlass.records import MessageAdded
from windlass.stores import MemoryStore, SQLiteStore
from windlass.testing import FunctionModel, RecordingObserver, ScriptedModel, calls, says

SPENT = Usage(input=3, output=2)


@tool
def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


class Gate:
    """Lets an agent go on when a test says so."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, request: Any) -> Any:
        self.began.set()
        await self.open.wait()
        return says("fine", usage=SPENT)


def kid(*replies: Any, name: str = "kid", **options: Any) -> Agent[Any, Any]:
    model = ScriptedModel(*(replies or (says("fine", usage=SPENT),)))
    return Agent(model, tools=[pay], name=name, **options)


def slow_kid(gate: Gate, **options: Any) -> Agent[Any, Any]:
    return Agent(FunctionModel(gate), name="kid", **options)


def starter(child: Agent[Any, Any], tasks: list[BackgroundTask[Any]], **options: Any) -> Any:
    @tool(effect="pure")
    async def start(turn: Turn[Any]) -> str:
        """Start it."""
        tasks.append(await turn.delegate(child, "do it", background=True, **options))
        return "started"

    return start


def parent(child: Agent[Any, Any], *replies: Any, tasks: Any = None, share: Any = None, **options: Any) -> Any:
    script = replies or (calls("start"), says("one"), says("two"), says("three"))
    started = [] if tasks is None else tasks
    options.setdefault("subagents", [child])
    return Agent(ScriptedModel(*script), tools=[starter(child, started, share=share)], **options)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: Any, tmp_path: Any) -> AsyncGenerator[Any, None]:
    made: Any = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "agent.db")
    yield made
    await made.close()


async def records(agent: Agent[Any, Any], kind: type, session: str = "s") -> list[Any]:
    return [record for record in await agent.store.read(session) if isinstance(record, kind)]


def texts(result: Any) -> list[str]:
    return [message.text for message in result.state.messages if message.role == "user"]


RESULT = "(agent 'kid'):\nfine"


# ---------------------------------------------------------------- the result comes in


async def test_the_turn_goes_on_and_the_next_one_reads_the_result():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    first = await agent.run("go", session="s")
    assert (first.text, texts(first)) == ("one", ["go"])
    gate.open.set()
    assert (await tasks[0].result()).text == "fine"
    second = await agent.run("and now?", session="s")
    assert texts(second)[:2] == ["go", "and now?"]
    assert texts(second)[2] == f"Result of background task {tasks[0].session} {RESULT}"
    third = await agent.run("again?", session="s")
    assert sum("Result of" in text for text in texts(third)) == 1


class OnceUnwritable(MemoryStore):
    """Refuses one write to the session of a child, at its second step."""

    refuse = True

    async def append(self, session: str, records: Any, expected: int, claim: Any = None) -> bool:
        if self.refuse and "//" in session and any(isinstance(one, ToolReturned) for one in records):
            self.refuse = False
            raise StoreError("the disk is full")
        return await super().append(session, records, expected, claim)


async def test_a_child_that_could_not_be_written_has_no_result_yet_and_goes_on_when_it_is_resumed():
    """Its log does not have the end, so its parent must not be told of one."""
    child, tasks = kid(calls("pay", n=1), says("fine")), list[Any]()
    agent = parent(child, store=OnceUnwritable(), tasks=tasks)
    await agent.run("go", session="s")
    with pytest.raises(SessionError, match="was interrupted"):
        await tasks[0].result()
    [task] = await agent.resume_background("s")
    assert (await task.result()).text == "fine"
    second = await agent.run("and now?", session="s")
    assert [text for text in texts(second) if "Result of" in text] == [
        f"Result of background task {task.session} {RESULT}"
    ]


async def test_a_running_turn_reads_the_result_at_its_next_step():
    gate, tasks = Gate(), list[Any]()
    child = slow_kid(gate)

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        gate.open.set()
        await tasks[0].result()
        return "waited"

    model = ScriptedModel(calls("start"), calls("wait"), says("done"))
    agent = Agent(model, tools=[starter(child, tasks), wait], subagents=[child])
    result = await agent.run("go", session="s")
    assert (result.text, len(texts(result))) == ("done", 2)
    assert texts(result)[1].endswith(RESULT)


async def test_a_result_that_comes_when_the_model_has_finished_makes_it_go_on():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), calls("start"), says("one"), says("with it"), tasks=tasks)

    @agent.gate(StepStarting)
    async def late(event: StepStarting) -> None:
        if event.step == 2:
            gate.open.set()
            await tasks[0].result()

    result = await agent.run("go", session="s")
    assert texts(result)[1].endswith(RESULT)
    assert result.text in ("one", "with it")


async def test_hooks_judge_the_result_as_any_message():
    agent = parent(kid())
    agent.gate(MessageAdding)(lambda event: Deny("no") if "fine" in event.message.text else None)
    result = await agent.run("go")
    assert texts(result) == ["go"]
    assert len(await records(agent, Charged, result.session_id)) == 1


async def test_a_failed_child_says_so():
    def fail(request: Any) -> Any:
        raise ValueError("no")

    agent = parent(Agent(FunctionModel(fail), name="kid"))
    result = await agent.run("go")
    assert "Error: agent 'kid' failed: ModelError" in texts(result)[1] or "failed" in texts(result)[1]


# ---------------------------------------------------------------- the handle, the log and observers


async def test_the_log_links_parent_and_child():
    tasks = list[Any]()
    agent = parent(kid(), tasks=tasks)
    await agent.run("go", session="s")
    await tasks[0].result()
    [started] = await records(agent, Delegated)
    assert (started.background, started.agent, started.by, started.session) == (True, "kid", "start", tasks[0].session)
    [info] = [one for one in await agent.store.find() if one.session == tasks[0].session]
    assert info.parent == "s"
    assert "in the background" in str(await agent.why("s"))
    assert (await agent.state("s")).background[0].started == started
    assert (tasks[0].agent, tasks[0].task) == ("kid", "do it")


async def test_observers_of_the_parent_hear_of_the_child_with_its_path_also_after_the_turn():
    gate, tasks, heard = Gate(), list[Any](), RecordingObserver()
    agent = parent(slow_kid(gate), tasks=tasks)
    agent.observe(TurnEnded, wait=True)(heard)
    await agent.run("go", session="s")
    gate.open.set()
    await tasks[0].result()
    assert [fact.path for fact in heard.facts] == ["", tasks[0].session]


async def test_guards_of_the_parent_hold_for_the_child():
    tasks = list[Any]()
    agent = parent(kid(calls("pay", n=1), says("over")), tasks=tasks)
    agent.gate(ToolCalling, tool="pay", band="guard")(lambda event: Deny("no paying"))
    await agent.run("go", session="s")
    await tasks[0].result()
    [returned] = await records(agent, ToolReturned, tasks[0].session)
    assert returned.result.status == "denied"


async def test_delegating_judges_the_task():
    agent = parent(kid())
    agent.gate(Delegating)(lambda event: Deny("not now"))
    result = await agent.run("go", session="s")
    assert await records(agent, Delegated) == []
    assert result.state.background == ()


# ---------------------------------------------------------------- money


async def test_a_grant_is_held_until_the_result_is_in_and_then_the_rest_comes_back():
    gate, tasks, left = Gate(), list[Any](), list[Any]()
    child = slow_kid(gate)

    @tool(effect="pure")
    async def look(turn: Turn[Any]) -> str:
        """Look."""
        left.append(turn.left.tokens)
        gate.open.set()
        await tasks[0].result()
        return "ok"

    @tool(effect="pure")
    async def again(turn: Turn[Any]) -> str:
        """Look again."""
        left.append(turn.left.tokens)
        return "ok"

    free = Usage(input=0, output=0)
    agent = Agent(
        ScriptedModel(
            calls("start", _usage=free), calls("look", _usage=free), calls("again", _usage=free), says("x", usage=free)
        ),
        tools=[starter(child, tasks, share=0.25), look, again],
        subagents=[child],
        criteria=[TokenLimit(1000)],
    )
    result = await agent.run("go", session="s")
    [started] = await records(agent, Delegated)
    assert started.tokens == 250
    assert left == [750, 995]
    assert result.usage.total == 5


async def test_without_a_share_it_is_granted_half_of_what_is_left():
    agent = parent(kid(), criteria=[TokenLimit(1000)])
    await agent.run("go", session="s")
    [started] = await records(agent, Delegated)
    assert 400 < started.tokens <= 500


async def test_a_child_cannot_spend_more_than_its_grant():
    tasks = list[Any]()
    greedy = kid(*[calls("pay", n=n, _usage=Usage(input=60)) for n in range(9)])
    agent = parent(greedy, tasks=tasks, share=0.1, criteria=[TokenLimit(1000)])
    await agent.run("go", session="s")
    result = await tasks[0].result()
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert result.usage.requests == 2


async def test_what_a_child_of_an_earlier_turn_spent_counts_in_the_session_but_not_in_the_turn():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    first = await agent.run("go", session="s")
    gate.open.set()
    await tasks[0].result()
    second = await agent.run("more", session="s")
    assert second.state.turn.usage.requests == 1
    assert second.state.usage.requests == first.state.usage.requests + 2


async def test_what_a_child_of_an_earlier_turn_spent_is_in_the_result_of_the_turn_that_gets_its_report():
    """It was in no result at all."""
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks, criteria=[TokenLimit(100_000)])
    results = [await agent.run("go", session="s")]
    gate.open.set()
    spent = (await tasks[0].result()).usage
    results += [await agent.run("more", session="s"), await agent.run("and more", session="s")]
    assert spent.requests == 1
    assert results[1].usage == results[1].state.turn.usage + spent
    assert list(results[1].usage_by.values()) == [spent]
    assert [result.usage_by for result in (results[0], results[2])] == [{}, {}]
    assert sum(result.usage.total for result in results) == results[-1].state.usage.total
    again = (await Agent(ScriptedModel(), store=agent.store).state("s")).turn
    assert again == results[-1].state.turn


# ---------------------------------------------------------------- its questions are its own


def asking(answer: str = "yes") -> Agent[Any, Any]:
    agent = kid(calls("pay", n=3), says(answer))
    agent.gate(ToolCalling, name="ask")(lambda event: Ask("may I pay?"))
    return agent


async def test_a_child_that_waits_for_a_person_does_not_hold_up_its_parent():
    tasks = list[Any]()
    agent = parent(asking(), tasks=tasks)
    first = await agent.run("go", session="s")
    assert first.outcome == Completed()
    waiting = await tasks[0].result()
    assert isinstance(waiting.outcome, Suspended)
    [asked] = waiting.waiting_for
    child = await agent.resume(tasks[0].session, answers={asked.id: Approve()})
    assert child.text == "yes"
    second = await agent.run("and?", session="s")
    assert texts(second)[2].endswith("yes")


async def test_an_answer_in_its_inbox_counts_when_the_parent_goes_on():
    tasks = list[Any]()
    agent = parent(asking(), tasks=tasks)
    await agent.run("go", session="s")
    [asked] = (await tasks[0].result()).waiting_for
    await agent.resolve(tasks[0].session, asked.id, Approve())
    [task] = await agent.resume_background("s")
    assert (await task.result()).text == "yes"
    assert await agent.store.approvals() == []


async def test_approvers_of_the_agent_answer_for_its_children_too():
    tasks = list[Any]()
    agent = parent(asking(), tasks=tasks, approvers=[lambda asked: Approve(by="rule")])
    await agent.run("go", session="s")
    assert (await tasks[0].result()).text == "yes"


async def test_a_child_is_not_resumed_with_options_that_its_turn_does_not_have():
    tasks = list[Any]()
    agent = parent(asking(), tasks=tasks)
    await agent.run("go", session="s")
    [asked] = (await tasks[0].result()).waiting_for
    with pytest.raises(ConfigError, match="a resume cannot change the options of a turn: settings was passed"):
        await agent.resume(tasks[0].session, answers={asked.id: Approve()}, settings={"temperature": 0})
    assert (await agent.resume(tasks[0].session, answers={asked.id: Approve()})).text == "yes"


# ---------------------------------------------------------------- ends


async def test_cancelling_the_turn_cancels_its_children():
    gate, tasks = Gate(), list[Any]()
    child = slow_kid(gate)

    @tool
    async def stop(turn: Turn[Any]) -> str:
        """Stop."""
        await gate.began.wait()
        turn.cancel("enough")
        await asyncio.sleep(30)
        return "never"

    agent = Agent(ScriptedModel(calls("start"), calls("stop")), tools=[starter(child, tasks), stop], subagents=[child])
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Cancelled)
    assert (await tasks[0].result()).outcome == Cancelled("enough")


async def test_a_child_is_cancelled_alone():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    await gate.began.wait()
    assert await agent.cancel(tasks[0].session, "not that") is True
    assert (await tasks[0].result()).outcome == Cancelled("not that")
    second = await agent.run("and?", session="s")
    assert "was cancelled: not that" in texts(second)[2]


async def test_cancelling_a_session_whose_turn_is_over_cancels_what_works_for_it():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    await gate.began.wait()
    assert await agent.cancel("s", "all of it") is True
    assert (await tasks[0].result()).outcome == Cancelled("all of it")
    await agent.run("and?", session="s")
    assert await agent.cancel("s") is False


async def test_cancelling_a_session_reaches_a_child_that_has_not_begun():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    assert not gate.began.is_set()
    assert await agent.cancel("s", "stop") is True
    assert (await tasks[0].result()).outcome == Cancelled("stop")
    assert not gate.began.is_set()


async def test_a_child_that_has_not_begun_is_cancelled_alone():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    assert await agent.cancel(tasks[0].session, "not that") is True
    assert (await tasks[0].result()).outcome == Cancelled("not that")
    assert not gate.began.is_set()
    with pytest.raises(SessionError, match="there is no session 's//other'"):
        await agent.cancel("s//other")


async def test_cancelling_a_session_reaches_a_child_whose_process_died_before_it_began(store: Any):
    gate, tasks = Gate(), list[Any]()
    child = slow_kid(gate)
    agent = parent(child, tasks=tasks, store=store)
    agent._background().start = lambda child: None  # the process dies right there
    await agent.run("go", session="s")
    another: Agent[Any, Any] = Agent(ScriptedModel(says("two")), subagents=[child], store=store)
    assert await another.cancel("s", "stop") is True
    await another.run("and?", session="s")
    await another.aclose()
    assert (await another.state(tasks[0].session)).outcome == Cancelled("stop")
    assert not gate.began.is_set()


def suspending(child: Agent[Any, Any], tasks: list[Any], *replies: Any, **options: Any) -> Any:
    """An agent that starts a child and then asks a person."""
    script = (calls("start"), calls("pay", n=1), *replies)
    agent = Agent(ScriptedModel(*script), tools=[starter(child, tasks), pay], subagents=[child], **options)
    agent.gate(ToolCalling, tool="pay", name="ask")(lambda event: Ask("may I?"))
    return agent


async def test_cancelling_a_suspended_session_cancels_its_children_at_once(store: Any):
    gate, tasks = Gate(), list[Any]()
    agent = suspending(slow_kid(gate), tasks, store=store)
    assert isinstance((await agent.run("go", session="s")).outcome, Suspended)
    await gate.began.wait()
    assert await agent.cancel("s", "stop") is True
    assert (await tasks[0].result()).outcome == Cancelled("stop")


async def test_cancelling_a_suspended_session_holds_for_its_children_if_a_new_turn_replaces_its_turn():
    gate, tasks = Gate(), list[Any]()
    agent = suspending(slow_kid(gate), tasks, says("two"))
    await agent.run("go", session="s")
    await gate.began.wait()
    await agent.aclose(patience=0)  # the child is interrupted, as if its process had died
    assert await agent.cancel("s", "stop") is True
    gate.open.set()
    assert (await agent.run("something else", session="s")).text == "two"
    assert (await tasks[0].result()).outcome == Cancelled("stop")


async def test_cancelling_a_session_reaches_the_children_of_a_child_that_waits_for_a_person():
    gate, above, below = Gate(), list[Any](), list[Any]()
    child = suspending(slow_kid(gate), below, name="child")
    agent = parent(child, tasks=above)
    await agent.run("go", session="s")
    assert isinstance((await above[0].result()).outcome, Suspended)
    await gate.began.wait()
    assert await agent.cancel("s", "stop") is True
    assert (await below[0].result()).outcome == Cancelled("stop")
    [again] = await agent.resume_background("s")
    await agent.aclose()
    assert (await again.result()).outcome == Cancelled("stop")


async def test_a_run_without_a_session_waits_for_its_children_and_reads_their_results():
    agent = parent(kid(), calls("start"), says("one"), says("with the result"))
    result = await agent.run("go")
    assert result.text == "with the result"
    assert texts(result)[1].endswith(RESULT)


async def test_a_sub_agent_waits_for_its_own_background_children():
    grandchild = kid(name="kid")
    child = parent(grandchild, calls("start"), says("one"), says("with the result"), name="child")
    agent: Agent[Any, Any] = Agent(ScriptedModel(calls("child", task="work"), says("done")), tools=[child.as_tool()])
    result = await agent.run("go", session="s")
    assert result.messages[2].parts[0].text == "with the result"
    assert result.usage.requests == 6


async def test_a_background_child_has_background_children():
    tasks = list[Any]()
    child = parent(kid(name="grandkid"), calls("start"), says("one"), says("both"), name="kid")
    agent = parent(child, tasks=tasks)
    await agent.run("go", session="s")
    assert (await tasks[0].result()).text == "both"


async def test_a_session_that_ends_with_its_turn_ends_its_children_with_a_hard_limit():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), calls("start"), calls("start"), tasks=tasks, max_steps=1)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert isinstance((await tasks[0].result()).outcome, Cancelled)


async def test_in_a_session_that_ends_with_its_turn_a_child_cannot_wait_for_a_person():
    agent = parent(asking("then not"), calls("start"), says("one"), says("two"))
    result = await agent.run("go")
    assert texts(result)[1].endswith("then not")


async def test_nesting_is_limited():
    agent = parent(kid(), max_depth=0)
    await agent.run("go", session="s")
    assert await records(agent, Delegated) == []


# ---------------------------------------------------------------- closing, and going on


async def test_closing_waits_for_children():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    gate.open.set()
    await agent.aclose()
    assert (await agent.state(tasks[0].session)).text == "fine"


async def test_closing_interrupts_what_takes_too_long_and_it_can_be_resumed():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    await gate.began.wait()
    await agent.aclose(patience=0)
    assert (await agent.state(tasks[0].session)).outcome is None
    with pytest.raises(SessionError, match="was interrupted, and no process works on it"):
        await tasks[0].result()
    gate.open.set()
    [again] = await agent.resume_background("s")
    assert (await again.result()).text == "fine"


async def test_the_next_turn_goes_on_with_what_was_interrupted():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    await gate.began.wait()
    await agent.aclose(patience=0)
    gate.open.set()
    await agent.run("more", session="s")
    assert (await tasks[0].result()).text == "fine"
    assert sum(isinstance(one, MessageAdded) for one in await agent.store.read("s")) >= 2


def test_run_sync_waits_for_children():
    tasks = list[Any]()
    agent = parent(kid(), tasks=tasks)
    agent.run_sync("go", session="s")
    result = agent.run_sync("and?", session="s")
    assert texts(result)[2].endswith(RESULT)


async def test_a_session_with_a_child_at_work_is_not_erased():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    await gate.began.wait()
    with pytest.raises(SessionBusy):
        await agent.store.erase("s")
    gate.open.set()
    await tasks[0].result()
    await agent.store.erase("s")
    assert await agent.store.read(tasks[0].session) == []


async def test_a_child_that_was_erased_is_not_at_work_any_more(store: Any):
    tasks = list[Any]()
    agent = parent(asking(), tasks=tasks, store=store)
    await agent.run("go", session="s")
    await tasks[0].result()
    await agent.aclose()
    await agent.store.erase(tasks[0].session)
    assert await agent.cancel("s") is False
    with pytest.raises(SessionError, match="was erased"):
        await tasks[0].result()
    assert await agent.resume_background("s") == ()
    await agent.aclose()
    second = await agent.run("and?", session="s")
    assert texts(second)[2].endswith("Error: agent 'kid' has no result: its session was erased")
    assert [one.taken for one in (await agent.state("s")).background] == [True]


async def test_a_fork_has_no_background_children():
    gate, tasks = Gate(), list[Any]()
    agent = parent(slow_kid(gate), tasks=tasks)
    await agent.run("go", session="s")
    fork = await agent.fork("s", to="f")
    assert (await agent.state(fork)).background == ()
    gate.open.set()
    await tasks[0].result()
    assert len(texts(await agent.run("and?", session="f"))) == 2
    assert texts(await agent.run("and?", session="s"))[2].endswith(RESULT)


# ---------------------------------------------------------------- mistakes


async def test_an_agent_that_is_not_declared_is_refused_with_the_remedy():
    agent = parent(kid(), subagents=[])
    agent.gate(ToolCalling)(lambda event: None)
    result = await agent.run("go", session="s")
    assert await records(agent, Delegated) == []
    [returned] = await records(agent, ToolReturned)
    assert "Agent(subagents=[…])" in str(returned.error)
    assert result.outcome == Completed()


async def test_two_declared_agents_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two sub-agents named 'kid'"):
        Agent(ScriptedModel(says("x")), subagents=[kid(), kid()]).compile()


async def test_no_child_is_started_in_the_background_while_a_turn_is_opened():
    child = kid()
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hi")), subagents=[child])

    @agent.rewrite(TurnStarting)
    async def early(event: TurnStarting, turn: Turn[Any]) -> None:
        await turn.delegate(child, "go", background=True)

    with pytest.raises(HookError, match="still being opened"):
        (await agent.run("go")).raise_for_error()


def test_what_is_not_an_agent_cannot_be_declared():
    with pytest.raises(ConfigError, match="subagents"):
        Agent(ScriptedModel(says("x")), subagents=["kid"])  # type: ignore[list-item]


async def test_a_task_with_a_secret_that_is_lost_before_it_began_is_reported_and_not_run():
    gate, tasks = Gate(), list[Any]()
    child = slow_kid(gate)

    @tool(effect="pure")
    async def start(turn: Turn[Any]) -> str:
        """Start it."""
        tasks.append(await turn.delegate(child, "use hunter2", background=True))
        return "started"

    model = ScriptedModel(calls("start"), says("one"), says("two"))
    agent: Agent[Any, Any] = Agent(model, tools=[start], subagents=[child], secrets=["hunter2"])
    agent._background().start = lambda child: None  # type: ignore[method-assign]  # the process dies right there
    await agent.run("go", session="s")
    another: Agent[Any, Any] = Agent(
        ScriptedModel(says("two"), says("three")), subagents=[child], secrets=["hunter2"], store=agent.store
    )
    await another.resume_background("s")
    await another.aclose()
    result = await another.run("and?", session="s")
    assert "was not started: its task held a secret that is not kept" in texts(result)[2]
    assert not gate.began.is_set()


async def test_a_streamed_turn_and_a_durable_store_make_no_difference(tmp_path: Any):
    tasks = list[Any]()
    agent = parent(kid(), tasks=tasks, store=f"sqlite:///{tmp_path / 'agent.db'}")
    async with agent:
        async with agent.stream("go", session="s") as stream:
            facts = [event async for event in stream]
        assert all(not getattr(fact, "path", "") for fact in facts)
        assert (await tasks[0].result()).text == "fine"
        records = [fact async for fact in agent.watch(tasks[0].session)]
        assert any(isinstance(record, TurnEnded) for record in records)
        states = [state async for state in agent.iterate("and?", session="s")]
    assert any(message.text.endswith(RESULT) for message in states[-1].messages)


async def test_breaking_off_the_run_cancels_its_children():
    gate, tasks = Gate(), list[Any]()
    child = slow_kid(gate)

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel(calls("start"), calls("wait")), tools=[starter(child, tasks), wait], subagents=[child])
    running = asyncio.ensure_future(agent.run("go", session="s"))
    await gate.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert isinstance((await tasks[0].result()).outcome, Cancelled)
    assert [one.cancelled is not None for one in (await agent.state("s")).background] == [True]
