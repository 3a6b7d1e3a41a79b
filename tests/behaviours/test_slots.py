"""Behaviours 11-19: what hooks and tools keep, and who may write it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    Deny,
    Failed,
    Finish,
    Halt,
    ModelCall,
    ModelReply,
    Regenerate,
    Rewind,
    Slot,
    ToolCall,
    ToolCalling,
    ToolResult,
    ToolReturning,
    Turn,
    TurnEnding,
    tool,
)
from windlass.errors import BadReply, SlotConflict
from windlass.testing import ScriptedModel, calls, says


class Open(Struct):
    text: str = ""


class NoInput(Struct):
    text: str = ""


class NoOutput(Struct):
    text: str = ""


class Private(Struct):
    text: str = ""


class Plan(Struct):
    items: list[str] = []


class Notes(Struct):
    text: str = ""


PLAN = Slot("plan", Plan)
NOTES = Slot("notes", Notes)


@tool(effect="pure", inline=True)
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


# ---------------------------------------------------------------- who sees a slot


async def test_a_slot_says_what_it_takes_from_callers_and_what_it_shows_them():
    """Behaviour 11: input=False drops the caller's value, output=False keeps the slot out of the result."""
    agent = Agent(ScriptedModel(says("done")))
    agent.slot(Slot("open", Open))
    agent.slot(Slot("no_input", NoInput, input=False))
    agent.slot(Slot("no_output", NoOutput, output=False))
    agent.slot(Slot("private", Private, input=False, output=False))
    seen: list[str] = []

    @agent.gate(TurnEnding)
    def look_at_slots(event, open_: Open, no_input: NoInput, no_output: NoOutput, private: Private):
        seen.extend([open_.text, no_input.text, no_output.text, private.text])

    given = {
        "open": Open("caller"),
        "no_input": NoInput("caller"),
        "no_output": NoOutput("caller"),
        "private": Private("caller"),
    }
    result = await agent.run("go", slots=given)

    assert seen == ["caller", "", "caller", ""]
    assert result.slots == {"open": Open("caller"), "no_input": NoInput("")}


async def test_a_hook_writes_slots_that_no_caller_can():
    """Behaviour 11: what is closed to callers is open to hooks; the private slot stays out of the result."""
    agent = Agent(ScriptedModel(says("done")))
    no_input = agent.slot(Slot("no_input", NoInput, input=False))
    private = agent.slot(Slot("private", Private, input=False, output=False))
    seen: list[str] = []

    @agent.wrap(ModelCall)
    async def write(request, call_next, turn):
        turn.set(no_input, NoInput("hook"))
        turn.set(private, Private("hook"))
        return await call_next(request)

    agent.gate(TurnEnding)(lambda event, turn: seen.append(turn.get(private).text))
    result = await agent.run("go", slots={"private": Private("caller")})

    assert seen == ["hook"]
    assert result.slots == {"no_input": NoInput("hook")}


async def test_slots_belong_to_their_session():
    """Behaviour 11: a slot outlives its turn and is not shared between sessions."""
    agent = Agent(ScriptedModel(says("a"), says("b"), says("c")))
    agent.slot(PLAN)

    @agent.gate(TurnEnding)
    def append(event, turn):
        turn.set(PLAN, Plan([*turn.get(PLAN).items, event.turn.user_message.text]))

    await agent.run("1", session="one")
    other = await agent.run("2", session="two")
    again = await agent.run("3", session="one")

    assert other.slots == {"plan": Plan(["2"])}
    assert again.slots == {"plan": Plan(["1", "3"])}


async def test_a_tool_sees_slots_by_type_and_the_model_never_sees_the_parameter():
    """Behaviour 12: a tool parameter annotated with a slot's type is filled in and is not in the schema."""
    seen: list[Any] = []

    @tool(effect="pure", inline=True)
    def next_item(index: int, plan: Plan, turn: Turn) -> str:
        """The item of the plan."""
        seen.append(turn.get(NOTES).text)
        return plan.items[index]

    model = ScriptedModel(calls("next_item", index=1), says("done"))
    agent = Agent(model, tools=[next_item])
    agent.slot(PLAN)
    agent.slot(NOTES)

    @agent.wrap(ModelCall)
    async def plan(request, call_next, turn):
        turn.set(PLAN, Plan(["eat", "sleep"]))
        turn.set(NOTES, Notes("from a hook"))
        return await call_next(request)

    result = await agent.run("go")

    (spec,) = model.requests[0].tools
    assert list(spec.schema["properties"]) == ["index"]
    assert result.messages[2].parts[0].text == "sleep"
    assert seen == ["from a hook"]


