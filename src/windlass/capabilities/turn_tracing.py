"""The spans of one agent's turns, model calls, tool calls and hooks, and of the agents below it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from windlass.events import HookRan
from windlass.messages import ModelReply, ModelRequest, ToolCall, ToolResult
from windlass.records import Fact
from windlass.states import State, Step
from windlass.turns import ChildWaits, Turn
from windlass.types import CallModel, CallTool, RunStep, RunTurn

from . import span_attributes, span_content
from .late_content import LateContent
from .segments import Segment, innermost
from .span_attributes import OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, TOKEN_TYPE, Extra, Value
from .span_content import Mask
from .spans import CLIENT, INTERNAL, OpenSpan, Sink, link_to, link_to_current, measured, without_parent

KEPT = 1000
"""How many turns are remembered after they ended: facts about their hooks may come a little later."""


class TurnTracing:
    """The hooks that make the spans, for one agent and the agents below it."""

    def __init__(
        self, sink: Sink, name: str, threshold: float | None, extra: Extra | None, content: Mask | None
    ) -> None:
        self._sink = sink
        self._name = name
        self._threshold = threshold
        self._extra = extra
        self._content = content
        self._late = LateContent(content) if content is not None else None
        self._segments: OrderedDict[str, Segment] = OrderedDict()

    # ------------------------------------------------------------ turns

    async def trace_turn(self, _: Turn[Any], call_next: RunTurn, turn: Turn[Any]) -> None:
        """The span of a turn, current while the turn runs."""
        segment = None
        if not self._is_traced(turn.session_id):
            with self._sink.quiet("begin a turn"):
                segment = self._begin(turn)
        if segment is None:
            await call_next(turn)
            return
        token = innermost.set(segment)
        segment.span.enter()
        state, error = None, ""
        try:
            state = await call_next(turn)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            segment.span.leave()
            innermost.reset(token)
            segment.is_open = False
            with self._sink.quiet("end a turn"):
                self._end(segment, turn, state, error)

    def _is_traced(self, session: str) -> bool:
        """Whether another Telemetry with the same provider traces this turn."""
        segment = innermost.get()
        while segment is not None:
            if segment.is_open and segment.session == session and segment.sink.provider is self._sink.provider:
                return True
            segment = segment.outer
        return False

    def _begin(self, turn: Turn[Any]) -> Segment:
        state, session, links = turn.state, turn.session_id, []
        earlier = 0
        if state.turn is not None and not state.over:
            notes = [note for note in state.turn.notes if note.kind.startswith(f"{self._name}.span.")]
            earlier = len(notes)
            links = link_to(notes[-1].data) if notes else []
        alone = turn.in_background
        if alone:
            links = [*links, *link_to_current()]
        attributes = {**span_attributes.of_agent(turn.agent, session), **self._extras(turn)}
        span = self._sink.start(
            f"invoke_agent {turn.agent}",
            INTERNAL,
            attributes,
            turn.now(),
            parent=without_parent() if alone else None,
            links=links,
        )
        segment = Segment(self._sink, session, span, state, innermost.get())
        segment.number = earlier + 1
        if state.turn is None or state.over:
            self._note(segment, turn)
        self._segments[session] = segment
        self._segments.move_to_end(session)
        if len(self._segments) > KEPT:
            self._segments.popitem(last=False)
        return segment

    def _extras(self, turn: Turn[Any]) -> Mapping[str, Value]:
        extra = self._extra
        return {} if extra is None else extra(turn) if callable(extra) else extra

    def _note(self, segment: Segment, turn: Turn[Any]) -> None:
        """Write down the ids of the span, so that a process that resumes the turn can link to it."""
        segment.noted = True
        if (address := segment.span.address) is not None:
            turn.note(f"{self._name}.span.{segment.number}", address)

    async def note_span(self, state: State, call_next: RunStep, turn: Turn[Any]) -> Step:
        """The same for a resumed turn, before its first step."""
        segment = self._segment(turn.session_id)
        if segment is not None and not segment.noted:
            with self._sink.quiet("note a span"):
                self._note(segment, turn)
        return await call_next(state)

    def _end(self, segment: Segment, turn: Turn[Any], state: State | None, error: str) -> None:
        span, now = segment.span, turn.now()
        if state is not None and state.turn is not None:
            outcome = span_attributes.of_outcome(state.outcome)
            error = str(outcome.get(span_attributes.ERROR, ""))
            if span.recording:
                span.set(outcome | span_attributes.of_turn(state.turn, segment.used))
                if self._content is not None:
                    span.set(span_content.turn_of(state.turn.message, state.text, self._content))
        span.end(now, error)
        attributes: dict[str, Value] = {OPERATION: "invoke_agent", "gen_ai.agent.name": turn.agent}
        self._sink.measure("gen_ai.invoke_agent.duration", max(now - span.began, 0.0), measured(attributes, error))

    def _segment(self, session: str) -> Segment | None:
        """The segment at work in a session, if this tracing began it."""
        segment = self._segments.get(session)
        return segment if segment is not None and segment.is_open else None

    # ------------------------------------------------------------ model calls

    async def trace_model(self, request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
        """The span of an attempt at a model call, current while the model works."""
        if (segment := self._segment(turn.session_id)) is None:
            return await call_next(request)
        attributes = span_attributes.of_request(request, turn.agent, turn.session_id)
        span = self._sink.start(f"chat {attributes[REQUEST_MODEL]}", CLIENT, attributes, turn.now())
        if self._content is not None and span.recording:
            with self._sink.quiet("capture a request"):
                span.set(span_content.asked(request, self._content))
        outcome: ModelReply | BaseException | None = None
        span.enter()
        try:
            outcome = reply = await call_next(request)
        except BaseException as error:
            outcome = error
            raise
        finally:
            span.leave()
            with self._sink.quiet("end a model call"):
                if outcome is not None and (request.side or not segment.serves_model(turn, outcome)):
                    self._end_model(span, request, outcome, turn)
        return reply

    def _end_model(
        self, span: OpenSpan, request: ModelRequest, outcome: ModelReply | BaseException, turn: Turn[Any]
    ) -> None:
        now, error = turn.now(), "" if isinstance(outcome, ModelReply) else type(outcome).__name__
        provider, model = span_attributes.provider_and_model(request.model)
        attributes: dict[str, Value] = {OPERATION: "chat", PROVIDER: provider, REQUEST_MODEL: model}
        if isinstance(outcome, ModelReply):
            reply = span_attributes.of_reply(outcome)
            span.set(reply)
            if RESPONSE_MODEL in reply:
                attributes[RESPONSE_MODEL] = reply[RESPONSE_MODEL]
            for kind, count in (("input", outcome.usage.input), ("output", outcome.usage.output)):
                self._sink.measure("gen_ai.client.token.usage", count, attributes | {TOKEN_TYPE: kind})
        seconds = max(now - span.began, 0.0)
        self._sink.measure("gen_ai.client.operation.duration", seconds, measured(attributes, error))
        if self._late is not None and not error:
            self._late.wait_for_reply(turn.session_id, request.side, span, now)
        else:
            span.end(now, error)

    # ------------------------------------------------------------ tool calls

    async def trace_tool(self, call: ToolCall, call_next: CallTool, turn: Turn[Any]) -> ToolResult:
        """The span of an attempt at a tool call, current while the tool works."""
        if (segment := self._segment(turn.session_id)) is None:
            return await call_next(call)
        attributes = span_attributes.of_call(call, turn.tools.get(call.name), turn.agent, turn.session_id)
        span = self._sink.start(f"execute_tool {call.name}", INTERNAL, attributes, turn.now())
        if self._content is not None and span.recording:
            with self._sink.quiet("capture arguments"):
                span.set(span_content.arguments_of(call.json, self._content))
        outcome: ToolResult | BaseException | None = None
        span.enter()
        try:
            outcome = result = await call_next(call)
        except BaseException as error:
            outcome = error
            raise
        finally:
            span.leave()
            with self._sink.quiet("end a tool call"):
                if outcome is not None and not segment.serves_tool(call, outcome):
                    self._end_tool(span, call, outcome, turn)
        return result

    def _end_tool(self, span: OpenSpan, call: ToolCall, outcome: ToolResult | BaseException, turn: Turn[Any]) -> None:
        now = turn.now()
        if isinstance(outcome, ToolResult):
            error = f"tool_{outcome.status}" if outcome.is_error else ""
        else:
            error = type(outcome).__name__ if isinstance(outcome, Exception) else ""
            waits = "suspended" if isinstance(outcome, ChildWaits) else "cancelled"
            span.set({"windlass.outcome": "failed" if error else waits})
        attributes: dict[str, Value] = {OPERATION: "execute_tool", "gen_ai.tool.name": call.name}
        self._sink.measure("gen_ai.execute_tool.duration", max(now - span.began, 0.0), measured(attributes, error))
        if self._late is not None and isinstance(outcome, ToolResult):
            self._late.wait_for_result(turn.session_id, call.id, span, now, error)
        else:
            span.end(now, error)

    # ------------------------------------------------------------ facts

    async def trace_hook(self, fact: HookRan, session_id: str) -> None:
        """The span of a hook that decided something, or took long."""
        segment = self._segments.get(session_id)
        slow = self._threshold is not None and fact.seconds > self._threshold
        if segment is None or not (fact.verdict or slow) or fact.hook.startswith(f"{self._name}."):
            return
        with self._sink.quiet("trace a hook"):
            attributes = span_attributes.of_hook(fact, session_id)
            began, parent = fact.at - fact.seconds, segment.span.context
            span = self._sink.start(f"hook {fact.hook}", INTERNAL, attributes, began, parent=parent)
            span.end(fact.at, "hook_failed" if fact.verdict in ("failed", "timeout") else "")

    async def add_content(self, fact: Fact, session_id: str) -> None:
        """Add what a reply or result contains, as the log has it."""
        if self._late is not None:
            with self._sink.quiet("capture content"):
                self._late.take(fact, session_id)
