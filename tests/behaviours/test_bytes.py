"""What silence costs: a hook that says nothing writes nothing, and a step's bytes depend on that step alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    Continuing,
    Deny,
    Edit,
    Erring,
    ErrorPolicy,
    Halt,
    MessageAdding,
    ModelCall,
    ModelCalled,
    ModelCalling,
    ModelError,
    ModelReplied,
    ModelReplying,
    Regenerate,
    Reject,
    Respond,
    Resumed,
    Resuming,
    Says,
    SessionOpened,
    SessionStarting,
    Step,
    StepEnded,
    StepEnding,
    StepLimit,
    StepStarted,
    StepStarting,
    Stopping,
    Suspended,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarted,
    TurnStarting,
    Veto,
    tool,
)
from windlass.errors import ToolError
from windlass.records import encode
from windlass.testing import ScriptedModel, calls, says

SESSION = "s1"


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def fail() -> str:
    """Fail."""
    raise ToolError("the disk is full")


def no_word(event: Any) -> None:
    """Say nothing."""


async def no_word_later(event: Any, turn: Any) -> None:
    """Say nothing, and take one's time."""


# ---------------------------------------------------------------- twenty hooks that say nothing, one set per verb


EVENTS = [
    SessionStarting, TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning,
    MessageAdding, StepEnding, Continuing, Stopping, Resuming, Erring, TurnEnding,
]  # fmt: skip


def gates(agent: Agent[Any, Any]) -> None:
    for event in EVENTS:
        agent.gate(event)(no_word)
        agent.gate(event)(no_word_later)


def shadow_and_costly_gates(agent: Agent[Any, Any]) -> None:
    for event in EVENTS:
        agent.gate(event, mode="shadow")(no_word)
        agent.gate(event, costly=True)(no_word_later)


def injections(agent: Agent[Any, Any]) -> None:
    for event in EVENTS:
        if event.injects is not None:
            for verb in (no_word, no_word_later):
                agent.inject(event)(verb)
                agent.inject(event, group="together")(verb)


def rewrites_that_return_none(agent: Agent[Any, Any]) -> None:
    for event in EVENTS:
        if event.payload is not None:
            agent.rewrite(event)(no_word)
            agent.rewrite(event)(no_word_later)


def rewrites_that_return_what_they_got(agent: Agent[Any, Any]) -> None:
    for event in EVENTS:
        if (payload := event.payload) is not None:
            agent.rewrite(event)(lambda event, payload=payload: getattr(event, payload))


def rewrites_that_return_an_equal_payload(agent: Agent[Any, Any]) -> None:
    agent.rewrite(SessionStarting)(lambda event: event.setup.replace(system=str(event.setup.system)))
    agent.rewrite(TurnStarting)(lambda event: event.message.replace(parts=(*event.message.parts,)))
    agent.rewrite(TurnStarting)(lambda event: event.message.text)
    agent.rewrite(ModelCalling)(lambda event: event.request.replace(messages=list(event.request.messages)))
    agent.rewrite(ModelCalling)(lambda event: event.request.replace(tools=list(event.request.tools)))
    agent.rewrite(ModelReplying)(lambda event: event.reply.replace())
    agent.rewrite(ModelReplying)(lambda event: event.reply.message)
    agent.rewrite(ToolCalling)(lambda event: event.call.replace(arguments=event.call.arguments))
    agent.rewrite(ToolCalling)(lambda event: event.call.arguments)
    agent.rewrite(ToolReturning)(lambda event: event.result.replace())
    agent.rewrite(MessageAdding)(lambda event: event.message.replace())
    agent.rewrite(TurnEnding)(lambda event: "".join(list(event.text)))


def combined_hooks(agent: Agent[Any, Any]) -> None:
    for event in EVENTS:
        agent.hook(event)(no_word)
        agent.hook(event)(lambda event: Says())


def wraps(agent: Agent[Any, Any]) -> None:
    for effect in (ModelCall, ToolCall, Step, Turn):
        for _ in range(3):

            @agent.wrap(effect)
            async def around(value: Any, call_next: Any) -> Any:
                return await call_next(value)

        @agent.wrap(effect)
        async def around_with_turn(value: Any, call_next: Any, turn: Any) -> Any:
            return await call_next(value)

        @agent.wrap(effect)
        def around_in_a_thread(value: Any, call_next: Any) -> Any:
            return call_next(value)


