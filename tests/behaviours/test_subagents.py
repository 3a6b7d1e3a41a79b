"""Sub-agents: a child lives in its parent's call, under its parent's guards and out of its parent's purse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    ActiveTimeLimit,
    Agent,
    Allow,
    Answered,
    Approve,
    Ask,
    Asked,
    Cancelled,
    Charged,
    Completed,
    CostLimit,
    Deadline,
    Delegated,
    Delegating,
    Deny,
    Edit,
    Halt,
    Injected,
    ModelCall,
    ModelCalling,
    ModelReplied,
    ModelReplying,
    ModelRequest,
    Regenerate,
    Reject,
    Respond,
    Retracted,
    Says,
    SessionEnded,
    SessionStarting,
    Slot,
    StepEnding,
    StepLimit,
    StepStarted,
    Stopped,
    Stopping,
    StopReason,
    SubagentStopping,
    Suspended,
    TextDelta,
    TokenLimit,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolDecided,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarted,
    TurnStarting,
    Usage,
    Veto,
    fold,
    tool,
)
from windlass.errors import ConfigError, SessionError, StaleAnswer, ToolDefinitionError, ToolError
from windlass.records import HookFailed, Record, Rewritten, decode, encode
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, HookTrace, ScriptedModel, assert_same_everywhere, calls, says

S1 = "s1"
CHILD = "s1/1/1"


def asked_for(text: str = "done", tool: str = "child", **arguments: Any) -> FunctionModel:
    """A model that hands over one task and says something once it has a result. It keeps nothing: a log is enough."""
    given = arguments or {"task": "do it"}
    return FunctionModel(lambda r: says(text) if r.messages[-1].role == "tool" else calls(tool, **given))


def working(tool: str = "work", text: str = "worked") -> FunctionModel:
    """A model that calls one tool and says something about the result."""
    return FunctionModel(lambda r: says(text) if r.messages[-1].role == "tool" else calls(tool))


class Tree:
    """A parent with a child, both scripted, and a tool of the child's that notes its calls."""

    def __init__(
        self,
        *,
        child: Any = None,
        parent: Any = None,
        child_options: dict[str, Any] | None = None,
        share: float | None = None,
        tools: Sequence[str] | None = None,
        store: Any = None,
        **options: Any,
    ) -> None:
        self.ran: list[str] = []
        ran = self.ran

        @tool
        async def work() -> str:
            """Work."""
            ran.append("work")
            return "some work"

        self.work = work
        self.child: Agent[Any, Any] = Agent(child or working(), name="child", tools=[work], **child_options or {})
        made = self.child.as_tool(share=share, tools=tools)
        self.parent: Agent[Any, Any] = Agent(parent or asked_for(), name="parent", tools=[made], store=store, **options)

    async def run(self, session: str = S1) -> Any:
        return await self.parent.run("go", session=session)

    async def log(self, session: str = CHILD) -> list[Any]:
        return list(await self.parent.store.read(session))

    async def find(self, kind: type, session: str = S1) -> list[Any]:
        return [record for record in await self.log(session) if isinstance(record, kind)]

    async def result(self) -> Any:
        """What the parent's model read of the child."""
        return (await self.find(ToolReturned))[0].result


async def sound(agent: Agent[Any, Any]) -> None:
    """All logs of an agent's store fold, also once written down and read again."""
    for session in await agent.store.sessions():
        log = list(await agent.store.read(session))
        assert fold(session, [decode(encode(record)) for record in log]) == fold(session, log)


# ---------------------------------------------------------------- an agent as a tool


def test_an_agent_as_a_tool_takes_a_task_and_is_called_like_the_agent():
    child: Agent[Any, Any] = Agent(ScriptedModel(), name="researcher")
    made = child.as_tool()
    assert made.name == "researcher"
    assert "researcher" in made.description
    assert list(made.spec.schema["properties"]) == ["task"]
    assert made.spec.schema["required"] == ["task"]
    renamed = child.as_tool("look_up", "Looks things up.")
    assert (renamed.name, renamed.description) == ("look_up", "Looks things up.")


def test_a_name_that_no_tool_may_have_is_refused():
    child: Agent[Any, Any] = Agent(ScriptedModel(), name="my researcher")
    with pytest.raises(ToolDefinitionError, match="my researcher"):
        child.as_tool()
    assert child.as_tool("researcher").name == "researcher"


@pytest.mark.parametrize("share", [0, -0.5, 1.01])
def test_a_share_is_above_0_and_at_most_1(share: float):
    with pytest.raises(ConfigError, match="share"):
        Agent(ScriptedModel(), name="child").as_tool(share=share)


def test_tools_are_given_as_a_list_of_names():
    with pytest.raises(ConfigError, match="list of names"):
        Agent(ScriptedModel(), name="child").as_tool(tools="work")


def test_a_tool_that_the_child_does_not_have_is_refused_when_the_parent_is_compiled():
    tree = Tree(tools=["wrok"])
    with pytest.raises(ConfigError, match=r"'wrok'.*it has: work"):
        tree.parent.compile()
    with pytest.raises(ConfigError, match="'wrok'"):
        tree.parent.run_sync("go")


def test_a_depth_below_0_is_refused():
    with pytest.raises(ConfigError, match="max_depth"):
        Agent(ScriptedModel(), max_depth=-1)


async def test_the_tool_works_only_in_a_turn():
    made = Agent(ScriptedModel(), name="child").as_tool()
    with pytest.raises(ToolError, match="'child'"):
        await made("do it")


async def test_what_the_child_says_is_the_result_of_the_call():
    tree = Tree()
    result = await tree.run()
    assert result.text == "done"
    returned = await tree.result()
    assert (returned.text, returned.status) == ("worked", "ok")
    assert tree.ran == ["work"]


async def test_the_child_is_a_session_of_its_own_named_after_the_call():
    tree = Tree()
    await tree.run()
    assert list(await tree.parent.store.sessions()) == [S1, CHILD]
    log = await tree.log()
    assert log[1] == TurnStarted(1, log[1].message, f"{CHILD}/t1", at=log[1].at)
    assert log[1].message.text == "do it"
    assert [r.call for r in log if isinstance(r, ToolCalled)] == [f"{CHILD}/1/1"]
    assert isinstance(log[-1], SessionEnded)
    (delegated,) = await tree.find(Delegated)
    assert (delegated.call, delegated.session, delegated.agent, delegated.task) == (CHILD, CHILD, "child", "do it")
    await sound(tree.parent)


async def test_a_child_of_a_session_without_a_name_ends_with_it():
    tree = Tree()
    result = await tree.parent.run("go")
    assert result.text == "done"
    for session in await tree.parent.store.sessions():
        assert isinstance((await tree.log(session))[-1], SessionEnded)


async def test_the_child_gets_the_scope_of_the_call():
    seen: list[Any] = []
    tree = Tree()

    @tree.child.gate(ToolCalling)
    def look(event: ToolCalling, turn: Turn) -> None:
        seen.append(turn.scope)

    await tree.parent.run("go", scope={"user": "ann"})
    assert seen == [{"user": "ann"}]


async def test_the_childs_own_wraps_of_a_turn_surround_it():
    tree = Tree()
    seen: list[str] = []

    @tree.child.wrap(Turn)
    async def around(turn: Turn, call_next: Any) -> None:
        seen.append("in")
        await call_next(turn)
        seen.append("out")

    await tree.run()
    assert seen == ["in", "out"]


async def test_a_call_without_a_task_is_an_error_the_model_reads():
    tree = Tree(parent=asked_for(job="x"))
    asked: list[Any] = []
    tree.parent.gate(Delegating)(lambda event: asked.append(event))
    result = await tree.run()
    assert result.text == "done"
    assert "task" in (await tree.result()).text
    assert (await tree.result()).status == "error"
    assert asked == []
    assert await tree.find(Delegated) == []


async def test_one_child_may_work_on_two_calls_at_once():
    both = calls([("child", {"task": "a"}), ("child", {"task": "b"})])
    together = asyncio.Barrier(2)

    async def reply(request: ModelRequest) -> Any:
        async with asyncio.timeout(50):
            await together.wait()
        return says(f"did {request.messages[0].text}")

    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(both, says("done")))
    result = await tree.run()
    assert [part.text for part in result.messages[2].parts] == ["did a", "did b"]
    assert sorted(await tree.parent.store.sessions()) == [S1, "s1/1/1", "s1/1/2"]
    assert result.usage.requests == 4


async def test_an_agent_may_be_its_own_child_as_deep_as_it_may_go():
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return says(last.parts[0].text) if last.role == "tool" else calls("agent", task="again")  # type: ignore[union-attr]

    agent: Agent[Any, Any] = Agent(FunctionModel(reply), max_depth=2)
    agent.tool(agent.as_tool())
    result = await agent.run("go", session=S1)
    assert list(await agent.store.sessions()) == ["s1", "s1/1/1", "s1/1/1/1/1"]
    assert "nested as deep" in result.text
    assert "max_depth" in result.text


