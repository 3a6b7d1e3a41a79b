"""The `serve` command: offers agents over HTTP."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass import Agent
from windlass.agent_files.references import CannotLoad

from .assembling import measured
from .inspecting import inspect_options, inspected
from .loading import ScopeFactory, load_agent, scope_option
from .output import echo
from .stores import report_errors, serve_until_stopped

if TYPE_CHECKING:
    from windlass.server import Server

TOKEN = "WINDLASS_TOKEN"
"""The environment variable with the token of a server and of its clients."""


def _load_agents(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[Agent[Any, Any]]:
    try:
        return [measured(load_agent(target)) for target in value]
    except CannotLoad as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command()
@click.argument("agents", metavar="MODULE:AGENT...", nargs=-1, required=True, callback=_load_agents)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8400, show_default=True, help="0 takes a free port.")
@click.option("--token-file", type=click.Path(path_type=Path), help="A file with the token, readable by you alone.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name under which clients reach it.")
@click.option("--allow-origin", "origins", multiple=True, metavar="URL", help="A web page that may use it.")
@click.option("--max-body", type=click.IntRange(1), default=4 * 1024 * 1024, show_default=True, help="In bytes.")
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long turns under way may take to end at SIGTERM. The rest is interrupted and can be resumed.",
)
@scope_option
@inspect_options
def serve(
    agents: list[Agent[Any, Any]],
    host: str,
    port: int,
    token_file: Path | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    max_body: int,
    drain: float,
    scope: ScopeFactory | None,
    inspect: bool,
    breaks: tuple[str, ...],
) -> None:
    """Offer agents over HTTP: sessions, turns, streams and approvals.

    The server listens on this machine only, unless --host names another address. Every request needs the token: that
    of --token-file, of the variable WINDLASS_TOKEN, or else a new one, which is printed once. An address that other
    machines can reach needs a token of yours, and --allow-host for each name that clients use.
    """
    token = _given_token(token_file)
    local = _is_loopback(host)
    if not local and not token:
        raise click.UsageError(f"--host {host} can be reached from outside: give a token with --token-file or {TOKEN}")
    if not local and not hosts and _is_any(host):
        raise click.UsageError(f"--host {host} is every address: name those that clients use with --allow-host")
    generated = "" if token else secrets.token_urlsafe(32)
    with inspected(agents, inspect=inspect, breaks=breaks):
        server = report_errors(
            lambda: _server(
                agents,
                token=token or generated,
                hosts=_hosts(host, hosts, local=local),
                origins=origins,
                scope=scope,
                max_body=max_body,
                drain=drain,
            )
        )
        _listen(server, host, port, generated)


def _server(agents: list[Agent[Any, Any]], **options: Any) -> Server:
    try:
        from windlass.server import Server
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra with pip install 'windlass[serve]'") from error
    return Server(agents, **options)


def _listen(server: Server, host: str, port: int, generated: str) -> None:
    from windlass.server.listening import address_of, open_socket, serve

    try:
        listening = open_socket(host, port)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    for agent in server.agents:
        echo(f"agent {agent.name}", err=True)
    if generated:
        echo(f"token {generated}", err=True)
    echo(f"listening on {address_of(listening)}", err=True)
    sys.stderr.flush()
    serve_until_stopped(lambda: asyncio.run(serve(server, listening)))


def _given_token(file: Path | None) -> str:
    """The user's own token, or "" if there is none."""
    if file is None:
        return os.environ.get(TOKEN, "").strip()
    try:
        if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise click.ClickException(f"{file} can be read by other users: chmod 600 it")
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"the token file {file} cannot be read: {error}") from error


def _hosts(host: str, named: tuple[str, ...], *, local: bool) -> tuple[str, ...]:
    """The names under which the server may be reached."""
    from windlass.server.access import LOOPBACK

    return (*named, *((host, *LOOPBACK) if local else () if _is_any(host) else (host,)))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
