"""The steps of a turn, as its log tells them: replies, calls, results, votes and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import records as r
from .decisions import Vote
from .messages import ModelReply, ToolCall, ToolCallPart, ToolResult, Value
from .outcomes import ErrorValue
from .states import of_latest_turn


class CallReport(Value, frozen=True):
    """One tool call of a step: the call as it was executed, its result and its times.

    `result` is None if the call has none yet. `called_at` is 0 if the call was not made: it was denied, or answered by
    a hook. `error` is what the tool raised. Times are in seconds since the epoch.
    """

    call: ToolCall
    result: ToolResult | None = None
    error: ErrorValue | None = None
    attempts: int = 0
    called_at: float = 0.0
    returned_at: float = 0.0

    @property
    def took(self) -> float:
        """How many seconds the call took, from its first start to its result; 0 if it was not made or has no result."""
        return self.returned_at - self.called_at if self.called_at and self.result is not None else 0.0


class StepReport(Value, frozen=True):
    """One step of a turn: the model's reply, the calls with their results, the votes after it, and its times.

    `rejected` are replies that hooks rejected before this one. `vote` is the verdict on whether the turn continues, and
    `votes` are its names and reasons; both are empty if the turn went on only because tools were called. `ended_at` is
    0 if the step has not ended. `active` is how many seconds the agent worked. Times are in seconds since the epoch.
    """

    number: int
    reply: ModelReply | None = None
    tools: tuple[CallReport, ...] = ()
    rejected: tuple[ModelReply, ...] = ()
    vote: Vote | None = None
    votes: tuple[tuple[str, str], ...] = ()
    started_at: float = 0.0
    replied_at: float = 0.0
    ended_at: float = 0.0
    active: float = 0.0

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, as they were executed."""
        return tuple([report.call for report in self.tools])

    @property
    def results(self) -> tuple[ToolResult | None, ...]:
        """The results, in the order of the calls; None for a call that has no result yet."""
        return tuple([report.result for report in self.tools])

    @property
    def took(self) -> float:
        """How many seconds the step took; 0 if it has not ended."""
        return self.ended_at - self.started_at if self.ended_at else 0.0


def steps_of(records: Iterable[r.Record]) -> tuple[StepReport, ...]:
    """The steps of the latest turn in a log, in order. The last one may not have ended."""
    return _Reader().read(of_latest_turn(list(records)))


class _Reader:
    """Reads the records of one turn in order."""

    def __init__(self) -> None:
        self.steps: dict[int, StepReport] = {}
        self.calls: dict[str, CallReport] = {}
        self.began = 0.0

    def read(self, records: Sequence[r.Record]) -> tuple[StepReport, ...]:
        for record in records:
            match record:
                case r.TurnStarted():
                    self.began = record.at
                case r.ModelReplied():
                    self._reply(record)
                case r.ReplyRejected(step=number) if number in self.steps:
                    self._reject(self.steps[number])
                case r.StepEnded(step=number):
                    step = self._step(number).replace(active=record.active, ended_at=record.at)
                    self.steps[number] = step.replace(tools=self._tools(step))
                    self.began = record.at
                case r.Evaluated(step=number) if number in self.steps:
                    votes = self.steps[number].replace(vote=record.vote, votes=record.reasons)
                    self.steps[number] = votes
                case r.ToolDecided() | r.ToolCalled() | r.ToolReturned() if record.call in self.calls:
                    self.calls[record.call] = _told(self.calls[record.call], record)
                case _:
                    pass
        return tuple([step.replace(tools=self._tools(step)) for _, step in sorted(self.steps.items())])

    def _step(self, number: int) -> StepReport:
        return self.steps.get(number) or StepReport(number, started_at=self.began)

    def _reply(self, record: r.ModelReplied) -> None:
        parts = [part for part in record.reply.message.parts if type(part) is ToolCallPart]
        tools = [CallReport(ToolCall(part.id, part.name, part.json, part.vendor_id)) for part in parts]
        self.calls.update({report.call.id: report for report in tools})
        step = self._step(record.step)
        self.steps[record.step] = step.replace(reply=record.reply, tools=tuple(tools), replied_at=record.at)

    def _reject(self, step: StepReport) -> None:
        rejected = step.rejected if step.reply is None else (*step.rejected, step.reply)
        self.steps[step.number] = step.replace(reply=None, tools=(), rejected=rejected, replied_at=0.0)

    def _tools(self, step: StepReport) -> tuple[CallReport, ...]:
        return tuple([self.calls[report.call.id] for report in step.tools])


def _told(report: CallReport, record: r.ToolDecided | r.ToolCalled | r.ToolReturned) -> CallReport:
    """What is known of a call after one more record."""
    match record:
        case r.ToolReturned():
            return report.replace(result=record.result, error=record.error, returned_at=record.at)
        case r.ToolCalled():
            began = report.called_at or record.at
            report = report.replace(attempts=record.attempt, called_at=began)
        case r.ToolDecided():
            pass
    return report if record.json is None else report.replace(call=report.call.replace(json=record.json))


__all__ = ["CallReport", "StepReport"]
