"""What the tests of this folder run in processes of their own: `python children.py WHAT FOLDER …`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from windlass import Agent, Approve, Ask, ModelRequest, ToolCalling, Turn, tool
from windlass.errors import SessionError
from windlass.records import Record, encode
from windlass.states import fold
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FunctionModel, calls, says


def note(path: Path, line: str) -> None:
    """Append a line to a file, for all to see."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode() + b"\n")
    os.close(file)


def lines(path: Path) -> list[str]:
    """What was noted, without a line that was cut short."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


class Listening:
    """A store that tells somebody of every append: before it, and when it was acknowledged."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store

    async def before(self, session: str, records: Sequence[Record], expected: int) -> None: ...
    async def after(self, session: str, records: Sequence[Record], expected: int) -> None: ...

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        await self.before(session, records, expected)
        waiting = await self._store.append(session, records, expected, claim)
        await self.after(session, records, expected)
        return waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def store_in(folder: Path) -> SQLiteStore:
    return SQLiteStore(folder / "store.db", synchronous="NORMAL")


# ---------------------------------------------------------------- one that is killed in the middle of a tool


def working(folder: Path, store: Any, *, dies: str = "", stops: bool = False) -> Agent:
    """An agent with a tool of each kind; the one that `dies` kills its process once it has done its work."""

    def work(name: str, key: str) -> str:
        note(folder / "effects", f"{name} {key}")
        if name == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if stops:
            os.kill(os.getpid(), signal.SIGSTOP)
        return f"{name} done"

    @tool
    async def send() -> str:
        """Send something off."""
        return work("send", "")

    @tool(effect="idempotent")
    async def pay(idempotency_key: str) -> str:
        """Pay, once per key."""
        return work("pay", idempotency_key)

    @tool
    async def sign() -> str:
        """Sign, if a person agrees."""
        return work("sign", "")

    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return calls(last.text) if last.role == "user" else says("done")

    agent = Agent(FunctionModel(reply), tools=[send, pay, sign], store=store)

    @agent.gate(ToolCalling, tool="sign")
    def sure(event: ToolCalling) -> Any:
        return Ask("sure?")

    return agent


def die(folder: Path, name: str) -> None:
    """Killed when the tool has done its work and nobody knows."""
    asyncio.run(working(folder, store_in(folder), dies=name).run(name, session="s"))


def stall(folder: Path) -> None:
    """Stopped in the middle of a tool; goes on when it is woken."""
    tell(folder, lambda: working(folder, store_in(folder), stops=True).run("send", session="s"))


def ponder(folder: Path) -> None:
    """Asks a model that says nothing before somebody else lets it."""

    async def reply(request: ModelRequest) -> Any:
        note(folder / "asked", request.messages[-1].text)
        while not (folder / "go").exists():  # noqa: ASYNC110 — there is no other way to wait for it
            await asyncio.sleep(0.002)
        return calls("look")

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    tell(folder, lambda: Agent(FunctionModel(reply), tools=[look], store=store_in(folder)).run("send", session="s"))


# ---------------------------------------------------------------- two that want the same session


def race(folder: Path, number: str, message: str) -> None:
    """Go on with a session, or begin it, and write only once all others are about to write as well."""

    class Waiting(Listening):
        began = False

        async def before(self, session: str, records: Sequence[Record], expected: int) -> None:
            if not self.began:
                self.began = True
                note(folder / "ready", number)
                while not (folder / "go").exists():  # noqa: ASYNC110 — there is no other way to wait for it
                    await asyncio.sleep(0.002)

    agent = working(folder, Waiting(store_in(folder)))

    async def go_on() -> Any:
        waiting = (await agent.state("s")).waiting if not message else ()
        answers = {asked.id: Approve() for asked in waiting}
        return await (agent.run(message, session="s") if message else agent.resume("s", answers=answers))

    tell(folder, go_on)


def tell(folder: Path, run: Any) -> None:
    """Note how it ended: with an outcome, or with an error."""
    try:
        result = asyncio.run(run())
        note(folder / "ends", type(result.outcome).__name__)
    except SessionError as error:
        note(folder / "ends", f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------- many, killed at random


class Journalling(Listening):
    """Every acknowledgement goes to a file of its own before anything else happens."""

    def __init__(self, store: SQLiteStore, path: Path) -> None:
        super().__init__(store)
        self.path = path

    async def after(self, session: str, records: Sequence[Record], expected: int) -> None:
        digests = " ".join(digest_of(encode(record)) for record in records)
        note(self.path, f"{session} {expected} {digests}")


def digest_of(line: bytes) -> str:
    return blake2b(line, digest_size=8).hexdigest()


def restless(store: Any) -> Agent:
    """An agent that works for as many steps as the message says."""

    @tool(effect="pure", inline=True)
    def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    @tool(effect="idempotent")
    async def pay(n: int, turn: Turn) -> str:
        """Pay."""
        turn.add(f"paid {n}")
        return f"paid {n}"

    @tool
    async def send(n: int) -> str:
        """Send."""
        return f"sent {n}"

    def reply(request: ModelRequest) -> Any:
        said = [m for m in request.messages if m.role == "assistant"]
        asked = sum(int(m.text) for m in request.messages if m.role == "user" and m.text.isdigit())
        if len(said) >= asked:
            return says("done")
        n = len(said)
        return calls([("look", {"n": n}), ("pay", {"n": n}), ("send", {"n": n})][: 1 + n % 3])

    return Agent(FunctionModel(reply), tools=[look, pay, send], store=store)


def labour(folder: Path, number: int) -> None:
    """Work on sessions until somebody kills this process: some of its own, some that others want, too."""
    dice = random.Random(number)

    async def work() -> None:
        agent = restless(Journalling(store_in(folder), folder / f"acknowledged-{number}"))
        for count in range(1_000_000):
            session = f"shared-{dice.randrange(6)}" if dice.random() < 0.4 else f"w{number}-{count // 3}"
            try:
                state = fold(session, await agent.store.read(session))
                if state.over:
                    await agent.run(str(dice.randint(1, 4)), session=session)
                else:
                    await agent.resume(session)
            except SessionError:
                note(folder / "conflicts", session)

    try:
        asyncio.run(work())
    except BaseException as error:
        note(folder / "errors", f"{type(error).__name__}: {error}")
    os._exit(1)


def soak(folder: Path, seconds: str) -> None:
    """Eight who work, and one who kills them at random and puts others in their places."""
    dice = random.Random(7)
    born = 0
    alive: list[int] = []
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        while len(alive) < 8:
            born += 1
            pid = os.fork()
            if not pid:
                labour(folder, born)
            alive.append(pid)
        time.sleep(dice.uniform(0.01, 0.2))
        end(alive.pop(dice.randrange(len(alive))))
    for pid in alive:
        end(pid)
    note(folder / "born", str(born))


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    {"die": die, "ponder": ponder, "stall": stall, "race": race, "soak": soak}[what](Path(folder), *rest)
