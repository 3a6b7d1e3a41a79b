"""Where logs are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.errors import ConfigError

from .memory import MemoryStore

if TYPE_CHECKING:
    from windlass.protocols import Store

__all__ = ["MemoryStore", "open_store"]


def open_store(where: str | Store | None) -> Store:
    """A store from its address (`"memory:"`), or the store itself."""
    if where is None or where == "memory:":
        return MemoryStore()
    if isinstance(where, str):
        raise ConfigError(f"no store is known for {where!r}; known is 'memory:', or pass a Store")
    return where
