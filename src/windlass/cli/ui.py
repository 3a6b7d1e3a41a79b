"""The `ui` command: opens the inspector on a store or on exported sessions."""

from __future__ import annotations

import asyncio
import os
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass import Agent
from windlass.errors import WindlassError
from windlass.protocols import Store

from .asking import login
from .loading import ScopeFactory, agent_option, make_scope, scope_option
from .output import echo
from .stores import known_address, require_file, serve_until_stopped

if TYPE_CHECKING:
    from windlass.inspector import Inspector


@click.command()
@click.argument("store", required=False)
@click.option("--store", "address", help="The same as STORE, as other commands name it.")
@click.option("--port", type=click.IntRange(0, 65535), default=8500, show_default=True, help="0 takes a free port.")
@click.option("--control", is_flag=True, help="Also answer questions, in your login name.")
@agent_option(
    "The agent of the sessions: the effects of its tools, checked answers, what-if. Its store is the default."
)
@scope_option
@click.option(
    "--evals",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A run saved by `windlass eval --save`, or a folder of runs. Repeatable.",
)
@click.option("--open", "browser", is_flag=True, help="Open the page in a browser.")
def ui(
    store: str | None,
    address: str | None,
    port: int,
    control: bool,
    agent: Agent[Any, Any] | None,
    scope: ScopeFactory | None,
    evals: tuple[Path, ...],
    browser: bool,
) -> None:
    """Show what sessions did, and why, on a local page.

    STORE is an SQLite file, the address of a store (sqlite:///FILE, postgresql://…), or a file written by `windlass
    sessions export`. Without it, the store that the other commands use is shown. The page listens on this machine
    only. Its address holds a token: whoever has the address can read the sessions.
    """
    try:
        from windlass.inspector import Inspector
        from windlass.inspector.sources import open_source
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra with pip install 'windlass[ui]'") from error

    where: str | Store = store or address or (_usual_address() if agent is None else agent.store)
    if isinstance(where, str) and "://" not in where and not Path(where).is_file():
        raise click.ClickException(f"there is no file {where}; name a store, or a file with exported sessions")
    token = secrets.token_urlsafe(24)

    async def run() -> None:
        source = await open_source(where)
        try:
            _require_store(source.store)
            await source.store.find(limit=1)
            scopes = None if scope is None else partial(make_scope, scope)
            inspector = Inspector(
                source, token=token, control=control, person=login() or "", agent=agent, scope=scopes, evals=evals
            )
            inspector.evaluations.runs()
        except (WindlassError, click.ClickException):
            await source.store.close()
            raise
        await _serve(inspector, port, token, browser)

    serve_until_stopped(lambda: asyncio.run(run()))


def _usual_address() -> str:
    """The store that the other commands use."""
    return os.environ.get("WINDLASS_STORE") or known_address()


def _require_store(store: Store) -> None:
    """Refuse a file that is not there."""
    try:
        require_file(store)
    except click.ClickException as error:
        message = error.message.partition(";")[0]
        raise click.ClickException(
            f"{message}; `windlass chat` and `windlass run` create it, or name yours: windlass ui FILE"
        ) from None


async def _serve(inspector: Inspector, port: int, token: str, browser: bool) -> None:
    from windlass.server.listening import address_of, open_socket, serve

    try:
        listening = open_socket("127.0.0.1", port)
    except OSError as error:
        await inspector.source.store.close()
        raise click.ClickException(f"cannot listen on port {port}: {error.strerror or error}") from error
    address = f"{address_of(listening)}/#token={token}"
    echo(f"the inspector is at {address}", err=True)
    if browser:
        click.launch(address)
    await serve(inspector, listening, http="h11")
