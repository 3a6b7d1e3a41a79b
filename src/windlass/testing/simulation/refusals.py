"""Refuses what a simulation cannot have: real threads, sockets, processes, signals and sleeps."""

from __future__ import annotations

import _thread
import asyncio
import inspect
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from windlass.errors import ConfigError

from .lives import LIFE

_HERE = str(Path(__file__).parents[2])
_STDLIB = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


class NotSimulated(ConfigError):
    """Code that was simulated uses something real: a thread, a socket, a process, a signal, or a sleep.

    Give the agent a stand-in for the simulation, for example with `simulate(…, tools={…})`. `where` is the line.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


_refused: list[ConfigError] = []


def refuse(what: str, hint: str = "") -> NoReturn:
    """Raise, and remember the error: the code that is refused may catch it."""
    life = LIFE.get()
    if life is not None and life.dead:
        raise NotSimulated("the simulated process is dead")
    where = _place()
    tool = life.world.tool_in_use() if life is not None else ""
    who = f"tool {tool!r}" if tool else "the agent's code"
    remedy = hint or "give the agent a stand-in for it, such as simulate(…, tools={…})"
    raise remembered(NotSimulated(f"{who} {what}, in {where}, which cannot be simulated: {remedy}", where=where))


def remembered(error: ConfigError) -> ConfigError:
    """The error, which `check_refused` raises after the session even if the agent's own code catches it."""
    _refused.append(error)
    return error


def check_refused() -> None:
    """Raise the first error that was remembered, if there was one."""
    if _refused:
        first = _refused[0]
        _refused.clear()
        raise first


_simulating: set[int] = set()
"""The threads in which something is simulated now."""


@contextmanager
def refusing() -> Generator[None, None, None]:
    """Refuse real threads, sockets, processes, signals and sleeps of this thread within a block."""
    _refused.clear()
    mine = threading.get_ident()
    undo: list[Callable[[], None]] = []
    _simulating.add(mine)
    try:
        for owner, name, what, hint in _REAL:
            if hasattr(owner, name):
                undo.append(_replace(owner, name, what, hint))
        undo += _replace_sleeps()
        yield
    finally:
        for restore in reversed(undo):
            restore()
        _simulating.discard(mine)


_SLEEPS = "write `await asyncio.sleep(…)`, whose time is virtual"
_THREADS = "use asyncio.to_thread, which is simulated"
_WAITS = "wait with asyncio.Event, asyncio.Queue or asyncio.Condition"
_LOOPS = "write it as `async def`, and await"
_SIGNALS = ("signal", "alarm", "setitimer", "pause", "raise_signal", "sigwait", "sigwaitinfo", "sigtimedwait")
_PROCESSES = ("fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "execv", "execve")
_REAL: list[tuple[Any, str, str, str]] = [
    (threading.Thread, "start", "starts a thread", _THREADS),
    (socket.socket, "__init__", "opens a socket", ""),
    (socket, "getaddrinfo", "looks up a host", ""),
    (socket, "gethostbyname", "looks up a host", ""),
    (subprocess.Popen, "__init__", "starts a process", ""),
    (time, "sleep", "sleeps in real time", _SLEEPS),
    *[(os, name, "starts a process", "") for name in _PROCESSES],
    (sys.modules.get("_posixsubprocess"), "fork_exec", "starts a process", ""),  # multiprocessing calls it
    *[(os, name, "sends a signal", "") for name in ("kill", "killpg")],
    *[(signal, name, "uses signals", "") for name in _SIGNALS],
    *[(select, name, "waits in real time", _SLEEPS) for name in ("select", "poll", "epoll", "kqueue")],
    *[
        (owner, name, "starts a thread", _THREADS)
        for owner, name in ((_thread, "start_new_thread"), (_thread, "start_new"))
    ],
    *[(owner, name, "waits for another thread", _WAITS) for owner, name in ((threading.Condition, "wait"),)],
    *[(owner, "new_event_loop", "starts an event loop of its own", _LOOPS) for owner in (asyncio, asyncio.events)],
]


def _replace(owner: Any, name: str, what: str, hint: str) -> Callable[[], None]:
    real = getattr(owner, name)
    own = name in vars(owner)

    def refused(*args: Any, **kwargs: Any) -> Any:  # a module that is imported meanwhile keeps it for good
        if threading.get_ident() not in _simulating or (owner is threading.Condition and _only_looks(*args, **kwargs)):
            return real(*args, **kwargs)
        return refuse(what, hint)

    setattr(owner, name, refused)
    return lambda: setattr(owner, name, real) if own else delattr(owner, name)


def _only_looks(condition: Any, timeout: float | None = None) -> bool:
    return timeout is not None and timeout <= 0


def _replace_sleeps() -> list[Callable[[], None]]:
    """`from time import sleep` has bound the function to another name."""
    refused, undo = time.sleep, list[Callable[[], None]]()
    for module in list(sys.modules.values()):
        for name, found in list(getattr(module, "__dict__", {}).items()):
            if type(found) is _BUILTIN and found.__name__ == "sleep" and found.__module__ == "time":
                undo.append(lambda module=module, name=name, found=found: setattr(module, name, found))  # type: ignore[misc]
                setattr(module, name, refused)
    return undo


_BUILTIN = type(len)


def _place() -> str:
    """The line of the user's code that is running; if there is none, that of a library."""
    library = ""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            place = f"{short_path(file)}:{frame.f_lineno}"
            if not is_library(file):
                return place
            library = library or place
        frame = frame.f_back
    return library or "code that is not yours"


def is_library(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return "site-packages" in file or "dist-packages" in file


def is_users(file: str) -> bool:
    """Whether a file belongs neither to Windlass nor to Python."""
    return not file.startswith((_HERE, "<")) and (not file.startswith(_STDLIB) or is_library(file))


def short_path(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
