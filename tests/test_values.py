"""Values from user code: each is checked where it comes in, in the name of who gave it, and every log reads back."""

from __future__ import annotations

import datetime
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import assume, given
from msgspec.structs import replace

from windlass import (
    Agent,
    Answer,
    Approve,
    Ask,
    Completed,
    Continuing,
    Deny,
    Edit,
    Failed,
    Finish,
    Halt,
    ImagePart,
    Injected,
    Message,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReply,
    ModelReplying,
    OpaquePart,
    Pipeline,
    Regenerate,
    Reject,
    Respond,
    Result,
    Rewind,
    Says,
    SessionStarting,
    Slot,
    StepEnding,
    StepStarting,
    Stopping,
    Suspended,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCalling,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    ToolReturned,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    Usage,
    Veto,
    Vote,
    assistant,
    fold,
    tool,
    user,
)
from windlass.checking import checked_call, checked_message, checked_result, is_reply, reply_of
from windlass.errors import BadReply, CompactionError, ConfigError, RateLimited, StaleAnswer, StoreError
from windlass.events import Compaction
from windlass.lifecycle import HookAction, Lifecycle
from windlass.records import (
    HookFailed,
    MessageAdded,
    ModelAttempted,
    ModelReplied,
    Rewritten,
    SlotSet,
    ToolDecided,
    TurnStarted,
    decode,
)
from windlass.stores import MemoryStore, open_store
from windlass.testing import FunctionModel, ScriptedModel, calls, says, unpaired
from windlass.testing.strategies import values_of

from .checks import FrozenClock, only_this_task


@pytest.fixture(autouse=True)
async def nothing_is_left_running() -> AsyncIterator[None]:
    yield
    assert await only_this_task()


class World:
    """A store, and a way to run a turn in it."""

    def __init__(self, way: str, address: str | None) -> None:
        self.way = way
        self.address = address
        self.store: Any = MemoryStore() if address is None else open_store(address)

    def agent(self, *script: Any, model: Any = None, **options: Any) -> Agent:
        return Agent(model or ScriptedModel(*script), store=self.store, clock=FrozenClock(), name="a", **options)

    async def live(self, agent: Agent, message: Any = "go", **options: Any) -> Result:
        if self.way == "run":
            return await agent.run(message, session="s", **options)
        stream = agent.stream(message, session="s", **options)
        async for _ in stream:
            pass
        return stream.result

    async def resume(self, agent: Agent, answers: Any) -> Result:
        if self.way == "run":
            return await agent.resume("s", answers=answers)
        stream = agent.stream(session="s", answers=answers)
        async for _ in stream:
            pass
        return stream.result

    async def log(self) -> list[Any]:
        """The log of the session as a fresh store reads it."""
        if self.address is None:
            return list(await self.store.read("s"))
        fresh = open_store(self.address)
        try:
            return list(await fresh.read("s"))
        finally:
            await fresh.close()  # type: ignore[attr-defined]

    async def sound(self, result: Result) -> str:
        """The log reads back as the state it stands for, no call lacks its result, and the session goes on. What it
        says of hooks, errors and results, as one text."""
        log = await self.log()
        state = fold("s", log)
        assert state == result.state
        assert unpaired(state.messages) == []
        story = "\n".join(repr(record) for record in log)
        if not isinstance(result.outcome, Suspended):
            again = await self.agent(says("fine")).run("again", session="s")
            assert again.text == "fine"
            assert fold("s", await self.log()) == again.state
        return story


@pytest.fixture(params=["run-sqlite", "stream-memory"])
async def world(request: Any, tmp_path: Any) -> AsyncIterator[World]:
    way, kind = request.param.split("-")
    made = World(way, None if kind == "memory" else f"sqlite:///{tmp_path}/log.db")
    yield made
    if made.address is not None:
        await made.store.close()


@tool(effect="pure", inline=True)
def act(x: int = 0) -> str:
    """Act."""
    return f"acted {x}"


def cyclic() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def with_id(values: dict[str, Any]) -> list[Any]:
    return [pytest.param(value, id=name) for name, value in values.items()]


MESSAGES: dict[str, Any] = {
    "parts are a str": Message("user", "hello"),  # type: ignore[arg-type]
    "text is an int": user(5),  # type: ignore[arg-type]
    "text is bytes": user(b"x"),  # type: ignore[arg-type]
    "text is a date": user(datetime.date(2024, 1, 1)),  # type: ignore[arg-type]
    "text is None": user(None),  # type: ignore[arg-type]
    "a part is a str": Message("user", ("hello",)),  # type: ignore[arg-type]
    "a part is a mapping": Message("user", ({"type": "text", "text": "x"},)),  # type: ignore[arg-type]
    "an image is a str": Message("user", (ImagePart("x"),)),  # type: ignore[arg-type]
    "origin is an int": user("x", origin=5),  # type: ignore[arg-type]
    "id is None": Message("user", (TextPart("x"),), id=None),  # type: ignore[arg-type]
    "partial is a str": Message("user", (TextPart("x"),), partial="no"),  # type: ignore[arg-type]
}
RESULTS: dict[str, Any] = {
    "content is a str": ToolResult("redacted"),  # type: ignore[arg-type]
    "text is an int": ToolResult((TextPart(5),)),  # type: ignore[arg-type]
    "a bare part": TextPart(5),  # type: ignore[arg-type]
    "a list of parts": [TextPart("x"), TextPart(None)],  # type: ignore[arg-type]
    "an unknown status": ToolResult((TextPart("x"),), "success"),  # type: ignore[arg-type]
    "status is None": ToolResult((TextPart("x"),), None),  # type: ignore[arg-type]
    "a call among the content": ToolResult((ToolCallPart("act"),)),  # type: ignore[arg-type]
    "content is None": ToolResult(None),  # type: ignore[arg-type]
    "an image is a str": ImagePart("x"),  # type: ignore[arg-type]
}
HI = assistant("hi")
REPLIES: dict[str, Any] = {
    "message is a str": ModelReply("hi"),  # type: ignore[arg-type]
    "parts are a str": Message("assistant", "hi"),  # type: ignore[arg-type]
    "text is an int": ModelReply(assistant(5)),  # type: ignore[arg-type]
    "finish is None": ModelReply(HI, finish=None),  # type: ignore[arg-type]
    "usage is None": ModelReply(HI, None),  # type: ignore[arg-type]
    "usage is a float": ModelReply(HI, Usage(1.5)),  # type: ignore[arg-type]
    "usage is a bool": ModelReply(HI, Usage(True)),
    "cost is not a number": ModelReply(HI, Usage(cost=math.nan)),
    "cost is infinite": ModelReply(HI, Usage(cost=math.inf)),
    "model is an int": ModelReply(HI, model=5),  # type: ignore[arg-type]
    "raw_finish is an int": ModelReply(HI, raw_finish=5),  # type: ignore[arg-type]
    "arguments are a mapping": Message("assistant", (ToolCallPart("act", {"x": 1}),)),  # type: ignore[arg-type]
    "arguments are None": Message("assistant", (ToolCallPart("act", None),)),  # type: ignore[arg-type]
    "a tool's name is None": Message("assistant", (ToolCallPart(None),)),  # type: ignore[arg-type]
    "a vendor's id is an int": Message("assistant", (ToolCallPart("act", vendor_id=5),)),  # type: ignore[arg-type]
    "a result among the parts": Message("assistant", (ToolResultPart("s/1/1", "act"),)),
    "thinking is None": Message("assistant", (ThinkingPart(None), TextPart("x"))),  # type: ignore[arg-type]
    "a signature is bytes": Message("assistant", (ThinkingPart("x", b"sig"),)),  # type: ignore[arg-type]
}
VALUES: dict[str, Any] = {
    "an object": object(),
    "a cycle": cyclic(),
    "not a number": [math.nan],
    "a huge number": {"x": 2**70},
    "a key that is no text": {(1, 2): 3},
}

