"""`--tools` and `--yolo`: a model from the command line works in the current folder, and asks before it changes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.servers.vendor import Reply, Vendor

from windlass.cli import main

from .terminals import Terminal

MODEL = "openai-chat:scripted"
EDIT = ("edit", {"path": "calc.py", "old": "a - b", "new": "a + b"})
FIX: tuple[Reply, ...] = (
    ("read", {"path": "calc.py"}),
    ("write_todos", {"items": [{"text": "fix add"}]}),
    EDIT,
    ("shell", {"command": "python3 test_calc.py && echo passed"}),
    "Fixed.",
)
Play = Callable[..., Vendor]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (tmp_path / "test_calc.py").write_text("from calc import add\nassert add(2, 3) == 5\n")
    return tmp_path


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Let a vendor play a script for the models of this test."""
    with ExitStack() as stack:

        def start(*script: Reply) -> Vendor:
            vendor = stack.enter_context(Vendor(*script).serving())
            monkeypatch.setenv("OPENAI_BASE_URL", vendor.url)
            return vendor

        yield start


def run(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code, the JSON lines and the errors of a run in a pipe."""
    command = [sys.executable, "-m", "windlass", "run", "-m", MODEL, "--json", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def results(lines: list[dict[str, Any]]) -> dict[str, str]:
    return {line["name"]: line["status"] for line in lines if line["type"] == "result"}


def test_without_tools_the_model_gets_none(play: Play):
    vendor = play("Hello.")
    code, _, errors = run("hi")
    assert code == 0, errors
    assert "tools" not in vendor.asked[0]


def test_reading_is_allowed_and_there_is_nothing_else(play: Play):
    vendor = play(("read", {"path": "calc.py"}), ("read", {"path": "../secret"}), ("shell", {"command": "ls"}), "Done.")
    code, lines, errors = run("--tools", "read", "look")
    assert code == 0, errors
    assert [tool["function"]["name"] for tool in vendor.asked[0]["tools"]] == ["read", "glob", "grep"]
    assert [line["status"] for line in lines if line["type"] == "result"] == ["ok", "error", "denied"]


def test_changes_and_commands_are_asked_about_and_the_command_to_continue_has_the_tools(play: Play, folder: Path):
    play(*FIX)
    with Terminal(folder, "run", "-m", MODEL, "--tools", "write", "--session", "s1", "Fix add.") as terminal:
        terminal.shows("Allow this call of edit?").press("y\r").shows("Allow this call of shell?").press("later\r")
        assert terminal.ends() == 3
    continued = f"windlass run --model {MODEL} --tools write --session s1"
    assert continued in terminal.screen.replace("\n        ", "")
    with Terminal(folder, *continued.split()[1:]) as terminal:
        terminal.shows("python3 test_calc.py").press("y\r").shows("← shell: passed").shows("Fixed.")
        assert terminal.ends() == 0


def test_yolo_asks_nothing_where_commands_are_isolated(play: Play, folder: Path):
    outside = folder.parent / "outside"
    play(*FIX[:-1], ("shell", {"command": f"echo x > {outside}"}), ("write", {"path": "../outside"}), "Fixed.")
    code, lines, errors = run("--tools", "write", "--yolo", "Fix add.")
    assert code == 0, errors
    assert results(lines) == {"read": "ok", "write_todos": "ok", "edit": "ok", "shell": "ok", "write": "error"}
    assert [line for line in lines if line["type"] == "question"] == []
    assert (folder / "calc.py").read_text().endswith("a + b\n")
    assert not outside.exists()


def test_another_model_is_asked_from_then_on(play: Play, folder: Path):
    vendor = play("Hello.")
    with Terminal(folder, "chat", "-m", MODEL, "--tools", "read") as terminal:
        terminal.shows("openai-chat:scripted · tools: read, glob, grep").press("one\r").shows("completed")
        terminal.press("/model openai-chat:other\r").shows("model: openai-chat:other")
        terminal.press("two\r").shows("completed", count=2).press("/cost\r").shows("2 requests, 30 tokens")
        terminal.press("/compact in one line\r").shows("nothing to compact")
        terminal.press("/exit\r")
        assert terminal.ends() == 0
    assert [one["model"] for one in vendor.asked] == ["scripted", "other"]


def test_yolo_does_not_exist_without_isolation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windlass.tools.isolation._problem", lambda sandbox: "broken")
    for command in (["run", "hi"], ["chat"]):
        monkeypatch.setattr("windlass.cli.chat._is_terminal", lambda: True)
        refused = CliRunner().invoke(main, [*command, "-m", MODEL, "--tools", "write", "--yolo"])
        assert (refused.exit_code, "there is no --yolo here" in refused.stderr) == (2, True), refused.output


@pytest.mark.parametrize("tools", [[], ["--tools", "none"], ["--tools", "read"]])
def test_yolo_goes_with_tools_that_are_asked_about(tools: list[str]):
    refused = CliRunner().invoke(main, ["run", "-m", MODEL, *tools, "--yolo", "hi"])
    assert (refused.exit_code, "--yolo goes with --tools write" in refused.stderr) == (2, True)


@pytest.mark.parametrize("option", [["--tools", "read"], ["--yolo"]])
def test_an_agent_has_its_own_tools(option: list[str], folder: Path):
    (folder / "own.toml").write_text('model = "openai-chat:scripted"\n')
    refused = CliRunner().invoke(main, ["run", "--agent", "own.toml", *option, "hi"])
    assert (refused.exit_code, f"{option[0]} goes with --model" in refused.stderr) == (2, True)
