"""The port for chance: random bytes for ids, and the jitter of waits, from a source that a simulation may replace."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol


class Randomness(Protocol):
    """A source of chance, such as `random.Random(seed)`."""

    def randbytes(self, n: int, /) -> bytes: ...

    def random(self) -> float: ...


def random_bytes(count: int) -> bytes:
    """Random bytes for an id that nobody else may have. Stores have their own, for keys and nonces."""
    return _sources[-1].randbytes(count) if _sources else os.urandom(count)


def random_fraction() -> float:
    """A random number, at least 0 and below 1, to spread waits."""
    if _sources:
        return _sources[-1].random()
    from random import random  # which `import windlass` does without

    return random()


@contextmanager
def use_randomness(source: Randomness) -> Generator[None, None, None]:
    """Take chance from another source within a block, in the whole process."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


_sources: list[Randomness] = []
