"""Telemetry: what it sends to a real OTLP receiver, and that no turn notices it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from tests.logs import crashed_after
from tests.servers.otlp import Receiver, Sent, otlp

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Deny,
    HookFailed,
    ModelCall,
    ModelReplying,
    Regenerate,
    StepStarting,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnStarting,
    tool,
)
from windlass.capabilities import Redact, Retry, Telemetry
from windlass.deltas import TextDelta
from windlass.errors import AuthFailed, ConfigError, Overloaded
from windlass.messages import ImagePart, Message, ModelReply, TextPart, Usage, assistant
from windlass.records import ModelAttempted, Noted, ToolAttempted, ToolCalled
from windlass.stores import SQLiteStore
from windlass.testing import (
    FakeClock,
    FunctionModel,
    ScriptedModel,
    assert_same_everywhere,
    calls,
    check_capability,
    says,
)

__all__ = ["otlp"]


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Memory:
    """A provider that keeps the spans, as an application would read them."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False, **options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        return [span.name for span in sorted(self.spans(), key=lambda span: span.start_time or 0)]

    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.spans() if span.name == name]
        return span

    def tree(self) -> list[Any]:
        """The names of the spans, each with those of its children, in the order in which they began."""
        return tree(
            [
                (span.name, span.context.span_id, span.parent.span_id if span.parent else None)
                for span in sorted(self.spans(), key=lambda span: span.start_time or 0)
            ]
        )


def tree(spans: list[tuple[str, Any, Any]], parent: Any = None) -> list[Any]:
    ids = {span for _, span, _ in spans}
    mine = [(name, span) for name, span, above in spans if (above if above in ids else None) == parent]
    return [(name, below) if (below := tree(spans, span)) else name for name, span in mine]


def tree_of(spans: list[Sent]) -> list[Any]:
    return tree([(span.name, span.id, span.parent or None) for span in spans])


@pytest.fixture
def memory() -> Memory:
    return Memory()


def adding(memory: Memory | Receiver, *replies: Any, **options: Any) -> Agent[Any, Any]:
    model = ScriptedModel(*(replies or (calls("add", a=1, b=2), says("It is 3."))))
    telemetry = Telemetry(tracer_provider=memory.tracers, **{"hooks": 60, **options.pop("telemetry", {})})
    return Agent(model, **{"tools": [add], "name": "adder", **options}, capabilities=[telemetry])


# ---------------------------------------------------------------- over the wire


async def test_a_receiver_gets_the_whole_tree_with_kinds_and_attributes(otlp):
    child = Agent(ScriptedModel(says("mine", usage=Usage(5, 1))), name="child")
    model = ScriptedModel(
        calls([("add", {"a": 1, "b": 2}), ("child", {"task": "go"})], _usage=Usage(100, 20, cached=30)),
        ModelReply(assistant("done"), Usage(150, 10), model="openai:gpt-5-2026"),
        name="openai:gpt-5",
    )
    agent = Agent(model, tools=[add, child.as_tool()], name="root", settings={"temperature": 0.5, "max_tokens": 99})
    telemetry = Telemetry(tracer_provider=otlp.tracers, meter_provider=otlp.meters, hooks=60)
    agent.with_capability(telemetry)
    agent.gate(ToolCalling, tool="add", name="allow_add")(lambda event: Allow())

    @agent.gate(ModelReplying)
    async def ask_a_friend(event: ModelReplying, turn: Turn) -> None:
        if not event.reply.tool_calls:
            await turn.ask(ScriptedModel(says("fine"), name="anthropic:claude"), "Is it fine?")

    await agent.run("go", session="s")
    spans = otlp.spans()
    assert tree_of(spans) == [
        (
            "invoke_agent root",
            [
                "chat gpt-5",
                "hook allow_add",
                "execute_tool add",
                ("execute_tool child", [("invoke_agent child", ["chat scripted"])]),
                "chat gpt-5",
                "chat claude",
            ],
        )
    ]
    assert len({span.trace for span in spans}) == 1
    assert {span.status for span in spans} == {"UNSET"}
    kinds = {span.name.split()[0]: span.kind for span in spans}
    assert kinds == {"invoke_agent": "INTERNAL", "chat": "CLIENT", "execute_tool": "INTERNAL", "hook": "INTERNAL"}
    root, first, hook, added, handed, below, its_chat, second, side = spans
    assert root.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "root",
        "gen_ai.conversation.id": "s",
        "windlass.turn.ref": "s/t1",
        "windlass.turn.input_tokens": 265,
        "windlass.turn.output_tokens": 32,
        "windlass.outcome": "completed",
    }
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 99,
        "gen_ai.agent.name": "root",
        "gen_ai.conversation.id": "s",
    }
    assert first.attributes == {
        **common,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 30,
    }
    assert second.attributes == {
        **common,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.model": "gpt-5-2026",
        "gen_ai.usage.input_tokens": 150,
        "gen_ai.usage.output_tokens": 10,
    }
    assert side.attributes["gen_ai.provider.name"] == "anthropic"
    assert side.attributes["windlass.side"] == "ask_a_friend"
    assert hook.attributes == {
        "windlass.hook.name": "allow_add",
        "windlass.hook.verb": "gate",
        "windlass.hook.event": "ToolCalling",
        "windlass.hook.verdict": "allow",
        "windlass.hook.about": "s/1/1",
        "gen_ai.conversation.id": "s",
    }
    assert added.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "s/1/1",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Add two numbers.",
        "gen_ai.agent.name": "root",
        "gen_ai.conversation.id": "s",
    }
    assert handed.attributes["gen_ai.tool.name"] == "child"
    assert below.attributes["gen_ai.conversation.id"] == its_chat.attributes["gen_ai.conversation.id"] == "s//1/2"
    assert all(root.began <= span.began <= span.ended <= root.ended for span in spans)


