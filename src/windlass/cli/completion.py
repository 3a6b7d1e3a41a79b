"""The `completion` command: prints the script that lets a shell complete commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .output import echo_exactly

VARIABLE = "_WINDLASS_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets a shell complete commands, options, and ids of sessions.

    \b
    bash: add to ~/.bashrc:                   eval "$(windlass completion bash)"
    zsh:  add to ~/.zshrc:                    eval "$(windlass completion zsh)"
    fish: add to ~/.config/fish/config.fish:  windlass completion fish | source

    For zsh, the line comes after `autoload -Uz compinit && compinit`. Open a new shell afterwards. Ids are completed
    from an SQLite store: that of --store or WINDLASS_STORE, or the one that commands look into.
    """
    from . import main

    kind = get_completion_class(shell)
    assert kind is not None
    echo_exactly(f"{kind(main, {}, 'windlass', VARIABLE).source().strip()}\n")
