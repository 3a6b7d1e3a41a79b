"""What an evaluation looks at: a case, one trial of it, and the verdicts on the trial."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from windlass.errors import ConfigError
from windlass.messages import AnyMessage, Message, Usage
from windlass.records import Outcome, Record
from windlass.states import fold
from windlass.steps import CallReport, StepReport, steps_of
from windlass.why import Why

if TYPE_CHECKING:
    from windlass.results import Result

    from .judges import ModelJudge


NOTHING_SPENT = Usage(requests=0)


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What a check says about a trial.

    `check` is its name and `reason` a sentence for people. `error` is set if the check itself failed: then the trial
    has not passed, and it is counted as not judged. `usage` is what a judge spent.
    """

    passed: bool
    reason: str = ""
    score: float | None = None
    check: str = ""
    error: str = ""
    usage: Usage | None = None


CheckFunction: TypeAlias = "Callable[[Trial], bool | Verdict | Awaitable[bool | Verdict]]"


class Check(Struct, frozen=True):
    """A named check of a trial. `run` returns a bool or a `Verdict`, and may be async.

    `needs_judge` says that it asks the judge of the evaluation. `kind` is the name of the function that made it.
    """

    name: str
    run: CheckFunction
    needs_judge: bool = False
    kind: str = ""


class Case(Struct, frozen=True):
    """One input for an agent, and the checks that its turn must pass.

    `follow_ups` are further messages to the same session, each after the turn before. `tags` group cases, and `data` is
    yours: checks read it from `trial.case.data`. A case for recorded sessions has a `session` instead of an `input`: an
    id, or a glob such as `support/*`. `checks` are `Check` values or plain functions of a trial.
    """

    input: AnyMessage | None = None
    name: str = ""
    checks: Sequence[Check | CheckFunction] = ()
    follow_ups: Sequence[AnyMessage] = ()
    tags: Sequence[str] = ()
    data: Any = None
    session: str = ""

    @property
    def label(self) -> str:
        """The name, or the beginning of the input."""
        return self.name or self.session or shorten(text_of(self.input))


class Decided(Struct, frozen=True):
    """A decision of a hook in a trial, such as `Deny` by `permissions` at `ToolCalling` about the tool `shell`."""

    decision: str
    hook: str
    event: str
    tool: str = ""
    reason: str = ""


class Trial(Struct, frozen=True):
    """One run of a case: what checks look at.

    `text` is the last turn's text, and `output` its typed value (None if there is none). `steps` and `decisions` are
    those of all turns of the trial, in order. `usage` is what the trial spent, and `seconds` how long its turns took.
    """

    case: Case
    session: str
    outcome: Outcome
    text: str = ""
    output: Any = None
    messages: Sequence[Message] = ()
    steps: tuple[StepReport, ...] = ()
    decisions: tuple[Decided, ...] = ()
    usage: Usage = NOTHING_SPENT
    seconds: float = 0.0
    judge: ModelJudge | None = None

    @property
    def calls(self) -> tuple[CallReport, ...]:
        """The tool calls that the model proposed, with their results."""
        return tuple([call for step in self.steps for call in step.tools])

    @property
    def called(self) -> tuple[CallReport, ...]:
        """The tool calls that were made: neither denied nor answered by a hook."""
        return tuple([call for call in self.calls if call.called_at])


def trial_of_results(case: Case, results: Sequence[Result[Any]], judge: ModelJudge | None) -> Trial:
    """The trial that the results of its turns tell."""
    last = results[-1]
    reasons = [result.why() for result in results]
    try:
        output = last.output
    except Exception:  # a turn without an output: the outcome says why
        output = None
    return Trial(
        case,
        last.session_id,
        last.outcome,
        last.partial_text,
        output,
        last.messages,
        tuple([step for result in results for step in result.steps]),
        tuple([found for why in reasons for found in _decisions(why)]),
        total_usage([result.usage for result in results]),
        sum([_seconds(why) for why in reasons]),
        judge,
    )


def trial_of_records(case: Case, session: str, records: Sequence[Record], judge: ModelJudge | None) -> Trial:
    """The trial that a recorded session tells: its latest turn."""
    state = fold(session, records)
    if state.turn is None or state.outcome is None:
        raise ConfigError(f"session {session!r} has no turn that ended or waits; there is nothing to check")
    why = Why(session, records)
    return Trial(
        case,
        session,
        state.outcome,
        state.text,
        None,
        state.messages,
        steps_of(records),
        _decisions(why),
        state.turn.usage,
        _seconds(why),
        judge,
    )


def total_usage(parts: Iterable[Usage | None]) -> Usage:
    """What several parts spent together."""
    return reduce(add, [part for part in parts if part is not None], NOTHING_SPENT)


def _decisions(why: Why) -> tuple[Decided, ...]:
    entries = [entry for part in why.data["parts"] for entry in part["entries"] if entry["what"] == "decide"]
    return tuple(
        [
            Decided(
                str(entry.get("decision", "")),
                str(entry.get("hook") or ""),
                str(entry.get("event", "")),
                str(entry.get("tool") or ""),
                str((entry.get("details") or {}).get("reason", "")),
            )
            for entry in entries
        ]
    )


def _seconds(why: Why) -> float:
    began, ended = why.data["began"], why.data["ended"].get("at")
    return max(0.0, ended - began) if began and ended else 0.0


def text_of(message: AnyMessage | None) -> str:
    """The text of an input, for people."""
    if message is None or isinstance(message, str):
        return message or ""
    if isinstance(message, Message):
        return message.text
    return " ".join([part if isinstance(part, str) else f"[{type(part).__name__}]" for part in message])


def shorten(text: str, limit: int = 40) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
