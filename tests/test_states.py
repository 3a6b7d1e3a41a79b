"""States: after every phase of every kind of turn the state is what the log folds to, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    Deny,
    Edit,
    ErrorPolicy,
    Finish,
    Halt,
    Injected,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReply,
    ModelReplying,
    Pipeline,
    Regenerate,
    Reject,
    Respond,
    Resuming,
    Rewind,
    Slot,
    State,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopping,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    Usage,
    Veto,
    assistant,
    fold,
    tool,
    user,
)
from windlass._kernel.contracts import PHASES
from windlass.errors import ServerError
from windlass.records import MessageAdded, ModelReplied, SessionOpened, TurnEnded, TurnStarted, decode, encode
from windlass.states import CallFold, CallState, Fold, OpenStep, StepFold, TurnFold, TurnState
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, calls, says

from .checks import FrozenClock, check_log, only_this_task


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def wipe(path: str) -> str:
    """Wipe a path."""
    return f"wiped {path}"


@tool
async def breaks() -> str:
    """Break."""
    raise RuntimeError("broken")


HELLO = user("hi")
NOTES = Slot("notes", list[str], merge=lambda old, new: [*old, *new])


@tool
async def note(text: str, turn: Turn) -> str:
    """Write something down."""
    turn.set(NOTES, [text])
    turn.add(f"noted {text}")
    return "ok"


class Watcher:
    """Compares the state with the fold of the log in every phase, and says where they differ."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.seen: list[str] = []
        self.wrong: list[str] = []
        self.states: list[State] = []
        self.pipeline = Pipeline.minimal()
        for phase in PHASES:
            self.pipeline = self.pipeline.with_handler(phase, _Handler(self, phase))  # type: ignore[arg-type]

    def agent(self, *script: Any, tools: Any = (add, wipe, breaks), **options: Any) -> Agent:
        model = ScriptedModel(*script)
        return Agent(
            model, tools=tools, store=self.store, pipeline=self.pipeline, clock=FrozenClock(), name="watched", **options
        )

    async def compare(self, phase: str, state: State) -> None:
        self.seen.append(phase)
        self.states.append(state)
        log = await self.store.read(state.session)
        if fold(state.session, [*log, *state.pending]) != state.stored():
            self.wrong.append(f"{phase}: the log of {len(log)} and {len(state.pending)} records tells another state")
        if Fold.of(state).state != state:
            self.wrong.append(f"{phase}: Fold.of does not give the state back")


class _Handler:
    def __init__(self, watcher: Watcher, phase: str) -> None:
        self.watcher = watcher
        self.phase = phase

    async def handle(self, state: State, turn: Turn) -> State:
        await self.watcher.compare(self.phase, state)
        return state


