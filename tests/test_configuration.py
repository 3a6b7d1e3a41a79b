"""Configuration: what an agent cannot mean is refused when it is made or when the hook is registered, by name."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import pytest

from windlass import (
    ActiveTimeLimit,
    Agent,
    Allow,
    Answer,
    Ask,
    Completed,
    CostLimit,
    Deadline,
    Deny,
    ErrorLimit,
    Failed,
    Hooks,
    Lifecycle,
    LifecycleHook,
    ModelReplying,
    Pipeline,
    Regenerate,
    RetryLimit,
    SessionStarting,
    StepLimit,
    StopReason,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolSpec,
    TurnStarting,
    assembly,
    tool,
)
from windlass._kernel.program import BOUNDS
from windlass.errors import CompiledError, ConfigError, HookError, InjectionOverflow, RegistrationError
from windlass.testing import ScriptedModel, calls, says


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


AGENT: list[tuple[str, Any]] = [
    ("errors", "retry"),
    ("criteria", [5]),
    ("criteria", 5),
    ("criteria", StepLimit(3)),
    ("criteria", [StepLimit]),
    ("approvers", [5]),
    ("approvers", "ann"),
    ("models", [5]),
    ("models", "openai:gpt-5"),
    ("tools", [5]),
    ("tools", 5),
    ("system", 5),
    ("system", None),
    ("name", 5),
    ("settings", 5),
    ("store", 5),
    ("store", []),
    ("pipeline", 5),
    ("pipeline", Pipeline),
    ("unmatched", "perhaps"),
    ("unmatched", None),
    ("busy", "wait"),
    ("window", "x"),
    ("window", 0),
    ("window", 1.5),
    ("tokenizer", 5),
    ("injection_reserve", -1),
    ("injection_reserve", "8192"),
    ("max_regenerations", -1),
    ("max_regenerations", True),
    ("max_vetoes", -1),
    ("max_parallel", 0),
    ("max_parallel", 2.0),
    ("max_depth", -1),
    ("ending_timeout", 0),
    ("ending_timeout", math.nan),
    ("ending_timeout", "5"),
    ("observer_patience", -1),
    ("observer_patience", None),
    ("secrets", "hunter2-prod"),
    ("secrets", [5]),
    ("secrets", 5),
    ("clock", 5),
    ("output", 5),
]


@pytest.mark.parametrize(("name", "value"), AGENT, ids=[f"{name}={value!r}" for name, value in AGENT])
def test_an_argument_that_cannot_be_is_refused_by_name_when_the_agent_is_made(name: str, value: Any):
    options: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError) as raised:
        Agent(ScriptedModel(), **options)
    if name != "tools":
        assert f"{name}=" in str(raised.value)


def test_a_secret_is_not_quoted_when_the_list_of_secrets_is_refused():
    for secrets in ("hunter2-prod", [b"hunter2-prod"]):
        with pytest.raises(ConfigError) as raised:
            Agent(ScriptedModel(), secrets=secrets)  # type: ignore[arg-type]
        assert "hunter2" not in str(raised.value)


def test_arguments_may_be_given_as_generators():
    agent: Agent[Any, str] = Agent(
        ScriptedModel(calls("add", a=1, b=2), calls("add", a=1, b=2)),
        tools=(one for one in [add]),
        criteria=(limit for limit in [StepLimit(2)]),
        approvers=(approver for approver in [lambda asked: None]),
        secrets=(secret for secret in ["hunter2-prod"]),
        models=(model for model in [ScriptedModel(name="other")]),
    )
    assert agent.run_sync("go").stop_reason is StopReason.STEP_LIMIT


LIMITS: list[tuple[Any, dict[str, Any]]] = [
    (StepLimit, {"steps": -1}),
    (StepLimit, {"steps": 0}),
    (StepLimit, {"steps": 2.5}),
    (StepLimit, {"steps": True}),
    (TokenLimit, {"tokens": -1}),
    (TokenLimit, {"tokens": "100"}),
    (CostLimit, {"usd": "5"}),
    (CostLimit, {"usd": -0.1}),
    (CostLimit, {"usd": math.nan}),
    (ActiveTimeLimit, {"seconds": -1}),
    (ActiveTimeLimit, {"seconds": "5"}),
    (Deadline, {"at": "x"}),
    (Deadline, {"after": -1}),
    (Deadline, {"after": 1, "now": 5}),
    (Deadline, {}),
    (RetryLimit, {"retries": -1}),
    (ErrorLimit, {"errors": 0}),
]


@pytest.mark.parametrize(("limit", "options"), LIMITS, ids=[f"{one.__name__}({o})" for one, o in LIMITS])
def test_a_limit_that_cannot_be_is_refused_by_name(limit: Any, options: dict[str, Any]):
    with pytest.raises(ConfigError, match=limit.__name__) as raised:
        limit(**options)
    assert not options or f"{[*options][-1]}=" in str(raised.value)


def test_a_limit_may_say_that_nothing_is_left():
    for limit in (TokenLimit(0), CostLimit(0), ActiveTimeLimit(0), RetryLimit(0)):
        assert Agent(ScriptedModel(), criteria=[limit])._registered.criteria == [limit]


OPTIONS: list[dict[str, Any]] = [
    {"priority": "high"},
    {"priority": 1.5},
    {"priority": None},
    {"timeout": "5"},
    {"timeout": 0},
    {"timeout": math.nan},
    {"band": "guardian"},
    {"band": 2},
    {"name": 5},
    {"thread": "yes"},
    {"inherit": 1},
    {"costly": None},
    {"live": "no"},
    {"mode": "dry"},
    {"on_resume": "never"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_of_a_hook_that_cannot_be_is_refused_by_name(options: dict[str, Any]):
    with pytest.raises(RegistrationError) as raised:
        Agent(ScriptedModel()).gate(ToolCalling, **options)(lambda event: None)
    (name,) = options
    assert f"{name}=" in str(raised.value)


@pytest.mark.parametrize("options", [{"reserve": 0}, {"reserve": "5"}, {"group": 5}, {"optional": "yes"}], ids=str)
def test_an_option_of_an_injection_that_cannot_be_is_refused_by_name(options: dict[str, Any]):
    with pytest.raises(RegistrationError) as raised:
        Agent(ScriptedModel()).inject(TurnStarting, **options)(lambda event: "x")
    (name,) = options
    assert f"{name}=" in str(raised.value)


def test_an_option_of_another_verb_is_refused_as_one_that_this_verb_does_not_take():
    with pytest.raises(RegistrationError, match=r"\['live'\] that observe does not take; it takes"):
        Agent(ScriptedModel()).observe(ToolReturned, live=True)(lambda fact: None)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [5, StepLimit, None], ids=str)
def test_what_is_no_criterion_or_approver_is_refused_where_it_is_registered(value: Any):
    agent = Agent(ScriptedModel())
    for register in (
        agent.criterion,
        agent.approver,
        Pipeline.minimal().with_criteria,
        lambda it: Pipeline.minimal([it]),
    ):
        with pytest.raises(ConfigError, match="function from a"):
            register(value)


def test_a_question_that_nobody_may_answer_is_refused():
    with pytest.raises(ValueError, match=r"approvers=\(\)"):
        Ask(approvers=())


async def test_a_gate_that_asks_nobody_has_failed_and_is_named():
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("no")), tools=[add])
    agent.gate(ToolCalling, name="asker")(lambda event: Ask(approvers=()))
    result = await agent.run("go")
    assert (result.outcome, result.text) == (Completed(), "no")
    assert "asker" in result.messages[2].parts[0].text  # type: ignore[union-attr]


# ---------------------------------------------------------------- transforms


def upper(text: str) -> str:
    return text.upper()


class NoFlush:
    def feed(self, text: str) -> list[str]:
        return [text]


class NeedsMore:
    def __init__(self, pattern: str) -> None: ...
    def feed(self, text: str) -> list[str]:
        return [text]

    def flush(self) -> tuple[str, ...]:
        return ()


class Fine:
    def feed(self, text: str) -> list[str]:
        return [text.upper()]

    def flush(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize("thing", [upper, lambda text: text, NoFlush, NeedsMore, Fine(), 5, "x", object()])
def test_what_is_no_transformer_is_refused_when_it_is_registered(thing: Any):
    for agent in (Agent(ScriptedModel()), Hooks()):
        with pytest.raises(RegistrationError, match="transform"):
            agent.transform(thing)
        with pytest.raises(RegistrationError, match="transform"):
            agent.transform(band="guard")(thing)


@pytest.mark.parametrize(
    "options",
    [{"priority": "high"}, {"band": "x"}, {"channels": "text"}, {"channels": ("words",)}, {"inherit": 1}],
    ids=str,
)
def test_an_option_of_a_transform_that_cannot_be_is_refused_by_name(options: dict[str, Any]):
    with pytest.raises(RegistrationError, match=next(iter(options))):
        Agent(ScriptedModel()).transform(**options)(Fine)


@pytest.mark.parametrize("factory", [Fine, lambda: Fine(), functools.partial(Fine)], ids=["class", "lambda", "partial"])
async def test_a_class_and_a_function_that_makes_a_transformer_are_taken(factory: Any):
    agent = Agent(ScriptedModel(says("hi")))
    agent.transform(factory)
    assert (await agent.run("go")).text == "HI"


# ---------------------------------------------------------------- annotations


class Judge:
    def __call__(self, event: ToolCalling) -> Regenerate | None:
        return None


class AsyncJudge:
    async def __call__(self, event: ToolCalling) -> Regenerate | None:
        return None

    def method(self, event: ToolCalling) -> Regenerate | None:
        return None


def judge(strict: bool, event: ToolCalling) -> Regenerate | None:
    return None


@pytest.mark.parametrize(
    "gate",
    [
        Judge(),
        AsyncJudge(),
        AsyncJudge().method,
        functools.partial(judge, True),
        functools.partial(functools.partial(judge, True)),
        functools.partial(Judge()),
    ],
    ids=["object", "async object", "method", "partial", "partial of partial", "partial of object"],
)
def test_the_annotation_of_any_callable_is_checked_when_it_is_registered(gate: Any):
    with pytest.raises(RegistrationError, match="is annotated to answer Regenerate"):
        Agent(ScriptedModel()).gate(ToolCalling)(gate)
    Agent(ScriptedModel()).gate(ModelReplying)(gate)


# ---------------------------------------------------------------- assembling


async def test_what_is_registered_after_the_first_run_of_its_pipeline_is_refused():
    hooks = Hooks()
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], pipeline=Pipeline.minimal().with_hooks(hooks)
    )
    hooks.gate(ToolCalling)(lambda event: Allow())
    await agent.run("go")
    for register in (
        lambda: hooks.gate(ToolCalling, name="late")(lambda event: Deny("no")),
        lambda: hooks.transform(Fine),
        lambda: hooks.criterion(StepLimit(1)),
        lambda: hooks.tool(add),
    ):
        with pytest.raises(CompiledError, match="after the first run"):
            register()


def test_what_a_capability_registers_after_it_was_installed_is_refused():
    kept: list[Any] = []

    class Late:
        def install(self, registrar: Any) -> None:
            kept.append(registrar)

    Agent(ScriptedModel()).with_capability(Late())
    with pytest.raises(CompiledError, match="after capability 'Late' was installed"):
        kept[0].gate(ToolCalling)(lambda event: Deny("no"))


def test_an_agent_whose_compilation_failed_is_compiled_with_each_hook_once():
    hooks = Hooks()
    hooks.gate(ToolCalling, name="mine")(lambda event: None)
    agent = Agent(ScriptedModel(says("hi")), pipeline=Pipeline.minimal().with_hooks(hooks))
    child = Agent(ScriptedModel(), name="child", tools=[add])
    bad = child.as_tool(tools=["nothing"])
    agent.tool(bad)
    for _ in range(2):
        with pytest.raises(ConfigError, match="nothing"):
            agent.compile()
    agent._registered.tools.clear()
    assert [hook.name for hook in agent._compile().hooks.all] == ["mine"]


async def test_an_object_that_is_both_kinds_of_lifecycle_is_registered_as_both():
    seen: list[str] = []

    class Both(Lifecycle, LifecycleHook):
        def before_agent(self, text: str) -> str:
            return text + "!"

        def pre_llm_call(self, request: Any) -> None:
            seen.append(request.messages[0].text)

    agent = Agent(ScriptedModel(says("hi"))).with_lifecycle(Both())
    await agent.run("go")
    assert seen == ["go!"]


async def test_a_minimal_pipeline_with_a_limit_still_goes_on_after_tools():
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add], pipeline=Pipeline.minimal([StepLimit(3)])
    )
    result = await agent.run("go")
    assert (result.outcome, result.text) == (Completed(), "3")
    forever = Agent(
        ScriptedModel(*[calls("add", a=1, b=2)] * 9), tools=[add], pipeline=Pipeline.minimal([StepLimit(3)])
    )
    assert (await forever.run("go")).stop_reason is StopReason.STEP_LIMIT


# ---------------------------------------------------------------- tools that are added for a session


def adding_a_tool(**options: Any) -> Agent[Any, str]:
    agent: Agent[Any, str] = Agent(ScriptedModel(calls("extra"), says("done")), tools=[add], **options)

    @agent.rewrite(SessionStarting, name="more")
    def more(event: SessionStarting) -> Any:
        spec = ToolSpec("extra", "More.", {"type": "object", "properties": {}})
        return event.setup.replace(tools=(*event.setup.tools, spec))

    return agent


async def test_a_rewrite_that_adds_a_tool_which_nobody_can_execute_fails_in_its_name():
    agent = adding_a_tool()
    agent.gate(ToolCalling, tool="add")(lambda event: None)
    agent.rewrite(ToolCalling)(lambda event: None)
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.hook == "more"
    with pytest.raises(HookError, match="'extra'"):
        _ = result.text


async def test_a_tool_that_a_hook_adds_may_be_answered_by_a_gate_or_a_wrap():
    agent = adding_a_tool()
    agent.gate(ToolCalling, tool="extra")(lambda event: Answer("from a gate"))
    assert (await agent.run("go")).text == "done"
    agent = adding_a_tool()

    @agent.wrap(ToolCall)
    async def serve(call: ToolCall, call_next: Any) -> Any:
        return "from a wrap" if call.name == "extra" else await call_next(call)

    assert (await agent.run("go")).text == "done"


# ---------------------------------------------------------------- one ruler


async def test_the_reserve_for_injections_is_counted_by_the_tokenizer_of_the_agent():
    def injecting(text: str, **options: Any) -> Agent[Any, str]:
        agent: Agent[Any, str] = Agent(ScriptedModel(says("hi")), **options)
        agent.inject(TurnStarting, name="big")(lambda event: text)
        return agent

    result = await injecting("漢" * 8000, tokenizer=len, injection_reserve=2100).run("go")
    assert isinstance(result.error, InjectionOverflow)
    assert result.error.size == 8000
    assert (await injecting("x" * 400, tokenizer=lambda text: 1, injection_reserve=10).run("go")).text == "hi"


async def test_the_reserve_of_one_injection_is_counted_by_the_tokenizer_too():
    agent = Agent(ScriptedModel(says("hi")), tokenizer=len)
    agent.inject(TurnStarting, name="big", reserve=10)(lambda event: "x" * 11)
    assert isinstance((await agent.run("go")).error, InjectionOverflow)


def test_a_plain_option_of_an_agent_is_a_parameter_and_has_legal_values_and_a_line_in_explain():
    parameters = inspect.signature(Agent).parameters
    values = {name: parameters[name].default for name in BOUNDS}
    assert [name for name, value in values.items() if not BOUNDS[name].holds(value)] == []
    assert Agent(ScriptedModel(), **values).explain().data["bounds"] == values
    assert set(parameters) == {*assembly.OPTIONS, "output", "store", "secrets"}