async def test_a_model_cannot_fill_in_a_supplied_parameter():
    """Behaviour 12: a model that guesses the name of the hidden parameter is told that there is none."""

    @tool(effect="pure", inline=True)
    def items(plan: Plan) -> int:
        return len(plan.items)

    agent = Agent(ScriptedModel(calls("items", plan={"items": ["forged"]}), says("done")), tools=[items])
    agent.slot(PLAN)
    result = await agent.run("go")

    (part,) = result.messages[2].parts
    assert part.status == "error"
    assert "unknown parameter 'plan'" in part.text


# ---------------------------------------------------------------- what wraps write


async def test_messages_that_a_wrap_adds_come_after_those_of_the_step():
    """Behaviour 13: added messages follow the model's reply and the results of its calls; none is replaced."""
    model = ScriptedModel(calls("look", at="sea"), says("done"))
    agent = Agent(model, tools=[look])

    @agent.wrap(ModelCall)
    async def note(request, call_next, turn):
        turn.add(f"note {len(request.messages)}")
        return await call_next(request)

    result = await agent.run("go")

    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "user", "assistant", "user"]
    assert texts(result.messages) == ["go", "", "", "note 1", "done", "note 4"]
    assert result.messages[3].origin == "note"
    assert texts(model.requests[1].messages) == ["go", "", "", "note 1"]
    assert result.text == "done"


async def test_messages_of_several_wraps_are_all_kept():
    """Behaviour 13: of two wraps that add messages, and a tool's wrap, each one's are there, inner first."""
    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])

    @agent.wrap(ModelCall)
    async def outer(request, call_next, turn):
        turn.add("outer")
        return await call_next(request)

    @agent.wrap(ModelCall)
    async def inner(request, call_next, turn):
        turn.add("inner")
        return await call_next(request)

    @agent.wrap(ToolCall)
    async def around_tool(call, call_next, turn):
        turn.add("tool")
        return await call_next(call)

    result = await agent.run("go")

    assert texts(result.messages) == ["go", "", "", "inner", "outer", "tool", "done", "inner", "outer"]


async def test_a_message_added_in_a_step_that_is_suspended_is_not_lost():
    """Behaviour 13: a message added before the step waits for a person enters the transcript when it goes on."""
    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])

    @agent.wrap(ModelCall)
    async def note(request, call_next, turn):
        if turn.steps == 0:
            turn.add("note")
        return await call_next(request)

    agent.gate(ToolCalling)(lambda event: Ask("May I look?"))
    waiting = await agent.run("go", session="s")
    (asked,) = waiting.waiting_for
    result = await agent.resume("s", answers={asked.id: Approve()})

    assert texts(result.messages) == ["go", "", "", "note", "done"]


async def test_a_message_added_at_the_end_of_the_turn_is_not_lost():
    """Behaviour 13: what a hook on TurnEnding adds is in the transcript that the next turn shows to the model."""
    model = ScriptedModel(says("one"), says("two"))
    agent = Agent(model)

    @agent.gate(TurnEnding)
    def note(event, turn):
        if turn.user_message.text == "1":
            turn.add("note")

    await agent.run("1", session="s")
    await agent.run("2", session="s")

    assert texts(model.requests[1].messages) == ["1", "one", "note", "2"]


async def test_an_inner_wraps_writes_are_kept_when_the_outer_one_writes_nothing():
    """Behaviour 14: the inner wrap's slot and message stay; the outer one sees a plain reply."""
    agent = Agent(ScriptedModel(says("done")))
    agent.slot(PLAN)
    seen: list[Any] = []

    @agent.wrap(ModelCall)
    async def outer(request, call_next):
        reply = await call_next(request)
        seen.append(reply)
        return reply

    @agent.wrap(ModelCall)
    async def inner(request, call_next, turn):
        turn.set(PLAN, Plan(["inner"]))
        turn.add("inner")
        return await call_next(request)

    result = await agent.run("go")

    assert [(type(reply), reply.text) for reply in seen] == [(ModelReply, "done")]
    assert result.slots == {"plan": Plan(["inner"])}
    assert texts(result.messages) == ["go", "done", "inner"]