async def test_the_smaller_of_the_depths_holds():
    ran: list[str] = []

    @tool
    def leaf() -> str:
        """Leaf."""
        ran.append("leaf")
        return "leaf"

    low: Agent[Any, Any] = Agent(working("leaf"), name="low", tools=[leaf])
    mid: Agent[Any, Any] = Agent(asked_for("mid", "low"), name="mid", tools=[low.as_tool()], max_depth=0)
    top: Agent[Any, Any] = Agent(asked_for("top", "mid"), name="top", tools=[mid.as_tool()])
    assert (await top.run("go", session=S1)).text == "top"
    (returned,) = [r for r in await top.store.read(CHILD) if isinstance(r, ToolReturned)]
    assert returned.result.status == "error"
    assert "max_depth" in returned.result.text
    assert ran == []


async def test_nobody_is_asked_about_a_task_that_goes_too_deep():
    tree = Tree(max_depth=0)
    tree.parent.gate(Delegating)(lambda event: Ask("really?"))
    result = await tree.run()
    assert result.outcome == Completed()
    assert "max_depth" in (await tree.result()).text


# ---------------------------------------------------------------- what holds for the child too


def nested(depth: int, **root: Any) -> tuple[Agent[Any, Any], list[str]]:
    """An agent whose child's child's … child has a tool."""
    ran: list[str] = []

    @tool
    def wipe() -> str:
        """Wipe."""
        ran.append("wiped")
        return "wiped"

    agent: Agent[Any, Any] = Agent(working("wipe"), name="a0", tools=[wipe])
    for level in range(1, depth):
        below, options = agent.as_tool(), root if level == depth - 1 else {}
        agent = Agent(asked_for("up", f"a{level - 1}"), name=f"a{level}", tools=[below], **options)
    return agent, ran


async def all_results(agent: Agent[Any, Any]) -> list[Any]:
    sessions = await agent.store.sessions()
    return [r for s in sessions for r in await agent.store.read(s) if isinstance(r, ToolReturned)]


@pytest.mark.parametrize("depth", [2, 3, 4])
async def test_what_a_guard_denies_no_agent_below_may_do(depth: int):
    """Behaviour 96: a guard of the root denies a tool; an agent below cannot use it, at any depth."""
    agent, ran = nested(depth)
    agent.gate(ToolCalling, tool="wipe", band="guard")(lambda event: Deny("never"))
    result = await agent.run("go", session=S1)
    assert result.outcome == Completed()
    assert ran == []
    (denied,) = [r for r in await all_results(agent) if r.name == "wipe"]
    assert denied.result.text == "Denied: never"


@pytest.mark.parametrize("depth", [2, 3])
async def test_a_hook_that_says_so_holds_below_and_others_do_not(depth: int):
    """Behaviour 96: what is marked `inherit=True` holds below like a guard; the rest does not."""
    for inherit in (True, False):
        agent, ran = nested(depth)
        agent.gate(ToolCalling, tool=lambda call: call.name == "wipe", inherit=inherit)(lambda event: Deny("never"))
        await agent.run("go", session=S1)
        assert ran == ([] if inherit else ["wiped"])


async def test_a_capability_in_the_guard_band_holds_below_with_all_it_brings():
    """Behaviour 96: its hooks and its transformers."""

    class Strict:
        name = "strict"

        def install(self, registrar: Any) -> None:
            registrar.gate(ToolCalling, tool="work", name="no")(lambda event: Deny("strictly not"))

            @registrar.transform
            class Shout:
                def feed(self, text: str) -> Any:
                    yield text.upper()

                def flush(self) -> Any:
                    return ()

    tree = Tree()
    tree.parent.with_capability(Strict(), band="guard")
    await tree.run()
    assert tree.ran == []
    assert (await tree.result()).text == "WORKED"


async def test_a_transformer_that_is_not_passed_on_stays():
    tree = Tree()

    @tree.parent.transform
    class Shout:
        def feed(self, text: str) -> Any:
            yield text.upper()

        def flush(self) -> Any:
            return ()

    assert (await tree.run()).text == "DONE"
    assert (await tree.result()).text == "worked"


async def test_hooks_of_both_keep_their_places_and_their_names():
    tree = Tree()
    seen: list[str] = []

    def named(name: str) -> Callable[[Any], None]:
        return lambda event: seen.append(name)

    tree.child.rewrite(ModelCalling, name="look", band="guard")(named("child's guard"))
    tree.child.rewrite(ModelCalling, name="look")(named("child's"))
    tree.parent.rewrite(ModelCalling, name="look", band="guard")(named("parent's guard"))
    tree.parent.rewrite(ModelCalling, name="other", inherit=True, priority=5)(named("parent's first"))
    await tree.run()
    mine = ["parent's first", "parent's guard"]
    both = ["parent's first", "child's", "child's guard", "parent's guard"]
    assert seen == [*mine, *both, *both, *mine]
    assert [hook.name for hook in tree.child.compile().hooks.all] == ["look", "look#2"]
    assert [hook.name for hook in tree.parent.compile().hooks.all] == ["other", "look"]
    seen.clear()
    await tree.child.run("alone")
    assert seen == ["child's", "child's guard"] * 2


@pytest.mark.parametrize(
    ("above", "own", "ran"),
    [("allow", "allow", True), ("deny", "allow", False), ("allow", "deny", False), ("ask", "deny", False)],
)
async def test_the_stricter_default_holds(above: Any, own: Any, ran: bool):
    """Behaviour 96: a child's `unmatched` cannot be laxer than its parent's."""
    tree = Tree(unmatched=above, child_options={"unmatched": own})
    tree.parent.gate(ToolCalling, tool="child")(lambda event: Allow())
    await tree.run()
    assert bool(tree.ran) is ran


async def test_the_parents_typed_output_is_not_asked_of_the_child():
    class Answer(Struct):
        value: int

    tree = Tree(parent=asked_for('{"value": 3}'), output=Answer)
    result = await tree.run()
    assert result.output == Answer(3)
    assert (await tree.result()).text == "worked"


class Notes(Struct):
    """What was noted."""

    lines: list[str] = []


async def test_a_hook_finds_its_slot_in_the_child_each_session_has_its_own():
    tree = Tree()
    tree.parent.slot(Slot("notes", Notes))

    @tree.parent.gate(ModelCalling, band="guard")
    def note(event: ModelCalling, turn: Turn, notes: Notes) -> None:
        turn.set(Notes, Notes([*notes.lines, turn.session_id]))

    result = await tree.run()
    assert result.slots["notes"].lines == [S1, S1]
    assert (await tree.parent.state(CHILD)).slots["notes"] == {"lines": [CHILD, CHILD]}


async def test_a_slot_that_is_another_one_in_the_child_is_refused_if_a_hook_wants_it():
    class Other(Struct):
        """Something else."""

    tree = Tree()
    tree.parent.slot(Slot("notes", Notes))
    tree.child.slot(Slot("notes", Other))
    tree.parent.gate(ModelCalling, name="unrelated", band="guard")(lambda event: None)
    assert tree.parent.compile()

    again = Tree()
    again.parent.slot(Slot("notes", Notes))
    again.child.slot(Slot("notes", Other))

    @again.parent.gate(ModelCalling, band="guard")
    def note(event: ModelCalling, notes: Notes) -> None: ...

    with pytest.raises(ConfigError, match=r"'note' of agent 'parent'.*Slot\('notes', Notes\).*Slot\('notes', Other\)"):
        again.parent.compile()


async def test_a_child_has_only_the_tools_it_was_given():
    @tool
    def more() -> str:
        """More."""
        return "more"

    tree = Tree(tools=["more"])
    tree.child.tool(more)
    seen: list[Any] = []
    tree.child.gate(ModelCalling)(lambda event: seen.append([spec.name for spec in event.request.tools]))
    await tree.run()
    assert seen == [["more"]] * 2
    assert tree.ran == []
    (refused,) = await tree.find(ToolReturned, CHILD)
    assert "no tool 'work'" in refused.result.text
    assert list(tree.child.tools) == ["work", "more"]


# ---------------------------------------------------------------- Delegating


async def test_a_task_passes_tool_calling_and_then_delegating():
    tree = Tree(share=0.5, tools=["work"])
    seen: list[Any] = []
    tree.parent.gate(ToolCalling)(lambda event: seen.append(event.call.arguments))
    tree.parent.gate(Delegating)(lambda event: seen.append(event.task))
    await tree.run()
    (decided,) = await tree.find(ToolDecided)
    assert seen == [{"task": "do it"}, decided.delegation]
    assert (decided.delegation.agent, decided.delegation.task) == ("child", "do it")
    assert (decided.delegation.share, decided.delegation.tools) == (0.5, ("work",))


async def test_what_tool_calling_refuses_is_not_delegated():
    for verdict in (Deny("no"), Halt("stop")):
        tree = Tree()
        asked: list[Any] = []
        tree.parent.gate(ToolCalling, tool="child")(lambda event, verdict=verdict: verdict)
        tree.parent.gate(Delegating)(lambda event, asked=asked: asked.append(event))
        result = await tree.run()
        assert asked == []
        assert await tree.find(Delegated) == []
        assert result.stop_reason is (StopReason.COMPLETED if isinstance(verdict, Deny) else StopReason.HALTED)


async def test_an_answer_in_the_place_of_the_child_starts_none():
    tree = Tree()
    tree.parent.wrap(ToolCall)(lambda call, call_next: "from a cache")
    await tree.run()
    assert (await tree.result()).text == "from a cache"
    assert list(await tree.parent.store.sessions()) == [S1]


