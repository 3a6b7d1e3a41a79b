"""The capabilities of effects and safety, with their default options, and the proof that each of them worked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import agents
from twins import register_silent
from work import work

from windlass import Agent, ModelReply, ModelRequest
from windlass.capabilities import (
    Approval,
    AuditTrail,
    Budget,
    Cache,
    DryRun,
    Events,
    Fallback,
    Logging,
    LoopGuard,
    Metrics,
    Moderate,
    Notify,
    Permissions,
    RateLimit,
    Redact,
    Retry,
    Steering,
    Subagents,
    Timeout,
    Validate,
)
from windlass.records import ToolReturned

Count = Callable[[], float]
"""How much a capability has done so far."""


class CountingModel(agents.FakeModel):
    """A model that counts its replies, so that none can come from elsewhere unseen."""

    def __init__(self) -> None:
        self.replies = 0

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.replies += 1
        return await super().reply(request)


class OtherModel(agents.FakeModel):
    """A model that is there in case the first one fails."""

    name = "other"


class Installed(NamedTuple):
    """A capability, what counts its work, and how much of that a turn of some steps makes; None if it stays silent."""

    capability: Any
    done: Count | None = None
    per_turn: Callable[[int], int] = lambda steps: steps


class Lines(logging.Handler):
    """Counts log lines and drops them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def audit_trail() -> Installed:
    """The reply, the call, its result and the ends of the turn: 3 lines a step with a pure tool."""
    lines: list[Any] = []
    return Installed(AuditTrail(lines.append), lambda: len(lines), lambda steps: 2 * steps + 1)


def cache() -> Installed:
    return Installed(Cache())


def events() -> Installed:
    heard: list[Any] = []
    emitter = Events()
    emitter.on(ToolReturned, heard.append)
    return Installed(emitter, lambda: len(heard), lambda steps: steps - 1)


def lines_logged() -> Installed:
    logger, handler = logging.Logger("bench"), Lines()
    logger.addHandler(handler)
    return Installed(Logging(logger), lambda: handler.count, lambda steps: 2)


def metrics() -> Installed:
    capability = Metrics()
    return Installed(capability, lambda: capability.registry.get_sample_value("windlass_steps_total") or 0.0)


def moderate() -> Installed:
    """It judges the user's message and the answer."""
    texts: list[str] = []

    def classify(text: str) -> None:
        texts.append(text)

    return Installed(Moderate(classify), lambda: len(texts), lambda steps: 2)


def notify() -> Installed:
    told: list[Any] = []
    return Installed(Notify(told.append, on=("completed",)), lambda: len(told), lambda steps: 1)


def validate() -> Installed:
    checked: list[Any] = []
    return Installed(Validate(output=checked.append), lambda: len(checked), lambda steps: 1)


def subagents() -> Installed:
    return Installed(Subagents([Agent(OtherModel(), name="helper")]))


CAPABILITIES: dict[str, Callable[[], Installed]] = {
    "Retry": lambda: Installed(Retry()),
    "Fallback": lambda: Installed(Fallback(OtherModel())),
    "Cache": cache,
    "RateLimit": lambda: Installed(RateLimit(requests=10**9)),
    "Timeout": lambda: Installed(Timeout(model=600, tool=600)),
    "Budget": lambda: Installed(Budget(tokens=10**12)),
    "Permissions": lambda: Installed(Permissions(allow=["add"], deny=["bash(rm *)"])),
    "Approval": lambda: Installed(Approval("delegate")),
    "DryRun": lambda: Installed(DryRun()),
    "AuditTrail": audit_trail,
    "Validate": validate,
    "Redact": lambda: Installed(Redact()),
    "Moderate": moderate,
    "LoopGuard": lambda: Installed(LoopGuard()),
    "Steering": lambda: Installed(Steering()),
    "Subagents": subagents,
    "Events": events,
    "Logging": lines_logged,
    "Metrics": metrics,
    "Notify": notify,
}


ALL = tuple(CAPABILITIES)
ROWS: dict[str, tuple[str, ...]] = {"bare": (), **{name: (name,) for name in ALL}, "all": ALL, "silent": ()}
"""What is installed in each row. `silent` has all hooks of `all`, and each of them does nothing."""


class Team:
    """An agent with the capabilities of a row. Each turn says something new, so that a cache has nothing to repeat.

    The tool is pure, so that `DryRun` lets it run.
    """

    def __init__(self, row: str) -> None:
        names = ROWS[row]
        self.installed = {name: CAPABILITIES[name]() for name in names}
        self.model = CountingModel()
        self.agent = Agent(
            self.model,
            tools=[agents.pure_add],
            max_steps=1_000_000,
            capabilities=[one.capability for one in self.installed.values()],
        )
        if row == "silent":
            register_silent(self.agent, Team("all").agent.explain().data)
        self._numbers = count()
        self._turns = 0
        self._steps = 0
        self._expected = dict.fromkeys(names, 0)

    async def turn(self) -> str:
        """Run one turn."""
        self._turns += 1
        self._steps += work.steps
        for name, one in self.installed.items():
            self._expected[name] += one.per_turn(work.steps)
        return (await self.agent.run(f"go {next(self._numbers)}")).text

    async def verify(self) -> None:
        """Raise unless the model was asked at every step and each capability did its work."""
        if self.model.replies != self._steps:
            raise RuntimeError(f"the model replied {self.model.replies} times in {self._steps} steps")
        await self.agent.aclose()
        for name, one in self.installed.items():
            if one.done is not None and one.done() < self._expected[name]:
                raise RuntimeError(f"{name} did {one.done()} of {self._expected[name]}")
