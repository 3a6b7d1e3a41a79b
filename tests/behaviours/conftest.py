"""What the behaviour tests share: a clock that moves only when it is told to, or slept on."""

from __future__ import annotations

import pytest

from windlass.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000.0, auto=True)
