"""Shells that live as long as a session: folder, variables and functions stay from one command to the next."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress

from windlass.errors import ToolError

from .isolation import Sandbox
from .launching import descendants, kill_below

MAX_COMMAND = 60_000
"""Longer commands, in bytes, are refused: they would not fit into a pipe."""
MAX_OUTPUT = 50_000_000
"""A command that writes more is ended."""
GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL."""
_CHUNK = 1 << 16
_DRIVER = """
ulimit -c 0; [ {files} = 0 ] || ulimit -f {files}; [ {processes} = 0 ] || ulimit -u {processes} 2>/dev/null
while IFS= read -r -d '' -u {commands} __windlass_command; do
  eval "$__windlass_command" {commands}<&- {statuses}>&- </dev/null
  printf '%d %s\\0' "$?" "$PWD" >&{statuses}
done
"""


class Flood(Exception):
    """A command writes too much."""


class Capture:
    """The output of a command: all of it, or its beginning and its end."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        """The text; a line says how much is left out."""
        tail = bytes(self._tail[-self._half :])
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        middle = f"\n[… {left_out:,} bytes left out …]\n"
        return bytes(self._head).decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace")


class Shell:
    """One bash, started at once. It runs one command at a time, and is used by one event loop at a time.

    `folder` is where the latest command has left it.
    """

    def __init__(self, sandbox: Sandbox, env: Mapping[str, str], limits: Mapping[str, int]) -> None:
        self._temporary = tempfile.mkdtemp(prefix="windlass-shell-")
        own = "/tmp" if sandbox.kind == "bubblewrap" else self._temporary
        env = {"HOME": own, "TMPDIR": own, **env, "PATH": sandbox.search_path(env.get("PATH", os.defpath))}
        commands, self._commands = os.pipe()
        self._statuses, statuses = os.pipe()
        self._output, output = os.pipe()
        script = _DRIVER.format(commands=commands, statuses=statuses, **limits)
        inner = ["bash", "--noprofile", "--norc", "-c", script]
        try:
            self._process = subprocess.Popen(
                sandbox.command(inner, env, self._temporary),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                pass_fds=(commands, statuses),
                start_new_session=True,
            )
        finally:
            for descriptor in (commands, statuses, output):
                os.close(descriptor)
        for descriptor in (self._statuses, self._output):
            os.set_blocking(descriptor, False)
        self.used = 0.0
        self.folder = ""
        self.busy = False
        self.closed = False

    async def run(self, command: str, capture: Capture) -> int | None:
        """Run a command; its exit status, or None if the shell ended with it. A cancel ends the shell."""
        data = command.encode() + b"\0"
        if len(data) > MAX_COMMAND or "\0" in command:
            raise ToolError(f"a command has at most {MAX_COMMAND} bytes, and no zero byte; write a script instead")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int | None] = loop.create_future()
        loop.add_reader(self._output, self._receive, capture, done)
        loop.add_reader(self._statuses, self._finish, capture, done)
        self.busy = True
        try:
            with suppress(BrokenPipeError):
                os.write(self._commands, data)
            status = await done
        finally:
            self.busy = False
            loop.remove_reader(self._output)
            loop.remove_reader(self._statuses)
        return status

    def _receive(self, capture: Capture, done: asyncio.Future[int | None]) -> None:
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return
        capture.add(data)
        if done.done():
            return
        if not data:
            done.set_result(None)
        elif capture.total > MAX_OUTPUT:
            done.set_exception(Flood(f"the command wrote more than {MAX_OUTPUT:,} bytes"))

    def _finish(self, capture: Capture, done: asyncio.Future[int | None]) -> None:
        try:
            data = os.read(self._statuses, _CHUNK)
        except BlockingIOError:
            return
        ready = struct.unpack("i", fcntl.ioctl(self._output, termios.FIONREAD, b"\0" * 4))[0]
        while ready > 0 and (rest := os.read(self._output, min(ready, _CHUNK))):
            capture.add(rest)
            ready -= len(rest)
        status, _, folder = data.partition(b"\0")[0].partition(b" ")
        if data:
            self.folder = os.fsdecode(folder)
        if not done.done():
            done.set_result(int(status) if data else None)

    def end(self, grace: float = GRACE) -> None:
        """End the shell and all that it started: SIGTERM, then SIGKILL. It may block for `grace` seconds."""
        if self.closed:
            return
        self.closed = True
        process = self._process
        os.close(self._commands)
        if sys.platform == "linux":
            for pid in descendants(process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
        else:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            if sys.platform == "linux":
                kill_below(process.pid)
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(self._statuses)
        os.close(self._output)
        shutil.rmtree(self._temporary, ignore_errors=True)


class Shells:
    """The shells of an agent, one for each session that uses one, at most `most` at a time."""

    def __init__(self, make: Callable[[], Shell], most: int = 32) -> None:
        self._make = make
        self._most = most
        self.open: dict[str, Shell] = {}
        self._ended: dict[str, str] = {}

    def get(self, session: str, now: float) -> tuple[Shell, str]:
        """The shell of a session, and what the model should know if it is another one than before."""
        shell = self.open.get(session)
        why = ""
        if shell is None or shell.closed:
            idle = sorted([(one.used, name) for name, one in self.open.items() if not one.busy])
            if len(self.open) >= self._most and idle:
                self.end(idle[0][1], "too many shells were open")
            shell = self.open[session] = self._make()
            why = self._ended.pop(session, "")
        shell.used = now
        return shell, why

    def end(self, session: str, why: str = "") -> None:
        """End the shell of a session. The next one tells why, if that is given."""
        shell = self.open.pop(session, None)
        if shell is not None:
            if why:
                self._ended[session] = why
            shell.end()

    def forget(self, session: str) -> None:
        """End the shell of a session that is over."""
        self.end(session)
        self._ended.pop(session, None)


def end_all(shells: dict[str, Shell]) -> None:
    """End the shells of an agent that is gone."""
    while shells:
        shells.popitem()[1].end()
