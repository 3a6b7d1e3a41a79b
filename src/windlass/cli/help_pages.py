"""The `help` command: everything about a command, or about a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from .codes import MEANINGS
from .help_texts import FullHelp
from .output import page


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(context: click.Context, words: Sequence[str]) -> None:
    """Explain a command in full, such as `windlass help sessions list`, or a topic.

    The topic is exit-codes: what the exit code of a command means to a script.
    """
    if tuple(words) in TOPICS:
        page(TOPICS[tuple(words)]())
        return
    root = context.find_root()
    command: click.Command = root.command
    here: click.Context = FullHelp(command, info_name="windlass")
    for word in words:
        found = _load(command, here, word)
        if found is None:
            raise click.UsageError(f"there is no command {' '.join(words)!r}; windlass --help lists them")
        command, here = found, FullHelp(found, parent=here, info_name=word)
    page(command.get_help(here).rstrip())


def _load(command: click.Command, context: click.Context, word: str) -> click.Command | None:
    from . import LazyCommand

    found = command.get_command(context, word) if isinstance(command, click.Group) else None
    return found.load() if isinstance(found, LazyCommand) else found


def exit_codes() -> str:
    """The table of exit codes."""
    lines = ["All commands use the same exit codes.", ""]
    for code, _, meaning in MEANINGS:
        lines.append(click.wrap_text(meaning, 80, f"{code:>5}  ", " " * 7))
    return "\n".join(
        [
            *lines,
            "",
            click.wrap_text(
                "A command whose result is yes or no says no with 1: `diff` when two sessions differ, `replay` when a "
                "verdict changed, `eval` when too few cases passed, and `doctor`, `simulate`, `hooks check`, `hooks "
                "doctor` and `sessions verify` when they found something.",
                80,
            ),
        ]
    )


TOPICS: dict[tuple[str, ...], Callable[[], str]] = {("exit-codes",): exit_codes}
