"""An agent file with the whole tool pack fixes a failing test: by `run`, in a fork, after kill -9, over HTTP, by MCP.

The model is a script behind a vendor's real protocol, and once a real model on this machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from mcp.client.stdio import StdioServerParameters
from tests.servers.vendor import Reply, Vendor

from mcp import Client
from windlass import TurnEnded
from windlass.outcomes import Completed
from windlass.records import ModelReplied, Record, ToolCalled, ToolDecided, ToolReturned
from windlass.stores import open_store

from .terminals import Terminal

TEST = "python3 test_calc.py"
FIX: tuple[Reply, ...] = (
    ("write_todos", {"items": [{"text": "fix add", "status": "in_progress"}]}),
    ("glob", {"pattern": "**/*.py"}),
    ("grep", {"pattern": "def add"}),
    ("shell", {"command": TEST}),
    ("read", {"path": "calc.py"}),
    ("edit", {"path": "calc.py", "old": "a - b", "new": "a + b  # fixed"}),  # of another size: see Python's caches
    ("shell", {"command": TEST}),
    ("shell", {"command": f"{TEST} && rm -rf ../beside"}),
    ("write", {"path": "../beside/new", "content": "x"}),
    ("multi_edit", {"path": "/etc/hosts", "edits": [{"old": "a", "new": "b"}]}),
    ("fetch", {"url": "http://127.0.0.1/"}),
    "Fixed.",
)
STATUS = [
    ("write_todos", "ok"),
    ("glob", "ok"),
    ("grep", "ok"),
    ("shell", "ok"),
    ("read", "ok"),
    ("edit", "ok"),
    ("shell", "ok"),
    ("shell", "denied"),
    ("write", "error"),
    ("multi_edit", "error"),
    ("fetch", "error"),
]
FILE = """
name = "fixer"
model = "MODEL"
store = "sqlite:///windlass.db"

[workspace]
root = "repository"
fetch = ["docs.python.org"]

[capabilities.planning]

[capabilities.offload]

