"""A real pseudo-terminal with a screen that tests can read as a person does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pexpect
import pyte

PATIENCE = 60


class Terminal:
    """A command on a pseudo-terminal: `press` keys, wait until the screen `shows` a text, read the `screen`."""

    program: tuple[str, ...] = (sys.executable, "-m", "windlass")
    """What is started with the arguments."""

    def __init__(self, folder: Path, *arguments: str, rows: int = 30, columns: int = 90, **environment: str) -> None:
        given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.child: Any = pexpect.spawn(
            self.program[0],
            [*self.program[1:], *arguments],
            cwd=str(folder),
            env={**given, "TERM": "xterm-256color", **environment},
            dimensions=(rows, columns),
            timeout=PATIENCE,
        )
        self._screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""

    def press(self, keys: str) -> Self:
        """Type keys: text, `\\r` for Enter, `\\x03` for Ctrl-C."""
        self.child.send(keys)
        return self

    def shows(self, text: str, *, count: int = 1) -> Self:
        """Wait until the screen has a text."""
        return self.until(lambda: self.screen.count(text) >= count, f"{text!r}")

    def until(self, holds: Callable[[], bool], what: str = "it") -> Self:
        """Wait until something holds on the screen."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            try:
                self._feed(self.child.read_nonblocking(65536, max(deadline - time.monotonic(), 0)))
            except (pexpect.EOF, pexpect.TIMEOUT) as error:
                raise AssertionError(f"the screen never showed {what}:\n{self.screen}") from error
        return self

    def _feed(self, data: bytes) -> None:
        self.raw += data
        if b"\x1b[6n" in data:  # the program asks where the cursor is
            self.child.send(f"\x1b[{self._screen.cursor.y + 1};{self._screen.cursor.x + 1}R")
        self._stream.feed(data)

    def ends(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        try:
            while True:
                self._feed(self.child.read_nonblocking(65536, PATIENCE))
        except pexpect.EOF:
            pass
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus

    @property
    def screen(self) -> str:
        """All lines, those that were scrolled away too."""
        above = ["".join(line[at].data for at in range(self._screen.columns)) for line in self._screen.history.top]
        return "\n".join([line.rstrip() for line in [*above, *self._screen.display]]).rstrip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.child.close(force=True)
