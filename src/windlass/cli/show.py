"""The `show` command: prints a turn as a waterfall, or the records of a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from windlass._text import clock, date, inert_json, one_line, visible
from windlass.errors import SessionUnknown
from windlass.inspector.words import json_text
from windlass.protocols import Store
from windlass.records import encode

from .completing import session_argument
from .output import CUT, echo_json, is_terminal, page, terminal_width
from .painting import paint_for_output
from .stores import store_option, with_store


@click.command()
@store_option
@session_argument
@click.option("--turn", "number", type=click.IntRange(min=1), metavar="N", help="Show this turn instead of the latest.")
@click.option("--records", is_flag=True, help="Print every record, one per line, with its number and time (UTC).")
@click.option(
    "--context", "step", type=int, metavar="STEP",
    help="Show what filled the model's context window at this step, by origin.",
)  # fmt: skip
@click.option(
    "--archive", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="With --context: read the request from this file of `RequestArchive`.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="On a terminal, print long texts whole instead of cutting them.")
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON.")
def show(address: str, session: str, full: bool, as_json: bool, **options: Any) -> None:
    """Show a turn of a session: what happened when, who decided, and what it cost.

    Each row has a bar on a scale of time. Waiting for people is folded. Sub-agents are indented. Without --turn, it is
    the latest turn. `windlass why SESSION` explains it in words.

    On a terminal, long texts are cut: `…(+120)` stands for 120 characters, which --full prints. Questions and the
    calls they are about are shown whole. In a pipe nothing is cut.
    """
    number, records, step, archive = (options[name] for name in ("number", "records", "step", "archive"))
    if archive is not None and step is None:
        raise click.UsageError("--archive needs --context: name the step with --context")
    if number is not None and (records or step is not None):
        raise click.UsageError("--turn goes with neither --records nor --context, which name records and steps")
    if step is not None:
        from .context import show_context

        show_context(address, session, step, archive, as_json)
    elif records:
        _show_records(address, session, full, as_json)
    else:
        _show_turn(address, session, number, full, as_json)


def _show_turn(address: str, session: str, number: int | None, full: bool, as_json: bool) -> None:
    from .turn_tree import public, read_turn

    tree = with_store(address, lambda store: read_turn(store, session, number))
    if as_json:
        echo_json(json.dumps(json.loads(json_text(public(tree))), indent=2, ensure_ascii=False))
        return
    from .waterfall import Waterfall

    waterfall = Waterfall(tree, paint_for_output(), terminal_width(), full=full)
    text = "\n".join(waterfall.lines())
    page(text, CUT if waterfall.was_cut else "", styled=True)


def _show_records(address: str, session: str, full: bool, as_json: bool) -> None:
    async def work(store: Store) -> list[bytes]:
        lines = [encode(record) for record in await store.read(session)]
        if not lines:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        return lines

    lines = with_store(address, work)
    if as_json:
        echo_json("\n".join([line.decode() for line in lines]))
        return
    whole = _records(lines, None)
    short = whole if full or not is_terminal() else _records(lines, 51)
    page(short, CUT if short != whole else "")


def _records(lines: list[bytes], limit: int | None) -> str:
    return "\n".join([_record(number, line, limit) for number, line in enumerate(lines, 1)])


def _record(number: int, line: bytes, limit: int | None) -> str:
    plain = json.loads(line)
    kind, at = plain.pop("kind"), plain.pop("at", None)
    when = f"{date(at)} {clock(at)}" if isinstance(at, float) and at else " " * 23
    fields = inert_json(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))
    return f"{number:>5}  {when}  {visible(kind):<16} {fields if limit is None else one_line(fields, limit)}"
