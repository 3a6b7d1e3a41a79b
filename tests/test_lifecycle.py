"""`Lifecycle`, `LifecycleHook` and `HookAction`: sugar over the verbs, nothing more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Allow,
    Approve,
    Completed,
    Failed,
    Halt,
    HookAction,
    HookDecided,
    ImagePart,
    Lifecycle,
    LifecycleHook,
    Message,
    ModelReply,
    ModelReplying,
    ModelRequest,
    Reject,
    Respond,
    Slot,
    Stopped,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    assistant,
    tool,
    user,
)
from windlass.errors import CompiledError, HookError, IllegalAnswer, RegistrationError
from windlass.testing import HookTrace, ScriptedModel, calls, says


class Mood(Struct):
    text: str = "calm"


@tool(effect="pure", inline=True)
def look(at: str) -> str:
    """Look at something."""
    if at == "sun":
        raise ValueError("too bright")
    return f"saw {at}"


def looking(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(*replies or (calls("look", at="sea"), says("done"))), tools=[look], **options)


async def registered(agent: Agent) -> list[tuple[str, str, str]]:
    """What the compiled pipeline holds, as the store keeps it."""
    result = await agent.run("go", session="registered")
    data = await agent.store.pipeline(result.state.pipeline)
    assert data is not None
    return [(hook["kind"], hook["event"], hook["name"]) for hook in msgspec.json.decode(data)["hooks"]]


# ---------------------------------------------------------------- all six methods


class PlainLog(Lifecycle):
    """All six methods, plain; each notes what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def before_agent(self, text):
        self.seen.append(("before_agent", text))

    def before_model(self, messages):
        self.seen.append(("before_model", [message.role for message in messages]))

    def wrap_model_call(self, request, call_next):
        self.seen.append(("wrap_model_call", type(request)))
        reply = call_next(request)
        self.seen.append(("unwrap_model_call", type(reply)))
        return reply

    def after_model(self, reply):
        self.seen.append(("after_model", type(reply)))

    def wrap_tool_call(self, call, call_next):
        self.seen.append(("wrap_tool_call", type(call)))
        result = call_next(call)
        self.seen.append(("unwrap_tool_call", type(result)))
        return result

    def after_agent(self, text):
        self.seen.append(("after_agent", text))


class AsyncLog(PlainLog):
    """The same, async."""

    async def before_agent(self, text):
        super().before_agent(text)

    async def before_model(self, messages):
        super().before_model(messages)

    async def wrap_model_call(self, request, call_next):
        self.seen.append(("wrap_model_call", type(request)))
        reply = await call_next(request)
        self.seen.append(("unwrap_model_call", type(reply)))
        return reply

    async def after_model(self, reply):
        super().after_model(reply)

    async def wrap_tool_call(self, call, call_next):
        self.seen.append(("wrap_tool_call", type(call)))
        result = await call_next(call)
        self.seen.append(("unwrap_tool_call", type(result)))
        return result

    async def after_agent(self, text):
        super().after_agent(text)


@pytest.mark.parametrize("make", [PlainLog, AsyncLog])
async def test_the_six_methods_get_what_they_are_named_for_and_none_means_unchanged(make):
    log = make()
    result = await looking().with_lifecycle(log).run("go")

    def step(*roles: str) -> list[tuple[str, Any]]:
        return [
            ("before_model", list(roles)),
            ("wrap_model_call", ModelRequest),
            ("unwrap_model_call", ModelReply),
            ("after_model", ModelReply),
        ]

    assert log.seen == [
        ("before_agent", "go"),
        *step("user"),
        ("wrap_tool_call", ToolCall),
        ("unwrap_tool_call", ToolResult),
        *step("user", "assistant", "tool"),
        ("after_agent", "done"),
    ]
    assert result.text == "done"
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


class Changing(Lifecycle):
    """All six methods, each changing what it can."""

    def before_agent(self, text):
        return f"{text} [before_agent]"

    def before_model(self, messages):
        return [*messages, user("[before_model]")]

    async def wrap_model_call(self, request, call_next):
        return await call_next(request.replace(system="[wrap_model_call]"))

    async def after_model(self, reply):
        return HookAction.Modify(f"{reply.text}[after_model]")

    async def wrap_tool_call(self, call, call_next):
        return f"{(await call_next(call)).text} [wrap_tool_call]"

    async def after_agent(self, text):
        return f"{text} [after_agent]"


