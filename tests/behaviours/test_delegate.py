"""Hooks and tools give tasks to other agents with `turn.delegate`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Asked,
    Cancelled,
    Charged,
    Completed,
    Delegated,
    Delegating,
    Deny,
    Failed,
    Halt,
    Injected,
    ModelCall,
    ModelReplying,
    Pipeline,
    Reject,
    Says,
    StepStarting,
    Stopped,
    Suspended,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnding,
    TurnStarting,
    Withdrawn,
    tool,
)
from windlass.approvals import open_questions
from windlass.errors import ConfigError, DelegationRefused, HookError
from windlass.messages import Usage
from windlass.policies import ErrorPolicy
from windlass.states import fold
from windlass.stores import MemoryStore
from windlass.testing import (
    FunctionModel,
    RecordingObserver,
    ScriptedModel,
    assert_same_everywhere,
    calls,
    says,
)

SPENT = Usage(input=3, output=2)


@tool
def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


def kid(*replies: Any, name: str = "kid") -> Agent[Any, Any]:
    return Agent(ScriptedModel(*(replies or (says("fine", usage=SPENT),))), tools=[pay], name=name)


def asking(answer: str = "yes", name: str = "kid") -> Agent[Any, Any]:
    """An agent that wants to pay, and asks a person first."""
    agent = kid(calls("pay", n=3), says(answer), name=name)
    agent.gate(ToolCalling, name="ask")(lambda event: Ask(f"may {name} pay?"))
    return agent


def worker(agent: Agent[Any, Any], effect: Any = "pure", **options: Any) -> Any:
    @tool(effect=effect)
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        return (await turn.delegate(agent, "do it", **options)).text

    return work


def with_tool(*tools: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(calls(tools[0].name), says("done")), tools=list(tools), **options)


def results(result: Any) -> list[tuple[str, str]]:
    parts = [part for message in result.messages for part in message.parts if hasattr(part, "status")]
    return [("".join(inner.text for inner in part.content), part.status) for part in parts]


async def records(agent: Agent[Any, Any], kind: type, session: str = "s") -> list[Any]:
    return [record for record in await agent.store.read(session) if isinstance(record, kind)]


# ---------------------------------------------------------------- the same as a call of the model


async def test_a_tool_gets_the_result_of_the_agent_it_delegates_to():
    agent = with_tool(worker(kid()))
    result = await agent.run("go", session="s")
    assert results(result) == [("fine", "ok")]
    [started] = await records(agent, Delegated)
    assert (started.agent, started.task, started.by, started.call) == ("kid", "do it", "work", "")
    assert started.session.startswith("s//")
    assert (await agent.state(started.session)).outcome == Completed()


async def test_what_the_child_spends_is_charged():
    agent = with_tool(worker(kid()))
    result = await agent.run("go", session="s")
    assert [charged.usage.total for charged in await records(agent, Charged)] == [5]
    assert result.usage.total >= 5
    assert result.usage.requests == 3


async def test_guards_of_the_parent_hold_for_the_child_and_its_facts_reach_the_parents_observers():
    agent, heard = with_tool(worker(kid(calls("pay", n=1), says("over")))), RecordingObserver()
    agent.gate(ToolCalling, tool="pay", band="guard")(lambda event: Deny("no paying"))
    agent.observe(ToolReturned, wait=True)(heard)
    result = await agent.run("go", session="s")
    assert results(result) == [("over", "ok")]
    assert [(fact.name, fact.result.status, bool(fact.path)) for fact in heard.facts] == [
        ("pay", "denied", True),
        ("work", "ok", False),
    ]


async def test_the_share_limits_the_child():
    greedy = kid(says("x", usage=Usage(input=900, output=50)), says("y"))
    agent = with_tool(worker(greedy, share=0.1), criteria=[TokenLimit(1_000)])
    await agent.run("go", session="s")
    [started] = await records(agent, Delegated)
    assert 0 < started.tokens <= 100


async def test_a_typed_agent_gives_a_typed_output():
    class Verdict(Struct):
        ok: bool

    critic = Agent(ScriptedModel(says('{"ok": true}')), output=Verdict, name="critic")
    seen: list[Any] = []
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hi")))

    @agent.gate(ModelReplying)
    async def review(event: ModelReplying, turn: Turn[Any]) -> None:
        seen.append((await turn.delegate(critic, event.reply.text)).output)

    assert (await agent.run("go")).text == "hi"
    assert seen == [Verdict(True)]


@pytest.mark.parametrize("event", [TurnStarting, StepStarting, ModelReplying, TurnEnding])
async def test_gates_delegate_on_any_event(event: Any):
    child = kid()
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hi")))
    said: list[str] = []

    @agent.gate(event)
    async def look(event: Any, turn: Turn[Any]) -> None:
        said.append((await turn.delegate(child, "look")).text)

    result = await agent.run("go", session="s")
    assert (result.text, said) == ("hi", ["fine"])
    assert len(await records(agent, Delegated)) == 1


async def test_wraps_and_injections_delegate_too():
    router = FunctionModel(lambda request: says("router"))
    other = Agent(FunctionModel(lambda request: says("other")), name="other")
    agent: Agent[Any, Any] = Agent(router)

    @agent.inject(TurnStarting)
    async def remember(event: TurnStarting, turn: Turn[Any]) -> str:
        return (await turn.delegate(other, "what do you know?")).text

    @agent.wrap(ModelCall)
    async def route(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
        return (await turn.delegate(other, "answer")).text

    result = await agent.run("go", session="s")
    assert result.text == "other"
    assert len(await records(agent, Delegated)) == 2


async def test_delegates_are_the_same_in_every_way_of_running():
    await assert_same_everywhere(lambda: with_tool(worker(kid())))


async def test_a_failed_child_is_a_result_that_says_so():
    def fail(request: Any) -> Any:
        raise ValueError("no")

    broken = Agent(FunctionModel(fail), name="broken")
    seen: list[Any] = []

    @tool
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        result = await turn.delegate(broken, "do it")
        seen.append(result.outcome)
        return "it failed"

    assert (await with_tool(work).run("go")).outcome == Completed()
    assert isinstance(seen[0], Failed)


async def test_the_model_reads_which_hook_failed_about_a_task_of_a_tool():
    agent = with_tool(worker(kid()))

    @agent.rewrite(Delegating)
    def shorten(event: Delegating) -> None:
        raise ValueError("no words")

    result = await agent.run("go", session="s")
    assert results(result) == [("Error: hook 'shorten' failed on Delegating; the log has the details", "error")]
    [returned] = await records(agent, ToolReturned)
    assert (returned.error.hook, "no words" in returned.error.message) == ("shorten", True)


# ---------------------------------------------------------------- what hooks inject for the child


def reading(seen: list[list[str]], *, waits: bool = False) -> Agent[Any, Any]:
    """An agent that notes what its model reads, and may wait for a person in between."""

    def reply(request: Any) -> Any:
        seen.append([message.text for message in request.messages if message.role == "user"])
        return calls("pay", n=1) if waits and len(request.messages) == 1 else says("fine")

    agent = Agent(FunctionModel(reply), tools=[pay], name="kid")
    agent.gate(ToolCalling, name="ask")(lambda event: Ask("may kid pay?"))
    return agent


def delegating_in(place: str, child: Agent[Any, Any]) -> Agent[Any, Any]:
    """An agent that gives one task to another, in the background if the place is named so."""
    if place in ("tool", "background"):
        background: Any = place == "background"

        @tool(effect="pure")
        async def work(turn: Turn[Any]) -> str:
            """Work."""
            task: Any = await turn.delegate(child, "do it", background=background)
            return str((await task.result()).text if background else task.text)

        return with_tool(work, subagents=[child])
    agent = Agent(ScriptedModel(calls("pay", n=2), says("done")), tools=[pay])
    if place == "wrap":

        @agent.wrap(ToolCall)
        async def around(call: Any, call_next: Any, turn: Turn[Any]) -> Any:
            await turn.delegate(child, "do it")
            return await call_next(call)

    else:

        @agent.gate(TurnStarting if place == "opening" else ToolCalling)
        async def gate(event: Any, turn: Turn[Any]) -> None:
            await turn.delegate(child, "do it")

    return agent


@pytest.mark.parametrize("place", ["tool", "gate", "wrap", "opening", "background"])
@pytest.mark.parametrize("durable", [False, True])
async def test_what_hooks_inject_for_a_task_reaches_the_child_and_only_the_child(place: str, durable: bool):
    seen: list[list[str]] = []
    agent = delegating_in(place, reading(seen))
    agent.inject(Delegating, name="hint")(lambda event: Injected("Ann likes tea.", durable=durable))
    agent.inject(Delegating, name="other", agent="somebody")(lambda event: "Not for kid.")

    @agent.hook(Delegating)
    def says_more(event: Delegating) -> Says:
        return Says(rewrite=event.task.replace(task="do it now"), inject="And cake.")

    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    apart = ["do it nowAnd cake.", "Ann likes tea."]
    assert seen == [apart if durable else ["".join(apart)]]
    assert "Ann" not in repr(agent.model.requests)  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["tool", "gate", "wrap", "opening"])
@pytest.mark.parametrize("record", [True, False])
async def test_what_hooks_inject_for_a_task_survives_a_suspension_of_the_child(place: str, record: bool):
    seen: list[list[str]] = []
    asked: list[str] = []
    store = MemoryStore()

    def hint(event: Delegating) -> Injected:
        asked.append(event.task.task)
        return Injected("Ann likes tea.", record=record)

    def new_agent(model: Any = None) -> Agent[Any, Any]:
        made = delegating_in(place, reading(seen, waits=True))
        again = Agent(model or made.model, tools=made.tools.values(), store=store, pipeline=Pipeline().with_hooks(made))
        again.inject(Delegating, name="hint")(hint)
        return again

    result = await new_agent().run("go", session="s")
    model = ScriptedModel(*([calls("pay", n=2)] if place == "opening" else []), says("done"))
    result = await new_agent(model).resume("s", answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"
    assert seen == [["do itAnn likes tea."]] * 2
    assert asked == ["do it"] * (1 if record else 2)


# ---------------------------------------------------------------- who judges the task


@pytest.mark.parametrize("share", [0, -1, 1.5, "half", True])
@pytest.mark.parametrize("background", [False, True])
async def test_a_share_that_is_none_is_refused_in_the_name_of_the_agent(share: Any, background: bool):
    raised: list[str] = []
    child = kid()

    @tool
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        try:
            return str(await turn.delegate(child, "do it", share=share, background=background))
        except ConfigError as error:
            raised.append(str(error))
            raise

    await with_tool(work, subagents=[child]).run("go", session="s")
    assert raised == [f"share={share!r} for agent 'kid': it must be a number above 0 and at most 1"]


def judged(verdict: Any, effect: Any = "pure") -> Agent[Any, Any]:
    agent = with_tool(worker(kid(), effect))
    agent.gate(Delegating, name="judge")(lambda event: verdict)
    return agent


@pytest.mark.parametrize("verdict", [Deny("not that one"), Halt("not that one")])
async def test_the_model_reads_why_a_task_of_a_tool_was_refused(verdict: Any):
    """The gate's reason, not that the tool failed."""
    agent = judged(verdict)
    result = await agent.run("go", session="s")
    assert await records(agent, Delegated) == []
    assert results(result) == [("Error: agent 'kid' was not started: not that one", "error")]
    assert (result.stop_reason == "halted") is isinstance(verdict, Halt)


