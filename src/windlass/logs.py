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
