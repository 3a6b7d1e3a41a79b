"""`windlass explain`: it finds the agent a user names, and says clearly why it does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from windlass import Agent
from windlass.cli import main
from windlass.cli.loading import CannotLoad, load_agent

HARBOUR = """
from dataclasses import dataclass
from windlass import Agent, Deny, ToolCalling
from windlass.testing import ScriptedModel
from crane import weight

print("imported")
def lift(tons: int) -> str: ...

agent = Agent(ScriptedModel(), tools=[lift], name="first")

@agent.gate(ToolCalling, tool="lift")
def careful(event):
    return Deny("too heavy")

def make():
    print("made")
    return Agent(ScriptedModel(), name="second")

class Place:
    inner = Agent(ScriptedModel(), name="third")

def wants(something): ...
def fails(): raise ValueError("no crane")
async def slow(): return agent
number = 7

def unfinished():
    made = Agent(ScriptedModel())
    @made.gate(ToolCalling)
    def odd(event, whatever): ...
    return made
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a module, its neighbour and a broken one. What is imported from it is forgotten afterwards."""
    (tmp_path / "harbour.py").write_text(HARBOUR, encoding="utf-8")
    (tmp_path / "crane.py").write_text("weight = 3\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("import crane\n\n1 / 0\n", encoding="utf-8")
    (tmp_path / "lacking.py").write_text("import there_is_no_such_thing\n", encoding="utf-8")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    package = tmp_path / "fleet" / "ships"
    package.mkdir(parents=True)
    (package / "tug.py").write_text(HARBOUR.replace("first", "tug"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("harbour:agent", "first"),
        ("harbour", "first"),
        ("harbour:", "first"),
        ("harbour:make", "second"),
        ("harbour:Place.inner", "third"),
        ("harbour.py:agent", "first"),
        ("harbour.py", "first"),
        ("./harbour.py:make", "second"),
        ("fleet.ships.tug:agent", "tug"),
        ("fleet/ships/tug.py", "tug"),
    ],
)
def test_an_agent_is_found(folder, target, name):
    found = load_agent(target)
    assert isinstance(found, Agent)
    assert found.name == name


def test_a_file_can_be_named_by_its_whole_path_and_finds_its_neighbours(folder, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load_agent(f"{folder}/harbour.py:agent").name == "first"


def test_a_file_named_like_a_module_that_is_loaded_does_not_take_its_place(folder):
    (folder / "json.py").write_text(HARBOUR, encoding="utf-8")
    assert load_agent("json.py").name == "first"
    assert sys.modules["json"] is json


WRONG = [
    ("nowhere:agent", "there is no module 'nowhere'"),
    ("fleet.nothing:agent", "there is no module 'fleet.nothing'"),
    ("nowhere.py:agent", "there is no file 'nowhere.py'"),
    ("two words", "neither the name of a module nor the path"),
    ("harbour:absent", "'harbour' has no 'absent'; agents in it: agent"),
    ("harbour:Place.absent", "has no 'Place.absent'"),
    ("harbour:number", "not an agent but a value of type int"),
    ("harbour:wants", "cannot be called without arguments"),
    ("harbour:fails", "ValueError: no crane"),
    ("harbour:slow", "did not return an agent but a value of type coroutine"),
    ("broken:agent", "'broken' cannot be imported: ZeroDivisionError"),
    ("broken.py", "broken.py:3)"),
    ("lacking:agent", "No module named 'there_is_no_such_thing'"),
    ("leaving:agent", "cannot be imported: SystemExit: 3"),
    ("harbour:unfinished", "the agent cannot be compiled: gate 'odd'"),
]


@pytest.mark.parametrize(("target", "message"), WRONG)
def test_what_cannot_be_loaded_is_told_without_a_traceback(folder, target, message):
    result = CliRunner().invoke(main, ["explain", target])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_an_import_that_fails_leaves_nothing_behind(folder):
    with pytest.raises(CannotLoad):
        load_agent("broken.py")
    assert "broken" not in sys.modules


def test_the_command_prints_the_explanation(folder):
    result = CliRunner().invoke(main, ["explain", "harbour:agent"])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{load_agent('harbour:agent').explain()}\n"
    assert "careful · harbour.py:" in result.stdout


def test_in_a_pipe_stdout_holds_the_json_alone(folder):
    command = [sys.executable, "-W", "error", "-m", "windlass", "explain", "harbour:make", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["agent"] == "second"
    assert done.stderr.split() == ["imported", "made"]


def test_in_a_pipe_the_text_is_plain_and_fits_the_page(folder):
    command = [sys.executable, "-W", "error", "-m", "windlass", "explain", "harbour.py"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
