"""The `show` command: prints a session from its log."""

from __future__ import annotations

import json
from pathlib import Path

import click

from windlass._text import clock, date, inert_json, one_line, visible
from windlass.protocols import Store
from windlass.records import decode, encode
from windlass.why import Why

from .output import CUT, echo_json, page
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
    "--archive",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --context: read the request from this file of `RequestArchive`.",
)
@click.option("--full", is_flag=True, help="Print long values whole instead of cutting them.")
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON.")
def show(
    address: str, session: str, records: bool, step: int | None, archive: Path | None, full: bool, as_json: bool
) -> None:
    """Show the latest turn of a session, step by step.

    With --records, show all records of the session; with --context, what the model saw at a step. Times are in UTC.
    Questions and the calls they are about are shown whole. Other long values are cut: `…(+120)` stands for 120
    characters, which --full prints.
    """
    if archive is not None and step is None:
        raise click.UsageError("--archive needs --context: name the step with --context")
    if step is not None:
        from .context import show_context

        show_context(address, session, step, archive, as_json)
        return

    async def work(store: Store) -> tuple[str, str]:
        lines = [encode(record) for record in await store.read(session)]
        if not lines:
            raise click.ClickException(f"there is no session {session!r}")
        if as_json:
            return "\n".join([line.decode() for line in lines]) if records else _why(session, lines).json(), ""
        whole = _records(lines, None) if records else str(_why(session, lines, full=True))
        short = _records(lines, 51) if records else str(_why(session, lines))
        if full or short == whole:
            return whole, ""
        return short, CUT

    text, hint = with_store(address, work)
    if as_json:
        echo_json(text)
    else:
        page(text, hint)


def _why(session: str, lines: list[bytes], *, full: bool = False) -> Why:
    return Why(session, [decode(line) for line in lines], full=full)


def _records(lines: list[bytes], limit: int | None) -> str:
    return "\n".join([_record(number, line, limit) for number, line in enumerate(lines, 1)])


def _record(number: int, line: bytes, limit: int | None) -> str:
    plain = json.loads(line)
    kind, at = plain.pop("kind"), plain.pop("at", None)
    when = f"{date(at)} {clock(at)}" if isinstance(at, float) and at else " " * 23
    fields = inert_json(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))
    return f"{number:>5}  {when}  {visible(kind):<16} {fields if limit is None else one_line(fields, limit)}"