async def test_a_receiver_gets_the_metrics(otlp):
    model = ScriptedModel(
        Overloaded("busy"),
        calls("add", a=1, b=2, _usage=Usage(100, 20)),
        says("3", usage=Usage(50, 5)),
        name="openai:gpt-5",
    )
    telemetry = Telemetry(meter_provider=otlp.meters)
    clock = FakeClock(auto=True)
    await Agent(model, tools=[add], name="adder", clock=clock, capabilities=[telemetry]).run("go")
    found = otlp.measurements()
    chat = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5"}
    tokens = {point[0]["gen_ai.token.type"]: point for point in found["gen_ai.client.token.usage"]}
    assert tokens == {
        "input": ({**chat, "gen_ai.token.type": "input"}, 2, 150),
        "output": ({**chat, "gen_ai.token.type": "output"}, 2, 25),
    }
    durations = {point[0].get("error.type"): point[1] for point in found["gen_ai.client.operation.duration"]}
    assert durations == {"Overloaded": 1, None: 2}
    [(attributes, count, _)] = found["gen_ai.execute_tool.duration"]
    assert (attributes, count) == ({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}, 1)
    [(attributes, count, seconds)] = found["gen_ai.invoke_agent.duration"]
    assert (attributes, count) == ({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "adder"}, 1)
    assert seconds == pytest.approx(sum(clock.slept))
    assert not otlp.spans()


# ---------------------------------------------------------------- parents


async def test_the_span_of_the_caller_is_the_parent_and_tools_and_models_nest_below(memory):
    tracer = memory.tracers.get_tracer("application")

    def reply(request: Any) -> Any:
        with tracer.start_as_current_span("http"):
            return says("done") if len(request.messages) > 1 else calls([("fetch", {}), ("read", {})])

    async def fetch() -> str:
        """Fetch."""
        with tracer.start_as_current_span("fetching"):
            return "fetched"

    def read() -> str:
        """Read, in a thread."""
        with tracer.start_as_current_span("reading"):
            return "read"

    agent = Agent(FunctionModel(reply), tools=[tool(fetch), tool(read)], name="root")
    agent.with_capability(Telemetry(tracer_provider=memory.tracers, hooks=None))
    with tracer.start_as_current_span("request"):
        await agent.run("go")
        assert trace.get_current_span().name == "request"  # type: ignore[attr-defined]
    assert memory.tree() == [
        (
            "request",
            [
                (
                    "invoke_agent root",
                    [
                        ("chat function", ["http"]),
                        ("execute_tool fetch", ["fetching"]),
                        ("execute_tool read", ["reading"]),
                        ("chat function", ["http"]),
                    ],
                )
            ],
        )
    ]


async def test_turns_and_calls_at_the_same_time_do_not_mix(memory):
    both = asyncio.Barrier(4)

    async def meet(who: str) -> str:
        """Meet."""
        with memory.tracers.get_tracer("application").start_as_current_span(f"meeting {who}"):
            await both.wait()
            return who

    def reply(request: Any) -> Any:
        if len(request.messages) > 1:
            return says("done")
        who = request.messages[0].text
        return calls([("meet", {"who": f"{who}1"}), ("meet", {"who": f"{who}2"})])

    agent = Agent(FunctionModel(reply), tools=[tool(meet)], name="root")
    agent.with_capability(Telemetry(tracer_provider=memory.tracers, hooks=None))
    await asyncio.gather(agent.run("a", session="a"), agent.run("b", session="b"))
    assert len({span.context.trace_id for span in memory.spans()}) == 2
    by_id = {span.context.span_id: span for span in memory.spans()}
    for who in ("a1", "a2", "b1", "b2"):
        call = by_id[memory.named(f"meeting {who}").parent.span_id]
        assert call.attributes["gen_ai.tool.call.id"] == f"{who[0]}/1/{who[1]}"
        assert by_id[call.parent.span_id].attributes["gen_ai.conversation.id"] == who[0]


