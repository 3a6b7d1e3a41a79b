"""`result.why()`: why a turn ended, who decided what and what was changed, for every kind of end."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import (
    Agent,
    Allow,
    Answer,
    Approve,
    Ask,
    Cancelled,
    Deny,
    Edit,
    ErrorPolicy,
    Finish,
    Halt,
    HookDecided,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Reject,
    Respond,
    Rewind,
    StepEnding,
    StepLimit,
    Stopping,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    TurnEnding,
    TurnStarted,
    TurnStarting,
    Veto,
    Why,
    tool,
)
from windlass._text import WIDTH
from windlass.errors import RateLimited, ServerError, SessionUnknown
from windlass.messages import OpaquePart, assistant
from windlass.records import KINDS, Unknown
from windlass.states import fold_log, of_latest_turn
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says
from windlass.testing.strategies import records

from .checks import FrozenClock


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def send(to: str) -> str:
    """Send something."""
    return f"sent to {to}"


def make(*replies, **options):
    return Agent(ScriptedModel(*replies), tools=[add, send], **options)


def told(why: Why, what: str | None = None) -> list[dict]:
    """What happened, in order; only one kind of it if that is named."""
    entries = [entry for part in why.data["parts"] for entry in part["entries"]]
    return [entry for entry in entries if what in (None, entry["what"])]


def plain(value) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(type(key) is str and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return type(value) is list and all(plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def timeless(data: Any) -> Any:
    """The data without its times."""
    if isinstance(data, dict):
        return {key: timeless(value) for key, value in data.items() if key not in ("at", "began", "took")}
    return [timeless(item) for item in data] if isinstance(data, list) else data


def sound(why: Why) -> Why:
    """What holds for every explanation: plain data, JSON of it, text that fits and cannot steer a terminal."""
    assert plain(why.data)
    assert json.loads(why.json()) == why.data
    lines = str(why).splitlines()
    assert max(map(len, lines)) <= WIDTH, lines
    assert all(line.isprintable() for line in lines)
    return why


# ---------------------------------------------------------------- how turns end


async def test_a_completed_turn_tells_who_voted_and_what_it_cost():
    why = sound((await make(calls("add", a=1, b=2), says("3")).run("1 + 2?")).why())
    ended = why.data["ended"]
    assert (ended["outcome"], ended["reason"]) == ("Completed", "completed")
    assert ended["vote"] == {"vote": "allow_stop", "by": [["tools_ran", "no tool was called"]]}
    assert why.data["message"] == "1 + 2?"
    assert why.data["usage"]["requests"] == 2
    assert [part["place"] for part in why.data["parts"]] == [1, 2]
    assert [entry["what"] for entry in told(why)] == ["reply", "result", "reply", "vote"]
    assert "Turn 1 of session" in str(why)


async def test_a_halted_turn_names_who_halted_it():
    agent = make(calls("add", a=1, b=2))

    @agent.gate(ToolCalling)
    def careful(event):
        return Halt("too risky")

    @agent.gate(ToolCalling)
    def friendly(event):
        return Allow()

    why = sound((await agent.run("1 + 2?")).why())
    assert why.data["ended"] | {"reason": "halted", "detail": "too risky", "by": ["careful"]} == why.data["ended"]
    assert [(e["hook"], e["decision"]) for e in told(why, "decide")] == [("careful", "Halt"), ("friendly", "Allow")]
    assert told(why, "verdict")[0]["decision"] == "Halt"
    assert told(why, "result")[0]["status"] == "denied"


async def test_a_limit_that_stops_a_turn_is_named():
    why = sound((await make(calls("add", a=1, b=2), criteria=[StepLimit(1)]).run("1 + 2?")).why())
    assert why.data["ended"]["reason"] == "step_limit"
    assert why.data["ended"]["by"] == ["StepLimit"]
    assert why.data["ended"]["vote"]["vote"] == "forbid"


async def test_a_failed_turn_tells_its_error_and_how_it_was_answered():
    agent = make(RateLimited("slow down"), ServerError("broken"), errors=ErrorPolicy.retrying(1, delay=0))
    why = sound((await agent.run("hi")).why())
    assert (why.data["ended"]["outcome"], why.data["ended"]["detail"]) == ("Failed", "ServerError: broken")
    assert [(e["category"], e["action"], e["by"]) for e in told(why, "error")] == [
        ("rate_limit", "retry", "policy"),
        ("model", "halt", "bounds of the policy"),
    ]
    assert "RateLimited: slow down (rate_limit): retry, decided by policy" in str(why)


async def test_a_turn_that_fails_by_a_hook_names_the_hook():
    agent = make(says("hi"))

    @agent.rewrite(ModelCalling)
    def broken(event):
        raise ValueError("no")

    why = sound((await agent.run("hi")).why())
    assert why.data["ended"]["outcome"] == "Failed"
    assert why.data["ended"]["by"] == ["broken"]


async def test_a_suspended_turn_tells_what_it_waits_for_and_the_resumed_one_who_answered():
    agent = make(calls([("send", {"to": "ann"}), ("send", {"to": "bob"})]), says("done"))

    @agent.gate(ToolCalling, tool="send")
    def ask_first(event):
        return Ask(f"Send to {event.call.arguments['to']}?", approvers=("eve",))

    suspended = await agent.run("send", session="s1")
    why = sound(suspended.why())
    assert (why.data["ended"]["outcome"], why.data["ended"]["by"]) == ("Suspended", ["ask_first"])
    assert why.data["ended"]["detail"] == "Send to ann?; Send to bob?"
    assert [entry["by"] for entry in told(why, "ask")] == [["ask_first"], ["ask_first"]]

    first, second = suspended.waiting_for
    answers = {first.id: Edit({"to": "carl"}, by="eve"), second.id: Reject("not him", by="eve")}
    result = await agent.resume("s1", answers=answers)
    whole = sound(result.why())
    assert whole.data["ended"]["outcome"] == "Completed"
    assert told(whole)[: len(told(why))] == told(why), "what happened before the suspension is told as well"
    assert {(entry["by"], entry["answer"]["answer"]) for entry in told(whole, "answer")} == {
        ("eve", "Edit"),
        ("eve", "Reject"),
    }
    assert [(entry["status"], entry["result"]) for entry in told(whole, "result")] == [
        ("ok", "sent to carl"),
        ("denied", "Denied: not him"),
    ]
    assert told(suspended.why()) == told(why), "an old result tells what it told"


async def test_a_turn_another_process_resumes_is_explained_whole():
    store = MemoryStore()

    def agent():
        made = make(calls("send", to="ann"), store=store) if not store._logs else make(says("done"), store=store)
        made.gate(ToolCalling, name="ask_first")(lambda event: Ask("Send?"))
        return made

    waiting = (await agent().run("send", session="s1")).waiting_for
    result = await agent().resume("s1", answers={waiting[0].id: Approve()})
    assert [entry["what"] for entry in told(sound(result.why()))][:3] == ["reply", "decide", "ask"]
    assert told(result.why(), "result")[0]["result"] == "sent to ann"


async def test_a_question_nobody_answered_in_time_says_so():
    clock = FrozenClock()
    agent = make(calls("send", to="ann"), says("ok"), clock=clock)
    agent.gate(ToolCalling, name="ask_first")(lambda event: Ask("Send?", expires=5))
    await agent.run("send", session="s1")
    await clock.sleep(10)
    why = sound((await agent.resume("s1")).why())
    assert told(why, "answer")[0]["expired"] is True
    assert "no answer in time" in told(why, "answer")[0]["text"]


async def test_a_cancelled_turn_is_explained_from_its_log():
    started = asyncio.Event()

    async def never(request):
        started.set()
        await asyncio.Event().wait()

    agent = Agent(FunctionModel(never))
    task = asyncio.create_task(agent.run("hi", session="s1"))
    await started.wait()
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    why = sound(await agent.why("s1"))
    assert isinstance((await agent.state("s1")).outcome, Cancelled)
    assert (why.data["ended"]["outcome"], why.data["ended"]["detail"]) == ("Cancelled", "enough")
    assert told(why, "cancel")[0]["reason"] == "enough"


async def test_a_turn_that_a_tool_cancels_is_explained_by_its_result():
    agent = make(calls("give_up"))

    @agent.tool
    async def give_up(turn) -> str:
        """Give up."""
        turn.cancel("no use")
        await asyncio.Event().wait()
        return "never"

    why = sound((await agent.run("hi")).why())
    assert (why.data["ended"]["outcome"], why.data["ended"]["detail"]) == ("Cancelled", "no use")
    assert told(why, "result")[0]["status"] == "interrupted"


async def test_a_streamed_turn_is_explained_like_any_other():
    def streamed():
        agent = make(calls("add", a=1, b=2), says("3", chunks=["3"]))
        agent.gate(ToolCalling, name="rule")(lambda event: Deny("no"))
        return agent

    async with streamed().stream("1 + 2?", session="s1") as stream:
        async for _ in stream:
            pass
    assert stream.result is not None
    assert timeless(stream.result.why().data) == timeless((await streamed().run("1 + 2?", session="s1")).why().data)


async def test_a_reply_that_was_cut_short_is_said_to_be():
    agent = make(says("one two", chunks=["one ", "two"], chunk_delay=60))
    async with agent.stream("hi", session="s1") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
    why = sound(await agent.why("s1"))
    assert why.data["ended"]["outcome"] == "Cancelled"
    assert told(why, "reply")[0]["partial"] is True


async def test_a_turn_that_was_finished_by_a_hook_names_it():
    agent = make(calls("add", a=1, b=2))
    agent.gate(ToolReturning, name="enough")(lambda event: Finish("done already"))
    why = sound((await agent.run("1 + 2?")).why())
    assert why.data["ended"] | {"outcome": "Completed", "by": ["enough"]} == why.data["ended"]


async def test_a_turn_that_was_answered_by_a_hook_names_it():
    agent = make()
    agent.gate(TurnStarting, name="greeter")(lambda event: Answer("hello"))
    why = sound((await agent.run("hi")).why())
    assert why.data["ended"] | {"outcome": "Completed", "by": ["greeter"]} == why.data["ended"]


async def test_a_text_that_was_withheld_names_who_withheld_it():
    agent = make(says("secret"))
    agent.gate(TurnEnding, name="censor")(lambda event: Deny("not for you"))
    why = sound((await agent.run("hi")).why())
    assert why.data["ended"] | {"reason": "withheld", "detail": "not for you", "by": ["censor"]} == why.data["ended"]
    assert "no answer is returned" in str(why)


async def test_a_text_that_was_withheld_because_a_hook_failed_names_that_hook():
    agent = make(says("secret"))

    @agent.rewrite(TurnEnding)
    def broken(event):
        raise ValueError("no")

    why = sound((await agent.run("hi")).why())
    assert why.data["ended"]["by"] == ["broken"]
    assert told(why, "failed")[0]["effect"] == "withheld"


async def test_a_person_who_stops_a_turn_is_named():
    agent = make(says("hi"))
    agent.gate(TurnStarting, name="ask_first")(lambda event: Ask("May it start?"))
    suspended = await agent.run("hi", session="s1")
    why = sound((await agent.resume("s1", answers={suspended.waiting_for[0].id: Reject("no", by="eve")})).why())
    assert why.data["ended"] | {"reason": "halted", "detail": "no", "by": ["eve"]} == why.data["ended"]


# ---------------------------------------------------------------- what happened on the way


async def test_a_rewrite_of_arguments_shows_before_and_after():
    agent = make(calls("add", a=1, b=2), says("8"))
    agent.rewrite(ToolCalling, name="more", priority=1)(lambda event: {**event.call.arguments, "b": 6})
    agent.rewrite(ToolCalling, name="most")(lambda event: {**event.call.arguments, "b": 7})
    why = sound((await agent.run("1 + 2?")).why())
    first, second = told(why, "rewrite")
    assert first["changes"] == {"json": {"before": '{"a":1,"b":2}', "after": '{"a":1,"b":6}'}}
    assert second["changes"] == {"json": {"before": '{"a":1,"b":6}', "after": '{"a":1,"b":7}'}}
    assert 'more (ToolCalling) of add: json {"a":1,"b":2} → {"a":1,"b":6}' in str(why)


async def test_a_rewrite_of_the_message_is_told_though_it_came_before_the_turn_began():
    agent = make(says("hi"))
    agent.rewrite(TurnStarting, name="tidy")(lambda event: event.message.text.strip())
    why = sound((await agent.run("  hello  ")).why())
    assert why.data["parts"][0]["place"] == "start"
    assert told(why, "rewrite")[0]["hook"] == "tidy"
    assert why.data["message"] == "hello"
    assert 'parts is now "hello"' in str(why)


async def test_a_rewrite_of_the_final_text_shows_before_and_after():
    agent = make(says("my secret"))
    agent.rewrite(TurnEnding, name="redact")(lambda event: event.text.replace("secret", "***"))
    why = sound((await agent.run("hi")).why())
    assert told(why, "rewrite")[0]["changes"] == {"value": {"before": "my secret", "after": "my ***"}}
    assert why.data["parts"][-1]["place"] == "end"


async def test_injections_are_told_with_their_hooks():
    agent = make(says("hi"))
    agent.inject(TurnStarting, name="calendar")(lambda event: "Today is Friday.")
    why = sound((await agent.run("hi")).why())
    [entry] = told(why, "inject")
    assert (entry["hook"], entry["event"], entry["added"]) == ("calendar", "TurnStarting", "Today is Friday.")


async def test_what_was_denied_is_told_with_the_reason():
    agent = make(calls("add", a=1000, b=2), says("no"))
    agent.gate(ToolCalling, name="small")(lambda event: Deny("too big"))
    why = sound((await agent.run("hi")).why())
    assert told(why, "decide")[0] | {"hook": "small", "decision": "Deny"} == told(why, "decide")[0]
    assert told(why, "decide")[0]["details"]["reason"] == "too big"
    assert 'small (ToolCalling) on add {"a":1000,"b":2}: Deny, "too big"' in str(why)


async def test_what_nobody_spoke_of_is_decided_by_the_default():
    why = sound((await make(calls("add", a=1, b=2), says("no"), unmatched="deny").run("hi")).why())
    assert told(why, "decide")[0]["hook"] is None
    assert "the agent's default applies: Deny" in str(why)


async def test_rejections_vetoes_and_rewinds_are_told_with_who_wanted_them():
    agent = make(says("bad"), calls("add", a=1, b=2), says("good"), says("better"))
    agent.gate(ModelReplying, name="critic")(lambda e: Regenerate("be good") if e.reply.text == "bad" else None)
    agent.gate(StepEnding, name="back")(lambda e: Rewind(1, "again") if e.step.results else None)
    agent.gate(Stopping, name="check")(lambda e: None if e.stop_active else Veto("check it"))
    why = sound((await agent.run("hi")).why())
    assert told(why, "reject")[0]["by"] == ["critic"]
    assert told(why, "rewind")[0]["by"] == ["back"]
    assert told(why, "veto")[0] | {"by": ["check"], "feedback": "check it"} == told(why, "veto")[0]
    assert [entry["message"] for entry in told(why, "message")] == ["again", "check it"]


async def test_attempts_that_did_not_stand_are_told():
    agent = make(RateLimited("slow down"), calls("add", a=1, b=2), says("3"))

    @agent.wrap(ModelCall)
    async def again(request, call_next):
        try:
            return await call_next(request)
        except RateLimited:
            return await call_next(request)

    @agent.wrap(ToolCall)
    async def twice(call, call_next):
        await call_next(call)
        return await call_next(call.replace(arguments={"a": 1, "b": 5}))

    why = sound((await agent.run("hi")).why())
    model, tool_ = told(why, "attempt")
    assert (model["of"], model["error"]["type"]) == ("model", "RateLimited")
    assert tool_["size"] == 1
    assert "with arguments that a wrap changed" in told(why, "call")[0]["text"]


async def test_a_gate_that_fails_is_told_with_what_that_meant():
    agent = make(calls("add", a=1, b=2), says("no"))

    @agent.gate(ToolCalling)
    def broken(event):
        raise ValueError("oops")

    why = sound((await agent.run("hi")).why())
    assert told(why, "failed")[0] | {"hook": "broken", "effect": "Deny"} == told(why, "failed")[0]
    assert "broken (ToolCalling) failed: ValueError: oops; effect: Deny" in str(why)


async def test_a_shadow_is_told_apart():
    agent = make(calls("add", a=1, b=2), says("3"))
    agent.gate(ToolCalling, name="trial", mode="shadow")(lambda event: Deny("would not"))
    why = sound((await agent.run("hi")).why())
    assert told(why, "decide") == []
    assert told(why, "shadow")[0]["hook"] == "trial"


async def test_a_message_that_was_kept_out_is_told():
    agent = make(says("secret"))
    agent.gate(MessageAdding, name="door")(lambda event: Deny("no") if event.message.role == "assistant" else None)
    why = sound((await agent.run("hi")).why())
    assert told(why, "decide")[0] | {"event": "MessageAdding", "hook": "door"} == told(why, "decide")[0]


async def test_what_a_person_said_in_place_of_a_tool_is_told():
    agent = make(calls("send", to="ann"), says("ok"))
    agent.gate(ToolCalling, name="ask_first")(lambda event: Ask("Send?"))
    suspended = await agent.run("send", session="s1")
    answers = {suspended.waiting_for[0].id: Respond("done by hand", by="eve")}
    why = sound((await agent.resume("s1", answers=answers)).why())
    assert 'eve answered "Send?": responded: "done by hand"' in str(why)


async def test_what_a_vendor_executed_is_said_not_to_be_mediated():
    reply = assistant("found it")
    reply = reply.replace(parts=(*reply.parts, OpaquePart("vendor", {"search": "x"}, mediated=False)))
    why = sound((await make(reply).run("hi")).why())
    assert told(why, "reply")[0]["not_mediated"] == 1


async def test_what_a_model_writes_cannot_steer_the_terminal_of_a_reader():
    why = sound((await make(says("\x1b[2J\x07 gone \ud800")).run("\x1b]0;title\x07")).why())
    assert "\\x1b[2J\\x07 gone \\ud800" in str(why)


# ---------------------------------------------------------------- which records


async def test_only_the_latest_turn_is_told_and_nothing_of_it_is_lost():
    agent = make(says("one"), says("two"), says("three"))
    results = [await agent.run(text, session="s1") for text in ("first", "second", "third")]
    assert [result.why().data["message"] for result in results] == ["first", "second", "third"]
    assert [len(told(result.why())) for result in results] == [2, 2, 2]
    assert (await agent.why("s1")).data == results[-1].why().data


async def test_the_records_a_kept_session_holds_do_not_grow_with_its_turns():
    agent = make(*[says("x") for _ in range(30)])
    held = []
    for _ in range(30):
        await agent.run("hi", session="s1")
        held.append(len(agent._sessions._logs["s1"].written))
    assert len(set(held[1:])) == 1


async def test_a_session_read_from_its_store_holds_its_latest_turn_only():
    store = MemoryStore()
    for _ in range(5):
        await make(says("x"), store=store).run("hi", session="s1")
    fold = fold_log("s1", await store.read("s1"))
    assert fold.written == of_latest_turn(await store.read("s1"))
    assert sum(isinstance(record, TurnStarted) for record in fold.written) == 1
    assert len(fold.written) < 10


async def test_a_turn_that_was_superseded_is_not_mixed_up_with_its_successor():
    agent = make(calls("send", to="ann"), says("fine"))
    agent.gate(ToolCalling, name="ask_first")(lambda event: Ask("Send?"))
    await agent.run("send", session="s1")
    result = await agent.run("never mind", session="s1")
    why = sound(result.why())
    assert why.data["message"] == "never mind"
    assert told(why, "ask") == []
    assert (await agent.why("s1")).data == why.data


async def test_what_the_store_could_not_keep_is_told_all_the_same():
    class Full(MemoryStore):
        async def append(self, session, records, expected, claim=None):
            if any(isinstance(record, ToolReturned) for record in records):
                raise OSError("disk full")
            return await super().append(session, records, expected, claim)

    result = await make(calls("add", a=1, b=2), says("3"), store=Full()).run("hi")
    why = sound(result.why())
    assert why.data["ended"]["outcome"] == "Failed"
    assert told(why, "result")[0]["result"] == "3"


async def test_what_was_spent_is_what_the_result_says():
    agent = make(says("bad"), says("good"))
    agent.gate(ModelReplying, name="critic")(lambda e: Regenerate("no") if e.reply.text == "bad" else None)
    result = await agent.run("hi")
    assert result.why().data["usage"]["requests"] == result.usage.requests == 2
    assert result.why().data["usage"]["output"] == result.usage.output


async def test_a_session_nobody_knows_cannot_be_explained():
    with pytest.raises(SessionUnknown):
        await make().why("nobody")


async def test_a_turn_that_still_runs_is_explained_so_far():
    agent = make(calls("add", a=1, b=2), says("3"))
    async for _ in agent.iterate("hi", session="s1"):
        break
    why = sound(await agent.why("s1"))
    assert why.data["turn"] == 1


# ---------------------------------------------------------------- never an error


@given(st.lists(records(), max_size=8))
def test_any_log_can_be_explained(log):
    sound(Why("s1", log))


@given(records())
def test_any_record_after_a_start_can_be_explained(record):
    started = TurnStarted(1, assistant("x"), "s1/t1")
    why = sound(Why("s1", [started, record]))
    assert repr(why).startswith("<Why ")


def test_a_log_without_a_turn_and_a_kind_nobody_knows_can_be_explained():
    assert sound(Why("s1", [])).data["ended"]["outcome"] == "Running"
    assert "NewThing" in str(sound(Why("s1", [Unknown("NewThing", {"x": 1})])))


def test_every_kind_of_record_is_either_told_or_known_to_need_no_words():
    from windlass.why import _DESCRIBERS

    quiet = {"SessionEnded", "MessageHeld", "HeldReleased"}
    assert {kind.__name__ for kind in _DESCRIBERS} - {"Unknown"} == {*KINDS} - quiet


def test_values_that_are_not_plain_are_shown_as_plain_ones():
    class Odd:
        def __str__(self):
            return "odd"

    decided = HookDecided("TurnStarting", "s1/t1", Answer(Odd()), (("x", Answer({1: Odd()})),))
    assert told(sound(Why("s1", [decided])))[0]["details"] == {"value": {"1": "odd"}}


def test_the_data_is_not_shared_with_the_log():
    value = {"x": [1]}
    why = Why("s1", [HookDecided("TurnStarting", "s1/t1", Answer(value), (("x", Answer(value)),))])
    told(why)[0]["details"]["value"]["x"].append(2)
    assert value == {"x": [1]}
