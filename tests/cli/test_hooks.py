"""`windlass hooks`: permission rules tried on calls, and policies checked, without running anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from windlass.cli import main


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text('allow = ["bash(git status *)", "read"]\ndeny = ["bash(rm *)"]\n')
    return path


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["hooks", *map(str, arguments)])


def test_it_prints_the_verdict_and_the_rule_that_gave_it(policy: Path):
    done = run("test", "--rules", policy, "--call", 'bash {"command": "rm -rf /"}')
    assert (done.exit_code, done.stdout) == (0, "deny: rule deny bash(rm *), about 'rm -rf /'\n")


def test_it_takes_several_calls_and_calls_without_arguments(policy: Path):
    calls = ["read", 'bash {"command": "git status && rm x"}', 'bash  {"command": "make"}']
    done = run("test", "--rules", policy, *[word for call in calls for word in ("--call", call)])
    assert done.stdout.splitlines() == [
        "allow: rule allow read",
        "deny: rule deny bash(rm *), about 'rm x'",
        "ask: no rule matches, about 'make'",
    ]


def test_it_prints_json(policy: Path):
    done = run("test", "--rules", policy, "--json", "--call", 'bash {"command": "rm x"}')
    assert json.loads(done.stdout) == [
        {"tool": "bash", "decision": "deny", "rule": "deny bash(rm *)", "why": "", "command": "rm x"}
    ]


@pytest.mark.parametrize(("expected", "code"), [("deny", 0), ("ask", 1), ("allow", 1)])
def test_a_script_can_expect_a_verdict(policy: Path, expected: str, code: int):
    assert run("test", "--rules", policy, "--expect", expected, "--call", 'bash {"command": "rm x"}').exit_code == code


@pytest.mark.parametrize("call", ["", '{"command": "ls"}', "bash ls", "bash [1]", 'bash {"command": "ls"', "bash 3"])
def test_a_call_that_is_none_is_refused(policy: Path, call: str):
    done = run("test", "--rules", policy, "--call", call)
    assert done.exit_code == 2
    assert "--call" in done.stderr


def test_a_policy_that_is_wrong_is_refused(tmp_path: Path):
    (tmp_path / "p.toml").write_text("alow = []")
    for command in (("test", "--call", "read"), ("check",)):
        done = run(*command, "--rules", tmp_path / "p.toml")
        assert done.exit_code == 1
        assert "alow" in done.stderr
    assert "No such file" in run("check", "--rules", tmp_path / "missing.toml").stderr


def test_what_a_call_hides_is_escaped(policy: Path):
    done = run("test", "--rules", policy, "--call", 'bash {"command": "rm \\u202e\\u001b[2J"}')
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


def test_problems_of_the_rules_are_reported(tmp_path: Path):
    (tmp_path / "p.toml").write_text('allow = ["bash(git push)", "raed"]\ndeny = ["bash(git *)"]')
    problem = "allow bash(git push) never counts: deny bash(git *) is stricter and matches the same calls"
    done = run("test", "--rules", tmp_path / "p.toml", "--call", "raed")
    assert (done.stdout, done.stderr) == ("allow: rule allow raed\n", f"warning: {problem}\n")
    done = run("check", "--rules", tmp_path / "p.toml")
    assert (done.exit_code, done.stdout) == (1, f"{problem}\n")


def test_rules_are_checked_against_the_tools_of_an_agent(tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "harbour.py").write_text(
        "from windlass import Agent\nfrom windlass.testing import ScriptedModel\n"
        "def read(path: str) -> str: ...\nagent = Agent(ScriptedModel(), tools=[read])\n"
    )
    monkeypatch.chdir(tmp_path)
    done = run("check", "--rules", policy, "--agent", "harbour.py:agent")
    assert done.exit_code == 1
    assert "allow bash(git status *): 'bash(git status *)' matches no tool" in done.stdout
    assert "allow read" not in done.stdout


def test_a_policy_without_problems_is_summed_up(policy: Path):
    done = run("check", "--rules", policy)
    assert (done.exit_code, done.stdout) == (0, "rules: 1 deny, 0 ask, 2 allow; other calls: ask\n")
