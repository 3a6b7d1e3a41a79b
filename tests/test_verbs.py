"""What may be said of a hook, and what a transformer does with a whole reply."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from windlass import (
    Agent,
    Deny,
    Halt,
    HookDecided,
    HookFailed,
    ModelCalling,
    ModelReplying,
    Regenerate,
    ToolCalling,
    TurnStarting,
    tool,
)
from windlass._hooks import dispatch
from windlass.errors import RegistrationError
from windlass.messages import Message, ModelReply, TextPart, ThinkingPart
from windlass.testing import ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def log_of(agent: Agent, kind: type) -> list[Any]:
    return [record for record in await agent.store.read("s") if isinstance(record, kind)]


async def test_a_plain_hook_that_blocks_the_loop_is_named(monkeypatch):
    """Behaviour 83g: and told how not to."""
    monkeypatch.setattr(dispatch, "BLOCKED_AFTER", 0.05)
    agent = Agent(ScriptedModel(says("hi")))

    @agent.gate(ModelCalling)
    def sleepy(event: ModelCalling) -> None:
        time.sleep(0.06)

    result = await agent.run("go", session="s")
    (blocked,) = await log_of(agent, HookFailed)
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
    assert await log_of(agent, HookFailed) == []


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
    (decided,) = [d for d in await log_of(agent, HookDecided) if d.shadow]
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
    (hook,) = agent.compile().hooks.all
    assert (hook.band, hook.capability, hook.inherit) == ("guard", "Modest", True)


@pytest.mark.parametrize(
    ("matcher", "matched"),
    [
        ("add", True),
        ("a*", True),
        ("sub", False),
        (["sub", "add"], True),
        ("add(a=1*)", False),
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
    [decided] = await log_of(agent, HookDecided)
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
