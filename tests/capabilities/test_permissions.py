"""Permissions: rules as data; the strictest wins, and what allows is compared more strictly than what refuses."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Completed, Deny, Edit, Suspended, ToolCalling, ToolDecided, tool
from windlass.capabilities import Permissions
from windlass.errors import ConfigError, StaleAnswer
from windlass.messages import ToolCall
from windlass.stores import SQLiteStore
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("1", name, json.dumps(arguments))


def verdict(permissions: Permissions, name: str, **arguments: Any) -> str:
    return permissions.check(call(name, **arguments)).decision


@tool(inline=True)
def read(path: str) -> str:
    """Read a file."""
    return f"read {path}"


@tool(inline=True)
def write(path: str, text: str = "") -> str:
    """Write a file."""
    return f"wrote {path}"


# ---------------------------------------------------------------- the rule language


def test_the_strictest_rule_wins_whatever_its_place():
    rules = Permissions(allow=["*"], ask=["write"], deny=["write(text=*secret*)"])
    assert verdict(rules, "read", path="a") == "allow"
    assert verdict(rules, "write", path="a", text="hello") == "ask"
    assert verdict(rules, "write", path="a", text="a secret") == "deny"
    assert repr(rules.check(call("write", text="a secret")).rule) == "deny write(text=*secret*)"


@pytest.mark.parametrize("unmatched", ["allow", "ask", "deny"])
def test_a_call_that_no_rule_matches_gets_the_default(unmatched: Any):
    rules = Permissions(allow=["read"], unmatched=unmatched)
    found = rules.check(call("drop_table"))
    assert (found.decision, found.rule) == (unmatched, None)


def test_by_default_a_call_that_no_rule_matches_is_asked_about():
    assert verdict(Permissions(), "anything") == "ask"


def test_an_allow_rule_needs_all_values_and_a_deny_rule_needs_one():
    rules = Permissions(allow=["tag(names=a*)"], deny=["tag(names=*x*)"], unmatched="ask")
    assert verdict(rules, "tag", names=["ab", "ac"]) == "allow"
    assert verdict(rules, "tag", names=["ab", "b"]) == "ask"
    assert verdict(rules, "tag", names=["ab", "ax"]) == "deny"


def test_an_allow_rule_without_a_parameter_compares_every_text():
    rules = Permissions(allow=["say(hello*)"])
    assert verdict(rules, "say", text="hello you", times=3) == "allow"
    assert verdict(rules, "say", text="hello you", to="mallory") == "ask"


def test_a_deny_rule_without_a_parameter_finds_values_at_any_depth():
    rules = Permissions(deny=["post(*secret*)"], unmatched="allow")
    assert verdict(rules, "post", body={"parts": [{"text": "a secret"}]}) == "deny"
    assert verdict(rules, "post", body={"parts": [{"text": "a word"}]}) == "allow"


def test_a_missing_argument_is_not_allowed_by_a_rule_about_it():
    assert verdict(Permissions(allow=["read(path=src/)"]), "read") == "ask"


@pytest.mark.parametrize("wrong", ["", "a b", "bash(", "bash()", "(x)"])
def test_a_text_that_is_not_a_rule_is_refused_at_once(wrong: Any):
    with pytest.raises(ConfigError, match="not a rule"):
        Permissions(deny=[wrong])


def test_a_single_text_instead_of_a_list_is_refused():
    with pytest.raises(ConfigError, match="allow must be a list of texts"):
        Permissions(allow="bash")
    with pytest.raises(ConfigError, match="unmatched must be 'allow', 'ask' or 'deny'"):
        Permissions(unmatched="never")  # type: ignore[arg-type]


# ---------------------------------------------------------------- paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a source folder, beside a folder with secrets that links lead to."""
    project = tmp_path / "project"
    for name in ("project/src/deep", "secrets", "project-evil"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "secrets" / "key").write_text("k")
    (project / "src" / "out").symlink_to(tmp_path / "secrets")
    (project / "src" / "key.py").symlink_to(tmp_path / "secrets" / "key")
    (project / "loop").symlink_to(project / "loop")
    return project


