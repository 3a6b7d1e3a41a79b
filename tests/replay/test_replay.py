"""Replaying recorded sessions: what is asked again, what the log answers, and what is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Deny,
    Edit,
    Halt,
    MessageAdding,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Reject,
    Says,
    Slot,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopping,
    ToolCall,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    Veto,
    Vote,
    tool,
)
from windlass.errors import ConfigError, SessionUnknown
from windlass.events import Continuing
from windlass.messages import TextPart, ToolResultPart, assistant, user
from windlass.replay import Replay, Report, SessionReplay, replay
from windlass.replay.policies import agent_of_policy
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, ScriptedModel, calls, says

made: list[str] = []


@tool
async def pay(amount: int, to: str = "shop") -> str:
    """Pay."""
    made.append(f"pay {amount}")
    return f"paid {amount}"


@tool(effect="pure")
def look(place: str) -> str:
    """Look."""
    made.append(f"look {place}")
    return f"nothing at {place}"


TOOLS = [pay, look]
SCRIPT = (calls("look", place="home"), calls("pay", amount=5), calls("pay", amount=50), says("done"))


class Forbidden:
    """A model that must not be asked."""

    name = "scripted"

    async def reply(self, request: Any) -> Any:
        raise AssertionError("a replay asked a model")


def an_agent(store: Any, *hooks: Callable[[Agent], Any], model: Any = None, **options: Any) -> Agent:
    agent = Agent(model or Forbidden(), tools=TOOLS, store=store, **options)
    for hook in hooks:
        hook(agent)
    return agent


async def recorded(*hooks: Callable[[Agent], Any], script: Any = SCRIPT, **options: Any) -> MemoryStore:
    """A store with one session of an agent with these hooks."""
    store = MemoryStore()
    await an_agent(store, *hooks, model=ScriptedModel(*script), **options).run("go", session="s")
    made.clear()
    return store


async def once(store: MemoryStore, *hooks: Callable[[Agent], Any], **options: Any) -> SessionReplay:
    (found,) = await replay(an_agent(MemoryStore(), *hooks, **options), store, "s")
    assert made == [], "a replay called a tool"
    return found


def limit(most: int) -> Callable[[Agent], Any]:
    def hook(agent: Agent) -> None:
        @agent.gate(ToolCalling, tool="pay")
        def no_big_sums(event: ToolCalling) -> Deny | None:
            return Deny("too much") if event.call.arguments["amount"] > most else None

    return hook


# ---------------------------------------------------------------- what is found


async def test_an_agent_that_has_not_changed_decides_as_recorded():
    """Behaviour 116: and neither a model nor a tool is called."""
    found = await once(await recorded(limit(10)), limit(10))
    assert (found.status, found.turns, found.steps, found.unjudged) == ("same", 1, 4, ())
    assert found.verdicts >= 3


async def test_a_stricter_gate_is_named_with_the_call_that_it_would_have_blocked():
    found = await once(await recorded(limit(100)), limit(10))
    (difference,) = found.differences
    assert (difference.event, difference.tool, difference.step, difference.now_by) == (
        "ToolCalling",
        "pay",
        3,
        ("no_big_sums",),
    )
    assert (difference.was, difference.now, difference.blocks) == ("allow", "deny: too much", True)
    assert found.status == "different"


async def test_a_looser_gate_lets_happen_what_was_refused():
    found = await once(await recorded(limit(10)), limit(100))
    (difference,) = found.differences
    assert (difference.was, difference.now, difference.allows) == ("deny: too much", "allow", True)
    assert difference.was_by == ("no_big_sums",)


async def test_a_replay_ends_at_the_step_of_the_first_difference():
    found = await once(await recorded(), limit(1))
    assert [difference.step for difference in found.differences] == [2]


async def test_all_calls_of_the_step_of_a_difference_are_judged():
    script = (calls([("pay", {"amount": 20}), ("look", {"place": "x"}), ("pay", {"amount": 30})]), says("done"))
    found = await once(await recorded(script=script), limit(1))
    assert [difference.about for difference in found.differences] == ["s/1/1", "s/1/3"]


async def test_other_words_are_no_difference():
    def refuse(words: str) -> Callable[[Agent], Any]:
        return lambda agent: agent.gate(ToolCalling, tool="pay", name="refuse")(lambda event: Deny(words))

    found = await once(await recorded(refuse("no")), refuse("never"))
    assert (found.status, found.reworded) == ("same", 2)


async def test_rewritten_arguments_are_compared():
    def to(name: str) -> Callable[[Agent], Any]:
        def hook(agent: Agent) -> None:
            @agent.rewrite(ToolCalling, tool="pay")
            def direct(event: ToolCalling) -> Any:
                return {**event.call.arguments, "to": name}

        return hook

    store = await recorded(to("ann"))
    assert (await once(store, to("ann"))).status == "same"
    (difference,) = (await once(store, to("bob"))).differences
    assert (difference.kind, difference.was, difference.now) == (
        "arguments",
        '{"amount":5,"to":"ann"}',
        '{"amount":5,"to":"bob"}',
    )


async def test_gates_see_the_arguments_with_what_rewrites_made_of_them():
    def halve(agent: Agent) -> None:
        agent.rewrite(ToolCalling, tool="pay")(
            lambda event: {**event.call.arguments, "amount": event.call.arguments["amount"] // 2}
        )

    store = await recorded(halve, limit(30))
    assert (await once(store, halve, limit(30))).status == "same"
    assert (await once(store, halve, limit(20))).differences[0].was == "allow"


EVENTS = {
    TurnStarting: Halt("no"),
    StepStarting: Halt("no"),
    ModelCalling: Halt("no"),
    ModelReplying: Regenerate("no"),
    ToolCalling: Deny("no"),
    ToolReturning: Deny("no"),
    MessageAdding: Halt("no"),
    StepEnding: Halt("no"),
    Continuing: Vote.FORBID,
    Stopping: Veto("no"),
    TurnEnding: Deny("no"),
}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
async def test_a_new_refusal_is_found_at_every_event(event: Any):
    def refuse(agent: Agent) -> None:
        agent.gate(event, name="refuse")(lambda event: EVENTS[type(event)])

    found = await once(await recorded(), refuse)
    (difference,) = found.differences
    assert (difference.event, difference.now_by) == (event.__name__, ("refuse",))
    assert (found.status, found.unjudged) == ("different", ())


async def test_a_limit_that_would_have_stopped_the_turn_is_an_outcome():
    found = await once(await recorded(), criteria=[StepLimit(2)])
    (difference,) = found.differences
    assert (difference.kind, difference.event, difference.step) == ("outcome", "Continuing", 2)
    assert difference.now.startswith("forbid: StepLimit")


async def test_a_gate_that_asks_gets_the_recorded_answer():
    def ask(agent: Agent) -> None:
        agent.gate(ToolCalling, tool="pay", name="ask")(lambda event: Ask("Pay?"))

    store = MemoryStore()
    agent = an_agent(store, ask, model=ScriptedModel(*SCRIPT))
    await agent.run("go", session="s")
    await agent.resume("s", answers={"s/2/1": Approve(by="ann")})
    await agent.resume("s", answers={"s/3/1": Reject("no", by="ann")})
    made.clear()
    assert (await once(store, ask)).status == "same"
    (difference,) = (await once(store)).differences
    assert (difference.was, difference.now) == ("ask: Pay?", "allow")


@pytest.mark.parametrize(
    "other", [{"approvers": ("ann",)}, {"quorum": 1}, {"allow": ("approve", "edit", "reject")}], ids=str
)
async def test_a_question_to_other_people_or_with_other_answers_is_a_difference(other: dict[str, Any]):
    def ask(**terms: Any) -> Callable[[Agent], Any]:
        given: dict[str, Any] = {"approvers": ("ann", "bob"), "quorum": 2, "allow": ("approve", "reject"), **terms}
        if given["approvers"] == ("ann",):
            given["quorum"] = 1
        return lambda agent: agent.gate(ToolCalling, tool="pay", name="ask")(lambda event: Ask("Pay?", **given))

    store = await recorded(ask())
    assert (await once(store, ask())).status == "same"
    (difference,) = (await once(store, ask(**other))).differences
    assert (difference.was, difference.now) == ("ask: Pay?", "ask: Pay? (on other terms)")


async def edited(euros: int, *hooks: Callable[[Agent], Any]) -> MemoryStore:
    """A store with a session in which a person changed the sum of the only payment."""
    store = MemoryStore()
    script = (calls("pay", amount=5), says("done"))
    agent = an_agent(store, asking, *hooks, model=ScriptedModel(*script))
    await agent.run("go", session="s")
    await agent.resume("s", answers={"s/1/1": Edit({"amount": euros}, by="ann")})
    made.clear()
    return store


def asking(agent: Agent) -> None:
    agent.gate(ToolCalling, tool="pay", name="ask")(lambda event: Ask("Pay?"))


async def test_the_arguments_that_a_person_wrote_are_judged_too():
    """A stricter policy is not hidden behind the question that it asks as before."""
    (difference,) = (await once(await edited(5000), asking, limit(1000))).differences
    assert (difference.was, difference.now, difference.now_by) == ("allow", "deny: too much", ("no_big_sums",))
    (difference,) = (await once(await edited(5000, limit(1000)), asking)).differences
    assert (difference.was, difference.now) == ("deny: too much", "allow")


@pytest.mark.parametrize("euros", [10, 5000])
async def test_an_unchanged_policy_says_the_same_of_what_a_person_wrote(euros: int):
    store = await edited(euros, limit(1000))
    assert (await once(store, asking, limit(1000))).status == "same"


def dearer(agent: Agent) -> None:
    @agent.wrap(ToolCall, tool="pay")
    async def dearer(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(json='{"amount":500,"to":"shop"}'))


async def test_the_arguments_that_a_wrap_made_are_judged_too():
    store = await recorded(dearer)
    assert (await once(store, dearer, limit(600))).status == "same"
    (difference,) = (await once(store, dearer, limit(100))).differences
    assert (difference.step, difference.was, difference.now) == (2, "allow", "deny: too much")


async def test_what_a_gate_kept_a_wrap_from_sending_is_unjudged():
    """The log does not have it, so nobody knows whether another policy would let it pass."""
    found = await once(await recorded(dearer, limit(100)), dearer)
    assert found.status == "unjudged"
    assert (found.unjudged[0].event, found.unjudged[0].hook) == ("ToolCalling", "no_big_sums")
    assert "a wrap had changed it" in found.unjudged[0].why


# ---------------------------------------------------------------- what hooks ask for


async def test_hooks_have_the_time_of_the_record_and_do_not_wait():
    clock, seen = FakeClock(1_000_000.0), []

    def timed(agent: Agent) -> None:
        @agent.gate(ToolCalling, tool="pay")
        async def when(event: ToolCalling, turn: Any) -> None:
            seen.append(turn.now())
            await turn.sleep(3600)

    store = await recorded(timed, clock=FakeClock(1_000_000.0, auto=True))
    before, seen[:] = list(seen), []
    found = await once(store, timed, clock=clock)
    assert found.status == "same"
    assert seen == pytest.approx(before, abs=3601)
    assert seen[0] < 1_100_000


async def test_a_side_call_is_answered_from_the_log():
    """Behaviour 116: the same question gets the recorded reply; another one cannot be judged."""

    def critic(question: str) -> Callable[[Agent], Any]:
        def hook(agent: Agent) -> None:
            @agent.gate(ToolCalling, tool="pay")
            async def judged(event: ToolCalling, turn: Any) -> Deny | None:
                reply = await turn.ask("critic", f"{question} {event.call.json}")
                return Deny("critic") if "no" in reply.text else None

        return hook

    store = await recorded(critic("ok?"), models=[ScriptedModel(says("yes"), says("no"), name="critic")])
    silent = ScriptedModel(name="critic")
    assert (await once(store, critic("ok?"), models=[silent])).status == "same"
    other = await once(store, critic("really?"), models=[silent])
    assert other.status == "unjudged"
    assert [(lack.hook, lack.why) for lack in other.unjudged][:1] == [("judged", "asks model 'critic'")]
    assert silent.requests == []


async def test_a_guard_that_would_stop_a_side_call_leaves_the_hook_unjudged():
    """The recorded reply is not taken for one that the guard would have let through."""

    def critic(agent: Agent) -> None:
        @agent.gate(ToolCalling, tool="pay")
        async def judged(event: ToolCalling, turn: Any) -> None:
            await turn.ask("critic", "fine?")

    def guard(agent: Agent) -> None:
        agent.gate(ModelCalling, band="guard", name="guard")(lambda event: Halt("no") if event.side else None)

    store = await recorded(critic, models=[ScriptedModel(says("yes"), says("yes"), name="critic")])
    silent = ScriptedModel(name="critic")
    assert (await once(store, critic, models=[silent])).status == "same"
    found = await once(store, critic, guard, models=[silent])
    assert (found.status, found.unjudged[0].hook) == ("unjudged", "judged")
    assert "a guard" in found.unjudged[0].why


async def test_an_error_that_a_gate_catches_still_leaves_it_unjudged():
    def careless(agent: Agent) -> None:
        @agent.gate(ToolCalling, tool="pay")
        async def judged(event: ToolCalling, turn: Any) -> Allow:
            try:
                await turn.ask("critic", "fine?")
            except Exception:
                pass
            return Allow()

    found = await once(await recorded(), careless, models=[ScriptedModel(name="critic")])
    assert found.status == "unjudged"


async def test_slots_are_counted_anew():
    spent = Slot("spent", int, default=int)

    def budget(most: int) -> Callable[[Agent], Any]:
        def hook(agent: Agent) -> None:
            agent.slot(spent)

            @agent.gate(ToolCalling, tool="pay")
            def within(event: ToolCalling, turn: Any) -> Deny | None:
                total = turn.get(spent) + event.call.arguments["amount"]
                turn.set(spent, total)
                return Deny("over budget") if total > most else None

        return hook

    store = await recorded(budget(100))
    assert (await once(store, budget(100))).status == "same"
    (difference,) = (await once(store, budget(54))).differences
    assert (difference.step, difference.now) == (3, "deny: over budget")


async def test_a_message_that_the_conversation_never_had_is_unjudged():
    def remark(agent: Agent) -> None:
        @agent.gate(ToolCalling, tool="pay")
        def note(event: ToolCalling, turn: Any) -> None:
            turn.add("be careful")

    assert (await once(await recorded(remark), remark)).status == "same"
    found = await once(await recorded(), remark)
    assert found.status == "unjudged"
    assert found.unjudged[0].why == "adds a message to the conversation"


async def test_values_of_the_store_are_not_touched():
    def counting(agent: Agent) -> None:
        storage = agent.storage("counts")

        @agent.gate(ToolCalling, tool="pay")
        async def count(event: ToolCalling) -> None:
            await storage.add("calls", 1)

    store = await recorded()
    other = MemoryStore()
    agent = an_agent(other, counting)
    assert [one.status for one in await replay(agent, store, "s")] == ["same"]
    assert await other.values.find("counts") == []


async def test_what_was_kept_out_of_the_log_is_unjudged():
    def strict(agent: Agent) -> None:
        agent.gate(TurnStarting, name="strict")(lambda event: Halt("not that"))

    found = await once(await recorded(strict), strict)
    assert [(lack.event, lack.hook) for lack in found.unjudged] == [("TurnStarting", "strict")]


async def test_a_call_whose_arguments_held_a_secret_is_unjudged():
    script = (calls("look", place="hunter2"), says("done"))
    store = await recorded(script=script, secrets=["hunter2"])
    found = await once(store, lambda agent: agent.gate(ToolCalling)(lambda event: None), secrets=["hunter2"])
    assert found.status == "unjudged"
    assert "secret" in found.unjudged[0].why


async def test_hooks_that_are_not_asked_again_are_named():
    def wrapped(agent: Agent) -> None:
        agent.rewrite(ToolReturning, name="clean")(lambda event: None)

    found = await once(await recorded(), wrapped)
    assert (found.status, found.not_evaluated) == ("same", ("rewrite 'clean' on ToolReturning",))
    assert (await once(await recorded(wrapped), wrapped)).not_evaluated == ()


async def test_what_a_new_hook_of_several_verbs_changes_or_adds_is_not_evaluated():
    def reviewed(agent: Agent) -> None:
        agent.hook(ModelReplying, name="polish")(lambda event: Says(rewrite="polished"))
        agent.hook(ToolCalling, name="hint")(lambda event: Says(inject="careful"))

    found = await once(await recorded(), reviewed)
    missing = ("rewrites of hook 'polish' on ModelReplying", "injections of hook 'hint' on ToolCalling")
    assert (found.status, found.not_evaluated) == ("same", missing)
    assert (await once(await recorded(reviewed), reviewed)).not_evaluated == ()


async def test_a_tool_that_the_agent_does_not_have_any_more_is_a_difference():
    store = await recorded()
    (found,) = await replay(Agent(Forbidden(), tools=[look]), store)
    (difference,) = found.differences
    assert (difference.line, difference.kind, difference.step) == (
        "ToolCalling of pay: called is now no such tool",
        "outcome",
        2,
    )


async def test_a_call_of_a_tool_that_never_was_is_no_difference():
    store = await recorded(script=(calls("sing", song="la"), says("done")))
    assert (await once(store)).status == "same"


async def test_a_wrap_may_answer_for_a_tool_that_the_agent_does_not_have():
    agent = Agent(Forbidden(), tools=[look])

    @agent.wrap(ToolCall)
    async def remote(call: Any, call_next: Any) -> Any: ...

    (found,) = await replay(agent, await recorded())
    assert found.status == "same"


async def test_an_imported_history_is_judged_at_the_door():
    def door(agent: Agent) -> None:
        agent.gate(MessageAdding, name="door")(lambda event: Deny("no") if "bad" in event.message.text else None)

    store = MemoryStore()
    agent = an_agent(store, model=ScriptedModel(says("done")))
    await agent.import_history("s", [user("hi"), assistant("bad words")])
    await agent.run("go", session="s")
    assert (await once(store)).status == "same"
    assert (await once(store, door)).differences[0].line == "MessageAdding: allow is now deny: no (by door)"


async def test_a_text_like_that_of_a_failed_hook_is_a_text():
    @tool
    async def speak() -> str:
        """Speak."""
        return "hook 'x' failed; the log has the details"

    def loud(agent: Agent) -> None:
        @agent.rewrite(MessageAdding, name="loud")
        def loud(event: MessageAdding) -> Any:
            if event.message.role == "tool":
                (part,) = event.message.parts
                assert isinstance(part, ToolResultPart)
                return event.message.replace(parts=(part.replace(content=(TextPart(f"{part.text}!"),)),))
            return None

    def strict(agent: Agent) -> None:
        agent.gate(MessageAdding, name="strict")(lambda event: Halt("no") if event.message.role == "tool" else None)

    for hooks in ((), (loud,)):
        store = MemoryStore()
        agent = Agent(ScriptedModel(calls("speak"), says("done")), tools=[speak], store=store)
        for hook in hooks:
            hook(agent)
        await agent.run("go", session="s")
        judge = Agent(Forbidden(), tools=[speak])
        for hook in (*hooks, strict):
            hook(judge)
        (found,) = await replay(judge, store)
        assert [one.now for one in found.differences] == ["halt: no"]


# ---------------------------------------------------------------- sub-agents, scopes, stores


def family(store: Any, model: Any, child_model: Any, *hooks: Callable[[Agent], Any]) -> Agent:
    child = Agent(child_model, tools=TOOLS, name="child")
    agent = Agent(model, tools=[child.as_tool()], store=store, name="parent")
    for hook in hooks:
        hook(agent)
    return agent


async def test_the_sessions_of_sub_agents_are_judged_by_the_guards_above_too():
    store = MemoryStore()
    model = ScriptedModel(calls("child", task="pay"), says("done"))
    await family(store, model, ScriptedModel(calls("pay", amount=7), says("paid"))).run("go", session="s")

    def guard(agent: Agent) -> None:
        agent.gate(ToolCalling, tool="pay", band="guard", name="guard")(lambda event: Deny("no"))

    found = await replay(family(MemoryStore(), Forbidden(), Forbidden(), guard), store)
    assert [(one.session, one.status) for one in found] == [("s", "same"), ("s//1/1", "different")]
    assert found[1].differences[0].now_by == ("guard",)


async def test_scopes_come_from_a_function_of_the_session():
    class User:
        def __init__(self, name: str) -> None:
            self.name = name

    def by_user(agent: Agent) -> None:
        agent.gate(ToolCalling, tool="pay")(lambda event: None if event.turn.scope.name == "ann" else Deny("not yours"))

    store = MemoryStore()
    agent = Agent[Any, str](ScriptedModel(*SCRIPT), tools=TOOLS, store=store, scope=User)
    by_user(agent)
    await agent.run("go", session="s", scope=User("ann"))
    again = Agent[Any, str](Forbidden(), tools=TOOLS, scope=User)
    by_user(again)
    assert [one.status for one in await replay(again, store, scope=lambda session: User("ann"))] == ["same"]
    assert [one.status for one in await replay(again, store, scope=lambda session: User("bob"))] == ["different"]
    with pytest.raises(ConfigError, match="scope"):
        await replay(again, store)


async def test_an_unknown_session_is_an_error_that_names_it():
    with pytest.raises(SessionUnknown, match="'nobody'"):
        await replay(Agent(Forbidden()), await recorded(), "nobody")


async def test_many_sessions_make_one_report():
    store = MemoryStore()
    for number in range(20):
        script = (calls("pay", amount=number), says("done"))
        await an_agent(store, model=ScriptedModel(*script)).run("go", session=f"s{number}")
    report = Report()
    async for one in Replay(an_agent(MemoryStore(), limit(14)), store).sessions():
        report.add(one)
    summary = report.summary
    assert (summary.sessions, summary.same, summary.different, summary.blocked) == (20, 15, 5, 5)
    assert summary.changes == (("pay: allow → deny by no_big_sums", 5),)
    assert summary.exit_code == 1
    assert "5 decided differently" in str(report)
    assert "| `pay: allow → deny by no_big_sums` | 5 |" in report.markdown()


async def test_a_comment_on_a_pull_request_has_no_arguments_and_nothing_that_acts():
    hostile = "@team https://evil.example | `x` <b>[a](b) #12"

    def refuse(agent: Agent) -> None:
        agent.gate(ToolCalling, tool="pay", name="refuse")(lambda event: Deny(hostile))

    report = Report()
    report.add(await once(await recorded(), refuse))
    table = report.markdown()
    assert "| `s` | 2 | `pay: allow` | ``deny: @team https://evil.example \\| `x` <b>[a](b) #12`` | `refuse` |" in table
    assert "amount" not in table


# ---------------------------------------------------------------- a policy alone


async def test_rules_alone_take_the_place_of_the_recorded_ones(tmp_path: Path):
    policy = tmp_path / "policy.toml"
    policy.write_text('allow = ["look", "pay(amount=5)"]\nunmatched = "deny"\n', encoding="utf-8")
    store = await recorded()
    (found,) = await replay(agent_of_policy(policy), store, replacing=["permissions"])
    assert [(it.tool, it.step, it.now.partition(":")[0]) for it in found.differences] == [("pay", 3, "deny")]


@pytest.mark.parametrize("unmatched", ["allow", "ask", "deny"])
async def test_with_rules_alone_the_recorded_agent_says_what_happens_to_other_calls(tmp_path: Path, unmatched: Any):
    policy = tmp_path / "policy.toml"
    policy.write_text('deny = ["wipe"]\nunmatched = "allow"\n', encoding="utf-8")
    silent = await recorded(unmatched=unmatched)
    (found,) = await replay(agent_of_policy(policy), silent, replacing=["permissions"])
    assert found.status == "same"

    def permissions(agent: Agent) -> None:
        agent.gate(ToolCalling, name="permissions")(lambda event: Allow())

    allowed = await recorded(permissions, unmatched=unmatched)
    (found,) = await replay(agent_of_policy(policy), allowed, replacing=["permissions"])
    kinds = [difference.now.partition(":")[0] for difference in found.differences[:1]]
    assert kinds == ([] if unmatched == "allow" else [unmatched])


async def test_with_rules_alone_the_verdicts_of_other_gates_stand(tmp_path: Path):
    policy = tmp_path / "policy.toml"
    policy.write_text('allow = ["look", "pay"]\n', encoding="utf-8")
    store = await recorded(limit(10))
    (found,) = await replay(agent_of_policy(policy), store, replacing=["permissions"])
    assert found.status == "same"


# ---------------------------------------------------------------- hooks off and on


async def test_a_hook_is_switched_off_and_a_shadow_gate_counts():
    def guard(agent: Agent) -> None:
        @agent.gate(ToolCalling, tool="pay", name="limit")
        def limit(event: Any) -> Any:
            return Deny("too much") if event.call.arguments["amount"] > 20 else None

        @agent.gate(ToolCalling, tool="look", mode="shadow", name="curious")
        def curious(event: Any) -> Any:
            return Deny("none of your business")

    store = MemoryStore()
    await an_agent(store, guard, model=ScriptedModel(*SCRIPT)).run("go", session="s")
    agent = an_agent(MemoryStore(), guard)
    assert (await Replay(agent, store).session("s")).status == "same"
    off = await Replay(agent, store, without=["limit"]).session("s")
    assert [one.line for one in off.differences] == ["ToolCalling of pay: deny: too much is now allow"]
    assert off.differences[0].was_by == ("limit",)
    on = await Replay(agent, store, counting=["curious"]).session("s")
    assert [one.now for one in on.differences] == ["deny: none of your business"]
    assert on.differences[0].step == 1


@pytest.mark.parametrize("option", ["without", "counting"])
async def test_only_hooks_that_a_replay_asks_can_be_switched(option: str):
    def observes(agent: Agent) -> None:
        @agent.rewrite(ModelCalling, name="brief")
        def brief(event: Any) -> None: ...

        @agent.gate(ToolCalling, name="loud")
        def loud(event: Any) -> None: ...

    wrong = {"without": "brief", "counting": "loud"}[option]
    with pytest.raises(
        ConfigError, match=rf"Replay\({option}=…\): '{wrong}' is not a hook that can be switched; known"
    ):
        Replay(an_agent(MemoryStore(), observes), MemoryStore(), **{option: [wrong]})


async def test_a_recorded_gate_is_taken_out_without_another_one():
    def guard(agent: Agent) -> None:
        @agent.gate(ToolCalling, tool="pay", name="limit")
        def limit(event: Any) -> Any:
            return Deny("too much") if event.call.arguments["amount"] > 20 else None

    store = MemoryStore()
    await an_agent(store, guard, model=ScriptedModel(*SCRIPT)).run("go", session="s")
    found = await Replay(Agent(Forbidden()), store, replacing=["limit"]).session("s")
    assert [one.line for one in found.differences] == ["ToolCalling of pay: deny: too much is now allow"]
