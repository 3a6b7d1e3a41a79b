"""Which calls a hook sees: rules compare what will run, and a matcher that matches nothing is found early."""

from __future__ import annotations

import re
from typing import Any

import pytest

from windlass import (
    Agent,
    Deny,
    Hooks,
    ModelCall,
    ModelCalling,
    SessionStarting,
    ToolCall,
    ToolCalling,
    ToolReturning,
    tool,
    under,
)
from windlass.errors import ConfigError, RegistrationError
from windlass.pipeline import Pipeline
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, says


@tool(inline=True)
def t(
    n: int = 0,
    b: bool = False,
    path: str = "/etc/hosts",
    f: float = 0.5,
    argv: list[str] | None = None,
    options: dict[str, Any] | None = None,
) -> str:
    """A tool."""
    return "ran"


@tool(inline=True)
def copy(source: str, target: str) -> str:
    """Copy."""
    return "ran"


def agent_of(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(*replies), **{"tools": [t, copy], **options})


async def seen(matcher: Any, call: dict[str, Any], name: str = "t") -> bool:
    """Whether a gate with this matcher is asked about a call."""
    agent = agent_of(calls([(name, call)]), says("done"))
    agent.gate(ToolCalling, tool=matcher)(lambda event: Deny("seen"))
    (status,) = [p.status for m in (await agent.run("go")).messages if m.role == "tool" for p in m.parts]
    assert status in ("denied", "ok")
    return status == "denied"


# ---------------------------------------------------------------- rules

RULES: list[tuple[str, dict[str, Any], bool]] = [
    ("t(n=1)", {"n": 1}, True),
    ("t(n=1)", {"n": 10}, False),
    ("t(n=1*)", {"n": 10}, True),
    ("t(n=1)", {}, False),
    ("t(n=0)", {}, True),
    ("t(n=-1)", {"n": -1}, True),
    ("t(n=123456789012345678901)", {"options": {"n": 123456789012345678901}}, False),
    ("t(b=true)", {"b": True}, True),
    ("t(b=True)", {"b": True}, True),
    ("t(b=true)", {}, False),
    ("t(b=false)", {}, True),
    ("t(b=1)", {"b": True}, False),
    ("t(f=80)", {"f": 80}, True),
    ("t(f=80.0)", {"f": 80}, True),
    ("t(f=8e1)", {"f": 80}, True),
    ("t(f=0.5)", {}, True),
    ("t(argv=null)", {}, True),
    ("t(argv=None)", {}, True),
    ("t(path=/etc/*)", {}, True),
    ("t(path=/etc/*)", {"path": "/tmp/x"}, False),
    ("t(argv=rm *)", {"argv": ["ls", "rm -rf x"]}, True),
    ("t(argv=rm *)", {"argv": ["ls"], "path": "rm x"}, False),
    ("t(rm *)", {"argv": ["rm -rf x"]}, True),
    ("t(rm *)", {"options": {"deep": [{"er": "rm x"}]}}, True),
    ("t(rm *)", {"options": {"rm x": 1}}, False),
    ("t(7)", {"options": {"deep": [[7]]}}, True),
    ("t(/etc/*)", {}, True),
    ("t(*)", {}, True),
    ("t(argv=*)", {"argv": []}, True),
    ("t(options.mode=rw)", {"options": {"mode": "rw"}}, True),
    ("t(options.mode=rw)", {"options": {"other": "rw"}}, False),
    ("t(options.mode=rw)", {"options": {"mode": {"all": ["ro", "rw"]}}}, True),
    ("t(options.mounts.mode=rw)", {"options": {"mounts": [{"mode": "ro"}, {"mode": "rw"}]}}, True),
    ("t(options.mode=rw)", {}, False),
    ("t(n=1, b=true)", {"n": 1, "b": True}, True),
    ("t(n=1, b=true)", {"n": 1}, False),
    ("t(n=1,b=true)", {"n": 1, "b": True}, True),
    ("t( n = 1 , b = true )", {"n": 1, "b": True}, True),
    ("t(path=a, b)", {"path": "a, b"}, True),
    ("t(path=)", {"path": ""}, True),
    ("t(path=*\n*)", {"path": "a\nb"}, True),
    ("*(path=/etc/*)", {}, True),
    ("?(n=1)", {"n": 1}, True),
    ("copy(*)", {}, False),
]


@pytest.mark.parametrize(("rule", "call", "matched"), RULES)
async def test_a_rule_compares_what_will_run(rule, call, matched):
    assert await seen(rule, call) is matched


async def test_a_rule_sees_defaults_wherever_a_hook_stands():
    """In a gate, a wrap, a rewrite and on the result; in every way of running."""
    asked: list[str] = []

    def factory() -> Agent:
        agent = agent_of(calls("t"), calls("t", path="/tmp"), says("done"))
        rule = "t(path=/etc/*)"
        agent.gate(ToolCalling, tool=rule, name="gate")(lambda event: asked.append("gate"))
        agent.rewrite(ToolCalling, tool=rule, name="rewrite")(lambda event: asked.append("rewrite"))
        agent.gate(ToolReturning, tool=rule, name="returning")(lambda event: asked.append("returning"))

        @agent.wrap(ToolCall, tool=rule, name="wrap")
        async def wrap(call: ToolCall, call_next: Any) -> Any:
            asked.append("wrap")
            return await call_next(call)

        return agent

    await factory().run("go")
    assert asked == ["rewrite", "gate", "wrap", "returning"]
    await assert_same_everywhere(factory)