async def test_a_tool_can_do_without_an_agent_that_was_refused():
    @tool
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        try:
            return (await turn.delegate(kid(), "do it")).text
        except DelegationRefused as refused:
            return f"alone, because {refused.reason} for {refused.agent}"

    agent = with_tool(work)
    agent.gate(Delegating)(lambda event: Deny("not today"))
    assert results(await agent.run("go")) == [("alone, because not today for kid", "ok")]


async def test_a_refused_task_is_not_tried_again():
    tried: list[str] = []

    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        tried.append("x")
        return (await turn.delegate(kid(), "do it")).text

    agent = with_tool(work, errors=ErrorPolicy(actions={"tool": "retry"}))
    agent.gate(Delegating)(lambda event: Deny("no"))
    await agent.run("go")
    assert tried == ["x"]


async def test_a_hook_whose_task_is_refused_fails_in_its_own_name():
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hi")))
    agent.gate(Delegating)(lambda event: Deny("not that one"))

    @agent.inject(TurnStarting, name="remember")
    async def remember(event: TurnStarting, turn: Turn[Any]) -> str:
        return (await turn.delegate(kid(), "what?")).text

    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.hook == "remember"
    assert "agent 'kid' was not started: not that one" in result.outcome.error.message


# ---------------------------------------------------------------- a person judges the task


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
@pytest.mark.parametrize("answer", [Approve(), Reject("not today")])
async def test_a_person_judges_the_task_of_a_tool(effect: Any, answer: Any):
    agent = judged(Ask("Hand it over?"), effect)
    waiting = await agent.run("go", session="s")
    [asked] = waiting.waiting_for
    assert (asked.question, asked.event, asked.by, asked.allow) == (
        "Hand it over?", "Delegating", ("judge",), ("approve", "reject"),
    )  # fmt: skip
    assert await records(agent, Delegated) == []
    shown = [question for _, question in await open_questions(agent.store, "s")]
    assert [one.text for one in shown] == ["task for agent 'kid': do it"]
    result = await agent.resume("s", answers={asked.id: answer})
    refused = "Error: agent 'kid' was not started: not today"
    assert results(result) == [("fine", "ok") if answer == Approve() else (refused, "error")]
    assert len(await records(agent, Delegated)) == (answer == Approve())
    assert await open_questions(agent.store, "s") == []


