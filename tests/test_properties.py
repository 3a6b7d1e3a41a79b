"""What holds whatever happens: the order of gates, the speed of tools and the way out change nothing that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from windlass import (
    Agent,
    Answer,
    Approve,
    Ask,
    Delegating,
    Deny,
    Edit,
    ErrorPolicy,
    Finish,
    Halt,
    MessageAdding,
    ModelError,
    ModelReplying,
    Regenerate,
    Reject,
    Respond,
    Result,
    Rewind,
    Slot,
    State,
    StepEnding,
    StepLimit,
    Stopping,
    SubagentStopping,
    Suspended,
    TokenLimit,
    ToolCalling,
    ToolReturning,
    Turn,
    tool,
)
from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass._hooks.hooks import Hook
from windlass.decisions import Allow
from windlass.events import EVENTS, Erring, Resuming, StepStarting, TurnStarting
from windlass.records import ErrorHandled, Evaluated, HookDecided, Rewound, ToolCalled, ToolDecided, ToolReturned
from windlass.testing import FunctionModel, ScriptedModel, calls, says, without_times
from windlass.testing.strategies import answers_to

from .checks import FrozenClock, check_log, only_this_task, unpaired

# ---------------------------------------------------------------- any order of gates


def doings_at(event: Any) -> st.SearchStrategy[Any]:
    """Anything that a gate on this event may do: one of its decisions, silence, or an exception."""
    return answers_to(event) | st.just(RuntimeError("the gate broke"))


def gate_that(answer: Any) -> Any:
    def gate(event: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return gate


class Site:
    """The least that an event needs of what surrounds it."""

    reserve = 1000
    clock = FrozenClock()
    monotonic = staticmethod(clock.monotonic)

    def __init__(self) -> None:
        self.records: list[Any] = []

    def record(self, record: Any) -> None:
        self.records.append(record)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_any_order_of_gates_gives_the_same_verdict(event):
    async def verdict(answers: Sequence[tuple[str, Any]]) -> Any:
        hooks = [Hook("gate", event, gate_that(answer), {"name": name}) for name, answer in answers]
        for hook in hooks:
            hook.bind({})
        passage = Passage(Point(event, hooks), None, Site(), "about")  # type: ignore[arg-type]
        return await passage.judge(), sorted(passage.answers, key=lambda item: item[0])

    @settings(max_examples=60)
    @given(st.data())
    def holds(data):
        answers = data.draw(st.lists(doings_at(event), min_size=2, max_size=5))
        named = [(f"gate{number}", answer) for number, answer in enumerate(answers)]
        shuffled = data.draw(st.permutations(named))
        assert asyncio.run(verdict(named)) == asyncio.run(verdict(shuffled))

    holds()


HAPPENING = [event for event in EVENTS if event.__name__ != "Compacting"]


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def wipe(path: str) -> str:
    """Wipe a path."""
    return f"wiped {path}"


def decisions_in(log: Sequence[Any]) -> list[Any]:
    """What was decided, up to the order in which gates were asked."""
    found: list[Any] = []
    for record in log:
        match record:
            case HookDecided(event=event, about=about, verdict=verdict, answers=answers):
                found.append((event, about, verdict, sorted(answers, key=lambda item: item[0])))
            case ToolDecided(call=call, verdict=verdict, answers=answers):
                found.append((call, verdict, sorted(answers, key=lambda item: item[0])))
            case Evaluated() | ErrorHandled():
                found.append(without_times(record))
            case _:
                pass
    return found


@pytest.mark.parametrize("event", HAPPENING, ids=lambda event: event.__name__)
def test_any_order_of_gates_gives_the_same_turn_and_the_same_record_of_it(event):
    async def told(gates: Sequence[tuple[str, Any]]) -> Any:
        first = calls("child", task="go") if event in (Delegating, SubagentStopping) else calls("add", a=1, b=2)
        script = [first, *([ModelError("no")] if event is Erring else []), *[says("done")] * 9]
        child = Agent(ScriptedModel(*[says("done")] * 9), name="child")
        agent = Agent(
            ScriptedModel(*script),
            tools=[add, child.as_tool()],
            clock=FrozenClock(),
            name="a",
            criteria=[StepLimit(4)],
            errors=ErrorPolicy(retries=1, delay=0),
        )
        if event is Resuming:
            agent.gate(StepStarting, name="before")(lambda event: None)
            agent.gate(ToolCalling, name="asking")(lambda event: Ask("sure?"))
        for name, answer in gates:
            agent.gate(event, name=name)(gate_that(answer))
        result = await agent.run("go", session="s")
        if event is Resuming:
            answers = {asked.id: Approve() for asked in result.waiting_for}
            result = await agent.resume("s", answers=answers)
        log = [*await agent.store.read("s"), *await agent.store.read("s/1/1")]
        return decisions_in(log), result.outcome, result.partial_text, list(result.messages), result.waiting_for

    @settings(max_examples=20)
    @given(st.data())
    def holds(data):
        answers = data.draw(st.lists(doings_at(event), min_size=2, max_size=3))
        named = [(f"gate{number}", answer) for number, answer in enumerate(answers)]
        assert asyncio.run(told(named)) == asyncio.run(told(data.draw(st.permutations(named))))

    holds()


@pytest.mark.parametrize("event", [StepEnding, Stopping])
async def test_gates_that_answer_alike_are_named_in_one_order(event):
    async def told(names: Sequence[str]) -> Any:
        agent = Agent(ScriptedModel(says("a"), says("b"), says("c")), clock=FrozenClock(), criteria=[StepLimit(3)])
        for name in names:
            answer = RuntimeError("broken") if event is Stopping else Rewind(1)
            agent.gate(event, name=name)(gate_that(answer))
        result = await agent.run("go", session="s")
        rewound = [record.by for record in await agent.store.read("s") if isinstance(record, Rewound)]
        return result.outcome, rewound

    assert await told(["x", "y"]) == await told(["y", "x"])


# ---------------------------------------------------------------- any speed of tools

NOTES = Slot("notes", dict[str, int], merge=lambda old, new: {**old, **new})
KINDS = ["work", "barrier", "breaks", "plain", "denied", "noting", "adding", "nowhere", "withheld", "broken json"]


class Workshop:
    """Tools that take as many turns of the event loop as they are told, so that any order of ends can be had."""

    def __init__(self, delays: Sequence[int]) -> None:
        self.delays = delays
        self.running: list[int] = []
        self.beside_barrier: list[int] = []

    async def takes_its_time(self, n: int) -> None:
        self.running.append(n)
        for _ in range(self.delays[n]):
            await asyncio.sleep(0)
        self.running.remove(n)

    def agent(self, called: Sequence[str], **options: Any) -> Agent:
        return Agent(
            ScriptedModel(calls([_call(name, n) for n, name in enumerate(called)]), says("done")),
            tools=self.tools(),
            clock=FrozenClock(),
            name="workshop",
            **options,
        )

    def tools(self) -> list[Any]:
        @tool
        async def work(n: int) -> int:
            """Work."""
            await self.takes_its_time(n)
            return n

        @tool(sequential=True)
        async def barrier(n: int) -> int:
            """Work alone."""
            self.beside_barrier += self.running
            await self.takes_its_time(n)
            self.beside_barrier += self.running
            return n

        @tool
        async def breaks(n: int) -> int:
            """Break."""
            await self.takes_its_time(n)
            raise RuntimeError(f"broken {n}")

        @tool(effect="pure", inline=True)
        def plain(n: int) -> int:
            """Work at once."""
            return n

        @tool
        async def denied(n: int) -> int:
            """Never run."""
            pytest.fail("a denied tool ran")

        @tool
        async def noting(n: int, turn: Turn) -> int:
            """Write a note into a slot."""
            await self.takes_its_time(n)
            turn.set(NOTES, {str(n): n})
            return n

        @tool
        async def adding(n: int, turn: Turn) -> int:
            """Add a message."""
            await self.takes_its_time(n)
            turn.add(f"added by {n}")
            return n

        @tool
        async def withheld(n: int) -> int:
            """Give a result that nobody may see."""
            await self.takes_its_time(n)
            return n

        return [work, barrier, breaks, plain, denied, noting, adding, withheld]


def _call(name: str, n: int) -> tuple[str, Any]:
    return ("work", "{oops") if name == "broken json" else (name, {"n": n})


async def tell(called: Sequence[str], delays: Sequence[int], **options: Any) -> tuple[Any, ...]:
    workshop = Workshop(delays)
    agent = workshop.agent(called, **options)
    agent.slot(NOTES)
    agent.gate(ToolCalling, tool="denied")(lambda event: Deny("never"))
    agent.gate(ToolReturning, tool="withheld")(lambda event: Deny("secret"))

    @agent.rewrite(ToolReturning, tool="work")
    async def slowly(event: ToolReturning) -> str:
        await asyncio.sleep(0)
        return f"<{event.result.text}>"

    result = await agent.run("go", session="s")
    assert workshop.beside_barrier == []
    await check_log(agent, "s", result.state)
    chains: dict[str, list[str]] = {}
    for record in await agent.store.read("s"):
        if isinstance(record, ToolDecided | ToolCalled | ToolReturned):
            chains.setdefault(record.call, []).append(type(record).__name__)
    assert list(result.state.slots.get("notes", {}).values()) == list(map(int, result.state.slots.get("notes", {})))
    slots = {name: dict(sorted(value.items())) for name, value in result.state.slots.items()}
    return list(result.messages), result.outcome, result.partial_text, slots, chains


jobs = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 6)), min_size=1, max_size=7)


@settings(max_examples=80)
@given(jobs.filter(lambda jobs: sum(name == "adding" for name, _ in jobs) < 2), st.sampled_from([1, 2, 16]))
async def test_any_interleaving_of_parallel_tools_gives_the_same_transcript(jobs, max_parallel):
    called = [name for name, _ in jobs]
    swift = await tell(called, [0] * len(called))
    slow = await tell(called, [delay for _, delay in jobs], max_parallel=max_parallel)
    assert slow == swift
    assert await only_this_task()


async def test_messages_that_parallel_tools_add_stand_in_the_order_of_the_calls():
    swift = await tell(["adding"] * 3, [0, 0, 0])
    for delays in permutations([0, 2, 4]):
        assert await tell(["adding"] * 3, delays) == swift


async def test_several_halts_of_parallel_results_are_one_whatever_came_first():
    async def outcome(delays: Sequence[int]) -> Any:
        agent = Workshop(delays).agent(["work"] * 3)
        agent.gate(ToolReturning)(lambda event: Halt(f"because of {event.call.id}"))
        result = await agent.run("go", session="s")
        assert unpaired(result.messages) == []
        return result.outcome, list(result.messages)

    swift = await outcome([0, 0, 0])
    for delays in permutations([0, 2, 4]):
        assert await outcome(delays) == swift


async def test_of_several_finishes_that_of_the_first_call_counts():
    agent = Workshop([3] * 12).agent(["work"] * 12)
    agent.gate(ToolReturning)(lambda event: Finish(event.result.text) if event.call.arguments["n"] > 0 else None)
    result = await agent.run("go", session="s")
    assert result.text == "1"


class Count(Struct):
    n: int = 0


@pytest.mark.parametrize("called", [("first", "second"), ("first", "first")])
async def test_two_parallel_writers_of_a_slot_without_a_merge_rule_conflict_whoever_comes_first(called):
    slot = Slot("count", Count)

    async def told(delays: Sequence[int]) -> Any:
        def writer(name: str) -> Any:
            @tool(name=name)
            async def write(n: int, turn: Turn) -> str:
                """Write."""
                for _ in range(delays[n]):
                    await asyncio.sleep(0)
                turn.set(slot, Count(n + 1))
                return "written"

            return write

        script = calls([(name, {"n": n}) for n, name in enumerate(called)]), says("done")
        agent = Agent(ScriptedModel(*script), tools=[writer("first"), writer("second")], clock=FrozenClock())
        agent.slot(slot)
        result = await agent.run("go", session="s")
        return list(result.messages), result.outcome, result.state.slots

    assert "slot 'count'" in str(await told([0, 3])), "nobody was told of the conflict"
    assert await told([0, 3]) == await told([3, 0])


# ---------------------------------------------------------------- no way out leaves a call without its result

TOOLS = ["add", "wipe", "asks", "denied", "halts", "answered", "breaks", "finishes", "withheld", "stops", "gate breaks"]


class House:
    """An agent in which every kind of call can be made, and every kind of trouble can be had."""

    def __init__(self, script: Sequence[Any], policy: str, limit: int | None, guard: str) -> None:
        self.guard = guard
        self.agent = Agent(
            ScriptedModel(*script, *[says("the end")] * 3),
            tools=[self.make(name) for name in TOOLS],
            clock=FrozenClock(),
            name="house",
            errors=POLICIES[policy],
            criteria=[] if limit is None else [StepLimit(limit), TokenLimit(10_000)],
            max_regenerations=1,
        )
        agent = self.agent
        agent.gate(ToolCalling, tool="asks")(lambda event: Ask("sure?"))
        agent.gate(ToolCalling, tool="denied")(lambda event: Deny("no"))
        agent.gate(ToolCalling, tool="halts")(lambda event: Halt("enough"))
        agent.gate(ToolCalling, tool="answered")(lambda event: Answer("here you are"))
        agent.gate(ToolCalling, tool="gate_breaks")(gate_that(RuntimeError("broken gate")))
        agent.gate(ToolReturning, tool="finishes")(lambda event: Finish("that is all"))
        agent.gate(ToolReturning, tool="withheld")(lambda event: Deny("secret"))
        agent.gate(ToolReturning, tool="stops")(lambda event: Halt("seen enough"))
        agent.gate(ModelReplying)(lambda event: Regenerate("again") if event.reply.text == "bad" else None)
        agent.gate(StepEnding)(lambda event: Rewind(1, "back") if _said(event) == "rewind" else None)
        if guard != "none":
            agent.gate(MessageAdding)(self.door)

    def make(self, name: str) -> Any:
        async def run(n: int = 0) -> str:
            await asyncio.sleep(0)
            if name == "breaks":
                raise RuntimeError("broken")
            return f"{name} {n}"

        return tool(name=name.replace(" ", "_"), description="Do it.")(run)

    def door(self, event: MessageAdding) -> Any:
        what, _, role = self.guard.partition(" ")
        if event.message.role != role:
            return None
        return {"deny": Deny("not in here"), "halt": Halt("not in here")}.get(what) or gate_that(RuntimeError(what))(0)


def _said(event: StepEnding) -> str:
    return event.step.reply.text if event.step.reply is not None else ""


POLICIES = {
    "usual": ErrorPolicy(delay=0),
    "strict": ErrorPolicy.strict(),
    "retrying": ErrorPolicy.retrying(1, delay=0),
    "retrying all": ErrorPolicy(actions={"tool": "retry"}, otherwise="retry", retries=1, delay=0),
    "ignoring": ErrorPolicy(otherwise="ignore", delay=0),
}
arguments = st.sampled_from(["{}", '{"n":1}', '{"n":"x"}', "{oops", "[]", "", "null", '{"m":1}'])
names = st.sampled_from([*TOOLS, "nowhere", ""]).map(lambda name: name.replace(" ", "_"))
replies = st.one_of(
    st.lists(st.tuples(names, arguments), min_size=1, max_size=4).map(calls),
    st.lists(st.tuples(names, arguments), min_size=1, max_size=3).map(lambda made: calls(made, _text="rewind")),
    st.lists(st.tuples(names, arguments), min_size=1, max_size=2).map(lambda made: calls(made, _text="bad")),
    st.sampled_from([says("done"), says(""), says("bad"), says("cut off", finish="length")]),
    st.builds(ModelError, st.just("no model")),
    st.builds(ValueError, st.just("odd")),
)
resolutions = st.sampled_from([Approve(), Reject(), Reject("no"), Edit({"n": 2}), Edit({"bad": 2}), Respond("I did")])
guards = st.sampled_from(
    ["none"] * 6 + [f"{what} {role}" for what in ("deny", "halt", "break") for role in ("user", "assistant", "tool")]
)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.none()),
        st.tuples(st.just("break"), st.integers(0, 2)),
        st.tuples(st.just("cancel"), st.integers(0, 12)),
        st.tuples(st.just("resume"), st.lists(st.none() | resolutions, min_size=4, max_size=4)),
        st.tuples(st.just("resume"), st.lists(resolutions, min_size=4, max_size=4)),
    ),
    min_size=1,
    max_size=4,
)


async def move(agent: Agent, kind: str, detail: Any) -> Result | None:
    """One thing that a caller does with the session."""
    suspended = "s" in await agent.store.sessions() and isinstance((await agent.state("s")).outcome, Suspended)
    if kind == "resume" and suspended:
        waiting = (await agent.state("s")).waiting
        given = {asked.id: answer for asked, answer in zip(waiting, detail, strict=False) if answer is not None}
        return await agent.resume("s", answers=given)
    if kind == "break":
        async with aclosing(agent.iterate("go", session="s")) as states:
            seen = 0
            async for state in states:
                assert unpaired(state.messages) == []
                if seen == detail:
                    break
                seen += 1
        return None
    if kind == "cancel":
        running = asyncio.ensure_future(agent.run("go", session="s"))
        for _ in range(detail):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        return None if running.cancelled() else running.result()
    return await agent.run("go", session="s")


@settings(max_examples=250)
@given(
    st.lists(replies, min_size=1, max_size=5),
    st.sampled_from(sorted(POLICIES)),
    st.none() | st.integers(1, 3),
    guards,
    moves,
)
async def test_no_way_out_leaves_a_call_without_its_result(script, policy, limit, guard, moves):
    house = House(script, policy, limit, guard)
    for kind, detail in moves:
        result = await move(house.agent, kind, detail)
        if "s" in await house.agent.store.sessions():
            state = await check_log(house.agent, "s", None if result is None else result.state)
            assert state.outcome is not None, "the turn was left without an outcome"
            assert state.over or isinstance(state.outcome, Suspended)
            assert (state.open is not None) <= isinstance(state.outcome, Suspended)
    assert await only_this_task()


async def test_a_reader_that_leaves_without_a_word_leaves_a_closed_turn():
    agent = House([calls([("add", {}), ("wipe", {})])] * 3, "usual", None, "none").agent
    async for state in agent.iterate("go", session="s"):
        assert state.steps == 1
        break
    for _ in range(50):
        await asyncio.sleep(0)
    assert await only_this_task()
    state = await check_log(agent, "s")
    assert state.over
    assert (await agent.run("again", session="s")).messages[-1].role == "assistant"


@pytest.mark.parametrize("turns", range(30))
async def test_a_turn_that_is_cancelled_at_any_moment_is_closed(turns):
    script = [calls([("add", {}), ("wipe", {}), ("breaks", {})])] * 2
    agent = House(script, "usual", None, "none").agent
    running = asyncio.ensure_future(agent.run("go", session="s"))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert await only_this_task()
    if "s" in await agent.store.sessions():
        state = await check_log(agent, "s")
        assert state.over
        assert (await agent.run("again", session="s")).state.over


async def test_a_reply_that_nobody_has_judged_yet_does_not_enter_the_transcript_when_the_turn_is_cancelled():
    judging = asyncio.Event()
    agent = Agent(ScriptedModel(says("unjudged")), clock=FrozenClock())

    @agent.gate(ModelReplying)
    async def slow(event: ModelReplying) -> None:
        judging.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(agent.run("go", session="s"))
    await judging.wait()
    running.cancel()
    await asyncio.wait([running])
    assert [message.role for message in (await agent.state("s")).messages] == ["user"]


async def test_a_reply_that_waits_for_approval_does_not_enter_the_transcript_when_the_user_goes_on():
    agent = Agent(ScriptedModel(calls("add", a=1, b=1), says("fine")), tools=[add], clock=FrozenClock())
    agent.gate(ModelReplying)(lambda event: Ask("may it say so?") if event.reply.tool_calls else None)
    assert isinstance((await agent.run("go", session="s")).outcome, Suspended)
    result = await agent.run("never mind", session="s")
    assert [message.role for message in result.messages] == ["user", "user", "assistant"]


async def test_what_a_superseded_step_leaves_behind_goes_past_the_guard_too():
    agent = Agent(ScriptedModel(calls("wipe", path="x", _text="secret"), says("fine")), tools=[wipe])
    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    seen: list[str] = []

    @agent.gate(MessageAdding, band="guard")
    def door(event: MessageAdding) -> Allow | None:
        seen.append(event.message.role)
        return None

    await agent.run("go", session="s")
    result = await agent.run("never mind", session="s")
    assert seen == [message.role for message in result.messages]


async def test_what_a_hook_added_before_a_suspension_is_there_after_it():
    agent = Agent(ScriptedModel(calls("wipe", path="x"), says("fine")), tools=[wipe])

    @agent.gate(ToolCalling)
    def ask(event: ToolCalling, turn: Turn) -> Ask:
        turn.add("a note from the gate")
        return Ask("sure?")

    suspended = await agent.run("go", session="s")
    result = await agent.resume("s", answers={asked.id: Approve() for asked in suspended.waiting_for})
    assert [message.text for message in result.messages].count("a note from the gate") == 1


# ---------------------------------------------------------------- many at once


async def test_many_sessions_at_once_do_not_disturb_each_other():
    async def answer(request: Any) -> Any:
        await asyncio.sleep(0)
        asked = request.messages[0].text
        return says(asked) if request.messages[-1].role == "tool" else calls("wipe", path=asked)

    agent = Agent(FunctionModel(answer), tools=[wipe], clock=FrozenClock())
    agent.gate(TurnStarting)(lambda event: None)
    results = await asyncio.gather(*[agent.run(f"m{n}", session=f"s{n}") for n in range(100)])
    for n, result in enumerate(results):
        assert result.text == f"m{n}"
        state: State = await check_log(agent, f"s{n}", result.state)
        assert state.messages[2].parts[0].text == f"wiped m{n}"  # type: ignore[union-attr]
    assert await only_this_task()