INSIDE = ["src", "src/", "./src/a", "src//a", "src/deep/../a", "src/./deep/a.py", "{}/src/a", "//{}/src/a", "src/new/x"]
OUTSIDE = [
    "src/../a", "src/../../secrets/key", "src/out/key", "src/out", "src/key.py", "src/deep/../out/key", "srcs/a",
    "../project-evil/src/a", "/etc/passwd", "{}/../secrets/key", "~/src/a", "~root/src/a", "file:///etc/passwd",
    "src/out/../key.py", "src\0/a", "file:src/../../secrets/key", "SRC/a", "ｓrc/a", "src\u200b/a", "%2e/src/../a",
]  # fmt: skip


@pytest.mark.parametrize("path", INSIDE)
def test_a_path_in_the_folder_is_allowed(folder: Path, path: str):
    rules = Permissions(allow=["write(path=src/)"], folder=folder)
    assert verdict(rules, "write", path=path.format(folder)) == "allow"


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leads_out_of_the_folder_is_not_allowed(folder: Path, path: str):
    rules = Permissions(allow=["write(path=src/)"], folder=folder)
    assert verdict(rules, "write", path=path.format(folder)) == "ask"


@pytest.mark.parametrize(
    "path",
    [
        "../secrets/key", "src/../../secrets/key", "src/out/key", "src/key.py", "{}/secrets", "{}//secrets/", "src/out",
        "file://{}/secrets/key", "file:{}/secrets/key", "FILE://localhost{}/secrets/k%65y", "{}/./secrets/new/file",
    ],
)  # fmt: skip
def test_a_path_that_leads_into_a_denied_folder_is_denied(folder: Path, path: str):
    rules = Permissions(deny=["*(path=../secrets/)"], unmatched="allow", folder=folder)
    assert verdict(rules, "read", path=path.format(folder.parent)) == "deny"
    assert verdict(rules, "read", path="../secretsauce") == "allow"


@pytest.mark.parametrize("path", ["src/loop", "src/loop/x", "src/new/../loop/x", "src/" + "x" * 5_000])
def test_a_path_whose_links_lead_nowhere_is_not_allowed_but_still_denied(folder: Path, path: str):
    (folder / "src" / "loop").symlink_to("loop")
    assert verdict(Permissions(allow=["write(path=src/)"], folder=folder), "write", path=path) == "ask"
    denied = Permissions(deny=["write(path=src/)"], unmatched="allow", folder=folder)
    assert verdict(denied, "write", path=f"./{path}") == "deny"


def test_a_path_that_cannot_be_resolved_is_asked_about_where_it_may_be_denied(folder: Path):
    rules = Permissions(allow=["*"], deny=["*(path=../secrets/)"], folder=folder)
    found = rules.check(call("read", path="a\0b"))
    assert (found.decision, repr(found.rule)) == ("ask", "deny *(path=../secrets/)")


def test_a_link_in_the_rule_itself_is_followed_once_when_the_rule_is_made(folder: Path):
    (folder / "work").symlink_to(folder / "src")
    rules = Permissions(allow=["write(path=work/)"], folder=folder)
    assert verdict(rules, "write", path="work/a") == "allow"
    assert verdict(rules, "write", path="src/a") == "allow"
    (folder / "work").unlink()
    (folder / "work").symlink_to(folder.parent / "secrets")
    assert verdict(rules, "write", path="work/key") == "ask"


def test_a_folder_that_becomes_a_link_is_no_longer_allowed(folder: Path):
    rules = Permissions(allow=["write(path=src/deep/)"], folder=folder)
    assert verdict(rules, "write", path="src/deep/a") == "allow"
    (folder / "src" / "deep").rmdir()
    (folder / "src" / "deep").symlink_to(folder.parent / "secrets")
    assert verdict(rules, "write", path="src/deep/key") == "ask"


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/deep/a.py", True),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/deep/b/a.py", True),
        ("src/**", "src/deep/b", True),
        ("src/**", "src", True),
        ("src/*", "src", False),
        ("src", "src/deep", False),
        ("*.py", "/elsewhere/a.py", True),
        ("*.py", "src/key.py", False),
        ("*/deep/*", "src/deep/x", True),
        ("src/[ab].py", "src/a.py", True),
        ("src/[ab].py", "src/c.py", False),
        ("/", "/anything", True),
        ("*", "anything", True),
    ],
)
def test_path_patterns(folder: Path, glob: str, path: str, matches: bool):
    rules = Permissions(allow=[f"write(path={glob})"], folder=folder)
    assert (verdict(rules, "write", path=path) == "allow") is matches


