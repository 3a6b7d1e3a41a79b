"""The `simulate` command: runs an agent through thousands of simulated sessions, and prints what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import redirect_stdout
from typing import Any

import click
import msgspec

from windlass.agent_files.references import CannotLoad
from windlass.errors import ConfigError
from windlass.testing.simulation import Simulation, SimulationReport
from windlass.testing.simulation.hash_seeds import compared, sampled

from .loading import load_target
from .output import echo, echo_json, is_terminal


@click.command("simulate")
@click.argument("target", metavar="MODULE:AGENT")
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many seeds to run.")
@click.option("--seed", "chosen", type=int, multiple=True, help="Run this seed only. Can be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--logs", is_flag=True, help="Print the logs of the sessions instead of a report.")
def simulate(target: str, seeds: int, chosen: tuple[int, ...], as_json: bool, logs: bool) -> None:
    """Run an agent through simulated sessions, one for each seed, and print what goes wrong as tests.

    MODULE:AGENT is an agent, a function that builds one, or a `Simulation`. Models are not called: the seed decides
    what they reply, what fails, and when the process crashes. Every hundredth seed runs once more in another process
    with another PYTHONHASHSEED. Exits with 1 if a session went wrong, and with 2 if the agent cannot be simulated.
    """
    simulation = _load(target)
    wanted = chosen or tuple(range(seeds))
    try:
        with redirect_stdout(sys.stderr):
            if logs:
                found = msgspec.json.encode(simulation.logs(wanted)).decode()
                report = None
            else:
                report = simulation.report(seeds=wanted, progress=not as_json and _shows_bar())
                report = _in_another_process(target, simulation, report, sampled(wanted))
                found = msgspec.json.encode(report).decode() if as_json else str(report)
    except ConfigError as error:
        raise NotPossible(str(error)) from error
    (echo_json if logs or as_json else echo)(found)
    if report is not None and report.failures:
        raise click.exceptions.Exit(1)


def _in_another_process(
    target: str, simulation: Simulation, report: SimulationReport, seeds: list[int]
) -> SimulationReport:
    """The report, with the first seed that runs otherwise where texts have other hashes."""
    if not seeds or any(failure.violation.check == "nondeterminism" for failure in report.failures):
        return report
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    options = [word for seed in seeds for word in ("--seed", str(seed))]
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "simulate", target, "--logs", *options],
        env={**os.environ, "PYTHONHASHSEED": hashes},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise NotPossible(f"{target} could be simulated, but not in another process with PYTHONHASHSEED={hashes}")
    elsewhere: dict[int, list[str]] = msgspec.json.decode(done.stdout, type=dict[int, list[str]])
    return compared(report, target, simulation.logs(seeds), elsewhere)


def _load(target: str) -> Simulation:
    try:
        found: Any = load_target(target)
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
