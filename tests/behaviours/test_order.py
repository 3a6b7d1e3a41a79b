"""Behaviours 1-10: in which order hooks run, how often, and what an early end skips."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    Agent,
    Continuing,
    Deny,
    Halt,
    HookAction,
    HookFailed,
    Injected,
    Lifecycle,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplied,
    ModelReplying,
    Regenerate,
    Says,
    SessionStarting,
    Step,
    StepEnding,
    StepStarting,
    Stopped,
    Stopping,
    StopReason,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarting,
    Veto,
    tool,
)
from windlass.decisions import Ask
from windlass.errors import IllegalAnswer, RegistrationError
from windlass.testing import FunctionModel, ScriptedModel, calls, says

Log = list[str]


def looking(log: Log, *replies: Any, **options: Any) -> Agent:
    """An agent with one tool that tells the log that it ran."""

    @tool(effect="pure", inline=True)
    def look(at: str) -> str:
        log.append("tool")
        return f"saw {at}"

    return Agent(ScriptedModel(*replies), tools=[look], **options)


def add_verbs(agent: Agent, name: str, log: Log) -> None:
    """Before, around and after the model, with the verbs."""

    @agent.rewrite(ModelCalling, name=f"{name}.before")
    def before(event):
        log.append(f"{name}.before")

    @agent.wrap(ModelCall, name=f"{name}.wrap")
    async def wrap(request, call_next):
        log.append(f"{name}.wrap")
        reply = await call_next(request)
        log.append(f"{name}.unwrap")
        return reply

    @agent.rewrite(ModelReplying, name=f"{name}.after")
    async def after(event):
        log.append(f"{name}.after")


def add_gates(agent: Agent, name: str, log: Log) -> None:
    """The same with gates."""
    agent.gate(ModelCalling, name=f"{name}.before")(lambda event: log.append(f"{name}.before"))
    agent.gate(ModelReplying, name=f"{name}.after")(lambda event: log.append(f"{name}.after"))

    @agent.wrap(ModelCall, name=f"{name}.wrap")
    async def wrap(request, call_next):
        log.append(f"{name}.wrap")
        reply = await call_next(request)
        log.append(f"{name}.unwrap")
        return reply


class Logging(Lifecycle):
    """Before, around and after the model, as a lifecycle."""

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self.log = log

    def before_model(self, messages):
        self.log.append(f"{self.name}.before")

    async def wrap_model_call(self, request, call_next):
        self.log.append(f"{self.name}.wrap")
        reply = await call_next(request)
        self.log.append(f"{self.name}.unwrap")
        return reply

    async def after_model(self, reply):
        self.log.append(f"{self.name}.after")


def add_lifecycle(agent: Agent, name: str, log: Log) -> None:
    agent.with_lifecycle(Logging(name, log))


@pytest.mark.parametrize("add", [add_verbs, add_gates, add_lifecycle])
async def test_befores_and_afters_run_in_order_and_only_wraps_unwind_in_reverse(add):
    """Behaviour 1: two hooks before, around and after the model, in a turn with a tool: A before B, wraps unwind."""
    log: Log = []
    agent = looking(log, calls("look", at="sea"), says("done"))
    add(agent, "A", log)
    add(agent, "B", log)

    await agent.run("look")

    step = ["A.before", "B.before", "A.wrap", "B.wrap", "B.unwrap", "A.unwrap", "A.after", "B.after"]
    assert log == [*step, "tool", *step]


@pytest.mark.parametrize("verb", ["rewrite", "gate", "hook"])
async def test_hooks_of_an_after_event_run_in_the_order_of_registration(verb):
    """Behaviour 2: before1 before2 after1 after2, each a hook of its own, run in that order."""
    log: Log = []
    agent = Agent(ScriptedModel(says("done")))
    for event, name in [
        (ModelCalling, "before1"),
        (ModelCalling, "before2"),
        (ModelReplying, "after1"),
        (ModelReplying, "after2"),
    ]:
        getattr(agent, verb)(event, name=name)(lambda event, name=name: log.append(name))

    await agent.run("go")

    assert log == ["before1", "before2", "after1", "after2"]


async def test_after_hooks_of_lifecycles_run_in_the_order_of_registration():
    """Behaviour 2: four lifecycles with one method each: before1 before2 after1 after2."""
    log: Log = []

    class Before(Lifecycle):
        def __init__(self, number: int) -> None:
            self.number = number

        def before_model(self, messages):
            log.append(f"before{self.number}")

    class After(Lifecycle):
        def __init__(self, number: int) -> None:
            self.number = number

        def after_model(self, reply):
            log.append(f"after{self.number}")

    agent = Agent(ScriptedModel(says("done")))
    for lifecycle in (Before(1), Before(2), After(1), After(2)):
        agent.with_lifecycle(lifecycle)

    await agent.run("go")

    assert log == ["before1", "before2", "after1", "after2"]


async def test_rewrites_of_an_after_event_see_what_the_earlier_ones_made():
    """Behaviour 2: after1 runs before after2, so after2 has the last word on the reply."""
    agent = Agent(ScriptedModel(says("x")))
    agent.rewrite(ModelReplying)(lambda event: event.reply.text + "1")
    agent.rewrite(ModelReplying)(lambda event: event.reply.text + "2")

    assert (await agent.run("go")).text == "x12"


async def test_bands_and_priorities_come_before_the_order_of_registration():
    """Behaviour 2: the order is band, then priority (high first), then registration; the first wrap is outermost."""
    log: Log = []
    agent = Agent(ScriptedModel(says("done")))
    for name, options in {
        "guard": {"band": "guard", "priority": 9},
        "low": {"priority": -1},
        "plain1": {},
        "high": {"priority": 5},
        "plain2": {},
        "early": {"band": "early", "priority": -9},
    }.items():
        agent.rewrite(ModelReplying, name=name, **options)(lambda event, name=name: log.append(name))

        @agent.wrap(ModelCall, name=name, **options)
        async def wrap(request, call_next, name=name):
            log.append(name)
            return await call_next(request)

    await agent.run("go")

    assert log == ["early", "high", "plain1", "plain2", "low", "guard"] * 2


async def test_hooks_of_the_turn_run_once_and_hooks_of_the_model_at_every_call():
    """Behaviour 3: three model calls in a turn: turn hooks once, model hooks three times."""
    log: Log = []
    agent = looking(log, calls("look", at="1"), calls("look", at="2"), says("done"))
    for event in (TurnStarting, ModelCalling, ModelReplying, TurnEnding):
        agent.rewrite(event)(lambda _, event=event: log.append(f"rewrite {event.__name__}"))
        agent.gate(event)(lambda _, event=event: log.append(f"gate {event.__name__}"))

    await agent.run("look twice")

    for verb in ("rewrite", "gate"):
        assert log.count(f"{verb} TurnStarting") == 1
        assert log.count(f"{verb} TurnEnding") == 1
        assert log.count(f"{verb} ModelCalling") == 3
        assert log.count(f"{verb} ModelReplying") == 3
    assert log[:2] == ["rewrite TurnStarting", "gate TurnStarting"]
    assert log[-2:] == ["rewrite TurnEnding", "gate TurnEnding"]


async def test_a_lifecycle_sees_the_agent_once_and_the_model_at_every_call():
    """Behaviour 3: the same with a lifecycle."""
    log: Log = []

    class Counting(Lifecycle):
        def before_agent(self, text):
            log.append("before_agent")

        def before_model(self, messages):
            log.append("before_model")

        def after_model(self, reply):
            log.append("after_model")

        def after_agent(self, text):
            log.append("after_agent")

    agent = looking(log, calls("look", at="1"), calls("look", at="2"), says("done")).with_lifecycle(Counting())
    await agent.run("look twice")

    step = ["before_model", "after_model"]
    assert log == ["before_agent", *step, "tool", *step, "tool", *step, "after_agent"]


async def test_a_message_added_before_the_turn_is_seen_by_the_model_and_at_the_end():
    """Behaviour 4: a durable injection on TurnStarting is in the request, in TurnEnding's context and in the result."""
    model = ScriptedModel(says("hello"))
    agent = Agent(model)
    at_end: Log = []
    agent.inject(TurnStarting)(lambda event: Injected("The user is called Ann.", durable=True))

    @agent.rewrite(TurnEnding)
    def look(event, turn):
        at_end.extend(message.text for message in turn.context)

    result = await agent.run("hi")

    assert "The user is called Ann." in [message.text for message in model.requests[0].messages]
    assert at_end == [message.text for message in result.messages]
    assert sorted(at_end) == ["The user is called Ann.", "hello", "hi"]