Install = Callable[[Agent, Any], object]

# ---------------------------------------------------------------- results of tools

RESULT_DOORS: dict[str, Install] = {
    "wrap": lambda agent, value: agent.wrap(ToolCall, name="mine")(_returning(value)),
    "outer wrap": lambda agent, value: (
        agent.wrap(ToolCall, name="mine")(_returning(value)),
        agent.wrap(ToolCall, name="other")(_through),
    ),
    "wrap inside": lambda agent, value: (
        agent.wrap(ToolCall, name="other")(_through),
        agent.wrap(ToolCall, name="mine")(_returning(value)),
    ),
    "wrap with turn": lambda agent, value: agent.wrap(ToolCall, name="mine")(_returning_with_turn(value)),
    "rewrite": lambda agent, value: agent.rewrite(ToolReturning, name="mine")(lambda event: value),
    "hook that rewrites": lambda agent, value: agent.hook(ToolReturning, name="mine")(lambda e: Says(rewrite=value)),
    "gate that answers": lambda agent, value: agent.gate(ToolCalling, name="mine")(lambda event: Answer(value)),
    "hook that answers": lambda agent, value: agent.hook(ToolCalling, name="mine")(lambda event: Answer(value)),
}


def _returning(value: Any) -> Any:
    async def mine(given: Any, call_next: Any) -> Any:
        await call_next(given)
        return value

    return mine


def _returning_with_turn(value: Any) -> Any:
    async def mine(given: Any, call_next: Any, turn: Any) -> Any:
        await call_next(given)
        return value

    return mine


async def _through(given: Any, call_next: Any) -> Any:
    return await call_next(given)


def outcome_of_call(result: Result) -> tuple[str, str]:
    """The status and the text of the only result."""
    ((status, text),) = [
        (part.status, part.text)
        for message in result.messages
        if message.role == "tool"
        for part in message.parts  # type: ignore[union-attr]
    ]
    return status, text


@pytest.mark.parametrize("value", with_id(RESULTS))
@pytest.mark.parametrize("door", RESULT_DOORS)
async def test_an_invalid_result_is_the_error_of_the_hook_that_gave_it(world, door, value):
    agent = world.agent(calls("act", x=1), says("done"), tools=[act])
    RESULT_DOORS[door](agent, value)
    result = await world.live(agent)
    story = await world.sound(result)
    assert "'mine'" in story
    status, text = outcome_of_call(result)
    assert status in ("error", "denied")
    assert "mine" in text
    assert result.text == "done"


@pytest.mark.parametrize("value", with_id(RESULTS))
async def test_an_invalid_result_of_a_tool_is_an_error_that_names_the_tool(world, value):
    @tool
    async def broken() -> Any:
        """Break."""
        return value

    agent = world.agent(calls("broken"), says("done"), tools=[broken])
    result = await world.live(agent)
    await world.sound(result)
    status, text = outcome_of_call(result)
    assert status == "error"
    assert "tool 'broken' returned an invalid value" in text
    assert result.text == "done"


async def test_a_list_of_parts_is_as_good_as_a_tuple(world):
    @tool
    async def pictures() -> Any:
        """Show."""
        return ToolResult([TextPart("two"), ImagePart(b"1")])  # type: ignore[arg-type]

    replies = [
        ModelReply(Message("assistant", [ToolCallPart("pictures")])),  # type: ignore[arg-type]
        ModelReply(Message("assistant", [TextPart("done")])),  # type: ignore[arg-type]
    ]
    agent = world.agent(model=FunctionModel(_in_turn(replies)), tools=[pictures])
    result = await world.live(agent, Message("user", [TextPart("a"), ImagePart(b"0")]))  # type: ignore[arg-type]
    await world.sound(result)
    assert isinstance(result.outcome, Completed)
    assert result.messages[0].parts == (TextPart("a"), ImagePart(b"0"))
    assert result.messages[2].parts[0].content == (TextPart("two"), ImagePart(b"1"))  # type: ignore[union-attr]


def _in_turn(replies: list[Any]) -> Callable[[Any], Awaitable[Any]]:
    left = iter(replies)

    async def reply(request: Any) -> Any:
        return next(left)

    return reply


# ---------------------------------------------------------------- replies of models

