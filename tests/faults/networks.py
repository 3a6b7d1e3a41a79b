"""Networks of our own: a namespace for the servers and one for each worker, whose line can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SERVER = "10.77.0.1"
"""The address of the servers, as the workers see it. It exists in our namespaces only."""


def possible() -> bool:
    """Whether this process may make network namespaces."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"wlp{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """The namespaces of one campaign. `inside` is how a command begins that runs in one of them."""

    def __init__(self, workers: int) -> None:
        self.name = f"wl{os.getpid()}"
        self.workers = workers

    def inside(self, worker: int | None = None) -> list[str]:
        return ["ip", "netns", "exec", self._space(worker)]

    def _space(self, worker: int | None) -> str:
        return f"{self.name}s" if worker is None else f"{self.name}w{worker}"

    def make(self) -> None:
        servers = self._space(None)
        _ip("netns", "add", servers)
        _ip("-n", servers, "link", "set", "lo", "up")
        _ip("-n", servers, "link", "add", "bridge", "type", "bridge")
        _ip("-n", servers, "addr", "add", f"{SERVER}/24", "dev", "bridge")
        _ip("-n", servers, "link", "set", "bridge", "up")
        for worker in range(self.workers):
            space, line = self._space(worker), f"line{worker}"
            _ip("netns", "add", space)
            _ip("-n", servers, "link", "add", line, "type", "veth", "peer", "name", "up0", "netns", space)
            _ip("-n", servers, "link", "set", line, "master", "bridge", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "addr", "add", f"10.77.0.{10 + worker}/24", "dev", "up0")
            _ip("-n", space, "link", "set", "up0", "up")

    def cut(self, worker: int) -> None:
        _ip("-n", self._space(None), "link", "set", f"line{worker}", "down")

    def mend(self, worker: int) -> None:
        _ip("-n", self._space(None), "link", "set", f"line{worker}", "up")

    def remove(self) -> None:
        for space in [self._space(worker) for worker in range(self.workers)] + [self._space(None)]:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", space)


@contextmanager
def network(workers: int) -> Iterator[Network]:
    """The namespaces, for as long as the block runs."""
    made = Network(workers)
    try:
        made.make()
        yield made
    finally:
        made.remove()