async def test_a_message_added_through_the_turn_before_it_starts_reaches_the_first_request():
    """Behaviour 4: `turn.add` of a hook on TurnStarting is in the first request already, after the user's message."""
    model = ScriptedModel(says("hello"))
    agent = Agent(model)

    @agent.gate(TurnStarting)
    def remember(event, turn):
        turn.add("The user is called Ann.")

    await agent.run("hi")

    assert [message.text for message in model.requests[0].messages] == ["hi", "The user is called Ann."]


async def test_a_text_changed_before_the_agent_is_seen_by_the_model_and_after_the_agent():
    """Behaviour 4: what `before_agent` returns is the user message for the model and for `after_agent`."""
    model = ScriptedModel(says("hello"))
    seen: Log = []

    class Named(Lifecycle):
        def before_agent(self, text):
            return f"{text} (I am Ann)"

        def after_agent(self, text, turn):
            seen.append(turn.user_message.text)

    result = await Agent(model).with_lifecycle(Named()).run("hi")

    assert [message.text for message in model.requests[0].messages] == ["hi (I am Ann)"]
    assert seen == ["hi (I am Ann)"]
    assert result.messages[0].text == "hi (I am Ann)"


async def test_a_lifecycle_method_of_a_base_class_runs_as_if_it_were_the_subclasss_own():
    """Behaviour 5: inherited lifecycle methods run, once; overridden ones run instead of the inherited ones."""
    log: Log = []

    class Base(Lifecycle):
        def before_model(self, messages):
            log.append("base.before_model")

        def after_model(self, reply):
            log.append("base.after_model")

    class Middle(Base):
        pass

    class Leaf(Middle):
        def after_model(self, reply):
            log.append("leaf.after_model")

    await Agent(ScriptedModel(says("done"))).with_lifecycle(Leaf()).run("go")

    assert log == ["base.before_model", "leaf.after_model"]