async def test_a_task_that_is_denied_is_a_result_the_model_reads():
    tree = Tree()
    tree.parent.gate(Delegating, name="no")(lambda event: Deny("too vague"))
    tree.parent.gate(ToolCalling, name="yes")(lambda event: Allow())
    result = await tree.run()
    assert result.text == "done"
    assert (await tree.result()).text == "Denied: too vague"
    (decided,) = await tree.find(ToolDecided)
    assert decided.answers == (("yes", Allow()), ("no", Deny("too vague")))
    rows = HookTrace(await tree.log(S1)).rows
    assert ("ToolCalling", "yes", "Allow") in rows
    assert ("Delegating", "no", "Deny") in rows


async def test_a_gate_that_fails_denies_the_task():
    """Behaviour 87: Delegating: a gate that raises counts as a Deny."""
    tree = Tree()

    @tree.parent.gate(Delegating)
    def broken(event: Delegating) -> None:
        raise ValueError("oh")

    await tree.run()
    assert (await tree.result()).status == "denied"
    assert await tree.find(Delegated) == []


async def test_a_halt_on_the_task_ends_the_turn():
    tree = Tree()
    tree.parent.gate(Delegating)(lambda event: Halt("enough"))
    result = await tree.run()
    assert result.outcome == Stopped(StopReason.HALTED, "enough")
    assert await tree.find(Delegated) == []


async def test_a_rewrite_changes_the_task_and_all_gates_see_what_it_made_of_it():
    tree = Tree()
    seen: list[str] = []
    tree.parent.rewrite(Delegating, name="clearer")(lambda event: event.task.replace(task=event.task.task + ", please"))
    tree.parent.rewrite(Delegating, name="louder")(lambda event: event.task.task.upper())
    tree.parent.gate(ToolCalling)(lambda event: seen.append(event.call.arguments["task"]))
    tree.parent.gate(Delegating)(lambda event: seen.append(event.task.task))
    await tree.run()
    assert seen == ["DO IT, PLEASE"] * 2
    assert (await tree.find(TurnStarted, CHILD))[0].message.text == "DO IT, PLEASE"
    assert [(r.event, r.hook) for r in await tree.find(Rewritten)] == [
        ("Delegating", "clearer"),
        ("Delegating", "louder"),
    ]
    assert (await tree.find(ToolDecided))[0].json == '{"task":"DO IT, PLEASE"}'


async def test_a_hook_that_speaks_in_several_verbs_is_heard():
    tree = Tree()

    @tree.parent.hook(Delegating)
    def says_all(event: Delegating) -> Says:
        return Says(rewrite=event.task.replace(task="less"), inject="Mind the gap.")

    await tree.run()
    assert (await tree.find(TurnStarted, CHILD))[0].message.text == "less"
    assert [r.event for r in await tree.find(Injected, CHILD)] == ["Delegating"]


async def test_a_rewrite_may_take_away():
    tree = Tree(criteria=[TokenLimit(1000)])
    tree.parent.rewrite(Delegating)(lambda event: event.task.replace(share=0.1, tools=()))
    await tree.run()
    (delegated,) = await tree.find(Delegated)
    assert delegated.tools == ()
    assert delegated.tokens is not None
    assert tree.ran == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"share": 0.6}, "smaller"),
        ({"share": None}, "smaller"),
        ({"share": 0.0}, "above 0"),
        ({"tools": ("work", "more")}, "fewer; it adds more"),
        ({"tools": None}, "fewer; it adds all"),
        ({"agent": "other"}, "another agent"),
        ({"task": 3}, "a task is a str"),
    ],
)
async def test_a_rewrite_that_widens_is_refused_by_name(changes: dict[str, Any], why: str):
    tree = Tree(share=0.5, tools=["work"])
    tree.parent.rewrite(Delegating, name="widen")(lambda event: event.task.replace(**changes))
    result = await tree.run()
    assert result.outcome == Completed()
    returned = await tree.result()
    assert returned.status == "denied"
    assert "'widen'" in returned.text
    (failed,) = await tree.find(HookFailed)
    assert why in failed.error.message
    assert await tree.find(Delegated) == []


async def test_a_rewrite_that_hands_back_nonsense_is_refused_by_name():
    tree = Tree()
    tree.parent.rewrite(Delegating, name="odd")(lambda event: 3)  # type: ignore[arg-type,return-value]
    await tree.run()
    assert "'odd'" in (await tree.result()).text


async def test_a_tool_that_a_rewrite_made_up_is_an_error_that_names_it():
    tree = Tree()
    tree.parent.rewrite(Delegating)(lambda event: event.task.replace(tools=("made_up",)))
    await tree.run()
    (failed,) = await tree.find(HookFailed)
    assert "'made_up'" in failed.error.message
    assert (await tree.result()).status == "error"


@pytest.mark.parametrize("durable", [False, True])
async def test_what_is_injected_reaches_the_child_and_only_the_child(durable: bool):
    tree = Tree()
    tree.parent.inject(Delegating, name="hint")(lambda event: Injected("Ann likes tea.", durable=durable))
    requests: list[tuple[str, str]] = []

    @tree.parent.gate(ModelCalling, band="guard")
    def look(event: ModelCalling, turn: Turn) -> None:
        text = " | ".join(message.text for message in event.request.messages if message.role == "user")
        requests.append((turn.session_id, text))

    await tree.run()
    mine = [text for session, text in requests if session == CHILD]
    assert [text for session, text in requests if session == S1] == ["go", "go"]
    assert mine == (["do it | Ann likes tea."] * 2 if durable else ["do itAnn likes tea."] * 2)


@pytest.mark.parametrize("record", [True, False])
async def test_what_is_injected_survives_a_suspension_of_the_child(record: bool):
    tree = Tree()
    asked: list[int] = []

    @tree.parent.inject(Delegating, name="hint")
    def hint(event: Delegating) -> Injected:
        asked.append(1)
        return Injected("Ann likes tea.", record=record)

    tree.child.gate(ToolCalling)(lambda event: Ask())
    seen: list[str] = []
    tree.child.gate(ModelCalling)(lambda event: seen.append(event.request.messages[0].text))
    result = await tree.run()
    again = Agent(asked_for(), name="parent", tools=tree.parent.tools.values(), store=tree.parent.store)
    again.inject(Delegating, name="hint")(hint)
    result = await again.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"
    assert seen == ["do itAnn likes tea."] * 2
    assert len(asked) == (1 if record else 2)


async def test_a_question_about_the_task_waits_and_goes_on():
    tree = Tree()
    tree.parent.gate(Delegating, name="ask")(lambda event: Ask("Hand this over?"))
    result = await tree.run()
    (asked,) = result.waiting_for
    assert (asked.id, asked.event, asked.by) == (CHILD, "Delegating", ("ask",))
    assert asked.call.arguments == {"task": "do it"}
    assert await tree.find(Delegated) == []
    result = await tree.parent.resume(S1, answers={asked.id: Approve(by="eve")})
    assert result.text == "done"
    assert tree.ran == ["work"]


async def test_both_events_may_ask_and_it_is_one_question():
    tree = Tree()
    tree.parent.gate(ToolCalling, tool="child", name="first")(lambda event: Ask("Call it?"))
    tree.parent.gate(Delegating, name="second")(lambda event: Ask("Hand it over?"))
    result = await tree.run()
    (asked,) = result.waiting_for
    assert asked.by == ("first", "second")
    assert asked.question == "Call it?\nHand it over?"
    result = await tree.parent.resume(S1, answers={asked.id: Approve()})
    assert result.text == "done"


@pytest.mark.parametrize("answer", [Reject("not that"), Respond("nothing to do")])
async def test_a_task_that_a_person_refuses_or_answers_starts_no_child(answer: Any):
    tree = Tree()
    tree.parent.gate(Delegating)(lambda event: Ask())
    result = await tree.run()
    await tree.parent.resume(S1, answers={result.waiting_for[0].id: answer})
    returned = await tree.result()
    assert (returned.status, returned.text) in [("denied", "Denied: not that"), ("responded", "nothing to do")]
    assert await tree.find(Delegated) == []


async def test_an_edited_task_passes_the_gates_of_both_events_again():
    tree = Tree(share=0.5)
    seen: list[tuple[str, str]] = []
    tree.parent.rewrite(Delegating)(lambda event: event.task.replace(share=0.25))

    @tree.parent.gate(ToolCalling, tool="child")
    def call(event: ToolCalling) -> None:
        seen.append(("call", event.call.arguments["task"]))

    @tree.parent.gate(Delegating)
    def task(event: Delegating) -> Deny | None:
        seen.append(("task", event.task.task))
        return Deny("not even a person may") if event.task.task == "wipe all" else None

    tree.parent.gate(Delegating, name="ask")(lambda event: Ask())
    result = await tree.run()
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Edit({"task": "do less"})})
    assert result.text == "done"
    assert seen == [("call", "do it"), ("task", "do it"), ("call", "do less"), ("task", "do less")]
    assert (await tree.find(Delegated))[0].task == "do less"
    assert (await tree.find(ToolDecided))[-1].delegation.share == 0.25

    result = await tree.run("s2")
    result = await tree.parent.resume("s2", answers={result.waiting_for[0].id: Edit({"task": "wipe all"})})
    assert [r.result.text for r in await tree.find(ToolReturned, "s2")] == ["Denied: not even a person may"]


