"""Reads an SQLite file that this process may not write, such as a backup, and creates nothing beside it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path


def is_read_only(path: Path) -> bool:
    """Whether there is a file, and this process may not write it, or not create the files that writing needs."""
    if not path.exists():
        return False
    if not os.access(path, os.W_OK):
        return True
    beside = (_beside(path, "-wal"), _beside(path, "-shm"))
    return not os.access(path.parent, os.W_OK) and not all(os.access(file, os.W_OK) for file in beside)


def open_read_only(path: Path, wait: float) -> tuple[sqlite3.Connection, bool]:
    """Open a file for reading, with the records in its write-ahead log, and tell whether locks protect the reader.

    If there is an index of that log (`-shm`), other processes may be writing: SQLite uses the index and its locks.
    Without an index nobody is writing: SQLite makes one in memory. Without a log there is nothing but the file. In
    these two cases a process may begin to write meanwhile: compare `state_of` before and after.
    """
    if _beside(path, "-shm").exists():
        try:
            return _opened(path, "mode=ro", wait), True
        except sqlite3.OperationalError:  # the log is missing, and cannot be created
            pass
    if _size(_beside(path, "-wal")):
        unlocked = "win32-none" if os.name == "nt" else "unix-none"
        return _opened(path, f"mode=ro&vfs={unlocked}", wait, "PRAGMA locking_mode = EXCLUSIVE"), False
    return _opened(path, "mode=ro&immutable=1", wait), False


def copy_of(db: sqlite3.Connection) -> sqlite3.Connection:
    """A copy in a temporary file, which SQLite deletes when the connection is closed."""
    copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    db.backup(copy)
    return copy


def state_of(path: Path) -> tuple[object, ...]:
    """Changes whenever the file or its write-ahead log is changed."""
    stats = [file.stat() if file.exists() else None for file in (path, _beside(path, "-wal"))]
    return tuple([stat and (stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats])


def _opened(path: Path, options: str, wait: float, *pragmas: str) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, timeout=wait, isolation_level=None)
    try:
        for pragma in pragmas:
            db.execute(pragma)
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