def test_the_parameters_that_hold_paths_can_be_named(folder: Path):
    assert verdict(Permissions(allow=["up(doc=src/*)"], folder=folder), "up", doc="src/../../secrets/key") == "allow"
    rules = Permissions(allow=["up(doc=src/*)"], folder=folder, paths=["doc"])
    assert verdict(rules, "up", doc="src/../../secrets/key") == "ask"
    assert verdict(Permissions(allow=["up(./src/)"], folder=folder), "up", doc="src/out/key") == "ask"


def test_case_counts_unless_the_file_system_ignores_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    rules = Permissions(deny=["*(path=src/)"], unmatched="allow", folder=folder)
    assert verdict(rules, "read", path="SRC/a") == "allow"
    monkeypatch.setattr("windlass.capabilities.paths.folds_case", lambda path: True)
    rules = Permissions(deny=["*(path=src/)"], unmatched="allow", folder=folder)
    assert verdict(rules, "read", path="SRC/a") == "deny"
    rules = Permissions(deny=["*(path=*.env)"], unmatched="allow", folder=folder)
    assert verdict(rules, "read", path="src/.ENV") == "deny"
    many = [f"*(path=*.none{number})" for number in range(40)]
    rules = Permissions(deny=[*many, "*(path=*/secret/*)"], unmatched="allow", folder=folder)
    assert verdict(rules, "read", path="src/Secret/x") == "deny"
    rules = Permissions(deny=["*(path=cafe\u0301/)"], unmatched="allow", folder=folder)
    assert verdict(rules, "read", path="CAF\u00c9/a") == "deny"


