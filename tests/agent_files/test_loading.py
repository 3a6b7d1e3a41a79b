"""An agent file makes the agent that it describes."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

import windlass.capabilities
from windlass import Agent
from windlass._hooks import hooks
from windlass.agent_files import AgentFileError, load_agent_file
from windlass.agent_files.schema import HOOK_OPTIONS
from windlass.cli import main
from windlass.cli.loading import load_agent
from windlass.records import Delegated, ToolReturned

HEAD = 'model = { use = "parts:model" }\ntools = ["parts:add"]\n'


def write(folder: Path, text: str, name: str = "agent.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_file_runs_like_an_agent_in_code(folder: Path):
    agent = load_agent_file(write(folder, HEAD + 'system = "You add."'))
    assert agent.name == "agent"
    assert agent.system == "You add."
    assert agent.run_sync("1 + 2?").text == "three"


def test_every_capability_has_an_entry_point_and_can_be_named(folder: Path):
    values = [point.value.partition(":") for point in entry_points(group="windlass.capabilities")]
    points = {name for module, _, name in values if module == "windlass.capabilities"}
    kinds = [getattr(windlass.capabilities, name) for name in windlass.capabilities.__all__]
    assert points == {kind.__name__ for kind in kinds if isinstance(kind, type) and hasattr(kind, "install")}


def test_capabilities_get_their_options_and_stay_in_order(folder: Path):
    agent = load_agent_file(
        write(
            folder,
            HEAD + '[capabilities.retry]\nattempts = 7\n[capabilities.redact]\nkinds = ["email"]\n'
            '[capabilities.slow]\nuse = "retry"\ntools = ["add"]\n'
            '[capabilities.trim]\ntrigger = { use = "AtTokens", count = 900 }\n',
        )
    )
    text = str(agent.explain())
    assert "retry · 7 attempts" in text
    assert "AtTokens(900)" in text
    names = [one["name"] for one in agent.explain().data["capabilities"]]
    assert names == ["retry", "redact", "slow", "trim"]


def test_a_table_makes_the_one_class_that_an_option_takes(folder: Path):
    agent = load_agent_file(
        write(
            folder, HEAD + '[capabilities.permissions]\nask = ["add"]\nasks = { question = "Add?" }\nband = "guard"\n'
        )
    )
    result = agent.run_sync("1 + 2?")
    (question,) = result.waiting_for
    assert question.question == "Add?"


def test_a_function_is_named_where_a_text_is_legal_too(folder: Path):
    agent = load_agent_file(
        write(folder, HEAD + '[capabilities.approval]\nwhen = "add"\nquestion = { use = "parts:question" }\n')
    )
    (question,) = agent.run_sync("1 + 2?").waiting_for
    assert question.question == "May it?"


def test_a_policy_is_loaded_from_beside_the_file(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch):
    write(folder, 'deny = ["add"]', "policy.toml")
    file = write(folder, HEAD + '[capabilities.permissions]\nload = "policy.toml"\n')
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    agent = load_agent_file(file)
    (returned,) = records_of(agent, ToolReturned)
    assert returned.result.status == "denied"


def records_of(agent: Agent, kind: type) -> list:
    seen: list = []
    agent.observe(kind, wait=True)(seen.append)
    agent.run_sync("1 + 2?")
    return seen


def test_hooks_are_registered_with_their_options(folder: Path):
    text = '[[hooks]]\nverb = "gate"\nevent = "ToolCalling"\nrun = "parts:refuse"\ntool = "add"\nband = "guard"\n'
    text += '[[hooks]]\nverb = "transform"\nrun = "parts:Upper"\nchannels = ["text"]\n'
    agent = load_agent_file(write(folder, HEAD + text))
    (returned,) = records_of(agent, ToolReturned)
    assert returned.result.status == "denied"
    assert "guard band" in str(agent.explain())
    assert load_agent_file(folder / "agent.toml").run_sync("1 + 2?").text == "THREE"


def test_every_option_of_hooks_can_be_written(folder: Path):
    assert set(HOOK_OPTIONS) == set().union(*hooks._LEGAL.values(), {"channels"})


def test_the_system_text_can_be_in_a_file(folder: Path):
    write(folder, "You add.", "prompt.md")
    assert load_agent_file(write(folder, HEAD + 'system_file = "prompt.md"')).system == "You add."


def test_a_relative_store_is_beside_the_file_and_user_is_the_data_folder(folder: Path):
    agent = load_agent_file(write(folder, HEAD + 'store = "sqlite:///agent.db"'))
    assert str(agent.store.path) == str(folder / "agent.db")  # type: ignore[attr-defined]
    agent = load_agent_file(write(folder, HEAD + 'store = "user"'))
    assert str(agent.store.path) == str(folder / "home" / "data" / "sessions.db")  # type: ignore[attr-defined]


def test_limits_stop_a_turn(folder: Path):
    agent = load_agent_file(write(folder, HEAD + "[limits]\nmax_steps = 1\nseconds = 100\n"))
    assert agent.run_sync("1 + 2?").stop_reason == "step_limit"


def test_the_answer_has_the_schema_of_the_file(folder: Path):
    text = '[output]\ntype = "object"\nproperties = { n = { type = "integer" } }\nrequired = ["n"]\n'
    write(folder, "from windlass.testing import ScriptedModel, says\nmodel = ScriptedModel(says('{\"n\": 3}'))", "m.py")
    agent = load_agent_file(write(folder, 'model = { use = "m:model" }\n' + text))
    assert agent.run_sync("1 + 2?").output == {"n": 3}


def test_models_get_their_options_and_fallbacks_are_asked(folder: Path):
    text = 'model = { use = "parts:named", name = "first" }\nfallbacks = [{ use = "parts:named", name = "second" }]\n'
    agent = load_agent_file(write(folder, text))
    assert agent.model.name == "first"
    assert "then second" in str(agent.explain())


@pytest.mark.parametrize("inline", [True, False])
def test_a_sub_agent_is_a_table_or_another_file(folder: Path, inline: bool):
    keys = 'model = { use = "parts:model" }\ntools = ["parts:add"]\n'
    write(folder, keys, "other.toml")
    below = keys if inline else 'file = "other.toml"\n'
    text = f'model = {{ use = "parts:delegating" }}\n[subagents.helper]\ndescription = "It adds."\nshare = 0.5\n{below}'
    agent = load_agent_file(write(folder, text))
    assert agent.tools["helper"].description == "It adds."
    (delegated,) = records_of(agent, Delegated)
    assert delegated.agent == "helper"


def test_values_of_named_environment_variables_are_masked(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN_OF_TEST", "geheim-1234")
    write(
        folder, "from windlass.testing import ScriptedModel, says\nmodel = ScriptedModel(says('geheim-1234'))", "m.py"
    )
    agent = load_agent_file(write(folder, 'model = { use = "m:model" }\nsecrets = ["TOKEN_OF_TEST", "NOT_SET_HERE"]'))
    assert "geheim" not in agent.run_sync("hi").text


def test_modules_of_the_folder_are_found_after_installed_ones(folder: Path):
    write(folder, "raise RuntimeError('shadowed')", "colorsys.py")
    sys.modules.pop("colorsys", None)
    text = HEAD + '[[hooks]]\nverb = "observe"\nevent = "TurnEnded"\nrun = "colorsys:rgb_to_hsv"\n'
    load_agent_file(write(folder, text))
    assert not str(sys.modules["colorsys"].__file__).startswith(str(folder))


def test_commands_take_a_file_where_they_take_an_agent(folder: Path):
    write(folder, HEAD)
    assert load_agent("agent.toml").run_sync("1 + 2?").text == "three"
    assert "add" in CliRunner().invoke(main, ["explain", "agent.toml"]).stdout
    (folder / "cases.jsonl").write_text('{"input": "1 + 2?", "expect": {"contains": "three", "called": "add"}}')
    result = CliRunner().invoke(main, ["eval", "cases.jsonl", "--agent", "agent.toml"])
    assert result.exit_code == 0, result.output


def test_a_mistake_is_a_usage_error_of_the_command(folder: Path):
    write(folder, "modle = 1\n")
    result = CliRunner().invoke(main, ["explain", "agent.toml"])
    assert result.exit_code == 2
    assert "agent.toml:1: modle: there is no such key; did you mean 'model'?" in result.stderr


def test_no_file_is_an_error_that_names_it(folder: Path):
    with pytest.raises(AgentFileError, match=r"absent\.toml:1: cannot be read: No such file"):
        load_agent_file("absent.toml")
