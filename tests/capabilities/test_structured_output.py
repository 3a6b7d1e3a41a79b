"""StructuredOutput: one answer of a type, natively, through a tool or by instructions; repaired, streamed, resumed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel

from windlass import Agent, Ask, Completed, StopReason, TextDelta, ToolCalling, Turn, tool
from windlass.capabilities import StructuredOutput
from windlass.deltas import ArgumentsDelta
from windlass.errors import ConfigError, OutputError
from windlass.messages import Message, ModelReply, TextPart, ThinkingPart, ToolCallPart, Usage
from windlass.models.outputs import TOOL
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, crash_points, says

PLAYS = Path(__file__).with_name("crash_plays.py")
MODES = ["auto", "native", "tool", "prompt"]


@dataclass
class Trip:
    city: str
    days: int = 1


@dataclass
class Refusal:
    reason: str


class Invoice(Struct, tag=True):
    total: float


class Refund(Struct, tag=True):
    order: int


class Person(BaseModel):
    name: str
    age: int


class Pet(BaseModel):
    legs: int


SCHEMA = {"title": "Point", "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
CASES: list[tuple[Any, Any, Any]] = [
    (Trip, {"city": "Oslo", "days": 3}, Trip("Oslo", 3)),
    (Trip | Refusal, {"value": {"kind": "Refusal", "value": {"reason": "no"}}}, Refusal("no")),
    (Trip | Refusal | None, {"value": {"kind": "null"}}, None),
    (Invoice | Refund, {"value": {"type": "Refund", "order": 7}}, Refund(7)),
    (Person, {"name": "Ann", "age": 7}, Person(name="Ann", age=7)),
    (Person | Pet, {"value": {"kind": "Pet", "value": {"legs": 4}}}, Pet(legs=4)),
    (list[Trip], {"value": [{"city": "Rome"}]}, [Trip("Rome")]),
    (SCHEMA, {"x": 1}, {"x": 1}),
    ({"type": "array", "items": {"type": "integer"}}, {"value": [1, 2]}, [1, 2]),
]
IDS = ["dataclass", "union", "optional union", "tagged", "pydantic", "pydantic union", "list", "schema", "array schema"]


class Limited(ScriptedModel):
    """A model whose vendor takes no schema."""

    def takes_output(self, request: Any) -> bool:
        return False


def answer(mode: str, value: Any, **more: Any) -> Any:
    """What a model replies in a mode."""
    return calls(TOOL, **value, **more) if mode == "tool" else says(json.dumps(value), **more)


def agent_with(*script: Any, mode: str = "auto", output: Any = Trip, model: Any = ScriptedModel, **options: Any) -> Any:
    given = {name: options.pop(name) for name in ("repairs", "feedback") if name in options}
    return Agent(model(*script), output=output, capabilities=[StructuredOutput(mode, **given)], **options)


@pytest.mark.parametrize("mode", MODES)
async def test_it_passes_the_checks_for_capabilities(mode):
    await check_capability(lambda: StructuredOutput(mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("output", "value", "expected"), CASES, ids=IDS)
async def test_every_type_is_obtained_in_every_mode(output, value, expected, mode):
    agent = agent_with(answer(mode, {"x": "wrong"}), answer(mode, value), mode=mode, output=output)
    result = await agent.run("go")
    assert result.output == expected
    assert json.loads(result.text) == value
    assert result.usage.requests == 2
    assert [message.role for message in result.messages] == ["user", "assistant"]


@pytest.mark.parametrize("mode", MODES)
async def test_what_the_model_is_asked_for(mode):
    agent = agent_with(answer(mode, {"city": "Oslo"}), mode=mode, system="Plan.")
    seen: list[Any] = []
    reply = agent.model.reply

    async def noted(request: Any) -> Any:
        seen.append(request)
        return await reply(request)

    agent.model.reply = noted
    await agent.run("go")
    (request,) = seen
    assert (request.output is not None) == (mode in ("auto", "native"))
    assert [spec.name for spec in request.tools] == ([TOOL] if mode == "tool" else [])
    assert ('"city"' in request.system) == (mode == "prompt")
    assert request.settings.get("tool_choice") == (TOOL if mode == "tool" else None)
    if mode == "tool":
        assert request.tools[0].schema["required"] == ["city"]


async def test_auto_uses_a_tool_where_the_vendor_takes_no_schema():
    agent = agent_with(calls(TOOL, city="Oslo"), model=Limited)
    assert (await agent.run("go")).output == Trip("Oslo")


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        ({}, "required"),
        ({"reasoning": "low"}, None),
        ({"tool_choice": "none"}, TOOL),
        ({"tool_choice": ["look"]}, ["look", TOOL]),
        ({"tool_choice": "look"}, "look"),
    ],
)
async def test_the_model_must_call_a_tool_unless_the_application_says_otherwise(settings, choice):
    seen: list[Any] = []

    class Noting(ScriptedModel):
        async def reply(self, request: Any) -> Any:
            seen.append(request.settings.get("tool_choice"))
            return await super().reply(request)

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "x"

    script = calls(TOOL, city="Oslo")
    agent = agent_with(script, mode="tool", model=Noting, tools=[look], settings=settings)
    await agent.run("go")
    assert seen == [choice]


async def test_tools_run_before_the_answer_and_an_answer_beside_them_does_not_end_the_turn():
    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look."""
        return "sunny"

    both = calls([("look", {}), (TOOL, {"city": "Rome"})])
    agent = agent_with(both, calls(TOOL, city="Oslo"), mode="tool", tools=[look])
    result = await agent.run("go")
    assert result.output == Trip("Oslo")
    assert result.messages[2].parts[0].text == "sunny"


