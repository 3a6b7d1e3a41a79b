"""The `local` commands: install and list the weights of models that run on this machine."""

from __future__ import annotations

import json

import click

from windlass.errors import WindlassError
from windlass.models.local.weights import DEFAULT, KNOWN, found, install

from .output import echo, echo_json, working


@click.group()
def local() -> None:
    """Install and list models that run on this machine."""


@local.command("install")
@click.argument("name", default=DEFAULT)
def install_(name: str) -> None:
    """Download a model's weights and check their hash. Does nothing if they are installed.

    NAME is the name of a model; the default is smollm2.
    """
    if name in KNOWN and found(KNOWN[name]) is None:
        echo(f"fetching {name}, about {KNOWN[name].size // 1_000_000} MB", err=True)
    try:
        with working(f"installs {name}"):
            path = install(name)
    except WindlassError as error:
        raise click.ClickException(str(error)) from error
    echo(str(path))


@local.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_(as_json: bool) -> None:
    """List available models and where installed ones are."""
    if as_json:
        places = {name: found(weights) for name, weights in KNOWN.items()}
        rows = [{"model": f"local:{name}", "path": path and str(path)} for name, path in places.items()]
        echo_json(json.dumps(rows, indent=2))
        return
    for name, weights in KNOWN.items():
        echo(f"local:{name}  {found(weights) or 'not installed: windlass local install ' + name}")