@pytest.mark.parametrize(
    "path",
    ["SRC/a", "Src/a", "ſrc/a", "src/./../SRC/a", "file:///{folder}/SRC/a", "{folder}/sRC//a", "SRC/A/../a"],
)
def test_no_spelling_gets_round_a_rule_where_case_is_ignored(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windlass.capabilities.paths.folds_case", lambda path: True)
    rules = Permissions(deny=["*(path=src/)"], unmatched="allow", folder=folder)
    assert verdict(rules, "read", path=path.replace("{folder}", str(folder))) == "deny"


def test_whether_a_file_system_ignores_case_is_tried_on_a_folder_that_exists(tmp_path: Path):
    from windlass.capabilities.paths import folds_case

    (tmp_path / "abc").mkdir()
    assert not folds_case(str(tmp_path / "abc" / "missing"))
    os.link(_file(tmp_path / "twin"), tmp_path / "TWIN")  # what such a file system answers: both are one file
    assert folds_case(str(tmp_path / "twin"))


def _file(path: Path) -> Path:
    path.write_text("")
    return path


# ---------------------------------------------------------------- files

TOML = """
unmatched = "deny"
allow = ["read(path=src/)"]  # a comment
deny = ["read(path=*.key)"]
folder = "."

[shells]
terminal = "script"

[[rules]]
ask = "write"
by = "ann"
note = "until the review"
"""
YAML = """
unmatched: deny
allow: ["read(path=src/)"]
deny:
  - read(path=*.key)
folder: .
shells: {terminal: script}
rules:
  - ask: write
    by: ann
"""


@pytest.mark.parametrize(("name", "text"), [("p.toml", TOML), ("p.yaml", YAML), ("p.yml", YAML)])
def test_a_policy_is_the_same_in_toml_yaml_and_python(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    loaded = Permissions.load(tmp_path / name)
    written = Permissions(
        allow=["read(path=src/)"], ask=["write"], deny=["read(path=*.key)"], unmatched="deny", folder=tmp_path,
        shells={"terminal": "script"},
    )  # fmt: skip
    assert list(map(repr, loaded.rules)) == list(map(repr, written.rules))
    assert (loaded.unmatched, loaded.setting) == (written.unmatched, written.setting)
    assert verdict(loaded, "read", path=str(tmp_path / "src" / "a")) == "allow"
    assert verdict(loaded, "read", path=str(tmp_path / "src" / "a.key")) == "deny"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("p.toml", "alow = []", "alow"),
        ("p.toml", "deny = 'bash'", "Expected `array`"),
        ("p.toml", "deny = [", "policy"),
        ("p.toml", "unmatched = 'never'", "never"),
        ("p.toml", "deny = ['bash(']", "not a rule"),
        ("p.toml", "[[rules]]\nnote = 'x'", "exactly one of allow, ask and deny"),
        ("p.toml", "[[rules]]\nallow = 'a'\ndeny = 'b'", "exactly one of allow, ask and deny"),
        ("p.yaml", "deny: [a]\nallow: [b]\ndeny: []", "there twice"),
        ("p.yaml", "deny: [yes]", "Expected `str`"),
        ("p.yaml", "deny: [", "not valid YAML"),
        ("p.yaml", "!!python/object/apply:os.getcwd []", "not valid YAML"),
        ("p.json", "{}", "must be a .toml, .yaml or .yml file"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_name(tmp_path: Path, name: str, text: str, why: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        Permissions.load(tmp_path / name)
    assert why in str(caught.value)
    if "rule:" not in str(caught.value):
        assert name in str(caught.value)


def test_a_policy_that_does_not_exist_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Permissions.load(tmp_path / "none.toml")


# ---------------------------------------------------------------- rules that never count


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"allow": ["a"], "deny": ["*"]}, "allow a never counts: deny * is stricter"),
        ({"allow": ["a(x=1*)"], "ask": ["a(x=*)"]}, "allow a(x=1*) never counts: ask a(x=*) is stricter"),
        ({"ask": ["a(x=1*, y=2)"], "deny": ["a(x=1*)"]}, "ask a(x=1*, y=2) never counts: deny a(x=1*) is stricter"),
        ({"allow": ["a(one *)", "a(one two *)"]}, "allow a(one two *) is not needed: allow a(one *)"),
        ({"deny": ["a", "a"]}, "deny a is not needed: deny a matches"),
        ({"allow": ["a(x=1)"], "deny": ["a(1)"]}, "allow a(x=1) never counts: deny a(1) is stricter"),
        ({"allow": ["r(path=/a/b)"], "deny": ["r(path=/a/)"]}, "allow r(path=/a/b) never counts"),
    ],
)
def test_a_rule_that_never_counts_is_reported(rules: Any, problem: str):
    found = Permissions(**rules).problems()
    assert len(found) == 1, found
    assert problem in found[0]


@pytest.mark.parametrize(
    "rules",
    [
        {"allow": ["a"], "deny": ["a(x=1)"]},
        {"allow": ["a(x=?)"], "deny": ["a(x=1)"]},
        {"allow": ["a(x=*)"], "deny": ["a(x=?)"]},
        {"allow": ["a(x=[ab])", "a(x=[!a])"]},
        {"allow": ["a(x=1)", "a(y=1)", "a(1)"]},
        {"allow": ["a*", "b*"], "deny": ["ab", "c"]},
    ],
)
def test_rules_that_count_are_not_reported(rules: Any):
    assert Permissions(**rules).problems() == []


def test_problems_are_logged_when_a_policy_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "p.toml").write_text("allow = ['a']\ndeny = ['a']")
    with caplog.at_level(logging.WARNING, logger="windlass"):
        Permissions.load(tmp_path / "p.toml")
    assert "p.toml: allow a never counts: deny a is stricter" in caplog.text