@pytest.mark.parametrize("mode", MODES)
async def test_a_wrong_answer_is_repaired_and_the_messages_are_kept(mode):
    """Behaviour 80: an invalid first answer is asked for again, a bounded number of times, with the messages before."""
    agent = agent_with(answer(mode, {"days": 2}), answer(mode, {"city": "Oslo"}), mode=mode)
    result = await agent.run("go")
    assert result.output == Trip("Oslo")
    again = agent.model.requests[1].messages
    assert [message.text for message in again][:2] == ["go", '{"days":2}' if mode == "tool" else '{"days": 2}']
    how = f"Call {TOOL} again with the whole answer." if mode == "tool" else "Reply with JSON only."
    assert f"missing required field `city`. {how}\n" in again[-1].text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("repairs", "requests"), [(0, 1), (1, 2), (None, 3)])
async def test_repairs_are_bounded_and_paid_for(mode, repairs, requests):
    """Behaviour 80: after the bound the turn stops with a reason of its own."""
    agent = agent_with(*[answer(mode, {"days": 2})] * 5, mode=mode, repairs=repairs)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.REGENERATION
    assert result.usage.requests == requests
    with pytest.raises(OutputError, match="missing required field `city`"):
        _ = result.output


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_that_was_cut_off_is_said_to_be_and_not_repeated(mode):
    part = ToolCallPart(TOOL, '{"city": "Os') if mode == "tool" else TextPart('{"city": "Os')
    cut = ModelReply(Message("assistant", (part,)), Usage(), "length")
    agent = agent_with(cut, answer(mode, {"city": "Oslo"}), mode=mode)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.LENGTH
    assert result.usage.requests == 1
    with pytest.raises(OutputError, match="length"):
        _ = result.output


async def test_the_feedback_can_be_written_by_the_application():
    agent = agent_with(says("{}"), says('{"city": "Oslo"}'), feedback="Wrong: {error}! {city} is needed.")
    await agent.run("go")
    told = agent.model.requests[1].messages[-1].text
    assert "Wrong: the reply is not a valid Trip: Object missing required field `city`! {city} is needed." in told


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("output", "value", "inner"),
    [(Trip, {"city": "Oslo", "days": 3}, {"city": "Oslo", "days": 3}), (*CASES[1][:2], {"reason": "no"})],
    ids=["class", "union"],
)
async def test_partial_values_are_streamed_in_every_mode(mode, output, value, inner):
    text = json.dumps(value)
    chunks = [text[at : at + 5] for at in range(0, len(text), 5)]
    agent = agent_with(says(chunks=chunks), mode=mode, output=output)
    if mode == "tool":
        agent.model.stream = pieces_of(text, chunks)
    async with agent.stream("go") as stream:
        seen = [stream.partial async for event in stream if isinstance(event, TextDelta)]
    assert seen[-1] == inner
    assert len([one for one in seen if one != inner]) > 2
    assert stream.result.output == CASES[0 if output is Trip else 1][2]


def pieces_of(text: str, chunks: list[str]) -> Any:
    """A stream of a text, and of a call whose arguments come in pieces."""

    async def stream(request: Any) -> Any:
        yield "Here it is."
        for at, chunk in enumerate(chunks):
            yield ArgumentsDelta(chunk, 1, name=TOOL if at == 0 else "")
        parts = (TextPart("Here it is."), ToolCallPart(TOOL, text))
        yield ModelReply(Message("assistant", parts), Usage(), "tool_calls")

    return stream


async def test_a_text_instead_of_a_call_is_streamed_and_repaired():
    agent = agent_with(says(chunks=["I ", "see."]), calls(TOOL, city="Oslo"), mode="tool")
    async with agent.stream("go") as stream:
        texts = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert "".join(texts) == 'I see.{"city":"Oslo"}'
    assert stream.result.output == Trip("Oslo")


async def test_a_side_call_may_use_a_mode_of_its_own():
    critic = ScriptedModel(calls(TOOL, city="Rome"), name="critic")
    got: list[Any] = []

    @tool(effect="pure")
    async def ask(turn: Turn[Any]) -> str:
        """Ask."""
        got.append(await turn.ask(critic, "where?", output=Trip, output_mode="tool"))
        return "asked"

    await Agent(ScriptedModel(calls("ask"), says("ok")), tools=[ask]).run("go")
    assert got == [Trip("Rome")]


