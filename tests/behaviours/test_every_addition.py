"""Each addition to the public surface does the same with run, stream, iterate, resume and in a sub-agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from windlass import (
    Agent,
    Answered,
    Approve,
    Ask,
    ErrorHandled,
    ErrorRule,
    HookRan,
    ImagePart,
    Limit,
    Message,
    ModelCall,
    ModelReplying,
    ModelRequest,
    Noted,
    RateLimits,
    SideReplied,
    StopReason,
    TextPart,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolResult,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    tool,
)
from windlass.messages import ModelReply
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, run_everywhere, says
from windlass.testing.ways import Lived

WAYS = {"run", "run_sync", "iterate", "stream", "resume", "as_tool"}


@tool(effect="pure", inline=True)
def look(at: str = "sea") -> ToolResult:
    """Look at something."""
    return ToolResult.of(f"saw the {at}", data={"at": at})


def looking(*replies: Any, **options: Any) -> Agent[Any, Any]:
    """An agent that calls `look` once and has to ask for it."""
    agent = Agent(ScriptedModel(calls("look", at="{sea}"), *(replies or [says("done")])), tools=[look], **options)
    agent.gate(ToolCalling, name="ask")(lambda event: Ask("look?"))
    return agent


async def everywhere(factory: Callable[[], Agent[Any, Any]], **options: Any) -> list[Lived]:
    """The turn in every way of running, each of which must have happened."""
    lived = await run_everywhere(factory, **options)
    assert set(lived) == WAYS
    return list(lived.values())


def of(lived: Lived, kind: type) -> list[Any]:
    return [record for record in lived.log if isinstance(record, kind)]


class Part:
    """A capability made of one function."""

    name = "part"

    def __init__(self, install: Any) -> None:
        self.install = install


# ---------------------------------------------------------------- the tool, the clock, what is left


async def test_hooks_see_the_tool_and_when_limits_them():
    def factory() -> Agent[Any, Any]:
        agent = looking()

        @agent.rewrite(ToolReturning, when=lambda event: event.tool.effect == "pure")
        def mark(event: ToolReturning, turn: Turn[Any]) -> ToolResult:
            assert event.tool is turn.tools["look"]
            return event.result.map_text(str.upper)

        return agent

    for lived in await everywhere(factory):
        (returned,) = of(lived, ToolReturned)
        assert returned.result == ToolResult.of("SAW THE {SEA}", data={"at": "{sea}"})


async def test_time_money_and_window_are_those_of_the_turn():
    def factory() -> Agent[Any, Any]:
        agent = looking(clock=FakeClock(5_000.0), criteria=[TokenLimit(1_000)], window=10_000)

        @agent.gate(ModelReplying)
        def measure(event: ModelReplying, turn: Turn[Any]) -> None:
            left, window = turn.left, turn.window
            assert window.free is not None
            turn.note("left", [turn.now(), left.steps, left.tokens, window.size == window.used + window.free])

        return agent

    for lived in await everywhere(factory):
        first, second = [note.data for note in of(lived, Noted)]
        assert lived.session != "session" or first[0] == 5_000.0  # a sub-agent has the clock of its parent
        assert first[1] - 1 == second[1]
        assert 0 < second[2] < first[2] <= 1_000
        assert first[3] is second[3] is True


async def test_a_time_out_of_a_hook_goes_by_the_agents_clock():
    def factory() -> Agent[Any, Any]:
        clock = FakeClock()
        agent = looking(clock=clock)

        @agent.wrap(ToolCall)
        async def patient(call: ToolCall, call_next: Any, turn: Turn[Any]) -> Any:
            try:
                async with turn.timeout(5):
                    await clock.wait_for_sleepers()
                    clock.tick(6)
                    await asyncio.Event().wait()
            except TimeoutError:
                return await call_next(call)

        return agent

    for lived in await everywhere(factory):
        assert lived.state.text == "done"
        assert of(lived, ToolReturned)[0].result.text == "saw the {sea}"


# ---------------------------------------------------------------- models, side calls


async def test_a_capability_brings_a_model_and_asks_it_for_a_typed_verdict():
    class Verdict(Struct):
        ok: bool

    def factory() -> Agent[Any, Any]:
        def repaired(request: ModelRequest) -> str:
            return '{"ok": true}' if len(request.messages) > 1 else "perhaps"

        critic = FunctionModel(repaired, name="critic")

        def install(registrar: Any) -> None:
            name = registrar.model(critic)

            @registrar.gate(ModelReplying)
            async def judge(event: ModelReplying, turn: Turn[Any]) -> None:
                verdict = await turn.ask(name, "fine?", output=Verdict)
                turn.note("verdict", verdict.ok)

        return looking(capabilities=[Part(install)])

    for lived in await everywhere(factory):
        assert [note.data for note in of(lived, Noted)] == [True, True]
        assert len(of(lived, SideReplied)) == 4


async def test_a_wrap_with_side_calls_surrounds_them():
    def factory() -> Agent[Any, Any]:
        critic = FunctionModel(lambda request: says(request.system), name="critic")
        agent = looking(models=[critic])

        @agent.wrap(ModelCall, side_calls=True)
        async def stamp(request: ModelRequest, call_next: Any) -> ModelReply:
            reply: ModelReply = await call_next(request)
            return reply if not request.side else reply.map_text(lambda text: f"{text}!")

        @agent.gate(ModelReplying)
        async def judge(event: ModelReplying, turn: Turn[Any]) -> None:
            turn.note("said", (await turn.ask("critic", "fine?", system="yes")).text)

        return agent

    for lived in await everywhere(factory):
        assert [note.data for note in of(lived, Noted)] == ["yes!", "yes!"]


async def test_the_rate_limits_of_a_reply_are_seen_and_kept():
    limits = RateLimits(requests=10, requests_left=3, requests_reset=1.5)

    def factory() -> Agent[Any, Any]:
        def reply(request: ModelRequest) -> ModelReply:
            scripted = says("done") if request.messages[-1].role == "tool" else calls("look")
            return scripted.reply.replace(limits=limits)

        agent = Agent(FunctionModel(reply), tools=[look])
        agent.gate(ToolCalling, name="ask")(lambda event: Ask("look?"))

        @agent.gate(ModelReplying)
        def watch(event: ModelReplying, turn: Turn[Any]) -> None:
            assert event.reply.limits is not None
            turn.note("left", event.reply.limits.requests_left)

        return agent

    for lived in await everywhere(factory):
        assert [note.data for note in of(lived, Noted)] == [3, 3]


# ---------------------------------------------------------------- limits, errors, people


async def test_a_limit_of_ones_own_stops_the_turn():
    class Quota(Limit, frozen=True):
        steps: int

        def exceeded(self, state: Any, turn: Any) -> str | None:
            return "enough" if turn.steps >= self.steps else None

    def factory() -> Agent[Any, Any]:
        return looking(capabilities=[Part(lambda registrar: registrar.criterion(Quota(1)))])

    for lived in await everywhere(factory):
        assert lived.state.outcome.reason is StopReason.FORBIDDEN  # type: ignore[union-attr]
        assert lived.state.outcome.detail == "Quota: enough"  # type: ignore[union-attr]


async def test_an_error_rule_of_a_capability_retries():
    class Odd(Exception):
        pass

    def factory() -> Agent[Any, Any]:
        rule = ErrorRule(Odd, "retry", delay=0)
        return looking(Odd("odd"), says("done"), capabilities=[Part(lambda registrar: registrar.errors(rule))])

    for lived in await everywhere(factory):
        assert lived.state.text == "done"
        assert [(record.action, record.error.type) for record in of(lived, ErrorHandled)] == [("retry", "Odd")]


async def test_a_rule_to_remember_is_in_the_recorded_answer():
    answer = Approve(by="eve", remember="look(at=*)")
    for lived in await everywhere(looking, answers=answer):
        assert [record.answer for record in of(lived, Answered)] == [answer]


# ---------------------------------------------------------------- reveals, shared objects, times of hooks


async def test_a_tool_gets_what_was_revealed_and_the_log_does_not():
    got: list[str] = []

    @tool(effect="pure", inline=True, name="look")
    def secret_look(at: str) -> str:
        """Look at something."""
        got.append(at)
        return "saw it"

    def factory() -> Agent[Any, Any]:
        agent = Agent(ScriptedModel(calls("look", at="{sea}"), says("done")), tools=[secret_look])
        agent.gate(ToolCalling, name="ask")(lambda event: Ask("look?"))
        agent.with_capability(Part(lambda registrar: registrar.reveal(lambda text: text.replace("{sea}", "Atlantis"))))
        return agent

    found = await everywhere(factory)
    assert got == ["Atlantis"] * len(found)
    assert all("Atlantis" not in repr(lived.log) for lived in found)


async def test_all_agents_share_one_object():
    class Visits:
        def __init__(self) -> None:
            self.count = 0

    seen: list[int] = []

    def factory() -> Agent[Any, Any]:
        def install(registrar: Any) -> None:
            visits = registrar.shared(Visits)

            @registrar.observe(TurnEnded, wait=True)
            def count(fact: TurnEnded) -> None:
                visits().count += 1
                seen.append(visits().count)

        return looking(capabilities=[Part(install)])

    assert len(await everywhere(factory)) == len(seen)
    assert seen == sorted(set(seen))


async def test_an_observer_hears_how_long_hooks_take():
    heard: list[list[str]] = []

    def factory() -> Agent[Any, Any]:
        agent = looking()
        mine: list[str] = []
        heard.append(mine)
        agent.observe(HookRan, wait=True)(lambda fact: mine.append(f"{fact.hook} {fact.event}"))
        return agent

    await everywhere(factory)
    told = [mine for mine in heard if mine]
    assert len(told) >= len(WAYS)
    assert all("ask ToolCalling" in mine for mine in told)


async def test_a_message_of_several_parts_opens_a_turn():
    message = Message("user", (TextPart("look"), ImagePart(b"png"), TextPart("closely")))
    ways = await run_everywhere(looking, message)
    del ways["as_tool"]  # the task of a sub-agent is a text
    for lived in ways.values():
        assert [type(part) for part in lived.state.messages[0].parts] == [TextPart, ImagePart, TextPart]