async def test_the_tree_is_the_same_in_every_way_of_running():
    async def by_stream(agent: Agent[Any, Any]) -> None:
        async with agent.stream("go") as stream:
            async for _ in stream:
                pass

    async def by_iterate(agent: Agent[Any, Any]) -> None:
        async for _ in agent.iterate("go"):
            pass

    async def by_sync(agent: Agent[Any, Any]) -> None:
        agent.run_sync("go")

    async def by_run(agent: Agent[Any, Any]) -> None:
        await agent.run("go")

    trees = []
    for enter in (by_run, by_stream, by_iterate, by_sync):
        memory = Memory()
        with memory.tracers.get_tracer("application").start_as_current_span("request"):
            await enter(adding(memory, telemetry={"hooks": None, "content": True}))
        trees.append(memory.tree())
    expected = ["chat scripted", "execute_tool add", "chat scripted"]
    assert trees == [[("request", [("invoke_agent adder", expected)])]] * 4


async def test_a_sub_agent_that_has_telemetry_of_its_own_is_traced_once(memory):
    shared = Telemetry(tracer_provider=memory.tracers)
    child = Agent(ScriptedModel(says("mine")), name="child", capabilities=[shared])
    child.gate(TurnStarting, name="welcome")(lambda event: Allow())
    agent = adding(memory, calls("child", task="go"), says("done"), tools=[child.as_tool()], name="root")
    await agent.with_capability(shared).run("go")
    below = ("invoke_agent child", ["hook welcome", "chat scripted"])
    assert memory.tree() == [("invoke_agent root", ["chat scripted", ("execute_tool child", [below]), "chat scripted"])]
    await child.run("go")
    assert memory.tree()[1] == ("invoke_agent child", ["hook welcome", "chat scripted"])


async def test_two_providers_both_get_everything(memory):
    other = Memory()
    agent = adding(memory).with_capability(Telemetry(tracer_provider=other.tracers, hooks=None))
    await agent.run("go")
    expected = ["chat scripted", "execute_tool add", "chat scripted", "invoke_agent adder"]
    assert sorted(memory.names()) == sorted(other.names()) == sorted(expected)


async def test_a_sub_agent_in_the_background_has_a_trace_of_its_own_with_a_link(memory):
    child = Agent(ScriptedModel(calls("helper", task="go"), says("found it")), name="child")
    child.tool(Agent(ScriptedModel(says("helped")), name="helper").as_tool())
    agent = adding(memory, calls("start"), says("done"), says("thanks"), tools=[], name="root")
    agent.subagent(child)

    @agent.tool
    async def start(turn: Turn) -> str:
        """Start it."""
        await turn.delegate(child, "go", background=True)
        return "started"

    await agent.run("go", session="s")
    await agent.aclose()
    mine, its = memory.tree()
    assert mine[0] == "invoke_agent root"
    assert "execute_tool start" in mine[1]
    below = ("execute_tool helper", [("invoke_agent helper", ["chat scripted"])])
    assert its == ("invoke_agent child", ["chat scripted", below, "chat scripted"])
    root, other = memory.named("execute_tool start"), memory.named("invoke_agent child")
    assert other.parent is None
    assert other.context.trace_id != root.context.trace_id
    assert [link.context.span_id for link in other.links] == [root.context.span_id]


# ---------------------------------------------------------------- resume


