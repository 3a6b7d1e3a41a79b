"""The `simulate` command: runs an agent through thousands of simulated sessions, and prints what goes wrong."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import click
import msgspec

from windlass.agent_files.references import CannotLoad
from windlass.errors import ConfigError
from windlass.testing.simulation import Simulation

from .loading import load_target
from .output import echo, echo_json, is_terminal


@click.command("simulate")
@click.argument("target", metavar="MODULE:AGENT")
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many seeds to run.")
@click.option("--seed", "chosen", type=int, multiple=True, help="Run this seed only. Can be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def simulate(target: str, seeds: int, chosen: tuple[int, ...], as_json: bool) -> None:
    """Run an agent through simulated sessions, one for each seed, and print what goes wrong as tests.

    MODULE:AGENT is an agent, a function that builds one, or a `Simulation`. Models are not called: the seed decides
    what they reply, what fails, and when the process crashes. Exits with 1 if a session went wrong, and with 2 if the
    agent cannot be simulated.
    """
    simulation = _load(target)
    try:
        with redirect_stdout(sys.stderr):
            report = simulation.report(seeds=chosen or seeds, progress=not as_json and _shows_bar())
    except ConfigError as error:
        raise NotPossible(str(error)) from error
    if as_json:
        echo_json(msgspec.json.encode(report).decode())
    else:
        echo(str(report))
    if report.failures:
        raise click.exceptions.Exit(1)


def _load(target: str) -> Simulation:
    try:
        found = load_target(target)
        return found if isinstance(found, Simulation) else Simulation(found)
    except CannotLoad as error:
        raise click.BadParameter(str(error), param_hint="MODULE:AGENT") from error
    except ConfigError as error:
        raise NotPossible(str(error)) from error


class NotPossible(click.ClickException):
    """The agent cannot be simulated."""

    exit_code = 2


def _shows_bar() -> bool:
    return is_terminal() and sys.stderr is not None and sys.stderr.isatty()