Scenario = Callable[[Watcher], Awaitable[Any]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(tell: Scenario) -> Scenario:
    SCENARIOS[tell.__name__] = tell
    return tell


async def iterate(watcher: Watcher, agent: Agent, message: str | None = "go", **options: Any) -> State:
    """A turn by `iterate`, each of whose states is compared with the log."""
    last = None
    async for state in agent.iterate(message, session="s", **options):
        await watcher.compare("iterate", state)
        last = state
    assert last is not None
    return last


# ---------------------------------------------------------------- the scenarios


@scenario
async def plain_text(w: Watcher) -> None:
    await iterate(w, w.agent(says("hi")))


@scenario
async def several_steps_and_turns(w: Watcher) -> None:
    several = calls([("add", {"a": 1, "b": 1}), ("wipe", {"path": "x"})])
    agent = w.agent(calls("add", a=1, b=2), several, says("3"), "ok")
    await iterate(w, agent)
    await iterate(w, agent, "again")


@scenario
async def denied(w: Watcher) -> None:
    agent = w.agent(calls("wipe", path="/"), says("then not"))
    agent.gate(ToolCalling, tool="wipe")(lambda event: Deny("never"))
    await iterate(w, agent)


@scenario
async def rewritten_and_answered(w: Watcher) -> None:
    agent = w.agent(calls([("add", {"a": 1, "b": 2}), ("wipe", {"path": "x"})]), says("done"))
    agent.rewrite(ToolCalling, tool="add")(lambda event: event.call.replace(arguments={"a": 5, "b": 5}))
    agent.rewrite(ToolReturning, tool="add")(lambda event: "ten")
    agent.rewrite(ModelCalling)(lambda event: event.request.replace(system="Be brief."))
    agent.rewrite(ModelReplying)(lambda event: event.reply.replace(model="other"))
    agent.rewrite(TurnEnding)(lambda event: event.text.upper())
    await iterate(w, agent)


def asking(w: Watcher, *script: Any) -> Agent:
    agent = w.agent(*(script or (calls([("wipe", {"path": "x"}), ("add", {"a": 1, "b": 1})]), says("done"))))
    agent.gate(ToolCalling, tool="wipe")(lambda event: Ask("really?"))
    return agent


def answering(answer: Any) -> Scenario:
    async def tell(w: Watcher) -> None:
        agent = asking(w)
        suspended = await iterate(w, agent)
        (asked,) = suspended.waiting
        await iterate(w, agent, None, answers={asked.id: answer})

    return tell


SCENARIOS["suspended_and_approved"] = answering(Approve())
SCENARIOS["suspended_and_rejected"] = answering(Reject("no"))
SCENARIOS["suspended_and_edited"] = answering(Edit({"path": "y"}))
SCENARIOS["suspended_and_responded"] = answering(Respond("I did it myself"))


@scenario
async def answered_one_after_the_other(w: Watcher) -> None:
    agent = asking(w, calls([("wipe", {"path": "x"}), ("wipe", {"path": "y"})]), says("done"))
    first, second = (await iterate(w, agent)).waiting
    await iterate(w, agent, None, answers={second.id: Approve()})
    await iterate(w, agent, None)
    await iterate(w, agent, None, answers={first.id: Reject()})


@scenario
async def superseded(w: Watcher) -> None:
    agent = asking(w, calls("wipe", path="x"), says("about something else"))
    await iterate(w, agent)
    await iterate(w, agent, "never mind")


@scenario
async def a_turn_a_request_a_reply_and_an_ending_wait(w: Watcher) -> None:
    agent = w.agent(says("hi"))
    for event in (TurnStarting, ModelCalling, ModelReplying, TurnEnding):
        agent.gate(event, name=event.__name__)(lambda event: Ask("may I?"))
    state = await iterate(w, agent)
    for _ in range(4):
        state = await iterate(w, agent, None, answers={asked.id: Approve() for asked in state.waiting})
    assert state.text == "hi"


@scenario
async def asked_again_on_resume(w: Watcher) -> None:
    agent = asking(w)
    agent.gate(Resuming)(lambda event: Ask("still?"))
    state = await iterate(w, agent)
    state = await iterate(w, agent, None, answers={asked.id: Approve() for asked in state.waiting})
    await iterate(w, agent, None, answers={asked.id: Approve() for asked in state.waiting})


@scenario
async def regenerated(w: Watcher) -> None:
    agent = w.agent(calls("wipe", path="x"), says("bad"), says("good"))
    agent.gate(ModelReplying)(lambda event: None if event.reply.text == "good" else Regenerate("better"))
    await iterate(w, agent)


@scenario
async def regenerated_too_often(w: Watcher) -> None:
    agent = w.agent(*[says("bad")] * 5)
    agent.gate(ModelReplying)(lambda event: Regenerate("better"))
    await iterate(w, agent)


@scenario
async def vetoed(w: Watcher) -> None:
    agent = w.agent(says("a"), says("b"), says("c"))
    agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("more"))
    await iterate(w, agent)


@scenario
async def vetoed_too_often(w: Watcher) -> None:
    agent = w.agent(*[says("a")] * 9)
    agent.gate(Stopping)(lambda event: Veto("more"))
    await iterate(w, agent)


@scenario
async def rewound(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), calls("add", a=2, b=2), says("done"))
    agent.gate(StepEnding)(lambda event: Rewind(1, "not so") if event.step.number == 2 else None)
    await iterate(w, agent)


@scenario
async def halted_at_every_point(w: Watcher) -> None:
    for event in (TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, MessageAdding,
                  StepEnding, Stopping):  # fmt: skip
        agent = w.agent(calls("add", a=1, b=1), says("done"))
        agent.gate(event)(lambda event: Halt("enough", "sorry"))
        await iterate(w, agent)


@scenario
async def failing_at_every_point(w: Watcher) -> None:
    def fails(event: Any) -> Any:
        raise RuntimeError("the hook broke")

    for event in (TurnStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, MessageAdding, TurnEnding):
        for verb in ("gate", "rewrite"):
            agent = w.agent(calls("add", a=1, b=1), says("done"))
            getattr(agent, verb)(event)(fails)
            await iterate(w, agent)


@scenario
async def failed(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), ModelError("no"), says("recovered"))
    await iterate(w, agent)
    await iterate(w, agent, "again")


@scenario
async def retried(w: Watcher) -> None:
    script = ServerError("no"), calls("add", a=1, b=1), ServerError("no"), says("ok")
    agent = w.agent(*script, errors=ErrorPolicy.retrying(delay=0))
    await iterate(w, agent)


@scenario
async def retried_too_often(w: Watcher) -> None:
    await iterate(w, w.agent(*[ServerError("no")] * 5, errors=ErrorPolicy.retrying(2, delay=0)))


