"""`windlass sessions import --format` and `export --format`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from windlass.cli import main

MESSAGES = [{"role": "user", "content": "What is x?"}, {"role": "assistant", "content": "Seven."}]


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["sessions", *words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("lines", [True, False])
def test_a_conversation_goes_in_and_out(tmp_path: Path, lines: bool) -> None:
    file, store = tmp_path / "chat.json", f"sqlite:///{tmp_path}/a.db"
    file.write_text("\n".join(map(json.dumps, MESSAGES)) if lines else json.dumps(MESSAGES))
    assert "imported s1" in run("import", "--store", store, str(file), "--format", "openai", "--as", "s1")
    assert list(map(json.loads, run("export", "--store", store, "s1", "--format", "openai").splitlines())) == MESSAGES
    [entry, _] = map(json.loads, run("export", "--store", store, "s1", "--format", "langchain").splitlines())
    assert entry["type"] == "human"
    assert run("export", "--store", store, "s1", "--format", "eval").strip() == ""


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    file, store = tmp_path / "chat.json", f"sqlite:///{tmp_path}/a.db"
    block = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    body = {
        "model": "claude",
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [block]}],
    }
    file.write_text(json.dumps(body))
    said = CliRunner().invoke(
        main, ["sessions", "import", "--store", store, str(file), "--format", "anthropic", "--as", "s"]
    )
    assert "left out: 'model' of the body" in said.stderr
    said = CliRunner().invoke(main, ["sessions", "export", "--store", store, "s", "--format", "openai"])
    assert said.stderr == "left out: message 1: thinking\n"
    assert len(said.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "more", "problem"),
    [
        ("[]", [], "pass --as ID"),
        ("{", ["--as", "s1"], "neither JSON nor JSON lines"),
        ("[]", ["--as", "s1"], "no messages"),
    ],
)
def test_what_cannot_be_imported_is_named(tmp_path: Path, content: str, more: list[str], problem: str) -> None:
    file = tmp_path / "chat.json"
    file.write_text(content)
    arguments: list[Any] = ["import", "--store", f"sqlite:///{tmp_path}/a.db", str(file), "--format", "openai", *more]
    result = CliRunner().invoke(main, ["sessions", *arguments])
    assert result.exit_code != 0
    assert problem in result.output + str(result.exception)
