"""The `keys` commands: store keys of model vendors, list where they are, remove them. No key is ever printed."""

from __future__ import annotations

import json
import sys

import click

from windlass.keys import VARIABLES, check_vendor, place_of, remove_key, set_key

from .output import echo, echo_json
from .stores import report_errors


@click.group()
def keys() -> None:
    """Store keys of model vendors. A key in the environment always comes first."""


@keys.command("set")
@click.argument("vendor")
@click.option("--file", is_flag=True, help="Store it in a file that only you can read, instead of the keyring.")
def set_(vendor: str, file: bool) -> None:
    """Store the key of a vendor, such as openai. It is read from a prompt, or from stdin in a pipe."""
    report_errors(lambda: check_vendor(vendor))
    hidden = sys.stdin.isatty()
    value = click.prompt(f"Key of {vendor}", hide_input=True) if hidden else sys.stdin.readline()
    place = report_errors(lambda: set_key(vendor, value.strip(), file=file))
    echo(f"{vendor}: stored in the {place}")


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_(as_json: bool) -> None:
    """List where the keys of vendors are, not the keys."""
    places = report_errors(lambda: {vendor: place_of(vendor) for vendor in VARIABLES})
    if as_json:
        echo_json(json.dumps(places, indent=2))
        return
    for vendor, place in places.items():
        echo(f"{vendor:12} {place or '-'}")


@keys.command("remove")
@click.argument("vendor")
def remove(vendor: str) -> None:
    """Remove the stored key of a vendor. The environment stays as it is."""
    removed = report_errors(lambda: remove_key(vendor))
    if not removed:
        raise click.ClickException(f"no key of {vendor} is stored")
    echo(f"{vendor}: removed from the {' and the '.join(removed)}")
