"""Which part of the campaign runs: a sample in CI, all of it with `make attack`."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

import pytest

from .arena import OPEN

T = TypeVar("T")
WHOLE = bool(os.environ.get("WINDLASS_ATTACK"))


def sample(cells: Iterable[T], share: float, seed: int = 12) -> list[T]:
    """The cells that run: all of them in the whole campaign, else the same share in every process."""
    found = list(cells)
    if WHOLE:
        return found
    return random.Random(seed).sample(found, max(1, int(len(found) * share)))


@pytest.fixture(autouse=True)
async def closed_arenas() -> AsyncIterator[None]:
    """Close what a test has opened."""
    yield
    while OPEN:
        await OPEN.pop().close()
