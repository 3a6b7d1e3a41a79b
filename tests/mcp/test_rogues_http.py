"""Servers over HTTP that flood, hang, break off or answer nonsense: an error of the call, and the agent goes on."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from windlass.mcp import MCP
from windlass.testing import calls

from .plays import agent_with, results_of

Rogue = Callable[[str], MCP]
SCRIPT = str(Path(__file__).with_name("servers") / "rogue_http.py")


@pytest.fixture
def rogue() -> Iterator[Rogue]:
    with ExitStack() as stack:

        def start(how: str) -> MCP:
            command = [sys.executable, SCRIPT, how]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            port = int(process.stdout.readline())
            return MCP("rogue", url=f"http://127.0.0.1:{port}/mcp", max_message=200_000, timeout=3.0, cache=False)

        yield start


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("endless_json", "error"),
        ("endless_event", "error"),
        ("endless_comments", "interrupted"),
        ("garbage", "error"),
        ("web_page", "error"),
        ("cut_off", "error"),
        ("fails", "error"),
        ("redirects", "error"),
        ("hangs", "interrupted"),
        ("many_events", "ok"),
    ],
)
async def test_what_a_server_does_wrong_is_an_error_of_the_call(rogue: Rogue, how: str, status: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = [calls("rogue__go"), calls("rogue__fine")]
    async with agent_with(rogue(how), script=script) as agent:
        result, after = await results_of(agent)
    assert result.status == status, result.text
    assert (after.status, after.text) == ("ok", "fine")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB: a flood is not kept
