"""Opens the store that the user names on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from windlass._text import visible_id
from windlass.errors import SessionUnknown, StoreError, WindlassError
from windlass.folders import data_folder
from windlass.protocols import Store
from windlass.stores import MemoryStore, open_store

from .codes import INTERRUPTED

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

HERE = "windlass.db"
"""A store of this name in the current folder is the one that commands look into."""


def own_address() -> str:
    """The store in the user's data folder, in which `run` and `chat` keep their sessions."""
    return f"sqlite:///{data_folder() / 'sessions.db'}"


def known_address() -> str:
    """The store that commands look into: that of the current folder, otherwise that in the user's data folder."""
    return f"sqlite:///{HERE}" if Path(HERE).exists() else own_address()


store_option = click.option(
    "--store",
    "address",
    envvar="WINDLASS_STORE",
    default=known_address,
    show_default="windlass.db in this folder, otherwise sessions.db in your data folder",
    show_envvar=True,
    help="The store of the sessions: sqlite:///FILE or postgresql://…",
)


def with_store(where: str | Store, work: Callable[[Store], Awaitable[T]], *, create: bool = False) -> T:
    """Open a store, do some work with it and close it. Errors are printed without a traceback.

    Only a command that writes sessions may `create` the file of a store. An error that is not one of Windlass comes
    from a damaged store: its message names the store.
    """

    async def run() -> T:
        store = open_store(where)
        if not create:
            require_file(store)
        try:
            return await work(store)
        except SessionUnknown as error:
            raise click.ClickException(f"{error}{await _near(store, error.session)}") from error
        except StoreError as error:
            if "session " in str(error) or not hasattr(store, "path") or _place(store) in str(error):
                raise
            raise StoreError(f"the store {_place(store)}: {error}") from error
        except (WindlassError, click.ClickException, OSError):
            raise
        except Exception as error:
            raise unreadable(f"the store {_place(store)}", error) from error
        finally:
            await store.close()

    if where == "memory:" or isinstance(where, MemoryStore):
        raise click.UsageError("an in-memory store has nothing to show; name a file with --store")
    return report_errors(lambda: asyncio.run(run()))


async def _near(store: Store, session: str) -> str:
    """A hint that names sessions with ids like the one that is not there."""
    try:
        names = list(await store.sessions())
    except Exception:  # the hint must not hide what went wrong
        return ""
    inside = [name for name in names if len(session) > 2 and session.lower() in name.lower()]
    near = list(dict.fromkeys([*get_close_matches(session, names, 3, 0.6), *inside]))[:3]
    if not near:
        return "" if names else ": the store has no sessions"
    return f"; did you mean {' or '.join([visible_id(name) for name in near])}?"


def unreadable(what: str, error: Exception) -> StoreError:
    """The error for stored data that Windlass did not write like this."""
    return StoreError(f"{what} is damaged: {type(error).__name__}: {error}")


def _place(store: Store) -> str:
    return str(getattr(store, "path", type(store).__name__))


def require_file(store: Store) -> None:
    """Refuse a store whose file does not exist: opening it would create an empty one."""
    path = getattr(store, "path", None)
    if path is not None and not Path(path).exists():
        raise click.ClickException(f"there is no store at {path}; name one with --store or WINDLASS_STORE")


def serve_until_stopped(work: Callable[[], T]) -> T:
    """Do the work of a server, which Ctrl-C ends: that is no error."""
    try:
        return report_errors(work)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def report_errors(work: Callable[[], T]) -> T:
    """Do some work, and turn errors of Windlass into messages for the user."""
    try:
        return work()
    except WindlassError as error:
        raise click.ClickException(str(error)) from error