def test_a_rule_about_an_unknown_tool_or_parameter_is_a_warning():
    rules = Permissions(allow=["raed", "write(pth=*)", "read"])
    first, second = rules.warnings({"read": read, "write": write})
    assert "allow raed: 'raed' matches no tool (did you mean 'read'?)" in first
    assert "no parameter 'pth' (did you mean 'path'?)" in second


# ---------------------------------------------------------------- in an agent


def agent_with(*script: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*script), tools=[read, write], **options)


async def test_an_agent_reads_like_a_sentence_and_obeys_its_policy(tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text("allow = ['read']\ndeny = ['write(path=/etc/)']\n")
    script = calls([("read", {"path": "a"}), ("write", {"path": "/etc/passwd"}), ("write", {"path": "b"})])
    agent = agent_with(script, says("done"), capabilities=[Permissions.load("policy.toml")])
    result = await agent.run("go", session="s")
    [asked] = result.waiting_for
    assert asked.call is not None
    assert asked.call.arguments["path"] == "b"
    assert asked.details["permissions"] == {"rule": None, "why": ""}
    result = await agent.resume("s", answers={asked.id: Approve()})
    first, denied, last = result.messages[2].parts
    assert (first.status, denied.status, last.status) == ("ok", "denied", "ok")  # type: ignore[union-attr]
    assert "The rule 'write(path=/etc/)' forbids this call." in denied.text  # type: ignore[union-attr]


async def test_the_decision_is_the_same_however_the_agent_runs():
    def factory() -> Agent[Any, Any]:
        script = calls([("read", {"path": "a"}), ("write", {"path": "b"}), ("write", {"path": "x.key"})])
        rules = Permissions(allow=["read"], deny=["*(path=*.key)"], ask=["write"])
        return agent_with(script, says("done"), capabilities=[rules])

    await assert_same_everywhere(factory)


@pytest.mark.parametrize("band", ["guard", None])
async def test_a_child_may_do_no_more_than_its_parent(band: Any):
    child = agent_with(
        calls([("read", {"path": "a"}), ("write", {"path": "b"})]), says("child done"), name="child",
        capabilities=[Permissions(allow=["*"])],
    )  # fmt: skip
    parent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])
    parent.with_capability(Permissions(allow=["child", "read"], unmatched="deny"), band=band)
    await parent.run("go", session="s")
    decided = [record for record in await parent.store.read("s//1/1") if isinstance(record, ToolDecided)]
    assert [(record.name, type(record.verdict).__name__) for record in decided] == [
        ("read", "Allow"),
        ("write", "Deny"),
    ]


async def test_a_child_may_do_less_than_its_parent():
    rules = Permissions(allow=["read"], unmatched="deny")
    child = agent_with(calls("write", path="b"), says("child done"), name="child", capabilities=[rules])
    parent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])
    parent.with_capability(Permissions(allow=["*"]), band="guard")
    await parent.run("go", session="s")
    [decided] = [record for record in await parent.store.read("s//1/1") if isinstance(record, ToolDecided)]
    assert isinstance(decided.verdict, Deny)


async def test_an_edit_is_judged_by_the_rules_again():
    agent = agent_with(calls("write", path="a"), says("done"))
    agent.with_capability(Permissions(allow=["*"], deny=["*(path=/etc/)"]), band="guard")
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("May it?"))
    [asked] = (await agent.run("go", session="s")).waiting_for
    result = await agent.resume("s", answers={asked.id: Edit({"path": "/tmp/../etc/passwd", "text": ""})})
    assert result.messages[2].parts[0].status == "denied"  # type: ignore[union-attr]


async def test_a_rewrite_that_changes_the_tool_is_judged_as_the_new_tool():
    agent = agent_with(
        calls("read", path="a"), says("done"), capabilities=[Permissions(allow=["read"], deny=["write"])]
    )

    @agent.rewrite(ToolCalling)
    def swap(event: ToolCalling) -> ToolCall:
        return event.call.replace(name="write", arguments={"path": "a", "text": "b"})

    result = await agent.run("go", session="s")
    assert "wrote" not in result.messages[2].parts[0].text  # type: ignore[union-attr]
    assert result.messages[2].parts[0].status in ("denied", "error")  # type: ignore[union-attr]


