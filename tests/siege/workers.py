"""What the siege runs in processes of its own: `python workers.py WHAT FOLDER ADDRESS SEED …`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from windlass import Agent, Approve, Ask, ModelRequest, Reject, ToolCalling, tool
from windlass.errors import SessionError, StaleAnswer, StoreError
from windlass.records import Record
from windlass.stores import PostgresStore, SQLiteStore
from windlass.testing import FunctionModel, calls, says

SESSIONS = ("clerk-0", "clerk-1", "clerk-2", "boss-0", "boss-1", "boss-2")
"""The sessions that all processes want. Those of a boss have agents below, and one below those."""


def note(path: Path, *words: str) -> None:
    """Append a line to a file, for all to see. It is there even if the process is killed right afterwards."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(words) + "\n").encode())
    os.close(file)


def open_quickly(address: str) -> Any:
    """The store of an address; an SQLite file without waiting for the disk, which no kill can harm."""
    if address.startswith("sqlite:///"):
        return SQLiteStore(address.removeprefix("sqlite:///"), synchronous="NORMAL", timeout=60)
    return PostgresStore(address, timeout=60, max_size=3)


class Site:
    """The agents of a process, and the files in which their effects and answers are noted."""

    def __init__(self, folder: Path, dice: random.Random, *, slow: float = 0.0) -> None:
        self.folder = folder
        self.dice = dice
        self.slow = slow

    async def pause(self) -> None:
        await asyncio.sleep(self.dice.random() * self.slow)

    async def work(self, name: str, token: str) -> str:
        note(self.folder / "effects", name, token)
        await self.pause()
        return "done"

    def agent(self, session: str, store: Any, **options: Any) -> Agent:
        return self._boss(store, **options) if session.startswith("boss") else self._clerk("clerk", store, **options)

    def _clerk(self, name: str, store: Any = None, **options: Any) -> Agent:
        """Makes one or two calls in each of a few steps. Every unsafe call has a token of its own."""

        @tool(effect="pure")
        async def look() -> str:
            """Look."""
            await self.pause()
            return "seen"

        @tool(effect="idempotent")
        async def pay(idempotency_key: str) -> str:
            """Pay."""
            return await self.work("pay", idempotency_key)

        @tool
        async def send(token: str) -> str:
            """Send."""
            return await self.work("send", token)

        @tool
        async def sign(token: str) -> str:
            """Sign, if a person agrees."""
            return await self.work("sign", token)

        def call() -> tuple[str, dict[str, Any]]:
            chosen = self.dice.choice(["look", "pay", "send", "sign"])
            return chosen, {"token": uuid.uuid4().hex} if chosen in ("send", "sign") else {}

        async def reply(request: ModelRequest) -> Any:
            await self.pause()
            last = max(n for n, message in enumerate(request.messages) if message.role == "user")
            if len([m for m in request.messages[last:] if m.role == "assistant"]) >= self.dice.randint(1, 3):
                return says("done")
            return calls([call() for _ in range(self.dice.randint(1, 2))])

        agent = Agent(FunctionModel(reply), tools=[look, pay, send, sign], name=name, store=store, **options)
        agent.gate(ToolCalling, tool="sign", name="sure")(lambda event: Ask("sure?"))
        return agent

    def _boss(self, store: Any, **options: Any) -> Agent:
        """An agent whose clerk has a clerk, and who signs something, too."""
        leaf = self._clerk("leaf")
        middle = Agent(self._delegates("leaf"), tools=[leaf.as_tool(description="Works.")], name="middle")
        tools = [middle.as_tool(description="Delegates.")]
        return Agent(self._delegates("middle"), tools=tools, store=store, name="boss", **options)

    def _delegates(self, name: str) -> FunctionModel:
        async def reply(request: ModelRequest) -> Any:
            await self.pause()
            last = request.messages[-1]
            if last.role == "user":
                return calls([(name, {"task": f"{last.text} {n}"}) for n in range(self.dice.randint(1, 2))])
            return says("done")

        return FunctionModel(reply)

    async def answer(self, agent: Agent, session: str, *, reject: float = 0.2) -> None:
        """Answer what a session asks."""
        for asked in (await agent.state(session)).waiting:
            answer = Reject("no") if self.dice.random() < reject else Approve()
            await self.resolve(agent, session, asked.id, answer)

    async def resolve(self, agent: Agent, session: str, question: str, answer: Any) -> None:
        """Answer a question. What the store has accepted is noted."""
        with suppress(StaleAnswer):
            await agent.resolve(session, question, answer)
            note(self.folder / "answers", session, question, type(answer).__name__)


# ---------------------------------------------------------------- many that are killed, stopped and cut off


