"""The `local` commands: install and list the weights of models that run on this machine."""

from __future__ import annotations

import click

from windlass.errors import WindlassError
from windlass.models.local.weights import DEFAULT, KNOWN, found, install

from .output import echo, working


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
def list_() -> None:
    """List available models and where installed ones are."""
    for name, weights in KNOWN.items():
        echo(f"local:{name}  {found(weights) or 'not installed: windlass local install ' + name}")
