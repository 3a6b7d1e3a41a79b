"""Starts a shell below a process that ends all its children with it; with Landlock and namespaces around them if asked.

It runs as a script, in a process of its own, and needs the standard library only. Its first argument is a plan in JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
from typing import Any

_PDEATHSIG, _NO_NEW_PRIVS, _SUBREAPER = 1, 38, 36
_NEW = 0x00020000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # ns, user, pid, net, ipc, uts
_BIND, _REC, _PRIVATE, _REMOUNT, _READ_ONLY = 4096, 16384, 1 << 18, 32, 1
_KEPT = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR, _CREATE_RULESET, _ADD_RULE, _RESTRICT = 428, 429, 442, 444, 445, 446
_HERE, _CLONE, _RECURSIVE, _FROM_DESCRIPTOR = -100, 1, 0x8000, 4
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read files, list folders
_ALL = (1 << 13) - 1
_WRITE_FILE, _READ_FILE, _TRUNCATE = 1 << 1, 1 << 2, 1 << 14


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def die_with_parent(how: int) -> None:
    """Let the system send a signal to this process when its parent dies."""
    _checked(_libc().prctl(_PDEATHSIG, how, 0, 0, 0), "prctl")


def enter_namespaces() -> None:
    """Own users, mounts, processes, network. The user is an ordinary one in there, and the caller's outside."""
    user, group = os.getuid(), os.getgid()
    _checked(_libc().unshare(_NEW), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _mount(None, "/", None, _REC | _PRIVATE)


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _checked(_libc().mount(*texts, ctypes.c_ulong(flags), None), f"mount {target}")


def close_mounts(writable: list[str]) -> None:
    """Make all mounts read-only except for some folders.

    Landlock alone would let commands change modes, times and attributes of files elsewhere.
    """
    libc = _libc()
    folders = [os.fsencode(path) for path in writable if os.path.isdir(path)]
    trees = [
        _checked(libc.syscall(_OPEN_TREE, _HERE, path, _CLONE | _RECURSIVE | os.O_CLOEXEC), f"open_tree {path!r}")
        for path in folders
    ]
    attributes = struct.pack("=QQQQ", 1, 0, 0, 0)  # read-only
    closed = libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, attributes, ctypes.c_size_t(len(attributes)))
    _checked(closed, "mount_setattr")
    for tree, path in zip(trees, folders, strict=True):
        moved = libc.syscall(_MOVE_MOUNT, tree, b"", _HERE, path, _FROM_DESCRIPTOR)
        _checked(moved, f"move_mount {path!r}")
        os.close(tree)


def protect(plan: dict[str, list[str]]) -> None:
    """Hide folders, and make files and folders read-only. Mount points cannot be moved or deleted."""
    for path in plan["pinned"]:
        _mount(path, path, None, _BIND | _REC)
    for path in plan["locked"]:
        _mount(path, path, None, _BIND | _REC)
        kept = os.statvfs(path).f_flag
        relative = 1 << 21 if kept & 4096 else 0  # relatime has another number here
        _mount(None, path, None, _BIND | _REMOUNT | _READ_ONLY | kept & _KEPT | relative)
    for path in plan["masked"]:
        if os.path.isdir(path):
            _mount("none", path, "tmpfs", 2 | 4)
        else:
            _mount("/dev/null", path, None, _BIND)
    for path in plan["hidden"]:
        _mount("none", path, "tmpfs", 2 | 4)


def restrict(readable: list[str], writable: list[str]) -> None:
    """Let this process and its children read and write nothing else (Landlock)."""
    libc = _libc()
    version = _checked(libc.syscall(_CREATE_RULESET, None, 0, 1), "Landlock")
    handled = _ALL | (1 << 13 if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", handled)
    ruleset = _checked(libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0), "Landlock")
    for paths, rights in ((readable, _READ), (writable, handled)):
        for path in paths:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = rights if os.path.isdir(path) else rights & (1 | _WRITE_FILE | _READ_FILE | _TRUNCATE)
            rule = struct.pack("=Qi", allowed & handled, opened)
            _checked(libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"Landlock: {path}")
            os.close(opened)
    _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _checked(libc.syscall(_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


def descendants(pid: int) -> list[int]:
    """The processes below one, found in /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
    found, pending = [], [pid]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def kill_below(pid: int) -> None:
    """Kill all processes below one, and those that they start meanwhile."""
    for how in (signal.SIGSTOP, signal.SIGKILL):  # a process that stands still starts no other
        for _ in range(200):
            alive = [
                one
                for one in descendants(pid)
                if _state(one) not in (("T", "Z", "t") if how is signal.SIGSTOP else ("Z",))
            ]
            if not alive:
                break
            for one in alive:
                try:
                    os.kill(one, how)
                except OSError:
                    pass


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "Z"


def _serve(command: list[str]) -> int:
    """Run a command as a child, and reap all that is left to this process until the command ends."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execvp(command[0], command)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _isolated(plan: dict[str, Any], command: list[str]) -> int:
    """Run a command with namespaces and Landlock around it. All that it started ends with it."""
    enter_namespaces()
    first = os.fork()
    if first:
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    die_with_parent(signal.SIGKILL)
    _mount("proc", "/proc", "proc", 2 | 4 | 8)
    close_mounts(plan["writable"])
    os.chdir(plan["folder"])  # the folder is another mount now
    protect(plan)
    restrict(plan["readable"], plan["writable"])
    os._exit(abs(_serve(command)) & 255)


def main() -> None:
    """Start the command in the rest of the arguments, as the plan says."""
    plan, command = json.loads(sys.argv[1]), sys.argv[2:]
    os.chdir(plan["folder"])
    if plan["isolated"]:
        die_with_parent(signal.SIGKILL)
        sys.exit(abs(_isolated(plan, command)) & 255)
    if sys.platform == "linux":
        _checked(_libc().prctl(_SUBREAPER, 1, 0, 0, 0), "prctl")
        die_with_parent(signal.SIGTERM)

    def end(number: int, frame: object) -> None:
        kill_below(os.getpid())
        os._exit(143)

    signal.signal(signal.SIGTERM, end)
    status = _serve(command)
    if sys.platform == "linux":
        kill_below(os.getpid())
    sys.exit(abs(status) & 255)


if __name__ == "__main__":
    main()
