"""Agent files that are found in a folder: used only if they, and the files that they use, are trusted as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from windlass.agent_files import NotTrusted, find_agent_file, load_found_agent, trust_agent_file
from windlass.cli import main
from windlass.tools import Workspace

TEXT = """\
model = { use = "parts:model" }
tools = ["parts:add"]
system_file = "prompt.md"
[capabilities.permissions]
load = "policy.toml"
[mcp.files]
command = ["server", "--root", "."]
optional = true
[mcp.far]
url = "http://127.0.0.1:9/x"
optional = true
[subagents.helper]
file = "below/helper.toml"
"""


@pytest.fixture
def found(folder: Path) -> Path:
    (folder / "prompt.md").write_text("You add.")
    (folder / "policy.toml").write_text('allow = ["add"]')
    (folder / "below").mkdir()
    (folder / "below" / "helper.toml").write_text('model = { use = "parts:model" }\nsystem_file = "help.md"\n')
    (folder / "below" / "help.md").write_text("You help.")
    (folder / "agent.toml").write_text(TEXT)
    return folder


def test_a_folder_has_one_agent_file(folder: Path):
    assert find_agent_file(folder) is None
    (folder / "agent.toml").write_text("")
    assert find_agent_file() == Path("agent.toml")
    (folder / "windlass.toml").write_text("")
    assert find_agent_file(folder) == folder / "windlass.toml"


def test_a_found_file_is_used_only_when_it_is_trusted(found: Path):
    with pytest.raises(NotTrusted, match=r"agent\.toml was found here and is not trusted"):
        load_found_agent("agent.toml")
    trust_agent_file("agent.toml")
    assert load_found_agent("agent.toml").system == "You add."


@pytest.mark.parametrize(
    "name", ["agent.toml", "prompt.md", "policy.toml", "below/helper.toml", "below/help.md", "parts.py"]
)
def test_a_change_of_any_part_asks_again(found: Path, name: str):
    trust_agent_file("agent.toml")
    load_found_agent("agent.toml")
    file = found / name
    file.write_text(file.read_text() + "\n")
    with pytest.raises(NotTrusted) as raised:
        load_found_agent("agent.toml")
    assert raised.value.changed.resolve() == file
    trust_agent_file("agent.toml")
    load_found_agent("agent.toml")


def test_a_module_that_appears_in_the_folder_asks_again(folder: Path):
    (folder / "agent.toml").write_text('model = { use = "parts:model" }\n[capabilities.x]\nuse = "colorsys:x"\n')
    trust_agent_file("agent.toml")
    (folder / "colorsys.py").write_text("")
    with pytest.raises(NotTrusted, match=r"colorsys\.py is new or was changed"):
        load_found_agent("agent.toml")


def test_trust_shows_what_the_file_does_and_asks(found: Path):
    declined = CliRunner().invoke(main, ["trust"], input="n\n")
    assert declined.exit_code == 1
    shown = declined.stdout
    assert "starts the command server --root ." in shown
    assert "connects to http://127.0.0.1:9/x" in shown
    assert "runs parts:add from parts.py" in shown
    assert "reads file policy.toml" in shown
    with pytest.raises(NotTrusted):
        load_found_agent("agent.toml")
    assert CliRunner().invoke(main, ["trust"], input="y\n").exit_code == 0
    load_found_agent("agent.toml")
    (found / "policy.toml").write_text("")
    listed = CliRunner().invoke(main, ["trust", "--list"]).stdout
    assert f"changed  {found / 'policy.toml'}" in listed
    assert f"trusted  {found / 'agent.toml'}" in listed
    assert CliRunner().invoke(main, ["trust", "agent.toml", "--remove"]).exit_code == 0
    with pytest.raises(NotTrusted):
        load_found_agent("agent.toml")


def test_passwords_of_stores_are_not_shown(folder: Path):
    (folder / "agent.toml").write_text('model = "openai:x"\nstore = "postgresql://me:secret@host/db"\n')
    shown = CliRunner().invoke(main, ["trust", "--yes"]).stdout
    assert "stores sessions in postgresql://…@host/db" in shown
    assert "secret" not in shown


def test_run_uses_a_trusted_file_of_the_folder_and_refuses_another(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WINDLASS_MODEL", raising=False)
    (folder / "agent.toml").write_text('model = { use = "parts:model" }\ntools = ["parts:add"]\n')
    refused = CliRunner().invoke(main, ["run", "1 + 2?"])
    assert refused.exit_code != 0
    assert "is not trusted" in refused.stderr
    trust_agent_file("agent.toml")
    done = CliRunner().invoke(main, ["run", "1 + 2?"])
    assert (done.exit_code, done.stdout.strip()) == (0, "three"), done.stderr


def test_a_workspace_is_rooted_beside_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "work").mkdir()
    file = folder / "agent.toml"
    file.write_text('model = { use = "parts:model" }\n[workspace]\nroot = "work"\nwrite = false\nshell = false\n')
    trust_agent_file(file)
    monkeypatch.chdir("/")
    agent = load_found_agent(file)
    assert {"read", "glob", "grep"} <= set(agent.tools)
    assert "write" not in agent.tools
    assert str(Workspace(folder / "work").root) in str(agent.explain())