async def test_a_question_about_a_task_stays_open_until_it_is_answered():
    agent = judged(Ask("Hand it over?"))
    [asked] = (await agent.run("go", session="s")).waiting_for
    again = await agent.resume("s")
    assert [one.id for one in again.waiting_for] == [asked.id]
    await agent.resolve("s", asked.id, Approve())
    assert results(await agent.resume("s")) == [("fine", "ok")]


async def test_of_two_tasks_one_waits_for_a_person_and_the_other_is_done_once():
    runs: list[str] = []

    def reply(request: Any) -> Any:
        runs.append(request.messages[0].text)
        return says("ok")

    child = Agent(FunctionModel(reply), name="kid")

    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        both = await asyncio.gather(turn.delegate(child, "one"), turn.delegate(child, "two"))
        return " ".join(result.text for result in both)

    agent = with_tool(work)
    agent.gate(Delegating)(lambda event: Ask("two?") if event.task.task == "two" else None)
    [asked] = (await agent.run("go", session="s")).waiting_for
    assert runs == ["one"]
    result = await agent.resume("s", answers={asked.id: Approve()})
    assert (results(result), runs) == ([("ok ok", "ok")], ["one", "two"])


@pytest.mark.parametrize("effect", ["unsafe"])
async def test_where_nobody_can_be_asked_about_a_task_it_is_denied_and_the_remedy_named(effect: Any):
    agent = judged(Ask("Hand it over?"), effect)
    result = await agent.run("go", session="s")
    [(text, status)] = results(result)
    assert status == "error"
    assert text.startswith("Error: agent 'kid' was not started: A person cannot be asked here")
    assert "in a tool that is pure or idempotent" in text
    assert text.endswith("The question was: Hand it over?")