async def test_an_outer_tool_wrap_sees_a_plain_result_of_an_inner_one_that_writes():
    """Behaviour 14: the same around a tool call."""
    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])
    agent.slot(PLAN)
    seen: list[Any] = []

    @agent.wrap(ToolCall)
    async def outer(call, call_next):
        result = await call_next(call)
        seen.append(result)
        return result

    @agent.wrap(ToolCall)
    async def inner(call, call_next, turn):
        turn.set(PLAN, Plan([call.name]))
        return await call_next(call)

    result = await agent.run("go")

    assert [(type(result), result.text) for result in seen] == [(ToolResult, "saw sea")]
    assert result.slots == {"plan": Plan(["look"])}


async def test_an_outer_retry_keeps_only_the_last_attempts_writes():
    """Behaviour 15: an outer wrap calls the inner one twice: slot and message of the first attempt are gone."""
    model = ScriptedModel(says("bad"), says("good"))
    agent = Agent(model)
    agent.slot(PLAN)
    agent.slot(NOTES)
    attempts: list[str] = []

    @agent.wrap(ModelCall)
    async def outer(request, call_next):
        await call_next(request)
        return await call_next(request)

    @agent.wrap(ModelCall)
    async def inner(request, call_next, turn):
        reply = await call_next(request)
        attempts.append(reply.text)
        if len(attempts) == 1:
            turn.set(NOTES, Notes("first attempt"))
        turn.set(PLAN, Plan([*turn.get(PLAN).items, reply.text]))
        turn.add(f"note on {reply.text}")
        return reply

    result = await agent.run("go")

    assert attempts == ["bad", "good"]
    assert result.slots == {"plan": Plan(["good"]), "notes": Notes("")}
    assert texts(result.messages) == ["go", "good", "note on good"]


async def test_a_failed_last_attempt_leaves_none_of_the_first_ones_writes():
    """Behaviour 15: also if the outer wrap falls back to the first reply because the second attempt failed."""
    agent = Agent(ScriptedModel(says("first"), TimeoutError("second")))
    agent.slot(PLAN)

    @agent.wrap(ModelCall)
    async def outer(request, call_next):
        first = await call_next(request)
        try:
            return await call_next(request)
        except TimeoutError:
            return first

    @agent.wrap(ModelCall)
    async def inner(request, call_next, turn):
        reply = await call_next(request)
        turn.set(PLAN, Plan([reply.text]))
        return reply

    result = await agent.run("go")

    assert result.text == "first"
    assert result.slots == {"plan": Plan([])}


async def test_an_outer_wraps_own_writes_are_not_attempts():
    """Behaviour 15: what the retrying wrap itself writes stays, whatever number of attempts it makes."""
    agent = Agent(ScriptedModel(says("bad"), says("good")))
    agent.slot(PLAN)

    @agent.wrap(ModelCall)
    async def outer(request, call_next, turn):
        turn.set(PLAN, Plan(["outer"]))
        turn.add("outer")
        await call_next(request)
        return await call_next(request)

    result = await agent.run("go")

    assert result.slots == {"plan": Plan(["outer"])}
    assert texts(result.messages) == ["go", "good", "outer"]


async def test_of_a_tools_attempts_only_the_last_ones_writes_stay():
    """Behaviour 15: a wrap that calls a tool twice keeps what the tool wrote in the second attempt, once."""
    attempts: list[int] = []

    @tool(effect="pure", inline=True)
    def remember(turn: Turn) -> int:
        attempts.append(len(attempts) + 1)
        turn.set(PLAN, Plan([*turn.get(PLAN).items, f"attempt {len(attempts)}"]))
        turn.add(f"attempt {len(attempts)}")
        return len(attempts)

    agent = Agent(ScriptedModel(calls("remember"), says("done")), tools=[remember])
    agent.slot(PLAN)

    @agent.wrap(ToolCall)
    async def twice(call, call_next):
        await call_next(call)
        return await call_next(call)

    result = await agent.run("go")

    assert attempts == [1, 2]
    assert result.slots == {"plan": Plan(["attempt 2"])}
    assert texts(result.messages) == ["go", "", "", "attempt 2", "done"]


async def test_a_wrap_that_raises_wrote_nothing():
    """Behaviour 15: a failed attempt is no attempt whose writes could stay."""
    agent = Agent(ScriptedModel())
    agent.slot(PLAN)

    @agent.wrap(ModelCall)
    async def outer(request, call_next):
        try:
            return await call_next(request)
        except ValueError:
            return "rescued"

    @agent.wrap(ModelCall)
    async def inner(request, call_next, turn):
        turn.set(PLAN, Plan(["inner"]))
        turn.add("inner")
        raise ValueError("after writing")

    result = await agent.run("go")

    assert result.text == "rescued"
    assert result.slots == {"plan": Plan([])}
    assert texts(result.messages) == ["go", "rescued"]


