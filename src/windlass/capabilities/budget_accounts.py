"""Accounts: what all turns of a session or key have spent, kept in the store, and limits on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from windlass.criteria import Limit
from windlass.events import ModelCalling, Resuming
from windlass.messages import Usage
from windlass.outcomes import StopReason
from windlass.records import TurnEnded
from windlass.states import State, TurnState
from windlass.turns import Turn

if TYPE_CHECKING:
    from windlass import Hooks, Storage

UNITS = {"tokens": "tokens", "usd": "USD", "steps": "steps", "seconds": "seconds of work"}
"""What can be spent."""


class Budgeted(Protocol):
    """What an account needs to know of its budget."""

    name: str
    limits: dict[str, float]
    window: float | None
    lenient: bool

    @property
    def words(self) -> str: ...
    def key_of(self, turn: Turn[Any]) -> str | None: ...
    def warn(self, turn: Turn[Any], spent: Mapping[str, float]) -> None: ...


class Account:
    """The spending of all turns of a session or key: a total, and what each turn under way has spent so far.

    A turn writes what it has spent when it is resumed and before each of its model calls, also those of its sub-agents,
    and learns what the others have spent. When it ends, its spending moves to the total. If its process dies before
    that, what it wrote last stays counted.
    """

    def __init__(self, budget: Budgeted, storage: Storage) -> None:
        self.budget = budget
        self.storage = storage
        self.others: dict[str, dict[str, float] | None] = {}
        self._turns: dict[str, str] = {}

    def install(self, registrar: Hooks) -> None:
        """Register the limits and the hooks that keep the account."""
        name = self.budget.name
        for kind, amount in self.budget.limits.items():
            registrar.criterion(SHARED_LIMITS[kind](kind, amount, self.budget.words, self.budget.lenient, self.others))
        registrar.gate(ModelCalling, inherit=True, name=name)(self._exchange)
        registrar.gate(Resuming, name=f"{name}.resumed")(self._exchange)
        registrar.observe(TurnEnded, wait=True, name=f"{name}.settle")(self._settle)

    async def _exchange(self, event: ModelCalling | Resuming, turn: Turn[Any]) -> None:
        """Write what the turn has spent, and read what the others have. A sub-agent does so for the turn at the top."""
        key, session = self.budget.key_of(turn), turn.session_id
        root = root_of(session)
        if session == root:
            self._turns[root] = turn.turn_ref
        top = self._turns.get(root, "")
        if key is None:
            self.others[turn.turn_ref] = None
            return
        spent = spent_in(turn)
        await self.storage.put(f"{key}/turn/{turn.turn_ref}", spent, ttl=self.budget.window)
        if not top:  # it works in the background of a turn that another process has
            return
        mine = f"{key}/turn/{top}"
        found = await self.storage.items(f"{key}/")
        others = {entry: value for entry, value in found.items() if not _is_part(entry, mine, f"{key}/turn/{root}//")}
        self.others[top] = total = _sum(key, others)
        if session == root:
            self.budget.warn(turn, {kind: total[kind] + spent[kind] for kind in UNITS})

    async def _settle(self, fact: TurnEnded, turn: Turn[Any]) -> None:
        """Move what a turn has spent to the total. A sub-agent's spending is part of its parent's."""
        self.others.pop(turn.turn_ref, None)
        self._turns.pop(turn.session_id, None)
        key = self.budget.key_of(turn)
        if key is None:
            return
        if not fact.path:
            for kind, amount in spent_in(turn).items():
                if kind in self.budget.limits and amount:
                    total = f"{key}/total/{kind}"
                    await self.storage.add(total, amount, once=turn.turn_ref, ttl=self.budget.window)
        await self.storage.delete(f"{key}/turn/{turn.turn_ref}")


def _is_part(entry: str, turn: str, below: str) -> bool:
    """Whether an entry is that of a turn, or of a sub-agent below it, whose spending the turn knows."""
    return entry == turn or entry.startswith(below)


def _sum(key: str, found: Mapping[str, Any]) -> dict[str, float]:
    """What the entries of an account say, together."""
    total = dict.fromkeys(UNITS, 0.0)
    for entry, value in found.items():
        what, _, rest = entry[len(key) + 1 :].partition("/")
        if what == "total":
            total[rest] += value
        elif what == "turn":
            for kind in UNITS:
                total[kind] += value[kind]
    return total


def spent_in(turn: Turn[Any]) -> dict[str, float]:
    """What a turn has spent so far. An unknown cost counts as nothing here; the limit sees that it is unknown."""
    usage = turn.usage
    return {"tokens": usage.total, "usd": usage.cost or 0.0, "steps": turn.steps, "seconds": turn.active}


def root_of(session: str) -> str:
    """The session at the top of a tree of sub-agents."""
    return session.partition("//")[0]


class SharedLimit(Limit, frozen=True, gc=True):
    """A limit on what a turn and the others of its account have spent together.

    `others` has what the others have spent, by the reference of the turn: nothing until the turn first calls a model,
    and None if no budget applies to it.
    """

    kind: str
    amount: float
    words: str
    lenient: bool
    others: dict[str, dict[str, float] | None]
    holds_below: ClassVar[bool] = True

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        others = self.others.get(turn.ref)
        if others is None:
            return None
        if self.kind == "usd" and not self.lenient and _is_unknown(turn.usage):
            return "the cost so far is unknown, so it counts as over the limit"
        own = {"tokens": turn.usage.total, "usd": turn.usage.cost or 0.0, "steps": turn.steps, "seconds": turn.active}
        spent = own[self.kind] + others[self.kind]
        return f"{spent:g} of {self.amount:g} {UNITS[self.kind]} per {self.words}" if spent >= self.amount else None


class TokenBudget(SharedLimit, frozen=True, gc=True):
    """Tokens of a session or key."""

    reason: ClassVar[StopReason] = StopReason.TOKEN_LIMIT


class CostBudget(SharedLimit, frozen=True, gc=True):
    """Cost of a session or key."""

    reason: ClassVar[StopReason] = StopReason.COST_LIMIT


class StepBudget(SharedLimit, frozen=True, gc=True):
    """Steps of a session or key."""

    reason: ClassVar[StopReason] = StopReason.STEP_LIMIT


class TimeBudget(SharedLimit, frozen=True, gc=True):
    """Active time of a session or key."""

    reason: ClassVar[StopReason] = StopReason.TIME_LIMIT


SHARED_LIMITS: dict[str, type[SharedLimit]] = {
    "tokens": TokenBudget, "usd": CostBudget, "steps": StepBudget, "seconds": TimeBudget,
}  # fmt: skip


def _is_unknown(usage: Usage) -> bool:
    return usage.cost is None and bool(usage.requests)
