"""Environments into which a wheel is installed, and what must work in them: the README, the demo, and each extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

from .packages import PROJECT, SOURCE

UV = Path(sys.executable).parent / "uv"
USES = {path.stem.removeprefix("use_"): path for path in (Path(__file__).parent / "uses").glob("use_*.py")}
"""The script that tries each extra."""
NOT_FOR_USERS = (
    r"(?:^|[\s(`'\"])(?:docs|examples|tests|src/windlass|benchmarks|release)/\S+|[`$] ?make [a-z]+|CONTRIBUTING\.md"
)
"""What a wheel does not have."""


class Environment:
    """A virtual environment in a folder of its own. Commands run in another one, and see nothing of the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.bin = folder / "env" / "bin"
        self._command([str(UV), "venv", "--quiet", "--python", sys.executable, str(folder / "env")], PROJECT)
        self.work.mkdir()

    @property
    def packages(self) -> Path:
        """Where packages are installed."""
        (found,) = (self.folder / "env" / "lib").glob("python*/site-packages")
        return found

    def install(self, *what: str) -> None:
        """Install packages as users do; with pip if uv cannot."""
        given = ["install", "--quiet", *what]
        done = subprocess.run([str(UV), "pip", *given, "--python", str(self.bin / "python")], capture_output=True)
        if done.returncode:
            pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "-qq", *given]
            self._command(pip, PROJECT)

    def install_offline(self, wheel: Path, needed: list[str]) -> None:
        """Install a wheel, and lend it what it needs from the environment of this process: no network is used."""
        self._command(
            [str(UV), "pip", "install", "--quiet", "--no-deps", "--python", str(self.bin / "python"), str(wheel)],
            PROJECT,
        )
        for name in _closure(needed):
            for top in {Path(str(file)).parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
                source = Path(str(distribution(name).locate_file(top)))
                if not (self.packages / top).exists() and source.exists():
                    (self.packages / top).symlink_to(source)

    def run(self, *command: str, more: Mapping[str, str] | None = None) -> str:
        """Run a program of the environment; what it printed. An error ends the release."""
        return self._command([str(self.bin / command[0]), *command[1:]], self.work, more or {})

    def script(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """Run a Python script in the environment."""
        (self.work / "script.py").write_text(text, encoding="utf-8")
        return self.run("python", "-W", "error::DeprecationWarning:windlass", "script.py", more=more)

    def _command(self, command: list[str], where: Path, more: Mapping[str, str] | None = None) -> str:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WINDLASS", "VIRTUAL"))
        }
        home = {
            "WINDLASS_HOME": str(self.folder / "home"),
            "WINDLASS_CONFIG": str(self.folder / "config"),
            **(more or {}),
        }
        given = {**kept, **home} if more is not None else kept
        done = subprocess.run(command, cwd=where, env=given, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(command)} ends with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout


def _closure(names: list[str]) -> list[str]:
    """Distributions with all that they need, as they are installed here."""
    from packaging.requirements import Requirement

    found: list[str] = []
    for name in names:
        todo = [name]
        while todo:
            one = todo.pop()
            if one not in found:
                found.append(one)
                lines = [Requirement(line) for line in distribution(one).requires or ()]
                todo += [line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    return found


@contextmanager
def environment() -> Iterator[Environment]:
    """A fresh environment that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="windlass-dist-") as folder:
        yield Environment(Path(folder))


# ---------------------------------------------------------------- what must work


def check_installed(env: Environment) -> None:
    """The files are those of the wheel, and the command runs."""
    place = env.script("import windlass; print(windlass.__file__)").strip()
    assert place.startswith(str(env.packages)), f"{place} is not in the environment"
    for name in ("py.typed", "inspector/static/index.html"):
        assert (env.packages / "windlass" / name).exists(), f"{name} is not installed"
    version = env.script("import windlass; print(windlass.__version__)").strip()
    assert env.run("windlass", "--version").strip().endswith(version)


def check_demo(env: Environment) -> None:
    """The demo runs, and names nothing that users do not have."""
    told = env.run("windlass", "demo")
    assert "ended       Completed" in told, told
    _names_only_what_users_have("windlass demo", told)


def check_commands(env: Environment) -> None:
    """Neither `init`, nor its file, nor any help names what users do not have."""
    _names_only_what_users_have("windlass init", env.run("windlass", "init", "--yes", "--name", "clerk"))
    _names_only_what_users_have("agent.toml", (env.work / "agent.toml").read_text(encoding="utf-8"))
    listing = env.script(
        "import click, json\nfrom windlass.cli import LazyCommand, main\n"
        "def walk(command, path):\n"
        "    command = command.load() if isinstance(command, LazyCommand) else command\n"
        "    yield path, command.help or '', [getattr(p, 'help', '') or '' for p in command.params]\n"
        "    for name, one in getattr(command, 'commands', {}).items():\n"
        "        yield from walk(one, [*path, name])\n"
        "print(json.dumps(list(walk(main, ['windlass']))))\n"
    )
    for path, text, options in json.loads(listing):
        _names_only_what_users_have(" ".join(path), "\n".join([text, *options]))


def _names_only_what_users_have(what: str, text: str) -> None:
    found = re.search(NOT_FOR_USERS, text, re.MULTILINE)
    assert found is None, f"{what} names {found[0].strip()!r}, which users of a wheel do not have"


def check_sources() -> None:
    """No message and no docstring of the package names a path of the repository."""
    for path in SOURCE.rglob("*.py"):
        _names_only_what_users_have(str(path.relative_to(PROJECT)), path.read_text(encoding="utf-8"))


FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def check_readme(env: Environment, more: Mapping[str, str]) -> None:
    """The Python of the README runs, one block after the other."""
    blocks = FENCED.findall((PROJECT / "README.md").read_text(encoding="utf-8"))
    assert blocks, "README.md has no Python"
    env.script("\n\n".join(blocks), more)


def readme_commands() -> list[str]:
    """The commands of the README that users of a wheel can run."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    lines = [line[2:] for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
             for line in block.splitlines() if line.startswith("$ ")]  # fmt: skip
    return [re.sub(r"\s+#.*", "", line) for line in lines if not line.startswith(("$ make", "make ", "cd ", "git "))]


def extras_in(text: str) -> list[str]:
    """The extras that a `pip install` names."""
    found = re.search(r"windlass\[([\w,-]+)\]", text)
    return found[1].split(",") if found is not None else []
