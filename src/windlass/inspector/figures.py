"""What hooks did in a session, turn by turn, read from its log: how often they spoke, what they cost and saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2
from typing import Any, TypeVar

from msgspec import Struct, field

from windlass import records as r
from windlass.decisions import Vote
from windlass.messages import OpaquePart, Usage

from .digests import active
from .score import LONGEST, TONES, Score, Turn
from .words import Data, moment, plain

_R = TypeVar("_R", bound=r.Record)

TOP = 400
"""The highest bucket of a histogram that counts: 2**100 microseconds."""

SEVERITY = ("deny", "error", "ask", "changed", "inject", "allow", "shadow")
"""What hooks say, the gravest first."""


class Times(Struct):
    """How long calls took, in seconds: summed up, the slowest, and a histogram with buckets as in `HookTimes`."""

    count: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one call."""
        seconds = min(max(seconds, 0.0), LONGEST)
        bucket = int(4 * log2(seconds * 1e6)) if seconds > 1e-6 else 0
        self.merge(Times(1, seconds, seconds, {min(bucket, TOP): 1}))

    def merge(self, other: Times) -> None:
        """Count what another one has counted."""
        self.count += other.count
        self.seconds += other.seconds
        self.slowest = max(self.slowest, other.slowest)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def quantile(self, part: float) -> float:
        """About how long such a part of the calls took at most."""
        if len(self.buckets) == 1 and self.count:
            return self.seconds / self.count
        wanted, seen, last = part * sum(self.buckets.values()), 0, max(self.buckets, default=0)
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                if bucket == last and self.buckets[bucket] == 1:
                    return self.slowest
                return float(min(2 ** ((bucket + 0.5) / 4) / 1e6, self.slowest))
        return 0.0

    def view(self) -> Data | None:
        """What the page shows of it."""
        if not self.count:
            return None
        return {
            "count": self.count, "seconds": self.seconds, "p50": self.quantile(0.5), "p95": self.quantile(0.95),
            "max": self.slowest,
        }  # fmt: skip


class Spent(Struct):
    """Calls of models, with their tokens and what they cost. `unpriced` counts those without a price."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def add(self, usage: Usage) -> None:
        """Count one call."""
        self.calls += 1
        self.input += usage.input
        self.output += usage.output
        self.cost += usage.cost or 0.0
        self.unpriced += usage.cost is None

    def merge(self, other: Spent) -> None:
        """Count what another one has counted."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def view(self) -> Data:
        """What the page shows of it."""
        known = self.calls > self.unpriced
        return {"calls": self.calls, "tokens": self.input + self.output, "cost": self.cost if known else None}


class HookFigures(Struct):
    """One hook at one event. `said` counts what it answered by tone; `asked` is None unless it was measured."""

    said: dict[str, int] = {}
    asked: int | None = None
    times: Times = field(default_factory=Times)
    spoken: Times = field(default_factory=Times)
    side: Spent = field(default_factory=Spent)
    timeouts: int = 0

    def say(self, tone: str, took: float = 0.0) -> None:
        """Count an answer, and how long it took, if that is known."""
        self.said[tone] = self.said.get(tone, 0) + 1
        if took:
            self.spoken.add(took)

    def merge(self, other: HookFigures) -> None:
        """Count what another one has counted."""
        for tone, count in other.said.items():
            self.said[tone] = self.said.get(tone, 0) + count
        if other.asked is not None:
            self.asked = (self.asked or 0) + other.asked
        self.times.merge(other.times)
        self.spoken.merge(other.spoken)
        self.side.merge(other.side)
        self.timeouts += other.timeouts

    def view(self) -> Data:
        """What the page shows of it. Times of hooks that were not measured are those of its answers only."""
        measured = self.asked is not None
        return {
            "said": self.said, "asked": self.asked, "measured": measured, "timeouts": self.timeouts,
            "times": (self.times if measured else self.spoken).view(),
            "side": self.side.view() if self.side.calls else None,
        }  # fmt: skip


