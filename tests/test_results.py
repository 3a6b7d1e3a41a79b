"""What a result gives: the text and the output of a turn that has them, and the reason why not of any other turn."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Answer,
    Approve,
    Ask,
    Completed,
    Deny,
    Failed,
    Finish,
    Halt,
    HookFailed,
    MessageAdding,
    Respond,
    Result,
    StepLimit,
    Stopped,
    StopReason,
    Suspended,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.errors import AuthFailed, HookError, NotFinished, OutputError, TurnCancelled
from windlass.outcomes import Cancelled
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, calls, says

from .checks import visible


class Invoice(Struct):
    number: int


@tool
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def failing(**options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(AuthFailed("no key")), **options)


def asking(*script: Any, **options: Any) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(ScriptedModel(calls("pay", euros=5), *script), tools=[pay], **options)
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("Pay 5?"))
    return agent


def cancelling(**options: Any) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hello")), **options)

    @agent.gate(TurnStarting)
    async def leave(event: TurnStarting, turn: Turn[Any]) -> None:
        turn.cancel("the user left")

    return agent


async def by_run(agent: Agent[Any, Any]) -> Result[Any]:
    return await agent.run("go", session="s")


async def by_stream(agent: Agent[Any, Any]) -> Result[Any]:
    stream = agent.stream("go", session="s")
    async for _ in stream:
        pass
    return stream.result


async def in_a_session(agent: Agent[Any, Any]) -> Result[Any]:
    async with agent.session("s") as session:
        return await session.run("go")


WAYS = [by_run, by_stream, in_a_session]
Way = Callable[[Agent[Any, Any]], Awaitable[Result[Any]]]


@pytest.mark.parametrize("output", [None, Invoice])
@pytest.mark.parametrize("way", WAYS)
async def test_the_text_and_the_output_of_a_failed_turn_raise_its_own_error(way: Way, output: type | None):
    result = await way(failing(output=output))
    assert isinstance(result.outcome, Failed)
    for read in (lambda: result.text, lambda: result.output, result.raise_for_error):
        with pytest.raises(AuthFailed, match="no key") as raised:
            read()
        assert raised.value is result.error
    assert result.partial_text == result.state.text == ""
    assert "no key" in repr(result)


def test_the_text_of_a_failed_turn_raises_outside_of_a_loop_too():
    with pytest.raises(AuthFailed, match="no key"):
        _ = failing().run_sync("hi").text


async def test_the_error_of_a_hook_is_raised_with_its_cause():
    agent = Agent(ScriptedModel(says("hello")))

    @agent.rewrite(TurnStarting, name="broken")
    def broken(event: TurnStarting) -> None:
        raise KeyError("oops")

    result = await agent.run("go")
    with pytest.raises(HookError) as raised:
        _ = result.text
    assert raised.value.hook == "broken"
    assert isinstance(raised.value.__cause__, KeyError)
    assert "oops" in "".join(traceback.format_exception(raised.value))


async def test_a_failed_turn_that_another_process_ran_raises_the_error_of_the_log():
    result = await failing().run("go", session="s")
    elsewhere: Result[str] = Result(result.state, result._output, {})
    for read in (lambda: elsewhere.text, lambda: elsewhere.output, elsewhere.raise_for_error):
        with pytest.raises(AuthFailed, match="no key"):
            read()


@pytest.mark.parametrize("output", [None, Invoice])
@pytest.mark.parametrize("way", WAYS)
async def test_the_text_of_a_suspended_turn_raises_the_questions(way: Way, output: type | None):
    result = await way(asking(output=output))
    assert isinstance(result.outcome, Suspended)
    for read in (lambda: result.text, lambda: result.output):
        with pytest.raises(NotFinished, match=r"s/1/1 \(Pay 5\?\)") as raised:
            read()
        assert raised.value.waiting_for == result.waiting_for
    assert result.raise_for_error() is result
    assert result.partial_text == ""
    assert "Suspended" in repr(result)


async def test_what_a_suspended_turn_has_said_so_far_is_its_partial_text():
    agent = asking(says("done"))
    agent.gate(TurnEnding, name="critic")(lambda event: Ask("Good enough?"))
    waiting = await agent.run("go", session="s")
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert result.partial_text == "done"
    with pytest.raises(NotFinished, match="Good enough"):
        _ = result.text
    result = await agent.resume("s", answers={result.waiting_for[0].id: Approve()})
    assert result.text == result.output == "done"


@pytest.mark.parametrize("output", [None, Invoice])
@pytest.mark.parametrize("way", WAYS)
async def test_the_text_of_a_cancelled_turn_raises_the_reason(way: Way, output: type | None):
    result = await way(cancelling(output=output))
    assert result.outcome == Cancelled("the user left")
    for read in (lambda: result.text, lambda: result.output):
        with pytest.raises(TurnCancelled, match="the user left") as raised:
            read()
        assert raised.value.reason == "the user left"
    assert result.partial_text == ""
    assert "Cancelled" in repr(result)


@pytest.mark.parametrize("output", [None, Invoice])
@pytest.mark.parametrize("way", WAYS)
async def test_the_text_of_a_stopped_turn_is_what_the_user_was_given_and_its_output_says_why(
    way: Way, output: type | None
):
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("hello")), output=output)
    agent.gate(TurnStarting)(lambda event: Halt("closed on Sundays", "Come back on Monday."))
    result = await way(agent)
    assert result.text == "Come back on Monday."
    with pytest.raises(OutputError, match="halted: closed on Sundays"):
        _ = result.output


async def test_the_output_after_too_many_regenerations_says_what_was_wrong():
    result = await Agent(ScriptedModel(*[says('{"number": "x"}')] * 3), output=Invoice).run("go")
    with pytest.raises(OutputError, match=r"regeneration.*Expected `int`") as raised:
        _ = result.output
    assert "truncated" not in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
async def test_a_final_message_that_was_not_let_in_leaves_no_text(way: Way):
    agent = Agent(ScriptedModel(calls("pay", euros=1, _text="let me look"), says("secret")), tools=[pay])
    agent.gate(MessageAdding)(lambda event: Deny("no") if "secret" in event.message.text else None)
    result = await way(agent)
    assert (result.outcome, result.text) == (Completed(), "")


async def test_a_view_of_a_stream_shows_no_earlier_remark_in_place_of_a_message_that_was_not_let_in():
    agent = Agent(ScriptedModel(calls("pay", euros=1, _text="let me look"), says("secret")), tools=[pay])
    agent.gate(MessageAdding)(lambda event: Deny("no") if "secret" in event.message.text else None)
    events = [event async for event in agent.stream("go")]
    assert visible(events) == ""


async def test_a_turn_that_a_limit_stopped_has_the_text_of_its_last_step():
    script = [calls("pay", euros=1, _text="one"), calls("pay", euros=2, _text="two")]
    result = await Agent(ScriptedModel(*script), tools=[pay], criteria=[StepLimit(2)]).run("go")
    assert result.text == "two"


# ---------------------------------------------------------------- a typed turn that completed has its output


def typed(*script: Any, **options: Any) -> Agent[Any, Invoice]:
    return Agent(ScriptedModel(*script), output=Invoice, tools=[pay], **options)


@pytest.mark.parametrize("way", WAYS)
async def test_a_rewrite_of_the_final_text_that_does_not_fit_the_output_type_is_withheld_in_its_name(way: Way):
    store = MemoryStore()
    agent = typed(says('{"number": 7}'), store=store)
    agent.rewrite(TurnEnding, name="polite")(lambda event: f"Here you are: {event.text}")
    result = await way(agent)
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.WITHHELD
    assert result.text == ""
    assert "polite" in result.outcome.detail
    failed = [record for record in await store.read("s") if isinstance(record, HookFailed)]
    assert [(record.hook, record.event, record.effect) for record in failed] == [("polite", "TurnEnding", "withheld")]
    with pytest.raises(OutputError, match="withheld"):
        _ = result.output


async def test_a_rewrite_of_the_final_text_that_fits_is_the_output():
    agent = typed(says('{"number": 7}'))
    agent.rewrite(TurnEnding)(lambda event: event.text.replace("7", "8"))
    assert (await agent.run("go")).output == Invoice(8)


def finishing(agent: Agent[Any, Any]) -> None:
    agent.gate(ToolReturning)(lambda event: Finish("plain words"))


def answering(agent: Agent[Any, Any]) -> None:
    agent.gate(TurnStarting)(lambda event: Answer("plain words"))


def letting_in_another(agent: Agent[Any, Any]) -> None:
    agent.rewrite(MessageAdding)(lambda event: "plain words" if event.message.role == "assistant" else None)


def denying_the_last(agent: Agent[Any, Any]) -> None:
    agent.gate(MessageAdding)(lambda event: Deny("no") if "number" in event.message.text else None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", [finishing, answering, letting_in_another, denying_the_last])
async def test_however_a_typed_turn_ends_its_output_fits_or_it_is_not_completed(way: Way, hook: Any):
    script = [calls("pay", euros=1)] if hook is finishing else []
    agent = typed(*script, says('{"number": 7}'))
    hook(agent)
    result = await way(agent)
    assert result.stop_reason is StopReason.WITHHELD
    assert result.text == ""
    with pytest.raises(OutputError, match="not a valid Invoice") as raised:
        _ = result.output
    assert "truncated" not in str(raised.value)


async def test_a_person_who_responds_at_the_end_of_a_typed_turn_must_fit_too():
    for words, reason in (("no json", StopReason.WITHHELD), ('{"number": 9}', StopReason.COMPLETED)):
        agent = typed(says('{"number": 7}'))
        agent.gate(TurnEnding)(lambda event: Ask("Send it?"))
        waiting = await agent.run("go", session="s")
        result = await agent.resume("s", answers={waiting.waiting_for[0].id: Respond(words)})
        assert result.stop_reason is reason
    assert result.output == Invoice(9)


async def test_a_value_that_a_gate_finishes_a_typed_turn_with_is_its_output():
    agent = typed(calls("pay", euros=1), says("unused"))
    agent.gate(ToolReturning)(lambda event: Finish({"number": 3}))
    assert (await agent.run("go")).output == Invoice(3)
