"""The `trust` command: shows what an agent file would run, and trusts it if the user agrees."""

from __future__ import annotations

import json
from pathlib import Path

import click

from windlass._text import visible
from windlass.agent_files.found import NAMES, find_agent_file, trust_agent_file
from windlass.agent_files.reach import reach_of
from windlass.trust import distrust, is_trusted, trusted

from .output import echo, echo_json
from .stores import report_errors


@click.command("trust")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--list", "lists", is_flag=True, help="List the trusted files, and say which have changed.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
@click.option("--remove", is_flag=True, help="Trust the file no longer.")
def trust_command(file: Path | None, yes: bool, lists: bool, as_json: bool, remove: bool) -> None:
    """Trust an agent file that is found in a folder, as it is now.

    Without FILE, the file is windlass.toml or agent.toml in the current folder. What the file runs, starts and connects
    to is printed first. Files that it uses are trusted with it: system texts, policies, files of sub-agents and modules
    in its folder. If one of them changes, the agent is not used until you trust it again.
    """
    if lists:
        report_errors(lambda: _list(as_json))
        return
    if as_json:
        raise click.UsageError("--json goes with --list")
    chosen = file if file is not None else find_agent_file()
    if chosen is None:
        raise click.UsageError(f"there is no {' or '.join(NAMES)} here; name a file")
    if remove:
        known = report_errors(lambda: distrust(chosen))
        echo(f"{visible(str(chosen))} is not trusted" + (" any more" if known else "; it was not trusted before"))
        return
    for line in report_errors(lambda: reach_of(chosen)) or ["it runs no code, and connects to nothing but its model"]:
        echo(f"  {visible(line)}")
    if not yes and not click.confirm("Trust it?", default=False):
        raise click.exceptions.Exit(1)
    for part in report_errors(lambda: trust_agent_file(chosen)):
        echo(f"trusted: {visible(str(part))}")


def _list(as_json: bool) -> None:
    states = {name: _state(name) for name in sorted(trusted())}
    if as_json:
        echo_json(json.dumps([{"file": name, "state": state} for name, state in states.items()], indent=2))
        return
    for name, state in states.items():
        echo(f"{state:8} {visible(name)}")


def _state(name: str) -> str:
    return "gone" if not Path(name).is_file() else "trusted" if is_trusted(name) else "changed"
