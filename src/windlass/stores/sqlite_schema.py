"""The tables of an SQLite file, their version, and the upgrades from earlier versions."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from windlass.errors import StoreError

VERSION = 3
APPLICATION = 0x57494E44  # "WIND"
SCHEMA = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL DEFAULT 'open',
    agent TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '', started REAL NOT NULL, updated REAL NOT NULL,
    records INTEGER, head BLOB, parent TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX children ON sessions (parent) WHERE parent != '';
CREATE TABLE batches (
    session INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, link BLOB NOT NULL, data BLOB NOT NULL,
    pruned INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE TABLE asks (
    position INTEGER PRIMARY KEY, session INTEGER NOT NULL, id BLOB NOT NULL, data BLOB NOT NULL, UNIQUE (session, id)
);
CREATE TABLE inbox (
    session TEXT NOT NULL, key BLOB NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, key)
) WITHOUT ROWID;
CREATE INDEX waiting ON inbox (session) WHERE taken = 0;
CREATE TABLE cursors (
    session TEXT NOT NULL, reader TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (session, reader)
) WITHOUT ROWID;
CREATE TABLE pipelines (digest TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
"""
MIGRATIONS: dict[int, str] = {
    1: """
UPDATE sessions SET records = coalesce((SELECT max(seq + count) FROM batches WHERE session = number), 0),
    head = coalesce((SELECT link FROM batches WHERE session = number ORDER BY seq DESC LIMIT 1), zeroblob(16))
    WHERE status != 'erased';
UPDATE inbox SET data = x'' WHERE taken = 1;
""",
    2: """
ALTER TABLE sessions ADD COLUMN parent TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
CREATE INDEX children ON sessions (parent) WHERE parent != '';
""",
}
"""The SQL that upgrades each version to the next."""


def check_version(db: sqlite3.Connection, path: Path) -> int:
    """The version of the file. A file of a newer version or of another application is refused and not changed.

    The tables are counted first: a process that creates the file right now writes all three in one transaction.
    """
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if application != APPLICATION and tables:
        raise StoreError(f"{path} is an SQLite file of another application; use another file")
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer Windlass (format {version}; this version reads up to {VERSION}); "
            "install the newer version, or use another file. Nothing was changed"
        )
    return version


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or upgrade them step by step, in one transaction."""
    if check_version(db, path) == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = check_version(db, path)
        if version == 0:
            _run(db, SCHEMA)
        while 0 < version < VERSION:
            _run(db, MIGRATIONS[version])
            version += 1
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _run(db: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        if statement.strip():
            db.execute(statement)
