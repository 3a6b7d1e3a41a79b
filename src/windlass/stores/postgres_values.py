"""The values of storages, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.protocols import StoredValue

from .chains import Chain
from .shared import from_key, key_of
from .sharing import Lease
from .values import PRUNED, Place, id_row, prefix_range, value_of, value_row

if TYPE_CHECKING:
    from typing import LiteralString

    from .postgres_server import Connection, ServerConnections

T = TypeVar("T")


class PostgresValues:
    """Keeps values in the schema of a store. A change locks the row of its key, so those of other keys go on."""

    def __init__(self, server: Lease[ServerConnections], chain: Chain) -> None:
        self._server = server
        self._chain = chain

    async def read(self, name: str, key: str) -> StoredValue | None:
        place = Place.of(name, key)
        rows = await self._server.get().read(_READ, *place)
        return value_of(self._chain, place, rows[0] if rows else None)

    async def write(self, name: str, key: str, value: StoredValue | None, *, now: float) -> None:
        place = Place.of(name, key)
        if value is not None:
            query: LiteralString = (
                "INSERT INTO storage VALUES (%s, %s, %s, %s, %s) ON CONFLICT (name, key) "
                "DO UPDATE SET data = excluded.data, expires = excluded.expires, checksum = excluded.checksum"
            )
            row = value_row(self._chain, place, value)
            await self._server.get().write(lambda db: db.execute(query, row).rowcount)
            return
        await self._server.get().write(lambda db: _delete(db, "name = %s AND key = %s", place))

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

        def work(db: Connection) -> T | None:
            value = value_of(self._chain, place, _locked(db, place))
            new, answer = value, None
            if once:
                db.execute(_FORGET, (*place, key_of(once), now))
            if not once or db.execute(_USE, id_row(self._chain, place, once, until)).rowcount:
                new, answer = change(value)
                if once and new is value:
                    db.execute(
                        "DELETE FROM storage_ids WHERE name = %s AND key = %s AND id = %s", (*place, key_of(once))
                    )
            if new is None:
                db.execute(_DELETE, place)
            elif new is not value:
                _, _, *columns = value_row(self._chain, place, new)
                db.execute(_UPDATE, (*columns, *place))
            return answer

        return await self._server.get().write(work, repeatable=bool(once))

    async def find(
        self, name: str, prefix: str = "", *, data: bool = True, last: int | None = None, now: float = 0.0
    ) -> Sequence[tuple[str, StoredValue]]:
        columns: LiteralString = "key, data, expires, checksum" if data else "key, expires"
        query: LiteralString = f"SELECT {columns} FROM storage WHERE {_WITH_PREFIX}"
        keys = prefix_range(name, prefix)
        if last is None:
            rows = await self._server.get().read(f"{query} ORDER BY key", *keys)
        else:
            rows = await self._server.get().read(f"{query} {_LAST}", *keys, now, last)
            rows.reverse()
        if not data:
            return [(from_key(key), StoredValue(b"", expires)) for key, expires in rows]
        found = [(key, value_of(self._chain, Place(key_of(name), key), row)) for key, *row in rows]
        return [(from_key(key), value) for key, value in found if value is not None]

    async def clear(self, name: str, prefix: str = "") -> int:
        keys = prefix_range(name, prefix)
        return await self._server.get().write(lambda db: _delete(db, _WITH_PREFIX, keys))

    async def prune(self, before: float) -> None:
        """Drop what expired before a time, in small transactions."""
        queries: tuple[LiteralString, ...] = (
            "DELETE FROM storage WHERE expires < %s AND ctid = ANY(ARRAY("
            "SELECT ctid FROM storage WHERE expires < %s LIMIT %s))",
            "DELETE FROM storage_ids WHERE expires < %s AND ctid = ANY(ARRAY("
            "SELECT ctid FROM storage_ids WHERE expires < %s LIMIT %s))",
        )
        for query in queries:
            while await self._server.get().write(
                lambda db, query=query: db.execute(query, (before, before, PRUNED)).rowcount  # type: ignore[misc]
            ):
                pass


def _locked(db: Connection, place: Place) -> tuple[Any, ...] | None:
    """The row of a key, locked until the transaction ends.

    If there is none, an empty one is made for the lock. The transaction must fill or delete it.
    """
    query: LiteralString = "INSERT INTO storage VALUES (%s, %s, '', NULL, '') ON CONFLICT DO NOTHING"
    while True:
        row = db.execute(_READ + " FOR UPDATE", place).fetchone()
        if row is not None or db.execute(query, place).rowcount:
            return row


def _delete(db: Connection, where: LiteralString, values: tuple[bytes, ...]) -> int:
    """Delete values and the ids that were used for them; returns how many values."""
    count = db.execute(f"DELETE FROM storage WHERE {where}", values).rowcount
    db.execute(f"DELETE FROM storage_ids WHERE {where}", values)
    return count


_READ: LiteralString = "SELECT data, expires, checksum FROM storage WHERE name = %s AND key = %s"
_USE: LiteralString = "INSERT INTO storage_ids VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
_FORGET: LiteralString = "DELETE FROM storage_ids WHERE name = %s AND key = %s AND id = %s AND expires <= %s"
_UPDATE: LiteralString = "UPDATE storage SET data = %s, expires = %s, checksum = %s WHERE name = %s AND key = %s"
_DELETE: LiteralString = "DELETE FROM storage WHERE name = %s AND key = %s"
_WITH_PREFIX: LiteralString = "name = %s AND key >= %s AND key < %s"
_LAST: LiteralString = "AND (expires IS NULL OR expires > %s) ORDER BY key DESC LIMIT %s"
