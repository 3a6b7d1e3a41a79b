"""What an application and a capability can say without private names: lifecycles with options, equal slots, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct
from tests.logs import find

from windlass import (
    Agent,
    Allow,
    Ask,
    Completed,
    Continuing,
    Evaluated,
    HookFailed,
    Hooks,
    Lifecycle,
    LifecycleHook,
    ModelReplying,
    Pipeline,
    Slot,
    StepLimit,
    StopReason,
    TextDelta,
    ToolCalling,
    Turn,
    TurnEnding,
    TurnStarting,
    Usage,
    Vote,
    tool,
)
from windlass.errors import ConfigError, RegistrationError, ToolDefinitionError
from windlass.testing import FunctionModel, ScriptedModel, assert_same_everywhere, calls, says


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    return "saw"


def looking_forever() -> Any:
    return FunctionModel(lambda request: calls("look"))


# ---------------------------------------------------------------- lifecycles


class Shout(Lifecycle):
    def __init__(self, mark: str = "!") -> None:
        self.mark = mark

    def after_agent(self, text: str) -> str:
        return f"{text}{self.mark}"


class Watch(LifecycleHook):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_session_end(self, session_id: str, text: str, outcome: Any, usage: Usage) -> None:
        self.seen.append((session_id, text, outcome, usage.requests))

    def post_tool_call(self, name: str, result: Any, turn: Turn[Any]) -> None:  # type: ignore[override]
        self.seen.append((name, turn.session_id))


class Both(Shout, Watch):
    def __init__(self) -> None:
        Shout.__init__(self)
        Watch.__init__(self)


async def test_a_lifecycle_takes_priority_and_band():
    def factory() -> Agent:
        agent = Agent(ScriptedModel(says("hi")))
        agent.with_lifecycle(Shout(" guard"), band="guard")
        agent.with_lifecycle(Shout(" second")).with_lifecycle(Shout(" first"), priority=5)
        agent.gate(TurnEnding, name="ask")(lambda event: Ask("well?"))
        return agent

    assert (await assert_same_everywhere(factory)).state.text == "hi first second guard"


async def test_a_lifecycle_that_is_live_does_not_hold_the_stream():
    for live, held in ((True, []), (False, ["Shout.after_agent"])):
        agent = Agent(ScriptedModel(says("hi", chunks=["h", "i"]))).with_lifecycle(Shout(), live=live)
        assert [hook["name"] for hook in agent.explain().data["stream"]["held_by"]] == held
        async with agent.stream("go") as stream:
            texts = [event.text async for event in stream if isinstance(event, TextDelta)]
        assert texts[0] == ("h" if live else "hi!")


async def test_a_lifecycle_that_is_inherited_works_in_sub_agents():
    child = Agent(ScriptedModel(says("hi")), name="child")
    parent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])
    parent.with_lifecycle(Shout(), inherit=True)
    result = await parent.run("go")
    assert result.messages[2].parts[0].text == "hi!"
    assert result.text == "done!"


async def test_a_registrar_and_a_collection_of_hooks_take_lifecycles():
    class Loud:
        def install(self, registrar: Any) -> None:
            registrar.with_lifecycle(Shout(), priority=1)

    hooks = Hooks().with_lifecycle(Shout("?"))
    agent = Agent(ScriptedModel(says("hi")), pipeline=Pipeline.minimal().with_hooks(hooks), capabilities=[Loud()])
    assert (await agent.run("go")).text == "hi!?"
    (row,) = [
        hook
        for point in agent.explain().data["points"]
        for stage in point["stages"]
        for hook in stage["hooks"]
        if hook["capability"] == "Loud"
    ]
    assert (row["name"], row["priority"]) == ("Shout.after_agent", 1)


def test_a_capability_cannot_put_a_lifecycle_into_the_guard_band():
    class Sly:
        def install(self, registrar: Any) -> None:
            registrar.with_lifecycle(Shout(), band="guard")

    with pytest.raises(RegistrationError, match="asks for the guard band"):
        Agent(ScriptedModel(), capabilities=[Sly()])


@pytest.mark.parametrize("options", [{"band": "guard"}, {"priority": 1}, {"live": True}])
def test_an_option_that_no_method_can_have_is_refused(options):
    with pytest.raises(RegistrationError, match=r"has no effect on Watch: Watch.post_tool_call, Watch.on_session_end"):
        Agent(ScriptedModel()).with_lifecycle(Watch(), **options)


def test_an_illegal_value_of_an_option_is_refused():
    with pytest.raises(RegistrationError, match="band must be"):
        Agent(ScriptedModel()).with_lifecycle(Shout(), band="late")  # type: ignore[arg-type]


async def test_an_observing_lifecycle_gets_the_turn_and_the_outcome_and_usage_of_the_session():
    watch = Watch()
    agent = Agent(ScriptedModel(calls("look"), says("done"), says("more")), tools=[look]).with_lifecycle(watch)
    async with agent.session("s") as session:
        await session.run("go")
        await session.run("on")
    assert sorted(watch.seen) == [("look", "s"), ("s", "more", Completed(), 3)]


async def test_a_class_may_derive_from_both_lifecycles():
    both = Both()
    agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look]).with_lifecycle(both, band="guard")
    async with agent:
        assert (await agent.run("go")).text == "done!"
    assert [row[0] for row in both.seen if row[0] == "look"] == ["look"]


# ---------------------------------------------------------------- slots of equal types


class Tally(Struct):
    count: int = 0


class Count:
    """A capability that counts calls, in a slot of its own."""

    def __init__(self, name: str) -> None:
        self.slot = Slot(name, Tally)

    def install(self, registrar: Any) -> None:
        slot = registrar.slot(self.slot)

        @registrar.gate(ToolCalling)
        def count(event: ToolCalling, turn: Turn[Any], tally: Tally) -> None:
            turn.set(slot, Tally(tally.count + 1))

        @registrar.tool
        @tool(name=f"read_{slot.name}", inline=True)
        def read(tally: Tally) -> str:
            """Read the tally."""
            return str(tally.count)


async def test_two_instances_of_a_capability_have_slots_of_one_type():
    def factory() -> Agent:
        both = calls([("read_a", {}), ("read_b", {})])
        agent = Agent(ScriptedModel(both, both, says("done")), capabilities=[Count("a"), Count("b")])
        agent.gate(ToolCalling, name="ask", tool="read_a", when=lambda event: event.turn.steps == 1)(
            lambda event: Ask("well?")
        )
        return agent

    lived = await assert_same_everywhere(factory)
    assert dict(lived.state.slots) == {"a": {"count": 4}, "b": {"count": 4}}


async def test_a_parameter_with_the_name_of_a_slot_gets_that_one():
    agent = Agent(ScriptedModel(says("done")))
    seen: list[int] = []
    agent.slot(Slot("left", Tally, default=lambda: Tally(1)))
    agent.slot(Slot("right", Tally, default=lambda: Tally(2)))

    @agent.gate(TurnStarting)
    def look_at(event: TurnStarting, right: Tally, left: Tally) -> None:
        seen.extend([right.count, left.count])

    await agent.run("go")
    assert seen == [2, 1]


def two_tallies(**options: Any) -> Agent:
    agent = Agent(ScriptedModel(says("done")), **options)
    agent.slot(Slot("left", Tally))
    agent.slot(Slot("right", Tally))
    return agent


def test_a_parameter_that_could_be_two_slots_is_refused():
    agent = two_tallies()

    @agent.gate(TurnStarting)
    def unclear(event: TurnStarting, tally: Tally) -> None: ...

    with pytest.raises(RegistrationError, match=r"gate 'unclear' .*could be slot 'left' and 'right'; rename it"):
        agent.compile()

    @tool
    def unclear_tool(tally: Tally) -> str:
        """Look."""
        return ""

    with pytest.raises(ToolDefinitionError, match="tool 'unclear_tool': parameter 'tally' could be slot"):
        two_tallies(tools=[unclear_tool]).compile()


async def test_a_type_that_two_slots_have_does_not_name_one():
    agent = two_tallies()
    agent.gate(TurnStarting)(lambda event, turn: turn.set(Tally, Tally(1)))
    result = await agent.run("go", session="s")
    assert result.stop_reason is StopReason.HALTED
    (failed,) = [record for record in await agent.store.read("s") if type(record).__name__ == "HookFailed"]
    assert "slots 'left' and 'right' have the type Tally: pass the slot itself" in failed.error.message


def test_two_slots_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="names must be unique, so rename one of them"):
        Agent(ScriptedModel(), capabilities=[Count("a"), Count("a")])


# ---------------------------------------------------------------- capabilities at construction


async def test_capabilities_are_given_to_the_agent():
    agent = Agent(ScriptedModel(calls("read_a"), says("done")), capabilities=(one for one in [Count("a")]))
    assert (await agent.run("go")).slots == {"a": Tally(1)}
    assert [one["name"] for one in agent.explain().data["capabilities"]] == ["Count"]


@pytest.mark.parametrize("given", [[7], Count("a"), [Count]])
def test_what_is_no_capability_is_refused(given):
    with pytest.raises(ConfigError, match="capabilities"):
        Agent(ScriptedModel(), capabilities=given)


# ---------------------------------------------------------------- the default step limit


async def test_a_turn_stops_after_a_hundred_steps_by_default():
    result = await Agent(looking_forever(), tools=[look]).run("go")
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert result.state.steps == 100


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_steps": 7}, 7),
        ({"criteria": [StepLimit(130)]}, 130),
        ({"pipeline": Pipeline.minimal([StepLimit(120)])}, 120),
        ({"max_steps": None, "criteria": [StepLimit(105)]}, 105),
    ],
)
async def test_another_step_limit_takes_the_place_of_the_default(options, steps):
    result = await Agent(looking_forever(), tools=[look], **options).run("go")
    assert (result.stop_reason, result.state.steps) == (StopReason.STEP_LIMIT, steps)


async def test_the_default_step_limit_holds_everywhere():
    def factory() -> Agent:
        agent = Agent(looking_forever(), tools=[look], max_steps=3)
        agent.gate(ToolCalling, name="ask", when=lambda event: event.turn.steps == 1)(lambda event: Ask("go on?"))
        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.outcome.reason is StopReason.STEP_LIMIT  # type: ignore[union-attr]
    assert lived.state.steps == 3


async def test_without_a_step_limit_a_turn_goes_on():
    model = FunctionModel(lambda request: says("done") if len(request.messages) > 250 else calls("look"))
    result = await Agent(model, tools=[look], max_steps=None).run("go")
    assert result.text == "done"
    assert result.state.steps > 100


def test_explain_says_which_step_limit_holds():
    text = " ".join(str(Agent(ScriptedModel()).explain()).split())
    assert "StepLimit(steps=100) · stops with step_limit · the default: change it with max_steps" in text
    assert "StepLimit" not in str(Agent(ScriptedModel(), max_steps=None).explain())
    assert "the default" not in str(Agent(ScriptedModel(), criteria=[StepLimit(9)]).explain())


@pytest.mark.parametrize("steps", [0, -1, 1.5, "many", True])
def test_an_illegal_number_of_steps_is_refused(steps):
    with pytest.raises(ConfigError, match="max_steps"):
        Agent(ScriptedModel(), max_steps=steps)


async def test_a_minimal_pipeline_adds_its_criteria_to_the_core_ones():
    agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look], pipeline=Pipeline.minimal([StepLimit(9)]))
    assert (await agent.run("go")).text == "done"


# ---------------------------------------------------------------- votes with reasons


async def test_a_gate_says_why_it_votes():
    def factory(vote: Any = (Vote.FORBID, "enough for today")) -> Agent:
        agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look])

        @agent.gate(Continuing, name="stop")
        def stop(event: Continuing) -> tuple[Vote, str] | Vote | None:
            return vote

        agent.gate(ToolCalling, name="ask")(lambda event: Ask("look?"))
        return agent

    lived = await assert_same_everywhere(factory)
    (evaluated,) = [record for record in lived.log if isinstance(record, Evaluated)]
    assert (evaluated.vote, evaluated.reasons) == (Vote.FORBID, (("stop", "enough for today"),))
    assert "stop: enough for today" in lived.state.outcome.detail  # type: ignore[union-attr]


@pytest.mark.parametrize("vote", [(Vote.FORBID,), (Vote.FORBID, 7), ("no", "why"), (Vote.FORBID, "a", "b")])
async def test_a_malformed_vote_fails_closed(vote):
    agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look])
    agent.gate(Continuing, name="odd")(lambda event: vote)
    result = await agent.run("go", session="s1")
    assert result.stop_reason is StopReason.FORBIDDEN
    assert "each also as (vote, reason)" in (await find(agent, HookFailed))[0].error.message


def test_a_decision_with_a_reason_is_refused_elsewhere():
    def decide(event: ModelReplying) -> tuple[Vote, str]:
        return Vote.ALLOW, "fine"

    with pytest.raises(RegistrationError, match="is annotated to answer Vote"):
        Agent(ScriptedModel()).gate(ModelReplying)(decide)  # type: ignore[arg-type]


async def test_a_shadow_gate_may_say_why():
    agent = Agent(ScriptedModel(says("done")))
    gate: Callable[..., Any] = lambda event: (Vote.REQUEST, "why not")  # noqa: E731
    agent.gate(Continuing, mode="shadow")(gate)
    agent.gate(ModelReplying)(lambda event: Allow())
    assert (await agent.run("go")).text == "done"