async def test_a_resumed_turn_is_linked_and_repeats_nothing(memory, tmp_path):
    def one(*replies: Any) -> Agent[Any, Any]:
        agent = adding(memory, *replies, store=SQLiteStore(tmp_path / "s.db"))
        agent.gate(ToolCalling, name="careful", on_resume="reuse")(lambda event: Ask("May it?"))
        return agent

    first = one(calls("add", a=1, b=2, _usage=Usage(10, 5)))
    await first.run("go", session="s")
    await first.aclose()
    assert memory.tree() == [("invoke_agent adder", ["chat scripted", "hook careful"])]
    [before] = [span for span in memory.spans() if span.parent is None]
    assert before.attributes["windlass.outcome"] == "suspended"
    second = one(calls("add", a=3, b=4, _usage=Usage(20, 6)))
    await second.resume("s", answers={"s/1/1": Approve()})
    await second.aclose()
    third = one(says("7", usage=Usage(30, 7)))
    await third.resume("s", answers={"s/2/1": Approve()})
    await third.aclose()
    assert memory.tree() == [
        ("invoke_agent adder", ["chat scripted", "hook careful"]),
        ("invoke_agent adder", ["execute_tool add", "chat scripted", "hook careful"]),
        ("invoke_agent adder", ["execute_tool add", "chat scripted"]),
    ]
    turns = sorted([span for span in memory.spans() if span.parent is None], key=lambda span: span.start_time)
    assert len({span.context.trace_id for span in turns}) == 3
    assert [[link.context.span_id for link in span.links] for span in turns] == [
        [],
        [turns[0].context.span_id],
        [turns[1].context.span_id],
    ]
    assert [link.context.trace_id for link in turns[2].links] == [turns[1].context.trace_id]
    assert [span.attributes["windlass.turn.input_tokens"] for span in turns] == [10, 20, 30]
    assert [span.attributes["windlass.outcome"] for span in turns] == ["suspended", "suspended", "completed"]
    assert {span.attributes["windlass.turn.ref"] for span in turns} == {"s/t1"}


async def test_a_turn_that_waits_before_its_first_step_is_linked_too(memory):
    agent = adding(memory, says("Hi."))
    agent.gate(TurnStarting)(lambda event: Ask("Let it in?"))
    result = await agent.run("go", session="s")
    await agent.resume("s", answers={result.outcome.waiting_for[0].id: Approve()})
    first, second = sorted([span for span in memory.spans() if span.parent is None], key=lambda span: span.start_time)
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


async def test_a_sub_agent_that_waited_is_resumed_below_its_parent_with_a_link(memory):
    child = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], name="child")
    child.gate(ToolCalling, name="careful", on_resume="reuse")(lambda event: Ask("May it?"))
    agent = adding(memory, calls("child", task="go"), says("done"), tools=[child.as_tool()], name="root")
    waiting = await agent.run("go", session="s")
    assert memory.named("execute_tool child").attributes["windlass.outcome"] == "suspended"
    await agent.resume("s", answers={waiting.outcome.waiting_for[0].id: Approve()})
    below = ("invoke_agent child", ["chat scripted", "hook careful"])
    after = ("invoke_agent child", ["execute_tool add", "chat scripted"])
    assert memory.tree() == [
        ("invoke_agent root", ["chat scripted", ("execute_tool child", [below])]),
        ("invoke_agent root", [("execute_tool child", [after]), "chat scripted"]),
    ]
    for name in ("invoke_agent root", "invoke_agent child"):
        first, second = sorted([span for span in memory.spans() if span.name == name], key=lambda one: one.start_time)
        assert [link.context.span_id for link in second.links] == [first.context.span_id]


async def test_attempts_that_the_log_has_are_not_traced_again(memory):
    def one(store: Any, *replies: Any) -> Agent[Any, Any]:
        agent = Agent(ScriptedModel(*replies), tools=[flaky], clock=FakeClock(auto=True), store=store, name="adder")
        agent.with_capability(Retry(tools="flaky"))
        return agent.with_capability(Telemetry(tracer_provider=memory.tracers, hooks=None))

    tries: list[int] = []

    @tool(effect="pure", inline=True)
    def flaky() -> str:
        """Fail once."""
        tries.append(1)
        if len(tries) == 1:
            raise Overloaded("not yet")
        return "ok"

    agent = one(None, Overloaded("busy"), calls("flaky"), says("done"))
    await agent.run("go", session="s1")
    log = await agent.store.read("s1")
    whole = ["invoke_agent adder", *["chat scripted"] * 2, *["execute_tool flaky"] * 2, "chat scripted"]
    assert sorted(memory.names()) == sorted(whole)
    failed = [span.attributes.get("error.type") for span in memory.spans() if span.name != "invoke_agent adder"]
    assert failed == ["Overloaded", None, "Overloaded", None, None]

    after_model = Memory()
    resumed = one(await crashed_after(log, ModelAttempted), calls("flaky"), says("done"))
    resumed.with_capability(Telemetry(tracer_provider=after_model.tracers, hooks=None), replace="telemetry")
    await resumed.resume("s1")
    names = ["invoke_agent adder", "chat scripted", "execute_tool flaky", "chat scripted"]
    assert sorted(after_model.names()) == sorted(names)
    assert len(after_model.named("invoke_agent adder").links) == 1

    after_tool = Memory()
    resumed = one(await crashed_after(log, ToolAttempted), says("done"))
    resumed.with_capability(Telemetry(tracer_provider=after_tool.tracers, hooks=None), replace="telemetry")
    await resumed.resume("s1")
    assert sorted(after_tool.names()) == sorted(["invoke_agent adder", "execute_tool flaky", "chat scripted"])


