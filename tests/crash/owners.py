"""What the tests of ownership run in processes of their own: `python owners.py FOLDER ADDRESS TASK`, a task as JSON."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from windlass import Agent, Approve, Ask, ModelRequest, ToolCalling, tool
from windlass.errors import SessionError
from windlass.protocols import Store
from windlass.records import Record
from windlass.stores import open_store
from windlass.testing import FunctionModel, calls, says

if __package__:
    from .children import lines, note
else:
    from children import lines, note

HELD = 60.0
"""After this many seconds something that is held goes on by itself, so that no process stays."""


async def until(happened: Callable[[], Any]) -> None:
    """Wait until something has happened, but not for ever."""
    end = time.monotonic() + HELD
    while not happened() and time.monotonic() < end:  # noqa: ASYNC110 - there is no other way to wait for it
        await asyncio.sleep(0.002)


class Office:
    """The place where the processes of a test meet: files in a folder, and a store.

    A process goes by a name. What is listed in `holds` waits for a file before it returns: `let` makes it.
    """

    def __init__(self, folder: Path, address: str, who: str = "test", holds: Sequence[str] = ()) -> None:
        self.folder = folder
        self.address = address
        self.who = who
        self.holds = holds

    def store(self) -> Store:
        return open_store(self.address)

    # ------------------------------------------------------------ what is done

    async def work(self, name: str, key: str = "") -> str:
        """The effect of a tool, noted before it is held."""
        note(self.folder / "effects", " ".join(filter(None, [self.who, name, key])))
        await self.hold(name)
        return f"{name} done"

    async def hold(self, name: str) -> None:
        if name in self.holds:
            note(self.folder / "held", f"{self.who} {name}")
            await until((self.folder / f"go-{self.who}-{name}").exists)

    def let(self, who: str, name: str) -> None:
        (self.folder / f"go-{who}-{name}").touch()

    @property
    def effects(self) -> list[str]:
        return lines(self.folder / "effects")

    @property
    def held(self) -> list[str]:
        return lines(self.folder / "held")

    def end(self, who: str) -> dict[str, Any]:
        """How a process ended: its outcome and text, or its error."""
        [end] = lines(self.folder / f"end-{who}")
        found: dict[str, Any] = json.loads(end)
        return found

    # ------------------------------------------------------------ agents

    def clerk(self, store: Any, **options: Any) -> Agent:
        """Calls the tool that the last user message names, then repeats all that users said."""

        @tool
        async def send() -> str:
            """Send something off."""
            return await self.work("send")

        @tool(effect="idempotent")
        async def pay(idempotency_key: str) -> str:
            """Pay, once per key."""
            return await self.work("pay", idempotency_key)

        @tool
        async def sign() -> str:
            """Sign, if a person agrees."""
            return await self.work("sign")

        async def reply(request: ModelRequest) -> Any:
            await self.hold("model")
            last = request.messages[-1]
            if last.role == "user" and last.text in ("send", "pay", "sign"):
                return calls(last.text)
            users = [message.text for message in request.messages if message.role == "user"]
            return says(" ".join(users))

        agent = Agent(FunctionModel(reply), tools=[send, pay, sign], store=store, name="clerk", **options)
        agent.gate(ToolCalling, tool="sign", name="sure")(_ask)
        return agent

    def boss(self, store: Any, **options: Any) -> Agent:
        """An agent with one below it that has one below it: the lowest pays, if a person agrees, and files."""

        @tool
        async def pay(number: int) -> str:
            """Pay."""
            return await self.work("pay", str(number))

        @tool
        async def file(number: int) -> str:
            """File the receipt."""
            return await self.work("file", str(number))

        def leafs(request: ModelRequest) -> Any:
            results = sum(message.role == "tool" for message in request.messages)
            task = next(message.text for message in request.messages if message.role == "user")
            number = int("".join(filter(str.isdigit, task)))
            return says("paid") if results == 2 else calls(("pay", "file")[results], number=number)

        def passes_on(name: str) -> Any:
            async def reply(request: ModelRequest) -> Any:
                last = request.messages[-1]
                if last.role == "user":
                    return calls(name, task=last.text)
                await self.hold(f"after-{name}")
                return says(last.parts[0].content[0].text)

            return reply

        leaf = Agent(FunctionModel(leafs), tools=[pay, file], name="leaf")
        leaf.gate(ToolCalling, tool="pay", name="sure")(_ask)
        middle = Agent(FunctionModel(passes_on("leaf")), tools=[leaf.as_tool(description="Pays.")], name="middle")
        return Agent(
            FunctionModel(passes_on("middle")),
            tools=[middle.as_tool(description="Delegates.")],
            store=store,
            name="boss",
            **options,
        )


def _ask(event: ToolCalling) -> Any:
    return Ask("sure?")


async def approvals(agent: Agent, session: str) -> dict[str, Any]:
    """An approval of everything that a session asks."""
    return {asked.id: Approve() for asked in (await agent.state(session)).waiting}


async def act(office: Office, task: dict[str, Any]) -> dict[str, Any]:
    """Do what a task says with an agent, and return how it ended."""
    store = office.store()
    if "meet" in task:
        store = _Meeting(office, store, task["meet"])  # type: ignore[assignment]
    make = office.boss if task.get("tree") else office.clerk
    agent = make(store, busy=task.get("busy", "refuse"))
    given: dict[str, Any] = {"takeover": True} if task.get("takeover") else {}
    session, message, verb = task.get("session", "s"), task.get("message"), task["verb"]
    try:
        if task.get("approve"):
            given["answers"] = await approvals(agent, session)
        if task.get("shown"):  # what others wait for before they act
            note(office.folder / "shown", office.who)
            await office.hold("start")
        if verb in ("run", "resume"):
            result = await (agent.run(message, session=session, **given) if message else agent.resume(session, **given))
            return {"outcome": type(result.outcome).__name__, "text": result.state.text}
        if verb == "stream":
            async with agent.stream(message, session=session, **given) as stream:
                async for _ in stream:
                    pass
            return {"outcome": type(stream.result.outcome).__name__, "text": stream.result.state.text}
        if verb == "iterate":
            async with aclosing(agent.iterate(message, session=session, **given)) as states:
                state = [state async for state in states][-1]
            return {"outcome": type(state.outcome).__name__, "text": state.text}
        assert verb == "cancel"
        return {"cancelled": await agent.cancel(session, "enough")}
    except SessionError as error:
        return {"error": type(error).__name__, "text": str(error)}
    finally:
        await store.close()


class _Meeting:
    """A store whose first append waits until as many processes as are to meet are about to append, too."""

    def __init__(self, office: Office, store: Store, count: int) -> None:
        self._office, self._store, self._count, self._met = office, store, count, False

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        if not self._met:
            self._met = True
            note(self._office.folder / "met", self._office.who)
            await until(lambda: len(lines(self._office.folder / "met")) >= self._count)
        return await self._store.append(session, records, expected, claim)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def fork(office: Office, task: dict[str, Any]) -> dict[str, Any]:
    """Begin a turn, start a process from inside that outlives this one, and wait to be killed."""
    store = office.store()
    agent = office.clerk(store)
    turn = asyncio.create_task(agent.run("send", session="s"))
    await until(lambda: office.held)
    if task["how"] == "fork":
        pid = os.fork()
        if not pid:
            try:
                _outlive(office)
            finally:
                os._exit(0)
    elif task["how"] == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=_outlive, args=(office,))
        process.start()
        pid = process.pid or 0
    else:
        command = [sys.executable, "-c", f"import time; time.sleep({HELD})"]
        pid = subprocess.Popen(command, close_fds=False).pid  # noqa: ASYNC220 - nothing else runs here
    note(office.folder / "heir", str(pid))
    await turn
    return {}


def _outlive(office: Office) -> None:
    """In a forked process: note who owns what this process does, and stay until it is killed."""
    os.setsid()

    async def own() -> None:
        store = office.store()
        heir = Office(office.folder, office.address, "heir")
        await heir.clerk(store).run("send", session="of the heir")
        held = Office(office.folder, office.address, "heir", ["pay"]).clerk(store)
        holding = asyncio.create_task(held.run("pay", session="held by the heir"))
        await until(lambda: "heir pay" in heir.held)
        note(office.folder / "heirs", str(os.getpid()))
        await asyncio.wait([holding])

    asyncio.run(own())


def main() -> None:
    folder, address, task = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    office = Office(folder, address, task["who"], task.get("holds", ()))
    end = asyncio.run((fork if task["verb"] == "fork" else act)(office, task))
    note(folder / f"end-{task['who']}", json.dumps(end))


if __name__ == "__main__":
    main()
