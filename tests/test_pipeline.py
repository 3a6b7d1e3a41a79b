"""The pipeline: an explicit, immutable assembly whose seven composites can each be replaced, and none left out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Completed,
    ErrorPolicy,
    Evaluated,
    Failed,
    Halt,
    Hooks,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReply,
    Pipeline,
    Slot,
    State,
    Step,
    StepEnded,
    StepLimit,
    StepStarted,
    Stopped,
    Stopping,
    StopReason,
    Suspended,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    TurnStarted,
    Veto,
    Vote,
    assistant,
    tool,
    tools_ran,
    user,
)
from windlass._kernel.contracts import PHASES, Composites
from windlass._kernel.entry import Entry
from windlass._kernel.error_handling import FailedCall
from windlass._kernel.loop import drive
from windlass._kernel.segment import Segment
from windlass.errors import ConfigError, ServerError
from windlass.events import LIVE_FACTS
from windlass.messages import ToolCallPart, ToolResult, text_result
from windlass.ownership import Claim
from windlass.pipeline import DEFAULT
from windlass.records import ErrorHandled, MessageAdded, ModelReplied, SessionOpened, ToolDecided
from windlass.states import Fold
from windlass.testing import ScriptedModel, calls, says

from .checks import FrozenClock, check_log


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent_on(pipeline: Pipeline, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(*script), tools=[add], pipeline=pipeline, clock=FrozenClock(), name="a", **options)


def opened(fold: Fold) -> Fold:
    """A session whose turn has just begun."""
    for record in (SessionOpened(at=1.0), TurnStarted(1, user("go"), "s/t1", at=1.0), MessageAdded(at=1.0)):
        fold.add(record)
    return fold


def claim_of(session: str, epoch: int = 1) -> Claim:
    return Claim(session, epoch, begins=True)


def segment_of(agent: Agent, **options: Any) -> Segment:
    return Segment(agent._compile(), opened(Fold("s")), Entry(user("go"), **options), claim_of("s"))


def proposing(segment: Segment, *arguments: str) -> Segment:
    """A segment whose open step proposes calls of `add`."""
    parts = tuple(ToolCallPart("add", json, f"s/1/{n}") for n, json in enumerate(arguments, 1))
    message = assistant("").replace(parts=parts, id="s/1")
    segment.record(ModelReplied(1, ModelReply(message, finish="tool_calls")))
    return segment


# ---------------------------------------------------------------- the assembly


async def test_the_minimal_pipeline_goes_on_as_long_as_tools_are_called():
    pipeline = Pipeline.minimal().build()
    result = await agent_on(pipeline, calls("add", a=1, b=2), says("3")).run("1 + 2?", session="s")
    assert (result.text, result.outcome) == ("3", Completed())
    assert pipeline.criteria == (tools_ran,)


async def test_without_any_criterion_a_turn_stops_after_its_first_step():
    result = await agent_on(Pipeline(criteria=()), calls("add", a=1, b=2), says("3")).run("go")
    assert result.state.steps == 1
    assert result.messages[-1].role == "tool"


async def test_criteria_of_the_pipeline_and_of_the_agent_all_vote():
    pipeline = Pipeline.minimal([tools_ran]).with_criteria(StepLimit(2))
    result = await agent_on(pipeline, *[calls("add", a=1, b=2)] * 5).run("go")
    assert result.stop_reason is StopReason.STEP_LIMIT
    result = await agent_on(pipeline, *[calls("add", a=1, b=2)] * 5, criteria=[StepLimit(1)]).run("go")
    assert result.state.steps == 1


def test_every_with_gives_a_new_pipeline_and_leaves_the_old_one():
    first = Pipeline.minimal()
    made = [
        first.with_criteria(StepLimit(1)),
        first.with_events(print, ToolReturned),
        first.with_hooks(Hooks()),
        first.with_handler("after_step", Counting([])),
        first.with_composite("executor", DEFAULT.executor),
    ]
    assert first == Pipeline.minimal()
    assert first.handlers == {}
    assert all(pipeline is not first for pipeline in made)
    with pytest.raises(AttributeError):
        first.criteria = ()  # type: ignore[misc]
    assert first.build() == first


async def test_an_emitter_gets_the_facts_it_named_and_no_others():
    seen: list[Any] = []
    pipeline = Pipeline.minimal().with_events(seen.append, ToolReturned, StepStarted)
    await agent_on(pipeline, calls("add", a=1, b=2), says("3")).run("go", session="s")
    assert sorted(type(fact).__name__ for fact in seen) == ["StepStarted", "StepStarted", "ToolReturned"]


async def test_an_emitter_that_names_no_facts_gets_all_that_is_written_and_the_live_ones():
    seen: list[Any] = []
    agent = agent_on(Pipeline.minimal().with_events(seen.append), calls("add", a=1, b=2), says("3"))
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    assert [fact for fact in seen if type(fact) in {type(record) for record in log}]
    for record in log:
        assert record in seen
    assert {type(fact) for fact in seen} & set(LIVE_FACTS)


def test_only_facts_can_be_listened_to():
    with pytest.raises(ConfigError, match="ToolCalling"):
        Pipeline.minimal().with_events(print, ToolCalling)  # type: ignore[arg-type]


async def test_a_collection_of_hooks_brings_all_that_it_holds():
    hooks = Hooks()
    slot = hooks.slot(Slot("seen", list[str]))
    hooks.instruct("Be kind.")
    hooks.criterion(StepLimit(1))

    @hooks.tool
    def twice(n: int) -> int:
        """Double a number."""
        return 2 * n

    @hooks.gate(ToolCalling)
    def look(event: ToolCalling, turn: Turn) -> None:
        turn.set(slot, [event.call.name])

    @hooks.transform
    class Shout:
        def feed(self, text: str) -> Any:
            yield text.upper()

        def flush(self) -> Any:
            return ()

    agent = agent_on(Pipeline.minimal().with_hooks(hooks), calls("twice", n=2, _text="wait"), system="Add.")
    result = await agent.run("go", session="s")
    assert agent.model.requests[0].system == "Add.\n\nBe kind."  # type: ignore[attr-defined]
    assert {spec.name for spec in agent.model.requests[0].tools} == {"add", "twice"}  # type: ignore[attr-defined]
    assert result.messages[1].text == "WAIT"
    assert result.messages[2].parts[0].text == "4"  # type: ignore[union-attr]
    assert result.slots == {"seen": ["twice"]}
    assert result.stop_reason is StopReason.STEP_LIMIT


async def test_one_pipeline_serves_several_agents():
    hooks = Hooks()
    hooks.slot(Slot("seen", list[str]))
    hooks.instruct("Be kind.")
    hooks.gate(ToolCalling, name="no")(lambda event: Halt("no"))
    pipeline = Pipeline.minimal().with_hooks(hooks)
    for _ in range(2):
        agent = agent_on(pipeline, calls("add", a=1, b=2))
        assert (await agent.run("go")).outcome == Stopped(StopReason.HALTED, "no")
        assert agent.model.requests[0].system == "Be kind."  # type: ignore[attr-defined]


async def test_hooks_that_are_given_twice_run_twice():
    hooks, seen = Hooks(), []

    @hooks.wrap(ModelCall)
    async def outer(request, call_next):
        seen.append("outer")
        return await call_next(request)

    @hooks.wrap(ModelCall)
    async def inner(request, call_next):
        seen.append("inner")
        return await call_next(request)

    agent = agent_on(Pipeline.minimal().with_hooks(hooks).with_hooks(hooks), says("done"))
    assert (await agent.run("go")).text == "done"
    assert seen == ["outer", "inner"] * 2


async def test_what_the_pipeline_is_made_of_is_stored_once_by_its_hash():
    pipeline = Pipeline.minimal().with_criteria(StepLimit(3))
    agent = agent_on(pipeline, says("a"), says("b"))
    agent.gate(ToolCalling, name="look")(lambda event: None)
    await agent.run("go", session="s")
    log = await agent.store.read("s")
    first = log[0]
    assert isinstance(first, SessionOpened)
    described = msgspec.json.decode(await agent.store.pipeline(first.pipeline) or b"")
    assert [hook["name"] for hook in described["hooks"]] == ["look"]
    assert described["criteria"] == ["tools_ran", "StepLimit"]
    await agent.run("go on", session="s")
    assert sum(isinstance(record, SessionOpened) for record in await agent.store.read("s")) == 1


# ---------------------------------------------------------------- phase handlers


class Counting:
    """A handler that notes when it ran."""

    def __init__(self, seen: list[tuple[str, int]], name: str = "") -> None:
        self.seen = seen
        self.name = name

    def handle(self, state: State, turn: Turn) -> State:
        self.seen.append((self.name, state.steps))
        return state


async def test_handlers_run_after_their_phases_in_the_order_in_which_they_were_added():
    seen: list[tuple[str, int]] = []
    pipeline = Pipeline.minimal()
    for phase in PHASES:
        pipeline = pipeline.with_handler(phase, Counting(seen, phase))  # type: ignore[arg-type]
    pipeline = pipeline.with_handler("after_step", Counting(seen, "again"))
    await agent_on(pipeline, calls("add", a=1, b=2), says("3")).run("go")
    assert seen == [
        ("before_turn", 0),
        ("before_step", 0),
        ("after_step", 1),
        ("again", 1),
        ("before_step", 1),
        ("after_step", 2),
        ("again", 2),
        ("after_turn", 2),
    ]


async def test_what_a_handler_records_is_in_the_state_and_in_the_log():
    class Adding:
        async def handle(self, state: State, turn: Turn) -> State:
            return state.record(MessageAdded(user("by a handler"), "handler"))

    agent = agent_on(Pipeline.minimal().with_handler("before_turn", Adding()), says("ok"))
    result = await agent.run("go", session="s")
    assert [message.text for message in result.messages] == ["go", "by a handler", "ok"]
    assert [message.text for message in agent.model.requests[0].messages] == ["go", "by a handler"]  # type: ignore[attr-defined]
    await check_log(agent, "s", result.state)


async def test_a_handler_that_returns_no_state_is_named():
    class Forgetful:
        def handle(self, state: State, turn: Turn) -> Any:
            return None

    result = await agent_on(Pipeline.minimal().with_handler("after_step", Forgetful()), says("ok")).run("go")
    assert isinstance(result.outcome, Failed)
    assert "'Forgetful' returned NoneType" in result.outcome.error.message


async def test_a_handler_cannot_bring_a_state_from_elsewhere():
    class Inventive:
        def handle(self, state: State, turn: Turn) -> State:
            return State("elsewhere").record(MessageAdded(user("invented")))

    agent = agent_on(Pipeline.minimal().with_handler("after_step", Inventive()), says("ok"))
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Failed)
    assert "did not make by recording" in result.outcome.error.message
    await check_log(agent, "s", result.state)


def test_an_unknown_phase_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"'during'.*before_turn"):
        Pipeline.minimal().with_handler("during", Counting([]))  # type: ignore[arg-type]


def test_a_handler_that_cannot_handle_is_refused_when_it_is_added():
    with pytest.raises(ConfigError, match="handle"):
        Pipeline.minimal().with_handler("after_step", lambda state, turn: state)  # type: ignore[arg-type]


# ---------------------------------------------------------------- composites


def test_an_unknown_composite_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"'planner'.*executor"):
        Pipeline.minimal().with_composite("planner", DEFAULT.executor)


@pytest.mark.parametrize("name", Composites.__struct_fields__)
def test_no_core_phase_can_be_left_out(name):
    with pytest.raises(ConfigError, match=name):
        Pipeline.minimal().with_composite(name, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Composites(**{field: getattr(DEFAULT, field) for field in Composites.__struct_fields__ if field != name})


@pytest.mark.parametrize("name", Composites.__struct_fields__)
async def test_every_composite_can_be_replaced(name):
    made: list[Segment] = []
    usual = getattr(DEFAULT, name)

    def factory(segment: Segment) -> Any:
        made.append(segment)
        return usual(segment)

    pipeline = Pipeline.minimal().with_composite(name, factory)
    agent = agent_on(
        pipeline, calls("add", a=1, b=2), ServerError("no"), says("3"), errors=ErrorPolicy.retrying(delay=0)
    )
    result = await agent.run("go", session="s")
    assert result.text == "3"
    assert made
    await check_log(agent, "s", result.state)


async def test_another_runner_needs_no_model():
    class Canned:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment

        async def run(self, fold: Fold) -> Step:
            self.segment.record(ModelReplied(fold.steps + 1, ModelReply(assistant("canned")), paid=False))
            assert fold.open is not None
            return fold.open.step()

    agent = agent_on(Pipeline.minimal().with_composite("runner", Canned))
    result = await agent.run("go", session="s")
    assert result.text == "canned"
    assert agent.model.requests == []  # type: ignore[attr-defined]
    await check_log(agent, "s", result.state)


async def test_another_executor_gives_the_results():
    class Dry:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment

        async def execute(self, fold: Fold) -> None:
            assert fold.open is not None
            for call in fold.open.calls.values():
                self.segment.record(ToolReturned(call.call.id, call.call.name, text_result("would have run")))

    pipeline = Pipeline.minimal().with_composite("executor", Dry)
    agent = agent_on(pipeline, calls([("add", {"a": 1, "b": 2}), ("rm", {})]), says("ok"))
    result = await agent.run("go", session="s")
    assert [part.text for part in result.messages[2].parts] == ["would have run"] * 2  # type: ignore[union-attr]
    await check_log(agent, "s", result.state)


async def test_another_applier_decides_what_enters_the_transcript():
    class Shouting:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment

        async def apply(self, fold: Fold, step: Step) -> None:
            assert step.reply is not None
            self.segment.record(StepEnded(step.number, (assistant(step.reply.text.upper()),)))
            await self.segment.commit()

    agent = agent_on(Pipeline.minimal().with_composite("applier", Shouting), says("loud"))
    result = await agent.run("go", session="s")
    assert result.text == "LOUD"
    await check_log(agent, "s", result.state)


async def test_a_step_that_is_entered_again_does_not_run_a_finished_call_again():
    ran: list[int] = []

    @tool
    async def act(a: int) -> str:
        ran.append(a)
        return "done"

    class Shaky:
        failed = False

        def __init__(self, segment: Segment) -> None:
            self.inner = DEFAULT.applier(segment)

        async def apply(self, fold: Fold, step: Any) -> None:
            if not Shaky.failed:
                Shaky.failed = True
                raise ConnectionError("once")
            await self.inner.apply(fold, step)

    pipeline = Pipeline.minimal().with_composite("applier", Shaky)
    model = ScriptedModel(calls("act", a=1), says("ok"))
    agent = Agent(model, tools=[act], pipeline=pipeline, errors=ErrorPolicy(otherwise="retry", delay=0))
    result = await agent.run("go")
    assert (result.text, ran) == ("ok", [1])


async def test_another_evaluator_decides_whether_it_goes_on():
    class Thrice:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment

        async def evaluate(self, fold: Fold) -> Evaluated:
            vote = Vote.REQUEST if fold.steps < 3 else Vote.ALLOW_STOP
            evaluated = Evaluated(fold.steps, vote, (("thrice", ""),))
            self.segment.record(evaluated)
            return evaluated

    agent = agent_on(Pipeline.minimal().with_composite("evaluator", Thrice), says("a"), says("b"), says("c"))
    result = await agent.run("go", session="s")
    assert (result.text, result.state.steps) == ("c", 3)
    await check_log(agent, "s", result.state)


async def test_another_resolver_says_how_it_stops():
    class Strict:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment

        async def resolve(self, fold: Fold, evaluated: Evaluated) -> None:
            self.segment.conclude(Stopped(StopReason.FORBIDDEN, "one step is enough"))

    result = await agent_on(Pipeline.minimal().with_composite("resolver", Strict), calls("add", a=1, b=2)).run("go")
    assert result.outcome == Stopped(StopReason.FORBIDDEN, "one step is enough")


async def test_another_error_handler_has_the_say_over_errors():
    class Calm:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment

        async def handle(self, error: Exception, fold: Fold) -> None:
            self.segment.conclude(Stopped(StopReason.ERROR, f"calmly: {error}"), "sorry")

    result = await agent_on(Pipeline.minimal().with_composite("errors", Calm), ModelError("no")).run("go")
    assert result.outcome == Stopped(StopReason.ERROR, "calmly: no")
    assert result.text == "sorry"


async def test_another_lifecycle_opens_and_closes_the_turn():
    class Bare:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment

        async def start(self, fold: Fold) -> None:
            opened(fold)

        async def finish(self, fold: Fold) -> State:
            self.segment.record(TurnEnded(Completed(), "by the lifecycle"))
            return await self.segment.settle()

        async def failed(self, fold: Fold, error: BaseException) -> State:
            raise error

    agent = agent_on(Pipeline.minimal().with_composite("lifecycle", Bare), says("hi"))
    result = await agent.run("anything", session="s")
    assert result.text == "by the lifecycle"
    assert result.messages[0].text == "go"
    await check_log(agent, "s", result.state)


async def test_a_tool_that_another_lifecycle_took_out_of_the_session_is_not_run():
    class Narrow:
        def __init__(self, segment: Segment) -> None:
            self.segment = segment
            self.inner = DEFAULT.lifecycle(segment)

        async def start(self, fold: Fold) -> None:
            self.segment.record(SessionOpened("new", "a", self.segment.program.digest, tools=()))
            await self.inner.start(fold)

        async def finish(self, fold: Fold) -> State:
            return await self.inner.finish(fold)

        async def failed(self, fold: Fold, error: BaseException) -> State:
            return await self.inner.failed(fold, error)

    agent = agent_on(Pipeline.minimal().with_composite("lifecycle", Narrow), calls("add", a=1, b=2), says("no"))
    result = await agent.run("go", session="s")
    assert [part.status for part in result.messages[2].parts] == ["error"]  # type: ignore[union-attr]
    await check_log(agent, "s", result.state)


async def test_a_turn_that_is_not_over_ends_before_the_next_also_if_nothing_says_that_the_session_was_opened():
    agent = agent_on(Pipeline.minimal(), says("before"), says("after"))
    await agent.run("another session")
    proposed = assistant("").replace(parts=(ToolCallPart("add", '{"a":1,"b":2}', "s/1/1"),), id="s/1")
    begun = [TurnStarted(1, user("go"), "s/t1"), MessageAdded(), ModelReplied(1, ModelReply(proposed))]
    await agent.store.append("s", [record.replace(at=1.0) for record in begun], 0)
    result = await agent.run("go on", session="s")
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "user", "assistant"]
    await check_log(agent, "s", result.state)


# ---------------------------------------------------------------- each of the seven, alone


async def test_the_runner_asks_the_model_once_and_gives_the_step():
    agent = agent_on(Pipeline.minimal(), says("hi"))
    segment = segment_of(agent)
    step = await DEFAULT.runner(segment).run(segment.fold)
    assert (step.number, step.step().results) == (1, ())
    assert step.reply is not None
    assert step.reply.text == "hi"
    assert [type(record) for record in segment.fold.pending[3:]] == [ModelReplied]


async def test_the_runner_goes_on_with_an_open_step_without_asking_again():
    agent = agent_on(Pipeline.minimal())
    segment = proposing(segment_of(agent), '{"a":1,"b":2}')
    step = await DEFAULT.runner(segment).run(segment.fold)
    assert [result.text for result in step.step().results] == ["3"]
    assert agent.model.requests == []  # type: ignore[attr-defined]


async def test_the_runner_raises_what_the_model_raises():
    segment = segment_of(agent_on(Pipeline.minimal(), ModelError("no")))
    with pytest.raises(ModelError, match="no"):
        await DEFAULT.runner(segment).run(segment.fold)


async def test_the_executor_decides_all_calls_before_it_runs_the_first():
    segment = proposing(segment_of(agent_on(Pipeline.minimal())), '{"a":1,"b":2}', '{"a":3,"b":4}')
    await DEFAULT.executor(segment).execute(segment.fold)
    kinds = [type(record).__name__ for record in (await segment.program.store.read("s"))[4:]]
    kinds += [type(record).__name__ for record in segment.fold.pending]
    assert kinds[:2] == ["ToolDecided", "ToolDecided"]
    assert sorted(kinds[2:]) == ["ToolCalled", "ToolCalled", "ToolReturned", "ToolReturned"]
    assert segment.fold.open is not None
    assert [call.result.text for call in segment.fold.open.calls.values() if call.result] == ["3", "7"]


@pytest.mark.parametrize("arguments", [(), ('{"a":1,"b":2}',), ('{"a":1,"b":2}', '{"a":3,"b":4}')])
async def test_the_executor_leaves_finished_calls_as_they_are(arguments):
    segment = proposing(segment_of(agent_on(Pipeline.minimal())), *arguments)
    await DEFAULT.executor(segment).execute(segment.fold)
    before = segment.fold.seq
    await DEFAULT.executor(segment).execute(segment.fold)
    assert segment.fold.seq == before


async def test_the_executor_suspends_when_only_waiting_calls_are_left():
    agent = agent_on(Pipeline.minimal())
    agent.gate(ToolCalling, tool="add(a=*)")(lambda event: None)
    agent.gate(ToolCalling, tool=lambda call: call.arguments["a"] == 1)(lambda event: Ask("one?"))
    segment = proposing(segment_of(agent), '{"a":1,"b":2}', '{"a":3,"b":4}')
    await DEFAULT.executor(segment).execute(segment.fold)
    assert isinstance(segment.state.outcome, Suspended)
    assert [asked.id for asked in segment.state.waiting] == ["s/1/1"]
    assert segment.fold.open is not None
    assert [call.result for call in segment.fold.open.calls.values()] == [None, ToolResult(text_result("7").content)]
    resumed = Segment(
        agent._compile(), Fold.of(segment.state), Entry(answers={"s/1/1": Approve()}, resumed=True), claim_of("s", 2)
    )
    assert (await drive(resumed)).messages[2].parts[0].text == "3"  # type: ignore[union-attr]


async def test_the_executor_runs_nothing_when_one_call_is_halted():
    agent = agent_on(Pipeline.minimal())
    agent.gate(ToolCalling, tool=lambda call: call.arguments["a"] == 3)(lambda event: Halt("no three"))
    segment = proposing(segment_of(agent), '{"a":1,"b":2}', '{"a":3,"b":4}')
    await DEFAULT.executor(segment).execute(segment.fold)
    assert segment.fold.turn is not None
    assert segment.fold.turn.concluded == Stopped(StopReason.HALTED, "no three")
    assert segment.fold.open is not None
    assert {call.called for call in segment.fold.open.calls.values()} == {0}
    assert all(call.result is not None for call in segment.fold.open.calls.values())


async def test_the_applier_lets_reply_and_results_enter_at_once():
    segment = proposing(segment_of(agent_on(Pipeline.minimal())), '{"a":1,"b":2}')
    segment.record(ToolDecided("s/1/1", Allow()))
    segment.record(ToolReturned("s/1/1", "add", text_result("3")))
    assert segment.fold.open is not None
    await DEFAULT.applier(segment).apply(segment.fold, segment.fold.open.step())
    assert [message.role for message in segment.state.messages] == ["user", "assistant", "tool"]
    assert segment.state.steps == 1
    assert segment.state.open is None
    assert segment.state.pending == ()


async def test_the_applier_leaves_a_suspended_step_open():
    segment = proposing(segment_of(agent_on(Pipeline.minimal())), '{"a":1,"b":2}')
    segment.questions.suspend()
    before = segment.state
    await DEFAULT.applier(segment).apply(segment.fold, Step(1, None))
    assert segment.state == before


@pytest.mark.parametrize(
    ("criteria", "vote"),
    [
        ([], None),
        ([lambda state: None], None),
        ([lambda state: Vote.ALLOW], Vote.ALLOW),
        ([lambda state: Vote.ALLOW, lambda state: (Vote.FORBID, "why"), lambda state: Vote.REQUEST], Vote.FORBID),
        ([lambda state: Vote.ALLOW_STOP, lambda state: Vote.REQUEST], Vote.REQUEST),
    ],
)
async def test_the_evaluator_gives_the_strictest_vote(criteria, vote):
    segment = segment_of(agent_on(Pipeline(criteria=tuple(criteria))))
    evaluated = await DEFAULT.evaluator(segment).evaluate(segment.fold)
    assert evaluated.vote is vote
    assert segment.fold.turn is not None
    assert segment.fold.turn.evaluated == evaluated


@pytest.mark.parametrize("vote", [Vote.REQUEST, Vote.ALLOW])
async def test_the_resolver_goes_on_if_that_was_the_vote(vote):
    segment = segment_of(agent_on(Pipeline.minimal()))
    await DEFAULT.resolver(segment).resolve(segment.fold, Evaluated(1, vote))
    assert segment.state.going


@pytest.mark.parametrize(
    ("vote", "outcome"),
    [
        (Vote.ALLOW_STOP, Completed()),
        (None, Completed()),
        (Vote.FORBID, Stopped(StopReason.FORBIDDEN, "")),
    ],
)
async def test_the_resolver_concludes_if_that_was_the_vote(vote, outcome):
    segment = segment_of(agent_on(Pipeline.minimal()))
    await DEFAULT.resolver(segment).resolve(segment.fold, Evaluated(1, vote))
    assert segment.fold.turn is not None
    assert segment.fold.turn.concluded == outcome


async def test_the_resolver_lets_hooks_veto_a_stop_but_not_a_hard_limit():
    agent = agent_on(Pipeline.minimal([StepLimit(1)]))
    agent.gate(Stopping)(lambda event: Veto("go on"))
    segment = segment_of(agent)
    resolver = DEFAULT.resolver(segment)
    await resolver.resolve(segment.fold, Evaluated(1, Vote.ALLOW_STOP))
    assert segment.state.going
    assert segment.state.messages[-1].text == "go on"
    await resolver.resolve(segment.fold, Evaluated(1, Vote.FORBID, (("StepLimit", "1 of 1"),)))
    assert segment.fold.turn is not None
    assert segment.fold.turn.concluded == Stopped(StopReason.STEP_LIMIT, "StepLimit: 1 of 1")


async def test_the_error_handler_retries_within_its_bounds_and_then_halts():
    segment = segment_of(agent_on(Pipeline.minimal(), errors=ErrorPolicy.retrying(1, delay=0)))
    handler = DEFAULT.errors(segment)
    for attempt in (1, 2):
        error = ServerError("down")
        segment.failures.note_failed_call(FailedCall(error, segment.program.blank, 1, 1, attempt))
        assert segment.state.going
        await handler.handle(error, segment.fold)
    assert segment.fold.turn is not None
    assert isinstance(segment.fold.turn.concluded, Failed)
    log = await segment.program.store.read("s")
    assert [record.action for record in log if isinstance(record, ErrorHandled)] == ["retry", "halt"]


async def test_the_lifecycle_opens_closes_and_cleans_up():
    agent = agent_on(Pipeline.minimal())
    segment = Segment(agent._compile(), Fold("s"), Entry(user("go")), claim_of("s"))
    lifecycle = DEFAULT.lifecycle(segment)
    await lifecycle.start(segment.fold)
    assert segment.state.going
    assert [message.text for message in segment.state.messages] == ["go"]
    segment.conclude(Completed())
    state = await lifecycle.finish(segment.fold)
    assert (state.outcome, state.pending) == (Completed(), ())

    segment = proposing(Segment(agent._compile(), opened(Fold("t")), Entry(user("go")), claim_of("t")), '{"a":1,"b":2}')
    state = await DEFAULT.lifecycle(segment).failed(segment.fold, RuntimeError("broken"))
    assert isinstance(state.outcome, Failed)
    assert state.messages[-1].parts[0].status == "cancelled"  # type: ignore[union-attr]


async def test_the_loop_is_all_that_is_needed_to_run_them():
    agent = agent_on(Pipeline.minimal(), calls("add", a=1, b=2), says("3"))
    agent.gate(ModelCalling)(lambda event: None)
    states: list[State] = []

    async def emit(state: State) -> None:
        states.append(state)

    state = await drive(Segment(agent._compile(), Fold("s"), Entry(user("go")), claim_of("s")), emit)
    assert state.text == "3"
    assert [state.steps for state in states] == [1]
    await check_log(agent, "s", state)


async def test_two_models_of_one_name_are_refused():
    agent = Agent(ScriptedModel(says("mine")), models=[ScriptedModel(says("the other's"))])
    with pytest.raises(ConfigError, match="two models named 'scripted': its own model and one of its models="):
        await agent.run("go")
