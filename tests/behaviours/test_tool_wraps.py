"""Behaviours 32-40: what can be built around a tool call, and which tools there are."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Completed,
    ModelCall,
    ModelCalling,
    Slot,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    tool,
)
from windlass.records import ToolReturned
from windlass.testing import ScriptedModel, calls, says


class Unlocked(Struct):
    value: bool = False


UNLOCKED = Slot("unlocked", Unlocked)


class Bench:
    """An agent with some tools, and what was executed."""

    def __init__(self, *replies: Any) -> None:
        self.ran: list[Any] = []
        self.model = ScriptedModel(*replies)

        @tool(effect="pure", inline=True)
        def add(a: int, b: int) -> int:
            self.ran.append(("add", a, b))
            return a + b

        @tool(effect="pure", inline=True)
        def greet(name: str) -> str:
            self.ran.append(("greet", name))
            return f"hello {name}"

        self.agent: Agent = Agent(self.model, tools=[add, greet])

    async def results(self) -> list[Any]:
        """The results of the first step, as the model reads them in the second."""
        await self.agent.run("go", session="s")
        assert self.model.requests[1].messages[2].role == "tool"
        return list(self.model.requests[1].messages[2].parts)


async def test_a_tool_gets_the_arguments_that_a_wrap_edited_and_the_result_keeps_the_calls_id():
    """Behaviour 32: edited arguments are executed; the result answers the call that the model made."""
    bench = Bench(calls("add", a=1, b=2), says("done"))

    @bench.agent.wrap(ToolCall, tool="add")
    async def hundred(call, call_next):
        return await call_next(call.replace(arguments={**call.arguments, "a": 100}))

    (part,) = await bench.results()

    reply = bench.model.requests[1].messages[1]
    assert bench.ran == [("add", 100, 2)]
    assert part.text == "102"
    assert part.call_id == reply.tool_calls[0].id == "s/1/1"
    assert reply.tool_calls[0].arguments == {"a": 1, "b": 2}


async def test_a_wrap_cannot_give_a_call_another_id():
    """Behaviour 32: the id of a call cannot be replaced, so no result can be bound to another call."""
    bench = Bench(calls("add", a=1, b=2), says("done"))

    @bench.agent.wrap(ToolCall)
    async def rename(call, call_next):
        return await call_next(call.replace(id="other"))

    (part,) = await bench.results()

    assert bench.ran == []
    assert (part.call_id, part.status) == ("s/1/1", "error")
    (returned,) = [record for record in await bench.agent.store.read("s") if isinstance(record, ToolReturned)]
    assert "keeps its id" in returned.error.message
    assert returned.error.hook == "rename"


async def test_changing_the_mapping_of_arguments_changes_nothing():
    """Behaviour 32: arguments are edited with `replace`; the mapping that a wrap reads is a copy."""
    bench = Bench(calls("add", a=1, b=2), says("done"))

    @bench.agent.wrap(ToolCall)
    async def mutate(call, call_next):
        call.arguments["a"] = 100
        return await call_next(call)

    await bench.results()

    assert bench.ran == [("add", 1, 2)]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("not today", "not today"),
        (ToolResult((TextPart("not today"),)), "not today"),
        ({"today": False}, '{"today":false}'),
    ],
    ids=["str", "ToolResult", "value"],
)
async def test_a_wrap_that_short_circuits_keeps_the_tool_from_running(given, text):
    """Behaviour 33: the tool never runs and the model sees the wrap's result, in whatever form it was given."""
    bench = Bench(calls("greet", name="ann"), says("done"))

    @bench.agent.wrap(ToolCall)
    async def dry_run(call, call_next):
        return given

    (part,) = await bench.results()

    assert bench.ran == []
    assert (part.status, part.text) == ("ok", text)
    bench.model.assert_done()


async def test_a_wrap_may_answer_with_an_error_result():
    """Behaviour 33: a synthetic result keeps its status."""
    bench = Bench(calls("greet", name="ann"), says("done"))

    @bench.agent.wrap(ToolCall)
    async def closed(call, call_next):
        return ToolResult(status="error")

    (part,) = await bench.results()

    assert bench.ran == []
    assert part.status == "error"


