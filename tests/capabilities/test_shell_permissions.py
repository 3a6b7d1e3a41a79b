"""Permissions on shell commands: a real grammar, every command on its own, and nothing that is unknown is allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, tool
from windlass.capabilities import Permissions
from windlass.messages import ToolCall
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says

DATA = tomllib.loads(Path(__file__).with_name("shell_commands.toml").read_text(encoding="utf-8"))
COMMANDS = [
    (expected, command)
    for report in DATA["report"]
    for expected in ("allow", "ask", "deny")
    for command in report.get(expected, ())
]
POLICY = Permissions(**DATA["policy"])
OPTIONS = tomllib.loads(Path(__file__).with_name("shell_options.toml").read_text(encoding="utf-8"))
TOLD = [
    (expected, command)
    for report in OPTIONS["report"]
    for expected in ("allow", "ask", "deny")
    for command in report.get(expected, ())
]
BY_NAME = Permissions(**OPTIONS["policy"])
LARGE = Permissions(
    allow=[*DATA["policy"]["allow"], *[f"bash(some{n} thing *)" for n in range(300)]],
    ask=[f"bash(unused{n} -x *)" for n in range(300)],
    deny=[*DATA["policy"]["deny"], *[f"bash(*forbidden{n}*)" for n in range(300)]],
)


def call(command: Any, name: str = "bash") -> ToolCall:
    return ToolCall("1", name, json.dumps({"command": command}))


def verdict(command: str, **rules: Any) -> str:
    return Permissions(**rules).check(call(command)).decision


def test_there_are_at_least_two_hundred_commands_that_got_round_rules():
    assert len({command for expected, command in COMMANDS if expected != "allow"}) >= 200
    assert sum(expected == "allow" for expected, _ in COMMANDS) >= 30


@pytest.mark.parametrize(("expected", "command"), COMMANDS)
def test_a_command_gets_the_right_verdict(expected: str, command: str):
    assert str(POLICY.check(call(command))).partition(":")[0] == expected, str(POLICY.check(call(command)))


@pytest.mark.parametrize(("expected", "command"), TOLD)
def test_a_program_that_is_allowed_by_name_is_asked_about_if_it_is_told_to_run_code(expected: str, command: str):
    found = BY_NAME.check(call(command))
    assert found.decision == expected, str(found)


@pytest.mark.parametrize(
    "command", ["sed '" + "/" * 50_000, "awk '" + "print " * 20_000 + "'", "sed '" + "s/a/" * 9_000 + "'"]
)
def test_long_scripts_are_read_in_linear_time(command: str):
    assert BY_NAME.check(call(command)).decision == "ask"


@pytest.mark.parametrize(("expected", "command"), COMMANDS)
def test_many_other_rules_do_not_change_a_verdict(expected: str, command: str):
    found = LARGE.check(call(command))
    assert found.decision == expected or (expected == "allow" and "…" in found.command), str(found)


@pytest.mark.parametrize("command", [command for expected, command in COMMANDS if expected != "allow"])
def test_a_list_of_allowed_commands_alone_lets_none_of_them_through(command: str):
    assert verdict(command, allow=DATA["policy"]["allow"]) == "ask"


@pytest.mark.parametrize("command", [command for expected, command in COMMANDS if expected == "deny"])
def test_a_list_of_denied_commands_alone_finds_them_all(command: str):
    assert verdict(command, deny=DATA["policy"]["deny"], unmatched="allow") == "deny"


@pytest.mark.parametrize(
    ("rules", "expected", "command"),
    [
        pytest.param({"allow": own["allow"], "deny": own["deny"]}, expected, command, id=f"{expected}-{command}")
        for own in DATA["policy_of_its_own"]
        for key, expected in (("lets", "allow"), ("asks", "ask"), ("denies", "deny"))
        for command in own.get(key, ())
    ],
)
def test_a_command_gets_the_right_verdict_from_a_policy_of_its_own(rules: Any, expected: str, command: str):
    assert verdict(command, **rules) == expected


# ---------------------------------------------------------------- what a pattern means


@pytest.mark.parametrize(
    ("pattern", "command", "allowed"),
    [
        ("git status", "git status", True),
        ("git status", "git status -s", False),
        ("git status *", "git status", True),
        ("git status *", "git   status   -s  -b", True),
        ("git status:*", "git status -s", True),
        ("git*", "git", True),
        ("git*", "gitk", True),
        ("git*", "git push", False),
        ("rm build/*", "rm build/a", True),
        ("rm build/*", "rm build/a b", False),
        ("rm build/*", "rm build/a -rf /", False),
        ("rm build/*", "rm build/../a", False),
        ("rm build/*", "rm build/$X", False),
        ("rm build/*", 'rm "build/$X"', False),
        ("rm build/*", "rm build/*.o", True),
        ("rm build/*", "rm 'build/a b'", True),
        ("rm build/*", "rm build/{a,../b}", False),
        ("rm ../build/*", "rm ../build/a", True),
        ("cp * build/*", "cp a b build/c", True),
        ("cp * build/*", "cp build/c", True),
        ("cp * build/*", "cp a b", False),
        ("ls ?.py", "ls a.py", True),
        ("ls ?.py", "ls *.py", False),
        ("ls [ab].py", "ls a.py", True),
        ("ls [!ab].py", "ls $X.py", False),
        ("*", "anything at all", True),
        ("* --version", "git --version", True),
        ("* --version", "$X --version", False),
        ("command=X=* make", "X=1 make", True),
        ("make", "X=1 make", False),
        ("> /tmp/*", "> /tmp/x", True),
        ("> /tmp/*", "> /tmp/../etc/x", False),
        ("< data/*", "< data/x", True),
        ("[ *", "[ -f x ]", True),
        ("ls [ab]", "ls [ab]", False),
    ],
)
def test_what_a_pattern_allows(pattern: str, command: str, allowed: bool):
    assert (verdict(command, allow=[f"bash({pattern})"]) == "allow") is allowed


@pytest.mark.parametrize(
    ("pattern", "command", "expected"),
    [
        ("rm -rf *", "rm -fr x", "deny"),
        ("rm -rf *", "rm -r -f x", "deny"),
        ("rm -rf *", "rm --rec --for x", "deny"),
        ("rm -rf *", "rm -v -rf x", "deny"),
        ("rm -rf *", "rm x -rf", "deny"),
        ("rm -rf *", "rm -r x", "allow"),
        ("rm -rf /*", "rm -rf //x", "deny"),
        ("rm -rf /*", "rm -rf build", "allow"),
        ("rm -rf /*", 'rm -rf "$X"', "ask"),
        ("rm -rf /*", "rm -rf ~", "deny"),
        ("shutdown *", "shutdown", "deny"),
        ("*--force*", "git push --force", "deny"),
        ("*--force*", "git push $X", "ask"),
        ("git push *", 'git commit -m "fix $X"', "allow"),
        ("git push *", "git commit -m $X", "ask"),
        ("git push *", "git $X", "ask"),
        ("git push *", "echo git push", "allow"),
        ("git push *", "wrapper git push", "ask"),
        ("rm *", "python3 -c 'x'", "ask"),
        ("rm *", "python3 x.py", "allow"),
        ("rm *", "LD_PRELOAD=x ls", "ask"),
        ("rm *", "", "allow"),
        ("rm *", "# nothing", "allow"),
    ],
)
def test_what_a_pattern_denies(pattern: str, command: str, expected: str):
    assert verdict(command, deny=[f"bash({pattern})"], unmatched="allow") == expected


def test_the_verdict_names_the_rule_and_the_command():
    found = Permissions(allow=["bash(ls *)"], deny=["bash(rm *)"]).check(call("ls && timeout 5 rm -rf x"))
    assert str(found) == "deny: rule deny bash(rm *), about 'rm -rf x'"


def test_a_broad_rule_allows_even_what_cannot_be_parsed_unless_it_may_be_denied():
    assert verdict("if then (", allow=["bash"]) == "allow"
    assert verdict("if then (", allow=["bash(*)"]) == "allow"
    assert verdict("if then (", allow=["bash(git *)"]) == "ask"
    assert verdict("if then (", allow=["bash"], deny=["bash(rm *)"]) == "ask"
    assert verdict("if then (", deny=["bash(rm *)"], unmatched="deny") == "deny"
    assert verdict("if then (", deny=["bash"]) == "deny"


@pytest.mark.parametrize("command", [None, 3, ["rm", "x"], {"a": "rm x"}])
def test_a_command_that_is_not_a_text_is_not_allowed_by_a_narrow_rule(command: Any):
    assert Permissions(allow=["bash(git *)"]).check(call(command)).decision == "ask"
    found = Permissions(deny=["bash(rm *)"], unmatched="allow").check(call(command))
    assert str(found) == "ask: rule deny bash(rm *) (the command is not a text)"


def test_other_tools_can_be_shells_and_other_arguments_can_be_tested():
    rules = Permissions(allow=["run(git *)", "sh(command=ls *, cwd=/srv/)"], shells={"run": "script", "sh": "command"})
    assert rules.check(ToolCall("1", "run", '{"script": "git status; rm x"}')).decision == "ask"
    assert rules.check(ToolCall("1", "run", '{"script": "git status"}')).decision == "allow"
    assert rules.check(ToolCall("1", "sh", '{"command": "ls", "cwd": "/srv/../etc"}')).decision == "ask"
    assert rules.check(ToolCall("1", "sh", '{"command": "ls", "cwd": "/srv/x"}')).decision == "allow"


@pytest.mark.parametrize("pattern", ["cd x && make", "a; b", "a | b", "echo $(x)", "echo `x`", "ls > f"])
def test_a_pattern_that_spans_commands_is_reported(pattern: str):
    [problem] = Permissions(allow=[f"bash({pattern})"]).problems()
    assert "never matches: every command is compared on its own" in problem


@pytest.mark.parametrize("pattern", [":*", "*:*", " :*", "* *", "command=:*"])
def test_a_pattern_that_matches_every_command_without_saying_so_is_reported(pattern: str):
    [problem] = Permissions(allow=[f"bash({pattern})"]).problems()
    assert f"allow bash({pattern}) matches every command: name the program before" in problem
    assert Permissions(allow=["bash(*)", "write(:*)"]).problems() == []


def test_a_shadowed_pattern_is_reported():
    rules = Permissions(
        allow=["bash(git push)", "bash(command=git log *)"], deny=["bash(git push *)"], ask=["bash(git *)"]
    )
    assert rules.problems() == [
        "allow bash(git push) never counts: ask bash(git *) is stricter and matches the same calls",
        "allow bash(command=git log *) never counts: ask bash(git *) is stricter and matches the same calls",
    ]


def test_a_shell_whose_parameter_has_another_name_is_reported():
    @tool(name="sh")
    def shell(script: str) -> str:
        """Run a script."""
        return script

    [problem] = Permissions(deny=["sh"]).warnings({"sh": shell})
    assert problem == "tool 'sh' has no parameter 'command' with a shell command: name the right one in shells"
    assert Permissions(deny=["sh"], shells={"sh": "script"}).warnings({"sh": shell}) == []


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "script",
    [
        "(" * 10_000, "$(" * 4_000, "ls; " * 25_000, "a|" * 4_000 + "a", "a&&" * 2_700 + "a", "{ " * 4_000, "`" * 8_000,
        "!" * 8_000, "if " * 2_700, "a" * 9_000, "ls\x00", "ls\r", "ls\x1b[2J", "\ud800", "case a in " * 800,
        "<<a " * 2_000,
        "x=" + "[" * 8_000, "${a:-" * 1_600, "\\\n" * 4_000 + "(",
    ],
)  # fmt: skip
def test_a_script_that_is_made_to_hurt_is_asked_about(script: str):
    found = Permissions(allow=["bash(ls *)", "bash(a)"]).check(call(script))
    assert (found.decision, found.rule) == ("ask", None)


def test_a_long_script_of_allowed_commands_is_still_understood():
    assert verdict("ls\n" * 399, allow=["bash(ls *)"]) == "allow"
    assert verdict("ls\n" * 401, allow=["bash(ls *)"]) == "ask"
    assert verdict("ls\n" * 399 + "rm x", allow=["bash(ls *)"], deny=["bash(rm *)"]) == "deny"


def test_scripts_that_run_scripts_are_followed_to_a_depth():
    script = "rm x"
    for _ in range(4):
        script = "bash -c " + json.dumps(script)
    assert verdict(script, allow=["bash(bash *)"], deny=["bash(rm *)"]) in ("deny", "ask")
    assert verdict("eval eval eval eval eval eval eval eval rm x", deny=["bash(rm *)"], unmatched="allow") == "ask"


def test_without_the_extra_every_command_is_asked_about(tmp_path: Path):
    program = (
        "import importlib.metadata as m, sys\n"
        "found = m.distribution\n"
        "def distribution(name):\n"
        "    if name == 'shfmt-py': raise m.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "m.distribution = distribution\n"
        "from windlass.capabilities import Permissions\n"
        "from windlass.messages import ToolCall\n"
        "rules = Permissions(allow=['bash(ls *)'])\n"
        "print(rules.check(ToolCall('1', 'bash', '{\"command\": \"ls\"}')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ask: no rule matches (shell commands are only understood with the extra 'shell'")


def test_another_shfmt_in_the_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = tmp_path / "shfmt"
    fake.write_text('#!/bin/sh\necho \'{"Type": "File"}\'\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert verdict("rm another-shfmt", deny=["bash(rm *)"], unmatched="allow") == "deny"


def test_any_number_of_different_scripts_can_be_judged_at_once():
    rules = Permissions(allow=["bash(echo *)"], deny=["bash(rm *)"])
    scripts = ["; ".join([f"echo {n}.{part}" for part in range(350)]) for n in range(80)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda script: rules.check(call(script)).decision, scripts))
    assert set(found) == {"allow"}


# ---------------------------------------------------------------- in an agent


@tool(name="bash", inline=True)
def bash(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


async def test_an_agent_runs_what_is_allowed_and_asks_about_the_rest():
    both = calls([("bash", {"command": "git status"}), ("bash", {"command": "git status; rm x"})])
    agent = Agent(ScriptedModel(both, says("done")), tools=[bash])
    agent.with_capability(Permissions(allow=["bash(git status *)"], deny=["bash(rm *)"]), band="guard")
    result = await agent.run("go")
    ran, denied = result.messages[2].parts
    assert ran.text == "ran git status"  # type: ignore[union-attr]
    assert "The rule 'bash(rm *)' forbids 'rm x'." in denied.text  # type: ignore[union-attr]


async def test_shell_rules_are_the_same_however_the_agent_runs():
    def factory() -> Agent[Any, Any]:
        both = calls([("bash", {"command": "ls"}), ("bash", {"command": "ls | wc"}), ("bash", {"command": "rm x"})])
        rules = Permissions(allow=["bash(ls *)"], deny=["bash(rm *)"])
        return Agent(ScriptedModel(both, says("done")), tools=[bash], capabilities=[rules])

    await assert_same_everywhere(factory)


async def test_it_keeps_the_rules_for_capabilities_where_it_parses():
    rules = {"allow": ["echo(hel*)", "fail"], "deny": ["echo(rm *)"], "shells": {"echo": "text"}}
    await check_capability(lambda: Permissions(**rules), changes_answer=True)  # type: ignore[arg-type]
