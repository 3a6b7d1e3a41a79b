"""The world of one simulated session: what outlives its processes, and what has gone wrong in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass.errors import ConfigError
from windlass.protocols import Store

from .choices import Choices, SeededRandom, SimulatedCase
from .faults import Chances, Faults, some_of
from .grammar import ERRORS, Grammar, Speaker
from .lives import LIFE, Life
from .loops import SimulatedLoop

if TYPE_CHECKING:
    from .invariants import Watcher

EPOCH = 1_767_225_600.0
"""When every simulation begins: 1 January 2026."""

SESSION = "simulated"

_NOT_ITS_OWN = {"ToolError", "NotDone", "TimeoutError", "NotSimulated", *[kind.__name__ for kind in ERRORS.values()]}
"""Errors that tools mean for the model, and those that may come of what is simulated."""


class Violation(Struct, frozen=True):
    """What went wrong. `check` is what noticed it, `record` how many records the session had by then."""

    check: str
    text: str
    record: int = 0

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


class Invocation(Struct, eq=False):
    """A call of a tool's function that runs: the tool, and its arguments."""

    tool: str
    values: tuple[Any, ...]


INVOCATION: ContextVar[Invocation | None] = ContextVar("windlass_simulated_invocation", default=None)


class SimulatedWorld:
    """The world outside an agent in one simulated session; it outlives the crashes of its processes.

    A factory that takes a parameter gets it: `def build(world): …`. Tools call `effect` for what they do to the world,
    and keep what other systems would have, such as a table of bookings, in `data`. `random` draws from the seed.
    """

    def __init__(self, seed: int, clock: Callable[[], float], pause: Callable[[], float]) -> None:
        self.seed = seed
        self.session = SESSION
        self.data: dict[str, Any] = {}
        self.random: Random = SeededRandom(seed ^ 0x5EED)
        self._clock = clock
        self._pause = pause
        self._effects: Counter[tuple[str, str, str]] = Counter()
        self._happened: Counter[tuple[str, str | None]] = Counter()

    def now(self) -> float:
        """The virtual time, in seconds since the epoch."""
        return self._clock()

    def effect(self, name: str, key: str | None = None) -> int:
        """Record that something happens in the world; returns how often it has happened by now.

        Without a `key`, a call of a tool must not make it happen twice, whatever crashes and fails. With an idempotency
        key it may be repeated, and counts once.
        """
        life = LIFE.get()
        if life is not None and life.dead:
            return 0
        self._happened[name, key] += 1
        if key is None:
            invocation = INVOCATION.get()
            if invocation is not None:
                self._effects[invocation.tool, repr(invocation.values), name] += 1
        return self._happened[name, key]

    def undo(self, name: str, key: str | None = None) -> None:
        """Record that an effect is undone, if it has happened; for the compensation of a tool."""
        if self._happened[name, key]:
            self._happened[name, key] -= 1
            for place, count in self._effects.items():
                if place[2] == name and key is None and count:
                    self._effects[place] -= 1
                    break

    def count(self, name: str, key: str | None = None) -> int:
        """The number of times an effect has happened and was not undone."""
        return self._happened[name, key]

    async def pause(self) -> None:
        """Wait for a while that the seed decides, as for an answer of another system."""
        await asyncio.sleep(self._pause())


class Stage(SimulatedWorld):
    """The world with all that the simulation itself needs: its choices, its processes, and what went wrong."""

    def __init__(
        self, case: SimulatedCase, faults: Faults, grammar: Grammar, store: Store, loop: SimulatedLoop
    ) -> None:
        super().__init__(case.seed, self._time, self._pause_time)
        self.id_random: Random = SeededRandom(case.seed ^ 0x1D5)
        self._choices = Choices(case)
        self._faults = some_of(faults, self._choices.random)
        self._store = store
        self._loop = loop
        self.chances = Chances(self._faults)
        self.grammar = grammar
        self.speaker = Speaker(grammar)
        self.steps = 0
        self.violations: list[Violation] = []
        self.raised: dict[str, None] = {}
        self.watcher: Watcher | None = None
        self.running: dict[int, str] = {}
        self.lives: list[Life] = []
        self.life: Life | None = None
        self.crashes = 0
        self.calm = False
        self.errors_injected = 0
        self.tokens = 0
        self.act: Callable[[str, float], None] = lambda what, after: None

    def draw(self, kind: str, make: Callable[[Random], Any]) -> Any:
        """What the seed, or the case, says of the next thing of this kind. When it is calm, nothing goes wrong."""
        return self._choices.draw(kind, make)

    @property
    def choices_random(self) -> Random:
        """The generator of the seed."""
        return self._choices.random

    @property
    def made(self) -> dict[str, Any]:
        """All choices so far that were out of the ordinary."""
        return self._choices.made

    @property
    def store(self) -> Store:
        """The store, without faults."""
        return self._store

    def thread_delay(self) -> float:
        """How long work in a thread waits."""
        return self.draw("thread", self.chances.thread) or 0.0

    def tool_in_use(self) -> str:
        """The tool whose function runs in the current context."""
        invocation = INVOCATION.get()
        return "" if invocation is None else invocation.tool

    def begin(self) -> Life:
        """A process starts."""
        self.life = life = Life(self)
        self.lives.append(life)
        self.running.clear()
        return life

    def crash(self, life: Life) -> None:
        """The process dies."""
        self.crashes += 1
        self._loop.freeze(life)
        if life.end is not None and not life.end.done():
            life.end.set_result("crashed")

    def violate(self, check: str, text: str) -> None:
        """Something is wrong. Only the first few violations of a session are kept."""
        if len(self.violations) < 10:
            self.violations.append(Violation(check, text, self.records_seen))

    def note_raised(self, who: str, kind: str, message: str) -> None:
        """Code of the agent has raised an error by itself: not one that is simulated, or that comes of one."""
        if kind not in _NOT_ITS_OWN and "simulated" not in message:
            self.raised[f"{who} raised {kind}: {message:.200}"] = None

    def enter(self, what: str) -> int:
        """Something outside is under way; the number is for `leave`."""
        self.tokens += 1
        self.running[self.tokens] = what
        return self.tokens

    def leave(self, token: int) -> None:
        """It is over."""
        self.running.pop(token, None)

    @property
    def records_seen(self) -> int:
        """How many records the sessions have by now."""
        return 0 if self.watcher is None else self.watcher.seen

    @property
    def effects(self) -> Counter[tuple[str, str, str]]:
        """How often something has happened in runs of a tool with these arguments: tool, arguments, effect."""
        return self._effects

    @property
    def loop(self) -> SimulatedLoop:
        """The loop that it runs in."""
        return self._loop

    def _time(self) -> float:
        return EPOCH + self._loop.time()

    def _pause_time(self) -> float:
        return self.draw("pause", self.chances.seconds) or 0.0


def current(what: str = "it") -> Stage:
    """The world of the session that is simulated here."""
    life = LIFE.get()
    if life is None:
        raise ConfigError(
            f"{what} belongs to a simulation and was used outside of it: make another agent for other purposes"
        )
    world: Stage = life.world
    return world


def describe_running(running: Sequence[str]) -> str:
    """What is under way, for a report."""
    return ", ".join(running) if running else "no model call and no tool"