async def test_an_inherited_method_can_be_a_hook():
    """Behaviour 5: a bound method that the subclass inherits is a hook, under the subclass's name."""

    class Base:
        def check(self, event):
            return Halt(f"no, says {type(self).__name__}")

    class Leaf(Base):
        pass

    agent = Agent(ScriptedModel())
    agent.gate(ModelCalling)(Leaf().check)
    await agent.run("go", session="s")

    state = await agent.state("s")
    assert state.outcome == Stopped(StopReason.HALTED, "no, says Leaf")
    assert any("Leaf.check" in repr(record) for record in await agent.store.read("s"))


async def test_a_halt_before_the_model_skips_wraps_and_after_hooks_and_leaves_an_empty_answer():
    """Behaviour 6: B halts on ModelCalling: A and B ran, no wrap, no ModelReplying, no model, an empty answer."""
    log: Log = []
    model = ScriptedModel(says("never"))
    agent = Agent(model)
    agent.gate(ModelCalling, name="A")(lambda event: log.append("A.before"))

    @agent.gate(ModelCalling)
    def b(event):
        log.append("B.before")
        return Halt("enough")

    @agent.wrap(ModelCall)
    async def wrap(request, call_next):
        log.append("wrap")
        return await call_next(request)

    agent.rewrite(ModelReplying)(lambda event: log.append("after"))
    agent.gate(ModelReplying)(lambda event: log.append("after"))

    result = await agent.run("go")

    assert log == ["A.before", "B.before"]
    assert model.requests == []
    assert result.text == ""
    assert result.outcome == Stopped(StopReason.HALTED, "enough")
    assert [message.role for message in result.messages] == ["user"]


