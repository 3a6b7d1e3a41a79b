"""Runs the tutorial from top to bottom and writes what its commands print; `--check` only compares."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = ("start.md",)
BLOCK = re.compile(r"^```(?P<kind>python|toml|console)\n(?P<text>.*?)^```$", re.M | re.S)
FILE = re.compile(r"# (?P<name>\w+\.(?:py|toml))(?P<more>, continued)?\n")
NOT_RUN = "pip install"
"""The tests run in an environment that has all packages."""

PATIENCE = 120

# What differs from run to run: times, ids that are drawn, and the bars that are drawn from times.
VARYING = [
    (re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?|\d\d:\d\d(?::\d\d(?:\.\d+)?)?"), "TIME"),
    (re.compile(r"^step .*(?=█ model)", re.MULTILINE), "AXIS "),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:µs|ms|s|m|min|h)\b(?: \d+ ?s\b)?"), "LONG"),
    (re.compile(r"\b[0-9a-f]{7,}…?"), "ID"),
    (re.compile(r"[─-▟■-◿⠀-⣿]+"), " "),
    (re.compile(r"LONG(?:\s+LONG)+"), "LONG"),
    (re.compile(r"[ \n]+"), " "),
]


class Problem(Exception):
    """The page cannot be run."""


def written(page: str) -> str:
    """The page with what its commands print now, where that is more than other times."""
    text = (DOCS / page).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        return BLOCK.sub(lambda block: _block(block, Path(folder)), text)


def _block(block: re.Match[str], folder: Path) -> str:
    if block["kind"] != "console":
        _save(block["text"], folder)
        return block[0]
    commands = re.split(r"^(?=\$ )", block["text"], flags=re.M)[1:]
    parts = []
    for part in commands:
        # A line below a command that ends with & belongs to it.
        match = re.match(r"\$ .*\n(?:(?<=&\n)  .*\n)?", part)
        assert match is not None
        command, shown = match[0], part[match.end() :]
        if command.startswith(f"$ {NOT_RUN}"):
            parts.append(command)
            continue
        printed = _run(command.removeprefix("$ "), folder)
        parts.append(command + (shown if same(shown, printed) else printed))
    return f"```console\n{''.join(parts)}```"


def same(one: str, other: str) -> bool:
    """Whether two outputs differ only in what differs from run to run."""
    for pattern, word in VARYING:
        one, other = pattern.sub(word, one), pattern.sub(word, other)
    return one.strip() == other.strip()


def _save(code: str, folder: Path) -> None:
    """Write a block to the file that its first line names."""
    named = FILE.match(code)
    if named is None:
        raise Problem(f"a block does not name its file in its first line:\n{code}")
    with (folder / named["name"]).open("a" if named["more"] else "w", encoding="utf-8") as file:
        file.write(code[named.end() :])


def _run(command: str, folder: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WINDLASS_"))}
    environment = {
        **kept,
        "PYTEST_ADDOPTS": "-p no:asyncio -p no:cacheprovider -p no:xdist -p no:timeout",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder / "home"), "XDG_DATA_HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "home"),
        "COLUMNS": "96", "NO_COLOR": "1", "TERM": "dumb", "LOGNAME": "eve", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    if command.startswith("windlass ui "):
        return _serve(command, folder, environment)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=PATIENCE,
    )  # fmt: skip
    if "Traceback" in done.stdout:
        raise Problem(f"$ {command}{done.stdout}")
    return (
        "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()) + "\n" if done.stdout.strip() else ""
    )


def _serve(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What a command that serves prints at its start; it is then ended as Ctrl-C does."""
    process = subprocess.Popen(
        [*command.split(), "--port", "0"], cwd=folder, env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        while process.poll() is None:  # a server that is still starting may not hear the first one
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)
    if "http://127.0.0.1:" not in line:
        raise Problem(f"$ {command}{line}")
    return re.sub(r"127\.0\.0\.1:\d+/#token=\S+", "127.0.0.1:8500/#token=…", line)


def main() -> int:
    """Write the pages, or only compare them."""
    outdated = []
    for page in PAGES:
        text = written(page)
        if text != (DOCS / page).read_text(encoding="utf-8"):
            outdated.append(page)
            if "--check" not in sys.argv[1:]:
                (DOCS / page).write_text(text, encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"docs/{page} is out of date: run `python docs/transcripts.py`\n" for page in outdated)
        return 1 if outdated else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
