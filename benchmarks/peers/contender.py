"""What a contender is, and the script of the fake model and of the no-op hooks that all contenders share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

from work import work

DELTAS, DELTA = 2000, "abcde"
ENDLESS = 1_000_000  # limits of steps are lifted to this
Turn = Callable[[], Awaitable[str]]


class Script:
    """What the fake model says, how often hooks were called, and how many messages a continued session showed."""

    def __init__(self) -> None:
        self.hooks = 0
        self.continues = False
        self.shown = 0

    def call_due(self, messages: int) -> int | None:
        """The number of the call to ask for when shown this many messages without a system message, or None: done."""
        if self.continues:
            self.shown = messages
            return None
        number = messages // 2 + 1
        return number if number < work.steps else None


script = Script()


def arguments(number: int) -> str:
    """The arguments of a call, as a vendor sends them."""
    return f'{{"a": {number}, "b": 1}}'


def hooked() -> None:
    """To be called by every no-op hook, so that a run proves that its hooks were called."""
    script.hooks += 1


class Variant(NamedTuple):
    """How to make an agent with other settings, and how often a turn of so many steps then calls hooks."""

    make: Callable[[], Any]
    calls: Callable[[int], int] = lambda steps: 0


class Contender:
    """One framework doing the work that all do, through its public names and with its default settings."""

    file: str
    name: str
    distribution: str | None = None
    statement: str
    """What a program imports to have an agent."""
    hook_points: str
    notes: str = ""
    remembers: bool = False
    """An agent keeps its conversation, so that every turn needs a new one."""
    parallel: bool = True
    """Turns can run at once on one event loop."""
    streams: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = MappingProxyType({})
    """Other settings that a reader asks about."""

    def make(self, hooks: int = 0, **options: Any) -> Any:
        """An agent with this many no-op hook objects."""
        raise NotImplementedError

    async def turn(self, agent: Any) -> str:
        """One turn of `work.steps` steps; returns the final text."""
        raise NotImplementedError

    def hook_calls(self, steps: int) -> int:
        """How often one hook object is called in a turn."""
        raise NotImplementedError

    def stream(self, variant: str) -> AsyncGenerator[str, None]:
        """The pieces of text of one turn, as a program sees them."""
        raise NotImplementedError

    def kept(self, variant: str, folder: str) -> AbstractAsyncContextManager[Turn]:
        """Open a store in a folder and return a function that runs a turn of one session, stored there."""
        raise NotImplementedError