REPLY_DOORS: dict[str, Install] = {
    "wrap": lambda agent, value: agent.wrap(ModelCall, name="mine")(_returning(value)),
    "outer wrap": lambda agent, value: (
        agent.wrap(ModelCall, name="mine")(_returning(value)),
        agent.wrap(ModelCall, name="other")(_through),
    ),
    "wrap inside": lambda agent, value: (
        agent.wrap(ModelCall, name="other")(_through),
        agent.wrap(ModelCall, name="mine")(_returning(value)),
    ),
    "guard": lambda agent, value: agent.wrap(ModelCall, name="mine", band="guard")(_returning(value)),
    "wrap with turn": lambda agent, value: agent.wrap(ModelCall, name="mine")(_returning_with_turn(value)),
    "rewrite": lambda agent, value: agent.rewrite(ModelReplying, name="mine")(lambda event: value),
    "hook that rewrites": lambda agent, value: agent.hook(ModelReplying, name="mine")(lambda e: Says(rewrite=value)),
    "gate that answers": lambda agent, value: agent.gate(ModelCalling, name="mine")(lambda event: Answer(value)),
    "hook that answers": lambda agent, value: agent.hook(ModelCalling, name="mine")(lambda event: Answer(value)),
}


@pytest.mark.parametrize("value", with_id({**REPLIES, "a number": 42, "a mapping": {"text": "hi"}}))
@pytest.mark.parametrize("door", REPLY_DOORS)
async def test_an_invalid_reply_ends_the_turn_in_the_name_of_the_hook_that_gave_it(world, door, value):
    agent = world.agent(says("hi"), tools=[act])
    REPLY_DOORS[door](agent, value)
    result = await world.live(agent)
    assert not isinstance(result.outcome, Completed)
    assert "'mine'" in repr(result.outcome)
    assert "mine" in await world.sound(result)


@pytest.mark.parametrize("value", with_id({**REPLIES, "a number": 42, "nothing": None, "a mapping": {"text": "hi"}}))
@pytest.mark.parametrize("wrapped", [False, True])
async def test_an_invalid_reply_of_a_model_fails_the_turn_and_names_the_model(world, value, wrapped):
    class Broken:
        name = "broken"

        async def reply(self, request: Any) -> Any:
            return value

    agent = world.agent(model=Broken(), tools=[act])
    if wrapped:
        agent.wrap(ModelCall)(_through)
    result = await world.live(agent)
    await world.sound(result)
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.type == "BadReply"
    assert "model 'broken'" in result.outcome.error.message


@pytest.mark.parametrize("value", with_id(REPLIES))
async def test_an_invalid_reply_to_a_side_call_names_the_model_and_is_not_recorded(world, value):
    class Broken:
        name = "broken"

        async def reply(self, request: Any) -> Any:
            return value

    agent = world.agent(says("hi"))

    @agent.gate(TurnStarting, name="mine")
    async def critic(event: Any, turn: Any) -> None:
        await turn.ask(Broken(), "fine?")

    result = await world.live(agent)
    story = await world.sound(result)
    assert "model 'broken'" in story
    assert "'mine'" in story
    assert "SideReplied" not in story


async def test_an_invalid_piece_of_a_stream_names_the_model():
    from windlass import TextDelta

    class Broken:
        name = "broken"

        async def reply(self, request: Any) -> Any:
            return "hi"

        async def stream(self, request: Any) -> AsyncIterator[Any]:
            yield TextDelta(5)  # type: ignore[arg-type]
            yield "hi"

    stream = Agent(Broken()).stream("go")
    async for _ in stream:
        pass
    assert isinstance(stream.result.outcome, Failed)
    assert "model 'broken'" in stream.result.outcome.error.message


async def test_what_a_model_says_of_its_error_does_not_break_the_log(world):
    class Broken:
        name = "broken"

        async def reply(self, request: Any) -> Any:
            raise RateLimited("slow", retry_after="5", status="429", retryable=0)  # type: ignore[arg-type]

    result = await world.live(world.agent(model=Broken()))
    await world.sound(result)
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.error.retry_after, result.outcome.error.status) == (None, None)


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("value", with_id({**MESSAGES, "a tool call": Message("user", (ToolCallPart("act"),))}))
async def test_an_invalid_message_of_the_caller_is_refused_before_anything_is_written(world, value):
    agent = world.agent(says("hi"), says("hi"))
    with pytest.raises(ConfigError, match="the message is invalid"):
        await world.live(agent, value)
    assert await world.log() == []
    with pytest.raises(ConfigError, match="the message is invalid"):
        agent.iterate(value, session="s")
    first = await world.live(agent)
    with pytest.raises(ConfigError, match="the message is invalid"):
        await agent.steer("s", value)
    await world.sound(first)


def test_the_error_says_what_to_write_instead():
    with pytest.raises(ConfigError, match=r"Message\.parts.*tuple of parts.*user\('hello'\)"):
        Agent(ScriptedModel()).run_sync(Message("user", "hello"))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", with_id(MESSAGES))
@pytest.mark.parametrize("event", [TurnStarting, MessageAdding])
@pytest.mark.parametrize("verb", ["rewrite", "hook"])
async def test_an_invalid_message_of_a_rewrite_fails_the_turn_in_its_name(world, verb, event, value):
    agent = world.agent(says("hi"))
    answer = value if verb == "rewrite" else Says(rewrite=value)
    getattr(agent, verb)(event, name="mine")(lambda event: answer)
    result = await world.live(agent)
    assert isinstance(result.outcome, Failed)
    assert "'mine'" in result.outcome.error.message
    await world.sound(result)


@pytest.mark.parametrize(
    "value",
    with_id(
        {
            **MESSAGES,
            "a tool call": Message("user", (ToolCallPart("act"),)),
            "a tool's role": Message("tool", (TextPart("x"),)),
            "a number": 5,
        }
    ),
)
async def test_an_invalid_message_that_is_added_is_the_error_of_who_adds_it(world, value):
    @tool
    async def adds(turn: Any) -> str:
        """Add a message."""
        turn.add(value)
        return "added"

    agent = world.agent(calls("adds"), says("done"), tools=[adds])

    @agent.gate(StepEnding, name="mine")
    def gate(event: Any, turn: Any) -> None:
        turn.add(value)

    result = await world.live(agent)
    story = await world.sound(result)
    assert outcome_of_call(result)[0] == "error"
    assert "HookFailed(" in story
    assert "hook='mine'" in story
    assert "MessageHeld" not in story


