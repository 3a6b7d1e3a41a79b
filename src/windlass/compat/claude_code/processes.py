"""Runs one command: JSON goes to its stdin, its output is read up to a limit, and it ends with its whole group."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from windlass.tools.launching import descendants

from .answers import Output, declared_async

MAX_STDOUT = 1_000_000
"""So many bytes of stdout are read; the rest is thrown away."""
MAX_STDERR = 200_000
FLOOD = 50_000_000
"""A hook that writes more is ended."""
LEFTOVERS = 5.0
"""How many seconds after the exit of a hook its output may be held open by processes that it started."""
GRACE = 0.5
"""Seconds from SIGTERM to SIGKILL."""
MARK = "WINDLASS_HOOK_RUN"
"""The variable by which processes are found that a hook started and that have left its group and its session."""
_CHUNK = 1 << 16


def signal_all(pid: int, mark: str, number: signal.Signals) -> None:
    """Send a signal to the group of a process, and on Linux to its descendants and all others that have its mark.

    A process that must end cannot escape by starting others meanwhile: they are looked for until there are none.
    """
    strays = descendants(pid) if sys.platform == "linux" else []
    with suppress(OSError):
        os.killpg(pid, number)
    for stray in strays:
        with suppress(OSError):
            os.kill(stray, number)
    for _ in range(20):
        marked = [*_marked(f"{MARK}={mark}".encode())] if sys.platform == "linux" else []
        for stray in marked:
            with suppress(OSError):
                os.kill(stray, number)
        if not marked or number is not signal.SIGKILL:
            return


def _marked(variable: bytes) -> Iterator[int]:
    """The processes of this user that were started with a variable."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if variable in file.read():
                        yield int(name)
            except OSError:
                continue


class Launch(Struct, frozen=True):
    """What to start: the words of the command, its variables, its folder, and what it reads on stdin."""

    words: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    stdin: bytes


class _Stream:
    """What was read of one stream so far."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()
        self.total = 0
        self.open = True

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self.data += data[: max(self._limit - len(self.data), 0)]

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Process:
    """A running hook. It belongs to one event loop, and must be waited for or ended.

    `declared` is the number of seconds that it asked for in order to go on in the background, if it did.
    """

    def __init__(self, launch: Launch) -> None:
        self.declared: float | None = None
        self._loop = asyncio.get_running_loop()
        self._out, self._err = _Stream(MAX_STDOUT), _Stream(MAX_STDERR)
        self._changed = asyncio.Event()
        self._pidfd = -1
        self._readers: dict[int, _Stream] = {}
        self._writer = -1
        self._stdin = memoryview(launch.stdin)
        self._exited = False
        self._mark = uuid.uuid4().hex
        self._start(launch)

    def _start(self, launch: Launch) -> None:
        stdin, self._writer = os.pipe()
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        self._readers = {out: self._out, err: self._err}
        try:
            os.set_blocking(self._writer, False)
            self._write()
            self._process = subprocess.Popen(
                launch.words,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={**launch.env, MARK: self._mark},
                cwd=launch.cwd,
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        for descriptor in self._readers:
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read, descriptor)
        if self._writer >= 0:
            self._loop.add_writer(self._writer, self._write)
        self._watch()

    def _watch(self) -> None:
        """Be told when the process exits, without taking its exit status: until then its group is surely its own."""
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            waiting = self._loop.run_in_executor(None, self._process.wait)
            waiting.add_done_callback(lambda done: self._has_exited())
        else:
            self._loop.add_reader(self._pidfd, self._has_exited)

    def _has_exited(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        self._exited = True
        self._changed.set()

    def _write(self) -> None:
        """Write what fits into the pipe; then nothing more is to be read."""
        try:
            while self._stdin:
                self._stdin = self._stdin[os.write(self._writer, self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # it does not read its input
            pass
        self._close_writer()

    def _close_writer(self) -> None:
        if self._writer >= 0:
            self._loop.remove_writer(self._writer)
            os.close(self._writer)
            self._writer = -1

    def _read(self, descriptor: int) -> None:
        stream = self._readers[descriptor]
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        stream.add(data)
        if not data:
            stream.open = False
            self._loop.remove_reader(descriptor)
            self._changed.set()
        elif stream is self._out and stream.total < 4096 and self.declared is None:
            self.declared = declared_async(stream.text.split("\n", 1)[0])
            if self.declared is not None:
                self._changed.set()
        if stream.total > FLOOD:
            self._changed.set()

    # ------------------------------------------------------------ waiting and ending

    async def wait(self, seconds: float, *, detaches: bool = False) -> Output | None:
        """Wait for its end; None if it `detaches` and declared that it goes on in the background.

        After some seconds it is ended, with all that it started. A cancel ends it, too.
        """
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                ended = await self._until(lambda: self._exited or (detaches and self.declared is not None))
            if ended and not self._exited:
                return None
            if ended:
                await self._drain()
        except TimeoutError:
            if not limit.expired():
                raise
            await self.end()
            return Output(None, failure=f"it took longer than {seconds:g} seconds and was ended", timed_out=True)
        except asyncio.CancelledError:
            self.kill()
            raise
        if not ended:
            await self.end()
            return Output(None, failure=f"it wrote more than {FLOOD:,} bytes and was ended")
        return self._finished()

    async def _until(self, reached: Callable[[], bool]) -> bool:
        """Wait until something is true; false if the process wrote too much before."""
        while not reached():
            if max(self._out.total, self._err.total) > FLOOD:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _drain(self) -> None:
        """Read the rest of the output. Processes that hold it open for too long are ended."""
        if self._out.open or self._err.open:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEFTOVERS):
                    await self._until(lambda: not self._out.open and not self._err.open)
        if self._out.open or self._err.open:
            self._signal(signal.SIGKILL)

    def _finished(self) -> Output:
        code = self._reap()
        self._close()
        cut = self._out.total > len(self._out.data)
        return Output(code, self._out.text, self._err.text, cut=cut)

    def _reap(self) -> int:
        """The exit code. A process that was ended by a signal has 128 and its number, as in a shell."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    async def end(self) -> None:
        """End the process and all that it started: SIGTERM, then SIGKILL."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE):
                while not self._exited:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process and all that it started at once."""
        self._signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all that the hook started."""
        signal_all(self._process.pid, self._mark, number)

    def _close(self) -> None:
        """Close all descriptors."""
        self._close_writer()
        for descriptor in self._readers:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._readers = {}
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
