"""Capabilities together: by name or by object, replaced, removed, and checked against each other at assembly."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from windlass import Agent, Assembly, Deny, ModelCall, Slot, ToolCalling, Turn, TurnStarting, tool
from windlass.capabilities import AtMessages, Trim
from windlass.errors import CompiledError, ConfigError, RegistrationError
from windlass.testing import ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    return "seen"


class Layer:
    """A capability that says when its wrap is entered, and what it says about others."""

    def __init__(self, name: str, seen: list[str] | None = None, **constraints: Any) -> None:
        self.name = name
        self.seen = [] if seen is None else seen
        self.constraints = constraints

    def install(self, registrar: Any) -> None:
        if self.constraints:
            registrar.constrain(**self.constraints)

        @registrar.wrap(ModelCall, name=self.name)
        async def enter(request: Any, call_next: Any) -> Any:
            self.seen.append(self.name)
            return await call_next(request)


class Other(Layer):
    """Another class of the same kind."""


def agent_with(*capabilities: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(says("hi"), says("hi")), capabilities=capabilities, **options)


def names(agent: Agent) -> list[str]:
    return [one["name"] for one in agent.explain().data["capabilities"]]


# ---------------------------------------------------------------- replace and remove


async def test_a_removed_capability_leaves_nothing_behind():
    class Everything:
        name = "everything"

        def install(self, registrar: Any) -> None:
            registrar.slot(Slot("count", int))
            registrar.instruct("Be brief.")
            registrar.tool(look)
            registrar.model(ScriptedModel(name="other"))
            registrar.criterion(lambda state: None)
            registrar.compactor(Trim(AtMessages(1000)))
            registrar.check(lambda assembly: "never satisfied")
            registrar.gate(ToolCalling, name="no")(lambda event: Deny("no"))
            registrar.transform(Upper)

    class Upper:
        def feed(self, text: str) -> Any:
            yield text.upper()

        def flush(self) -> Any:
            return ()

    bare = agent_with()
    agent = agent_with(Everything()).without_capability("everything")
    assert agent.explain().data == bare.explain().data
    assert (await agent.run("go")).text == "hi"


async def test_a_replacement_stands_where_the_replaced_one_stood():
    seen: list[str] = []
    agent = agent_with(Layer("a", seen), Layer("b", seen), Layer("c", seen))
    agent.with_capability(Layer("new", seen), replace="b")
    assert names(agent) == ["a", "new", "c"]
    await agent.run("go")
    assert seen == ["a", "new", "c"]


async def test_hooks_of_the_application_keep_their_place_when_a_capability_is_removed():
    seen: list[str] = []
    agent = agent_with(Layer("a", seen))

    @agent.wrap(ModelCall)
    async def own(request: Any, call_next: Any) -> Any:
        seen.append("own")
        return await call_next(request)

    agent.with_capability(Layer("b", seen)).without_capability("a").with_capability(Layer("c", seen), replace="b")
    await agent.run("go")
    assert seen == ["own", "c"]


def test_a_replacement_may_have_the_slots_and_the_strategy_of_the_replaced_one():
    class Keeping:
        name = "keeping"

        def install(self, registrar: Any) -> None:
            registrar.slot(Slot("count", int))
            registrar.compactor(Trim(AtMessages(50)))

    agent = agent_with(Keeping())
    with pytest.raises(ConfigError, match="clashes with"):
        agent.with_capability(Keeping())
    agent.with_capability(Keeping(), replace="keeping").compile()
    assert names(agent) == ["keeping"]


async def test_a_slot_that_the_application_or_another_capability_uses_too_stays():
    shared, own = Slot("shared", int), Slot("own", int)

    class Uses:
        def __init__(self, name: str) -> None:
            self.name = name

        def install(self, registrar: Any) -> None:
            registrar.slot(shared)
            registrar.slot(own)

    agent = agent_with(Uses("a"), Uses("b"))
    agent.slot(own)

    @agent.gate(TurnStarting)
    def count(event: TurnStarting, turn: Turn[Any]) -> None:
        turn.set(own, turn.get(own) + 1)

    agent.without_capability("a").without_capability("b")
    assert (await agent.run("go")).slots == {"own": 1}


def test_a_failing_replacement_changes_nothing():
    class Broken:
        def install(self, registrar: Any) -> None:
            registrar.gate(TurnStarting, name="x")(lambda event: None)
            raise RuntimeError("no")

    agent = agent_with(Layer("a"), Layer("b"))
    with pytest.raises(RuntimeError):
        agent.with_capability(Broken(), replace="a")
    assert names(agent) == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda agent: agent.without_capability("retry"),
        lambda agent: agent.with_capability(Layer("x"), replace="retry"),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_are_known(change):
    with pytest.raises(ConfigError, match=r"capability 'retry': the agent has 'a', 'b'"):
        change(agent_with(Layer("a"), Layer("b")))


def test_a_guard_is_only_removed_or_replaced_by_name_and_band():
    agent = agent_with().with_capability(Layer("guard"), band="guard")
    for change in (
        lambda: agent.without_capability("guard"),
        lambda: agent.with_capability(Layer("guard"), replace="guard"),
    ):
        with pytest.raises(ConfigError, match="'guard' is in the guard band: pass band='guard'"):
            change()
    agent.with_capability(Layer("other"), replace="guard", band="guard")
    assert names(agent) == ["other"]
    agent = agent_with().with_capability(Layer("guard"), band="guard").without_capability("guard", band="guard")
    assert names(agent) == []


def test_a_plugin_can_neither_remove_nor_replace_a_guard():
    class Sly:
        name = "guard"

        def install(self, registrar: Any) -> None:
            assert not hasattr(registrar, "without_capability")
            assert not hasattr(registrar, "with_capability")

    agent = agent_with().with_capability(Layer("guard"), band="guard").with_capability(Sly())
    assert names(agent) == ["guard", "guard#2"]


async def test_nothing_is_replaced_or_removed_after_the_first_run():
    agent = agent_with(Layer("a"))
    await agent.run("go")
    for change in (lambda: agent.without_capability("a"), lambda: agent.with_capability(Layer("b"), replace="a")):
        with pytest.raises(CompiledError):
            change()


# ---------------------------------------------------------------- names


async def test_two_instances_of_one_class_work():
    seen: list[str] = []
    agent = agent_with(Layer("retry", seen), Layer("retry", seen)).with_capability(Layer("retry", seen), name="third")
    assert names(agent) == ["retry", "retry#2", "third"]
    await agent.run("go")
    assert seen == ["retry"] * 3
    hooks = [hook["capability"] for hook in _wraps(agent)]
    assert hooks == ["retry", "retry#2", "third"]


def _wraps(agent: Agent) -> list[dict[str, Any]]:
    (point,) = [point for point in agent.explain().data["points"] if point["point"] == "wrap(ModelCall)"]
    return point["stages"][0]["hooks"]


def test_explain_has_a_line_for_each_capability():
    class Told(Layer):
        def summary(self) -> str:
            return "3 attempts"

    agent = agent_with(Told("told")).with_capability(Layer("safe"), band="guard")
    assert "capabilities     told · 3 attempts\n                 safe · guard band" in str(agent.explain())


@pytest.mark.parametrize("given", [7, Layer, None, ""])
def test_what_is_no_capability_is_refused(given):
    with pytest.raises(ConfigError):
        agent_with().with_capability(given)


# ---------------------------------------------------------------- entry points


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a package with entry points, as pip would."""

    def install(distribution: str, code: str, **points: str) -> None:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(dedent(code))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {module}:{target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[windlass.capabilities]", *lines, ""]))

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


CODE = """
from windlass import TurnStarting

class Greeting:
    name = "greeting"

    def __init__(self, text="Be kind."):
        self.text = text

    def install(self, registrar):
        registrar.instruct(self.text)

def make():
    return Greeting("Be quick.")

instance = Greeting("Be brief.")

def words():
    return "no capability"

class Needy:
    def __init__(self, must):
        pass
"""


@pytest.mark.parametrize(("name", "system"), [("a", "Be kind."), ("b", "Be quick."), ("c", "Be brief.")])
async def test_a_capability_is_named_by_its_entry_point(plugin, name, system):
    plugin("plug-one", CODE, a="Greeting", b="make", c="instance")
    model = ScriptedModel(says("hi"))
    agent = Agent(model, capabilities=[name])
    await agent.run("go")
    assert model.requests[0].system == system
    assert names(agent) == ["greeting"]


def test_the_ready_made_capabilities_can_be_named():
    assert names(agent_with("trim", "offload")) == ["trim", "offload"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing", "no installed package offers a capability 'nothing'; known: .*ours"),
        ("needy", r"capability 'needy' from plug_one:Needy \(plug-one\) cannot be made: TypeError.*pass an object"),
        ("gone", "cannot be made: AttributeError"),
        ("text", r"has no install\(registrar\)"),
    ],
)
def test_a_bad_entry_point_is_a_clear_error(plugin, name, expected):
    plugin("plug-one", CODE, ours="Greeting", needy="Needy", gone="Gone", text="words")
    with pytest.raises(ConfigError, match=expected):
        Agent(ScriptedModel(), capabilities=[name])


