"""What a replay finds: of each session where it differs, and of all of them a summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from windlass._text import one_line, visible, visible_id
from windlass.messages import Value

REFUSALS = ("deny", "halt", "regenerate", "veto", "forbid", "rewind", "finish", "fail")
"""The verdicts that do not let something happen."""


class Difference(Value, frozen=True):
    """A place where the agent decides otherwise than the log: in its verdict, in the arguments of a call, or in whether
    the turn goes on.

    `was` and `now` are what was decided, with its reason; `was_by` and `now_by` name the hooks. `about` is the id of
    what was decided, `record` the number of the record that follows. `arguments` are those of a tool call, as JSON.
    """

    kind: Literal["verdict", "arguments", "outcome"]
    event: str
    about: str
    was: str
    now: str
    was_by: tuple[str, ...] = ()
    now_by: tuple[str, ...] = ()
    tool: str = ""
    turn: int = 0
    step: int = 0
    record: int = 0
    arguments: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the agent refuses what the log let happen."""
        return _kind(self.now) in REFUSALS and _kind(self.was) not in REFUSALS

    @property
    def allows(self) -> bool:
        """Whether the agent lets happen what the log refused, or asked a person about."""
        return _kind(self.now) in ("allow", "answer") and _kind(self.was) in (*REFUSALS, "ask")

    @property
    def line(self) -> str:
        """In one line."""
        what = f"{self.event} of {self.tool}" if self.tool else self.event
        by = f" (by {', '.join(self.now_by)})" if self.now_by else ""
        return f"{what}: {self.was} is now {self.now}{by}"


class Unjudged(Value, frozen=True):
    """A verdict that cannot be given, because the log lacks what it needs. It does not count as an allow."""

    event: str
    about: str
    hook: str
    why: str
    record: int = 0


