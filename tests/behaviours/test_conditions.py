"""What a hook sees of a tool, and the conditions that limit a hook: `when`, `tool`, `agent`, `model` and `error`."""

from __future__ import annotations

import re
from threading import get_ident
from typing import Any

import pytest
from tests.logs import find

from windlass import (
    Agent,
    Ask,
    Completed,
    Delegated,
    Delegating,
    Deny,
    Erring,
    Fail,
    Halt,
    HookDecided,
    HookFailed,
    Ignore,
    Injected,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReplying,
    SessionStarting,
    Step,
    StepStarting,
    Stopped,
    Stopping,
    SubagentStopping,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnStarting,
    Veto,
    tool,
)
from windlass.errors import HookError, RateLimited, RegistrationError
from windlass.events import EVENTS
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, says

from .trees import CHILD, Tree, asked_for


@tool(effect="pure", inline=True)
def look(path: str = "/") -> str:
    """Look."""
    return f"saw {path}"


@tool(destructive=True, inline=True)
def wipe(path: str = "/") -> str:
    """Wipe."""
    return f"wiped {path}"


BOTH = calls([("look", {}), ("wipe", {})])


def agent_of(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(*replies), **{"tools": [look, wipe], **options})


def statuses(result: Any) -> list[str]:
    return [part.status for message in result.messages if message.role == "tool" for part in message.parts]


class Shell:
    """A capability with a tool."""

    def install(self, registrar: Any) -> None:
        registrar.tool(wipe)


# ---------------------------------------------------------------- hooks see the tool


async def test_a_gate_decides_by_the_effect_of_the_tool():
    def factory() -> Agent:
        agent = agent_of(BOTH, says("done"))

        @agent.gate(ToolCalling, name="asks")
        def by_effect(event: ToolCalling) -> Ask | None:
            return Ask("really?") if event.tool is not None and event.tool.effect == "unsafe" else None

        @agent.rewrite(ToolReturning)
        def mark(event: ToolReturning) -> str | None:
            destructive = event.tool is not None and event.tool.annotations.destructive
            return f"{event.result.text} for good" if destructive else None

        return agent

    lived = await assert_same_everywhere(factory)
    texts = [part.text for message in lived.state.messages if message.role == "tool" for part in message.parts]
    assert texts == ["saw /", "wiped / for good"]
    assert lived.resumed == 1


async def test_a_tool_names_the_capability_that_brought_it():
    seen: list[Any] = []
    agent = Agent(ScriptedModel(BOTH, says("done")), tools=[look]).with_capability(Shell())
    agent.gate(ToolCalling)(lambda event: seen.append((event.tool.name, event.tool.capability)))
    await agent.run("go")
    assert seen == [("look", None), ("wipe", "Shell")]
    assert wipe.capability is None
    assert "from Shell" in str(agent.explain())


async def test_a_name_without_a_tool_has_none():
    seen: list[Any] = []
    agent = agent_of(calls("nothing"), says("done"))
    agent.gate(ToolCalling)(lambda event: seen.append(event.tool))
    agent.gate(ToolReturning)(lambda event: seen.append(event.tool))
    await agent.run("go")
    assert seen == [None, None]


async def test_wraps_injections_and_observers_see_the_tools_by_name():
    seen: list[Any] = []
    agent = agent_of(calls("wipe"), says("done"))

    @agent.wrap(ToolCall)
    async def dry_run(call: ToolCall, call_next: Any, turn: Turn[Any]) -> Any:
        return "not done" if turn.tools[call.name].effect == "unsafe" else await call_next(call)

    @agent.inject(TurnStarting)
    def name_tools(event: TurnStarting, turn: Turn[Any]) -> str:
        return f"You have {', '.join(turn.tools)}."

    @agent.observe(ToolReturned, wait=True)
    def effects(fact: ToolReturned, turn: Turn[Any]) -> None:
        seen.append(turn.tools[fact.name].effect)

    result = await agent.run("go", session="s1")
    assert result.messages[2].parts[0].text == "not done"
    assert seen == ["unsafe"]
    (injected,) = await find(agent, Injected)
    assert injected.parts[0].text == "You have look, wipe."