@pytest.mark.parametrize("event", [ModelCall, ToolCall])
async def test_a_wrap_waits_for_a_person_to_judge_its_task(event: Any):
    agent: Agent[Any, Any] = Agent(FunctionModel(reply_once), tools=[pay])
    agent.gate(Delegating)(lambda event: Ask("Hand it over?"))

    @agent.wrap(event)
    async def first(value: Any, call_next: Any, turn: Turn[Any]) -> Any:
        await turn.delegate(kid(), "look")
        return await call_next(value)

    result = await agent.run("go", session="s")
    while result.waiting_for:
        result = await agent.resume("s", answers={asked.id: Approve() for asked in result.waiting_for})
    assert result.text == "done"
    assert len(await records(agent, Delegated)) == (2 if event is ModelCall else 1)


def reply_once(request: Any) -> Any:
    return says("done") if any(message.role == "tool" for message in request.messages) else calls("pay", n=1)


@pytest.mark.parametrize("event", [TurnStarting, ModelReplying, ToolCalling, TurnEnding])
async def test_a_gate_that_can_ask_waits_for_a_person_to_judge_its_task(event: Any):
    agent: Agent[Any, Any] = Agent(FunctionModel(reply_once), tools=[pay])
    agent.gate(Delegating)(lambda event: Ask("Hand it over?"))
    asked = 0

    @agent.gate(event)
    async def look(event: Any, turn: Turn[Any]) -> None:
        await turn.delegate(kid(), "look")

    result = await agent.run("go", session="s")
    while result.waiting_for:
        asked += 1
        result = await agent.resume("s", answers={one.id: Approve() for one in result.waiting_for})
    assert (result.text, asked > 0) == ("done", True)


