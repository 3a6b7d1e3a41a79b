"""What the processes of a fault campaign share: the agent that the workers run, and the notes that they leave."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from windlass import Agent, ModelRequest, tool
from windlass._kernel.program import SystemClock
from windlass.records import Record
from windlass.stores import PostgresStore
from windlass.stores.batches import lines_of
from windlass.testing import FunctionModel, calls, says

from . import clocks

MODULE = "tests.faults.towns"


def note(path: Path, *words: object) -> None:
    """Append a line to a file. It is there even if the process is killed right afterwards."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


def digest_of(records: Sequence[Record]) -> str:
    return blake2b(lines_of(records), digest_size=8).hexdigest()


class Noting:
    """A store that notes every batch that was acknowledged: session, place, length, digest, process and time."""

    def __init__(self, store: Any, path: Path) -> None:
        self._store = store
        self._path = path

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        waiting: bool = await self._store.append(session, records, expected, claim)
        if records:
            note(self._path, session, expected, len(records), digest_of(records), os.getpid(), time.monotonic())
        return waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class JumpingClock(SystemClock):
    """The clock of an agent on a machine whose time is set wrong, where only agents can see that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def now(self) -> float:
        return super().now() + clocks.seconds_off(self._folder)


def make_agent(folder: Path, address: str, steps: int, delay: float) -> Agent[Any, Any]:
    """Sends and pays in turns, `steps` times, with a model that takes about `delay` seconds."""

    @tool
    async def send(number: int, session_id: str) -> str:
        """Send something off: it must not happen twice."""
        note(folder / "effects", session_id, "send", number)
        await asyncio.sleep(random.random() * delay / 2)
        return "sent"

    @tool(effect="idempotent")
    async def pay(number: int, idempotency_key: str) -> str:
        """Pay, once per key."""
        note(folder / "effects", idempotency_key, "pay", number)
        return "paid"

    async def reply(request: ModelRequest) -> Any:
        await asyncio.sleep(random.uniform(0.5, 1.5) * delay)
        done = sum(message.role == "assistant" for message in request.messages)
        session = next(message.text for message in request.messages if message.role == "user")
        if done == steps:
            return says(f"{steps} steps")
        if done % 2:
            return calls("pay", number=done)
        return calls("send", number=done, session_id=session)

    store: Any = Noting(PostgresStore(address, max_size=4), folder / "acknowledged")
    clock = SystemClock() if clocks.possible() else JumpingClock(folder)
    return Agent(FunctionModel(reply), tools=[send, pay], name="shop", store=store, clock=clock)


def agent() -> Agent[Any, Any]:
    """The agent of a worker's process."""
    given = os.environ
    steps, delay = int(given["FAULTS_STEPS"]), float(given["FAULTS_DELAY"])
    return make_agent(Path(given["FAULTS"]), given["FAULTS_STORE"], steps, delay)