class ToolFigures(Struct):
    """The calls of one tool: made, refused, and how often each gate answered about one of them, by tone."""

    calls: int = 0
    ran: int = 0
    refused: int = 0
    unanswered: int = 0
    seen: dict[str, dict[str, int]] = {}

    def merge(self, other: ToolFigures) -> None:
        """Count what another one has counted."""
        for name in ("calls", "ran", "refused", "unanswered"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for hook, tones in other.seen.items():
            mine = self.seen.setdefault(hook, {})
            for tone, count in tones.items():
                mine[tone] = mine.get(tone, 0) + count


class TurnFigures(Struct):
    """One turn, or several together. `hooks` and the `persons` who answered are by event and name."""

    turn: int = 0
    began: float = 0.0
    hooks: dict[tuple[str, str], HookFigures] = {}
    persons: dict[tuple[str, str], HookFigures] = {}
    tools: dict[str, ToolFigures] = {}
    vendor: dict[str, int] = {}
    model: Spent = field(default_factory=Spent)
    side: Spent = field(default_factory=Spent)
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    people_seconds: float = 0.0
    measured: bool = False
    streams: list[Data] = []

    def hook(self, event: str, name: str) -> HookFigures:
        """The figures of a hook."""
        return self.hooks.setdefault((event, name), HookFigures())

    def tool(self, name: str) -> ToolFigures:
        """The figures of a tool."""
        return self.tools.setdefault(name, ToolFigures())

    @property
    def hook_seconds(self) -> float:
        """How long hooks took: all of them if they were measured, otherwise those that answered."""
        times = [one.times if one.asked is not None else one.spoken for one in self.hooks.values()]
        return sum([one.seconds for one in times])

    def merge(self, other: TurnFigures) -> None:
        """Count what another turn has counted."""
        for key, hook in other.hooks.items():
            self.hooks.setdefault(key, HookFigures()).merge(hook)
        for key, person in other.persons.items():
            self.persons.setdefault(key, HookFigures()).merge(person)
        for name, tool in other.tools.items():
            self.tool(name).merge(tool)
        for name, count in other.vendor.items():
            self.vendor[name] = self.vendor.get(name, 0) + count
        self.model.merge(other.model)
        self.side.merge(other.side)
        for name in ("model_seconds", "tool_seconds", "people_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.measured = self.measured or other.measured
        self.streams += other.streams

    def cost(self) -> Data:
        """Hooks beside the agent: time, tokens and money."""
        return {
            "turn": self.turn, "began": self.began, "measured": self.measured, "hooks": self.hook_seconds,
            "model": self.model_seconds, "tools": self.tool_seconds, "people": self.people_seconds,
            "spent": self.model.view(), "side": self.side.view(),
        }  # fmt: skip


class Summary(Struct):
    """A session in figures: its turns, the pipelines it ran on, and its calls without a known outcome.

    Each of `pipelines` is a turn, a digest, how it came in, when, and the number of the record.
    """

    session: str
    agent: str
    parent: str
    records: int
    turns: list[TurnFigures]
    pipelines: list[tuple[int, str, str, float, int]]
    effects: list[Data]
    state: str
    last: float

    def of(self, turn: int | None) -> TurnFigures:
        """One turn, or all of them together."""
        found = TurnFigures(turn or 0, self.turns[0].began if self.turns else 0.0)
        for one in self.turns:
            if turn is None or one.turn == turn:
                found.merge(one)
        return found


def summarise(session: str, records: Sequence[r.Record], score: Score | None = None) -> Summary:
    """Read a log. `score` is that of the log, if it is known."""
    if score is None:
        score = Score(session)
        score.extend(records)
    reader = _Reader()
    for number, record in enumerate(records, 1):
        reader.number = number
        if (read := _READS.get(type(record))) is not None:
            read(reader, record)
    by_number = {one.turn: one for one in reader.turns}
    for turn in score.turns:
        if (figures := by_number.get(turn.n)) is not None:
            _add_times(figures, turn)
    last = score.turn.last if score.turn is not None else 0.0
    effects = [one for turn in score.turns for one in _effects(turn)]
    state = "" if score.turn is None else score.turn.state
    return Summary(
        session, score.agent, score.parent, len(records), reader.turns, reader.pipelines, effects, state, last
    )


def _add_times(figures: TurnFigures, turn: Turn) -> None:
    """Times and calls, which the rows of the score have."""
    figures.model_seconds = active([row for row in turn.rows if row["k"] in ("model", "attempt")])
    figures.tool_seconds = active([row for row in turn.rows if row.get("called")])
    figures.people_seconds = sum([max(row["t"] - row["t0"], 0.0) for row in turn.rows if row["k"] == "wait"])
    for row in turn.rows:
        if row["k"] != "tool":
            continue
        tool = figures.tool(row["name"])
        tool.calls += 1
        tool.ran += bool(row["called"])
        tool.refused += row["status"] == "denied"
        answers = [one for one in row.get("says", ()) if not one["shadow"] and one["event"] == "ToolCalling"]
        tool.unanswered += bool(row["called"]) and not answers
        for one in row.get("says", ()):
            if one["event"] == "ToolCalling":
                tones = tool.seen.setdefault(one["hook"], {})
                tone = "shadow" if one["shadow"] else TONES.get(one["v"], "allow")
                tones[tone] = tones.get(tone, 0) + 1
        for one in row.get("changes", ()):
            if one["event"] == "ToolCalling":
                tones = tool.seen.setdefault(one["hook"], {})
                tones["changed"] = tones.get("changed", 0) + 1


def _effects(turn: Turn) -> Iterable[Data]:
    """The calls whose outcome the log does not have."""
    names = ("call", "name", "status", "called", "t0", "n", "attempts")
    for row in turn.rows:
        settled = row.get("status") not in ("", "interrupted")
        if row["k"] != "tool" or settled or (not row["status"] and turn.state not in ("running", "waiting")):
            continue
        arguments = str(row.get("final") or row["json"])
        waits = bool(row.get("asked")) and not row.get("answered")
        yield {
            **{name: row.get(name) for name in names}, "turn": turn.n, "state": turn.state, "arguments": arguments,
            "waits": waits, "child": row.get("child", ""),
        }  # fmt: skip


# ---------------------------------------------------------------- records


class _Reader:
    """Reads the records of one session in order."""

    def __init__(self) -> None:
        self.turns: list[TurnFigures] = []
        self.pipelines: list[tuple[int, str, str, float, int]] = []
        self.known: set[tuple[str, str, str]] = set()
        self.asked: dict[str, str] = {}
        self.over = False
        self.number = 0

    @property
    def turn(self) -> TurnFigures:
        """The turn that is read."""
        if not self.turns:
            self.turns.append(TurnFigures())
        return self.turns[-1]

    def note(self, digest: str, how: str, at: float) -> None:
        """Note a pipeline, if it is another one than before. Between two turns it is that of the next one."""
        if digest and (not self.pipelines or self.pipelines[-1][1] != digest):
            turn = self.turns[-1].turn + self.over if self.turns else 1
            self.pipelines.append((turn, digest, how, moment(at), self.number))


_READS: dict[type[r.Record], Callable[[_Reader, Any], None]] = {}


def _reads(kind: type[_R]) -> Callable[[Callable[[_Reader, _R], None]], None]:
    def register(read: Callable[[_Reader, _R], None]) -> None:
        _READS[kind] = read

    return register


def tone_of(decision: Any) -> str:
    """What an answer counts as."""
    name = decision.name if isinstance(decision, Vote) else type(decision).__name__
    return TONES.get(name, "allow")


@_reads(r.SessionOpened)
def _(reader: _Reader, record: r.SessionOpened) -> None:
    reader.note(record.pipeline, "opened again" if record.how == "resumed" else record.how, record.at)


@_reads(r.TurnStarted)
def _(reader: _Reader, record: r.TurnStarted) -> None:
    reader.turns.append(TurnFigures(record.turn, moment(record.at)))
    reader.known.clear()
    reader.over = False
    if record.options is not None:
        reader.note(record.options.pipeline, "with options of this turn", record.at)


@_reads(r.TurnEnded)
def _(reader: _Reader, record: r.TurnEnded) -> None:
    reader.over = True


@_reads(r.Resumed)
def _(reader: _Reader, record: r.Resumed) -> None:
    reader.note(record.pipeline, "resumed", record.at)


@_reads(r.HookDecided)
def _(reader: _Reader, record: r.HookDecided) -> None:
    took = record.took if len(record.answers) == 1 else 0.0
    for hook, decision in record.answers:
        tone = "shadow" if record.shadow else tone_of(decision)
        reader.turn.hook(record.event, hook).say(tone, took)


@_reads(r.ToolDecided)
def _(reader: _Reader, record: r.ToolDecided) -> None:
    took = record.took if len(record.answers) == 1 else 0.0
    for hook, decision in record.answers:
        event = "Delegating" if hook in record.delegating else "ToolCalling"
        if (record.call, event, hook) not in reader.known:  # gates are asked again when a turn is resumed
            reader.known.add((record.call, event, hook))
            reader.turn.hook(event, hook).say(tone_of(decision), took)


@_reads(r.Asked)
def _(reader: _Reader, record: r.Asked) -> None:
    reader.asked[record.id] = record.event


@_reads(r.Answered)
def _(reader: _Reader, record: r.Answered) -> None:
    event, who = reader.asked.get(record.id, "ToolCalling"), record.by or "a person"
    reader.known.add((record.id, event, who))
    reader.turn.persons.setdefault((event, who), HookFigures()).say(tone_of(record.answer))


@_reads(r.Rewritten)
def _(reader: _Reader, record: r.Rewritten) -> None:
    reader.turn.hook(record.event, record.hook).say("changed", record.took)


@_reads(r.Injected)
def _(reader: _Reader, record: r.Injected) -> None:
    reader.turn.hook(record.event, record.hook).say("inject", record.took)


@_reads(r.HookFailed)
def _(reader: _Reader, record: r.HookFailed) -> None:
    figures = reader.turn.hook(record.event, record.hook)
    figures.say("error", record.took)
    figures.timeouts += record.error.type == "HookTimeout"


@_reads(r.Compacted)
def _(reader: _Reader, record: r.Compacted) -> None:
    if record.by:
        reader.turn.hook("Compacting", record.by).say("changed")


@_reads(r.ModelReplied)
def _(reader: _Reader, record: r.ModelReplied) -> None:
    turn = reader.turn
    if record.paid:
        turn.model.add(record.reply.usage)
    for part in record.reply.message.parts:
        if isinstance(part, OpaquePart) and not part.mediated:
            data = plain(part.data)
            kind = data.get("type") if isinstance(data, Mapping) else None
            name = str(kind or part.vendor)
            turn.vendor[name] = turn.vendor.get(name, 0) + 1


@_reads(r.ModelAttempted)
def _(reader: _Reader, record: r.ModelAttempted) -> None:
    if record.reply is not None:
        reader.turn.model.add(record.reply.usage)


@_reads(r.SideReplied)
def _(reader: _Reader, record: r.SideReplied) -> None:
    if not record.paid:
        return
    turn = reader.turn
    turn.side.add(record.reply.usage)
    event = record.key.split(":", 1)[0] if ":" in record.key else ""
    key = (event, record.by)
    if key not in turn.hooks:
        key = next((other for other in turn.hooks if other[1] == record.by), key)
    turn.hooks.setdefault(key, HookFigures()).side.add(record.reply.usage)


@_reads(r.HooksRan)
def _(reader: _Reader, record: r.HooksRan) -> None:
    turn = reader.turn
    turn.measured = True
    for row in record.hooks:
        figures = turn.hook(row.event, row.hook)
        figures.asked = (figures.asked or 0) + row.asked
        buckets = {max(0, min(bucket, TOP)): count for bucket, count in row.buckets}
        seconds, slowest = [min(max(value, 0.0), LONGEST) for value in (row.seconds, row.slowest)]
        figures.times.merge(Times(row.asked, seconds, slowest, buckets))
    turn.streams += [{"turn": turn.turn, **plain(one)} for one in record.streams]