@pytest.mark.parametrize("first", ["halting", "looking"])
async def test_a_halt_is_not_in_the_state_that_the_other_gates_see(first):
    """Behaviour 7: whichever gate comes first, the other one sees neither the halt nor an outcome."""
    seen: list[Any] = []
    agent = Agent(ScriptedModel())

    def halting(event, turn):
        return Halt("enough")

    def looking(event, turn):
        seen.append((turn.state.going, turn.state.outcome, turn.state.turn.concluded, turn.state.turn.decided))

    for gate in (halting, looking) if first == "halting" else (looking, halting):
        agent.gate(ModelCalling)(gate)
    result = await agent.run("go")

    assert seen == [(True, None, None, ())]
    assert result.outcome == Stopped(StopReason.HALTED, "enough")


async def test_a_halt_ends_its_own_turn_only():
    """Behaviour 7: a halt leaves nothing in the transcript and does not halt the next turn."""
    model = ScriptedModel(says("hello"))
    agent = Agent(model)
    agent.gate(ModelCalling)(lambda event: Halt("enough") if event.request.messages[-1].text == "stop" else None)

    halted = await agent.run("stop", session="s")
    result = await agent.run("hi", session="s")

    assert halted.stop_reason is StopReason.HALTED
    assert result.text == "hello"
    assert result.stop_reason is StopReason.COMPLETED
    assert [message.text for message in model.requests[0].messages] == ["stop", "hi"]


ILLEGAL: list[tuple[Any, Any, str, str]] = [
    (SessionStarting, Deny(), "Halt", "Halt, Allow or None"),
    (TurnStarting, Deny(), "Halt", "Halt, Ask, Answer, Allow or None"),
    (StepStarting, Ask(), "Halt", "Halt, Allow or None"),
    (ModelCalling, Regenerate(), "Halt", "Halt, Ask, Answer, Allow or None"),
    (ModelReplying, Deny(), "Halt", "Halt, Regenerate, Ask, Allow or None"),
    (ToolCalling, Regenerate(), "Deny", "Halt, Deny, Ask, Answer, Allow or None"),
    (ToolReturning, Ask(), "Deny", "Halt, Deny, Finish, Allow or None"),
    (MessageAdding, Ask(), "Halt", "Halt, Deny, Allow or None"),
    (StepEnding, Deny(), "Halt", "Halt, Rewind, Allow or None"),
    (
        Continuing,
        Halt(),
        "FORBID",
        "Vote.FORBID, Vote.REQUEST, Vote.ALLOW_STOP, Vote.ALLOW, each also as (vote, reason), or None",
    ),
    (Stopping, Regenerate(), "unreviewed", "Halt, Veto, Allow or None"),
    (TurnEnding, Halt(), "Deny", "Deny, Ask, Allow or None"),
]


@pytest.mark.parametrize(("event", "answer", "effect", "legal"), ILLEGAL, ids=[row[0].__name__ for row in ILLEGAL])
async def test_an_answer_that_the_event_does_not_take_fails_closed_and_says_what_is_legal(event, answer, effect, legal):
    """Behaviour 8: an undeclared jump is an error that names hook, event and legal answers; it is never ignored."""
    agent = looking([], calls("look", at="sea"), says("done"))
    agent.gate(event, name="stray")(lambda event: answer)

    result = await agent.run("go", session="s")

    failed = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert failed
    assert {(f.hook, f.event, f.effect) for f in failed} == {("stray", event.__name__, effect)}
    message = failed[0].error.message
    assert "'stray'" in message
    assert f"answered {type(answer).__name__} on {event.__name__}" in message
    assert legal in message
    if effect == "Halt":
        assert result.stop_reason is StopReason.HALTED
        assert "'stray'" in result.outcome.detail


async def test_the_model_reads_which_gate_answered_illegally_and_the_log_what_was_legal():
    """Behaviour 8: on a tool call an illegal answer is a denial that names the gate; the log has what it may answer."""
    log: Log = []
    model_replies = (calls("look", at="sea"), says("done"))
    agent = looking(log, *model_replies)
    agent.gate(ToolCalling, name="stray")(lambda event: Regenerate("again"))

    result = await agent.run("go", session="s")

    (part,) = result.messages[2].parts
    assert log == []
    assert part.status == "denied"
    assert "'stray'" in part.text
    (failed,) = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert "Halt, Deny, Ask, Answer, Allow or None" in failed.error.message


