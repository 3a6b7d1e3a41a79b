"""The `sessions` commands: list, check, move and erase the sessions of a store."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from windlass._text import one_line
from windlass.errors import SessionUnknown
from windlass.logs import SessionInfo
from windlass.protocols import Store
from windlass.transfer import export_session, import_session

from .stores import store_option, with_store


@click.group()
def sessions() -> None:
    """List, check, move and erase sessions."""


@sessions.command("list")
@store_option
@click.option("--search", default="", help="Only sessions with this text in their id, first message or agent name.")
@click.option(
    "--status",
    type=click.Choice(["open", "running", "suspended", "ended", "erased"]),
    help="Only sessions with this status.",
)
@click.option("--limit", default=50, show_default=True, help="The maximum number of sessions to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one session per line.")
def list_(address: str, search: str, status: str | None, limit: int, as_json: bool) -> None:
    """List sessions, the latest first."""

    async def work(store: Store) -> list[SessionInfo]:
        return list(await store.find(search=search, status=status, limit=limit))

    for info in with_store(address, work):
        if as_json:
            click.echo(msgspec.json.encode(info).decode())
        else:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
            questions = "question" if info.waiting == 1 else "questions"
            waiting = f", {info.waiting} open {questions}" if info.waiting else ""
            head = f"{one_line(info.session, 30):<30} {when}  {info.status}{waiting}, {info.records} records"
            click.echo(f"{head}  {one_line(info.title, 40)}".rstrip())


@sessions.command()
@store_option
@click.argument("session", required=False)
def verify(address: str, session: str | None) -> None:
    """Verify the hash chain of a session, or of all sessions. Fails at the first broken link."""

    async def work(store: Store) -> int:
        names = [session] if session is not None else list(await store.sessions())
        for name in names:
            found = await store.verify(name)
            if not found.records:
                raise SessionUnknown(f"there is no session {name!r}", session=name)
            pruned = f", {found.pruned} batches pruned" if found.pruned else ""
            click.echo(f"{name}: {found.records} records verified, head {found.head}{pruned}")
        return len(names)

    if not with_store(address, work):
        click.echo("there are no sessions")


@sessions.command()
@store_option
@click.argument("session")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead of stdout."
)
def export(address: str, session: str, output: Path | None) -> None:
    """Export a session as JSON lines."""

    async def work(store: Store) -> list[str]:
        return await export_session(store, session)

    text = "\n".join(with_store(address, work)) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_bytes(text.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error


@sessions.command("import")
@store_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--as", "name", help="Import under this id instead of the exported one.")
def import_(address: str, file: Path, name: str | None) -> None:
    """Import an exported session into a store. Writes nothing if the file is damaged."""
    try:
        lines = file.read_bytes().decode("utf-8", "surrogatepass").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error

    async def work(store: Store) -> str:
        return await import_session(store, lines, name)

    click.echo(f"imported {with_store(address, work, create=True)}")


@sessions.command()
@store_option
@click.argument("session")
@click.confirmation_option(prompt="Permanently erase this session and the sessions of its sub-agents?")
def erase(address: str, session: str) -> None:
    """Erase a session and the sessions of its sub-agents. A tombstone with the chain's head remains."""

    async def work(store: Store) -> bool:
        return await store.erase(session)

    if not with_store(address, work):
        raise click.ClickException(f"there is no session {session!r}")
    click.echo(f"erased {session}")


@sessions.command()
@store_option
@click.option("--days", default=30.0, show_default=True, help="Only turns that ended more than this many days ago.")
def prune(address: str, days: float) -> None:
    """Delete the injected parts of turns that ended long ago. Open turns are never touched."""

    async def work(store: Store) -> int:
        return await store.prune(before=time.time() - days * 86_400)

    click.echo(f"batches pruned: {with_store(address, work)}")