async def test_a_question_about_a_task_whose_hook_is_gone_is_withdrawn():
    store = MemoryStore()

    def make(*, delegates: bool) -> Agent[Any, Any]:
        agent: Agent[Any, Any] = Agent(FunctionModel(reply_once), tools=[pay], store=store)
        agent.gate(Delegating, name="judge")(lambda event: Ask("Hand it over?"))
        if delegates:

            @agent.gate(ToolCalling, name="look")
            async def look(event: Any, turn: Turn[Any]) -> None:
                await turn.delegate(kid(), "look")

        return agent

    agent = make(delegates=True)
    [asked] = (await agent.run("go", session="s")).waiting_for
    result = await make(delegates=False).resume("s")
    assert result.text == "done"
    assert [record.ids for record in await records(agent, Withdrawn)] == [(asked.id,)]


async def test_a_question_about_a_task_of_an_agent_below_is_asked_above_too():
    middle = judged(Ask("Hand it over?"))
    boss = Agent(ScriptedModel(calls("middle", task="t"), says("over")), tools=[middle.as_tool("middle", "m")])
    [asked] = (await boss.run("go", session="s")).waiting_for
    result = await boss.resume("s", answers={asked.id: Approve()})
    assert (result.text, results(result)) == ("over", [("done", "ok")])


async def test_a_task_for_the_background_that_a_person_should_judge_is_denied():
    child = kid()
    agent = with_tool(worker_in_background(child), subagents=[child])
    agent.gate(Delegating)(lambda event: Ask("Hand it over?"))
    [(text, status)] = results(await agent.run("go", session="s"))
    assert (status, "not in the background" in text) == ("error", True)


def worker_in_background(agent: Agent[Any, Any]) -> Any:
    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        return (await turn.delegate(agent, "do it", background=True)).session

    return work


async def test_questions_about_tasks_are_the_same_in_every_way_of_running():
    await assert_same_everywhere(lambda: judged(Ask("Hand it over?")))


async def test_delegating_may_change_the_task_and_take_tools_away():
    heard: list[Any] = []

    def reply(request: Any) -> Any:
        heard.append((request.messages[0].text, [spec.name for spec in request.tools]))
        return says("ok")

    child = Agent(FunctionModel(reply), tools=[pay], name="kid")
    agent = with_tool(worker(child))
    agent.rewrite(Delegating)(lambda event: event.task.replace(task="do it well", tools=()))
    await agent.run("go")
    assert heard == [("do it well", [])]


async def test_a_hook_on_delegating_does_not_meet_its_own_task():
    critic = kid(says("fine"), name="critic")
    agent = with_tool(worker(kid()))
    met: list[str] = []

    @agent.gate(Delegating)
    async def judge(event: Delegating, turn: Turn[Any]) -> None:
        met.append(event.task.agent)
        await turn.delegate(critic, f"is {event.task.task!r} fine?")

    result = await agent.run("go")
    assert results(result) == [("fine", "ok")]
    assert met == ["kid"]


# ---------------------------------------------------------------- a child waits for a person


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_a_child_of_a_repeatable_tool_may_wait_for_a_person(effect: Any):
    agent = with_tool(worker(asking(), effect))
    waiting = await agent.run("go", session="s")
    assert [asked.question for asked in waiting.waiting_for] == ["may kid pay?"]
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert (results(result), result.text) == ([("yes", "ok")], "done")
    assert len(await records(agent, Delegated)) == 1
    assert result.usage.requests == 4


async def test_a_child_of_an_unsafe_tool_cannot_wait_and_the_denial_names_the_remedy():
    agent = with_tool(worker(asking("over"), "unsafe"))
    result = await agent.run("go", session="s")
    assert results(result) == [("over", "ok")]
    [started] = await records(agent, Delegated)
    [denied] = await records(agent, ToolReturned, started.session)
    assert denied.result.status == "denied"
    assert "Delegate in a tool that is pure or idempotent" in denied.result.text
    assert "may kid pay?" in denied.result.text


