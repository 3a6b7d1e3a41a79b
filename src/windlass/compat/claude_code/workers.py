"""Persistent workers for hooks that are Python scripts: a script runs without starting an interpreter for it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from . import processes, worker_main
from .answers import Output
from .processes import MARK, MAX_STDOUT, Launch, signal_all
from .settings import Handler

_PYTHONS = ("python", "python3")
_MOST = 4
LOOK = 0.5
"""After so many seconds, again and again, the output of a script is measured."""
_PLACES = ("CLAUDE_PROJECT_DIR", "CLAUDE_PLUGIN_ROOT")
_SHELL = frozenset("|&;<>()`*?[]#~\n")


class Script(Struct, frozen=True):
    """A Python script that a hook runs, with its arguments and the interpreter that it asks for."""

    python: str
    path: str
    arguments: tuple[str, ...] = ()


class Workers:
    """Interpreters that are kept. Each runs one script at a time; at most four of each kind are kept idle.

    A script gets fresh globals, arguments, variables and streams for each run. Modules that it imports stay loaded.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[_Worker]] = {}

    def script_of(self, handler: Handler, launch: Launch) -> Script | None:
        """The Python script that a command runs; None if it does anything else."""
        if handler.args is not None:
            words: Sequence[str] = launch.words
        elif handler.shell != "bash" or "CLAUDE_CODE_SHELL_PREFIX" in launch.env:
            return None
        else:
            words = _plain_words(handler.command, *[launch.env.get(name, "") for name in _PLACES])
        if not words:
            return None
        first, *rest = words
        if Path(first).name not in _PYTHONS:
            python = _shebang(os.path.join(launch.cwd, first))
            first, rest = (python, [*words]) if python else ("", rest)
        if not first or not rest or not rest[0].endswith(".py"):
            return None
        program = _program(first, launch.env.get("PATH"))
        path = os.path.join(launch.cwd, rest[0])
        return None if program is None or not os.path.isfile(path) else Script(program, path, tuple(rest[1:]))

    async def run(self, script: Script, launch: Launch, seconds: float) -> Output:
        """Run a script in a worker. One that takes too long is ended with its worker."""
        idle = self._idle.setdefault(script.python, [])
        worker = idle.pop() if idle else _Worker(script.python)
        request = {
            "script": script.path,
            "arguments": script.arguments,
            "env": {**launch.env, MARK: worker.mark},
            "cwd": launch.cwd,
            "stdin": launch.stdin.decode("utf-8", "replace"),
        }
        watch = _Watch(worker)
        try:
            async with asyncio.timeout(seconds):
                answer = await worker.ask(request)
        except TimeoutError:
            worker.end()
            return Output(None, failure=f"it took longer than {seconds:g} seconds and was ended", timed_out=True)
        except BaseException:
            worker.end()
            raise
        finally:
            watch.cancel()
        if answer is None:
            worker.end()
            flooded = f"it wrote more than {processes.FLOOD:,} bytes and was ended"
            return Output(None, failure=flooded if watch.flooded else "its worker ended while it ran")
        if len(idle) < _MOST and not answer["spent"]:
            idle.append(worker)
        else:
            worker.release()
        stdout, stderr = answer["stdout"], answer["stderr"]
        return Output(answer["exit"], stdout, stderr, cut=len(stdout) >= MAX_STDOUT)

    def close(self) -> None:
        """End all workers that run no script."""
        for idle in self._idle.values():
            while idle:
                idle.pop().release()


class _Worker:
    """One interpreter. Messages both ways are JSON after their length."""

    def __init__(self, python: str) -> None:
        self.mark = uuid.uuid4().hex
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                [python, worker_main.__file__, str(requests), str(answers), str(MAX_STDOUT)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(requests, answers),
                env={**os.environ, MARK: self.mark},
                start_new_session=True,
            )
        finally:
            os.close(requests)
            os.close(answers)
        os.set_blocking(self._answers, False)
        os.set_blocking(self._requests, False)
        self._env: dict[str, str] | None = None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request and return the answer; None if the worker has ended. It keeps the variables of the latest."""
        env = request["env"]
        if env == self._env:
            request["env"] = None
        self._env = env
        data = json.dumps(request).encode()
        await self._send(struct.pack("!I", len(data)) + data)
        head = await self._receive(4)
        body = None if head is None else await self._receive(struct.unpack("!I", head)[0])
        return None if body is None else json.loads(body)

    async def _send(self, data: bytes) -> None:
        loop, rest = asyncio.get_running_loop(), memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BlockingIOError:
                ready = loop.create_future()
                loop.add_writer(self._requests, _set, ready)
                try:
                    await ready
                finally:
                    loop.remove_writer(self._requests)
            except BrokenPipeError:
                return

    async def _receive(self, size: int) -> bytes | None:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < size:
            try:
                piece = os.read(self._answers, size - len(data))
            except BlockingIOError:
                ready = loop.create_future()
                loop.add_reader(self._answers, _set, ready)
                try:
                    await ready
                finally:
                    loop.remove_reader(self._answers)
                continue
            if not piece:
                return None
            data += piece
        return bytes(data)

    @property
    def written(self) -> int:
        """How many bytes the script has written so far, where the system tells."""
        try:
            return sum([os.stat(f"/proc/{self._process.pid}/fd/{number}").st_size for number in (1, 2)])
        except OSError:
            return 0

    def kill(self) -> None:
        """End the interpreter with all that its scripts started."""
        signal_all(self._process.pid, self.mark, signal.SIGKILL)

    def end(self) -> None:
        """End the interpreter while a script runs in it."""
        self.kill()
        self.release()

    def release(self) -> None:
        """Let the interpreter end. What its scripts left in the background lives on, as it does after other hooks."""
        for descriptor in (self._requests, self._answers):
            with suppress(OSError):
                os.close(descriptor)
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill()


class _Watch:
    """Looks now and then at how much a script has written, and ends one that writes without end."""

    def __init__(self, worker: _Worker) -> None:
        self.flooded = False
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        self.flooded = self._worker.written > processes.FLOOD
        if self.flooded:
            self._worker.kill()
        else:
            self._next = self._loop.call_later(LOOK, self._look)

    def cancel(self) -> None:
        self._next.cancel()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _program(name: str, path: str | None) -> str | None:
    """Where a program is. It is looked for again once it is no longer there."""
    found = _which(name, path)
    if found is not None and not os.access(found, os.X_OK):
        _which.cache_clear()
        found = _which(name, path)
    return found


@lru_cache(maxsize=64)
def _which(name: str, path: str | None) -> str | None:
    return shutil.which(name, path=path)


@lru_cache(maxsize=512)
def _plain_words(command: str, *values: str) -> tuple[str, ...]:
    """The words of a command that needs no shell but for `$CLAUDE_PROJECT_DIR` and the like; empty if it needs one."""
    for name, value in zip(_PLACES, values, strict=True):
        if any(char in _SHELL or char in " '\"\\$" for char in value):
            return ()
        command = (
            command.replace(f"${{{name}}}", value).replace(f"${name}/", f"{value}/").replace(f'"${name}"', f'"{value}"')
        )
    if "$" in command or any(char in _SHELL for char in command):
        return ()
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()


def _shebang(path: str) -> str:
    """The Python that the first line of an executable file names; empty if it names none."""
    try:
        if not os.access(path, os.X_OK):
            return ""
        with open(path, "rb") as file:
            first = file.readline(200).decode("ascii", "replace").strip()
    except OSError:
        return ""
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or len(words) > 2 or not words:
        return ""
    return words[-1] if Path(words[-1]).name in _PYTHONS and sys.platform != "win32" else ""
