"""Help fits a screen of 80 columns and 24 rows: the text of every command is kept in `help/`, and compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from windlass.cli import COMMANDS, LazyCommand, main
from windlass.cli.codes import MEANINGS
from windlass.cli.help_texts import GROUPS

from .terminals import Terminal

KEPT = Path(__file__).parent / "help"


def paths(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands and groups, the whole command line first."""
    command = command.load() if isinstance(command, LazyCommand) else command
    yield path
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from paths(inner, (*path, name))


PATHS = list(paths())


def shown(*path: str) -> str:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="windlass")
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_the_help_of_a_command_fits_a_screen_and_is_as_it_was_last_read(path):
    text = shown(*path)
    assert text.count("\n") < 24
    assert max(len(line) for line in text.splitlines()) <= 80
    file = KEPT / f"{'-'.join(path) or 'windlass'}.txt"
    if os.environ.get("WINDLASS_WRITE_HELP"):
        KEPT.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "read the new text, then keep it with `make docs`"


def test_no_kept_help_is_of_a_command_that_is_gone():
    assert {file.stem for file in KEPT.iterdir()} == {"-".join(path) or "windlass" for path in PATHS}


def test_the_first_screen_has_every_command():
    assert sorted(name for commands in GROUPS.values() for name in commands) == sorted(COMMANDS)


def test_shortened_help_names_where_everything_is():
    text = shown("run")
    assert text.endswith("Everything: windlass help run\n")
    full = CliRunner().invoke(main, ["help", "run"]).output
    assert "[env var: WINDLASS_MODEL]" in full
    for option in ("--tools", "--capability", "--temporal"):
        assert option in text
        assert option in full
    assert "windlass help sessions list" in shown("sessions", "list")
    assert "--status" in CliRunner().invoke(main, ["help", "sessions", "list"]).output


def test_exit_codes_are_a_topic_of_the_help():
    text = CliRunner().invoke(main, ["help", "exit-codes"]).output
    for code, _, _ in MEANINGS:
        assert f"\n{code:>5}  " in text
    assert max(map(len, text.splitlines())) <= 80
    unknown = CliRunner().invoke(main, ["help", "exit-coeds"])
    assert unknown.exit_code == 2
    assert "there is no command 'exit-coeds'" in unknown.stderr


def test_on_a_terminal_of_80_columns_nothing_wraps(tmp_path):
    for path in ((), ("run",)):
        with Terminal(tmp_path, *path, "--help", rows=24, columns=80) as terminal:
            assert terminal.ends() == 0
        assert terminal.screen.splitlines()[0].startswith("Usage: python -m windlass")
        assert len(terminal.screen.splitlines()) < 24
