"""A thousand cancellations at random moments, by random means, while many turns run: nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import pytest

from windlass import (
    Agent,
    Cancelled,
    ErrorPolicy,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReplying,
    Regenerate,
    SessionStarting,
    StepEnding,
    StepStarting,
    Stopping,
    Suspended,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    Veto,
    tool,
)
from windlass.errors import HookError, SessionUnknown
from windlass.messages import assistant
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, calls

from .checks import check_log, nothing_unraised, only_this_task

WAVES = 20
TURNS = 50
PARTS = 40 if os.environ.get("WINDLASS_CAMPAIGN") else 4
LONG = 100
"""About as many rounds of the loop as a turn takes that nobody cancels."""


async def a_while(rounds: int = 1) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


class UnhurriedStore(MemoryStore):
    """A store that must be waited for, before and after it has kept something."""

    durable = True

    async def append(self, session: str, records: Any, expected: int, claim: Any = None) -> bool:
        await a_while()
        kept = await super().append(session, records, expected, claim)
        await a_while()
        return kept

    async def read(self, session: str, start: int = 0) -> Any:
        await a_while()
        return await super().read(session, start)


class Redact:
    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Iterable[str]:
        ready, self.held = self.held, text
        yield ready.replace("x", "y")

    def flush(self) -> Iterable[str]:
        yield self.held.replace("x", "y")


def cancel_turn(turn: Turn[Any]) -> None:
    """Cancel a turn that may be over by now, of which it says so."""
    with suppress(HookError):
        turn.cancel("enough")


class Crowd:
    """An agent in which every kind of work takes a while, and what is known of its turns."""

    def __init__(self, seed: int, store: MemoryStore, held: bool) -> None:
        self.random = random.Random(seed)
        self.turns: dict[str, Turn] = {}
        self.ended: Counter[str] = Counter()
        self.agent = agent = Agent(
            FunctionModel(self.speak),
            tools=self.tools(),
            store=store,
            errors=ErrorPolicy.retrying(1, delay=0),
            max_parallel=4,
            name=f"crowd{seed}",
        )
        agent.transform(Redact)
        for event in (SessionStarting, TurnStarting, ModelCalling, ToolCalling, ToolReturning, MessageAdding):
            agent.rewrite(event)(self.looks)
        for event in (TurnStarting, StepStarting, ModelCalling, ToolCalling, MessageAdding, StepEnding):
            agent.gate(event)(self.looks)
        for event in (TurnStarting, StepStarting, ToolReturning):
            agent.inject(event)(self.adds)
        agent.inject(TurnStarting, group="together")(self.adds)
        agent.inject(TurnStarting, group="together")(self.adds_more)
        agent.gate(Stopping)(self.vetoes)
        agent.gate(ModelReplying, live=not held)(self.judges)
        agent.gate(TurnEnding, live=not held)(self.ends)
        agent.observe(ToolReturned)(self.notes)
        agent.observe(ToolReturned, wait=True)(self.notes_too)
        agent.rewrite(ModelCalling)(self.remembers)
        agent.wrap(ModelCall)(self.around)
        agent.wrap(ToolCall, tool="quick")(self.plainly_around)

    # ------------------------------------------------------------ the model and the tools

    async def speak(self, request: Any) -> AsyncIterator[Any]:
        await a_while()
        said = self.random.random()
        if said < 0.1:
            raise ModelError("gone", retryable=True)
        for piece in ("a x", "b x", "c"):
            yield piece
            await a_while()
        if said < 0.6 and len(request.messages) < 8:
            names = self.random.choices(["work", "block", "quick", "fails", "cleans_up"], k=self.random.randint(1, 4))
            made = calls([(name, {}) for name in names], _text="a xb xc").reply
            yield made
        else:
            yield assistant("a xb xc")

    def tools(self) -> list[Any]:
        @tool
        async def work() -> str:
            """Work."""
            await a_while(self.random.randint(1, 10))
            return "worked"

        @tool
        def block() -> str:
            """Work in a thread."""
            return "blocked"

        @tool(effect="pure", inline=True)
        def quick() -> str:
            """Work at once."""
            return "quick"

        @tool
        async def fails() -> str:
            """Fail."""
            await a_while(2)
            raise RuntimeError("failed")

        @tool
        async def cleans_up() -> str:
            """Take a while to stop."""
            try:
                await a_while(8)
            finally:
                await a_while(2)
            return "clean"

        return [work, block, quick, fails, cleans_up]

    # ------------------------------------------------------------ the hooks

    async def looks(self, event: Any) -> None:
        await a_while()

    async def adds(self, event: Any) -> str:
        await a_while()
        return "context"

    async def adds_more(self, event: Any) -> str:
        await a_while(3)
        return "more"

    async def vetoes(self, event: Any) -> Veto | None:
        await a_while()
        return None if event.stop_active or self.random.random() < 0.7 else Veto("more")

    async def judges(self, event: Any) -> Regenerate | None:
        await a_while()
        return Regenerate("again") if self.random.random() < 0.1 else None

    async def ends(self, event: Any, turn: Turn) -> None:
        self.ended[turn.session_id] += 1
        await a_while()

    async def notes(self, fact: Any) -> None:
        await a_while()

    async def notes_too(self, fact: Any) -> None:
        await a_while()

    async def remembers(self, event: Any, turn: Turn) -> None:
        self.turns[turn.session_id] = turn
        await a_while()

    async def around(self, request: Any, call_next: Any) -> Any:
        await a_while()
        reply = await call_next(request)
        await a_while()
        return reply

    def plainly_around(self, call: Any, call_next: Any) -> Any:
        return call_next(call)

    # ------------------------------------------------------------ how turns are run and cancelled

    async def by_task(self, session: str, rounds: int) -> None:
        await cancelled(asyncio.ensure_future(self.agent.run("go", session=session)), rounds)

    async def by_task_many_times(self, session: str, rounds: int) -> None:
        await cancelled(asyncio.ensure_future(self.agent.run("go", session=session)), rounds, times=4)

    async def by_agent(self, session: str, rounds: int) -> None:
        task = asyncio.ensure_future(self.agent.run("go", session=session))
        await a_while(rounds)
        if not task.done():
            try:
                await self.agent.cancel(session, "enough")
            except SessionUnknown:
                pass
        result = await task
        assert result.outcome is not None

    async def by_turn(self, session: str, rounds: int) -> None:
        task = asyncio.ensure_future(self.agent.run("go", session=session))
        await a_while(rounds)
        if (turn := self.turns.get(session)) is not None:
            cancel_turn(turn)
            if rounds % 2:
                task.cancel()
        await asyncio.wait([task])

    async def by_turn_while_streaming(self, session: str, rounds: int) -> None:
        stream = self.agent.stream("go", session=session)

        async def cancel() -> None:
            await a_while(rounds)
            if (turn := self.turns.get(session)) is not None:
                cancel_turn(turn)

        task = asyncio.ensure_future(cancel())
        async for _ in stream:
            await a_while(rounds % 3)
        await task
        assert stream.result.outcome is not None

    async def by_leaving(self, session: str, rounds: int) -> None:
        seen = 0
        async with self.agent.stream("go", session=session) as stream:
            async for _ in stream:
                seen += 1
                if seen > rounds // 3:
                    break

    async def by_cancelling_the_reader(self, session: str, rounds: int) -> None:
        async def read() -> None:
            async with self.agent.stream("go", session=session) as stream:
                async for _ in stream:
                    pass

        await cancelled(asyncio.ensure_future(read()), rounds, times=1 + rounds % 2)

    async def by_forgetting(self, session: str, rounds: int) -> None:
        seen = 0
        async for _ in self.agent.stream("go", session=session):
            seen += 1
            if seen > rounds // 3:
                break

    async def by_leaving_the_iteration(self, session: str, rounds: int) -> None:
        async def read() -> None:
            async for _ in self.agent.iterate("go", session=session):
                pass

        await cancelled(asyncio.ensure_future(read()), rounds)

    async def by_time_out(self, session: str, rounds: int) -> None:
        expiring: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as limit:
                expiring = asyncio.ensure_future(expire(limit, rounds))
                await self.agent.run("go", session=session)
                expiring.cancel()
        except TimeoutError:
            pass
        assert expiring is not None
        await asyncio.wait([expiring])


async def cancelled(task: asyncio.Task[Any], rounds: int, times: int = 1) -> None:
    for _ in range(times):
        await a_while(rounds)
        task.cancel()
        rounds = 1
    await asyncio.wait([task])


async def expire(limit: asyncio.Timeout, rounds: int) -> None:
    await a_while(rounds)
    limit.reschedule(0)


MEANS = [name for name in vars(Crowd) if name.startswith("by_")]


@pytest.mark.parametrize("part", range(PARTS))
async def test_a_thousand_cancellations_leave_nothing_behind(part):
    """Behaviours 83f, 112: no task, no open call, no error that nobody can catch; every turn ends once."""
    chance = random.Random(part)
    crowd = Crowd(part, UnhurriedStore() if part % 2 else MemoryStore(), held=part % 4 > 1)
    outcomes: Counter[str] = Counter()
    with nothing_unraised() as wrong:
        for wave in range(WAVES // 4):
            sessions = {f"{wave}.{n}": chance.choice(MEANS) for n in range(TURNS)}
            await asyncio.gather(
                *[getattr(crowd, means)(name, chance.randrange(LONG)) for name, means in sessions.items()]
            )
            assert await nothing_runs()
            for name in sessions:
                outcomes[await outcome_of(crowd, name)] += 1
            again = chance.sample(sorted(sessions), 5)
            await asyncio.gather(*[crowd.agent.run("and now?", session=name) for name in again])
            for name in again:
                await outcome_of(crowd, name)
        assert wrong == []
    assert outcomes.total() == WAVES // 4 * TURNS
    assert outcomes["Cancelled"] > outcomes.total() // 3, outcomes


async def nothing_runs() -> bool:
    for _ in range(20_000):  # threads that were given up, and streams that were forgotten
        if await only_this_task():
            return True
        await asyncio.sleep(0.001)
    return False


async def outcome_of(crowd: Crowd, session: str) -> str:
    """How the last turn of a session ended; its log is whole, and its ending hooks ran once per turn."""
    if session not in await crowd.agent.store.sessions():
        assert not crowd.ended[session]
        return "never begun"
    state = await check_log(crowd.agent, session)
    assert state.over or isinstance(state.outcome, Suspended), session
    assert state.open is None
    assert crowd.ended[session] == state.turns, session
    assert isinstance(state.outcome, Cancelled) or not any(message.partial for message in state.messages[-1:])
    return type(state.outcome).__name__
