"""An observer that records the facts it receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from windlass.events import FACTS
from windlass.records import Fact
from windlass.turns import Turn

FactT = TypeVar("FactT", bound=Fact)


class RecordingObserver:
    """A capability that records the facts of all turns, or facts of some kinds: `agent.with_capability(observer)`.

    Turns wait for it, so it has all facts when a turn is over. With `inherit=True` it observes sub-agents, too.
    """

    name = "recording"

    def __init__(self, *kinds: type[Fact], inherit: bool = False) -> None:
        self.kinds = kinds or FACTS
        self.inherit = inherit
        self.seen: list[tuple[str, Fact]] = []

    def install(self, registrar: Any, /) -> None:
        """Observe every kind of fact it is for."""
        for kind in self.kinds:
            registrar.observe(kind, name=self.name, wait=True, inherit=self.inherit)(self)

    def __call__(self, fact: Fact, turn: Turn[Any] | None = None) -> None:
        """Record a fact and its session."""
        self.seen.append(("" if turn is None else turn.session_id, fact))

    @property
    def facts(self) -> list[Fact]:
        """All facts, in the order in which they came."""
        return [fact for _, fact in self.seen]

    def of(self, kind: type[FactT], where: Callable[[FactT], bool] | None = None) -> list[FactT]:
        """The facts of one kind, or those of them for which `where` holds."""
        return [fact for fact in self.facts if isinstance(fact, kind) and (where is None or where(fact))]

    def in_session(self, session: str) -> list[Fact]:
        """The facts of one session."""
        return [fact for known, fact in self.seen if known == session]

    def names(self) -> list[str]:
        """The names of the kinds of the facts, in order."""
        return [type(fact).__name__ for fact in self.facts]

    def clear(self) -> None:
        """Forget everything."""
        self.seen.clear()

    def __repr__(self) -> str:
        return f"RecordingObserver({', '.join(self.names())})"
