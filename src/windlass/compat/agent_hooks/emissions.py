"""Emissions: each shows one context of a session to the interceptors and tells whether the action may proceed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_hooks import (
    AgentContextBuilder,
    HostError,
    InterceptionEmitter,
    InterceptionRecord,
    Verdict,
)

from windlass.turns import Turn

if TYPE_CHECKING:
    from .streaming import MediatedText

NOTE = "agent_hooks"
"""The kind of the notes in the log that hold the records of interceptions."""

_KEPT = 10_000
"""How many sessions are remembered. A session that was forgotten starts again, as in another process."""


class Judged(NamedTuple):
    """What came of a payload: why it is refused, if it is, and whether it was changed."""

    payload: Any
    refusal: str | None = None
    changed: bool = False


class HookedSession:
    """One session as the interceptors know it.

    `judged` has the latest verdict at each point, by point and call. `is_blocked` says that the turn was ended.
    """

    __slots__ = ("_builder", "_emitter", "is_blocked", "is_open", "judged", "reason", "stream")

    def __init__(self, emitter: InterceptionEmitter, turn: Turn[Any]) -> None:
        self._emitter = emitter
        self._builder = AgentContextBuilder(
            agent_id=turn.agent or "agent", framework="windlass", session_id=turn.session_id
        )
        self.judged: dict[tuple[str, str], Judged] = {}
        self.stream: MediatedText | None = None
        self.is_open = False
        self.is_blocked = False
        self.reason = "completed"

    def builder(self, turn: Turn[Any]) -> AgentContextBuilder:
        """Builds one context, at the time of the agent's clock."""
        at = datetime.fromtimestamp(turn.now(), UTC)
        return self._builder.with_l2(timestamp=at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))

    async def emit(self, context: dict[str, Any], turn: Turn[Any] | None) -> str | None:
        """Ask the interceptors. Returns why the action is refused, or None; `context` is changed in place."""
        task = asyncio.current_task()
        try:
            record = await self._emitter.emit_unchecked(context)
        except asyncio.CancelledError:
            if task is None or task.cancelling():
                raise
            record = self._emitter.results[-1]  # an interceptor raised it by itself: that is a failure of its own
        return self.told(record, turn)

    def emit_now(self, context: dict[str, Any]) -> InterceptionRecord:
        """Ask interceptors that do not wait. One that waits is a refusal."""
        work = self._emitter.emit_unchecked(context)
        try:
            work.send(None)
        except StopIteration as done:
            record: InterceptionRecord = done.value
            return record
        except asyncio.CancelledError:  # nobody can cancel what does not wait
            return self._emitter.results[-1]
        finally:
            work.close()
        return self.fail(context, HostError.STREAMING_UNSUPPORTED)

    def fail(self, context: dict[str, Any], error: HostError) -> InterceptionRecord:
        """Record that the host itself refuses an action that no interceptor has judged.

        The public `record_host_failure` of the SDK knows only `context_invalid`. The version of the SDK is pinned.
        """
        from agent_hooks.emitter import _Outcome  # pyright: ignore[reportPrivateUsage]

        emitter: Any = self._emitter
        return emitter._append(emitter._finalize(context, _Outcome(Verdict.host_error(error)), None))  # type: ignore[no-any-return]

    def told(self, record: InterceptionRecord, turn: Turn[Any] | None) -> str | None:
        """Note a record that is more than a plain permission; returns why the action is refused, or None."""
        verdict = record.verdict
        if turn is not None and (verdict.decision.value != "allow" or verdict.warnings):
            turn.note(NOTE, record.to_wire())
        return None if record.proceeds else refusal_of(verdict)


class HookedSessions:
    """The sessions of one process that the interceptors know."""

    def __init__(self, emitter: InterceptionEmitter) -> None:
        self._emitter = emitter
        self._sessions: OrderedDict[str, HookedSession] = OrderedDict()

    def of(self, turn: Turn[Any]) -> HookedSession:
        """The session of a turn."""
        name = turn.session_id
        session = self._sessions.get(name)
        if session is None:
            while len(self._sessions) >= _KEPT:
                self._sessions.popitem(last=False)
            session = self._sessions[name] = HookedSession(self._emitter, turn)
        self._sessions.move_to_end(name)
        return session

    def close(self, turn: Turn[Any]) -> HookedSession | None:
        """Forget a session, and return it."""
        return self._sessions.pop(turn.session_id, None)


def refusal_of(verdict: Verdict) -> str:
    """Why an action is refused, for the model and the log."""
    reason = verdict.reason or "denied by an interceptor"
    return f"{reason}: {verdict.message}" if verdict.message and not reason.startswith("host_error:") else reason


__all__ = ["NOTE", "HookedSession", "HookedSessions", "Judged", "refusal_of"]