@pytest.mark.parametrize("unmatched", ["ask", "deny"])
async def test_an_allowed_task_is_no_allowed_call(unmatched: Any):
    tree = Tree(unmatched=unmatched)
    tree.parent.gate(Delegating)(lambda event: Allow())
    result = await tree.run()
    if unmatched == "ask":
        assert [asked.id for asked in result.waiting_for] == [CHILD]
    else:
        assert (await tree.result()).status == "denied"


async def test_a_wrap_that_changes_the_task_is_judged_by_both_events():
    tree = Tree(share=0.5)
    seen: list[str] = []

    @tree.parent.wrap(ToolCall, tool="child")
    async def other(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"task": "something else"}))

    tree.parent.gate(ToolCalling)(lambda event: seen.append(event.call.arguments["task"]))
    tree.parent.gate(Delegating)(lambda event: seen.append(event.task.task))
    await tree.run()
    assert seen == ["do it", "do it", "something else", "something else"]
    assert (await tree.find(Delegated))[0].task == "something else"


async def test_a_wrap_that_changes_the_task_cannot_go_round_delegating():
    tree = Tree()

    @tree.parent.wrap(ToolCall, tool="child")
    async def other(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"task": "wipe all"}))

    tree.parent.gate(Delegating)(lambda event: Deny("no") if "wipe" in event.task.task else None)
    await tree.run()
    assert (await tree.result()).text == "Denied: no"
    assert await tree.find(Delegated) == []


# ---------------------------------------------------------------- one purse


def spending(tokens: int, text: str = "said", cost: float | None = None) -> Any:
    return says(text, usage=Usage(input=tokens, cost=cost))


def calling(tokens: int, name: str = "work", cost: float | None = None, **arguments: Any) -> Any:
    return calls(name, _usage=Usage(input=tokens, cost=cost), **arguments)


async def test_what_the_child_spends_counts_as_the_parents():
    """Behaviour 96: the child's spending counts against the parent's budget."""
    tree = Tree(
        child=ScriptedModel(calling(100), spending(200)),
        parent=ScriptedModel(calling(10, "child", task="x"), spending(20)),
    )
    result = await tree.run()
    assert result.usage.total == 330
    assert result.usage.requests == 4
    (charged,) = await tree.find(Charged)
    assert charged.usage.total == 300
    await sound(tree.parent)


@pytest.mark.parametrize("cost", [False, True])
async def test_a_parents_limit_stops_the_child_and_then_the_parent(cost: bool):
    """Behaviour 96: the limit is checked before each model call of the child."""
    price = 1.0 if cost else None
    limit: Any = CostLimit(2.5) if cost else TokenLimit(250)
    model = ScriptedModel(*[calling(100, cost=price) for _ in range(5)])
    tree = Tree(
        child=model,
        parent=ScriptedModel(calling(50, "child", task="x", cost=price), spending(1)),
        criteria=[limit],
    )
    result = await tree.run()
    reason = StopReason.COST_LIMIT if cost else StopReason.TOKEN_LIMIT
    assert len(model.requests) == 2
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is reason
    assert f"{type(limit).__name__} of agent 'parent'" in ended.outcome.detail
    returned = await tree.result()
    assert returned.status == "error"
    assert "'child' was stopped" in returned.text
    assert reason.value in returned.text
    assert result.stop_reason is reason
    assert result.usage.total == 250
    await sound(tree.parent)


async def test_the_limit_of_the_root_holds_at_any_depth():
    """Behaviour 96: what a grandchild spends counts for all above it, while it runs."""
    models = [ScriptedModel(*[calling(100) for _ in range(5)])]
    ran = Tree(child=models[0])
    low = ran.child
    mid: Agent[Any, Any] = Agent(
        ScriptedModel(calling(10, "child", task="x"), spending(1)), name="mid", tools=[low.as_tool()]
    )
    top: Agent[Any, Any] = Agent(
        ScriptedModel(calling(10, "mid", task="x"), spending(1)),
        name="top",
        tools=[mid.as_tool()],
        criteria=[TokenLimit(200)],
    )
    result = await top.run("go", session=S1)
    assert len(models[0].requests) == 2
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert result.usage.total == 220
    lowest = fold("s1/1/1/1/1", await top.store.read("s1/1/1/1/1"))
    assert "TokenLimit of agent 'top'" in lowest.outcome.detail  # type: ignore[union-attr]
    middle = fold(CHILD, await top.store.read(CHILD))
    assert middle.stop_reason is StopReason.TOKEN_LIMIT
    assert middle.usage.total == 210


async def test_children_that_work_side_by_side_share_one_purse():
    both = calls([("child", {"task": "a"}), ("child", {"task": "b"})], _usage=Usage(input=10))
    together = asyncio.Barrier(2)
    asked: list[str] = []

    @tool
    async def meet() -> None:
        """Wait for the other one."""
        await together.wait()

    def reply(request: ModelRequest) -> Any:
        asked.append(request.messages[0].text)
        return calling(100, "meet")

    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(both, spending(1)), criteria=[TokenLimit(200)])
    tree.child.tool(meet)
    result = await tree.run()
    assert sorted(asked) == ["a", "b"]
    assert result.usage.total == 210
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert [r.result.status for r in await tree.find(ToolReturned)] == ["error", "error"]


async def test_time_runs_for_all_above(clock: Any):
    def reply(request: ModelRequest) -> Any:
        clock.tick(4)
        return calls("work")

    tree = Tree(
        child=FunctionModel(reply),
        criteria=[ActiveTimeLimit(10)],
        clock=clock,
        child_options={"criteria": [StepLimit(9)]},
    )
    result = await tree.run()
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is StopReason.TIME_LIMIT
    assert "'parent'" in ended.outcome.detail
    assert len(await tree.find(ModelReplied, CHILD)) == 3
    assert result.stop_reason is StopReason.TIME_LIMIT


async def test_a_deadline_holds_for_all_below(clock: Any):
    def reply(request: ModelRequest) -> Any:
        clock.tick(4)
        return calls("work")

    tree = Tree(
        child=FunctionModel(reply),
        criteria=[Deadline(after=5)],
        clock=clock,
        child_options={"criteria": [StepLimit(9)]},
    )
    result = await tree.run()
    assert len(await tree.find(ModelReplied, CHILD)) == 2
    assert result.stop_reason is StopReason.DEADLINE


async def test_a_childs_deadline_goes_by_the_clock_of_the_tree(clock: Any):
    def reply(request: ModelRequest) -> Any:
        clock.tick(4)
        return calls("work")

    tree = Tree(child=FunctionModel(reply), child_options={"criteria": [Deadline(after=5)]}, clock=clock)
    await tree.run()
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is StopReason.DEADLINE


async def test_a_wrap_of_the_child_that_tries_again_is_stopped_as_well():
    model = ScriptedModel(*[spending(100, "bad") for _ in range(9)])
    tree = Tree(
        child=model, parent=ScriptedModel(calling(10, "child", task="x"), spending(1)), criteria=[TokenLimit(300)]
    )

    @tree.child.wrap(ModelCall)
    async def insist(request: ModelRequest, call_next: Any) -> Any:
        while (reply := await call_next(request)).text == "bad":
            pass
        return reply

    result = await tree.run()
    assert len(model.requests) == 3
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is StopReason.TOKEN_LIMIT


async def test_a_side_call_of_the_child_is_held_to_the_purse():
    side = ScriptedModel(spending(100), name="side")
    tree = Tree(
        child=ScriptedModel(spending(300)),
        parent=ScriptedModel(calling(10, "child", task="x"), spending(1)),
        criteria=[TokenLimit(300)],
    )

    @tree.child.gate(Stopping)
    async def critic(event: Stopping, turn: Turn) -> None:
        await turn.ask(side, "good?")

    result = await tree.run()
    assert side.requests == []
    assert result.stop_reason is StopReason.TOKEN_LIMIT


async def test_a_share_is_a_part_of_what_is_left_when_the_child_starts():
    model = ScriptedModel(*[calling(100) for _ in range(9)])
    tree = Tree(
        child=model,
        parent=ScriptedModel(calling(200, "child", task="x"), spending(1)),
        share=0.5,
        criteria=[TokenLimit(800)],
    )
    result = await tree.run()
    (delegated,) = await tree.find(Delegated)
    assert delegated.tokens == 300
    assert len(model.requests) == 3
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome == Stopped(StopReason.TOKEN_LIMIT, "the share of agent 'child': 300 of 300 tokens are spent")
    assert result.outcome == Completed(), "the parent has something left"
    assert result.usage.total == 501


async def test_a_share_of_money_and_one_of_a_share():
    low = Tree(child=ScriptedModel(*[calling(1, cost=0.1) for _ in range(9)])).child
    mid: Agent[Any, Any] = Agent(
        ScriptedModel(calling(1, "child", task="x", cost=1.0), spending(1, cost=1.0)),
        name="mid",
        tools=[low.as_tool(share=0.5)],
    )
    top: Agent[Any, Any] = Agent(
        ScriptedModel(calling(1, "mid", task="x", cost=2.0), spending(1, cost=1.0)),
        tools=[mid.as_tool(share=0.5)],
        criteria=[CostLimit(10.0)],
    )
    await top.run("go", session=S1)
    started = [r for s in (S1, CHILD) for r in await top.store.read(s) if isinstance(r, Delegated)]
    assert [round(r.usd or 0, 3) for r in started] == [4.0, 1.5]


