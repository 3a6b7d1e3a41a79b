"""What a store reports about its logs."""

from __future__ import annotations

from .messages import Value


class SessionInfo(Value, frozen=True):
    """A session in a list of sessions. `status` is open, running, suspended, ended or erased."""

    session: str
    status: str = "open"
    agent: str = ""
    title: str = ""
    started: float = 0.0
    updated: float = 0.0
    records: int = 0
    waiting: int = 0


class Batch(Value, frozen=True):
    """An append batch: where it begins, its link in the hash chain, and its records as JSON, one per line."""

    seq: int
    count: int
    link: bytes
    lines: bytes
    pruned: bool = False


class Verified(Value, frozen=True):
    """An intact hash chain: how many records it covers, its last link, and how many batches were pruned."""

    session: str
    records: int
    head: str
    pruned: int = 0


class Claim(Value, frozen=True):
    """What an append states about its pass: the session at the root of the tree, and the number of the pass.

    A pass over a session is one turn, resume, compaction or other change. Its number, the epoch, is one more than that
    of the pass before. The first append of a pass `begins` it: the store then writes the owner into the root's row.
    An append for a root with another epoch is refused with `SessionConflict`. An append that `ends` the pass clears the
    owner; so does one whose records end or suspend the root's turn.
    """

    root: str
    epoch: int
    begins: bool = False
    ends: bool = False


class Ownership(Value, frozen=True):
    """Who owns a session: the number of its last pass, and the process that began it, if that has not ended.

    `owner` names the process. `alive` is true if that is another process and it still runs.
    """

    epoch: int = 0
    owner: str = ""
    alive: bool = False
