"""Shell scripts parsed by a real grammar, the parser of `shfmt` (extra `shell`), within limits of size and time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from functools import lru_cache
from typing import Any

MAX_BYTES = 8_192
MAX_BRACKETS = 50
MAX_OPERATORS = 100
MAX_OUTPUT = 16_000_000
MAX_SECONDS = 2.0
MAX_MEMORY = 2_000_000_000


class Unparsable(Exception):
    """A script that cannot be taken apart; the text says why."""


def syntax_tree(script: str) -> Any:
    """The syntax tree of a script, as plain data. Raises `Unparsable`."""
    if (shfmt := _shfmt()) is None:
        raise Unparsable("shell commands are only understood with the extra 'shell': pip install 'windlass[shell]'")
    try:
        source = script.encode()
    except UnicodeEncodeError:
        raise Unparsable("it is not valid Unicode") from None
    if len(source) > MAX_BYTES:
        raise Unparsable(f"it is longer than {MAX_BYTES} bytes")
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", script):
        raise Unparsable("it contains control characters")
    if len(re.findall(r"[({\[`]", script)) > MAX_BRACKETS or len(re.findall(r"&&|\|", script)) > MAX_OPERATORS:
        raise Unparsable("it is nested too deeply")
    try:
        return json.loads(_run(shfmt, source))
    except (RecursionError, ValueError):
        raise Unparsable("it is nested too deeply") from None
    except OSError as error:
        raise Unparsable(f"the parser cannot be run: {error}") from error


@lru_cache(maxsize=1)
def _shfmt() -> str | None:
    """The program that the package `shfmt-py` has installed. One that happens to be in the PATH is not used."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution("shfmt-py").files or []
    except PackageNotFoundError:
        return None
    found = [str(file.locate()) for file in files if file.name in ("shfmt", "shfmt.exe")]
    return found[0] if found and os.path.isfile(found[0]) else None


def _run(shfmt: str, source: bytes) -> bytes:
    """What the parser prints. It is ended if it prints too much or takes too long."""
    command = [shfmt, "-ln", "bash", "--to-json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env={}, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _limit_memory(process.pid)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(source)  # fits into the buffer of a pipe
                process.stdin.close()
            output = _read(process.stdout.fileno())
            if process.wait(MAX_SECONDS) != 0:
                raise Unparsable("it is not valid Bash")
            return output
        except subprocess.TimeoutExpired:
            raise Unparsable("it takes too long to parse") from None
        finally:
            process.kill()


def _limit_memory(pid: int) -> None:
    """The parser waits for its input, so the limit holds before it works. Only Linux can set it from outside."""
    with contextlib.suppress(OSError, ImportError):
        import resource

        if (prlimit := getattr(resource, "prlimit", None)) is not None:
            prlimit(pid, resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def _read(descriptor: int) -> bytes:
    end, chunks, size = time.monotonic() + MAX_SECONDS, list[bytes](), 0
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(end - time.monotonic(), 0))
        if not ready:
            raise Unparsable("it takes too long to parse")
        chunk = os.read(descriptor, 65_536)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_OUTPUT:
            raise Unparsable("it is nested too deeply")