# ---------------------------------------------------------------- attempts, errors and hooks


async def test_each_attempt_of_the_error_policy_has_a_span(memory):
    agent = adding(memory, Overloaded("busy"), Overloaded("busy"), says("Hi."), clock=FakeClock(auto=True))
    await agent.run("go")
    chats = [span for span in memory.spans() if span.name == "chat scripted"]
    assert [span.attributes.get("error.type") for span in chats] == ["Overloaded", "Overloaded", None]
    assert [span.status.status_code.name for span in chats] == ["ERROR", "ERROR", "UNSET"]
    assert {span.parent.span_id for span in chats} == {memory.named("invoke_agent adder").context.span_id}


async def test_each_attempt_at_a_side_call_has_a_span(memory):
    agent = adding(memory, says("Hi."), clock=FakeClock(auto=True))

    @agent.gate(ModelReplying)
    async def check(event: ModelReplying, turn: Turn) -> None:
        await turn.ask(ScriptedModel(Overloaded("busy"), says("fine"), name="friend"), "?")

    await agent.run("go")
    chats = [span for span in memory.spans() if span.name == "chat friend"]
    assert [span.attributes.get("error.type") for span in chats] == ["Overloaded", None]
    assert {span.attributes["windlass.side"] for span in chats} == {"check"}


async def test_a_rejected_reply_is_an_attempt_of_its_own(memory):
    agent = adding(memory, says("No."), says("Yes."))
    agent.gate(ModelReplying, name="critic")(
        lambda event: Regenerate("Say yes.") if event.reply.text == "No." else None
    )
    await agent.run("go")
    assert memory.tree() == [("invoke_agent adder", ["chat scripted", "hook critic", "chat scripted"])]
    assert memory.named("hook critic").attributes["windlass.hook.verdict"] == "regenerate"


async def test_a_failed_turn_says_with_which_error(memory):
    await adding(memory, AuthFailed("bad key hunter2")).run("go")
    turn = memory.named("invoke_agent adder")
    assert turn.attributes["windlass.outcome"] == "failed"
    assert turn.attributes["error.type"] == memory.named("chat scripted").attributes["error.type"] == "AuthFailed"
    assert turn.status.status_code.name == "ERROR"
    assert "hunter2" not in "".join([span.to_json() for span in memory.spans()])


async def test_a_stopped_turn_says_why_and_a_cancelled_one_ends(memory):
    await adding(memory, *[calls("add", a=1, b=2)] * 3, max_steps=2).run("go")
    assert memory.named("invoke_agent adder").attributes["windlass.stop_reason"] == "step_limit"
    other = Memory()
    agent = adding(other, calls("stop"), says("never"), tools=[])

    @agent.tool
    async def stop(turn: Turn) -> str:
        """Stop."""
        turn.cancel("enough")
        await asyncio.sleep(60)
        return ""

    await agent.run("go")
    assert other.tree() == [("invoke_agent adder", ["chat scripted", "execute_tool stop"])]
    assert other.named("invoke_agent adder").attributes["windlass.outcome"] == "cancelled"
    assert other.named("execute_tool stop").attributes["windlass.outcome"] == "cancelled"


async def test_a_denied_call_has_the_span_of_the_hook_that_denied_it_and_no_other(memory):
    agent = adding(memory)

    class Strict:
        name = "strict"

        def install(self, registrar: Any) -> None:
            registrar.gate(ToolCalling, name="never")(lambda event: Deny("no"))

    await agent.with_capability(Strict()).run("go")
    assert memory.tree() == [("invoke_agent adder", ["chat scripted", "hook never", "chat scripted"])]
    found = memory.named("hook never").attributes
    assert (found["windlass.hook.verdict"], found["windlass.hook.capability"]) == ("deny", "strict")


async def test_a_tool_that_fails_and_a_hook_that_fails_have_the_status_of_an_error(memory):
    @tool(effect="pure", inline=True)
    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    agent = adding(memory, calls("fail"), says("done"), tools=[fail])
    agent.inject(StepStarting, name="buggy", optional=True)(lambda event: 1 / 0)
    await agent.run("go")
    call, hook = memory.named("execute_tool fail"), next(span for span in memory.spans() if span.name == "hook buggy")
    assert (call.status.status_code.name, call.attributes["error.type"]) == ("ERROR", "ValueError")
    assert (hook.status.status_code.name, hook.attributes["windlass.hook.verdict"]) == ("ERROR", "failed")


