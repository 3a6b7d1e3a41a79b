"""Catching up: a process delivers the facts that other processes left to durable observers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from windlass._hooks.conceals import cleaner
from windlass._hooks.readers import Source
from windlass.errors import StoreError
from windlass.logs import SessionInfo
from windlass.records import Delegated, Record, SessionOpened, parent_of

from .child_program import program_of
from .delegation import Compiles
from .program import Program

Mask: TypeAlias = Callable[[Record], Record]


async def catch_up(program: Program, *, at_rest: bool = False) -> int:
    """Deliver all facts after the cursors of an agent's durable observers, and count them.

    `at_rest` skips sessions with a turn under way: another process may be running it.
    """
    owners = _Owners(program)
    deliveries = [_catch_up(name, owners, at_rest) for name in _observer_names(program)]
    counts = await asyncio.gather(*deliveries, return_exceptions=True)
    for count in counts:
        if isinstance(count, BaseException):
            raise count
    return sum([count for count in counts if isinstance(count, int)])


async def _catch_up(name: str, owners: _Owners, at_rest: bool) -> int:
    """Deliver to one observer in all sessions, also if the log of one session cannot be read."""
    program, count = owners.root, 0
    failure: StoreError | None = None
    for info in await program.store.behind(name):
        if at_rest and info.status == "running":
            continue
        try:
            source = await owners.source(info)
            durable = () if source is None else source.hooks.durable
            hook = next((hook for hook in durable if hook.name == name), None)
            if source is not None and hook is not None:
                reader = program.observers.readers.reader_of(hook, info.session, source)
                count += await reader.read()
        except StoreError as error:
            failure = error
    if failure is not None:
        raise failure
    return count


def _observer_names(program: Program) -> list[str]:
    """The names of the durable observers of an agent and its sub-agents. Cursors go by name."""
    names: dict[str, None] = {}
    seen: set[Compiles] = set()

    def walk(program: Program) -> None:
        names.update(dict.fromkeys([hook.name for hook in program.hooks.durable]))
        for delegate in program.below:
            if program.max_depth >= 1 and delegate.compiled not in seen:
                seen.add(delegate.compiled)
                walk(program_of(program, delegate))

    walk(program)
    return list(names)


class _Log(NamedTuple):
    """The agent that a session names as its own, its parent, and its delegations by child session."""

    agent: str
    parent: str
    started: dict[str, Delegated]


class _Owners:
    """Finds the agent, or the sub-agent, that a session of the store belongs to."""

    def __init__(self, root: Program) -> None:
        self.root = root
        self._logs: dict[str, _Log] = {}

    async def source(self, info: SessionInfo) -> Source | None:
        """The source of a session's log; None if the session belongs to another agent."""
        owner = await self._owner(info.session, info.agent, info.parent)
        if owner is None:
            return None
        program, mask = owner
        clean = cleaner(program.conceals, mask)
        return Source(program.store, program.clock, program.hooks, clean)

    async def _owner(
        self, session: str, agent: str, parent: str
    ) -> tuple[Program, Mask | None] | None:
        if parent:
            log = await self._log(parent)
            if session in log.started:
                above = await self._owner(parent, log.agent, log.parent)
                return None if above is None else _child_owner(*above, log.started[session])
        return (self.root, self.root.mask) if agent in ("", self.root.name) else None

    async def _log(self, session: str) -> _Log:
        if session not in self._logs:
            records = await self.root.store.read(session)
            opened = [record for record in records if isinstance(record, SessionOpened)]
            started = {
                record.session: record for record in records if isinstance(record, Delegated)
            }
            agent = opened[0].agent if opened else ""
            self._logs[session] = _Log(agent, parent_of(records), started)
        return self._logs[session]


def _child_owner(
    program: Program, mask: Mask | None, started: Delegated
) -> tuple[Program, Mask | None] | None:
    """A sub-agent, and a mask for its secrets and those of its parents."""
    if (delegate := program.subagents.get(started.agent)) is None:
        return None
    child = program_of(program, delegate, started.tools)
    own = child.mask
    if own is None or mask is None:
        return child, own or mask
    return child, lambda record: mask(own(record))
