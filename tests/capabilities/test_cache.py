"""Cache: equal requests are answered from the store, for as long and for whom the application says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Agent, Deny, Halt, ModelReplying, Regenerate, Turn, TurnEnding, tool
from windlass.capabilities import Cache
from windlass.errors import ConfigError, StoreError
from windlass.messages import Usage
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, check_capability, says


def counting() -> tuple[Any, list[str]]:
    ran: list[str] = []

    @tool(effect="pure")
    async def look(what: str) -> str:
        """Look."""
        ran.append(what)
        await asyncio.sleep(0)
        return f"saw {what}"

    return look, ran


@pytest.mark.parametrize("options", [{}, {"models": False, "tools": True}, {"tools": "echo", "ttl": 60}])
async def test_it_passes_the_checks_for_capabilities(options):
    await check_capability(lambda: Cache(**options))


async def test_an_equal_request_is_answered_without_a_model_and_costs_nothing():
    """Behaviour 24: one model call."""
    model = ScriptedModel(says("hi", usage=Usage(10, 5, cost=0.1)))
    agent = Agent(model, capabilities=[Cache()])
    first, second = await agent.run("go"), await agent.run("go")
    assert (first.text, second.text) == ("hi", "hi")
    assert len(model.requests) == 1
    assert (first.usage.cost, second.usage.requests, second.usage.total) == (0.1, 0, 0)


async def test_another_request_is_another_entry():
    model = ScriptedModel(says("one"), says("two"), says("three"))
    agent = Agent(model, capabilities=[Cache()])
    assert [(await agent.run(text)).text for text in ("a", "b", "a")] == ["one", "two", "one"]
    other = Agent(model, system="Be brief.", capabilities=[Cache()], store=agent.store)
    assert (await other.run("a")).text == "three"


async def test_a_whole_turn_with_tools_is_repeated_in_another_session():
    look, ran = counting()
    model = ScriptedModel(calls("look", what="sea"), says("blue"))
    agent = Agent(model, tools=[look], capabilities=[Cache(tools=True)])
    first, second = await agent.run("go", session="a"), await agent.run("go", session="b")
    assert (first.text, second.text) == ("blue", "blue")
    assert (len(model.requests), ran) == (2, ["sea"])
    assert second.messages[1].tool_calls[0].id == "b/1/1"


async def test_entries_are_shared_by_processes_and_survive_them(tmp_path):
    address = f"sqlite:///{tmp_path}/a.db"
    for script in ([says("hi")], []):
        agent = Agent(ScriptedModel(*script), capabilities=[Cache()], store=address)
        assert (await agent.run("go")).text == "hi"
        await agent.aclose()


async def test_an_entry_expires():
    clock = FakeClock()
    agent = Agent(ScriptedModel(says("one"), says("two")), capabilities=[Cache(ttl=60)], clock=clock)
    assert (await agent.run("go")).text == "one"
    clock.tick(59)
    assert (await agent.run("go")).text == "one"
    clock.tick(2)
    assert (await agent.run("go")).text == "two"


async def test_entries_can_be_kept_apart():
    def user(turn: Turn[Any]) -> str:
        return str(turn.scope["user"])

    agent = Agent(ScriptedModel(says("for ann"), says("for bob")), capabilities=[Cache(vary=user)])
    answers = [(await agent.run("go", scope={"user": name})).text for name in ("ann", "bob", "ann")]
    assert answers == ["for ann", "for bob", "for ann"]


async def test_a_reply_that_was_cut_off_or_refused_is_not_kept():
    for finish in ("length", "refusal", "content_filter"):
        model = ScriptedModel(says("no", finish=finish), says("yes"))
        agent = Agent(model, capabilities=[Cache()])
        await agent.run("go")
        assert (await agent.run("go")).text == "yes"


async def test_errors_are_not_kept():
    failing = [True, False]

    @tool(effect="pure", inline=True)
    def try_it() -> str:
        """Try."""
        if failing.pop(0):
            raise ValueError("no")
        return "worked"

    agent = Agent(
        ScriptedModel(calls("try_it"), calls("try_it"), says("done")), tools=[try_it], capabilities=[Cache(tools=True)]
    )
    result = await agent.run("go")
    assert [m.parts[0].status for m in result.messages if m.role == "tool"] == ["error", "ok"]


async def test_equal_calls_of_one_step_run_once_and_each_has_its_result():
    look, ran = counting()
    model = ScriptedModel(calls([("look", {"what": "sea"}), ("look", {"what": "sea"})]), says("done"))
    agent = Agent(model, tools=[look], capabilities=[Cache(models=False, tools="look")])
    result = await agent.run("go", session="s")
    assert ran == ["sea"]
    assert [(part.call_id, part.text) for part in result.messages[2].parts] == [
        ("s/1/1", "saw sea"),
        ("s/1/2", "saw sea"),
    ]


async def test_if_the_first_of_two_equal_calls_fails_the_other_runs():
    ran: list[int] = []

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        ran.append(1)
        await asyncio.sleep(0)
        if len(ran) == 1:
            raise ValueError("no")
        return "seen"

    agent = Agent(
        ScriptedModel(calls([("look", {}), ("look", {})]), says("done")), tools=[look], capabilities=[Cache(tools=True)]
    )
    result = await agent.run("go")
    assert [part.status for part in result.messages[2].parts] == ["error", "ok"]


async def test_only_pure_tools_are_kept_and_those_that_see_the_turn_only_by_name():
    ran: list[str] = []

    @tool(inline=True)
    def send() -> str:
        """Send."""
        ran.append("send")
        return "sent"

    @tool(effect="pure", inline=True)
    def who(turn: Turn[Any]) -> str:
        """Who?"""
        ran.append("who")
        return turn.session_id

    script = [calls([("send", {}), ("who", {})]), says("done")]

    async def run(tools: Any) -> list[str]:
        ran.clear()
        agent = Agent(
            ScriptedModel(*script, *script), tools=[send, who], capabilities=[Cache(models=False, tools=tools)]
        )
        await agent.run("go", session="a")
        await agent.run("go", session="b")
        return sorted(ran)

    assert await run(True) == ["send", "send", "who", "who"]
    assert await run("*") == ["send", "send", "who"]
    with pytest.raises(ConfigError, match="only pure tools can be cached, and 'send' is not"):
        await run(["send"])


async def test_a_hit_is_streamed_like_a_reply():
    agent = Agent(ScriptedModel(says("hello", chunks=["hel", "lo"])), capabilities=[Cache()])
    await agent.run("go")
    async with agent.stream("go") as stream:
        seen = [event.text async for event in stream if type(event).__name__ == "TextDelta"]
    assert "".join(seen) == "hello"


async def test_a_store_that_fails_is_a_miss():
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise StoreError("the disk is full")

    store = MemoryStore()
    store.values = Broken()  # type: ignore[assignment]
    agent = Agent(ScriptedModel(says("one"), says("two")), capabilities=[Cache()], store=store)
    assert [(await agent.run("go")).text for _ in range(2)] == ["one", "two"]


async def test_a_reply_that_is_too_large_is_not_kept():
    agent = Agent(ScriptedModel(says("x" * 2_000_000), says("short")), capabilities=[Cache()])
    await agent.run("go")
    assert (await agent.run("go")).text == "short"


async def test_a_cancelled_request_does_not_block_an_equal_one():
    started = asyncio.Event()
    waits = [True, False]

    async def reply(request: Any) -> Any:
        if waits.pop(0):
            started.set()
            await asyncio.Event().wait()
        return says("hi")

    agent = Agent(FunctionModel(reply), capabilities=[Cache()])
    first = asyncio.ensure_future(agent.run("go", session="a"))
    await started.wait()
    second = asyncio.ensure_future(agent.run("go", session="b"))
    await asyncio.sleep(0)
    await agent.cancel("a")
    await first
    assert (await second).text == "hi"


@pytest.mark.parametrize("options", [{"models": False}, {"ttl": 0}, {"vary": 7}, {"name": ""}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Cache"):
        Cache(**options)


def test_explain_says_what_is_kept():
    agent = Agent(ScriptedModel(), capabilities=[Cache(tools=True, ttl=3600)])
    assert "cache · replies and pure tools, for 3600 s" in str(agent.explain())


@pytest.mark.parametrize("refusal", ["regenerate", "halt", "withhold"])
async def test_a_reply_that_hooks_refuse_is_not_used_again(refusal):
    replies = iter(["bad", "bad", "bad", "good", "good", "good"])
    asked = []

    def reply(request):
        asked.append(request)
        return says(next(replies))

    agent = Agent(FunctionModel(reply), capabilities=[Cache()], max_regenerations=1)

    @agent.gate(TurnEnding if refusal == "withhold" else ModelReplying)
    def judge(event):
        text = event.text if refusal == "withhold" else event.reply.text
        if text == "good":
            return None
        return {"regenerate": Regenerate("again"), "halt": Halt("no"), "withhold": Deny("no")}[refusal]

    outcomes = [type((await agent.run("go")).outcome).__name__ for _ in range(6)]
    assert outcomes == ["Stopped"] * {"regenerate": 1, "halt": 3, "withhold": 3}[refusal] + ["Completed"] * (
        6 - {"regenerate": 1, "halt": 3, "withhold": 3}[refusal]
    )
    assert len(asked) == {"regenerate": 5, "halt": 4, "withhold": 4}[refusal]