@pytest.mark.parametrize(
    "value",
    with_id(
        {
            "text is an int": TextPart(5),  # type: ignore[arg-type]
            "an image is a str": [ImagePart("x")],  # type: ignore[arg-type]
            "a number": 5,
            "a tool call": ToolCallPart("act"),
            "durable is a str": Injected("x", durable="yes"),  # type: ignore[arg-type]
            "record is None": Injected("x", record=None),  # type: ignore[arg-type]
            "parts inside": Injected((TextPart(None),), durable=True),  # type: ignore[arg-type]
        }
    ),
)
@pytest.mark.parametrize("event", [TurnStarting, StepStarting, SessionStarting])
async def test_an_invalid_injection_fails_the_turn_in_its_name(world, event, value):
    agent = world.agent(says("hi"))
    agent.inject(event, name="mine")(lambda event: value)
    result = await world.live(agent)
    assert isinstance(result.outcome, Failed)
    assert "'mine'" in result.outcome.error.message
    await world.sound(result)


# ---------------------------------------------------------------- requests and sessions


@pytest.mark.parametrize(
    "changes",
    with_id(
        {
            "system is an int": {"system": 5},
            "model is None": {"model": None},
            "tools are names": {"tools": ("act",)},
            "messages hold a bad one": {"messages": [user(5)]},  # type: ignore[arg-type]
            "settings are a list": {"settings": [1]},
            "output is a str": {"output": "json"},
        }
    ),
)
@pytest.mark.parametrize("verb", ["rewrite", "wrap", "wraps", "lifecycle"])
async def test_an_invalid_request_ends_the_turn_in_the_name_of_who_made_it(world, verb, changes):
    agent = world.agent(says("hi"), tools=[act])

    async def changing(request: Any, call_next: Any) -> Any:
        return await call_next(request.replace(**changes))

    if verb == "rewrite":
        agent.rewrite(ModelCalling, name="mine")(lambda event: event.request.replace(**changes))
    elif verb == "lifecycle":

        class mine(Lifecycle):
            async def wrap_model_call(self, request: Any, call_next: Any) -> Any:
                return await call_next(request.replace(**changes))

        agent.with_lifecycle(mine())
    else:
        agent.wrap(ModelCall, name="mine")(changing)
        if verb == "wraps":
            agent.wrap(ModelCall, name="inner")(_through)
            agent.wrap(ModelCall, name="outer", priority=5)(_through)
    result = await world.live(agent)
    assert isinstance(result.outcome, Failed)
    assert "mine" in result.outcome.error.message
    await world.sound(result)


class Duck:
    """Looks like a call, and has other arguments each time they are read."""

    def __init__(self, call: Any) -> None:
        self.id, self.name, self.reads = call.id, call.name, 0

    @property
    def json(self) -> str:
        self.reads += 1
        return f'{{"x":{self.reads}}}'

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.mark.parametrize("beside", ["nobody", "others", "writers", "matchers"])
@pytest.mark.parametrize("what", ["None", "42", "duck", "text", "inside"])
@pytest.mark.parametrize("effect", [ModelCall, ToolCall])
async def test_call_next_takes_nothing_but_the_proper_value_and_names_the_wrap(world, effect, what, beside):
    ran: list[int] = []

    @tool
    async def once(x: int = 0) -> str:
        """Act."""
        ran.append(x)
        return "ok"

    agent = world.agent(calls("once", x=1), says("done"), tools=[once])

    async def mine(given: Any, call_next: Any) -> Any:
        bad = {
            "None": lambda: None,
            "42": lambda: 42,
            "duck": lambda: Duck(given) if effect is ToolCall else object(),
            "text": lambda: "{}",
            "inside": lambda: given.replace(name=5) if effect is ToolCall else given.replace(system=None),
        }
        return await call_next(bad[what]())

    async def writing(given: Any, call_next: Any, turn: Any) -> Any:
        return await call_next(given)

    others = writing if beside == "writers" else _through
    options = {"tool": "once"} if beside == "matchers" and effect is ToolCall else {}
    if beside != "nobody":
        agent.wrap(effect, name="outer", priority=9, **options)(others)  # type: ignore[call-overload]
    agent.wrap(effect, name="mine", **options)(mine)  # type: ignore[call-overload]
    if beside != "nobody":
        agent.wrap(effect, name="inner", priority=-9, **options)(others)  # type: ignore[call-overload]
    result = await world.live(agent)
    story = await world.sound(result)
    assert ran == []
    assert "wrap 'mine'" in story
    assert "wrap 'outer'" not in story
    assert "wrap 'inner'" not in story
    if effect is ToolCall:
        assert outcome_of_call(result)[0] == "error"
    else:
        assert isinstance(result.outcome, Failed)


@pytest.mark.parametrize(
    "changes",
    with_id(
        {
            "tools are names": {"tools": ("act",)},
            "tools are None": {"tools": None},
            "system is an int": {"system": 5},
            "a schema is no JSON": {"tools": (act.spec.replace(schema={"x": object()}),)},
        }
    ),
)
async def test_an_invalid_setup_fails_the_turn_in_the_name_of_its_hook(world, changes):
    agent = world.agent(says("hi"), tools=[act])
    agent.rewrite(SessionStarting, name="mine")(lambda event: event.setup.replace(**changes))
    result = await world.live(agent)
    assert isinstance(result.outcome, Failed)
    assert "'mine'" in result.outcome.error.message
    await world.sound(result)


async def test_a_setup_may_name_tools_by_themselves(world):
    agent = world.agent(says("hi"), tools=[act])
    agent.rewrite(SessionStarting)(lambda event: event.setup.replace(tools=[act]))
    result = await world.live(agent)
    assert isinstance(result.outcome, Completed)
    await world.sound(result)


# ---------------------------------------------------------------- decisions

