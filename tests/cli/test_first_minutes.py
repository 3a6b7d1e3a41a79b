"""The first five minutes of a new user, from an empty folder, on a real pseudo-terminal with a real model."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from windlass import ToolReturned, TurnEnded
from windlass.records import Asked
from windlass.stores import open_store

from .terminals import Terminal

PROJECT = Path(__file__).resolve().parents[2]
HAND = """
import asyncio
from pathlib import Path


async def lend(event):
    "The model is tiny: choose its tool, and let it answer when there is a file named go."
    first = event.request.messages[-1].role == "user"
    while not first and not Path("go").exists():
        await asyncio.sleep(0.02)
    return event.request.replace(settings={**event.request.settings, "tool_choice": "write" if first else "none"})
"""
HOOK = """
[settings]
temperature = 0
max_tokens = 120

[[hooks]]
verb = "rewrite"
event = "ModelCalling"
run = "hand:lend"
"""


@pytest.fixture
def windlass(tmp_path: Path) -> Path:
    """The command, installed from a copy of this tree into a fresh environment.

    Windlass is built and installed. The packages that it needs are those of this environment, so nothing is downloaded.
    """
    copy, fresh = tmp_path / "tree", tmp_path / "environment"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src"):
        whole = PROJECT / name
        copying: Any = shutil.copytree if whole.is_dir() else shutil.copy
        copy.mkdir(exist_ok=True)
        copying(whole, copy / name)
    venv.create(fresh, with_pip=False)
    site = next(fresh.glob("lib/python*/site-packages"))
    (site / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", str(fresh / "bin" / "python"), "install", *options]
    done = subprocess.run([*pip, f"{copy}[chat,local,tools]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(copy)
    where = subprocess.run(
        [fresh / "bin" / "python", "-c", "import windlass; print(windlass.__file__)"], capture_output=True, text=True
    )
    assert Path(where.stdout.strip()).is_relative_to(fresh), where
    return fresh / "bin" / "windlass"


def test_a_new_user_installs_talks_approves_crashes_resumes_and_looks_back(
    windlass: Path, weights: Path, tmp_path: Path, home: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()

    class Installed(Terminal):
        program = (str(windlass),)

    def on_terminal(*arguments: str, **options: Any) -> Terminal:
        return Installed(folder, *arguments, WINDLASS_MODEL="", **options)

    with on_terminal("init") as terminal:
        terminal.shows("What is the agent's name? [project]:").press("\r")
        terminal.shows("Which model? [local:smollm2]:").press("\r")
        terminal.shows("you are asked about each").shows("[read]:").press("write\r")
        terminal.shows("in your data folder").shows("[user]:").press("\r")
        assert terminal.ends() == 0
    assert "talk to the agent:  windlass chat" in terminal.screen

    (folder / "hand.py").write_text(HAND)
    with (folder / "agent.toml").open("a") as file:
        file.write(HOOK)
    with on_terminal("chat") as terminal:  # the file is not what it was when it was trusted
        assert terminal.ends() == 1
    assert "windlass trust" in terminal.screen
    with on_terminal("trust") as terminal:
        terminal.shows("runs hand:lend").shows("Trust it?").press("y\r")
        assert terminal.ends() == 0

    with on_terminal("chat", "--session", "first") as terminal:
        terminal.shows("tools: read, glob, grep, write").press("Write the word hello to the file hello.txt.\r")
        terminal.shows("Allow this call of write?").shows("[y]es, [a]lways")
        terminal.press("y\r").shows("← write: wrote").shows("continues")
        os.kill(terminal.child.pid, signal.SIGKILL)
        assert terminal.ends() == -9

    (folder / "go").touch()
    with on_terminal("chat", "--continue") as terminal:
        terminal.shows("1 turn so far").shows("the last turn is not over: it goes on").shows("first: ")
        assert "[y]es" not in terminal.screen
        terminal.press("/exit\r")
        assert terminal.ends() == 0
    with on_terminal("show", "first", rows=200) as terminal:
        assert terminal.ends() == 0
    for text in ("Write the word hello", "write", "approve", "hello.txt"):
        assert text in terminal.screen

    async def read() -> list[Any]:
        store = open_store(f"sqlite:///{home / 'data' / 'sessions.db'}")
        try:
            return list(await store.read("first"))
        finally:
            await store.close()

    records = asyncio.run(read())
    (asked,) = [record for record in records if isinstance(record, Asked)]
    assert asked.call is not None
    assert (folder / asked.call.arguments["path"]).read_text() == asked.call.arguments["content"]
    assert len([record for record in records if isinstance(record, ToolReturned)]) == 1
    assert isinstance(records[-1], TurnEnded)
