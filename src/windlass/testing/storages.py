"""A storage for testing a hook or a tool alone."""

from __future__ import annotations

from windlass.protocols import Clock, Store
from windlass.storage import Home, Place, Storage
from windlass.stores import MemoryStore

from .clocks import FakeClock


def fake_storage(name: str = "test", *, clock: Clock | None = None, store: Store | None = None) -> Storage:
    """A storage without an agent, for calling a hook or tool as a plain function.

    Without a `store` its values are in memory, and without a `clock` it has a `FakeClock`. To test a whole capability,
    give it to an agent: `agent.storage(name)` reads what it stored.
    """
    return Storage(name, Home(Place(store or MemoryStore(), clock or FakeClock())))
