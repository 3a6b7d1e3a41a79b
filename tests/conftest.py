"""What all tests share."""

import gc
import os
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from windlass import Agent
from windlass._hooks import dispatch, observers
from windlass._kernel import shields
from windlass.stores import waiting

from .ran import Ran
from .servers.llama import llama, weights
from .servers.postgres import database, postgres
from .servers.temporal import temporal

# An opt-in check with a program of 850 MB: `make phoenix` sets the variable.
collect_ignore = [] if os.environ.get("WINDLASS_PHOENIX") else ["capabilities/test_phoenix.py"]

__all__ = ["database", "llama", "postgres", "temporal", "weights"]


@pytest.fixture
def ran() -> Ran:
    return Ran()


# A slow machine is no failure, and a run can be repeated.
settings.register_profile(
    "windlass", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("windlass")


def pytest_collection_finish() -> None:
    """Let the collector ignore the modules that the tests import: they stay, and looking at them takes long."""
    gc.freeze()


# A machine that stalls must not look like a hook that blocks,
dispatch.BLOCKED_AFTER = observers.BLOCKED_AFTER = 2.0

# like a store that does not answer a cancelled turn,
shields.STORE_PATIENCE = waiting.PATIENCE = 20.0


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled turn waits for its store as long as it does in earnest."""
    monkeypatch.setattr(shields, "STORE_PATIENCE", 1.0)
    monkeypatch.setattr(waiting, "PATIENCE", 1.0)


# nor like an observer that is too slow for the end of its turn.
_init = Agent.__init__


@wraps(_init)
def _patient(self: Any, *given: Any, **options: Any) -> None:
    _init(self, *given, **{"observer_patience": 50.0, **options})


Agent.__init__ = _patient  # type: ignore[method-assign]
