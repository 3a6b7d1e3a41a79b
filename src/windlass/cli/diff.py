"""The `diff` command: two sessions side by side, up to their first difference."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import click
import msgspec

from windlass._text import uncut, visible
from windlass.errors import SessionUnknown
from windlass.protocols import Store
from windlass.records import Record
from windlass.replay.diffs import Row, SessionDiff, diff

from .completing import complete_sessions
from .output import echo_json, is_terminal, mistakes_exit_with, page
from .stores import store_option, with_store

_LABEL = 10
_WIDTH = 100
_SHOWN = 10
"""How many common rows are shown before the difference."""


@click.command("diff")
@store_option
@click.argument("first", shell_complete=complete_sessions)
@click.argument("second", shell_complete=complete_sessions)
@click.option("--other-store", "other", metavar="STORE", help="The store of the second session, if it is another one.")
@click.option("--full", is_flag=True, help="Print all common rows, and long values whole.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def diff_command(address: str, first: str, second: str, other: str | None, full: bool, as_json: bool) -> None:
    """Show two sessions side by side, up to the first difference in what happened.

    Times, ids and costs make no difference. Exits with 0 if the same happened in both, with 1 otherwise, and with
    2 after an error.
    """

    async def read(store: Store, session: str) -> Sequence[Record]:
        records = await store.read(session)
        if not records:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        return records

    with mistakes_exit_with(2):
        left = with_store(address, lambda store: read(store, first))
        right = with_store(other or address, lambda store: read(store, second))
    found = diff(first, left, second, right)
    if as_json:
        echo_json(msgspec.json.encode({"same": found.same, **msgspec.to_builtins(found)}).decode())
    elif full:
        with uncut():
            page("\n".join(_lines(found, None)))
    else:
        page("\n".join(_lines(found, _SHOWN)))
    raise SystemExit(0 if found.same else 1)


def _lines(found: SessionDiff, shown: int | None) -> list[str]:
    width = max(min(shutil.get_terminal_size().columns, 160), 40) if is_terminal() else _WIDTH
    side = (width - _LABEL - 3) // 2
    common = found.common if shown is None else found.common[-shown:] if shown else ()
    lines = [f"{'':<{_LABEL}} {_fit(found.left, side)}  {_fit(found.right, side)}".rstrip()]
    if left_out := len(found.common) - len(common):
        lines.append(f"{'':<{_LABEL}} … {left_out} equal rows")
    step = (-1, -1)
    for row in common:
        if (row.turn, row.step) != step:
            step = row.turn, row.step
            lines.append(f"turn {row.turn}, step {row.step}" if row.step else f"turn {row.turn}")
        lines.append(f"= {row.kind:<{_LABEL - 2}} {_fit(row.text, 2 * side)}".rstrip())
    if found.same:
        return [*lines, "the same happened in both"]
    lines.append(f"first difference: {_where(found.first or found.second)}")
    lines += [f"{visible(found.left)}: {_told(found.first)}", f"{visible(found.right)}: {_told(found.second)}"]
    return lines


def _fit(text: str, width: int) -> str:
    shown = " ".join(visible(text).split())
    return f"{shown:<{width}}" if len(shown) <= width else f"{shown[: width - 1]}…"


def _told(row: Row | None) -> str:
    return "ends here" if row is None else f"{row.kind}: {visible(row.text)}"


def _where(row: Row | None) -> str:
    assert row is not None
    return f"turn {row.turn}, step {row.step}" if row.step else f"turn {row.turn}"
