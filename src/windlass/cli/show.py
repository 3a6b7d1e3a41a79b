"""The `show` command: prints a session from its log."""

from __future__ import annotations

import json
from pathlib import Path

import click

from windlass._text import clock, date, one_line
from windlass.protocols import Store
from windlass.records import decode, encode
from windlass.why import Why

from .stores import store_option, with_store


@click.command()
@store_option
@click.argument("session")
@click.option("--records", is_flag=True, help="Print every record, one per line, with its number and time (UTC).")
@click.option(
    "--context",
    "step",
    type=int,
    metavar="STEP",
    help="Show what filled the model's context window at this step, by origin.",
)
@click.option(
    "--audit",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --context: read the request from this Audit file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON.")
def show(address: str, session: str, records: bool, step: int | None, audit: Path | None, as_json: bool) -> None:
    """Show the latest turn of a session, step by step.

    With --records, show all records of the session; with --context, what the model saw at a step. Times are in UTC.
    """
    if audit is not None and step is None:
        raise click.UsageError("--audit needs --context: name the step with --context")
    if step is not None:
        from .context import show_context

        show_context(address, session, step, audit, as_json)
        return

    async def work(store: Store) -> list[bytes]:
        return [encode(record) for record in await store.read(session)]

    lines = with_store(address, work)
    if not lines:
        raise click.ClickException(f"there is no session {session!r}")
    if records:
        for number, line in enumerate(lines, 1):
            click.echo(line.decode() if as_json else _line(number, line))
        return
    why = Why(session, [decode(line) for line in lines])
    click.echo(why.json() if as_json else str(why))


def _line(number: int, line: bytes) -> str:
    plain = json.loads(line)
    kind, at = plain.pop("kind"), plain.pop("at", None)
    when = f"{date(at)} {clock(at)}" if isinstance(at, float) and at else " " * 23
    fields = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return f"{number:>5}  {when}  {kind:<16} {one_line(fields, 51)}"
