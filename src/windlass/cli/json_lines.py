"""The lines of `windlass run --json`: one JSON object per event. The guide to the command line names their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass import Result
from windlass import records as r
from windlass.decisions import Allow, AnyDecision, Vote
from windlass.deltas import StreamEvent, TextDelta, ThinkingDelta
from windlass.events import Progressed, Retracted
from windlass.messages import Usage
from windlass.outcomes import Cancelled, Failed, Stopped

Line = dict[str, Any]


def lines_of(event: StreamEvent) -> list[Line]:
    """The lines for an event of a stream; none if the format has no line for it."""
    return [{**line, "path": event.path} if event.path else line for line in _lines(event)]


def _lines(event: StreamEvent) -> list[Line]:
    match event:
        case TextDelta(text=text, step=step):
            return [{"type": "text", "step": step, "text": text}]
        case ThinkingDelta(text=text, step=step):
            return [{"type": "thinking", "step": step, "text": text}]
        case Retracted(step=step, reason=reason):
            return [{"type": "retracted", "step": step, "reason": reason}]
        case r.ModelReplied(step=step, reply=reply):
            calls = [
                {"type": "call", "id": call.id, "name": call.name, "arguments": _value(call.json)}
                for call in reply.tool_calls
            ]
            return [{"type": "reply", "step": step, "text": reply.text, "usage": usage_of(reply.usage)}, *calls]
        case r.ToolDecided(call=call, verdict=verdict, answers=answers) if answers or not isinstance(verdict, Allow):
            return [_decision("ToolCalling", call, verdict, answers)]
        case r.HookDecided(event=name, about=about, verdict=verdict, answers=answers, shadow=False):
            return [_decision(name, about, verdict, answers)]
        case r.ToolReturned(call=call, name=name, result=result):
            return [{"type": "result", "id": call, "name": name, "status": result.status, "text": result.text}]
        case r.Asked():
            return [{"type": "question", **question_of(event)}]
        case r.MessageAdded(message=message, by=by) if message is not None:
            return [{"type": "message", "role": message.role, "text": message.text, "by": by}]
        case Progressed(about=about, by=by, done=done, total=total, text=text):
            return [{"type": "progress", "id": about, "by": by, "done": done, "total": total, "text": text}]
        case _:
            return []


def _decision(event: str, about: str, verdict: Any, answers: Any) -> Line:
    reason = getattr(verdict, "reason", None) or getattr(verdict, "question", None) or ""
    by = [name for name, _ in answers]
    return {
        "type": "decision",
        "event": event,
        "about": about,
        "verdict": verdict_name(verdict),
        "reason": reason,
        "by": by,
    }


def verdict_name(verdict: AnyDecision | Vote | None) -> str:
    """The name of a decision or a vote, in lower case; `none` if the hooks left it open."""
    return verdict.value if isinstance(verdict, Vote) else type(verdict).__name__.removesuffix("Type").lower()


def question_of(asked: r.Asked) -> Line:
    """A question as data."""
    call = None if asked.call is None else {"name": asked.call.name, "arguments": _value(asked.call.json)}
    allow = list(asked.allow)
    return {"id": asked.id, "question": asked.question, "by": list(asked.by), "allow": allow, "call": call}


def end_of(result: Result[Any]) -> Line:
    """The last line: how the turn ended."""
    line: Line = {
        "type": "end",
        "session": result.session_id,
        "outcome": type(result.outcome).__name__.lower(),
        "reason": str(result.stop_reason),
        "text": result.partial_text,
        "usage": usage_of(result.usage),
    }
    match result.outcome:
        case Failed(error=error):
            line["error"] = {"type": error.type, "message": error.message}
        case Stopped(detail=detail):
            line["detail"] = detail
        case Cancelled(reason=reason):
            line["detail"] = reason
        case r.Suspended():
            line["questions"] = [question_of(asked) for asked in result.waiting_for]
        case _:
            pass
    return line


def usage_of(usage: Usage) -> Mapping[str, Any]:
    """What was spent, as data; the cost is in USD, and null if it is not known."""
    return {"requests": usage.requests, "input": usage.input, "output": usage.output, "cost": usage.cost}


def _value(text: str) -> Any:
    """The arguments of a call; as text if the model did not write JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
