"""What tests read from the log of a session, and a log as a crash leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass import Agent
from windlass.records import Record
from windlass.stores import MemoryStore

SESSION = "s1"


async def log_of(agent: Agent[Any, Any], session: str = SESSION) -> Sequence[Any]:
    return list(await agent.store.read(session))


async def find(agent: Agent[Any, Any], kind: type, session: str = SESSION) -> list[Any]:
    """The records of a kind."""
    return [record for record in await log_of(agent, session) if isinstance(record, kind)]


async def crashed_after(log: Sequence[Record], kind: type) -> MemoryStore:
    """A store as a process leaves it that died right after it had written the first record of a kind."""
    at = next(index for index, record in enumerate(log) if isinstance(record, kind))
    store = MemoryStore()
    await store.append(SESSION, list(log[: at + 1]), 0)
    return store
