"""What all endpoints share: the agents by name, the open streams, and the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.types import Receive

from windlass import Agent
from windlass.errors import ConfigError

from .errors import Problem
from .streams import Streams
from .turns import Run, ScopeFactory, Turns

LAST_EVENTS = 1.0
"""How many seconds streams may take to send their last events when the server stops."""


class Hosting:
    """The agents of a server, and what runs there."""

    def __init__(
        self, agents: Iterable[Agent[Any, Any]], *, scope: ScopeFactory | None, max_body: int, body_timeout: float
    ) -> None:
        self.max_body = max_body
        self.body_timeout = body_timeout
        self.streams = Streams()
        self.closing = False
        self._turns: dict[str, Turns] = {}
        for agent in agents:
            if agent.name in self._turns:
                raise ConfigError(f"two agents have the name {agent.name!r}: a server finds agents by their names")
            agent.compile()
            self._turns[agent.name] = Turns(agent, scope)
        if not self._turns:
            raise ConfigError("a server needs at least one agent")

    @property
    def agents(self) -> tuple[Agent[Any, Any], ...]:
        """The agents, in the order in which they were given."""
        return tuple([turns.agent for turns in self._turns.values()])

    def turns(self, agent: str) -> Turns:
        """The turns of an agent. Raises if there is no such agent."""
        found = self._turns.get(agent)
        if found is None:
            raise Problem(404, "agent_unknown", f"there is no agent {agent!r}; see /agents")
        return found

    async def close(self, drain: float) -> None:
        """Take no more turns, let those under way end within `drain` seconds or interrupt them, and end all streams."""
        self.closing = True
        for turns in self._turns.values():
            turns.closing = True
        await asyncio.gather(*[turns.close(drain) for turns in self._turns.values()])
        await self.streams.close(LAST_EVENTS)


async def wait_or_leave(run: Run, request: Request, left: Callable[[], Awaitable[Any]] | None) -> None:
    """Wait for the end of a turn. If the client leaves before and `left` is given, it is called."""
    if left is None:
        await run.wait()
        return
    gone = asyncio.create_task(_disconnected(request.receive))
    assert run.task is not None
    try:
        await asyncio.wait([gone, run.task], return_when=asyncio.FIRST_COMPLETED)
        if not run.done:
            await left()
            await run.wait()
    finally:
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
