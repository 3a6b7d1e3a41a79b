"""The `why` command: explains in words why a turn went as it did."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click

from windlass._text import wrapped_at
from windlass.errors import SessionUnknown
from windlass.inspector.phrases import tone
from windlass.protocols import Store
from windlass.records import Record, TurnStarted
from windlass.why import Why

from .completing import session_argument
from .output import CUT, echo_json, is_terminal, page, terminal_width
from .painting import Paint, paint_for_output
from .stores import store_option, with_store


@click.command()
@store_option
@session_argument
@click.option("--turn", "number", type=click.IntRange(min=1), metavar="N", help="Explain this turn, not the latest.")
@click.option("--full", is_flag=True, help="On a terminal, print long values whole instead of cutting them.")
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON.")
def why(address: str, session: str, number: int | None, full: bool, as_json: bool) -> None:
    """Explain why a turn went as it did: who decided, changed, refused and asked what.

    Without --turn, it is the latest turn. Times are in UTC. On a terminal, long values are cut: `…(+120)` stands for
    120 characters, which --full prints. Questions and the calls they are about are shown whole. In a pipe nothing is
    cut.
    """

    async def work(store: Store) -> Sequence[Record]:
        records = await store.read(session)
        if not records:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        return records if number is None else _until(records, session, number)

    records = with_store(address, work)
    if as_json:
        echo_json(Why(session, records).json())
        return
    with wrapped_at(terminal_width() or 100):
        whole = str(Why(session, records, full=True))
        short = whole if full or not is_terminal() else str(Why(session, records))
    page("\n".join(_painted(short, paint_for_output())), CUT if short != whole else "", styled=True)


def _until(records: Sequence[Record], session: str, number: int) -> Sequence[Record]:
    """The records up to the end of a turn."""
    starts = [at for at, record in enumerate(records) if isinstance(record, TurnStarted)]
    turns = [record.turn for record in records if isinstance(record, TurnStarted)]
    if number not in turns:
        known = f"it has turns {turns[0]} to {turns[-1]}" if turns else "it has none yet"
        raise click.ClickException(f"session {session!r} has no turn {number}: {known}")
    place = turns.index(number)
    return records if place + 1 == len(starts) else records[: starts[place + 1]]


_ENTRY = r"(  [\d: .]{12}  )(\S+(?: \S+)?)(  +|$)(.*)"
_TITLES = ("Step ", "Before the first step", "The end")
_TONES = {
    "ask": "ask", "answer": "ask", "suspend": "ask", "rewrite": "changed", "inject": "inject", "compacted": "changed",
    "failed": "error", "error": "error", "attempt": "error", "reject": "deny", "veto": "deny", "rewind": "deny",
    "cancel": "deny", "shadow": "shadow",
}  # fmt: skip


def _painted(text: str, paint: Paint) -> Iterator[str]:
    """The lines with colours: the word for what happened in that of its verdict, titles bold."""
    for number, line in enumerate(text.split("\n")):
        found = re.fullmatch(_ENTRY, line)
        if not paint.colour or not line:
            yield line
        elif found is not None:
            time, word, gap, rest = found.groups()
            verdict = re.search(r": ([A-Z]\w+)", rest) if word in ("decide", "verdict") else None
            kind = tone(verdict[1]) if verdict is not None else _TONES.get(word, "")
            yield paint(time, dim=True) + paint.tone(word, kind if kind != "allow" else "") + gap + rest
        else:
            yield paint(
                line,
                bold=not line.startswith(" ") and (number == 0 or line.startswith(("Step ", "Before ", "The end"))),
            )
