"""Crash points: a scenario is killed wherever it writes, resumed by another process, and must come out the same."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from windlass.agent import Agent
from windlass.errors import ConfigError

from .ways import Answers, agreeable
from .worlds import World


class Scenario:
    """What is played: an agent with the world's store, the messages it is sent, and how its questions are answered.

    `answers` is one answer for all, a function of what is asked, or None to leave a turn suspended: then the next
    message is sent. With `stream` the turns are streamed.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        messages: str | Sequence[str] = "go",
        *,
        answers: Answers = agreeable,
        stream: bool = False,
        scope: Any = None,
    ) -> None:
        self.agent = agent
        self.messages = (messages,) if isinstance(messages, str) else tuple(messages)
        self.answers = answers
        self.stream = stream
        self.scope = scope


Play = Callable[[World], Scenario | Agent[Any, Any]]

ROOM = 1 << 30
"""So many bytes must be free in memory for the folders of all runs: a container may have very few."""


class CrashPoint(Struct, frozen=True):
    """One place at which the scenario was killed, and what was wrong afterwards.

    `reached` is false if the process was through before: what runs side by side does not always write in one order.
    """

    where: str
    violations: tuple[str, ...] = ()
    reached: bool = True


class CrashReport(Struct, frozen=True):
    """All places at which a scenario was killed; and what it writes, and comes to, when nobody kills it."""

    scenario: str
    outcome: str
    text: str
    writes: tuple[str, ...]
    points: tuple[CrashPoint, ...]

    @property
    def violations(self) -> list[str]:
        """What was wrong, and where."""
        return [f"{point.where}: {wrong}" for point in self.points for wrong in point.violations]

    def __str__(self) -> str:
        head = f"{self.scenario}: killed at {len(self.points)} points, {len(self.violations)} violations"
        return "\n".join([head, *[f"- {violation}" for violation in self.violations]])


class Job(Struct, frozen=True):
    """What the process is told that kills the others."""

    target: str
    path: list[str]
    folder: str
    store: str | None = None
    crashes: int = 1
    exact: bool = True
    workers: int = 2
    timeout: int = 30


def crash_points(
    scenario: str | Play,
    *,
    store: str | None = None,
    crashes: int = 1,
    exact: bool = True,
    workers: int | None = None,
    timeout: int = 30,
) -> CrashReport:
    """Kill a scenario wherever it matters, resume it in a new process, and fail unless it comes out the same.

    The scenario is a function of a `World` that builds an agent with the world's store and returns it, or a `Scenario`;
    it is defined in a file, or named as `module:function` or `file.py:function`. It is played once to its end. Then,
    for every write to the store, it is played in a process that is killed with SIGKILL right before that write, in
    another that is killed right after it, and likewise after every effect and every model call. A new process goes on
    from what the store holds: an open turn is resumed, a message that left no trace is sent again. Afterwards

    - outcome and text are those of the run that nobody killed, and so are transcript and slots, but for the results of
      calls whose outcome is not known and what those calls wrote (with `exact=False` only outcome and text are
      compared);
    - no model call whose reply was recorded has been made again;
    - no effect without a key happened more often, and none is missing without the transcript saying that it may be; of
      the effects with a key each happened, whether repeated or not;
    - in every session of the store each call has exactly one result, in order, the hash chain holds, and the log folds
      to the state the agent gave.

    Without a `store` every run has an SQLite file of its own; the address of another store is shared by all runs. With
    `crashes=2` those who resume are killed, too, at each of their writes. `timeout` is in seconds and per process.
    """
    if not hasattr(os, "fork"):
        raise ConfigError("crash_points needs a system that can fork; this one cannot")
    if store == "memory:":
        raise ConfigError("crash_points needs a store that outlives a process, not 'memory:'")
    target = scenario if isinstance(scenario, str) else _named(scenario)
    with tempfile.TemporaryDirectory(prefix="windlass-crash-", dir=_quick_place()) as folder:
        path = [place or os.getcwd() for place in sys.path]
        job = Job(target, path, folder, store, crashes, exact, workers or min(os.cpu_count() or 1, 8), timeout)
        command = [sys.executable, "-m", "windlass.testing.crashing"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        done = subprocess.run(command, input=msgspec.json.encode(job), capture_output=True, env=environment)
    if done.returncode:
        raise ConfigError(f"the scenario {target} could not be played:\n{done.stderr.decode(errors='replace')}")
    report = msgspec.json.decode(done.stdout, type=CrashReport)
    if report.violations:
        raise AssertionError(str(report))
    return report


def _quick_place() -> str | None:
    """A folder in memory, where there is a large one: who is killed leaves there what he would leave on a disk."""
    memory = "/dev/shm"
    usable = os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK)
    return memory if usable and shutil.disk_usage(memory).free >= ROOM else None


def _named(scenario: Play) -> str:
    """The function by its file and name, so that another process finds it."""
    name = getattr(scenario, "__qualname__", "<locals>")
    file = inspect.getsourcefile(scenario) if inspect.isfunction(scenario) else None
    if "<" in name or file is None or not Path(file).exists():
        raise ConfigError(
            f"another process cannot find the scenario {scenario!r}; define it as a function at the top of a file, or "
            "name it as 'module:function' or 'file.py:function'"
        )
    return f"{Path(file).resolve()}:{name}"
