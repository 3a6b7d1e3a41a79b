"""Spans that wait for the log: what a model or tool said is only added as it was recorded."""

from __future__ import annotations

from typing import NamedTuple

from windlass.messages import ModelReply, ToolResult
from windlass.records import (
    Fact,
    ModelAttempted,
    ModelReplied,
    SideReplied,
    Suspended,
    ToolAttempted,
    ToolReturned,
    TurnEnded,
)

from .span_content import Mask, replied, returned
from .spans import OpenSpan

FACTS: tuple[type[Fact], ...] = (
    ModelReplied,
    ModelAttempted,
    SideReplied,
    ToolReturned,
    ToolAttempted,
    TurnEnded,
    Suspended,
)
"""The facts that `LateContent` takes."""


class Waiting(NamedTuple):
    """A span whose work ended at a time, perhaps with an error."""

    span: OpenSpan
    ended: float
    error: str = ""


class LateContent:
    """Spans whose work is done, until the log has its result: hooks may change or withhold it."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._waiting: dict[str, dict[str, list[Waiting]]] = {}

    def wait_for_reply(self, session: str, side: str, span: OpenSpan, ended: float) -> None:
        """Keep the span of a model call; `side` names the hook or tool that asked, if it is a side call."""
        self._add(session, f"model {side}", Waiting(span, ended))

    def wait_for_result(self, session: str, call: str, span: OpenSpan, ended: float, error: str) -> None:
        """Keep the span of a tool call."""
        self._add(session, f"tool {call}", Waiting(span, ended, error))

    def _add(self, session: str, key: str, waiting: Waiting) -> None:
        self._waiting.setdefault(session, {}).setdefault(key, []).append(waiting)

    def take(self, fact: Fact, session: str) -> None:
        """A fact of a session: the spans that it is about end."""
        match fact:
            case ModelReplied(paid=True, reply=reply):
                self._first(session, "model ", reply)
            case ModelAttempted(reply=ModelReply() as reply):
                self._first(session, "model ", reply)
            case SideReplied(by=by, key=key, paid=paid, reply=reply) if paid or "/attempt." in key:
                self._first(session, f"model {by}", reply)
            case ToolAttempted(call=call, result=result):
                self._first(session, f"tool {call}", result)
            case ToolReturned(call=call, result=result):
                self._all(session, f"tool {call}", result)
            case TurnEnded() | Suspended():
                for key in list(self._waiting.get(session, ())):
                    self._all(session, key, None)
                self._waiting.pop(session, None)
            case _:
                pass

    def _first(self, session: str, key: str, content: ModelReply | ToolResult | None) -> None:
        waiting = self._waiting.get(session, {}).get(key)
        if waiting:
            self._end(waiting.pop(0), content)

    def _all(self, session: str, key: str, content: ModelReply | ToolResult | None) -> None:
        """The latest attempt has this content; those before it were discarded."""
        waiting = self._waiting.get(session, {}).pop(key, [])
        for at, one in enumerate(waiting, 1):
            self._end(one, content if at == len(waiting) else None)

    def _end(self, waiting: Waiting, content: ModelReply | ToolResult | None) -> None:
        span, ended, error = waiting
        if isinstance(content, ModelReply):
            span.set(replied(content, self._mask))
        elif content is not None:
            span.set(returned(content, self._mask))
        span.end(ended, error)
