"""`AgentHooks` beside the rest of an agent: what the conformance kit does not ask."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_hooks import (
    ApprovalOutcome,
    ApprovalResolution,
    CompositionConfig,
    CompositionProfile,
    EnforcementMode,
    HostRegistry,
    InterceptionEmitter,
    Verdict,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    Edit,
    ModelCall,
    ModelCalling,
    Noted,
    Stopped,
    StopReason,
    TextDelta,
    ThinkingPart,
    ToolCall,
    ToolCalling,
    ToolCallPart,
    ToolResultPart,
    tool,
)
from windlass.capabilities import Retry
from windlass.compat.agent_hooks import AgentHooks, host_surface
from windlass.compat.agent_hooks.contexts import (
    Unreadable,
    messages_json,
    reply_json,
    with_messages,
    with_response,
)
from windlass.errors import ConfigError
from windlass.messages import Message, Messages, ModelReply, ModelRequest, TextPart, assistant, user
from windlass.testing import FakeClock, ScriptedModel, breaks, calls, check_capability, says

from .hosts import bytes_in

ALLOW: dict[str, Any] = {"decision": "allow"}


class Rules:
    """An interceptor: verdicts by point, the rest is allowed. It keeps what it was shown."""

    def __init__(self, **verdicts: Any) -> None:
        self.verdicts = verdicts
        self.seen: list[dict[str, Any]] = []

    def intercept(self, context: dict[str, Any]) -> Any:
        self.seen.append(context)
        verdict = self.verdicts.get(context["interception_point"], ALLOW)
        return verdict(context) if callable(verdict) else verdict

    def points(self) -> list[str]:
        return [context["interception_point"] for context in self.seen]


def deny(reason: str = "app:no", **more: Any) -> dict[str, Any]:
    return {"decision": "deny", "reason": reason, **more}


def change(path: str, value: Any) -> dict[str, Any]:
    return {"decision": "transform", "transform": {"path": path, "value": value}}


def hooked(agent: Agent[Any, Any], *rules: Rules, **options: Any) -> Agent[Any, Any]:
    return agent.with_capability(AgentHooks(list(rules), **options), band="guard")


@tool(effect="pure", inline=True)
def look(name: str) -> str:
    """Look something up."""
    return f"{name} is 7"


# ---------------------------------------------------------------- sessions


async def test_a_session_starts_once_and_ends_once() -> None:
    rules = Rules()
    agent = hooked(Agent(ScriptedModel(says("a"), says("b")), name="bot"), rules)
    async with agent.session("s1") as session:
        await session.run("one")
        await session.run("two")
    turn = ["input", "pre_model_call", "post_model_call", "output"]
    assert rules.points() == ["agent_startup", *turn, *turn, "agent_shutdown"]
    assert [context["sequence"] for context in rules.seen] == list(range(10))
    assert {context["session"]["id"] for context in rules.seen} == {"s1"}
    assert {context["agent"]["id"] for context in rules.seen} == {"bot"}
    assert rules.seen[-1]["summary"] == {"reason": "completed"}


async def test_another_process_that_takes_a_session_up_starts_it_again(tmp_path: Path) -> None:
    async def run(*replies: Any) -> Rules:
        rules = Rules()
        agent = hooked(Agent(ScriptedModel(*replies), store=f"sqlite:///{tmp_path}/a.db"), rules)
        await agent.run("hi", session="s1")
        await agent.aclose()
        return rules

    await run(says("a"))
    assert (await run(says("b"))).points()[:2] == ["agent_startup", "input"]


async def test_a_session_that_may_not_start_never_runs_a_turn() -> None:
    rules = Rules(agent_startup=deny("app:closed"))
    agent = hooked(Agent(ScriptedModel(says("never"))), rules)
    for _ in range(2):
        result = await agent.run("hi", session="s1")
        assert result.outcome == Stopped(StopReason.HALTED, "app:closed")
    assert "pre_model_call" not in rules.points()


async def test_sub_agents_are_sessions_of_their_own_under_the_same_interceptors() -> None:
    def guard(context: dict[str, Any]) -> Any:
        return deny("app:child") if context["agent"]["id"] == "helper" else ALLOW

    rules = Rules(pre_tool_call=guard)
    helper = Agent(ScriptedModel(calls("look", name="x"), says("could not")), tools=[look], name="helper")
    model = ScriptedModel(calls("helper", task="look"), says("done"))
    agent = hooked(Agent(model, tools=[helper.as_tool()], name="main"), rules)
    assert (await agent.run("go")).text == "done"
    assert {context["agent"]["id"] for context in rules.seen} == {"main", "helper"}
    sessions = {context["session"]["id"] for context in rules.seen}
    assert len(sessions) == 2
    for session in sessions:
        sequence = [context["sequence"] for context in rules.seen if context["session"]["id"] == session]
        assert sequence == list(range(len(sequence)))


# ---------------------------------------------------------------- refusals and changes


async def test_the_model_reads_why_a_call_was_refused() -> None:
    rules = Rules(pre_tool_call=deny("app:no_lookups", message="ask the desk"))
    agent = hooked(Agent(ScriptedModel(calls("look", name="x"), says("ok")), tools=[look]), rules)
    result = await agent.run("go")
    assert result.steps[0].results[0].text == "Denied: app:no_lookups: ask the desk"
    assert "post_tool_call" not in rules.points()


async def test_a_failing_interceptor_ends_the_turn_if_tool_errors_terminate() -> None:
    def fail(context: dict[str, Any]) -> Any:
        raise RuntimeError("broken")

    for posture in ("continue", "terminate"):
        model = ScriptedModel(calls("look", name="x"), says("ok"))
        agent = hooked(Agent(model, tools=[look]), Rules(pre_tool_call=fail), tool_errors=posture)
        outcome = (await agent.run("go")).outcome
        assert isinstance(outcome, Completed if posture == "continue" else Stopped)


async def test_every_kind_of_payload_can_be_changed() -> None:
    rules = Rules(
        input=change("$target.content", "changed input"),
        pre_model_call=lambda context: change("$target[0].content", context["target"][0]["content"] + " Be kind."),
        pre_tool_call=change("$target.name", "y"),
        post_tool_call=change("$target", "y is 8"),
        output=lambda context: change("$target.content", context["target"]["content"].upper()),
    )
    model = ScriptedModel(calls("look", name="x"), says("fine"))
    agent = hooked(Agent(model, tools=[look], system="You look."), rules)
    result = await agent.run("hello")
    assert model.requests[0].system == "You look. Be kind."
    assert model.requests[0].messages[0].text == "changed input"
    assert model.requests[1].messages[-1].parts[0].content[0].text == "y is 8"  # type: ignore[union-attr]
    assert result.text == "FINE"


async def test_a_refused_reply_is_in_no_log(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(says("the code is 4711")), store=f"sqlite:///{tmp_path}/a.db")
    agent = hooked(agent, Rules(post_model_call=deny("app:secret")))
    result = await agent.run("hi", session="s1")
    assert result.outcome == Stopped(StopReason.HALTED, "app:secret")
    await agent.aclose()
    assert b"4711" not in bytes_in(tmp_path)


async def test_a_request_that_a_wrap_changed_is_judged_again() -> None:
    def guard(context: dict[str, Any]) -> Any:
        return deny("app:smuggled") if "smuggled" in json.dumps(context["target"]) else ALLOW

    agent = Agent(ScriptedModel(says("never")))

    @agent.wrap(ModelCall)
    async def smuggle(request: Any, call_next: Any) -> Any:
        return await call_next(request.replace(system="smuggled"))

    assert (await hooked(agent, Rules(pre_model_call=guard)).run("hi")).outcome == Stopped(
        StopReason.HALTED, "app:smuggled"
    )


async def test_a_change_of_what_a_wrap_has_changed_is_a_refusal() -> None:
    """Changes are made before the wraps; later the interceptors can only refuse."""

    def guard(context: dict[str, Any]) -> Any:
        return change("$target.name", "z") if context["target"]["name"] == "y" else ALLOW

    agent = Agent(ScriptedModel(calls("look", name="x"), says("ok")), tools=[look])

    @agent.wrap(ToolCall)
    async def other(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"name": "y"}))

    result = await hooked(agent, Rules(pre_tool_call=guard)).run("hi")
    assert "can no longer be changed" in result.steps[0].results[0].text


async def test_interceptors_see_what_other_rewrites_have_left() -> None:
    rules = Rules()
    agent = Agent(ScriptedModel(calls("look", name="x"), says("ok")), tools=[look])

    @agent.rewrite(ToolCalling, priority=-1000)
    def other(event: Any) -> Any:
        return event.call.replace(arguments={"name": "y"})

    await hooked(agent, rules).run("hi")
    [call] = [context for context in rules.seen if context["interception_point"] == "pre_tool_call"]
    assert call["tool_call"]["args"] == {"name": "y"}


async def test_what_hooks_ask_models_is_judged_both_ways() -> None:
    def guard(context: dict[str, Any]) -> Any:
        return deny("app:side") if "42" in json.dumps(context["target"]) else ALLOW

    agent = Agent(ScriptedModel(says("42"), says("never")))

    @agent.rewrite(ModelCalling)
    async def ask(event: Any, turn: Any) -> Any:
        if not event.side:
            await turn.ask(None, "what?")

    result = await hooked(agent, Rules(post_model_call=guard)).run("hi")
    assert not isinstance(result.outcome, Completed)


async def test_a_change_that_cannot_be_made_is_a_refusal() -> None:
    for path, value in (("$target", [1]), ("$target", "x")):
        agent = Agent(ScriptedModel(calls("look", name="x"), says("ok")), tools=[look])
        result = await hooked(agent, Rules(pre_tool_call=change(path, value))).run("hi")
        assert "unusable change: the arguments" in result.steps[0].results[0].text
    agent = hooked(Agent(ScriptedModel(says("never"))), Rules(input=change("$target.role", "system")))
    assert "the role of the input" in str((await agent.run("hi")).outcome)


@pytest.mark.parametrize("incremental", [False, True])
async def test_an_interceptor_that_raises_cancelled_error_has_failed(incremental: bool) -> None:
    def fail(context: dict[str, Any]) -> Any:
        raise asyncio.CancelledError

    for point in ("input", "pre_model_call", "post_model_call"):
        agent = hooked(Agent(ScriptedModel(says("never"))), Rules(**{point: fail}), incremental=incremental)
        stream = agent.stream("hi")
        assert [event async for event in stream if isinstance(event, TextDelta)] == []
        assert stream.result.outcome == Stopped(StopReason.HALTED, "host_error:interceptor_failed")


async def test_contexts_have_the_time_of_the_agents_clock() -> None:
    rules = Rules()
    agent = hooked(Agent(ScriptedModel(says("ok")), clock=FakeClock(0.0)), rules)
    await agent.run("hi")
    assert {context["timestamp"] for context in rules.seen} == {"1970-01-01T00:00:00.000000Z"}


# ---------------------------------------------------------------- people, and other processes


@pytest.mark.parametrize(
    ("answer", "text"),
    [(Approve(), "x is 7"), (Edit({"name": "secret"}), "Denied: app:secret")],
    ids=["approve", "edit"],
)
async def test_a_call_that_a_person_answers_in_another_process_is_judged_there(
    answer: Any, text: str, tmp_path: Path
) -> None:
    def guard(context: dict[str, Any]) -> Any:
        return deny("app:secret") if context["tool_call"]["args"] == {"name": "secret"} else ALLOW

    def make(rules: Rules, *replies: Any) -> Agent[Any, Any]:
        agent = Agent(ScriptedModel(*replies), tools=[look], store=f"sqlite:///{tmp_path}/a.db")

        @agent.gate(ToolCalling)
        def ask(event: Any) -> Ask:
            return Ask("May it?")

        return hooked(agent, rules)

    async with make(Rules(), calls("look", name="x")) as agent:
        [asked] = (await agent.run("go", session="s1")).waiting_for
    rules = Rules(pre_tool_call=guard)
    async with make(rules, says("ok")) as agent:
        result = await agent.resume("s1", answers={asked.id: answer})
    assert rules.points()[:2] == ["agent_startup", "pre_tool_call"]
    assert result.messages[2].parts[0].text.endswith(text)  # type: ignore[union-attr]


# ---------------------------------------------------------------- approvals, modes, records


class Desk:
    def __init__(self, outcome: ApprovalOutcome) -> None:
        self.outcome = outcome

    async def resolve(self, request: Any) -> ApprovalResolution:
        verdict = ALLOW if self.outcome is ApprovalOutcome.APPROVE else deny("desk:no")
        return ApprovalResolution(self.outcome, request.context_identity, Verdict.from_wire(verdict))


@pytest.mark.parametrize("outcome", [ApprovalOutcome.APPROVE, ApprovalOutcome.REJECT])
async def test_a_resolver_lifts_a_refusal_or_not(outcome: ApprovalOutcome) -> None:
    emitter = InterceptionEmitter(
        resolver=Desk(outcome), composition=CompositionConfig(profile=CompositionProfile.SEQUENTIAL_RUN_ALL)
    )
    emitter.register(Rules(pre_tool_call=deny("app:ask", approval={})))
    model = ScriptedModel(calls("look", name="x"), says("ok"))
    agent = Agent(model, tools=[look]).with_capability(AgentHooks(emitter), band="guard")
    text = (await agent.run("go")).steps[0].results[0].text
    assert text == ("x is 7" if outcome is ApprovalOutcome.APPROVE else "Denied: desk:no")


async def test_evaluate_only_records_in_the_log_and_changes_nothing() -> None:
    emitter = InterceptionEmitter(mode=EnforcementMode.EVALUATE_ONLY)
    emitter.register(Rules(pre_tool_call=deny("app:would_block")))
    model = ScriptedModel(calls("look", name="x"), says("ok"))
    agent = Agent(model, tools=[look]).with_capability(AgentHooks(emitter), band="guard")
    result = await agent.run("go", session="s1")
    assert result.steps[0].results[0].text == "x is 7"
    notes = [r.data for r in await agent.store.read("s1") if isinstance(r, Noted) and r.kind == "agent_hooks"]
    assert [(note["interception_point"], note["verdict"]["reason"]) for note in notes] == [
        ("pre_tool_call", "app:would_block")
    ]


async def test_a_host_declaration_says_what_runs() -> None:
    document = {
        "declaration": "agent-hooks-declaration/1.0",
        "configuration": {"posture": {"tool_seam_host_error": "terminate"}},
        "bindings": [{"id": "guard", "kind": "app.rules"}],
    }
    registry = HostRegistry(host_surface(tool_errors="terminate"))
    registry.kind("app.rules", lambda config, context: Rules(pre_tool_call={"decision": "nonsense"}))
    hooks = AgentHooks(InterceptionEmitter.from_declaration_value(document, registry))
    assert hooks.ends_on_tool_errors
    agent = Agent(ScriptedModel(calls("look", name="x"), says("ok")), tools=[look])
    agent = agent.with_capability(hooks, band="guard")
    assert (await agent.run("go")).outcome == Stopped(StopReason.HALTED, "host_error:verdict_invalid")
    assert "enforce, sequential/first_deny" in str(agent.explain())


# ---------------------------------------------------------------- streams


async def test_a_streamed_change_or_a_waiting_interceptor_is_a_refusal() -> None:
    class Waits:
        async def intercept(self, context: dict[str, Any]) -> Any:
            if context["interception_point"] == "post_model_call":
                await asyncio.sleep(0)
            return ALLOW

    for rules in (Rules(post_model_call=change("$target.content", "x")), Waits()):
        agent = Agent(ScriptedModel(says(chunks=["one ", "two"])))
        stream = hooked(agent, rules, incremental=True).stream("go")  # type: ignore[arg-type]
        text = "".join([event.text async for event in stream if isinstance(event, TextDelta)])
        assert text == ""
        assert isinstance(stream.result.outcome, Stopped)


async def test_text_that_a_broken_stream_left_unjudged_is_nowhere_when_the_call_is_tried_again(tmp_path: Path) -> None:
    broken = breaks(says(chunks=["one ", "LEFT ", "over"]), pieces=2)
    agent = Agent(ScriptedModel(broken, says("two")), capabilities=[Retry()], store=f"sqlite:///{tmp_path}/a.db")
    agent = hooked(agent, Rules(), incremental=True)
    stream = agent.stream("go")
    text = [event.text async for event in stream if isinstance(event, TextDelta)]
    await agent.aclose()
    assert (text, stream.result.text) == (["one ", "two"], "two")
    assert b"LEFT" not in bytes_in(tmp_path)


async def test_text_before_calls_streams_and_the_whole_reply_is_judged() -> None:
    rules = Rules()
    model = ScriptedModel(calls("look", name="x", _text="let me see"), says(chunks=["it ", "is 7"]))
    agent = hooked(Agent(model, tools=[look]), rules, incremental=True)
    stream = agent.stream("go")
    text = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert "".join(text) == "let me seeit is 7"
    replies = [c["response"] for c in rules.seen if c["interception_point"] == "post_model_call"]
    assert replies[-1] == {"content": "it is 7", "tool_calls": [], "finish_reason": "stop"}
    assert any(reply["tool_calls"] and reply["finish_reason"] == "tool_calls" for reply in replies)


def no_secret(context: dict[str, Any]) -> Any:
    return deny("app:secret") if "SECRET" in (context["response"]["content"] or "") else ALLOW


@pytest.mark.parametrize("strict", [0, 1])
async def test_of_two_hosts_each_holds_back_what_it_refuses(strict: int) -> None:
    rules = [Rules(), Rules()]
    rules[strict].verdicts["post_model_call"] = no_secret
    agent = Agent(ScriptedModel(says(chunks=["one ", "two ", "SECRET ", "three"])))
    for number, one in enumerate(rules):
        agent = hooked(agent, one, incremental=True, name=f"host_{number}")
    stream = agent.stream("go")
    text = "".join([event.text async for event in stream if isinstance(event, TextDelta)])
    assert text == "one two "
    assert stream.result.outcome == Stopped(StopReason.HALTED, "app:secret")


async def test_interceptors_of_a_child_do_not_hide_its_text_from_those_of_its_parent() -> None:
    child = hooked(Agent(ScriptedModel(says(chunks=["one ", "SECRET"])), name="kid"), Rules(), incremental=True)
    agent = Agent(ScriptedModel(calls("kid", task="x"), says("done")), tools=[child.as_tool()])
    agent = hooked(agent, Rules(post_model_call=no_secret), incremental=True, name="org")
    result = await agent.run("go", session="s1")
    assert result.steps[0].results[0].text == "Error: agent 'kid' was stopped (halted): app:secret"
    assert "SECRET" not in str(await agent.store.read("s1//1/1"))


# ---------------------------------------------------------------- as a capability


async def test_it_stands_what_every_capability_must_stand() -> None:
    report = await check_capability(lambda: AgentHooks([Rules()]))
    assert not report.failed, report


def test_what_is_not_an_emitter_is_named() -> None:
    with pytest.raises(ConfigError, match=r"AgentHooks\(…\) takes an InterceptionEmitter"):
        AgentHooks([print])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="tool_errors must be"):
        AgentHooks([], tool_errors="stop")  # type: ignore[arg-type]


def test_without_the_sdk_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "agent_hooks" or ".agent_hooks" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "agent_hooks", None)
    with pytest.raises(ConfigError, match=r"pip install 'windlass\[agent-hooks\]'"):
        import windlass.compat.agent_hooks  # noqa: F401


# ---------------------------------------------------------------- whatever an interceptor returns

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "id", "name", "args", "type", "text", "finish_reason"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
CALLED = Message("assistant", (ThinkingPart("h"), TextPart("t"), ToolCallPart("look", '{"name":"x"}', "s/1/1", "c1")))
RESULTS = Message("tool", (ToolResultPart("s/1/1", "look", (TextPart("7"),)),))
REQUEST = ModelRequest("sys", Messages([user("a"), CALLED, RESULTS, assistant("b"), user("a")]))


@settings(max_examples=300)
@given(st.data())
def test_any_list_of_messages_is_a_request_or_unreadable(data: st.DataObject) -> None:
    before = messages_json(REQUEST)
    kept = data.draw(st.lists(st.sampled_from(before) | JSON, max_size=7))
    try:
        request = with_messages(REQUEST, before, kept)
    except Unreadable:
        return
    wanted = [(entry["role"], entry.get("content") or None) for entry in kept]
    assert [(entry["role"], entry["content"]) for entry in messages_json(request)] == [
        (role, content) for role, content in wanted if role != "system" or content
    ]


@settings(max_examples=300)
@given(JSON, JSON, JSON)
def test_any_response_is_a_reply_or_unreadable(content: Any, called: Any, finish: Any) -> None:
    reply = ModelReply(CALLED, finish="tool_calls")
    before = reply_json(reply)
    assert with_response(reply, before, before) is reply
    try:
        changed = with_response(reply, before, {"content": content, "tool_calls": called, "finish_reason": finish})
    except Unreadable:
        return
    assert changed.message.parts[0] == ThinkingPart("h")
    assert [(c.name, c.arguments) for c in changed.tool_calls] == [(c["name"], c["args"]) for c in called]