DECISIONS: list[tuple[Any, Any]] = [
    (ToolCalling, Deny(5)),  # type: ignore[arg-type]
    (ToolCalling, Deny(None)),  # type: ignore[arg-type]
    (ToolCalling, Halt(5)),  # type: ignore[arg-type]
    (ToolCalling, Halt("x", 5)),  # type: ignore[arg-type]
    (ToolCalling, Ask(5)),  # type: ignore[arg-type]
    (ModelReplying, Regenerate(5)),  # type: ignore[arg-type]
    (ModelReplying, Halt("x", reply=b"x")),  # type: ignore[arg-type]
    (StepEnding, Rewind("1")),  # type: ignore[arg-type]
    (TurnStarting, Halt(None)),  # type: ignore[arg-type]
    *[(ToolReturning, Finish(value)) for value in VALUES.values()],
    *[(ToolCalling, Answer(value)) for value in VALUES.values()],
    *[(TurnStarting, Answer(value)) for value in VALUES.values()],
]


def _label(given: Any) -> str:
    return given.__name__ if isinstance(given, type) else repr(given).partition(" at 0x")[0][:40]


@pytest.mark.parametrize(("event", "decision"), DECISIONS, ids=_label)
@pytest.mark.parametrize("verb", ["gate", "hook", "says", "shadow"])
async def test_an_invalid_decision_is_the_failure_of_its_hook(world, verb, event, decision):
    agent = world.agent(calls("act"), says("done"), tools=[act])
    if verb == "shadow":
        agent.gate(event, name="mine", mode="shadow")(lambda event: decision)
    else:
        answer = Says(decision=decision) if verb == "says" else decision
        getattr(agent, "hook" if verb == "says" else verb)(event, name="mine")(lambda event: answer)
    result = await world.live(agent)
    story = await world.sound(result)
    assert "'mine'" in story
    assert not isinstance(result.outcome, Suspended)
    if verb == "shadow":
        assert result.text == "done"


async def test_an_invalid_veto_leaves_the_stop_and_marks_it(world):
    agent = world.agent(says("done"))
    agent.gate(Stopping, name="mine")(lambda event: Veto(5))  # type: ignore[arg-type]
    result = await world.live(agent)
    assert result.outcome == Completed(unreviewed=("mine",))
    await world.sound(result)


@pytest.mark.parametrize("vote", [(Vote.REQUEST, 5), (None, "x"), (Vote.FORBID, None)], ids=repr)
async def test_an_invalid_reason_of_a_criterion_fails_the_turn_in_its_name(world, vote):
    def mine(state: Any) -> Any:
        return vote

    result = await world.live(world.agent(says("done"), criteria=[mine]))
    assert isinstance(result.outcome, Failed)
    assert "'mine'" in result.outcome.error.message
    await world.sound(result)


async def test_an_invalid_vote_forbids_to_go_on(world):
    agent = world.agent(calls("act"), says("done"), tools=[act])
    agent.gate(Continuing, name="mine")(lambda event: (Vote.ALLOW, 5))  # type: ignore[arg-type,return-value]
    result = await world.live(agent)
    assert "mine" in repr(result.outcome)
    await world.sound(result)


@pytest.mark.parametrize(
    "value",
    with_id(
        {
            "a result": ToolResult((TextPart("dry"), ImagePart(b"1")), "error"),
            "parts": [TextPart("dry"), ImagePart(b"1")],
            "a part": ImagePart(b"1"),
            "a mapping": {"dry": [1, 2.5, None, True]},
            "a date": datetime.date(2024, 1, 2),
            "a text": "dry",
        }
    ),
)
async def test_an_answer_is_the_same_after_a_suspension(world, value):
    """The next rank holds after an approval: the `Answer` is then read from the log."""

    def made() -> Agent:
        agent = world.agent(calls("act") if first else says("done"), tools=[act])
        agent.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
        agent.gate(ToolCalling, name="dry")(lambda event: Answer(value))
        return agent

    first = True
    result = await world.live(made())
    (asked,) = result.waiting_for
    first = False
    result = await world.resume(made(), {asked.id: Approve()})
    (returned,) = [record for record in await world.log() if isinstance(record, ToolReturned)]
    direct = world.agent(calls("act"), says("done"), tools=[act])
    direct.gate(ToolCalling, name="dry")(lambda event: Answer(value))
    seen = await direct.run("go", session="other")
    (wanted,) = [record for record in await world.store.read("other") if isinstance(record, ToolReturned)]
    assert seen.text == result.text == "done"
    assert returned.result == wanted.result
    assert fold("s", await world.log()) == result.state


async def test_an_answered_reply_is_the_same_after_a_suspension(world):
    reply = ModelReply(Message("assistant", (ThinkingPart("hm"), TextPart("cached"))), Usage(1, 2), "stop", "other")

    def made() -> Agent:
        agent = world.agent()
        agent.gate(ModelCalling, name="asker")(lambda event: Ask("?"))
        agent.gate(ModelCalling, name="cache")(lambda event: Answer(reply))
        return agent

    result = await world.live(made())
    (asked,) = result.waiting_for
    result = await world.resume(made(), {asked.id: Approve()})
    assert result.text == "cached"
    assert result.messages[1].parts == reply.message.parts
    await world.sound(result)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ToolResult((TextPart("x"),)), "x"),
        (assistant("x"), "x"),
        ([TextPart("x"), TextPart("y")], "xy"),
        ({"a": (1, 2)}, '{"a":[1,2]}'),
    ],
    ids=["a result", "a message", "parts", "a mapping"],
)
async def test_a_turn_is_finished_with_a_plain_value(world, value, text):
    agent = world.agent(calls("act"), tools=[act])
    agent.gate(ToolReturning)(lambda event: Finish(value))
    result = await world.live(agent)
    assert isinstance(result.outcome, Completed)
    assert result.text == text
    await world.sound(result)


# ---------------------------------------------------------------- people


