"""The option `--inspect` of `run`, `chat` and `serve`: an inspector in the process that runs the agent."""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from windlass import Agent
from windlass.errors import ConfigError
from windlass.stores import SQLiteStore

from .asking import login
from .output import echo

if TYPE_CHECKING:
    from windlass.inspector import Inspector

F = TypeVar("F", bound=Callable[..., Any])


def inspect_options(command: F) -> F:
    """Add `--inspect` and `--break` to a command. The command receives `inspect` and `breaks`."""
    for option in (
        click.option(
            "--break", "breaks", multiple=True, metavar="EVENT[:TOOL]", help="Inspect, and pause here. Repeatable."
        ),
        click.option("--inspect", is_flag=True, help="Serve the inspector, with breakpoints."),
    ):
        command = option(command)
    return command


@contextmanager
def inspected(
    agents: Iterable[Agent[Any, Any]], *, inspect: bool, breaks: Iterable[str]
) -> Generator[None, None, None]:
    """Serve the inspector for agents in this process, on the loopback interface, until the block ends."""
    if not inspect and not breaks:
        yield
        return
    agents = list(agents)
    try:
        from windlass.inspector.breakpoints import Breakpoint, Breakpoints, inspect_agent
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra with pip install 'windlass[ui]'") from error
    try:
        breakpoints = Breakpoints([Breakpoint(*text.partition(":")[::2]) for text in breaks])
        for agent in agents:
            inspect_agent(agent, breakpoints)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    served = _Served(agents[0], breakpoints)
    echo(f"the inspector is at {served.address}", err=True)
    sys.stderr.flush()
    try:
        yield
    finally:
        breakpoints.release()
        served.stop()


class _Served:
    """The inspector in a thread with its own event loop: it answers also while the agent's loop is blocked or idle."""

    def __init__(self, agent: Agent[Any, Any], breakpoints: Any) -> None:
        from windlass.server.listening import Listener, address_of, open_socket

        token = secrets.token_urlsafe(24)
        self._socket = open_socket("127.0.0.1", 0)
        self.address = f"{address_of(self._socket)}/#token={token}"
        self._listener: Any = Listener(_inspector(agent, breakpoints, token), http="h11")
        self._thread = threading.Thread(target=self._serve, name="windlass inspector", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.run(self._listener.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """End it, with its streams."""
        self._listener.should_exit = True
        self._thread.join(5.0)


def _inspector(agent: Agent[Any, Any], breakpoints: Any, token: str) -> Inspector:
    from windlass.inspector import Inspector
    from windlass.inspector.sources import Source, source_of

    store = agent.store
    own = SQLiteStore(store.path) if isinstance(store, SQLiteStore) else store
    source: Source = source_of(own, shared=own is store)
    return Inspector(source, token=token, person=login() or "", breakpoints=breakpoints)
