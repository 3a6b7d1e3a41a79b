"""Who may advance a session: claims of passes, and the passes that run in this process.

A pass over a session is one turn, resume, compaction or other change of its log. The store has a row per session with
its owner and an epoch, the number of its passes. A lock that the system frees when a process dies tells whether the
owner is alive.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakSet

from .messages import Value


class Claim(Value, frozen=True):
    """What an append states about its pass: the session at the root of the tree, and the pass's epoch.

    The first append of a pass `begins` it: the store then writes the owner and the epoch into the root's row, unless
    the row's epoch is not the one before. An append for a root with another epoch raises `SessionConflict`. An append
    that `ends` the pass clears the owner; so does one whose records end or suspend the root's turn.
    """

    root: str
    epoch: int
    begins: bool = False
    ends: bool = False


class Ownership(Value, frozen=True):
    """The last pass over a session: its epoch, and the process that began it, if the pass has not ended.

    `owner` names that process. `alive` says that it is another process, which still runs. `engine` names the engine
    that drives the session, if one does: other passes are then refused.
    """

    epoch: int = 0
    owner: str = ""
    alive: bool = False
    engine: str = ""


class Work(Value, frozen=True):
    """A session that a worker has taken from the store, and the epoch of the pass that was begun for it.

    An epoch of 0 says that no pass was begun: the session is that of an agent in the background, which begins its own.
    """

    session: str
    epoch: int = 0


class Lost(Value, frozen=True):
    """A session whose process has died, and the name of that process, as in `Ownership.owner`."""

    session: str
    owner: str


QUEUED = "turn/"
"""How the kind of an inbox entry begins that is a queued message: it opens a turn of its own, which a worker runs.

The rest of the kind is the rank of the message, `0` to `9`, and the agent that it is for: `turn/4/clerk`.
"""


def queued_kind(agent: str, priority: int) -> str:
    """The kind of a queued message. Of kinds of one agent, the one of the highest priority sorts first."""
    return f"{QUEUED}{9 - priority}/{agent}"


def queued_kinds(agent: str) -> list[str]:
    """The kinds of all queued messages for an agent."""
    return [queued_kind(agent, priority) for priority in reversed(range(10))]


class Passes:
    """The passes that run in this process over the sessions of one store: of all agents, threads and event loops.

    `owner` is the name of this process in the rows of the store. `watched` are the event loops on which the inboxes are
    looked at, `tasks` the tasks that do so now. `unreleased` are the epochs of passes that are over although the store
    could not be told. `answers` counts what the store has answered to turns, which shows that it works.
    """

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        self.answers = 0
        self.unreleased: dict[str, int] = {}
        self.watched: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self.tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._running: dict[str, Any] = {}

    def enter(self, session: str, running: Any) -> Any | None:
        """Enter a pass over a session. If one runs already, it is returned instead."""
        with self._lock:
            found = self._running.get(session)
            if found is None:
                self._running[session] = running
            return found

    def replace(self, session: str, running: Any) -> Any | None:
        """Enter a pass over a session that is to be taken over. Returns the pass that ran there, if there was one."""
        with self._lock:
            found = self._running.get(session)
            self._running[session] = running
            return found

    def leave(self, session: str, running: Any, back: Any | None = None) -> None:
        """A pass is over. Another one may have replaced it. `back` is one that it replaced, and that may still run."""
        running.over = True
        with self._lock:
            if self._running.get(session) is running:
                while back is not None and back.over:
                    back = back.replaced
                if back is None:
                    del self._running[session]
                else:
                    self._running[session] = back

    def get(self, session: str) -> Any | None:
        """The pass that runs over a session."""
        return self._running.get(session)

    def all(self) -> list[Any]:
        """All passes that run."""
        with self._lock:
            return list(self._running.values())
