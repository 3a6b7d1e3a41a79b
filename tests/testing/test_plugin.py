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

    def run(text: str, *options: str) -> tuple[dict[str, int], str]:
        pytester.makepyfile(text)
        plugin = [] if INSTALLED else ["-p", "windlass.testing.plugin"]
        result = pytester.runpytest_inprocess(*plugin, "-p", "no:cacheprovider", "-p", "no:asyncio", *options)
        return result.parseoutcomes(), result.stdout.str()

    return run


def test_it_is_found_where_windlass_is_installed():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"windlass": "windlass.testing.plugin"}
    needed = {name.partition(">")[0] for name in project["optional-dependencies"]["testing"]}
    assert needed == {"hypothesis", "httpx2", "pytest"}


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
    [(0, "called 0 times; 1 replies are left"), (2, "was called 2 times, but its script has 1 replies")],
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
    assert "A clock that moves only when it is advanced" in printed


TALKING = """
import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest


class Vendor(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"said": "hello"}}')

    def log_message(self, *args):
        pass


async def ask(cassette, url):
    async with cassette.client() as client:
        headers = {{"authorization": "Bearer sesame-sesame"}}
        return (await client.post(url, json={{"say": "{say}"}}, headers=headers)).json()


@pytest.mark.parametrize("word", ["a b"])
def test_talking(cassette, word):
    with HTTPServer(("127.0.0.1", 0), Vendor) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={{"poll_interval": 0.01}})
        thread.start()
        try:
            for _ in range({times}):
                assert asyncio.run(ask(cassette, f"http://127.0.0.1:{{server.server_port}}/v1")) == {{"said": "hello"}}
        finally:
            server.shutdown()
            thread.join()
"""


def test_a_cassette_is_recorded_on_request_and_then_replayed(outcomes_of, pytester):
    outcomes, printed = outcomes_of(TALKING.format(say="hi", times=1))
    assert "record it with" in printed
    assert outcomes == {"errors": 1}
    assert outcomes_of(TALKING.format(say="hi", times=1), "--cassettes=once")[0] == {"passed": 1}
    [written] = (pytester.path / "cassettes").rglob("*.jsonl")
    assert written.name == "test_talking-a-b.jsonl"
    assert "sesame" not in written.read_text(encoding="utf-8")
    assert outcomes_of(TALKING.format(say="hi", times=1))[0] == {"passed": 1}


@pytest.mark.parametrize(
    ("say", "times", "why"),
    [("ho", 1, "is not on the cassette"), ("hi", 2, "all its responses are used"), ("hi", 0, "were not used")],
)
def test_a_test_that_asks_for_other_things_than_its_cassette_has_fails(outcomes_of, say, times, why):
    outcomes_of(TALKING.format(say="hi", times=1), "--cassettes=record")
    outcomes, printed = outcomes_of(TALKING.format(say=say, times=times))
    assert outcomes.get("passed", 0) + outcomes.get("failed", 0) == 1
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) >= 1
    assert why in printed
