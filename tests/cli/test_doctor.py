"""`windlass doctor` says what is there, what is missing, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.servers.vendor import Vendor

from windlass.cli import doctor, main
from windlass.keys import VARIABLES
from windlass.trust import trust

from .terminals import Terminal


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in {name for names in VARIABLES.values() for name in names}:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def findings(*options: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    result = CliRunner().invoke(main, ["doctor", "--json", *options])
    by_name: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(result.stdout):
        by_name.setdefault(one["what"], []).append(one)
    return result.exit_code, by_name


def test_every_part_is_checked_and_keys_are_not_shown(monkeypatch: pytest.MonkeyPatch):
    code, found = findings()
    assert code == 0
    assert [*found] == ["python", "extras", "keys", "store", "isolation", "ripgrep", "terminal", "trusted"]
    assert found["keys"][0]["state"] == "warn"
    assert "windlass keys set" in found["keys"][0]["remedy"]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-geheim")
    printed = CliRunner().invoke(main, ["doctor"]).stdout
    assert "ok    keys       openai: environment (OPENAI_API_KEY)" in printed
    assert "geheim" not in printed


def test_a_damaged_store_fails_the_check(home: Path):
    (home / "home" / "data").mkdir(parents=True)
    (home / "home" / "data" / "sessions.db").write_text("no database" * 100)
    code, found = findings()
    assert (code, found["store"][0]["state"]) == (1, "fail")


def test_a_network_file_system_is_warned_about(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_file_system", lambda folder: "nfs4")
    code, found = findings()
    assert (code, found["store"][0]["state"]) == (0, "warn")


def test_a_changed_trusted_file_is_named(home: Path):
    (home / "agent.toml").write_text("a")
    trust(home / "agent.toml")
    (home / "agent.toml").write_text("b")
    _, found = findings()
    assert found["trusted"][0]["state"] == "warn"
    assert str(home / "agent.toml") in found["trusted"][0]["text"]


def test_a_spinner_shows_while_a_model_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch):
    with Vendor("OK").serving() as vendor:
        monkeypatch.setenv("OPENAI_BASE_URL", vendor.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        with Terminal(home, "doctor", "--model", "openai-chat:m", rows=60, columns=200) as terminal:
            terminal.shows("asks openai-chat:m").shows("openai-chat:m answers")
            assert terminal.ends() == 0
    assert "asks" not in terminal.screen


def test_a_model_is_asked_only_if_it_is_named():
    code, found = findings("--model", "opnai:x")
    assert (code, found["model"][0]["state"]) == (1, "fail")
    assert "use 'openai:x'" in found["model"][0]["text"]
