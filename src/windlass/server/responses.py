"""OpenAI's Responses: an agent as a model that remembers."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from windlass.records import TurnEnded, TurnStarted

from .completions import error_body, openai_problem
from .endpoints import Call, Endpoint
from .errors import Problem, problem_of
from .json import to_json
from .model_inputs import SESSION_HEADER, Said, check_answered, open_session, read_messages, refuse, session_of
from .streams import sse
from .telling import Teller
from .turns import Run, Turns


class Conversation(Struct, frozen=True):
    """A session."""

    id: str


class ResponseRequest(Struct, frozen=True):
    """A request for a response. `model` is the name of an agent; its settings and tools are its own.

    `conversation`, or the header `X-Windlass-Session`, names a session; `previous_response_id` continues after a
    response, in a fork if the session has gone on since.
    """

    model: str
    input: str | list[Said]
    instructions: str | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    conversation: str | Conversation | None = None
    tools: list[Any] | None = None
    background: bool | None = None
    text: dict[str, Any] | None = None


async def respond(call: Call) -> Response:
    """Run a turn, and answer as a model does."""
    wanted: ResponseRequest = call.body
    _check(wanted)
    turns = call.hosting.turns(wanted.model)
    said = [Said("user", wanted.input)] if isinstance(wanted.input, str) else wanted.input
    instructions = [Said("system", wanted.instructions)] if wanted.instructions else []
    history, message = read_messages([*instructions, *said])
    if wanted.previous_response_id is not None:
        session: str | None = await _continue(turns, wanted.previous_response_id)
    else:
        given = wanted.conversation
        session = session_of(call, given.id if isinstance(given, Conversation) else given)
    session = await open_session(turns, session, history)
    known = session is not None and await turns.agent.store.read(session)
    turn = (await turns.agent.state(session)).turns + 1 if known and session is not None else 1
    run = await turns.start(session, message)
    head = _head(turns, run, turn)
    if wanted.stream:
        response: Response = call.hosting.streams.respond(_events(turns, run, head))
    else:
        await run.wait()
        response = Response(to_json(_completed(run, head)), media_type="application/json")
    response.headers[SESSION_HEADER] = run.session.encode("ascii", "backslashreplace").decode()
    return response


def _check(wanted: ResponseRequest) -> None:
    if wanted.tools:
        raise refuse("tools", "the tools of an agent are its own")
    if wanted.background:
        raise refuse("background", "start a turn at /agents instead")
    if wanted.previous_response_id is not None and wanted.conversation is not None:
        raise refuse("conversation", "it cannot be given together with previous_response_id")
    kind = (wanted.text or {}).get("format")
    if isinstance(kind, dict) and kind.get("type", "text") != "text":
        raise refuse("text.format", "the type of an agent's answer is its own")


# ---------------------------------------------------------------- ids


def _id_of(session: str, turn: int) -> str:
    """The id of a response: the session and the number of the turn."""
    return "resp_" + base64.urlsafe_b64encode(msgspec.json.encode([session, turn])).decode().rstrip("=")


async def _continue(turns: Turns, response: str) -> str:
    """The session in which a response is continued: its own, or a fork if it is not the latest there."""
    unknown = Problem(404, "response_unknown", f"there is no response {response[:80]!r}")
    try:
        text = response.removeprefix("resp_")
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        session, turn = msgspec.json.decode(data, type=tuple[str, int])
    except (ValueError, msgspec.MsgspecError):
        raise unknown from None
    records = await turns.agent.store.read(session) if session else ()
    began = [at for at, record in enumerate(records) if isinstance(record, TurnStarted) and record.turn == turn]
    if not began:
        raise unknown
    later = records[began[-1] + 1 :]
    ends = [at for at, record in enumerate(later, began[-1] + 2) if isinstance(record, TurnEnded)]
    if ends and any(isinstance(record, TurnStarted) for record in later):
        return await turns.agent.fork(session, at=ends[0])
    return session


# ---------------------------------------------------------------- responses


def _head(turns: Turns, run: Run, turn: int) -> dict[str, Any]:
    return {
        "id": _id_of(run.session, turn),
        "object": "response",
        "created_at": int(time.time()),
        "model": turns.agent.name,
        "conversation": {"id": run.session},
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


def _item(head: dict[str, Any], text: str | None) -> dict[str, Any]:
    content = [] if text is None else [_content(text)]
    status = "in_progress" if text is None else "completed"
    return {"id": "msg" + head["id"][4:], "type": "message", "role": "assistant", "status": status, "content": content}


def _content(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _completed(run: Run, head: dict[str, Any]) -> dict[str, Any]:
    text, usage = check_answered(run), run.outcome().usage
    spent = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "total_tokens": usage.total,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
    return {**head, "status": "completed", "output": [_item(head, text)], "usage": spent}


async def _events(turns: Turns, run: Run, head: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    numbers = itertools.count()
    place = {"item_id": "msg" + head["id"][4:], "output_index": 0, "content_index": 0}

    def event(kind: str, **data: Any) -> bytes:
        return sse(to_json({"type": kind, "sequence_number": next(numbers), **data}), event=kind)

    def delta(text: str) -> bytes:
        return event("response.output_text.delta", **place, delta=text, logprobs=[])

    begun = {**head, "status": "in_progress", "output": []}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    yield event("response.output_item.added", output_index=0, item=_item(head, None))
    yield event("response.content_part.added", **place, part=_content(""))
    teller = Teller()
    try:
        async for seen, _ in turns.follow(run):
            if text := teller.feed(seen):
                yield delta(text)
        answer = check_answered(run)
        if text := teller.finish(answer):
            yield delta(text)
        yield event("response.output_text.done", **place, text=answer, logprobs=[])
        yield event("response.content_part.done", **place, part=_content(answer))
        yield event("response.output_item.done", output_index=0, item=_item(head, answer))
        yield event("response.completed", response=_completed(run, head))
    except Exception as error:
        yield event("error", error=error_body(problem_of(error)))


ENDPOINTS = (
    Endpoint(
        "POST", "/v1/responses", respond, "Create a response", "openai",
        body=ResponseRequest, streams=True, failure=openai_problem,
    ),
)  # fmt: skip
