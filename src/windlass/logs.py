"""What a store reports about its logs."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import Value


class SessionInfo(Value, frozen=True):
    """A session in a list of sessions. `status` is open, running, suspended, ended or erased.

    For the session of a sub-agent, `parent` is the session that started it.
    """

    session: str
    status: str = "open"
    agent: str = ""
    title: str = ""
    started: float = 0.0
    updated: float = 0.0
    records: int = 0
    waiting: int = 0
    parent: str = ""


def tree_of(session: str, infos: Iterable[SessionInfo]) -> list[str]:
    """A session and those of its sub-agents at all depths, each after its parent."""
    children: dict[str, list[str]] = {}
    for info in infos:
        if info.parent:
            children.setdefault(info.parent, []).append(info.session)
    names = [session]
    for name in names:
        names += [child for child in children.pop(name, ()) if child != session]
    return names


class Seal(Value, frozen=True):
    """Stands for a transient injection in the link of its batch: its position, and a salted digest of its line."""

    index: int
    digest: bytes


class Batch(Value, frozen=True):
    """An append batch: where it begins, its link in the hash chain, and its records as JSON, one per line.

    `previous` is the link before it, or the start of the chain. A record that can be pruned has a seal; `nonce` is the
    salt of the seals, and is deleted when the records are pruned.
    """

    seq: int
    count: int
    link: bytes
    lines: bytes
    previous: bytes = bytes(16)
    seals: tuple[Seal, ...] = ()
    nonce: bytes = b""

    @property
    def pruned(self) -> bool:
        """Whether the transient injections of the batch were pruned."""
        return bool(self.seals) and not self.nonce


class Link(Value, frozen=True):
    """Where a record is in the hash chain of its log: its session, its position counted from 1, the number of records
    before its append batch, and the link of that batch as hex digits.

    A durable observer with a parameter named `link` gets it with each fact. `windlass.stores.linked_records` checks it.
    """

    session: str
    seq: int
    batch: int
    hash: str


class Log(Value, frozen=True):
    """A whole session for `Store.create`: its id, its batches, and the start of its hash chain.

    The store computes the links; those of the batches are ignored. Without a `start` it chooses a random one.
    """

    session: str
    batches: tuple[Batch, ...]
    start: bytes = b""


class Verified(Value, frozen=True):
    """An intact hash chain: how many records it covers, its last link, and how many batches were pruned."""

    session: str
    records: int
    head: str
    pruned: int = 0