async def test_a_hook_that_took_long_has_a_span_of_that_length(memory):
    def one(hooks: float | None) -> Agent[Any, Any]:
        agent = adding(memory, says("Hi."), clock=FakeClock(auto=True), telemetry={"hooks": hooks})

        @agent.gate(TurnStarting)
        async def slow(event: TurnStarting, turn: Turn) -> None:
            await turn.sleep(2)

        @agent.wrap(ModelCall)
        async def around(request: Any, call_next: Any) -> Any:
            return await call_next(request)

        return agent

    await one(0.001).run("go")
    span = memory.named("hook slow")
    assert span.end_time - span.start_time == 2_000_000_000
    assert span.attributes["windlass.hook.event"] == "TurnStarting"
    assert "hook around" not in memory.names()
    await one(3).run("go")
    await one(None).run("go")
    assert memory.names().count("hook slow") == 1


# ---------------------------------------------------------------- content


@tool(effect="pure", inline=True)
def say(text: str) -> str:
    """Say it."""
    return f"I say {text} to ann@example.org, hunter2"


async def test_content_is_left_out_by_default(memory):
    """Behaviour 82: what was said is left out, and the spans stay."""
    agent = adding(memory, calls("say", text="WORDS"), says("WORDS"), tools=[say], system="WORDS")
    agent.gate(ToolCalling)(lambda event: Deny("WORDS") if event.call.name == "none" else None)
    await agent.run("WORDS")
    assert len(memory.spans()) == 4
    assert "WORDS" not in "".join([span.to_json() for span in memory.spans()])


async def test_content_is_captured_as_the_log_has_it(memory):
    replies = (calls("say", text="hello"), says("Done, hunter2."))
    agent = adding(memory, *replies, tools=[say], secrets=["hunter2"], system="Be kind.", telemetry={"content": True})
    agent.with_capability(Redact("email"))
    await agent.run("Tell bob@example.org, hunter2.", session="s")
    log = str(await agent.store.read("s"))
    everything = "".join([span.to_json() for span in memory.spans()])
    for hidden in ("hunter2", "ann@example.org", "bob@example.org"):
        assert hidden not in log
        assert hidden not in everything
    first, second = [span.attributes for span in memory.spans() if span.name == "chat scripted"]
    call, turn = memory.named("execute_tool say").attributes, memory.named("invoke_agent adder").attributes
    asked, answer = json.loads(first["gen_ai.input.messages"]), json.loads(first["gen_ai.output.messages"])
    assert asked[0]["role"] == "user"
    assert asked[0]["parts"][0]["content"] in log
    assert json.loads(first["gen_ai.system_instructions"])[0]["content"].startswith("Be kind.")
    assert answer == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "s/1/1", "name": "say", "arguments": {"text": "hello"}}],
            "finish_reason": "tool_call",
        }
    ]
    assert json.loads(call["gen_ai.tool.call.arguments"]) == {"text": "hello"}
    assert call["gen_ai.tool.call.result"].startswith("I say hello to ")
    response = json.loads(second["gen_ai.input.messages"])[2]["parts"][0]
    assert (response["type"], response["response"]) == ("tool_call_response", call["gen_ai.tool.call.result"])
    assert json.loads(second["gen_ai.output.messages"])[0]["parts"][0]["content"] == "Done, •••."
    assert json.loads(turn["gen_ai.output.messages"])[0]["parts"][0]["content"] == "Done, •••."
    assert json.loads(turn["gen_ai.input.messages"]) == asked


async def test_what_hooks_withhold_or_change_is_not_captured_as_it_was(memory):
    agent = adding(memory, calls("say", text="x"), says("BAD"), says("good"), tools=[say], telemetry={"content": True})
    agent.gate(ToolReturning)(lambda event: Deny("private"))
    agent.rewrite(ModelReplying)(lambda event: event.reply.map_text(lambda text: text.replace("BAD", "mild")))
    await agent.run("go", session="s")
    everything = "".join([span.to_json() for span in memory.spans()])
    assert "BAD" not in everything
    assert "ann@example.org" not in everything
    assert "mild" in everything