@pytest.mark.parametrize(
    "answer",
    [
        Approve(by=5),  # type: ignore[arg-type]
        Reject(5),  # type: ignore[arg-type]
        Reject("no", by=b"ann"),  # type: ignore[arg-type]
        Respond(5),  # type: ignore[arg-type]
        Respond(None),  # type: ignore[arg-type]
        Edit([1]),  # type: ignore[arg-type]
        Edit({"x": math.nan}),
        Edit({"x": object()}),
        Edit({"x": cyclic()}),
        "yes",
        True,
        {"answer": "Approve"},
    ],
    ids=lambda answer: repr(answer).partition(" at 0x")[0][:30],
)
async def test_an_invalid_answer_of_a_person_is_refused_and_the_question_stays_open(world, answer):
    agent = world.agent(calls("act", x=1), says("done"), tools=[act])
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
    result = await world.live(agent)
    (asked,) = result.waiting_for
    before = await world.log()
    with pytest.raises(StaleAnswer, match=r"question 's/1/1'.*(invalid|cannot be answered)"):
        await world.resume(agent, {asked.id: answer})
    with pytest.raises(StaleAnswer, match=r"question 's/1/1'.*(invalid|cannot be answered)"):
        await agent.resolve("s", asked.id, answer)
    assert await world.log() == before
    result = await world.resume(agent, {asked.id: Approve("ann")})
    assert result.text == "done"
    await world.sound(result)


async def test_an_edit_may_hold_what_json_can_be_made_of(world):
    agent = world.agent(calls("act", x=1), says("done"), tools=[act])
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
    (asked,) = (await world.live(agent)).waiting_for
    given = {"x": 3}
    result = await world.resume(agent, {asked.id: Edit(given)})
    given["x"] = 4
    assert outcome_of_call(result)[1].endswith("acted 3")
    await world.sound(result)


# ---------------------------------------------------------------- slots, cancel, phase handlers


@pytest.mark.parametrize(
    "record",
    [
        MessageAdded(Message("user", "hello")),  # type: ignore[arg-type]
        SlotSet("notes", [math.nan]),
        HookFailed("a", "b", "boom"),  # type: ignore[arg-type]
    ],
    ids=lambda record: type(record).__name__,
)
@pytest.mark.parametrize("phase", ["before_turn", "after_step"])
async def test_an_invalid_record_of_a_phase_handler_fails_the_turn_in_its_name(world, phase, record):
    class Mine:
        def handle(self, state: Any, turn: Any) -> Any:
            return state.record(record)

    agent = world.agent(says("hi"), pipeline=Pipeline.minimal().with_handler(phase, Mine()))
    result = await world.live(agent)
    assert isinstance(result.outcome, Failed)
    assert "phase handler 'Mine' made an invalid" in result.outcome.error.message
    await world.sound(result)


@pytest.mark.parametrize("value", with_id({**VALUES, "a text": "x"}))
async def test_an_invalid_value_of_a_slot_is_refused_in_the_name_of_its_writer(world, value):
    slot = Slot("notes", list[float])
    agent = world.agent(says("hi"))
    agent.slot(slot)

    @agent.gate(TurnStarting, name="mine")
    def writes(event: Any, turn: Any) -> None:
        turn.set(slot, value)

    result = await world.live(agent)
    story = await world.sound(result)
    assert "'mine'" in story
    assert "'notes'" in story
    assert "SlotSet" not in story


async def test_an_invalid_value_of_a_slot_from_the_caller_is_refused_in_his_name(world):
    agent = world.agent(says("hi"))
    agent.slot(Slot("notes", list[float]))
    result = await world.live(agent, slots={"notes": [math.nan]})
    assert isinstance(result.outcome, Failed)
    assert "'caller' set slot 'notes'" in result.outcome.error.message
    await world.sound(result)


async def test_the_reason_of_a_cancel_is_a_text(world):
    agent = world.agent(says("hi"))

    @agent.gate(TurnStarting, name="mine")
    def cancels(event: Any, turn: Any) -> None:
        turn.cancel(5)

    result = await world.live(agent)
    assert "'mine'" in await world.sound(result)
    with pytest.raises(ConfigError, match="reason"):
        await agent.cancel("s", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "given"),
    [
        *[pytest.param(Compaction((0, 3)), [value], id=name) for name, value in MESSAGES.items()],
        pytest.param(Compaction((0, 3)), "hello", id="a text"),
        pytest.param(Compaction((0, 3)), ["hello"], id="texts"),
        pytest.param(Compaction(("0", "1")), [], id="a range of texts"),  # type: ignore[arg-type]
        pytest.param(Compaction((0, 1), instructions=5), [], id="instructions are an int"),  # type: ignore[arg-type]
        pytest.param({"range": (0, 1)}, [], id="a plan is a mapping"),
    ],
)
async def test_an_invalid_compaction_changes_nothing_and_names_its_strategy(world, plan, given):
    class Mine:
        name = "mine"

        def plan(self, window: Any, *, forced: bool = False) -> Any:
            return plan if forced else None

        async def replace(self, plan: Any, window: Any, turn: Any) -> Any:
            return given

    agent = world.agent(says("one " * 50), says("two"))
    agent.compactor(Mine())
    await world.live(agent, "hello " * 50)
    result = await world.live(agent, "and?")
    before = await world.log()
    with pytest.raises(CompactionError, match=r"'mine'.*nothing was changed"):
        await agent.compact("s")
    assert await world.log() == before
    await world.sound(result)


# ---------------------------------------------------------------- nobody changes what is in the log


async def test_changing_a_value_after_it_was_given_changes_nothing(world):
    data, answer, raw = {"x": [1]}, {"y": [1]}, {"z": [1]}
    reply = ModelReply(Message("assistant", (OpaquePart("v", raw), ToolCallPart("act"))))
    agent = world.agent(model=FunctionModel(_in_turn([reply, "done"])), tools=[act])
    agent.gate(ToolCalling)(lambda event: Answer(answer))
    result = await world.live(agent, Message("user", (TextPart("go"), OpaquePart("v", data))))
    data["x"].append(2)
    answer["y"].append(2)
    raw["z"].append(2)
    log = await world.log()
    assert [part.data for part in result.messages[0].parts if isinstance(part, OpaquePart)] == [{"x": [1]}]
    assert [part.data for part in result.messages[1].parts if isinstance(part, OpaquePart)] == [{"z": [1]}]
    (decided,) = [record for record in log if isinstance(record, ToolDecided)]
    assert isinstance(decided.verdict, Answer)
    assert decided.verdict.value == {"y": [1]}
    await world.sound(result)


