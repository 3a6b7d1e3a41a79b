"""Checks of a trial: its answer, its outcome, the tools it called, the decisions of hooks, and its cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import msgspec

from windlass.errors import ConfigError
from windlass.messages import Usage
from windlass.outcomes import StopReason
from windlass.steps import CallReport

from .trials import Check, CheckFunction, Trial, Verdict, shorten

OutcomeName: TypeAlias = Literal["completed", "stopped", "suspended", "failed", "cancelled"]
OUTCOMES = ("completed", "stopped", "suspended", "failed", "cancelled")


def contains(text: str, *, ignore_case: bool = False) -> Check:
    """The answer contains this text."""
    _require_text(text, f"contains({text!r}): give a text that is not empty")
    wanted = text.casefold() if ignore_case else text

    def run(trial: Trial) -> Verdict:
        found = wanted in (trial.text.casefold() if ignore_case else trial.text)
        return Verdict(found, "" if found else f"{text!r} is not in {_quoted(trial.text)}")

    return _check(contains, f"contains {text!r}", run)


def equals(text: str) -> Check:
    """The answer is this text. White space around it does not count."""
    _require(isinstance(text, str), f"equals({text!r}): give a text")

    def run(trial: Trial) -> Verdict:
        same = trial.text.strip() == text.strip()
        return Verdict(same, "" if same else f"the answer is {_quoted(trial.text)}")

    return _check(equals, f"equals {shorten(text)!r}", run)


def matches(pattern: str) -> Check:
    """A part of the answer matches this regular expression."""
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(f"matches({pattern!r}): this is not a regular expression: {error}") from error

    def run(trial: Trial) -> Verdict:
        found = compiled.search(trial.text) is not None
        return Verdict(found, "" if found else f"nothing in {_quoted(trial.text)} matches")

    return _check(matches, f"matches {pattern!r}", run)


def output_equals(value: Any) -> Check:
    """The typed output, as plain JSON values, equals this value."""
    wanted = msgspec.to_builtins(value)

    def run(trial: Trial) -> Verdict:
        try:
            found = trial.output if trial.output is None else msgspec.to_builtins(trial.output)
        except (TypeError, msgspec.MsgspecError):
            dump = getattr(trial.output, "model_dump", None)
            found = trial.output if dump is None else dump(mode="json")
        return Verdict(found == wanted, "" if found == wanted else f"the output is {_quoted(repr(found))}")

    return _check(output_equals, f"output equals {shorten(repr(wanted))}", run)


def outcome(name: OutcomeName) -> Check:
    """The turn ended like this. Without this check, a trial must be completed."""
    _require(name in OUTCOMES, f"outcome({name!r}): use one of {', '.join(OUTCOMES)}")

    def run(trial: Trial) -> Verdict:
        found = type(trial.outcome).__name__.lower()
        return Verdict(
            found == name, "" if found == name else f"the turn is {found}: {shorten(str(trial.outcome), 200)}"
        )

    return _check(outcome, f"outcome {name}", run)


def stop_reason(reason: str) -> Check:
    """The turn was stopped for this reason, such as `steps` or `halted`."""
    known = [found.value for found in StopReason]
    _require(reason in known, f"stop_reason({reason!r}): use one of {', '.join(known)}")

    def run(trial: Trial) -> Verdict:
        found = getattr(getattr(trial.outcome, "reason", None), "value", type(trial.outcome).__name__.lower())
        return Verdict(found == reason, "" if found == reason else f"it ended with {found}")

    return _check(stop_reason, f"stop reason {reason}", run)


def called(tool: str, arguments: dict[str, Any] | None = None, *, times: int | None = None) -> Check:
    """A tool was called, with at least these arguments. `tool` may be a glob; `times` is the exact number of calls."""
    _check_tool("called", tool)
    _require(times is None or (type(times) is int and times >= 0), f"called(times={times!r}): give a whole number")
    wanted = dict(arguments or {})

    def run(trial: Trial) -> Verdict:
        found = [call for call in trial.called if _fits(call, tool, wanted)]
        passed = bool(found) if times is None else len(found) == times
        return Verdict(passed, "" if passed else f"{len(found)} such calls; {_calls(trial)}")

    name = f"called {tool}" + (f" with {shorten(repr(wanted))}" if wanted else "")
    return _check(called, name + ("" if times is None else f" {times} times"), run)


def not_called(tool: str) -> Check:
    """A tool was not called, though the model may have proposed it. `tool` may be a glob."""
    _check_tool("not_called", tool)

    def run(trial: Trial) -> Verdict:
        found = [call for call in trial.called if fnmatchcase(call.call.name, tool)]
        return Verdict(not found, f"it was called {len(found)} times; {_calls(trial)}" if found else "")

    return _check(not_called, f"not called {tool}", run)


def not_proposed(tool: str) -> Check:
    """The model did not even propose to call this tool. `tool` may be a glob."""
    _check_tool("not_proposed", tool)

    def run(trial: Trial) -> Verdict:
        found = [call for call in trial.calls if fnmatchcase(call.call.name, tool)]
        return Verdict(not found, f"it was proposed {len(found)} times" if found else "")

    return _check(not_proposed, f"not proposed {tool}", run)


def order(tools: Sequence[str], *, exact: bool = False) -> Check:
    """Tools were called in this order. Other calls may stand between them, unless the order is `exact`."""
    wanted = (tools,) if isinstance(tools, str) else tuple(tools)
    for tool in wanted:
        _check_tool("order", tool)

    def run(trial: Trial) -> Verdict:
        names = [call.call.name for call in trial.called]
        if exact:
            passed = len(names) == len(wanted) and all(map(fnmatchcase, names, wanted))
        else:
            rest = iter(names)
            passed = all(any(fnmatchcase(name, tool) for name in rest) for tool in wanted)
        return Verdict(passed, "" if passed else _calls(trial))

    return _check(order, ("exactly " if exact else "in order ") + ", ".join(wanted), run)


def decided(decision: str, *, hook: str = "*", tool: str = "*") -> Check:
    """A hook decided this, such as `Deny` or `Ask`; `hook` and `tool` may be globs."""
    return _decisions(decided, decision, hook, tool, wanted=True)


def not_decided(decision: str, *, hook: str = "*", tool: str = "*") -> Check:
    """No hook decided this, such as `Deny` or `Ask`; `hook` and `tool` may be globs."""
    return _decisions(not_decided, decision, hook, tool, wanted=False)


def denied(tool: str) -> Check:
    """A call of this tool was denied. `tool` may be a glob."""
    _check_tool("denied", tool)

    def run(trial: Trial) -> Verdict:
        results = [call.result for call in trial.calls if fnmatchcase(call.call.name, tool)]
        passed = any(result is not None and result.status == "denied" for result in results)
        return Verdict(passed, "" if passed else f"no call of it was denied; {_calls(trial)}")

    return _check(denied, f"denied {tool}", run)


def no_tool_errors() -> Check:
    """No tool call ended with an error."""

    def run(trial: Trial) -> Verdict:
        failed = [call.call.name for call in trial.calls if call.result is not None and call.result.status == "error"]
        return Verdict(not failed, f"errors of {', '.join(failed)}" if failed else "")

    return _check(no_tool_errors, "no tool errors", run)


def max_steps(steps: int) -> Check:
    """The trial took at most this many steps."""
    return _at_most(max_steps, "steps", steps, lambda trial: len(trial.steps))


def max_tokens(tokens: int) -> Check:
    """The trial spent at most this many tokens, input and output together."""
    return _at_most(max_tokens, "tokens", tokens, lambda trial: trial.usage.total)


def max_usd(usd: float) -> Check:
    """The trial cost at most this many dollars. An unknown cost does not pass."""
    return _at_most(max_usd, "USD", usd, lambda trial: _cost(trial.usage))


def max_seconds(seconds: float) -> Check:
    """The turns of the trial took at most this many seconds."""
    return _at_most(max_seconds, "seconds", seconds, lambda trial: trial.seconds)


def judged(criterion: str) -> Check:
    """The judge of the evaluation finds that the trial meets this criterion: `evaluate(…, judge=ModelJudge(…))`."""
    _require_text(criterion, f"judged({criterion!r}): give a criterion in words")

    async def run(trial: Trial) -> Verdict:
        if trial.judge is None:
            raise ConfigError("a check asks a judge, but there is none: pass evaluate(…, judge=ModelJudge(…))")
        return await trial.judge.decide(criterion, trial)

    return _check(judged, f"judged: {shorten(criterion, 60)}", run, needs_judge=True)


def as_check(given: Check | CheckFunction) -> Check:
    """A check, or a plain function of a trial under its own name."""
    if isinstance(given, Check):
        return given
    if not callable(given):
        raise ConfigError(f"{given!r} is not a check: give a function of a trial, or one of windlass.evals.checks")
    return Check(getattr(given, "__name__", type(given).__name__), given)


# ---------------------------------------------------------------- parts of checks


def _check(made_by: Callable[..., Check], name: str, run: CheckFunction, *, needs_judge: bool = False) -> Check:
    return Check(name, run, needs_judge, made_by.__name__)


def _decisions(made_by: Callable[..., Check], decision: str, hook: str, tool: str, *, wanted: bool) -> Check:
    _require_text(decision, f"{made_by.__name__}({decision!r}): name a decision")

    def run(trial: Trial) -> Verdict:
        found = [
            made
            for made in trial.decisions
            if made.decision.lower() == decision.lower()
            and fnmatchcase(made.hook, hook)
            and fnmatchcase(made.tool, tool)
        ]
        if bool(found) == wanted:
            return Verdict(True)
        all_made = ", ".join([f"{made.decision} by {made.hook or 'default'}" for made in trial.decisions]) or "none"
        return Verdict(False, f"the decisions are: {all_made}")

    where = ("" if hook == "*" else f" by {hook}") + ("" if tool == "*" else f" about {tool}")
    return _check(made_by, f"{'' if wanted else 'not '}decided {decision}{where}", run)


def _at_most(made_by: Callable[..., Check], unit: str, limit: object, read: Callable[[Trial], float | None]) -> Check:
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit < 0:
        raise ConfigError(f"{made_by.__name__}({limit!r}): give a number, 0 or more")

    def run(trial: Trial) -> Verdict:
        found = read(trial)
        if found is None:
            return Verdict(False, f"the {unit} are not known")
        return Verdict(found <= limit, "" if found <= limit else f"{found:g} {unit}")

    return _check(made_by, f"at most {limit:g} {unit}", run)


def _cost(usage: Usage) -> float | None:
    return 0.0 if usage.requests == 0 else usage.cost


def _fits(call: CallReport, tool: str, wanted: dict[str, Any]) -> bool:
    given = call.call.arguments
    return fnmatchcase(call.call.name, tool) and all(
        name in given and msgspec.to_builtins(given[name]) == value for name, value in wanted.items()
    )


def _calls(trial: Trial) -> str:
    names = [f"{call.call.name}({shorten(call.call.json, 60)})" for call in trial.called]
    return f"calls made: {', '.join(names) or 'none'}"


def _quoted(text: str) -> str:
    return repr(shorten(text, 200))


def _check_tool(check: str, tool: object) -> None:
    _require_text(tool, f"{check}({tool!r}): give the name of a tool")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _require_text(given: object, message: str) -> None:
    _require(isinstance(given, str) and bool(given.strip()), message)


__all__ = [
    "called",
    "contains",
    "decided",
    "denied",
    "equals",
    "judged",
    "matches",
    "max_seconds",
    "max_steps",
    "max_tokens",
    "max_usd",
    "no_tool_errors",
    "not_called",
    "not_decided",
    "not_proposed",
    "order",
    "outcome",
    "output_equals",
    "stop_reason",
]