async def test_the_six_methods_change_what_they_return():
    agent = looking().with_lifecycle(Changing())
    result = await agent.run("go")

    first, second = agent.model.requests
    assert [message.text for message in first.messages] == ["go [before_agent]", "[before_model]"]
    assert [message.text for message in second.messages][-1] == "[before_model]"
    assert first.system == second.system == "[wrap_model_call]"
    assert result.messages[2].parts[0].text == "saw sea [wrap_tool_call]"
    assert result.text == "done[after_model] [after_agent]"


async def test_before_model_and_after_agent_change_no_history():
    agent = looking().with_lifecycle(Changing())
    result = await agent.run("go")

    assert [message.text for message in result.messages] == [
        "go [before_agent]",
        "[after_model]",
        "",
        "done[after_model]",
    ]


async def test_before_agent_keeps_what_is_no_text():
    class Polite(Lifecycle):
        def before_agent(self, text):
            return f"please {text}"

    image = ImagePart(url="https://example.org/sea.png")
    agent = Agent(ScriptedModel(says("done"))).with_lifecycle(Polite())
    await agent.run(Message("user", (TextPart("look"), image)))

    (message,) = agent.model.requests[0].messages
    assert message.text == "please look"
    assert image in message.parts


async def test_methods_may_ask_for_the_turn():
    seen: dict[str, Any] = {}

    class Asking(Lifecycle):
        def before_agent(self, text, turn):
            seen["before_agent"] = turn.scope

        async def before_model(self, messages, turn):
            seen["before_model"] = turn.scope

        async def wrap_model_call(self, request, call_next, turn):
            seen["wrap_model_call"] = turn.scope
            return await call_next(request)

        def after_model(self, reply, turn):
            seen["after_model"] = turn.scope

        def wrap_tool_call(self, call, call_next, turn):
            seen["wrap_tool_call"] = turn.scope
            return call_next(call)

        async def after_agent(self, text, turn):
            seen["after_agent"] = turn.scope

    scope = object()
    await looking().with_lifecycle(Asking()).run("go", scope=scope)

    assert list(seen) == [
        "before_agent", "before_model", "wrap_model_call", "after_model", "wrap_tool_call", "after_agent",
    ]  # fmt: skip
    assert all(found is scope for found in seen.values())


async def test_methods_may_ask_for_a_slot_and_set_it():
    class Moody(Lifecycle):
        def before_model(self, messages, mood: Mood, turn):
            turn.set(Mood, Mood(mood.text + "er"))

    agent = looking().with_lifecycle(Moody())
    agent.slot(Slot("mood", Mood))
    result = await agent.run("go")

    assert result.slots == {"mood": Mood("calmerer")}


# ---------------------------------------------------------------- what is registered


async def test_only_overridden_methods_are_registered():
    class One(Lifecycle):
        def before_model(self, messages):
            return None

    assert await registered(looking().with_lifecycle(One())) == [("rewrite", "ModelCalling", "One.before_model")]


async def test_an_empty_lifecycle_registers_nothing():
    class Empty(Lifecycle):
        pass

    class Blind(LifecycleHook):
        pass

    agent = looking().with_lifecycle(Empty()).with_lifecycle(Blind()).with_lifecycle(Lifecycle())
    assert await registered(agent) == []


async def test_each_method_is_the_verb_it_stands_for():
    hooks = await registered(looking().with_lifecycle(Changing()))
    assert sorted(hooks) == [
        ("hook", "ModelReplying", "Changing.after_model"),
        ("rewrite", "ModelCalling", "Changing.before_model"),
        ("rewrite", "TurnEnding", "Changing.after_agent"),
        ("rewrite", "TurnStarting", "Changing.before_agent"),
        ("wrap", "ModelCall", "Changing.wrap_model_call"),
        ("wrap", "ToolCall", "Changing.wrap_tool_call"),
    ]


