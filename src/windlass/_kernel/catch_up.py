"""Facts that nobody has told yet: any process that has a durable observer tells it what others have left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from windlass._hooks.readers import Source
from windlass.approvals import CHILD
from windlass.errors import StoreError
from windlass.records import Delegated, Record, SessionOpened

from .child_program import program_of
from .delegation import Compiles
from .program import Program

Mask: TypeAlias = Callable[[Record], Record]


async def catch_up(program: Program, *, at_rest: bool = False) -> int:
    """Tell the durable observers of an agent all that is behind their cursors in its sessions: how many facts.

    `at_rest` leaves out sessions in which a turn is under way: another process may be at work there.
    """
    owners = _Owners(program)
    told = await asyncio.gather(
        *[_catch_up(name, owners, at_rest) for name in _observers(program)], return_exceptions=True
    )
    for result in told:
        if isinstance(result, BaseException):
            raise result
    return sum([result for result in told if isinstance(result, int)])


async def _catch_up(name: str, owners: _Owners, at_rest: bool) -> int:
    """One observer in all sessions. A session whose log cannot be read does not keep it from the others."""
    program, count = owners.root, 0
    failure: StoreError | None = None
    for info in await program.store.behind(name):
        if at_rest and info.status == "running":
            continue
        try:
            source = await owners.source(info.session, info.agent)
            hook = next((hook for hook in source.hooks.durable if hook.name == name), None) if source else None
            if source is not None and hook is not None:
                count += await program.observers.readers.reader_of(hook, info.session, source).read()
        except StoreError as error:
            failure = error
    if failure is not None:
        raise failure
    return count


def _observers(program: Program) -> list[str]:
    """The names of the durable observers of an agent and of those below it, by which stores keep cursors."""
    names: dict[str, None] = {}
    seen: set[Compiles] = set()

    def walk(program: Program) -> None:
        names.update(dict.fromkeys([hook.name for hook in program.hooks.durable]))
        for delegate in program.delegates.values():
            if program.max_depth >= 1 and delegate.compiled not in seen:
                seen.add(delegate.compiled)
                walk(program_of(program, delegate))

    walk(program)
    return list(names)


class _Owners:
    """Which of an agent and those below it the sessions of its store belong to."""

    def __init__(self, root: Program) -> None:
        self.root = root
        self._logs: dict[str, tuple[str, dict[str, Delegated]]] = {}

    async def source(self, session: str, agent: str) -> Source | None:
        """How the log of a session is read, to which this agent gave its name; None if it is another agent's."""
        owner = await self._owner(session, agent)
        return None if owner is None else Source(owner[0].store, owner[0].clock, owner[0].hooks, owner[1])

    async def _owner(self, session: str, agent: str) -> tuple[Program, Mask | None] | None:
        if (named := CHILD.fullmatch(session)) is not None:
            name, started = await self._log(named[1])
            if session in started:
                above = await self._owner(named[1], name)
                return None if above is None else _below(*above, started[session])
        return (self.root, self.root.mask) if agent in ("", self.root.name) else None

    async def _log(self, session: str) -> tuple[str, dict[str, Delegated]]:
        """The agent that a session says it is of, and the agents that were given tasks there, by their sessions."""
        if session not in self._logs:
            records = await self.root.store.read(session)
            agent = next((record.agent for record in records if isinstance(record, SessionOpened)), "")
            started = {record.session: record for record in records if isinstance(record, Delegated)}
            self._logs[session] = (agent, started)
        return self._logs[session]


def _below(program: Program, mask: Mask | None, started: Delegated) -> tuple[Program, Mask | None] | None:
    """An agent that was given a task, and what takes out its own secrets and those of all above it."""
    delegate = next((delegate for delegate in program.delegates.values() if delegate.agent == started.agent), None)
    if delegate is None:
        return None
    child = program_of(program, delegate, started.tools)
    own = child.mask
    if own is None or mask is None:
        return child, own or mask
    return child, lambda record: mask(own(record))
