"""A turn as a waterfall: each row has a bar on a scale of time, and words for who did what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from windlass._text import one_line, printable, visible_id
from windlass.inspector.phrases import ENDS, because, chips, count, money, offset, phrase, span, state_of
from windlass.inspector.words import Data

from .painting import Paint
from .view import wrapped

PAGE = 24
"""How many steps share a scale of time, if a turn has many."""

GUTTER = 4
_LONGEST_LANE = 44
_PLAIN_LANE = 24
_TEXT_LINES = 2
"""How many lines of a text a terminal gets, without --full."""


class Line(NamedTuple):
    """A row of the waterfall: `depth` is how many agents are above its own, `state` how its turn stands."""

    row: Data
    depth: int
    page: int
    step: str
    state: str


class Waterfall:
    """Draws a turn. Without a `width` nothing is cut, for a pipe; with `full` nothing is cut on a terminal either."""

    def __init__(self, tree: Data, paint: Paint, width: int | None, *, full: bool = False) -> None:
        self.tree = tree
        self.paint = paint
        self.width = width
        self.full = full or width is None
        self.state = "" if tree["turn"] is None else state_of(tree["turn"], tree["live"])
        self.lane = _PLAIN_LANE if width is None else _lane(width)
        self.was_cut = False

    def lines(self) -> Iterator[str]:
        """The lines, inert."""
        yield from self._head()
        if self.tree["turn"] is None:
            yield "no turn has begun yet"
            return
        scale: Scale | None = None
        lines = list(flatten(self.tree))
        by_page: dict[int, list[Data]] = {}
        for line in lines:
            by_page.setdefault(line.page, []).append(line.row)
        page = -1
        for line in lines:
            if line.page != page or scale is None:
                page, scale = line.page, Scale(by_page[line.page], self.lane)
                yield ""
                yield from self._axis(scale)
            yield from self._row(line, scale)
        yield from self._end()

    # ------------------------------------------------------------ above and below

    def _head(self) -> Iterator[str]:
        tree, turn, paint = self.tree, self.tree["turn"], self.paint
        facts = [printable(tree["agent"])] if tree["agent"] else []
        if turn is not None:
            facts.append(f"turn {turn['n']} of {tree['turns'][-1]}" if len(tree["turns"]) > 1 else f"turn {turn['n']}")
        facts += [f"child of {visible_id(tree['parent'])}"] if tree["parent"] else []
        facts += [f"forked from {visible_id(tree['forked_from'])}"] if tree["forked_from"] else []
        name = visible_id(tree["session"])
        plain = self._dots([name, *facts])
        for number, text in enumerate(self._wrap(plain, 0)):
            yield paint(name, bold=True) + text[len(name) :] if not number and text.startswith(name) else text
        if turn is None:
            return
        yield from self._wrap(self._totals(), 0)

    def _totals(self) -> str:
        spent = self.tree["spent"]
        calls = spent["model_calls"]
        cached = f" ({spent['cached'] / spent['input']:.0%} cached)" if spent["cached"] and spent["input"] else ""
        parts = [f"{calls} model call{'' if calls == 1 else 's'}"]
        parts += [f"{count(spent['input'])} in{cached}, {count(spent['output'])} out"] if calls else []
        parts += [] if spent["cost"] is None else [money(spent["cost"])]
        names = ("model", "tools", "hooks", "people")
        parts += [f"{name} {span(spent['seconds'][name])}" for name in names if spent["seconds"][name] > 0]
        return self._dots(parts)

    def _dots(self, parts: Iterable[str]) -> str:
        return f" {self.paint.shapes['dot']} ".join(parts)

    def _axis(self, scale: Scale) -> Iterator[str]:
        shapes = self.paint.shapes
        began = self.tree["turn"]["began"]
        key = "  ".join([f"{shapes[kind]} {kind}" for kind in ("model", "tool", "person")])
        if not self.lane:
            return
        yield self.paint(f"{'step':<{GUTTER}} {scale.axis(began):<{self.lane}}  {key}".rstrip(), dim=True)

    def _end(self) -> Iterator[str]:
        turn, state = self.tree["turn"], self.state
        if state == "live":
            yield from self._words("", "", "live", f"is running: {because(turn, state)}", "")
            return
        yield from self._words("", "", state, ENDS[state], because(turn, state), whole=True)
        if state == "waiting":
            for ask in [ask for row in turn["rows"] if row["k"] == "wait" and row["open"] for ask in row["asks"]]:
                command = f"windlass approve {visible_id(self.tree['session'])} {visible_id(ask['id'])}"
                yield from self._wrap(f"answer it: {command}", GUTTER + 1)

    # ------------------------------------------------------------ one row

    def _row(self, line: Line, scale: Scale) -> Iterator[str]:
        row = line.row
        said = phrase(row, line.state)
        asked = row["k"] == "wait" or bool(row.get("asked"))
        indent = "  " * line.depth
        lane = self._lane_of(line, scale)
        note = printable(said.note) if asked else self._cut(said.note, len(indent))
        yield from self._words(line.step, lane, said.mark, printable(said.who), note, indent)
        if said.text:
            text = printable(said.text) if asked else self._cut(said.text, len(indent) + 2)
            for one in self._wrap(text, self._column + len(indent) + 2):
                yield self.paint(one, strike=said.struck, dim=said.struck)
        given = said.text
        for chip in chips(row):
            why = "" if not chip.why or chip.why in given else chip.why
            given += f"\n{why}"
            mark = self.paint.shapes.get(chip.tone, self.paint.shapes["silent"])
            text = f"{mark} {printable(chip.text)}"
            text += f' "{printable(why) if asked else self._cut(why, len(indent) + 2)}"' if why else ""
            for one in self._wrap(text, self._column + len(indent) + 2):
                yield self.paint.tone(one, chip.tone)

    @property
    def _column(self) -> int:
        """Where the words begin."""
        return GUTTER + 1 + (self.lane + 2 if self.lane else 0)

    def _words(
        self, step: str, lane: str, mark: str, who: str, note: str, indent: str = "", *, whole: bool = False
    ) -> Iterator[str]:
        """The first lines of a row: step, bar, mark, who did it, and a note."""
        shape = f"{self.paint.shapes[mark]} " if mark else ""
        note = printable(note) if whole else note
        first, *rest = self._wrap(f"{indent}{shape}{who}  {note}".rstrip(), self._column, hanging=f"{indent}  ")
        place = " " * self._column
        head = f"{step:>{GUTTER - 1}}  " + (f"{lane or ' ' * self.lane}  " if self.lane else "")
        name = f"{indent}{shape}{who}"
        words = first.removeprefix(place)
        cut = min(len(name), len(words))
        yield (head + self.paint.tone(words[:cut], mark, bold=True) + words[cut:]).rstrip()
        yield from rest

    def _lane_of(self, line: Line, scale: Scale) -> str:
        if not self.lane:
            return ""
        cells = [" "] * self.lane
        kinds = [""] * self.lane
        for start, _ in scale.folds:
            cells[scale.cell(start)], kinds[scale.cell(start)] = self.paint.shapes["fold"], "fold"
        for kind, start, end in _bars(line.row, line.state):
            first = scale.cell(start)
            for at in range(first, max(scale.cell(end, last=True), first + 1)):
                cells[at], kinds[at] = self.paint.shapes[kind], kind
        return self.paint.cells(cells, kinds)

    # ------------------------------------------------------------ fitting

    def _cut(self, text: str, used: int) -> str:
        """A text on one line. On a terminal it is cut to what fits two lines of its column."""
        if self.full or self.width is None:
            return printable(text)
        shown = one_line(text, max(self.width - self._column - used - 2, 18) * _TEXT_LINES)
        self.was_cut = self.was_cut or shown != printable(text)
        return shown

    def _wrap(self, text: str, column: int, hanging: str = "") -> list[str]:
        place = " " * column
        if self.width is None:
            return [place + text]
        lines = wrapped(text, max(self.width - column, 21), hanging)
        return [place + one for one in lines]


def _lane(width: int) -> int:
    """How wide the lane is on a terminal; 0 if it has no room for one."""
    return 0 if width < 50 else min(width * 3 // 10, _LONGEST_LANE)


# ---------------------------------------------------------------- rows


def flatten(tree: Data, depth: int = 0, page: int | None = None) -> Iterator[Line]:
    """The rows of a turn, each with those of the sub-agent that it started below it."""
    turn = tree["turn"]
    rows: Sequence[Data] = () if turn is None else turn["rows"]
    state = "" if turn is None else state_of(turn, tree["live"])
    many = len({row["step"] for row in rows}) > PAGE + 6
    before, shown = -1, set[str]()
    for row in rows:
        at = page if page is not None else max(0, (row["step"] - 1) // PAGE) if many else 0
        step = str(row["step"]) if row["step"] != before and row["step"] and not depth else ""
        before = row["step"]
        yield Line(row, depth, at, step, state)
        child = str(row.get("child", ""))
        if child in tree["agents"] and child not in shown:
            shown.add(child)
            yield from flatten(tree["agents"][child], depth + 1, at)


def _bars(row: Data, state: str) -> Iterator[tuple[str, float, float]]:
    """What the lane of a row has: the kind of a bar or pin, and from when to when."""
    kind, at = row["k"], row["t"]
    if kind == "model":
        yield ("rejected" if row.get("rejected") else "model"), row["t0"], at
    elif kind == "attempt":
        yield "rejected", row["t0"] or at, at
    elif kind == "wait":
        yield "person", row["t0"], at
    elif kind == "tool" and row["called"]:
        yield ("failed tool" if row["status"] in ("error", "interrupted") else "tool"), row["t0"], at
    elif kind == "tool" and row["status"] in ("denied", "cancelled"):
        yield ("deny" if row["status"] == "denied" else "cancelled"), at, at
    elif kind in ("error", "inject"):
        yield kind, at, at
    elif kind in ("veto", "cancel", "rewind"):
        yield "deny", at, at
    elif kind == "compact":
        yield "changed", at, at


# ---------------------------------------------------------------- time


class Scale:
    """Time as cells of a lane. Waiting for people, or for a process that died, is folded: it takes a fixed width."""

    def __init__(self, rows: Iterable[Data], cells: int) -> None:
        rows = [row for row in rows if row["t"]]
        times = [time for row in rows for time in (row.get("t0") or row["t"], row["t"])]
        self.cells = max(cells, 1)
        self.first = min(times, default=0.0)
        self.last = max(max(times, default=0.0), self.first + 0.001)
        self.folds = _folds(rows, self.last - self.first)
        self.fold = min(max(0.085, 3 / self.cells), 0.5 / max(len(self.folds), 1))
        idle = sum(end - start for start, end in self.folds)
        self.active = max(self.last - self.first - idle, 1e-6)
        self.room = 1 - self.fold * len(self.folds)

    def place(self, time: float) -> float:
        """Where a time is, between 0 and 1."""
        place, since = 0.0, self.first
        for start, end in self.folds:
            if time <= start:
                break
            place += (start - since) / self.active * self.room
            since = end
            if time < end:
                return place + (time - start) / (end - start) * self.fold
            place += self.fold
        return min(1.0, max(0.0, place + (time - since) / self.active * self.room))

    def cell(self, time: float, *, last: bool = False) -> int:
        """The cell of a time; with `last` the one after it."""
        exact = self.place(time) * self.cells
        return min(-int(-exact // 1), self.cells) if last else min(int(exact), self.cells - 1)

    def axis(self, began: float) -> str:
        """Labels: times since the turn began, and how long the folded parts are."""
        line = [" "] * self.cells
        for start, end in self.folds:
            self._put(line, self.cell(start), span(end - start))
        unit = next((one for one in _UNITS if one >= self.active / 4), 7200)
        since = self.first
        for start, end in (*self.folds, (self.last, self.last)):
            tick = -int(-((since - began) / unit - 1e-9) // 1)
            while began + tick * unit <= start + 1e-6:
                self._put(line, self.cell(began + tick * unit), offset(tick * unit))
                tick += 1
            since = end
        return "".join(line)

    def _put(self, line: list[str], at: int, text: str) -> None:
        """Write a label where it has room."""
        at = min(at, self.cells - len(text))
        if at >= 0 and all(one == " " for one in line[max(at - 1, 0) : at + len(text) + 1]):
            line[at : at + len(text)] = text


_UNITS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


def _folds(rows: Iterable[Data], length: float) -> list[tuple[float, float]]:
    """The times in which nothing worked, the long ones."""
    waits = sorted((row["t0"], row["t"]) for row in rows if row["k"] in ("wait", "resumed") and row.get("t0"))
    found: list[tuple[float, float]] = []
    for start, end in waits:
        took = end - start
        if took <= length / 2 and (took <= 2 or took <= length * 0.08):
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