def observers(agent: Agent[Any, Any]) -> None:
    facts = [SessionOpened, TurnStarted, StepStarted, ModelCalled, ModelReplied, ToolCalled, ToolReturned]
    for fact in [*facts, StepEnded, TurnEnded, Suspended, Resumed]:
        agent.observe(fact)(no_word)
        agent.observe(fact)(no_word_later)
        agent.observe(fact, wait=True)(no_word_later)
    agent.observe(TurnEnded, durable=True)(no_word)


def transformers(agent: Agent[Any, Any]) -> None:
    for channel in ("text", "thinking", "arguments"):
        for _ in range(7):

            @agent.transform(channels=(channel,))
            class Same:
                def feed(self, text: str) -> Any:
                    yield text

                def flush(self) -> Any:
                    return ()


def everything(agent: Agent[Any, Any]) -> None:
    for install in SILENCES[:-1]:
        install(agent)


SILENCES: list[Callable[[Agent[Any, Any]], None]] = [
    gates,
    shadow_and_costly_gates,
    injections,
    rewrites_that_return_none,
    rewrites_that_return_what_they_got,
    rewrites_that_return_an_equal_payload,
    combined_hooks,
    wraps,
    observers,
    transformers,
    everything,
]


# ---------------------------------------------------------------- turns to compare


async def plain(agent: Agent[Any, Any]) -> Any:
    return await agent.run("go", session=SESSION)


async def two_turns(agent: Agent[Any, Any]) -> Any:
    await agent.run("go", session=SESSION)
    return await agent.run("on", session=SESSION)


def answering(answer: Any) -> Callable[[Agent[Any, Any]], Any]:
    async def suspended(agent: Agent[Any, Any]) -> Any:
        result = await agent.run("go", session=SESSION)
        assert isinstance(result.outcome, Suspended)
        result = await agent.resume(SESSION, answers={asked.id: answer for asked in result.waiting_for})
        assert not isinstance(result.outcome, Suspended)
        return result

    return suspended


def nobody(agent: Agent[Any, Any]) -> None:
    """No hook speaks."""


def somebody(verb: str, event: type, answer: Callable[[Any], Any]) -> Callable[[Agent[Any, Any]], None]:
    return lambda agent: getattr(agent, verb)(event, name="speaks")(answer)


TURNS: dict[str, tuple[Sequence[Any], Callable[[Agent[Any, Any]], None], Callable[[Agent[Any, Any]], Any]]] = {
    "an answer": ([says("hello", thinking="hm")], nobody, plain),
    "a tool": ([calls("add", a=1, b=2, _text="adding"), says("3")], nobody, plain),
    "tools side by side": ([calls([("add", {"a": n, "b": 2}) for n in range(3)]), says("3")], nobody, plain),
    "a failing tool": ([calls("fail"), says("sorry")], nobody, plain),
    "a failing model": ([ModelError("down", retryable=True), says("up")], nobody, plain),
    "two turns": ([calls("add", a=1, b=2), says("3"), says("4")], nobody, two_turns),
    "a denied call": (
        [calls("add", a=1, b=2), says("3")],
        somebody("gate", ToolCalling, lambda event: Deny("no")),
        plain,
    ),
    "a halted turn": ([calls("add", a=1, b=2)], somebody("gate", ToolCalling, lambda event: Halt("no")), plain),
    "a regenerated reply": (
        [says("rude"), says("kind")],
        somebody("gate", ModelReplying, lambda event: Regenerate("no") if event.reply.text == "rude" else None),
        plain,
    ),
    "a vetoed stop": (
        [says("one"), says("two")],
        somebody("gate", Stopping, lambda event: None if event.stop_active else Veto("on")),
        plain,
    ),
    "an injection": (
        [calls("add", a=1, b=2), says("3")],
        somebody("inject", TurnStarting, lambda event: "a note"),
        plain,
    ),
    **{
        f"a suspended turn, {type(answer).__name__}": (
            [calls("add", a=1, b=2), says("3")],
            somebody("gate", ToolCalling, lambda event: Ask("May it?")),
            answering(answer),
        )
        for answer in (Approve(), Reject("no"), Respond("by hand"), Edit({"a": 5, "b": 5}))
    },
    "a suspended end": (
        [says("3")],
        somebody("gate", TurnEnding, lambda event: Ask("Send it?")),
        answering(Approve()),
    ),
}


