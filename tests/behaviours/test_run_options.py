"""Options of one turn: run(model=, settings=, criteria=, tools=), and how they are kept for a resume."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    Deny,
    Edit,
    LifecycleHook,
    ModelCall,
    ModelCalling,
    SessionStarting,
    StepLimit,
    Stopped,
    StopReason,
    Suspended,
    TokenLimit,
    ToolCalling,
    TurnStarted,
    Usage,
    Vote,
    tool,
)
from windlass.criteria import Deadline, Limit, ReplyContains
from windlass.errors import ConfigError, SessionBusy, ToolDefinitionError
from windlass.records import SessionOpened, TurnCriterion
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says

ran: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool(effect="pure", inline=True)
def lookup(n: int) -> str:
    """Look something up."""
    ran.append(n)
    return f"found {n}"


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def voice(text: str, name: str) -> Any:
    """A model that says one thing and remembers its requests."""
    return ScriptedModel(*[says(text)] * 8, name=name)


def looking(name: str = "scripted") -> Any:
    """A model that calls `lookup` in each turn and then says what it found."""

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return says(f"done by {name}") if last.role == "tool" else calls("lookup", n=len(request.messages))

    return FunctionModel(reply, name=name)


def asking(agent: Agent, tool_name: str = "lookup") -> Agent:
    agent.gate(ToolCalling, name="ask", tool=tool_name)(lambda event: Ask("sure?"))
    return agent


async def started(agent: Agent, session: str) -> list[TurnStarted]:
    return [record for record in await agent.store.read(session) if isinstance(record, TurnStarted)]


# ---------------------------------------------------------------- what the options do


async def test_a_run_uses_another_model_of_the_agent_for_one_turn():
    big, small = voice("big", "big"), voice("small", "small")
    agent = Agent(big, models=[small])
    assert (await agent.run("hi", session="s", model="small")).text == "small"
    assert (await agent.run("hi", session="s")).text == "big"
    assert [turn.options is None for turn in await started(agent, "s")] == [False, True]


async def test_a_run_takes_a_model_object():
    agent = Agent(voice("big", "big"))
    other = voice("other", "other")
    result = await agent.run("hi", session="s", model=other)
    assert result.text == "other"
    options = (await started(agent, "s"))[0].options
    assert options is not None
    assert (options.model, options.model_object) == ("other", True)


async def test_a_text_names_the_model_that_the_agent_opened_from_it(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    agent = Agent(voice("own", "own"), models=["openai-chat:gpt-5"])
    agent.wrap(ModelCall)(_echo)
    first = await agent.run("hi", model="openai-chat:gpt-5")
    assert first.text in agent.explain().json()
    assert (await agent.run("hi", model="openai:gpt-4o")).text == "openai:gpt-4o"


async def _echo(request: Any, call_next: Any) -> str:
    return str(request.model)


async def test_settings_replace_those_of_the_same_name_and_none_removes_one():
    model = voice("ok", "m")
    agent = Agent(model, settings={"temperature": 1.0, "max_tokens": 50, "extra": {"a": 1, "b": 1}})
    await agent.run("hi", settings={"temperature": 0, "max_tokens": None, "extra": {"b": 2}})
    await agent.run("hi")
    first, second = model.requests
    assert dict(first.settings) == {"temperature": 0, "extra": {"a": 1, "b": 2}}
    assert second.settings["temperature"] == 1.0


async def test_criteria_are_added_and_a_step_limit_replaces_the_default_one():
    agent = Agent(looking(), tools=[lookup], max_steps=1)
    assert (await agent.run("go")).stop_reason is StopReason.STEP_LIMIT
    assert isinstance((await agent.run("go", criteria=[StepLimit(5)])).outcome, Completed)
    strict = Agent(looking(), tools=[lookup], criteria=[StepLimit(1)])
    assert (await strict.run("go", criteria=[StepLimit(5)])).stop_reason is StopReason.STEP_LIMIT


async def test_a_function_as_criterion_votes_in_its_turn_only():
    def stop_now(state: Any) -> Any:
        return Vote.FORBID, "enough"

    agent = Agent(looking(), tools=[lookup])
    assert isinstance((await agent.run("go", criteria=[stop_now])).outcome, Stopped)
    assert isinstance((await agent.run("go")).outcome, Completed)


async def test_tools_of_a_turn_are_added_to_those_of_the_agent_and_end_with_the_turn():
    seen: list[list[str]] = []
    agent = Agent(looking(), tools=[add])
    agent.rewrite(ModelCalling)(lambda event: seen.append([spec.name for spec in event.request.tools]))
    result = await agent.run("go", session="s", tools=[lookup])
    assert result.text == "done by scripted"
    assert ran == [1]
    await agent.run("go", session="s")
    assert seen == [["add", "lookup"]] * 2 + [["add"]] * 2
    assert ran == [1]


async def test_hooks_guards_and_unmatched_judge_the_tools_of_a_turn():
    agent = Agent(looking(), per_run_tools=True)
    agent.gate(ToolCalling, name="guard", tool="lookup", band="guard")(lambda event: Deny("not here"))
    result = await agent.run("go", tools=[lookup])
    assert ran == []
    assert "not here" in result.messages[2].parts[0].content[0].text
    deny = Agent(looking(), unmatched="deny")
    await deny.run("go", tools=[lookup])
    assert ran == []


async def test_a_hook_for_a_tool_of_some_turns_needs_an_agent_that_expects_them():
    agent = asking(Agent(looking()))
    with pytest.raises(ConfigError, match="per_run_tools=True"):
        await agent.run("go", tools=[lookup])
    expecting = asking(Agent(looking(), per_run_tools=True))
    assert "may never be asked" in str(expecting.explain())
    assert isinstance((await expecting.run("go", tools=[lookup])).outcome, Suspended)


async def test_hooks_at_the_start_of_a_session_see_the_tools_of_the_agent_alone():
    agent = Agent(looking(), tools=[add])
    offered: list[list[str]] = []

    @agent.rewrite(SessionStarting)
    def no_sums(event: SessionStarting) -> Any:
        offered.append([spec.name for spec in event.setup.tools])
        return event.setup.replace(tools=())

    shown: list[list[str]] = []
    agent.rewrite(ModelCalling)(lambda event: shown.append([spec.name for spec in event.request.tools]))
    await agent.run("go", session="s", tools=[lookup])
    await agent.run("go", session="s")
    assert offered == [["add"]]
    assert shown == [["lookup"]] * 2 + [[]] * 2
    assert ran == [1]


async def test_a_sub_agent_does_not_get_the_options_of_its_parents_turn():
    inner = voice("inner", "inner")
    child = Agent(inner, name="child", settings={"temperature": 1})
    small = ScriptedModel(calls("child", task="t"), says("outer"), name="small")
    agent = Agent(voice("big", "big"), models=[small], tools=[child.as_tool()])
    result = await agent.run("go", session="s", model="small", settings={"temperature": 0}, tools=[lookup])
    assert result.text == "outer"
    (request,) = inner.requests
    assert dict(request.settings) == {"temperature": 1}
    assert request.tools == ()
    below = [record for record in await agent.store.read("s//1/1") if isinstance(record, TurnStarted)]
    assert [record.options for record in below] == [None]


async def test_an_agent_as_a_tool_of_one_turn_keeps_its_secrets_out_of_the_log():
    child = Agent(voice("the code is sekret-1", "inner"), name="child", secrets=["sekret-1"])
    model = ScriptedModel(calls("child", task="t"), says("it said sekret-1"), name="m")
    agent = Agent(model)
    result = await agent.run("go", session="s", tools=[child.as_tool()])
    assert result.text == "it said •••"
    assert "sekret-1" not in repr(await agent.store.read("s"))


async def test_an_agent_as_a_tool_of_one_turn_brings_its_scope():
    class Desk:
        pass

    child = Agent(voice("inner", "inner"), name="child", scope=Desk)
    agent = Agent(ScriptedModel(calls("child", task="t"), says("outer")))
    with pytest.raises(ConfigError, match="needs a scope of type Desk"):
        await agent.run("go", session="s", tools=[child.as_tool()])
    assert not await agent.store.read("s")
    assert (await agent.run("go", session="s", scope=Desk(), tools=[child.as_tool()])).text == "outer"


async def test_options_do_not_open_the_session_again():
    opened: list[str] = []

    class Watching(LifecycleHook):
        def on_session_start(self, session: str) -> None:
            opened.append(session)

    async with Agent(voice("big", "big"), models=[voice("small", "small")]).with_lifecycle(Watching()) as agent:
        await agent.run("hi", session="s")
        await agent.run("hi", session="s", model="small")
        await agent.run("hi", session="s")
    assert opened == ["s"]
    assert len([one for one in await agent.store.read("s") if isinstance(one, SessionOpened)]) == 1


@pytest.mark.parametrize("way", ["run", "run_sync", "stream", "iterate", "session"])
async def test_every_way_to_run_takes_options(way: str):
    agent = Agent(voice("big", "big"), models=[looking("small")])
    options: Any = {"model": "small", "tools": [lookup], "settings": {"seed": 1}, "criteria": [StepLimit(9)]}
    if way == "run":
        state = (await agent.run("go", **options)).state
    elif way == "run_sync":
        state = agent.run_sync("go", **options).state
    elif way == "stream":
        async with agent.stream("go", **options) as stream:
            events = [event async for event in stream]
        state = stream.result.state
        assert any(isinstance(event, TurnStarted) and event.options is not None for event in events)
    elif way == "iterate":
        *_, state = [state async for state in agent.iterate("go", **options)]
    else:
        async with agent.session("s") as session:
            state = (await session.run("go", **options)).state
    assert state.text == "done by small"
    assert state.turn is not None
    assert state.turn.options is not None
    assert state.turn.options.tools == ("lookup",)
    assert state.turn.options.criteria == (TurnCriterion("StepLimit", {"steps": 9}),)


async def test_an_observer_cannot_change_the_options_of_later_turns():
    model = voice("ok", "m")
    agent = Agent(model)

    @agent.observe(TurnStarted, wait=True)
    def meddle(fact: Any) -> None:
        fact.options.settings["seed"] = 666

    for _ in range(2):
        await agent.run("hi", session="s", settings={"seed": 1})
    assert [dict(turn.options.settings) for turn in await started(agent, "s") if turn.options] == [{"seed": 1}] * 2


async def test_options_that_are_none_or_empty_are_none():
    agent = Agent(voice("big", "big"))
    await agent.run("hi", session="s", model=None, settings={}, criteria=[], tools=None)
    assert [turn.options for turn in await started(agent, "s")] == [None]


# ---------------------------------------------------------------- bad options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"modell": "x"}, r"run\(modell=…\): there is no such option; did you mean 'model'\?"),
        ({"model": 5}, r"run\(model=5\): model must be a model"),
        ({"model": "tiny"}, "agent 'agent' has no model 'tiny'; it has 'big'"),
        ({"model": "opnai:gpt-5"}, "is not a model"),
        ({"settings": [1]}, "settings must be a mapping"),
        ({"settings": {"stop": object()}}, "settings of a turn are kept in its log"),
        ({"settings": {"x": float("nan")}}, "JSON cannot hold nan"),
        ({"criteria": StepLimit(3)}, "criteria must be a list"),
        ({"criteria": [3]}, "criteria must be a list of criteria"),
        ({"tools": lookup}, "tools must be a list of tools"),
        ({"tools": ["lookup"]}, "tools must be a list of tools"),
    ],
)
@pytest.mark.parametrize("way", ["run", "stream", "iterate"])
async def test_a_bad_option_is_refused_before_anything_happens(way: str, options: dict[str, Any], text: str):
    agent = Agent(voice("big", "big"))

    async def call() -> None:
        called = getattr(agent, way)("hi", session="s", **options)
        if way == "run":
            await called

    with pytest.raises(ConfigError, match=text.replace("run", way)):
        await call()
    assert not await agent.store.read("s")


async def test_a_tool_of_a_turn_that_has_the_name_of_another_is_refused():
    @tool(name="lookup")
    async def other(n: int) -> str:
        """Something else."""
        return ""

    agent = Agent(looking(), tools=[lookup])
    with pytest.raises(ConfigError, match="has a tool named 'lookup' already"):
        await agent.run("go", session="s", tools=[other])
    with pytest.raises(ToolDefinitionError, match="defined twice"):
        await Agent(looking()).run("go", tools=[lookup, other])
    result = await agent.run("go", session="s", tools=[lookup])
    assert result.text == "done by scripted"


async def test_a_model_object_with_the_name_of_another_is_refused():
    agent = Agent(voice("big", "big"))
    with pytest.raises(ConfigError, match="has another model named 'big'"):
        await agent.run("hi", model=voice("fake", "big"))


async def test_the_model_checks_the_settings_at_the_door():
    class Picky(ScriptedModel):
        def check_settings(self, settings: Any) -> None:
            if "top_k" in settings:
                raise ConfigError("no top_k here")

    agent = Agent(voice("big", "big"), models=[Picky(says("ok"), name="picky")], settings={"top_k": 3})
    with pytest.raises(ConfigError, match="no top_k here"):
        await agent.run("hi", session="s", model="picky")
    assert (await agent.run("hi", session="s", model="picky", settings={"top_k": None})).text == "ok"


# ---------------------------------------------------------------- resume


def shared(store: Any, **more: Any) -> Agent:
    """An agent as each process makes it."""
    agent = Agent(looking("big"), models=[looking("small")], store=store, per_run_tools=True, **more)
    return asking(agent)


async def test_a_resume_elsewhere_uses_the_recorded_data():
    store = MemoryStore()
    model = looking("small")
    first = asking(Agent(looking("big"), models=[model], tools=[lookup], store=store))
    seen: list[Any] = []
    options: Any = {"model": "small", "settings": {"seed": 7}, "criteria": [StepLimit(2), ReplyContains("x")]}
    result = await first.run("go", session="s", **options)
    second = asking(Agent(looking("big"), models=[looking("small")], tools=[lookup], store=store))
    second.gate(ModelCalling)(lambda event: seen.append((event.request.model, dict(event.request.settings))))
    resumed = await second.resume("s", answers={result.waiting_for[0].id: Approve()})
    assert resumed.text == "done by small"
    assert seen == [("small", {"seed": 7})]
    assert resumed.state.turn is not None
    assert resumed.state.turn.options is not None
    assert [one.name for one in resumed.state.turn.options.criteria] == ["StepLimit", "ReplyContains"]
    assert "with other hooks" in str(resumed.why()), "the second agent has one more gate"


async def test_a_recorded_limit_holds_on_resume():
    store = MemoryStore()
    first = asking(Agent(looking(), tools=[lookup], store=store))
    result = await first.run("go", session="s", criteria=[StepLimit(1)])
    second = asking(Agent(looking(), tools=[lookup], store=store))
    resumed = await second.resume("s", answers={result.waiting_for[0].id: Approve()})
    assert resumed.stop_reason is StopReason.STEP_LIMIT


async def test_a_recorded_deadline_counts_from_the_start_of_the_turn():
    store, clock = MemoryStore(), FakeClock(1000.0)
    agent = asking(Agent(looking(), tools=[lookup], store=store, clock=clock))
    result = await agent.run("go", session="s", criteria=[Deadline(after=60)])
    await clock.advance(100)
    again = asking(Agent(looking(), tools=[lookup], store=store, clock=clock))
    resumed = await again.resume("s", answers={result.waiting_for[0].id: Approve()})
    assert resumed.stop_reason is StopReason.DEADLINE
    assert ran == []


async def test_a_resume_without_the_code_is_refused_before_anything_is_consumed():
    store = MemoryStore()

    def stop_late(state: Any) -> Any:
        return None

    result = await shared(store).run("go", session="s", model=looking("guest"), criteria=[stop_late], tools=[lookup])
    ask = result.waiting_for[0].id
    before = await store.read("s")
    code: dict[str, Any] = {"model": looking("guest"), "criteria": [stop_late], "tools": [lookup]}
    for missing, text in [("model", "the model 'guest'"), ("criteria", "'stop_late'"), ("tools", "the tool 'lookup'")]:
        some = {name: value for name, value in code.items() if name != missing}
        with pytest.raises(ConfigError, match=f"was started with the {missing.rstrip('s')[:4]}.*{text[-8:]}"):
            await shared(store).resume("s", answers={ask: Approve()}, **some)
    assert await store.read("s") == before
    assert (await store.ownership("s")).alive is False
    resumed = await shared(store).resume("s", answers={ask: Approve()}, **code)
    assert resumed.text == "done by guest"
    assert ran == [1]


async def test_a_takeover_without_the_code_does_not_take_the_session_over():
    store = MemoryStore()
    await shared(store).run("go", session="s", tools=[lookup])
    epoch = (await store.ownership("s")).epoch
    with pytest.raises(ConfigError, match="the tool 'lookup'"):
        await shared(store).resume("s", takeover=True)
    assert (await store.ownership("s")).epoch == epoch


async def test_an_agent_that_has_the_tool_itself_resumes_without_it():
    store = MemoryStore()
    result = await shared(store).run("go", session="s", tools=[lookup])
    owner = shared(store, tools=[lookup])
    resumed = await owner.resume("s", answers={result.waiting_for[0].id: Approve()})
    assert resumed.text == "done by big"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": "small"}, "model was passed.*model: the agent's own"),
        ({"settings": {"seed": 2}}, 'settings was passed.*{"seed":1}'),
        ({"criteria": [StepLimit(4)]}, "criteria with 'StepLimit' was passed.*criteria: StepLimit"),
        ({"tools": [lookup, add]}, "tools with 'add' was passed.*tools: lookup"),
    ],
)
async def test_a_resume_cannot_change_the_options(options: dict[str, Any], text: str):
    store = MemoryStore()
    await shared(store).run("go", session="s", settings={"seed": 1}, criteria=[StepLimit(3)], tools=[lookup])
    before = await store.read("s")
    with pytest.raises(ConfigError, match=text):
        await shared(store).resume("s", **{"tools": [lookup], **options})
    assert await store.read("s") == before


async def test_a_resume_may_pass_all_options_again():
    store = MemoryStore()
    options: Any = {"model": "small", "settings": {"seed": 1}, "criteria": [StepLimit(3)], "tools": [lookup]}
    result = await shared(store).run("go", session="s", **options)
    resumed = await shared(store).resume("s", answers={result.waiting_for[0].id: Approve()}, **options)
    assert resumed.text == "done by small"


async def test_a_turn_without_options_is_not_resumed_with_some():
    store = MemoryStore()
    await shared(store, tools=[lookup]).run("go", session="s")
    with pytest.raises(ConfigError, match="cannot change the options"):
        await shared(store, tools=[lookup]).resume("s", model="small")


@pytest.mark.parametrize("way", ["stream", "iterate", "resume_sync", "session"])
async def test_every_way_to_resume_takes_the_code(way: str):
    store = MemoryStore()
    result = await shared(store).run("go", session="s", tools=[lookup])
    agent, answers = shared(store), {result.waiting_for[0].id: Approve()}
    if way == "stream":
        async with agent.stream(session="s", answers=answers, tools=[lookup]) as stream:
            _ = [event async for event in stream]
        text = stream.result.text
    elif way == "iterate":
        *_, state = [state async for state in agent.iterate(session="s", answers=answers, tools=[lookup])]
        text = state.text
    elif way == "resume_sync":
        text = agent.resume_sync("s", answers=answers, tools=[lookup]).text
    else:
        async with agent.session("s") as session:
            text = (await session.resume(answers, tools=[lookup])).text
    assert text == "done by big"


async def test_approvers_answer_in_a_turn_with_options():
    edits: list[Any] = []

    def approve(asked: Any) -> Any:
        edits.append(asked.call.name)
        return Edit({"n": 40})

    agent = asking(Agent(looking("big"), models=[looking("small")], approvers=[approve], per_run_tools=True))
    result = await agent.run("go", model="small", tools=[lookup])
    assert result.text == "done by small"
    assert (edits, ran) == (["lookup"], [40])


async def test_settings_with_a_secret_must_be_passed_again():
    store = MemoryStore()

    def agent() -> Agent:
        made = Agent(looking("big"), tools=[lookup], store=store, secrets=["sekret-9"])
        made.gate(ModelCalling, name="seen")(lambda event: seen.append(event.request.settings["headers"]["key"]))
        return asking(made)

    seen: list[str] = []
    settings = {"headers": {"key": "sekret-9"}}
    result = await agent().run("go", session="s", settings=settings)
    assert "sekret-9" not in repr(await store.read("s"))
    answers = {result.waiting_for[0].id: Approve()}
    with pytest.raises(ConfigError, match="held a secret that the log does not keep"):
        await agent().resume("s", answers=answers)
    with pytest.raises(ConfigError, match="cannot change"):
        await agent().resume("s", answers=answers, settings={"headers": {"key": "another"}})
    assert (await agent().resume("s", answers=answers, settings=settings)).text == "done by big"
    assert seen == ["sekret-9", "sekret-9"]


async def test_limits_of_ones_own_are_code():
    class Quota(Limit, frozen=True):
        most: int

        def exceeded(self, state: Any, turn: Any) -> str | None:
            return "used up" if turn.steps >= self.most else None

    store = MemoryStore()
    agent = asking(Agent(looking(), tools=[lookup], store=store))
    result = await agent.run("go", session="s", criteria=[Quota(1)])
    answers = {result.waiting_for[0].id: Approve()}
    with pytest.raises(ConfigError, match="the criterion 'Quota'"):
        await agent.resume("s", answers=answers)
    assert isinstance((await agent.resume("s", answers=answers, criteria=[Quota(1)])).outcome, Stopped)


async def test_an_agent_as_a_tool_of_one_turn_waits_and_goes_on_elsewhere():
    store = MemoryStore()

    def child() -> Any:
        return asking(Agent(looking("inner"), tools=[lookup], name="child")).as_tool()

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return says(last.parts[0].content[0].text) if last.role == "tool" else calls("child", task="t")

    def agent() -> Agent:
        return Agent(FunctionModel(reply), store=store)

    result = await agent().run("go", session="s", tools=[child()])
    answers = {result.waiting_for[0].id: Approve()}
    with pytest.raises(ConfigError, match="the tool 'child'"):
        await agent().resume("s", answers=answers)
    resumed = await agent().resume("s", answers=answers, tools=[child()])
    assert resumed.text == "done by inner"
    assert ran == [1]


async def test_a_limit_of_one_turn_counts_what_sub_agents_spend():
    child = Agent(ScriptedModel(says("inner", usage=Usage(input=90, output=10))), name="child")
    model = ScriptedModel(calls("child", task="t"), says("outer"))
    result = await Agent(model, tools=[child.as_tool()]).run("go", criteria=[TokenLimit(50)])
    assert result.stop_reason is StopReason.TOKEN_LIMIT


async def test_a_fork_of_a_turn_keeps_its_options():
    store = MemoryStore()
    agent = shared(store)
    await agent.run("go", session="s", model="small", tools=[lookup])
    copy = await agent.fork("s")
    (question,) = (await agent.state(copy)).waiting
    resumed = await agent.resume(copy, answers={question.id: Approve()}, tools=[lookup])
    assert resumed.text == "done by small"


async def test_a_new_message_ends_a_turn_whose_code_is_gone():
    store = MemoryStore()
    await shared(store).run("go", session="s", tools=[lookup])
    plain = Agent(voice("fresh", "plain"), store=store)
    assert (await plain.run("never mind", session="s")).text == "fresh"


# ---------------------------------------------------------------- a busy session


async def test_a_queued_message_keeps_its_options():
    agent = Agent(voice("big", "big"), models=[voice("small", "small")], busy="queue")
    waiting: list[Any] = []

    @agent.wrap(ModelCall)
    async def meanwhile(request: Any, call_next: Any) -> Any:
        if not waiting:
            second = agent.run("two", session="s", model="small")
            waiting.append(asyncio.create_task(second, context=Context()))
            await asyncio.sleep(0)
        return await call_next(request)

    assert (await agent.run("one", session="s")).text == "big"
    assert (await waiting[0]).text == "small"
    assert (await agent.run("three", session="s")).text == "big"


async def test_a_message_with_options_cannot_be_steered_into_a_turn_that_runs():
    agent = Agent(voice("big", "big"), models=[voice("small", "small")], busy="steer", name="a")
    refused: list[str] = []

    @agent.wrap(ModelCall)
    async def meanwhile(request: Any, call_next: Any) -> Any:
        if not refused:
            second = agent.run("two", session="s", model="small")
            with pytest.raises(SessionBusy, match="cannot have options of its own"):
                await asyncio.create_task(second, context=Context())
            refused.append(request.model)
        return await call_next(request)

    assert (await agent.run("one", session="s")).text == "big"
    assert (await agent.run("two", session="s", model="small")).text == "small"
    assert len(refused) == 1


# ---------------------------------------------------------------- what one can see


async def test_why_tells_the_options_of_the_turn():
    agent = Agent(voice("big", "big"), models=[voice("small", "small")])
    result = await agent.run("hi", session="s", model="small", settings={"seed": 3}, criteria=[StepLimit(4)])
    text = " ".join(str(result.why()).split())
    assert 'options of this turn: model small; settings {"seed":3}; criteria StepLimit(steps=4)' in text
    (entry,) = [one for part in result.why().data["parts"] for one in part["entries"] if one["what"] == "options"]
    assert entry["options"]["model"] == "small"
    assert "options" not in str((await agent.run("hi", session="s")).why())


async def test_the_context_of_each_turn_is_replayed_with_its_own_tools_and_model():
    agent = Agent(voice("big", "big"), models=[voice("small", "small")], tools=[add])
    for options in ({}, {"model": "small", "tools": [lookup]}, {}):
        await agent.run("hi", session="s", **options)
    from windlass.context.replay import described, pipelines, requests

    records = await agent.store.read("s")
    known = {digest: described(await agent.store.pipeline(digest)) for digest in pipelines(records)}
    replayed = list(requests("s", records, known))
    assert [call.request.model for call in replayed] == ["big", "small", "big"]
    assert [[spec.name for spec in call.request.tools] for call in replayed] == [["add"], ["add", "lookup"], ["add"]]
    assert [call.inexact for call in replayed] == [()] * 3
