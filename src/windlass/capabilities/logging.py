"""Logging: one structured log line for each fact worth a line."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass.decisions import Allow
from windlass.errors import ConfigError
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

from .option_types import check_types
from .options import require_count, require_name

if TYPE_CHECKING:
    from windlass import Hooks

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


_LINES: dict[type[Fact], tuple[int, Callable[[Any], Line]]] = {
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

_ODD: dict[type[Fact], Callable[[Any], bool]] = {
    ToolDecided: lambda fact: type(fact.verdict) is not Allow,
    ToolReturned: lambda fact: fact.result.is_error,
}
"""Of facts that every call has, those whose level is above DEBUG. The others are not even queued."""


class Logging:
    """Write a line to Python's `logging` for each fact of at least `level`.

    The message is `turn_ended session=s1 outcome=completed …`; the same fields are in the attribute `windlass` of the
    log record, for formatters that write JSON. What people and models said is left out unless `content` is true; then
    each text has at most `limit` characters. Secrets of the application are masked in any case.
    """

    @check_types
    def __init__(
        self,
        logger: logging.Logger | str = "windlass.agent",
        *,
        level: int | str = "INFO",
        content: bool = False,
        limit: int = 200,
        name: str = "logging",
    ) -> None:
        require_name("Logging", name)
        require_count("Logging", "limit", limit)
        self.name = name
        self.logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self.level = _level(level)
        self.content = content
        self.limit = limit

    def install(self, registrar: Hooks) -> None:
        """Observe the facts whose lines can reach the level."""

        def log_fact(fact: Fact, session_id: str) -> None:
            self.write(fact, session_id)

        for fact, (highest, _) in _LINES.items():
            if highest >= self.level:
                when: Any = {"when": _ODD[fact]} if fact in _ODD and self.level > DEBUG else {}
                registrar.observe(fact, name=f"{self.name}_{_snake(fact)}", **when)(log_fact)

    def write(self, fact: Fact, session_id: str) -> None:
        """Write the line of a fact."""
        level, fields, quoted = _LINES[type(fact)][1](fact)
        if level < self.level or not self.logger.isEnabledFor(level):
            return
        event = _snake(type(fact))
        shown: dict[str, Any] = {"session": session_id, **_present(fields)}
        if self.content:
            shown |= {key: self._cut(value) for key, value in _present(quoted).items()}
        text = " ".join([event, *[f"{key}={_plain(value)}" for key, value in shown.items()]])
        self.logger.log(level, "%s", text, extra={"windlass": {"event": event, "at": fact.at, **shown}})

    def _cut(self, value: Any) -> Any:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        return text if len(text) <= self.limit else f"{text[: self.limit]}… ({len(text)} characters)"


def _present(fields: Fields) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value or type(value) in (int, float)}


def _plain(value: Any) -> str:
    """A value without spaces and control characters, or quoted."""
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _snake(fact: type[Fact]) -> str:
    return "".join([f"_{one.lower()}" if one.isupper() else one for one in fact.__name__]).lstrip("_")


def _level(level: int | str) -> int:
    known = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() in known:
        return known[level.upper()]
    if type(level) is int:
        return level
    raise ConfigError(f"Logging: level={level!r} is not a level; use one of {', '.join(known)}, or a number")