async def test_while_a_gate_waits_for_its_child_no_call_of_the_step_runs():
    critic, ran = asking("yes", "critic"), list[int]()

    @tool
    def count(n: int) -> str:
        """Count."""
        ran.append(n)
        return "ok"

    agent: Agent[Any, Any] = Agent(
        ScriptedModel(calls([("count", {"n": 1}), ("count", {"n": 2})]), says("done")), tools=[count]
    )

    @agent.gate(ToolCalling, tool="count")
    async def judge(event: ToolCalling, turn: Turn[Any]) -> Any:
        if event.call.arguments["n"] == 1:
            return Allow()
        return Allow() if (await turn.delegate(critic, "ok?")).text == "yes" else Deny("no")

    waiting = await agent.run("go", session="s")
    assert (ran, type(waiting.outcome)) == ([], Suspended)
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert (sorted(ran), result.text) == ([1, 2], "done")


async def test_a_wrap_of_a_model_call_may_wait_and_what_it_paid_for_is_not_asked_again():
    critic = asking("yes", "critic")
    model = ScriptedModel(says("one"), says("two"))
    agent: Agent[Any, Any] = Agent(model)

    @agent.wrap(ModelCall)
    async def review(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
        reply = await call_next(request)
        fine = (await turn.delegate(critic, reply.text)).text == "yes"
        return reply if fine else await call_next(request)

    waiting = await agent.run("go", session="s")
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert (result.text, len(model.requests)) == ("one", 1)


async def test_a_wrap_of_a_tool_call_may_wait():
    critic = asking("yes", "critic")
    agent: Agent[Any, Any] = Agent(ScriptedModel(calls("pay", n=1), says("done")), tools=[pay])

    @agent.wrap(ToolCall)
    async def review(call: ToolCall, call_next: Any, turn: Turn[Any]) -> Any:
        return await call_next(call) if (await turn.delegate(critic, "ok?")).text == "yes" else "no"

    waiting = await agent.run("go", session="s")
    assert isinstance(waiting.outcome, Suspended)
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert results(result) == [("paid 1", "ok")]


@pytest.mark.parametrize("grouped", [False, True], ids=["gather", "TaskGroup"])
async def test_of_two_delegates_side_by_side_the_finished_one_is_not_run_again(grouped: bool):
    quick, slow = kid(says("quick"), name="quick"), asking("slow", "slow")

    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        if grouped:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(turn.delegate(one, "do it")) for one in (slow, quick)]
            found = [task.result() for task in tasks]
        else:
            found = await asyncio.gather(*[turn.delegate(one, "do it") for one in (slow, quick)])
        return " ".join(one.text for one in found)

    agent = with_tool(work)
    waiting = await agent.run("go", session="s")
    assert [asked.question for asked in waiting.waiting_for] == ["may slow pay?"]
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert results(result) == [("slow quick", "ok")]
    assert result.usage.requests == 5
    assert len(await records(agent, Delegated)) == 2


async def test_what_a_tool_does_with_the_interruption_does_not_count():
    child, cleaned = asking(), list[str]()

    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        try:
            return (await turn.delegate(child, "do it")).text
        except BaseException:
            cleaned.append("up")
            return "swallowed"

    agent = with_tool(work)
    waiting = await agent.run("go", session="s")
    assert (type(waiting.outcome), cleaned) == (Suspended, ["up"])
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert results(result) == [("yes", "ok")]


async def test_a_run_that_was_broken_off_begins_no_other_child():
    child = asking()

    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        try:
            return (await turn.delegate(child, "do it")).text
        finally:
            await turn.delegate(child, "clean up")

    agent = with_tool(work)
    async with asyncio.timeout(50):
        waiting = await agent.run("go", session="s")
    assert isinstance(waiting.outcome, Suspended)
    assert len(await records(agent, Delegated)) == 1


async def test_a_rejected_question_of_a_child_is_the_childs_business():
    agent = with_tool(worker(asking("then not")))
    waiting = await agent.run("go", session="s")
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Reject("no")})
    assert results(result) == [("then not", "ok")]


async def test_a_child_whose_gate_was_removed_is_ended_and_its_question_withdrawn():
    first: Agent[Any, Any] = Agent(ScriptedModel(calls("pay", n=1)), tools=[pay])
    critic = asking("yes", "critic")

    @first.gate(ToolCalling)
    async def judge(event: ToolCalling, turn: Turn[Any]) -> Any:
        return Allow() if (await turn.delegate(critic, "ok?")).text == "yes" else Deny("no")

    waiting = await first.run("go", session="s")
    assert isinstance(waiting.outcome, Suspended)
    second: Agent[Any, Any] = Agent(ScriptedModel(says("done")), tools=[pay], store=first.store)
    result = await second.resume("s")
    assert (results(result), result.text) == ([("paid 1", "ok")], "done")
    [started] = await records(second, Delegated)
    assert (await second.state(started.session)).over
    assert [record.ids for record in await records(second, Withdrawn)] == [(waiting.waiting_for[0].id,)]
    assert await second.store.approvals() == []


