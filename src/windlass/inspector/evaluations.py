"""The endpoints for evaluations: runs that were saved to files, their trials, and how two of them differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from windlass.errors import ConfigError
from windlass.evals import EvalRun, compare
from windlass.evals.runs import Change, TrialReport
from windlass.messages import Usage
from windlass.server.errors import Problem

from .requests import Call, Endpoint, Endpoints
from .words import MOST_ITEMS, Data, cut

TEXT = 2000
MOST_FILES = MOST_ITEMS
"""How many files of a folder are read, the latest first."""

MOST_CASES, MOST_TRIALS = MOST_ITEMS, 4000
"""How many cases of a run, and trials in all of them, are sent; of a case those first that did not pass."""

SESSIONS = 5000
"""Among how many sessions those of trials are looked for."""


class SavedRun(Struct, frozen=True):
    """A run and the file that it comes from."""

    name: str
    run: EvalRun


class Evaluations:
    """The runs in some files, and in the files of some folders. Files that change are read again."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self.paths = tuple(paths)
        self._known: dict[Path, tuple[tuple[int, int], EvalRun | None]] = {}

    def runs(self) -> list[SavedRun]:
        """All runs, the latest first. Raises `ConfigError` for a named file that is not a saved run."""
        files = [file for path in self.paths for file in _files(path)]
        found = [(file, run) for file in dict.fromkeys(files) if (run := self._read(file)) is not None]
        names = [file.name for file, _ in found]
        runs = [SavedRun(file.name if names.count(file.name) == 1 else str(file), run) for file, run in found]
        return sorted(runs, key=lambda one: (-one.run.started_at, one.name))

    def _read(self, file: Path) -> EvalRun | None:
        """The run in a file. Other files of a folder are no error."""
        try:
            about = file.stat()
        except OSError:
            about = None
        stamp = (about.st_mtime_ns, about.st_size) if about is not None else (0, 0)
        known = self._known.get(file)
        if known is not None and known[0] == stamp:
            return known[1]
        run: EvalRun | None = None
        try:
            run = EvalRun.load(file)
        except ConfigError:
            if file in self.paths:
                raise
        self._known[file] = (stamp, run)
        return run


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    files = [(file.stat().st_mtime, file) for file in path.glob("*.json") if file.is_file()]
    return [file for _, file in sorted(files, reverse=True)[:MOST_FILES]]


class Pair(Struct, frozen=True, forbid_unknown_fields=True):
    """A run by its name, by default the latest, and the one to compare it with."""

    run: Annotated[str, Meta(max_length=4000)] = ""
    before: Annotated[str, Meta(max_length=4000)] = ""


async def evaluations(call: Call) -> Data:
    """All runs in a line each, one of them with its cases and trials, and what is different in it."""
    query: Pair = call.query
    saved = call.inspector.evaluations
    try:
        runs = await asyncio.to_thread(saved.runs)
    except ConfigError as error:
        raise Problem(409, "run_unreadable", str(error)) from None
    view: Data = {"given": bool(saved.paths), "runs": [_line(one) for one in runs], "run": None, "before": None}
    if runs:
        one = _named(runs, query.run) if query.run else runs[0]
        before = _named(runs, query.before) if query.before else None
        infos = await call.inspector.source.store.find(limit=SESSIONS)
        known = {info.session for info in infos}
        view["run"] = {**_line(one), "cases": _cases(one.run, known), "of": len(one.run.cases)}
        view["before"] = None if before is None else {**_line(before), **_compared(before.run, one.run)}
    return cut(view, TEXT)  # type: ignore[no-any-return]


def _named(runs: Sequence[SavedRun], name: str) -> SavedRun:
    for one in runs:
        if one.name == name:
            return one
    raise Problem(404, "run_unknown", f"there is no run {name!r}")


def _line(saved: SavedRun) -> Data:
    run = saved.run
    low, high = run.interval
    return {
        "name": saved.name, "agent": run.agent, "started": run.started_at, "repeat": run.repeat,
        "trials": len(run.trials), "passed": run.passed, "errors": run.errors, "rate": run.rate, "low": low,
        "high": high, "spent": _spent(run.spent), "judging": _spent(run.judging),
        "seconds": sum([trial.seconds for trial in run.trials]),
    }  # fmt: skip


def _spent(usage: Usage) -> Data:
    return {"calls": usage.requests, "tokens": usage.total, "cost": usage.cost}


def _cases(run: EvalRun, known: set[str]) -> list[Data]:
    cases = run.cases[:MOST_CASES]
    most = min(max(1, MOST_TRIALS // max(len(cases), 1)), MOST_ITEMS)
    return [
        {"case": case.case, "rate": case.rate, "passed": case.passed, "of": len(case.trials),
         "tags": list(case.trials[0].tags), "trials": [_trial(one, known) for one in _chosen(case.trials, most)]}
        for case in cases
    ]  # fmt: skip


def _chosen(trials: Sequence[TrialReport], most: int) -> Sequence[TrialReport]:
    """At most so many trials, in their order; if there are more, those that did not pass before others."""
    if len(trials) <= most:
        return trials
    first = sorted(trials, key=lambda one: one.passed)[:most]
    return sorted(first, key=lambda one: one.number)


def _trial(trial: TrialReport, known: set[str]) -> Data:
    verdicts = [
        {"check": one.check, "passed": one.passed, "why": one.error or one.reason, "failed": bool(one.error),
         "score": one.score} for one in trial.verdicts
    ]  # fmt: skip
    return {
        "n": trial.number, "passed": trial.passed, "error": trial.error, "outcome": trial.outcome, "text": trial.text,
        "session": trial.session, "known": trial.session in known, "tools": list(trial.tools[:60]),
        "steps": trial.steps, "seconds": trial.seconds, "spent": _spent(trial.spent), "verdicts": verdicts,
        "judged": not (trial.error or any(one.error for one in trial.verdicts)),
    }  # fmt: skip


def _compared(before: EvalRun, after: EvalRun) -> Data:
    found = compare(before, after)

    def changes(some: Sequence[Change]) -> list[Data]:
        return [{"case": one.case, "before": one.before, "after": one.after} for one in some[:MOST_CASES]]

    return {
        "better": changes(found.better), "worse": changes(found.worse), "only": changes(found.only),
        "same": found.same, "chance": found.chance,
    }  # fmt: skip


ENDPOINTS: Endpoints = (Endpoint("/api/evals", evaluations, query=Pair),)