class Cutting:
    """A store whose process is sometimes killed right before or after an append: around the COMMIT."""

    def __init__(self, store: Any, dice: random.Random) -> None:
        self._store = store
        self._dice = dice

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        self._strike()
        waiting = bool(await self._store.append(session, records, expected, claim))
        self._strike()
        return waiting

    def _strike(self) -> None:
        if self._dice.random() < 0.004:
            os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def cut_lines(address: str, dice: random.Random) -> tuple[str, Any]:
    """The address of a PostgreSQL server over a line that can be cut, and a function that may do so at a COMMIT."""
    from tests.servers.proxy import Proxy

    start, _, port = address.rpartition("/")[0].rpartition(":")
    proxy = Proxy(int(port))

    def cut() -> None:
        if dice.random() < 0.1:
            if dice.random() < 0.5:
                proxy.cut = b"COMMIT"
            else:
                proxy.swallow = b"COMMIT"

    return f"{start}:{proxy.port}/{address.rpartition('/')[2]}", cut


async def besiege(folder: Path, address: str, dice: random.Random) -> None:
    """Do something with one session after the other, until the process is killed."""
    site = Site(folder, dice, slow=0.02)
    cut = lambda: None  # noqa: E731
    if address.startswith("postgresql:"):
        address, cut = cut_lines(address, dice)
    store = Cutting(open_quickly(address), dice)
    agents = {
        (kind, busy): site.agent(kind, store, busy=busy)
        for kind in ("clerk", "boss")
        for busy in ("refuse", "queue", "steer")
    }
    while True:
        session = dice.choice(SESSIONS)
        agent = agents[session.partition("-")[0], dice.choice(("refuse", "queue", "steer"))]
        cut()
        try:
            async with asyncio.timeout(dice.choice((0.05, 0.3, 5.0))):
                await _act(site, agent, session, dice)
        except SessionError as error:
            note(folder / "refused", type(error).__name__)
        except (TimeoutError, StoreError) as error:
            note(folder / "broken", type(error).__name__)
        await asyncio.sleep(0)


async def _act(site: Site, agent: Agent, session: str, dice: random.Random) -> None:
    over = session not in await agent.store.sessions() or (await agent.state(session)).over
    takeover = dice.random() < 0.1
    if over or dice.random() < 0.1:
        await agent.run(str(dice.randint(1, 3)), session=session, takeover=takeover)
    elif dice.random() < 0.05:
        await agent.cancel(session, "enough")
    else:
        await site.answer(agent, session)
        await agent.resume(session, takeover=takeover)
    note(site.folder / "done", session)


def siege(folder: Path, address: str, seed: str, seconds: str) -> None:
    """Four that besiege the sessions, and one who kills, stops and wakes them at random and replaces the dead."""
    dice, born = random.Random(int(seed)), 0
    alive: list[int] = []
    until = time.monotonic() + float(seconds)
    try:
        while time.monotonic() < until:
            while len(alive) < 4:
                born += 1
                number = dice.randrange(2**30)
                pid = os.fork()
                if not pid:
                    _live(folder, address, number)
                alive.append(pid)
            time.sleep(dice.uniform(0.02, 0.3))
            victim = dice.choice(alive)
            if dice.random() < 0.4:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(dice.uniform(0.0, 0.2))
                os.kill(victim, signal.SIGCONT)
            else:
                os.kill(victim, signal.SIGKILL)
            for pid in [pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]]:
                alive.remove(pid)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    note(folder / "born", str(born))


def _live(folder: Path, address: str, number: int) -> None:
    """In a forked process. An error that is none of those that may come is noted, and fails the test."""
    try:
        asyncio.run(besiege(folder, address, random.Random(number)))
    except BaseException as error:
        import traceback

        note(folder / "errors", json.dumps("".join(traceback.format_exception(error))))
    os._exit(1)


# ---------------------------------------------------------------- several that resume the same tree


def race(folder: Path, address: str, seed: str) -> None:
    """Resume the sessions that are named on stdin, one per line, and say on stdout how that ended.

    A line also has the way in which the answers are given, and the questions that are answered.
    """
    dice = random.Random(int(seed))
    site = Site(folder, dice)

    async def resume_all() -> None:
        store = open_quickly(address)
        agent = site.agent("boss", store)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            session, way, *questions = line.split()
            await asyncio.sleep(dice.random() * 0.004)
            try:
                if way == "resolve":
                    for question in questions:
                        await site.resolve(agent, session, question, Approve())
                    result = await agent.resume(session)
                else:
                    result = await agent.resume(session, answers=dict.fromkeys(questions, Approve()))
                end = type(result.outcome).__name__
            except SessionError as error:
                end = f"{type(error).__name__}: {error}"
            sys.stdout.write(f"{json.dumps(end)}\n")
            sys.stdout.flush()
        await store.close()

    asyncio.run(resume_all())


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    {"siege": siege, "race": race}[what](Path(folder), *rest)
