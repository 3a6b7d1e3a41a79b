"""What clients of OpenAI's interfaces send, as messages of Windlass."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from windlass.ids import check_new_id
from windlass.messages import ImagePart, Message, TextPart
from windlass.sessions import new_id

from .endpoints import Call
from .errors import Problem
from .turns import Run, Turns

SESSION_HEADER = "x-windlass-session"


class Said(Struct, frozen=True):
    """One message of a client. Only its role and content count."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None


def refuse(name: str, why: str) -> Problem:
    """The problem with a field that this server does not support."""
    return Problem(400, "unsupported_field", f"{name} is not supported: {why}", param=name)


def read_messages(said: Sequence[Said]) -> tuple[list[Message], Message]:
    """The history, and the new message of the user: all that follows the last answer.

    The agent has a system prompt of its own, so instructions of the client count as words of the user.
    """
    for item in said:
        if item.role not in ("system", "developer", "user", "assistant") or item.tool_calls:
            raise refuse("messages", "tools are called by the agent, so there are no tool calls and results to send")
    answers = [at for at, item in enumerate(said) if item.role == "assistant"]
    start = answers[-1] + 1 if answers else 0
    new = [part for item in said[start:] for part in _parts(item)]
    if not any(item.role == "user" for item in said[start:]) or not new:
        raise Problem(400, "invalid_request", "the last message must be one of the user, and it must not be empty")
    history = [Message("assistant" if item.role == "assistant" else "user", _parts(item)) for item in said[:start]]
    return [message for message in history if message.parts], Message("user", tuple(new))


def _parts(item: Said) -> tuple[TextPart | ImagePart, ...]:
    if item.content is None or isinstance(item.content, str):
        return (TextPart(item.content),) if item.content else ()
    return tuple([_part(part) for part in item.content])


def _part(part: dict[str, Any]) -> TextPart | ImagePart:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
            return _image(url)
        case _:
            raise refuse("content", f"a part of type {str(part.get('type'))[:40]!r}; send text and images")


def _image(url: str) -> ImagePart:
    if not url.startswith("data:"):
        return ImagePart(url=url)
    head, _, data = url.removeprefix("data:").partition(",")
    try:
        return ImagePart(data=base64.b64decode(data, validate=True), media_type=head.partition(";")[0])
    except (binascii.Error, ValueError):
        raise Problem(400, "invalid_request", "the data of an image is not valid base64") from None


async def open_session(turns: Turns, session: str | None, history: list[Message]) -> str | None:
    """The session of a turn. A history is imported if it opens a new session; otherwise the session has its own."""
    if session is not None:
        check_new_id(session)
        if await turns.agent.store.read(session):
            return session
    if not history:
        return session
    name = new_id() if session is None else session
    await turns.agent.import_history(name, history, scope=await turns.scope_of(name))
    return name


def session_of(call: Call, given: str | None) -> str | None:
    """The session that a header or a field of the body names."""
    return call.request.headers.get(SESSION_HEADER) or given or None


def check_answered(run: Run) -> str:
    """The answer of a turn. Raises if it has none: a turn that waits is never an empty answer."""
    result = run.outcome()
    status = type(result.outcome).__name__
    if status in ("Completed", "Stopped"):
        return result.text
    details: dict[str, Any] = {"session": run.session}
    if status == "Suspended":
        details["questions"] = [asked.id for asked in result.waiting_for]
        words = "; ".join([f"{asked.id} ({asked.question})" for asked in result.waiting_for])
        message = f"the turn of session {run.session!r} waits for answers: {words}"
        raise Problem(422, "turn_suspended", message, **details)
    if status == "Failed":
        raise Problem(500, "turn_failed", f"the turn of session {run.session!r} failed; see its log", **details)
    raise Problem(422, "turn_cancelled", f"the turn of session {run.session!r} was cancelled", **details)
