"""The `windlass` command: a group whose sub-commands are imported only when they are used."""

from importlib import import_module

import click

# name: (where the command is, what the list of commands says about it)
COMMANDS: dict[str, tuple[str, str]] = {
    "approve": ("windlass.cli.approve:approve", "See what is asked, and answer."),
    "demo": ("windlass.cli.demo:demo", "Watch an agent work, without a key or a network."),
    "explain": ("windlass.cli.explain:explain", "Show what an agent is compiled to, like a query plan."),
    "local": ("windlass.cli.local:local", "Fetch and list models that run on this machine."),
    "resume": ("windlass.cli.resume:resume", "Go on with a turn that waits or was interrupted."),
    "sessions": ("windlass.cli.sessions:sessions", "List, check, move and erase sessions."),
    "show": ("windlass.cli.show:show", "Show a session as its log tells it."),
}


class LazyCommand(click.Command):
    """The place of a command in the list: its name and short help, and where the real one is."""

    def __init__(self, name: str, target: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.target = target

    def load(self) -> click.Command:
        """Import the real command."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} should be the command {self.name!r}, but is {command!r}")
        return command


class LazyGroup(click.Group):
    """A group that puts the real command in the place of a lazy one, once the user has named it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, LazyCommand):
            command = command.load()
        return name, command, rest


@click.group(
    cls=LazyGroup,
    commands=[LazyCommand(name, target, short_help) for name, (target, short_help) in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="windlass")
def main() -> None:
    """Run LLM agents, and look into what they did."""