@pytest.mark.parametrize("mode", MODES)
async def test_it_is_the_same_everywhere(mode):
    def factory() -> Any:
        @tool(effect="pure", inline=True)
        def look() -> str:
            """Look."""
            return "sunny"

        script = [calls("look"), answer(mode, {}), answer(mode, {"city": "Oslo"})]
        agent = agent_with(*script, mode=mode, tools=[look])
        agent.gate(ToolCalling, tool="look")(lambda event: Ask("look?"))
        return agent

    lived = await assert_same_everywhere(factory)
    assert json.loads(lived.state.text) == {"city": "Oslo"}


@pytest.mark.timeout(240)
def test_an_answer_through_a_tool_survives_a_crash_at_every_write():
    report = crash_points(f"{PLAYS}:answered", workers=2)
    assert json.loads(report.text) == {"total": 3}
    assert len(report.points) > 8


async def test_an_agent_without_an_output_type_is_not_changed():
    agent = Agent(ScriptedModel(says("hi")), capabilities=[StructuredOutput("tool")])
    result = await agent.run("go")
    assert (result.text, result.outcome) == ("hi", Completed())


async def test_a_text_with_a_fence_or_without_the_wrapper_is_read():
    for text in ('```json\n{"reason": "no"}\n```', '{"reason": "no"}'):
        assert (await agent_with(says(text), output=Trip | Refusal).run("go")).output == Refusal("no")


async def test_an_answer_that_fits_two_classes_must_say_which():
    @dataclass
    class A:
        x: int

    @dataclass
    class B:
        x: int

    agent = agent_with(says('{"x": 1}'), says('{"value": {"kind": "B", "value": {"x": 1}}}'), output=A | B)
    assert (await agent.run("go")).output == B(1)


async def test_an_answer_that_is_not_valid_by_its_json_schema_is_repaired():
    agent = agent_with(says('{"x": "one"}'), says('{"x": 1}'), output=SCHEMA)
    assert (await agent.run("go")).output == {"x": 1}
    assert "not a valid Point: 'one' is not of type 'integer' - at `$.x`" in agent.model.requests[1].messages[-1].text


def test_explain_tells_the_mode():
    (line,) = agent_with(mode="tool", repairs=1).explain().data["capabilities"]
    assert line["summary"] == "mode tool, at most 1 repairs"


@tool
def final_answer() -> str:
    """A tool with the same name."""
    return "x"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: StructuredOutput("json"), "mode must be"),
        (lambda: StructuredOutput(repairs=-1), "repairs must be a whole number, 0 or more"),
        (lambda: StructuredOutput(feedback="Wrong."), "must contain {error}"),
        (lambda: StructuredOutput(name=""), "name must be a text"),
        (lambda: agent_with(repairs=9).compile(), r"repairs=9 is more than Agent\(max_regenerations=2\) allows"),
        (lambda: agent_with(tools=[final_answer]).compile(), "a tool named 'final_answer', which this needs itself"),
        (lambda: agent_with(mode="native", model=Limited).compile(), "cannot be given a schema with these tools"),
        (lambda: agent_with().with_capability(StructuredOutput()).compile(), "both say how the output is obtained"),
        (lambda: agent_with(output={"type": "colour"}), "not a JSON schema"),
        (lambda: agent_with(output={"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}), "'http://x/y'"),
        (lambda: agent_with(output={"anyOf": [{"$ref": "file:///etc/passwd"}]}), "is not in the schema itself"),
    ],
)
def test_invalid_options_are_refused(make, why):
    with pytest.raises(ConfigError, match=why):
        make()


async def test_a_native_mode_that_the_model_of_a_run_cannot_do_fails_and_says_so():
    with pytest.raises(ConfigError, match="model 'other' cannot be given a schema"):
        await agent_with(mode="native").run("go", model=Limited(says("{}"), name="other"))
    agent = Agent(Limited(says("{}"), name="other"), output=Trip, settings={"output_mode": "native"})
    with pytest.raises(ConfigError, match="'other' cannot be given the output schema of this request natively"):
        (await agent.run("go")).raise_for_error()


async def test_text_before_the_answer_is_kept_out_of_the_value():
    agent = agent_with(calls(TOOL, city="Oslo", _text="Here it is."), mode="tool")
    result = await agent.run("go")
    assert result.output == Trip("Oslo")
    assert result.messages[-1].parts == (ThinkingPart("Here it is."), TextPart('{"city":"Oslo"}'))


@pytest.mark.parametrize("place", ["$defs", "definitions"])
async def test_definitions_stay_where_references_find_them(place):
    schema = {"$ref": f"#/{place}/Age", place: {"Age": {"type": "integer", "minimum": 0}}}
    model = ScriptedModel(calls("final_answer", value=-1), calls("final_answer", value=7))
    result = await Agent(model, output=schema, capabilities=[StructuredOutput("tool")]).run("go")
    assert result.output == 7
    (sent,) = [one.schema for one in model.requests[0].tools if one.name == "final_answer"]
    assert sent[place] == schema[place]
