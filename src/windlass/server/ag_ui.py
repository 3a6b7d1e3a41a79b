"""AG-UI: an agent behind a front end. A question of the agent is an interrupt there, and its answer resumes the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.responses import Response

from windlass.decisions import AnyResolution, Approve, Reject
from windlass.deltas import StreamEvent, TextDelta
from windlass.records import Asked, ModelReplied, ToolReturned

from .endpoints import Call, Endpoint
from .errors import Problem, problem_of
from .json import to_json
from .model_inputs import Said, check_answered, open_session, read_messages, refuse
from .streams import sse
from .turns import Run, Turns

_ANSWER = msgspec.json.schema(AnyResolution)


class Resume(Struct, frozen=True, rename="camel"):
    """What a person answered: a `payload` such as `{"answer": "Reject"}`; without one, yes. Cancelled means no."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunInput(Struct, frozen=True, rename="camel"):
    """The input of a run. `threadId` is the session."""

    thread_id: str
    run_id: str
    messages: list[Said] = []
    tools: list[Any] | None = None
    resume: list[Resume] | None = None


async def run_agent(call: Call) -> Response:
    """Run or resume a turn, and stream AG-UI events."""
    wanted: RunInput = call.body
    turns = call.turns
    if wanted.tools:
        raise refuse("tools", "the tools of an agent are its own")
    if wanted.resume:
        answers = {one.interrupt_id: _answer(one) for one in wanted.resume}
        run = await turns.start(wanted.thread_id, None, answers=answers)
    else:
        said = [item for item in wanted.messages if item.role in ("system", "developer", "user", "assistant")]
        history, message = read_messages([Said(item.role, item.content) for item in said])
        run = await turns.start(await open_session(turns, wanted.thread_id, history), message)
    return call.hosting.streams.respond(_events(turns, run, wanted))


def _answer(given: Resume) -> AnyResolution:
    if given.status == "cancelled":
        return Reject()
    if given.payload is None:
        return Approve()
    try:
        answer: AnyResolution = msgspec.convert(given.payload, AnyResolution)
    except msgspec.ValidationError as error:
        raise Problem(
            400, "invalid_request", f"the payload of {given.interrupt_id!r} is not an answer: {error}"
        ) from None
    return answer


async def _events(turns: Turns, run: Run, wanted: RunInput) -> AsyncGenerator[bytes, None]:
    place = {"threadId": wanted.thread_id, "runId": wanted.run_id}
    writer = Writer()
    yield _event("RUN_STARTED", **place)
    try:
        async for event, _ in turns.follow(run):
            for made in writer.feed(event):
                yield made
        result = run.outcome()
        if result.waiting_for:
            interrupts = [_interrupt(asked) for asked in result.waiting_for]
            yield _event("RUN_FINISHED", **place, outcome={"type": "interrupt", "interrupts": interrupts})
            return
        for made in writer.finish(check_answered(run)):
            yield made
        yield _event("RUN_FINISHED", **place, outcome={"type": "success"})
    except Exception as error:
        for made in writer.end():
            yield made
        problem = problem_of(error)
        yield _event("RUN_ERROR", message=problem.message, code=problem.type)


def _event(kind: str, **fields: Any) -> bytes:
    return sse(to_json({"type": kind, **fields}))


def _interrupt(asked: Asked) -> dict[str, Any]:
    made: dict[str, Any] = {"id": asked.id, "reason": asked.event, "message": asked.question, "responseSchema": _ANSWER}
    if asked.call is not None:
        made["toolCallId"] = asked.call.id
    if asked.expires_at is not None:
        made["expiresAt"] = datetime.fromtimestamp(asked.expires_at, UTC).isoformat()
    return made


class Writer:
    """Turns the events of a turn into those of AG-UI: one message for each reply, with its tool calls and results."""

    def __init__(self) -> None:
        self._place = (0, 0, 0)
        self._text = ""
        self._count = 0
        self._open = ""
        self._last = ""

    def feed(self, event: StreamEvent) -> Iterator[bytes]:
        """The events for one of the turn."""
        if event.path:
            return
        if isinstance(event, TextDelta):
            yield from self._turn_to((event.step, event.round, event.attempt))
            yield from self._append(event.text)
        elif isinstance(event, ModelReplied):
            yield from self._turn_to((event.step, event.round, event.attempt))
            yield from self._complete(event.reply.message.text)
            for call in event.reply.tool_calls:
                yield _event("TOOL_CALL_START", toolCallId=call.id, toolCallName=call.name)
                yield _event("TOOL_CALL_ARGS", toolCallId=call.id, delta=call.json)
                yield _event("TOOL_CALL_END", toolCallId=call.id)
        elif isinstance(event, ToolReturned):
            made = {"messageId": f"{event.call}/result", "toolCallId": event.call, "content": event.result.text}
            yield _event("TOOL_CALL_RESULT", **made, role="tool")

    def finish(self, text: str) -> Iterator[bytes]:
        """The events at the end of a turn with this answer."""
        yield from self.end()
        if text and text != self._last:
            yield from self._append(text)
            yield from self.end()

    def end(self) -> Iterator[bytes]:
        """Close the message that is open."""
        if self._open:
            yield _event("TEXT_MESSAGE_END", messageId=self._open)
            self._open, self._last, self._text = "", self._text, ""

    def _turn_to(self, place: tuple[int, int, int]) -> Iterator[bytes]:
        if place != self._place:
            self._place = place
            yield from self.end()

    def _complete(self, text: str) -> Iterator[bytes]:
        if not text.startswith(self._text):
            yield from self.end()
        yield from self._append(text[len(self._text) :])
        yield from self.end()

    def _append(self, text: str) -> Iterator[bytes]:
        if not text:
            return
        if not self._open:
            self._count += 1
            self._open = f"message-{'-'.join(map(str, self._place))}-{self._count}"
            yield _event("TEXT_MESSAGE_START", messageId=self._open, role="assistant")
        self._text += text
        yield _event("TEXT_MESSAGE_CONTENT", messageId=self._open, delta=text)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/agents/{agent}/ag-ui",
        run_agent,
        "Run an agent with AG-UI events",
        "ag-ui",
        body=RunInput,
        streams=True,
    ),
)
