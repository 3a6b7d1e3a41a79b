"""The values of storages, in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from windlass.protocols import StoredValue

from .chains import Chain
from .shared import from_key, key_of
from .sharing import Lease
from .sqlite_file import SQLiteFile
from .values import PRUNED, Place, id_row, prefix_range, value_of, value_row

T = TypeVar("T")


class SQLiteValues:
    """Keeps values in the file of a store. A change is a transaction, which excludes all other writers."""

    def __init__(self, file: Lease[SQLiteFile], chain: Chain) -> None:
        self._file = file
        self._chain = chain

    async def read(self, name: str, key: str) -> StoredValue | None:
        place = Place.of(name, key)
        rows = await self._file.get().read(_READ, *place)
        return value_of(self._chain, place, rows[0] if rows else None)

    async def write(self, name: str, key: str, value: StoredValue | None, *, now: float) -> None:
        place = Place.of(name, key)
        if value is not None:
            row = value_row(self._chain, place, value)
            await self._write(lambda db: db.execute(_WRITE, row))
            return

        def delete(db: sqlite3.Connection) -> None:
            db.execute(_DELETE, place)
            db.execute("DELETE FROM storage_ids WHERE name = ? AND key = ?", place)

        await self._write(delete)

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
        place = Place.of(name, key)

        def work(db: sqlite3.Connection) -> T | None:
            if once and db.execute(_USED, (*place, key_of(once), now)).fetchone() is not None:
                return None
            value = value_of(self._chain, place, db.execute(_READ, place).fetchone())
            new, answer = change(value)
            if new is value:
                return answer
            if new is None:
                db.execute(_DELETE, place)
            else:
                db.execute(_WRITE, value_row(self._chain, place, new))
            if once:
                db.execute(_USE, id_row(self._chain, place, once, until))
            return answer

        return await self._write(work)

    async def find(
        self, name: str, prefix: str = "", *, data: bool = True, last: int | None = None, now: float = 0.0
    ) -> Sequence[tuple[str, StoredValue]]:
        columns = "key, data, expires, checksum" if data else "key, expires"
        query, keys = f"SELECT {columns} FROM storage WHERE {_WITH_PREFIX}", prefix_range(name, prefix)
        if last is None:
            rows = await self._file.get().read(f"{query} ORDER BY key", *keys)
        else:
            rows = await self._file.get().read(f"{query} {_LAST}", *keys, now, last)
            rows.reverse()
        if not data:
            return [(from_key(key), StoredValue(b"", expires)) for key, expires in rows]
        found = [(key, value_of(self._chain, Place(key_of(name), key), row)) for key, *row in rows]
        return [(from_key(key), value) for key, value in found if value is not None]

    async def clear(self, name: str, prefix: str = "") -> int:
        keys = prefix_range(name, prefix)

        def work(db: sqlite3.Connection) -> int:
            db.execute(f"DELETE FROM storage_ids WHERE {_WITH_PREFIX}", keys)
            return db.execute(f"DELETE FROM storage WHERE {_WITH_PREFIX}", keys).rowcount

        return await self._write(work)

    async def prune(self, before: float) -> None:
        """Drop what expired before a time, in small transactions."""
        for query in (
            "DELETE FROM storage WHERE rowid IN (SELECT rowid FROM storage WHERE expires < ? LIMIT ?)",
            "DELETE FROM storage_ids WHERE (name, key, id) IN "
            "(SELECT name, key, id FROM storage_ids WHERE expires < ? LIMIT ?)",
        ):
            while await self._file.get().write(lambda db, query=query: db.execute(query, (before, PRUNED)).rowcount):  # type: ignore[misc]
                pass

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Work in a transaction: here, if the disk is fast and nobody else writes, or else on the writer thread."""
        file = self._file.get()
        done: tuple[T] | None = file.write_here(lambda db: (work(db),))
        return await file.write(work) if done is None else done[0]


_READ = "SELECT data, expires, checksum FROM storage WHERE name = ? AND key = ?"
_USED = "SELECT 1 FROM storage_ids WHERE name = ? AND key = ? AND id = ? AND (expires IS NULL OR expires > ?)"
_USE = "INSERT OR REPLACE INTO storage_ids VALUES (?, ?, ?, ?, ?)"
_WRITE = (
    "INSERT INTO storage VALUES (?, ?, ?, ?, ?) ON CONFLICT (name, key) "
    "DO UPDATE SET data = excluded.data, expires = excluded.expires, checksum = excluded.checksum"
)
_DELETE = "DELETE FROM storage WHERE name = ? AND key = ?"
_WITH_PREFIX = "name = ? AND key >= ? AND key < ?"
_LAST = "AND (expires IS NULL OR expires > ?) ORDER BY key DESC LIMIT ?"
