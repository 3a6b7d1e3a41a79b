"""Agents that kill their process: `python killers.py WHAT FOLDER` runs or resumes session "s" of one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass import (
    ActiveTimeLimit,
    Agent,
    Ask,
    ErrorLimit,
    ModelRequest,
    RetryLimit,
    StepEnding,
    StepStarting,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FakeClock, FunctionModel, calls, says

if __package__:
    from .children import lines, note, store_in
else:
    from children import lines, note, store_in


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def replies(*, name: str = "poison", then: str = "done") -> Callable[[ModelRequest], Any]:
    """A model that calls a tool once and then says something."""

    def reply(request: ModelRequest) -> Any:
        return (
            says(then)
            if request.messages[-1].role == "tool"
            else calls(name, task="t")
            if name == "kid"
            else calls(name)
        )

    return reply


def poison(folder: Path, effect: Any = "idempotent", ways: Callable[[], None] = kill) -> Any:
    """A tool that kills its process."""

    @tool(effect=effect)
    async def poison() -> str:
        """Kill the process."""
        note(folder / "runs", effect)
        ways()
        return "alive"

    return poison


LIMITS = [ActiveTimeLimit(1000), RetryLimit(2), ErrorLimit(2)]


def idempotent(folder: Path, store: SQLiteStore) -> Agent:
    return Agent(FunctionModel(replies()), tools=[poison(folder)], store=store, criteria=LIMITS)


def exits(folder: Path, store: SQLiteStore) -> Agent:
    return Agent(FunctionModel(replies()), tools=[poison(folder, ways=lambda: os._exit(1))], store=store)


def pure(folder: Path, store: SQLiteStore) -> Agent:
    return Agent(FunctionModel(replies()), tools=[poison(folder, "pure")], store=store)


def guarded(folder: Path, store: SQLiteStore) -> Agent:
    """Results are looked at by a hook."""
    agent = idempotent(folder, store)

    @agent.rewrite(ToolReturning)
    def look(event: ToolReturning) -> Any:
        note(folder / "looked", f"{event.call.name} {event.result.status}")

    return agent


def model(folder: Path, store: SQLiteStore) -> Agent:
    """The model call kills the process."""

    def reply(request: ModelRequest) -> Any:
        note(folder / "runs", "model")
        kill()

    return Agent(FunctionModel(reply), store=store)


def hooked(event: Any, verb: str = "inject") -> Callable[[Path, SQLiteStore], Agent]:
    """A hook kills the process, once the turn is in the log."""

    def make(folder: Path, store: SQLiteStore) -> Agent:
        agent = Agent(FunctionModel(replies(name="fine")), tools=[fine], store=store)

        def hook(event: Any) -> Any:
            note(folder / "runs", type(event).__name__)
            kill()

        getattr(agent, verb)(event, name="killer")(hook)
        return agent

    return make


@tool(effect="idempotent")
async def fine() -> str:
    """Do no harm."""
    return "fine"


def approved(folder: Path, store: SQLiteStore) -> Agent:
    agent = idempotent(folder, store)
    agent.gate(ToolCalling)(lambda event: Ask("Sure?"))
    return agent


def two(folder: Path, store: SQLiteStore) -> Agent:
    """Two calls side by side; one kills the process."""

    @tool(effect="idempotent")
    async def slow() -> str:
        """Wait for the end."""
        note(folder / "slow", "started")
        await asyncio.sleep(600)
        return "never"

    def reply(request: ModelRequest) -> Any:
        return says("done") if request.messages[-1].role == "tool" else calls([("slow", {}), ("poison", {})])

    return Agent(FunctionModel(reply), tools=[slow, poison(folder)], store=store)


def tree(folder: Path, store: SQLiteStore) -> Agent:
    """The tool of a sub-agent kills the process."""
    kid = Agent(FunctionModel(replies(then="the kid lives")), tools=[poison(folder)], name="kid")
    mid = Agent(FunctionModel(replies(name="kid", then="the middle lives")), tools=[kid.as_tool()], name="mid")

    def reply(request: ModelRequest) -> Any:
        return says("done") if request.messages[-1].role == "tool" else calls("mid", task="t")

    return Agent(FunctionModel(reply), tools=[mid.as_tool()], store=store)


def deadly_kid(folder: Path, store: SQLiteStore) -> Agent:
    """The model call of a sub-agent kills the process."""

    def reply(request: ModelRequest) -> Any:
        note(folder / "runs", "model")
        kill()

    kid = Agent(FunctionModel(reply), name="kid")
    return Agent(FunctionModel(replies(name="kid")), tools=[kid.as_tool()], store=store)


def unborn_kid(folder: Path, store: SQLiteStore) -> Agent:
    """A hook of a sub-agent kills the process before the log of the sub-agent has its turn."""
    kid = Agent(FunctionModel(lambda request: says("never")), name="kid")

    @kid.inject(TurnStarting)
    def killer(event: Any) -> Any:
        note(folder / "runs", "TurnStarting")
        kill()

    return Agent(FunctionModel(replies(name="kid")), tools=[kid.as_tool()], store=store)


def deadly_end(folder: Path, store: SQLiteStore) -> Agent:
    """A hook at the end of an agent two levels below kills the process. That agent waits for a person first."""
    kid = Agent(FunctionModel(replies()), tools=[poison(folder)], name="kid")
    kid.gate(ToolCalling)(lambda event: Ask("Sure?"))

    @kid.gate(TurnEnding)
    def killer(event: Any) -> Any:
        note(folder / "runs", "TurnEnding")
        kill()

    mid = Agent(FunctionModel(replies(name="kid")), tools=[kid.as_tool()], name="mid")

    def reply(request: ModelRequest) -> Any:
        return says("done") if request.messages[-1].role == "tool" else calls("mid", task="t")

    return Agent(FunctionModel(reply), tools=[mid.as_tool()], store=store)


def clock_of(folder: Path) -> FakeClock:
    """A clock that begins later in each process."""
    note(folder / "clocks", "")
    return FakeClock(start=10_000.0 * len(lines(folder / "clocks")))


def takes(clock: FakeClock, seconds: float, reply: Callable[[ModelRequest], Any]) -> FunctionModel:
    """A model that takes its time."""

    def slowly(request: ModelRequest) -> Any:
        clock.tick(seconds)
        return reply(request)

    return FunctionModel(slowly)


def limit(clock: FakeClock) -> list[Any]:
    """A limit that the first process does not have."""
    return [ActiveTimeLimit(4)] if clock.start > 10_000 else []


def timed(folder: Path, store: SQLiteStore) -> Agent:
    clock = clock_of(folder)
    model = takes(clock, 5.0, replies())
    return Agent(model, tools=[poison(folder)], store=store, clock=clock, criteria=limit(clock))


def timed_tree(folder: Path, store: SQLiteStore) -> Agent:
    clock = clock_of(folder)
    kid = Agent(takes(clock, 5.0, replies()), tools=[poison(folder)], name="kid")
    model = FunctionModel(replies(name="kid"))
    return Agent(model, tools=[kid.as_tool()], store=store, clock=clock, criteria=limit(clock))


def timed_approval(folder: Path, store: SQLiteStore) -> Agent:
    clock = clock_of(folder)
    model = takes(clock, 3.0, replies())
    agent = Agent(model, tools=[poison(folder)], store=store, clock=clock, criteria=limit(clock))
    agent.gate(ToolCalling)(lambda event: Ask("Sure?"))
    return agent


AGENTS: dict[str, Callable[[Path, SQLiteStore], Agent]] = {
    "idempotent": idempotent, "exits": exits, "pure": pure, "guarded": guarded, "model": model, "two": two,
    "approved": approved, "tree": tree, "deadly_kid": deadly_kid, "unborn_kid": unborn_kid,
    "deadly_end": deadly_end,
    "step_starting": hooked(StepStarting), "step_ending": hooked(StepEnding), "turn_ending": hooked(TurnEnding, "gate"),
    "tool_calling": hooked(ToolCalling, "gate"), "tool_returning": hooked(ToolReturning, "rewrite"),
    "timed": timed, "timed_tree": timed_tree, "timed_approval": timed_approval,
}  # fmt: skip


async def main(what: str, folder: Path) -> None:
    """One process: it begins the session or goes on with it, and says how that ended, if it lives."""
    store = store_in(folder)
    agent = AGENTS[what](folder, store)
    result = await (agent.resume("s") if await store.read("s") else agent.run("go", session="s"))
    note(folder / "end", repr(result.outcome))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