async def test_an_illegal_decision_in_a_combined_answer_fails_the_turn():
    """Behaviour 8: `Says` with a decision that the event does not take is an error that names the hook."""
    agent = Agent(ScriptedModel(says("done")))
    agent.hook(ModelReplying, name="stray")(lambda event: Says(decision=Deny("no")))

    result = await agent.run("go")

    assert isinstance(result.error, IllegalAnswer)
    assert (result.error.hook, result.error.event) == ("stray", "ModelReplying")
    assert "Halt, Regenerate, Ask, Allow or None" in str(result.error)


def test_an_illegal_answer_is_refused_at_registration_where_the_annotation_shows_it():
    """Behaviour 8: a gate that is annotated to answer what its event does not take cannot be registered."""
    agent = Agent(ScriptedModel())

    def stray(event) -> Regenerate | None:
        return None

    with pytest.raises(RegistrationError, match=r"'stray'.*ToolCalling.*Regenerate.*Halt, Deny, Ask, Answer, Allow"):
        agent.gate(ToolCalling)(stray)


class Jumping(Lifecycle):
    """A base class whose `after_model` may end the turn."""

    def after_model(self, reply):
        return HookAction.Halt("no")


class BeforeAgent(Jumping):
    def before_agent(self, text):
        return Halt("not here")


class BeforeModel(Jumping):
    def before_model(self, messages):
        return Halt("not here")


class AfterAgent(Jumping):
    def after_agent(self, text):
        return Halt("not here")


@pytest.mark.parametrize(
    ("lifecycle", "hook"),
    [(BeforeAgent(), "BeforeAgent.before_agent"), (BeforeModel(), "BeforeModel.before_model")],
)
async def test_a_lifecycle_method_cannot_jump_because_another_method_may(lifecycle, hook):
    """Behaviour 8: what `after_model` of the base class may answer is not inferred for other methods: a named error."""
    model = ScriptedModel(says("done"))
    result = await Agent(model).with_lifecycle(lifecycle).run("go")

    assert model.requests == []
    assert isinstance(result.error, IllegalAnswer)
    assert result.error.hook == hook
    assert "Halt" in str(result.error)


async def test_after_agent_cannot_answer_a_decision():
    """Behaviour 8: a decision of `after_agent` withholds the text and names the method."""

    class Ending(Lifecycle):
        def after_agent(self, text):
            return Halt("not here")

    agent = Agent(ScriptedModel(says("done"))).with_lifecycle(Ending())
    result = await agent.run("go", session="s")

    assert result.text == ""
    assert result.stop_reason is StopReason.WITHHELD
    assert "Ending.after_agent" in result.outcome.detail
    failed = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert [f.hook for f in failed] == ["Ending.after_agent"]


@pytest.mark.parametrize("event", [TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning])
async def test_a_halt_anywhere_lands_on_the_hooks_of_the_turns_end(event):
    """Behaviour 9: wherever the turn is halted, TurnEnding's chain runs, in order, with that outcome."""
    log: list[Any] = []
    agent = looking([], calls("look", at="sea"), says("done"))
    agent.gate(event)(lambda _: Halt("enough", reply="Sorry."))
    agent.rewrite(TurnEnding, name="first")(lambda event: log.append(("first", event.outcome, event.text)))
    agent.rewrite(TurnEnding, name="second")(lambda event: event.text + " Bye.")
    agent.gate(TurnEnding, name="third")(lambda event: log.append(("third", event.outcome, event.text)))

    result = await agent.run("go")

    outcome = Stopped(StopReason.HALTED, "enough")
    assert log == [("first", outcome, "Sorry."), ("third", outcome, "Sorry. Bye.")]
    assert result.text == "Sorry. Bye."
    assert result.outcome == outcome


async def test_a_rejected_reply_lands_on_after_agent():
    """Behaviours 7, 9: `after_agent` runs after a Halt; the rejected reply is in no transcript and no text."""
    texts: Log = []

    class Rejecting(Lifecycle):
        def after_model(self, reply):
            return HookAction.Halt("rude")

        def after_agent(self, text):
            texts.append(text)

    result = await Agent(ScriptedModel(says("you fool"))).with_lifecycle(Rejecting()).run("go")

    assert texts == [""]
    assert result.outcome == Stopped(StopReason.HALTED, "rude")
    assert [message.role for message in result.messages] == ["user"]