async def test_an_inherited_guard_and_an_observer_above_see_the_tool_of_the_sub_agent():
    seen: list[Any] = []
    tree = Tree()

    @tree.parent.gate(ToolCalling, band="guard")
    def guard(event: ToolCalling) -> None:
        seen.append((event.call.name, event.tool is not None))

    @tree.parent.observe(ToolCalled, wait=True)
    def look_on(fact: ToolCalled, turn: Turn[Any]) -> None:
        seen.append((fact.name, fact.name in turn.tools))

    await tree.run()
    assert seen == [("child", True), ("child", True), ("work", True), ("work", True)]


async def test_a_durable_observer_has_no_tools():
    agent = agent_of(says("done"))
    failures: list[str] = []

    @agent.observe(TurnEnded, durable=True)
    def later(fact: TurnEnded, turn: Turn[Any]) -> None:
        try:
            _ = turn.tools
        except HookError as error:
            failures.append(str(error))

    async with agent:
        await agent.run("go", session="s1")
    assert "has no tools: it may run in another process" in failures[0]


# ---------------------------------------------------------------- when


async def test_when_limits_every_verb():
    asked: list[str] = []

    def factory() -> Agent:
        agent = agent_of(BOTH, says("done"))
        is_wipe = {"when": lambda event: event.call.name == "wipe"}

        @agent.rewrite(ToolCalling, **is_wipe)
        def rewrite(event: ToolCalling) -> None:
            asked.append(f"rewrite {event.call.name}")

        @agent.gate(ToolCalling, name="ask", **is_wipe)
        def gate(event: ToolCalling) -> Ask:
            asked.append(f"gate {event.call.name}")
            return Ask("really?")

        @agent.inject(ToolCalling, **is_wipe)
        def inject(event: ToolCalling) -> str:
            return "Careful."

        @agent.hook(ToolReturning, **is_wipe)
        def hook(event: ToolReturning) -> None:
            asked.append(f"hook {event.call.name}")

        @agent.wrap(ToolCall, when=lambda call: call.name == "wipe")
        async def wrap(call: ToolCall, call_next: Any) -> Any:
            asked.append(f"wrap {call.name}")
            return await call_next(call)

        return agent

    lived = await assert_same_everywhere(factory)
    assert {text.split()[1] for text in asked} == {"wipe"}
    assert {text.split()[0] for text in asked} == {"rewrite", "gate", "hook", "wrap"}
    (injected,) = [record for record in lived.log if isinstance(record, Injected)]
    assert injected.parts[0].text == "Careful."


@pytest.mark.parametrize("event", EVENTS)
def test_when_can_be_used_on_every_event(event):
    agent = agent_of()
    agent.gate(event, when=lambda given: given.turn.steps > 1)(lambda given: None)
    assert "when <lambda> at" in str(agent.explain())


async def test_when_limits_a_shadow_gate():
    agent = agent_of(BOTH, says("done"))
    agent.gate(ToolCalling, mode="shadow", when=lambda event: event.call.name == "wipe")(lambda event: Deny("no"))
    await agent.run("go", session="s1")
    assert [decided.about for decided in await find(agent, HookDecided)] == ["s1/1/2"]


async def test_when_of_an_observer_gets_the_fact():
    seen: list[str] = []
    agent = agent_of(BOTH, says("done"))
    options: Any = {"when": lambda fact: fact.result.status == "denied"}
    agent.gate(ToolCalling, tool="wipe")(lambda event: Deny("no"))
    for wait in (True, False):
        agent.observe(ToolReturned, wait=wait, **options)(lambda fact: seen.append(fact.name))

    @agent.observe(ToolReturned, **options)
    async def later(fact: ToolReturned) -> None:
        seen.append(fact.name)

    @agent.observe(ToolReturned, durable=True, **options)
    def durable(fact: ToolReturned) -> None:
        seen.append(fact.name)

    async with agent:
        await agent.run("go", session="s1")
    assert seen == ["wipe"] * 4


