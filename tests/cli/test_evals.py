"""`windlass eval`: cases from a file, run against an agent or against recorded sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from windlass.cli import main

AGENT = """
from windlass import Agent, tool
from windlass.testing import FunctionModel, calls, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


async def answer(request):
    if request.messages[-1].role == "tool":
        return says("The sum is 3.")
    return calls("add", a=1, b=2) if "1 + 2" in request.messages[-1].text else says("Hello.")


async def verdict(request):
    return calls("submit", passed="Hello" in request.messages[0].text, reason="seen")


def scope(session):
    raise RuntimeError("no scope for " + session)


agent = Agent(FunctionModel(answer), tools=[add], name="calculator")
stored = Agent(FunctionModel(answer), tools=[add], store="sqlite:///log.db")
"""

CASES = """
- {name: sum, input: "1 + 2?", tags: math, expect: {contains: "3", called: add}}
- {name: greeting, input: "Hi", expect: {contains: Hello, not_called: add}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_STORE", raising=False)
    (tmp_path / "calculator.py").write_text(AGENT)
    (tmp_path / "cases.yaml").write_text(CASES)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["eval", *arguments])


def test_it_prints_a_line_for_each_case_and_the_rate():
    done = run("cases.yaml", "--agent", "calculator.py", "--repeat", "2")
    assert done.exit_code == 0, done.output
    assert "4 of 4 trials passed: 100.0%" in done.output
    assert done.output.splitlines()[1].split()[:2] == ["sum", "2/2"]


def test_a_low_rate_exits_with_1_and_says_why(folder: Path):
    (folder / "cases.yaml").write_text(CASES.replace("contains: Hello", "contains: Goodbye"))
    done = run("cases.yaml", "--agent", "calculator.py")
    assert done.exit_code == 1
    assert "contains 'Goodbye': 'Goodbye' is not in 'Hello.'" in done.output
    assert run("cases.yaml", "--agent", "calculator.py", "--min-rate", "0.5").exit_code == 0


def test_cases_are_chosen_by_name_and_tag():
    assert "1 of 1" in run("cases.yaml", "--agent", "calculator.py", "--tag", "math").output
    assert "1 of 1" in run("cases.yaml", "--agent", "calculator.py", "--case", "greeting").output
    done = run("cases.yaml", "--agent", "calculator.py", "--tag", "none")
    assert done.exit_code == 2
    assert "no case has these names and tags" in done.output


def test_json_junit_save_and_compare(folder: Path):
    done = run("cases.yaml", "--agent", "calculator.py", "--json", "--save", "a.json", "--junit", "a.xml")
    assert [trial["passed"] for trial in json.loads(done.output)["trials"]] == [True, True]
    assert ElementTree.parse("a.xml").getroot()[0].attrib["tests"] == "2"
    (folder / "cases.yaml").write_text(CASES.replace("contains: Hello", "contains: Goodbye"))
    done = run("cases.yaml", "--agent", "calculator.py", "--compare", "a.json")
    assert "pass rate 100.0% → 50.0%" in done.output
    assert "greeting  100% → 0%" in done.output


def test_recorded_sessions_are_checked_without_an_agent(folder: Path):
    made: dict[str, Any] = {}
    exec(AGENT, made)
    made["stored"].run_sync("1 + 2?", session="math/1")
    (folder / "recorded.yaml").write_text('- {session: "math/*", expect: {called: add}}\n')
    done = run("recorded.yaml", "--store", "sqlite:///log.db")
    assert done.exit_code == 0, done.output
    assert "1 of 1 trials passed" in done.output


def test_a_judge_is_named_on_the_command_line(folder: Path):
    (folder / "cases.yaml").write_text('- {input: Hi, expect: {judge: "It greets."}}\n')
    done = run("cases.yaml", "--agent", "calculator.py")
    assert done.exit_code == 1
    assert "--judge MODEL" in done.output
    done = run("cases.yaml", "--agent", "calculator.py", "--judge", "nobody:model")
    assert done.exit_code == 1
    assert "nobody" in done.output


def test_a_mistake_in_the_file_is_shown_without_a_traceback(folder: Path):
    (folder / "cases.yaml").write_text("- {input: Hi, expct: {}}\n")
    done = run("cases.yaml", "--agent", "calculator.py")
    assert done.exit_code == 1
    assert "did you mean 'expect'" in done.output
    assert "Traceback" not in done.output


def test_a_scope_that_fails_is_an_error_of_each_trial():
    done = run("cases.yaml", "--agent", "calculator.py", "--scope", "calculator.py:scope")
    assert done.exit_code == 1
    assert "no scope for sum" in done.output
    assert "2 trials could not be run or judged" in done.output


@pytest.mark.parametrize("option", ["--save", "--junit"])
def test_a_file_that_cannot_be_written_is_named_before_anything_runs(option: str, folder: Path) -> None:
    (folder / "calculator.py").write_text(AGENT + "\nasync def answer(request):\n    raise SystemExit('it ran')\n")
    result = run("cases.yaml", "--agent", "calculator:agent", option, "nowhere/file")
    assert result.exit_code == 2
    assert "'nowhere/file' cannot be written" in result.output


def test_cases_with_an_input_need_an_agent() -> None:
    result = run("cases.yaml")
    assert result.exit_code == 2
    assert "case 'sum' has an input, which needs an agent: pass --agent" in result.output
