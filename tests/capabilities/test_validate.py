"""Validate: input, answers and results are checked; the model corrects itself a bounded number of times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass import Agent, Completed, StopReason, TextDelta, tool
from windlass.capabilities import Validate
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says


def is_json(value: Any) -> None:
    json.loads(value.text)


def polite(value: Any) -> str | None:
    return None if "please" in value.text.lower() else "Say please."


@tool(effect="pure", inline=True)
def fetch(page: str) -> str:
    """Fetch."""
    return page


@pytest.mark.parametrize(
    "make",
    [
        lambda: Validate(output=lambda reply: None),
        lambda: Validate(input=lambda message: True, results=lambda result: None, live=True),
    ],
)
async def test_it_passes_the_checks_for_capabilities(make):
    await check_capability(make)


async def test_invalid_input_ends_the_turn_before_a_model_is_asked():
    agent = Agent(ScriptedModel(says("hi")), capabilities=[Validate(input=polite)])
    result = await agent.run("Give me that.", session="s")
    assert (result.stop_reason, result.text) == (StopReason.HALTED, "Say please.")
    assert agent.model.requests == []
    assert "Give me that." not in repr(await agent.store.read("s"))
    assert (await agent.run("Please give me that.", session="s")).text == "hi"


async def test_the_user_can_be_told_something_else():
    agent = Agent(ScriptedModel(), capabilities=[Validate(input=lambda message: False, reply="Sorry.")])
    assert (await agent.run("go")).text == "Sorry."


async def test_an_invalid_message_to_a_running_turn_is_left_out():
    agent = Agent(ScriptedModel(calls("steer"), says("done")), capabilities=[Validate(input=polite)])

    @tool(inline=False)
    async def steer() -> str:
        """Send messages to this turn."""
        await agent.steer("s", "Do more.")
        await agent.steer("s", "Do more, please.")
        return "sent"

    agent.tool(steer)
    result = await agent.run("Please go.", session="s")
    assert [m.text for m in result.messages if m.role == "user"] == ["Please go.", "Do more, please."]


async def test_an_invalid_answer_is_corrected_and_paid_for():
    agent = Agent(ScriptedModel(says("no json"), says("{}")), capabilities=[Validate(output=is_json)])
    result = await agent.run("go")
    assert result.text == "{}"
    assert result.usage.requests == 2
    tail = agent.model.requests[1].messages
    assert tail[-2].text == "no json"
    assert "Expecting value" in tail[-1].text
    assert [message.text for message in result.messages] == ["go", "{}"]


@pytest.mark.parametrize("bound", [0, 2])
async def test_after_the_bound_the_turn_stops_or_the_answer_passes(bound):
    """Behaviour 92: exactly the bounded number of attempts."""
    script = [says(f"no json {number}") for number in range(bound + 1)]
    agent = Agent(ScriptedModel(*script), capabilities=[Validate(output=is_json)], max_regenerations=bound)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.REGENERATION
    assert result.usage.requests == bound + 1
    lenient = Validate(output=is_json, otherwise="pass")
    agent = Agent(ScriptedModel(*script), capabilities=[lenient], max_regenerations=bound)
    result = await agent.run("go")
    assert result.outcome == Completed(objections=("validate.output",))
    assert result.text == f"no json {bound}"


async def test_a_reply_that_calls_tools_is_no_answer():
    script = [calls("fetch", page="x", _text="Let me see."), says("{}")]
    agent = Agent(ScriptedModel(*script), tools=[fetch], capabilities=[Validate(output=is_json)])
    assert (await agent.run("go")).usage.requests == 2


async def test_an_invalid_result_is_withheld_and_the_model_reads_why():
    check = Validate(results={"fet*": is_json})
    agent = Agent(ScriptedModel(calls("fetch", page="<html>"), says("done")), tools=[fetch], capabilities=[check])
    result = await agent.run("go", session="s")
    (part,) = result.messages[2].parts
    assert "the result is invalid: Expecting value" in part.text
    assert "<html>" not in part.text
    agent = Agent(ScriptedModel(calls("fetch", page="{}"), says("done")), tools=[fetch], capabilities=[check])
    assert (await agent.run("go")).messages[2].parts[0].text == "{}"


async def test_a_check_may_be_async_and_a_broken_one_refuses():
    async def never(value: Any) -> str:
        return "No."

    assert (await Agent(ScriptedModel(), capabilities=[Validate(input=never)]).run("go")).text == "No."
    for broken in (lambda value: 1 / 0, lambda value: 7):
        agent = Agent(ScriptedModel(says("hi")), capabilities=[Validate(input=broken)])
        assert (await agent.run("go")).stop_reason is StopReason.HALTED
        agent = Agent(ScriptedModel(says("hi")), capabilities=[Validate(output=broken)])
        assert (await agent.run("go")).stop_reason is StopReason.HALTED


async def test_no_text_of_an_invalid_answer_is_streamed():
    agent = Agent(
        ScriptedModel(says("bad", chunks=["ba", "d"]), says("{}", chunks=["{", "}"])),
        capabilities=[Validate(output=is_json)],
    )
    async with agent.stream("go") as stream:
        seen = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert "".join(seen) == "{}"


async def test_it_is_the_same_everywhere():
    script = [calls("fetch", page="x"), says("no json"), says("{}")]

    def factory() -> Agent:
        checks = Validate(output=is_json, results=is_json, input=lambda message: None)
        return Agent(ScriptedModel(*script), tools=[fetch], capabilities=[checks])

    assert (await assert_same_everywhere(factory)).state.text == "{}"


async def test_two_of_them_check_independently():
    both = [Validate(output=is_json), Validate(output=lambda reply: "too short" if len(reply.text) < 4 else None)]
    agent = Agent(ScriptedModel(says("{}"), says("[1, 2]")), capabilities=both)
    assert (await agent.run("go")).text == "[1, 2]"


@pytest.mark.parametrize("options", [{}, {"input": 7}, {"output": is_json, "otherwise": "x"}, {"results": {"a": 1}}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Validate"):
        Validate(**options)