@pytest.mark.parametrize("given", [ToolResult((TextPart("inner"),)), "inner"], ids=["ToolResult", "str"])
async def test_an_outer_wrap_runs_its_after_part_when_an_inner_one_short_circuits(given):
    """Behaviour 34: the outer wrap gets the synthetic result as a ToolResult and has the last word."""
    bench = Bench(calls("greet", name="ann"), says("done"))
    seen: list[Any] = []

    @bench.agent.wrap(ToolCall)
    async def outer(call, call_next):
        result = await call_next(call)
        seen.append(type(result))
        return f"{result.text}, says outer"

    @bench.agent.wrap(ToolCall)
    async def inner(call, call_next):
        return given

    (part,) = await bench.results()

    assert bench.ran == []
    assert seen == [ToolResult]
    assert part.text == "inner, says outer"


async def test_a_wrap_sees_each_call_of_a_turn_with_its_own_name():
    """Behaviour 35: several different tools, in one step and in the next: the wrap sees each with its name and id."""
    bench = Bench(
        calls([("add", {"a": 1, "b": 2}), ("greet", {"name": "ann"})]), calls("greet", name="bob"), says("done")
    )
    seen: list[Any] = []

    @bench.agent.wrap(ToolCall)
    async def log(call, call_next):
        seen.append((call.id, call.name, call.arguments))
        return await call_next(call)

    await bench.results()

    assert sorted(seen) == [
        ("s/1/1", "add", {"a": 1, "b": 2}),
        ("s/1/2", "greet", {"name": "ann"}),
        ("s/2/1", "greet", {"name": "bob"}),
    ]


@pytest.mark.parametrize(
    "matcher",
    ["greet", "gr*", ["greet", "other"], re.compile("gree."), lambda call: "name" in call.arguments],
    ids=["name", "glob", "list", "regex", "predicate"],
)
async def test_a_wrap_with_a_matcher_sees_only_its_tools(matcher):
    """Behaviour 35: a wrap that names its tool surrounds that one and leaves the others alone."""
    bench = Bench(calls([("add", {"a": 1, "b": 2}), ("greet", {"name": "ann"})]), says("done"))

    @bench.agent.wrap(ToolCall, tool=matcher)
    async def shout(call, call_next):
        return (await call_next(call)).text.upper()

    first, second = await bench.results()

    assert (first.text, second.text) == ("3", "HELLO ANN")


async def test_a_caching_wrap_executes_equal_calls_once_and_gives_each_its_own_result():
    """Behaviour 36: two equal calls in a step and one in the next: one execution, three results, three ids."""
    ran: list[str] = []

    @tool(effect="pure", inline=True, sequential=True)
    def greet(name: str) -> str:
        ran.append(name)
        return f"hello {name}"

    ann = ("greet", {"name": "ann"})
    agent = Agent(ScriptedModel(calls([ann, ann]), calls([ann]), says("done")), tools=[greet])
    cache: dict[str, ToolResult] = {}

    @agent.wrap(ToolCall)
    async def cached(call, call_next):
        if call.digest not in cache:
            cache[call.digest] = await call_next(call)
        return cache[call.digest]

    result = await agent.run("go", session="s")

    parts = [part for message in result.messages if message.role == "tool" for part in message.parts]
    assert ran == ["ann"]
    assert [(part.call_id, part.text) for part in parts] == [
        ("s/1/1", "hello ann"),
        ("s/1/2", "hello ann"),
        ("s/2/1", "hello ann"),
    ]


async def test_a_tool_that_nobody_can_execute_is_a_clear_error():
    """Behaviour 37: a wrap offers a tool without an implementation: the error names it and the known ones."""
    bench = Bench(calls("ghost", x=1), says("done"))

    @bench.agent.wrap(ModelCall)
    async def offer(request, call_next):
        return await call_next(request.replace(tools=[*request.tools, ToolSpec("ghost", "Not there.")]))

    (part,) = await bench.results()

    assert [spec.name for spec in bench.model.requests[0].tools] == ["add", "greet", "ghost"]
    assert part.status == "error"
    for name in ("'ghost'", "add", "greet"):
        assert name in part.text


@pytest.mark.parametrize("how", ["wrap", "rewrite"])
async def test_a_dynamic_tool_is_offered_by_one_hook_and_executed_by_a_wrap(how):
    """Behaviour 38: a ToolSpec is added to the request and a tool wrap gives the result: it works like any tool."""
    bench = Bench(calls("dice", sides=6), says("done"))
    dice = ToolSpec("dice", "Throw a dice.", {"type": "object", "properties": {"sides": {"type": "integer"}}})

    if how == "wrap":

        @bench.agent.wrap(ModelCall)
        async def offer(request, call_next):
            return await call_next(request.replace(tools=[*request.tools, dice]))
    else:
        bench.agent.rewrite(ModelCalling)(lambda event: event.request.replace(tools=[*event.request.tools, dice]))

    @bench.agent.wrap(ToolCall, tool="dice")
    async def throw(call, call_next):
        return f"{call.arguments['sides'] - 2}"

    (part,) = await bench.results()

    assert bench.model.requests[0].tools[-1] == dice
    assert (part.name, part.status, part.text) == ("dice", "ok", "4")
    assert (await bench.agent.state("s")).outcome == Completed()