async def test_when_of_a_wrap_of_a_step_or_turn_gets_the_state():
    seen: list[Any] = []
    agent = agent_of(calls("look"), says("done"))

    @agent.wrap(Step, when=lambda state: state.steps > 0)
    async def later_steps(state: Any, call_next: Any) -> Any:
        seen.append(state.steps)
        return await call_next(state)

    @agent.wrap(Turn, when=lambda state: False)
    async def never(state: Any, call_next: Any) -> Any:
        seen.append("never")
        return await call_next(state)

    await agent.run("go")
    assert seen == [1]


def broken(subject: Any) -> bool:
    raise ZeroDivisionError


async def test_a_predicate_that_raises_is_the_failure_of_its_hook():
    agent = agent_of(calls("wipe"), says("done"))
    agent.gate(ToolCalling, name="gate", when=broken)(lambda event: None)
    result = await agent.run("go", session="s1")
    assert statuses(result) == ["denied"]
    (failed,) = await find(agent, HookFailed)
    assert (failed.hook, failed.effect, failed.error.type) == ("gate", "Deny", "ZeroDivisionError")

    agent = agent_of(says("done"))
    agent.rewrite(ModelCalling, name="rewrite", when=broken)(lambda event: None)
    result = await agent.run("go")
    assert "rewrite 'rewrite' failed on ModelCalling: ZeroDivisionError" in result.outcome.error.message

    agent = agent_of(says("done"))
    agent.inject(TurnStarting, name="context", when=broken, optional=True)(lambda event: "more")
    result = await agent.run("go", session="s1")
    assert result.text == "done"
    assert [failed.effect for failed in await find(agent, HookFailed)] == ["skipped"]

    for effect in (ModelCall, Step, Turn):
        agent = agent_of(says("done"))

        async def wrap(value: Any, call_next: Any) -> Any:
            return await call_next(value)

        agent.wrap(effect, name="wrap", when=broken)(wrap)
        result = await agent.run("go")
        assert "ZeroDivisionError" in str(result.outcome), effect


async def test_a_predicate_of_an_observer_that_raises_leaves_the_turn_alone():
    agent = agent_of(says("done"))
    agent.observe(TurnEnded, name="looker", when=broken, wait=True)(lambda fact: None)
    agent.observe(ToolCalled, name="other", when=broken)(lambda fact: None)
    assert (await agent.run("go", session="s1")).text == "done"


async def test_a_failing_predicate_of_an_awaited_observer_is_recorded():
    agent = agent_of(calls("look"), says("done"))
    agent.observe(ToolCalled, name="looker", when=broken, wait=True)(lambda fact: None)
    assert (await agent.run("go", session="s1")).text == "done"
    assert [failed.hook for failed in await find(agent, HookFailed)] == ["looker"]


# ---------------------------------------------------------------- tools, agents, models and errors


async def test_an_observer_is_limited_to_some_tools():
    seen: list[str] = []
    agent = agent_of(BOTH, says("done"))
    agent.observe(ToolReturned, tool="w*", wait=True)(lambda fact: seen.append(fact.name))
    agent.observe(ToolCalled, tool=["look", re.compile("nothing")], wait=True)(lambda fact: seen.append(fact.name))
    await agent.run("go")
    assert sorted(seen) == ["look", "wipe"]


async def test_an_observer_may_name_a_tool_of_a_sub_agent():
    seen: list[str] = []
    tree = Tree()
    tree.parent.observe(ToolCalled, tool="work", wait=True)(lambda fact: seen.append(fact.path))
    await tree.run()
    assert seen == [CHILD]