class SessionReplay(Value, frozen=True):
    """What came of one session. Its replay ends at the step of the first difference.

    `verdicts` counts what was decided again, `reworded` the verdicts that are the same with other words.
    `not_evaluated` names hooks that a replay does not run and that the log's agent did not have. `error` says why the
    log could not be replayed.
    """

    session: str
    agent: str = ""
    turns: int = 0
    steps: int = 0
    verdicts: int = 0
    reworded: int = 0
    differences: tuple[Difference, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()
    not_evaluated: tuple[str, ...] = ()
    error: str = ""

    @property
    def status(self) -> Literal["same", "different", "unjudged", "failed"]:
        """In one word; what is worse counts."""
        if self.error:
            return "failed"
        if self.unjudged:
            return "unjudged"
        return "different" if self.differences else "same"


class Summary(Value, frozen=True):
    """All sessions of a replay in figures. `changes` counts equal differences, the most frequent first."""

    sessions: int = 0
    same: int = 0
    different: int = 0
    unjudged: int = 0
    failed: int = 0
    verdicts: int = 0
    blocked: int = 0
    allowed: int = 0
    reworded: int = 0
    changes: tuple[tuple[str, int], ...] = ()
    lacks: tuple[tuple[str, int], ...] = ()
    not_evaluated: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: all as recorded. 1: something is decided otherwise. 2: something could not be judged or read. 5: there was
        no session to replay."""
        if self.unjudged or self.failed:
            return 2
        if self.different:
            return 1
        return 0 if self.sessions else 5


class Report:
    """Counts what comes of sessions, one after the other. Keeps the sessions that are not the same."""

    def __init__(self) -> None:
        self.sessions: list[SessionReplay] = []
        self._counts: Counter[str] = Counter()
        self._changes: Counter[str] = Counter()
        self._lacks: Counter[str] = Counter()
        self._not_evaluated: dict[str, None] = {}

    def add(self, one: SessionReplay) -> None:
        """Count a session."""
        counts = self._counts
        counts["sessions"] += 1
        counts[one.status] += 1
        counts["verdicts"] += one.verdicts
        counts["reworded"] += one.reworded
        counts["blocked"] += sum([difference.blocks for difference in one.differences])
        counts["allowed"] += sum([difference.allows for difference in one.differences])
        self._changes.update([_grouped(difference) for difference in one.differences])
        self._lacks.update([f"{lack.hook} on {lack.event}: {lack.why}" for lack in one.unjudged])
        self._not_evaluated.update(dict.fromkeys(one.not_evaluated))
        if one.status != "same":
            self.sessions.append(one)

    @property
    def summary(self) -> Summary:
        """The figures so far."""
        return Summary(
            changes=tuple(self._changes.most_common()),
            lacks=tuple(self._lacks.most_common()),
            not_evaluated=tuple(self._not_evaluated),
            **{name: self._counts[name] for name in _FIGURES},
        )

    def json(self) -> str:
        """The summary and all sessions that are not the same, as JSON."""
        sessions = [{"status": one.status, **_plain(one)} for one in self.sessions]
        summary = self.summary
        data = {"summary": {**_plain(summary), "exit_code": summary.exit_code}, "sessions": sessions}
        return msgspec.json.encode(data).decode()

    def __str__(self) -> str:
        return "\n".join([*[line for one in self.sessions for line in _lines(one)], *summary_lines(self.summary)])

    def markdown(self, most: int = 20) -> str:
        """The summary and the first sessions as Markdown, for a comment on a change of a policy."""
        summary = self.summary
        lines = [f"**{headline(summary)}**", ""]
        if summary.changes:
            lines += ["| change | times |", "| --- | ---: |"]
            lines += [f"| {_cell(text)} | {number} |" for text, number in summary.changes[:most]]
            lines += [f"| {len(summary.changes) - most} other changes | |"] if len(summary.changes) > most else []
            lines += [""]
        if summary.lacks:
            lines += ["| not judged | times |", "| --- | ---: |"]
            lines += [f"| {_cell(text)} | {number} |" for text, number in summary.lacks[:most]] + [""]
        differing = [one for one in self.sessions if one.differences]
        if differing:
            lines += ["| session | step | recorded | now | by |", "| --- | ---: | --- | --- | --- |"]
            for one in differing[:most]:
                for it in one.differences:
                    was, now = ("arguments", "other arguments") if it.kind == "arguments" else (it.was, it.now)
                    texts = (f"{it.tool or it.event}: {was}", now, ", ".join(it.now_by))
                    cells = [_cell(one.session), str(it.step), *[_cell(text) for text in texts]]
                    lines.append(f"| {' | '.join(cells)} |")
            if len(differing) > most:
                lines.append(f"| {len(differing) - most} other sessions | | | | |")
            lines += [""]
        lines += [f"Not evaluated: {_cell(text)}." for text in summary.not_evaluated]
        return "\n".join(lines).rstrip() + "\n"


_FIGURES = ("sessions", "same", "different", "unjudged", "failed", "verdicts", "blocked", "allowed", "reworded")


def _kind(verdict: str) -> str:
    return verdict.partition(":")[0]


def _grouped(difference: Difference) -> str:
    """What equal differences have in common: no reasons, no sessions."""
    what = difference.tool or difference.event
    by = f" by {', '.join(difference.now_by)}" if difference.now_by else ""
    if difference.kind == "arguments":
        return f"{what}: other arguments{by}"
    return f"{what}: {_kind(difference.was)} → {_kind(difference.now)}{by}"


def _plain(value: Value) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def headline(summary: Summary) -> str:
    """What came of all sessions, in one line."""
    if not summary.sessions:
        return "no session was replayed"
    parts = [f"{summary.sessions} session{'' if summary.sessions == 1 else 's'}: {summary.same} as recorded"]
    parts += [f"{summary.different} decided differently"] if summary.different else []
    parts += [f"{summary.unjudged} not judged"] if summary.unjudged else []
    parts += [f"{summary.failed} could not be replayed"] if summary.failed else []
    parts += [f"{summary.blocked} blocked that happened"] if summary.blocked else []
    parts += [f"{summary.allowed} allowed that did not"] if summary.allowed else []
    return ", ".join(parts)


def summary_lines(summary: Summary) -> Sequence[str]:
    """The figures of all sessions, line by line; inert."""
    verdicts = f" ({summary.verdicts} verdict{'' if summary.verdicts == 1 else 's'})" if summary.sessions else ""
    lines = [f"{headline(summary)}{verdicts}"]
    lines += [f"  {number} × {visible(text)}" for text, number in summary.changes]
    lines += [f"  {number} × not judged: {visible(text)}" for text, number in summary.lacks]
    lines += [f"  not evaluated: {visible(text)}" for text in summary.not_evaluated]
    return lines


def _lines(one: SessionReplay) -> Sequence[str]:
    head = f"{visible_id(one.session)}  {one.status}"
    if one.error:
        return [f"{head}: {one_line(one.error, 200)}"]
    lines = [head]
    for it in one.differences:
        lines.append(f"  turn {it.turn}, step {it.step}  {one_line(it.line, 200)}")
        lines += [f"    {one_line(it.arguments, 200)}"] if it.arguments else []
    lines += [f"  not judged  {it.hook} on {it.event}: {one_line(it.why, 160)}" for it in one.unjudged]
    return lines


def _cell(text: str) -> str:
    """A text as the cell of a table, as code: nothing in it is markup, a link, or the name of a person to tell."""
    shown = visible(text).replace("|", "\\|")
    fence = "`" * (1 + max([len(run) for run in re.findall("`+", shown)], default=0))
    edge = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{edge}{shown}{edge}{fence}" if shown else ""
