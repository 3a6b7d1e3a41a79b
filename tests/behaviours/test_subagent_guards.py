"""The guards of a parent hold for its child, and it may veto the child's stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Completed,
    Deny,
    Halt,
    ModelCalling,
    ModelReplied,
    Slot,
    StepLimit,
    Stopping,
    StopReason,
    SubagentStopping,
    ToolCalling,
    ToolReturned,
    Turn,
    Veto,
    tool,
)
from windlass.errors import ConfigError, SessionError
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, HookTrace, ScriptedModel, says

from .trees import CHILD, S1, Notes, Tree, asked_for, nested, working

# ---------------------------------------------------------------- what holds for the child too


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
    assert [hook.name for hook in tree.child._compile().hooks.all] == ["look", "look#2"]
    assert [hook.name for hook in tree.parent._compile().hooks.all] == ["other", "look"]
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
    tree.parent.compile()

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
        low = ["mid s1//1/1//1/1", *(["top s1//1/1//1/1"] if inherit else [])]
        assert seen == [*low, "own s1//1/1", "top s1//1/1"]


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


# ---------------------------------------------------------------- in the parent's stream


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
        "resume": lambda: entered.resume("s1//1/1", answers=answers),
        "run": lambda: entered.run("never mind the guard", session="s1//1/1"),
        "stream": lambda: anext(entered.stream(session="s1//1/1", answers=answers)),
        "iterate": lambda: anext(entered.iterate(session="s1//1/1", answers=answers)),
    }
    with pytest.raises(SessionError, match="resume 's1'"):
        await entering[way]()
    assert ran == []
    result = await agent.resume(S1, answers=answers)
    assert (ran, result.outcome) == (["work"], Completed())
