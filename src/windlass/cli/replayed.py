"""What came of a replay, for a terminal: each session that differs with its verdicts, then all in figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windlass._text import one_line, printable, visible_id
from windlass.inspector.phrases import tone
from windlass.replay.findings import Difference, Report, SessionReplay, summary_lines

from .painting import Paint
from .view import wrapped

MOST = 20
"""How many sessions a terminal gets without --full."""

_MARKS = {"different": "changed", "unjudged": "ask", "failed": "error"}


def painted(report: Report, paint: Paint, width: int, *, full: bool) -> Iterator[str]:
    """The lines. Without `full` only the first sessions are in them."""
    shown = report.sessions if full else report.sessions[:MOST]
    for one in shown:
        yield from _session(one, paint, width, full)
    if more := len(report.sessions) - len(shown):
        yield f"… and {more} other session{'' if more == 1 else 's'}, which --full prints"
    if report.sessions:
        yield ""
    head, *rest = summary_lines(report.summary)
    yield from _painted(head, paint, width, "", bold=True)
    for line in rest:
        yield from _painted(line, paint, width, "    ")


def _session(one: SessionReplay, paint: Paint, width: int, full: bool) -> Iterator[str]:
    mark = _MARKS[one.status]
    yield f"{paint.tone(paint.shapes[mark], mark)} {paint(visible_id(one.session), bold=True)}  {one.status}"
    if one.error:
        yield from _painted(f"  {printable(one.error)}", paint, width, "  ")
    for it in one.differences:
        yield from _difference(it, paint, width, full)
    for lack in one.unjudged:
        text = f"  not judged: {lack.hook} on {lack.event}: {_cut(lack.why, width, full)}"
        yield from _painted(_inert(text), paint, width, "    ")


def _difference(it: Difference, paint: Paint, width: int, full: bool) -> Iterator[str]:
    """Where a verdict differs and about what, and below it what it was and what it is."""
    what = it.tool or it.event
    place = f"  turn {it.turn}, step {it.step}  " if it.step else f"  turn {it.turn}  "
    arguments = f" {_cut(it.arguments, width, full)}" if it.arguments else ""
    yield from _painted(f"{place}{printable(what)}{arguments}", paint, width, "    ")
    if it.kind == "arguments":
        line = f"    arguments {_cut(it.was, width, full)} → {_cut(it.now, width, full)}{_by(it.now_by)}"
        yield from _painted(line, paint, width, "      ")
        return
    (was, _, before), (now, _, why) = it.was.partition(": "), it.now.partition(": ")
    sides = [f"{_cut(was, width, full)}{_by(it.was_by)}", f"{_cut(now, width, full)}{_by(it.now_by)}"]
    reason = f': "{_cut(why or before, width, full)}"' if why or before else ""
    verdict = tone(now.partition(" ")[0].capitalize())
    for one in wrapped(f"    {' → '.join(sides)}{reason}", width, "      "):
        yield paint.tone(one, verdict if verdict != "allow" else "")


def _by(hooks: Sequence[str]) -> str:
    return f" by {printable(', '.join(hooks))}" if hooks else ""


def _cut(text: str, width: int, full: bool) -> str:
    return printable(text) if full else one_line(text, max(2 * width - 20, 60))


def _inert(text: str) -> str:
    """A line with its indentation, inert."""
    return text[: len(text) - len(text.lstrip())] + printable(text)


def _painted(line: str, paint: Paint, width: int, hanging: str, *, bold: bool = False) -> Iterator[str]:
    for one in wrapped(line, width, hanging):
        yield paint(one, bold=bold)
