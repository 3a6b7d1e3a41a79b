"""The values of storages as rows: their checksums, and the range of keys with a prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from windlass.errors import StoreError
from windlass.protocols import StoredValue

from .chains import Chain
from .reading import ODD
from .shared import from_key, key_of

PRUNED = 1000
"""How many values are dropped in one transaction."""


class Place(NamedTuple):
    """Where a value is: the name of its storage and its key, as bytes."""

    name: bytes
    key: bytes

    @classmethod
    def of(cls, name: str, key: str) -> Place:
        return cls(key_of(name), key_of(key))


def value_row(chain: Chain, place: Place, value: StoredValue) -> tuple[Any, ...]:
    """The row of a value: name, key, data, expires and checksum."""
    expires = None if value.expires is None else float(value.expires)
    row = (*place, value.data, expires)
    return (*row, chain.checksum("storage", *row))


def id_row(chain: Chain, place: Place, once: str, until: float | None) -> tuple[Any, ...]:
    """The row of an id that was used: name, key, id, expires and checksum."""
    row = (*place, key_of(once), None if until is None else float(until))
    return (*row, chain.checksum("storage id", *row))


def value_of(chain: Chain, place: Place, row: Sequence[Any] | None) -> StoredValue | None:
    """The value in a row of data, expires and checksum. Raises if it was changed."""
    if row is None:
        return None
    data, expires, checksum = row
    try:
        if chain.checksum("storage", *place, data, expires) == checksum:
            return StoredValue(bytes(data), expires)
    except ODD:
        pass
    raise StoreError(_changed(place))


def prefix_range(name: str, prefix: str) -> tuple[bytes, bytes, bytes]:
    """The name of a storage, the first key with a prefix, and the first key behind all of them."""
    start = key_of(prefix)
    return key_of(name), start, start[:-1] + bytes([start[-1] + 1]) if start else b"\xff"


Select: TypeAlias = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a query that is valid in SQLite and PostgreSQL."""


def value_problems(select: Select, chain: Chain) -> list[str]:
    """Which values were changed after they were written, one sentence each."""
    problems: list[str] = []
    for kind, query in (
        ("storage", "SELECT name, key, data, expires, checksum FROM storage"),
        ("storage id", "SELECT name, key, id, expires, checksum FROM storage_ids"),
    ):
        for *row, checksum in select(query):
            try:
                sound = chain.checksum(kind, *row) == checksum
            except ODD:
                sound = False
            if not sound:
                problems.append(_changed(Place(*row[:2])))
    return problems


def _changed(place: Place) -> str:
    try:
        name, key = from_key(place.name), from_key(place.key)
    except ODD:
        return f"the value {place.key!r} in storage {place.name!r} was changed after it was written"
    return f"the value {key!r} in storage {name!r} was changed after it was written"
