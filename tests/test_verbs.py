"""What may be said of a hook, and what a transformer does with a whole reply."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import threading
import time
from collections.abc import Iterable
from typing import Any, ForwardRef, get_args
from unittest.mock import AsyncMock, Mock

import pytest

import windlass.events
from windlass import (
    Agent,
    Completed,
    Deny,
    Halt,
    HookDecided,
    HookFailed,
    ModelCalled,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Slot,
    ToolCalling,
    TurnStarting,
    tool,
)
from windlass._hooks import dispatch
from windlass.decisions import Vote
from windlass.errors import RegistrationError
from windlass.events import EVENTS, LIFECYCLE, Event
from windlass.messages import Message, ModelReply, TextPart, ThinkingPart
from windlass.testing import ScriptedModel, calls, says

from .logs import find


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_plain_hook_that_blocks_the_loop_is_named(monkeypatch):
    """Behaviour 83g: and told how not to."""
    monkeypatch.setattr(dispatch, "BLOCKED_AFTER", 0.05)
    agent = Agent(ScriptedModel(says("hi")))

    @agent.gate(ModelCalling)
    def sleepy(event: ModelCalling) -> None:
        time.sleep(0.06)

    result = await agent.run("go", session="s")
    (blocked,) = await find(agent, HookFailed, "s")
    assert (blocked.hook, blocked.effect) == ("sleepy", "blocked the loop")
    assert "thread=True" in blocked.error.message
    assert result.text == "hi"


async def test_a_hook_in_a_thread_leaves_the_loop_free():
    agent = Agent(ScriptedModel(says("hi")))
    seen: list[str] = []

    @agent.gate(ModelCalling, thread=True, timeout=5)
    def elsewhere(event: ModelCalling) -> None:
        seen.append(threading.current_thread().name)

    await agent.run("go", session="s")
    assert seen != [threading.current_thread().name]
    assert await find(agent, HookFailed, "s") == []


async def test_a_shadow_gate_looks_on_and_only_its_answer_is_recorded():
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
    released = asyncio.Event()

    @agent.gate(ToolCalling, mode="shadow")
    async def shadow(event: ToolCalling) -> Deny:
        await released.wait()
        return Deny("would not")

    @agent.gate(ModelCalling)
    def release(event: ModelCalling) -> None:
        if len(event.request.messages) > 1:
            released.set()

    result = await agent.run("go", session="s")
    assert result.text == "3"
    (decided,) = [d for d in await find(agent, HookDecided, "s") if d.shadow]
    assert decided.answers == (("shadow", Deny("would not")),)


async def test_a_costly_gate_is_asked_only_if_no_other_refused():
    asked: list[str] = []

    def build(refusal: Any) -> Agent:
        agent = Agent(ScriptedModel(says("one"), says("two"), says("three")), max_regenerations=0)

        @agent.gate(ModelReplying, costly=True, priority=99)
        def critic(event: ModelReplying) -> None:
            asked.append("critic")

        agent.gate(ModelReplying)(lambda event: refusal)
        return agent

    await build(Regenerate("no")).run("go")
    await build(Halt("no")).run("go")
    assert asked == []
    await build(None).run("go")
    assert asked == ["critic"]


async def test_a_transformer_changes_the_words_of_every_later_reader():
    agent = Agent(ScriptedModel(says("the word is swordfish"), says("ok")))
    made: list[object] = []

    @agent.transform
    class Redact:
        def __init__(self) -> None:
            made.append(self)
            self.held = ""

        def feed(self, text: str) -> Iterable[str]:
            self.held += text
            return ()

        def flush(self) -> Iterable[str]:
            yield self.held.replace("swordfish", "**")

    result = await agent.run("go", session="s")
    again = await agent.run("and?", session="s")
    assert result.text == "the word is **"
    assert "swordfish" not in repr(await agent.store.read("s"))
    assert "swordfish" not in repr(list(again.messages))
    assert len(made) == 2


async def test_a_signed_part_that_a_transformer_would_change_is_dropped_whole():
    thought = ModelReply(Message("assistant", (ThinkingPart("42", signature="sig"), TextPart("so 42"))))
    agent = Agent(ScriptedModel(thought))

    @agent.transform(channels=("text", "thinking"))
    class Redact:
        def feed(self, text: str) -> Iterable[str]:
            yield text.replace("42", "**")

        def flush(self) -> Iterable[str]:
            return ()

    result = await agent.run("go")
    assert result.messages[1].parts == (TextPart("so **"),)


async def test_a_transformer_is_registered_once_and_its_order_is_that_of_the_bands():
    agent = Agent(ScriptedModel(says("x")))

    class Mark:
        mark = ""

        def feed(self, text: str) -> Iterable[str]:
            yield text + self.mark

        def flush(self) -> Iterable[str]:
            return ()

    class Guard(Mark):
        mark = "g"

    class First(Mark):
        mark = "1"

    agent.transform(band="guard")(Guard)
    agent.transform(First)
    agent.transform(First)
    assert (await agent.run("go")).text == "x1g"


def test_a_capability_cannot_ask_for_the_guard_band_but_the_application_can_put_it_there():
    class Greedy:
        def install(self, registrar: Any) -> None:
            registrar.gate(ToolCalling, band="guard")(lambda event: None)

    class Modest:
        def install(self, registrar: Any) -> None:
            registrar.gate(ToolCalling, name="modest")(lambda event: None)

    with pytest.raises(RegistrationError, match="Greedy"):
        Agent(ScriptedModel()).with_capability(Greedy())
    agent = Agent(ScriptedModel()).with_capability(Modest(), band="guard")
    (hook,) = agent._compile().hooks.all
    assert (hook.band, hook.capability, hook.inherit) == ("guard", "Modest", True)


@pytest.mark.parametrize(
    ("matcher", "matched"),
    [
        ("add", True),
        ("a*", True),
        (lambda call: call.name == "sub", False),
        (["sub", "add"], True),
        ("add(a=1*)", True),
        ("add(a=2)", False),
        (lambda call: call.arguments["a"] == 1, True),
    ],
)
async def test_a_matcher_says_which_calls_a_hook_sees(matcher: Any, matched: bool):
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
    agent.gate(ToolCalling, tool=matcher)(lambda event: Deny("seen"))
    result = await agent.run("go")
    assert (result.messages[2].parts[0].status == "denied") is matched  # type: ignore[union-attr]


def test_a_matcher_on_an_event_that_is_not_about_tools_is_refused():
    with pytest.raises(RegistrationError, match="not about a tool"):
        Agent(ScriptedModel()).gate(TurnStarting, tool="add")(lambda event: None)


# ---------------------------------------------------------------- what a hook looks like


class Hooks:
    """Every shape of a function that can be a hook; each notes the turn it is given."""

    seen: list[Any] = []  # noqa: RUF012

    def method(self, event, turn):
        self.seen.append(turn)

    @classmethod
    def of_the_class(cls, event, turn):
        cls.seen.append(turn)

    @staticmethod
    def static(event, turn):
        Hooks.seen.append(turn)

    def by_name(self, event, *, turn):
        self.seen.append(turn)

    def by_name_or_not(self, event, *, turn=None):
        self.seen.append(turn)

    def with_a_default(self, event, turn=None):
        self.seen.append(turn)

    def with_another_default(self, event, n=1, turn=None):
        self.seen.append(turn)

    def positional(self, event, /, turn):
        self.seen.append(turn)

    def any_name(self, event, turn, **rest):
        self.seen.append(turn)

    def __call__(self, event, turn):
        self.seen.append(turn)


def wrapped(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any, **named: Any) -> Any:
        return fn(*args, **named)

    return inner


mine = Hooks()


@pytest.mark.parametrize(
    "hook",
    [
        *[getattr(mine, name) for name in vars(Hooks) if not name.startswith("_") and name != "seen"],
        mine,
        wrapped(Hooks.static),
        functools.partial(mine.method),
        functools.partial(mine.with_another_default, n=2),
        lambda event, turn: mine.seen.append(turn),
    ],
    ids=lambda hook: getattr(hook, "__name__", type(hook).__name__),
)
async def test_whatever_can_be_called_with_an_event_is_a_hook_and_may_ask_for_the_turn(hook):
    agent = Agent(ScriptedModel(says("done")))
    agent.gate(ModelCalling)(hook)
    mine.seen.clear()
    await agent.run("go", session="s")
    assert [turn.session_id for turn in mine.seen] == ["s"]


def no_more(event, *rest): ...


def takes_anything(*given, **named): ...


@pytest.mark.parametrize("hook", [no_more, takes_anything], ids=lambda hook: hook.__name__)
async def test_what_takes_anything_gets_the_event_alone(hook):
    agent = Agent(ScriptedModel(says("done")))
    agent.gate(ModelCalling)(hook)
    assert (await agent.run("go")).text == "done"


class Twin:
    """All of them are equal; only some have something to say."""

    def __init__(self, says_no: bool) -> None:
        self.says_no = says_no

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Twin)

    async def look(self, event: ModelReplying) -> Halt | None:
        return Halt("no") if self.says_no else None

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_of_hooks_that_are_equal_the_one_that_spoke_is_named(at):
    agent = Agent(ScriptedModel(says("done")))
    for place in range(3):
        agent.hook(ModelReplying)(Twin(place == at).look)
    await agent.run("go", session="s")
    [decided] = await find(agent, HookDecided, "s")
    assert [name for name, _ in decided.answers] == [["Twin.look", "Twin.look#2", "Twin.look#3"][at]]


def test_an_annotation_that_can_be_resolved_only_later_is_looked_at_then():
    def check(event: ToolCalling) -> Later | None: ...  # noqa: F821

    Agent(ScriptedModel()).gate(ToolCalling)(check)
    check.__globals__["Later"] = Regenerate
    try:
        with pytest.raises(RegistrationError, match="Regenerate"):
            Agent(ScriptedModel()).gate(ToolCalling)(check)
    finally:
        del check.__globals__["Later"]


class Deferred:
    """Says that it is a function, as some decorators do, but has a signature of its own."""

    def __init__(self, fn: Any) -> None:
        object.__setattr__(self, "fn", fn)

    __class__ = property(lambda self: type(self.fn))  # type: ignore[assignment]
    __dict__ = property(lambda self: self.fn.__dict__)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)

    @property
    def __signature__(self) -> Any:
        return inspect.signature(lambda event, turn: None)

    def __call__(self, event: Any, turn: Any) -> None:
        mine.seen.append(turn)


async def test_a_signature_that_somebody_claims_counts():
    agent = Agent(ScriptedModel(says("done")))
    agent.gate(ModelCalling)(Deferred(lambda event: None))
    mine.seen.clear()
    assert (await agent.run("go", session="s")).outcome == Completed()
    assert [turn.session_id for turn in mine.seen] == ["s"]


@pytest.mark.parametrize("mock", [Mock, AsyncMock])
async def test_a_mock_is_a_hook(mock):
    agent, look = Agent(ScriptedModel(says("done"))), mock(return_value=None)
    agent.gate(ModelCalling, name="look")(look)
    assert (await agent.run("go")).text == "done"
    look.assert_called_once()
    assert "look" in str(agent.explain())


async def test_a_type_that_is_defined_anew_is_the_one_that_counts():
    def gate(event: ModelCalling, notes: Notes) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for _ in range(2):
        gate.__globals__["Notes"] = kind = type("Notes", (list,), {})
        agent = Agent(ScriptedModel(says("done")))
        agent.slot(Slot("notes", kind))
        agent.gate(ModelCalling)(gate)
        assert (await agent.run("go")).text == "done"
    del gate.__globals__["Notes"]


async def test_what_requests_share_cannot_be_changed_but_copied():
    seen: list[Any] = []
    agent = Agent(ScriptedModel(says("done")), tools=[add])
    agent.observe(ModelCalled, wait=True)(lambda fact: seen.append(fact.request.tools[0]))
    await agent.run("go")
    [spec] = seen
    with pytest.raises(TypeError, match="pass a changed copy"):
        spec.schema["properties"]["a"] = {}
    for changed in (copy.deepcopy(spec.schema), copy.deepcopy(spec).schema):
        changed["properties"]["a"]["description"] = "the first"
        changed["required"].append("c")
    assert copy.copy(spec.schema) == spec.schema == add.spec.schema
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    with pytest.raises(TypeError, match="cannot be changed"):
        again.schema["required"].append("c")


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_the_ranks_of_an_event_are_its_type_parameter_in_that_order(event):
    """Type checkers read the parameters, the kernel reads the class attributes."""
    [base] = [base for base in event.__orig_bases__ if base.__origin__ is Event]
    itself, decisions, payload = get_args(base)
    assert itself == ForwardRef(event.__name__)
    if Vote in get_args(decisions):
        assert event.ranks == tuple(Vote)
    else:
        assert event.ranks == get_args(decisions)
        assert len(event.ranks) > 1
    assert (payload is type(None)) == (event.payload is None)


def test_every_event_class_has_its_place_in_the_lifecycle():
    defined = [kind for kind in vars(windlass.events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    assert set(defined) - {Event} == set(EVENTS)
    assert [place for place in LIFECYCLE if place in EVENTS] == list(EVENTS)
