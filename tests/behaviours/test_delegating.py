"""Delegating: a task passes the hooks of the parent before a child starts."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Completed,
    Delegated,
    Delegating,
    Deny,
    Edit,
    Halt,
    Injected,
    ModelCalling,
    Reject,
    Respond,
    Says,
    Stopped,
    StopReason,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolDecided,
    ToolReturned,
    Turn,
    TurnStarted,
)
from windlass.records import HookFailed, Rewritten
from windlass.testing import HookTrace

from .trees import CALL, CHILD, S1, Tree, asked_for


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
        ({"share": 0.6}, "can only be reduced"),
        ({"share": None}, "can only be reduced"),
        ({"share": 0.0}, "above 0"),
        ({"tools": ("work", "more")}, "can only be removed from work; it adds more"),
        ({"tools": None}, "can only be removed from work; it adds all"),
        ({"agent": "other"}, "another agent"),
        ({"task": 3}, "a task must be a str"),
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
    assert (asked.id, asked.event, asked.by) == (CALL, "Delegating", ("ask",))
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
        assert [asked.id for asked in result.waiting_for] == [CALL]
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
