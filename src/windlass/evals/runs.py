"""The result of an evaluation: trials, rates and costs, as values that can be saved and read again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self, TypeAlias

import msgspec
from msgspec import Struct

from windlass.errors import ConfigError
from windlass.messages import Usage

from .statistics import sign_test, wilson
from .trials import NOTHING_SPENT, Verdict, total_usage

_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")
_Fits: TypeAlias = Callable[[float, float], bool]


class TrialReport(Struct, frozen=True, omit_defaults=True):
    """What became of one trial.

    `case` is the name of its case and `number` its repetition, from 1 on. `error` says why the trial could not be run
    or judged. `tools` are the calls that were made. `spent` is the usage of the agent, `judging` that of judges.
    """

    case: str
    number: int
    passed: bool
    verdicts: tuple[Verdict, ...] = ()
    outcome: str = ""
    text: str = ""
    session: str = ""
    error: str = ""
    tools: tuple[str, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    spent: Usage = NOTHING_SPENT
    judging: Usage = NOTHING_SPENT
    tags: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """Why it did not pass: one text for each check that failed, with its name."""
        texts = [f"{v.check}: {v.error or v.reason or 'failed'}" for v in self.verdicts if not v.passed]
        return (self.error, *texts) if self.error else tuple(texts)


class CaseReport(Struct, frozen=True):
    """The trials of one case together: how many there were, how many passed, and the interval of the rate."""

    case: str
    trials: tuple[TrialReport, ...]

    @property
    def passed(self) -> int:
        """How many trials passed."""
        return sum([trial.passed for trial in self.trials])

    @property
    def rate(self) -> float:
        """The share of trials that passed."""
        return self.passed / len(self.trials)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the rate, over the repetitions."""
        return wilson(self.rate, len(self.trials))


class EvalRun(Struct, frozen=True, omit_defaults=True):
    """A finished evaluation. `str(run)` is a table; `save` and `load` keep it as JSON."""

    agent: str
    trials: tuple[TrialReport, ...]
    started_at: float = 0.0
    repeat: int = 1

    @property
    def cases(self) -> tuple[CaseReport, ...]:
        """The trials by case, in the order of the cases."""
        grouped: dict[str, list[TrialReport]] = {}
        for trial in self.trials:
            grouped.setdefault(trial.case, []).append(trial)
        return tuple([CaseReport(case, tuple(trials)) for case, trials in grouped.items()])

    @property
    def passed(self) -> int:
        """How many trials passed."""
        return sum([trial.passed for trial in self.trials])

    @property
    def errors(self) -> int:
        """How many trials could not be run or judged. They count as not passed."""
        return sum([bool(trial.error) or any(v.error for v in trial.verdicts) for trial in self.trials])

    @property
    def rate(self) -> float:
        """The pass rate: the mean over cases of the share of their trials that passed."""
        cases = self.cases
        return sum([case.rate for case in cases]) / len(cases) if cases else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the rate.

        It counts cases, because repetitions of one case are not independent of each other; with a single case it counts
        the repetitions.
        """
        cases = self.cases
        return cases[0].interval if len(cases) == 1 else wilson(self.rate, len(cases))

    @property
    def spent(self) -> Usage:
        """What the agent spent in all trials."""
        return total_usage([trial.spent for trial in self.trials])

    @property
    def judging(self) -> Usage:
        """What the judges spent."""
        return total_usage([trial.judging for trial in self.trials])

    def __str__(self) -> str:
        from .reports import table

        return table(self)

    def json(self) -> str:
        """The run as JSON text."""
        return msgspec.json.format(self._encode(), indent=1).decode()

    def _encode(self) -> bytes:
        try:
            return msgspec.json.encode(self)
        except UnicodeEncodeError:  # a model may say half of a character
            text = json.dumps(msgspec.to_builtins(self), ensure_ascii=False)
            return _HALF_CHARACTERS.sub("\ufffd", text).encode()

    def save(self, path: str | Path) -> None:
        """Write the run to a JSON file."""
        Path(path).write_text(self.json() + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a run from a file that `save` wrote."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{str(path)!r} is not a saved evaluation: {error}") from error


class Change(Struct, frozen=True):
    """A case in two runs: its pass rate before and after, None if that run does not have it."""

    case: str
    before: float | None
    after: float | None


class Comparison(Struct, frozen=True):
    """Two runs side by side. `chance` is how likely such a difference is if the runs do not differ (sign test)."""

    before: EvalRun
    after: EvalRun
    better: tuple[Change, ...]
    worse: tuple[Change, ...]
    same: int
    only: tuple[Change, ...]
    chance: float

    def __str__(self) -> str:
        from .reports import comparison_table

        return comparison_table(self)


def compare(before: EvalRun, after: EvalRun) -> Comparison:
    """Compare two runs case by case. Cases belong together by name."""
    old, new = _rates(before), _rates(after)
    changes = [Change(case, old.get(case), new.get(case)) for case in dict.fromkeys((*old, *new))]
    better = _changes(changes, lambda b, a: a > b)
    worse = _changes(changes, lambda b, a: a < b)
    same = len(_changes(changes, lambda b, a: a == b))
    only = tuple([change for change in changes if change.before is None or change.after is None])
    return Comparison(before, after, better, worse, same, only, sign_test(len(better), len(worse)))


def _rates(run: EvalRun) -> dict[str, float]:
    return {case.case: case.rate for case in run.cases}


def _changes(changes: Iterable[Change], fits: _Fits) -> tuple[Change, ...]:
    return tuple([c for c in changes if c.before is not None and c.after is not None and fits(c.before, c.after)])
