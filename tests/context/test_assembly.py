"""Assembly: request n+1 extends request n up to the tail, whatever hooks inject, and shares what it shows."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import (
    Agent,
    Injected,
    SessionStarting,
    StepEnding,
    StepStarting,
    TextPart,
    ToolCalling,
    ToolReturning,
    TurnStarting,
)
from windlass.context.assembly import assemble
from windlass.messages import Message, ModelRequest, ToolResultPart
from windlass.records import MessageAdded, StepEnded, TurnStarted
from windlass.states import Fold
from windlass.testing import FunctionModel, ScriptedModel, assert_prefix_stable, calls, says

from .test_replay import add, script

S = "s1"


# ---------------------------------------------------------------- random injections


class Plan(msgspec.Struct, frozen=True):
    """An injection: where, whether in a group, for how long, with what priority, how often silent."""

    event: Any
    group: str | None
    durable: bool
    priority: int
    every: int
    size: int


EVENTS = (SessionStarting, TurnStarting, StepStarting, ToolCalling, ToolReturning, StepEnding)
plans = st.builds(
    Plan,
    event=st.sampled_from(EVENTS),
    group=st.sampled_from([None, None, "g", "h"]),
    durable=st.booleans(),
    priority=st.integers(-1, 1),
    every=st.integers(1, 3),
    size=st.integers(1, 60),
)


def install(agent: Agent[Any, Any], number: int, plan: Plan) -> None:
    asked = itertools.count()
    options: dict[str, Any] = {} if plan.group is None else {"group": plan.group}

    @agent.inject(plan.event, name=f"hook{number}", priority=plan.priority, **options)
    def hook(event: Any) -> Any:
        turn = next(asked)
        if turn % plan.every:
            return None
        parts = (TextPart(f"{number}.{turn} " + "x" * plan.size), TextPart("and more"))
        durable = plan.durable and plan.event is not SessionStarting
        return Injected(parts, durable=durable)


def without(request: ModelRequest, hooks: set[str]) -> list[bytes]:
    """A request as bytes, in the order in which vendors read it, without what some hooks put into its last message."""
    *history, last = request.messages
    messages = [*history, _stripped(last, hooks)]
    return [msgspec.json.encode(part) for part in (request.tools, request.system, *messages)]


def _stripped(message: Message, hooks: set[str]) -> Message:
    parts: list[Any] = []
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            content = tuple(one for one in part.content if getattr(one, "origin", None) not in hooks)
            parts.append(part.replace(content=content))
        elif getattr(part, "origin", None) not in hooks:
            parts.append(part)
    return message.replace(parts=tuple(parts))


@settings(max_examples=60)
@given(st.lists(plans, max_size=5), st.integers(1, 6), st.booleans())
async def test_whatever_is_injected_request_n_plus_1_extends_request_n_up_to_the_tail(
    injections: list[Plan], steps: int, two_calls: bool
):
    """Behaviour 91: random injections, ordered and in groups, transient and durable, for turn, step and result."""
    replies = [calls([("add", {"a": n, "b": 1})] * (1 + two_calls)) for n in range(steps)]
    model = ScriptedModel(*replies, says("done"))
    agent = Agent(model, tools=[add], system="You add.")
    for number, plan in enumerate(injections):
        install(agent, number, plan)
    result = await agent.run("go", session=S)
    assert result.text == "done"
    of_step = {
        f"hook{at}"
        for at, plan in enumerate(injections)
        if plan.event in (StepStarting, StepEnding) and not plan.durable
    }
    for before, after in itertools.pairwise(model.requests):
        prefix = without(before, of_step)
        whole = [msgspec.json.encode(part) for part in (after.tools, after.system, *after.messages)]
        if len(whole) == len(prefix):
            whole = without(after, of_step)
        assert whole[: len(prefix)] == prefix
        assert b"".join(whole).startswith(b"".join(prefix))
    found = await assert_prefix_stable(agent, S)
    assert len(found) == len(model.requests)


# ---------------------------------------------------------------- what is shared


async def test_a_request_shares_its_messages_tools_and_text_with_the_one_before():
    model = script(5)
    agent = Agent(model, tools=[add], system="You add.")
    agent.inject(TurnStarting)(lambda event: "for the turn")
    agent.inject(StepStarting)(lambda event: f"step {event.step}")
    await agent.run("go", session=S)
    for before, after in itertools.pairwise(model.requests):
        assert after.tools is before.tools
        assert after.system is before.system
        assert after.sections is before.sections
        old, new = list(before.messages)[:-1], list(after.messages)
        assert all(one is other for one, other in zip(old, new, strict=False))
        assert old == new[: len(old)]
        assert after.messages.shared[0] is before.messages.shared[0]
        kept = [part for message in before.messages for part in message.parts if not isinstance(part, ToolResultPart)]
        now = {id(part) for message in after.messages for part in message.parts}
        assert [part for part in kept if id(part) not in now and part.origin is None] == []


@pytest.mark.parametrize("length", [10, 2000])
def test_assembling_a_long_history_touches_no_message(length: int):
    """The same objects, in a view of the same list: nothing is copied, however long it is."""
    agent = Agent(FunctionModel(lambda request: says("x")), tools=[add], system="You add.")
    program = agent._compile()
    fold = Fold(S)
    for number in range(length):
        fold.add(TurnStarted(number + 1, Message("user", (TextPart(f"message {number}"),)), f"{S}/t{number + 1}"))
        fold.add(MessageAdded())
    fold.add(Injected((TextPart("for the turn", "hook"),), hook="hook", event="TurnStarting", about=f"{S}/t{length}"))
    request = assemble(fold, program)
    assert len(request.messages) == length
    assert all(one is other for one, other in zip(list(request.messages)[:-1], fold.messages, strict=False))
    assert [part.text for part in request.messages[-1].parts] == [f"message {length - 1}", "for the turn"]
    again = assemble(fold, program)
    assert again.messages.shared[0] is request.messages.shared[0]
    assert again.messages.overlay is None
    assert assemble(fold.state, program) == request


@given(st.lists(plans, max_size=4), st.integers(1, 4))
async def test_what_a_fold_remembers_is_what_its_state_alone_gives(injections: list[Plan], steps: int):
    """Assembly is a pure function of the state: what it remembers changes nothing."""
    agent = Agent(script(steps), tools=[add], system="You add.")
    for number, plan in enumerate(injections):
        install(agent, number, plan)
    program = agent._compile()
    await agent.run("go", session=S)
    fold = Fold(S)
    for record in await agent.store.read(S):
        fold.add(record)
        if isinstance(record, StepEnded | TurnStarted | MessageAdded):
            assert assemble(fold, program) == assemble(fold.state, program)