@scenario
async def a_failing_tool(w: Watcher) -> None:
    await iterate(w, w.agent(calls([("breaks", {}), ("add", {"a": 1, "b": 1}), ("nowhere", {})]), says("oh")))


@scenario
async def a_failing_tool_that_ends_the_turn(w: Watcher) -> None:
    several = calls([("add", {"a": 1, "b": 1}), ("breaks", {}), ("wipe", {"path": "x"})])
    await iterate(w, w.agent(several, errors=ErrorPolicy.strict()))


@scenario
async def limited(w: Watcher) -> None:
    await iterate(w, w.agent(*[calls("add", a=1, b=1)] * 9, criteria=[StepLimit(3)]))


@scenario
async def finished_by_a_hook(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1))
    agent.gate(ToolReturning)(lambda event: Finish({"sum": 2}))
    await iterate(w, agent)


@scenario
async def withheld(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), says("secret"))
    agent.gate(MessageAdding)(lambda event: Deny("secret") if event.message.role != "user" else None)
    agent.gate(TurnEnding)(lambda event: Deny("secret"))
    await iterate(w, agent)


@scenario
async def injected(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), says("done"), says("done"))
    agent.inject(TurnStarting)(lambda event: "of the turn")
    agent.inject(StepStarting)(lambda event: Injected("of the step", record=False))
    agent.inject(ToolCalling)(lambda event: "beside the result")
    agent.inject(ToolReturning)(lambda event: Injected("in the result", durable=True))
    agent.inject(StepEnding)(lambda event: Injected("for good", durable=True))
    await iterate(w, agent)
    await iterate(w, agent, "again")


@scenario
async def steered(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), calls("add", a=1, b=1), says("done"))
    await agent.store.put("s", "k0", "steer", "before it began")

    @agent.gate(ToolReturning)
    async def steer(event: ToolReturning) -> None:
        await agent.steer("s", f"by the way, after {event.call.id}")

    state = await iterate(w, agent)
    assert [m.text for m in state.messages if "by the way" in m.text] == [
        "by the way, after s/1/1",
        "by the way, after s/2/1",
    ]


@scenario
async def cancelled_from_outside(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), calls("add", a=1, b=1))

    @agent.gate(ToolReturning)
    async def cancel(event: ToolReturning) -> None:
        await agent.store.put("s", "k1", "cancel", "enough")

    await iterate(w, agent)


@scenario
async def left_by_its_reader(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), calls("add", a=1, b=1), says("done"))
    async with aclosing(agent.iterate("go", session="s")) as states:
        async for state in states:
            await w.compare("iterate", state)
            break


