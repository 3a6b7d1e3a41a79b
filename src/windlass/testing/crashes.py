"""Crash points: kills a scenario at every write, resumes it in another process, and compares the results."""

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
from windlass.run_options import RunOptions

from .ways import Answers, agreeable
from .worlds import World


class Scenario:
    """A crash test: an agent with the world's store, the messages to send, and the answers to its questions.

    `answers` is one answer for all questions, a function of a question, or None to leave a turn suspended; then the
    next message is sent. With `stream` the turns are streamed. Each turn has these `options`; a resume passes only
    those that are code.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        messages: str | Sequence[str] = "go",
        *,
        answers: Answers = agreeable,
        stream: bool = False,
        scope: Any = None,
        options: RunOptions | None = None,
    ) -> None:
        self.agent = agent
        self.messages = (messages,) if isinstance(messages, str) else tuple(messages)
        self.answers = answers
        self.stream = stream
        self.scope = scope
        self.options: RunOptions = {} if options is None else options


Play = Callable[[World], Scenario | Agent[Any, Any]]

ROOM = 1 << 30
"""The free bytes that a folder in memory must have to be used for all runs: containers may have very few."""


class CrashPoint(Struct, frozen=True):
    """One place where the scenario was killed, and the violations found afterwards.

    `reached` is false if the process ended before it got there: concurrent work may write in another order.
    """

    where: str
    violations: tuple[str, ...] = ()
    reached: bool = True


class CrashReport(Struct, frozen=True):
    """All places where a scenario was killed, and its writes, outcome and text when it is not killed."""

    scenario: str
    outcome: str
    text: str
    writes: tuple[str, ...]
    points: tuple[CrashPoint, ...]

    @property
    def violations(self) -> list[str]:
        """All violations, with the places where they happened."""
        return [f"{point.where}: {wrong}" for point in self.points for wrong in point.violations]

    def __str__(self) -> str:
        violations = f"{len(self.violations)} violations" if self.violations else "no violations"
        head = f"{self.scenario}: killed at {len(self.points)} points, {violations}"
        return "\n".join([head, *[f"- {violation}" for violation in self.violations]])


class Job(Struct, frozen=True):
    """The input of the process that kills the others."""

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
    """Kill a scenario at every write, resume it in a new process, and fail unless the results are the same.

    The scenario is a function of a `World` that builds an agent with the world's store and returns the agent or a
    `Scenario`. Define it at the top of a file, or name it as `module:function` or `file.py:function`. It first runs to
    its end once. Then, for every write to the store, it runs in a process that is killed with SIGKILL right before that
    write, and in another that is killed right after it; likewise after every effect and every model call. A new process
    continues from what the store has: it resumes an open turn, and sends a message again that left no trace. Afterwards

    - outcome, text, transcript and slots are the same as without a crash, except for the results of calls whose outcome
      is unknown, and what those calls wrote (with `exact=False` only outcome and text are compared);
    - no model call whose reply was recorded was made again;
    - no effect without a key happened more often than without a crash, and none is missing unless the transcript says
      that it may be; each effect with a key happened, once or more often;
    - in every session of the store each call has exactly one result, in order, the hash chain is intact, and the log
      folds to the state that the agent returned;
    - no sub-agent is left over when its parent's turn has ended, except in the background.

    Without a `store` every run has its own SQLite file; all runs share the store at any other address. With `crashes=2`
    the resuming processes are killed at each of their writes, too. `timeout` is in seconds per process.
    """
    if not hasattr(os, "fork"):
        raise ConfigError("crash_points needs a system with os.fork; this one has none")
    if store == "memory:":
        raise ConfigError("crash_points needs a store that outlives a process, not 'memory:'")
    target = scenario if isinstance(scenario, str) else _target_of(scenario)
    with tempfile.TemporaryDirectory(prefix="windlass-crash-", dir=_fast_folder()) as folder:
        path = [place or os.getcwd() for place in sys.path]
        job = Job(target, path, folder, store, crashes, exact, workers or min(os.cpu_count() or 1, 8), timeout)
        command = [sys.executable, "-m", "windlass.testing.crashing"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        done = subprocess.run(command, input=msgspec.json.encode(job), capture_output=True, env=environment)
    if done.returncode:
        raise ConfigError(f"the scenario {target} could not be run:\n{done.stderr.decode(errors='replace')}")
    report = msgspec.json.decode(done.stdout, type=CrashReport)
    if report.violations:
        raise AssertionError(str(report))
    return report


def _fast_folder() -> str | None:
    """A folder in memory, if there is a large one: its files survive a killed process as they would on disk."""
    memory = "/dev/shm"
    usable = os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK)
    return memory if usable and shutil.disk_usage(memory).free >= ROOM else None


def _target_of(scenario: Play) -> str:
    """The file and name of a function, by which another process finds it."""
    name = getattr(scenario, "__qualname__", "<locals>")
    file = inspect.getsourcefile(scenario) if inspect.isfunction(scenario) else None
    if "<" in name or file is None or not Path(file).exists():
        raise ConfigError(
            f"another process cannot find the scenario {scenario!r}; define it as a function at the top of a file, or "
            "name it as 'module:function' or 'file.py:function'"
        )
    return f"{Path(file).resolve()}:{name}"
