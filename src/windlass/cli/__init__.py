"""The `windlass` command: a group that imports each sub-command only when it is used."""

from importlib import import_module
from typing import Any

import click

from .output import inert_errors, inert_logs

# name: (import path of the command, short help for the list of commands)
COMMANDS: dict[str, tuple[str, str]] = {
    "approve": ("windlass.cli.approve:approve", "List open questions, and answer one."),
    "chat": ("windlass.cli.chat:chat", "Talk to a model or an agent on a terminal."),
    "demo": ("windlass.cli.demo:demo", "Watch an agent work, without an API key or a network."),
    "diff": ("windlass.cli.diff:diff_command", "Show two sessions up to their first difference."),
    "doctor": ("windlass.cli.doctor:doctor", "Check what agents need on this machine."),
    "eval": ("windlass.cli.evals:evals", "Run cases against an agent, and print the pass rate."),
    "explain": ("windlass.cli.explain:explain", "Show how an agent is compiled, like a query plan."),
    "hooks": ("windlass.cli.hooks:hooks", "Try hooks of Claude Code and permission rules, and trust hooks."),
    "init": ("windlass.cli.init:init", "Write an agent file after four questions."),
    "keys": ("windlass.cli.keys:keys", "Store keys of model vendors, and list where they are."),
    "local": ("windlass.cli.local:local", "Install and list models that run on this machine."),
    "replay": ("windlass.cli.replay:replay", "Ask again what was decided in recorded sessions."),
    "resume": ("windlass.cli.resume:resume", "Resume a turn that waits for an answer or was interrupted."),
    "run": ("windlass.cli.run:run", "Run one turn of a model or an agent, and print the answer."),
    "serve": ("windlass.cli.serve:serve", "Offer agents over HTTP."),
    "serve-mcp": ("windlass.cli.serve_mcp:serve_mcp", "Offer an agent as an MCP server."),
    "sessions": ("windlass.cli.sessions:sessions", "List, check, move and erase sessions."),
    "show": ("windlass.cli.show:show", "Show a session from its log."),
    "simulate": (
        "windlass.cli.simulate:simulate",
        "Run an agent through simulated sessions, and print its bugs.",
    ),
    "submit": ("windlass.cli.submit:submit", "Queue a message for a worker."),
    "trust": ("windlass.cli.trusting:trust_command", "Trust an agent file that is found in a folder."),
    "ui": ("windlass.cli.ui:ui", "Show what sessions did, and why, on a local page."),
    "worker": ("windlass.cli.worker:worker", "Run turns that wait in a store, beside other workers."),
}


class LazyCommand(click.Command):
    """A placeholder in the list of commands: a name, a short help and the import path of the real command."""

    def __init__(self, name: str, target: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.target = target

    def load(self) -> click.Command:
        """Import the real command."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} must be the command {self.name!r}, but it is {command!r}")
        return command


class LazyGroup(click.Group):
    """A group that replaces a lazy command by the real one when the user names it. The errors it prints are inert."""

    def main(self, *args: Any, **options: Any) -> Any:
        with inert_logs():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with inert_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with inert_errors():
            return super().invoke(ctx)

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
    """Run LLM agents, and inspect what they did."""