async def test_two_wraps_of_one_call_that_write_one_slot_are_a_conflict_that_names_both():
    """Behaviour 16: a slot without a merge rule, written by inner and outer: SlotConflict with both names."""
    agent = Agent(ScriptedModel(says("done")))
    agent.slot(PLAN)

    @agent.wrap(ModelCall)
    async def outer_writer(request, call_next, turn):
        turn.set(PLAN, Plan(["outer"]))
        return await call_next(request)

    @agent.wrap(ModelCall)
    async def inner_writer(request, call_next, turn):
        turn.set(PLAN, Plan(["inner"]))
        return await call_next(request)

    result = await agent.run("go")

    assert isinstance(result.outcome, Failed)
    assert isinstance(result.error, SlotConflict)
    for name in ("'outer_writer'", "'inner_writer'", "'plan'"):
        assert name in str(result.error)
    assert result.slots == {"plan": Plan([])}


async def test_two_wraps_of_one_tool_call_that_write_one_slot_are_a_conflict_too():
    """Behaviour 16: around a tool call the conflict is the call's error and nothing is written."""
    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])
    agent.slot(PLAN)

    @agent.wrap(ToolCall)
    async def outer_writer(call, call_next, turn):
        turn.set(PLAN, Plan(["outer"]))
        return await call_next(call)

    @agent.wrap(ToolCall)
    async def inner_writer(call, call_next, turn):
        turn.set(PLAN, Plan(["inner"]))
        return await call_next(call)

    result = await agent.run("go")

    (part,) = result.messages[2].parts
    assert part.status == "error"
    for name in ("'outer_writer'", "'inner_writer'", "'plan'"):
        assert name in part.text
    assert result.slots == {"plan": Plan([])}


async def test_a_merge_rule_settles_what_two_wraps_write():
    """Behaviour 16: with a merge rule there is no conflict: both values are merged, inner first."""
    merged = Slot("plan", Plan, merge=lambda old, new: Plan([*old.items, *new.items]))
    agent = Agent(ScriptedModel(says("done")))
    agent.slot(merged)

    @agent.wrap(ModelCall)
    async def outer(request, call_next, turn):
        turn.set(merged, Plan(["outer"]))
        return await call_next(request)

    @agent.wrap(ModelCall)
    async def inner(request, call_next, turn):
        turn.set(merged, Plan(["inner"]))
        return await call_next(request)

    result = await agent.run("go")

    assert result.slots == {"plan": Plan(["inner", "outer"])}


async def test_two_parallel_calls_of_different_tools_that_write_one_slot_are_a_conflict():
    """Behaviour 16: of two tools that write one slot at once the second is refused and both are named."""

    @tool(effect="pure")
    async def north(turn: Turn) -> str:
        turn.set(PLAN, Plan(["north"]))
        return "went north"

    @tool(effect="pure")
    async def south(turn: Turn) -> str:
        turn.set(PLAN, Plan(["south"]))
        return "went south"

    agent = Agent(ScriptedModel(calls([("north", {}), ("south", {})]), says("done")), tools=[north, south])
    agent.slot(PLAN)
    result = await agent.run("go")

    first, second = result.messages[2].parts
    assert (first.status, second.status) == ("ok", "error")
    for name in ("north", "south", "'plan'"):
        assert name in second.text
    assert result.slots == {"plan": Plan(["north"])}


async def test_two_parallel_calls_of_one_tool_that_write_one_slot_are_a_conflict():
    """Behaviour 16: two calls of the same tool are two writers: neither write is lost silently."""

    @tool(effect="pure")
    async def go(to: str, turn: Turn) -> str:
        turn.set(PLAN, Plan([to]))
        return f"went {to}"

    agent = Agent(ScriptedModel(calls([("go", {"to": "north"}), ("go", {"to": "south"})]), says("done")), tools=[go])
    agent.slot(PLAN)
    result = await agent.run("go")

    first, second = result.messages[2].parts
    assert (first.status, second.status) == ("ok", "error")
    assert "'plan'" in second.text
    assert result.slots == {"plan": Plan(["north"])}