async def test_hooks_on_delegation_are_limited_by_the_name_of_the_agent():
    seen: list[Any] = []
    tree = Tree()
    tree.parent.gate(Delegating, agent="other")(lambda event: Deny("not that one"))
    tree.parent.gate(Delegating, agent=["x", "chi*"])(lambda event: seen.append((event.agent, event.tool.name)))
    tree.parent.gate(SubagentStopping, agent="child", name="once")(
        lambda event: None if event.stop_active else Veto("once more")
    )
    tree.parent.gate(SubagentStopping, agent="other")(lambda event: Halt("never"))
    tree.parent.observe(Delegated, agent="child", wait=True)(lambda fact: seen.append(fact.task))
    tree.parent.observe(Delegated, agent="other", wait=True)(lambda fact: seen.append("wrong"))
    assert isinstance((await tree.run()).outcome, Completed)
    assert seen == [("child", "child"), "do it"]
    (feedback,) = [m for m in (await tree.parent.state(CHILD)).messages if m.text == "once more"]
    assert feedback.origin == "once"


async def test_hooks_on_model_calls_are_limited_by_the_name_of_the_model():
    def factory() -> Agent:
        small = ScriptedModel(says("small"), name="small")
        agent = Agent(ScriptedModel(says("large"), name="large"), models=[small])
        agent.rewrite(ModelCalling, model="large")(lambda event: event.request.replace(model="small"))
        agent.gate(ModelCalling, model="large")(lambda event: Halt("too large"))

        @agent.wrap(ModelCall, model=re.compile("^sm"))
        async def shout(request: Any, call_next: Any) -> Any:
            return (await call_next(request)).text.upper()

        @agent.wrap(ModelCall, model="large")
        async def never(request: Any, call_next: Any) -> Any:
            raise AssertionError

        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.text == "SMALL"


async def test_a_wrap_that_changes_the_model_meets_the_gate_on_that_model():
    agent = Agent(ScriptedModel(says("a"), name="a"), models=[ScriptedModel(says("b"), name="b")])
    agent.gate(ModelCalling, model="b")(lambda event: Halt("not b"))

    @agent.wrap(ModelCall, model="a")
    async def route(request: Any, call_next: Any) -> Any:
        return await call_next(request.replace(model="b"))

    result = await agent.run("go")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.detail == "not b"


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (RateLimited, True),
        (TimeoutError, False),
        ("rate_limit", True),
        (["timeout", ModelError], True),
        ("tool", False),
    ],
)
async def test_a_gate_on_erring_is_limited_by_the_class_or_category_of_the_error(error, asked):
    seen: list[Any] = []
    agent = Agent(ScriptedModel(RateLimited("slow down")))

    @agent.gate(Erring, error=error)
    def fail(event: Erring) -> Fail:
        seen.append(event.category)
        return Fail()

    agent.gate(Erring)(lambda event: Fail())
    await agent.run("go")
    assert bool(seen) is asked


async def test_all_conditions_must_hold():
    seen: list[str] = []
    agent = agent_of(
        calls([("look", {"path": "/a"}), ("look", {"path": "/b"}), ("wipe", {"path": "/b"})]), says("done")
    )
    agent.gate(ToolCalling, tool="look", when=lambda event: event.call.arguments["path"] == "/b")(
        lambda event: seen.append(f"{event.call.name} {event.call.arguments['path']}")
    )
    await agent.run("go")
    assert seen == ["look /b"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("verb", "event", "options", "why"),
    [
        ("gate", TurnStarting, {"model": "x"}, "has model=, which is only for ModelCalling, ModelCall"),
        ("gate", ModelCalling, {"agent": "x"}, "has agent=, which is only for Delegating, SubagentStopping"),
        ("gate", Stopping, {"agent": "x"}, "has agent=, which is only for"),
        ("gate", ModelReplying, {"error": ModelError}, "has error=, which is only for Erring"),
        ("inject", StepStarting, {"tool": "x"}, "its event is not about a tool"),
        ("observe", TurnEnded, {"tool": "x"}, "its event is not about a tool"),
        ("observe", ToolCalled, {"model": "x"}, r"has options \['model'\] that observe does not take"),
        ("observe", ToolCalled, {"tool": "bash(rm *)"}, "compares arguments: a fact has the name of the tool"),
        ("observe", ToolCalled, {"tool": lambda call: True}, "compares arguments"),
        ("wrap", ToolCall, {"model": "x"}, "has model=, which is only for"),
        ("wrap", ModelCall, {"error": ModelError}, r"has options \['error'\] that wrap does not take"),
        ("gate", ModelCalling, {"model": 7}, "model=7 matches nothing"),
        ("gate", ModelCalling, {"model": []}, r"model=\[\] matches nothing"),
        ("gate", Delegating, {"agent": ""}, "agent='' matches nothing"),
        (
            "gate",
            Erring,
            {"error": "rate-limit"},
            "error='rate-limit' matches nothing; pass a class of errors, a category",
        ),
        ("gate", Erring, {"error": ()}, "matches nothing"),
        ("gate", SessionStarting, {"when": "always"}, "has when='always'; when must be a function"),
    ],
)
def test_a_condition_that_does_not_fit_is_refused_at_registration(verb, event, options, why):
    with pytest.raises(RegistrationError, match=why):
        getattr(agent_of(), verb)(event, **options)(lambda *given: None)


