"""`agent.explain()`: the compiled agent as data and as text, in the order in which it runs."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given

from windlass import (
    Agent,
    Allow,
    Deadline,
    ErrorPolicy,
    Explanation,
    Hooks,
    Lifecycle,
    LifecycleHook,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplied,
    ModelReplying,
    Pipeline,
    ReplyContains,
    Resuming,
    Says,
    SessionStarting,
    Step,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopping,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarting,
    Vote,
    tool,
)
from windlass._hooks.hooks import EFFECTS
from windlass._text import WIDTH, one_line
from windlass.errors import CompiledError
from windlass.events import EVENTS, LIFECYCLE, Continuing, Erring
from windlass.pipeline import DEFAULT
from windlass.testing import ScriptedModel, says
from windlass.testing.strategies import texts


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="idempotent", timeout=5, sequential=True, retry="safe")
def send_mail(to: str) -> str:
    """Send a mail."""
    return to


@tool
async def search(text: str) -> str:
    """Search."""
    return text


def make(*, model=None, **options):
    return Agent(model or ScriptedModel(says("hello")), **options)


def point(agent, name):
    """The hooks of one point as (stage, name), in order."""
    [found] = [point for point in agent.explain().data["points"] if point["point"] == name]
    return [(stage["stage"], hook["name"]) for stage in found["stages"] for hook in stage["hooks"]]


def hook_of(agent, name):
    data = agent.explain().data
    stages = [stage for point in data["points"] for stage in point["stages"]] + data["observers"]
    [found] = [hook for stage in stages for hook in stage["hooks"] if hook["name"] == name]
    return found


def silent(event):
    return None


async def passing(value, call_next):
    return await call_next(value)


def full_agent():
    """An agent with a hook of every kind."""
    agent = make(tools=[add, send_mail, search], criteria=[StepLimit(7)])
    agent.hook(ToolCalling, name="says")(silent)
    agent.rewrite(ToolCalling, name="late", priority=-1)(silent)
    agent.rewrite(ToolCalling, name="guarding", band="guard", priority=99)(silent)
    agent.rewrite(ToolCalling, name="first", band="early")(silent)
    agent.rewrite(ToolCalling, name="soon", priority=5)(silent)
    agent.gate(ToolCalling, name="critic", costly=True, priority=100)(silent)
    agent.gate(ToolCalling, name="rule", tool="add")(silent)
    agent.gate(ToolCalling, name="watcher", mode="shadow")(silent)
    agent.inject(ToolCalling, name="a", group="g")(silent)
    agent.inject(ToolCalling, name="b")(silent)
    agent.inject(ToolCalling, name="c", group="g")(silent)
    agent.wrap(ToolCall, name="inner", band="guard")(passing)
    agent.wrap(ToolCall, name="outer")(passing)
    agent.observe(ToolReturned, name="counter")(silent)

    @agent.transform(channels=("text", "thinking"))
    class Upper:
        def feed(self, text):
            yield text

        def flush(self):
            return ()

    return agent


# ---------------------------------------------------------------- order


def test_the_hooks_of_a_point_are_listed_stage_by_stage_in_the_order_in_which_they_run():
    assert point(full_agent(), "ToolCalling") == [
        ("hook", "says"),
        ("rewrite", "first"),
        ("rewrite", "soon"),
        ("rewrite", "late"),
        ("rewrite", "guarding"),
        ("gate", "rule"),
        ("costly gate", "critic"),
        ("shadow gate", "watcher"),
        ("inject", "a"),
        ("inject", "c"),
        ("inject", "b"),
    ]


def test_wraps_are_listed_outermost_first():
    assert point(full_agent(), "wrap(ToolCall)") == [("wrap", "outer"), ("wrap", "inner")]


def test_every_point_of_the_lifecycle_has_its_place():
    wraps = {f"wrap({effect.__name__})" for effect in EFFECTS}
    assert len(LIFECYCLE) == len(set(LIFECYCLE))
    assert set(LIFECYCLE) == {*EVENTS, *wraps, "token stream"}


def test_points_come_in_the_order_of_a_turn_and_the_others_are_named():
    agent = make()
    for event in (TurnEnding, ToolCalling, ModelReplying, ModelCalling, TurnStarting, SessionStarting, Erring):
        agent.gate(event)(silent)
    agent.wrap(ModelCall)(passing)
    data = agent.explain().data
    assert [found["point"] for found in data["points"]] == [
        "SessionStarting",
        "TurnStarting",
        "ModelCalling",
        "wrap(ModelCall)",
        "ModelReplying",
        "ToolCalling",
        "TurnEnding",
        "Erring",
    ]
    assert "StepEnding" in data["silent"]
    assert "token stream" in data["silent"]
    assert len(data["silent"]) + len(data["points"]) == len(LIFECYCLE)


async def test_the_order_shown_is_the_order_in_which_they_run():
    agent, ran = make(), []
    for name, options in [("c", {"priority": -5}), ("g", {"band": "guard"}), ("a", {"band": "early"}), ("b", {})]:
        agent.rewrite(TurnStarting, name=name, **options)(lambda event, name=name: ran.append(name))
    shown_order = [name for _, name in point(agent, "TurnStarting")]
    await agent.run("hi")
    assert ran == shown_order == ["a", "b", "c", "g"]


# ---------------------------------------------------------------- what is said of a hook


def test_all_that_was_said_of_a_hook_is_in_the_data():
    agent = make(tools=[add])

    @agent.gate(ToolCalling, tool=["add", re.compile("^x"), "bash(rm *)"], priority=3, timeout=2.5, on_resume="rerun")
    async def rule(event): ...

    found = hook_of(agent, "rule")
    line = rule.__code__.co_firstlineno
    assert found == {
        "kind": "gate",
        "name": "rule",
        "source": found["source"],
        "band": "normal",
        "priority": 3,
        "tool": "add or /^x/ or bash(rm *)",
        "agent": None,
        "model": None,
        "error": None,
        "when": None,
        "capability": None,
        "runs": "async",
        "timeout": 2.5,
        "thread": False,
        "live": False,
        "side_calls": False,
        "read_only": False,
        "on_resume": "rerun",
        "optional": False,
        "group": None,
        "wait": False,
        "durable": False,
        "inherit": False,
        "fails": "Deny",
    }
    assert found["source"].endswith(f"test_explain.py:{line}")


def test_a_source_inside_the_current_directory_is_relative_to_it(monkeypatch):
    here = Path(__file__)
    monkeypatch.chdir(here.parent)
    agent = make()
    agent.gate(ToolCalling)(silent)
    assert hook_of(agent, "silent")["source"] == f"{here.name}:{silent.__code__.co_firstlineno}"


def test_a_source_outside_the_current_directory_stays_as_it_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    agent = make()
    agent.gate(ToolCalling)(silent)
    path, _, line = hook_of(agent, "silent")["source"].rpartition(":")
    assert Path(path).samefile(__file__)
    assert int(line) == silent.__code__.co_firstlineno


def test_where_one_stands_does_not_change_the_stored_description(monkeypatch, tmp_path):
    def compiled():
        agent = make()
        agent.gate(ToolCalling)(silent)
        return agent.explain().data

    inside = compiled()
    monkeypatch.chdir(tmp_path)
    outside = compiled()
    assert inside["pipeline"] == outside["pipeline"]
    assert str(Path(__file__).parent).encode() not in make()._compile().description


def test_the_methods_of_a_lifecycle_are_shown_where_they_were_written():
    class Mine(Lifecycle):
        def after_agent(self, text): ...

    class Watching(LifecycleHook):
        def post_tool_call(self, name, result): ...

    agent = make().with_lifecycle(Mine()).with_lifecycle(Watching())
    assert hook_of(agent, "Mine.after_agent")["source"].endswith(f":{Mine.after_agent.__code__.co_firstlineno}")
    line = Watching.post_tool_call.__code__.co_firstlineno
    assert hook_of(agent, "Watching.post_tool_call")["source"].endswith(f"test_explain.py:{line}")


def test_what_a_capability_brought_carries_its_name():
    class Careful:
        def install(self, registrar):
            registrar.gate(ToolCalling, name="careful")(silent)

            @registrar.transform
            class Quiet:
                def feed(self, text):
                    yield text

                def flush(self):
                    return ()

    agent = make().with_capability(Careful(), band="guard")
    assert agent.explain().data["capabilities"] == [
        {"name": "Careful", "type": "Careful", "band": "guard", "summary": "", "warnings": []}
    ]
    for name in ("careful", "Quiet"):
        found = hook_of(agent, name)
        assert (found["capability"], found["band"], found["inherit"]) == ("Careful", "guard", True)
    assert "from Careful" in str(agent.explain())


@pytest.mark.parametrize(
    ("register", "runs"),
    [
        (lambda agent: agent.gate(ToolCalling, thread=True, name="x")(silent), "thread"),
        (lambda agent: agent.gate(ToolCalling, name="x")(silent), "inline"),
        (lambda agent: agent.wrap(ModelCall, name="x")(passing), "async"),
        (lambda agent: agent.wrap(ModelCall, name="x")(lambda request, call_next: call_next(request)), "thread"),
        (lambda agent: agent.observe(TurnEnded, name="x")(silent), "thread"),
        (lambda agent: agent.observe(TurnEnded, wait=True, name="x")(silent), "inline"),
    ],
)
def test_it_says_where_a_hook_runs(register, runs):
    agent = make()
    register(agent)
    assert hook_of(agent, "x")["runs"] == runs


# ---------------------------------------------------------------- fail modes


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_a_gate_that_fails_counts_as_its_event_says(event):
    agent = make()
    agent.gate(event, name="x")(silent)
    raised = event.raised
    wanted = (
        "counts as no answer; the outcome is marked unreviewed"
        if raised is None
        else f"Vote.{raised.name}"
        if isinstance(raised, Vote)
        else raised.__name__
    )
    assert hook_of(agent, "x")["fails"] == wanted


@pytest.mark.parametrize(
    ("register", "fails"),
    [
        (lambda agent: agent.gate(ModelReplying, on_error="unreviewed", name="x")(silent), "marked unreviewed"),
        (lambda agent: agent.gate(ModelReplying, mode="shadow", name="x")(silent), "only recorded"),
        (lambda agent: agent.rewrite(ToolCalling, name="x")(silent), "the action fails (Deny)"),
        (lambda agent: agent.rewrite(TurnEnding, name="x")(silent), "the action fails (Deny)"),
        (lambda agent: agent.rewrite(ModelCalling, name="x")(silent), "the turn fails"),
        (lambda agent: agent.hook(StepEnding, name="x")(silent), "the turn fails"),
        (lambda agent: agent.inject(StepStarting, name="x")(silent), "the turn fails"),
        (lambda agent: agent.inject(StepStarting, optional=True, name="x")(silent), "skipped and recorded"),
        (lambda agent: agent.wrap(Step, name="x")(passing), "the error propagates"),
        (lambda agent: agent.observe(ModelReplied, name="x")(silent), "the turn is not affected"),
        (
            lambda agent: agent.observe(ModelReplied, durable=True, name="x")(silent),
            "3 tries in all; then the fact is skipped",
        ),
    ],
)
def test_the_kind_of_a_hook_decides_what_its_failure_means(register, fails):
    agent = make()
    register(agent)
    assert fails in hook_of(agent, "x")["fails"]


@pytest.mark.parametrize("event", [ToolCalling, ToolReturning, ModelCalling, MessageAdding, TurnEnding])
async def test_a_failing_rewrite_does_what_was_said_of_it(event):
    """What `fail_mode` says of a rewrite is what happens to the turn."""
    from windlass import Failed
    from windlass.testing import calls

    agent = make(model=ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])

    @agent.rewrite(event, name="x")
    def broken(event):
        raise ValueError("no")

    said = hook_of(agent, "x")["fails"]
    result = await agent.run("1 + 2?")
    assert (said == "the turn fails") == isinstance(result.outcome, Failed)


# ---------------------------------------------------------------- the stream


def test_nobody_holds_the_stream_of_a_plain_agent():
    agent = make()
    agent.rewrite(ModelCalling)(silent)
    agent.gate(ModelReplying, mode="shadow")(silent)
    agent.gate(ModelReplying, live=True)(silent)
    agent.observe(ModelReplied)(silent)
    assert agent._compile().hooks.holders == ()
    assert agent.explain().data["stream"] == {"held_by": []}
    assert "stream held by   nothing: text is streamed as it arrives" in str(agent.explain())


def test_whoever_may_still_change_the_whole_reply_holds_the_stream():
    agent = make(output=int)
    agent.rewrite(ModelReplying, name="polish")(silent)
    agent.gate(ModelReplying, name="critic", costly=True)(silent)
    agent.hook(TurnEnding, name="both")(silent)
    agent.rewrite(TurnEnding, name="flowing", live=True)(silent)
    held = agent.explain().data["stream"]["held_by"]
    assert {(hook["name"], hook["kind"], hook["event"]) for hook in held} == {
        ("polish", "rewrite", "ModelReplying"),
        ("critic", "gate", "ModelReplying"),
        ("both", "hook", "TurnEnding"),
    }
    assert [hook.name for hook in agent._compile().hooks.holders] == [hook["name"] for hook in held]


# ---------------------------------------------------------------- what else there is


def test_tools_are_shown_with_how_they_run():
    tools = {found["name"]: found for found in full_agent().explain().data["tools"]}
    assert (tools["add"]["effect"], tools["add"]["runs"], tools["add"]["timeout"]) == ("pure", "inline", None)
    assert tools["search"]["runs"] == "async"
    mail = tools["send_mail"]
    assert (mail["effect"], mail["runs"], mail["timeout"], mail["sequential"]) == ("idempotent", "thread", 5, True)
    assert (mail["retry"], mail["agent"]) == ("safe", None)


def test_only_what_runs_in_a_thread_is_said_to_be_unstoppable():
    assert "cannot be stopped once it runs: send_mail" in str(full_agent().explain())
    assert not any("stopped" in text for text in make(tools=[add]).explain().data["not_mediated"])
    assert "mediated=False" in str(make().explain())


def test_criteria_are_shown_with_their_parameters():
    agent = make(criteria=[StepLimit(7), TokenLimit(tokens=100), Deadline(after=60), ReplyContains("done")])
    criteria = {found["name"]: found for found in agent.explain().data["criteria"]}
    assert criteria["StepLimit"]["parameters"] == {"steps": 7}
    assert criteria["StepLimit"]["stops"] == "step_limit"
    assert criteria["Deadline"]["parameters"] == {"after": 60}
    assert criteria["ReplyContains"]["parameters"] == {"text": "done", "vote": "allow_stop"}
    assert criteria["tools_ran"]["source"].partition(":")[0].endswith("criteria.py")
    assert "StepLimit(steps=7) · stops with step_limit" in str(agent.explain())


def test_the_error_policy_is_shown_by_category():
    errors = make(errors=ErrorPolicy.retrying(4, delay=1.5)).explain().data["errors"]
    assert errors["actions"]["model"] == "retry"
    assert errors["actions"]["tool"] == "ignore"
    assert errors["actions"]["hook"] == "halt"
    assert (errors["retries"], errors["delay"]) == (4, 1.5)


def test_bounds_store_and_models_are_shown():
    other = ScriptedModel(name="other")
    data = make(models=[other], unmatched="ask", busy="queue", max_vetoes=9).explain().data
    assert data["bounds"] | {"unmatched": "ask", "busy": "queue", "max_vetoes": 9} == data["bounds"]
    assert {"max_regenerations", "max_parallel", "ending_timeout", "injection_reserve"} <= set(data["bounds"])
    assert data["store"] == {"type": "MemoryStore", "durable": False}
    assert [model["name"] for model in data["models"]] == ["scripted", "other"]


def test_replaced_composites_and_phase_handlers_are_shown():
    class MyExecutor:
        def __init__(self, segment):
            self.inner = DEFAULT.executor(segment)

        async def execute(self, fold):
            await self.inner.execute(fold)

    class Noting:
        def handle(self, state, turn):
            return state

    pipeline = Pipeline.minimal().with_composite("executor", MyExecutor).with_handler("after_step", Noting())
    data = make(pipeline=pipeline).explain().data
    assert data["composites"] == {"executor": "MyExecutor"}
    assert [(found["phase"], found["name"]) for found in data["handlers"]] == [("after_step", "Noting")]
    assert make().explain().data["composites"] == {}


def test_hooks_of_a_pipeline_are_shown_too():
    hooks = Hooks()
    hooks.gate(Stopping, name="mine")(silent)
    assert point(make(pipeline=Pipeline.minimal().with_hooks(hooks)), "Stopping") == [("gate", "mine")]


# ---------------------------------------------------------------- the text


def test_the_text_has_its_sections_in_order_and_fits_the_page():
    agent = full_agent()
    agent.gate(Continuing)(silent)
    agent.gate(Resuming)(lambda event: Allow())
    agent.hook(MessageAdding)(lambda event: Says())
    text = str(agent.explain())
    headings = [
        "Agent 'agent', pipeline ",
        "model            scripted",
        "stream held by   nothing",
        "tools\n",
        "  add            pure · inline",
        "Lifecycle, in the order in which it runs\n",
        "  token stream\n    transform    Upper",
        "on text, thinking",
        "  ToolCalling\n    hook         says",
        "    costly gate  critic",
        "    shadow gate  watcher",
        "  wrap(ToolCall)\n    wrap         outer",
        "  no hooks at: ",
        "Observers\n  ToolReturned\n    observe      counter",
        "criteria ",
        "errors ",
        "bounds ",
        "store            MemoryStore",
        "Not mediated: hooks do not see or cannot stop this\n",
    ]
    at = 0
    for heading in headings:
        at = text.find(heading, at)
        assert at >= 0, f"{heading!r} is missing, or too early, in\n{text}"
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text


def test_names_that_are_very_long_do_not_break_the_page():
    agent = make()
    agent.gate(ToolCalling, name="x" * 300)(silent)
    assert max(map(len, str(agent.explain()).splitlines())) <= WIDTH


def test_the_json_is_the_data():
    explanation = full_agent().explain()
    assert isinstance(explanation, Explanation)
    assert json.loads(explanation.json()) == explanation.data
    assert repr(explanation) == "<Explanation of agent 'agent'>"


def test_explaining_compiles_the_agent_and_changes_nothing():
    agent = make()
    first = agent.explain().data
    with pytest.raises(CompiledError):
        agent.gate(ToolCalling)(silent)
    assert agent.run_sync("hi").text == "hello"
    assert agent.explain().data == first


@given(texts)
def test_what_is_shown_is_one_short_printable_line(text):
    assert one_line(text * 20).isprintable()
    assert len(one_line(text * 20, 30)) <= 30


def test_what_could_steer_a_terminal_is_spelled_out():
    assert one_line("a\x1b[31m\nb\ud800") == "a\\x1b[31m b\\ud800"


def test_a_turn_is_an_effect_to_wrap_and_is_shown():
    agent = make()
    agent.wrap(Turn, name="spanning")(passing)
    assert point(agent, "wrap(Turn)") == [("wrap", "spanning")]


def test_a_tool_that_is_an_agent_says_whose_it_is_and_no_place_in_our_source():
    child = Agent(ScriptedModel(), name="researcher")
    plan = Agent(ScriptedModel(), tools=[child.as_tool("look_up")]).explain()
    assert [(told["name"], told["agent"], told["source"]) for told in plan.data["tools"]] == [
        ("look_up", "researcher", None)
    ]
    assert "look_up        sub-agent 'researcher'" in str(plan)
    assert "delegates.py" not in str(plan)


def test_storages_are_shown_with_their_capabilities():
    class Quota:
        def install(self, registrar):
            registrar.storage("quota")

    agent = Agent(ScriptedModel(), capabilities=[Quota()])
    agent.storage("notes")
    explained = agent.explain()
    agent.storage("read later, by the application")
    assert agent.explain().data["storages"] == explained.data["storages"]
    assert explained.data["storages"] == [
        {"name": "quota", "capability": "Quota"},
        {"name": "notes", "capability": None},
    ]
    assert "storage          quota (Quota)\n                 notes" in str(explained)