async def test_every_attempt_and_side_call_is_captured_with_its_own_words(memory):
    agent = adding(memory, says("one"), says("two"), telemetry={"content": True})

    @agent.wrap(ModelCall)
    async def twice(request: Any, call_next: Any) -> Any:
        await call_next(request)
        return await call_next(request)

    @agent.gate(ModelReplying)
    async def check(event: ModelReplying, turn: Turn) -> None:
        await turn.ask(ScriptedModel(says("three")), "?")

    await agent.run("go")
    chats = sorted([span for span in memory.spans() if span.name == "chat scripted"], key=lambda span: span.start_time)
    said = [json.loads(span.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] for span in chats]
    assert said == ["one", "two", "three"]
    assert all(span.end_time is not None for span in chats)


async def test_what_a_transformer_hides_in_a_stream_is_hidden_in_the_spans(memory):
    """Behaviour 102: what a transformer redacts is redacted in the stream, the log and the telemetry."""
    agent = adding(memory, says(chunks=["The code is QX", "ZJ."]), telemetry={"content": True})

    @agent.transform
    class HideCode:
        def feed(self, text: str) -> Any:
            yield "".join("#" if one in "QXZJ" else one for one in text)

        def flush(self) -> Any:
            return ()

    streamed = ""
    async with agent.stream("go", session="s") as stream:
        async for event in stream:
            streamed += event.text if isinstance(event, TextDelta) else ""
    assert streamed == "The code is ####."
    answer = json.loads(memory.named("chat scripted").attributes["gen_ai.output.messages"])
    assert answer[0]["parts"][0]["content"] == "The code is ####."
    everything = "".join([span.to_json() for span in memory.spans()]) + str(await agent.store.read("s"))
    assert "ZJ" not in everything


async def test_media_are_captured_without_their_bytes(memory):
    agent = adding(memory, says("a cat"), telemetry={"content": True})
    await agent.run(Message("user", (TextPart("What?"), ImagePart(b"PNG" * 100), ImagePart(url="https://x.org/a.png"))))
    [message] = json.loads(memory.named("chat scripted").attributes["gen_ai.input.messages"])
    assert message["parts"][1:] == [
        {"type": "blob", "mime_type": "image/png", "modality": "image", "size": 300},
        {"type": "uri", "mime_type": "image/png", "modality": "image", "uri": "https://x.org/a.png"},
    ]


# ---------------------------------------------------------------- no provider


COUNTING = """
import asyncio
from opentelemetry import metrics, trace
from windlass import Agent, HookRan, ToolCalling, tool
from windlass.capabilities import Telemetry
from windlass.testing import ScriptedModel, calls, says

made = []
for kind in (trace.Tracer, trace.NoOpTracer, trace.ProxyTracer):
    for name in ("start_span", "start_as_current_span"):
        setattr(kind, name, lambda *_, **__: made.append(1))
trace.NonRecordingSpan.__init__ = lambda *_, **__: made.append(2)


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    "Add."
    return a + b


def one(*more):
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], capabilities=[*more], name="one")
    agent.gate(ToolCalling, name="check")(lambda event: None)
    return agent


async def main():
    with_it, without = one(Telemetry(content=True)), one()
    explained = with_it.explain().data
    assert explained["capabilities"][0]["summary"] == "off: no OpenTelemetry provider is set up", explained
    program, plain = with_it._compile(), without._compile()
    assert [hook.name for hook in program.hooks.all] == [hook.name for hook in plain.hooks.all] == ["check"]
    assert not program.hooks.timed and not program.hooks.listeners
    assert program.digest == plain.digest
    await with_it.run("go", session="s")
    await without.run("go", session="s")
    logs = [[type(record).__name__ for record in await agent.store.read("s")] for agent in (with_it, without)]
    assert logs[0] == logs[1]
    assert made == []

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    later, exporter = one(Telemetry()), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    await later.run("go")
    assert "invoke_agent one" in [span.name for span in exporter.get_finished_spans()]


asyncio.run(main())
"""