async def test_a_share_of_no_budget_is_no_limit():
    tree = Tree(share=0.1)
    assert (await tree.run()).text == "done"
    assert (await tree.find(Delegated))[0].tokens is None


async def test_a_child_is_charged_once_over_a_suspension():
    tree = Tree(
        child=ScriptedModel(calling(100), spending(200)),
        parent=ScriptedModel(calling(10, "child", task="x"), spending(20)),
    )
    tree.child.gate(ToolCalling)(lambda event: Ask())
    result = await tree.run()
    assert result.usage.total == 110, "what was spent so far is charged"
    await tree.parent.resume(S1)
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.usage.total == 330
    assert [r.usage.total for r in await tree.find(Charged)] == [100, 200]


async def test_a_share_holds_over_a_suspension():
    model = ScriptedModel(*[calling(100) for _ in range(9)])
    tree = Tree(
        child=model,
        parent=ScriptedModel(calling(0, "child", task="x"), spending(1)),
        share=0.5,
        criteria=[TokenLimit(400)],
    )
    tree.child.gate(ToolCalling)(lambda event: Ask())
    result = await tree.run()
    while isinstance(result.outcome, Suspended):
        result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert len(model.requests) == 2
    assert "the share" in (await tree.result()).text


# ---------------------------------------------------------------- what comes of a child


async def test_a_child_that_fails_is_an_error_and_its_siblings_go_on():
    def reply(request: ModelRequest) -> Any:
        if request.messages[0].text == "bad":
            raise RuntimeError("no such thing")
        return says("fine")

    three = calls([("child", {"task": "good"}), ("child", {"task": "bad"}), ("child", {"task": "good"})])
    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(three, says("done")))
    result = await tree.run()
    assert result.outcome == Completed()
    returned = [r.result for r in sorted(await tree.find(ToolReturned), key=lambda r: r.call)]
    assert [r.status for r in returned] == ["ok", "error", "ok"]
    assert returned[1].text == "Error: agent 'child' failed: RuntimeError"
    await sound(tree.parent)


async def test_a_child_that_is_stopped_is_an_error_that_says_why():
    tree = Tree(child_options={"criteria": [StepLimit(1)]})
    assert (await tree.run()).text == "done"
    returned = await tree.result()
    assert returned.status == "error"
    assert "agent 'child' was stopped (step_limit): StepLimit" in returned.text


async def test_a_child_that_is_halted_does_not_halt_its_parent():
    tree = Tree()
    tree.child.gate(TurnStarting)(lambda event: Halt("not today", "No."))
    result = await tree.run()
    assert result.outcome == Completed()
    assert "was stopped (halted): not today" in (await tree.result()).text


async def test_a_child_that_was_cancelled_alone_is_an_error():
    tree = Tree()

    @tree.child.gate(ToolCalling)
    async def cancel(event: ToolCalling) -> None:
        await tree.parent.store.put(CHILD, "key", "cancel", "no longer needed")

    result = await tree.run()
    assert result.outcome == Completed()
    assert (await tree.result()).text == "Error: agent 'child' was cancelled: no longer needed"


async def test_a_child_can_be_steered():
    tree = Tree()

    @tree.child.gate(ModelCalling)
    async def steer(event: ModelCalling) -> None:
        if len(event.request.messages) == 3:
            await tree.parent.steer(CHILD, "and be quick")

    await tree.run()
    assert "and be quick" in [m.text for m in fold(CHILD, await tree.log()).messages]
    assert tree.ran == ["work", "work"]


async def test_a_model_that_cancels_itself_is_the_childs_own_trouble():
    def reply(request: ModelRequest) -> Any:
        raise asyncio.CancelledError("odd")

    tree = Tree(child=FunctionModel(reply))
    result = await tree.run()
    assert result.outcome == Completed()
    assert "agent 'child' failed" in (await tree.result()).text


async def test_a_log_that_somebody_else_advances_is_an_error_of_that_child():
    tree = Tree()

    @tree.child.gate(ToolCalling)
    async def meddle(event: ToolCalling) -> None:
        log = await tree.log()
        await tree.parent.store.append(CHILD, [SessionEnded()], len(log))

    result = await tree.run()
    assert result.outcome == Completed()
    assert "SessionConflict" in (await tree.result()).text


async def test_a_cancel_of_the_parent_closes_both():
    started = asyncio.Event()

    async def reply(request: ModelRequest) -> Any:
        started.set()
        await asyncio.Event().wait()

    both = calls([("child", {"task": "a"}), ("child", {"task": "b"})])
    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(both))
    ended: list[str] = []
    tree.parent.gate(TurnEnding, band="guard")(lambda event: ended.append(event.turn.session_id))
    task = asyncio.create_task(tree.run())
    await started.wait()
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    for session in (S1, "s1/1/1", "s1/1/2"):
        state = fold(session, await tree.log(session))
        assert state.outcome == Cancelled("enough") or session != S1
        assert isinstance(state.outcome, Cancelled)
    assert ended == ["s1/1/1", "s1/1/2", S1]
    assert [r.result.status for r in await tree.find(ToolReturned)] == ["interrupted"] * 2


async def test_a_wrap_that_loses_patience_ends_the_child():
    async def reply(request: ModelRequest) -> Any:
        await asyncio.Event().wait()

    tree = Tree(child=FunctionModel(reply))

    @tree.parent.wrap(ToolCall, tool="child")
    async def impatient(call: ToolCall, call_next: Any) -> Any:
        try:
            async with asyncio.timeout(0):
                return await call_next(call)
        except TimeoutError:
            return "it took too long"

    result = await tree.run()
    assert result.outcome == Completed()
    assert (await tree.result()).text == "it took too long"
    assert isinstance(fold(CHILD, await tree.log()).outcome, Cancelled)


async def test_a_wrap_that_tries_again_starts_another_child():
    model = ScriptedModel(says("bad"), says("good"))
    tree = Tree(child=model)

    @tree.parent.wrap(ToolCall, tool="child")
    async def twice(call: ToolCall, call_next: Any) -> Any:
        result = await call_next(call)
        return result if result.text == "good" else await call_next(call)

    result = await tree.run()
    assert (await tree.result()).text == "good"
    assert list(await tree.parent.store.sessions()) == [S1, CHILD, f"{CHILD}.2"]
    assert [r.session for r in await tree.find(Charged)] == [CHILD, f"{CHILD}.2"]
    assert result.usage.requests == 4
    await sound(tree.parent)


async def test_a_parent_may_be_iterated():
    tree = Tree()
    states = [state async for state in tree.parent.iterate("go", session=S1)]
    assert [state.steps for state in states] == [1, 2]
    assert states[0].usage.requests == 3
    assert states[-1].text == "done"


async def test_why_tells_of_the_child_and_of_what_it_cost():
    tree = Tree()
    tree.parent.gate(Delegating, name="may")(lambda event: Allow())
    result = await tree.run()
    why = result.why()
    assert 'agent child was given the task "do it", in session s1/1/1' in str(why)
    told = {entry["what"]: entry for part in why.data["parts"] for entry in part["entries"]}
    assert (told["decide"]["event"], told["decide"]["hook"]) == ("Delegating", "may")
    assert told["charge"]["tokens"] == 22
    assert why.data["usage"]["requests"] == result.usage.requests == 4


# ---------------------------------------------------------------- what observers hear


async def test_the_parents_observers_hear_the_child_with_its_path():
    agent, _ = nested(3)
    heard: list[tuple[str, str]] = []
    agent.observe(TurnEnded, wait=True)(lambda fact: heard.append((fact.path, type(fact.outcome).__name__)))
    agent.observe(StepStarted, wait=True)(lambda fact: heard.append((fact.path, f"step {fact.step}")))
    await agent.run("go", session=S1)
    low, mid = "s1/1/1/1/1", "s1/1/1"
    assert heard == [
        ("", "step 1"),
        (mid, "step 1"),
        (low, "step 1"),
        (low, "step 2"),
        (low, "Completed"),
        (mid, "step 2"),
        (mid, "Completed"),
        ("", "step 2"),
        ("", "Completed"),
    ]


async def test_nobody_is_told_twice():
    tree = Tree()
    own: list[str] = []
    above: list[str] = []
    tree.child.observe(TurnEnded)(lambda fact: own.append(fact.path))
    tree.parent.observe(TurnEnded, inherit=True)(lambda fact: above.append(fact.path))
    await tree.run()
    assert own == [""]
    assert above == [CHILD, ""]


async def test_a_question_and_its_answer_are_told_once():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())
    heard: list[tuple[str, str]] = []
    tree.parent.observe(Asked)(lambda fact: heard.append((fact.path, "asked")))
    tree.parent.observe(Answered)(lambda fact: heard.append((fact.path, "answered")))
    result = await tree.run()
    await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert heard == [(CHILD, "asked"), ("", "answered")]


async def test_an_observer_sees_the_turn_in_which_the_fact_happened():
    tree = Tree()
    tree.parent.slot(Slot("notes", Notes))
    seen: list[Any] = []

    @tree.parent.observe(ToolReturned)
    def look(fact: ToolReturned, turn: Turn, notes: Notes) -> None:
        seen.append((turn.session_id, notes.lines))

    await tree.run()
    assert seen == [(CHILD, []), (S1, [])]