async def test_an_observer_cannot_change_what_a_later_request_has(world):
    seen: list[Any] = []

    async def reply(request: Any) -> Any:
        seen.append([part.data for part in request.messages[0].parts if isinstance(part, OpaquePart)])
        return Message("assistant", (ToolCallPart("act"),)) if len(seen) == 1 else "done"

    agent = world.agent(model=FunctionModel(reply), tools=[act])

    @agent.observe(ToolReturned, wait=True)
    def meddles(fact: Any, turn: Any) -> None:
        turn.user_message.parts[0].data["x"].append(2)

    result = await world.live(agent, Message("user", (OpaquePart("v", {"x": [1]}),)))
    assert seen == [[{"x": [1]}], [{"x": [1]}]]
    await world.sound(result)


def test_an_opaque_part_refuses_what_json_does_not_have():
    for value in VALUES.values():
        with pytest.raises(TypeError):
            OpaquePart("v", value)
    made = OpaquePart("v", {1: (2, datetime.date(2024, 1, 2))})
    assert made.data == {"1": [2, "2024-01-02"]}
    with pytest.raises(TypeError):
        made.data["1"].append(3)


# ---------------------------------------------------------------- no field is forgotten

WHOLE: list[tuple[Any, Callable[[Any], Any]]] = [
    (TextPart("x"), lambda part: checked_message(Message("user", (part,)))),
    (ThinkingPart("x"), lambda part: checked_message(Message("assistant", (part,)))),
    (ImagePart(b"x"), lambda part: checked_message(Message("user", (part,)))),
    (ToolCallPart("x"), lambda part: checked_message(Message("assistant", (part,)))),
    (ToolCallPart("x"), lambda part: reply_of("m", ModelReply(Message("assistant", (part,))))),
    (ToolResultPart("x", "y"), lambda part: checked_message(Message("tool", (part,)))),
    (Message("user"), checked_message),
    (Message("assistant"), lambda message: reply_of("m", ModelReply(message))),
    (ModelReply(HI), lambda reply: reply_of("m", reply)),
    (Usage(1), lambda usage: reply_of("m", ModelReply(HI, usage))),
    (ToolResult(), checked_result),
    (ToolCall("i", "n"), checked_call),
]


@pytest.mark.parametrize(("value", "check"), WHOLE, ids=lambda given: type(given).__name__)
def test_every_field_of_every_value_is_checked(value, check):
    """A field that is added to one of these values is checked, too."""
    check(value)
    for field in value.__struct_fields__:
        with pytest.raises((TypeError, BadReply)):
            check(replace(value, **{field: object()}))


@pytest.mark.parametrize("value", [OpaquePart("v", 1)], ids=["OpaquePart"])
def test_every_field_of_an_opaque_part_is_checked(value):
    for field in value.__struct_fields__:
        with pytest.raises(TypeError):
            checked_message(Message("user", (replace(value, **{field: object()}),)))


@given(values_of(ModelReply))
def test_a_valid_reply_is_taken_as_it_is(reply):
    assume(not any(isinstance(part, ToolResultPart) for part in reply.message.parts))
    assert is_reply(reply)
    assert reply_of("m", reply) is reply


async def test_a_reply_that_a_wrap_hands_on_is_paid_whatever_is_in_it(world):
    rich = ModelReply(
        Message("user", (TextPart("hi", "me"), ImagePart(b"1"), OpaquePart("v", {"x": 1})), "me", "id", True),
        Usage(1, 2, cost=0.5, details={"web_searches": 1}),
        "stop",
        "other",
        "STOP",
        "r1",
    )
    agent = world.agent(model=FunctionModel(_in_turn([rich])))
    agent.wrap(ModelCall)(_through)
    agent.wrap(ModelCall)(_through)
    result = await world.live(agent)
    log = await world.log()
    assert [record.paid for record in log if isinstance(record, ModelReplied)] == [True]
    assert not any(isinstance(record, ModelAttempted) for record in log)
    await world.sound(result)


# ---------------------------------------------------------------- a step's messages


async def test_a_rewrite_at_the_door_cannot_change_the_calls_of_a_step(world):
    for change in ({"name": "other"}, {"json": '{"x":2}'}, {"id": "else"}):
        agent = world.agent(calls("act", x=1), says("done"), tools=[act])

        @agent.rewrite(MessageAdding, name="mine")
        def meddle(event: Any, change: Any = change) -> Any:
            parts = tuple(
                part.replace(**change) if isinstance(part, ToolCallPart) else part for part in event.message.parts
            )
            return event.message.replace(parts=parts)

        result = await world.live(agent)
        assert isinstance(result.outcome, Failed)
        assert "'mine'" in result.outcome.error.message
        assert "cannot be added, removed, renamed or changed" in result.outcome.error.message
        await world.sound(result)


# ---------------------------------------------------------------- logs that cannot be read, or only in part


async def test_a_log_with_a_record_that_cannot_be_read_is_an_error_that_names_it(tmp_path):
    store: Any = open_store(f"sqlite:///{tmp_path}/log.db")
    agent = Agent(ScriptedModel(says("hi")), store=store)
    result = await agent.run("go", session="s")
    await store.append("s", [TurnStarted(2, Message("user", "hello"), "s/t2")], result.state.seq)  # type: ignore[arg-type]
    for attempt in (store.read("s"), agent.state("s"), agent.run("again", session="s"), agent.resume("s")):
        with pytest.raises(
            StoreError, match=rf"session 's', record {result.state.seq + 1}.*TurnStarted.*message.parts"
        ):
            await attempt
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_log_with_an_unknown_kind_is_shown_and_exported_but_not_advanced(tmp_path, kind):
    from windlass.transfer import export_session

    store: Any = MemoryStore() if kind == "memory" else open_store(f"sqlite:///{tmp_path}/log.db")

    def made() -> Agent:
        agent = Agent(ScriptedModel(calls("act"), says("hi")), tools=[act], store=store)
        agent.gate(ToolCalling)(lambda event: Ask("?"))
        return agent

    agent = made()
    result = await agent.run("go", session="s")
    (asked,) = result.waiting_for
    await store.append("s", [decode(b'{"kind":"FromTheFuture","x":1}')], result.state.seq)
    before = await store.read("s")
    for one in (agent, made()):
        for attempt in (
            lambda one=one: one.run("again", session="s"),
            lambda one=one: one.resume("s", answers={asked.id: Approve()}),
            lambda one=one: anext(one.iterate("again", session="s")),
            lambda one=one: anext(aiter(one.stream("again", session="s"))),
        ):
            with pytest.raises(StoreError, match=r"session 's'.*'FromTheFuture'.*newer version"):
                await attempt()
        assert await store.read("s") == before
    assert (await agent.state("s")).waiting == (asked,)
    assert "FromTheFuture" in str(await agent.why("s"))
    assert "FromTheFuture" in "".join(await export_session(store, "s"))
    if kind == "sqlite":
        await store.close()


