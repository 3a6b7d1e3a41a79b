"""Evaluations as text for people and as JUnit XML for CI systems."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from windlass._text import one_line, visible

if TYPE_CHECKING:
    from .runs import CaseReport, Comparison, EvalRun, TrialReport

NAME_WIDTH = 44
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def table(run: EvalRun) -> str:
    """A line for each case, the reasons of failed trials, and the totals."""
    lines = [f"{'case':<{NAME_WIDTH}} {'passed':>9} {'steps':>6} {'tokens':>8} {'USD':>9} {'seconds':>8}"]
    for case in run.cases:
        lines.append(_case_line(case))
        lines += [
            f"    {'#' + str(t.number) + ' ' if run.repeat > 1 else ''}{_line(f)}"
            for t in case.trials
            for f in t.failures
        ]
    low, high = run.interval
    spent, judging = run.spent, run.judging
    lines.append("")
    lines.append(
        f"{run.passed} of {len(run.trials)} trials passed: {run.rate:.1%} (95 % interval {low:.1%} to {high:.1%})"
    )
    if run.errors:
        lines.append(f"{run.errors} trials could not be run or judged; they count as not passed")
    lines.append(f"spent: {spent.total} tokens, {_usd(spent.cost, spent.requests)}")
    if judging.requests:
        lines.append(f"judges: {judging.total} tokens, {_usd(judging.cost, judging.requests)}")
    return "\n".join(lines)


def comparison_table(found: Comparison) -> str:
    """The cases that changed, and how likely such a difference is by chance."""
    lines = [f"pass rate {found.before.rate:.1%} → {found.after.rate:.1%}"]
    for title, changes in (("worse", found.worse), ("better", found.better), ("only in one run", found.only)):
        lines += [f"{title}: {len(changes)}"] if changes else []
        lines += [f"    {_line(change.case)}  {_rate(change.before)} → {_rate(change.after)}" for change in changes]
    lines.append(f"the same: {found.same}")
    if found.better or found.worse:
        lines.append(
            f"chance of such a difference without a real one: {found.chance:.3f} (sign test over changed cases)"
        )
    return "\n".join(lines)


def junit(run: EvalRun) -> str:
    """The run as JUnit XML: a test case for each trial."""
    suite = ElementTree.Element(
        "testsuite",
        name=_xml(run.agent),
        tests=str(len(run.trials)),
        failures=str(sum([not t.passed and not _is_error(t) for t in run.trials])),
        errors=str(sum([_is_error(t) for t in run.trials])),
        time=f"{sum([t.seconds for t in run.trials]):.3f}",
        timestamp=datetime.fromtimestamp(run.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
    )
    for trial in run.trials:
        name = trial.case if run.repeat == 1 else f"{trial.case} #{trial.number}"
        element = ElementTree.SubElement(
            suite, "testcase", classname=_xml(run.agent), name=_xml(name), time=f"{trial.seconds:.3f}"
        )
        if not trial.passed:
            kind = "error" if _is_error(trial) else "failure"
            reasons = trial.failures or ("failed",)
            ElementTree.SubElement(element, kind, message=_xml(reasons[0])).text = _xml("\n".join(reasons))
        if trial.text:
            ElementTree.SubElement(element, "system-out").text = _xml(trial.text)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _is_error(trial: TrialReport) -> bool:
    return bool(trial.error) or any(verdict.error for verdict in trial.verdicts)


def _case_line(case: CaseReport) -> str:
    count = len(case.trials)
    spent = [trial.spent for trial in case.trials]
    known = [usage.cost for usage in spent if usage.cost is not None]
    usd = f"{sum(known) / count:.4f}" if len(known) == count else "?"
    return (
        f"{one_line(visible(case.case), NAME_WIDTH):<{NAME_WIDTH}} {f'{case.passed}/{count}':>9}"
        f" {_mean([t.steps for t in case.trials]):>6} {_mean([usage.total for usage in spent]):>8} {usd:>9}"
        f" {sum([t.seconds for t in case.trials]) / count:>8.2f}"
    )


def _mean(values: list[int]) -> str:
    return f"{sum(values) / len(values):g}" if len(values) == 1 else f"{sum(values) / len(values):.1f}"


def _usd(cost: float | None, requests: int) -> str:
    return "cost not known" if cost is None and requests else f"${cost or 0.0:.4f}"


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.0%}"


def _line(text: str) -> str:
    return one_line(visible(text), 200)


def _xml(text: str) -> str:
    """A text without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
