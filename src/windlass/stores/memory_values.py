"""The values of storages, in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import TypeVar

from windlass.protocols import StoredValue

T = TypeVar("T")

_FEW = 1024
"""Up to how many values expired ones are not looked for."""


class MemoryValues:
    """Keeps values in memory. Expired ones are dropped whenever the number of values has doubled."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], StoredValue] = {}
        self._ids: dict[tuple[str, str], dict[str, float | None]] = {}
        self._many = _FEW
        self._lock = threading.Lock()

    async def read(self, name: str, key: str) -> StoredValue | None:
        return self._values.get((name, key))

    async def write(self, name: str, key: str, value: StoredValue | None, *, now: float) -> None:
        with self._lock:
            self._set((name, key), value, now)
            if value is None:
                self._ids.pop((name, key), None)

    async def change(
        self,
        name: str,
        key: str,
        change: Callable[[StoredValue | None], tuple[StoredValue | None, T]],
        *,
        now: float,
        once: str = "",
        until: float | None = None,
    ) -> T | None:
        place = (name, key)
        with self._lock:
            used = self._ids.get(place, {})
            if once in used and ((ends := used[once]) is None or ends > now):
                return None
            value = self._values.get(place)
            new, answer = change(value)
            if new is not value:
                self._set(place, new, now)
                if once:
                    self._ids.setdefault(place, {})[once] = until
            return answer

    async def find(
        self, name: str, prefix: str = "", *, data: bool = True, last: int | None = None, now: float = 0.0
    ) -> Sequence[tuple[str, StoredValue]]:
        with self._lock:
            found = [
                (key, value) for (space, key), value in self._values.items() if space == name and key.startswith(prefix)
            ]
        if last is not None:
            current = [(key, value) for key, value in found if value.expires is None or value.expires > now]
            found = nlargest(last, current, key=itemgetter(0))
        return sorted([(key, value if data else StoredValue(b"", value.expires)) for key, value in found])

    async def clear(self, name: str, prefix: str = "") -> int:
        with self._lock:
            found = [place for place in self._values if place[0] == name and place[1].startswith(prefix)]
            for place in found:
                del self._values[place]
            for place in [place for place in self._ids if place[0] == name and place[1].startswith(prefix)]:
                del self._ids[place]
        return len(found)

    def prune(self, before: float) -> None:
        """Drop what expired before a time."""
        with self._lock:
            self._drop_expired(before)

    def _set(self, place: tuple[str, str], value: StoredValue | None, now: float) -> None:
        if value is None:
            self._values.pop(place, None)
            return
        self._values[place] = value
        if len(self._values) > self._many:
            self._drop_expired(now)
            self._many = max(_FEW, 2 * len(self._values))

    def _drop_expired(self, before: float) -> None:
        for place in [place for place, value in self._values.items() if _is_over(value.expires, before)]:
            del self._values[place]
        for place, ids in list(self._ids.items()):
            for once in [once for once, until in ids.items() if _is_over(until, before)]:
                del ids[once]
            if not ids:
                del self._ids[place]


def _is_over(expires: float | None, before: float) -> bool:
    return expires is not None and expires < before
