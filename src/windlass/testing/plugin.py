"""The pytest plugin: fixtures from the testing kit, found by themselves where Windlass is installed.

`-p no:windlass` leaves them out. A fixture of your own with the same name comes first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .clocks import FakeClock
    from .models import ScriptedModel
    from .observers import RecordingObserver
    from .traces import HookTrace


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., ScriptedModel]]:
    """Makes scripted models: `scripted_model(calls("add", a=1), says("done"))`.

    When the test is over, each must have used its whole script, and none may have been asked for more.
    """
    from .models import ScriptedModel

    models: list[ScriptedModel] = []

    def make(*replies: Any, **options: Any) -> ScriptedModel:
        models.append(ScriptedModel(*replies, **options))
        return models[-1]

    yield make
    for model in models:
        model.assert_done()


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock on which time passes only when it is advanced: `Agent(clock=fake_clock)`."""
    from .clocks import FakeClock

    return FakeClock()


@pytest.fixture
def recording_observer() -> RecordingObserver:
    """An observer that keeps every fact: `agent.with_capability(recording_observer)`."""
    from .observers import RecordingObserver

    return RecordingObserver()


@pytest.fixture
def hook_trace() -> Callable[[Any, str], Awaitable[HookTrace]]:
    """Reads what the hooks did in a session: `await hook_trace(agent, "s1")`."""
    from .traces import HookTrace

    return HookTrace.read