# ---------------------------------------------------------------- again, and never twice


async def test_a_second_attempt_of_a_wrap_delegates_anew():
    child = kid(says("first"), says("second"))
    agent = with_tool(worker(child))

    @agent.wrap(ToolCall)
    async def twice(call: ToolCall, call_next: Any) -> Any:
        await call_next(call)
        return await call_next(call)

    result = await agent.run("go", session="s")
    assert results(result) == [("second", "ok")]
    assert len({started.session for started in await records(agent, Delegated)}) == 2


async def test_equal_tasks_of_one_run_are_told_apart_by_their_number():
    child = kid(says("first"), says("second"))

    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        return " ".join([(await turn.delegate(child, "do it")).text for _ in range(2)])

    agent = with_tool(work)
    assert results(await agent.run("go", session="s")) == [("first second", "ok")]
    assert len({started.key for started in await records(agent, Delegated)}) == 2


async def test_agents_made_per_call_do_not_fill_a_cache():
    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        for _ in range(400):
            await turn.delegate(Agent(FunctionModel(lambda request: says("x")), name="kid"), "go")
        return "ok"

    agent = with_tool(work)
    assert results(await agent.run("go")) == [("ok", "ok")]
    assert len(agent._compile().children) <= 256


# ---------------------------------------------------------------- who may not


async def test_observers_shadow_gates_and_read_only_turns_cannot_delegate():
    child = kid()
    agent: Agent[Any, Any] = Agent(ScriptedModel(calls("pay", n=1), says("done")), tools=[pay])
    failed: list[str] = []

    async def tries(turn: Turn[Any]) -> None:
        try:
            await turn.delegate(child, "go")
        except HookError as error:
            failed.append(str(error))

    @agent.observe(ToolReturned, wait=True)
    async def look(fact: ToolReturned, turn: Turn[Any]) -> None:
        await tries(turn)

    @agent.gate(TurnStarting, mode="shadow")
    async def shadow(event: TurnStarting, turn: Turn[Any]) -> None:
        await tries(turn)

    @agent.gate(ToolCalling)
    async def by_event(event: ToolCalling) -> None:
        await tries(event.turn)

    assert (await agent.run("go", session="s")).outcome == Completed()
    assert len(failed) == 3
    assert await records(agent, Delegated) == []


@pytest.mark.parametrize("task", ["", None, 5])
async def test_a_task_is_a_text(task: Any):
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hi")))

    @agent.inject(TurnStarting)
    async def ask(event: TurnStarting, turn: Turn[Any]) -> None:
        await turn.delegate(kid(), task)

    with pytest.raises(HookError, match="the task is a text"):
        (await agent.run("go")).raise_for_error()


async def test_what_is_not_an_agent_is_refused():
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hi")))

    @agent.inject(TurnStarting)
    async def ask(event: TurnStarting, turn: Turn[Any]) -> None:
        await turn.delegate("kid", "go")  # type: ignore[arg-type]

    with pytest.raises(HookError, match="give an Agent"):
        (await agent.run("go")).raise_for_error()


async def test_agents_are_nested_only_as_deep_as_they_may_be():
    def nest(depth: int) -> Agent[Any, Any]:
        inner = kid() if depth == 0 else nest(depth - 1)
        return with_tool(worker(inner))

    agent = nest(6)
    result = await agent.run("go")
    assert result.outcome == Completed()


# ---------------------------------------------------------------- while a turn is opened


def checked(**options: Any) -> Agent[Any, Any]:
    """An agent whose gate on the user's message lets a child decide, which asks a person."""

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return says(last.parts[0].content[0].text) if last.role == "tool" else calls("pay", n=3)

    child = Agent(FunctionModel(reply), tools=[pay], name="kid")
    child.gate(ToolCalling, name="ask")(lambda event: Ask("may kid pay?"))
    agent: Agent[Any, Any] = Agent(FunctionModel(lambda request: says("hi")), **options)

    @agent.gate(TurnStarting, name="check")
    async def check(event: TurnStarting, turn: Turn[Any]) -> Any:
        verdict = (await turn.delegate(child, "may it?")).text
        return None if "paid" in verdict else Halt(verdict)

    return agent