[capabilities.permissions]
band = "guard"
allow = [
  "read", "glob", "grep", "edit", "multi_edit", "write", "fetch", "write_todos", "shell(python3 test_calc.py)",
]
unmatched = "deny"
"""
WINDLASS = [sys.executable, "-m", "windlass"]
RUN = [*WINDLASS, "run", "--agent", "fixer.toml", "--session", "s1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "repository").mkdir()
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "kept").write_text("kept")
    (tmp_path / "fixer.toml").write_text(FILE.replace("MODEL", "openai-chat:scripted"))
    break_it(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return tmp_path


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    with Vendor(*FIX).serving() as serving:
        monkeypatch.setenv("OPENAI_BASE_URL", serving.url)
        yield serving


def break_it(folder: Path) -> None:
    """Write the program with its mistake, and its test."""
    (folder / "repository" / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    test = "from calc import add\nassert add(2, 3) == 5\nprint('passed')\n"
    (folder / "repository" / "test_calc.py").write_text(test)


def last_turn(session: str) -> list[Record]:
    """The records of the last turn of a session."""

    async def read() -> list[Record]:
        store = open_store("sqlite:///windlass.db")
        try:
            return list(await store.read(session))
        finally:
            await store.close()

    records = asyncio.run(read())
    starts = [at for at, record in enumerate(records) if type(record).__name__ == "TurnStarted"]
    return records[starts[-1] :]


def check(folder: Path, session: str) -> None:
    """The test was fixed, nothing happened outside of the repository, and every call was judged."""
    turn = last_turn(session)
    assert isinstance(turn[-1], TurnEnded)
    assert isinstance(turn[-1].outcome, Completed)
    returned = [record for record in turn if isinstance(record, ToolReturned)]
    assert [(record.name, record.result.status) for record in returned] == STATUS
    before, after = [record.result.text for record in returned if record.name == "shell"][:2]
    assert "AssertionError" in before
    assert after == "passed"
    calls = [call.id for record in turn if isinstance(record, ModelReplied) for call in record.reply.tool_calls]
    judged = {record.call: dict(record.answers) for record in turn if isinstance(record, ToolDecided)}
    assert list(judged) == calls
    assert all("permissions" in answers for answers in judged.values())
    called = [record.call for record in turn if isinstance(record, ToolCalled)]
    assert sorted(called) == sorted(set(called))
    assert "a + b" in (folder / "repository" / "calc.py").read_text()
    assert os.listdir(folder / "beside") == ["kept"]


def test_from_the_command_line(vendor: Vendor, folder: Path):
    done = subprocess.run([*RUN, "Fix the test."], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Fixed.\n"), done.stderr
    check(folder, "s1")


def test_in_a_fork(vendor: Vendor, folder: Path):
    with Terminal(folder, "chat", "--agent", "fixer.toml", "--session", "s1") as terminal:
        terminal.press("Fix the test.\r").shows("s1: completed")
        check(folder, "s1")
        break_it(folder)
        terminal.press("/fork s2\r").shows("session s2")
        terminal.press("Fix the test again.\r").shows("s2: completed").press("/exit\r")
        assert terminal.ends() == 0
    check(folder, "s2")


@pytest.mark.parametrize("at", [4, 6, 11])
def test_after_kill_9(vendor: Vendor, folder: Path, at: int):
    vendor.held = at
    with subprocess.Popen([*RUN, "Fix the test."], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        assert vendor.holds.wait(60)
        os.kill(process.pid, signal.SIGKILL)
    vendor.held = None
    done = subprocess.run(RUN, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Fixed.\n"), done.stderr
    check(folder, "s1")
    assert len(vendor.asked) == len(FIX) + 1


def test_over_http(vendor: Vendor, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WINDLASS_TOKEN", "a-token-of-24-characters")
    with subprocess.Popen(
        [*WINDLASS, "serve", "fixer.toml", "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        address = next(line.split()[-1] for line in process.stderr if line.startswith("listening"))
        headers = {"authorization": "Bearer a-token-of-24-characters"}
        with httpx2.Client(base_url=address, headers=headers, timeout=120, trust_env=False) as client:
            body = {"message": "Fix the test.", "session": "s1"}
            done = client.post("/agents/fixer/turns", json=body).json()
        process.terminate()
        process.wait(60)
    assert (done["status"], done["text"]) == ("completed", "Fixed.")
    check(folder, "s1")


async def test_as_an_mcp_server(vendor: Vendor, folder: Path):
    environment = {name: os.environ[name] for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "WINDLASS_HOME", "PATH")}
    served = StdioServerParameters(
        command=sys.executable, args=["-m", "windlass", "serve-mcp", "fixer.toml"], env=environment, cwd=folder
    )
    async with Client(served) as client:
        done = await client.call_tool("run", {"message": "Fix the test.", "session": "s1"})
    assert done.content[0].text == "Fixed."
    await asyncio.to_thread(check, folder, "s1")


HAND = """
CALLS = (
    ("read", {"path": "calc.py"}),
    ("edit", {"path": "calc.py", "old": "a - b", "new": "a + b  # fixed"}),
    ("shell", {"command": "python3 test_calc.py"}),
)


def choose(event):
    "The model is tiny: say which tool it has to call next."
    done = sum(message.role == "assistant" for message in event.request.messages)
    choice = CALLS[done][0] if done < len(CALLS) else "none"
    return event.request.replace(settings={**event.request.settings, "tool_choice": choice})


def correct(event):
    "Give its call the right arguments."
    return event.call.replace(arguments=dict(CALLS)[event.call.name])
"""
HOOKS = """
[settings]
temperature = 0
max_tokens = 120

[[hooks]]
verb = "rewrite"
event = "ModelCalling"
run = "hand:choose"

[[hooks]]
verb = "rewrite"
event = "ToolCalling"
run = "hand:correct"
"""


def test_with_a_real_model_that_is_led(folder: Path, weights: Path):
    (folder / "hand.py").write_text(HAND)
    (folder / "fixer.toml").write_text(FILE.replace("MODEL", "local:smollm2") + HOOKS)
    done = subprocess.run([*RUN, "Fix add in calc.py."], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr  # it may talk until its limit
    returned = [record for record in last_turn("s1") if isinstance(record, ToolReturned)]
    assert [(record.name, record.result.status) for record in returned] == [
        ("read", "ok"), ("edit", "ok"), ("shell", "ok")
    ]  # fmt: skip
    assert returned[-1].result.text == "passed"
