"""Segments: the passes over a turn that have a span, and what the log has from before each of them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from windlass.messages import ModelReply, ToolCall, ToolResult, Usage
from windlass.outcomes import error_value
from windlass.records import ModelAttempted, ToolAttempted
from windlass.states import State
from windlass.turns import Turn

from .spans import OpenSpan, Sink


class Segment:
    """One pass over a turn: from its start, or from where it was resumed, to its end or its next suspension.

    `outer` is the segment around it. `model_attempts` and `tool_attempts` are attempts that the log has from before:
    wraps that run again get them from there, so they have no new span.
    """

    __slots__ = (
        "is_open", "model_attempts", "noted", "number", "outer", "session", "sink", "span", "step", "tool_attempts",
        "used",
    )  # fmt: skip

    def __init__(self, sink: Sink, session: str, span: OpenSpan, state: State, outer: Segment | None) -> None:
        self.sink = sink
        self.session = session
        self.span = span
        self.outer = outer
        self.is_open = True
        self.noted = False
        self.number = 1
        self.used = Usage(requests=0)
        self.step = 0
        self.model_attempts: list[ModelAttempted] = []
        self.tool_attempts: dict[str, list[ToolAttempted]] = {}
        if state.turn is not None and not state.over:
            self._continue(state, state.turn.usage)

    def _continue(self, state: State, used: Usage) -> None:
        self.used = used
        if (step := state.open) is not None:
            self.step = step.number
            self.model_attempts = [one for one in step.attempts if one.round == step.round and one.attempt > step.tried]
            self.tool_attempts = {call.call.id: list(call.attempts) for call in step.calls if call.attempts}

    def serves_model(self, turn: Turn[Any], outcome: ModelReply | BaseException) -> bool:
        """Whether the log has this outcome of a model call, from before this pass."""
        if not self.model_attempts:
            return False
        step = turn.state.open
        if step is not None and step.number == self.step and _is_recorded(self.model_attempts[0], outcome):
            del self.model_attempts[0]
            return True
        self.model_attempts = []
        return False

    def serves_tool(self, call: ToolCall, outcome: ToolResult | BaseException) -> bool:
        """The same for a tool call."""
        recorded = self.tool_attempts.get(call.id)
        if recorded and _is_recorded(recorded[0], outcome):
            del recorded[0]
            return True
        self.tool_attempts.pop(call.id, None)
        return False


def _is_recorded(attempt: ModelAttempted | ToolAttempted, outcome: ModelReply | ToolResult | BaseException) -> bool:
    if isinstance(outcome, BaseException):
        value = error_value(outcome)
        return attempt.error is not None and (attempt.error.type, attempt.error.message) == (value.type, value.message)
    if isinstance(attempt, ToolAttempted):
        return attempt.result == outcome
    return attempt.reply is not None and isinstance(outcome, ModelReply) and attempt.reply.message == outcome.message


innermost: ContextVar[Segment | None] = ContextVar("windlass_telemetry_segment", default=None)
"""The segment at work in this context."""