async def test_inherited_methods_are_registered_under_the_name_of_the_subclass():
    class Base(Lifecycle):
        def before_model(self, messages):
            return None

    class Leaf(Base):
        def after_agent(self, text):
            return f"{text}!"

    assert await registered(looking().with_lifecycle(Leaf())) == [
        ("rewrite", "ModelCalling", "Leaf.before_model"),
        ("rewrite", "TurnEnding", "Leaf.after_agent"),
    ]


async def test_two_instances_of_one_class_are_two_hooks():
    class Mark(Lifecycle):
        def __init__(self, mark: str) -> None:
            self.mark = mark

        def after_agent(self, text):
            return text + self.mark

    agent = looking(says("x")).with_lifecycle(Mark("1")).with_lifecycle(Mark("2"))
    result = await agent.run("go", session="s")

    assert result.text == "x12"
    trace = HookTrace(await agent.store.read("s"))
    assert [hook for _, hook, _ in trace.of("TurnEnding")] == ["Mark.after_agent", "Mark.after_agent#2"]


def test_what_is_no_lifecycle_is_refused():
    class Lookalike:
        def before_model(self, messages):
            return None

    with pytest.raises(RegistrationError, match=r"Lifecycle or a LifecycleHook, got Lookalike"):
        looking().with_lifecycle(Lookalike())


async def test_a_lifecycle_cannot_be_added_after_the_first_run():
    agent = looking()
    await agent.run("go")

    with pytest.raises(CompiledError, match="Changing"):
        agent.with_lifecycle(Changing())


def test_with_lifecycle_gives_the_same_agent():
    agent = looking()
    assert agent.with_lifecycle(Changing()) is agent


def test_a_parameter_that_nobody_supplies_is_refused_and_names_the_method():
    class Greedy(Lifecycle):
        def before_model(self, messages, database):
            return None

    with pytest.raises(RegistrationError, match=r"'Greedy\.before_model'.*'database'"):
        looking().with_lifecycle(Greedy()).compile()


# ---------------------------------------------------------------- what after_model may answer


class Judge(Lifecycle):
    """Answers after_model from a list."""

    def __init__(self, *actions: Any) -> None:
        self.actions = list(actions)
        self.seen: list[str] = []

    def after_model(self, reply):
        self.seen.append(reply.text)
        return self.actions.pop(0)


class AsyncJudge(Judge):
    async def after_model(self, reply):
        return super().after_model(reply)


judges = pytest.mark.parametrize("judge", [Judge, AsyncJudge])


async def decisions(agent: Agent, session: str = "s") -> list[tuple[str, Any]]:
    """Who decided what about replies."""
    log = await agent.store.read(session)
    return [
        answer
        for record in log
        if isinstance(record, HookDecided) and record.event == "ModelReplying"
        for answer in record.answers
    ]


@judges
async def test_continue_says_nothing(judge):
    agent = looking(says("done")).with_lifecycle(judge(HookAction.CONTINUE))
    result = await agent.run("go", session="s")

    assert HookAction.CONTINUE is None
    assert result.outcome == Completed()
    assert await decisions(agent) == []


@judges
async def test_approve_is_recorded_with_the_name_of_the_approver(judge):
    agent = looking(says("done")).with_lifecycle(judge(HookAction.APPROVE))
    result = await agent.run("go", session="s")

    assert result.outcome == Completed()
    assert await decisions(agent) == [(f"{judge.__name__}.after_model", Allow())]


@judges
async def test_reject_halts_the_turn_and_keeps_the_reply_and_its_calls_out(judge):
    agent = looking(calls("look", at="sea", _text="rude")).with_lifecycle(judge(HookAction.Halt("be nice")))
    result = await agent.run("go", session="s")

    assert result.outcome == Stopped(StopReason.HALTED, "be nice")
    assert result.text == ""
    assert [message.role for message in result.messages] == ["user"]
    assert result.usage.requests == 1
    assert await decisions(agent) == [(f"{judge.__name__}.after_model", Halt("be nice"))]


@judges
@pytest.mark.parametrize(
    "new",
    ["better", assistant("better"), ModelReply(assistant("better"))],
    ids=["str", "Message", "ModelReply"],
)
async def test_modify_replaces_the_reply(judge, new):
    agent = looking(says("good")).with_lifecycle(judge(HookAction.Modify(new)))
    result = await agent.run("go", session="s")

    assert result.text == "better"
    assert [message.text for message in result.messages] == ["go", "better"]
    assert ("ModelReplying", f"{judge.__name__}.after_model", "rewrite") in HookTrace(await agent.store.read("s")).rows


