"""Typed output while it streams: partial values, validated at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from windlass import Agent, Approve, Ask, Completed, Retracted, TextDelta, TurnStarting, tool
from windlass.errors import ConfigError
from windlass.partials import partial_json
from windlass.testing import ScriptedModel, calls, says


class Trip(Struct):
    city: str
    days: int
    stops: list[str] = []


TEXT = '{"city": "Oslo", "days": 12, "stops": ["a", "b"]}'


def planning(*script: Any) -> Agent[Any, Trip]:
    return Agent(ScriptedModel(*script), output=Trip)


def cut(text: str, size: int = 7) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


async def partials(agent: Agent[Any, Any], message: str | None = "go", **options: Any) -> tuple[list[Any], Any]:
    seen: list[Any] = []
    async with agent.stream(message, **options) as stream:
        async for event in stream:
            if isinstance(event, TextDelta | Retracted) and (not seen or stream.partial != seen[-1]):
                seen.append(stream.partial)
    return seen, stream.result


async def test_partial_values_grow_and_the_result_is_validated():
    seen, result = await partials(planning(says(chunks=cut(TEXT, 1))))
    assert seen[0] == {}
    assert {"city": "Osl"} in seen
    assert {"city": "Oslo", "days": 12} in seen
    assert seen[-1] == json.loads(TEXT)
    assert result.output == Trip("Oslo", 12, ["a", "b"])


async def test_a_reply_that_does_not_fit_is_retracted_and_partial_starts_again():
    seen, result = await partials(planning(says('{"city": 3}'), says(chunks=cut(TEXT))))
    assert seen[:3] == [{"city": 3}, None, {}]
    assert result.output.city == "Oslo"


async def test_text_beside_a_tool_call_is_not_mixed_with_the_answer():
    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look."""
        return "x"

    script = ScriptedModel(calls("look", _text="Let me see."), says(chunks=cut(TEXT)))
    seen, result = await partials(Agent(script, tools=[look], output=Trip))
    assert seen[0] is None
    assert seen[-1] == json.loads(TEXT)
    assert isinstance(result.outcome, Completed)


async def test_partial_after_a_resume_and_beside_a_sub_agent():
    child = Agent(ScriptedModel(says("irrelevant")), name="child")
    script = ScriptedModel(calls("child", task="x"), says(chunks=cut(TEXT)))
    agent = Agent(script, tools=[child.as_tool()], output=Trip)
    agent.gate(TurnStarting)(lambda event: Ask("May it?"))
    asked = (await agent.run("go", session="s")).waiting_for[0]
    seen, result = await partials(agent, None, session="s", answers={asked.id: Approve()})
    assert seen[-1] == json.loads(TEXT)
    assert result.output == Trip("Oslo", 12, ["a", "b"])


async def test_secrets_are_masked_in_partial_values():
    text = '{"city": "hunter22", "days": 1}'
    agent = Agent(ScriptedModel(says(chunks=cut(text))), output=Trip, secrets=["hunter22"])
    seen, _ = await partials(agent)
    assert "hunter" not in repr(seen)
    assert seen[-1] == {"city": "•••", "days": 1}


async def test_an_agent_without_an_output_type_has_no_partial_value():
    async with Agent(ScriptedModel(says("hi"))).stream("go") as stream:
        with pytest.raises(ConfigError, match="needs an agent with an output type"):
            stream.partial  # noqa: B018
        async for _ in stream:
            pass


async def test_leaving_a_typed_stream_ends_the_turn():
    agent = planning(says(chunks=cut(TEXT)))
    async with agent.stream("go", session="s") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
    assert (await agent.state("s")).over


# ---------------------------------------------------------------- incomplete JSON

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def is_beginning(part: Any, whole: Any) -> bool:
    if part is None:
        return True
    if isinstance(whole, str):
        return isinstance(part, str) and whole.startswith(part)
    if isinstance(whole, list) and isinstance(part, list):
        head = zip(part[:-1], whole, strict=False)
        last = not part or (len(part) <= len(whole) and is_beginning(part[-1], whole[len(part) - 1]))
        return last and all(one == other for one, other in head)
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and is_beginning(value, whole[key]) for key, value in part.items())
    return bool(part == whole)


@given(values, st.data(), st.booleans())
def test_every_beginning_of_a_text_gives_a_beginning_of_its_value(value, data, ascii):
    text = json.dumps(value, ensure_ascii=ascii)
    end = data.draw(st.integers(0, len(text)))
    assert is_beginning(partial_json(text[:end]), value)
    assert partial_json(text + " ") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("  ", None),
        ("nonsense", None),
        ("```json\n", None),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('{"a": 1', {}),
        ('{"a": 1,', {"a": 1}),
        ('{"a": 1 oops', {"a": 1}),
        ('{"a": tru', {}),
        ('{"a": true', {"a": True}),
        ('{"a": [1, 2', {"a": [1]}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\u00', {"a": "x"}),
        ('{"a": "x\\u00e9', {"a": "xé"}),
        ('{"a": {}, "b": []', {"a": {}, "b": []}),
        ('{"a": [}', {"a": []}),
        ("[[[", [[[]]]),
        ("[" * 100_000, None),
    ],
)
def test_incomplete_and_wrong_texts(text, value):
    assert partial_json(text) == value
