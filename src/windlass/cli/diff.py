"""The `diff` command: two sessions side by side, up to their first difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import click
import msgspec
from rich.cells import cell_len

from windlass._text import uncut, visible
from windlass.errors import SessionUnknown
from windlass.protocols import Store
from windlass.records import Record
from windlass.replay.diffs import Row, SessionDiff, diff

from .completing import complete_sessions
from .output import CUT, echo_json, mistakes_exit_with, page, terminal_width
from .painting import SHAPES, paint_for_output
from .stores import store_option, with_store
from .view import wrapped

_LABEL = 10
_WIDTH = 100
_NARROW = 60
"""Below this width, the rows that differ are below each other."""

_LONGEST = 800
"""How many characters of a row that differs a terminal gets, without --full."""

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
            page("\n".join(_lines(found, None)), styled=True)
    else:
        text = "\n".join(_lines(found, _SHOWN))
        page(text, CUT if "…(+" in text else "", styled=True)
    raise SystemExit(0 if found.same else 1)


def _lines(found: SessionDiff, shown: int | None) -> Iterator[str]:
    paint, terminal = paint_for_output(), terminal_width()
    width = _WIDTH if terminal is None else max(min(terminal - 1, 160), 40)
    side = (width - _LABEL - 3) // 2
    names = f"{'':<{_LABEL}} {_fit(found.left, side)}  {_fit(found.right, side)}".rstrip()
    common = found.common if shown is None else found.common[-shown:] if shown else ()
    yield paint(names, bold=True)
    if left_out := len(found.common) - len(common):
        yield f"{'':<{_LABEL}} … {left_out} equal row{'' if left_out == 1 else 's'}"
    step = (-1, -1)
    for row in common:
        if (row.turn, row.step) != step:
            step = row.turn, row.step
            yield f"turn {row.turn}, step {row.step}" if row.step else f"turn {row.turn}"
        yield f"= {row.kind:<{_LABEL - 2}} {_fit(row.text, 2 * side)}".rstrip()
    if found.same:
        yield paint("the same happened in both", bold=True)
        return
    yield paint.tone(f"first difference: {_where(found.first or found.second)}", "changed", bold=True)
    first, second = _told(found.first), _told(found.second)
    if terminal is not None and shown is not None:
        first, second = _around_difference(first, second)
    if terminal is None or terminal < _NARROW:
        for name, text in ((found.left, first), (found.right, second)):
            line = f"{visible(name)}: {text}"
            yield from [line] if terminal is None else wrapped(line, terminal, "  ")
    else:
        cells = [wrapped(text, side + 1, "  ") for text in (first, second)]
        for number, (cell, other) in enumerate(zip_longest(*cells, fillvalue="")):
            mark = paint.tone("≠" if paint.shapes is SHAPES else "!", "changed") if not number else " "
            yield f"{mark}{'':<{_LABEL}}{cell}{' ' * max(side - cell_len(cell), 0)}  {other}".rstrip()


def _around_difference(first: str, second: str) -> tuple[str, str]:
    """Two texts where they begin to differ. Long ones are cut before and after that."""
    same = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(same - _LONGEST // 4, 0) if max(len(first), len(second)) > _LONGEST else 0
    cut = [(f"…(+{begin})" if begin else "") + text[begin : begin + _LONGEST] for text in (first, second)]
    rest = [max(len(text) - begin - _LONGEST, 0) for text in (first, second)]
    texts = [text + (f"…(+{left})" if left else "") for text, left in zip(cut, rest, strict=True)]
    return texts[0], texts[1]


def _fit(text: str, width: int) -> str:
    shown = " ".join(visible(text).split())
    return f"{shown:<{width}}" if len(shown) <= width else f"{shown[: width - 1]}…"


def _told(row: Row | None) -> str:
    return "ends here" if row is None else f"{row.kind}: {visible(row.text)}"


def _where(row: Row | None) -> str:
    assert row is not None
    return f"turn {row.turn}, step {row.step}" if row.step else f"turn {row.turn}"
