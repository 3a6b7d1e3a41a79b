"""Prunes batches: takes the transient injections out of their lines, and keeps what their seals need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from windlass.errors import StoreError

from .batches import pack, unpack
from .chains import prune_lines, unpack_seals
from .reading import ODD
from .shared import broken_log

LIMIT = 32
"""How many batches are pruned in one transaction."""


class Pruned(NamedTuple):
    """What is left of a batch."""

    number: int
    seq: int
    data: bytes


async def prune_rows(rows: Sequence[Sequence[Any]], damage: list[StoreError]) -> list[Pruned]:
    """Prune batches, given as number and id of their session, seq, data and seals. Other tasks run in between.

    A damaged batch is left as it is, and its error is added to `damage`.
    """
    pruned: list[Pruned] = []
    for number, session, seq, data, seals in rows:
        try:
            pruned.append(Pruned(number, seq, pack(prune_lines(unpack(data), unpack_seals(seals)))))
        except ODD as error:
            damage.append(broken_log(session, seq, f"the batch is damaged ({error}), so it was not pruned"))
        await asyncio.sleep(0)
    return pruned


def pruned_count(count: int, damage: Sequence[StoreError]) -> int:
    """The result of pruning. Raises if a batch was damaged; all others are pruned then."""
    if damage:
        raise damage[0]
    return count