async def test_parallel_calls_may_write_a_slot_that_merges():
    """Behaviour 16: with a merge rule parallel calls of one tool may all write."""
    merged = Slot("plan", Plan, merge=lambda old, new: Plan(sorted({*old.items, *new.items})))

    @tool(effect="pure")
    async def go(to: str, turn: Turn) -> str:
        turn.set(merged, Plan([to]))
        return f"went {to}"

    agent = Agent(ScriptedModel(calls([("go", {"to": "north"}), ("go", {"to": "south"})]), says("done")), tools=[go])
    agent.slot(merged)
    result = await agent.run("go")

    assert result.slots == {"plan": Plan(["north", "south"])}


@pytest.mark.parametrize("effect", [ModelCall, ToolCall])
async def test_different_slots_of_inner_and_outer_wraps_both_survive(effect):
    """Behaviour 17: inner and outer wraps write different slots: both are kept."""
    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])
    agent.slot(PLAN)
    agent.slot(NOTES)

    @agent.wrap(effect)
    async def outer(value, call_next, turn):
        turn.set(PLAN, Plan(["outer"]))
        return await call_next(value)

    @agent.wrap(effect)
    async def inner(value, call_next, turn):
        turn.set(NOTES, Notes("inner"))
        return await call_next(value)

    result = await agent.run("go")

    assert result.outcome == Completed()
    assert result.slots == {"plan": Plan(["outer"]), "notes": Notes("inner")}


# ---------------------------------------------------------------- what a wrap may not answer

DECISIONS = [Halt("stop"), Deny("no"), Regenerate("again"), Finish("done"), Rewind(1)]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: type(decision).__name__)
async def test_a_model_wrap_cannot_answer_a_decision(decision):
    """Behaviour 18: a decision returned by a wrap is refused: the error names the wrap and what it may return."""
    agent = Agent(ScriptedModel(says("done")))

    @agent.wrap(ModelCall)
    async def jumping(request, call_next):
        await call_next(request)
        return decision

    result = await agent.run("go")

    assert isinstance(result.outcome, Failed)
    assert isinstance(result.error, BadReply)
    assert "'jumping'" in str(result.error)
    assert type(decision).__name__ in str(result.error)
    assert "ModelReply, a Message or a str" in str(result.error)
    assert [message.role for message in result.messages] == ["user"]


async def test_the_wrap_that_answered_a_decision_is_named_even_if_it_is_not_the_outermost():
    """Behaviour 18: the error names the wrap that is at fault, not the one around it."""
    agent = Agent(ScriptedModel(says("done")))

    @agent.wrap(ModelCall)
    async def innocent(request, call_next):
        return await call_next(request)

    @agent.wrap(ModelCall)
    async def jumping(request, call_next):
        return Halt("stop")

    result = await agent.run("go")

    assert isinstance(result.error, BadReply)
    assert "'jumping'" in str(result.error)
    assert "'innocent'" not in str(result.error)


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: type(decision).__name__)
async def test_a_tool_wrap_cannot_answer_a_decision(decision):
    """Behaviour 18: a decision is no result: the model reads an error that names the wrap."""
    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])

    @agent.wrap(ToolCall)
    async def jumping(call, call_next):
        return decision

    result = await agent.run("go")

    (part,) = result.messages[2].parts
    assert part.status == "error"
    assert "'jumping'" in part.text
    assert type(decision).__name__ in part.text


# ---------------------------------------------------------------- two results


async def test_two_gates_that_finish_with_different_values_are_a_conflict_that_names_both():
    """Behaviour 19: two unequal `Finish` values withhold the result, name both hooks, and do not finish the turn."""
    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])
    agent.gate(ToolReturning, name="first")(lambda event: Finish("one"))
    agent.gate(ToolReturning, name="second")(lambda event: Finish("two"))

    result = await agent.run("go")

    (part,) = result.messages[2].parts
    assert part.status == "denied"
    assert "'first'" in part.text
    assert "'second'" in part.text
    assert "Finish" in part.text
    assert result.outcome == Completed()
    assert result.text == "done"


async def test_two_gates_that_finish_with_the_same_value_agree():
    """Behaviour 19: equal values are no conflict: the turn is completed with that value."""
    agent = Agent(ScriptedModel(calls("look", at="sea")), tools=[look])
    agent.gate(ToolReturning, name="first")(lambda event: Finish("one"))
    agent.gate(ToolReturning, name="second")(lambda event: Finish("one"))

    result = await agent.run("go")

    assert result.outcome == Completed("one")
    assert result.text == "one"
