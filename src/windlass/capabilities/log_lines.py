"""What the log line of each fact says, and at which level."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from windlass.decisions import Allow
from windlass.events import LateResult, ModelCalled, Retracted
from windlass.messages import Usage
from windlass.outcomes import Cancelled, ErrorValue, Failed, Stopped
from windlass.records import (
    Answered,
    Asked,
    CancelRequested,
    Compacted,
    Delegated,
    ErrorHandled,
    Fact,
    HookDecided,
    HookFailed,
    Injected,
    ModelReplied,
    Noted,
    ReplyRejected,
    Resumed,
    Rewritten,
    SessionEnded,
    SessionOpened,
    StopVetoed,
    Suspended,
    TakenOver,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

Fields: TypeAlias = Mapping[str, Any]
Line: TypeAlias = tuple[int, Fields, Fields]
"""A level, the fields of a line, and those that quote the conversation."""


def _turn_ended(fact: TurnEnded) -> Line:
    outcome = fact.outcome
    fields = {"outcome": type(outcome).__name__.lower()}
    if isinstance(outcome, Failed):
        return ERROR, {**fields, "error": outcome.error.type}, {"message": outcome.error.message}
    if isinstance(outcome, Stopped):
        return WARNING, {**fields, "reason": outcome.reason.value}, {"detail": outcome.detail}
    if isinstance(outcome, Cancelled):
        return INFO, {**fields, "reason": outcome.reason}, {}
    return INFO, {**fields, "unreviewed": outcome.unreviewed, "objections": outcome.objections}, {}


def _tool_decided(fact: ToolDecided) -> Line:
    verdict = fact.verdict
    by = [hook for hook, answer in fact.answers if type(answer) is type(verdict)]
    fields = {"tool": fact.name, "call": fact.call, "verdict": type(verdict).__name__.lower(), "by": by}
    return DEBUG if isinstance(verdict, Allow) else WARNING, fields, {"reason": getattr(verdict, "reason", None)}


def _tool_returned(fact: ToolReturned) -> Line:
    result = fact.result
    fields = {"tool": fact.name, "call": fact.call, "status": result.status, "characters": len(result.text)}
    return WARNING if result.is_error else DEBUG, fields, {"text": result.text, **_message(fact.error)}


def _hook_decided(fact: HookDecided) -> Line:
    fields = {"event": fact.event, "about": fact.about, "verdict": _verdict(fact.verdict)}
    by = [f"{hook}={_verdict(answer)}" for hook, answer in fact.answers]
    return DEBUG, {**fields, "by": by, "shadow": fact.shadow}, {"reason": getattr(fact.verdict, "reason", None)}


def _verdict(verdict: object) -> str:
    return str(getattr(verdict, "name", None) or type(verdict).__name__).lower()


def _message(error: ErrorValue | None) -> Fields:
    return {} if error is None else {"error": error.type, "message": error.message}


def _usage(usage: Usage) -> Fields:
    return {"input": usage.input, "output": usage.output, "cached": usage.cached, "usd": usage.cost}


LINES: dict[type[Fact], tuple[int, Callable[[Any], Line]]] = {
    SessionOpened: (DEBUG, lambda fact: (DEBUG, {"how": fact.how, "agent": fact.agent}, {})),
    SessionEnded: (DEBUG, lambda fact: (DEBUG, {}, {})),
    TurnStarted: (INFO, lambda fact: (INFO, {"turn": fact.turn}, {"text": fact.message.text})),
    TurnEnded: (ERROR, _turn_ended),
    ModelCalled: (
        DEBUG,
        lambda fact: (DEBUG, {"model": fact.request.model, "step": fact.step, "attempt": fact.attempt}, {}),
    ),
    ModelReplied: (
        DEBUG,
        lambda fact: (
            DEBUG,
            {"model": fact.reply.model, "step": fact.step, "finish": fact.reply.finish, **_usage(fact.reply.usage)},
            {"text": fact.reply.text},
        ),
    ),
    ReplyRejected: (
        WARNING,
        lambda fact: (WARNING, {"step": fact.step, "by": fact.by}, {"feedback": fact.feedback}),
    ),
    Retracted: (DEBUG, lambda fact: (DEBUG, {"step": fact.step, "reason": fact.reason}, {})),
    ToolDecided: (WARNING, _tool_decided),
    ToolCalled: (
        DEBUG,
        lambda fact: (DEBUG, {"tool": fact.name, "call": fact.call, "attempt": fact.attempt}, {"arguments": fact.json}),
    ),
    ToolReturned: (WARNING, _tool_returned),
    LateResult: (WARNING, lambda fact: (WARNING, {"call": fact.call, "status": fact.status}, {})),
    Delegated: (
        INFO,
        lambda fact: (INFO, {"agent": fact.agent, "child": fact.session}, {"task": fact.task}),
    ),
    Injected: (DEBUG, lambda fact: (DEBUG, {"hook": fact.hook, "event": fact.event}, {})),
    Rewritten: (
        DEBUG,
        lambda fact: (DEBUG, {"hook": fact.hook, "event": fact.event, "fields": list(fact.fields)}, {}),
    ),
    HookDecided: (DEBUG, _hook_decided),
    HookFailed: (
        WARNING,
        lambda fact: (
            WARNING,
            {"hook": fact.hook, "event": fact.event, "error": fact.error.type, "effect": fact.effect},
            {"message": fact.error.message},
        ),
    ),
    ErrorHandled: (
        WARNING,
        lambda fact: (
            WARNING,
            {"error": fact.error.type, "category": fact.category, "action": fact.action, "by": fact.by},
            {"message": fact.error.message},
        ),
    ),
    Compacted: (INFO, lambda fact: (INFO, {"by": fact.by, "before": fact.before, "after": fact.after}, {})),
    StopVetoed: (INFO, lambda fact: (INFO, {"by": fact.by}, {"feedback": fact.feedback})),
    Asked: (
        INFO,
        lambda fact: (
            INFO,
            {"id": fact.id, "event": fact.event, "by": fact.by, "approvers": fact.approvers},
            {"question": fact.question},
        ),
    ),
    Answered: (
        INFO,
        lambda fact: (INFO, {"id": fact.id, "answer": type(fact.answer).__name__.lower(), "by": fact.by}, {}),
    ),
    Suspended: (INFO, lambda fact: (INFO, {"questions": [asked.id for asked in fact.waiting_for]}, {})),
    Resumed: (INFO, lambda fact: (WARNING if fact.drift else INFO, {"drift": fact.drift}, {})),
    TakenOver: (WARNING, lambda fact: (WARNING, {"owner": fact.owner}, {})),
    CancelRequested: (INFO, lambda fact: (INFO, {"reason": fact.reason}, {})),
    Noted: (INFO, lambda fact: (INFO, {"by": fact.by, "topic": fact.kind}, {"data": fact.data})),
}
"""The highest level of each fact, and what its line says."""

ODD: dict[type[Fact], Callable[[Any], bool]] = {
    ToolDecided: lambda fact: type(fact.verdict) is not Allow,
    ToolReturned: lambda fact: fact.result.is_error,
}
"""Of facts that every call has, those whose level is above DEBUG. The others are not even queued."""