def test_two_packages_with_one_name_are_refused(plugin):
    plugin("plug-one", CODE, same="Greeting")
    plugin("plug-two", CODE, same="Greeting")
    with pytest.raises(ConfigError, match=r"several packages offer .*plug-one.*plug-two|.*plug-two.*plug-one"):
        Agent(ScriptedModel(), capabilities=["same"])


# ---------------------------------------------------------------- constraints


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ([Layer("a"), Layer("b", before="a")], "'b' must come before 'a', but 'a' comes before 'b'"),
        ([Layer("a", after=["b", "x"]), Layer("b")], "'a' must come after 'b', but 'a' comes before 'b'"),
        (
            [Layer("a", before="b"), Layer("b", before="a")],
            "'b' must come before 'a', but 'a' must come before 'b': they cannot be installed together",
        ),
        ([Layer("a", conflicts=Other), Other("b")], "'a' conflicts with 'b'"),
        ([Layer("b"), Layer("a", conflicts="b")], "'a' conflicts with 'b'"),
        ([Layer("a", requires=["b"])], "capability 'a' requires capability 'b', but the agent has only 'a'"),
        ([Layer("a", requires=Other)], "requires capability 'Other'"),
        ([Layer("a", durable=True)], "capability 'a' needs a store that outlives the process"),
        ([Layer("x"), Layer("x", before="x")], "'x#2' must come before 'x'"),
    ],
)
def test_a_broken_constraint_names_both(capabilities, expected):
    with pytest.raises(ConfigError) as caught:
        agent_with(*capabilities).compile()
    assert expected in str(caught.value)
    assert str(caught.value).startswith("agent 'agent' cannot be assembled: ")


