"""The `doctor` command: checks what an agent needs on this machine, and names a remedy for what is missing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Literal, NamedTuple

import click

from windlass._text import visible
from windlass.errors import WindlassError
from windlass.folders import data_folder
from windlass.keys import VARIABLES, place_of
from windlass.trust import is_trusted, trusted

from .output import echo, echo_json, is_terminal, working

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs")


class Finding(NamedTuple):
    """One line of the report."""

    state: Literal["ok", "warn", "fail"]
    what: str
    text: str
    remedy: str = ""


@click.command()
@click.option("--model", help="Also ask this model for a short answer. This may cost money.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(model: str | None, as_json: bool) -> None:
    """Check Python, extras, keys, the store, isolation, the terminal and trusted files.

    Each line is ok, warn or fail, with a remedy. Exits with 1 if a check fails. Keys are not shown.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python, _extras, _keys, _store, _isolation, _ripgrep, _terminal, _trusted,
    ]  # fmt: skip
    if model is not None:
        checks.append(lambda: _model(model))
    found = [finding for check in checks for finding in _run(check)]
    if as_json:
        echo_json(json.dumps([finding._asdict() for finding in found], indent=2))
    else:
        for state, what, text, remedy in found:
            echo(visible(f"{state:4}  {what:10} {text}{f' → {remedy}' if remedy else ''}"))
    if any(finding.state == "fail" for finding in found):
        raise click.exceptions.Exit(1)


def _run(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of a check. One that raises is a finding, too."""
    name = getattr(check, "__name__", "").strip("_<>").replace("lambda", "model")
    try:
        return list(check())
    except (WindlassError, OSError, sqlite3.Error) as error:
        return [Finding("fail", name, f"{type(error).__name__}: {error}")]


def _python() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{sys.version.split()[0]} at {sys.executable}")


def _extras() -> Iterator[Finding]:
    wanted: dict[str, list[str]] = {}
    for line in requires("windlass") or []:
        needed, _, marker = line.partition(";")
        if "extra ==" in marker and "sys_platform" not in marker:
            extra = marker.split("extra ==")[1].strip(" '\"")
            wanted.setdefault(extra, []).append(needed.split("[")[0].split(">")[0].split("<")[0].strip())
    missing = [extra for extra, names in wanted.items() if not all(map(_is_installed, names))]
    present = [extra for extra in wanted if extra not in missing]
    remedy = f"pip install 'windlass[{missing[0]}]' and so on, if you need them" if missing else ""
    yield Finding(
        "ok", "extras", f"installed: {', '.join(present) or 'none'}; not: {', '.join(missing) or 'none'}", remedy
    )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _keys() -> Iterator[Finding]:
    places = {vendor: place for vendor in VARIABLES if (place := place_of(vendor)) is not None}
    for vendor, place in places.items():
        yield Finding("ok", "keys", f"{vendor}: {place}")
    if not places:
        yield Finding("warn", "keys", "none", "windlass keys set openai, or use a model without a key: local:smollm2")


def _store() -> Iterator[Finding]:
    folder = data_folder()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        database = sqlite3.connect(Path(place) / "probe.db")
        database.execute("CREATE TABLE probe (x)")
        database.close()
    if (file := folder / "sessions.db").exists():
        database = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        database.close()
    kind = _file_system(folder)
    if kind in NETWORK:
        remedy = "set WINDLASS_HOME to a folder on a local disk, or use PostgreSQL"
        yield Finding("warn", "store", f"{folder} is on a network file system ({kind})", remedy)
    else:
        yield Finding("ok", "store", f"{folder} is writable")


def _file_system(folder: Path) -> str:
    """The type of the file system of a folder; "" if the system does not say."""
    try:
        rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    inside = [(row[1], row[2]) for row in rows if len(row) > 2 and folder.resolve().is_relative_to(row[1])]
    return max(inside, key=lambda one: len(one[0]), default=("", ""))[1]


def _isolation() -> Iterator[Finding]:
    from windlass.tools import Workspace

    with tempfile.TemporaryDirectory() as folder:
        found = Workspace(folder).isolation
    remedy = (
        "" if found.isolated else "install bubblewrap, or pip install 'windlass[tools]'; every command is asked about"
    )
    yield Finding("ok" if found.isolated else "warn", "isolation", str(found), remedy)


def _ripgrep() -> Iterator[Finding]:
    from windlass.tools.grepping import find_ripgrep

    place = find_ripgrep()
    remedy = "pip install 'windlass[tools]' makes searches faster"
    yield Finding("ok", "ripgrep", place) if place else Finding("warn", "ripgrep", "not installed", remedy)


def _terminal() -> Iterator[Finding]:
    size = shutil.get_terminal_size()
    kind = os.environ.get("TERM", "")
    encoding = getattr(sys.stdout, "encoding", None) or ""
    where = f"{size.columns}x{size.lines}, TERM={kind or 'not set'}" if is_terminal() else "output is not a terminal"
    if encoding.lower().replace("-", "") not in ("utf8", ""):
        yield Finding("warn", "terminal", f"{where}; encoding {encoding}", "set PYTHONUTF8=1")
    else:
        yield Finding("ok", "terminal", where)


def _trusted() -> Iterator[Finding]:
    changed = [name for name in trusted() if Path(name).is_file() and not is_trusted(name)]
    for name in changed:
        yield Finding("warn", "trusted", f"{name} has changed", "look at it with: windlass trust")
    yield Finding("ok", "trusted", f"{len(trusted()) - len(changed)} files")


def _model(name: str) -> Iterator[Finding]:
    from windlass import Agent
    from windlass.outcomes import Failed

    with working(f"asks {name}"):
        result = Agent(name, max_steps=1).run_sync("Answer with OK.")
    if isinstance(result.outcome, Failed):
        error = result.outcome.error
        yield Finding(
            "fail", "model", f"{name}: {error.type}: {error.message}", "check the name, the key and the network"
        )
    else:
        yield Finding("ok", "model", f"{name} answers")
