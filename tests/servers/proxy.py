"""A line to a server that can be cut at the worst moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Passes on what it hears, until it hears what it was told to wait for.

    `cut` is not passed on; after `swallow` the answer of the server is waited for, but not passed on. `hold` and what
    comes after it on the same line waits for `release`. All count once. With `stop` nothing is passed on any more, on
    any line, until `release`.
    """

    def __init__(self, port: int) -> None:
        self.cut = b""
        self.swallow = b""
        self.hold = b""
        self.holding = threading.Event()
        self._flows = threading.Event()
        self._flows.set()
        self._released = threading.Event()
        self.events: list[str] = []
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                muted = threading.Event()
                threading.Thread(target=self._up, args=(client, server, muted), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, muted), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                if self.cut and self.cut in data:
                    self.cut = b""
                    self.events.append("cut")
                    break
                if self.hold and self.hold in data:
                    self.hold = b""
                    self.holding.set()
                    self._released.wait()
                self._flows.wait()
                if self.swallow and self.swallow in data:
                    self.swallow = b""
                    muted.set()
                server.sendall(data)
        if not muted.is_set():
            _hang_up(client, server)

    def _down(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                if muted.is_set():
                    self.events.append("swallowed")
                    break
                self._flows.wait()
                client.sendall(data)
        _hang_up(client, server)

    def stop(self) -> None:
        """Pass nothing on, like a network that is gone."""
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()
        self._released.set()

    def close(self) -> None:
        self.release()
        _hang_up(self._listener, *self._sockets)


def _hang_up(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
