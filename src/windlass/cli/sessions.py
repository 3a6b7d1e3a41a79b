"""The `sessions` commands: list, check, move and erase the sessions of a store."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from windlass._text import visible_id
from windlass.errors import SessionUnknown, StoreError, WindlassError
from windlass.logs import Verified
from windlass.protocols import Store
from windlass.transfer import export_session, import_session

from .completing import complete_sessions, session_argument
from .conversations import EXPORTS, FORMATS, exported, import_conversation
from .heads import Head, compare, head_of, read_heads
from .output import CUT, echo, echo_columns, echo_exactly, echo_json, page, terminal_width
from .painting import paint_for_output
from .stores import store_option, unreadable, with_store

if TYPE_CHECKING:
    from .listing import Listed


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
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The maximum number of sessions to list."
)
@click.option("--full", is_flag=True, help="On a terminal, print whole titles.")
@click.option(
    "--details", is_flag=True, help="With --json: also read each log for state, steps, cost, time and verdicts."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one session per line.")
def list_(address: str, search: str, status: str | None, limit: int, full: bool, details: bool, as_json: bool) -> None:
    """List sessions, the latest first.

    On a terminal, each has two lines: how its latest turn stands, when it last changed, what it cost and how long
    models and tools worked; its first message, and how often hooks refused, asked and changed. Logs of more than 5,000
    records are not read for this. In a pipe, each has one line, and nothing is cut.
    """
    from .listing import line, listed, painted

    width = terminal_width()

    async def work(store: Store) -> list[Listed]:
        infos = await store.find(search=search, status=status, limit=limit)
        return await listed(store, infos, details=details if as_json else width is not None)

    found = with_store(address, work)
    if as_json:
        for one in found:
            echo_json(msgspec.json.encode(one.public()).decode())
    elif width is None:
        for one in found:
            echo(line(one.info))
    elif found:
        whole = "\n".join(painted(found, paint_for_output(), width, full=True))
        short = whole if full else "\n".join(painted(found, paint_for_output(), width, full=False))
        page(short, CUT if short != whole else "", styled=True)
    else:
        echo("there are no sessions" + (" like this" if search or status else " yet"))


@sessions.command()
@store_option
@click.argument("session", required=False, shell_complete=complete_sessions)
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also check that the heads in this file, printed earlier by `sessions head`, are still on their chains.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what is verified, and all problems.")
def verify(address: str, session: str | None, against: Path | None, as_json: bool) -> None:
    """Verify a session, or all sessions and the rest of the store. Reports all that is broken.

    The records of a session must agree with its hash chain, and all else that the store keeps with the records. With
    --against, a session that is missing, shorter, erased or different from its kept head is reported too. A session may
    have grown since its head was kept.
    """
    kept = [head for head in read_heads(against) if session in (None, head.session)] if against is not None else []

    verified: list[Verified] = []

    async def work(store: Store) -> tuple[int, int, int, list[str]]:
        names = list(await store.sessions())
        if session is not None:
            if session not in names and not kept:
                raise SessionUnknown(f"there is no session {session!r}", session=session)
            names = [session] if session in names else []
        problems: list[str] = []
        for name in names:
            try:
                verified.append(await _verified(store, name))
            except Exception as error:
                problems.append(_problem(name, error))
            else:
                if not as_json:
                    echo(_verified_line(verified[-1]))
        broken = len(problems)
        if session is None:
            problems += await store.verify_store()
        others = len(problems) - broken
        infos = {info.session: info for info in await store.find()} if kept else {}
        for head in kept:
            try:
                problems += [] if (moved := await compare(store, head, infos)) is None else [moved]
            except Exception as error:
                problems.append(_problem(head.session, error))
        return len(names), broken, others, problems

    total, broken, others, problems = with_store(address, work)
    if as_json:
        rows = [msgspec.to_builtins(one) for one in verified]
        echo_json(json.dumps({"sessions": rows, "problems": problems}, ensure_ascii=False, indent=2))
        raise click.exceptions.Exit(1 if problems else 0)
    summary = f"{total - broken} verified, {broken} broken"
    if others:
        summary += f"; {others} other problem{'s' if others > 1 else ''}"
    if against is not None:
        off = len(problems) - broken - others
        summary += f"; {len(kept) - off} of {len(kept)} kept heads are still on their chains"
    if problems:
        raise click.ClickException("\n".join([*problems, *([summary] if session is None else [])]))
    if not total and not kept:
        echo("there are no sessions")
    elif session is None:
        echo(summary)


async def _verified(store: Store, session: str) -> Verified:
    found = await store.verify(session)
    if not found.records:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    return found


def _verified_line(found: Verified) -> str:
    pruned = f", {found.pruned} batches pruned" if found.pruned else ""
    return f"{visible_id(found.session)}: {found.records} records verified, head {found.head}{pruned}"


def _problem(session: str, error: Exception) -> str:
    """What is wrong with a session, on one line that names it."""
    if not isinstance(error, WindlassError):
        error = unreadable(f"the log of session {session!r}", error)
    return str(error) if repr(session) in str(error) else f"session {session!r}: {error}"


@sessions.command()
@store_option
@click.argument("session", required=False, shell_complete=complete_sessions)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one head per line.")
def head(address: str, session: str | None, as_json: bool) -> None:
    """Print the head of a session's hash chain, or of all sessions: id, number of records, last link.

    The columns are separated by tabs; an id with white space or unusual characters is a JSON string. Keep the output
    where nobody who can change the store can change it, and check it with `windlass sessions verify --against FILE`.
    """

    async def work(store: Store) -> tuple[list[Head], list[str]]:
        infos = [info for info in await store.find() if session in (None, info.session) and info.status != "erased"]
        if session is not None and not infos:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        heads: list[Head] = []
        problems: list[str] = []
        for info in reversed(infos):
            try:
                heads.append(await head_of(store, info))
            except Exception as error:
                problems.append(_problem(info.session, error))
        return heads, problems

    heads, problems = with_store(address, work)
    for one in heads:
        if as_json:
            echo_json(one.json())
        else:
            echo_columns(*one.columns())
    if problems:
        raise click.ClickException("\n".join(problems))


@sessions.command()
@store_option
@session_argument
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead of stdout."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["windlass", *EXPORTS]),
    metavar="FORMAT",
    default="windlass",
    show_default=True,
    help="What to write.",
)
def export(address: str, session: str, output: Path | None, form: str) -> None:
    """Export a session as JSON lines.

    Only the format `windlass` has all of it and can be verified. `openai`, `openai_responses`, `anthropic` and
    `langchain` write the messages, one per line, and say on stderr what they leave out. `otel` writes an event of the
    GenAI conventions for each reply of a model, `eval` a line for each turn, `inspect` the same as samples of Inspect,
    and `case` one case for `windlass eval`.
    """

    async def work(store: Store) -> list[str]:
        return await (export_session(store, session) if form == "windlass" else exported(store, session, form))

    text = "".join([f"{line}\n" for line in with_store(address, work)])
    if output is None:
        echo_exactly(text)
    else:
        try:
            output.write_bytes(text.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error


@sessions.command("import")
@store_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--as", "name", help="Import under this id instead of the exported one.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["windlass", *FORMATS]),
    default="windlass",
    show_default=True,
    help="What the file has.",
)
def import_(address: str, file: Path, name: str | None, form: str) -> None:
    """Import an exported session into a store. Writes nothing if the file is damaged.

    If the session comes from a store with another key, set WINDLASS_EXPORT_KEY to that key. With --format, the file
    is a conversation from elsewhere, as a JSON list or as JSON lines, and becomes the history of the new session --as.
    """
    try:
        lines = file.read_bytes().decode("utf-8", "surrogatepass").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error

    async def work(store: Store) -> str:
        if form != "windlass":
            return await import_conversation(store, form, "\n".join(lines), name)
        try:
            return await import_session(store, lines, name, key=os.environ.get("WINDLASS_EXPORT_KEY") or None)
        except StoreError as error:
            raise click.ClickException(f"{file}: {error}") from error

    echo(f"imported {visible_id(with_store(address, work, create=True))}")


@sessions.command()
@store_option
@session_argument
@click.confirmation_option(prompt="Permanently erase this session and the sessions of its sub-agents?")
def erase(address: str, session: str) -> None:
    """Erase a session and the sessions of its sub-agents. A tombstone with the chain's head remains."""

    async def work(store: Store) -> None:
        if not await store.erase(session):
            raise SessionUnknown(f"there is no session {session!r}", session=session)

    with_store(address, work)
    echo(f"erased {visible_id(session)}")


@sessions.command()
@store_option
@click.option("--days", default=30.0, show_default=True, help="Only turns that ended more than this many days ago.")
def prune(address: str, days: float) -> None:
    """Delete the injected parts of turns that ended long ago. Open turns are never touched."""

    async def work(store: Store) -> int:
        return await store.prune(before=time.time() - days * 86_400)

    echo(f"batches pruned: {with_store(address, work)}")
