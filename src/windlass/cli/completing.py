"""What a shell may complete on the command line: the ids of sessions in a store on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .stores import known_address

F = TypeVar("F", bound=Callable[..., Any])

MOST = 50
"""How many sessions a shell is offered, the latest first."""


def complete_sessions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The ids of sessions that begin with what was typed. Only SQLite is asked: a shell must not wait for a server."""
    address = context.params.get("address") or context.params.get("store") or known_address()
    if not isinstance(address, str) or not address.startswith("sqlite:///"):
        return []
    if not Path(address.removeprefix("sqlite:///")).is_file():
        return []
    try:
        return asyncio.run(_sessions(address, incomplete))
    except Exception:  # a damaged or locked store completes nothing
        return []


async def _sessions(address: str, incomplete: str) -> list[str]:
    from windlass.stores import open_store

    store = open_store(address)
    try:
        found = await store.find(search=incomplete, limit=MOST)
        return [info.session for info in found if info.session.startswith(incomplete)]
    finally:
        await store.close()


session_argument = click.argument("session", shell_complete=complete_sessions)
