"""The clock of a machine that is set wrong: a library of `clock.c` shows it to processes that are started with it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def possible() -> bool:
    """Whether clocks of processes can be set here: on Linux with a C compiler."""
    return sys.platform.startswith("linux") and shutil.which("cc") is not None


class Clock:
    """The clock of a machine in a folder. Processes that are to see it get `environment`, and see at once how it is
    set."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o711)  # the server runs as another user
        self._file, library = folder / "clock", folder / "clock.so"
        self.environment: dict[str, str] = {}
        self._file.write_bytes(bytes(8))
        self._file.chmod(0o644)
        if possible():
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
            self.environment = {"LD_PRELOAD": str(library), "WRONG_CLOCK": str(self._file)}
            self._check()

    def _check(self) -> None:
        self.set(-86400)
        words = [sys.executable, "-c", "import time; print(time.time())"]
        done = subprocess.run(words, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True)
        assert float(done.stdout) < time.time() - 80000, "the library for wrong clocks does not work"
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the clock wrong by so many seconds, or right."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


def seconds_off(folder: Path) -> int:
    """How wrong the clock of a machine is: for agents without the library."""
    file = folder / "clock"
    return int(struct.unpack("=q", file.read_bytes())[0]) if file.exists() else 0
