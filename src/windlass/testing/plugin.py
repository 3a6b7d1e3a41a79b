"""The pytest plugin: fixtures from the testing kit, available wherever Windlass is installed.

`-p no:windlass` disables it. A fixture of your own with the same name takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .cassettes import Cassette
    from .clocks import FakeClock
    from .models import ScriptedModel
    from .observers import RecordingObserver
    from .traces import HookTrace


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--cassettes`."""
    modes = "replay: never use the network; once: record missing cassettes; record: record all cassettes again"
    group = parser.getgroup("windlass")
    group.addoption("--cassettes", choices=("replay", "once", "record"), default="replay", help=modes)


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """The recorded traffic of this test: `AsyncOpenAI(http_client=cassette.client())`.

    It is stored without secrets in `cassettes/<file>/<test>.jsonl` beside the test file. `pytest --cassettes=once`
    records missing cassettes, `--cassettes=record` records all of them again. The test fails if it makes a request that
    is not on the cassette, or does not use a response.
    """
    from .cassettes import Cassette

    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    path = request.path.parent / "cassettes" / request.path.stem / f"{name}.jsonl"
    mode: Any = request.config.getoption("--cassettes")
    with Cassette(path, mode=mode) as tape:
        yield tape


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., ScriptedModel]]:
    """Makes scripted models: `scripted_model(calls("add", a=1), says("done"))`.

    After the test, each must have used its whole script, and none may have been called more often.
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
    """A clock that moves only when it is advanced: `Agent(clock=fake_clock)`."""
    from .clocks import FakeClock

    return FakeClock()


@pytest.fixture
def recording_observer() -> RecordingObserver:
    """An observer that records every fact: `agent.with_capability(recording_observer)`."""
    from .observers import RecordingObserver

    return RecordingObserver()


@pytest.fixture
def hook_trace() -> Callable[[Any, str], Awaitable[HookTrace]]:
    """Reads what the hooks did in a session: `await hook_trace(agent, "s1")`."""
    from .traces import HookTrace

    return HookTrace.read
