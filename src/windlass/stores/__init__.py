"""Where logs are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.errors import ConfigError

from .memory import MemoryStore

if TYPE_CHECKING:
    from windlass.protocols import Store

__all__ = ["MemoryStore", "open_store"]


def open_store(where: str | Store | None) -> Store:
    """A store from its address — `memory:`, `sqlite:///file.db`, `postgresql://…` — or the store itself."""
    if where is None or where == "memory:":
        return MemoryStore()
    if not isinstance(where, str):
        return where
    if where.startswith("sqlite:///") and len(where) > len("sqlite:///"):
        from .sqlite import SQLiteStore

        return SQLiteStore(where.removeprefix("sqlite:///"))
    if where.startswith(("postgresql://", "postgres://")):
        from .postgres import PostgresStore

        return PostgresStore(where)
    raise ConfigError(
        f"no store is known for {where!r}; known are 'memory:', 'sqlite:///file.db' (four slashes for an absolute "
        "path), 'postgresql://user@host/database', or pass a Store"
    )