def test_without_a_provider_it_does_nothing_and_one_that_is_set_up_later_is_used(tmp_path):
    script = tmp_path / "counting.py"
    script.write_text(COUNTING)
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_the_sdk_can_be_switched_off_by_its_variable(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    agent = adding(Memory())
    assert agent.explain().data["capabilities"][0]["summary"] == "off: no OpenTelemetry provider is set up"
    assert not agent._compile().hooks.all


async def test_a_span_that_is_not_sampled_leaves_nothing_in_the_log():
    memory = Memory(sampler=ALWAYS_OFF)
    agent = adding(memory, telemetry={"content": True})
    await agent.run("go", session="s")
    assert not memory.spans()
    assert not [record for record in await agent.store.read("s") if isinstance(record, Noted)]


# ---------------------------------------------------------------- failures outside


class Broken(SpanProcessor, SpanExporter):
    """A processor and exporter that fails in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.asked = 0

    def _fail(self, where: str) -> None:
        if where == self.where:
            self.asked += 1
            raise RuntimeError("no")

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._fail("start")

    def on_end(self, span: Any) -> None:
        self._fail("end")

    def export(self, spans: Any) -> Any:
        self._fail("export")


@pytest.mark.parametrize("how", ["start", "end", "export", "attributes", "meter", "histogram"])
async def test_errors_of_providers_never_reach_a_turn(how, caplog):
    memory, broken, meters = Memory(), Broken(how), None
    if how in ("start", "end"):
        memory.tracers.add_span_processor(broken)
    elif how == "export":
        memory.tracers.add_span_processor(SimpleSpanProcessor(broken))
    elif how in ("meter", "histogram"):
        meters = BrokenMeters(how)

    def attributes(turn: Turn) -> Any:
        broken.asked += 1
        raise RuntimeError("no")

    options: Any = {"attributes": attributes if how == "attributes" else None, "meter_provider": meters}
    agent = adding(memory, calls("add", a=1, b=2), says("3"), telemetry={**options, "content": True, "hooks": 0})
    agent.gate(ToolCalling)(lambda event: Allow())
    result = await agent.run("go", session="s")
    assert result.text == "3"
    assert not [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    told = [record.getMessage() for record in caplog.records if "telemetry could not" in record.getMessage()]
    assert len(told) == len(set(told))
    assert bool(told) == (how != "export")  # of these the SDK itself tells
    assert (broken if meters is None else meters).asked > 0


class BrokenMeters:
    """Fails to make a meter, or to record a value."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.asked = 0

    def get_meter(self, *_: Any) -> Any:
        if self.where == "meter":
            self.record()
        return self

    def create_histogram(self, *_: Any, **__: Any) -> Any:
        return self

    def record(self, *_: Any) -> None:
        self.asked += 1
        raise RuntimeError("no")


# ---------------------------------------------------------------- the capability


@pytest.mark.parametrize("content", [True, False])
async def test_it_is_a_good_capability(content):
    memory = Memory()
    await check_capability(lambda: Telemetry(tracer_provider=memory.tracers, content=content, hooks=0))
    assert "invoke_agent checked" in memory.names()
    await check_capability(Telemetry)


async def test_turns_are_the_same_with_it_in_every_way_of_running():
    memory = Memory()

    def one() -> Agent[Any, Any]:
        agent = adding(memory, telemetry={"content": True, "hooks": 0})
        agent.gate(ToolCalling)(lambda event: Ask("May it?"))
        return agent

    await assert_same_everywhere(one)
    assert memory.names().count("invoke_agent adder") == 12


async def test_attributes_of_the_application_are_on_the_spans_of_turns(memory):
    options = {"attributes": lambda turn: {"user.id": turn.scope["user"]}}
    await adding(memory, telemetry=options).run("go", scope={"user": "ann"})
    found = [span.name for span in memory.spans() if span.attributes.get("user.id") == "ann"]
    assert found == ["invoke_agent adder"]
    other = Memory()
    await adding(other, telemetry={"attributes": {"deployment.environment": "test"}}).run("go")
    assert other.named("invoke_agent adder").attributes["deployment.environment"] == "test"


async def test_attempts_of_wraps_around_it_are_its_own_spans_and_answers_of_wraps_are_none(memory):
    agent = adding(memory)

    @agent.wrap(ToolCall)
    async def answer(call: Any, call_next: Any) -> Any:
        return "from a cache"

    await agent.run("go", session="s")
    assert memory.tree() == [("invoke_agent adder", ["chat scripted", "chat scripted"])]
    assert not [record for record in await agent.store.read("s") if isinstance(record, ToolCalled)]


def test_explain_says_what_is_sent(memory):
    def summary(**options: Any) -> str:
        agent = adding(memory, telemetry=options)
        return agent.explain().data["capabilities"][0]["summary"]

    assert summary(hooks=0.001) == "spans, of hooks over 1 ms too, without content"
    assert summary(hooks=None, content=True) == "spans, with content"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"content": "yes"}, "content must be True or False"),
        ({"hooks": -1}, "hooks must be a number of seconds, 0 or more"),
        ({"attributes": 5}, "attributes must be a mapping from texts to anything, a function or None"),
        ({"tracer_provider": 5}, "tracer_provider must be an object with get_tracer"),
        ({"meter_provider": 5}, "meter_provider must be an object with get_meter"),
        ({"name": ""}, "name must be a text"),
    ],
)
def test_bad_options_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        Telemetry(**options)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "windlass.capabilities.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'windlass\[otel\]'"):
        Telemetry()