async def test_a_durable_observer_reads_the_childs_log_too():
    tree = Tree()
    heard: list[tuple[str, str]] = []
    tree.parent.observe(ToolReturned, durable=True)(lambda fact: heard.append((fact.path, fact.name)))
    await tree.run()
    assert sorted(heard) == [("", "child"), (CHILD, "work")]


async def test_an_observer_that_fails_on_a_childs_fact_hurts_nobody():
    tree = Tree()

    @tree.parent.observe(ToolReturned)
    def broken(fact: ToolReturned) -> None:
        raise ValueError("oh")

    result = await tree.run()
    assert result.text == "done"


# ---------------------------------------------------------------- the way a child stops


async def test_a_parent_may_veto_the_stop_of_its_child():
    tree = Tree(child=ScriptedModel(says("short"), says("longer")))
    seen: list[Any] = []

    @tree.parent.gate(SubagentStopping)
    def more(event: SubagentStopping) -> Veto | None:
        seen.append((event.turn.session_id, event.stop_active, event.reason))
        return None if event.stop_active else Veto("Say more.")

    result = await tree.run()
    assert (await tree.result()).text == "longer"
    assert seen == [(CHILD, False, StopReason.COMPLETED), (CHILD, True, StopReason.COMPLETED)]
    assert result.text == "done"
    assert ("SubagentStopping", "more", "Veto") in HookTrace(await tree.log()).rows


async def test_the_childs_own_hooks_come_first_and_a_grandparents_only_if_passed_on():
    seen: list[str] = []
    for inherit in (False, True):
        seen.clear()
        agent, _ = nested(2)
        agent.gate(Stopping)(lambda event: seen.append(f"own {event.turn.session_id}"))
        agent.gate(SubagentStopping)(lambda event: seen.append(f"mid {event.turn.session_id}"))
        top: Agent[Any, Any] = Agent(asked_for(tool="a1"), tools=[agent.as_tool()])
        top.gate(SubagentStopping, inherit=inherit)(lambda event: seen.append(f"top {event.turn.session_id}"))
        await top.run("go", session=S1)
        low = ["mid s1/1/1/1/1", *(["top s1/1/1/1/1"] if inherit else [])]
        assert seen == [*low, "own s1/1/1", "top s1/1/1"]


async def test_vetoes_of_the_parent_are_bounded():
    tree = Tree(child=FunctionModel(lambda request: says("short")), child_options={"max_vetoes": 2})
    tree.parent.gate(SubagentStopping)(lambda event: Veto("more"))
    await tree.run()
    assert "veto_cap" in (await tree.result()).text
    assert len(await tree.find(ModelReplied, CHILD)) == 3


async def test_a_gate_on_the_childs_stop_that_fails_lets_it_stop_unreviewed():
    """Behaviour 87: SubagentStopping: the stop stands, marked unreviewed."""
    tree = Tree()

    @tree.parent.gate(SubagentStopping)
    def broken(event: SubagentStopping) -> None:
        raise ValueError("oh")

    await tree.run()
    assert (await tree.parent.state(CHILD)).outcome == Completed(unreviewed=("broken",))
    assert (await tree.result()).text == "worked"


async def test_a_parent_may_halt_its_child_where_it_stops():
    tree = Tree()
    tree.parent.gate(SubagentStopping)(lambda event: Halt("not good enough"))
    assert (await tree.run()).outcome == Completed()
    assert "was stopped (halted): not good enough" in (await tree.result()).text


async def test_a_hard_limit_of_the_child_is_not_put_to_a_veto():
    asked: list[Any] = []
    tree = Tree(child_options={"criteria": [StepLimit(1)]})
    tree.parent.gate(SubagentStopping)(lambda event: asked.append(event))
    await tree.run()
    assert asked == []


# ---------------------------------------------------------------- the same as by itself


def hooked() -> Tree:
    """A child with a hook of every kind."""
    tree = Tree()
    child = tree.child
    child.rewrite(SessionStarting, name="setup")(lambda event: event.setup.replace(system="Be good."))
    child.inject(TurnStarting, name="know")(lambda event: "It is Monday.")
    child.rewrite(ModelCalling, name="brief")(lambda event: event.request.replace(system="Be brief."))
    child.gate(ModelReplying, name="read")(lambda event: Allow())
    child.rewrite(ToolCalling, name="same")(lambda event: event.call.replace(json="{ }"))
    child.gate(ToolCalling, name="may")(lambda event: Allow())
    child.rewrite(ToolReturning, name="nicer")(lambda event: event.result.text + "!")
    child.gate(StepEnding, name="step")(lambda event: Allow())
    child.gate(Stopping, name="stop")(lambda event: None if event.stop_active else Veto("again"))
    child.rewrite(TurnEnding, name="sign")(lambda event: event.text + " (child)")
    return tree


async def test_the_hooks_of_a_child_do_what_they_do_by_themselves():
    """Behaviour 84: the same turn as a sub-agent has the same hook trace as through run."""
    alone = hooked()
    await alone.child.run("do it", session=S1)
    below = hooked()
    await below.run()
    expected = HookTrace(await alone.child.store.read(S1))
    assert len(expected.rows) > 10
    assert HookTrace(await below.log()) == expected
    assert (await below.result()).text == "worked (child)"


async def test_an_agent_with_children_does_the_same_in_every_way_of_running():
    """Behaviour 84: a parent whose children ask, through run, stream, iterate, resume and as a sub-agent itself."""
    lived = await assert_same_everywhere(lambda: Asking().root)
    assert lived.state.text == "sent to ann; seen; sent to bob"


async def test_a_suspended_child_has_the_same_trace_too():
    """Behaviour 84: over a suspension as well."""

    def asking() -> Tree:
        tree = hooked()
        tree.child.gate(ToolCalling, name="ask")(lambda event: Ask())
        return tree

    alone = asking()
    result = await alone.child.run("do it", session=S1)
    await alone.child.resume(S1, answers={result.waiting_for[0].id: Approve()})
    below = asking()
    result = await below.run()
    await below.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert HookTrace(await below.log()) == HookTrace(await alone.child.store.read(S1))


# ---------------------------------------------------------------- a child that waits


class Asking:
    """Root, two middle agents, each with a leaf whose tool must be approved; and a tool of the root's."""

    def __init__(
        self, store: Any = None, ran: list[str] | None = None, clock: Any = None, ask: Ask | None = None
    ) -> None:
        self.ran: list[str] = [] if ran is None else ran
        noted = self.ran

        @tool
        async def send(to: str) -> str:
            """Send."""
            noted.append(to)
            return f"sent to {to}"

        @tool
        async def look() -> str:
            """Look."""
            noted.append("look")
            return "seen"

        def leaf(request: ModelRequest) -> Any:
            first, last = request.messages[0].parts[0], request.messages[-1]
            return says(last.parts[0].text) if last.role == "tool" else calls("send", to=first.text)  # type: ignore[union-attr]

        def middle(request: ModelRequest) -> Any:
            first, last = request.messages[0].parts[0], request.messages[-1]
            return says(last.parts[0].text) if last.role == "tool" else calls("leaf", task=first.text)  # type: ignore[union-attr]

        def root(request: ModelRequest) -> Any:
            if request.messages[-1].role == "tool":
                return says("; ".join(part.text for part in request.messages[-1].parts))  # type: ignore[union-attr]
            return calls([("middle", {"task": "ann"}), ("look", {}), ("middle", {"task": "bob"})])

        self.leaf: Agent[Any, Any] = Agent(FunctionModel(leaf), name="leaf", tools=[send])
        self.leaf.gate(ToolCalling, name="ask")(lambda event: ask or Ask(f"Send to {event.call.arguments['to']}?"))
        self.middle: Agent[Any, Any] = Agent(FunctionModel(middle), name="middle", tools=[self.leaf.as_tool()])
        self.root: Agent[Any, Any] = Agent(
            FunctionModel(root), name="root", tools=[self.middle.as_tool(), look], store=store, clock=clock
        )


ANN, BOB = "s1/1/1/1/1/1/1", "s1/1/3/1/1/1/1"


async def test_a_question_at_the_bottom_suspends_all_above_it():
    tree = Asking()
    result = await tree.root.run("go", session=S1)
    assert isinstance(result.outcome, Suspended)
    assert [asked.id for asked in result.waiting_for] == [ANN, BOB]
    assert [asked.question for asked in result.waiting_for] == ["Send to ann?", "Send to bob?"]
    assert tree.ran == ["look"], "a sibling runs to its end"
    for session in (S1, "s1/1/1", "s1/1/1/1/1", "s1/1/3", "s1/1/3/1/1"):
        assert isinstance((await tree.root.state(session)).outcome, Suspended)
    await sound(tree.root)