@pytest.mark.parametrize("text", ["t()", "t(", "t)", "(x)", "", "t(a)b"])
def test_what_is_no_rule_is_refused_when_it_is_registered(text):
    with pytest.raises(RegistrationError, match="is not a name, a glob or a rule"):
        agent_of().gate(ToolCalling, tool=text)(lambda event: None)


# ---------------------------------------------------------------- paths

PATHS: list[tuple[str, bool]] = [
    ("/etc", True),
    ("/etc/", True),
    ("/etc/hosts", True),
    ("//etc/hosts", True),
    ("///etc//hosts", True),
    ("/etc/../etc/hosts", True),
    ("/./etc/hosts", True),
    ("/tmp/../etc/hosts", True),
    ("/../../etc/hosts", True),
    ("../../../../../../../../../../etc/hosts", True),
    ("/etcetera", False),
    ("/tmp/etc/hosts", False),
    ("etc/hosts", False),
    ("/etc/../tmp", False),
    ("/", False),
    ("", False),
]


@pytest.mark.parametrize(("path", "matched"), PATHS)
async def test_a_path_is_normalised_before_it_is_compared(path, matched, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert await seen(under("t", path="/etc"), {"path": path}) is matched
    assert await seen(under("t", argv="/etc/."), {"argv": ["/x", path]}) is matched


async def test_relative_and_home_paths_are_those_of_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert await seen(under("t", path=tmp_path / "data"), {"path": "data/x"})
    assert await seen(under("t", path="data"), {"path": str(tmp_path / "data")})
    assert await seen(under("t", path="~/.ssh"), {"path": "~/.ssh/id"})
    assert await seen(under("t", path=tmp_path / "home"), {"path": "~/x"})
    assert await seen(under("t", path=tmp_path), {"path": "~/x"})
    assert not await seen(under("t", path="data"), {"path": "database"})


async def test_several_folders_are_alternatives_and_several_parameters_must_all_match():
    both = under("c*", source=["/etc", "/srv"], target="/tmp")
    assert await seen(both, {"source": "/srv/x", "target": "/tmp/x"}, "copy")
    assert not await seen(both, {"source": "/srv/x", "target": "/home"}, "copy")
    assert not await seen(both, {"source": "/home", "target": "/tmp/x"}, "copy")
    assert await seen(under("t", path="/"), {})


async def test_a_default_path_is_seen_and_explain_shows_the_matcher():
    assert await seen(under("t", path="/etc"), {})
    agent = agent_of()
    agent.gate(ToolCalling, name="guard", tool=[under("t", path=["/etc", "/srv"]), "copy"])(lambda event: None)
    assert "under(t, path=/etc or /srv) or copy" in str(agent.explain())


@pytest.mark.parametrize("folders", [{}, {"path": []}])
def test_a_folder_matcher_without_folders_is_refused(folders):
    with pytest.raises(ConfigError, match=r"under\('t'\) needs a parameter and a folder"):
        under("t", **folders)


# ---------------------------------------------------------------- matchers that match nothing

IDLE: list[tuple[Any, str]] = [
    ("tt", r"tool='tt' matches no tool \(did you mean 't'\?\); known tools: t, copy"),
    ("T", r"did you mean 't'\?"),
    ("Copy", r"did you mean 'copy'\?"),
    ("x*", r"'x\*' matches no tool; known tools"),
    ("tt(n=1)", "matches no tool"),
    (
        "t(nn=1)",
        r"tool 't' has no parameter 'nn' \(did you mean 'n'\?\); known parameters: argv, b, f, n, options, path",
    ),
    ("t(n=1, bb=2)", "no parameter 'bb'"),
    ("t(opts.mode=1)", "no parameter 'opts'"),
    ("*(nowhere=1)", "t, copy have no parameter 'nowhere'"),
    ("*(n=1, source=2)", "no tool has all of n, source"),
    (["tt", "copyy"], "'tt' matches no tool"),
    (["t", "copy(from=/etc/*)"], "no parameter 'from'"),
    (re.compile("^x"), r"/\^x/ matches no tool"),
    (under("tt", path="/"), r"under\(tt, path=/\) matches no tool"),
    (under("copy", path="/"), r"tool 'copy' has no parameter 'path'; known parameters: source, target"),
]


@pytest.mark.parametrize(("matcher", "why"), IDLE)
def test_a_matcher_that_matches_no_tool_is_an_error_when_the_agent_is_compiled(matcher, why):
    agent = agent_of()
    agent.gate(ToolCalling, tool=matcher, name="guard")(lambda event: Deny("no"))
    with pytest.raises(
        ConfigError, match=rf"gate 'guard' \(test_matchers.py:\d+\) on ToolCalling would never .*{why}"
    ) as error:
        agent.compile()
    assert isinstance(error.value, RegistrationError)
    assert error.value.hook == "guard"
    with pytest.raises(ConfigError, match="would never be asked"):
        agent.run_sync("go")


FINE = ["t", "?", ["t", "elsewhere"], "t(n=99)", re.compile("op"), lambda call: False, "t(options.any.thing=1)"]


@pytest.mark.parametrize("matcher", FINE, ids=["name", "glob", "list", "value", "regex", "predicate", "path"])
def test_a_matcher_that_may_match_is_no_error(matcher):
    agent = agent_of()
    agent.gate(ToolCalling, tool=matcher, name="guard")(lambda event: Deny("no"))
    warnings = agent.explain().data["warnings"]
    assert len(warnings) == (1 if isinstance(matcher, list) else 0)


def test_hooks_of_a_pipeline_and_wraps_are_checked_too():
    hooks = Hooks()
    hooks.gate(ToolCalling, tool="tt")(lambda event: None)
    with pytest.raises(ConfigError, match="would never be asked"):
        agent_of(pipeline=Pipeline.minimal().with_hooks(hooks)).compile()
    agent = agent_of()

    @agent.wrap(ToolCall, tool="tt")
    async def around(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call)

    with pytest.raises(ConfigError, match=r"wrap 'around' .* on ToolCall would never be asked"):
        agent.compile()


class Rules:
    """A capability with general rules."""

    name = "rules"

    def install(self, registrar: Any) -> None:
        registrar.gate(ToolCalling, tool=["bash(rm *)", "write"], name="rules")(lambda event: Deny("no"))


def _offer(event: Any) -> None: ...


async def _around(request: Any, call_next: Any) -> Any:
    return await call_next(request)


@pytest.mark.parametrize("how", ["capability", "SessionStarting", "ModelCalling", "wrap"])
def test_it_is_a_warning_where_the_tool_may_come_from_elsewhere(how):
    agent = agent_of()
    match how:
        case "capability":
            agent.with_capability(Rules())
        case "SessionStarting":
            agent.rewrite(SessionStarting)(_offer)
        case "ModelCalling":
            agent.rewrite(ModelCalling)(_offer)
        case _:
            agent.wrap(ModelCall)(_around)
    if how != "capability":
        agent.gate(ToolCalling, tool="bash", name="rules")(lambda event: Deny("no"))
    explained = agent.explain()
    assert all(text.startswith("gate 'rules' may never be asked: tool='") for text in explained.data["warnings"])
    assert len(explained.data["warnings"]) == (2 if how == "capability" else 1)
    assert "Warnings" in str(explained)


def test_an_agent_without_idle_matchers_has_no_warnings():
    assert "Warnings" not in str(agent_of().explain())


@pytest.mark.parametrize("options", [{"inherit": True}, {"band": "guard"}])
async def test_a_childs_tool_is_guarded_by_name_and_rule(options):
    child = agent_of(calls("t", n=5), says("done"), name="child")
    parent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])
    parent.gate(ToolCalling, tool="t(path=/etc/*, n=5)", name="guard", **options)(lambda event: Deny("no"))
    assert parent.explain().data["warnings"] == []
    result = await parent.run("go", session="s")
    log = await parent.store.read("s//1/1")
    assert [r.result.status for r in log if type(r).__name__ == "ToolReturned"] == ["denied"]
    assert result.text == "done"


