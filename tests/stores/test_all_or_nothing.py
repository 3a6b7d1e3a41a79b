"""A process that is killed while it imports or forks leaves whole sessions or none, and another try succeeds."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Ask, ToolCalling, tool
from windlass.messages import TextPart, user
from windlass.outcomes import Completed
from windlass.protocols import Store
from windlass.records import Injected, Record, SessionOpened, SlotSet, TurnEnded, TurnStarted
from windlass.stores import MemoryStore, open_store
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FunctionModel, calls, says
from windlass.transfer import export_session, fork_session

SIEGE = bool(os.environ.get("WINDLASS_SIEGE"))
ROUNDS = 40 if SIEGE else 5
SEED = int(os.environ.get("WINDLASS_SEED", "14"))

needs_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform has no SIGKILL")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/there.db" if request.param == "sqlite" else request.getfixturevalue("database")


def log_of(turns: int) -> list[list[Record]]:
    """The batches of a long session."""
    batches: list[list[Record]] = [[SessionOpened(agent="a", at=1.0)]]
    for turn in range(turns):
        batches.append([TurnStarted(turn=turn + 1, message=user("t"), ref=f"t{turn}", at=1.0)])
        batches.append([Injected(parts=(TextPart("It rains."),), hook="h"), SlotSet(slot="n", value=turn)])
        batches.append([TurnEnded(outcome=Completed(), at=1.0)])
    return batches


def killed(script: str, *given: str, after: float) -> None:
    """Run a script, and kill it some seconds after it has said that it is ready."""
    child = subprocess.Popen([sys.executable, "-c", script, *given], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    time.sleep(after)
    child.kill()
    child.wait()
    child.stdout.close()


IMPORT = """
import asyncio, sys
from windlass.stores import open_store
from windlass.transfer import import_session

async def main(address, file):
    store = open_store(address)
    await store.sessions()
    lines = open(file).read().split("\\n")
    print("ready", flush=True)
    for number in range(1000):
        await import_session(store, lines, f"s{number}" if number else None)

asyncio.run(main(*sys.argv[1:]))
"""


@needs_kill
def test_an_import_that_is_killed_leaves_nothing_or_everything(address, tmp_path):
    async def export() -> int:
        store, length = SQLiteStore(tmp_path / "here.db", synchronous="NORMAL"), 0
        for batch in log_of(60):
            await store.append("s", batch, length)
            length += len(batch)
        (tmp_path / "lines").write_text("\n".join(await export_session(store, "s")))
        await store.close()
        return length

    length = asyncio.run(export())
    dice = random.Random(SEED)
    for _ in range(ROUNDS):
        killed(IMPORT, address, str(tmp_path / "lines"), after=dice.uniform(0.0, 0.25))

        async def check() -> None:
            store = open_store(address)
            assert await store.verify_store() == []
            for name in await store.sessions():
                assert (await store.verify(name)).records == length
                await store.erase(name)
            await store.close()

        asyncio.run(check())
        (tmp_path / "there.db").unlink(missing_ok=True)
        if address.startswith("postgres"):
            _forget(address)


def _forget(address: str) -> None:
    import psycopg

    with psycopg.connect(address) as db:
        db.execute("DROP SCHEMA windlass CASCADE")


FORK = """
import asyncio, sys
from windlass.stores import open_store
from windlass.transfer import fork_session

async def main(address, stem):
    store = open_store(address)
    await store.sessions()
    print("ready", flush=True)
    for number in range(10000):
        await fork_session(store, "top", f"{stem}-{number}", None, 0.0)

asyncio.run(main(*sys.argv[1:]))
"""


def boss(store: Store) -> Agent[Any, Any]:
    """An agent whose sub-agents' sub-agent asks."""

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    def reply(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return says("done")
        return {"go": calls("clerk", task="down"), "down": calls("till", task="pay")}.get(
            request.messages[0].text, calls("pay")
        )

    till = Agent(FunctionModel(reply), tools=[pay], name="till")
    till.gate(ToolCalling)(lambda event: Ask("Pay?"))
    clerk = Agent(FunctionModel(reply), tools=[till.as_tool()], name="clerk")
    return Agent(FunctionModel(reply), tools=[clerk.as_tool()], store=store)


@needs_kill
def test_a_fork_that_is_killed_leaves_nothing_or_a_whole_tree(address):
    async def begin() -> int:
        store = open_store(address)
        assert (await boss(store).run("go", session="top")).waiting_for
        names = await store.sessions()
        await store.close()
        return len(names)

    async def check(stem: str) -> int:
        store = open_store(address)
        names = await store.sessions()
        copies = {name.split("/")[0] for name in names} - {"top"}
        for copy in copies:
            assert len([name for name in names if name.split("/")[0] == copy]) == size
        for name in names:
            await store.verify(name)
        assert await store.verify_store() == []
        again = next(f"{stem}-{number}" for number in range(10000) if f"{stem}-{number}" not in copies)
        await fork_session(store, "top", again, None, 0.0)
        for copy in {*copies, again}:
            await store.erase(copy)
        await store.close()
        return len(copies)

    size = asyncio.run(begin())
    assert size == 3
    dice = random.Random(SEED)
    done = 0
    for number in range(ROUNDS):
        killed(FORK, address, f"copy{number}", after=dice.uniform(0.0, 0.2))
        done += asyncio.run(check(f"copy{number}"))
    assert done


async def test_of_a_fork_of_which_one_id_is_taken_nothing_is_stored():
    """The ids are checked first; this is about one that is taken in between."""

    class Racing(MemoryStore):
        async def create(self, logs: Any) -> None:
            await self.append(logs[0].session, [SessionOpened()], 0)
            await super().create(logs)

    store = Racing()
    assert (await boss(store).run("go", session="top")).waiting_for
    before = set(await store.sessions())
    with pytest.raises(Exception, match="already exists"):
        await fork_session(store, "top", "copy", None, 0.0)
    assert len(set(await store.sessions()) - before) == 1
