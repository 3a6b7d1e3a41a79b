"""Objects that all agents of a process share: made once, on first use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from windlass.errors import ConfigError

T = TypeVar("T")


class Shared(Generic[T]):
    """An object of this process, for example a connection pool or a rate limiter. Calling it returns the object.

    The first call makes the object, in any thread; a forked process makes its own. It lives until the process ends. It
    must be safe to use from all threads and sessions at once.
    """

    __slots__ = ("_factory", "_key")

    def __init__(self, factory: Callable[[], T], name: str | None) -> None:
        self._factory = factory
        self._key: Hashable = factory if name is None else name
        with _Locks.objects:
            known = _FACTORIES.setdefault(self._key, factory)
        if known != factory:
            raise ConfigError(
                f"two factories share the name {name!r}: {known!r} and {factory!r}; rename one of them"
            )

    def __call__(self) -> T:
        found: T
        objects = _places[-1]()
        try:
            found = objects[self._key]
        except KeyError:
            with _Locks.objects:
                if self._key not in objects:
                    objects[self._key] = self._factory()
                found = objects[self._key]
        return found


class _Locks:
    """The lock of the objects. A forked process gets a new one: no thread of its own holds the old one."""

    objects = threading.RLock()


_FACTORIES: dict[Hashable, Callable[[], Any]] = {}
_OBJECTS: dict[Hashable, Any] = {}
_places: list[Callable[[], dict[Hashable, Any]]] = [lambda: _OBJECTS]


@contextmanager
def use_objects(place: Callable[[], dict[Hashable, Any]]) -> Generator[None, None, None]:
    """Keep the objects elsewhere within a block: a simulation has several processes in one."""
    _places.append(place)
    try:
        yield
    finally:
        _places.remove(place)


def _forget_in_child() -> None:
    """A forked process does not use the connections and locks of its parent."""
    _Locks.objects = threading.RLock()
    _OBJECTS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