async def test_questions_are_answered_one_by_one_each_lets_its_own_child_go_on():
    tree = Asking()
    await tree.root.run("go", session=S1)
    before = [list(await tree.root.store.read(s)) for s in ("s1/1/1", "s1/1/1/1/1")]
    result = await tree.root.resume(S1, answers={BOB: Approve(by="eve")})
    assert isinstance(result.outcome, Suspended)
    assert [asked.id for asked in result.waiting_for] == [ANN]
    assert tree.ran == ["look", "bob"]
    assert [list(await tree.root.store.read(s)) for s in ("s1/1/1", "s1/1/1/1/1")] == before, "it was not entered"
    (answered,) = [r for r in await tree.root.store.read("s1/1/3/1/1") if isinstance(r, Answered)]
    assert (answered.id, answered.by) == (BOB, "eve")
    result = await tree.root.resume(S1, answers={ANN: Edit({"to": "amy"})})
    assert result.outcome == Completed()
    edited = '[Before this call ran, a person changed its arguments to {"to":"amy"}]\n'
    assert result.text == f"{edited}sent to amy; seen; sent to bob"
    assert tree.ran == ["look", "bob", "amy"]
    assert result.usage.requests == 2 + 4 * 2
    await sound(tree.root)


async def test_another_process_goes_on_exactly_there():
    first = Asking()
    await first.root.run("go", session=S1)
    second = Asking(first.root.store)
    result = await second.root.resume(S1, answers={ANN: Reject("no"), BOB: Approve()})
    assert result.text == "Denied: no; seen; sent to bob"
    assert second.ran == ["bob"]


async def test_an_answer_that_fits_nothing_is_refused_and_nothing_happens():
    tree = Asking()
    await tree.root.run("go", session=S1)
    await tree.root.resume(S1, answers={ANN: Approve()})
    for wrong in ({ANN: Approve()}, {"s1/1/9": Approve()}):
        before = list(await tree.root.store.read(S1))
        with pytest.raises(StaleAnswer):
            await tree.root.resume(S1, answers=wrong)
        assert list(await tree.root.store.read(S1)) == before
    assert tree.ran == ["look", "ann"]


async def test_a_question_of_a_child_that_expires_is_answered_by_its_default(clock: Any):
    tree = Asking(clock=clock, ask=Ask("?", expires=60))
    await tree.root.run("go", session=S1)
    await clock.advance(61)
    result = await tree.root.resume(S1)
    assert result.outcome == Completed()
    assert "expired" in result.text
    assert tree.ran == ["look"]


async def test_approvers_of_a_childs_question_are_checked_by_the_parent():
    tree = Asking(ask=Ask("?", approvers=("eve",)))
    await tree.root.run("go", session=S1)
    with pytest.raises(StaleAnswer, match="eve"):
        await tree.root.resume(S1, answers={ANN: Approve(by="mallory")})
    assert tree.ran == ["look"]


async def test_questions_of_a_child_that_ended_are_open_no_longer():
    two = calls([("work", {}), ("halt", {})])

    @tool
    def halt() -> str:
        """Halt."""
        return ""

    tree = Tree(child=FunctionModel(lambda r: two))
    tree.child.tool(halt)
    tree.child.gate(ToolCalling)(lambda event: Ask())
    tree.child.gate(ToolReturning, tool="halt")(lambda event: Halt("that was it"))
    result = await tree.run()
    assert len(result.waiting_for) == 2
    result = await tree.parent.resume(S1, answers={f"{CHILD}/1/2": Approve()})
    assert result.outcome == Completed()
    assert result.waiting_for == ()
    assert "that was it" in (await tree.result()).text


@pytest.mark.parametrize("event", [TurnStarting, ModelCalling, ModelReplying, TurnEnding])
async def test_a_child_may_wait_anywhere(event: Any):
    tree = Tree()
    asked: list[int] = []

    @tree.child.gate(event, name="ask")
    def ask(event: Any) -> Ask | None:
        asked.append(1)
        return Ask() if len(asked) == 1 else None

    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"
    assert tree.ran == ["work"]
    await sound(tree.parent)


async def test_wraps_around_a_call_do_not_see_its_child_wait():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())
    seen: list[str] = []

    @tree.parent.wrap(ToolCall, tool="child")
    async def insist(call: ToolCall, call_next: Any) -> Any:
        seen.append("in")
        try:
            result = await call_next(call)
        except Exception:
            seen.append("error")
            return await call_next(call)
        seen.append("out")
        return result

    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    assert seen == ["in"]
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"
    assert seen == ["in", "in", "out"]
    assert list(await tree.parent.store.sessions()) == [S1, CHILD]


async def test_a_wrap_that_swallows_everything_cannot_answer_for_a_child_that_waits():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())

    @tree.parent.wrap(ToolCall, tool="child")
    async def greedy(call: ToolCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except BaseException:
            return "never mind"

    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    assert await tree.find(ToolReturned) == []


async def test_a_plain_wrap_does_not_see_it_either():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())
    tree.parent.wrap(ToolCall, tool="child")(lambda call, call_next: call_next(call))
    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"


async def test_a_user_who_goes_on_ends_the_child_that_waits():
    tree = Asking()
    await tree.root.run("go", session=S1)
    ended: list[str] = []
    again = Asking(tree.root.store)
    again.root.gate(TurnEnding, band="guard")(lambda event: ended.append(event.turn.session_id))
    again.root.model = ScriptedModel(says("hello"))
    result = await again.root.run("forget it", session=S1)
    assert result.text == "hello"
    for session in ("s1/1/1", "s1/1/1/1/1", "s1/1/3", "s1/1/3/1/1"):
        assert isinstance((await again.root.state(session)).outcome, Cancelled)
    assert ended == ["s1/1/1/1/1", "s1/1/1", "s1/1/3/1/1", "s1/1/3", S1, S1]
    assert again.ran == []
    await sound(again.root)


async def test_a_halt_on_a_sibling_ends_the_child_that_waits():
    @tool
    def stop() -> str:
        """Stop."""
        return ""

    both = calls([("child", {"task": "x"}), ("stop", {})])
    tree = Tree(parent=ScriptedModel(both))
    tree.parent.tool(stop)
    tree.child.gate(ToolCalling)(lambda event: Ask())
    tree.parent.gate(ToolReturning, tool="stop")(lambda event: Halt("stop all"))
    result = await tree.run()
    assert result.outcome == Stopped(StopReason.HALTED, "stop all")
    assert isinstance((await tree.parent.state(CHILD)).outcome, Cancelled)


async def test_resume_asks_new_gates_about_a_task_that_has_not_started():
    tree = Tree()
    tree.parent.gate(Delegating, name="ask")(lambda event: Ask())
    result = await tree.run()
    again = Agent(asked_for(), name="parent", tools=tree.parent.tools.values(), store=tree.parent.store)
    again.gate(Delegating, name="ask")(lambda event: Ask())
    again.gate(Delegating, name="new")(lambda event: Deny("not any more"))
    await again.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert (await tree.result()).text == "Denied: not any more"


# ---------------------------------------------------------------- a process that dies


class Journal(MemoryStore):
    """A store that would outlive its process; it knows the order in which all its sessions were written."""

    durable = True

    def __init__(self, batches: Sequence[tuple[str, Sequence[Record]]] = ()) -> None:
        super().__init__()
        self.batches: list[tuple[str, list[Record]]] = []
        for session, records in batches:
            self.keep(session, records)

    def keep(self, session: str, records: Sequence[Record]) -> bool:
        self.batches.append((session, list(records)))
        return self.append_now(session, records, len(self._logs.get(session, [])))

    async def append(self, session: str, records: Sequence[Record], expected: int) -> bool:
        self.batches.append((session, list(records)))
        return self.append_now(session, records, expected)


async def to_the_end(agent: Agent[Any, Any], session: str = S1) -> Any:
    """Go on until the turn is over, approving all that is asked, one after the other."""
    if not await agent.store.read(session):
        result = await agent.run("go", session=session)
    else:
        result = await agent.resume(session)
    for _ in range(50):
        if not isinstance(result.outcome, Suspended):
            break
        result = await agent.resume(session, answers={result.waiting_for[-1].id: Approve()})
    return result


def plainly(store: Journal) -> Asking:
    return Asking(store)


def with_wraps(store: Journal) -> Asking:
    """Wraps around all that a child lives in, and a guard's."""
    tree = Asking(store)

    async def around(value: Any, call_next: Any) -> Any:
        return await call_next(value)

    for agent in (tree.root, tree.middle, tree.leaf):
        for effect in (ToolCall, ModelCall, Turn):
            agent.wrap(effect)(around)
    tree.root.wrap(ToolCall, band="guard", name="guard")(around)
    return tree


def with_questions_about_tasks(store: Journal) -> Asking:
    """Each task has to be approved and brings something along."""
    tree = Asking(store)
    tree.root.gate(Delegating, inherit=True, name="task?")(lambda event: Ask(f"{event.task.agent}?"))
    tree.root.inject(Delegating, inherit=True, name="hint")(lambda event: "Mind the gap.")
    tree.root.inject(Delegating, inherit=True, name="secret")(lambda event: Injected("Psst.", record=False))

    @tree.leaf.gate(ModelCalling, name="hears")
    def hears(event: ModelCalling) -> Halt | None:
        text = event.request.messages[0].text
        return None if text.endswith("Mind the gap.Psst.") else Halt(f"it heard {text!r} only")

    return tree


def with_questions_at_the_ends(store: Journal) -> Asking:
    """The children ask before they start and before they end."""
    tree = Asking(store)
    for agent in (tree.middle, tree.leaf):
        agent.gate(TurnStarting, name="start?")(lambda event: Ask("start?"))
        agent.gate(TurnEnding, name="end?")(lambda event: Ask("end?"))
    return tree


