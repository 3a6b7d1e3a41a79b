"""What may be said of a hook, and what a transformer does with a whole reply."""

from __future__ import annotations

import asyncio
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
