"""What was sent, from the log alone; what stayed stable of it from call to call; and who broke it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from windlass import (
    Agent,
    Answer,
    Approve,
    Ask,
    Halt,
    Injected,
    Message,
    ModelCall,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Resuming,
    Rewind,
    SessionStarting,
    StepEnding,
    StepStarting,
    TextPart,
    ToolCalling,
    ToolReturning,
    TurnStarting,
    Usage,
    tool,
    user,
)
from windlass.context.compaction import Window
from windlass.context.prefixes import Prefix
from windlass.context.replay import Call, described, pipelines, requests
from windlass.errors import ModelError, SessionUnknown
from windlass.events import Compaction, Setup
from windlass.messages import ModelRequest
from windlass.testing import FunctionModel, ScriptedModel, assert_prefix_stable, calls, says

S = "s1"


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(effect="pure", inline=True)
def look(at: str) -> str:
    """Look at something."""
    return f"{at}: " + "nothing to be seen " * 20


def script(steps: int, *then: Any) -> ScriptedModel:
    return ScriptedModel(*[calls("add", a=n, b=1) for n in range(steps)], says("done"), *then)


async def replayed(agent: Agent[Any, Any], session: str = S) -> list[Call]:
    records = await agent.store.read(session)
    known = {digest: described(await agent.store.pipeline(digest)) for digest in pipelines(records)}
    return list(requests(session, records, known))


def same(one: ModelRequest, other: ModelRequest) -> bool:
    """Whether two requests show a model the same; settings are not kept with a log."""
    fields = ("system", "messages", "tools", "model", "output", "sections")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


class Half:
    """A compactor that replaces what is before the turn, and then the older half of what is in it, by a note."""

    name = "half"

    def __init__(self, every: int) -> None:
        self.every = every

    def install(self, registrar: Any) -> None:
        registrar.compactor(self)

    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None:
        if len(window.messages) < self.every and not forced:
            return None
        return Compaction((1, len(window.messages) - 2))

    async def replace(self, plan: Compaction, window: Window, turn: Any) -> Sequence[Message]:
        kept = [m for at, m in enumerate(window.messages) if at == window.place and plan.range[0] <= at < plan.range[1]]
        return [user("a note", origin="half"), *kept]


# ---------------------------------------------------------------- the requests that were sent


async def test_the_requests_of_a_session_are_those_that_the_model_got():
    model = ScriptedModel(
        calls("add", a=1, b=1, _usage=Usage(900, 5, cached=300)), says("two"), calls([("add", {"a": 1, "b": 2})] * 2),
        says("three"),
    )  # fmt: skip
    agent = Agent(model, tools=[add, look], system="You add.")
    agent.instruct("Be kind.", rank=5)
    agent.inject(SessionStarting, name="who")(lambda event: "The user is Ann.")
    agent.inject(TurnStarting, name="recall")(lambda event: f"about {event.message.text}")
    agent.inject(StepStarting, name="clock")(lambda event: f"step {event.step}")
    agent.inject(ToolCalling, name="hint")(lambda event: "a hint")
    agent.inject(ToolReturning, name="lasting")(lambda event: Injected("for good", durable=True))
    agent.inject(StepEnding, name="next")(lambda event: "what next?")
    await agent.run("1 + 1?", session=S)
    await agent.run("1 + 2?", session=S)
    found = await replayed(agent)
    assert [(call.step, call.turn, call.round, call.attempt) for call in found] == [
        (1, 1, 1, 1), (2, 1, 1, 1), (3, 2, 1, 1), (4, 2, 1, 1),
    ]  # fmt: skip
    assert all(same(call.request, sent) for call, sent in zip(found, model.requests, strict=True))
    assert [call.inexact for call in found] == [()] * 4
    assert found[0].usage.cached == 300
    assert [section.origin for section in found[0].request.sections] == [None, None, "who"]


async def test_a_replay_has_what_rewrites_made_of_the_requests():
    model = script(2)
    agent = Agent(model, tools=[add, look], system="You add.")

    @agent.rewrite(ModelCalling)
    def be_brief(event: Any) -> Any:
        return event.request.replace(system=event.request.system + " Be brief.")

    @agent.rewrite(ModelCalling)
    def fewer(event: Any) -> Any:
        return event.request.replace(tools=event.request.tools[:1]) if event.turn.steps else None

    @agent.rewrite(ModelCalling)
    def framed(event: Any) -> Any:
        first, *rest = event.request.messages
        return event.request.replace(messages=[user("before"), first, user("between"), *rest, user("after")])

    await agent.run("go", session=S)
    found = await replayed(agent)
    assert all(
        same(call.request.replace(sections=()), sent.replace(sections=()))
        for call, sent in zip(found, model.requests, strict=True)
    )
    assert [call.inexact for call in found] == [()] * 3
    assert found[1].rewritten == (("be_brief", ("system",)), ("fewer", ("tools",)), ("framed", ("messages",)))
    assert found[0].request.sections == (TextPart("You add."), TextPart("Be brief.", "be_brief"))


async def test_a_rejected_reply_and_each_attempt_are_calls_of_their_own():
    model = ScriptedModel(says("bad"), ModelError("busy"), says("good"))
    agent = Agent(model)
    agent.gate(ModelReplying)(lambda event: Regenerate("better") if event.reply.text == "bad" else None)

    @agent.wrap(ModelCall)
    async def again(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ModelError:
            return await call_next(request)

    await agent.run("go", session=S)
    found = await replayed(agent)
    assert [(call.step, call.round, call.attempt) for call in found] == [(1, 1, 1), (1, 2, 1), (1, 2, 2)]
    assert all(same(call.request, sent) for call, sent in zip(found, model.requests, strict=True))
    assert [call.reply is None for call in found] == [False, True, False]
    assert [prefix.broken for prefix in await agent.prefixes(S)] == [None] * 3


async def test_what_a_wrap_changed_is_not_exact_and_the_wrap_is_named():
    agent = Agent(script(1), tools=[add])

    @agent.wrap(ModelCall)
    async def shorten(request: Any, call_next: Any) -> Any:
        return await call_next(request if len(request.messages) == 1 else request.replace(system="short"))

    await agent.run("go", session=S)
    first, second = await replayed(agent)
    assert first.inexact == ()
    assert second.inexact == ("a wrap changed the request (shorten)",)
    assert [prefix.exact for prefix in await agent.prefixes(S)] == [True, False]
    with pytest.raises(AssertionError, match=r"step 2: 'shorten' \(wrap\)"):
        await assert_prefix_stable(agent, S)


async def test_what_is_kept_out_of_the_log_is_named():
    agent = Agent(script(1), tools=[add])
    agent.inject(TurnStarting, name="secretive")(lambda event: Injected("psst", record=False))
    await agent.run("go", session=S)
    assert [call.inexact for call in await replayed(agent)] == [
        ("parts that 'secretive' injected are kept out of the log",)
    ] * 2


async def test_a_replay_without_a_description_says_so():
    agent = Agent(script(0))
    await agent.run("go", session=S)
    (call,) = requests(S, await agent.store.read(S), {})
    assert "no description" in call.inexact[0]


async def test_a_suspended_turn_is_replayed_as_it_went_on():
    model = script(1)
    agent = Agent(model, tools=[add])
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    agent.inject(Resuming, name="after")(lambda event: "good morning")
    first = await agent.run("go", session=S)
    await agent.resume(S, answers={first.waiting_for[0].id: Approve()})
    found = await replayed(agent)
    assert all(same(call.request, sent) for call, sent in zip(found, model.requests, strict=True))
    await assert_prefix_stable(agent, S)


async def test_an_answer_that_made_a_request_needless_is_no_call():
    agent = Agent(ScriptedModel())
    agent.gate(ModelCalling)(lambda event: Answer("cached"))
    await agent.run("go", session=S)
    assert await replayed(agent) == []


async def test_secrets_are_masked_in_what_is_kept_of_an_agent():
    agent = Agent(script(0), system="The key is sesame-open.", secrets=["sesame-open"])
    await agent.run("go", session=S)
    (call,) = await replayed(agent)
    assert call.request.system == "The key is •••."
    description = await agent.store.pipeline(agent._compile().digest)
    assert description is not None
    assert b"sesame" not in description


# ---------------------------------------------------------------- drift


async def test_drift_tells_of_a_changed_system_text_and_model():
    store: Any = None
    seen: list[Any] = []

    def make(system: str, plan: str | None, model: str) -> Agent[Any, Any]:
        scripted = (
            ScriptedModel(calls("add", a=1, b=1), name=model) if store is None else ScriptedModel(says("x"), name=model)
        )
        agent = Agent(scripted, tools=[add], system=system, store=store)
        if plan is not None:
            agent.instruct(plan)
        agent.gate(ToolCalling, name="asks")(lambda event: Ask("May it?"))
        agent.gate(Resuming, name="sees")(lambda event: seen.extend(event.drift))
        return agent

    first = make("You add.", None, "one")
    asked = await first.run("go", session=S)
    store = first.store
    await make("You add well.", "Plan.", "two").resume(S, answers={asked.waiting_for[0].id: Approve()})
    assert seen == ["system text of the agent has changed", "model 'one' is 'two' now"]


# ---------------------------------------------------------------- what stayed stable


def kinds(found: Sequence[Prefix]) -> list[tuple[int, str, str]]:
    return [(one.step, one.broken.kind, one.broken.by) for one in found if one.broken is not None]


async def test_the_prefix_of_a_turn_with_all_kinds_of_injections_is_stable():
    agent = Agent(script(6), tools=[add], system="You add.")
    agent.inject(SessionStarting)(lambda event: "a section")
    agent.inject(TurnStarting)(lambda event: "for the turn")
    agent.inject(StepStarting)(lambda event: f"for step {event.step}")
    agent.inject(ToolReturning)(lambda event: f"beside {event.call.id}")
    agent.inject(StepEnding)(lambda event: Injected(f"lasting {event.step.number}", durable=True))
    await agent.run("go", session=S)
    found = await assert_prefix_stable(agent, S)
    assert len({prefix.hash for prefix in found}) == 7
    assert found[0].stable == 0
    for before, after in itertools.pairwise(found):
        assert before.tokens * 0.8 < after.stable < after.tokens


async def test_what_the_vendor_counted_and_cached_is_told():
    long = "word " * 800
    usage = Usage(2000, 5, cached=1536)
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=1, _usage=usage), says("x", usage=usage.replace(input=2100))), tools=[add]
    )
    await agent.run(long, session=S)
    first, second = await agent.prefixes(S)
    assert (first.tokens, first.cached, first.stable) == (2000, 1536, 0)
    assert second.tokens == 2100
    assert 1900 < second.stable < 2100


async def test_the_same_request_again_has_the_same_hash():
    one, other = Agent(script(2), tools=[add]), Agent(script(2), tools=[add])
    await one.run("go", session=S)
    await other.run("go", session=S)
    assert [prefix.hash for prefix in await one.prefixes(S)] == [prefix.hash for prefix in await other.prefixes(S)]


async def test_parts_that_go_with_their_turn_break_the_prefix_and_are_named():
    agent = Agent(ScriptedModel(calls("add", a=1, b=1), says("two"), says("hello")), tools=[add])
    agent.inject(TurnStarting, name="recall")(lambda event: f"about {event.message.text}")
    await agent.run("1 + 1?", session=S)
    await agent.run("hi", session=S)
    assert kinds(await agent.prefixes(S)) == [(3, "turn", "recall")]
    with pytest.raises(
        AssertionError, match=r"broken:\n  step 3: 'recall' \(turn\): what it injected for turn 1 is gone"
    ):
        await assert_prefix_stable(agent, S)
    await assert_prefix_stable(agent, S, allow=["turn"])
    await assert_prefix_stable(agent, S, allow="recall")


async def test_a_compaction_is_named_and_may_be_allowed():
    agent = Agent(script(9), tools=[add]).with_capability(Half(8))
    await agent.run("go", session=S)
    found = kinds(await agent.prefixes(S))
    assert found
    assert {(kind, by) for _, kind, by in found} == {("compaction", "half")}
    with pytest.raises(AssertionError, match="'half'"):
        await assert_prefix_stable(agent, S, allow=["rewind"])
    await assert_prefix_stable(agent, S, allow=["compaction"])


async def test_a_rewind_is_named():
    agent = Agent(script(4), tools=[add])

    @agent.gate(StepEnding)
    def back(event: Any) -> Any:
        return Rewind(2, "try again") if event.step.number == 3 else None

    await agent.run("go", session=S)
    assert kinds(await agent.prefixes(S)) == [(4, "rewind", "back")]


async def test_a_rewind_that_brings_back_what_was_compacted_is_named():
    agent = Agent(script(6), tools=[add]).with_capability(Half(7))

    @agent.gate(StepEnding)
    def back(event: Any) -> Any:
        return Rewind(2, "try again") if event.step.number == 4 else None

    await agent.run("go", session=S)
    assert kinds(await agent.prefixes(S))[:2] == [(4, "compaction", "half"), (5, "rewind", "back")]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("system", lambda request: request.replace(system="It is late.")),
        ("tools", lambda request: request.replace(tools=request.tools[1:])),
        ("model", lambda request: request.replace(model="other")),
        ("rewrite", lambda request: request.replace(messages=[user("something else"), *list(request.messages)[1:]])),
    ],
)
async def test_a_rewrite_that_breaks_the_prefix_is_named(field: str, change: Any):
    other = FunctionModel(lambda request: says("done"), name="other")
    agent = Agent(FunctionModel(lambda request: calls("add", a=1, b=1)), tools=[add, look], models=[other])
    agent.rewrite(ModelCalling, name="meddler")(lambda event: change(event.request) if event.turn.steps == 2 else None)
    agent.gate(StepEnding)(lambda event: Halt("enough") if event.step.number == 4 else None)
    await agent.run("go", session=S)
    found = kinds(await agent.prefixes(S))
    assert found[0] == (3, field, "meddler")


async def test_a_rewrite_that_does_the_same_at_every_call_breaks_nothing():
    agent = Agent(script(3), tools=[add], system="You add.")

    @agent.rewrite(ModelCalling)
    def frame(event: Any) -> Any:
        first, *rest = event.request.messages
        system = event.request.system + " Be brief."
        return event.request.replace(system=system, messages=[first, user("always here"), *rest, user("at the tail")])

    await agent.run("go", session=S)
    await assert_prefix_stable(agent, S)


async def test_a_changed_agent_is_named():
    first = Agent(script(0), system="One.")
    await first.run("go", session=S)
    agent = Agent(script(0), system="Two.", store=first.store)
    await agent.run("on", session=S)
    assert kinds(await agent.prefixes(S)) == [(2, "system", "the agent")]


async def test_a_setup_that_was_changed_at_the_start_is_kept():
    model = script(1)
    agent = Agent(model, tools=[add, look], system="You add.")
    agent.rewrite(SessionStarting)(lambda event: Setup("Changed.", event.setup.tools[:1]))
    await agent.run("go", session=S)
    found = await replayed(agent)
    assert all(same(call.request, sent) for call, sent in zip(found, model.requests, strict=True))


async def test_an_unknown_session_has_no_prefixes():
    with pytest.raises(SessionUnknown):
        await Agent(script(0)).prefixes("nobody")


async def test_a_prefix_says_what_it_is():
    agent = Agent(ScriptedModel(says("a"), says("b")))
    agent.inject(TurnStarting, name="recall")(lambda event: event.message.text * 3)
    await agent.run("go", session=S)
    await agent.run("on", session=S)
    first, second = await agent.prefixes(S)
    assert str(first).startswith("step 1: ")
    assert str(first).endswith("0 stable, 0 cached")
    assert "broken by recall: " in str(second)
