"""Side calls: the guards look at what a hook or tool asks a model, and the log answers on resume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Answer,
    Ask,
    Completed,
    Deny,
    Halt,
    ModelCall,
    ModelCalling,
    ModelReplied,
    ModelReplying,
    SessionStarting,
    StepStarting,
    TokenLimit,
    ToolCall,
    ToolCalling,
    Turn,
    TurnStarting,
    tool,
)
from windlass.capabilities import AtMessages, Summarize
from windlass.errors import ConfigError, HookError, RateLimited, RegistrationError, raiser_of
from windlass.messages import ModelRequest, Usage
from windlass.records import HookDecided, HookFailed, Rewritten, SideReplied, ToolReturned
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says

SESSION = "s"
CARD = "4111-1111"


class Side:
    """A model that keeps what it is asked."""

    def __init__(self, *replies: Any, name: str = "side") -> None:
        self.asked: list[str] = []
        self.requests: list[ModelRequest] = []
        self.replies = list(replies)
        self.model = FunctionModel(self.reply, name=name)

    def reply(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        self.asked.append(request.messages[-1].text)
        reply = self.replies.pop(0) if self.replies else says(f"heard {request.messages[-1].text}")
        if isinstance(reply, Exception):
            raise reply
        return reply


@tool(effect="pure")
async def look(x: int) -> str:
    return f"saw {x}"


async def log(agent: Agent[Any, Any], kind: Any, session: str = SESSION) -> list[Any]:
    return [record for record in await agent.store.read(session) if isinstance(record, kind)]


def asking(side: Side, by: str = "gate", text: str = f"is {CARD} fine?") -> Agent[Any, Any]:
    """An agent whose hook, tool or wrap asks a model beside the turn."""

    @tool
    async def consult(turn: Turn) -> str:
        return (await turn.ask(side.model, text)).text

    model = ScriptedModel(calls("consult"), says("end"))
    agent = Agent(model, tools=[consult], store=MemoryStore(), name="inner")
    if by == "gate":

        @agent.gate(ToolCalling)
        async def gate(event: ToolCalling, turn: Turn) -> Deny:
            return Deny((await turn.ask(side.model, text)).text)

    if by == "wrap":

        @agent.wrap(ToolCall)
        async def wrap(call: Any, call_next: Any, turn: Turn) -> str:
            return (await turn.ask(side.model, text)).text

    return agent


async def run(agent: Agent[Any, Any], way: str) -> str:
    """Run it in one of several ways; the session it ran in."""
    if way == "stream":
        async for _ in agent.stream("go", session=SESSION):
            pass
        return SESSION
    if way == "child":
        model = ScriptedModel(calls("inner", task="t"), says("end"))
        await Agent(model, tools=[agent.as_tool()], store=agent.store).run("go", session=SESSION)
        return f"{SESSION}//1/1"
    await agent.run("go", session=SESSION)
    return SESSION


BY = pytest.mark.parametrize("by", ["gate", "wrap", "tool"])
WAYS = pytest.mark.parametrize("way", ["run", "stream", "child"])


def clean(event: ModelCalling) -> ModelRequest | None:
    if CARD not in event.request.messages[-1].text:
        return None
    last = event.request.messages[-1]
    text = last.text.replace(CARD, "•")
    return event.request.replace(messages=[*event.request.messages[:-1], text_of(last, text)])


def text_of(message: Any, text: str) -> Any:
    return message.replace(parts=(message.parts[0].replace(text=text),))


# ---------------------------------------------------------------- the guards look at it


@BY
@WAYS
async def test_a_guards_rewrite_cleans_what_a_side_call_sends(by: str, way: str):
    side = Side()
    agent = asking(side, by)
    agent.rewrite(ModelCalling, band="guard", name="dlp")(clean)
    session = await run(agent, way)
    assert side.asked == ["is • fine?"]
    [rewritten] = await log(agent, Rewritten, session)
    assert rewritten.hook == "dlp"
    assert rewritten.about.startswith("side:")


@BY
@WAYS
async def test_a_guards_wrap_surrounds_a_side_call_and_others_do_not(by: str, way: str):
    side = Side()
    agent = asking(side, by)
    seen: list[tuple[str, str, str]] = []

    def sees(name: str) -> Any:
        async def wrap(request: Any, call_next: Any) -> Any:
            seen.append((name, request.model, request.side))
            return await call_next(request)

        return wrap

    agent.wrap(ModelCall, band="guard", name="guard")(sees("guard"))
    agent.wrap(ModelCall, name="plain")(sees("plain"))
    agent.wrap(ModelCall, name="opted", side_calls=True)(sees("opted"))
    await run(agent, way)
    asker = "consult" if by == "tool" else by
    assert [(name, who) for name, model, who in seen if model == "side"] == [("opted", asker), ("guard", asker)]
    assert {name for name, model, who in seen if model == "scripted" and who == ""} == {"guard", "plain", "opted"}


@BY
@WAYS
async def test_a_guards_transformer_redacts_a_side_reply_everywhere(by: str, way: str):
    side = Side(says(f"yes, {CARD} is fine"))
    agent = asking(side, by)

    @agent.transform(band="guard")
    class Redact:
        def __init__(self) -> None:
            self.held = ""

        def feed(self, text: str) -> Any:
            self.held += text
            return ()

        def flush(self) -> Any:
            return (self.held.replace(CARD, "•"),)

    @agent.transform
    class Shout:
        def feed(self, text: str) -> Any:
            return (text.upper(),)

        def flush(self) -> Any:
            return ()

    session = await run(agent, way)
    [replied] = await log(agent, SideReplied, session)
    assert replied.reply.text == "yes, • is fine"
    state = await agent.state(session)
    assert any("yes, • is fine" in part.text for part in state.messages[2].parts)


@BY
@WAYS
async def test_a_guards_refusal_of_a_side_call_is_raised_recorded_and_told_by_why(by: str, way: str):
    side = Side()
    agent = asking(side, by)
    agent.gate(ModelCalling, band="guard", name="no_side")(lambda event: Halt("not this") if event.side else None)
    session = await run(agent, way)
    assert side.asked == []
    [decided] = [record for record in await log(agent, HookDecided, session) if record.event == "ModelCalling"]
    assert decided.verdict == Halt("not this")
    asker = "consult" if by == "tool" else by
    assert f":{asker}#1" in decided.about
    why = str(await agent.why(session))
    assert f"no_side (ModelCalling) on the side call of {asker}: Halt" in why
    assert "not this" in why


@WAYS
async def test_a_guards_answer_to_a_side_call_is_recorded_and_costs_nothing(way: str):
    side = Side()
    agent = asking(side, "tool")
    agent.gate(ModelCalling, band="guard")(lambda event: Answer("from the guard") if event.side else None)
    session = await run(agent, way)
    [replied] = await log(agent, SideReplied, session)
    assert (side.asked, replied.reply.text, replied.paid) == ([], "from the guard", False)
    assert len(await log(agent, HookDecided, session)) == 1
    assert (await agent.state(session)).turn.usage.requests == 2


async def test_a_costly_guard_judges_side_calls_too():
    side = Side()
    agent = asking(side, "tool")
    agent.gate(ModelCalling, band="guard", costly=True)(lambda event: Halt("no") if event.side else None)
    result = await agent.run("go", session=SESSION)
    assert side.asked == []
    assert result.messages[2].parts[0].text == "Error: the tool failed (call s/1/1)"


async def test_a_failing_guard_rewrite_refuses_the_side_call_and_is_recorded():
    side = Side()
    agent = asking(side, "tool")

    @agent.rewrite(ModelCalling, band="guard")
    def broken(event: ModelCalling) -> None:
        if event.side:
            raise ValueError("broken")

    await agent.run("go", session=SESSION)
    assert side.asked == []
    [failed] = await log(agent, HookFailed)
    assert (failed.hook, failed.effect) == ("broken", "side call refused")


async def test_a_request_that_a_wrap_changed_is_judged_again():
    side = Side()
    agent = asking(side, "tool", "fine?")
    agent.gate(ModelCalling, band="guard")(lambda event: Halt("card") if CARD in event.request.system else None)

    @agent.wrap(ModelCall, side_calls=True)
    async def add(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request.replace(system=CARD) if request.side else request)
        except HookError:
            return "never mind"

    result = await agent.run("go", session=SESSION)
    assert side.asked == []
    assert result.messages[2].parts[0].status == "error"


# ---------------------------------------------------------------- guards that ask


@pytest.mark.parametrize("form", ["turn", "event"])
@WAYS
async def test_two_guards_that_moderate_by_a_model_stand_side_by_side(form: str, way: str):
    first, second = Side(name="first"), Side(name="second")
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore(), name="inner")

    def moderate(side: Side) -> Any:
        async def by_turn(event: ModelCalling, turn: Turn) -> None:
            await turn.ask(side.model, f"[{side.model.name}] {event.request.messages[-1].text}")

        async def by_event(event: ModelCalling) -> None:
            await event.turn.ask(side.model, f"[{side.model.name}] {event.request.messages[-1].text}")

        return by_turn if form == "turn" else by_event

    agent.gate(ModelCalling, band="guard", name="one")(moderate(first))
    agent.gate(ModelCalling, band="guard", name="two")(moderate(second))
    session = await run(agent, way)
    said = "t" if way == "child" else "go"
    assert first.asked == [f"[first] {said}", f"[first] [second] {said}"]
    assert second.asked == [f"[second] [first] {said}", f"[second] {said}"]
    assert [record.by for record in await log(agent, SideReplied, session)] == ["two", "one", "one", "two"]


async def test_a_moderating_guard_can_refuse_the_question_of_another():
    one = Side(name="first")
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())

    @agent.gate(ModelCalling, band="guard")
    async def moderate(event: ModelCalling, turn: Turn) -> None:
        await turn.ask(one.model, f"what of {CARD}?")

    agent.gate(ModelCalling, band="guard", name="no_cards")(
        lambda event: Halt("no cards") if CARD in event.request.messages[-1].text else None
    )
    result = await agent.run("go", session=SESSION)
    assert one.asked == []
    assert result.stop_reason.value == "halted"
    assert "no_cards" in str(await agent.why(SESSION))


async def test_a_guard_wrap_that_asks_does_not_meet_its_own_question():
    side = Side()
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())
    entered: list[str] = []

    @agent.wrap(ModelCall, band="guard")
    async def moderate(request: Any, call_next: Any, turn: Turn) -> Any:
        entered.append(request.model)
        await turn.ask(side.model, "fine?")
        return await call_next(request)

    await agent.run("go", session=SESSION)
    assert entered == ["scripted"]
    assert side.asked == ["fine?"]


async def test_side_calls_deeper_than_three_are_an_error_that_names_the_chain():
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())
    side = Side()
    for name in ("a", "b", "c", "d"):

        async def guard(event: ModelCalling, turn: Turn) -> None:
            await turn.ask(side.model, "fine?")

        agent.gate(ModelCalling, band="guard", name=name)(guard)
    result = await agent.run("go", session=SESSION)
    failed = await log(agent, HookFailed)
    assert any("side calls are nested deeper than 3: a → b → c → d" in record.error.message for record in failed)
    assert result.stop_reason.value == "halted"


async def test_a_tool_with_the_name_of_a_guard_does_not_pass_it():
    side = Side()

    @tool
    async def dlp(turn: Turn) -> str:
        return (await turn.ask(side.model, CARD)).text

    agent = Agent(ScriptedModel(calls("dlp"), says("end")), tools=[dlp], store=MemoryStore())
    agent.rewrite(ModelCalling, band="guard", name="dlp")(clean)
    await agent.run("go", session=SESSION)
    assert side.asked == ["•"]


# ---------------------------------------------------------------- resume


async def crashed(agent: Agent[Any, Any], before: type) -> MemoryStore:
    """A store in which the process died just before the first record of a kind."""
    records = list(await agent.store.read(SESSION))
    cut = next(at for at, record in enumerate(records) if isinstance(record, before))
    store = MemoryStore()
    await store.append(SESSION, records[:cut], 0)
    return store


@pytest.mark.parametrize("same", [True, False], ids=["equal questions", "other questions"])
async def test_parallel_calls_under_one_asking_wrap_get_their_own_verdicts_on_resume(same: bool):
    third, all_asked = asyncio.Event(), asyncio.Event()
    order: list[int] = []

    def build(store: MemoryStore, judge: Side, waits: bool) -> Agent[Any, Any]:
        proposed = calls([("look", {"x": x}) for x in (1, 2, 3)])
        model = ScriptedModel(proposed, says("end")) if waits else ScriptedModel(says("end"))
        agent = Agent(model, tools=[look], store=store)

        @agent.wrap(ToolCall)
        async def judged(call: Any, call_next: Any, turn: Turn) -> Any:
            x = call.arguments["x"]
            if waits and x == 1:  # the first call asks last
                await third.wait()
            verdict = await turn.ask(judge.model, "fine?" if same else f"is {x} fine?")
            order.append(x)
            if x == 3:
                third.set()
            if len(order) >= 3:
                all_asked.set()
            await all_asked.wait()
            return f"{x}: {verdict.text}"

        return agent

    agent = build(MemoryStore(), Side(says("A"), says("B"), says("C")), waits=True)
    first = await agent.run("go", session=SESSION)
    results = [part.text for part in first.messages[2].parts]
    assert results == ["1: C", "2: A", "3: B"]
    store = await crashed(agent, ToolReturned)
    again = Side()
    resumed = build(store, again, waits=False)
    resumed_result = await resumed.resume(SESSION)
    assert [part.text for part in resumed_result.messages[2].parts] == results
    assert again.asked == []


async def test_on_resume_the_log_answers_before_the_guards_are_asked():
    asked: list[str] = []

    def build(store: MemoryStore, side: Side) -> Agent[Any, Any]:
        agent = Agent(ScriptedModel(says("one")), store=store)

        @agent.gate(ModelReplying, on_resume="rerun")
        async def critic(event: ModelReplying, turn: Turn) -> Any:
            return Ask("ok?") if (await turn.ask(side.model, "good?")).text == "hm" else None

        agent.gate(ModelCalling, band="guard")(lambda event: asked.append(event.side))
        return agent

    store = MemoryStore()
    first = await build(store, Side(says("hm"))).run("go", session=SESSION)
    assert first.waiting_for
    asked.clear()
    later = Side()
    await build(store, later).resume(SESSION, answers={})
    assert later.asked == asked == []


async def test_a_question_of_an_old_log_with_another_key_is_asked_again():
    first = Agent(ScriptedModel(calls("consult")), tools=[consult_with(Side(says("once")))], store=MemoryStore())
    await first.run("go", session=SESSION)
    records = list(await (await crashed(first, ToolReturned)).read(SESSION))
    store = MemoryStore()
    old = [r.replace(key="consult#1.1") if isinstance(r, SideReplied) else r for r in records]
    await store.append(SESSION, old, 0)
    later = Side(says("again"))
    agent = Agent(ScriptedModel(says("end")), tools=[consult_with(later)], store=store)
    result = await agent.resume(SESSION)
    assert result.messages[2].parts[0].text == "again"
    assert [record.key for record in await log(agent, SideReplied)] == ["consult#1.1", "ToolCall:1/1:consult#1"]


@pytest.mark.parametrize("by", ["gate", "wrap", "tool"])
async def test_a_fork_of_an_open_turn_is_served_from_the_log(by: str):
    def build(store: MemoryStore, side: Side, *script: Any) -> Agent[Any, Any]:
        agent = Agent(ScriptedModel(*script), tools=[consult_with(side)], store=store)
        if by == "gate":

            @agent.gate(ToolCalling)
            async def gate(event: ToolCalling, turn: Turn) -> Deny:
                return Deny((await turn.ask(side.model, "fine?")).text)

        if by == "wrap":

            @agent.wrap(ToolCall)
            async def wrap(call: Any, call_next: Any, turn: Turn) -> Any:
                return (await turn.ask(side.model, "fine?")).text

        return agent

    store = MemoryStore()
    await build(store, Side(says("once")), calls("consult"), says("end")).run("go", session=SESSION)
    cut = next(at for at, record in enumerate(await store.read(SESSION)) if isinstance(record, SideReplied))
    again = Side()
    agent = build(store, again, says("end"))
    await agent.fork(SESSION, at=cut + 1, to="f")
    result = await agent.resume("f")
    assert again.asked == []
    assert "once" in result.messages[2].parts[0].text


# ---------------------------------------------------------------- what it costs, and where it may be done


async def test_attempts_that_a_wrap_does_not_let_stand_are_recorded_and_paid():
    side = Side(says("a", usage=Usage(input=10)), says("b", usage=Usage(input=20)))
    agent = asking(side, "tool")

    @agent.wrap(ModelCall, side_calls=True)
    async def twice(request: Any, call_next: Any) -> Any:
        first = await call_next(request)
        return await call_next(request) if request.side else first

    result = await agent.run("go", session=SESSION)
    replied = await log(agent, SideReplied)
    assert [record.reply.text for record in replied] == ["a", "b"]
    assert result.usage.input >= 30


async def test_a_wrap_that_opts_in_can_fall_back_for_a_side_call():
    side = Side(RateLimited("slow down"), RateLimited("slow down"), RateLimited("slow down"))
    spare = Side(says("spare"), name="spare")
    model = ScriptedModel(calls("consult"), says("end"))
    agent = Agent(model, tools=[consult_with(side)], models=[spare.model])

    @agent.wrap(ModelCall, side_calls=True)
    async def fallback(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except RateLimited:
            return await call_next(request.replace(model="spare"))

    result = await agent.run("go", session=SESSION)
    assert result.messages[2].parts[0].text == "spare"


def consult_with(side: Side) -> Any:
    @tool(effect="pure")
    async def consult(turn: Turn) -> str:
        return (await turn.ask(side.model, "fine?")).text

    return consult


async def test_an_error_that_may_pass_is_met_by_asking_again():
    side = Side(RateLimited("busy", retryable=True), says("now"))
    agent = asking(side, "tool")
    result = await agent.run("go", session=SESSION)
    assert result.messages[2].parts[0].text == "now"
    assert len(side.asked) == 2


async def test_an_error_that_stays_goes_to_the_asker():
    side = Side(ValueError("broken"))
    agent = asking(side, "tool")
    result = await agent.run("go", session=SESSION)
    assert result.messages[2].parts[0].status == "error"
    assert len(side.asked) == 1
    assert result.text == "end"


@pytest.mark.parametrize("durable", [False, True])
async def test_an_observer_may_not_ask(durable: bool):
    side = Side()
    raised: list[Exception] = []
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())

    @agent.observe(ModelReplied, durable=durable)
    async def look_on(fact: Any, turn: Turn) -> None:
        try:
            await turn.ask(side.model, "fine?")
        except HookError as error:
            raised.append(error)

    await agent.run("go", session=SESSION)
    assert side.asked == []
    assert "an observer cannot ask a model" in str(raised[0])


async def test_a_shadow_gate_may_ask():
    side = Side(says("hm"))
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())

    @agent.gate(ModelReplying, mode="shadow")
    async def shadow(event: ModelReplying, turn: Turn) -> Allow:
        await turn.ask(side.model, "fine?")
        return Allow()

    await agent.run("go", session=SESSION)
    assert side.asked == ["fine?"]
    [replied] = await log(agent, SideReplied)
    assert replied.by == "shadow"


async def test_a_turn_that_is_over_asks_nobody():
    side = Side()
    kept: list[Turn] = []
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())

    @agent.gate(StepStarting)
    def keep(event: StepStarting, turn: Turn) -> None:
        kept.append(turn)

    await agent.run("go", session=SESSION)
    with pytest.raises(HookError, match="the turn is over"):
        await kept[0].ask(side.model, "fine?")
    assert side.asked == []


@pytest.mark.parametrize("event", [SessionStarting, TurnStarting])
async def test_a_hook_may_ask_before_the_turn_has_started(event: Any):
    side = Side(*[says("fine", usage=Usage(input=7)) for _ in range(2)])
    agent = Agent(ScriptedModel(says("one"), says("two")), store=MemoryStore())

    @agent.rewrite(event)
    async def before(given: Any, turn: Turn) -> None:
        await turn.ask(side.model, "fine?")

    first = await agent.run("go", session=SESSION)
    second = await agent.run("on", session=SESSION)
    assert [record.by for record in await log(agent, SideReplied)] == ["before"] * len(side.asked)
    assert first.usage.input >= 7
    assert second.state.turn.usage.input >= (7 if event is TurnStarting else 0)


async def test_a_wrap_of_a_turn_may_ask_before_the_turn_has_started():
    side = Side()
    agent = Agent(ScriptedModel(says("one"), says("two")), store=MemoryStore())

    @agent.wrap(Turn)
    async def around(value: Any, call_next: Any, turn: Turn) -> None:
        await turn.ask(side.model, "before?")
        await call_next(value)

    for _ in range(2):
        result = await agent.run("go", session=SESSION)
        assert result.outcome == Completed()
        assert result.state.turn.usage.requests == 2
    assert side.asked == ["before?"] * 2
    assert len(await log(agent, SideReplied)) == 2


async def test_what_the_last_turn_has_spent_does_not_bind_a_hook_that_opens_the_next():
    side = Side(*[says("fine", usage=Usage(input=5)) for _ in range(3)])
    model = ScriptedModel(*[says("hi", usage=Usage(input=30)) for _ in range(3)])
    agent = Agent(model, store=MemoryStore(), criteria=[TokenLimit(36)])

    @agent.rewrite(TurnStarting)
    async def before(event: TurnStarting, turn: Turn) -> None:
        await turn.ask(side.model, "fine?")

    for _ in range(3):
        assert (await agent.run("go", session=SESSION)).outcome == Completed()
    assert len(side.asked) == 3


async def test_unknown_options_are_refused_and_known_settings_are_sent():
    side = Side()
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())
    raised: list[str] = []

    @agent.gate(StepStarting)
    async def gate(event: StepStarting, turn: Turn) -> None:
        try:
            await turn.ask(side.model, "fine?", temprature=0)
        except ConfigError as error:
            raised.append(str(error))
        await turn.ask(side.model, "fine?", temperature=0, settings={"extra": {"k": 1}}, system="Be brief.")

    await agent.run("go", session=SESSION)
    assert "turn.ask does not take 'temprature'" in raised[0]
    [request] = side.requests
    assert (request.system, request.settings) == ("Be brief.", {"temperature": 0, "extra": {"k": 1}})


async def test_the_output_schema_is_part_of_the_fingerprint():
    side = Side()
    agent = Agent(ScriptedModel(says("end")), store=MemoryStore())

    @agent.gate(StepStarting)
    async def gate(event: StepStarting, turn: Turn) -> None:
        await turn.ask(side.model, "fine?")
        await turn.ask(side.model, "fine?", output={"type": "object"})
        await turn.ask(side.model, "fine?", settings={"extra": {"client": object()}})
        await turn.ask(side.model, "fine?", settings={"extra": {"client": object()}})

    await agent.run("go", session=SESSION)
    prints = [record.fingerprint for record in await log(agent, SideReplied)]
    assert len(set(prints[:3])) == 3
    assert prints[2] == prints[3]  # an object counts by its type: its address says nothing in another process


def test_only_wraps_of_model_calls_take_side_calls():
    agent = Agent(ScriptedModel(says("end")))
    with pytest.raises(RegistrationError, match="side_calls"):
        agent.wrap(ToolCall, side_calls=True)(lambda call, call_next: call_next(call))  # type: ignore[call-overload]


# ---------------------------------------------------------------- summaries


@pytest.mark.parametrize("between", [False, True])
async def test_a_summary_passes_the_guards_as_any_request(between: bool):
    writer = Side(*[says(f"they spoke of {CARD}") for _ in range(9)])
    agent = Agent(
        FunctionModel(lambda request: says("word " * 60)),
        store=MemoryStore(),
    )
    agent.with_capability(Summarize(writer.model, trigger=AtMessages(6), keep=2, between_turns=between))
    agent.rewrite(ModelCalling, band="guard", name="dlp")(clean)

    @agent.transform(band="guard")
    class Redact:
        def feed(self, text: str) -> Any:
            return (text.replace(CARD, "•"),)

        def flush(self) -> Any:
            return ()

    for _ in range(5):
        await agent.run(f"my card is {CARD}", session=SESSION)
        for _ in range(20):
            await asyncio.sleep(0)
    assert writer.asked
    assert not [text for text in writer.asked if CARD in text]
    state = await agent.state(SESSION)
    assert state.compactions
    assert all(CARD not in record.reply.text for record in await log(agent, SideReplied))
    assert len(await log(agent, SideReplied)) >= 1


async def test_a_summariser_that_is_down_does_not_fail_a_turn_that_fits():
    writer = Side(*[RateLimited("down", retryable=False) for _ in range(30)])
    agent = Agent(FunctionModel(lambda request: says("ok " * 50)), window=100_000, store=MemoryStore())
    agent.with_capability(Summarize(writer.model, trigger=AtMessages(6), keep=2))
    results = [await agent.run("hello " * 60, session=SESSION) for _ in range(6)]
    assert [type(result.outcome).__name__ for result in results] == ["Completed"] * 6
    failed = await log(agent, HookFailed)
    assert failed
    assert {record.effect for record in failed} == {"not compacted"}


async def test_wraps_meet_every_retry_of_a_side_call_and_are_not_blamed_for_it():
    met: list[str] = []
    errors: list[BaseException] = []
    agent = Agent(ScriptedModel(says("done")), clock=FakeClock(auto=True))

    @agent.wrap(ModelCall, side_calls=True)
    async def meet(request: ModelRequest, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except RateLimited as error:
            met.append(request.side)
            errors.append(error)
            raise

    @agent.gate(ModelReplying)
    async def ask(event: ModelReplying, turn: Turn) -> None:
        busy = [RateLimited(f"busy {number}", retryable=True) for number in (1, 2)]
        assert (await turn.ask(ScriptedModel(*busy, says("now")), "?")).text == "now"

    result = await agent.run("go")
    assert result.text == "done"
    assert met == ["ask", "ask"]
    assert [raiser_of(error) for error in errors] == ["", ""]


async def test_a_wrap_of_side_calls_that_always_fails_is_not_retried_for_ever():
    asked: list[int] = []
    agent = Agent(ScriptedModel(says("done")), clock=FakeClock(auto=True))

    @agent.wrap(ModelCall, side_calls=True, when=lambda request: request.side)
    async def full(request: ModelRequest, call_next: Any) -> Any:
        asked.append(1)
        raise RateLimited("full", retryable=True)

    @agent.gate(ModelReplying)
    async def ask(event: ModelReplying, turn: Turn) -> None:
        with pytest.raises(RateLimited, match="full"):
            await turn.ask(ScriptedModel(), "?")

    assert (await agent.run("go")).text == "done"
    assert len(asked) == 3