def test_the_first_run_reports_all_that_is_wrong_and_consumes_nothing():
    agent = agent_with(Layer("a", requires="x", durable=True))
    with pytest.raises(ConfigError, match=r"requires capability 'x'.*needs a store"):
        agent.run_sync("go")
    assert agent.model.requests == []


async def test_constraints_that_hold_change_no_order(tmp_path):
    seen: list[str] = []
    first = Layer("b", seen, before=["a", "absent"], conflicts="absent", requires=Layer, durable=True)
    agent = agent_with(first, Layer("a", seen, after=Layer), store=f"sqlite:///{tmp_path}/a.db")
    await agent.run("go")
    assert seen == ["b", "a"]
    await agent.aclose()


def test_a_guard_comes_after_the_others_whatever_was_installed_first():
    agent = agent_with().with_capability(Layer("guard", before="a"), band="guard").with_capability(Layer("a"))
    with pytest.raises(ConfigError, match="'guard' must come before 'a', but 'a' comes before 'guard'"):
        agent.compile()
    agent = agent_with().with_capability(Layer("guard", after="a"), band="guard").with_capability(Layer("a"))
    agent.compile()


def test_an_agent_can_be_completed_after_a_failed_check():
    agent = agent_with(Layer("a", requires="b"))
    with pytest.raises(ConfigError):
        agent.compile()
    agent.with_capability(Layer("b")).compile()


