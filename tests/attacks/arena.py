"""The arena: agents under attack, every way of running them, and what must hold whatever the attack was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass import Agent, ToolCallPart, ToolResultPart, fold, tool
from windlass.decisions import (
    Again,
    Allow,
    Answer,
    Approve,
    Ask,
    Deny,
    Fail,
    Finish,
    Halt,
    Ignore,
    Regenerate,
    Rewind,
    Says,
    Veto,
    Vote,
)
from windlass.events import EVENTS, FACTS
from windlass.records import ToolCalled, ToolDecided
from windlass.stores import open_store
from windlass.testing import FunctionModel, calls, says

CANARY = "4111-1111"
SESSION = "s"
WAYS = ("run", "stream", "iterate", "resume", "child", "sqlite")

DECISIONS: tuple[Any, ...] = (
    Allow(), Deny("no"), Answer("answered"), Ask("May it?"), Regenerate("again"), Veto("not yet"), Finish("done"),
    Rewind(1), Halt("stop"), Again(), Ignore(), Fail(), *Vote,
)  # fmt: skip


class Unreadable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def cancelled_by_nobody(*_: Any) -> Any:
    inner = asyncio.ensure_future(asyncio.sleep(1))
    inner.cancel()
    return await inner


async def stubborn(*_: Any) -> Any:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return Allow()


def fails(*_: Any) -> Any:
    raise ValueError(f"cannot read {CANARY}")


def unreadable(*_: Any) -> Any:
    raise Unreadable


FAILURES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "raises": (fails, {}),
    "raises what cannot be read": (unreadable, {}),
    "is cancelled by nobody": (cancelled_by_nobody, {}),
    "swallows its time-out": (stubborn, {"timeout": 0.005}),
    "answers nonsense": (lambda event: 42, {}),
}


OPEN: list[Arena] = []
"""Arenas whose stores are not closed yet."""


class Arena:
    """One agent with an unsafe tool, and all that came out of it."""

    def __init__(self, way: str, tmp_path: Path | None = None, **options: Any) -> None:
        self.way = way
        self.ran: list[int] = []
        self.requests: list[Any] = []
        self.facts: list[Any] = []
        self.events: list[Any] = []
        self.result: Any = None
        self.path = None if tmp_path is None else tmp_path / "log.db"
        self.store = open_store(f"sqlite:///{self.path}" if way == "sqlite" else "memory:")
        self.options = options
        self.attacks: list[Callable[[Agent[Any, Any]], None]] = []
        OPEN.append(self)

    def attack(self, install: Callable[[Agent[Any, Any]], None]) -> None:
        self.attacks.append(install)

    def reply(self, request: Any) -> Any:
        self.requests.append(request)
        asked = sum(isinstance(part, ToolCallPart) for message in request.messages for part in message.parts)
        return calls("pay", x=1) if asked == 0 else says("paid")

    def agent(self) -> Agent[Any, Any]:
        @tool
        async def pay(x: int) -> str:
            """Pay."""
            self.ran.append(x)
            return f"paid {x}"

        store = self.store if self.way != "child" else None
        agent = Agent(FunctionModel(self.reply), tools=[pay], name="kid", store=store, **self.options)
        for install in self.attacks:
            install(agent)
        if self.way == "child":
            replies = iter([calls("kid", task="go"), says("top")])
            agent = Agent(FunctionModel(lambda request: next(replies)), tools=[agent.as_tool()], store=self.store)
        for fact in FACTS:
            agent.observe(fact, wait=True)(self.facts.append)
        return agent

    async def play(self, message: str = "go", answers: Callable[[Any], Any] | None = lambda asked: Approve()) -> Any:
        """One turn. Questions are answered by a second agent over the same store, or never."""
        agent = self.agent()
        self.result = await self._once(agent, message)
        for _ in range(8):
            if answers is None or not self.result.waiting_for:
                break
            given = {asked.id: answers(asked) for asked in self.result.waiting_for}
            self.result = await self._once(self.agent(), None, given)
        return self.result

    async def _once(self, agent: Agent[Any, Any], message: str | None, answers: Any = None) -> Any:
        if self.way == "stream":
            async with agent.stream(message, session=SESSION, answers=answers) as stream:
                self.events += [event async for event in stream]
            return stream.result
        if self.way == "iterate":
            async for state in agent.iterate(message, session=SESSION, answers=answers):
                last = state
            return type("Seen", (), {"waiting_for": last.waiting, "state": last, "outcome": last.outcome})()
        if message is None:
            return await agent.resume(SESSION, answers=answers)
        return await agent.run(message, session=SESSION)

    async def logs(self) -> dict[str, list[Any]]:
        return {name: list(await self.store.read(name)) for name in await self.store.sessions()}

    async def told(self) -> str:
        """All that anybody but the hooks could see."""
        result = self.result
        why = str(result.why()) if hasattr(result, "why") else ""
        seen = (await self.logs(), self.facts, self.events, self.requests, result.state, result.outcome, why)
        return repr(seen)

    async def check(self) -> None:
        """What holds after every attack."""
        assert self.result.outcome is not None
        for name, log in (await self.logs()).items():
            state = fold(name, log)
            times = [record.at for record in log]
            assert times == sorted(times)
            assert all(times), f"a record without a time in {name}"
            parts = [part for message in state.messages for part in message.parts]
            proposed = [part.id for part in parts if isinstance(part, ToolCallPart)]
            answered = [part.call_id for part in parts if isinstance(part, ToolResultPart)]
            assert proposed == answered, "a call without its result"
            decided = {record.call: record.verdict for record in log if isinstance(record, ToolDecided)}
            started = [record.call for record in log if isinstance(record, ToolCalled) and record.name == "pay"]
            assert len(started) == len(set(started)), "an unsafe call was made twice"
            for call in started:
                assert isinstance(decided[call], Allow), "a call ran that nobody allowed"
        if self.way == "sqlite":
            again = open_store(f"sqlite:///{self.path}")
            assert list(await again.read(SESSION)) == list(await self.store.read(SESSION))
            await again.close()

    async def close(self) -> None:
        await self.store.close()


def legal(event: Any, decision: Any) -> bool:
    return any(type(decision) is rank or decision is rank for rank in event.ranks)


def refuses(event: Any, decision: Any) -> bool:
    """Whether a decision at this event keeps the tool from running."""
    before = ("SessionStarting", "TurnStarting", "StepStarting", "ModelCalling", "ModelReplying", "ToolCalling")
    name = event.__name__
    if name not in (*before, "MessageAdding"):
        return False
    if isinstance(decision, Halt) or (name == "ToolCalling" and isinstance(decision, Deny | Answer)):
        return True
    if isinstance(decision, Answer) and name in ("TurnStarting", "ModelCalling"):
        return True
    return isinstance(decision, Regenerate) and name == "ModelReplying"


__all__ = ["CANARY", "DECISIONS", "EVENTS", "FAILURES", "SESSION", "WAYS", "Arena", "Says", "legal", "refuses"]
