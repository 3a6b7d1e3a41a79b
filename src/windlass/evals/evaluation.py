"""Runs cases: against a live agent, some at once, or against recorded sessions."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from windlass._progress import Report, check_progress
from windlass.agent import Agent
from windlass.batches import BatchProgress
from windlass.errors import ConfigError
from windlass.protocols import Store

from .checks import as_check, outcome
from .judges import ModelJudge
from .runs import EvalRun, TrialReport
from .trials import (
    NOTHING_SPENT,
    Case,
    Check,
    CheckFunction,
    Trial,
    Verdict,
    total_usage,
    trial_of_records,
    trial_of_results,
)

Progress = Callable[[BatchProgress], object]


async def evaluate(
    agent: Agent[Any, Any] | Callable[[Case], Agent[Any, Any]],
    cases: Iterable[Case],
    *,
    repeat: int = 1,
    checks: Sequence[Check | CheckFunction] = (),
    judge: ModelJudge | None = None,
    scope: Any = None,
    concurrency: int = 8,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> EvalRun:
    """Run an agent on cases and check what it did.

    `agent` is an agent, or a function that makes one for a case. Each case runs `repeat` times, each time in a new
    session, and at most `concurrency` trials run at once. `checks` apply to every case, in addition to its own. `scope`
    is the scope of each turn, or a function of the case that returns it. A trial that takes longer than `timeout`
    seconds is cancelled and does not pass; neither does one whose checks take longer. `progress=True` shows a bar.
    """
    found = _check_cases(cases, checks, judge)
    for case in found:
        if case.input is None:
            raise ConfigError(f"case {case.label!r} has no input; use evaluate_sessions for recorded sessions")
    if type(repeat) is not int or repeat < 1:
        raise ConfigError(f"evaluate(repeat={repeat!r}): repeat must be a whole number, 1 or more")

    async def run(case: Case) -> Trial:
        return await _converse(agent if isinstance(agent, Agent) else agent(case), case, scope, judge)

    names = _unique([case.label for case in found])
    jobs = [(names[at], number, case, run) for number in range(1, repeat + 1) for at, case in enumerate(found)]
    name = agent.name if isinstance(agent, Agent) else getattr(agent, "__name__", "agent")
    started = time.time()
    reports = await _Pool(checks, concurrency, timeout, progress).run(jobs)
    return EvalRun(name, tuple(reports), started, repeat)


async def evaluate_sessions(
    store: Store,
    cases: Iterable[Case],
    *,
    checks: Sequence[Check | CheckFunction] = (),
    judge: ModelJudge | None = None,
    concurrency: int = 8,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> EvalRun:
    """Check recorded sessions without running an agent: the latest turn of each.

    The `session` of a case is an id, or a glob that stands for all matching sessions. See `evaluate` for the rest.
    """
    found = _check_cases(cases, checks, judge)
    labels: list[str] = []
    chosen: list[tuple[Case, str]] = []
    for case in found:
        if not case.session:
            raise ConfigError(f"case {case.label!r} has no session; use evaluate to run an agent")
        sessions = await _sessions(store, case.session)
        for session in sessions:
            labels.append(case.label if len(sessions) == 1 else f"{case.name or case.session}: {session}")
            chosen.append((case, session))
    jobs = [
        (name, 1, case, _reader(store, session, judge))
        for name, (case, session) in zip(_unique(labels), chosen, strict=True)
    ]
    started = time.time()
    reports = await _Pool(checks, concurrency, timeout, progress).run(jobs)
    return EvalRun("recorded sessions", tuple(reports), started)


async def _converse(agent: Agent[Any, Any], case: Case, scope: Any, judge: ModelJudge | None) -> Trial:
    """Run the turns of a case, one after the other in one session."""
    assert case.input is not None
    options: dict[str, Any] = {}
    given = scope(case) if callable(scope) else scope
    given = await given if inspect.isawaitable(given) else given
    if given is not None:
        options["scope"] = given
    results = [await agent.run(case.input, **options)]
    for message in case.follow_ups:
        results.append(await agent.run(message, session=results[0].session_id, **options))
    return trial_of_results(case, results, judge)


def _reader(store: Store, session: str, judge: ModelJudge | None) -> Callable[[Case], Awaitable[Trial]]:
    async def read(case: Case) -> Trial:
        return trial_of_records(case, session, await store.read(session), judge)

    return read


async def _sessions(store: Store, wanted: str) -> list[str]:
    if not any(sign in wanted for sign in "*?["):
        if not await store.read(wanted):
            raise ConfigError(f"there is no session {wanted!r} in the store")
        return [wanted]
    ids = [info.session for info in await store.find()]
    found = [id for id in ids if fnmatchcase(id, wanted) and "//" not in id]  # not those of sub-agents
    if not found:
        raise ConfigError(f"no session in the store matches {wanted!r}")
    return sorted(found)


_Job = tuple[str, int, Case, Callable[[Case], Awaitable[Trial]]]


class _Pool:
    """Runs trials, some at once, and checks them. The reports come in the order of the jobs."""

    def __init__(
        self,
        checks: Sequence[Check | CheckFunction],
        concurrency: int,
        timeout: float | None,
        progress: bool | Progress,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigError(f"evaluate(concurrency={concurrency!r}): concurrency must be a whole number, 1 or more")
        check_progress(progress, "evaluate")
        self._checks = checks
        self._timeout = timeout
        self._room = asyncio.Semaphore(concurrency)
        self._report = Report[BatchProgress](progress)
        self._done = self._failed = self._running = 0

    async def run(self, jobs: Sequence[_Job]) -> list[TrialReport]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._trial(len(jobs), *job)) for job in jobs]
            return [task.result() for task in tasks]
        finally:
            self._report.close()

    async def _trial(
        self, total: int, name: str, number: int, case: Case, run: Callable[[Case], Awaitable[Trial]]
    ) -> TrialReport:
        async with self._room:
            self._running += 1
            try:
                async with asyncio.timeout(self._timeout):
                    trial = await run(case)
                report = await self._checked(name, number, case, trial)
            except Exception as error:
                text = "it took too long" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
                report = TrialReport(name, number, False, error=text, tags=tuple(case.tags))
            self._running -= 1
            self._done += 1
            self._failed += not report.passed
            self._report(BatchProgress(self._done, self._failed, self._running, total))
            return report

    async def _checked(self, name: str, number: int, case: Case, trial: Trial) -> TrialReport:
        verdicts: list[Verdict] = []
        error = ""
        try:
            async with asyncio.timeout(self._timeout):
                for check in _all_checks(case, self._checks):
                    verdicts.append(await _verdict(check, trial))  # noqa: PERF401 -- some may be there when time is up
        except TimeoutError:
            error = "its checks took too long"
        return TrialReport(
            name,
            number,
            not error and all(verdict.passed for verdict in verdicts),
            tuple(verdicts),
            type(trial.outcome).__name__,
            trial.text,
            trial.session,
            error,
            tuple([call.call.name for call in trial.called]),
            len(trial.steps),
            trial.seconds,
            trial.usage,
            total_usage([verdict.usage for verdict in verdicts]) if verdicts else NOTHING_SPENT,
            tuple(case.tags),
        )


async def _verdict(check: Check, trial: Trial) -> Verdict:
    """What a check says. A check that raises, or that returns neither a bool nor a verdict, has not passed."""
    try:
        said: Any = check.run(trial)
        said = await said if inspect.isawaitable(said) else said
    except AssertionError as error:
        return Verdict(False, str(error) or "an assertion failed", check=check.name)
    except Exception as error:
        return Verdict(False, check=check.name, error=f"the check raised {type(error).__name__}: {error}")
    if isinstance(said, bool):
        return Verdict(said, check=check.name)
    if isinstance(said, Verdict):
        return Verdict(said.passed and not said.error, said.reason, said.score, check.name, said.error, said.usage)
    return Verdict(False, check=check.name, error=f"the check returned {said!r:.80} instead of a bool or a Verdict")


def _all_checks(case: Case, common: Sequence[Check | CheckFunction]) -> list[Check]:
    """The checks of a case. Unless one of them is about the outcome, the trial must be completed."""
    found = [as_check(given) for given in (*common, *case.checks)]
    implied = [] if any(check.kind in ("outcome", "stop_reason") for check in found) else [outcome("completed")]
    return [*implied, *found]


def _check_cases(
    cases: Iterable[Case], checks: Sequence[Check | CheckFunction], judge: ModelJudge | None
) -> list[Case]:
    """The cases, checked before anything runs."""
    found = list(cases)
    if not found:
        raise ConfigError("there are no cases to evaluate")
    for case in found:
        if not isinstance(case, Case):
            raise ConfigError(f"{case!r:.80} is not a Case")
        needing = [check.name for check in _all_checks(case, checks) if check.needs_judge]
        if needing and judge is None:
            raise ConfigError(
                f"case {case.label!r} has the check {needing[0]!r}, which asks a judge, but there is none: "
                "pass judge=ModelJudge(…), or --judge MODEL on the command line"
            )
    return found


def _unique(labels: Sequence[str]) -> list[str]:
    """A name for each label; labels that are there already get a number."""
    known, taken = set(labels), set[str]()
    names = []
    for label in labels:
        numbered = (name for count in itertools.count(2) if (name := f"{label} ({count})") not in known)
        name = label if label not in taken else next(one for one in numbered if one not in taken)
        taken.add(name)
        names.append(name)
    return names