def test_an_inherited_hook_that_matches_nothing_below_is_a_warning_and_one_that_is_not_inherited_an_error():
    def parent(**options: Any) -> Agent:
        child = agent_of(name="child")
        made = Agent(ScriptedModel(), tools=[child.as_tool()])
        made.gate(ToolCalling, name="guard", **options)(lambda event: Deny("no"))
        return made

    assert parent(tool="child").explain().data["warnings"] == []
    (warning,) = parent(tool="tt", inherit=True).explain().data["warnings"]
    assert "did you mean 't'?" in warning
    with pytest.raises(ConfigError, match=r"known tools: child\. A sub-agent has it: pass inherit=True to the hook"):
        parent(tool="t").compile()
    with pytest.raises(ConfigError, match=r"'tt' matches no tool; known tools: child\. If run"):
        parent(tool="tt").compile()


def test_a_guard_of_an_agent_without_sub_agents_is_checked():
    agent = agent_of()
    agent.gate(ToolCalling, tool="tt", band="guard")(lambda event: None)
    with pytest.raises(ConfigError, match="would never be asked"):
        agent.compile()


def test_agents_that_call_each_other_can_be_checked():
    first = Agent(ScriptedModel(), name="first")
    second = Agent(ScriptedModel(), name="second", tools=[first.as_tool(), t])
    first.tool(second.as_tool())  # type: ignore[arg-type]
    first.gate(ToolCalling, tool="t", band="guard")(lambda event: None)
    assert first.explain().data["warnings"] == []