async def test_a_session_with_an_unknown_kind_is_neither_closed_nor_compacted():
    from windlass.capabilities import Trim

    store = MemoryStore()
    agent = Agent(ScriptedModel(says("hi")), store=store).with_capability(Trim())
    result = await agent.run("go", session="s")
    await store.append("s", [decode(b'{"kind":"FromTheFuture"}')], result.state.seq)
    with pytest.raises(StoreError, match="newer version"):
        await agent.compact("s")
    with pytest.raises(StoreError, match="newer version"):
        async with agent.session("s"):
            pass
    assert len(await store.read("s")) == result.state.seq + 1


# ---------------------------------------------------------------- text in place


class Same(Lifecycle):
    """All that may return what it was given does."""

    def before_agent(self, text: str) -> str:
        return text

    def before_model(self, messages: Any) -> Any:
        return list(messages)

    def after_model(self, reply: Any) -> Any:
        return HookAction.Modify(reply.text)

    def after_agent(self, text: str) -> str:
        return text


MIXED = Message("user", (TextPart("A "), ImagePart(b"1"), TextPart(" B")))
REPLY = Message("assistant", (ThinkingPart("hm", "sig"), TextPart("I "), TextPart("act"), ToolCallPart("act")))


async def test_a_rewrite_that_returns_the_same_text_changes_nothing(world):
    agent = world.agent(model=FunctionModel(_in_turn([REPLY, "done"])), tools=[act])
    agent.with_lifecycle(Same())
    agent.rewrite(TurnStarting)(lambda event: event.message.text)
    agent.rewrite(MessageAdding)(lambda event: event.message.text)
    agent.rewrite(ModelReplying)(lambda event: event.reply.text)
    agent.rewrite(ToolReturning)(lambda event: event.result.text)
    agent.rewrite(TurnEnding)(lambda event: event.text)
    result = await world.live(agent, MIXED)
    assert result.messages[0].parts == MIXED.parts
    assert [type(part) for part in result.messages[1].parts] == [type(part) for part in REPLY.parts]
    assert [record for record in await world.log() if isinstance(record, Rewritten)] == []
    assert result.text == "done"
    await world.sound(result)


@pytest.mark.parametrize("way", ["rewrite", "lifecycle"])
async def test_a_new_text_stands_where_the_old_text_stood(world, way):
    agent = world.agent(model=FunctionModel(_in_turn([REPLY, "done"])), tools=[act])
    if way == "rewrite":
        agent.rewrite(TurnStarting)(lambda event: "new")
        agent.rewrite(ModelReplying)(lambda event: event.reply.text.upper())
    else:

        class Upper(Lifecycle):
            def before_agent(self, text: str) -> str:
                return "new"

            def after_model(self, reply: Any) -> Any:
                return HookAction.Modify(reply.text.upper())

        agent.with_lifecycle(Upper())
    result = await world.live(agent, MIXED.replace(parts=MIXED.parts[1:]))
    assert result.messages[0].parts == (ImagePart(b"1"), TextPart("new"))
    thinking, *texts, call = result.messages[1].parts
    assert (thinking, texts) == (ThinkingPart("hm", "sig"), [TextPart("I "), TextPart("ACT")])
    assert isinstance(call, ToolCallPart)
    await world.sound(result)


async def test_no_rewrite_leaves_an_empty_part(world):
    agent = world.agent(model=FunctionModel(_in_turn([REPLY, "done"])), tools=[act])
    agent.rewrite(TurnStarting)(lambda event: "")
    agent.rewrite(ModelReplying)(lambda event: "" if event.reply.tool_calls else None)
    result = await world.live(agent, MIXED)
    assert result.messages[0].parts == (ImagePart(b"1"),)
    assert [type(part) for part in result.messages[1].parts] == [ThinkingPart, ToolCallPart]
    await world.sound(result)


async def test_text_for_a_reply_without_any_comes_after_the_thinking_and_before_the_calls(world):
    silent = Message("assistant", (ThinkingPart("hm", "sig"), ToolCallPart("act")))
    agent = world.agent(model=FunctionModel(_in_turn([silent, "done"])), tools=[act])
    agent.rewrite(ModelReplying)(lambda event: "I act" if event.reply.tool_calls else None)
    result = await world.live(agent)
    assert [type(part) for part in result.messages[1].parts] == [ThinkingPart, TextPart, ToolCallPart]
    await world.sound(result)


async def test_a_result_keeps_its_other_parts_in_their_order(world):
    @tool
    async def picture() -> Any:
        """Show."""
        return [ImagePart(b"1"), TextPart("a", "mine"), ImagePart(b"2"), TextPart("b")]

    agent = world.agent(calls("picture"), says("done"), tools=[picture])
    agent.rewrite(ToolReturning)(lambda event: "clean")
    result = await world.live(agent)
    (part,) = result.messages[2].parts
    assert part.content == (ImagePart(b"1"), TextPart("clean", "mine"), ImagePart(b"2"))  # type: ignore[union-attr]
    await world.sound(result)


async def test_a_text_for_a_tool_message_is_refused_where_it_would_leave_the_results_as_they_are(world):
    agent = world.agent(calls("act"), says("done"), tools=[act])
    agent.rewrite(MessageAdding, name="mine")(lambda event: "clean")
    result = await world.live(agent)
    assert isinstance(result.outcome, Failed)
    assert "'mine'" in result.outcome.error.message
    assert "in its results" in result.outcome.error.message
    await world.sound(result)
