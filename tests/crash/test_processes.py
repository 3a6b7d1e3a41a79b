"""Several processes and one session: one advances it, a stalled one cannot, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from windlass import Completed, StopReason, Suspended, fold
from windlass.errors import SessionBusy
from windlass.records import Resumed, TurnStarted
from windlass.testing import unpaired

from . import children
from .children import lines, restless, store_in, working

SOAK = float(os.environ.get("WINDLASS_SOAK_SECONDS", "4"))


Child: TypeAlias = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """Starts processes that work in the folder of the test; none outlives it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started: list[subprocess.Popen[bytes]] = []

    def start(what: str, *rest: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, children.__file__, what, str(tmp_path), *rest]
        started.append(subprocess.Popen(command, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["send", "pay"])
async def test_a_started_call_is_repeated_only_if_its_tool_is_idempotent(tmp_path, child, name):
    """Behaviour 99: an unsafe call without a result is of unknown outcome, an idempotent one is repeated by its key."""
    assert child("die", name).wait() == -signal.SIGKILL
    store = store_in(tmp_path)
    result = await working(tmp_path, store).resume("s")
    await store.close()
    done = result.messages[-2].parts[0]
    if name == "send":
        assert (done.status, lines(tmp_path / "effects")) == ("interrupted", ["send "])
        assert "outcome unknown" in done.content[0].text
    else:
        assert (done.status, lines(tmp_path / "effects")) == ("ok", ["pay s/1/1", "pay s/1/1"])
    assert (result.text, result.outcome) == ("done", Completed())


@pytest.mark.parametrize("message", ["", "send"], ids=["resume", "begin"])
async def test_of_several_processes_exactly_one_advances_the_session(tmp_path, child, message):
    """Behaviour 100: two processes that go on with one session at once: one advances it, the others are refused."""
    store = store_in(tmp_path)
    if not message:
        suspended = await working(tmp_path, store).run("sign", session="s")
        assert isinstance(suspended.outcome, Suspended)
    racers = [child("race", str(number), message) for number in range(3)]
    wait_until(lambda: len(lines(tmp_path / "ready")) == len(racers), racers)
    (tmp_path / "go").touch()
    assert [racer.wait() for racer in racers] == [0, 0, 0]
    ends = sorted(lines(tmp_path / "ends"))
    assert ends[0] == "Completed"
    assert {end.partition(":")[0] for end in ends[1:]} <= {"SessionBusy", "SessionConflict", "NotSuspended"}
    assert all(re.search("running in another process|was taken over|advanced it|to resume", end) for end in ends[1:])
    assert len(lines(tmp_path / "effects")) == 1
    log = await store.read("s")
    await store.verify("s")
    await store.close()
    assert sum(isinstance(record, Resumed) for record in log) == (0 if message else 1)
    assert sum(isinstance(record, TurnStarted) for record in log) == 1


async def test_a_stalled_process_that_wakes_up_cannot_write(tmp_path, child):
    """Behaviour 100: whoever slept while another went on has lost the session."""
    sleeper = child("stall")
    _, status = os.waitpid(sleeper.pid, os.WUNTRACED)  # noqa: ASYNC222 — nothing else runs here
    assert os.WIFSTOPPED(status)
    store = store_in(tmp_path)
    agent = working(tmp_path, store)
    with pytest.raises(SessionBusy, match=rf"running in another process \(process {sleeper.pid} on "):
        await agent.resume("s")
    result = await agent.resume("s", takeover=True)
    assert result.outcome == Completed()
    before = await store.read("s")
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait() == 0
    [end] = lines(tmp_path / "ends")
    assert end.startswith("SessionConflict")
    assert await store.read("s") == before
    assert (await agent.run("pay", session="s")).outcome == Completed()
    await store.verify("s")
    await store.close()


async def test_a_message_outlives_its_process_before_the_model_has_said_anything(tmp_path, child):
    """Behaviour 98: killed while the first model call of a session is under way, the turn can be gone on with."""
    thinker = child("ponder")
    wait_until(lambda: lines(tmp_path / "asked"), [thinker])
    thinker.kill()
    assert thinker.wait() == -signal.SIGKILL
    store = store_in(tmp_path)
    result = await working(tmp_path, store).resume("s")
    log = await store.read("s")
    await store.close()
    assert [message.text for message in result.messages if message.role == "user"] == ["send"]
    assert (result.outcome, lines(tmp_path / "effects")) == (Completed(), ["send "])
    assert sum(isinstance(record, TurnStarted) for record in log) == 1


async def test_a_new_session_is_found_and_cancelled_from_another_process_while_its_model_thinks(tmp_path, child):
    """Behaviour 100: others reach a session through its inbox from the moment it begins."""
    thinker = child("ponder")
    wait_until(lambda: lines(tmp_path / "asked"), [thinker])
    store = store_in(tmp_path)
    agent = working(tmp_path, store)
    assert await agent.cancel("s", "not needed any more")
    (tmp_path / "go").touch()
    assert thinker.wait() == 0
    assert lines(tmp_path / "ends") == ["Cancelled"]
    assert (await agent.state("s")).turn.outcome.reason == "not needed any more"
    await store.close()


@pytest.mark.timeout(SOAK + 300)
async def test_nothing_acknowledged_is_lost_whoever_is_killed(tmp_path, child):
    """Behaviour 98: eight processes on one file, killed at random; every acknowledged record is there, every chain
    holds, and every session can be gone on with."""
    assert child("soak", str(SOAK)).wait() == 0
    assert lines(tmp_path / "errors") == []
    assert int(lines(tmp_path / "born")[0]) > 8
    store = store_in(tmp_path)
    sessions = await store.sessions()
    stored = {}
    for session in sessions:
        await store.verify(session)
        kept = [line for batch in await store.batches(session) for line in batch.lines.split(b"\n")]
        stored[session] = [children.digest_of(line) for line in kept]
    acknowledged = [line for path in tmp_path.glob("acknowledged-*") for line in lines(path)]
    assert len(acknowledged) > 50
    lost = [line for line in acknowledged if not is_there(line, stored)]
    assert lost == []
    agent = restless(store)
    open_ones = [session for session in sessions if not fold(session, await store.read(session)).over]
    for session in open_ones:
        result = await agent.resume(session)
        assert result.outcome == Completed() or result.stop_reason is StopReason.CRASH_LOOP
    for session in sessions:
        assert unpaired(fold(session, await store.read(session)).messages) == []
    await store.close()


def is_there(line: str, stored: dict[str, list[str]]) -> bool:
    session, start, *digests = line.split(" ")
    return stored[session][int(start) : int(start) + len(digests)] == digests


def wait_until(holds: Any, running: list[subprocess.Popen[bytes]]) -> None:
    """Wait for something that other processes do; none of them may end meanwhile."""
    while not holds():
        assert all(process.poll() is None for process in running), "a process has ended too early"
        time.sleep(0.005)
