"""Replays the sessions of a store, one after the other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from windlass._kernel.program import Program
from windlass._kernel.scopes import check_scope
from windlass.agent import Agent
from windlass.context.replay import Description, described, pipelines
from windlass.errors import ConfigError, SessionUnknown, StoreError, WindlassError
from windlass.protocols import Store
from windlass.records import Record, SessionOpened, parent_of
from windlass.storage import Place, placed
from windlass.stores import MemoryStore, open_store

from .findings import SessionReplay
from .plans import Plan, gates_of, is_asked_again
from .walk import Walk

ScopeFactory: TypeAlias = Callable[[str], Any | Awaitable[Any]]

AHEAD = 4
"""How many logs are read ahead."""

SLICE = 64
"""After so many sessions, other tasks on the event loop run."""


class Replay:
    """An agent, ready to judge recorded sessions of a store.

    `scope` is a function that takes the id of a session and returns the scope of its turns, or an awaitable of it. With
    `replacing`, the agent's gates on tool calls take the place of the recorded gates of these names, and all other
    recorded verdicts stand: that is how a policy is tried alone. Hooks of the agent that `without` names are switched
    off; shadow gates that `counting` names count.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        store: Store,
        *,
        scope: ScopeFactory | None = None,
        replacing: Iterable[str] | None = None,
        without: Iterable[str] = (),
        counting: Iterable[str] = (),
    ) -> None:
        program = agent._compile()  # pyright: ignore[reportPrivateUsage]
        off, on = frozenset(without), frozenset(counting)
        _check_names(program, off, on)
        self.store = store
        self._program = program
        self._scope = scope
        only = None if replacing is None else frozenset(replacing)
        self._plan = Plan(program, only, without=off, counting=on)
        self._place = Place(MemoryStore(), self._plan.clock, program.mask, program.conceals)
        self._known: dict[str, Description] = {}
        self._plans: dict[str, Plan] = {}
        self._written: dict[frozenset[str], frozenset[tuple[str, str]]] = {}
        self._not_evaluated: dict[tuple[int, frozenset[str]], tuple[str, ...]] = {}

    async def session(self, session: str) -> SessionReplay:
        """Replay one session. A log that cannot be read is a result, too: its `error` says why."""
        try:
            records = await self.store.read(session)
        except StoreError as error:
            return SessionReplay(session, error=str(error))
        if not records:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        return await self.log(session, records)

    async def log(self, session: str, records: Sequence[Record]) -> SessionReplay:
        """Replay the log of a session."""
        try:
            plan = await self._plan_of(session, records)
            digests = frozenset(pipelines(records))
            known = await self._described(digests)
            scope = await self._scope_of(session)
            walk = Walk(
                plan, session, records, scope, self.store.read, known, self._written_again(plan, digests, known)
            )
            with placed(self._program.home, self._place):
                found = await self._walked(walk)
        except WindlassError as error:
            if isinstance(error, ConfigError):
                raise
            return SessionReplay(session, error=str(error))
        missing = self._not_run(plan, digests, known)
        return found.replace(not_evaluated=missing) if missing else found

    async def _walked(self, walk: Walk) -> SessionReplay:
        """What comes of a session. A log that no agent could have written ends its own replay, and so does a hook that
        ends the process."""
        try:
            return await walk.run()
        except WindlassError:
            raise
        except (Exception, SystemExit) as error:
            where = f"at record {walk.judge.number}: {type(error).__name__}: {error}"
            raise StoreError(f"the replay broke off {where}") from error

    async def sessions(self, sessions: Iterable[str] | None = None) -> AsyncIterator[SessionReplay]:
        """Replay sessions, by default all of the store. The next logs are read meanwhile."""
        names = iter(await self.store.sessions() if sessions is None else list(sessions))
        reading: list[tuple[str, asyncio.Task[Sequence[Record]]]] = []
        done = 0
        try:
            while True:
                while len(reading) < AHEAD and (name := next(names, None)) is not None:
                    reading.append((name, asyncio.ensure_future(self._read(name))))
                if not reading:
                    return
                name, task = reading.pop(0)
                try:
                    records = await task
                except StoreError as error:
                    yield SessionReplay(name, error=str(error))
                    continue
                yield await self.log(name, records)
                done += 1
                if not done % SLICE:
                    await asyncio.sleep(0)
        finally:
            for _, task in reading:
                task.cancel()
            await asyncio.gather(*[task for _, task in reading], return_exceptions=True)

    async def _read(self, session: str) -> Sequence[Record]:
        records = await self.store.read(session)
        if not records:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        return records

    # ------------------------------------------------------------ what a session needs

    async def _scope_of(self, session: str) -> Any:
        scope = None if self._scope is None else self._scope(session)
        scope = await scope if inspect.isawaitable(scope) else scope
        check_scope(self._program, scope)
        return scope

    async def _plan_of(self, session: str, records: Sequence[Record]) -> Plan:
        """The plan of a session's agent: for that of a sub-agent, with what it inherits."""
        parent = parent_of(records)
        if not parent:
            return self._plan
        plan = self._plans.get(session)
        if plan is None:
            above = await self._plan_of(parent, await self.store.read(parent))
            agent = next((record.agent for record in records if isinstance(record, SessionOpened)), "")
            plan = self._plans[session] = above.below(agent)
        return plan

    async def _described(self, digests: frozenset[str]) -> Mapping[str, Description]:
        """What the store knows of the agents that wrote a log."""
        for digest in digests:
            if digest not in self._known:
                self._known[digest] = described(await self.store.pipeline(digest))
        return self._known

    def _written_again(
        self, plan: Plan, digests: frozenset[str], known: Mapping[str, Description]
    ) -> frozenset[tuple[str, str]]:
        """The hooks whose recorded writes do not count, since they are asked again or are gone."""
        if plan.only is not None:
            return frozenset()
        written = self._written.get(digests)
        if written is None:
            written = self._written[digests] = gates_of([known[digest] for digest in digests])
        return written | plan.writers

    def _not_run(self, plan: Plan, digests: frozenset[str], known: Mapping[str, Description]) -> tuple[str, ...]:
        key = (id(plan), digests)
        if key not in self._not_evaluated:
            self._not_evaluated[key] = plan.not_evaluated([known[digest] for digest in digests])
        return self._not_evaluated[key]


def _check_names(program: Program, off: frozenset[str], on: frozenset[str]) -> None:
    """Raise if a hook to switch is not one that a replay asks."""
    known = {hook.name: hook for hook in program.hooks.all if is_asked_again(hook, (hook.name,))}
    shadows = {name for name, hook in known.items() if hook.shadow}
    for option, wrong, right in (("without", off - set(known), set(known)), ("counting", on - shadows, shadows)):
        if wrong:
            names = ", ".join(sorted(right)) or "none"
            raise ConfigError(f"Replay({option}=…): {min(wrong)!r} is not a hook that can be switched; known: {names}")


async def replay(
    agent: Agent[Any, Any],
    store: str | Store,
    *sessions: str,
    scope: ScopeFactory | None = None,
    replacing: Iterable[str] | None = None,
) -> list[SessionReplay]:
    """Ask an agent's hooks again what they were asked in recorded sessions, by default in all of a store.

    Gates, rewrites of tool calls and criteria run; models, tools and people do not: the log has what they said. See
    `Replay` for `scope` and `replacing`.
    """
    opened = open_store(store)
    try:
        judge = Replay(agent, opened, scope=scope, replacing=replacing)
        return [one async for one in judge.sessions(sessions or None)]
    finally:
        if opened is not store:
            await opened.close()
