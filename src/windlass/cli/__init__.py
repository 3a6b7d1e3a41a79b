"""The `windlass` command: a group that imports each sub-command only when it is used."""

from importlib import import_module
from typing import Any

import click

from .help_texts import FullHelp, overview, with_short_help
from .output import errors_as_exit_codes, inert_errors, inert_logs, survives_any_encoding

# name: (import path of the command, short help for the list of commands)
COMMANDS: dict[str, tuple[str, str]] = {
    "approve": ("windlass.cli.approve:approve", "List open questions, and answer one."),
    "chat": ("windlass.cli.chat:chat", "Talk to a model or an agent on a terminal."),
    "completion": ("windlass.cli.completion:completion", "Print the script that lets a shell complete commands."),
    "demo": ("windlass.cli.demo:demo", "Watch an agent work, without an API key or a network."),
    "diff": ("windlass.cli.diff:diff_command", "Show two sessions up to their first difference."),
    "doctor": ("windlass.cli.doctor:doctor", "Check what agents need on this machine."),
    "eval": ("windlass.cli.evals:evals", "Run cases against an agent, and print the pass rate."),
    "explain": ("windlass.cli.explain:explain", "Show how an agent is compiled, like a query plan."),
    "help": ("windlass.cli.help_pages:help_command", "Explain a command, or the exit codes, in full."),
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
    "show": ("windlass.cli.show:show", "Show a turn: what happened when, and what it cost."),
    "simulate": (
        "windlass.cli.simulate:simulate",
        "Run an agent through simulated sessions, and print its bugs.",
    ),
    "submit": ("windlass.cli.submit:submit", "Queue a message for a worker."),
    "trust": ("windlass.cli.trusting:trust_command", "Trust an agent file that is found in a folder."),
    "ui": ("windlass.cli.ui:ui", "Show what sessions did, and why, on a local page."),
    "why": ("windlass.cli.why:why", "Explain why a turn went as it did."),
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
        return with_short_help(command)


class LazyGroup(click.Group):
    """A group that replaces a lazy command by the real one when the user names it.

    The errors that it prints are inert and without a traceback, and each has its exit code.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        with inert_logs(), survives_any_encoding():
            return super().main(*args, **options)

    def get_help(self, ctx: click.Context) -> str:
        if set(self.commands) == set(COMMANDS) and not isinstance(ctx, FullHelp):
            usage = f"Usage: {ctx.command_path} [OPTIONS] COMMAND [ARGS]..."
            return overview(usage, "Run LLM agents, and inspect what they did.")
        return super().get_help(ctx)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with inert_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with inert_errors(), errors_as_exit_codes(debug=bool(ctx.params.get("debug"))):
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
@click.option("--debug", is_flag=True, envvar="WINDLASS_DEBUG", help="Show the traceback of an unexpected error.")
def main(debug: bool) -> None:
    """Run LLM agents, and inspect what they did."""