async def test_an_approval_is_not_valid_twice_nor_for_another_call():
    script = calls([("write", {"path": "a"}), ("write", {"path": "b"})])
    agent = agent_with(script, calls("write", path="a"), says("done"), capabilities=[Permissions()])
    first, second = (await agent.run("go", session="s")).waiting_for
    with pytest.raises(StaleAnswer):
        await agent.resume("s", answers={second.id: Approve(digest=first.digest)})
    await agent.resume("s", answers={first.id: Approve(), second.id: Approve()})
    with pytest.raises(StaleAnswer):
        await agent.resume("s", answers={first.id: Approve()})
    assert len((await agent.state("s")).waiting) == 1  # the same call again is a new question


async def test_rules_that_changed_while_a_question_waited_count(tmp_path: Path):
    store = SQLiteStore(tmp_path / "s.db")
    agent = agent_with(calls("write", path="a"), store=store, capabilities=[Permissions(ask=["write"])])
    [asked] = (await agent.run("go", session="s")).waiting_for
    stricter = agent_with(says("done"), store=store, capabilities=[Permissions(deny=["write"])])
    result = await stricter.resume("s", answers={asked.id: Approve()})
    assert result.messages[2].parts[0].status == "denied"  # type: ignore[union-attr]
    await store.close()


async def test_questions_have_the_terms_of_the_template():
    asks = Ask("Is it all right?", approvers=("ann",), details={"team": "ops"})
    agent = agent_with(calls("write", path="a"), capabilities=[Permissions(ask=["write"], asks=asks)])
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    [asked] = result.waiting_for
    assert (asked.question, asked.approvers) == ("Is it all right?", ("ann",))
    assert asked.details == {"team": "ops", "permissions": {"rule": "ask write", "why": ""}}


async def test_a_template_without_a_question_asks_about_the_call():
    rules = Permissions(ask=["write"], asks=Ask(approvers=("ann",)))
    [asked] = (await agent_with(calls("write", path="a"), capabilities=[rules]).run("go")).waiting_for
    assert asked.question == "Allow this call of write? ask: rule ask write"


async def test_what_no_rule_matches_and_is_allowed_leaves_no_trace():
    agent = agent_with(calls("read", path="a"), says("done"), capabilities=[Permissions(unmatched="allow")])
    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    [decided] = [record for record in await agent.store.read("s") if isinstance(record, ToolDecided)]
    assert decided.answers == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Permissions(allow=["echo", "fail"]),
        lambda: Permissions(unmatched="allow", deny=["rm"]),
        lambda: Permissions(allow=["*"], deny=["bash(rm *)"]),
    ],
)
async def test_it_keeps_the_rules_for_capabilities(make: Any):
    await check_capability(make)


async def test_a_denial_is_the_answer_that_it_is_everywhere():
    await check_capability(lambda: Permissions(deny=["echo"], unmatched="allow"), changes_answer=True)


async def test_explain_has_the_rules_in_a_line_and_warns_of_odd_ones():
    child = agent_with(name="child")
    agent = Agent(ScriptedModel(), tools=[child.as_tool()])
    agent.with_capability(Permissions(allow=["read", "child", "raed"], deny=["child"]), band="guard")
    explained = agent.explain()
    assert "rules: 1 deny, 0 ask, 3 allow; other calls: ask" in str(explained)
    first, second = explained.data["warnings"]
    assert first.startswith("capability 'permissions': allow child never counts: deny child is stricter")
    assert "allow raed: 'raed' matches no tool (did you mean 'read'?)" in second


async def test_two_sets_of_rules_work_side_by_side():
    agent = agent_with(calls([("read", {"path": "a"}), ("write", {"path": "b"})]), says("done"))
    agent.with_capability(Permissions(allow=["*"], name="mine"))
    agent.with_capability(Permissions(allow=["read"], unmatched="deny", name="theirs"))
    result = await agent.run("go")
    assert [part.status for part in result.messages[2].parts] == ["ok", "denied"]  # type: ignore[union-attr]
