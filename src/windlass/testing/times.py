"""Records without their times, to compare logs of two runs."""

from __future__ import annotations

from typing import TypeVar

from windlass.records import Fact, Suspended

FactT = TypeVar("FactT", bound=Fact)

_TIMES = ("at", "took", "active", "answered_at", "forked_at")


def without_times(fact: FactT) -> FactT:
    """A copy of a record or fact without its times: when it happened and how long it took.

    Two runs of the same turn write the same log except for times: `[without_times(record) for record in log]`. The time
    at which a question expires stays.
    """
    bare = fact.replace(**{name: 0.0 for name in _TIMES if name in fact.__struct_fields__})
    if isinstance(bare, Suspended):
        return bare.replace(waiting_for=tuple([without_times(asked) for asked in bare.waiting_for]))
    return bare
