"""Bad input: whatever is handed in, the answer is an error that names the offender, or a bounded, correct result."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Allow,
    Answer,
    Approve,
    Ask,
    Completed,
    Continuing,
    Deny,
    Edit,
    ErrorPolicy,
    Failed,
    Halt,
    HookFailed,
    Hooks,
    Injected,
    Message,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReply,
    ModelReplying,
    Pipeline,
    Regenerate,
    Result,
    Says,
    SessionStarting,
    Slot,
    Step,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopped,
    Stopping,
    StopReason,
    Suspended,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarting,
    Vote,
    tool,
    user,
)
from windlass.errors import (
    BadReply,
    CompiledError,
    ConfigError,
    NotSuspended,
    OutputError,
    RegistrationError,
    SessionBusy,
    SessionUnknown,
    StaleAnswer,
    ToolDefinitionError,
)
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says

from .checks import FrozenClock, check_log, only_this_task, unpaired


@pytest.fixture(autouse=True)
async def nothing_is_left_running() -> AsyncIterator[None]:
    yield
    assert await only_this_task()


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure", inline=True)
def length(text: str) -> int:
    """Measure a text."""
    return len(text)


class Invoice(Struct):
    number: int
    total: float


class Notes(Struct):
    lines: list[str] = []


def agent_for(*script: Any, tools: Any = (add, length), **options: Any) -> Agent:
    return Agent(ScriptedModel(*script), tools=tools, clock=FrozenClock(), name="a", **options)


def adding(*more: Any, **options: Any) -> Agent:
    return agent_for(calls("add", a=1, b=2), *(more or (says("3"),)), **options)


def results(result: Result) -> list[tuple[str, str]]:
    """Status and text of all tool results of a transcript."""
    return [(part.status, part.text) for message in result.messages if message.role == "tool" for part in message.parts]  # type: ignore[union-attr]


def error_of(result: Result) -> str:
    """What a failed turn says of its error; nothing must have been left open by it."""
    assert isinstance(result.outcome, Failed), result.outcome
    assert unpaired(result.messages) == []
    return f"{result.outcome.error.type}: {result.outcome.error.message}"


# ---------------------------------------------------------------- putting an agent together


async def test_whatever_is_registered_after_the_first_run_is_refused_by_name():
    agent = agent_for(says("hi"))
    await agent.run("go")

    def late(event: Any) -> None: ...

    class LateThing:
        name = "late"

        def install(self, registrar: Any) -> None: ...

    attempts: list[Any] = [
        lambda: agent.gate(ToolCalling)(late),
        lambda: agent.rewrite(ModelCalling)(late),
        lambda: agent.inject(TurnStarting)(late),
        lambda: agent.observe(ToolReturned)(late),
        lambda: agent.wrap(ModelCall)(lambda late, call_next: None),
        lambda: agent.hook(ToolCalling)(late),
        lambda: agent.transform(type("late", (), {})),
        lambda: agent.tool(tool(name="late")(lambda: "x")),
        lambda: agent.slot(Slot("late", int)),
        lambda: agent.criterion(StepLimit(1)),
        lambda: agent.instruct("late"),
        lambda: agent.with_capability(LateThing()),
        lambda: agent.with_lifecycle(LateThing()),
    ]
    for attempt in attempts:
        with pytest.raises(CompiledError, match=r"after .*first run"):
            attempt()


@pytest.mark.parametrize("event", ["ToolCalling", ToolReturned, int, None, ToolCall], ids=repr)
@pytest.mark.parametrize("verb", ["gate", "rewrite", "inject", "hook"])
def test_an_unknown_event_is_refused_with_those_that_exist(verb, event):
    def mine(event: Any) -> None: ...

    with pytest.raises(RegistrationError, match=r"'mine'.*is not an event.*ToolCalling"):
        getattr(agent_for(), verb)(event)(mine)


def test_an_unknown_fact_or_effect_is_refused_with_those_that_exist():
    def mine(value: Any, call_next: Any) -> None: ...

    with pytest.raises(RegistrationError, match=r"'mine'.*is not an effect to wrap.*ModelCall"):
        agent_for().wrap(ToolCalling)(mine)  # type: ignore[call-overload]
    with pytest.raises(RegistrationError, match=r"'mine'.*is not a fact to observe.*ToolReturned"):
        agent_for().observe(ToolCalling)(mine)  # type: ignore[type-var]


@pytest.mark.parametrize("event", [StepStarting, StepEnding, Continuing, Stopping])
def test_nothing_can_be_rewritten_where_nothing_can_change(event):
    with pytest.raises(RegistrationError, match=r"'mine'.*cannot rewrite: this event has nothing to change"):
        agent_for().rewrite(event, name="mine")(lambda event: None)


@pytest.mark.parametrize("event", [ModelCalling, ModelReplying, MessageAdding, Stopping, TurnEnding])
def test_nothing_can_be_injected_where_nothing_can_be_added(event):
    with pytest.raises(RegistrationError, match=r"'mine'.*cannot inject: this event takes no context"):
        agent_for().inject(event, name="mine")(lambda event: None)


@pytest.mark.parametrize(
    ("verb", "event", "options", "what"),
    [
        ("gate", ToolCalling, {"wait": True}, "wait"),
        ("gate", ToolCalling, {"group": "g"}, "group"),
        ("gate", ToolCalling, {"mode": "loud"}, "'loud'"),
        ("gate", ToolCalling, {"band": "last"}, "'last'"),
        ("gate", ModelCalling, {"tool": "add"}, "not about a tool"),
        ("gate", ToolCalling, {"tool": "bash(rm"}, "bash"),
        ("gate", ToolCalling, {"tool": []}, r"\[\]"),
        ("gate", ToolCalling, {"typo": 1}, "typo"),
        ("rewrite", ToolCalling, {"costly": True}, "costly"),
        ("inject", ToolCalling, {"mode": "shadow"}, "mode"),
        ("observe", ToolReturned, {"priority": 1}, "priority"),
        ("wrap", ToolCall, {"timeout": 1.0}, "timeout"),
        ("hook", ToolCalling, {"optional": True}, "optional"),
    ],
)
def test_an_option_that_a_verb_does_not_take_is_refused_by_name(verb, event, options, what):
    with pytest.raises(RegistrationError, match=rf"'mine'.*{what}"):
        getattr(agent_for(), verb)(event, name="mine", **options)(lambda event, call_next=None: None)


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_timeout_must_be_positive(timeout):
    with pytest.raises(RegistrationError, match=r"'mine'.*timeout must be a number above 0"):
        agent_for().gate(ToolCalling, name="mine", timeout=timeout, thread=True)(lambda event: None)


@pytest.mark.parametrize("verb", ["gate", "rewrite", "inject", "hook"])
def test_a_timeout_on_a_plain_function_needs_a_thread(verb):
    with pytest.raises(RegistrationError, match=r"'mine'.*thread=True"):
        getattr(agent_for(), verb)(ToolCalling, name="mine", timeout=1.0)(lambda event: None)
    getattr(agent_for(), verb)(ToolCalling, timeout=1.0, thread=True)(lambda event: None)


def test_an_unknown_channel_of_a_transform_is_refused():
    with pytest.raises(RegistrationError, match=r"'Upper'.*smell"):

        @agent_for().transform(channels=("smell",))  # type: ignore[arg-type]
        class Upper: ...


def test_a_hook_that_is_no_function_is_refused():
    with pytest.raises(RegistrationError, match="callable"):
        agent_for().gate(ToolCalling)("not a function")  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["gate", "rewrite", "inject", "hook", "observe"])
def test_a_hook_without_parameters_is_refused(verb):
    event = ToolReturned if verb == "observe" else ToolCalling
    with pytest.raises(RegistrationError, match="takes 0 parameters"):
        getattr(agent_for(), verb)(event)(lambda: None)


def test_a_wrap_without_call_next_is_refused():
    with pytest.raises(RegistrationError, match=r"'mine'.*call_next"):
        agent_for().wrap(ModelCall, name="mine")(lambda request: None)  # type: ignore[arg-type]


def test_a_parameter_that_nobody_supplies_is_refused_when_the_agent_is_compiled():
    agent = agent_for()

    @agent.gate(ToolCalling)
    def mine(event: ToolCalling, database: object) -> None: ...

    with pytest.raises(RegistrationError, match=r"'mine'.*'database' that Windlass cannot supply"):
        agent.compile()


def test_an_annotation_that_promises_an_illegal_answer_is_refused():
    with pytest.raises(RegistrationError, match=r"'mine'.*Regenerate.*Deny"):

        @agent_for().gate(ToolCalling)  # type: ignore[arg-type]
        def mine(event: ToolCalling) -> Regenerate | None: ...


def test_two_slots_of_one_name_are_refused():
    agent = agent_for()
    agent.slot(Slot("first", Notes))
    with pytest.raises(ConfigError, match=r"'first'.*'first'"):
        agent.slot(Slot("first", Invoice))


def test_two_slots_of_one_name_are_refused_wherever_they_come_from():
    hooks = Hooks()
    hooks.slot(Slot("first", Notes))
    agent = agent_for(pipeline=Pipeline.minimal().with_hooks(hooks))
    agent.slot(Slot("first", Notes))
    with pytest.raises(ConfigError, match=r"'first'.*'first'"):
        agent.compile()


def test_two_tools_of_one_name_are_refused_with_their_places():
    with pytest.raises(ToolDefinitionError, match=r"'add' is defined twice.*test_bad_input"):
        agent_for(tools=[add, tool(name="add")(lambda: 1)])


def test_a_tool_whose_name_is_taken_is_refused_when_the_agent_is_compiled():
    agent = agent_for()
    agent.tool(tool(name="add")(lambda: 1))
    with pytest.raises(ToolDefinitionError, match="'add' is defined twice"):
        agent.compile()


def test_a_tool_without_annotations_is_refused_with_its_parameter():
    def vague(thing):  # type: ignore[no-untyped-def]
        return thing

    with pytest.raises(ToolDefinitionError, match=r"'vague'.*'thing'"):
        agent_for(tools=[vague])


@pytest.mark.parametrize("thing", [None, 1, "gpt", object(), ["model"]], ids=["none", "int", "str", "object", "list"])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(ConfigError, match=r"model must be a model|is (no|not a) model"):
        Agent(thing)


def test_a_model_without_a_name_is_refused():
    class Nameless:
        async def reply(self, request: Any) -> str:
            return "hi"

    with pytest.raises(ConfigError, match="name"):
        Agent(Nameless()).compile()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name"):
        Agent(ScriptedModel(), models=[Nameless()]).compile()  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"unmatched": "maybe"}, "'maybe'"),
        ({"busy": "panic"}, "'panic'"),
        ({"store": "redis://x"}, "redis"),
        ({"output": object}, "object"),
        ({"output": asyncio.Event}, "Event"),
    ],
)
def test_an_option_of_the_agent_that_makes_no_sense_is_refused(options, what):
    with pytest.raises(ConfigError, match=what):
        agent_for(**options)


def test_an_error_policy_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="weather"):
        ErrorPolicy(actions={"weather": "retry"})
    with pytest.raises(ValueError, match="panic"):
        ErrorPolicy(otherwise="panic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        ErrorPolicy(retries=-1)


def test_a_question_that_nobody_could_answer_is_refused():
    with pytest.raises(ValueError, match="never be answered"):
        Ask(allow=())
    with pytest.raises(ValueError, match="shrug"):
        Ask(allow=("shrug",))
    for expires in (-1, -5.0, math.nan, math.inf, "5", True):
        with pytest.raises(ValueError, match=r"Ask\(expires=.* must be a number of seconds, 0 or more, or None"):
            Ask(expires=expires)  # type: ignore[arg-type]
    assert [Ask(expires=expires).expires for expires in (None, 0, 2.5)] == [None, 0, 2.5]


def test_a_lifecycle_that_is_none_is_refused():
    with pytest.raises(RegistrationError, match="int"):
        agent_for().with_lifecycle(1)


# ---------------------------------------------------------------- wrong answers from hooks


GATED = [SessionStarting, TurnStarting, StepStarting, ModelCalling, ModelReplying, MessageAdding, StepEnding]


@pytest.mark.parametrize("wrong", ["no", True, 1, Deny, Vote.FORBID, Ellipsis], ids=repr)
@pytest.mark.parametrize("event", GATED, ids=lambda event: event.__name__)
async def test_a_gate_that_answers_nonsense_halts_and_is_named(event, wrong):
    agent = adding()
    agent.gate(event, name="mine")(lambda event: wrong)
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.HALTED
    assert "gate 'mine'" in result.outcome.detail
    assert event.__name__ in result.outcome.detail
    assert any(isinstance(record, HookFailed) and record.hook == "mine" for record in await agent.store.read("s"))
    await check_log(agent, "s", result.state)


@pytest.mark.parametrize("wrong", ["no", Regenerate(), Vote.ALLOW, True], ids=repr)
@pytest.mark.parametrize("event", [ToolCalling, ToolReturning], ids=lambda event: event.__name__)
async def test_a_gate_on_tools_that_answers_nonsense_denies_and_is_named(event, wrong):
    agent = adding()
    agent.gate(event, name="mine")(lambda event: wrong)
    result = await agent.run("go")
    ((status, text),) = results(result)
    assert status == "denied"
    assert "'mine'" in text
    assert result.text == "3"


async def test_a_gate_on_the_end_that_answers_nonsense_withholds_the_text():
    agent = adding()
    agent.gate(TurnEnding, name="mine")(lambda event: "no")  # type: ignore[arg-type,return-value]
    result = await agent.run("go")
    assert (result.stop_reason, result.text) == (StopReason.WITHHELD, "")


async def test_a_gate_on_a_stop_that_answers_nonsense_lets_it_stand_and_marks_it():
    agent = adding()
    agent.gate(Stopping, name="mine")(lambda event: "no")  # type: ignore[arg-type,return-value]
    assert (await agent.run("go")).outcome == Completed(unreviewed=("mine",))


async def test_a_voter_that_answers_nonsense_forbids_to_go_on():
    agent = adding()
    agent.gate(Continuing, name="mine")(lambda event: "no")  # type: ignore[arg-type,return-value]
    result = await agent.run("go")
    assert result.stop_reason is StopReason.FORBIDDEN
    assert "mine" in str(result.outcome)


@pytest.mark.parametrize("event", [SessionStarting, TurnStarting, ModelCalling, ModelReplying, MessageAdding])
async def test_a_rewrite_that_answers_nonsense_fails_the_turn_and_is_named(event):
    agent = adding()
    agent.rewrite(event, name="mine")(lambda event: 42)
    error = error_of(await agent.run("go"))
    assert "'mine'" in error
    assert event.__name__ in error
    assert "int" in error


async def test_a_rewrite_of_a_call_that_answers_nonsense_denies_the_call():
    agent = adding()
    agent.rewrite(ToolCalling, name="mine")(lambda event: 42)  # type: ignore[arg-type,return-value]
    ((status, text),) = results(await agent.run("go"))
    assert status == "denied"
    assert "'mine'" in text


async def test_a_rewrite_cannot_rename_a_call_or_forge_a_signature():
    agent = adding()
    agent.rewrite(ToolCalling, name="mine")(lambda event: event.call.replace(name="length"))
    ((status, text),) = results(await agent.run("go", session="s"))
    assert status == "denied"
    assert "'mine'" in text
    (failed,) = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert "only the arguments may change" in failed.error.message


async def test_a_rewrite_of_the_end_that_answers_nonsense_withholds_the_text():
    agent = adding()
    agent.rewrite(TurnEnding, name="mine")(lambda event: 42)  # type: ignore[arg-type,return-value]
    result = await agent.run("go", session="s")
    assert (result.stop_reason, result.text) == (StopReason.WITHHELD, "")
    assert "'mine'" in str(result.outcome)


@pytest.mark.parametrize("wrong", [42, [1], object(), Injected(42)], ids=["int", "list", "object", "Injected"])  # type: ignore[arg-type]
@pytest.mark.parametrize("event", [TurnStarting, StepStarting, StepEnding])
async def test_an_injection_of_nonsense_fails_the_turn_and_is_named(event, wrong):
    agent = adding()
    agent.inject(event, name="mine")(lambda event: wrong)
    error = error_of(await agent.run("go"))
    assert "'mine'" in error
    assert event.__name__ in error


@pytest.mark.parametrize("event", [ToolCalling, ToolReturning])
async def test_an_injection_of_nonsense_beside_a_result_is_named_and_leaves_no_call_open(event):
    agent = adding()
    agent.inject(event, name="mine")(lambda event: 42)  # type: ignore[arg-type,return-value]
    result = await agent.run("go", session="s")
    assert "'mine'" in error_of(result)
    await check_log(agent, "s", result.state)


@pytest.mark.parametrize("wrong", [42, "no", Regenerate(), Says(decision="no"), Says(rewrite=42)], ids=repr)
async def test_a_hook_that_says_nonsense_denies_the_call_and_is_named(wrong):
    agent = adding()
    agent.hook(ToolCalling, name="mine")(lambda event: wrong)
    ((status, text),) = results(await agent.run("go"))
    assert status == "denied"
    assert "'mine'" in text


@pytest.mark.parametrize("wrong", [None, 42, {"text": "hi"}, object()], ids=["None", "int", "dict", "object"])
async def test_a_wrap_of_the_model_that_returns_nonsense_is_named(wrong):
    agent = adding()

    @agent.wrap(ModelCall)
    async def mine(request: Any, call_next: Any) -> Any:
        return wrong

    assert "wrap 'mine'" in error_of(await agent.run("go"))


async def test_a_wrap_of_a_tool_may_return_anything():
    agent = adding()

    @agent.wrap(ToolCall)
    async def mine(call: Any, call_next: Any) -> Any:
        return {"odd": object}

    result = await agent.run("go")
    assert result.text == "3"
    assert results(result)[0][0] == "ok"


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("effect", [Step, Turn], ids=lambda effect: effect.__name__)
async def test_a_wrap_of_a_step_or_turn_that_does_not_call_next_once_is_named(effect, times):
    agent = adding()

    @agent.wrap(effect)
    async def mine(value: Any, call_next: Any) -> Any:
        for _ in range(times):
            await call_next(value)

    result = await agent.run("go", session="s")
    if effect is Turn and times == 2:  # the turn had ended by then
        assert result.outcome == Completed()
        (failed,) = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
        assert failed.hook == "mine"
    else:
        assert "wrap 'mine'" in error_of(result)
    assert not agent.store.passes.all()


@pytest.mark.parametrize("fed", [None, 42, [1], [None], "boom"], ids=repr)
async def test_a_transform_that_gives_nonsense_fails_the_turn_and_is_named(fed):
    agent = agent_for(says("hi"))

    @agent.transform
    class Mine:
        def feed(self, text: str) -> Any:
            if fed == "boom":
                raise RuntimeError("boom")
            return fed

        def flush(self) -> Any:
            return ()

    assert "'Mine'" in error_of(await agent.run("go"))


async def test_a_factory_of_something_without_the_methods_of_a_transform_fails_the_turn_and_is_named():
    agent = agent_for(says("hi"))
    agent.transform(name="mine")(lambda: 5)  # type: ignore[arg-type, return-value]
    assert "'mine' failed: it returned int" in error_of(await agent.run("go"))


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("fact", [ToolReturned, TurnEnded], ids=lambda fact: fact.__name__)
async def test_an_observer_that_fails_is_never_noticed_by_the_turn_and_is_in_the_log(fact, wait):
    agent = adding()

    @agent.observe(fact, wait=wait)
    async def mine(fact: Any) -> None:
        raise RuntimeError("broken")

    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    await check_log(agent, "s", result.state)
    assert any(isinstance(record, HookFailed) and record.hook == "mine" for record in await agent.store.read("s"))


DECIDED = [
    (event, rank)
    for event in (TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, MessageAdding,
                  StepEnding, TurnEnding)
    for rank in event.ranks
    if rank is not Allow
]  # fmt: skip


@pytest.mark.parametrize(("event", "decision"), DECIDED, ids=lambda kind: kind.__name__)
async def test_a_gate_that_answers_a_class_instead_of_a_decision_fails_closed_and_is_named(event, decision):
    agent = adding()
    agent.gate(event, name="mine")(lambda event: decision)
    result = await agent.run("go", session="s")
    failures = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert [failure.hook for failure in failures][:1] == ["mine"]
    assert result.stop_reason in (StopReason.HALTED, StopReason.WITHHELD) or results(result)[0][0] == "denied"
    await check_log(agent, "s", result.state)


@pytest.mark.parametrize("vote", ["yes", 1, True, ("yes", "why"), (Vote.ALLOW,), Allow()], ids=repr)
async def test_a_criterion_that_votes_nonsense_fails_the_turn_and_is_named(vote):
    def mine(state: Any) -> Any:
        return vote

    assert "mine" in error_of(await adding(criteria=[mine]).run("go"))


async def test_a_criterion_that_raises_fails_the_turn_and_is_named():
    def mine(state: Any) -> Any:
        raise RuntimeError("broken")

    assert "mine" in error_of(await adding(criteria=[mine]).run("go"))


async def test_a_hook_that_changes_what_it_was_given_changes_nothing():
    seen: list[dict[str, Any]] = []

    @tool(effect="pure", inline=True)
    def take(values: list[int]) -> int:
        """Take values."""
        seen.append({"values": values})
        return len(values)

    agent = agent_for(calls("take", values=[1, 2]), calls("take", values=[1, 2]), says("done"), tools=[take])

    @agent.gate(ToolCalling)
    def tamper(event: ToolCalling) -> None:
        event.call.arguments["values"].append(3)
        event.call.arguments.clear()

    @agent.observe(ToolReturned, wait=True)
    def tamper_late(fact: Any, turn: Turn) -> None:
        turn.call(fact.call).arguments.clear()

    @agent.wrap(ToolCall)
    async def tamper_around(call: Any, call_next: Any) -> Any:
        call.arguments["values"].append(4)
        return await call_next(call)

    await agent.run("go")
    assert seen == [{"values": [1, 2]}] * 2


async def test_values_refuse_to_be_changed():
    agent = adding()

    @agent.gate(ToolCalling, name="mine")
    def tamper(event: ToolCalling) -> None:
        event.call.json = "{}"  # type: ignore[misc]

    ((status, text),) = results(await agent.run("go"))
    assert status == "denied"
    assert "'mine'" in text


@pytest.mark.parametrize("what", ["settings", "schema"])
async def test_a_hook_that_changes_the_settings_or_tools_it_was_shown_changes_no_other_request(what):
    agent = adding(settings={"temperature": 0})

    @agent.observe(ToolReturned, wait=True)
    def nothing(fact: Any) -> None: ...

    @agent.gate(ModelCalling)
    def tamper(event: ModelCalling) -> None:
        target: Any = event.request.settings if what == "settings" else event.request.tools[0].schema
        try:
            target["tampered"] = True
        except TypeError:
            pass

    await agent.run("go")
    for request in agent.model.requests:  # type: ignore[attr-defined]
        assert "tampered" not in request.settings
        assert "tampered" not in request.tools[0].schema


async def test_a_hook_that_changes_a_slot_it_was_shown_changes_no_state():
    agent = adding()
    notes = agent.slot(Slot("notes", Notes))
    deep = agent.slot(Slot("deep", list))

    @agent.gate(TurnStarting)
    def begin(event: TurnStarting, turn: Turn) -> None:
        turn.set(notes, Notes(["first"]))
        turn.set(deep, [["first"]])

    @agent.gate(ToolCalling)
    def tamper(event: ToolCalling, turn: Turn, given: Notes) -> None:
        given.lines.append("tampered")
        turn.get(notes).lines.append("tampered")
        turn.get(deep).append("tampered")
        turn.get(deep)[0].append("tampered")

    result = await agent.run("go", session="s")
    assert result.slots == {"notes": Notes(["first"]), "deep": [["first"]]}
    await check_log(agent, "s", result.state)


# ---------------------------------------------------------------- what a model may write


async def test_an_empty_reply_completes_the_turn_with_no_text():
    agent = agent_for(ModelReply(Message("assistant")))
    result = await agent.run("go", session="s")
    assert (result.outcome, result.text) == (Completed(), "")
    await check_log(agent, "s", result.state)


async def test_an_unknown_tool_is_told_to_the_model_with_those_that_exist():
    result = await agent_for(calls("subtract", a=1), says("then not")).run("go")
    ((status, text),) = results(result)
    assert status == "error"
    assert "'subtract'" in text
    assert "add, length" in text
    assert result.outcome == Completed()


@pytest.mark.parametrize("json", ["{", "", "[]", "null", "1", '"a"', '{"a":1', "\x00", '{"a":1}{"b":2}', "{'a':1}"])
async def test_broken_json_is_told_to_the_model_with_the_parameters(json):
    result = await agent_for(calls([("add", json)]), says("sorry")).run("go")
    ((status, text),) = results(result)
    assert status == "error"
    assert "'add'" in text
    assert result.outcome == Completed()


@pytest.mark.parametrize(
    "arguments",
    [{"a": "one", "b": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": None, "b": 1}, {"a": 1.5, "b": 1}, {"a": [1]}],
    ids=repr,
)
async def test_arguments_of_a_wrong_type_are_told_to_the_model(arguments):
    result = await agent_for(calls([("add", arguments)]), says("sorry")).run("go")
    ((status, text),) = results(result)
    assert status == "error"
    assert "'add' was not run" in text


async def test_broken_json_reaches_no_gate_and_is_told_to_the_model():
    seen: list[Any] = []
    agent = agent_for(calls([("add", "{oops")]), says("sorry"))

    @agent.gate(ToolCalling)
    def look(event: ToolCalling) -> None:
        seen.append(event.call.arguments)

    result = await agent.run("go")
    assert seen == []
    ((status, text),) = results(result)
    assert status == "error"
    assert "not valid JSON" in text


GARBAGE: dict[str, Any] = {
    "nothing": None,
    "a number": 42,
    "a mapping": {"role": "assistant", "content": "hi"},
    "an object": object(),
    "a reply of nothing": ModelReply(None),  # type: ignore[arg-type]
    "a reply of text": ModelReply("hi"),  # type: ignore[arg-type]
    "parts that are none": Message("assistant", None),  # type: ignore[arg-type]
    "parts that are texts": Message("assistant", ("hi",)),  # type: ignore[arg-type]
    "parts that are mappings": Message("assistant", ({"type": "text", "text": "hi"},)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_a_model_that_returns_garbage_fails_the_turn(name):
    class Garbled:
        name = "garbled"

        async def reply(self, request: Any) -> Any:
            return GARBAGE[name]

    agent = Agent(Garbled(), clock=FrozenClock())
    result = await agent.run("go", session="s")
    error_of(result)
    await check_log(agent, "s", result.state)
    with pytest.raises(Exception, match=r"."):
        result.raise_for_error()


async def test_a_model_that_is_not_async_fails_the_turn():
    class Plain:
        name = "plain"

        def reply(self, request: Any) -> str:
            return "hi"

    error_of(await Agent(Plain()).run("go"))  # type: ignore[arg-type]


async def test_the_error_of_a_bad_reply_says_what_came():
    class Garbled:
        name = "garbled"

        async def reply(self, request: Any) -> Any:
            return 42

    result = await Agent(Garbled()).run("go")
    assert isinstance(result.error, BadReply)
    assert "int" in str(result.error)


async def test_a_request_for_an_unknown_model_fails_the_turn_with_those_that_exist():
    agent = agent_for(says("hi"), models=[ScriptedModel(name="other")])
    agent.rewrite(ModelCalling)(lambda event: event.request.replace(model="nowhere"))
    error = error_of(await agent.run("go"))
    assert "'nowhere'" in error
    assert "scripted, other" in error


async def test_ten_thousand_calls_in_one_reply_all_get_their_results():
    count = 10_000
    agent = agent_for(calls([("add", {"a": n, "b": 1}) for n in range(count)]), says("done"))
    result = await agent.run("go", session="s")
    assert [text for _, text in results(result)] == [str(n + 1) for n in range(count)]
    assert unpaired(result.messages) == []
    assert result.outcome == Completed()


@tool(effect="pure", inline=True)
def take(a: int, b: int, turn: Turn) -> int:
    """Add two numbers in the first step."""
    return a + b + turn.steps


@pytest.mark.parametrize("what", ["gate", "observer", "tool with turn"])
async def test_the_work_of_a_call_does_not_grow_with_the_number_of_calls_beside_it(what):
    async def work(count: int) -> int:
        """How many functions are called to get through so many calls of tools."""
        name = "take" if what == "tool with turn" else "add"
        script = calls([(name, {"a": n, "b": 1}) for n in range(count)]), says("done")
        agent = agent_for(*script, tools=[add, take])
        seen: list[Any] = []
        if what == "gate":
            agent.gate(ToolCalling)(lambda event: Deny("odd") if event.call.arguments["a"] % 2 else None)
        if what == "observer":
            agent.observe(ToolReturned, wait=True)(seen.append)
        called = 0

        def count_one(frame: Any, event: str, argument: Any) -> None:
            nonlocal called
            called += event in ("call", "c_call")

        sys.setprofile(count_one)
        try:
            result = await agent.run("go", session="s")
        finally:
            sys.setprofile(None)
        assert len(results(result)) == count
        assert len(seen) == (count if what == "observer" else 0)
        return called

    few, many = await work(30), await work(300)
    assert many < 12 * few, f"ten times the calls took {many / few:.0f} times the work"


async def test_an_argument_of_ten_megabytes_reaches_the_tool():
    size = 10_000_000
    agent = agent_for(calls("length", text="x" * size), says("long"))
    agent.gate(ToolCalling)(lambda event: None if len(event.call.arguments["text"]) == size else Deny("cut"))
    result = await agent.run("go", session="s")
    assert results(result) == [("ok", str(size))]
    await check_log(agent, "s", result.state)


async def test_a_message_of_ten_megabytes_is_heard():
    agent = agent_for(says("long"))
    result = await agent.run("x" * 10_000_000, session="s")
    assert result.outcome == Completed()
    await check_log(agent, "s", result.state)


async def test_lone_surrogates_go_in_and_come_out():
    @tool(effect="pure", inline=True)
    def odd() -> str:
        """Give an odd text."""
        return "tool \udcff"

    @tool(effect="pure", inline=True)
    def odder() -> dict[str, str]:
        """Give an odd mapping."""
        return {"odd": "tool \udcff"}

    agent = agent_for(calls([("odd", {}), ("odder", {})]), says("model \udcff"), tools=[odd, odder])
    result = await agent.run("user \udcff", session="s")
    assert result.outcome == Completed()
    assert [status for status, _ in results(result)] == ["ok", "ok"]
    await check_log(agent, "s", result.state)


# ---------------------------------------------------------------- output


async def test_an_output_that_never_fits_is_asked_for_again_a_bounded_number_of_times():
    agent = agent_for(*[says("no json")] * 9, output=Invoice)
    result = await agent.run("go", session="s")
    assert result.stop_reason is StopReason.REGENERATION
    assert len(agent.model.requests) == 3  # type: ignore[attr-defined]
    with pytest.raises(OutputError, match="Invoice"):
        _ = result.output
    assert [message.role for message in result.messages] == ["user"]
    await check_log(agent, "s", result.state)


async def test_an_output_that_fits_at_last_is_the_output():
    agent = agent_for(says("no json"), says('```json\n{"number":1,"total":2.5}\n```'), output=Invoice)
    result = await agent.run("go")
    assert result.output == Invoice(1, 2.5)
    feedback = agent.model.requests[1].messages[-1].text  # type: ignore[attr-defined]
    assert "not a valid Invoice" in feedback


async def test_the_output_of_a_turn_that_was_stopped_raises():
    agent = agent_for(says('{"number":1,"total":2.5}'), output=Invoice)
    agent.gate(TurnStarting)(lambda event: Halt("no"))
    result = await agent.run("go")
    with pytest.raises(OutputError):
        _ = result.output


# ---------------------------------------------------------------- sessions


class Slow:
    """An agent whose model waits in its first step until it may go on."""

    def __init__(self, **options: Any) -> None:
        self.asked = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.agent = Agent(FunctionModel(self.reply), tools=[add], clock=FrozenClock(), **options)

    async def reply(self, request: Any) -> Any:
        self.asked.set()
        await self.may_go_on.wait()
        last = request.messages[-1]
        if last.role == "user" and last.text == "first":
            return calls("add", a=1, b=2)
        return says("; ".join(message.text for message in request.messages if message.role == "user"))


async def test_a_busy_session_refuses_whatever_comes():
    slow = Slow()
    agent = slow.agent
    first = asyncio.ensure_future(agent.run("first", session="s"))
    await slow.asked.wait()
    with pytest.raises(SessionBusy, match="'s'") as refused:
        await agent.run("second", session="s")
    assert refused.value.session == "s"
    with pytest.raises(SessionBusy):
        await agent.resume("s")
    with pytest.raises(SessionBusy):
        await anext(aiter(agent.iterate("second", session="s")))
    with pytest.raises(SessionBusy):
        async with agent.session("s"):
            pass
    slow.may_go_on.set()
    assert (await first).text == "first"
    assert (await agent.run("second", session="s")).text == "first; second"


async def test_a_busy_session_that_queues_runs_one_turn_after_the_other():
    slow = Slow(busy="queue")
    agent = slow.agent
    turns = [asyncio.ensure_future(agent.run("first", session="s"))]
    await slow.asked.wait()
    turns += [asyncio.ensure_future(agent.run(text, session="s")) for text in ("second", "third")]
    await asyncio.sleep(0)
    slow.may_go_on.set()
    done = await asyncio.gather(*turns)
    assert [result.text for result in done] == ["first", "first; second", "first; second; third"]
    await check_log(agent, "s", done[-1].state)


async def test_a_busy_session_that_is_steered_hears_the_message_in_the_turn_that_runs():
    slow = Slow(busy="steer")
    agent = slow.agent
    first = asyncio.ensure_future(agent.run("first", session="s"))
    await slow.asked.wait()
    second = asyncio.ensure_future(agent.run("second", session="s"))
    await asyncio.sleep(0)
    slow.may_go_on.set()
    done = await asyncio.gather(first, second)
    assert [result.text for result in done] == ["first; second"] * 2
    assert done[0].state.turns == 1
    await check_log(agent, "s", done[0].state)


async def test_steering_that_comes_too_late_is_a_turn_of_its_own_and_is_heard_once():
    asked, may_go_on = asyncio.Event(), asyncio.Event()
    script = iter([says("at once"), calls("add", a=1, b=2), calls("add", a=1, b=2), says("done")])

    async def reply(request: Any) -> Any:
        asked.set()
        await may_go_on.wait()
        return next(script)

    agent = Agent(FunctionModel(reply), tools=[add], busy="steer", clock=FrozenClock())
    first = asyncio.ensure_future(agent.run("first", session="s"))
    await asked.wait()
    second = asyncio.ensure_future(agent.run("late", session="s"))
    await asyncio.sleep(0)
    may_go_on.set()
    done = await asyncio.gather(first, second)
    assert done[1].text == "done"
    assert [message.text for message in done[1].messages].count("late") == 1


async def test_steering_that_arrives_while_the_turn_ends_is_not_lost():
    class Lazy(MemoryStore):
        async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
            for _ in range(30):
                await asyncio.sleep(0)
            return await super().put(session, key, kind, data)

    slow = Slow(busy="steer", store=Lazy())
    first = asyncio.ensure_future(slow.agent.run("hello", session="s"))
    await slow.asked.wait()
    second = asyncio.ensure_future(slow.agent.run("second", session="s"))
    await asyncio.sleep(0)
    slow.may_go_on.set()
    assert (await first).text == "hello"
    assert (await second).text == "hello; second"


async def test_a_session_that_nobody_knows_cannot_be_resumed_or_shown():
    agent = agent_for()
    with pytest.raises(SessionUnknown, match="'nowhere'") as unknown:
        await agent.resume("nowhere")
    assert unknown.value.session == "nowhere"
    with pytest.raises(SessionUnknown):
        await agent.state("nowhere")
    with pytest.raises(SessionUnknown):
        await anext(aiter(agent.iterate(session="nowhere")))
    assert list(await agent.store.sessions()) == []


async def test_a_session_whose_turn_is_over_cannot_be_resumed():
    agent = agent_for(says("hi"))
    await agent.run("go", session="s")
    with pytest.raises(NotSuspended, match="'s'"):
        await agent.resume("s")
    with pytest.raises(NotSuspended):
        await agent.resume("s", answers={"s/1/1": Approve()})
    assert not agent.store.passes.all()


async def test_a_turn_needs_a_message_of_the_user():
    agent = agent_for()
    with pytest.raises(ConfigError, match="assistant"):
        await agent.run(Message("assistant"))
    with pytest.raises(TypeError, match="int"):
        await agent.run(42)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="session to resume"):
        await anext(aiter(agent.iterate()))


def asking(**ask: Any) -> Agent:
    agent = agent_for(calls([("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]), says("done"))
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("sure?", **ask) if event.call.arguments["a"] == 1 else None)
    return agent


BAD_ANSWERS: dict[str, Any] = {
    "an unknown id": {"s/9/9": Approve()},
    "a known and an unknown id": {"s/1/1": Approve(), "s/9/9": Approve()},
    "a call that was not asked about": {"s/1/2": Approve()},
    "a text": {"s/1/1": "yes"},
    "nothing": {"s/1/1": None},
    "a truth": {"s/1/1": True},
    "a class": {"s/1/1": Approve},
    "a decision": {"s/1/1": Allow()},
    "a list": [("s/1/1", Approve())],
    "a resolution alone": Approve(),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_bad_answers_are_refused_and_the_turn_stays_suspended(name):
    agent = asking()
    await agent.run("go", session="s")
    before = await agent.store.read("s")
    with pytest.raises((StaleAnswer, ConfigError, TypeError)):
        await agent.resume("s", answers=BAD_ANSWERS[name])
    assert await agent.store.read("s") == before
    result = await agent.resume("s", answers={"s/1/1": Approve()})
    assert results(result) == [("ok", "3"), ("ok", "7")]


async def test_an_answer_that_the_question_does_not_allow_is_refused_with_those_it_does():
    agent = asking(allow=("approve", "reject"))
    await agent.run("go", session="s")
    with pytest.raises(StaleAnswer, match=r"'edit'.*approve, reject") as stale:
        await agent.resume("s", answers={"s/1/1": Edit({"a": 1})})
    assert stale.value.ask_id == "s/1/1"


async def test_an_answer_of_somebody_who_is_not_asked_is_refused():
    agent = asking(approvers=("ann",))
    await agent.run("go", session="s")
    with pytest.raises(StaleAnswer, match=r"'bob'.*ann"):
        await agent.resume("s", answers={"s/1/1": Approve(by="bob")})
    assert (await agent.resume("s", answers={"s/1/1": Approve(by="ann")})).text == "done"


async def test_a_question_is_answered_once():
    agent = asking()
    await agent.run("go", session="s")
    await agent.resume("s", answers={"s/1/1": Approve()})
    with pytest.raises(NotSuspended):
        await agent.resume("s", answers={"s/1/1": Approve()})


async def test_edited_arguments_that_do_not_fit_are_refused_and_the_question_stays_open():
    agent = asking()
    await agent.run("go", session="s")
    for answering in (agent.resolve("s", "s/1/1", Edit({"no": 1})), agent.resume("s", answers={"s/1/1": Edit({})})):
        with pytest.raises(StaleAnswer, match=r"the edited arguments do not fit: tool 'add' was not run"):
            await answering
    result = await agent.resume("s", answers={"s/1/1": Approve()})
    assert results(result)[0][0] == "ok"
    assert result.outcome == Completed()
    await check_log(agent, "s", result.state)


async def test_a_slot_that_nobody_declared_is_named():
    agent = agent_for(says("hi"))
    try:
        error = error_of(await agent.run("go", slots={"nowhere": 1}))
    except ConfigError as raised:
        error = str(raised)
    assert "'nowhere'" in error
    assert not agent.store.passes.all()


async def test_a_value_that_does_not_fit_its_slot_is_named():
    agent = agent_for(says("hi"))
    agent.slot(Slot("count", int))
    try:
        error = error_of(await agent.run("go", slots={"count": "many"}))
    except Exception as raised:
        error = str(raised)
    assert "'count'" in error


async def test_an_answer_that_no_log_can_hold_is_refused_and_its_gate_named():
    agent = adding()
    agent.gate(ToolCalling, name="odd")(lambda event: Answer(object()))
    result = await agent.run("go", session="s")
    assert results(result)[0][0] == "denied"
    assert "odd" in results(result)[0][1]
    await check_log(agent, "s", result.state)


async def test_a_suspended_turn_is_a_result_without_a_text_yet():
    result = await asking().run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    assert result.stop_reason is StopReason.SUSPENDED
    assert result.partial_text == ""
    assert [asked.by for asked in result.waiting_for] == [("asker",)]


def test_run_sync_works_inside_and_outside_of_a_loop():
    assert agent_for(says("hi")).run_sync("go").text == "hi"

    async def inside() -> str:
        return agent_for(says("hi")).run_sync(user("go")).text

    assert asyncio.run(inside()) == "hi"


async def test_a_question_that_nobody_could_answer_counts_as_a_gate_that_failed():
    agent = Agent(ScriptedModel(says("no")))
    agent.gate(TurnStarting, name="asks")(lambda event: Ask("?", allow=("edit",)))
    result = await agent.run("go", session="s")
    assert result.stop_reason is StopReason.HALTED
    assert "gate 'asks' failed on TurnStarting" in result.outcome.detail
    (failed,) = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert "a person cannot answer by edit; legal: approve, reject, respond" in failed.error.message