async def test_a_capability_of_a_sub_agent_is_checked_with_the_store_it_runs_in(tmp_path):
    def tree(store: str | None) -> Agent:
        child = Agent(ScriptedModel(says("done")), name="child", capabilities=[Layer("a", durable=True)])
        model = ScriptedModel(calls("child", task="go"), says("all done"))
        return Agent(model, tools=[child.as_tool()], store=store)

    agent = tree(f"sqlite:///{tmp_path}/a.db")
    assert (await agent.run("go")).text == "all done"
    await agent.aclose()
    with pytest.raises(ConfigError, match="agent 'child' cannot be assembled: capability 'a' needs a store"):
        tree(None).compile()


async def test_an_agent_that_was_a_sub_agent_is_checked_when_it_runs_alone(tmp_path):
    child = Agent(ScriptedModel(says("done")), name="child", capabilities=[Layer("a", durable=True)])
    Agent(ScriptedModel(), tools=[child.as_tool()], store=f"sqlite:///{tmp_path}/a.db").compile()
    with pytest.raises(ConfigError, match="needs a store"):
        await child.run("go")


# ---------------------------------------------------------------- checks of the assembled agent


def test_a_capability_checks_the_assembled_agent():
    seen: list[Assembly] = []

    class Checks:
        def install(self, registrar: Any) -> None:
            @registrar.check
            def tools_exist(assembly: Assembly) -> str | None:
                seen.append(assembly)
                return None if "missing" in assembly.tools else "there is no tool 'missing'"

    agent = agent_with(Checks(), Layer("a"), tools=[look], settings={"temperature": 0.0})
    with pytest.raises(ConfigError, match="agent 'agent' cannot be assembled: capability 'Checks': there is no tool"):
        agent.compile()
    (assembly,) = seen
    assert (assembly.name, list(assembly.tools), assembly.capabilities) == ("agent", ["look"], ("Checks", "a"))
    assert (assembly.model, assembly.store) == (agent.model, agent.store)
    assert list(assembly.models) == [agent.model.name]
    assert dict(assembly.settings) == {"temperature": 0.0}


async def test_a_check_is_made_once():
    made: list[Assembly] = []

    class Checks:
        def install(self, registrar: Any) -> None:
            registrar.check(made.append)

    agent = agent_with(Checks())
    await agent.run("go")
    await agent.run("go")
    agent.explain()
    assert len(made) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda registrar: registrar.constrain(before=7),
        lambda registrar: registrar.constrain(requires=[None]),
        lambda registrar: registrar.constrain(durable="yes"),
        lambda registrar: registrar.check(None),
    ],
)
def test_an_invalid_constraint_or_check_is_refused(wrong):
    class Wrong:
        install = staticmethod(wrong)

    with pytest.raises(ConfigError):
        agent_with(Wrong())


def test_hooks_of_a_pipeline_are_no_capability():
    from windlass import Hooks

    with pytest.raises(ConfigError, match="only a capability"):
        Hooks().constrain(before="a")


def test_the_guard_band_cannot_be_taken_by_name():
    class Greedy:
        def install(self, registrar: Any) -> None:
            registrar.gate(ToolCalling, name="g", band="guard")(lambda event: None)

    with pytest.raises(RegistrationError, match="only the application"):
        agent_with(Greedy())


async def test_capabilities_release_what_they_hold_when_the_agent_is_closed(caplog) -> None:
    closed = []

    class Holds:
        def __init__(self, name: str, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def install(self, registrar) -> None:
            @registrar.at_close
            async def release() -> None:
                closed.append(self.name)
                if self.fails:
                    raise RuntimeError("it is stuck")

    agent = Agent(ScriptedModel(says("Hello.")), capabilities=[Holds("a"), Holds("b", fails=True), Holds("c")])
    agent.without_capability("c")
    async with agent:
        await agent.variant(settings={"temperature": 1}).aclose()
        assert closed == []
        await agent.run("Hi.")
    assert closed == ["b", "a"]
    assert "it is stuck" in caplog.text


def test_only_an_async_function_can_release_something() -> None:
    with pytest.raises(ConfigError, match="at_close"):
        Agent(ScriptedModel()).at_close(lambda: None)