async def test_a_child_of_a_gate_on_the_users_message_waits_for_a_person():
    await assert_same_everywhere(checked)
    agent = checked()
    facts: list[str] = []
    agent.observe(Asked, wait=True)(lambda fact: facts.append(fact.id))
    result = await agent.run("go", session="s")
    (question,) = result.waiting_for
    assert facts == [question.id], "the parent's observers hear of it once"
    assert not result.messages
    elsewhere = checked(store=agent.store)
    resumed = await elsewhere.resume("s", answers={question.id: Approve()})
    assert (resumed.text, resumed.usage.requests) == ("hi", 3)
    assert len(await records(agent, Delegated)) == 1


async def test_a_message_whose_check_waits_can_be_rejected_superseded_and_cancelled():
    agent = checked()
    result = await agent.run("go", session="s")
    rejected = await agent.resume("s", answers={result.waiting_for[0].id: Reject("no")})
    assert isinstance(rejected.outcome, Stopped)

    for session in ("superseded", "cancelled"):
        result = await agent.run("go", session=session)
        (below,) = [record.session for record in await agent.store.read(session) if isinstance(record, Delegated)]
        if session == "superseded":
            again = await agent.run("never mind", session=session)
            assert again.state.turns == 2
        else:
            assert await agent.cancel(session)
            assert isinstance((await agent.resume(session)).outcome, Cancelled)
        assert isinstance(fold(below, await agent.store.read(below)).outcome, Cancelled)


@pytest.mark.parametrize("verb", ["inject", "rewrite"])
async def test_a_child_of_an_injection_or_rewrite_on_the_users_message_cannot_wait(verb: str):
    agent: Agent[Any, Any] = Agent(FunctionModel(lambda request: says("hi")))
    child, said = asking(), []

    async def look(event: Any, turn: Turn[Any]) -> None:
        said.append((await turn.delegate(child, "look")).text)

    getattr(agent, verb)(TurnStarting)(look)
    assert (await agent.run("go")).text == "hi"
    assert len(said) == 1


# ---------------------------------------------------------------- children that wait when their parent ends


async def ended_child(agent: Agent[Any, Any]) -> Any:
    """The outcome of the only child, whose questions are gone and whose spending is charged."""
    [started] = await records(agent, Delegated)
    assert await open_questions(agent.store) == []
    assert list(await agent.store.approvals()) == []
    state = await agent.state(started.session)
    charged = [record.usage for record in await records(agent, Charged) if record.session == started.session]
    assert sum(usage.total for usage in charged) == state.usage.total
    assert state.usage.requests
    return state.outcome


@pytest.mark.parametrize("event", [TurnStarting, ModelReplying, ToolCalling, TurnEnding])
async def test_a_child_that_waits_for_a_gate_ends_when_its_parent_is_cancelled(event: Any):
    """At TurnEnding the gate is asked once more when the turn is cancelled, and met its child again."""
    agent: Agent[Any, Any] = Agent(FunctionModel(reply_once), tools=[pay])

    @agent.gate(event)
    async def look(event: Any, turn: Turn[Any]) -> None:
        await turn.delegate(asking(), "look")

    assert (await agent.run("go", session="s")).waiting_for
    assert await agent.cancel("s", "enough")
    assert (await agent.resume("s")).outcome == Cancelled("enough")
    assert isinstance(await ended_child(agent), Cancelled)


async def test_a_child_that_waits_ends_when_its_parent_is_cancelled_while_another_tool_works():
    waits = asyncio.Event()

    @tool(effect="pure")
    async def last() -> str:
        """Work for ever."""
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(calls([("work", {}), ("last", {})]), says("done"))
    agent: Agent[Any, Any] = Agent(model, tools=[worker(asking()), last])

    @agent.observe(Suspended)
    async def note(fact: Suspended) -> None:
        waits.set()

    running = asyncio.create_task(agent.run("go", session="s"))
    await waits.wait()
    assert await agent.cancel("s", "enough")
    assert (await running).outcome == Cancelled("enough")
    assert isinstance(await ended_child(agent), Cancelled)