def test_an_async_predicate_is_refused():
    async def always(event: Any) -> bool:
        return True

    with pytest.raises(RegistrationError, match="has an async when="):
        agent_of().gate(ToolCalling, when=always)(lambda event: None)


def test_explain_shows_conditions():
    tree = Tree(parent=asked_for())
    tree.parent.gate(Delegating, agent=["child", "helper*"])(lambda event: None)
    tree.parent.gate(ModelCalling, model=re.compile("^gpt"))(lambda event: None)
    tree.parent.gate(Erring, error=[RateLimited, "timeout"])(lambda event: Ignore())
    tree.parent.observe(ToolReturned, tool="work", when=broken)(lambda fact: None)
    text = str(tree.parent.explain())
    for shown in (
        "agent child or helper*",
        "model /^gpt/",
        "error RateLimited or timeout",
        "tool work",
        "when broken at",
    ):
        assert shown in text


async def test_an_observer_is_asked_for_its_condition_when_the_fact_happens():
    """What the condition rejects is not queued, so nothing has to wait for it."""
    agent = Agent(ScriptedModel(calls("look"), says("ok")), tools=[look])
    asked: list[int] = []
    told: list[ToolReturned] = []
    agent.observe(ToolReturned, when=lambda fact: asked.append(get_ident()) or False)(told.append)
    agent.observe(TurnEnded, wait=True)(lambda fact: asked.append(0))
    await agent.run("go")
    assert asked == [get_ident(), 0]
    assert not told


# ---------------------------------------------------------------- enabled


async def test_a_hook_that_is_not_enabled_when_the_agent_is_compiled_is_left_out():
    on, asked = [False], []
    agent = Agent(ScriptedModel(says("1"), says("2")))
    agent.gate(TurnStarting, name="flagged", enabled=lambda: on[0])(lambda event: asked.append("gate"))
    agent.observe(TurnEnded, name="seen", enabled=lambda: on[0], wait=True)(lambda fact: asked.append("fact"))
    assert "flagged" not in str(agent.explain())
    assert "seen" not in str(agent.explain())
    await agent.run("go")
    on[0] = True  # too late for this agent
    await agent.run("go")
    assert asked == []


async def test_a_hook_that_is_enabled_runs_and_is_inherited():
    asked: list[str] = []
    child = Agent(ScriptedModel(says("mine")), name="child")
    agent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()], name="root")
    flag = {"enabled": lambda: True, "inherit": True}
    agent.gate(TurnStarting, name="flagged", **flag)(lambda event: asked.append(event.turn.agent))
    await agent.run("go")
    assert asked == ["root", "child"]


async def _later() -> bool:
    return True


@pytest.mark.parametrize("enabled", [True, _later])
def test_enabled_must_be_a_plain_function(enabled):
    agent = Agent(ScriptedModel())
    with pytest.raises(RegistrationError, match="enabled must be a plain function without parameters"):
        agent.gate(TurnStarting, enabled=enabled)(lambda event: None)