async def told(turn: str, clock: Any, *silences: Callable[[Agent[Any, Any]], None]) -> tuple[Any, list[bytes]]:
    """The result of a turn and the bytes of its log, without the pipeline's hash, which tells the hooks apart."""
    script, speak, act = TURNS[turn]
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(*script),
        tools=[add, fail],
        system="You add.",
        criteria=[StepLimit(9)],
        errors=ErrorPolicy.retrying(2, delay=0),
        clock=clock,
    )
    speak(agent)
    for silence in silences:
        silence(agent)
    result = await act(agent)
    log = await agent.store.read(SESSION)
    opened = next(record for record in log if isinstance(record, SessionOpened))
    return result, [encode(record).replace(opened.pipeline.encode(), b"-" * 16) for record in log]


@pytest.mark.parametrize("silence", SILENCES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("turn", TURNS)
async def test_hooks_that_say_nothing_leave_the_log_as_it_is_without_them(
    turn: str, silence: Callable[[Agent[Any, Any]], None], clock: Any
):
    """Behaviours 83e, 104: transcript, result and stored bytes are those of the same agent without these hooks."""
    expected, bytes_without = await told(turn, clock)
    result, bytes_with = await told(turn, clock, silence)
    assert sorted(bytes_with) == sorted(bytes_without)
    if turn != "tools side by side":  # there the order of their records is that in which they ended
        assert bytes_with == bytes_without
    assert result.outcome == expected.outcome
    assert result.text == expected.text
    assert result.usage == expected.usage
    assert result.messages == expected.messages


async def test_the_hash_of_the_pipeline_is_all_that_the_log_knows_of_silent_hooks(clock: Any):
    """Behaviours 83e, 104: what the hooks are is stored once, beside the log, under a hash of one size."""
    sizes: list[int] = []
    for install in (nobody, everything):
        agent: Agent[Any, Any] = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], clock=clock)
        install(agent)
        result = await agent.run("go", session=SESSION)
        assert result.outcome == Completed()
        log = await agent.store.read(SESSION)
        sizes.append(sum(len(encode(record)) for record in log))
        (opened,) = [record for record in log if isinstance(record, SessionOpened)]
        assert await agent.store.pipeline(opened.pipeline) is not None
    assert sizes[0] == sizes[1]


async def test_each_step_of_a_turn_costs_the_same_bytes_however_long_the_history_is(clock: Any):
    """Behaviour 104: bytes per step depend on that step alone."""
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(*[calls("add", a=1, b=2)] * 9, says("3")), tools=[add], system="You add.", clock=clock
    )
    await agent.run("go" * 1000, session=SESSION)
    sizes: list[int] = [0]
    for record in await agent.store.read(SESSION):
        sizes[-1] += len(encode(record))
        if isinstance(record, StepEnded):
            sizes.append(0)
    assert len(set(sizes[1:9])) == 1
    assert sizes[1] < 1000


async def test_a_hook_that_does_speak_writes_what_it_said_and_no_more(clock: Any):
    """Behaviours 83e, 104: one gate that answers is one answer in the log, whoever is silent beside it."""
    sizes: list[int] = []
    for silence in (nobody, gates):
        agent: Agent[Any, Any] = Agent(ScriptedModel(says("hello")), clock=clock)
        agent.gate(ModelCalling, name="speaks")(lambda event: Halt("no"))
        silence(agent)
        await agent.run("go", session=SESSION)
        log = await agent.store.read(SESSION)
        decided = [record for record in log if type(record).__name__ == "HookDecided"]
        assert [[name for name, _ in record.answers] for record in decided] == [["speaks"]]
        sizes.append(sum(len(encode(record)) for record in log))
    assert sizes[0] == sizes[1]
