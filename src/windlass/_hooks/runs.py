"""Runs: facts that one durable observer gets in one go."""

from __future__ import annotations

import inspect
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from windlass.logs import Link
from windlass.records import Fact
from windlass.turns import Turn

from .hooks import Hook

BATCH = 256
"""How many facts a durable observer gets before its cursor is stored,"""

INTERVAL = 0.1
"""or for how many seconds. A process that is killed leaves these facts to be delivered again."""

SKIPPED = "hook_failed"
"""The kind of an inbox entry: an observer skipped a fact while no turn of the session ran here."""


class Told(NamedTuple):
    """A fact, with what its observer asks for: the turn, and the fact's place in the hash chain."""

    fact: Fact
    turn: AnyTurn = None
    link: Link | None = None


class Run:
    """Facts for a durable observer, in order, each with its position in the log.

    `done` counts the facts that the observer has got. A plain function gets all of them in one
    thread. It stops early if it fails, if its answer must be awaited on the event loop, or if it
    has worked for `INTERVAL` seconds.
    """

    __slots__ = ("_awaited", "_stopped", "done", "facts", "hook", "seqs")

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.facts: list[Told] = []
        self.seqs: list[int] = []
        self.done = 0
        self._awaited = self._stopped = False

    def left(self) -> bool:
        """Whether there are facts that the observer has not got."""
        return self.done < len(self.facts)

    def __call__(self) -> Any:
        """Call a plain observer, in a thread. Returns an answer that must be awaited, or None."""
        until = perf_counter() + INTERVAL
        for told in self.facts[self.done :]:
            answer = call_matching(self.hook, *told)
            if answer is not None and inspect.isawaitable(answer):
                self._awaited = True
                return answer
            self.done += 1
            if self._stopped or perf_counter() >= until:
                break
        return None

    def finish_answer(self) -> None:
        """If an answer had to be awaited, it has been: its fact is done."""
        if self._awaited:
            self._awaited = False
            self.done += 1

    def stop(self) -> None:
        """Nobody waits for the thread any more: it stops after the fact that it is at."""
        self._stopped = True


class SessionOnly:
    """Stands for the turn of an observer that asks for nothing but the id of the session: no state is made for it."""

    __slots__ = ("session_id",)

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id


AnyTurn: TypeAlias = Turn[Any] | SessionOnly | None
"""What an observer gets its parameters from; None if it has none."""


def call_matching(hook: Hook, fact: Fact, turn: AnyTurn, link: Link | None = None) -> Any:
    """Call a durable observer, if its conditions hold."""
    if hook.matches is not None and not hook.matches(fact):
        return None
    return call_observer(hook, fact, turn, link)


def call_observer(hook: Hook, fact: Fact, turn: AnyTurn, link: Link | None = None) -> Any:
    """Call an observer. One with parameters of its own needs `turn`, or `link`."""
    if turn is None:
        return hook.fn(fact) if link is None else hook.fn(fact, link=link)
    if type(turn) is SessionOnly and link is None:
        return hook.fn(fact, session_id=turn.session_id)
    supplied = {name: _supplied(turn, source) for name, source in hook.wants}
    if link is not None:
        supplied["link"] = link
    return hook.fn(fact, **supplied)


def _supplied(turn: Turn[Any] | SessionOnly, source: str) -> Any:
    if source == "session_id":
        return turn.session_id
    assert isinstance(turn, Turn)
    return turn if source == "turn" else turn.get(source)  # type: ignore[arg-type]