async def test_modify_with_a_text_keeps_the_calls():
    agent = looking(calls("look", at="sea", _text="hm"), says("done"))
    result = await agent.with_lifecycle(Judge(HookAction.Modify("I look."), None)).run("go")

    assert result.messages[1].text == "I look."
    assert result.messages[2].parts[0].text == "saw sea"
    assert result.text == "done"


async def test_modify_may_take_the_calls_away():
    agent = looking(calls("look", at="sea"))
    result = await agent.with_lifecycle(Judge(HookAction.Modify(assistant("I will not look.")))).run("go")

    assert result.outcome == Completed()
    assert [message.text for message in result.messages] == ["go", "I will not look."]


async def test_modify_cannot_edit_a_signed_part():
    forged = Message("assistant", (ThinkingPart("other thoughts", "signature"), TextPart("done")))
    agent = looking(says("done", thinking="thoughts", signature="signature"))
    result = await agent.with_lifecycle(Judge(HookAction.Modify(forged))).run("go")

    assert isinstance(result.error, IllegalAnswer)
    assert result.error.hook == "Judge.after_model"
    assert "signed" in str(result.error)


async def test_a_later_lifecycle_sees_what_an_earlier_one_modified():
    first, second = Judge(HookAction.Modify("better")), Judge(HookAction.Modify("best"))
    result = await looking(says("good")).with_lifecycle(first).with_lifecycle(second).run("go")

    assert (first.seen, second.seen) == (["good"], ["better"])
    assert result.text == "best"


async def test_an_approval_counts_only_if_the_reply_stayed_the_same():
    agent = looking(says("good"))
    agent.with_lifecycle(Judge(HookAction.APPROVE)).with_lifecycle(AsyncJudge(HookAction.Modify("changed")))
    result = await agent.run("go", session="s")

    assert result.text == "changed"
    assert await decisions(agent) == []


async def test_a_rejection_stands_whatever_a_later_lifecycle_modifies():
    agent = looking(says("bad"))
    agent.with_lifecycle(Judge(HookAction.Halt("no"))).with_lifecycle(AsyncJudge(HookAction.Modify("fine")))
    result = await agent.run("go")

    assert result.outcome == Stopped(StopReason.HALTED, "no")
    assert result.text == ""


async def test_a_gate_judges_what_after_model_made_of_the_reply():
    seen: list[str] = []
    agent = looking(says("good"))
    agent.gate(ModelReplying)(lambda event: seen.append(event.reply.text))
    await agent.with_lifecycle(Judge(HookAction.Modify("better"))).run("go")

    assert seen == ["better"]


@judges
async def test_regenerate_asks_the_model_again_with_the_feedback(judge):
    hook = judge(HookAction.Regenerate("shorter"), None)
    agent = looking(says("a long reply"), says("short")).with_lifecycle(hook)
    result = await agent.run("go")

    assert hook.seen == ["a long reply", "short"]
    assert result.text == "short"
    assert [message.text for message in result.messages] == ["go", "short"]
    *_, rejected, feedback = agent.model.requests[1].messages
    assert rejected.text == "a long reply"
    assert "shorter" in feedback.text
    assert result.usage.requests == 2


@judges
async def test_ask_suspends_until_a_person_has_answered(judge):
    hook = judge(HookAction.Ask("Send it?"), HookAction.Ask("Send it?"))
    agent = looking(says("done")).with_lifecycle(hook)
    waiting = await agent.run("go", session="s")
    (asked,) = waiting.waiting_for

    assert waiting.stop_reason is StopReason.SUSPENDED
    assert (asked.question, asked.event, asked.by) == (
        "Send it?",
        "ModelReplying",
        (f"{judge.__name__}.after_model",),
    )

    result = await agent.resume("s", answers={asked.id: Approve()})

    assert result.text == "done"
    assert result.outcome == Completed()
    assert hook.seen == ["done", "done"]  # asked again on resume, where its question is answered
    assert len(agent.model.requests) == 1