@pytest.mark.parametrize(
    "made",
    [plainly, with_wraps, with_questions_about_tasks, with_questions_at_the_ends],
    ids=lambda made: made.__name__,
)
async def test_whatever_a_dead_process_has_written_another_goes_on_from_there(made: Callable[[Journal], Asking]):
    """Every prefix of what was written, over all sessions, can be resumed; nothing happens twice."""
    whole = Journal()
    expected = await to_the_end(made(whole).root)
    assert expected.text == "sent to ann; seen; sent to bob"
    assert len(whole.batches) > 20
    for cut in range(len(whole.batches)):
        store = Journal(whole.batches[:cut])
        told = {
            record.call
            for session in await store.sessions()
            for record in await store.read(session)
            if isinstance(record, ToolReturned)
        }
        started = {
            record.call
            for session in await store.sessions()
            for record in await store.read(session)
            if isinstance(record, ToolCalled) and record.name in ("send", "look") and record.call not in told
        }
        if S1 in await store.sessions() and fold(S1, await store.read(S1)).over:
            continue
        tree = made(store)
        result = await to_the_end(tree.root)
        assert result.outcome == Completed(), cut
        if started:
            assert "outcome unknown" in result.text
        else:
            assert result.text == expected.text, cut
            assert result.usage == expected.usage, cut
        assert len(tree.ran) == len(set(tree.ran))
        for session in await store.sessions():
            log = list(await store.read(session))
            assert fold(session, [decode(encode(record)) for record in log]) == fold(session, log)
            assert fold(session, log).over
            counted = [r.call for r in log if isinstance(r, ToolReturned)]
            assert len(counted) == len(set(counted))


def cut_after(journal: Journal, session: str, kind: type) -> Journal:
    """The journal as it was when the first record of a kind had been written to a session."""
    for index, (name, records) in enumerate(journal.batches):
        if name == session and any(isinstance(record, kind) for record in records):
            return Journal(journal.batches[: index + 1])
    raise AssertionError(f"no {kind.__name__} in {session}")


async def test_a_child_that_is_over_is_not_run_again():
    whole = Journal()
    await Tree(store=whole).run()
    store = cut_after(whole, CHILD, SessionEnded)
    assert not [r for r in await store.read(S1) if isinstance(r, ToolReturned)]
    again = Tree(store=store, child=ScriptedModel())
    result = await again.parent.resume(S1)
    assert result.text == "done"
    assert (await again.result()).text == "worked"
    assert again.ran == []
    assert result.usage.requests == 4, "what it spent is charged"


async def test_a_child_that_was_interrupted_goes_on():
    whole = Journal()
    await Tree(store=whole).run()
    store = cut_after(whole, CHILD, ModelReplied)
    model = ScriptedModel(says("worked again"))
    again = Tree(store=store, child=model)
    before = [r for r in await store.read(CHILD) if isinstance(r, ModelReplied)]
    assert len(before) == 1
    result = await again.parent.resume(S1)
    assert result.text == "done"
    assert len(model.requests) == 1
    assert (await again.result()).text == "worked again"


async def test_a_child_that_was_never_started_is_started():
    whole = Journal()
    await Tree(store=whole).run()
    store = cut_after(whole, S1, Delegated)
    assert CHILD not in await store.sessions()
    again = Tree(store=store)
    result = await again.parent.resume(S1)
    assert result.text == "done"
    assert again.ran == ["work"]
    assert len(await again.find(Delegated)) == 1


async def test_an_answer_that_had_not_reached_the_child_is_delivered():
    whole = Journal()
    await to_the_end(Asking(whole).root)
    at = next(
        i for i, (s, batch) in enumerate(whole.batches) if s == S1 and any(isinstance(r, Answered) for r in batch)
    )
    store = Journal(whole.batches[: at + 1])
    assert not any(isinstance(r, Answered) for r in await store.read("s1/1/3"))
    tree = Asking(store)
    result = await tree.root.resume(S1)
    assert [asked.id for asked in result.waiting_for] == [ANN]
    assert tree.ran == ["bob"]


async def test_an_answer_is_delivered_once_even_if_the_same_is_asked_again():
    """The child has used the answer and asks again; the parent, which died, has only the first answer."""

    def made(store: Any) -> Tree:
        tree = Tree(store=store)
        tree.child.gate(ToolCalling, name="ask", on_resume="rerun")(lambda event: Ask("first?"))
        tree.child.gate(ModelCalling, name="later")(
            lambda event: Ask("later?") if len(event.request.messages) > 1 else None
        )
        return tree

    whole = Journal()
    tree = made(whole)
    result = await tree.run()
    first = result.waiting_for[0].id
    result = await tree.parent.resume(S1, answers={first: Approve()})
    (asked,) = [r for r in await tree.log() if isinstance(r, Answered)]
    again = Asked(first, "ToolCalling", "first?", ("approve", "reject"), asked.digest, ("ask",))
    batches = [(s, b) for s, b in whole.batches if s == S1 or not any(isinstance(r, SessionEnded) for r in b)]
    at = max(i for i, (s, b) in enumerate(batches) if s == CHILD and any(isinstance(r, Answered) for r in b))
    store = Journal(batches[: at + 1])
    store.keep(CHILD, [again, Suspended((again,))])
    second = made(store)
    result = await second.parent.resume(S1)
    assert isinstance(result.outcome, Suspended)
    assert [asked.id for asked in result.waiting_for] == [first]
    assert second.ran == []


def test_a_live_fact_has_a_path_as_well():
    assert Retracted(1, path=CHILD).path == CHILD


# ---------------------------------------------------------------- in the parent's stream


async def test_a_stream_tells_the_facts_of_a_child_with_its_path_and_none_of_its_words_as_the_answer():
    child = Agent(ScriptedModel(says("the child's words")), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("the answer")), tools=[child.as_tool()])
    events = [event async for event in parent.stream("go", session="s")]
    below = [event for event in events if event.path]
    assert {event.path for event in below} == {"s/1/1"}
    assert {"SessionOpened", "TurnStarted", "ModelCalled", "ModelReplied", "TurnEnded"} <= {
        type(event).__name__ for event in below
    }
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "the answer"


async def test_a_stream_tells_the_facts_of_a_child_without_words_that_its_hooks_may_still_change():
    child = Agent(ScriptedModel(says("secret"), says("fine")), name="child")
    child.gate(ModelReplying)(lambda event: Regenerate("no") if event.reply.text == "secret" else None)
    parent = Agent(ScriptedModel(calls("child", task="t"), says("the answer")), tools=[child.as_tool()])
    events = [event async for event in parent.stream("go", session="s")]
    assert "secret" not in repr([event for event in events if event.path])


async def test_the_steps_of_a_child_are_in_the_stream_of_its_parent():
    agent = Agent(asked_for(task="go"), tools=[Agent(ScriptedModel(says("hm")), name="child").as_tool()])
    events = [event async for event in agent.stream("go", session=S1)]
    begun = [(event.path, event.step) for event in events if isinstance(event, StepStarted)]
    assert begun == [("", 1), ("s1/1/1", 1), ("", 2)]


@pytest.mark.parametrize("whose", ["parent", "child"])
@pytest.mark.parametrize("way", ["resume", "run", "stream", "iterate"])
async def test_a_child_goes_on_only_in_its_call_where_the_guards_above_hold(whose: str, way: str):
    """Behaviour 96: nobody enters the session of a sub-agent by another door, past the guards of its parent."""
    ran: list[str] = []

    @tool
    def work() -> str:
        """Work."""
        ran.append("work")
        return "worked"

    store = MemoryStore()
    child = Agent(working(), name="child", tools=[work], store=store)
    agent = Agent(asked_for(task="go"), tools=[child.as_tool()], store=store)
    agent.gate(ToolCalling, tool="work", band="guard")(lambda event: Ask("May it?"))
    result = await agent.run("go", session=S1)
    entered = agent if whose == "parent" else child
    answers = {result.waiting_for[0].id: Approve()}
    entering: dict[str, Any] = {
        "resume": lambda: entered.resume("s1/1/1", answers=answers),
        "run": lambda: entered.run("never mind the guard", session="s1/1/1"),
        "stream": lambda: anext(entered.stream(session="s1/1/1", answers=answers)),
        "iterate": lambda: anext(entered.iterate(session="s1/1/1", answers=answers)),
    }
    with pytest.raises(SessionError, match="resume 's1'"):
        await entering[way]()
    assert ran == []
    result = await agent.resume(S1, answers=answers)
    assert (ran, result.outcome) == (["work"], Completed())


async def test_a_session_of_ones_own_may_be_named_like_that_of_a_child():
    agent = Agent(ScriptedModel(says("one"), says("two")))
    await agent.run("go", session="ann/2024/1")
    assert (await agent.run("go on", session="ann/2024/1")).text == "two"


async def test_a_child_can_be_cancelled_alone():
    agent: Agent[Any, Any] | None = None

    @tool
    async def work() -> str:
        """Work."""
        assert agent is not None
        assert await agent.cancel("s1/1/1", "too slow")
        await asyncio.Event().wait()
        return "never"

    child = Agent(working(), name="child", tools=[work])
    agent = Agent(asked_for("went on", task="go"), tools=[child.as_tool()])
    parent = await agent.run("go", session=S1)
    assert (parent.text, parent.outcome) == ("went on", Completed())
    assert (await agent.state("s1/1/1")).outcome == Cancelled("too slow")
