"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PROJECT = Path(__file__).resolve().parents[2]
INSTALLED = any(entry.value == "windlass.testing.plugin" for entry in entry_points(group="pytest11"))


@pytest.fixture
def outcomes_of(pytester):
    """Runs the tests in a text, and gives their outcomes and what was printed."""

    def run(text: str) -> tuple[dict[str, int], str]:
        pytester.makepyfile(text)
        plugin = [] if INSTALLED else ["-p", "windlass.testing.plugin"]
        result = pytester.runpytest_inprocess(*plugin, "-p", "no:cacheprovider", "-p", "no:asyncio")
        return result.parseoutcomes(), result.stdout.str()

    return run


def test_it_is_found_where_windlass_is_installed():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"windlass": "windlass.testing.plugin"}
    assert {name.partition(">")[0] for name in project["optional-dependencies"]["testing"]} == {
        "httpx2",
        "hypothesis",
        "pytest",
    }


def test_its_fixtures_make_a_test(outcomes_of):
    outcomes, _ = outcomes_of(
        """
        import asyncio
        from windlass import Agent, ToolReturned, tool
        from windlass.testing import calls, says

        @tool(effect="pure", inline=True)
        def add(a: int, b: int) -> int:
            '''Add two numbers.'''
            return a + b

        def test_adding(scripted_model, fake_clock, recording_observer, hook_trace):
            model = scripted_model(calls("add", a=1, b=2), says("3"), clock=fake_clock)
            agent = Agent(model, tools=[add], clock=fake_clock).with_capability(recording_observer)
            assert agent.run_sync("1 + 2?", session="s").text == "3"
            [returned] = recording_observer.of(ToolReturned)
            assert returned.at == fake_clock.now()
            assert asyncio.run(hook_trace(agent, "s")).of("Continuing")
        """
    )
    assert outcomes == {"passed": 1}


@pytest.mark.parametrize(
    ("asked", "why"),
    [(0, "asked 0 times; 1 replies are left"), (2, "was asked 2 times, its script has 1 replies")],
)
def test_a_model_that_is_not_done_fails_the_test_at_its_end(outcomes_of, asked, why):
    outcomes, printed = outcomes_of(
        f"""
        from windlass import Agent

        def test_asking(scripted_model):
            agent = Agent(scripted_model("one"))
            for _ in range({asked}):
                agent.run_sync("go")
        """
    )
    assert outcomes == {"passed": 1, "errors": 1}
    assert why in printed


def test_each_test_gets_its_own(outcomes_of):
    outcomes, _ = outcomes_of(
        """
        import pytest

        seen = []

        @pytest.mark.parametrize("number", [1, 2])
        def test_one(fake_clock, recording_observer, number):
            fake_clock.tick(number)
            assert fake_clock.monotonic() == number
            assert all(other is not recording_observer for other in seen)
            seen.append(recording_observer)
        """
    )
    assert outcomes == {"passed": 2}


def test_the_fixtures_are_listed_with_what_they_are_for(pytester):
    plugin = [] if INSTALLED else ["-p", "windlass.testing.plugin"]
    printed = pytester.runpytest_inprocess(
        *plugin, "--fixtures", "-p", "no:cacheprovider", "-p", "no:asyncio"
    ).stdout.str()
    for name in ("scripted_model", "fake_clock", "recording_observer", "hook_trace"):
        assert name in printed
    assert "A clock on which time passes only when it is advanced" in printed