async def test_a_rejected_question_regenerates():
    agent = looking(says("bad"), says("good")).with_lifecycle(Judge(HookAction.Ask("Send it?"), None, None))
    waiting = await agent.run("go", session="s")
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Reject("not like this")})

    assert result.text == "good"
    assert "not like this" in agent.model.requests[1].messages[-1].text


async def test_a_question_may_be_answered_with_another_reply():
    agent = looking(says("bad")).with_lifecycle(Judge(*[HookAction.Ask("Send it?")] * 4))
    waiting = await agent.run("go", session="s")
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Respond("my own words")})

    assert result.text == "my own words"
    assert [message.text for message in result.messages] == ["go", "my own words"]


@pytest.mark.parametrize("answer", ["text", ModelReply(assistant("x")), HookAction.Halt], ids=["str", "reply", "class"])
async def test_anything_else_is_refused_and_names_the_method(answer):
    result = await looking(says("done")).with_lifecycle(Judge(answer)).run("go")

    assert isinstance(result.outcome, Failed)
    assert isinstance(result.error, IllegalAnswer)
    assert result.error.hook == "Judge.after_model"
    assert "Halt, Regenerate, Ask, Allow or None" in str(result.error)


# ---------------------------------------------------------------- failures


def broken(method: str) -> Lifecycle:
    def fail(self, *_: Any) -> Any:
        raise ValueError("broken")

    return type("Broken", (Lifecycle,), {method: fail})()


@pytest.mark.parametrize("method", ["before_agent", "before_model", "after_model"])
async def test_a_method_that_raises_fails_the_turn_and_is_named(method):
    result = await looking().with_lifecycle(broken(method)).run("go")

    assert isinstance(result.outcome, Failed)
    assert isinstance(result.error, HookError)
    assert result.error.hook == f"Broken.{method}"
    assert "broken" in str(result.error)


async def test_after_agent_that_raises_withholds_the_text():
    result = await looking().with_lifecycle(broken("after_agent")).run("go")

    assert result.stop_reason is StopReason.WITHHELD
    assert result.text == ""
    assert "Broken.after_agent" in result.outcome.detail


async def test_wrap_model_call_that_raises_fails_the_turn_with_its_error():
    result = await looking().with_lifecycle(broken("wrap_model_call")).run("go")

    assert isinstance(result.error, ValueError)
    assert str(result.error) == "broken"


async def test_wrap_tool_call_that_raises_is_an_error_that_the_model_reads():
    result = await looking().with_lifecycle(broken("wrap_tool_call")).run("go")

    (part,) = result.messages[2].parts
    assert part.status == "error"
    assert "'Broken.wrap_tool_call' failed" in part.text
    assert result.text == "done"


@pytest.mark.parametrize(
    "messages", [["go"], "go", [Message("system", (TextPart("x"),))]], ids=["str", "text", "system"]
)  # type: ignore[arg-type]
async def test_before_model_that_returns_no_messages_is_named(messages):
    class Careless(Lifecycle):
        def before_model(self, _):
            return messages

    agent = looking().with_lifecycle(Careless())
    result = await agent.run("go")

    assert agent.model.requests == []
    assert isinstance(result.error, IllegalAnswer)
    assert result.error.hook == "Careless.before_model"


# ---------------------------------------------------------------- LifecycleHook