@scenario
async def cancelled_in_the_middle_of_a_tool(w: Watcher) -> None:
    started = asyncio.Event()

    @tool
    async def hangs() -> str:
        """Hang."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent = w.agent(calls([("add", {"a": 1, "b": 1}), ("hangs", {})]), tools=[add, hangs])
    running = asyncio.ensure_future(agent.run("go", session="s"))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@scenario
async def wrapped(w: Watcher) -> None:
    agent = w.agent(ModelError("once"), calls("breaks"), says("done"))

    @agent.wrap(ModelCall)
    async def again(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ModelError:
            return await call_next(request.replace(system="again"))

    @agent.wrap(ToolCall)
    async def patient(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except RuntimeError:
            return "never mind"

    await iterate(w, agent)


@scenario
async def with_slots_and_notes(w: Watcher) -> None:
    agent = w.agent(calls([("note", {"text": "a"}), ("note", {"text": "b"})]), says("done"), tools=[note])
    agent.slot(NOTES)
    state = await iterate(w, agent, slots={"notes": ["given"]})
    assert sorted(state.slots["notes"]) == ["a", "b", "given"]


@scenario
async def with_side_calls(w: Watcher) -> None:
    agent = w.agent(calls("add", a=1, b=1), says("done"))
    side = ScriptedModel("fine", "fine", "fine", name="side")

    @agent.gate(ModelReplying)
    async def critic(event: ModelReplying, turn: Turn) -> None:
        await turn.ask(side, "is it good?")

    await iterate(w, agent)


@scenario
async def a_session_that_is_closed_and_opened_again(w: Watcher) -> None:
    agent = w.agent(says("a"), says("b"))
    async with agent.session("s") as session:
        await session.run("one")
    await iterate(w, agent, "two")


# ---------------------------------------------------------------- what holds in all of them


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_log_folds_to_the_state_after_every_phase(name):
    watcher = Watcher()
    await SCENARIOS[name](watcher)
    assert watcher.wrong == []
    assert {"before_turn", "after_turn"} <= set(watcher.seen) or name.endswith("s_reader")
    agent = watcher.agent()
    for session in await watcher.store.sessions():
        await check_log(agent, session)
    assert await only_this_task()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_recording_one_by_one_is_folding_all_at_once(name):
    watcher = Watcher()
    await SCENARIOS[name](watcher)
    for session in await watcher.store.sessions():
        log = await watcher.store.read(session)
        assert State(session).record(*log).stored() == fold(session, log)
        state = State(session)
        for count, record in enumerate(log, 1):
            longer = state.record(record)
            assert longer.pending == (record,)
            assert longer.seq == count
            assert state == fold(session, log[: count - 1]), f"record {count} changed the state before it"
            state = longer.stored()
            assert state == fold(session, log[:count]), f"after record {count}, a {type(record).__name__}"
            assert Fold.of(state).state == state


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_state_that_was_handed_out_never_changes(name):
    watcher = Watcher()
    await SCENARIOS[name](watcher)
    for state in watcher.states:
        log = await watcher.store.read(state.session)
        assert fold(state.session, log[: state.seq]) == state.stored()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_log_that_was_written_down_and_read_again_tells_the_same_state(name):
    watcher = Watcher()
    await SCENARIOS[name](watcher)
    for session in await watcher.store.sessions():
        log = await watcher.store.read(session)
        read = [decode(encode(record)) for record in log]
        assert list(read) == list(log)
        assert fold(session, read) == fold(session, log)


# ---------------------------------------------------------------- the accumulator


@pytest.mark.parametrize(("value", "accumulator"), [(TurnState, TurnFold), (CallState, CallFold)])
def test_a_value_and_its_accumulator_have_the_same_fields(value, accumulator):
    assert value.__struct_fields__ == accumulator.__struct_fields__
    assert value.__struct_defaults__ == accumulator.__struct_defaults__


def test_an_open_step_and_its_accumulator_have_the_same_fields():
    assert {*StepFold.__struct_fields__} - {"made", "versions"} == {*OpenStep.__struct_fields__}
    assert {*Fold.__match_args__} | {"seq"} == {*State.__struct_fields__}


def test_the_fold_of_nothing_is_a_session_that_has_not_begun():
    assert fold("s", []) == State("s")
    assert Fold.of(State("s")).state == State("s")
    assert fold("s", []).over
    assert not fold("s", []).going


usages = st.builds(
    Usage, input=st.integers(0, 100), output=st.integers(0, 100), cost=st.none() | st.floats(0, 1, allow_nan=False)
)


@given(st.lists(st.lists(usages, min_size=1, max_size=3), min_size=1, max_size=4))
def test_what_was_spent_is_the_same_whether_it_is_recorded_or_folded(turns):
    log: list[Any] = [SessionOpened()]
    for number, spent in enumerate(turns, 1):
        log += [TurnStarted(number, HELLO, f"s/t{number}"), MessageAdded()]
        log += [ModelReplied(1, ModelReply(assistant("a"), usage)) for usage in spent]
        log.append(TurnEnded(Completed()))
    state = State("s")
    for count, record in enumerate(log, 1):
        state = state.record(record).stored()
        assert state.usage == fold("s", log[:count]).usage
        assert state == fold("s", log[:count])
    assert state.usage.requests == sum(len(spent) for spent in turns)


def test_a_session_can_be_summed_up_at_any_moment():
    state = State("s").record(SessionOpened(), TurnStarted(1, HELLO, "s/t1"), MessageAdded())
    assert state.going
    assert not state.over
    assert state.outcome is None
    assert state.stop_reason is None
    assert state.text == ""
    assert state.waiting == ()
    assert len(state.pending) == 3
    assert state.stored().pending == ()


# ---------------------------------------------------------------- the cost of a step


async def test_the_records_of_a_step_do_not_grow_with_the_history():
    steps = 60
    agent = Agent(
        ScriptedModel(*[calls("add", a=1, b=2)] * steps, says("done")), tools=[add], clock=FrozenClock(), name="a"
    )
    agent.gate(ToolCalling)(lambda event: None)
    agent.gate(ModelCalling)(lambda event: None)
    await agent.run("go", session="s")
    sizes: list[int] = []
    size = 0
    for record in await agent.store.read("s"):
        size += len(encode(record))
        if type(record).__name__ == "StepEnded":
            sizes.append(size)
            size = 0
    assert len(sizes) == steps + 1
    assert len(set(sizes[9:steps])) == 1, sizes


async def test_a_hook_that_says_nothing_writes_nothing():
    async def written(hooks: int) -> int:
        agent = Agent(ScriptedModel(*[calls("add", a=1, b=2)] * 3, says("done")), tools=[add], clock=FrozenClock())
        for event in (TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, StepEnding):
            for _ in range(hooks):
                agent.gate(event)(lambda event: None)
        await agent.run("go", session="s")
        return len(await agent.store.read("s"))

    assert await written(0) == await written(1) == await written(5)
