"""What hooks have injected into a turn, added up as it comes: how much it is, and what is there already."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from windlass.messages import Message, Messages
from windlass.records import Injected

STEP_EVENTS = ("StepStarting", "StepEnding", "Resuming")
"""Where parts are injected for one step and go with it."""


class Carried:
    """The injections that the requests of a session carry, of the turn and of each step."""

    __slots__ = (
        "_history",
        "_known",
        "_lasting",
        "_of_steps",
        "_session",
        "_size",
        "_texts",
        "_tokens",
        "_turn",
        "_used",
    )

    def __init__(self, session: str, tokens: Callable[[Any], int]) -> None:
        self._session = session
        self._tokens = tokens
        self._history: list[Message] | None = None
        self._known = 0
        self._lasting: set[str] = set()
        self._begin(None)

    def _begin(self, turn: Any) -> None:
        self._turn = turn
        self._used: tuple[int, int] = (0, 0)
        self._size = 0
        self._texts: set[str] = set()
        self._of_steps: dict[str, list[Injected]] = {}

    def take(self, turn: Any, unrecorded: tuple[Injected, ...]) -> Carried:
        """What came since it was last asked."""
        injected: tuple[Injected, ...] = () if turn is None else turn.injected
        given = len(injected), len(unrecorded)
        if turn is not self._turn or given[0] < self._used[0] or given[1] < self._used[1]:
            self._begin(turn)
        if given != self._used:
            for item in (*injected[self._used[0] :], *unrecorded[self._used[1] :]):
                self._add(item)
            self._used = given
        return self

    def _add(self, item: Injected) -> None:
        if is_for_child(item, self._session):
            return
        if item.event in STEP_EVENTS:
            self._of_steps.setdefault(item.about, []).append(item)
        else:
            self._size += self._tokens(item.parts)
            if not item.durable:
                self._texts.add(said(item))

    def lasts(self, text: str, shown: Messages) -> bool:
        """Whether somebody has put the same into the history that models are shown."""
        items, length, _ = shown.shared
        if items is not self._history or length < self._known:
            self._history, self._known, self._lasting = items, 0, set()
        self._lasting |= {said(message) for message in islice(items, self._known, length) if message.origin is not None}
        self._known = length
        return text in self._lasting

    def size(self, step: str) -> int:
        """About how many tokens a request of this step carries."""
        return self._size + sum([self._tokens(item.parts) for item in self._of_steps.get(step, ())])

    def has(self, text: str, step: str) -> bool:
        """Whether a request of this step carries the same."""
        return text in self._texts or any(
            said(item) == text for item in self._of_steps.get(step, ()) if not item.durable
        )


def said(item: Injected | Message) -> str:
    """What some parts say, whoever put them there."""
    parts: Any = item.parts
    return repr([part.replace(origin=None) if hasattr(part, "origin") else part for part in parts])


def is_for_child(item: Injected, session: str) -> bool:
    """Whether parts were injected for an agent below this session."""
    return item.event == "Delegating" and not item.about.startswith(f"{session}/t")
