"""The `windlass` group: what it lists, what it loads, what it says when a command is unknown."""

import subprocess
import sys
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from windlass.cli import COMMANDS, LazyCommand, LazyGroup, main


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture
def group(tmp_path, monkeypatch) -> LazyGroup:
    """A group with one good command and one whose module cannot even be imported."""
    (tmp_path / "lazy_hoist.py").write_text(
        "import click\n"
        "@click.command()\n"
        "@click.argument('load')\n"
        "def hoist(load):\n"
        "    '''Hoist a load.'''\n"
        "    click.echo(f'hoisting {load}')\n"
        "nothing = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lazy_hoist", raising=False)
    return LazyGroup(
        "group",
        commands=[
            LazyCommand("hoist", "lazy_hoist:hoist", "Hoist something."),
            LazyCommand("broken", "lazy_absent:broken", "Never importable."),
            LazyCommand("wrong", "lazy_hoist:nothing", "Not a command."),
        ],
    )


def test_help_lists_every_command_with_its_short_help(runner):
    result = runner.invoke(main, ["help"])
    assert result.exit_code == 0
    for name, (_, short_help) in COMMANDS.items():
        assert name in result.output
        assert short_help in result.output


def test_listing_commands_imports_none_of_them():
    modules = {target.partition(":")[0] for target, _ in COMMANDS.values()}
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from windlass.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        f"print(*({modules!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_module_that_cannot_be_imported_does_not_spoil_the_list(runner, group):
    result = runner.invoke(group, ["--help"])
    assert result.exit_code == 0
    assert "Never importable." in result.output


def test_a_command_is_imported_when_it_is_used(runner, group):
    assert "lazy_hoist" not in sys.modules
    result = runner.invoke(group, ["hoist", "anchor"])
    assert result.output == "hoisting anchor\n"


def test_the_help_of_a_command_is_its_own(runner, group):
    result = runner.invoke(group, ["hoist", "--help"])
    assert "Hoist a load." in result.output
    assert "LOAD" in result.output


def test_a_target_that_is_no_command_is_named(runner, group):
    result = runner.invoke(group, ["wrong"])
    assert result.exit_code == 70
    assert "unexpected TypeError: lazy_hoist:nothing must be the command" in result.output


def test_an_unknown_command_is_refused_with_a_suggestion(runner, group):
    result = runner.invoke(group, ["hoits"])
    assert result.exit_code == 2
    assert "No such command 'hoits'" in result.output
    assert "'hoist'" in result.output


def test_the_version_is_that_of_the_package(runner):
    result = runner.invoke(main, ["--version"])
    assert result.output.strip().endswith(version("windlass"))


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "windlass", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: python -m windlass")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_the_table_is_where_the_table_says(name):
    command = main.commands[name]
    assert isinstance(command, LazyCommand)
    assert isinstance(command.load(), click.Command)
