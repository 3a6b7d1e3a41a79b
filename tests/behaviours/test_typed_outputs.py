"""Outputs of any type that a model can be told: classes, unions, literals, generics, in every way of running."""

from __future__ import annotations

import ast
import inspect
from typing import Any, Generic, Literal, TypeVar

import pytest
from msgspec import Struct

from windlass import Agent, Ask, ToolReturning, Turn, TurnEnding, tool
from windlass import agent as agent_module
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, says

T = TypeVar("T")


class Invoice(Struct, tag=True):
    total: float


class Refund(Struct, tag=True):
    order: int


class Page(Struct, Generic[T]):
    items: list[T]


class Plain(Struct):
    a: int


class Other(Struct):
    b: int


CASES: list[tuple[Any, str, str, Any]] = [
    (Invoice, '{"type": "Refund", "order": 1}', '{"type": "Invoice", "total": 1.5}', Invoice(1.5)),
    (Invoice | Refund, '{"type": "Loan"}', '{"type": "Refund", "order": 7}', Refund(7)),
    (Invoice | None, "{}", "null", None),
    (Literal["yes", "no"], '"maybe"', '"no"', "no"),
    (Page[Invoice], '{"items": [1]}', '{"items": [{"type": "Invoice", "total": 2}]}', Page([Invoice(2.0)])),
    (dict[str, list[int]], "[]", '{"a": [1, 2]}', {"a": [1, 2]}),
]
IDS = ["class", "union", "optional", "literal", "generic", "builtin"]


@pytest.mark.parametrize(("output", "wrong", "right", "value"), CASES, ids=IDS)
async def test_an_output_is_repaired_and_typed_in_every_way_of_running(output, wrong, right, value):
    made: list[Agent[Any, Any]] = []

    def factory() -> Agent[Any, Any]:
        agent = Agent(ScriptedModel(says(wrong), says(right)), output=output)
        agent.gate(TurnEnding, name="ask")(lambda event: Ask("send it?"))
        made.append(agent)
        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.text == right
    result = await Agent(ScriptedModel(says(wrong), says(right)), output=output).run("go")
    assert result.output == value
    async with Agent(ScriptedModel(says(wrong), says(right)), output=output).stream("go") as stream:
        async for _ in stream:
            pass
    assert stream.result.output == value
    assert made


@pytest.mark.parametrize(("output", "wrong", "right", "value"), CASES, ids=IDS)
async def test_a_task_and_a_side_call_return_the_output_of_their_type(output, wrong, right, value):
    got: list[Any] = []
    child = Agent(ScriptedModel(says(wrong), says(right)), output=output, name="child")
    critic = ScriptedModel(says(wrong), says(right), name="critic")

    @tool(effect="pure")
    async def work(turn: Turn[Any]) -> str:
        """Work."""
        got.append((await turn.delegate(child, "go")).output)
        return "done"

    agent = Agent(ScriptedModel(calls("work"), says("ok")), tools=[work])

    @agent.gate(ToolReturning)
    async def judge(event: ToolReturning, turn: Turn[Any]) -> None:
        got.append(await turn.ask(critic, "fine?", output=output))

    assert (await agent.run("go")).text == "ok"
    assert got == [value, value]


async def test_classes_of_a_union_that_a_reply_cannot_tell_apart_are_named_in_it():
    agent = Agent(ScriptedModel(says('{"value": {"kind": "Other", "value": {"b": 1}}}')), output=Plain | Other)
    assert (await agent.run("go")).output == Other(1)
    kinds = agent.model.requests[0].output["properties"]["value"]["anyOf"]
    assert len(kinds) == 2


def test_a_union_that_cannot_be_told_to_a_model_is_refused_when_the_agent_is_made():
    same = type("Plain", (Struct,), {"__annotations__": {"c": int}})
    with pytest.raises(ConfigError, match=r"output=.* cannot be described to a model: .*need different names"):
        Agent(ScriptedModel(), output=Plain | same)
    with pytest.raises(ConfigError, match=r"cannot be described to a model"):
        Agent(ScriptedModel(), output=Plain | Other | object)


def test_the_typed_signature_of_an_agent_has_every_parameter():
    tree = ast.parse(inspect.getsource(agent_module))
    (given,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "_Given"]
    typed = {node.target.id for node in given.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    assert typed == set(inspect.signature(Agent).parameters) - {"model", "output", "scope"}


def test_explain_names_the_type_of_the_output():
    schema = {"title": "Point", "type": "object", "properties": {"x": {"type": "integer"}}}
    described = [Agent(ScriptedModel(), output=kind).explain().data["output"] for kind in (Plain, schema, str)]
    assert described == ["Plain", "Point", "str"]
