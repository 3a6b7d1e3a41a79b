"""The program of a worker: it runs Python scripts one after another, as if each were started anew.

It runs in a process of its own, and needs the standard library only. Its arguments are the descriptors of requests and
answers, and how many bytes of a stream are kept.
"""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import sys
import tempfile
import threading
import traceback
from types import CodeType, ModuleType
from typing import Any

_codes: dict[str, tuple[tuple[int, int], CodeType]] = {}
_variables: dict[str, str] = {}


def _code(path: str) -> CodeType:
    """The compiled script; it is compiled again when the file has changed."""
    found = os.stat(path)
    stamp = (found.st_mtime_ns, found.st_size)
    known = _codes.get(path)
    if known is None or known[0] != stamp:
        with open(path, "rb") as file:
            known = _codes[path] = (stamp, compile(file.read(), path, "exec"))
    return known[1]


def _set_variables(given: dict[str, str] | None) -> None:
    """Set the variables of a script: those of the one before if none are given, whatever it has made of them."""
    if given is not None:
        _variables.clear()
        _variables.update(given)
    now = dict(os.environ)
    for name in now.keys() - _variables.keys():
        del os.environ[name]
    for name, value in _variables.items():
        if now.get(name) != value:
            os.environ[name] = value


def _temporary() -> int:
    """A file without a name."""
    try:
        return os.memfd_create("hook")
    except (AttributeError, OSError):
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _run(request: dict[str, Any], limit: int) -> dict[str, Any]:
    """Run one script with its own streams, and return its exit code and what it wrote."""
    streams = [_temporary(), _temporary(), _temporary()]
    os.write(streams[0], request["stdin"].encode("utf-8", "surrogateescape"))
    os.lseek(streams[0], 0, os.SEEK_SET)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8", errors="backslashreplace"
    )
    _set_variables(request["env"])
    os.chdir(request["cwd"])
    path = request["script"]
    sys.argv = [path, *request["arguments"]]
    search = list(sys.path)
    sys.path.insert(0, os.path.dirname(path))
    own = os.getpid()
    code = _executed(path)
    _join_threads()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    if os.getpid() != own:  # the script has forked: this is the child, and its parent answers
        os._exit(code)
    sys.path[:] = search
    written = [_written(descriptor, limit) for descriptor in streams[1:]]
    null = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate(streams):
        os.dup2(null, number)
        os.close(descriptor)
    os.close(null)
    spent = threading.active_count() > 1
    return {"exit": code, "stdout": written[0], "stderr": written[1], "spent": spent}


def _executed(path: str) -> int:
    """Execute a script as `__main__`; its exit code."""
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    try:
        exec(_code(path), main.__dict__)
    except SystemExit as done:
        if done.code is None or isinstance(done.code, int):
            return (done.code or 0) & 255
        sys.stderr.write(f"{done.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(0)
    return 0


def _join_threads() -> None:
    """Wait for the threads of a script, as an interpreter does at its end."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _written(descriptor: int, limit: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, limit).decode("utf-8", "replace")


def _read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def main() -> None:
    """Answer requests until there are no more."""
    requests, answers, limit = map(int, sys.argv[1:4])
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    del sys.path[0]
    while True:
        (size,) = struct.unpack("!I", _read(requests, 4))
        data = json.dumps(_run(json.loads(_read(requests, size)), limit)).encode()
        rest = memoryview(struct.pack("!I", len(data)) + data)
        while rest:
            rest = rest[os.write(answers, rest) :]


if __name__ == "__main__":
    main()
