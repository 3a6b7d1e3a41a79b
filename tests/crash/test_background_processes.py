"""A background child and several processes: one drives it, and if that one dies another goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windlass.errors import SessionBusy
from windlass.records import Delegated, InboxTaken, Resumed, TakenOver, TurnEnded

from . import background_workers
from .background_workers import make


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, background_workers.__file__, str(folder)], env=environment)


async def has_begun(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the turn of the process has ended, and its background child is at work."""
    until = time.monotonic() + 60
    while not ((folder / "ended").exists() and (folder / "began").exists()):
        assert process.poll() is None, "the process failed"
        assert time.monotonic() < until, "it did not begin"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("dies", [False, True], ids=["alive", "killed"])
async def test_a_child_is_driven_by_one_process_and_continued_if_that_one_dies(tmp_path: Path, dies: bool):
    process = start(tmp_path)
    try:
        await has_begun(process, tmp_path)
        if dies:
            process.kill()
            process.wait()
        async with make(tmp_path) as agent:
            [task] = await agent.resume_background("s")
            (tmp_path / "go").touch()
            assert (await task.result()).text == "helped"
            if not dies:
                assert process.wait(60) == 0
            await agent.aclose()
        async with make(tmp_path) as agent:
            result = await agent.run("and?", session="s")
            log = await agent.store.read("s")
            child = await agent.store.read(task.session)
        assert [message.text.endswith("helped") for message in result.messages if message.origin == "child"] == [True]
        assert sum(isinstance(record, InboxTaken) for record in log) == 1
        assert sum(isinstance(record, Delegated) for record in log) == 1
        assert any(isinstance(record, Resumed) for record in child) is dies
        assert (tmp_path / "sent").read_text() == "sent\n"
    finally:
        process.kill()
        process.wait()


async def test_a_child_that_another_process_drives_is_taken_over_only_if_that_is_said(tmp_path: Path):
    process = start(tmp_path)
    try:
        await has_begun(process, tmp_path)
        async with make(tmp_path) as agent:
            [session] = [record.session for record in await agent.store.read("s") if isinstance(record, Delegated)]
            with pytest.raises(SessionBusy, match=f"process {process.pid} on .*takeover=True"):
                await agent.resume(session)
            process.send_signal(signal.SIGSTOP)
            (tmp_path / "go").touch()
            result = await agent.resume(session, takeover=True)
            process.send_signal(signal.SIGCONT)
            assert result.text == "helped"
            assert process.wait(60) == 0
            child = await agent.store.read(session)
        assert [str(process.pid) in record.owner for record in child if isinstance(record, TakenOver)] == [True]
        assert [type(record) for record in child].count(TurnEnded) == 1
        assert (tmp_path / "sent").read_text() == "sent\n"
    finally:
        process.kill()
        process.wait()


async def test_a_child_that_this_process_drives_can_be_taken_over(tmp_path: Path):
    async with make(tmp_path) as agent:
        await agent.run("go", session="s")
        [session] = [record.session for record in await agent.store.read("s") if isinstance(record, Delegated)]
        while not (tmp_path / "began").exists():  # noqa: ASYNC110 — the model makes it
            await asyncio.sleep(0.005)
        resumed = asyncio.create_task(agent.resume(session, takeover=True))
        while not any(isinstance(record, TakenOver) for record in await agent.store.read(session)):
            assert not resumed.done() or resumed.result() is None
            await asyncio.sleep(0.005)
        (tmp_path / "go").touch()
        assert (await resumed).text == "helped"
        child = await agent.store.read(session)
    assert [type(record) for record in child].count(TurnEnded) == 1
    assert (tmp_path / "sent").read_text() == "sent\n"