async def test_every_hook_and_tool_receives_the_scope_of_the_call():
    """Behaviour 10: the very object passed as `scope` reaches every event, verb, wrap, observer and tool."""
    scope = object()
    seen: dict[str, Any] = {}

    @tool(effect="pure", inline=True)
    def look(at: str, turn: Turn) -> str:
        seen["tool"] = turn.scope
        return at

    agent = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[look])
    events = (
        SessionStarting, TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning,
        MessageAdding, StepEnding, Continuing, Stopping, TurnEnding,
    )  # fmt: skip

    def keep(label: str) -> Any:
        def hook(event, turn):
            seen[label] = turn.scope
            seen[f"{label} (event)"] = event.turn.scope

        return hook

    for event in events:
        agent.gate(event)(keep(f"gate {event.__name__}"))
        if event.payload is not None:
            agent.rewrite(event)(keep(f"rewrite {event.__name__}"))
        if event.injects is not None:
            agent.inject(event)(keep(f"inject {event.__name__}"))

    @agent.inject(TurnStarting, group="parallel")
    async def grouped(event, turn):
        seen["group"] = turn.scope

    for effect in (ModelCall, ToolCall, Step):

        @agent.wrap(effect)
        async def wrap(value, call_next, turn, effect=effect):
            seen[f"wrap {effect.__name__}"] = turn.scope
            return await call_next(value)

    @agent.wrap(Turn)
    async def around(turn, call_next):
        seen["wrap Turn"] = turn.scope
        return await call_next(turn)

    for fact in (ModelReplied, ToolReturned, TurnEnded):

        @agent.observe(fact)
        def observer(_, turn, fact=fact):
            seen[f"observe {fact.__name__}"] = turn.scope

    await agent.run("look", scope=scope)

    rewritten = sum(event.payload is not None for event in events)
    injected = sum(event.injects is not None for event in events)
    assert len(seen) == 2 * (len(events) + rewritten + injected) + 4 + 3 + 2
    assert {label for label, found in seen.items() if found is not scope} == set()


async def test_the_scope_is_that_of_each_call_and_is_never_kept():
    """Behaviour 10: another call of the same session has its own scope, and none is in the log."""
    seen: list[Any] = []
    agent = Agent(ScriptedModel(says("a"), says("b"), says("c")))
    agent.gate(ModelCalling)(lambda event: seen.append(event.turn.scope))

    await agent.run("1", session="s", scope={"user": "ann-secret"})
    await agent.run("2", session="s", scope={"user": "bob-secret"})
    await agent.run("3", session="s")

    assert seen == [{"user": "ann-secret"}, {"user": "bob-secret"}, None]
    assert "secret" not in repr(await agent.store.read("s"))


@pytest.mark.parametrize("event", [StepEnding, Stopping])
async def test_a_message_that_is_added_between_steps_is_in_the_next_request(event: Any):
    """Behaviour 4: `turn.add` of a hook on StepEnding or Stopping comes after the messages of the step that ended."""
    requests: list[list[str]] = []

    def reply(request: Any) -> Any:
        requests.append([message.text or message.role for message in request.messages])
        return says(f"reply {len(requests)}") if event is Stopping or len(requests) > 1 else calls("ping")

    @tool
    def ping() -> str:
        """Ping."""
        return "pong"

    agent: Agent[Any, Any] = Agent(FunctionModel(reply), tools=[ping])

    @agent.gate(event)
    def note(event: Any, turn: Turn[Any]) -> Any:
        if len(requests) > 1:
            return None
        turn.add("Mind the gap.")
        return Veto("Again.") if isinstance(event, Stopping) else None

    result = await agent.run("go")
    added = ["reply 1", "Again.", "Mind the gap."] if event is Stopping else ["assistant", "tool", "Mind the gap."]
    assert requests == [["go"], ["go", *added]]
    assert result.text == "reply 2"
    assert [message.text for message in result.messages].count("Mind the gap.") == 1
