"""What capabilities need besides hooks: error rules, limits, reveals, shared objects, times of hooks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from msgspec import Struct
from tests.logs import crashed_after, find, log_of

from windlass import (
    Agent,
    Allow,
    Ask,
    Completed,
    Continuing,
    Deny,
    Erring,
    ErrorHandled,
    ErrorPolicy,
    ErrorRule,
    Fail,
    HookFailed,
    HookRan,
    Hooks,
    Limit,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReplying,
    NotDone,
    Pipeline,
    Regenerate,
    ReplyPassed,
    Says,
    Step,
    StepStarting,
    Stopped,
    StopReason,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolError,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    Vote,
    tool,
)
from windlass.errors import ConfigError, RegistrationError
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, assert_same_everywhere, calls, says

from .trees import CHILD, Tree


class Part:
    """A capability made of one function."""

    def __init__(self, install: Any) -> None:
        self.install = install


# ---------------------------------------------------------------- regenerate, and what then


async def test_at_the_bound_a_rejected_reply_passes_and_the_outcome_names_who_objected():
    rounds: list[int] = []

    def factory() -> Agent:
        agent = Agent(ScriptedModel(says("one"), says("two"), says("three")))

        @agent.gate(ModelReplying, name="critic")
        def critic(event: ModelReplying) -> Regenerate:
            rounds.append(event.round)
            return Regenerate("better, please", otherwise="pass")

        agent.gate(TurnEnding, name="ask")(lambda event: Ask("well?"))
        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.text == "three"
    assert lived.state.outcome == Completed(objections=("critic",))
    (passed,) = [record for record in lived.log if isinstance(record, ReplyPassed)]
    assert (passed.by, passed.feedback) == (("critic",), "better, please")
    assert rounds[:3] == [1, 2, 3]


async def test_one_gate_that_wants_a_stop_is_enough():
    agent = Agent(ScriptedModel(says("one")), max_regenerations=0)
    agent.gate(ModelReplying)(lambda event: Regenerate("no", otherwise="pass"))
    agent.gate(ModelReplying)(lambda event: Regenerate("never"))
    assert (await agent.run("go")).stop_reason is StopReason.REGENERATION


async def test_why_names_the_objections():
    agent = Agent(ScriptedModel(says("one")), max_regenerations=0)
    agent.gate(ModelReplying, name="critic")(lambda event: Regenerate("no", otherwise="pass"))
    await agent.run("go", session="s1")
    text = str(await agent.why("s1"))
    assert "hooks that rejected a reply and let it pass: critic" in text
    assert "the reply passed although critic rejected it once more" in text


async def test_a_streamed_reply_that_passes_is_streamed():
    agent = Agent(ScriptedModel(says("one", chunks=["o", "ne"])), max_regenerations=0)
    agent.gate(ModelReplying)(lambda event: Regenerate("no", otherwise="pass"))
    async with agent.stream("go") as stream:
        texts = [event.text async for event in stream if type(event).__name__ == "TextDelta"]
    assert "".join(texts) == "one"


def test_another_word_for_otherwise_is_refused():
    with pytest.raises(ValueError, match="must be 'stop' or 'pass'"):
        Regenerate("no", otherwise="go")  # type: ignore[arg-type]


# ---------------------------------------------------------------- error rules


def failing(times: int, error: Exception, text: str = "done") -> Any:
    left = [times]

    def reply(request: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return says(text)

    return FunctionModel(reply)


class Odd(Exception):
    pass


async def test_a_capability_brings_a_rule_for_a_class_of_errors():
    async def run(*rules: ErrorRule) -> Any:
        agent = Agent(failing(2, Odd("odd")), clock=FakeClock())
        return await agent.with_capability(Part(lambda registrar: registrar.errors(*rules))).run("go")

    assert (await run(ErrorRule(Odd, "retry", delay=0))).text == "done"
    assert not isinstance((await run(ErrorRule(Odd, "retry", retries=1, delay=0))).outcome, Completed)
    assert not isinstance((await run(ErrorRule("rate_limit", "retry", delay=0))).outcome, Completed)


async def test_a_rule_holds_in_a_sub_agent_that_has_it_and_when_streamed():
    def factory() -> Agent:
        agent = Agent(failing(1, Odd("odd")), errors=ErrorPolicy(rules=(ErrorRule(Odd, "retry", delay=0),)))
        agent.gate(TurnEnding, name="ask")(lambda event: Ask("well?"))
        return agent

    assert (await assert_same_everywhere(factory)).state.text == "done"


async def test_a_rule_is_for_some_tools():
    tries: list[str] = []

    @tool(effect="idempotent", inline=True)
    def fetch() -> str:
        """Fetch."""
        tries.append("fetch")
        raise TimeoutError if len(tries) < 3 else ToolError("gone")

    @tool(effect="idempotent", inline=True)
    def other() -> str:
        """Other."""
        tries.append("other")
        raise TimeoutError

    model = ScriptedModel(calls("other"), calls("fetch"), says("done"))
    agent = Agent(model, tools=[fetch, other])
    agent.errors(ErrorRule((TimeoutError, "tool"), "retry", tool="fe*", retries=3, delay=0))
    result = await agent.run("go", session="s1")
    assert result.text == "done"
    assert tries[0] == "other"
    assert tries.count("fetch") > 1
    assert {handled.action for handled in await find(agent, ErrorHandled)} >= {"retry"}


async def test_a_rule_never_repeats_an_unsafe_call():
    ran: list[str] = []

    @tool(inline=True)
    def pay() -> str:
        """Pay."""
        ran.append("pay")
        raise NotDone("not yet") if len(ran) == 1 else ToolError("broken")

    agent = Agent(ScriptedModel(calls("pay"), says("done")), tools=[pay])
    agent.errors(ErrorRule("tool", "retry", delay=0))
    await agent.run("go")
    assert ran == ["pay", "pay"]  # once more after NotDone, never after an error that may have had an effect


async def test_the_rules_of_the_application_come_first_and_hooks_before_rules():
    policy = ErrorPolicy(rules=(ErrorRule(Odd, "halt"),))
    agent = Agent(failing(1, Odd("odd")), errors=policy)
    agent.errors(ErrorRule(Odd, "retry", delay=0))
    assert not isinstance((await agent.run("go")).outcome, Completed)
    agent = Agent(failing(1, Odd("odd")))
    agent.errors(ErrorRule(Odd, "retry", delay=0))
    agent.gate(Erring)(lambda event: Fail())
    assert not isinstance((await agent.run("go")).outcome, Completed)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ErrorRule("rate-limit", "retry"),
        lambda: ErrorRule("hook", "ignore"),
        lambda: ErrorRule((), "retry"),
        lambda: ErrorRule(Odd, "again"),  # type: ignore[arg-type]
        lambda: ErrorRule(Odd, "retry", retries=-1),
        lambda: ErrorRule(int, "retry"),  # type: ignore[arg-type]
        lambda: Agent(ScriptedModel()).errors("retry"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_rule_is_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_explain_lists_the_rules():
    agent = Agent(ScriptedModel()).with_capability(
        Part(lambda registrar: registrar.errors(ErrorRule((Odd, "timeout"), "retry", tool="fetch", retries=5)))
    )
    assert "error rules retry Odd or timeout of tool fetch, at most 5 times" in " ".join(str(agent.explain()).split())


# ---------------------------------------------------------------- limits


class Quota(Limit, frozen=True):
    """A limit of a capability."""

    requests: int
    reason: ClassVar[StopReason] = StopReason.FORBIDDEN
    holds_below: ClassVar[bool] = True

    def exceeded(self, state: Any, turn: Any) -> str | None:
        return "the quota is used up" if turn.usage.requests >= self.requests else None


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    return "saw"


async def test_a_limit_of_a_capability_is_checked_before_every_attempt():
    def factory() -> Agent:
        agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look])
        agent.with_capability(Part(lambda registrar: registrar.criterion(Quota(1))))
        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.outcome == Stopped(StopReason.FORBIDDEN, "Quota: the quota is used up")
    assert not [record for record in lived.log if isinstance(record, ToolCalled)]


async def test_a_limit_that_holds_below_stops_a_sub_agent():
    tree = Tree()
    tree.parent.criterion(Quota(2))
    await tree.run()
    assert not await tree.find(ToolCalled, CHILD)


async def test_a_limit_that_fails_is_named():
    class Broken(Limit, frozen=True):
        def exceeded(self, state: Any, turn: Any) -> str | None:
            raise ZeroDivisionError

    class Odd(Limit, frozen=True):
        def exceeded(self, state: Any, turn: Any) -> Any:
            return 7

    for limit, why in ((Broken(), "criterion 'Broken' failed"), (Odd(), "criterion 'Odd' returned 7")):
        result = await Agent(ScriptedModel(says("hi")), criteria=[limit]).run("go")
        assert why in result.outcome.error.message


# ---------------------------------------------------------------- reveals


@dataclass
class Login:
    user: str
    password: str


class Site(Struct):
    url: str
    headers: dict[str, str]


def vault(text: str) -> str:
    return text.replace("{{key}}", "s3cr3t")


def opener(seen: list[Any], **options: Any) -> Any:
    @tool(inline=True, **options)
    def open_site(site: Site, login: Login, tags: list[str], note: str | None = None, port: int = 80) -> str:
        """Open."""
        seen.append((site.headers["k"], login.password, tags, note, port))
        return "opened"

    return open_site


OPENING = calls(
    "open_site",
    site={"url": "u", "headers": {"k": "{{key}}"}},
    login={"user": "ann", "password": "{{key}}"},
    tags=["a", "{{key}}!"],
)


async def test_a_tool_gets_what_a_placeholder_stands_for_and_nobody_else_does():
    seen: list[Any] = []
    gated: list[str] = []

    def factory() -> Agent:
        agent = Agent(ScriptedModel(OPENING, says("done")), tools=[opener(seen)])
        agent.with_capability(Part(lambda registrar: registrar.reveal(vault)))

        @agent.gate(ToolCalling, name="ask")
        def ask(event: ToolCalling) -> Ask:
            gated.append(event.call.json)
            return Ask("open?")

        @agent.wrap(ToolCall)
        async def wrap(call: ToolCall, call_next: Any) -> Any:
            gated.append(call.json)
            return await call_next(call)

        return agent

    lived = await assert_same_everywhere(factory)
    assert set(map(str, seen)) == {str(("s3cr3t", "s3cr3t", ["a", "s3cr3t!"], None, 80))}
    assert not any("s3cr3t" in text for text in [*gated, repr(lived.log)])
    assert all("{{key}}" in text for text in gated)


async def test_a_reveal_is_for_some_tools_and_may_take_the_turn():
    seen: list[Any] = []

    @tool(inline=True)
    def echo(text: str) -> str:
        """Echo."""
        seen.append(text)
        return "ok"

    @tool(inline=True)
    def send(text: str) -> str:
        """Send."""
        seen.append(text)
        return "ok"

    agent = Agent(
        ScriptedModel(calls([("echo", {"text": "$me"}), ("send", {"text": "$me"})]), says("")), tools=[echo, send]
    )

    @agent.reveal(tool="send")
    def name(text: str, turn: Turn[Any]) -> str:
        return text.replace("$me", turn.scope)

    await agent.run("go", scope="ann")
    assert sorted(seen) == ["$me", "ann"]


@pytest.mark.parametrize("inherit", [True, False])
async def test_sub_agents_inherit_a_reveal_that_says_so(inherit):
    seen: list[Any] = []
    child = Agent(ScriptedModel(OPENING, says("done")), name="child", tools=[opener(seen)])
    parent = Agent(ScriptedModel(calls("child", task="use {{key}}"), says("done")), tools=[child.as_tool()])
    parent.reveal(vault, inherit=inherit)
    await parent.run("go", session="s1")
    assert seen[0][0] == ("s3cr3t" if inherit else "{{key}}")
    sessions = [await parent.store.read(session) for session in await parent.store.sessions()]
    assert "s3cr3t" not in repr(sessions)  # not even in the task of the sub-agent


async def test_a_reveal_that_fails_keeps_the_tool_from_running():
    seen: list[Any] = []
    agent = Agent(ScriptedModel(OPENING, says("done")), tools=[opener(seen)])

    @agent.reveal
    def broken(text: str) -> str:
        raise KeyError("s3cr3t")

    result = await agent.run("go", session="s1")
    assert seen == []
    assert result.messages[2].parts[0].text == (
        "Error: the tool was not run: hook 'broken' failed on ToolCall; the log has the details"
    )
    assert [failed.effect for failed in await find(agent, HookFailed)] == ["not run"]
    assert await find(agent, ToolCalled) == []


async def test_a_compensation_gets_what_was_revealed():
    undone: list[Any] = []

    def undo(text: str) -> None:
        undone.append(text)

    @tool(inline=True, compensate=undo)
    def pay(text: str) -> str:
        """Pay."""
        return "paid"

    agent = Agent(ScriptedModel(calls("pay", text="{{key}}"), says("done")), tools=[pay])
    await agent.run("go", session="s1")
    store = await crashed_after(await log_of(agent), ToolCalled)
    again = Agent(ScriptedModel(says("done")), tools=[pay], store=store)
    again.reveal(vault)
    await again.resume("s1")
    assert undone == ["s3cr3t"]


@pytest.mark.parametrize("fn", [7, lambda: "", lambda text, other: text])
def test_what_is_no_reveal_is_refused(fn):
    with pytest.raises(RegistrationError, match="reveal"):
        Agent(ScriptedModel()).reveal(fn)


def test_an_async_reveal_is_refused():
    async def later(text: str) -> str:
        return text

    with pytest.raises(RegistrationError, match="plain function"):
        Agent(ScriptedModel()).reveal(later)  # type: ignore[arg-type]


def test_explain_lists_reveals():
    agent = Agent(ScriptedModel(), tools=[look]).with_capability(
        Part(lambda registrar: registrar.reveal(vault, tool="look"))
    )
    assert "reveal vault" in " ".join(str(agent.explain()).split())
    assert agent.explain().data["reveals"][0]["tool"] == "look"


# ---------------------------------------------------------------- shared objects


class Pool:
    made = 0

    def __init__(self) -> None:
        Pool.made += 1


def make_pool() -> Pool:
    return Pool()


async def test_agents_that_name_one_factory_share_its_object():
    Pool.made = 0
    got: list[Pool] = []

    def install(registrar: Any) -> None:
        pool = registrar.shared(make_pool)
        registrar.gate(TurnStarting)(lambda event: got.append(pool()))

    agents = [Agent(ScriptedModel(says("hi"))).with_capability(Part(install)) for _ in range(2)]
    assert Pool.made == 0
    for agent in agents:
        await agent.run("go")
    assert Pool.made == 1
    assert got[0] is got[1]


def test_a_name_shares_an_object_and_two_factories_cannot_have_it():
    one, other = Hooks().shared(Pool, name="pool of tests"), Agent(ScriptedModel()).shared(Pool, name="pool of tests")
    assert one() is other()
    with pytest.raises(ConfigError, match="two factories share the name 'pool of tests'"):
        Hooks().shared(make_pool, name="pool of tests")


def test_threads_get_one_object():
    Pool.made = 0
    shared = Hooks().shared(lambda: Pool())
    found: list[Pool] = []
    threads = [threading.Thread(target=lambda: found.append(shared())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (Pool.made, len(set(map(id, found)))) == (1, 1)


def test_what_is_no_factory_is_refused():
    async def later() -> Pool:
        return Pool()

    for factory in (7, later):
        with pytest.raises(ConfigError, match="factory"):
            Hooks().shared(factory)  # type: ignore[arg-type]


# ---------------------------------------------------------------- how long hooks take


def timed_agent(clock: FakeClock, seen: list[Any], observed: bool = True) -> Agent:
    agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look], clock=clock)

    @agent.gate(ToolCalling)
    async def slow(event: ToolCalling, turn: Turn[Any]) -> None:
        await turn.sleep(2)

    agent.rewrite(ModelCalling, name="rewrite")(lambda event: None)
    agent.inject(TurnStarting, name="inject")(lambda event: "more")
    agent.gate(Continuing, name="vote", mode="shadow")(lambda event: None)

    for effect in (ModelCall, ToolCall, Step, Turn):

        async def wrap(value: Any, call_next: Any) -> Any:
            return await call_next(value)

        agent.wrap(effect, name=f"around {effect.__name__}")(wrap)
    if observed:
        agent.observe(HookRan, wait=True)(lambda fact: seen.append((fact.hook, fact.event, fact.seconds, fact.path)))
    return agent


async def test_an_observer_hears_how_long_hooks_take():
    seen: list[Any] = []
    await timed_agent(FakeClock(auto=True), seen).run("go")
    assert ("slow", "ToolCalling", 2.0, "") in seen
    assert {hook for hook, *_ in seen} == {
        "slow", "rewrite", "inject", "vote", "around ModelCall", "around ToolCall", "around Step",
    }  # fmt: skip


async def test_an_observer_above_hears_how_long_the_hooks_of_a_sub_agent_take():
    seen: list[Any] = []
    child = timed_agent(FakeClock(), [], observed=False)
    child.name = "child"
    clock = FakeClock(auto=True)
    parent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()], clock=clock)
    parent.observe(HookRan, wait=True)(lambda fact: seen.append((fact.hook, fact.seconds, bool(fact.path))))
    await parent.run("go")
    assert ("slow", 2.0, True) in seen


async def test_an_observer_hears_what_hooks_answered_about_what():
    seen: list[Any] = []
    model = ScriptedModel(calls("look"), says("done"))
    agent = Agent(model, tools=[look], capabilities=[Strict()])
    agent.inject(StepStarting, name="tip")(lambda event: "Look closely.")
    agent.rewrite(TurnStarting, name="shout")(lambda event: event.message.map_text(str.upper))
    agent.gate(Continuing, name="vote")(lambda event: (Vote.ALLOW, "why not"))
    agent.gate(ToolCalling, name="silent")(lambda event: None)
    agent.hook(ToolReturning, name="both")(lambda event: Says(decision=Allow()))
    agent.gate(ModelReplying, name="broken", on_error="unreviewed")(lambda event: 1 / 0)
    agent.observe(HookRan, wait=True)(
        lambda fact: seen.append((fact.hook, fact.verb, fact.capability, fact.about, fact.verdict))
    )
    await agent.run("go", session="s")
    assert set(seen) == {
        ("shout", "rewrite", "", "s/t1", "rewrite"),
        ("tip", "inject", "", "s/1/start", "inject"),
        ("tip", "inject", "", "s/2/start", "inject"),
        ("broken", "gate", "", "s/1/reply", "failed"),
        ("broken", "gate", "", "s/2/reply", "failed"),
        ("never", "gate", "strict", "s/1/1", "deny"),
        ("silent", "gate", "", "s/1/1", ""),
        ("both", "hook", "", "s/1/1", "allow"),
        ("vote", "gate", "", "1", "allow"),
        ("vote", "gate", "", "2", "allow"),
    }


class Strict:
    name = "strict"

    def install(self, registrar: Any) -> None:
        registrar.gate(ToolCalling, name="never")(lambda event: Deny("no"))


async def test_without_an_observer_no_such_fact_is_made():
    agent = timed_agent(FakeClock(auto=True), [], observed=False)
    async with agent.stream("go") as stream:
        facts = [event async for event in stream]
    assert not [fact for fact in facts if isinstance(fact, HookRan)]


async def test_the_time_of_a_hook_that_fails_is_told():
    seen: list[str] = []
    agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look])

    @agent.gate(ToolCalling)
    def broken(event: ToolCalling) -> Deny:
        raise ModelError("no")

    agent.observe(HookRan, wait=True)(lambda fact: seen.append(fact.hook))
    result = await agent.run("go")
    assert seen == ["broken"]
    assert result.messages[2].parts[0].status == "denied"


async def test_the_hooks_of_a_pipeline_and_a_timed_agent_do_the_same():
    def factory() -> Agent:
        agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look], pipeline=Pipeline.minimal())
        agent.gate(ToolCalling, name="ask")(lambda event: Ask("look?"))
        agent.observe(HookRan, wait=True)(lambda fact: None)
        return agent

    assert (await assert_same_everywhere(factory)).state.text == "done"
