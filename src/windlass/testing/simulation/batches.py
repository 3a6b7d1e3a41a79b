"""Runs simulated sessions: several share an event loop, and what is left of them is cleared away."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from msgspec import Struct

from windlass._hooks import dispatch, observers, runs, shared
from windlass._threads import use_threads
from windlass.agent import Agent
from windlass.protocols import Store
from windlass.randomness import use_randomness
from windlass.records import encode

from .choices import SimulatedCase
from .faults import Faults
from .grammar import Grammar
from .invariants import Invariant, Watcher
from .lives import LIFE, Life
from .loops import SimulatedLoop
from .plays import Play
from .refusals import check_refused, refusing
from .threads import SimulatedThreads
from .variables import Variables
from .worlds import Stage, Violation

COLLECT = 16
"""Of sessions that run alone, one in so many is followed by a collection of garbage."""

_CLOSES = 50
"""How often the coroutines of a dead process are told to end."""


class Setting(Struct, frozen=True, eq=False):
    """All that the sessions of one simulation have in common."""

    build: Callable[[Stage], Agent[Any, Any]]
    grammar: Grammar
    faults: Faults
    invariants: Sequence[Invariant]
    store: Callable[[], Store]
    scope: Callable[[], Any]
    patience: float
    variables: Variables


class Played(Struct, frozen=True, eq=False):
    """A session that was played: what went wrong, the choices that it was made of, its log, which
    tools ran, and what code of the agent raised."""

    seed: int
    violations: tuple[Violation, ...]
    choices: dict[str, Any]
    logs: dict[str, list[Any]]
    steps: int
    records: int
    crashes: int
    tools: dict[str, bool]
    raised: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The log as text, line by line, to compare it with that of another run."""
        return [f"{name}: {encode(record).decode()}" for name, log in self.logs.items() for record in log]


def play(setting: Setting, cases: Sequence[SimulatedCase], *, verify: bool = False) -> list[Played]:
    """Play sessions beside each other, in one event loop; or one by one, if they share variables of a module."""
    variables = setting.variables
    if not variables.alone:
        played = _play(setting, cases, verify=verify)
        if not variables.changed():
            return played
        variables.alone = True
    try:
        return [_play(setting, [case], verify=verify)[0] for case in cases]
    finally:
        variables.reset()


def _play(setting: Setting, cases: Sequence[SimulatedCase], *, verify: bool) -> list[Played]:
    if setting.variables.alone:
        setting.variables.reset()
    batch = _Batch(setting, cases)
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)  # a test may be async: it waits for the whole simulation
    try:
        return batch.play(verify=verify)
    finally:
        asyncio._set_running_loop(running)
        del batch
        if len(cases) > 1 or cases[0].seed % COLLECT == 0:
            gc.collect()


@contextmanager
def simulating() -> Generator[None, None, None]:
    """Within a block nothing of this thread is real: no thread, no socket, no sleep, no random id."""
    logger = logging.getLogger("windlass")
    disabled = logger.disabled
    logger.disabled = True
    collects = gc.isenabled()
    gc.disable()  # it would look at every object of the process again and again
    gc.freeze()
    try:
        with (
            refusing(),
            use_threads(SimulatedThreads()),
            use_randomness(_Randomness()),
            shared.use_objects(_shared_objects),
            _watchdog_off(),
        ):
            yield
    finally:
        logger.disabled = disabled
        gc.unfreeze()
        if collects:
            gc.enable()


class _Batch:
    def __init__(self, setting: Setting, cases: Sequence[SimulatedCase]) -> None:
        self._setting = setting
        self._loop = SimulatedLoop(self._stalled, _spins)
        self.worlds = [Stage(case, setting.faults, setting.grammar, setting.store(), self._loop) for case in cases]

    def play(self, *, verify: bool) -> list[Played]:
        loop, setting = self._loop, self._setting
        loop.set_exception_handler(lambda loop, context: None)
        plays = []
        for world in self.worlds:
            world.watcher = Watcher(world, setting.invariants)
            plays.append(Play(world, loop, setting.build, setting.scope(), setting.patience, setting.variables))

        async def all_of_them() -> None:
            LIFE.set(None)  # what drives the sessions belongs to none of their processes
            await asyncio.gather(*[each.run(verify=verify) for each in plays])

        try:
            loop.run_until_complete(all_of_them())
            check_refused()
            return [_played(world) for world in self.worlds]
        finally:
            self._clear()

    def _stalled(self) -> bool:
        """Nothing can run: whoever is still at work hangs."""
        waiting = [world.life.end for world in self.worlds if world.life is not None]
        hanging = [end for end in waiting if end is not None and not end.done()]
        for end in hanging:
            end.set_result("stalled")
        return bool(hanging)

    def _clear(self) -> None:
        """End what is left: the tasks of living processes by a cancel, those of dead ones without their loop."""
        loop = self._loop
        lives = [life for world in self.worlds for life in world.lives]
        for life in lives:
            if not life.dead:
                for task in life.tasks:
                    if not task.done():
                        task.cancel()
        try:
            left = [task for life in lives if not life.dead for task in life.tasks if not task.done()]
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=60))
        except RuntimeError:
            pass  # what does not end by a cancel is cleared like the dead
        asyncio._set_running_loop(loop)  # tasks that the dead start on their way out belong to this loop, and never run
        try:
            loop.abandon(lives)
            for life in lives:
                _bury(life)
        finally:
            asyncio._set_running_loop(None)
            loop.close()


def _bury(life: Life) -> None:
    """End the coroutines of a dead process. What they do meanwhile has no effect: all edges refuse."""
    for task in life.tasks:  # it may grow meanwhile
        if task.done():
            continue
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine: Any = task.get_coro()
        for _ in range(_CLOSES):
            try:
                life.context.run(coroutine.close)
                break
            except BaseException:  # it awaits something on its way out
                continue
    life.tasks.clear()


def _played(world: Stage) -> Played:
    assert world.watcher is not None
    logs = world.watcher.logs
    return Played(
        world.seed,
        tuple(world.violations),
        world.made,
        logs,
        sum([watcher_fold.steps for watcher_fold in [world.watcher.fold_of(name) for name in logs]]),
        sum([len(log) for log in logs.values()]),
        world.crashes,
        world.watcher.tools_run(),
        tuple(world.raised),
    )


def _shared_objects() -> dict[Any, Any]:
    """What the agents of one simulated process share."""
    life = LIFE.get()
    return {} if life is None else life.shared


def _spins(life: Life) -> None:
    """A process runs on and on without waiting for anything."""
    if life.end is not None and not life.end.done():
        life.end.set_result("spins")


class _Randomness:
    """The chance of the session that runs: ids and jitter."""

    def randbytes(self, n: int, /) -> bytes:
        return _generator().randbytes(n)

    def random(self) -> float:
        return _generator().random()


def _generator() -> Random:
    life = LIFE.get()
    generator: Random = Random(0) if life is None else life.world.id_random
    return generator


@contextmanager
def _watchdog_off() -> Generator[None, None, None]:
    """Nothing is said of hooks that take long in real time."""
    modules: list[tuple[Any, str]] = [(dispatch, "BLOCKED_AFTER"), (observers, "BLOCKED_AFTER"), (runs, "INTERVAL")]
    before = [getattr(module, name) for module, name in modules]
    for module, name in modules:
        setattr(module, name, math.inf)
    try:
        yield
    finally:
        for (module, name), value in zip(modules, before, strict=True):
            setattr(module, name, value)