class PlainWatch(LifecycleHook):
    """All six methods, plain."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def pre_tool_call(self, name, arguments):
        self.seen.append(("pre_tool_call", name, arguments))

    def post_tool_call(self, name, result):
        self.seen.append(("post_tool_call", name, result.text))

    def pre_llm_call(self, request):
        self.seen.append(("pre_llm_call", len(request.messages)))

    def post_llm_call(self, reply):
        self.seen.append(("post_llm_call", reply.text))

    def on_session_start(self, session_id):
        self.seen.append(("on_session_start", session_id))

    def on_session_end(self, session_id, text):
        self.seen.append(("on_session_end", session_id, text))


class AsyncWatch(PlainWatch):
    """All six methods, async."""

    async def pre_tool_call(self, name, arguments):
        super().pre_tool_call(name, arguments)

    async def post_tool_call(self, name, result):
        super().post_tool_call(name, result)

    async def pre_llm_call(self, request):
        super().pre_llm_call(request)

    async def post_llm_call(self, reply):
        super().post_llm_call(reply)

    async def on_session_start(self, session_id):
        super().on_session_start(session_id)

    async def on_session_end(self, session_id, text):
        super().on_session_end(session_id, text)


watches = pytest.mark.parametrize("watch", [PlainWatch, AsyncWatch])


@watches
async def test_the_six_observers_are_told(watch):
    hook = watch()
    result = await looking().with_lifecycle(hook).run("go")

    # Each observer has a queue of its own: between methods no order is promised, within one it is.
    by_method: dict[str, list[tuple[Any, ...]]] = {}
    for method, *given in hook.seen:
        by_method.setdefault(method, []).append(tuple(given))
    assert by_method == {
        "on_session_start": [(result.session_id,)],
        "pre_llm_call": [(1,), (3,)],
        "post_llm_call": [("",), ("done",)],
        "pre_tool_call": [("look", {"at": "sea"})],
        "post_tool_call": [("look", "saw sea")],
        "on_session_end": [(result.session_id, "done")],
    }


@watches
async def test_observers_are_told_of_the_end_of_a_session_when_it_is_closed(watch):
    hook = watch()
    agent = looking(says("one"), says("two")).with_lifecycle(hook)

    async with agent.session("s") as session:
        await session.run("1")
        await session.run("2")
        assert [row for row in hook.seen if row[0] == "on_session_end"] == []

    assert [row for row in hook.seen if row[0].startswith("on_session")] == [
        ("on_session_start", "s"),
        ("on_session_end", "s", "two"),
    ]


async def test_post_tool_call_is_told_of_success_only():
    hook = PlainWatch()
    agent = looking(
        calls([("look", {"at": "sun"}), ("look", {"at": "sea"}), ("look", {"at": "moon"})]), says("done")
    ).with_lifecycle(hook)

    @agent.wrap(ToolCall)
    async def no_moon(call, call_next):
        return ToolResult(status="error") if call.arguments["at"] == "moon" else await call_next(call)

    await agent.run("go")

    assert [row for row in hook.seen if row[0] == "post_tool_call"] == [("post_tool_call", "look", "saw sea")]


@watches
async def test_observers_can_neither_change_nor_block_the_turn(watch):
    class Meddling(watch):
        def pre_tool_call(self, name, arguments):
            arguments["at"] = "moon"

        def post_llm_call(self, reply):
            return HookAction.Halt("no")

        def pre_llm_call(self, request):
            raise ValueError("broken")

    result = await looking().with_lifecycle(Meddling()).run("go")

    assert result.outcome == Completed()
    assert result.messages[2].parts[0].text == "saw sea"


@pytest.mark.parametrize(("method", "fact"), [("post_llm_call", "ModelReplied"), ("on_session_end", "SessionEnded")])
async def test_an_observer_that_raises_is_a_fact_in_the_log_even_at_the_very_end(method, fact):
    def fail(self, *_: Any) -> None:
        raise ValueError("broken")

    agent = looking(says("done")).with_lifecycle(type("Broken", (LifecycleHook,), {method: fail})())
    result = await agent.run("go")

    assert result.outcome == Completed()
    assert HookTrace(await agent.store.read(result.session_id)).of(fact) == [
        (fact, f"Broken.{method}", "failed: failed")
    ]


async def test_only_overridden_observers_are_registered():
    class One(LifecycleHook):
        def post_llm_call(self, reply):
            return None

    class Leaf(One):
        pass

    assert await registered(looking().with_lifecycle(Leaf())) == [("observe", "ModelReplied", "Leaf.post_llm_call")]


async def test_each_observer_is_an_observe_of_its_fact():
    hooks = await registered(looking().with_lifecycle(PlainWatch()))
    assert sorted(hooks) == [
        ("observe", "ModelCalled", "PlainWatch.pre_llm_call"),
        ("observe", "ModelReplied", "PlainWatch.post_llm_call"),
        ("observe", "SessionEnded", "PlainWatch.on_session_end"),
        ("observe", "SessionOpened", "PlainWatch.on_session_start"),
        ("observe", "ToolCalled", "PlainWatch.pre_tool_call"),
        ("observe", "ToolReturned", "PlainWatch.post_tool_call"),
    ]
