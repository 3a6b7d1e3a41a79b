"""Budget: turns, sessions and keys spend no more than they may, over trees, processes and crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Completed, Noted, Stopped, StopReason, ToolCalling, tool
from windlass.capabilities import Budget
from windlass.errors import ConfigError, RateLimited
from windlass.messages import ModelReply, Usage, assistant
from windlass.models import PricedModel
from windlass.stores import MemoryStore, SQLiteStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, check_capability, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def reply(text: str = "done", *, tokens: int = 100, cost: float | None = 0.01, name: str = "", **arguments: Any) -> Any:
    usage = Usage(tokens, 0, cost=cost)
    return calls(name, **arguments, _usage=usage) if name else says(text, usage=usage)


def spender(*, steps: int = 50, tokens: int = 100, cost: float | None = 0.01) -> FunctionModel:
    """A model that calls a tool in every step, so many times."""

    def answer(request: Any) -> Any:
        done = sum(message.role == "assistant" for message in request.messages)
        if done >= steps:
            return reply(tokens=tokens, cost=cost)
        return reply(name="add", a=1, b=2, tokens=tokens, cost=cost)

    return FunctionModel(answer)


def agent_with(budget: Budget, model: Any = None, **options: Any) -> Agent[Any, Any]:
    return Agent(model or spender(), tools=[add], clock=FakeClock(auto=True), capabilities=[budget], **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Budget(tokens=10_000, steps=50, seconds=500, calls=50),
        lambda: Budget(tokens=10_000, per="session", calls=50),
        lambda: Budget(calls=50, tools="*", then="stop"),
        lambda: Budget(usd=1.0, per=lambda scope: "everyone", window=60, unknown_cost="allow", tell_model=True),
    ],
)
async def test_it_is_a_good_capability(make):
    await check_capability(make)


# ---------------------------------------------------------------- a turn


@pytest.mark.parametrize(
    ("budget", "reason", "steps"),
    [
        ({"tokens": 350}, StopReason.TOKEN_LIMIT, 4),
        ({"usd": 0.035}, StopReason.COST_LIMIT, 4),
        ({"steps": 3}, StopReason.STEP_LIMIT, 3),
    ],
)
async def test_a_turn_stops_at_its_budget(budget, reason, steps):
    result = await agent_with(Budget(**budget)).run("go")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is reason
    assert len(result.steps) == steps


async def test_the_next_turn_has_its_own_budget():
    agent = agent_with(Budget(tokens=350), spender(steps=2))
    for _ in range(3):
        assert isinstance((await agent.run("go", session="s")).outcome, Completed)


async def test_time_and_deadline_stop_a_turn():
    clock = FakeClock(auto=True)

    async def slow(request: Any) -> Any:
        await clock.sleep(10)
        return reply(name="add", a=1, b=2)

    for budget, reason in (
        (Budget(seconds=25), StopReason.TIME_LIMIT),
        (Budget(deadline=clock.now() + 100), StopReason.DEADLINE),
    ):
        agent = Agent(FunctionModel(slow), tools=[add], clock=clock, capabilities=[budget])
        result = await agent.run("go")
        assert isinstance(result.outcome, Stopped)
        assert result.outcome.reason is reason


async def test_it_warns_once_before_it_forbids():
    agent = agent_with(Budget(tokens=500, warn_at=0.5))
    await agent.run("go", session="s")
    notes = [record for record in await agent.store.read("s") if isinstance(record, Noted)]
    assert [(note.kind, note.data) for note in notes] == [
        ("budget.warning", {"limit": "tokens", "spent": 300, "of": 500, "per": "turn"})
    ]


async def test_the_model_is_told_if_you_want():
    requests: list[Any] = []

    def answer(request: Any) -> Any:
        requests.append(request)
        return reply(name="add", a=1, b=2)

    agent = agent_with(Budget(tokens=300, warn_at=0.5, tell_model=True), FunctionModel(answer))
    await agent.run("go", session="s")
    assert "nearly used up: 200 of 300 tokens" not in repr(requests[1])
    agent = agent_with(Budget(tokens=400, warn_at=0.5, tell_model=True), FunctionModel(answer))
    await agent.run("go", session="s")
    assert "nearly used up: 200 of 400 tokens" in repr(requests[-1])


async def test_calls_beyond_the_budget_are_denied_and_the_model_goes_on():
    """Behaviour 61: the calls that are left run, each other one gets an error that the model reads."""
    turn = [*[calls("add", a=1, b=2)] * 3, says("done")]
    agent = agent_with(Budget(calls=2), ScriptedModel(*turn, *turn))
    for _ in range(2):
        result = await agent.run("go", session="s")
        assert isinstance(result.outcome, Completed)
        statuses = [one.result.status for step in result.steps for one in step.tools]
        assert statuses == ["ok", "ok", "denied"]
    assert "the budget of 2 tool calls per turn is used up" in repr(result.messages)


def pair(**options: Any) -> Agent:
    """An agent that calls two tools twice in a turn."""
    both = calls([("add", {"a": 1, "b": 2}), ("look", {})])
    look = tool(lambda: "seen", name="look", description="Look.", effect="pure")
    return Agent(ScriptedModel(*[both, both, says("done")] * 2), tools=[add, look], **options)


async def test_the_calls_of_some_tools_are_counted_apart():
    """Behaviour 63: other tools of the same step still run."""
    for tools in ("add", ["ad*"]):
        result = await pair(capabilities=[Budget(calls=1, tools=tools)]).run("go")
        statuses = [one.result.status for step in result.steps for one in step.tools]
        assert statuses == ["ok", "ok", "denied", "ok"]
    assert "the budget of 1 tool calls of ad* per turn is used up" in repr(result.messages)


async def test_two_budgets_count_the_calls_of_their_own_tools_and_are_renewed_with_the_turn():
    """Behaviour 64: each limit counts for itself."""
    agent = pair(capabilities=[Budget(calls=1, tools="add"), Budget(calls=2, tools="look")])
    for _ in range(2):
        result = await agent.run("go", session="s")
        assert [one.result.status for step in result.steps for one in step.tools] == ["ok", "ok", "denied", "ok"]


async def test_a_step_with_a_call_too_many_gives_every_call_a_result():
    """Behaviours 61, 62: of three calls beside each other, those within the limit run; or none, and the turn ends."""
    three, wants = calls([("add", {"a": 1, "b": 2})] * 3), ["ok", "denied", "denied"]
    agent = agent_with(Budget(calls=1), ScriptedModel(three, says("done")))
    result = await agent.run("go", session="s")
    assert sorted(one.result.status for one in result.steps[0].tools) == sorted(wants)
    assert isinstance(result.outcome, Completed)
    ended = await agent_with(Budget(calls=1, then="stop"), ScriptedModel(three)).run("go")
    assert isinstance(ended.outcome, Stopped)
    results = [
        part for message in ended.messages for part in message.parts if part.__class__.__name__ == "ToolResultPart"
    ]
    assert (len(results), {one.status for one in results} & {"ok"}) == (3, set())


async def test_a_call_too_many_may_end_the_turn():
    agent = pair(capabilities=[Budget(calls=1, tools="add", then="stop")])
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.detail == "the budget of 1 tool calls of add per turn is used up"
    assert len(agent.model.requests) == 2


async def test_a_call_that_waits_for_a_person_counts_once():
    agent = agent_with(Budget(calls=1), spender(steps=1))
    agent.gate(ToolCalling)(lambda event: Ask("ok?"))
    waiting = await agent.run("go", session="s")
    ask = waiting.outcome.waiting_for[0].id  # type: ignore[union-attr]
    result = await agent.resume("s", answers={ask: Approve()})
    assert isinstance(result.outcome, Completed)
    assert [one.result.status for one in result.steps[0].tools] == ["ok"]


# ---------------------------------------------------------------- costs


async def test_a_model_with_an_unknown_price_is_not_called():
    class Unknown(ScriptedModel):
        knows_cost = False

    model = Unknown(says("hello"), name="mine")
    result = await agent_with(Budget(usd=1.0), model).run("go")
    assert isinstance(result.outcome, Stopped)
    assert "the cost of model 'mine' is unknown" in result.outcome.detail
    assert not model.requests
    assert isinstance((await agent_with(Budget(usd=1.0, unknown_cost="allow"), model).run("go")).outcome, Completed)
    priced = PricedModel(Unknown(ModelReply(assistant("a"), Usage(10, 5)), name="mine"), (1, 2))
    assert isinstance((await agent_with(Budget(usd=1.0), priced).run("go")).outcome, Completed)


async def test_a_model_that_does_not_say_whether_its_cost_is_known_is_not_called():
    class Own:
        name = "own"
        asked = 0

        async def reply(self, request: Any) -> Any:
            self.asked += 1
            return ModelReply(assistant("a"), Usage(10, 5, cost=0.1))

    model = Own()
    result = await agent_with(Budget(usd=1.0), model).run("go")
    assert isinstance(result.outcome, Stopped)
    assert "knows_cost = True" in result.outcome.detail
    assert not model.asked
    model.knows_cost = True  # type: ignore[attr-defined]
    assert isinstance((await agent_with(Budget(usd=1.0), model).run("go")).outcome, Completed)


async def test_a_script_without_costs_is_not_played_under_a_budget_in_usd():
    model = ScriptedModel(says("hello"))
    result = await agent_with(Budget(usd=1.0), model).run("go")
    assert isinstance(result.outcome, Stopped)
    assert not model.requests


async def test_a_cost_that_turns_out_to_be_unknown_stops_the_turn():
    result = await agent_with(Budget(usd=1.0), spender(cost=None)).run("go")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.COST_LIMIT
    assert len(result.steps) == 1
    free = await agent_with(Budget(usd=1.0, unknown_cost="allow", steps=5), spender(cost=None)).run("go")
    assert len(free.steps) == 5


async def test_prices_can_be_stated():
    agent = agent_with(Budget(usd=0.25, prices={"function": (1_000, 0)}), spender(cost=None))
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.COST_LIMIT
    assert result.usage.cost == pytest.approx(0.3)


# ---------------------------------------------------------------- sessions and keys

STORES = ["memory", "sqlite"]


def open_store(kind: str, path: Any) -> Any:
    return MemoryStore() if kind == "memory" else SQLiteStore(path / "agent.db")


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"tokens": 550}, StopReason.TOKEN_LIMIT),
        ({"usd": 0.055}, StopReason.COST_LIMIT),
        ({"steps": 6}, StopReason.STEP_LIMIT),
    ],
)
async def test_a_session_stops_at_its_budget(kind, limits, reason, tmp_path):
    store = open_store(kind, tmp_path)
    agent = agent_with(Budget(**limits, per="session"), spender(steps=2), store=store)
    assert isinstance((await agent.run("go", session="s")).outcome, Completed)
    agent = agent_with(Budget(**limits, per="session"), spender(steps=9), store=store)
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is reason
    assert result.state.steps == 6
    again = await agent.run("go", session="s")
    assert isinstance(again.outcome, Stopped)
    assert again.usage.requests <= (reason is StopReason.STEP_LIMIT)
    assert isinstance(
        (
            await agent_with(Budget(**limits, per="session"), spender(steps=1), store=store).run("go", session="t")
        ).outcome,
        Completed,
    )
    await agent.aclose()


async def test_users_have_budgets_of_their_own_that_are_renewed():
    clock = FakeClock(auto=True)
    budget = Budget(tokens=250, per=lambda scope: scope["user"], window=3600)
    agent = Agent(spender(steps=1), tools=[add], clock=clock, capabilities=[budget])
    outcomes = []
    for user in ("ann", "ann", "bob", "ann"):
        result = await agent.run("go", scope={"user": user})
        outcomes.append(type(result.outcome).__name__)
    assert outcomes == ["Completed", "Stopped", "Completed", "Stopped"]
    await clock.advance(3601)
    assert isinstance((await agent.run("go", scope={"user": "ann"})).outcome, Completed)
    assert await agent.storage("budget").get("ann/total/tokens") == 200


async def test_a_key_may_be_without_a_budget_and_odd_keys_do_not_mix():
    budget = Budget(tokens=150, per=lambda scope: scope)
    agent = agent_with(budget, spender(steps=1))
    for _ in range(3):
        assert isinstance((await agent.run("go", scope=None)).outcome, Completed)
    for key in ("a", "a/total", "a/turn/x", "é 漢"):
        assert isinstance((await agent.run("go", scope=key)).outcome, Stopped)
        assert (await agent.run("go", scope=key)).usage.requests == 0
    result = await agent.run("go", scope=7)
    assert isinstance(result.outcome, Stopped)
    assert "budget" in result.outcome.detail


async def test_turns_side_by_side_share_one_account():
    budget = Budget(tokens=1_000, per=lambda scope: "all")
    agent = agent_with(budget, spender(steps=4))
    results = await asyncio.gather(*[agent.run("go", session=f"s{number}") for number in range(5)])
    total = sum(result.usage.total for result in results)
    assert 1_000 <= total <= 1_000 + 5 * 100
    assert await agent.storage("budget").get("all/total/tokens") == total
    assert not [key for key in await agent.storage("budget").keys() if "/turn/" in key]


async def test_a_suspended_turn_stays_counted(tmp_path):
    store = SQLiteStore(tmp_path / "agent.db")
    budget = Budget(tokens=150, per=lambda scope: "all")
    agent = agent_with(budget, spender(steps=2), store=store)
    agent.gate(ToolCalling, when=lambda event: event.turn.steps == 1)(lambda event: Ask("ok?"))
    await agent.run("go", session="one")
    result = await agent.run("go", session="two")
    assert isinstance(result.outcome, Stopped)
    assert result.usage.total <= 100
    await agent.aclose()


@pytest.mark.parametrize("per", ["turn", "session"])
async def test_sub_agents_spend_from_the_same_budget(per):
    child = Agent(spender(steps=50), tools=[add], name="child")
    model = FunctionModel(lambda request: reply(name="child", task="go"))
    agent = Agent(model, tools=[child.as_tool()], capabilities=[Budget(tokens=1_000, per=per)])
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.TOKEN_LIMIT
    assert 1_000 <= result.usage.total <= 1_100
    if per == "session":
        assert await agent.storage("budget").items() == {"s/total/tokens": result.usage.total}


async def test_attempts_of_retries_count_before_the_next_one():
    replies: list[Any] = [RateLimited("busy")] * 2 + [reply(name="add", a=1, b=2)] * 9
    result = await agent_with(Budget(tokens=250, per="session"), ScriptedModel(*replies)).run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.usage.total == 300


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "limits nothing"),
        ({"tokens": 0}, "tokens must be a whole number, 1 or more"),
        ({"usd": -1}, "usd must be a number"),
        ({"usd": 1, "per": "user"}, "per must be 'turn', 'session' or a function"),
        ({"usd": 1, "tools": "add"}, "only for a budget of calls"),
        ({"usd": 1, "then": "stop"}, "only for a budget of calls"),
        ({"calls": 1, "tools": []}, "names no tools"),
        ({"calls": 1, "then": "warn"}, "then must be"),
        ({"usd": 1, "window": 60}, "window is only for a budget per key"),
        ({"usd": 1, "warn_at": 2}, "warn_at must be a fraction"),
        ({"usd": 1, "unknown_cost": "maybe"}, "unknown_cost must be"),
        ({"usd": 1, "prices": {"m": "cheap"}}, "prices must be a mapping from texts to Price"),
    ],
)
def test_bad_options_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        Budget(**options)


# ---------------------------------------------------------------- resumed turns and sub-agents


@pytest.mark.parametrize("crash", [False, True])
async def test_a_resumed_turn_learns_what_others_have_spent_before_its_first_effect(crash, tmp_path):
    """Another session of the key uses up the time while this one waits for a person."""
    ran: list[str] = []

    @tool(effect="pure")
    async def work(what: str) -> str:
        """Work."""
        ran.append(what)
        return "done"

    def open_agent(model: Any) -> Agent[Any, Any]:
        budget = Budget(seconds=100, per=lambda scope: "all", warn_at=None)
        agent = Agent(model, tools=[work], clock=clock, capabilities=[budget], store=store)
        agent.gate(ToolCalling, when=lambda event: event.call.arguments["what"] == "asked")(lambda event: Ask("ok?"))
        return agent

    clock = FakeClock(auto=True)
    store = SQLiteStore(tmp_path / "agent.db")
    waiting = open_agent(ScriptedModel(calls("work", what="asked"), says("done")))
    asked = (await waiting.run("go", session="waits")).waiting_for
    other = open_agent(ScriptedModel(says("late", delay=150), clock=clock))
    await other.run("go", session="spends")
    resumed = open_agent(ScriptedModel(says("done"))) if crash else waiting
    result = await resumed.resume("waits", answers={asked[0].id: Approve()})
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.TIME_LIMIT
    assert ran == []
    await resumed.aclose()


async def test_a_sub_agent_stops_when_others_have_used_up_the_budget_of_the_key():
    """The turn above learns it while its sub-agent works."""
    store = MemoryStore()
    other = agent_with(Budget(tokens=1_000, per=lambda scope: "all"), ScriptedModel(reply(tokens=5_000)), store=store)
    seen: list[int] = []

    async def answer(request: Any) -> Any:
        seen.append(len(request.messages))
        if len(seen) == 2:
            await other.run("go", session="other")
        return reply(name="add", a=1, b=len(seen), tokens=10)

    child = Agent(FunctionModel(answer, name="child"), tools=[add], name="child")
    model = FunctionModel(lambda request: reply(name="child", task="go", tokens=10))
    budget = Budget(tokens=1_000, per=lambda scope: "all")
    agent = Agent(model, tools=[child.as_tool()], capabilities=[budget], store=store, max_steps=30)
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.TOKEN_LIMIT
    assert len(seen) == 2
