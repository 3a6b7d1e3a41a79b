"""Where logs are kept."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError

from .memory import MemoryStore

if TYPE_CHECKING:
    from windlass.protocols import Store

    from .postgres import PostgresStore
    from .sqlite import SQLiteStore

__all__ = ["MemoryStore", "SQLiteStore", "PostgresStore", "open_store"]

_LAZY = {"SQLiteStore": ".sqlite", "PostgresStore": ".postgres"}


def __getattr__(name: str) -> Any:
    """The stores that not every program needs: imported when they are asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)


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