async def test_a_dynamic_tool_may_depend_on_state():
    """Behaviour 38: the tool is offered only once a slot says so, and executed then."""

    @tool(effect="pure", inline=True)
    def unlock(turn: Any) -> str:
        turn.set(UNLOCKED, Unlocked(True))
        return "unlocked"

    model = ScriptedModel(calls("unlock"), calls("treasure"), says("done"))
    agent = Agent(model, tools=[unlock])
    agent.slot(UNLOCKED)

    @agent.wrap(ModelCall)
    async def offer(request, call_next, unlocked: Unlocked):
        extra = [ToolSpec("treasure")] if unlocked.value else []
        return await call_next(request.replace(tools=[*request.tools, *extra]))

    @agent.wrap(ToolCall, tool="treasure")
    async def open_chest(call, call_next, unlocked: Unlocked):
        return "gold" if unlocked.value else await call_next(call)

    result = await agent.run("go")

    assert [[spec.name for spec in request.tools] for request in model.requests] == [
        ["unlock"],
        ["unlock", "treasure"],
        ["unlock", "treasure"],
    ]
    assert [message.parts[0].text for message in result.messages if message.role == "tool"] == ["unlocked", "gold"]


@pytest.mark.parametrize("how", ["wrap", "rewrite"])
async def test_what_one_hook_removes_from_the_tools_the_next_does_not_see(how):
    """Behaviour 39: A removes a tool, B sees A's list, and so does the model."""
    bench = Bench(says("done"))
    seen: list[list[str]] = []

    def without_add(request):
        return request.replace(tools=[spec for spec in request.tools if spec.name != "add"])

    if how == "wrap":

        @bench.agent.wrap(ModelCall)
        async def a(request, call_next):
            return await call_next(without_add(request))

        @bench.agent.wrap(ModelCall)
        async def b(request, call_next):
            seen.append([spec.name for spec in request.tools])
            return await call_next(request)
    else:
        bench.agent.rewrite(ModelCalling)(lambda event: without_add(event.request))
        bench.agent.rewrite(ModelCalling)(lambda event: seen.append([spec.name for spec in event.request.tools]))

    await bench.agent.run("go")

    assert seen == [["greet"]]
    assert [spec.name for spec in bench.model.requests[0].tools] == ["greet"]


@pytest.mark.parametrize("how", ["wrap", "rewrite"])
async def test_an_empty_list_of_tools_is_legal(how):
    """Behaviour 39: all tools may be taken away for one request; the next one has them again."""
    bench = Bench(says("one"), says("two"))

    if how == "wrap":

        @bench.agent.wrap(ModelCall)
        async def none_at_first(request, call_next):
            return await call_next(request.replace(tools=[]) if len(request.messages) == 1 else request)
    else:
        bench.agent.rewrite(ModelCalling)(
            lambda event: event.request.replace(tools=[]) if len(event.request.messages) == 1 else None
        )

    await bench.agent.run("go", session="s")
    result = await bench.agent.run("on", session="s")

    assert [len(request.tools) for request in bench.model.requests] == [0, 2]
    assert result.text == "two"


class Dice:
    """A capability with a tool and a hook around it."""

    name = "dice"

    def __init__(self) -> None:
        self.thrown: list[int] = []

    def install(self, registrar) -> None:
        @registrar.tool
        @tool(effect="pure", inline=True)
        def throw(sides: int) -> int:
            """Throw a dice."""
            self.thrown.append(sides)
            return sides

        @registrar.wrap(ToolCall, tool="throw")
        async def fair(call, call_next):
            return f"a fair {(await call_next(call)).text}"


async def test_tools_of_a_capability_are_offered_and_executed_like_own_tools():
    """Behaviour 40: a capability's tool is in the request beside the agent's own and runs through the same onion."""
    bench = Bench(calls([("throw", {"sides": 6}), ("add", {"a": 1, "b": 2})]), says("done"))
    dice = Dice()
    bench.agent.with_capability(dice)

    first, second = await bench.results()

    assert [spec.name for spec in bench.model.requests[0].tools] == ["add", "greet", "throw"]
    assert bench.model.requests[0].tools[2].description == "Throw a dice."
    assert dice.thrown == [6]
    assert (first.text, second.text) == ("a fair 6", "3")
