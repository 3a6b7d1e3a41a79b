"""`windlass init`: four questions, and a file that works."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from windlass.agent_files import json_schema, load_found_agent
from windlass.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.delenv("WINDLASS_MODEL", raising=False)
    return tmp_path


@pytest.mark.parametrize("may", ["nothing", "read", "write"])
@pytest.mark.parametrize("store", ["user", "folder", "memory"])
def test_every_answer_makes_a_valid_trusted_file(may: str, store: str):
    given = ["--model", "openai:gpt-5", "--may", may, "--store", store, "--name", 'a "b"\n\\']
    result = CliRunner().invoke(main, ["init", *given])
    assert result.exit_code == 0, result.output
    text = Path("agent.toml").read_text()
    jsonschema.validate(tomllib.loads(text), json_schema())
    agent = load_found_agent("agent.toml")
    assert agent.name == 'a "b"\n\\'
    assert ("write" in agent.tools, "read" in agent.tools) == (may == "write", may != "nothing")
    assert ("shell" in agent.tools) == (may == "write")
    if may == "write":
        assert "guard band" in str(agent.explain())
        assert "other calls: ask" in str(agent.explain())
    schema = text.splitlines()[0].removeprefix("#:schema file://")
    assert Path(schema).is_file()


def test_defaults_need_no_answer():
    assert CliRunner().invoke(main, ["init", "--yes"]).exit_code == 0
    assert tomllib.loads(Path("agent.toml").read_text())["model"] == "local:smollm2"


def test_a_file_is_never_overwritten():
    Path("mine.toml").write_text("mine")
    result = CliRunner().invoke(main, ["init", "mine.toml", "--yes"])
    assert (result.exit_code, Path("mine.toml").read_text()) == (1, "mine")
    assert "exists already" in result.stderr


def test_a_model_that_is_none_is_refused():
    result = CliRunner().invoke(main, ["init", "--yes", "--model", "opnai:x"])
    assert result.exit_code == 2
    assert "use 'openai:x'" in result.stderr
    assert not Path("agent.toml").exists()


def test_the_questions_are_asked_on_a_terminal(folder: Path):
    pexpect = pytest.importorskip("pexpect")
    child = pexpect.spawn(sys.executable, ["-m", "windlass", "init"], cwd=str(folder), timeout=60, encoding="utf-8")
    child.expect("agent's name")
    child.sendline("desk")
    child.expect("Which model")
    child.sendline("gpt-5")
    child.expect("is not a model: use 'openai:gpt-5'")
    child.expect("Which model")
    child.sendline("openai:gpt-5")
    child.expect("What may it do")
    child.sendline("write")
    child.expect("sessions stored")
    child.sendline("")
    child.expect("wrote agent.toml")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    written = tomllib.loads((folder / "agent.toml").read_text())
    assert (written["name"], written["model"], written["store"]) == ("desk", "openai:gpt-5", "user")
