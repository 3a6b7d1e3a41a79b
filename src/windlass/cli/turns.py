"""Plays turns for `run` and `chat`: streams a turn, and says how it ended in words and as an exit code."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from windlass import Agent, Result
from windlass._text import visible, visible_id
from windlass.decisions import AnyResolution
from windlass.deltas import StreamEvent
from windlass.messages import Message
from windlass.outcomes import Cancelled, Completed, Failed, Stopped

from .codes import COMPLETED, FAILED, INTERRUPTED, STOPPED, SUSPENDED
from .loading import ScopeFactory, make_scope
from .view import spent


class Turns(NamedTuple):
    """An agent and the session in which its turns are played."""

    agent: Agent[Any, Any]
    session: str
    scope: ScopeFactory | None

    async def play(
        self,
        show: Callable[[StreamEvent], None],
        message: Message | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        model: str | None = None,
    ) -> Result[Any]:
        """Run a turn, or without a message resume one, and show its events."""
        scope = await make_scope(self.scope, self.session)
        options: Any = {} if model is None else {"model": model}
        stream = self.agent.stream(message, session=self.session, answers=answers, scope=scope, **options)
        async with stream:
            async for event in stream:
                show(event)
        return stream.result


def exit_code(result: Result[Any]) -> int:
    """The exit code for how a turn ended."""
    codes: dict[type, int] = {Completed: COMPLETED, Failed: FAILED, Stopped: STOPPED, Cancelled: INTERRUPTED}
    return codes.get(type(result.outcome), SUSPENDED)


def ended(result: Result[Any]) -> str:
    """How a turn ended, in one line: the session, why it ended, and what it spent."""
    match result.outcome:
        case Failed(error=error):
            how = f"failed: {error.type}: {error.message}"
        case Stopped(reason=reason, detail=detail):
            how = f"stopped: {reason.value}{': ' if detail else ''}{detail}"
        case _:
            how = str(result.stop_reason)
    parts = [f"{visible_id(result.session_id)}: {visible(how)}", spent(result.usage)]
    return " · ".join([part for part in parts if part])


def answer_commands(result: Result[Any], address: str | None, agent: str | None) -> list[str]:
    """The open questions, each with the command that answers it: in the store at an address, or in that of an agent."""
    where = ["--store", address] if address is not None else ["--agent", agent or ""]
    lines: list[str] = []
    for asked in result.waiting_for:
        lines.append(f"open question: {visible_id(asked.id)}  {visible(asked.question)}")
        words = ["windlass", "approve", *where, result.session_id, asked.id]
        lines.append(f"  answer it:   {visible(shlex.join(words))}")
    return lines
